# SPDX-License-Identifier: Apache-2.0
"""Importing PyTorch where it is first needed, though the process may fork at any moment.

The import takes seconds, and a child forked amid it could never finish it: the thread that was at
it, and that the child would wait for, is not there. So a fork waits until the import has ended.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

from relive.lifetime import ReentrantLock, watch_forks

__all__ = ["importing"]


class _Importing:
    """Keeps forks from coming amid an import of the library's own."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        """`with` it PyTorch is imported, wherever in the library that may be for the first time."""

    def locks(self) -> Iterator[ReentrantLock]:
        """Yield the lock; see `Forkable`."""
        yield self.lock

    def after_fork(self, *, is_whole: bool) -> None:
        """Become the child's copy; see `Forkable`."""
        self.lock = threading.RLock()


importing = _Importing()
watch_forks(importing)  # the first of all: whoever has its lock takes none of a buffer
