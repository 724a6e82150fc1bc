# SPDX-License-Identifier: Apache-2.0
"""Who may still look at trajectories that have left the index.

A sample takes a window, then reads; in between another thread may evict what it will read.
While a lease that began before the eviction is held, the trajectory is kept in retirement; when
the last such lease ends it is let go.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from relive.record import Record

__all__ = ["Leases", "Retired"]

Resident = TypeVar("Resident")


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
    """Counts readers and keeps what they may still need. The caller holds the store's lock."""

    def __init__(self) -> None:
        self._epoch = 0
        self._held: dict[int, int] = {}  # lease -> epoch in which it began
        self._next_lease = 0
        self._retired: deque[tuple[int, Retired[Resident]]] = deque()
        self._by_id: dict[int, Retired[Resident]] = {}

    @property
    def num_held(self) -> int:
        """Leases that are held."""
        return len(self._held)

    def begin(self) -> int:
        """Take a lease; return its name."""
        self._next_lease += 1
        self._held[self._next_lease] = self._epoch
        return self._next_lease

    def end(self, lease: int) -> None:
        """Give a lease back, and let go what nobody else may read."""
        del self._held[lease]
        if not self._retired:
            return
        oldest = min(self._held.values(), default=self._epoch + 1)
        while self._retired and self._retired[0][0] <= oldest - 1:
            _, retired = self._retired.popleft()
            if self._by_id.get(retired.record.trajectory_id) is retired:
                del self._by_id[retired.record.trajectory_id]
            retired.let_go()

    def retire(self, retired: Retired[Resident]) -> None:
        """Keep a trajectory until all present leases are back; at once if there are none."""
        if not self._held:
            retired.let_go()
            return
        self._retired.append((self._epoch, retired))
        self._by_id[retired.record.trajectory_id] = retired
        self._epoch += 1

    def find(self, trajectory_id: int) -> Retired[Resident] | None:
        """Return a trajectory in retirement, or None."""
        return self._by_id.get(trajectory_id)
