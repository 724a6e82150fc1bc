# SPDX-License-Identifier: Apache-2.0
"""Files side by side in one range of addresses, so that one array spans them all. Linux only.

The range is reserved without memory behind it, and divided into slots of equal size; a file is
mapped over its slot, to the slot's end even while the file is shorter and still grows. Rows of
many files are then taken by one call, which costs two thirds of a call for each file. Slots
begin on multiples of 2 MiB: so the kernel can map what lies together in its page cache by one
entry, and random rows cost 0.6 of what they cost otherwise.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import weakref
from math import gcd
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relive import files
from relive.libc import libc

if sys.platform == "linux":
    import resource

__all__ = ["PAGE_BYTES", "AddressRange"]

PAGE_BYTES = mmap.PAGESIZE

_HUGE_PAGE_BYTES = 2 << 20
_MOST_BYTES = 1 << 40  # of addresses; a process has 2**47
_MOST_SLOTS = 4096
_PROT_NONE = 0
_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000
_FAILED = ctypes.c_void_p(-1).value


class AddressRange:
    """Slots for files of rows of one size. The caller sees to it that no two threads change it.

    Rows of a slot may be read while its file is mapped, up to the end of the file: beyond, the
    kernel would end the process.
    """

    def __init__(self, row_bytes: int, rows_per_slot: int) -> None:
        """Reserve addresses.

        Args:
            row_bytes: Of one row, at least 1.
            rows_per_slot: How many a slot is to hold at least.

        Raises:
            MemoryError: There are no addresses for even one slot, as under `ulimit -v`.
        """
        # whole rows on whole pages
        step = _HUGE_PAGE_BYTES // gcd(row_bytes, _HUGE_PAGE_BYTES)
        self.rows_per_slot = -(-rows_per_slot // step) * step
        """How many rows a slot holds."""
        self.slot_bytes = self.rows_per_slot * row_bytes
        """How many bytes."""
        num_slots = max(1, min(_MOST_SLOTS, _MOST_BYTES // self.slot_bytes))
        if _are_limited():
            num_slots = 1  # the others are not ours alone
        reserved, self.num_slots = _reserve(self.slot_bytes, num_slots)
        self._address = -(-reserved // _HUGE_PAGE_BYTES) * _HUGE_PAGE_BYTES
        size = self.num_slots * self.slot_bytes
        self._free = list(range(self.num_slots - 1, -1, -1))
        addresses = _Addresses(self._address, size)
        self._bytes: NDArray[np.uint8] = np.asarray(addresses)
        # when the last array is gone, which a thread may still be reading from
        whole = size + _HUGE_PAGE_BYTES
        self._end = weakref.finalize(addresses, libc().munmap, reserved, whole)
        self._end.atexit = False

    @property
    def address(self) -> int:
        """Where it begins."""
        return self._address

    @property
    def is_full(self) -> bool:
        """Whether no slot is free."""
        return not self._free

    def rows(self, item: np.dtype[Any]) -> NDArray[Any]:
        """Return the whole range as one-dimensional items, one a row."""
        return self._bytes.view(item)

    def map(self, path: Path) -> int:
        """Map a file over a free slot; there must be one.

        Returns:
            The slot.

        Raises:
            OSError: The file cannot be opened.
            MemoryError: It cannot be mapped.
        """
        slot = self._free[-1]
        descriptor = files.open_to_read(path)
        try:
            flags = mmap.MAP_SHARED | _MAP_FIXED
            self._remap(slot, mmap.PROT_READ, flags, descriptor)
        finally:
            files.close(descriptor)
        # else a cold row would drag the read-ahead of a sequential reader with it
        libc().madvise(self._address + slot * self.slot_bytes, self.slot_bytes, mmap.MADV_RANDOM)
        self._free.pop()
        return slot

    def unmap(self, slot: int) -> None:
        """Let go of a file; nothing may be reading its slot."""
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE | _MAP_FIXED
        self._remap(slot, _PROT_NONE, flags, -1)
        self._free.append(slot)

    def _remap(self, slot: int, protection: int, flags: int, descriptor: int) -> None:
        start = self._address + slot * self.slot_bytes
        if libc().mmap(start, self.slot_bytes, protection, flags, descriptor, 0) == _FAILED:
            raise _no_addresses(self.slot_bytes)

    def close(self) -> None:
        """Give the addresses back; nothing may be reading, now or later."""
        self._end()


class _Addresses:
    """Addresses as NumPy takes them; every view keeps them."""

    def __init__(self, address: int, size: int) -> None:
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (size,),
            "data": (address, True),
        }


def _are_limited() -> bool:
    """Tell whether addresses are few: then one slot is all that is reserved ahead."""
    return resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY


def _reserve(slot_bytes: int, num_slots: int) -> tuple[int, int]:
    """Return an address with room to round it up, and how many slots could be had there."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    while True:
        size = slot_bytes * num_slots + _HUGE_PAGE_BYTES
        address = libc().mmap(None, size, _PROT_NONE, flags, -1, 0)
        if address not in (None, _FAILED):
            return address, num_slots
        if num_slots == 1:
            raise _no_addresses(slot_bytes)
        num_slots = max(1, num_slots // 4)


def _no_addresses(size: int) -> MemoryError:
    return MemoryError(f"no addresses for {size} bytes: {os.strerror(ctypes.get_errno())}")
