# SPDX-License-Identifier: Apache-2.0
"""Few open files, however many trajectories and columns there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from programs import run_program

MOST_OPEN = 16
"""Descriptors of a program with two open buffers, its own three and those of its imports too."""

PROGRAM = """
import os, resource, sys
from pathlib import Path
import torch
from relive import TrajectoryReplayBuffer
from trajectories import check_rows, traj

folder, form = Path(sys.argv[1]), sys.argv[2]
options = dict(sample_window_size=0, auto_save=True, trajectory_format=form, framework="numpy")
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
most = 0

def look():
    global most
    most = max(most, len(os.listdir("/proc/self/fd")))

with TrajectoryReplayBuffer(auto_save_path=folder / "store", cache_size=0, **options) as buffer:
    for k in range(300):
        buffer.add_trajectories([traj(k)])
        look()
    buffer.flush()
    for _ in range(200 if form == "pt" else 5):  # "pkl" reads each file drawn from whole
        check_rows(buffer.sample(256))
        look()
    buffer.save_checkpoint(folder / "saved")
    look()
    with TrajectoryReplayBuffer(auto_save_path=folder / "other", **options) as other:
        other.load_checkpoint(folder / "saved")
        check_rows(other.sample(2560))
        look()
with TrajectoryReplayBuffer(
    auto_save_path=folder / "store", cache_size=300, if_exists="resume", **options
) as buffer:
    check_rows(buffer.sample(2560))
    look()
print(most)
"""


class TestOpenFiles:
    @pytest.mark.parametrize("trajectory_format", ["pt", "pkl", "memmap"])
    def test_a_few_are_enough_for_many_trajectories(
        self, trajectory_format: str, tmp_path: Path
    ) -> None:
        """One open file a column and trajectory used up a process's file descriptors."""
        assert int(run_program(PROGRAM, tmp_path, trajectory_format)) <= MOST_OPEN
