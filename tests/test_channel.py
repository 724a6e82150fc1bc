# SPDX-License-Identifier: Apache-2.0
"""`relive.channel`: every item comes out once, in order, and nobody waits for ever.

Threads are steered by what the channel says of itself, not by sleeping: a test goes on when
`get_stats` counts the waiter that it needs.
"""

from __future__ import annotations

import asyncio
import copy
import pickle
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from processes import tiny_switch_interval
from relive.channel import Channel
from relive.errors import (
    ClosedError,
    InvalidArgumentError,
    ReplayError,
    TimeLimitError,
    UnsupportedValueError,
)


def num_waiting(channel: Channel[Any]) -> tuple[int, int]:
    stats = channel.get_stats()
    return int(stats["num_waiting_producers"]), int(stats["num_waiting_consumers"])


def await_waiters(channel: Channel[Any], *, producers: int = 0, consumers: int = 0) -> None:
    """Return as soon as this many calls wait."""
    pause = threading.Event()
    for _ in range(100_000):
        if num_waiting(channel) == (producers, consumers):
            return
        pause.wait(0.0001)
    raise AssertionError(f"{producers} producers and {consumers} consumers never waited")


async def await_waiters_async(
    channel: Channel[Any], *, producers: int = 0, consumers: int = 0
) -> None:
    """Return as soon as this many calls wait, letting other tasks run."""
    for _ in range(100_000):
        if num_waiting(channel) == (producers, consumers):
            return
        await asyncio.sleep(0)
    raise AssertionError(f"{producers} producers and {consumers} consumers never waited")


@contextmanager
def in_thread(call: Callable[[], Any]) -> Iterator[Future[Any]]:
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(call)


def run(main: Coroutine[Any, Any, Any]) -> Any:
    """Run a test's coroutine; one that hangs fails instead."""
    return asyncio.run(asyncio.wait_for(main, 60))


