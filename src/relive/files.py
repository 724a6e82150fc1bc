# SPDX-License-Identifier: Apache-2.0
"""Every open, write, link, rename, fsync and unlink of the library.

Nothing else touches the disk through other doors, so one place decides the order of
operations, and a test can stop or break any of them. Functions raise the operating system's
own `OSError`; the layers above name the trajectory or checkpoint it concerns.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from relive.linux_files import UNSUPPORTED, share_blocks

__all__ = [
    "TEMPORARY_SUFFIX",
    "abandoned_beside",
    "building_folder",
    "close",
    "copy",
    "create_folder",
    "create_new_folder",
    "exists",
    "has_one_name",
    "is_temporary",
    "keep_previous",
    "link_or_copy",
    "list_names",
    "open_to_read",
    "read_at",
    "read_bytes",
    "read_part",
    "real_path",
    "remove",
    "remove_any",
    "remove_folder",
    "rename",
    "size_bytes",
    "sync_file",
    "sync_folder",
    "token",
    "total_bytes",
    "write_atomic",
]

_ABANDONED_S = 3600.0

TEMPORARY_SUFFIX = ".tmp"
"""Ends the name of each file or folder that is not complete yet."""

_TEMPORARY = re.compile(r"\..*\.[0-9a-f]{8}" + re.escape(TEMPORARY_SUFFIX))


def create_folder(path: Path) -> None:
    """Create a folder and its parents; one that is there is fine."""
    path.mkdir(parents=True, exist_ok=True)


def create_new_folder(path: Path) -> None:
    """Create a folder that must not be there yet, inside one that is."""
    path.mkdir()


def exists(path: Path) -> bool:
    """Tell whether there is anything of this name, a dangling link included."""
    return os.path.lexists(path)


def real_path(path: Path) -> Path:
    """Return where links lead. `Path.resolve` raises `RuntimeError` of some, before Python 3.13.

    Raises:
        OSError: Links lead to each other.
    """
    try:
        path.stat()
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise
    return Path(os.path.realpath(path))


def list_names(folder: Path) -> list[str]:
    """Return the names inside a folder, sorted."""
    return sorted(os.listdir(folder))


def size_bytes(path: Path) -> int:
    """Return the size of a file."""
    return path.stat().st_size


def total_bytes(path: Path) -> int:
    """Return the size of a file, or of all files in a folder."""
    if not path.is_dir():
        return size_bytes(path)
    return sum(size_bytes(path / name) for name in list_names(path))


def has_one_name(path: Path) -> bool:
    """Tell whether no other name, in a checkpoint perhaps, leads to the same file."""
    return path.stat().st_nlink == 1


def read_bytes(path: Path) -> bytes:
    """Return a whole file."""
    return path.read_bytes()


def open_to_read(path: Path) -> int:
    """Open a file for `read_at`; the caller closes the descriptor."""
    return os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0))


def close(descriptor: int) -> None:
    """Close what `open_to_read` opened."""
    os.close(descriptor)


def read_at(descriptor: int, start: int, target: memoryview) -> None:
    """Read bytes from a place in a file.

    Args:
        descriptor: Of a file open for reading; the caller keeps other threads from it.
        start: Where to begin.
        target: Filled to its end.

    Raises:
        OSError: The disk refused.
        EOFError: The file is shorter.
    """
    done = 0
    while done < len(target):
        if hasattr(os, "preadv"):
            num = os.preadv(descriptor, [target[done:]], start + done)
        else:
            os.lseek(descriptor, start + done, os.SEEK_SET)
            block = os.read(descriptor, len(target) - done)
            num = len(block)
            target[done : done + num] = block
        if not num:
            raise EOFError(f"it ends at byte {start + done}, but was written on")
        done += num


def read_part(path: Path, start: int, size: int) -> bytearray:
    """Return a part of a file, read in one go, which the kernel reads ahead for.

    Raises:
        OSError: The file is not there, or the disk refused.
        EOFError: The file is shorter.
    """
    block = bytearray(size)
    descriptor = open_to_read(path)
    try:
        read_at(descriptor, start, memoryview(block))
    finally:
        os.close(descriptor)
    return block


def link_or_copy(
    source: Path, target: Path, *, sync: bool, progress: Callable[[int], object] = lambda _: None
) -> bool:
    """Give a file that never changes another name, or copy it where that cannot be.

    Args:
        source: The file.
        target: The name, which must not be taken.
        sync: Whether the bytes must survive a power loss; the name does once the caller syncs
            the folder.
        progress: Called with the number of bytes copied since it was called last.

    Returns:
        Whether it was linked.

    Raises:
        OSError: The disk refused; nothing is left behind.
    """
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in {*UNSUPPORTED, errno.EMLINK}:
            raise
        copy(source, target, sync=sync, progress=progress)
        return False
    if sync:
        sync_file(target)
    return True


def token() -> str:
    """Return eight random hex digits, for a name that nobody else uses."""
    return secrets.token_hex(4)


def _temporary_beside(path: Path) -> Path:
    """Return an unused name in the same folder, on the same file system, for work in progress."""
    # a name may have 255 bytes, and a letter up to four of them
    start = os.fsencode(path.name)[:100].decode("utf-8", "ignore")
    return path.with_name(f".{start}.{token()}{TEMPORARY_SUFFIX}")


def is_temporary(name: str) -> bool:
    """Tell whether a file or folder of this name is not complete yet."""
    return _TEMPORARY.fullmatch(name) is not None


def abandoned_beside(path: Path) -> list[Path]:
    """Return temporary folders for this one in which nothing has changed for an hour.

    A killed save leaves such a folder; a save that goes on changes its own all the time.
    """
    start = os.fsencode(path.name)[:100].decode("utf-8", "ignore")
    name = re.compile(rf"\.{re.escape(start)}\.[0-9a-f]{{8}}{re.escape(TEMPORARY_SUFFIX)}")
    oldest = time.time() - _ABANDONED_S
    return [
        found
        for found in path.parent.iterdir()
        if name.fullmatch(found.name) and found.is_dir() and found.stat().st_mtime < oldest
    ]


def write_atomic(path: Path, write: Callable[[BinaryIO], object], *, sync: bool) -> int:
    """Write a whole file under a temporary name, then rename it into place.

    A reader sees the old file or the new one, never a part. When anything fails before the
    rename the old file is untouched and the temporary one is gone.

    Args:
        path: The file to create or replace.
        write: Called once with the open file.
        sync: Whether to fsync the file before the rename and the folder after it.

    Returns:
        The size of the new file in bytes.

    Raises:
        OSError: The disk refused, or with `sync` the new file is there but its name may not
            survive a power loss.
    """
    temporary = _temporary_beside(path)
    try:
        with temporary.open("xb") as file:
            write(file)
            file.flush()
            size = file.tell()
            if sync:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:  # Ctrl+C among others: no temporary file stays
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    if sync:
        sync_folder(path.parent)
    return size


def sync_folder(folder: Path) -> None:
    """Make the names inside a folder survive a power loss."""
    if sys.platform == "win32":
        return  # folders cannot be opened there; NTFS journals its names itself
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    """Make the bytes of a file survive a power loss."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rename(source: Path, target: Path) -> None:
    """Give a file or folder another name on the same file system, replacing a file there."""
    os.replace(source, target)


