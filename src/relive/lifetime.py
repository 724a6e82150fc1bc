# SPDX-License-Identifier: Apache-2.0
"""What happens to open buffers when their process forks or ends."""

from __future__ import annotations

import atexit
import logging
import os
import weakref
from typing import Protocol

__all__ = ["Closable", "Forkable", "close_at_exit", "leave_alone", "watch_forks"]

_log = logging.getLogger("relive")


class Closable(Protocol):
    """Something open."""

    def close(self) -> None:
        """Store everything and let go."""


class Forkable(Protocol):
    """Something that other threads change while this process forks."""

    def hold_still(self) -> None:
        """Keep other threads from changing anything until `go_on` or `after_fork`."""

    def go_on(self) -> None:
        """Let other threads change things again: the parent, once it has forked."""

    def after_fork(self) -> None:
        """Become the child's copy, which shares nothing with the parent's threads."""


_open: set[Closable] = set()
_forkable: weakref.WeakSet[Forkable] = weakref.WeakSet()
_still: list[Forkable] = []


def watch_forks(forkable: Forkable) -> None:
    """Tell an object of forks as long as it lives."""
    _forkable.add(forkable)


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
    for forkable in list(_forkable):
        forkable.hold_still()
        _still.append(forkable)


def _after_fork_in_parent() -> None:
    while _still:
        _still.pop().go_on()


def _after_fork_in_child() -> None:
    _open.clear()
    while _still:
        _still.pop().after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
