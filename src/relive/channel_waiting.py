# SPDX-License-Identifier: Apache-2.0
"""Who waits at a channel, thread or task, and in which order they are called back.

A waiter is a call-back, so that one queue serves both kinds: a thread leaves the setting of an
event, a task a call that completes a future in its event loop. Being called back promises
nothing: the waiter tries again, and queues again, first, when another was faster. Nothing here
takes a lock or waits; the channel's lock guards it all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    import threading

__all__ = ["Side", "Turn", "Wake", "complete", "wake_task", "wake_thread"]

Wake = Callable[[], bool]
"""Calls one waiter back; False when it is gone for good, so that another must be called."""


class Side:
    """The producers or the consumers: who of them waits, and what became of them."""

    __slots__ = ("longest_wait_s", "num_served", "num_waiting", "queue", "total_wait_s")

    def __init__(self) -> None:
        self.queue: deque[Wake] = deque()
        self.num_served = 0
        self.num_waiting = 0
        self.longest_wait_s = 0.0
        self.total_wait_s = 0.0

    def wake_one(self) -> None:
        """Call back the waiter that has waited longest, if there is one."""
        while self.queue and not self.queue.popleft()():
            pass

    def wake_all(self) -> None:
        """Call back every waiter."""
        while self.queue:
            self.queue.popleft()()


class Turn:
    """One call's wait: its deadline, and its place in the queue of its side.

    Only the holder of the channel's lock may call what changes it.
    """

    __slots__ = ("_since", "_wait_since", "_wake", "limit_s", "side")

    def __init__(self, side: Side, limit_s: float) -> None:
        self.side = side
        self.limit_s = limit_s
        self._since = monotonic()
        self._wait_since: float | None = None
        self._wake: Wake | None = None

    def left_s(self) -> float:
        """How long it may still wait, at least 0, in seconds."""
        return max(0.0, self._since + self.limit_s - monotonic())

    def queue(self, wake: Wake) -> None:
        """Wait to be called back: last in the queue, or first when its turn had come already."""
        self._wake = wake
        if self._wait_since is None:
            self._wait_since = monotonic()
            self.side.num_waiting += 1
            self.side.queue.append(wake)
        else:
            self.side.queue.appendleft(wake)

    def leave(self) -> bool:
        """Leave the queue; False when the call-back had come already."""
        wake, self._wake = self._wake, None
        if wake is None:
            return True
        try:
            self.side.queue.remove(wake)
        except ValueError:
            return False
        return True

    def end(self) -> None:
        """Count a wait that is over, if there was one; twice is fine."""
        if self._wait_since is None:
            return
        waited_s = monotonic() - self._wait_since
        self._wait_since = None
        self.side.num_waiting -= 1
        self.side.longest_wait_s = max(self.side.longest_wait_s, waited_s)
        self.side.total_wait_s += waited_s


def wake_thread(event: threading.Event) -> bool:
    """Call a thread back that waits for this event."""
    event.set()
    return True


def wake_task(loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> bool:
    """Call a task back that awaits this future, from any thread; False when its loop is closed."""
    try:
        loop.call_soon_threadsafe(complete, future)
    except RuntimeError:  # the loop is closed, and its tasks with it
        return False
    return True


def complete(future: asyncio.Future[None]) -> None:
    """Complete the future unless it was completed or cancelled before; in its loop's thread."""
    if not future.done():
        future.set_result(None)
