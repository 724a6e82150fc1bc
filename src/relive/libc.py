# SPDX-License-Identifier: Apache-2.0
"""The C library of Linux, for the system calls that Python does not offer."""

from __future__ import annotations

import ctypes
from functools import lru_cache

__all__ = ["libc"]


@lru_cache(maxsize=1)  # each one made costs 6 KB and a garbage collection
def libc() -> ctypes.CDLL:
    """Return the C library with the argument types of what is used of it."""
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    library.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    library.syscall.restype = ctypes.c_long
    return library
