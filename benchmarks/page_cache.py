# SPDX-License-Identifier: Apache-2.0
"""What of a folder's files is in memory, and how to have none of it there. Linux only.

Dropping has two halves: the process that maps a file must let go of its pages first, since the
kernel keeps what is mapped; so each peer drops its own folder, in its own process.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

__all__ = ["drop", "files_in", "punch", "read_ahead_kb", "resident_share", "sync"]

_PAGE_BYTES = mmap.PAGESIZE


def files_in(folder: Path) -> list[Path]:
    """Return the files below a folder that have bytes."""
    return [path for path in folder.rglob("*") if path.is_file() and path.stat().st_size]


def sync(folder: Path) -> None:
    """Have every file below a folder on the disk."""
    for path in files_in(folder):
        with path.open("rb") as file:
            os.fsync(file.fileno())


def drop(folder: Path) -> None:
    """Have the page cache forget every file below a folder, whatever this process maps of them.

    Mappings stay as they are: what is touched again is read again.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    prefix = f"{folder.resolve()}/"
    with open("/proc/self/maps") as file:
        for line in file:
            fields = line.split(maxsplit=5)
            if len(fields) == 6 and fields[5].startswith(prefix):
                start, stop = (int(one, 16) for one in fields[0].split("-"))
                libc.madvise(
                    ctypes.c_void_p(start), ctypes.c_size_t(stop - start), mmap.MADV_DONTNEED
                )
    for path in files_in(folder):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def punch(path: Path) -> None:
    """Make a hole of a whole file, which keeps its size and reads as zeros.

    Raises:
        OSError: The file system has no holes.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    keep_size, punch_hole = 1, 2
    with path.open("r+b") as file:
        failed = libc.fallocate(
            file.fileno(),
            keep_size | punch_hole,
            ctypes.c_longlong(0),
            ctypes.c_longlong(path.stat().st_size),
        )
    if failed:
        raise OSError(ctypes.get_errno(), f"cannot make a hole of {path}")


def resident_share(folder: Path) -> float:
    """Return which part of the files below a folder the page cache holds."""
    libc = ctypes.CDLL(None, use_errno=True)
    held = total = 0
    for path in files_in(folder):
        with path.open("rb") as file:
            size = path.stat().st_size
            pages = -(-size // _PAGE_BYTES)
            flags = (ctypes.c_ubyte * pages)()
            with mmap.mmap(file.fileno(), size, flags=mmap.MAP_PRIVATE) as mapped:
                first = ctypes.c_char.from_buffer(mapped)
                address = ctypes.c_void_p(ctypes.addressof(first))
                failed = libc.mincore(address, ctypes.c_size_t(size), flags)
                del first
            if failed:
                raise OSError(ctypes.get_errno(), f"mincore refused {path}")
            total += pages
            held += sum(flag & 1 for flag in flags)
    return held / max(total, 1)


def read_ahead_kb(folder: Path) -> int | None:
    """Return how far the kernel reads ahead on the disk of a folder; None where unknown."""
    device = os.stat(folder).st_dev
    name = f"{os.major(device)}:{os.minor(device)}"
    try:
        return int(Path("/sys/class/bdi", name, "read_ahead_kb").read_text())
    except (OSError, ValueError):
        return None
