# SPDX-License-Identifier: Apache-2.0
"""cpprb's ReplayBuffer, as installed, behind the methods that the runner calls; in memory."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import cpprb
import numpy as np

from protocol import serve
from workloads import WORKLOADS


class Adapter:
    """One buffer at a time."""

    def version(self) -> str:
        """Return what is measured."""
        return f"cpprb {importlib.metadata.version('cpprb')}"

    def open(
        self, workload: str, folder: str, auto_save: bool, enable_cache: bool, window: int
    ) -> None:
        """Make an empty buffer with room for `window` trajectories."""
        self.workload = WORKLOADS[workload]
        self.added = 0
        self.buffer = cpprb.ReplayBuffer(
            window * self.workload.steps * self.workload.envs,
            {
                column.name: {"shape": column.shape, "dtype": np.dtype(column.dtype)}
                for column in self.workload.columns
            },
        )
        self.ready: list[dict[str, Any]] = []

    def prepare(self, count: int) -> None:
        """Make the next trajectories outside of what is timed, as rows."""
        self.ready = []
        for k in reversed(range(count)):
            arrays = self.workload.arrays(self.added + k)
            # [T, B, ...] -> [T * B, ...]
            self.ready.append({n: a.reshape(-1, *a.shape[2:]) for n, a in arrays.items()})

    def add(self) -> None:
        """Add one that was prepared."""
        self.buffer.add(**self.ready.pop())
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


if __name__ == "__main__":
    serve(Adapter())
