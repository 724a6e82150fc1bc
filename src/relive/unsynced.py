# SPDX-License-Identifier: Apache-2.0
"""What was stored since the last sync, which a power loss may still take."""

from __future__ import annotations

import time
from collections.abc import Callable

from relive.record import Record

__all__ = ["Unsynced"]

_MOST_BYTES = 256 << 20
_MOST_SECONDS = 5.0


class Unsynced:
    """Trajectories stored since the last sync. Only the writer's thread looks at it."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.records: list[Record] = []
        """The trajectories, in the order in which they were stored."""
        self._size_bytes = 0
        self._since = 0.0
        self._on_synced: list[Callable[[], None]] = []

    def note(
        self, record: Record, size_bytes: int, on_synced: Callable[[], None] | None = None
    ) -> None:
        """Remember a trajectory.

        Args:
            record: As it was stored.
            size_bytes: Bytes of its columns.
            on_synced: Called once a power loss cannot take it any more.
        """
        if not self.records:
            self._since = time.monotonic()
        self.records.append(record)
        self._size_bytes += size_bytes
        if on_synced is not None:
            self._on_synced.append(on_synced)

    @property
    def is_due(self) -> bool:
        """Whether it is time for a sync."""
        wait_s = self.due_in_s()
        return wait_s is not None and wait_s <= 0

    def due_in_s(self) -> float | None:
        """Return in how many seconds a sync is due, 0 when it is; None without trajectories."""
        if not self.records:
            return None
        if self._size_bytes >= _MOST_BYTES:
            return 0.0
        return max(0.0, self._since + _MOST_SECONDS - time.monotonic())

    def mark_synced(self) -> None:
        """Forget the trajectories: they are synced."""
        self.records.clear()
        self._size_bytes = 0
        while self._on_synced:
            self._on_synced.pop(0)()
