# SPDX-License-Identifier: Apache-2.0
"""`relive.writer`: one thread, jobs in order, and no failure that nobody hears of."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from relive import writer as writer_module
from relive.errors import ClosedError, StorageWriteError, TimeLimitError
from relive.writer import Job, Writer

LONG_S = 30.0
"""Longer than anything here takes; a test that waits so long has failed."""


class Gate:
    """A job that says when it runs, and ends when it may."""

    def __init__(self) -> None:
        self.runs = threading.Event()
        self.may_end = threading.Event()

    def __call__(self) -> None:
        self.runs.set()
        assert self.may_end.wait(LONG_S)


class Refusing:
    """A job that the disk refuses as often as told."""

    def __init__(self, times: int) -> None:
        self.times_left = times
        self.num_runs = 0

    def __call__(self) -> None:
        self.num_runs += 1
        if self.times_left:
            self.times_left -= 1
            raise OSError(28, "no space", "/data/file")


def wait_until(writer: Writer, is_true: Callable[[], bool]) -> None:
    """Wait for something that the writer tells when it comes."""
    with writer._condition:
        assert writer._condition.wait_for(is_true, LONG_S)


@pytest.fixture
def writer() -> Iterator[Writer]:
    writer = Writer("test writer", lambda: None)
    yield writer
    writer.abandon()


@pytest.fixture
def gate(writer: Writer) -> Iterator[Gate]:
    """A job that the writer is at; it ends with the test at the latest."""
    gate = Gate()
    writer.submit(Job("the gate", gate, 0, 10))
    assert gate.runs.wait(LONG_S)
    yield gate
    gate.may_end.set()


class TestOrder:
    def test_jobs_run_one_after_another_in_one_thread(self, writer: Writer) -> None:
        seen: list[tuple[int, str]] = []

        def job(number: int) -> Callable[[], None]:
            return lambda: seen.append((number, threading.current_thread().name))

        for number in range(50):
            writer.submit(Job("x", job(number)))
        writer.drain(LONG_S)
        assert seen == [(number, "test writer") for number in range(50)]

    def test_no_thread_is_there_before_the_first_job(self) -> None:
        before = threading.active_count()
        writer = Writer("test writer", lambda: None)
        writer.drain(LONG_S)
        writer.close()
        assert threading.active_count() == before

    def test_bytes_are_pending_until_their_job_is_done(self, writer: Writer, gate: Gate) -> None:
        writer.submit(Job("x", lambda: None, 1, 5))
        assert writer.pending_bytes == 15
        gate.may_end.set()
        writer.drain(LONG_S)
        assert writer.pending_bytes == 0

    def test_what_is_queued_later_is_not_waited_for(self, writer: Writer, gate: Gate) -> None:
        later = Gate()
        with ThreadPoolExecutor(1) as pool:
            draining = pool.submit(writer.drain, LONG_S)
            wait_until(writer, lambda: len(writer._jobs) == 2)
            writer.submit(Job("later", later))
            gate.may_end.set()
            draining.result(LONG_S)
            later.may_end.set()

    def test_the_thread_can_be_started_before_a_job_comes(self) -> None:
        before = threading.active_count()
        writer = Writer("test writer", lambda: None)
        writer.start()
        writer.start()
        assert threading.active_count() == before + 1
        writer.close()
        assert threading.active_count() == before


class TestFailure:
    def test_it_stops_the_queue_and_is_told_once_with_all_facts(self, writer: Writer) -> None:
        refusing, seen = Refusing(2), list[int]()
        writer.submit(Job("trajectory 7", refusing, 7, 5))
        writer.submit(Job("trajectory 8", lambda: seen.append(8), 8, 5))
        with pytest.raises(StorageWriteError, match=r"trajectory 7 could not .*no space") as caught:
            writer.drain(LONG_S)
        error = caught.value
        assert (error.trajectory_id, error.errno, error.path) == (7, 28, "/data/file")
        assert isinstance(error.__cause__, OSError)
        assert (seen, writer.pending_bytes, refusing.num_runs) == ([], 10, 1)

        writer.raise_failure_or_retry()  # it was told: it is tried again, and fails again
        with pytest.raises(StorageWriteError, match="trajectory 7"):
            writer.drain(LONG_S)
        writer.raise_failure_or_retry()
        writer.drain(LONG_S)
        assert (seen, writer.pending_bytes, refusing.num_runs) == ([8], 0, 3)

    def test_the_next_call_tells_it_before_it_is_tried_again(self, writer: Writer) -> None:
        refusing = Refusing(1)
        writer.submit(Job("trajectory 7", refusing, 7))
        with pytest.raises(StorageWriteError):
            writer.drain(LONG_S)
        failed = Refusing(1)
        writer.submit(Job("trajectory 8", failed, 8))
        writer.raise_failure_or_retry()
        with pytest.raises(StorageWriteError, match="trajectory 8") as caught:
            writer.drain(LONG_S)
        assert caught.value.trajectory_id == 8
        assert (refusing.num_runs, failed.num_runs) == (2, 1)

    def test_everyone_who_waits_hears_it(self, writer: Writer) -> None:
        gate = Gate()

        def job() -> None:
            gate()
            raise OSError(28, "no space")

        writer.submit(Job("trajectory 7", job, 7, 10))
        with ThreadPoolExecutor(3) as pool:
            waits = [
                pool.submit(writer.drain, LONG_S),
                pool.submit(writer.drain, None),
                pool.submit(writer.wait_for_room, 10, 10),
            ]
            gate.may_end.set()
            errors = [wait.exception(LONG_S) for wait in waits]
        assert [type(error) for error in errors] == [StorageWriteError] * 3

    def test_any_error_of_a_job_counts(self, writer: Writer) -> None:
        def job() -> None:
            raise ZeroDivisionError("a bug")

        writer.submit(Job("trajectory 7", job, 7))
        with pytest.raises(StorageWriteError, match="a bug") as caught:
            writer.drain(LONG_S)
        assert (caught.value.errno, caught.value.path) == (None, "")


class TestCancel:
    def test_a_queued_job_is_taken_back(self, writer: Writer, gate: Gate) -> None:
        seen: list[int] = []
        for number in (1, 2):
            writer.submit(Job("x", lambda number=number: seen.append(number), number, 5))  # type: ignore[misc]  # a default binds
        assert writer.cancel(1)
        assert not writer.cancel(1)
        assert writer.pending_bytes == 15
        gate.may_end.set()
        writer.drain(LONG_S)
        assert seen == [2]

    def test_a_running_or_finished_job_is_not(self, writer: Writer, gate: Gate) -> None:
        assert not writer.cancel(0)
        gate.may_end.set()
        writer.drain(LONG_S)
        assert not writer.cancel(0)

    @pytest.mark.parametrize("is_told", [False, True])
    def test_a_failed_job_is_and_its_failure_with_it(self, writer: Writer, is_told: bool) -> None:
        seen: list[int] = []
        writer.submit(Job("trajectory 7", Refusing(99), 7, 5))
        if is_told:
            with pytest.raises(StorageWriteError):
                writer.drain(LONG_S)
        wait_until(writer, lambda: writer._failure is not None)
        assert writer.cancel(7)
        writer.submit(Job("x", lambda: seen.append(1)))
        writer.raise_failure_or_retry()
        writer.drain(LONG_S)
        assert (seen, writer.pending_bytes) == ([1], 0)


class TestRoom:
    def test_what_fits_need_not_wait(self, writer: Writer, gate: Gate) -> None:
        writer.wait_for_room(90, 100)

    def test_a_large_job_may_come_alone(self, writer: Writer) -> None:
        writer.wait_for_room(1000, 100)

    def test_more_waits_until_enough_is_done(self, writer: Writer, gate: Gate) -> None:
        order: list[str] = []
        with ThreadPoolExecutor(1) as pool:

            def wait() -> None:
                writer.wait_for_room(95, 100)
                order.append("room")

            waiting = pool.submit(wait)
            order.append("gate opens")
            gate.may_end.set()
            waiting.result(LONG_S)
        assert order == ["gate opens", "room"]

    def test_taking_a_job_back_makes_room(self, writer: Writer, gate: Gate) -> None:
        writer.submit(Job("x", lambda: None, 1, 90))
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(writer.wait_for_room, 50, 100)
            assert writer.cancel(1)
            waiting.result(LONG_S)


class TestTimeLimits:
    def test_a_wait_says_what_for_and_what_is_left(self, writer: Writer, gate: Gate) -> None:
        told = r"waited 0\.01 s for everything queued.* 10 bytes.*, the gate first"
        with pytest.raises(TimeLimitError, match=told):
            writer.drain(0.01)
        with pytest.raises(TimeLimitError, match="waited 0 s"):
            writer.drain(0)

    def test_without_a_limit_a_stalled_disk_is_told(
        self, writer: Writer, gate: Gate, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(writer_module, "STALL_LIMIT_S", 0.01)
        with pytest.raises(TimeLimitError, match=r"waited 0\.01 s for room for 99 bytes"):
            writer.wait_for_room(99, 100)
        with pytest.raises(TimeLimitError, match=r"waited 0\.01 s for everything"):
            writer.drain(None)
        with pytest.raises(TimeLimitError, match=r"waited 0\.01 s"):
            writer.close()
        monkeypatch.undo()
        gate.may_end.set()
        writer.close()

    def test_without_a_limit_progress_is_enough(
        self, writer: Writer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(writer_module, "STALL_LIMIT_S", 1000.0)
        clock = [0.0]
        monkeypatch.setattr("relive.writer.time.monotonic", lambda: clock[0])

        def slow_disk() -> None:
            clock[0] += 900.0

        for _ in range(5):
            writer.submit(Job("x", slow_disk))
        writer.drain(None)
        assert clock[0] == 4500.0


class TestIdleWork:
    def test_it_comes_after_the_last_job_and_then_when_it_says(self) -> None:
        seen: list[str] = []
        is_done = threading.Event()

        def idle() -> float | None:
            seen.append("idle")
            if seen.count("idle") < 3:
                return 0.0
            is_done.set()
            return None

        writer = Writer("test writer", idle)
        gate = Gate()
        writer.submit(Job("x", gate))
        writer.submit(Job("x", lambda: seen.append("job")))
        gate.may_end.set()
        assert is_done.wait(LONG_S)
        writer.close()
        assert seen == ["job", "idle", "idle", "idle"]

    def test_it_can_be_asked_for_at_once(self) -> None:
        seen: list[int] = []

        def idle() -> float:
            seen.append(len(seen))
            return 1e6

        writer = Writer("test writer", idle)
        for expected in range(1, 4):
            writer.drain(LONG_S, with_idle=True)
            assert len(seen) == expected
        writer.close()
        writer.drain(LONG_S, with_idle=True)
        assert len(seen) == 3

    def test_what_is_asked_for_while_it_runs_is_done_after_it(self) -> None:
        gate = Gate()
        seen: list[str] = []

        def idle() -> None:
            if not seen:
                seen.append("begins")
                gate()
            else:
                seen.append("once more")

        writer = Writer("test writer", idle)
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(writer.drain, LONG_S, with_idle=True)
            assert gate.runs.wait(LONG_S)
            writer.submit(Job("x", lambda: seen.append("job")))
            second = pool.submit(writer.drain, LONG_S, with_idle=True)
            wait_until(writer, lambda: writer._idle_asked == 2)
            gate.may_end.set()
            first.result(LONG_S)
            second.result(LONG_S)
        writer.close()
        assert seen == ["begins", "job", "once more"]

    def test_its_failure_is_told_and_it_is_tried_again(self) -> None:
        refusing = Refusing(1)
        writer = Writer("test writer", lambda: refusing())
        with pytest.raises(StorageWriteError, match="the index could not be written") as caught:
            writer.drain(LONG_S, with_idle=True)
        assert caught.value.trajectory_id is None
        writer.raise_failure_or_retry()
        writer.drain(LONG_S, with_idle=True)
        assert refusing.num_runs >= 2
        writer.close()


class TestEnd:
    def test_closing_finishes_what_is_queued(self, writer: Writer, gate: Gate) -> None:
        seen: list[int] = []
        for number in range(5):
            writer.submit(Job("x", lambda number=number: seen.append(number)))  # type: ignore[misc]  # a default binds
        gate.may_end.set()
        writer.close()
        writer.close()
        assert seen == [0, 1, 2, 3, 4]
        with pytest.raises(ClosedError, match="the writer is closed"):
            writer.submit(Job("x", lambda: None))

    def test_closing_tells_a_failure_and_can_be_tried_again(self, writer: Writer) -> None:
        refusing = Refusing(1)
        writer.submit(Job("trajectory 7", refusing, 7))
        with pytest.raises(StorageWriteError, match="trajectory 7"):
            writer.close()
        writer.raise_failure_or_retry()
        writer.close()
        assert refusing.num_runs == 2

    def test_abandoning_leaves_the_rest_undone(self, writer: Writer) -> None:
        gate, seen = Gate(), list[int]()
        writer.submit(Job("x", gate, 0, 10))
        writer.submit(Job("x", lambda: seen.append(1), 1, 10))
        assert gate.runs.wait(LONG_S)
        with ThreadPoolExecutor(1) as pool:
            abandoning = pool.submit(writer.abandon)
            wait_until(writer, lambda: writer.pending_bytes == 10)
            gate.may_end.set()
            abandoning.result(LONG_S)
        assert (seen, writer.pending_bytes) == ([], 0)

    def test_abandoning_ends_every_wait(self, writer: Writer, gate: Gate) -> None:
        with ThreadPoolExecutor(2) as pool:
            draining = pool.submit(writer.drain, LONG_S)
            wait_until(writer, lambda: len(writer._jobs) == 2)
            abandoning = pool.submit(writer.abandon)
            wait_until(writer, lambda: len(writer._jobs) == 1)
            gate.may_end.set()
            draining.result(LONG_S)
            abandoning.result(LONG_S)

    def test_abandoning_after_a_failure_ends_the_thread(self) -> None:
        before = threading.active_count()
        writer = Writer("test writer", lambda: None)
        writer.submit(Job("trajectory 7", Refusing(9), 7))
        with pytest.raises(StorageWriteError):
            writer.drain(LONG_S)
        writer.abandon()
        assert threading.active_count() == before
