# SPDX-License-Identifier: Apache-2.0
"""A field larger than four GiB, where 32-bit sizes and old pickle protocols end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from relive import Trajectory, TrajectoryReplayBuffer

SIZE = (5 << 30) + 3


class TestLargeFields:
    @pytest.mark.slow
    @pytest.mark.parametrize("trajectory_format", ["pt", "pkl", "memmap"])
    def test_one_of_five_gib_is_saved_and_loaded(
        self, tmp_path: Path, trajectory_format: str
    ) -> None:
        field = np.zeros((1, 1, SIZE), np.uint8)
        field[0, 0, [0, -1]] = 3, 7
        with TrajectoryReplayBuffer(trajectory_format=trajectory_format) as buffer:
            buffer.add_trajectories([Trajectory(actions=field)])
            buffer.save_checkpoint(tmp_path / "saved")
        del buffer, field
        other = TrajectoryReplayBuffer(framework="numpy")
        other.load_checkpoint(tmp_path / "saved")
        row = other.gather([0])["actions"][0]
        assert row.shape == (SIZE,)
        assert row[[0, 1, -2, -1]].tolist() == [3, 0, 0, 7]
