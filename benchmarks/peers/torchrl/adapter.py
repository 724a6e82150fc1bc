# SPDX-License-Identifier: Apache-2.0
"""TorchRL's replay buffer over memory-mapped files, behind the methods that the runner calls."""

from __future__ import annotations

import importlib.metadata
import logging
from typing import Any

import torch
from tensordict import TensorDict
from torchrl.data import LazyMemmapStorage, TensorDictReplayBuffer

from protocol import serve
from workloads import WORKLOADS

logging.disable(logging.WARNING)


class Adapter:
    """One buffer at a time."""

    def version(self) -> str:
        """Return what is measured."""
        return f"torchrl {importlib.metadata.version('torchrl')}"

    def open(
        self, workload: str, folder: str, auto_save: bool, enable_cache: bool, window: int
    ) -> None:
        """Make an empty buffer with room for `window` trajectories, on disk in any case."""
        self.workload = WORKLOADS[workload]
        self.added = 0
        num_rows = window * self.workload.steps * self.workload.envs
        storage = LazyMemmapStorage(num_rows, scratch_dir=folder)
        self.buffer = TensorDictReplayBuffer(storage=storage)
        self.ready: list[Any] = []

    def prepare(self, count: int) -> None:
        """Make the next trajectories outside of what is timed, as rows."""
        self.ready = [self._rows(self.added + k) for k in reversed(range(count))]

    def add(self) -> None:
        """Add one that was prepared."""
        self.buffer.extend(self.ready.pop())
        self.added += 1

    def settle(self) -> None:
        """Do nothing: an add has ended when it returns."""

    def sample(self, num: int) -> int:
        """Draw one batch."""
        return len(self.buffer.sample(num)["rewards"])

    def close(self) -> None:
        """End the buffer."""
        self.ready = []
        del self.buffer

    def _rows(self, number: int) -> Any:
        arrays = self.workload.arrays(number)
        # [T, B, ...] -> [T * B, ...]
        rows = {
            tuple(path.split("/")): torch.from_numpy(array).flatten(0, 1)
            for path, array in arrays.items()
        }
        return TensorDict(rows, batch_size=[self.workload.steps * self.workload.envs])


if __name__ == "__main__":
    serve(Adapter())
