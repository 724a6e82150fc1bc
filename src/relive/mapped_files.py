# SPDX-License-Identifier: Apache-2.0
"""Files mapped into memory, for reading single rows where they lie."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import weakref
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from relive.libc import libc

__all__ = ["map_readonly"]


def map_readonly(path: Path) -> NDArray[np.uint8]:
    """Map a whole file for reading single rows, without keeping it open.

    The kernel is told that reads are random, so a cold row does not drag megabytes of
    read-ahead with it. The mapping ends when the last view of the array is gone, and outlives
    the removal of the file. On systems other than Linux the descriptor stays open as long.

    Returns:
        The bytes of the file, read-only `[size]`.

    Raises:
        OSError: The file cannot be opened or mapped.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if not size:
            return np.empty(0, np.uint8)
        if sys.platform != "linux":
            return np.frombuffer(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ), np.uint8)
        return _map_without_descriptor(file.fileno(), size)


def _map_without_descriptor(descriptor: int, size: int) -> NDArray[np.uint8]:
    # mmap.mmap duplicates the descriptor and keeps it for the life of the mapping.
    library = libc()
    address = library.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    if address is None or address == ctypes.c_void_p(-1).value:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot map {size} bytes: {os.strerror(number)}")
    library.madvise(address, size, mmap.MADV_RANDOM)
    return np.asarray(_Mapping(address, size))


class _Mapping:
    """Mapped memory. Every view of it keeps it alive; when the last is gone it is unmapped."""

    __slots__ = ("__array_interface__", "__weakref__")

    def __init__(self, address: int, size: int) -> None:
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (size,),
            "data": (address, True),
        }
        weakref.finalize(self, libc().munmap, address, size).atexit = False
