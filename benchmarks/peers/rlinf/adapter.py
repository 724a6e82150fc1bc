# SPDX-License-Identifier: Apache-2.0
"""RLinf's TrajectoryReplayBuffer, as installed, behind the methods that the runner calls."""

from __future__ import annotations

import importlib.metadata
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

import stand_ins
from protocol import serve
from workloads import WORKLOADS

logging.disable(logging.WARNING)
replay_buffer, structs = stand_ins.load()


class Adapter:
    """One buffer at a time."""

    def version(self) -> str:
        """Return what is measured."""
        return f"rlinf {importlib.metadata.version('rlinf')}"

    def open(
        self, workload: str, folder: str, auto_save: bool, enable_cache: bool, window: int
    ) -> None:
        """Make an empty buffer."""
        self.workload = WORKLOADS[workload]
        self.added = 0
        self.buffer = replay_buffer.TrajectoryReplayBuffer(
            enable_cache=enable_cache,
            sample_window_size=window,
            auto_save=auto_save,
            auto_save_path=folder if auto_save else "",
        )
        self.ready: list[Any] = []

    def prepare(self, count: int) -> None:
        """Make the next trajectories outside of what is timed."""
        self.ready = [self._trajectory(self.added + k) for k in reversed(range(count))]

    def add(self) -> None:
        """Add one that was prepared."""
        self.buffer.add_trajectories([self.ready.pop()])
        self.added += 1

    def settle(self) -> None:
        """Wait until all that was added is written; RLinf can only do so by ending its threads."""
        self.buffer._save_executor.shutdown(wait=True)
        self.buffer._save_executor = ThreadPoolExecutor(max_workers=20)

    def sample(self, num: int) -> int:
        """Draw one batch."""
        return len(self.buffer.sample(num)["rewards"])

    def close(self) -> None:
        """End the buffer."""
        self.buffer.close()
        self.ready = []
        del self.buffer

    def _trajectory(self, number: int) -> Any:
        fields: dict[str, Any] = {}
        for path, array in self.workload.arrays(number).items():
            head, _, tail = path.partition("/")
            tensor = torch.from_numpy(array)
            if tail:
                fields.setdefault(head, {})[tail] = tensor
            else:
                fields[head] = tensor
        return structs.Trajectory(model_weights_id="weights", **fields)


if __name__ == "__main__":
    serve(Adapter())
