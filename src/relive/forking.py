# SPDX-License-Identifier: Apache-2.0
"""What a fork does to a buffer."""

from __future__ import annotations

from relive.draws import Draws
from relive.store import Store

__all__ = ["Forking"]


class Forking:
    """What a fork does to a buffer: the copy can sample, on a stream of its own, and not write."""

    def __init__(self, store: Store, draws: Draws) -> None:
        self._store = store
        self._draws = draws

    def hold_still(self) -> None:
        """Before the fork: let no thread be in the middle of a change."""
        self._store.lock.acquire()
        self._draws.lock.acquire()

    def go_on(self) -> None:
        """After the fork, in the parent."""
        self._draws.lock.release()
        self._store.lock.release()

    def after_fork(self) -> None:
        """After the fork, in the child."""
        self._draws.after_fork()
        self._store.after_fork()
