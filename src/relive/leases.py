# SPDX-License-Identifier: Apache-2.0
"""Who may still look at trajectories that have left the index.

A sample takes a window, then reads; in between another thread may evict what it will read.
While a lease that began before the eviction is held, the trajectory is kept in retirement; when
the last such lease ends it is let go.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Set
from dataclasses import dataclass, replace
from threading import Lock, get_ident
from typing import Generic, TypeVar

from relive.record import Record

__all__ = ["Lease", "Leases", "Retired"]

Resident = TypeVar("Resident")

Lease = Lock
"""A lock that its reader holds `with`: what C code takes and gives back is given back whenever
the exception of a signal's handler comes, between any two steps of Python."""


@dataclass(frozen=True)
class Retired(Generic[Resident]):
    """A trajectory that left the index and may still be read."""

    record: Record
    """As it was in the index."""
    resident: Resident | None
    """Its rows, when no file has them."""
    let_go: Callable[[], None]
    """Removes what is left of it."""


class Leases(Generic[Resident]):
    """Knows readers and keeps what they may still need. The caller holds the store's lock."""

    def __init__(self) -> None:
        self._epoch = 0
        self._held: dict[Lease, tuple[int, int]] = {}  # epoch in which it began, and its thread
        self._retired: deque[tuple[int, Retired[Resident]]] = deque()
        self._by_id: dict[int, Retired[Resident]] = {}

    def threads(self) -> Set[int]:
        """Return which threads hold leases."""
        self._drop_ended()
        return {thread for _, thread in self._held.values()}

    def begin(self, lease: Lease) -> None:
        """Keep from now on, for one who holds the lease, what leaves the index."""
        self._held[lease] = self._epoch, get_ident()

    def end(self, lease: Lease) -> None:
        """Let go what nobody else may read: its reader gave the lease back."""
        self._held.pop(lease, None)
        if self._retired:
            self._let_go()

    def _drop_ended(self) -> None:
        """Forget leases that were given back by an exception which kept `end` from being called."""
        for lease in [one for one in self._held if not one.locked()]:
            del self._held[lease]

    def _let_go(self) -> None:
        self._drop_ended()
        oldest = min((epoch for epoch, _ in self._held.values()), default=self._epoch + 1)
        while self._retired and self._retired[0][0] <= oldest - 1:
            _, retired = self._retired.popleft()
            if self._by_id.get(retired.record.trajectory_id) is retired:
                del self._by_id[retired.record.trajectory_id]
            retired.let_go()

    def retire(self, retired: Retired[Resident]) -> None:
        """Keep a trajectory until all present leases are back; at once if there are none."""
        self._drop_ended()
        if not self._held:
            retired.let_go()
            return
        self._retired.append((self._epoch, retired))
        self._by_id[retired.record.trajectory_id] = retired
        self._epoch += 1

    def find(self, trajectory_id: int) -> Retired[Resident] | None:
        """Return a trajectory in retirement, or None."""
        return self._by_id.get(trajectory_id)

    def after_fork(self) -> None:
        """Become a forked child's copy, which has one thread and removes nothing."""
        self._held = {one: began for one, began in self._held.items() if began[1] == get_ident()}
        self._retired = deque((at, replace(one, let_go=_leave)) for at, one in self._retired)
        self._by_id = {one.record.trajectory_id: one for _, one in self._retired}
        self._let_go()


def _leave() -> None:
    """Leave what is the parent's."""
