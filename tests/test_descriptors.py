# SPDX-License-Identifier: Apache-2.0
"""Few files are open at a time, however many trajectories there are (B53)."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

SCRIPT = """
    import os, resource, sys

    import torch

    from relive import Trajectory, TrajectoryReplayBuffer

    folder, kind, num_batches = sys.argv[1], sys.argv[2], int(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

    def num_open():
        return len(os.listdir("/proc/self/fd"))

    before, most = num_open(), 0
    buffer = TrajectoryReplayBuffer(
        auto_save=True,
        auto_save_path=os.path.join(folder, "store"),
        trajectory_format=kind,
        sample_window_size=0,
        cache_size=2,
    )
    for k in range(300):
        columns = {f"c{n}": torch.full((2, 2), 10 * k + n) for n in range(7)}
        buffer.add_trajectories([Trajectory(rewards=torch.full((2, 2), k), curr_obs=columns)])
        most = max(most, num_open())
    buffer.flush()
    for _ in range(num_batches):
        batch = buffer.sample(256)
        for n in range(7):
            assert torch.equal(batch["curr_obs"][f"c{n}"], 10 * batch["rewards"] + n)
        most = max(most, num_open())
    buffer.save_checkpoint(os.path.join(folder, "checkpoint"))
    most = max(most, num_open())
    other = TrajectoryReplayBuffer(sample_window_size=0)
    other.load_checkpoint(os.path.join(folder, "checkpoint"))
    assert len(other) == 300
    buffer.close()
    print(most - before, num_open() - before)
"""

MOST_OPEN = 6
"""Descriptors of a store: its lock and its journal, and while something is written or read the
file, its folder, and the source of a copy. One is the listing that counts them."""


@pytest.mark.skipif(sys.platform != "linux", reason="descriptors are counted in /proc")
class TestDescriptors:
    @pytest.mark.parametrize(("kind", "num_batches"), [("pt", 200), ("pkl", 4)])
    def test_300_trajectories_of_8_columns_need_few(
        self, kind: str, num_batches: int, tmp_path: Path
    ) -> None:
        ran = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(SCRIPT), str(tmp_path), kind, str(num_batches)],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert ran.returncode == 0, ran.stderr
        most, left = map(int, ran.stdout.split())
        assert most <= MOST_OPEN
        assert left == 0