class TestChannel:
    def test_items_come_out_in_the_order_they_went_in(self) -> None:
        channel: Channel[int] = Channel(3)
        for item in (1, 2, 3):
            channel.put(item)
        assert [channel.get() for _ in range(3)] == [1, 2, 3]

    def test_items_are_handed_over_as_they_are(self) -> None:
        channel: Channel[object] = Channel(3)
        items = [None, [], object()]
        for item in items:
            channel.put(item)
        assert all(channel.get() is item for item in items)

    def test_its_length_is_what_it_holds_and_an_empty_one_is_still_true(self) -> None:
        channel: Channel[int] = Channel(3)
        assert len(channel) == 0
        assert bool(channel)
        channel.put(1)
        assert len(channel) == 1

    def test_it_says_what_it_is(self) -> None:
        channel: Channel[int] = Channel(3, timeout_s=7, name="parts")
        assert (channel.maxsize, channel.timeout_s, channel.name) == (3, 7.0, "parts")
        channel.put(1)
        assert repr(channel) == "<Channel 'parts' open, 1 of 3 items>"
        channel.close()
        assert repr(channel) == "<Channel 'parts' closed, 1 of 3 items>"

    def test_a_full_one_makes_producers_wait_their_turn(self) -> None:
        channel: Channel[int] = Channel(1)
        channel.put(0)
        with in_thread(lambda: channel.put(1)) as first:
            await_waiters(channel, producers=1)
            with in_thread(lambda: channel.put(2)) as second:
                await_waiters(channel, producers=2)
                assert [channel.get() for _ in range(3)] == [0, 1, 2]
                assert first.result() is second.result() is None

    def test_an_empty_one_makes_consumers_wait_their_turn(self) -> None:
        channel: Channel[int] = Channel(2)
        with in_thread(channel.get) as first:
            await_waiters(channel, consumers=1)
            with in_thread(channel.get) as second:
                await_waiters(channel, consumers=2)
                channel.put(1)
                channel.put(2)
                assert {first.result(), second.result()} == {1, 2}

    @pytest.mark.parametrize("num_workers", [1, 5])
    @pytest.mark.parametrize("maxsize", [1, 3, 10_000])
    def test_many_producers_and_consumers_lose_and_double_nothing(
        self, num_workers: int, maxsize: int
    ) -> None:
        num_items = 400
        channel: Channel[int] = Channel(maxsize)

        def produce(worker: int) -> None:
            for item in range(num_items):
                channel.put(1000 * worker + item)

        with tiny_switch_interval(), ThreadPoolExecutor(2 * num_workers) as pool:
            takers = [pool.submit(lambda: list(channel)) for _ in range(num_workers)]
            makers = [pool.submit(produce, worker) for worker in range(num_workers)]
            for maker in makers:
                maker.result()
            channel.close()
            taken = [taker.result() for taker in takers]
        every = [1000 * worker + item for worker in range(num_workers) for item in range(num_items)]
        assert sorted(item for items in taken for item in items) == every
        for items in taken:  # what one consumer sees of one producer is in order
            for worker in range(num_workers):
                mine = [item for item in items if item // 1000 == worker]
                assert mine == sorted(mine)
        assert channel.get_stats()["num_puts"] == channel.get_stats()["num_gets"] == len(every)


class TestTimeLimits:
    def test_get_from_an_empty_one_says_what_it_waited_for(self) -> None:
        channel: Channel[int] = Channel(4, name="parts")
        channel.put(1)
        channel.get()
        with pytest.raises(TimeLimitError) as error:
            channel.get(timeout_s=0.001)
        assert str(error.value) == (
            "channel 'parts' has been empty for 0.001 s, but get() waits no longer; put into it or "
            "give a longer timeout_s (0 of 4 items in it, 1 put and 1 taken so far, 0 other "
            "producers and 0 other consumers waiting)"
        )

    def test_put_into_a_full_one_says_what_it_waited_for(self) -> None:
        channel: Channel[int] = Channel(1, name="parts")
        channel.put(1)
        with pytest.raises(TimeLimitError, match=r"'parts' has been full for 0 s.* take from it"):
            channel.put(2, timeout_s=0)
        assert list_and_close(channel) == [1]

    def test_its_own_limit_holds_where_a_call_names_none(self) -> None:
        channel: Channel[int] = Channel(1, timeout_s=0.001)
        with pytest.raises(TimeLimitError, match=r"empty for 0\.001 s"):
            channel.get()
        with pytest.raises(TimeLimitError, match=r"empty for 0\.001 s"):
            next(iter(channel))
        channel.put(1)
        with pytest.raises(TimeLimitError, match=r"full for 0\.001 s"):
            channel.put(2)

    def test_it_is_the_built_in_timeout_and_pickles(self) -> None:
        with pytest.raises(TimeoutError) as error:
            Channel[int](1).get(timeout_s=0)
        assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)

    def test_the_async_twins_have_them_too(self) -> None:
        async def main() -> None:
            channel: Channel[int] = Channel(1, timeout_s=0.001)
            with pytest.raises(TimeLimitError, match=r"empty for 0\.001 s"):
                await channel.get_async()
            with pytest.raises(TimeLimitError, match=r"empty for 0 s"):
                await channel.get_async(timeout_s=0)
            await channel.put_async(1)
            with pytest.raises(TimeLimitError, match=r"full for 0\.002 s"):
                await channel.put_async(2, timeout_s=0.002)
            assert await channel.get_async() == 1

        run(main())

    def test_a_late_consumer_leaves_the_queue_to_the_others(self) -> None:
        channel: Channel[int] = Channel(1)
        with (
            in_thread(lambda: channel.get(timeout_s=0.001)) as late,
            in_thread(channel.get) as taker,
        ):
            assert isinstance(late.exception(), TimeLimitError)
            channel.put(7)
            assert taker.result() == 7

    @pytest.mark.parametrize("limit", [-1, float("inf"), float("nan"), 1e300, "1", True, None])
    def test_a_limit_that_is_none_is_refused(self, limit: Any) -> None:
        channel: Channel[int] = Channel(1)
        calls: list[Callable[[], Any]] = [lambda: Channel[int](1, timeout_s=limit)]
        if limit is not None:  # which takes the channel's
            calls += [lambda: channel.get(timeout_s=limit), lambda: channel.put(1, timeout_s=limit)]
        for call in calls:
            with pytest.raises(InvalidArgumentError, match=r"timeout_s is .* seconds from 0 to "):
                call()
        assert len(channel) == 0

    @pytest.mark.parametrize("name", [None, 3, b"parts"])
    def test_a_name_that_is_no_text_is_refused(self, name: Any) -> None:
        with pytest.raises(InvalidArgumentError, match=r"name is .* must be str"):
            Channel(1, name=name)

    @pytest.mark.parametrize("maxsize", [0, -1, 1.5, True, None])
    def test_a_size_below_one_is_refused(self, maxsize: Any) -> None:
        with pytest.raises(InvalidArgumentError, match=r"maxsize is .* at least 1"):
            Channel(maxsize)

    def test_numbers_of_numpy_become_plain_ones(self) -> None:
        channel: Channel[int] = Channel(np.int64(2), timeout_s=np.float32(0.5))
        assert (type(channel.maxsize), type(channel.timeout_s)) == (int, float)
        assert (channel.maxsize, channel.timeout_s) == (2, 0.5)


