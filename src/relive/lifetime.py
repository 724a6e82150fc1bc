# SPDX-License-Identifier: Apache-2.0
"""What happens to open buffers when their process forks or ends."""

from __future__ import annotations

import atexit
import logging
import os
import weakref
from typing import Protocol

__all__ = ["Watched", "unwatch", "watch"]

_log = logging.getLogger("relive")


class Watched(Protocol):
    """Something open."""

    def close(self) -> None:
        """Store everything and let go."""

    def after_fork(self) -> None:
        """Become a copy that shares nothing with the parent's threads."""


_open: set[Watched] = set()
_known: weakref.WeakSet[Watched] = weakref.WeakSet()


def watch(watched: Watched, *, close_at_exit: bool) -> None:
    """Tell an object of forks from now on, and close it at the end if it is still open then."""
    _known.add(watched)
    if close_at_exit:
        _open.add(watched)


def unwatch(watched: Watched) -> None:
    """Leave an object alone at the end: it is closed."""
    _open.discard(watched)


@atexit.register
def _close_all() -> None:
    """Store what forgotten buffers still hold; say what could not be stored."""
    for watched in list(_open):
        _close(watched)


def _close(watched: Watched) -> None:
    try:
        watched.close()
    except Exception:
        # nobody is left to raise it to
        _log.exception("a buffer that was not closed could not store everything at exit")


def _after_fork_in_child() -> None:
    _open.clear()
    for watched in list(_known):
        watched.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