def remove(path: Path) -> None:
    """Remove a file; one that is gone already is fine."""
    path.unlink(missing_ok=True)


def remove_any(path: Path) -> None:
    """Remove a file of our own, or a folder with everything in it."""
    if path.is_dir() and not path.is_symlink():
        remove_folder(path)
    else:
        remove(path)


def remove_folder(folder: Path, *, at_once: bool = False) -> None:
    """Remove a folder of our own with everything in it; one that is gone already is fine.

    Args:
        folder: The folder.
        at_once: Whether its name goes before anything in it: what a kill or a refusal leaves then
            has a temporary name.
    """
    with contextlib.suppress(FileNotFoundError):
        if at_once:
            temporary = _temporary_beside(folder)
            os.replace(folder, temporary)
            folder = temporary
        shutil.rmtree(folder)


def keep_previous(path: Path, suffix: str) -> None:
    """Give a file a second name, `suffix` appended, which stays when it is replaced later.

    A file that is not there is fine; an older file of the second name is replaced.
    """
    temporary = _temporary_beside(path)
    try:
        os.link(path, temporary)
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        copy(path, temporary, sync=False)
    try:
        os.replace(temporary, path.with_name(path.name + suffix))
    finally:  # between two names of one file a rename does nothing
        temporary.unlink(missing_ok=True)


def copy(
    source: Path, target: Path, *, sync: bool, progress: Callable[[int], object] = lambda _: None
) -> None:
    """Copy a file, sharing its blocks where the file system can; whole or not at all.

    Later changes to either file never show in the other.

    Args:
        source: The file to copy.
        target: The file to create or replace.
        sync: Whether the bytes must survive a power loss. The name does once the caller, who may
            copy many files, syncs the folder.
        progress: Called with the number of bytes copied since it was called last.

    Raises:
        OSError: The disk refused; nothing is left behind.
    """

    def fill(file: BinaryIO) -> None:
        with source.open("rb") as original:
            if not share_blocks(original, file):
                while block := original.read(1 << 20):
                    file.write(block)
                    progress(len(block))
            file.seek(0, os.SEEK_END)
        if sync:
            file.flush()
            os.fsync(file.fileno())

    write_atomic(target, fill, sync=False)


@contextlib.contextmanager
def building_folder(target: Path) -> Iterator[Path]:
    """Yield a new temporary folder beside `target`; it is removed when the block fails."""
    create_folder(target.parent)
    folder = _temporary_beside(target)
    folder.mkdir()
    try:
        yield folder
    except BaseException:  # Ctrl+C among others: no temporary folder stays
        remove_folder(folder)
        raise
