# SPDX-License-Identifier: Apache-2.0
"""What once went wrong when somebody tried to break a buffer, each as a small story."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from buffers import open_store
from programs import run_program
from relive import Columns, Limits, Trajectory, TrajectoryReplayBuffer, files, open_files
from relive.errors import (
    ColumnMismatchError,
    InvalidArgumentError,
    MissingFileError,
    StorageError,
    StorageWriteError,
    UnsupportedValueError,
)
from relive.formats.memmap.packing import Packed
from relive.formats.memmap.segment_files import SegmentWriter
from relive.numbering import Numbering
from trajectories import check_rows, traj


def open_whole(path: Path, **options: Any) -> TrajectoryReplayBuffer:
    """Open a store whose window is all of it."""
    return open_store(path, sample_window_size=0, framework="numpy", **options)


def save_ranks(parent: Path, num: int) -> None:
    for rank in range(num):
        buffer = TrajectoryReplayBuffer(framework="numpy")
        buffer.add_trajectories([traj(2 * rank), traj(2 * rank + 1)])
        buffer.save_checkpoint(parent / f"rank_{rank}")


class TestCounters:
    def test_numpy_integers_are_counted_as_plain_ones(self, tmp_path: Path) -> None:
        with open_whole(tmp_path / "store") as buffer:
            buffer.add_trajectories([traj(0)])
            for _ in range(3):
                check_rows(buffer.sample(np.uint8(200)))
            assert buffer.get_stats()["sampled_chunks"] == 600
            buffer.save_checkpoint(tmp_path / "saved")

    def test_a_batch_that_no_memory_holds_is_refused(self) -> None:
        buffer = TrajectoryReplayBuffer(framework="numpy")
        buffer.add_trajectories([traj(0)])
        with pytest.raises(InvalidArgumentError, match="num_chunks"):
            buffer.sample(1 << 63)

    def test_a_length_that_no_index_holds_is_refused_when_added(self) -> None:
        trajectory = Trajectory(rewards=np.zeros((3, 2)), max_episode_length=1 << 63)
        with pytest.raises(UnsupportedValueError, match="max_episode_length"):
            TrajectoryReplayBuffer().add_trajectories([trajectory])

    def test_ids_of_what_was_deleted_before_it_was_written_are_not_given_again(
        self, tmp_path: Path
    ) -> None:
        program = (
            "import os, signal, sys, threading\n"
            "from relive import TrajectoryReplayBuffer\n"
            "from relive.formats import PtFormat\n"
            "from trajectories import traj\n"
            "may_write = threading.Event()\n"
            "write = PtFormat.write\n"
            "def held(*args, **options):\n"
            "    may_write.wait(60)\n"
            "    return write(*args, **options)\n"
            "PtFormat.write = held\n"
            "buffer = TrajectoryReplayBuffer(auto_save=True, auto_save_path=sys.argv[1])\n"
            "buffer.add_trajectories([traj(0), traj(1), traj(2)])\n"
            "buffer.delete([1, 2])\n"
            "may_write.set()\n"
            "buffer.flush()\n"
            "print(buffer.trajectory_counter, flush=True)\n"
            "os._exit(0)\n"
        )
        assert int(run_program(program, tmp_path / "store")) == 3
        with open_whole(tmp_path / "store", if_exists="resume") as buffer:
            assert buffer.trajectory_counter == 3


class TestFailedSync:
    @pytest.mark.parametrize("trajectory_format", ["pt", "pkl", "memmap"])
    def test_what_is_tried_again_stays_as_the_index_describes_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trajectory_format: str
    ) -> None:
        options = {"trajectory_format": trajectory_format, "durability": "power"}
        buffer = open_whole(tmp_path / "store", **options)
        sync, failures = open_files.AppendFile.sync, [True]

        def refuse_once(self: open_files.AppendFile) -> None:
            if failures:
                failures.pop()
                raise OSError(errno.EIO, "disk is ill")
            sync(self)

        monkeypatch.setattr(open_files.AppendFile, "sync", refuse_once)
        written = []
        write_atomic = files.write_atomic

        def note(path: Path, *args: Any, **options: Any) -> int:
            written.append(path.name)
            return write_atomic(path, *args, **options)

        monkeypatch.setattr(files, "write_atomic", note)
        append = SegmentWriter.append

        def note_append(self: SegmentWriter, packed: Packed, **options: Any) -> dict[str, int]:
            location = append(self, packed, **options)
            written.append(f"trajectory_0_ in row {location['row']}")
            return location

        monkeypatch.setattr(SegmentWriter, "append", note_append)
        buffer.add_trajectories([traj(0)])
        with pytest.raises(StorageWriteError, match="disk is ill"):
            buffer.flush()
        buffer.flush()
        assert sum(name.startswith("trajectory_0_") for name in written) == 1
        buffer.close()
        with open_whole(tmp_path / "store", if_exists="resume") as again:
            check_rows(again.sample(50))


class TestRankFolders:
    def test_one_between_two_renames_is_completed(self, tmp_path: Path) -> None:
        save_ranks(tmp_path, 3)
        shutil.copytree(tmp_path / "rank_1", tmp_path / ".rank_1.old")
        os.replace(tmp_path / "rank_1", tmp_path / ".rank_1.new")
        buffer = TrajectoryReplayBuffer(sample_window_size=0, framework="numpy")
        buffer.load_checkpoint(tmp_path)
        assert len(buffer) == 6

    def test_one_that_is_missing_is_named(self, tmp_path: Path) -> None:
        save_ranks(tmp_path, 3)
        shutil.rmtree(tmp_path / "rank_1")
        with pytest.raises(MissingFileError, match="lacks rank_1"):
            TrajectoryReplayBuffer().load_checkpoint(tmp_path)

    def test_the_last_that_is_missing_is_noticed_by_what_the_others_say(
        self, tmp_path: Path
    ) -> None:
        save_ranks(tmp_path / "first", 1)
        for rank in range(2):
            buffer = TrajectoryReplayBuffer(framework="numpy")
            buffer.load_checkpoint(tmp_path / "first", True, rank, 3)
            buffer.save_checkpoint(tmp_path / "second" / f"rank_{rank}")
        with pytest.raises(MissingFileError, match="saved by 3 ranks"):
            TrajectoryReplayBuffer().load_checkpoint(tmp_path / "second")

    @pytest.mark.parametrize("own_row_id", [5, 100, (1 << 40) + 7, (3 << 40) + 1])
    def test_ranks_that_change_places_share_no_row_id(self, own_row_id: int) -> None:
        saved = Numbering(10, next_row_id=100)
        starts = [
            saved.for_rank(rank, 2).not_before(Numbering(0, next_row_id=own_row_id)).next_row_id
            for rank in range(2)
        ]
        assert min(starts) >= own_row_id
        shares = [start // (1 << 40) % 2 for start in starts]
        assert shares == [0, 1]


class TestLimits:
    def test_what_a_load_brings_beyond_them_leaves_no_file(self, tmp_path: Path) -> None:
        source = TrajectoryReplayBuffer(framework="numpy")
        source.add_trajectories([traj(k) for k in range(5)])
        source.save_checkpoint(tmp_path / "saved")
        limits = Limits(max_trajectories=2)
        with open_whole(tmp_path / "store", limits=limits) as buffer:
            buffer.load_checkpoint(tmp_path / "saved")
            buffer.flush()
            assert len(buffer) == 2
            assert len(list((tmp_path / "store").glob("*.pt"))) == 2


class TestColumns:
    def test_a_side_value_where_a_column_is_declared_is_refused(self) -> None:
        buffer = TrajectoryReplayBuffer(columns=Columns(optional={"extras/x": 0.0}))
        trajectory = Trajectory(rewards=np.zeros((3, 2)), extras={"x": 3})
        with pytest.raises(ColumnMismatchError, match="extras/x is a side value"):
            buffer.add_trajectories([trajectory])
        assert len(buffer) == 0

    @pytest.mark.parametrize(
        "names",
        [
            {"rewards/x": 0},
            {"curr_obs": 0},
            {"curr_obs/x": 0, "curr_obs/x/y": 0},
            {"curr_obs//x": 0},
            {"foo/bar": 0},
            {"intervene_flag": False},
        ],
    )
    def test_a_name_that_is_no_place_in_a_trajectory_is_refused(
        self, names: dict[str, Any]
    ) -> None:
        with pytest.raises(InvalidArgumentError, match="is declared"):
            Columns(optional=names)

    def test_nonsense_is_refused(self) -> None:
        with pytest.raises(InvalidArgumentError, match="required is 5"):
            Columns(required=5)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match="drop_others"):
            Columns(drop_others="no")  # type: ignore[arg-type]


class TestCheckpoints:
    def test_what_killed_saves_left_long_ago_is_removed(self, tmp_path: Path) -> None:
        buffer = TrajectoryReplayBuffer(framework="numpy")
        buffer.add_trajectories([traj(0)])
        for name, age_s in ((".saved.0123abcd.tmp", 7200.0), (".saved.4567abcd.tmp", 0.0)):
            (tmp_path / name).mkdir()
            now = os.stat(tmp_path).st_mtime
            os.utime(tmp_path / name, (now - age_s, now - age_s))
        buffer.save_checkpoint(tmp_path / "saved")
        assert sorted(p.name for p in tmp_path.iterdir()) == [".saved.4567abcd.tmp", "saved"]

    def test_a_replaced_one_that_stays_does_not_fail_the_save(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        buffer = TrajectoryReplayBuffer(framework="numpy")
        buffer.add_trajectories([traj(0)])
        buffer.save_checkpoint(tmp_path / "saved")
        buffer.add_trajectories([traj(1)])

        def refuse(folder: Path) -> NoReturn:
            raise OSError(errno.EIO, "disk is ill")

        monkeypatch.setattr(files, "remove_folder", refuse)
        with pytest.warns(UserWarning, match="could not be removed"):
            buffer.save_checkpoint(tmp_path / "saved")
        other = TrajectoryReplayBuffer(framework="numpy")
        other.load_checkpoint(tmp_path / "saved")
        assert len(other) == 2

    def test_a_path_that_the_system_refuses_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(StorageError):
            TrajectoryReplayBuffer().load_checkpoint(tmp_path / ("n" * 300))
