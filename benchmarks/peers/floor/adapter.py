# SPDX-License-Identifier: Apache-2.0
"""The bare costs on this machine: the plainest NumPy and file calls that do each job.

Not a replay system but what none can beat: rows lie packed in memory, outputs are allocated once,
nothing is checked, indexed or synchronised.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol import serve
from workloads import WORKLOADS, Column, Workload

LARGE_ROW_BYTES = 4096
"""Columns with rows of at least this size lie apart, the others in one record a row."""


class Adapter:
    """Fills, samples and writes without any bookkeeping."""

    def version(self) -> str:
        """Return what is measured."""
        return f"bare numpy {np.__version__}"

    def open(
        self, workload: str, folder: str, auto_save: bool, enable_cache: bool, window: int
    ) -> None:
        """Take note of where and what; the data are made when they are needed."""
        self.workload = WORKLOADS[workload]
        self.file = Path(folder, "floor.bin") if auto_save else None
        self.rng = np.random.default_rng(0)
        self.batches: dict[int, _Batches] = {}
        self.memory: _Memory | None = None

    def prepare(self, count: int) -> None:
        """Make one trajectory's bytes; every add takes them again."""
        self.source = np.frombuffer(bytearray(os.urandom(self.workload.trajectory_bytes)), np.uint8)
        self.target = self.source.copy()

    def add(self) -> None:
        """Write a trajectory's bytes to a new file, or copy them when there is no folder."""
        if self.file is None:
            np.copyto(self.target, self.source)
            return
        self.file.unlink(missing_ok=True)
        with self.file.open("wb", buffering=0) as file:
            file.write(self.source.data)

    def settle(self) -> None:
        """Do nothing: an add has ended when it returns."""

    def sample(self, num: int) -> int:
        """Take random rows and split them into one contiguous array a column."""
        if self.memory is None:
            self.memory = _Memory(self.workload)
        if num not in self.batches:
            self.batches[num] = _Batches(self.memory, num)
        self.batches[num].fill(self.rng)
        return num

    def close(self) -> None:
        """Let go of the memory."""
        self.batches = {}
        self.memory = None


class _Memory:
    """All rows of a workload: small columns packed in one record a row, large ones apart."""

    def __init__(self, workload: Workload) -> None:
        self.rows = workload.trajectories * workload.steps * workload.envs
        small = [c for c in workload.columns if c.row_bytes < LARGE_ROW_BYTES]
        large = [c for c in workload.columns if c.row_bytes >= LARGE_ROW_BYTES]
        record = np.dtype([(c.name, c.dtype, c.shape) for c in small], align=True)
        packed = np.zeros(self.rows, record)
        packed.view(np.uint8)[:] = 1  # real pages, not the kernel's shared zero page
        self.packed = packed.view(f"V{record.itemsize}")
        self.items = np.dtype(
            {
                "names": [c.name for c in small],
                "formats": [_item(c) for c in small],
                "offsets": [record.fields[c.name][1] for c in small] if record.fields else [],
                "itemsize": record.itemsize,
            }
        )
        self.frames = {c.name: _page_aligned(self.rows, c.row_bytes) for c in large}
        for frames in self.frames.values():
            frames[:] = 1


class _Batches:
    """Ready outputs for one batch size."""

    def __init__(self, memory: _Memory, num: int) -> None:
        self.memory = memory
        self.num = num
        self.scratch = np.empty(num, memory.packed.dtype)
        split = self.scratch.view(memory.items)
        names = memory.items.names or ()
        self.columns = [(np.empty(num, memory.items[name]), split[name]) for name in names]
        self.frames = {
            name: _page_aligned(num, frames.shape[1]) for name, frames in memory.frames.items()
        }

    def fill(self, rng: np.random.Generator) -> None:
        picked = rng.integers(0, self.memory.rows, self.num)
        np.take(self.memory.packed, picked, out=self.scratch, mode="clip")
        for ready, field in self.columns:
            np.copyto(ready, field)
        for name, out in self.frames.items():
            np.take(self.memory.frames[name], picked, axis=0, out=out, mode="clip")


def _item(column: Column) -> str:
    # One-dimensional items copy faster than arrays of small rows.
    size = column.row_bytes
    return f"u{size}" if size in (1, 2, 4, 8) else f"V{size}"


def _page_aligned(rows: int, row_bytes: int) -> NDArray[Any]:
    # A copy between the same offsets in a page can be several times as fast as another.
    block = np.empty(rows * row_bytes + 4096, np.uint8)
    start = -block.ctypes.data % 4096
    return block[start : start + rows * row_bytes].reshape(rows, row_bytes)


if __name__ == "__main__":
    serve(Adapter())
