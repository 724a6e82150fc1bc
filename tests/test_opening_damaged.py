# SPDX-License-Identifier: Apache-2.0
"""Opening a folder that something is wrong with: it is told, and nothing of anybody is lost."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from buffers import contents_of, open_store
from journals import Disk
from processes import num_open_below
from relive import Trajectory, TrajectoryReplayBuffer
from relive.errors import (
    ColumnMismatchError,
    CorruptFileError,
    MissingFileError,
    StorageError,
    StoreExistsError,
)
from relive.formats import MemmapFormat
from trajectories import check_rows, same_trajectory, traj

CHOICES = ["refuse", "resume", "overwrite"]
FORMATS = ["pt", "pkl", "memmap"]

IfExists = Literal["refuse", "resume", "overwrite"]


def reopen(folder: Path, if_exists: IfExists = "resume", **options: Any) -> TrajectoryReplayBuffer:
    """Open a store where, as a rule, there is one."""
    return open_store(folder, if_exists=if_exists, **options)


def make_store(folder: Path, num: int = 3, **options: Any) -> Path:
    """Make a closed store with `traj(0)` to `traj(num - 1)`."""
    with reopen(folder, "refuse", **options) as buffer:
        buffer.add_trajectories([traj(k) for k in range(num)])
    return folder


def make_killed_store(folder: Path, num: int = 3, **options: Any) -> Path:
    """Make a store as a writer leaves it that is killed after it flushed: a copy of it alive."""
    alive = folder.with_name(f"{folder.name}-alive")
    with reopen(alive, "refuse", **options) as buffer:
        buffer.add_trajectories([traj(k) for k in range(num)])
        buffer.flush()
        shutil.copytree(alive, folder)
    return folder


def file_of(folder: Path, trajectory_id: int) -> Path:
    (path,) = folder.glob(f"trajectory_{trajectory_id}_*")
    return path


def cut(path: Path) -> None:
    """Leave the first half of a file."""
    os.truncate(path, path.stat().st_size // 2)


def check_holds(buffer: TrajectoryReplayBuffer, ks: list[int]) -> None:
    """Prove that the buffer has these trajectories, each under its number as id, and no other."""
    assert len(buffer) == len(ks)
    for k in ks:
        assert same_trajectory(buffer.trajectory(k), traj(k))
    batch, info = buffer.sample(64, return_info=True)
    check_rows(batch, info, {k: k for k in ks})


class TestOtherThings:
    @pytest.mark.parametrize("if_exists", CHOICES)
    @pytest.mark.parametrize(
        "name", ["notes.txt", "metadata.json", "trajectory_0_.pt", ".draft.tmp", "notes.tmp"]
    )
    def test_a_folder_with_anything_of_others_is_refused_and_left(
        self, if_exists: IfExists, name: str, tmp_path: Path
    ) -> None:
        (tmp_path / name).write_text("mine")
        with pytest.raises(StoreExistsError, match="a folder of its own"):
            reopen(tmp_path, if_exists)
        assert contents_of(tmp_path) == {name: b"mine"}

    @pytest.mark.parametrize("name", ["notes.txt", ".draft.tmp", "trajectory_7_.pt"])
    def test_a_store_with_something_of_others_is_not_overwritten(
        self, name: str, tmp_path: Path
    ) -> None:
        folder = make_store(tmp_path / "store")
        (folder / name).write_text("mine")
        before = contents_of(folder)
        with pytest.raises(StoreExistsError, match=name):
            reopen(folder, "overwrite")
        assert contents_of(folder) == before

    @pytest.mark.parametrize("if_exists", CHOICES)
    def test_a_file_is_no_folder(self, if_exists: IfExists, tmp_path: Path) -> None:
        path = tmp_path / "file"
        path.write_text("mine")
        with pytest.raises(StoreExistsError, match="is a file"):
            reopen(path, if_exists)
        with pytest.raises(StorageError, match="cannot be opened for writing"):
            reopen(path / "below", if_exists)
        assert path.read_text() == "mine"


class TestRefusingDisk:
    @pytest.mark.parametrize("if_exists", ["resume", "overwrite"])
    @pytest.mark.parametrize("make", [make_store, make_killed_store, None])
    @pytest.mark.parametrize("trajectory_format", ["pt", "memmap"])
    def test_whatever_it_refuses_is_named_and_the_next_opening_succeeds(
        self,
        if_exists: IfExists,
        make: Callable[..., Path] | None,
        trajectory_format: str,
        tmp_path: Path,
    ) -> None:
        options = {"trajectory_format": trajectory_format}
        model = None if make is None else make(tmp_path / "model", **options)
        num_descriptors = num_open_below(tmp_path)
        for break_at in range(100):
            folder = tmp_path / str(break_at)
            if model is not None:
                shutil.copytree(model, folder)
            disk, buffer, refusal = Disk(break_at), None, None
            with disk.breaking(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of an index that was rebuilt
                try:
                    buffer = reopen(folder, if_exists, **options)
                except (OSError, ValueError) as error:
                    refusal = error
            if refusal is not None:
                assert isinstance(refusal, StorageError), repr(refusal)
                assert str(folder) in str(refusal)
                assert refusal.errno == 28
            if buffer is not None:
                if model is not None and if_exists == "resume":
                    check_holds(buffer, [0, 1, 2])
                buffer.close()
            if disk.num_done <= break_at:
                break
            assert num_open_below(tmp_path) <= num_descriptors
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                reopened = reopen(folder, "resume", **options)
            with reopened as buffer:
                if model is not None and if_exists == "resume":
                    check_holds(buffer, [0, 1, 2])
                assert len(buffer.add_trajectories([traj(7)])) == 1
        assert 3 < break_at < 99


class TestWarnings:
    def test_an_opening_that_warns_leaves_no_lock_when_warnings_are_errors(
        self, tmp_path: Path
    ) -> None:
        folder = make_killed_store(tmp_path / "store")
        cut(file_of(folder, 1))
        with pytest.raises(UserWarning, match="set aside"):  # as in all tests here
            reopen(folder)
        with pytest.warns(UserWarning, match="set aside"):
            reopen(folder).close()

    def test_bytes_that_changed_are_told_by_their_checksum(self, tmp_path: Path) -> None:
        folder = make_killed_store(tmp_path / "store")
        path = file_of(folder, 2)
        block = bytearray(path.read_bytes())
        place = block.find(np.array([2_000_000, 2_000_001]).tobytes())
        block[place] ^= 1
        path.write_bytes(block)
        with pytest.warns(UserWarning, match="trajectory 2 was set aside: .*checksum"):
            buffer = reopen(folder)
        with buffer:
            check_holds(buffer, [0, 1])


class TestDamagedTrajectory:
    @pytest.mark.parametrize("trajectory_format", ["pt", "pkl"])
    @pytest.mark.parametrize(
        ("damage", "error"),
        [(Path.unlink, MissingFileError), (cut, CorruptFileError)],
        ids=["gone", "cut"],
    )
    def test_its_file_is_named_and_the_others_stay_usable(
        self,
        trajectory_format: str,
        damage: Callable[[Path], None],
        error: type[Exception],
        tmp_path: Path,
    ) -> None:
        folder = make_store(tmp_path / "store", trajectory_format=trajectory_format)
        path = file_of(folder, 1)
        damage(path)
        with reopen(folder, trajectory_format=trajectory_format, cache_size=0) as buffer:
            with pytest.raises(error, match=path.name):
                buffer.trajectory(1)
            told = rf"{path.name}.*; restore it from a copy, or delete the trajectory$"
            with pytest.raises(error, match=told):
                buffer.sample(200)
            check_rows(buffer.gather([0, 11, 24, 35]))
            buffer.delete([1])
            check_holds(buffer, [0, 2])

    SEGMENT_FILES = (
        *("rows.bin", "curr_obs.wide.bin", "side.bin", "segment.json"),
        *("texts.bin", "text_ends.bin"),
    )

    @staticmethod
    def with_texts(k: int) -> Trajectory:
        return traj(k, wide=True, extra={"task": [f"task {k} of {b}" for b in range(3)]})

    def make_segments(self, folder: Path) -> list[Trajectory]:
        """Make a store with a segment for each of three trajectories; return these."""
        made = [self.with_texts(k) for k in range(3)]
        form = MemmapFormat(segment_bytes=1)
        with reopen(folder, "refuse", trajectory_format=form) as buffer:
            buffer.add_trajectories(made)
        return made

    @pytest.mark.parametrize("name", SEGMENT_FILES[:-1])
    def test_a_cut_segment_is_refused_at_opening_by_the_name_of_its_file(
        self, name: str, tmp_path: Path
    ) -> None:
        """Mapped, what is cut would end the process when it is sampled."""
        made = self.make_segments(tmp_path / "store")
        path = tmp_path / "store" / "segments" / "00000001" / name
        content = path.read_bytes()
        cut(path)
        for _ in range(2):
            with pytest.raises(CorruptFileError, match=name) as raised:
                reopen(tmp_path / "store", trajectory_format="memmap")
            assert raised.value.path == str(path)
        path.write_bytes(content)
        with reopen(tmp_path / "store", trajectory_format="memmap") as buffer:
            assert same_trajectory(buffer.trajectory(1), made[1])
            check_rows(buffer.sample(100))

    def test_texts_whose_ends_are_cut_never_become_others(self, tmp_path: Path) -> None:
        """How many there are stands nowhere else, so a later one could have got a code in use."""
        with reopen(tmp_path / "store", "refuse", trajectory_format="memmap") as buffer:
            buffer.add_trajectories([self.with_texts(k) for k in range(3)])
        path = tmp_path / "store" / "segments" / "00000000" / "text_ends.bin"
        os.truncate(path, 8 * 4)
        with reopen(tmp_path / "store", trajectory_format="memmap") as buffer:
            buffer.add_trajectories([self.with_texts(k) for k in range(3, 7)])
            buffer.flush()
            with pytest.raises(CorruptFileError, match=r"text_ends\.bin"):
                buffer.gather([24])
            texts = buffer.gather([0, 2, 36, 74])["extras"]["task"]
            assert texts == ["task 0 of 0", "task 0 of 2", "task 3 of 0", "task 6 of 2"]

    @pytest.mark.parametrize("name", [*SEGMENT_FILES, ""])
    def test_a_lost_segment_is_named_when_it_is_read_and_can_be_deleted(
        self, name: str, tmp_path: Path
    ) -> None:
        made = self.make_segments(tmp_path / "store")
        lost = tmp_path / "store" / "segments" / "00000001"
        (lost / name).unlink() if name else shutil.rmtree(lost)
        with reopen(tmp_path / "store", trajectory_format="memmap") as buffer:
            with pytest.raises(MissingFileError) as raised:
                buffer.trajectory(1) if name != "curr_obs.wide.bin" else buffer.gather([12])
            assert raised.value.path.startswith(str(lost))
            check_rows(buffer.gather([0, 11, 24, 35]))
            buffer.delete([1])
            buffer.add_trajectories([made[1]])
            buffer.flush()
            assert not lost.exists()
            check_rows(buffer.sample(100))
            assert same_trajectory(buffer.trajectory(3), made[1])

    def test_room_for_rows_that_no_trajectory_has_is_not_made(self, tmp_path: Path) -> None:
        folder = make_store(tmp_path / "store")
        index = json.loads((folder / "trajectory_index.json").read_text())
        index["relive"]["schema"]["columns"]["rewards"]["row_shape"] = [10**9]
        (folder / "trajectory_index.json").write_text(json.dumps(index))
        told = r"the schema has float32 \[10+\] as 'rewards', but a trajectory has float32 \[\]; "
        with pytest.warns(UserWarning, match=f"{told}the index was rebuilt"):
            buffer = reopen(folder)
        with buffer:
            check_holds(buffer, [0, 1, 2])

    def test_a_cache_that_cannot_be_filled_is_told(self, tmp_path: Path) -> None:
        folder = make_store(tmp_path / "store")
        file_of(folder, 1).unlink()
        with pytest.warns(UserWarning, match=r"cache could not be filled: .*trajectory_1_"):
            buffer = reopen(folder)
        with buffer:
            assert same_trajectory(buffer.trajectory(2), traj(2))


def rows(buffer: TrajectoryReplayBuffer) -> list[int]:
    _, info = buffer.sample(50, return_info=True)
    return [int(row_id) for row_id in info.row_ids]


def rows_after(buffer: TrajectoryReplayBuffer) -> list[int]:
    """Return what will be drawn next, without drawing it."""
    state = buffer.state_dict()
    drawn = rows(buffer)
    buffer.load_state_dict(state)
    return drawn


class TestResumedStore:
    @pytest.mark.filterwarnings("ignore:.*rebuilt from the journal")
    @pytest.mark.parametrize("kind", ["pt", "pkl"])
    @pytest.mark.parametrize("damage", ["gone", "cut"])
    def test_flush_makes_its_index_file_whole_again(
        self, damage: str, kind: str, tmp_path: Path
    ) -> None:
        index = tmp_path / "store" / "trajectory_index.json"
        with open_store(tmp_path / "store", trajectory_format=kind) as buffer:
            buffer.add_trajectories([traj(k) for k in range(3)])
        if damage == "gone":
            index.unlink()
        else:
            os.truncate(index, 100)
        with open_store(tmp_path / "store", trajectory_format=kind, if_exists="resume") as buffer:
            buffer.flush()
            assert json.loads(index.read_bytes())["trajectory_id_list"] == [0, 1, 2]

    def test_it_may_be_resumed_in_another_format(self, tmp_path: Path) -> None:
        folder = make_store(tmp_path / "store", trajectory_format="pkl")
        with reopen(folder, trajectory_format="pt") as buffer:
            buffer.add_trajectories([traj(3)])
        with reopen(folder, trajectory_format="pkl", cache_size=0) as buffer:
            check_holds(buffer, [0, 1, 2, 3])

    @pytest.mark.parametrize("if_exists", ["resume", "overwrite"])
    def test_values_of_an_earlier_run_never_show(self, if_exists: IfExists, tmp_path: Path) -> None:
        folder = tmp_path / "store"
        with reopen(folder) as buffer:
            buffer.add_trajectories([traj(0, extra={"d": np.ones((4, 3))})])
        with reopen(folder, if_exists) as buffer:
            if if_exists == "resume":
                with pytest.raises(ColumnMismatchError, match="missing: extras/d"):
                    buffer.add_trajectories([traj(1)])
                buffer.delete([0])
                buffer.add_trajectories([traj(2, extra={"d": np.full((4, 3), 2.0)})])
                assert set(buffer.sample(60)["extras"]["d"].tolist()) == {2.0}
            else:
                buffer.add_trajectories([traj(1)])
                assert "extras" not in buffer.sample(60)

    def test_copies_of_a_store_opened_on_different_streams_differ(self, tmp_path: Path) -> None:
        make_store(tmp_path / "0")
        shutil.copytree(tmp_path / "0", tmp_path / "1")
        drawn = []
        for rank in (0, 1):
            with reopen(tmp_path / str(rank), stream=(rank,)) as buffer:
                drawn.append(rows(buffer))
                expected = rows_after(buffer)
            with reopen(tmp_path / str(rank), stream=(rank,)) as buffer:
                assert rows(buffer) == expected
        assert drawn[0] != drawn[1]
