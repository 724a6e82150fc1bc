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

__all__ = [
    "Closable",
    "Forkable",
    "ReentrantLock",
    "close_at_exit",
    "leave_alone",
    "watch_forks",
]

_log = logging.getLogger("relive")

_PATIENCE_S = 10.0  # with a lock: else two threads that fork could wait for each other


class Closable(Protocol):
    """Something open."""

    def close(self) -> None:
        """Store everything and let go."""


class ReentrantLock(Protocol):
    """A lock that a thread may take again while it has it: a signal's handler may fork."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take it; tell whether it was had in time."""

    def release(self) -> None:
        """Give it back."""


class Forkable(Protocol):
    """Something that other threads change while this process forks."""

    def locks(self) -> Iterable[ReentrantLock]:
        """Yield the locks that keep other threads from changing anything.

        Each is taken before the next is asked for, which it may decide.
        """

    def after_fork(self, *, is_whole: bool) -> None:
        """Become the child's copy, which shares nothing with the parent's threads.

        Args:
            is_whole: Whether all locks were held, so that nothing was copied amid a change.
        """


_open: set[Closable] = set()
# in order, as no WeakSet is: threads that fork at once take the locks in the same order
_forkable: weakref.WeakKeyDictionary[Forkable, None] = weakref.WeakKeyDictionary()


class _Fork:
    """What one fork holds, and what it could not get hold of."""

    def __init__(self) -> None:
        self.locks: list[ReentrantLock] = []
        self.torn: list[Forkable] = []


class _Held(threading.local):
    """The forks that this thread is at: several when a signal's handler forks amid one."""

    def __init__(self) -> None:
        self.forks: list[_Fork] = []


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


def _watched() -> list[Forkable]:
    # at once, as `list` of the dictionary is not: another thread may be opening a buffer
    found = [reference() for reference in _forkable.keyrefs()]
    return [one for one in found if one is not None]


def _before_fork() -> None:
    # else the child could copy what another thread has changed by half
    fork = _Fork()
    _held.forks.append(fork)
    for forkable in _watched():
        for lock in forkable.locks():
            if not lock.acquire(timeout=_PATIENCE_S):
                fork.torn.append(forkable)
                break
            fork.locks.append(lock)


def _after_fork_in_parent() -> None:
    for lock in reversed(_held.forks.pop().locks):
        lock.release()


def _after_fork_in_child() -> None:
    fork = _held.forks.pop()
    torn = fork.torn
    # a signal's handler may have forked while its thread waited for one of these, and waits still
    for lock in reversed(fork.locks):
        lock.release()
    _open.clear()
    for forkable in _watched():
        forkable.after_fork(is_whole=all(forkable is not one for one in torn))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
