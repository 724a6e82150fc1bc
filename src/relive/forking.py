# SPDX-License-Identifier: Apache-2.0
"""What a fork does to a buffer."""

from __future__ import annotations

from collections.abc import Iterator

from relive.draws import Draws
from relive.lifetime import Lock
from relive.store import Store

__all__ = ["Forking"]


class Forking:
    """What a fork does to a buffer: the copy can sample, on a stream of its own, and not write."""

    def __init__(self, store: Store, draws: Draws) -> None:
        self._store = store
        self._draws = draws

    def locks(self) -> Iterator[Lock]:
        """Yield what keeps other threads from changing anything, each once the last is held."""
        yield self._store.lock
        yield self._draws.lock
        yield from self._store.index.locks()

    def after_fork(self) -> None:
        """After the fork, in the child."""
        self._draws.after_fork()
        self._store.after_fork()
