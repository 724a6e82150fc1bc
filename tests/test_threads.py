# SPDX-License-Identifier: Apache-2.0
"""One buffer, many threads: no torn row, no exception, no wait for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pytest

from buffers import open_buffer
from processes import tiny_switch_interval
from relive import Limits, SampleInfo, TrajectoryReplayBuffer
from relive.errors import ClosedError, EmptyBufferError, EvictedError
from trajectories import (
    address_of,
    check_rows,
    make_checkpoint,
    same_trajectory,
    traj,
    trajectory_files,
)

KINDS = ["memory", "pt", "pkl", "memmap"]


@pytest.fixture(autouse=True)
def many_turns() -> Iterator[None]:
    with tiny_switch_interval():
        yield


def open_small(kind: str, folder: Path, **options: Any) -> TrajectoryReplayBuffer:
    """Open a buffer that remembers little, so that threads meet at the disk."""
    small = {"sample_window_size": 3, "cache_size": 1, "framework": "numpy"}
    return open_buffer(kind, folder, **{**small, **options})


def number_of(trajectory_id: int) -> int:
    """The number of the trajectory that `Crowd.add` adds under an id."""
    return trajectory_id % 900


def check_batch(batch: Any, info: SampleInfo) -> None:
    check_rows(batch, info)
    k, _, _ = address_of(batch)
    np.testing.assert_array_equal(k, info.trajectory_ids % 900)


class Crowd:
    """What several threads do to one buffer, each over and over, until told to stop."""

    def __init__(self, buffer: TrajectoryReplayBuffer, folder: Path) -> None:
        self.buffer = buffer
        self.folder = folder
        self.is_over = threading.Event()
        self.num_done: dict[str, int] = {}

    def repeat(self, action: Callable[[], None]) -> None:
        num = 0
        try:
            while not self.is_over.is_set():
                action()
                num += 1
        finally:
            self.is_over.set()  # the others need not go on when one fails
            self.num_done[action.__name__] = num

    def add(self) -> None:
        k = number_of(self.buffer.trajectory_counter)
        self.buffer.add_trajectories([traj(k, T=16, B=8)])

    def sample(self) -> None:
        batch, info = self.buffer.sample(64, return_info=True)
        check_batch(batch, info)

    def gather_again(self) -> None:
        batch, info = self.buffer.sample(8, return_info=True)
        try:
            again = self.buffer.gather(info.row_ids)
            whole = self.buffer.trajectory(int(info.trajectory_ids[0]))
        except EvictedError:
            return
        np.testing.assert_array_equal(again["curr_obs"]["id"], batch["curr_obs"]["id"])
        assert same_trajectory(whole, traj(number_of(int(info.trajectory_ids[0])), T=16, B=8))

    def delete(self) -> None:
        _, info = self.buffer.sample(8, return_info=True)
        oldest, newest = int(min(info.trajectory_ids)), int(max(info.trajectory_ids))
        if oldest < newest:
            with suppress(EvictedError):
                self.buffer.delete([oldest])

    def save(self) -> None:
        self.buffer.save_checkpoint(self.folder / "saved")
        loaded = TrajectoryReplayBuffer(framework="numpy")
        loaded.load_checkpoint(self.folder / "saved")
        check_batch(*loaded.sample(64, return_info=True))

    def look(self) -> None:
        self.buffer.flush()
        stats = self.buffer.get_stats()
        assert 1 <= stats["sampleable_trajectories"] <= 3
        assert stats["total_samples"] == 128 * stats["num_trajectories"]
        self.buffer.clear_cache()

    def run(self, seconds: float) -> None:
        """Let them all loose; raise what any of them raised."""
        actions = [self.add, self.sample, self.gather_again, self.delete, self.save, self.look]
        with ThreadPoolExecutor(len(actions)) as pool:
            running = [pool.submit(self.repeat, action) for action in actions]
            end = monotonic() + seconds
            while not self.is_over.wait(max(0.0, end - monotonic())) and monotonic() < end:
                pass
            self.is_over.set()
        for one in running:
            one.result()
        assert min(self.num_done.values()) > 0, self.num_done


@contextmanager
def others(action: Callable[[], None], num: int = 2) -> Iterator[None]:
    """Repeat an action in other threads until the block ends or it raises; then check it did not.

    Raises:
        BaseException: What the action raised.
    """
    is_over = threading.Event()

    def repeat() -> None:
        action()
        while not is_over.is_set():
            action()

    with ThreadPoolExecutor(num) as pool:
        running = [pool.submit(repeat) for _ in range(num)]
        try:
            yield
        finally:
            is_over.set()
    for one in running:
        one.result()


def repeat_until_closed(action: Callable[[], None]) -> None:
    with suppress(ClosedError):
        while True:
            action()


class TestCrowd:
    """Elsewhere threads that sampled while others added got half-written rows."""

    @pytest.mark.parametrize(
        ("kind", "seconds"),
        [
            ("memory", 2.0),
            ("pt", 3.0),
            pytest.param("pt", 20.0, marks=pytest.mark.slow),
            pytest.param("pkl", 20.0, marks=pytest.mark.slow),
        ],
    )
    def test_no_row_is_torn_whatever_the_others_do(
        self, kind: str, seconds: float, tmp_path: Path
    ) -> None:
        limits = Limits(max_trajectories=5) if kind != "memory" else None
        with open_small(kind, tmp_path, limits=limits) as buffer:
            buffer.add_trajectories([traj(0, T=16, B=8)])
            Crowd(buffer, tmp_path).run(seconds)
            num_held = len(buffer)
        if kind != "memory":
            assert len(trajectory_files(tmp_path / "store")) == num_held <= 5
            with open_small(kind, tmp_path, if_exists="resume") as buffer:
                assert len(buffer) == num_held
                check_batch(*buffer.sample(64, return_info=True))


class TestAdders:
    @pytest.mark.parametrize("kind", KINDS)
    def test_each_addition_has_ids_of_its_own_in_one_piece(self, kind: str, tmp_path: Path) -> None:
        with open_small(kind, tmp_path, sample_window_size=0) as buffer:
            with ThreadPoolExecutor(4) as pool:
                pairs = [[traj(2 * n, T=2), traj(2 * n + 1, T=3)] for n in range(20)]
                all_ids = list(pool.map(buffer.add_trajectories, pairs))
            assert sorted(one for ids in all_ids for one in ids) == list(range(40))
            for n, ids in enumerate(all_ids):
                assert ids[1] == ids[0] + 1
                assert same_trajectory(buffer.trajectory(ids[1]), traj(2 * n + 1, T=3))


class TestLoads:
    @pytest.mark.parametrize("kind", KINDS)
    def test_no_batch_mixes_what_was_with_what_is_loaded(self, kind: str, tmp_path: Path) -> None:
        for name, first in (("a", 100), ("b", 200)):
            make_checkpoint(tmp_path / name, [traj(first + k) for k in range(3)])
        with open_small(kind, tmp_path) as buffer:
            buffer.load_checkpoint(tmp_path / "a")

            def sample() -> None:
                batch, info = buffer.sample(32, return_info=True)
                check_rows(batch, info)
                k, _, _ = address_of(batch)
                assert len(set((k // 100).tolist())) == 1
                np.testing.assert_array_equal(k % 100, info.trajectory_ids)

            with others(sample):
                for name in "babab":
                    if kind == "memory":
                        buffer.load_checkpoint(tmp_path / name)
                    else:
                        with pytest.warns(UserWarning, match="3 trajectories .*aside"):
                            buffer.load_checkpoint(tmp_path / name)


class TestClear:
    @pytest.mark.parametrize("kind", KINDS)
    def test_who_samples_gets_whole_rows_or_is_told_that_there_are_none(
        self, kind: str, tmp_path: Path
    ) -> None:
        with open_small(kind, tmp_path, cache_size=0) as buffer:

            def sample() -> None:
                with suppress(EmptyBufferError):
                    check_batch(*buffer.sample(16, return_info=True))

            with others(sample):
                for _ in range(15):
                    first = number_of(buffer.trajectory_counter)
                    buffer.add_trajectories([traj(first), traj(first + 1)])
                    buffer.clear()
            assert len(buffer) == 0
        if kind != "memory":
            assert trajectory_files(tmp_path / "store") == []


class TestClose:
    @pytest.mark.parametrize("kind", KINDS)
    def test_whoever_comes_later_is_told_so_and_all_is_stored(
        self, kind: str, tmp_path: Path
    ) -> None:
        buffer = open_small(kind, tmp_path, cache_size=0)
        buffer.add_trajectories([traj(k, T=40, B=8, wide=True) for k in range(3)])

        def sample() -> None:
            check_batch(*buffer.sample(64, return_info=True))

        with ThreadPoolExecutor(4) as pool:
            running = [pool.submit(repeat_until_closed, sample) for _ in range(4)]
            buffer.close()
            for one in running:
                one.result()
        if kind != "memory":
            with open_small(kind, tmp_path, if_exists="resume") as buffer:
                assert len(buffer) == 3

    def test_an_addition_is_stored_or_refused(self, tmp_path: Path) -> None:
        buffer = open_small("pt", tmp_path, sample_window_size=0)
        added: list[int] = []
        has_begun = threading.Event()

        def add() -> None:
            added.extend(buffer.add_trajectories([traj(number_of(len(added)))]))
            has_begun.set()

        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(repeat_until_closed, add)
            assert has_begun.wait(60)
            buffer.close()
            running.result()
        assert len(buffer) == len(added)
        with open_small("pt", tmp_path, if_exists="resume", sample_window_size=0) as buffer:
            assert len(buffer) == len(added)
            for trajectory_id in added:
                assert same_trajectory(buffer.trajectory(trajectory_id), traj(trajectory_id))

    def test_several_threads_may_close_at_once(self, tmp_path: Path) -> None:
        buffer = open_small("pt", tmp_path)
        buffer.add_trajectories([traj(0)])
        with ThreadPoolExecutor(4) as pool:
            for one in [pool.submit(buffer.close) for _ in range(4)]:
                one.result()
        with open_small("pt", tmp_path, if_exists="resume") as buffer:
            assert len(buffer) == 1
