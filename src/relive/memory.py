# SPDX-License-Identifier: Apache-2.0
"""Memory for columns, of which large ones go back to the system as soon as they are dropped."""

from __future__ import annotations

import math
import mmap
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relive import files

__all__ = ["own_copy", "private_bytes"]

_LARGE_BYTES = 4 << 20
"""From this size on the system gives huge pages, and fresh memory costs no more than old."""


def own_copy(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return a contiguous copy in memory of its own.

    The C library keeps what is freed, up to all that ever waited to be written at one time; so
    a large copy gets pages of its own, which are the system's again when the copy is dropped.

    Args:
        array: Strided in any way; may be read-only.
        dtype: Its element type in the byte order wanted.

    Raises:
        MemoryError: There is no room.
    """
    copied = _empty(array.shape, dtype)
    np.copyto(copied, array)
    return copied


def private_bytes() -> int | None:
    """Return the memory of this process that no file backs; None where the system does not say."""
    try:
        status = files.read_bytes(Path("/proc/self/status"))
    except OSError:
        return None
    for line in status.splitlines():
        if line.startswith(b"RssAnon:"):
            return int(line.split()[1]) << 10
    return None


def _empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    size = math.prod(shape) * dtype.itemsize
    if size >= _LARGE_BYTES and sys.platform == "linux":
        with suppress(OSError):  # of too many mappings; when memory is short NumPy says so
            pages = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            with suppress(OSError):  # of a kernel without huge pages
                pages.madvise(mmap.MADV_HUGEPAGE)
            return np.frombuffer(pages, dtype).reshape(shape)
    return np.empty(shape, dtype)
