# SPDX-License-Identifier: Apache-2.0
"""What Linux can do with files that other systems cannot."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from pathlib import Path
from typing import BinaryIO

from relive.libc import libc

__all__ = ["UNSUPPORTED", "exchange", "share_blocks"]

_FICLONE = 0x40049409  # linux/fs.h
_RENAME_EXCHANGE = 2  # linux/fs.h

UNSUPPORTED = {
    errno.EOPNOTSUPP,
    errno.ENOSYS,
    errno.EINVAL,
    errno.EXDEV,
    errno.ENOTTY,
    errno.EPERM,
}
"""Numbers of errors that say that a file system cannot do it at all."""


def share_blocks(source: BinaryIO, target: BinaryIO) -> bool:
    """Let a file have the blocks of another one, until one of them is changed.

    Returns:
        False when the system or file system cannot, and nothing was done.

    Raises:
        OSError: The disk refused.
    """
    if sys.platform != "linux":
        return False
    import fcntl

    try:
        fcntl.ioctl(target.fileno(), _FICLONE, source.fileno())
    except OSError as error:
        if error.errno in UNSUPPORTED:
            return False
        raise
    return True


def exchange(first: Path, second: Path) -> bool:
    """Swap the names of two folders in one step.

    Returns:
        False when the system or file system has no such step, and nothing was done.

    Raises:
        OSError: The disk refused.
    """
    renameat2 = getattr(libc(), "renameat2", None) if sys.platform == "linux" else None
    if renameat2 is None:
        return False
    at_cwd = -100
    done = renameat2(
        at_cwd, os.fsencode(first), at_cwd, os.fsencode(second), ctypes.c_uint(_RENAME_EXCHANGE)
    )
    if done == 0:
        return True
    number = ctypes.get_errno()
    if number in UNSUPPORTED:
        return False
    raise OSError(number, os.strerror(number), str(first), None, str(second))
