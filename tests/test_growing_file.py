# SPDX-License-Identifier: Apache-2.0
"""`relive.open_files.GrowingFile`: what was written is there, with or without zeros behind it."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from buffers import ks_of, open_store
from relive import Trajectory, TrajectoryReplayBuffer, open_files
from relive.open_files import GrowingFile
from trajectories import same_trajectory, traj

PAGE = 64
"""Bytes of a page in these tests."""


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_files, "HUGE_PAGE_BYTES", PAGE)
    monkeypatch.setattr(open_files, "_PADDED_FROM", 2 * PAGE)
    monkeypatch.setattr(open_files, "_ZEROS", bytes(PAGE))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rows.bin"


@pytest.fixture
def growing(path: Path) -> Iterator[GrowingFile]:
    made = GrowingFile(path, is_new=True)
    yield made
    made.close()


class TestGrowingFile:
    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        pieces=st.lists(
            st.tuples(st.binary(min_size=1, max_size=3 * PAGE), st.booleans(), st.booleans()),
            max_size=12,
        )
    )
    def test_it_ends_where_what_was_written_ends(
        self, tmp_path: Path, pieces: list[tuple[bytes, bool, bool]]
    ) -> None:
        path = tmp_path / "any.bin"
        path.unlink(missing_ok=True)
        growing, written = GrowingFile(path, is_new=True), b""
        for piece, in_huge_pages, rests in pieces:
            growing.write_at(len(written), piece, in_huge_pages=in_huge_pages)
            written += piece
            found = path.read_bytes()
            assert found[: len(written)] == written
            assert found[len(written) :] == bytes(len(found) - len(written))
            assert len(found) - len(written) < PAGE
            if rests:
                growing.close()
                assert path.read_bytes() == written
        growing.close()
        assert path.read_bytes() == written

    def test_from_some_size_on_its_end_is_that_of_a_page(
        self, growing: GrowingFile, path: Path
    ) -> None:
        sizes, end = [], 0
        for size in (PAGE, PAGE - 1, 2, PAGE, 1):
            growing.write_at(end, bytes([7] * size), in_huge_pages=True)
            end += size
            sizes.append(path.stat().st_size)
        assert sizes == [PAGE, 2 * PAGE - 1, 3 * PAGE, 4 * PAGE, 4 * PAGE]

    def test_without_room_for_zeros_the_rest_is_written(
        self, growing: GrowingFile, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*args: Any) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "pwritev", refuse)
        written = bytes(range(200))
        growing.write_at(0, written[:130], in_huge_pages=True)
        growing.write_at(130, written[130:], in_huge_pages=True)
        assert path.read_bytes() == written

    def test_what_is_cut_short_takes_no_room(
        self, growing: GrowingFile, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*args: Any) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        growing.write_at(0, bytes([1] * 200), in_huge_pages=True)
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", refuse)
            patch.setattr(os, "pwritev", refuse)
            with pytest.raises(OSError, match="No space left"):
                growing.write_at(200, bytes([2] * 200), in_huge_pages=True)
        assert path.read_bytes() == bytes([1] * 200)
        growing.write_at(200, bytes([3] * 10), in_huge_pages=True)
        growing.close()
        assert path.read_bytes() == bytes([1] * 200 + [3] * 10)


class TestStore:
    """Segments whose files have zeros behind what is in use."""

    def open(self, folder: Path, **options: Any) -> TrajectoryReplayBuffer:
        return open_store(
            folder, trajectory_format="memmap", sample_window_size=0, framework="numpy", **options
        )

    def made(self, k: int) -> Trajectory:
        return traj(k, T=2 + k % 3, B=2, wide=True)

    def fill(self, folder: Path) -> TrajectoryReplayBuffer:
        buffer = self.open(folder)
        for k in range(9):
            buffer.add_trajectories([self.made(k)])
        buffer.flush()
        return buffer

    def check(self, buffer: TrajectoryReplayBuffer, ids: set[int]) -> None:
        assert ks_of(buffer) == ids
        for k in ids:
            assert same_trajectory(buffer.trajectory(k), self.made(k))

    def test_what_a_killed_process_left_goes_on(self, tmp_path: Path) -> None:
        with self.fill(tmp_path / "store"):
            shutil.copytree(tmp_path / "store", tmp_path / "left")
        (rows,) = (tmp_path / "left" / "segments").glob("*/rows.bin")
        (closed,) = (tmp_path / "store" / "segments").glob("*/rows.bin")
        assert rows.stat().st_size > closed.stat().st_size
        with self.open(tmp_path / "left", if_exists="resume") as again:
            self.check(again, set(range(9)))
            again.add_trajectories([self.made(9)])
            again.flush()
            self.check(again, set(range(10)))

    def test_zeros_are_nothing_to_compact(self, tmp_path: Path) -> None:
        with self.fill(tmp_path / "store") as buffer:
            assert buffer.compact() == 0
            assert len(list((tmp_path / "store" / "segments").iterdir())) == 1
            buffer.delete([3])
            assert buffer.compact() > 0
            self.check(buffer, set(range(9)) - {3})

    def test_a_checkpoint_has_none(self, tmp_path: Path) -> None:
        with self.fill(tmp_path / "store") as buffer:
            buffer.save_checkpoint(tmp_path / "saved")
            (rows,) = (tmp_path / "saved" / "segments").glob("*/rows.bin")
            (open_rows,) = (tmp_path / "store" / "segments").glob("*/rows.bin")
            buffer.add_trajectories([self.made(9)])
            buffer.flush()
            self.check(buffer, set(range(10)))
            assert rows.stat().st_size < open_rows.stat().st_size
        with self.open(tmp_path / "other") as other:
            other.load_checkpoint(tmp_path / "saved")
            self.check(other, set(range(9)))
            assert other.compact() == 0