def list_and_close(channel: Channel[int]) -> list[int]:
    channel.close()
    return list(channel)


class TestClose:
    def test_consumers_get_what_is_left_and_then_an_error(self) -> None:
        channel: Channel[int] = Channel(3, name="parts")
        channel.put(1)
        channel.put(2)
        channel.close()
        assert channel.closed
        assert [channel.get(), channel.get()] == [1, 2]
        with pytest.raises(ClosedError, match=r"'parts' is closed and empty"):
            channel.get()

    def test_producers_get_an_error_at_once(self) -> None:
        channel: Channel[int] = Channel(3, name="parts")
        channel.close()
        with pytest.raises(ClosedError, match=r"'parts' is closed, but"):
            channel.put(1)

    def test_waiting_producers_get_an_error_and_put_nothing(self) -> None:
        channel: Channel[int] = Channel(1)
        channel.put(0)
        with in_thread(lambda: channel.put(1)) as maker, in_thread(lambda: channel.put(2)) as other:
            await_waiters(channel, producers=2)
            channel.close()
            assert isinstance(maker.exception(), ClosedError)
            assert isinstance(other.exception(), ClosedError)
        assert list(channel) == [0]

    def test_waiting_consumers_get_an_error(self) -> None:
        channel: Channel[int] = Channel(1)
        with in_thread(channel.get) as taker, in_thread(lambda: list(channel)) as looper:
            await_waiters(channel, consumers=2)
            channel.close()
            assert isinstance(taker.exception(), ClosedError)
            assert looper.result() == []

    def test_twice_is_fine_and_so_is_a_with_block(self) -> None:
        with Channel[int](1) as channel:
            channel.put(1)
        channel.close()
        channel.close()
        assert list(channel) == [1]
        assert list(channel) == []

    def test_a_with_block_lets_its_error_out(self) -> None:
        channel: Channel[int] = Channel(1)
        with pytest.raises(KeyError), channel:
            raise KeyError
        assert channel.closed

    def test_waiting_tasks_are_told(self) -> None:
        async def main() -> None:
            full: Channel[int] = Channel(1)
            empty: Channel[int] = Channel(1)
            full.put(0)
            maker = asyncio.create_task(full.put_async(1))
            taker = asyncio.create_task(empty.get_async())
            await await_waiters_async(full, producers=1)
            await await_waiters_async(empty, consumers=1)
            full.close()
            empty.close()
            for task in (maker, taker):
                with pytest.raises(ClosedError):
                    await task
            assert [item async for item in full] == [0]

        run(main())


