# SPDX-License-Identifier: Apache-2.0
"""`load_checkpoint` and `convert` of stores: killed in the middle, or evicting while they read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import relive
from buffers import ks_of, open_store
from programs import run_program
from relive import TrajectoryReplayBuffer, checkpoint_reading, files
from relive.errors import MissingFileError
from trajectories import check_rows, make_checkpoint, traj

KINDS = ("pt", "pkl", "memmap")

KILLED = """
import os, sys, warnings
import relive.disk, relive.folder
from buffers import open_store

kind, folder, saved, moment = sys.argv[1:]
warnings.simplefilter("ignore")
from trajectories import traj

def die(*_):
    os._exit(0)

buffer = open_store(folder, trajectory_format=kind)
buffer.add_trajectories([traj(10 + k) for k in range(3)])
buffer.flush()
if moment == "nothing is moved":
    relive.disk.set_aside = die
elif moment == "what was there is aside":
    relive.disk.finish_moves = die
else:
    relive.disk.Journal.mark_moved = die
buffer.load_checkpoint(saved)
"""


class TestKilledAmidALoad:
    @pytest.mark.filterwarnings("ignore:.*aside", "ignore:.*hold nothing that is in the index")
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize(
        "moment", ["nothing is moved", "what was there is aside", "all is moved"]
    )
    def test_it_is_read_as_the_journal_says(self, moment: str, kind: str, tmp_path: Path) -> None:
        saved, killed = tmp_path / "saved", tmp_path / "killed"
        with TrajectoryReplayBuffer(trajectory_format=kind) as buffer:
            buffer.add_trajectories([traj(20 + k) for k in range(3)])
            buffer.save_checkpoint(saved)
        run_program(KILLED, kind, killed, saved, moment)
        options: dict[str, Any] = {"trajectory_format": kind, "enable_cache": False}
        with open_store(tmp_path / "target", **options) as target:
            target.add_trajectories([traj(1)])
            target.load_checkpoint(killed)
            assert ks_of(target) == {20, 21, 22}
        relive.convert(killed, tmp_path / "converted", trajectory_format="pt")
        with TrajectoryReplayBuffer() as converted:
            converted.load_checkpoint(tmp_path / "converted")
            assert ks_of(converted) == {20, 21, 22}
        with open_store(killed, if_exists="resume", **options) as again:
            assert ks_of(again) == {20, 21, 22}


class TestEviction:
    @pytest.mark.parametrize("kind", KINDS[:2])
    def test_a_file_that_goes_before_it_is_copied_is_not_missed(
        self, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        options: dict[str, Any] = {"trajectory_format": kind, "sample_window_size": 0}
        with open_store(tmp_path / "source", **options) as source:
            source.add_trajectories([traj(k) for k in range(5)])
            source.flush()
            copy = files.copy

            def evict_first(*arguments: Any, **further: Any) -> None:
                if len(source) == 5:
                    source.delete([0])
                    source.flush()
                copy(*arguments, **further)

            monkeypatch.setattr(files, "copy", evict_first)
            with open_store(tmp_path / "target", **options) as target:
                with pytest.warns(UserWarning, match="is open for writing"):
                    target.load_checkpoint(tmp_path / "source")
                assert ks_of(target) == {1, 2, 3, 4}

    def test_one_that_evicts_for_ever_is_given_up(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        make_checkpoint(tmp_path / "saved", [traj(k) for k in range(2)])
        (tmp_path / "saved" / "trajectory_1_.pt").unlink()
        numbers = iter(range(1000))
        monkeypatch.setattr(
            checkpoint_reading, "_generations", lambda _: [("evicted", 0, next(numbers))]
        )
        with TrajectoryReplayBuffer() as buffer:
            buffer.add_trajectories([traj(7)])
            with pytest.raises(MissingFileError, match="or evict from it") as caught:
                buffer.load_checkpoint(tmp_path / "saved")
            assert caught.value.path.endswith("trajectory_1_.pt")
            check_rows(buffer.sample(3))
