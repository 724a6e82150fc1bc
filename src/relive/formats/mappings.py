# SPDX-License-Identifier: Apache-2.0
"""A bounded number of mapped files, those used last."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

__all__ = ["Mappings"]

Mapped = TypeVar("Mapped")


class Mappings(Generic[Mapped]):
    """Keeps what was made from mapped files, and forgets what was not used for longest.

    A mapping ends when it is forgotten here and nobody holds a view of it any more. Any thread.
    """

    def __init__(self, most: int) -> None:
        """Start with none.

        Args:
            most: How many to keep, at least 1.
        """
        self._most = most
        self._kept: OrderedDict[Hashable, Mapped] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def get(
        self, key: Hashable, make: Callable[[], Mapped], is_there: Callable[[], bool]
    ) -> Mapped:
        """Return what is kept under a key; make it when there is none.

        Args:
            key: Names the file and its content.
            make: Maps it; called outside the lock, so two threads may both do it.
            is_there: Asked after making: a file removed meanwhile must not be kept, since a
                mapping keeps its blocks on disk.
        """
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None:
                self._kept.move_to_end(key)
                return kept
        made = make()
        with self._lock:
            self._kept[key] = made
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        if not is_there():
            self.forget(key)
        return made

    def forget(self, key: Hashable) -> None:
        """Drop what is kept under a key, if anything."""
        with self._lock:
            self._kept.pop(key, None)

    def clear(self) -> None:
        """Drop everything."""
        with self._lock:
            self._kept.clear()