class TestAsync:
    def test_a_task_waits_for_a_thread_without_blocking_its_loop(self) -> None:
        async def main() -> list[int]:
            channel: Channel[int] = Channel(1)
            taker = asyncio.create_task(channel.get_async())
            await await_waiters_async(channel, consumers=1)  # the loop goes on
            with in_thread(lambda: channel.put(5)):
                return [await taker]

        assert run(main()) == [5]

    def test_a_thread_waits_for_a_task(self) -> None:
        async def main() -> Any:
            channel: Channel[int] = Channel(1)
            with in_thread(channel.get) as taker:
                await await_waiters_async(channel, consumers=1)
                await channel.put_async(5)
                return await asyncio.wrap_future(taker)

        assert run(main()) == 5

    def test_tasks_and_threads_lose_and_double_nothing(self) -> None:
        num_items = 300

        async def main() -> list[int]:
            channel: Channel[int] = Channel(2)

            async def take() -> list[int]:
                return [item async for item in channel]

            async def make(worker: int) -> None:
                for item in range(num_items):
                    await channel.put_async(1000 * worker + item)

            def make_in_thread(worker: int) -> None:
                for item in range(num_items):
                    channel.put(1000 * worker + item)

            with ThreadPoolExecutor(4) as pool:
                threads = [pool.submit(list[int], channel) for _ in range(2)]
                tasks = [asyncio.create_task(take()) for _ in range(2)]
                in_threads = [pool.submit(make_in_thread, worker) for worker in (2, 3)]
                await asyncio.gather(make(0), make(1), *map(asyncio.wrap_future, in_threads))
                channel.close()
                taken = await asyncio.gather(*tasks, *map(asyncio.wrap_future, threads))
            return sorted(item for items in taken for item in items)

        with tiny_switch_interval():
            assert run(main()) == [
                1000 * worker + item for worker in range(4) for item in range(num_items)
            ]

    def test_a_cancelled_get_takes_nothing(self) -> None:
        async def main() -> None:
            channel: Channel[int] = Channel(1)
            taker = asyncio.create_task(channel.get_async())
            await await_waiters_async(channel, consumers=1)
            taker.cancel()
            with pytest.raises(asyncio.CancelledError):
                await taker
            assert channel.get_stats()["num_waiting_consumers"] == 0
            channel.put(1)
            assert channel.get(timeout_s=0) == 1

        run(main())

    def test_a_get_cancelled_when_its_item_came_leaves_it_to_the_next(self) -> None:
        async def main() -> int:
            channel: Channel[int] = Channel(1)
            first = asyncio.create_task(channel.get_async())
            await await_waiters_async(channel, consumers=1)
            second = asyncio.create_task(channel.get_async())
            await await_waiters_async(channel, consumers=2)
            channel.put(1)  # calls the first back
            first.cancel()  # which cannot act any more
            with pytest.raises(asyncio.CancelledError):
                await first
            return await second

        assert run(main()) == 1

    def test_a_cancelled_put_puts_nothing_and_passes_its_turn_on(self) -> None:
        async def main() -> None:
            channel: Channel[int] = Channel(1)
            channel.put(0)
            first = asyncio.create_task(channel.put_async(1))
            await await_waiters_async(channel, producers=1)
            second = asyncio.create_task(channel.put_async(2))
            await await_waiters_async(channel, producers=2)
            assert channel.get() == 0
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            await second
            assert list_and_close(channel) == [2]

        run(main())

    def test_a_cancelled_task_passes_its_turn_to_a_thread(self) -> None:
        async def main() -> Any:
            channel: Channel[int] = Channel(1)
            first = asyncio.create_task(channel.get_async())
            await await_waiters_async(channel, consumers=1)
            with in_thread(channel.get) as taker:
                await await_waiters_async(channel, consumers=2)
                channel.put(1)
                first.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await first
                return await asyncio.wrap_future(taker)

        assert run(main()) == 1

    def test_wait_for_works_and_loses_nothing(self) -> None:
        async def main() -> None:
            channel: Channel[int] = Channel(1)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(channel.get_async(), 0.001)
            await channel.put_async(1)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(channel.put_async(2), 0.001)
            assert await asyncio.wait_for(channel.get_async(), 10) == 1
            assert len(channel) == 0

        run(main())

    def test_gets_cancelled_at_any_moment_lose_and_double_nothing(self) -> None:
        """A thread puts while gets are cancelled after 0, 1, 2 ... rounds of the loop."""
        num_items = 300

        async def main() -> list[int]:
            channel: Channel[int] = Channel(1)

            def make() -> None:
                for item in range(num_items):
                    channel.put(item)
                channel.close()

            taken: list[int] = []
            with in_thread(make):
                for attempt in range(1_000_000):
                    task = asyncio.create_task(channel.get_async())
                    for _ in range(attempt % 4):
                        await asyncio.sleep(0)
                    task.cancel()
                    try:
                        taken.append(await task)
                    except asyncio.CancelledError:
                        pass
                    except ClosedError:
                        return taken
            raise AssertionError("the channel never ran dry")

        with tiny_switch_interval():
            assert run(main()) == list(range(num_items))

    def test_waiters_of_a_loop_that_is_gone_are_passed_over(self) -> None:
        channel: Channel[int] = Channel(1)
        loop = asyncio.new_event_loop()
        task = loop.create_task(channel.get_async())
        loop.run_until_complete(asyncio.sleep(0))
        assert channel.get_stats()["num_waiting_consumers"] == 1
        loop.close()
        with in_thread(channel.get) as taker:
            await_waiters(channel, consumers=2)
            channel.put(3)
            assert taker.result() == 3
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # it is meant to die here


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Let SIGINT interrupt, as in a terminal: a program in the background starts ignoring it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class TestInterrupt:
    @pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="no signals between threads")
    def test_an_interrupted_wait_leaves_the_queue(self, ctrl_c: None) -> None:
        channel: Channel[int] = Channel(1)
        main_thread = threading.get_ident()

        def interrupt() -> None:
            await_waiters(channel, consumers=1)
            signal.pthread_kill(main_thread, signal.SIGINT)

        with in_thread(interrupt), pytest.raises(KeyboardInterrupt):
            channel.get()
        assert num_waiting(channel) == (0, 0)
        channel.put(1)
        assert channel.get(timeout_s=0) == 1


