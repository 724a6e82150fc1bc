# SPDX-License-Identifier: Apache-2.0
"""`relive.forking` and `relive.lifetime`: forking at any moment, from any thread."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from weakref import WeakKeyDictionary

import pytest

from buffers import open_store
from programs import run_program
from relive import TrajectoryReplayBuffer, lifetime
from relive.errors import ForkedError
from relive.lifetime import watch_forks
from trajectories import check_rows, make_checkpoint, traj

LONG_S = 30.0


class Told:
    """A lock that notes who takes it and gives it back."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.took: list[str] = []
        self.gave_back: list[str] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        is_had = self.lock.acquire(blocking, timeout)
        self.took.append(threading.current_thread().name)
        return is_had

    def release(self) -> None:
        self.lock.release()
        self.gave_back.append(threading.current_thread().name)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Guarded:
    """Something that forks hold still by one lock."""

    def __init__(self, lock: Told) -> None:
        self.lock = lock

    def locks(self) -> Iterator[Told]:
        yield self.lock

    def after_fork(self, *, is_whole: bool) -> None:
        """Let the child be."""


def fork_and_wait() -> int:
    """Return the status of a child that ends at once."""
    child = os.fork()
    if not child:
        os._exit(0)
    return os.waitpid(child, 0)[1]


