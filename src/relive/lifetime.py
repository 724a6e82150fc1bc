# SPDX-License-Identifier: Apache-2.0
"""What happens to open buffers when their process forks or ends."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from collections.abc import Iterable
from typing import Protocol

__all__ = ["Closable", "Forkable", "Lock", "close_at_exit", "leave_alone", "watch_forks"]

_log = logging.getLogger("relive")

_PATIENCE_S = 10.0  # with a lock: else two threads that fork could wait for each other


class Closable(Protocol):
    """Something open."""

    def close(self) -> None:
        """Store everything and let go."""


class Lock(Protocol):
    """A lock that a thread may take again while it has it."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take it; tell whether it was had in time."""

    def release(self) -> None:
        """Give it back."""


class Forkable(Protocol):
    """Something that other threads change while this process forks."""

    def locks(self) -> Iterable[Lock]:
        """Yield what keeps other threads from changing anything, each once the last is held."""

    def after_fork(self) -> None:
        """Become the child's copy, which shares nothing with the parent's threads."""


_open: set[Closable] = set()
_forkable: weakref.WeakKeyDictionary[Forkable, None] = weakref.WeakKeyDictionary()  # in order


class _Held(threading.local):
    """What this thread holds while it forks: of each fork, as a signal may fork amid another."""

    def __init__(self) -> None:
        self.forks: list[list[Lock]] = []


_held = _Held()


def watch_forks(forkable: Forkable) -> None:
    """Tell an object of forks as long as it lives."""
    _forkable[forkable] = None


def close_at_exit(closable: Closable) -> None:
    """Close an object when the program ends, and keep it until then."""
    _open.add(closable)


def leave_alone(closable: Closable) -> None:
    """Do not close an object at the end: it is closed."""
    _open.discard(closable)


@atexit.register
def _close_all() -> None:
    """Store what forgotten buffers still hold; say what could not be stored."""
    for closable in list(_open):
        _close(closable)


def _close(closable: Closable) -> None:
    try:
        closable.close()
    except Exception:
        # nobody is left to raise it to
        _log.exception("a buffer that was not closed could not store everything at exit")


def _before_fork() -> None:
    # else the child could copy what another thread has changed by half
    held: list[Lock] = []
    _held.forks.append(held)
    for forkable in list(_forkable):
        for lock in forkable.locks():
            if not lock.acquire(timeout=_PATIENCE_S):
                _log.warning(
                    "a thread has kept a buffer locked for %g s while this process forks, so the "
                    "child may find it changed by half; fork when no other thread uses it",
                    _PATIENCE_S,
                )
                break
            held.append(lock)


def _after_fork_in_parent() -> None:
    for lock in reversed(_held.forks.pop()):
        lock.release()


def _after_fork_in_child() -> None:
    _held.forks.pop()
    _open.clear()
    for forkable in list(_forkable):
        forkable.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