class TestStats:
    def test_they_count_items_and_waits(self) -> None:
        channel: Channel[int] = Channel(2)
        assert set(channel.get_stats().values()) == {0.0, 2.0}
        with in_thread(channel.get) as taker:
            await_waiters(channel, consumers=1)
            channel.put(1)
            taker.result()
        channel.put(2)
        stats = channel.get_stats()
        assert all(type(value) is float for value in stats.values())
        assert stats["size"] == 1
        assert stats["maxsize"] == 2
        assert stats["num_puts"] == 2
        assert stats["num_gets"] == 1
        assert stats["num_waiting_consumers"] == stats["num_waiting_producers"] == 0
        assert stats["longest_get_wait_s"] == stats["total_get_wait_s"] > 0
        assert stats["longest_put_wait_s"] == 0
        assert stats["closed"] == 0
        channel.close()
        assert channel.get_stats()["closed"] == 1


class TestPickle:
    @pytest.mark.parametrize("duplicate", [pickle.dumps, copy.copy, copy.deepcopy])
    def test_it_is_refused_by_name(self, duplicate: Callable[[Any], Any]) -> None:
        with pytest.raises(UnsupportedValueError, match=r"'parts' is bound to its process"):
            duplicate(Channel[int](1, name="parts"))


class ChannelAgainstList(RuleBasedStateMachine):
    """A channel and a plain list that does the same."""

    def __init__(self) -> None:
        super().__init__()
        self.channel: Channel[int] = Channel(3, timeout_s=0)
        self.items: list[int] = []
        self.closed = False
        self.num_puts = 0

    @rule(item=st.integers())
    def put(self, item: int) -> None:
        wrong = ClosedError if self.closed else TimeLimitError
        if self.closed or len(self.items) == 3:
            with pytest.raises(wrong):
                self.channel.put(item)
        else:
            self.channel.put(item)
            self.items.append(item)
            self.num_puts += 1

    @rule(use_async=st.booleans())
    def get(self, use_async: bool) -> None:
        def take() -> int:
            if use_async:
                return asyncio.run(self.channel.get_async())
            return self.channel.get()

        if self.items:
            assert take() == self.items.pop(0)
        else:
            with pytest.raises(ClosedError if self.closed else TimeLimitError):
                take()

    @precondition(lambda self: self.num_puts > 3)
    @rule()
    def close(self) -> None:
        self.channel.close()
        self.closed = True

    @invariant()
    def counts_agree(self) -> None:
        stats = self.channel.get_stats()
        assert len(self.channel) == stats["size"] == len(self.items)
        assert self.channel.closed == self.closed
        assert stats["num_puts"] == self.num_puts
        assert stats["num_puts"] - stats["num_gets"] == len(self.items)


TestChannelAgainstList = ChannelAgainstList.TestCase
TestChannelAgainstList.settings = settings(max_examples=30, stateful_step_count=30)


@given(items=st.lists(st.integers(), max_size=5))
def test_a_closed_channel_is_its_items(items: list[int]) -> None:
    channel: Channel[int] = Channel(5)
    for item in items:
        channel.put(item)
    channel.close()
    assert list(channel) == items
    with pytest.raises(ReplayError):
        channel.put(0)
