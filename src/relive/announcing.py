# SPDX-License-Identifier: Apache-2.0
"""Telling the kernel which rows will be read, while they turn out not to be in memory.

A cold row costs a wait for the disk, and a plain copy waits for one row after the other.
Announced all at once they are read side by side, 4 to 50 times as fast. But announcing what is
in memory costs more than the copy, and asking whether it is would cost as much. So nothing is
asked: the faults that a copy had are counted by the kernel in any case. When there are some,
the next copies are announced, all but a few of their rows; when these few cause no fault any
more, announcing ends.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from relive.address_range import PAGE_BYTES
from relive.libc import libc

__all__ = ["Announcer", "announce", "num_faults"]

_NUM_PROBES = 6
_COLD_SHARE = 128  # one fault in so many rows makes them cold
_MOST_RANGES = 1024  # of one system call: UIO_MAXIOV
_PIDFD_OPEN, _PROCESS_MADVISE = 434, 440  # the same on every architecture

if sys.platform == "linux":
    import resource

    def num_faults() -> int:
        """Return how often this thread has waited for a page from the disk."""
        return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt

else:

    def num_faults() -> int:
        """Return 0: elsewhere nothing is announced."""
        return 0


class Announcer:
    """Announces rows of one table as long as they are cold.

    Any thread may use it: what one finds out holds for all, and a race between two costs no
    more than one needless or missing announcement.
    """

    def __init__(self) -> None:
        self.is_on = False
        """Whether rows are announced."""
        self.num_announced = 0
        """Rows announced so far."""
        self._turn = 0

    def ranges(
        self, starts: NDArray[np.int64], row_bytes: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return what to announce of a batch: all but the first page of a few rows.

        Args:
            starts: Address of each row, `[N]`.
            row_bytes: What is read from there on.

        Returns:
            Addresses of the first byte of each and of the byte behind its last, `[N]`; of a row
            that is not to be announced the first is not below the other.
        """
        self._turn += 1
        # other places each time, and never all of a small batch
        probes = np.arange(min(_NUM_PROBES, len(starts) // 4)) * (len(starts) // _NUM_PROBES)
        first, ends = starts.copy(), starts + row_bytes
        probes = (probes + self._turn) % max(1, len(starts))
        first[probes] += PAGE_BYTES - first[probes] % PAGE_BYTES
        self.num_announced += int((first < ends).sum())
        return first, ends

    def learn(self, num_faults: int, num_rows: int) -> None:
        """Learn from the faults of a copy whether rows are cold.

        Args:
            num_faults: How often it waited for a page.
            num_rows: How many rows it copied.
        """
        self.is_on = num_faults > 0 if self.is_on else num_faults * _COLD_SHARE > num_rows


def announce(starts: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
    """Have the kernel begin to read rows of mapped files; neighbours are read as one.

    Args:
        starts: Address of the first byte of each, `[N]`, in any order.
        ends: Address of the byte behind its last, `[N]`; rows whose first is not below it are
            passed over.
    """
    is_told = starts < ends
    if not is_told.any():
        return
    starts, ends = starts[is_told], ends[is_told]
    # [N] -> [N, 2]: first page, and one past the last
    pages = np.stack([starts // PAGE_BYTES, -(-ends // PAGE_BYTES)], axis=1)
    pages = pages[np.argsort(pages[:, 0], kind="stable")]
    reach = np.maximum.accumulate(pages[:, 1])
    is_first = np.ones(len(pages), np.bool_)
    is_first[1:] = pages[1:, 0] > reach[:-1]
    begins = pages[is_first, 0]
    ends = reach[np.append(np.flatnonzero(is_first)[1:] - 1, len(pages) - 1)]
    # [K] -> [K, 2]: address and length, as the kernel's struct iovec
    ranges = np.stack([begins, ends - begins], axis=1).astype(np.uint64) * np.uint64(PAGE_BYTES)
    for some in range(0, len(ranges), _MOST_RANGES):
        _advise(np.ascontiguousarray(ranges[some : some + _MOST_RANGES]))


def _advise(ranges: NDArray[np.uint64]) -> None:
    process = _own_process(os.getpid())
    if process >= 0:
        done = libc().syscall(
            ctypes.c_long(_PROCESS_MADVISE),
            ctypes.c_long(process),
            ctypes.c_void_p(ranges.ctypes.data),
            ctypes.c_ulong(len(ranges)),
            ctypes.c_long(mmap.MADV_WILLNEED),
            ctypes.c_ulong(0),
        )
        if done >= 0:
            return
    for start, size in ranges.tolist():
        libc().madvise(start, size, mmap.MADV_WILLNEED)


@lru_cache(maxsize=1)
def _own_process(process_id: int) -> int:
    """Return a descriptor of this process, one for its life; -1 where there are none."""
    number, of, flags = map(ctypes.c_long, (_PIDFD_OPEN, process_id, 0))
    return int(libc().syscall(number, of, flags))
