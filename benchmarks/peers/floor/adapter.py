# SPDX-License-Identifier: Apache-2.0
"""The bare costs on this machine: the plainest NumPy and file calls that do each job.

Not a replay system but what none can beat: rows lie packed in memory, outputs are allocated once,
nothing is checked, indexed or synchronised.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import page_cache
from bare_files import BareFiles, ColdWay, page_aligned
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
        self,
        workload: str,
        folder: str,
        auto_save: bool,
        enable_cache: bool,
        window: int,
        trajectory_format: str = "pt",
    ) -> None:
        """Take note of where and what; the data are made when they are needed."""
        self.workload = WORKLOADS[workload]
        self.window = window
        self.folder = Path(folder)
        self.file = Path(folder, "floor.bin") if auto_save else None
        self.is_appending = trajectory_format == "memmap"
        self.rng = np.random.default_rng(0)
        self.batches: dict[int, _Batches] = {}
        self.memory: _Memory | None = None
        self.bare: BareFiles | None = None

    def prepare(self, count: int) -> None:
        """Make one trajectory's bytes; every add takes them again."""
        self.source = np.frombuffer(bytearray(os.urandom(self.workload.trajectory_bytes)), np.uint8)
        self.target = self.source.copy()

    def add(self) -> None:
        """Write a trajectory's bytes to a file, or copy them when there is no folder.

        The file is a new one, or for segments always the same.
        """
        if self.file is None:
            np.copyto(self.target, self.source)
            return
        if not self.is_appending:
            self.file.unlink(missing_ok=True)
        with self.file.open("ab", buffering=0) as file:
            file.write(self.source.data)

    def fill(self, count: int) -> None:
        """Add one that was prepared again and again."""
        for _ in range(count):
            self.add()

    def sync_files(self) -> None:
        """Have all that was written on the disk."""
        page_cache.sync(self.folder)

    def make_bare(self, num_rows: int) -> None:
        """Make files of so many rows, for cold reads."""
        columns = self.workload.columns
        frames = [c.row_bytes for c in columns if c.row_bytes >= LARGE_ROW_BYTES]
        num_pairs = len(frames) // 2  # of an observation's column and the next one's
        self.bare = BareFiles(self.folder, num_rows, _record(columns).itemsize, frames[:num_pairs])

    def drop_pages(self, num: int) -> None:
        """Have nothing of the files in memory; make ready for a batch."""
        assert self.bare is not None
        self.bare.ready(num)
        page_cache.drop(self.folder)

    def sample_cold(self, num: int, how: ColdWay) -> int:
        """Read random rows out of the files."""
        assert self.bare is not None
        self.bare.sample(num, how, self.rng)
        return num

    def settle(self) -> None:
        """Do nothing: an add has ended when it returns."""

    def sample(self, num: int) -> int:
        """Take random rows and split them into one contiguous array a column."""
        if self.memory is None:
            self.memory = _Memory(self.workload, self.window)
        if num not in self.batches:
            self.batches[num] = _Batches(self.memory, num)
        self.batches[num].fill(self.rng)
        return num

    def close(self) -> None:
        """Let go of the memory."""
        self.batches = {}
        self.memory = None
        if self.bare is not None:
            self.bare.close()


class _Memory:
    """All rows of a workload: small columns packed in one record a row, large ones apart."""

    def __init__(self, workload: Workload, trajectories: int) -> None:
        self.rows = trajectories * workload.steps * workload.envs
        small = [c for c in workload.columns if c.row_bytes < LARGE_ROW_BYTES]
        large = [c for c in workload.columns if c.row_bytes >= LARGE_ROW_BYTES]
        record = _record(workload.columns)
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
        self.frames = {c.name: page_aligned(self.rows, c.row_bytes) for c in large}
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
            name: page_aligned(num, frames.shape[1]) for name, frames in memory.frames.items()
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


def _record(columns: Sequence[Column]) -> np.dtype[Any]:
    small = [c for c in columns if c.row_bytes < LARGE_ROW_BYTES]
    return np.dtype([(c.name, c.dtype, c.shape) for c in small], align=True)


if __name__ == "__main__":
    serve(Adapter())
