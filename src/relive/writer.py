# SPDX-License-Identifier: Apache-2.0
"""The one thread that writes.

Jobs run one after another in the order they came. A job that fails stays where it is and
stops the queue: the error is raised once in a caller's thread, and the job is tried again when
a caller says so. Nothing queued is ever dropped because of an error.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from relive.errors import ClosedError, StorageWriteError, TimeLimitError

__all__ = ["STALL_LIMIT_S", "Job", "Writer"]

STALL_LIMIT_S = 300.0
"""How long a wait without a time limit of its own bears a writer that finishes nothing."""


@dataclass(frozen=True, eq=False)
class Job:
    """Something to be done on the disk. Running it again after a failure must be safe."""

    what: str
    """Says in an error what could not be done."""
    run: Callable[[], None]
    """Does it."""
    trajectory_id: int | None = None
    """The trajectory that it stores, if any."""
    size_bytes: int = 0
    """Bytes that stay in memory until it is done."""
    until_then: str = "what was added stays in memory"
    """Says in an error how things stand until it succeeds."""


class Writer:
    """A queue of jobs and the thread that runs them. Any thread may call any method."""

    def __init__(self, name: str, idle: Callable[[], float | None]) -> None:
        """Make a writer; its thread starts with the first job, or when told to.

        Args:
            name: Name of the thread.
            idle: Called in the thread when nothing is queued. Does what is due and returns
                after how many seconds to call it again, or None for not before the next job.
        """
        self._name = name
        self._idle = idle
        self._idle_job = Job("the index", self._run_idle)
        self._idle_at = math.inf  # when idle work is due
        self._idle_asked = self._idle_served = 0  # how often it was asked for, and what is served
        self._condition = threading.Condition()
        self._jobs: deque[Job] = deque()
        self._running: Job | None = None
        self._pending_bytes = 0
        self._num_done = 0
        self._failure: StorageWriteError | None = None
        self._is_reported = False
        self._is_closing = False
        self._thread: threading.Thread | None = None

    @property
    def pending_bytes(self) -> int:
        """Bytes of the jobs that are not done."""
        return self._pending_bytes

    def submit(self, job: Job) -> None:
        """Queue a job.

        Raises:
            ClosedError: The writer is closed.
        """
        with self._condition:
            if self._is_closing:
                raise ClosedError("the writer is closed, but a job came; open the buffer again")
            self._jobs.append(job)
            self._pending_bytes += job.size_bytes
            self._wake()

    def start(self) -> None:
        """Start the thread before there is a job: when the interpreter ends none can be started."""
        with self._condition:
            self._wake()

    def _wake(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        self._condition.notify_all()

    def cancel(self, trajectory_id: int) -> bool:
        """Take back the job that stores a trajectory.

        Returns:
            False when it runs or is done already.
        """
        with self._condition:
            for job in self._jobs:
                if job.trajectory_id == trajectory_id and job is not self._running:
                    self._jobs.remove(job)
                    self._pending_bytes -= job.size_bytes
                    if self._failure is not None and self._failure.trajectory_id == trajectory_id:
                        self._failure = None
                    self._condition.notify_all()
                    return True
        return False

    def raise_failure_or_retry(self) -> None:
        """Raise the failure that nobody was told yet; one already told is tried again.

        Raises:
            StorageWriteError: A job failed since.
        """
        with self._condition:
            if self._failure is not None and not self._is_reported:
                self._is_reported = True
                raise self._failure
            self._failure = None
            self._condition.notify_all()

    def wait_for_room(self, size_bytes: int, max_pending_bytes: int) -> None:
        """Wait until this many bytes more may be pending; a single larger job may when none is.

        Raises:
            StorageWriteError: A job failed and was not tried again.
            TimeLimitError: No job was done for `STALL_LIMIT_S`.
        """
        self._wait(
            lambda: (
                not self._pending_bytes or self._pending_bytes + size_bytes <= max_pending_bytes
            ),
            f"room for {size_bytes} bytes in the write queue (max_pending_bytes is "
            f"{max_pending_bytes})",
            None,
        )

    def run(self, what: str, action: Callable[[], None]) -> None:
        """Run something in the thread after all that is queued, and wait for it.

        Args:
            what: Says in an error what could not be done.
            action: Is run once.

        Raises:
            StorageWriteError: Something queued before could not be written.
            BaseException: What the action raised; it is not tried again.
        """
        raised: list[BaseException] = []
        is_given_up = False

        def act() -> None:
            if is_given_up:
                return
            try:
                action()
            except BaseException as error:  # raised in the caller's thread below
                raised.append(error)

        self.submit(Job(what, act))
        try:
            self.drain(None)
        except BaseException:  # Ctrl+C among others: nobody waits for the action any more
            is_given_up = True
            raise
        if raised:
            raise raised[0]

    def drain(self, timeout_s: float | None, *, with_idle: bool = False) -> None:
        """Wait until everything queued so far is done.

        Args:
            timeout_s: Time limit; None waits as long as jobs get done.
            with_idle: Whether to have the idle work done as well, unless more is queued by then.

        Raises:
            StorageWriteError: A job failed and was not tried again.
            TimeLimitError: The time limit came first.
        """
        asked = 0
        reached = threading.Event()
        with self._condition:
            if self._jobs:  # others may go on queueing, so the queue need not be empty ever
                self._jobs.append(Job("the end of the queue", reached.set))
            else:
                reached.set()
            if with_idle and not self._is_closing:
                self._idle_asked += 1
                asked, self._idle_at = self._idle_asked, -math.inf
                self._wake()
        self._wait(
            lambda: (
                (reached.is_set() or (self._is_closing and not self._jobs))
                and self._running is not self._idle_job
                and (self._idle_served >= asked or self._is_closing or bool(self._jobs))
            ),
            "everything queued to be written",
            timeout_s,
        )

    def _wait(self, is_done: Callable[[], bool], what: str, timeout_s: float | None) -> None:
        limit = STALL_LIMIT_S if timeout_s is None else timeout_s
        with self._condition:
            start, done_before = time.monotonic(), self._num_done
            while not is_done():
                if self._failure is not None:  # nothing gets done before it is tried again
                    self._is_reported = True
                    raise self._failure
                if timeout_s is None and self._num_done != done_before:
                    start, done_before = time.monotonic(), self._num_done
                left = start + limit - time.monotonic()
                if left <= 0:
                    raise TimeLimitError(
                        f"waited {limit:g} s for {what}, but {self._pending_bytes} bytes are left"
                        f"{f', {self._running.what} first' if self._running else ''}; wait longer "
                        "or look at the disk"
                    )
                self._condition.wait(left)

    def close(self, timeout_s: float | None = None) -> None:
        """Finish what is queued and end the thread; twice is fine.

        Raises:
            StorageWriteError: A job failed; the writer stays open.
            TimeLimitError: The time limit came first; the writer stays open, or the thread did
                not end.
        """
        self.drain(timeout_s)
        self._end()

    def abandon(self) -> None:
        """End the thread after the job it is at, leaving the rest undone.

        Raises:
            TimeLimitError: The thread did not end.
        """
        with self._condition:
            while self._jobs and self._jobs[-1] is not self._running:
                self._pending_bytes -= self._jobs.pop().size_bytes
        self._end()

    def _end(self) -> None:
        with self._condition:
            self._is_closing = True
            self._condition.notify_all()
        if self._thread is None or self._thread is threading.current_thread():
            return
        self._thread.join(STALL_LIMIT_S)
        if self._thread.is_alive():
            raise TimeLimitError(
                f"waited {STALL_LIMIT_S:g} s for the thread {self._name!r} to end, but it is still "
                "at something; look at the disk"
            )

    def _work(self) -> None:
        while (job := self._next_job()) is not None:
            failure = _failure_of(job)
            with self._condition:
                self._running = None
                if failure is not None:
                    self._failure, self._is_reported = failure, False
                elif job is not self._idle_job:
                    self._jobs.popleft()
                    self._pending_bytes -= job.size_bytes
                    self._num_done += 1
                    self._idle_at = min(self._idle_at, time.monotonic())
                self._condition.notify_all()

    def _next_job(self) -> Job | None:
        """Wait for something to run; None when the writer ends."""
        with self._condition:
            while True:
                if self._failure is None:
                    if self._jobs:
                        self._running = self._jobs[0]
                        return self._running
                    if not self._is_closing and self._idle_at <= time.monotonic():
                        self._running = self._idle_job
                        return self._running
                if self._is_closing:
                    return None
                can_wait = self._failure is None and self._idle_at < math.inf
                self._condition.wait(self._idle_at - time.monotonic() if can_wait else None)

    def _run_idle(self) -> None:
        with self._condition:
            asked = self._idle_asked
        again_s = self._idle()
        with self._condition:
            self._idle_served = asked
            if self._idle_asked == asked:  # else it was asked for once more meanwhile
                self._idle_at = math.inf if again_s is None else time.monotonic() + again_s


def _failure_of(job: Job) -> StorageWriteError | None:
    """Run a job; return what went wrong, to be raised where somebody hears it."""
    try:
        job.run()
    except Exception as error:
        number = error.errno if isinstance(error, OSError) else None
        failure = StorageWriteError(
            f"{job.what} could not be written: {error}; {job.until_then}, and it is tried again by "
            "the next flush() or add_trajectories()",
            errno=number,
            path=str(getattr(error, "filename", "") or ""),
            trajectory_id=job.trajectory_id,
        )
        failure.__cause__ = error
        return failure
    return None
