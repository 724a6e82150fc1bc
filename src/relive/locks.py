# SPDX-License-Identifier: Apache-2.0
"""The lock that makes a process the only writer of a folder.

The truth is a kernel lock, held as long as the writer lives and gone when it dies. Process,
host and time are written into the lock file for the message only, and for the one case that
the kernel of this machine cannot judge: a lock that was taken on another host.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import sys
import time
import weakref
from pathlib import Path

from relive.errors import StoreLockedError

__all__ = ["LOCK_NAME", "FolderLock"]

LOCK_NAME = "writer.lock"

_NO_LOCKS = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}


class FolderLock:
    """A folder locked for writing by this process.

    A forked child lets go of its copy, so that the lock does not outlive the writer.
    """

    def __init__(self, folder: Path, *, break_lock: bool = False) -> None:
        """Take the lock.

        Args:
            folder: The folder; it must exist.
            break_lock: Whether to take over a lock of another host, or one left on a file
                system without locks, because the caller knows that its writer is gone.

        Raises:
            StoreLockedError: Another writer holds it.
            OSError: The lock file cannot be created.
        """
        self._path = folder / LOCK_NAME
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
        self._descriptor = os.open(self._path, flags, 0o644)
        try:
            self._take(break_lock)
            self._write_owner()
        except BaseException:
            os.close(self._descriptor)
            raise
        _held.add(self)

    @staticmethod
    def owner_of(folder: Path) -> str:
        """Say who has a folder open for writing, without taking the lock; "" when nobody does.

        A writer that was killed on another host counts as having it open.
        """
        try:
            owner = json.loads((folder / LOCK_NAME).read_bytes() or b"{}")
        except (OSError, ValueError, RecursionError):
            return ""
        if not isinstance(owner, dict) or "process" not in owner:
            return ""
        if owner.get("host") == socket.gethostname() and not _lives(owner["process"]):
            return ""
        return _describe(owner)

    def _take(self, break_lock: bool) -> None:
        has_kernel_lock = True
        if sys.platform == "win32":
            has_kernel_lock = False
        else:
            import fcntl

            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                owner, cure = _describe(self._read_owner()), "close it there"
                if owner == _describe(_own_facts()):
                    owner, cure = "this process", "close that buffer first"
                raise StoreLockedError(
                    f"{str(self._path.parent)!r} is open for writing by {owner}, but a folder has "
                    f"one writer; {cure}, or use another folder",
                    path=str(self._path.parent),
                ) from None
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
                has_kernel_lock = False
        left = self._read_owner()
        is_foreign = bool(left) and (
            not has_kernel_lock or left.get("host") != socket.gethostname()
        )
        if is_foreign and not break_lock:
            raise StoreLockedError(
                f"{str(self._path.parent)!r} was opened for writing by {_describe(left)} and not "
                "closed, but this machine cannot tell whether that writer lives; if it does not, "
                "open the folder with break_lock=True",
                path=str(self._path.parent),
            )

    def _read_owner(self) -> dict[str, object]:
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        with contextlib.suppress(ValueError, RecursionError):
            owner = json.loads(os.read(self._descriptor, 4096) or b"{}")
            if isinstance(owner, dict):
                return owner
        return {"host": "an unknown host"}

    def _write_owner(self) -> None:
        owner = {**_own_facts(), "time": time.time()}
        os.ftruncate(self._descriptor, 0)
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        os.write(self._descriptor, json.dumps(owner).encode("ascii"))

    def release(self) -> None:
        """Give the lock back; twice is fine."""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):  # a folder that is gone needs no lock
                os.ftruncate(self._descriptor, 0)
                if sys.platform != "win32":
                    import fcntl

                    # closing is not enough while a child just forked has not let go yet
                    fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            self.drop()

    def drop(self) -> None:
        """Let go of the descriptor only: what a forked child does, and what a kill amounts to."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            _held.discard(self)


def _own_facts() -> dict[str, object]:
    return {"process": os.getpid(), "host": socket.gethostname()}


def _lives(process: object) -> bool:
    """Tell whether a process of this host may live; where nothing tells, it may."""
    return Path(f"/proc/{process}").exists() or not Path("/proc/self").exists()


def _describe(owner: dict[str, object]) -> str:
    if "process" not in owner:
        return "another writer"
    return f"process {owner['process']} on {owner.get('host')}"


_held: weakref.WeakSet[FolderLock] = weakref.WeakSet()


def _drop_all_in_child() -> None:
    for lock in list(_held):
        lock.drop()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop_all_in_child)
