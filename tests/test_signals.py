# SPDX-License-Identifier: Apache-2.0
"""Signals that come amid a read, and handlers that raise, sample, fork or close."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

import relive
from buffers import open_at
from programs import run_program
from relive import TrajectoryReplayBuffer
from trajectories import check_rows, traj

SOURCE = str(Path(relive.__file__).parent)

KINDS = ("memory", "pt", "memmap")


class InterruptedAt:
    """Raises KeyboardInterrupt at one of the moments at which Ctrl+C may in the library's code.

    CPython looks for signals when a function of Python begins and when one of C has returned.
    """

    def __init__(self, step: int) -> None:
        self.left = step

    def __enter__(self) -> None:
        sys.setprofile(self._look)

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _look(self, frame: FrameType, event: str, _: object) -> None:
        if event in ("call", "c_return") and frame.f_code.co_filename.startswith(SOURCE):
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt


READS: dict[str, Callable[[TrajectoryReplayBuffer], object]] = {
    "sample": lambda buffer: buffer.sample(5),
    "gather": lambda buffer: buffer.gather([0, 3]),
    "trajectory": lambda buffer: buffer.trajectory(0),
}


class TestInterrupts:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("read", READS)
    def test_no_read_is_left_for_close_to_wait_for(
        self, read: str, kind: str, tmp_path: Path
    ) -> None:
        with open_at(kind, tmp_path / "store", enable_cache=False) as buffer:
            buffer.add_trajectories([traj(0)])
            buffer.flush()
            READS[read](buffer)  # what is read once is read now
            num_interrupts, has_ended = 0, False
            while not has_ended:
                try:
                    with InterruptedAt(num_interrupts + 1):
                        READS[read](buffer)
                    has_ended = True
                except KeyboardInterrupt:
                    num_interrupts += 1
                assert buffer._store._leases.threads() == set()
            assert num_interrupts > 20
            check_rows(buffer.sample(5))

    def test_what_left_amid_such_a_read_goes_with_the_next(self, tmp_path: Path) -> None:
        with open_at("pt", tmp_path / "store", enable_cache=False) as buffer:
            buffer.add_trajectories([traj(0), traj(1)])
            buffer.flush()
            lease = buffer._store.leased(lambda lease: lease)
            with lease:
                buffer._store.view(0, lease)
                buffer.delete([0])
                buffer.flush()
                assert (tmp_path / "store" / "trajectory_0_.pt").exists()
            check_rows(buffer.sample(5))
            buffer.flush()
            assert not (tmp_path / "store" / "trajectory_0_.pt").exists()


HANDLER = """
import os, signal, sys, threading, time
from relive import TrajectoryReplayBuffer
from relive.errors import TimeLimitError
from relive.samplers import Uniform
from trajectories import check_rows, traj

def draw(self, *arguments):
    Uniform.draw = plain
    signal.raise_signal(signal.SIGUSR1)
    return plain(self, *arguments)

signal.alarm(60)  # else it might wait for ever
plain, Uniform.draw = Uniform.draw, draw
buffer = TrajectoryReplayBuffer(framework="numpy")
buffer.add_trajectories([traj(0)])
"""


class TestHandlers:
    def test_one_may_fork_and_sample_amid_a_draw(self) -> None:
        printed = run_program(
            HANDLER + "def handle(*_):\n"
            "    child = os.fork()\n"
            "    check_rows(buffer.sample(3))\n"
            "    if not child:\n"
            "        os._exit(0)\n"
            "    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
            "signal.signal(signal.SIGUSR1, handle)\n"
            "check_rows(buffer.sample(3))\n"
        )
        assert printed.split() == ["0"]

    def test_a_child_that_one_forked_goes_on_with_the_draw(self) -> None:
        printed = run_program(
            HANDLER + "child = None\n"
            "def handle(*_):\n"
            "    global child\n"
            "    child = os.fork()\n"
            "signal.signal(signal.SIGUSR1, handle)\n"
            "check_rows(buffer.sample(3))\n"
            "check_rows(buffer.sample(3))\n"
            "if not child:\n"
            "    buffer.close()\n"
            "    os._exit(0)\n"
            "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        )
        assert printed.split() == ["0"]

    def test_a_child_that_one_forked_goes_on_with_waiting_for_a_lock(self) -> None:
        """The lock is one of the parent's, and another thread had it."""
        printed = run_program(
            HANDLER + "Uniform.draw = plain\n"
            "child = None\n"
            "def handle(*_):\n"
            "    global child\n"
            "    child = os.fork()\n"
            "    signal.alarm(30)  # the child has none of its parent's\n"
            "def hold():\n"
            "    with buffer._store.lock:\n"
            "        is_held.set()\n"
            "        time.sleep(0.2)  # the sample waits by now\n"
            "        os.kill(os.getpid(), signal.SIGUSR1)\n"
            "        time.sleep(0.2)  # and its thread is about to fork\n"
            "is_held = threading.Event()\n"
            "signal.signal(signal.SIGUSR1, handle)\n"
            "threading.Thread(target=hold).start()\n"
            "assert is_held.wait(30)\n"
            "check_rows(buffer.sample(3))\n"
            "if not child:\n"
            "    os._exit(0)\n"
            "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        )
        assert printed.split() == ["0"]

    def test_one_may_sample_amid_a_draw_while_another_thread_adds(self) -> None:
        printed = run_program(
            HANDLER + "def handle(*_):\n"
            "    adding.start()\n"
            "    adding.join(0.2)  # it waits for what the draw has locked\n"
            "    check_rows(buffer.sample(3))\n"
            "adding = threading.Thread(target=buffer.add_trajectories, args=([traj(1)],))\n"
            "signal.signal(signal.SIGUSR1, handle)\n"
            "check_rows(buffer.sample(3))\n"
            "adding.join()\n"
            "print(len(buffer))\n"
        )
        assert printed.split() == ["2"]

    def test_one_that_closes_amid_a_read_of_its_thread_is_told_at_once(self) -> None:
        printed = run_program(
            HANDLER + "def handle(*_):\n"
            "    try:\n"
            "        buffer.close()\n"
            "    except TimeLimitError as error:\n"
            "        print(error)\n"
            "signal.signal(signal.SIGUSR1, handle)\n"
            "check_rows(buffer.sample(3))\n"
            "buffer.close()\n"
        )
        assert "came amid a read of its own thread" in printed
