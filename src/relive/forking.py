# SPDX-License-Identifier: Apache-2.0
"""What a fork does to a buffer."""

from __future__ import annotations

from collections.abc import Iterator

from relive.draws import Draws
from relive.lifetime import ReentrantLock
from relive.store import Store

__all__ = ["Forking"]


class Forking:
    """What a fork does to a buffer: the copy can sample, on a stream of its own, and not write."""

    def __init__(self, store: Store, draws: Draws) -> None:
        self._store = store
        self._draws = draws

    def locks(self) -> Iterator[ReentrantLock]:
        """Yield the locks that keep other threads from changing anything; see `Forkable`."""
        yield self._store.lock  # while it is not held, the store may get another index
        yield from self._store.index.locks()

    def after_fork(self, *, is_whole: bool) -> None:
        """After the fork, in the child; see `Forkable`."""
        self._draws.after_fork()
        self._store.after_fork(is_whole=is_whole)
