# SPDX-License-Identifier: Apache-2.0
"""Rows in plain files, read the plain ways: what cold rows cost without a library.

A file of records and, for a workload with images, one of frames, where a row's next frame lies
behind its own; the same bytes as a memmap store has, in files of one size.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

__all__ = ["BareFiles", "ColdWay", "page_aligned"]

ColdWay = Literal["plain", "narrow", "direct"]
"""How cold rows are read. "plain": a mapping as the kernel gives it, with its read-ahead.
"narrow": a mapping without read-ahead, and before each row the 128 KiB around it are asked for,
which is what a mapping costs at a read-ahead of 128 KiB. "direct": O_DIRECT reads by threads."""

_PAGE_BYTES = 4096
_NARROW_BYTES = 128 << 10
_BLOCK_BYTES = 64 << 20
_THREADS = 32


def page_aligned(rows: int, row_bytes: int) -> NDArray[Any]:
    """Return uninitialized `[rows, row_bytes]` that begin on a page."""
    # A copy between the same offsets in a page can be several times as fast as another.
    block = np.empty(rows * row_bytes + _PAGE_BYTES, np.uint8)
    start = -block.ctypes.data % _PAGE_BYTES
    return block[start : start + rows * row_bytes].reshape(rows, row_bytes)


class BareFiles:
    """Some files of random bytes.

    Args:
        folder: Where they are made.
        num_rows: In each of them.
        record_bytes: Of one row in the first.
        frame_bytes: Of one row in each of the others, all one size; a row is its frame and the
            one behind it.
    """

    def __init__(
        self, folder: Path, num_rows: int, record_bytes: int, frame_bytes: Sequence[int]
    ) -> None:
        self.num_rows = num_rows
        sizes = [(record_bytes, 1), *((size, 2) for size in frame_bytes)]
        self._files = [
            _BareFile(folder / f"bare-{number}.bin", num_rows, row_bytes, rows_each)
            for number, (row_bytes, rows_each) in enumerate(sizes)
        ]
        self._threads = ThreadPoolExecutor(_THREADS)

    def ready(self, num: int) -> None:
        """Make outputs for a batch, and map the files anew."""
        for file in self._files:
            file.ready(num)

    def sample(self, num: int, how: ColdWay, rng: np.random.Generator) -> None:
        """Read random rows, as `ready` prepared."""
        picked = rng.integers(0, self.num_rows, num)
        if how == "direct":
            jobs = [(file, k, row) for file in self._files for k, row in enumerate(picked.tolist())]
            chunks = [jobs[start::_THREADS] for start in range(_THREADS)]
            list(self._threads.map(_read_direct, chunks))
            return
        for file in self._files:
            file.take(picked, is_narrow=how == "narrow")

    def close(self) -> None:
        """End the threads and let go of the files, which stay where they are."""
        self._threads.shutdown()
        for file in self._files:
            file.close()
        self._files = []


class _BareFile:
    def __init__(self, path: Path, num_rows: int, row_bytes: int, rows_each: int) -> None:
        self._path = path
        self._num_rows = num_rows + rows_each - 1
        self._row_bytes = row_bytes
        self._rows_each = rows_each
        block = os.urandom(_BLOCK_BYTES)
        left = self._num_rows * row_bytes
        with path.open("wb", buffering=0) as file:
            while left:
                left -= file.write(block[:left])
            os.fsync(file.fileno())
        self._cached = os.open(path, os.O_RDONLY)
        self._direct = os.open(path, os.O_RDONLY | os.O_DIRECT)

    def close(self) -> None:
        os.close(self._cached)
        os.close(self._direct)

    def ready(self, num: int) -> None:
        self._out = [page_aligned(num, self._row_bytes) for _ in range(self._rows_each)]
        # what O_DIRECT reads: whole pages, so of a record all that it touches
        span = self._rows_each * self._row_bytes
        pages = 2 if span < _PAGE_BYTES else -(-span // _PAGE_BYTES)
        self._direct_out = page_aligned(num, pages * _PAGE_BYTES)
        for out in (*self._out, self._direct_out):
            out[:] = 1  # real pages
        # opened anew: the kernel keeps with an open file how reading ahead went
        with self._path.open("rb", buffering=0) as file:
            self._mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)

    def take(self, picked: NDArray[np.int64], *, is_narrow: bool) -> None:
        size = self._row_bytes
        table = np.frombuffer(self._mapped, np.uint8, self._num_rows * size).reshape(-1, size)
        if not is_narrow:
            for further, out in enumerate(self._out):
                np.take(table, picked + further, axis=0, out=out, mode="clip")
            return
        self._mapped.madvise(mmap.MADV_RANDOM)
        for place, row in enumerate(picked.tolist()):
            first = max(0, row * size // _PAGE_BYTES * _PAGE_BYTES - _NARROW_BYTES // 2)
            os.posix_fadvise(self._cached, first, _NARROW_BYTES, os.POSIX_FADV_WILLNEED)
            for further, out in enumerate(self._out):
                out[place] = table[row + further]

    def read_direct(self, place: int, row: int) -> None:
        start = row * self._row_bytes // _PAGE_BYTES * _PAGE_BYTES
        os.preadv(self._direct, [self._direct_out[place].data], start)


def _read_direct(jobs: Sequence[tuple[_BareFile, int, int]]) -> None:
    for file, place, row in jobs:
        file.read_direct(place, row)
