# SPDX-License-Identifier: Apache-2.0
"""Files that stay open and only grow: behind their own end, or behind one that the caller keeps."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import sys
from pathlib import Path

from relive import files
from relive.libc import libc

__all__ = ["AppendFile", "GrowingFile"]

_SYNC_FILE_RANGE_WRITE = 2  # linux/fs.h
_WRITE_OUT_BYTES = 8 << 20


class AppendFile:
    """A file that only grows at its end, each append being one write.

    A failed append is undone, so that the next one starts on a clean end. Not safe for several
    threads at once.
    """

    def __init__(self, path: Path) -> None:
        """Open a file that is there.

        Raises:
            OSError: It is not, or cannot be written.
        """
        flags = os.O_RDWR | os.O_APPEND | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
        self._descriptor = os.open(path, flags)
        self._size = os.fstat(self._descriptor).st_size
        self._is_torn = False

    @property
    def size_bytes(self) -> int:
        """How far the file reaches."""
        return self._size

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._descriptor < 0

    def append(self, block: bytes) -> None:
        """Write a block at the end, whole or not at all.

        Raises:
            OSError: The disk refused; the file is as before.
        """
        if self._is_torn:
            self.truncate(self._size)
        written = 0
        try:
            while written < len(block):
                written += os.write(self._descriptor, block[written:])
        except BaseException:  # Ctrl+C among others: no half block stays
            if written:
                with contextlib.suppress(OSError):  # then the next append undoes it
                    self.truncate(self._size)
            raise
        self._size += len(block)

    def truncate(self, size: int) -> None:
        """Cut the file to this many bytes.

        Raises:
            OSError: The disk refused; the next append tries again.
        """
        self._size, self._is_torn = size, True
        os.ftruncate(self._descriptor, size)
        self._is_torn = False

    def sync(self) -> None:
        """Make what was appended survive a power loss."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the file; twice is fine."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class GrowingFile:
    """A file written behind an end that its caller keeps, over what a cut-off write left there.

    Nothing is stored through a mapping: a full disk must be an error and not the end of the
    process. Not safe for several threads at once.
    """

    def __init__(self, path: Path, *, is_new: bool) -> None:
        """Open a file for writing.

        Args:
            path: The file.
            is_new: Whether it must not be there yet, or must be.

        Raises:
            OSError: The disk refused.
        """
        self._path = path
        self._written = 0  # since the kernel was last told to begin
        self._descriptor = _open_to_write(path, os.O_CREAT | os.O_EXCL if is_new else 0)

    def write_at(self, start: int, block: memoryview | bytes) -> None:
        """Write a block.

        Args:
            start: Where it begins: the end that the caller keeps.
            block: Bytes.

        Raises:
            OSError: The disk refused; the file is cut at `start` again.
            FileNotFoundError: The file was removed: what is written would be lost.
        """
        if self._descriptor < 0:
            self._descriptor = _open_to_write(self._path)
        if not os.fstat(self._descriptor).st_nlink:
            raise FileNotFoundError(errno.ENOENT, "it was removed", str(self._path))
        done, view = 0, memoryview(block)
        try:
            while done < len(view):
                if hasattr(os, "pwrite"):
                    done += os.pwrite(self._descriptor, view[done:], start + done)
                else:
                    os.lseek(self._descriptor, start + done, os.SEEK_SET)
                    done += os.write(self._descriptor, view[done:])
        except BaseException:  # Ctrl+C among others: what is cut short takes no room
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, start)
            raise
        self._written += len(view)
        if self._written >= _WRITE_OUT_BYTES:
            _begin_write_out(self._descriptor, start + len(view) - self._written, self._written)
            self._written = 0

    def sync(self) -> None:
        """Make what was written survive a power loss."""
        if self._descriptor < 0:
            files.sync_file(self._path)
        else:
            os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the file, until it is written to again; twice is fine."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _begin_write_out(descriptor: int, start: int, size: int) -> None:
    """Let the disk begin with what was written, so that a later fsync has less to wait for."""
    if sys.platform == "linux":
        libc().sync_file_range(
            descriptor, ctypes.c_int64(start), ctypes.c_int64(size), _SYNC_FILE_RANGE_WRITE
        )


def _open_to_write(path: Path, further: int = 0) -> int:
    flags = os.O_RDWR | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    return os.open(path, flags | further, 0o666)