class TestThreads:
    def test_two_that_fork_at_once_give_back_only_what_they_took(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The second takes the first lock just when the first thread gives it back as its last."""
        monkeypatch.setattr(lifetime, "_forkable", WeakKeyDictionary())  # of these two only
        is_second_in = threading.Event()

        def fork() -> None:  # without the hooks of others, which have locks of their own
            lifetime._before_fork()
            lifetime._after_fork_in_parent()

        class Both(Told):
            def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
                is_had = super().acquire(blocking, timeout)
                if threading.current_thread() is threading.main_thread():
                    second.start()  # not before: it must come second
                return is_had

            def release(self) -> None:
                super().release()
                if threading.current_thread() is threading.main_thread():
                    assert is_second_in.wait(LONG_S)

        class Late(Told):
            def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
                if threading.current_thread() is second:
                    is_second_in.set()
                return super().acquire(blocking, timeout)

        locks = Both(), Late()
        kept = [Guarded(lock) for lock in locks]
        second = threading.Thread(target=fork, name="second")
        for one in kept:
            watch_forks(one)
        fork()
        second.join(LONG_S)
        main = threading.main_thread().name
        for lock in locks:
            assert sorted(lock.took) == sorted(lock.gave_back) == sorted([main, "second"])
            other = threading.Thread(target=lock.acquire, kwargs={"timeout": LONG_S}, name="other")
            other.start()
            other.join()
            assert lock.took[-1] == "other"

    def test_what_records_are_looked_up_in_is_not_changed_meanwhile(self, tmp_path: Path) -> None:
        with open_store(tmp_path / "store") as buffer:
            buffer.add_trajectories([traj(0)])
        with open_store(tmp_path / "store", if_exists="resume") as buffer:
            assert buffer._store.index._stored is not None
            told = Told()
            buffer._store.index._stored.lock = told  # type: ignore[assignment]
            main = threading.main_thread().name
            before = told.took.count(main)
            fork_and_wait()
            assert told.took.count(main) == told.gave_back.count(main) == before + 1


AMID_LOAD = """
import os, signal, sys, threading
import relive.disk
from buffers import open_at
from relive import TrajectoryReplayBuffer
from trajectories import check_rows, traj

kind, folder, saved, moment = sys.argv[1:]
inside, may_end = threading.Event(), threading.Event()

def hold(*arguments, **options):
    inside.set()
    may_end.wait(60)
    return held(*arguments, **options)

buffer = open_at(kind, folder)
buffer.add_trajectories([traj(0)])
buffer.flush()
reading, may_leave = threading.Event(), threading.Event()

def read(lease):
    buffer._store.view(0, lease)
    reading.set()
    may_leave.wait(60)

reader = threading.Thread(target=buffer._store.leased, args=(read,))
reader.start()
assert reading.wait(60)
work = buffer.close if moment == "close" else lambda: buffer.load_checkpoint(saved)
if moment == "close":
    held, relive.disk.Disk._export = relive.disk.Disk._export, hold
elif moment == "moves":
    held, relive.disk.set_aside = relive.disk.set_aside, hold
if moment != "readers":
    may_leave.set()
    reader.join()
else:
    wait_for = buffer._store._changed.wait_for
    def note(*arguments):
        inside.set()
        return wait_for(*arguments)
    buffer._store._changed.wait_for = note
thread = threading.Thread(target=work)
thread.start()
assert inside.wait(60)
child = os.fork()
if not child:
    signal.alarm(30)  # else it would wait for minutes
    try:
        check_rows(buffer.sample(5))
        print("sampled", flush=True)
    except relive.errors.ForkedError as error:
        print(error, flush=True)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
may_end.set()
may_leave.set()
thread.join()
if moment != "close":
    check_rows(buffer.sample(5))
    buffer.close()
"""


AMID_IMPORT = """
import importlib.abc, os, signal, sys, threading
from relive import TrajectoryReplayBuffer
from trajectories import check_rows, traj

assert "torch" not in sys.modules

class Slowly(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "torch._C":  # amid that of the package
            inside.set()
            may_go_on.wait(60)

inside, may_go_on = threading.Event(), threading.Event()
sys.meta_path.insert(0, Slowly())
buffer = TrajectoryReplayBuffer()
buffer.add_trajectories([traj(0)])
thread = threading.Thread(target=buffer.sample, args=(3,))
thread.start()
assert inside.wait(60)
threading.Timer(0.2, may_go_on.set).start()  # while this waits to fork
child = os.fork()
if not child:
    signal.alarm(30)
    check_rows(buffer.sample(5))
    print("sampled", flush=True)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
buffer.close()
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "checkpoint"
    make_checkpoint(folder, [traj(5)])
    return folder


@pytest.mark.filterwarnings("ignore:.*aside")
class TestChild:
    @pytest.mark.parametrize("kind", ["pt", "memmap"])
    @pytest.mark.parametrize("moment", ["readers", "close"])
    def test_one_forked_amid_a_load_or_close_samples(
        self, moment: str, kind: str, saved: Path, tmp_path: Path
    ) -> None:
        printed = run_program(AMID_LOAD, kind, tmp_path / "store", saved, moment)
        assert printed.split() == ["sampled", "0"]

    def test_one_forked_while_files_are_moved_says_so(self, saved: Path, tmp_path: Path) -> None:
        printed = run_program(AMID_LOAD, "pt", tmp_path / "store", saved, "moves")
        told, code = printed.splitlines()
        assert "this copy was forked while load_checkpoint() moved files" in told
        assert code == "0"

    def test_one_forked_while_a_thread_imports_pytorch_samples(self) -> None:
        assert run_program(AMID_IMPORT).split() == ["sampled", "0"]

    def test_one_forked_amid_a_change_gives_no_rows(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(lifetime, "_PATIENCE_S", 0.01)
        is_inside, may_end = threading.Event(), threading.Event()

        def change() -> None:
            with buffer._store.lock:
                is_inside.set()
                assert may_end.wait(LONG_S)

        with TrajectoryReplayBuffer() as buffer, TrajectoryReplayBuffer() as other:
            for one in (buffer, other):
                one.add_trajectories([traj(0)])
            changing = threading.Thread(target=change)
            changing.start()
            assert is_inside.wait(LONG_S)
            child = os.fork()
            if not child:
                signal.alarm(30)  # else it might wait for ever
                try:
                    check_rows(other.sample(5))
                    refusal = "while another thread changed the buffer"
                    with pytest.raises(ForkedError, match=refusal):
                        buffer.sample(5)
                    with pytest.raises(ForkedError, match=refusal):
                        buffer.trajectory(0)
                    os._exit(0)
                finally:
                    os._exit(1)  # and never go on with the tests here
            assert os.waitpid(child, 0)[1] == 0
            may_end.set()
            changing.join(LONG_S)
            check_rows(buffer.sample(5))  # the parent's is whole


def test_a_fork_leaves_the_parents_draws_as_they_were() -> None:
    drawn = []
    for must_fork in (True, False):
        with TrajectoryReplayBuffer(seed=3, framework="numpy") as buffer:
            buffer.add_trajectories([traj(0)])
            if must_fork:
                fork_and_wait()
            drawn.append(buffer.sample(20))
    check_rows(drawn[0])
    assert drawn[0]["curr_obs"]["id"].tolist() == drawn[1]["curr_obs"]["id"].tolist()
