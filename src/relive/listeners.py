# SPDX-License-Identifier: Apache-2.0
"""Tasks of event loops that wait until something changes, told from any thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

__all__ = ["Listeners"]


class Listeners:
    """Who waits for a change. Any thread may tell; waiting is for tasks."""

    def __init__(self) -> None:
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
        self._lock = threading.Lock()

    def tell(self) -> None:
        """Let everyone who waits look again."""
        with self._lock:
            for loop, heard in self._waiting:
                with suppress(RuntimeError):  # its loop has ended
                    loop.call_soon_threadsafe(heard.set)

    async def wait_until(self, is_enough: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until something is true, looking after each change, or the time is over.

        Returns:
            Whether it is true.
        """
        import asyncio

        loop, heard = asyncio.get_running_loop(), asyncio.Event()
        deadline = loop.time() + timeout_s
        with self._lock:
            self._waiting.append((loop, heard))
        try:
            while not is_enough():
                heard.clear()
                left = deadline - loop.time()
                with suppress(asyncio.TimeoutError):
                    if left > 0:
                        await asyncio.wait_for(heard.wait(), left)
                        continue
                return is_enough()
            return True
        finally:
            with self._lock:
                self._waiting.remove((loop, heard))
