# SPDX-License-Identifier: Apache-2.0
"""`TrajectoryReplayBuffer.compact`: what deletions left in segments goes, and nothing else."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from buffers import ks_of, open_store
from relive import Limits, TrajectoryReplayBuffer, files, open_files
from relive.errors import CorruptFileError, StorageWriteError
from relive.formats import MemmapFormat
from relive.journal import Journal
from relive.leases import Lease
from trajectories import address_of, same_trajectory, traj

NUM = 24


def fill(folder: Path, **options: Any) -> TrajectoryReplayBuffer:
    options = {"trajectory_format": "memmap", "sample_window_size": 0, **options}
    buffer = open_store(folder, framework="numpy", **options)
    for k in range(NUM):
        buffer.add_trajectories([traj(k, T=3 + k % 4, B=1 + k % 2, weights_id=f"w{k}")])
    buffer.flush()
    return buffer


def check(buffer: TrajectoryReplayBuffer, ids: list[int]) -> None:
    """Compare all that is held with what was added."""
    assert len(buffer) == len(ids)
    for k in ids:
        expected = traj(k, T=3 + k % 4, B=1 + k % 2, weights_id=f"w{k}")
        assert same_trajectory(buffer.trajectory(k), expected)
    assert ks_of(buffer) <= set(ids)


def segment_bytes(folder: Path) -> int:
    return sum(p.stat().st_size for p in (folder / "segments").rglob("*.bin"))


class TestCompact:
    @pytest.mark.parametrize("form", ["memmap", "small segments"])
    def test_only_what_is_held_takes_room(self, form: str, tmp_path: Path) -> None:
        kind = "memmap" if form == "memmap" else MemmapFormat(segment_bytes=4000)
        with fill(tmp_path / "whole", trajectory_format=kind) as whole:
            whole.delete(range(1, NUM, 2))
            before = segment_bytes(tmp_path / "whole")
            _, info = whole.sample(64, return_info=True)
            rows = whole.gather(info.row_ids)
            freed = whole.compact()
            assert freed == before - segment_bytes(tmp_path / "whole") > before // 4
            again = whole.gather(info.row_ids)
            assert np.array_equal(again["curr_obs"]["id"], rows["curr_obs"]["id"])
            check(whole, list(range(0, NUM, 2)))
            stats = whole.get_stats()
            assert stats["disk_bytes"] == segment_bytes(tmp_path / "whole")
            assert whole.compact() == 0
            whole.add_trajectories([traj(NUM, T=3, B=1)])
            assert NUM in ks_of(whole)
        with open_store(tmp_path / "whole", if_exists="resume", sample_window_size=0) as resumed:
            assert len(resumed) == NUM // 2 + 1

    def test_order_and_draws_stay(self, tmp_path: Path) -> None:
        drawn = []
        for name in ("compacted", "left"):
            with fill(tmp_path / name, sample_window_size=5) as buffer:
                buffer.delete([3, NUM - 2])
                if name == "compacted":
                    assert buffer.compact() > 0
                drawn.append([buffer.sample(50)["curr_obs"]["id"] for _ in range(3)])
            with open_store(
                tmp_path / name, if_exists="resume", sample_window_size=5, framework="numpy"
            ) as resumed:
                drawn[-1].append(resumed.sample(50)["curr_obs"]["id"])
        assert np.array_equal(np.array(drawn[0]), np.array(drawn[1]))

    def test_what_a_killed_process_compacted_is_there(self, tmp_path: Path) -> None:
        buffer = fill(tmp_path / "store")
        buffer.delete(range(0, NUM, 3))
        buffer.compact()
        disk = buffer._store.disk
        assert disk is not None
        disk.abandon()  # as a kill would
        with open_store(
            tmp_path / "store", if_exists="resume", sample_window_size=0, framework="numpy"
        ) as again:
            check(again, [k for k in range(NUM) if k % 3])

    def test_a_checkpoint_keeps_what_it_has(self, tmp_path: Path) -> None:
        with fill(tmp_path / "store") as buffer:
            buffer.save_checkpoint(tmp_path / "saved")
            contents = {p: p.read_bytes() for p in (tmp_path / "saved").rglob("*") if p.is_file()}
            buffer.delete(range(NUM // 2))
            buffer.compact()
            check(buffer, list(range(NUM // 2, NUM)))
            assert all(path.read_bytes() == block for path, block in contents.items())
            buffer.load_checkpoint(tmp_path / "saved")
            check(buffer, list(range(NUM)))

    def test_a_view_taken_before_is_read_to_its_end(self, tmp_path: Path) -> None:
        with fill(tmp_path / "store") as buffer:
            buffer.delete([0, 5, 9])

            def read(lease: Lease) -> set[int]:
                view = buffer._store.view(0, lease)
                buffer.compact()
                located = view.window.at(np.arange(view.window.num_rows))
                assert view.schema is not None
                plan = buffer._plan(view.schema, None)
                rows, _ = buffer._store.gather(located, plan)
                return set(address_of({"curr_obs": {"id": rows["curr_obs/id"]}})[0].tolist())

            assert len(buffer._store.leased(read)) == NUM - 3
            check(buffer, [k for k in range(NUM) if k not in {0, 5, 9}])

    def test_a_trajectory_that_is_being_written_is_no_waste(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with fill(tmp_path / "store") as buffer:
            is_written, may_note, add = threading.Event(), threading.Event(), Journal.add
            found: list[list[list[int]]] = []

            def wait(self: Journal, *args: Any, **options: Any) -> Any:
                is_written.set()
                assert may_note.wait(60)
                return add(self, *args, **options)

            monkeypatch.setattr(Journal, "add", wait)
            buffer.add_trajectories([traj(NUM, T=3, B=1)])
            assert is_written.wait(60)
            # `compact` waits before it asks for this, but another thread may add in between
            looking = threading.Thread(target=lambda: found.append(buffer._store.wasteful()))
            looking.start()
            looking.join(0.05)  # if it does not wait, it looks now
            may_note.set()
            looking.join(60)
            assert found == [[]]
            assert buffer.compact() == 0

    def test_others_sample_add_and_evict_meanwhile(self, tmp_path: Path) -> None:
        with fill(tmp_path / "store", limits=Limits(max_trajectories=NUM)) as buffer:
            buffer.delete(range(0, NUM, 2))
            failures: list[BaseException] = []
            is_done = threading.Event()

            def sample() -> None:
                try:
                    while not is_done.is_set():
                        ks_of(buffer)
                except BaseException as error:  # told in the test's own thread
                    failures.append(error)

            def add() -> None:
                try:
                    for k in range(NUM, 3 * NUM):
                        buffer.add_trajectories([traj(k, T=2, B=1)])
                except BaseException as error:  # told in the test's own thread
                    failures.append(error)

            threads = [threading.Thread(target=work) for work in (sample, add)]
            for thread in threads:
                thread.start()
            for _ in range(5):
                buffer.compact()
            threads[1].join()
            is_done.set()
            threads[0].join()
            assert failures == []
            buffer.compact()
            assert len(buffer) == NUM
            assert ks_of(buffer) <= set(range(2 * NUM, 3 * NUM))

    @pytest.mark.parametrize("kind", ["memory", "pt", "pkl"])
    def test_elsewhere_there_is_nothing_to_do(self, kind: str, tmp_path: Path) -> None:
        if kind == "memory":
            buffer = TrajectoryReplayBuffer(framework="numpy")
            buffer.add_trajectories([traj(0)])
        else:
            buffer = fill(tmp_path / "store", trajectory_format=kind)
        with buffer:
            buffer.delete([0])
            assert buffer.compact() == 0


class TestFailures:
    def test_a_full_disk_leaves_everything_readable(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with fill(tmp_path / "store") as buffer:
            buffer.delete(range(0, NUM, 2))
            left = list(range(1, NUM, 2))
            write_at, calls = open_files.GrowingFile.write_at, [0]

            def refuse(self: open_files.GrowingFile, *args: Any, **options: Any) -> None:
                calls[0] += 1
                if calls[0] > 7:
                    raise OSError(errno.ENOSPC, "No space left on device")
                write_at(self, *args, **options)

            with monkeypatch.context() as patch:
                patch.setattr(open_files.GrowingFile, "write_at", refuse)
                with pytest.raises(StorageWriteError, match="No space left"):
                    buffer.compact()
                check(buffer, left)
            buffer.compact()
            check(buffer, left)
        with open_store(
            tmp_path / "store", if_exists="resume", sample_window_size=0, framework="numpy"
        ) as again:
            check(again, left)

    def test_the_first_refusal_is_told_though_the_disk_then_refuses_to_sync(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with fill(tmp_path / "store") as buffer:
            buffer.delete(range(0, NUM, 2))
            write_at, calls = open_files.GrowingFile.write_at, [0]

            def refuse(self: open_files.GrowingFile, *args: Any, **options: Any) -> None:
                calls[0] += 1
                if calls[0] > 7:
                    raise OSError(errno.ENOSPC, "No space left on device")
                write_at(self, *args, **options)

            def fail(path: Path) -> None:
                raise OSError(errno.EIO, "Input/output error", str(path))

            with monkeypatch.context() as patch:
                patch.setattr(open_files.GrowingFile, "write_at", refuse)
                patch.setattr(files, "sync_folder", fail)
                with pytest.raises(StorageWriteError, match="No space left"):
                    buffer.compact()
            check(buffer, list(range(1, NUM, 2)))
            buffer.compact()  # what was moved before goes as well
            with open_store(tmp_path / "apart", trajectory_format="memmap") as alone:
                alone.add_trajectories([buffer.trajectory(k) for k in range(1, NUM, 2)])
                alone.flush()
                least = segment_bytes(tmp_path / "apart")
            assert segment_bytes(tmp_path / "store") < 1.01 * least  # side data need not align

    def test_a_damaged_trajectory_is_named_and_the_others_stay(self, tmp_path: Path) -> None:
        with fill(tmp_path / "store") as buffer:
            buffer.delete([0])
            (path,) = (tmp_path / "store" / "segments").glob("*/side.bin")
            block = bytearray(path.read_bytes())
            block[len(block) // 2] ^= 1
            path.write_bytes(block)
            with pytest.raises(CorruptFileError, match=r"trajectory \d+"):
                buffer.compact()
            assert len(ks_of(buffer)) > NUM // 2
