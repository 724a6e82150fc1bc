# SPDX-License-Identifier: Apache-2.0
"""`Channel`: a bounded queue between the threads and tasks of one process.

Everything happens under one lock that is never held while waiting. Who must wait leaves a
call-back in the queue of its side (`relive.channel_waiting`) and, called back, tries again. So
an item is either in the channel or with exactly one taker, whoever is cancelled, interrupted or
late.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, NoReturn, TypeVar

from relive.channel_waiting import Side, Turn, Wake, complete, wake_task, wake_thread
from relive.errors import ClosedError, TimeLimitError, UnsupportedValueError
from relive.options import check_kind, checked_count, checked_time_limit

if TYPE_CHECKING:
    import asyncio
    from types import TracebackType

__all__ = ["Channel"]

T = TypeVar("T")
R = TypeVar("R")


class _Pending(Enum):
    """The outcome of an attempt that must be made again later; an enum so that mypy narrows."""

    PENDING = "pending"


_PENDING: Final = _Pending.PENDING


class Channel(Generic[T]):
    """A bounded first-in-first-out queue that can be closed.

    Any number of threads and asyncio tasks may put and get; each item comes out once, in the
    order in which items went in. A full channel makes producers wait, so that memory stays
    bounded by `maxsize` items. Every wait has a time limit: that of the call, else that of the
    channel. Items are handed over as they are, not copied.

    A channel belongs to one process and cannot be pickled. Leaving its `with` block closes it.

    Args:
        maxsize: How many items it holds at most, at least 1.
        timeout_s: How long a call waits that names no limit of its own, in seconds; finite, at
            least 0. Ten minutes by default.
        name: Names the channel in messages; any text.

    Raises:
        InvalidArgumentError: `maxsize` or `timeout_s` is out of range, or `name` is no text.

    Example:
        >>> channel: Channel[int] = Channel(maxsize=2, name="numbers")
        >>> channel.put(1)
        >>> channel.put(2)
        >>> channel.close()
        >>> list(channel)
        [1, 2]
    """

    def __init__(self, maxsize: int, *, timeout_s: float = 600.0, name: str = "") -> None:
        self._maxsize = checked_count("maxsize", maxsize)
        self._timeout_s = checked_time_limit("timeout_s", timeout_s)
        check_kind("name", name, str)
        self._name = name
        # Reentrant: a task that nobody holds any more leaves its queue when it is collected, which
        # may happen to the very thread that holds the lock.
        self._lock = threading.RLock()
        self._items: deque[T] = deque()
        self._is_closed = False
        self._producers = Side()
        self._consumers = Side()

    def put(self, item: T, timeout_s: float | None = None) -> None:
        """Put one item in, waiting while the channel is full.

        Args:
            item: What to hand over; not copied.
            timeout_s: How long to wait, in seconds, 0 for not at all; None takes the channel's.

        Raises:
            ClosedError: The channel is closed, or was closed while this call waited.
            TimeLimitError: It was full all the time.
            InvalidArgumentError: `timeout_s` is negative or not finite.
        """
        self._wait(self._producers, partial(self._append, item), timeout_s)

    def get(self, timeout_s: float | None = None) -> T:
        """Take the oldest item out, waiting while the channel is empty.

        Args:
            timeout_s: How long to wait, in seconds, 0 for not at all; None takes the channel's.

        Raises:
            ClosedError: The channel is closed and everything in it was taken.
            TimeLimitError: It was empty all the time.
            InvalidArgumentError: `timeout_s` is negative or not finite.
        """
        return self._wait(self._consumers, self._take, timeout_s)

    async def put_async(self, item: T, timeout_s: float | None = None) -> None:
        """Do what `put` does without blocking the event loop.

        A call that is cancelled has not put the item in.
        """
        await self._wait_async(self._producers, partial(self._append, item), timeout_s)

    async def get_async(self, timeout_s: float | None = None) -> T:
        """Do what `get` does without blocking the event loop.

        A call that is cancelled has taken nothing out.
        """
        return await self._wait_async(self._consumers, self._take, timeout_s)

    def close(self) -> None:
        """Take no more items in; what is in can still be taken out. Twice is fine.

        Waiting producers get `ClosedError` at once. Consumers get what is left, then
        `ClosedError`; loops over the channel end.
        """
        with self._lock:
            self._is_closed = True
            self._producers.wake_all()
            self._consumers.wake_all()

    @property
    def closed(self) -> bool:
        """Whether `close` was called; items may still be left."""
        return self._is_closed

    @property
    def maxsize(self) -> int:
        """How many items it holds at most."""
        return self._maxsize

    @property
    def timeout_s(self) -> float:
        """How long a call waits that names no limit of its own, in seconds."""
        return self._timeout_s

    @property
    def name(self) -> str:
        """What messages call it."""
        return self._name

    def get_stats(self) -> dict[str, float]:
        """Return what happened so far, as flat numbers.

        Returns:
            Items: `size`, `maxsize`, `num_puts`, `num_gets`. Calls that wait at this moment:
            `num_waiting_producers`, `num_waiting_consumers`. Waits that have ended, in seconds:
            `longest_put_wait_s`, `longest_get_wait_s`, `total_put_wait_s`, `total_get_wait_s`.
            `closed` is 0 or 1.
        """
        with self._lock:
            producers, consumers = self._producers, self._consumers
            return {
                "size": float(len(self._items)),
                "maxsize": float(self._maxsize),
                "num_puts": float(producers.num_served),
                "num_gets": float(consumers.num_served),
                "num_waiting_producers": float(producers.num_waiting),
                "num_waiting_consumers": float(consumers.num_waiting),
                "longest_put_wait_s": producers.longest_wait_s,
                "longest_get_wait_s": consumers.longest_wait_s,
                "total_put_wait_s": producers.total_wait_s,
                "total_get_wait_s": consumers.total_wait_s,
                "closed": float(self._is_closed),
            }

    def __len__(self) -> int:
        """Return how many items are in it."""
        return len(self._items)

    def __bool__(self) -> bool:
        """Return True: an empty channel is still a channel."""
        return True

    def __iter__(self) -> Iterator[T]:
        """Take items out until the channel is closed and empty; each wait has its limit."""
        while True:
            try:
                item = self.get()
            except ClosedError:
                return
            yield item

    async def __aiter__(self) -> AsyncIterator[T]:
        """Take items out until the channel is closed and empty; each wait has its limit."""
        while True:
            try:
                item = await self.get_async()
            except ClosedError:
                return
            yield item

    def __enter__(self) -> Channel[T]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open"
        return f"<Channel {self._name!r} {state}, {len(self._items)} of {self._maxsize} items>"

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled or copied.

        Raises:
            UnsupportedValueError: Always.
        """
        raise UnsupportedValueError(
            f"channel {self._name!r} is bound to its process and cannot be pickled or copied, but "
            "its items can; make one channel in each process"
        )

    # The two attempts, made under the lock.

    def _append(self, item: T) -> _Pending | None:
        if self._is_closed:
            raise ClosedError(
                f"channel {self._name!r} is closed, but only an open one takes items; "
                "stop producing when it closes"
            )
        if len(self._items) >= self._maxsize:
            return _PENDING
        self._items.append(item)
        self._producers.num_served += 1
        self._consumers.wake_one()
        return None

    def _take(self) -> _Pending | T:
        if self._items:
            item = self._items.popleft()
            self._consumers.num_served += 1
            self._producers.wake_one()
            return item
        if self._is_closed:
            raise ClosedError(
                f"channel {self._name!r} is closed and empty, but get() needs an item; "
                "stop consuming when it closes"
            )
        return _PENDING

    # Waiting until an attempt succeeds: as a thread, as a task.

    def _wait(self, side: Side, attempt: Callable[[], _Pending | R], timeout_s: float | None) -> R:
        turn = Turn(side, self._limit(timeout_s))
        try:
            while True:
                event = threading.Event()
                outcome = self._try_or_queue(turn, attempt, partial(wake_thread, event))
                if outcome is not _PENDING:
                    return outcome
                event.wait(turn.left_s())
        except BaseException:  # Ctrl+C, or whatever a signal handler raises, among others
            self._give_up(turn)
            raise

    async def _wait_async(
        self, side: Side, attempt: Callable[[], _Pending | R], timeout_s: float | None
    ) -> R:
        import asyncio  # here, so that programs without an event loop start sooner

        loop = asyncio.get_running_loop()
        turn = Turn(side, self._limit(timeout_s))
        try:
            while True:
                future: asyncio.Future[None] = loop.create_future()
                outcome = self._try_or_queue(turn, attempt, partial(wake_task, loop, future))
                if outcome is not _PENDING:
                    return outcome
                timer = loop.call_later(turn.left_s(), complete, future)
                try:
                    await future
                finally:
                    timer.cancel()
        except BaseException:  # cancelled, among others
            self._give_up(turn)
            raise

    def _try_or_queue(
        self, turn: Turn, attempt: Callable[[], _Pending | R], wake: Wake
    ) -> _Pending | R:
        """Make one attempt; when it must be made again, leave `wake` in the queue."""
        with self._lock:
            turn.leave()  # woken or late: either way it is this call's turn to try
            outcome = attempt()
            if outcome is not _PENDING:
                turn.end()
            elif turn.left_s() > 0:
                turn.queue(wake)
            else:
                turn.end()
                raise self._too_late(turn)
            return outcome

    def _give_up(self, turn: Turn) -> None:
        """End a wait without a further attempt, passing on a wake-up that came meanwhile."""
        with self._lock:
            was_woken = not turn.leave()
            turn.end()
            if was_woken:
                turn.side.wake_one()

    def _limit(self, timeout_s: float | None) -> float:
        return self._timeout_s if timeout_s is None else checked_time_limit("timeout_s", timeout_s)

    def _too_late(self, turn: Turn) -> TimeLimitError:
        is_put = turn.side is self._producers
        state, call, cure = (
            ("full", "put()", "take from it") if is_put else ("empty", "get()", "put into it")
        )
        return TimeLimitError(
            f"channel {self._name!r} has been {state} for {turn.limit_s:g} s, but {call} waits no "
            f"longer; {cure} or give a longer timeout_s ({len(self._items)} of {self._maxsize} "
            f"items in it, {self._producers.num_served} put and {self._consumers.num_served} taken "
            f"so far, {self._producers.num_waiting} other producers and "
            f"{self._consumers.num_waiting} other consumers waiting)"
        )
