# SPDX-License-Identifier: Apache-2.0
"""Segments over the life of a store: freed in time, held while they are read, shared by threads."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from buffers import open_memmap
from processes import num_open_below
from programs import run_program
from relive import Limits
from relive.errors import EvictedError
from relive.formats import MemmapFormat
from segments import disk_bytes, segments_of
from trajectories import address_of, check_rows, same_trajectory, traj, trajectory_files


class TestRetention:
    ROW_BYTES = 4852
    """Of a wide row."""

    @pytest.mark.parametrize(
        "limits",
        [
            Limits(max_trajectories=40),
            Limits(max_samples=40 * 12),
            Limits(max_bytes=40 * 12 * ROW_BYTES),
        ],
        ids=str,
    )
    def test_the_disk_holds_little_more_than_what_lives(
        self, limits: Limits, tmp_path: Path
    ) -> None:
        T, most = 4, 40
        with open_memmap(tmp_path / "store", limits=limits) as buffer:
            for k in range(0, 4 * most, 2):
                buffer.add_trajectories([traj(k, T=T, wide=True), traj(k + 1, T=T, wide=True)])
                if k % 14 == 0:
                    buffer.flush()
                    live = 3 * T * self.ROW_BYTES * len(buffer)
                    assert buffer.get_stats()["size_bytes"] == live
                    largest = 3 * T * self.ROW_BYTES * max(1, most // 16)
                    assert disk_bytes(tmp_path / "store") <= live * 9 / 8 + largest
                    check_rows(buffer.sample(20))
            buffer.flush()
            assert len(buffer) == most
            assert len(segments_of(tmp_path / "store")) >= 16
            assert trajectory_files(tmp_path / "store")[-most:] == list(range(3 * most, 4 * most))
        with open_memmap(tmp_path / "store", limits=limits, if_exists="resume") as buffer:
            for k in range(4 * most, 6 * most):
                buffer.add_trajectories([traj(k % 1000, T=T, wide=True)])
            buffer.flush()
            live = 3 * T * self.ROW_BYTES * most
            assert disk_bytes(tmp_path / "store") <= live * 9 / 8 + largest
            check_rows(buffer.sample(50))

    def test_the_newest_alone_may_stay(self, tmp_path: Path) -> None:
        limits = Limits(max_trajectories=1)
        with open_memmap(tmp_path / "store", limits=limits) as buffer:
            for k in range(6):
                buffer.add_trajectories([traj(k)])
                check_rows(buffer.sample(5))
                buffer.flush()
                assert trajectory_files(tmp_path / "store") == [k]
                assert len(segments_of(tmp_path / "store")) == 1

    @pytest.mark.parametrize("read_mode", ["mmap", "pread"])
    def test_a_window_that_is_held_keeps_its_segments(
        self,
        read_mode: Literal["mmap", "pread"],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        form = MemmapFormat(read_mode=read_mode)
        limits = Limits(max_trajectories=4)
        with open_memmap(tmp_path / "store", trajectory_format=form, limits=limits) as buffer:
            buffer.add_trajectories([traj(k, wide=True) for k in range(4)])
            buffer.flush()
            gather_placed = MemmapFormat.gather_placed

            def evict_first(form: MemmapFormat, *arguments: Any) -> Any:
                monkeypatch.setattr(MemmapFormat, "gather_placed", gather_placed)
                for k in range(4, 12):
                    buffer.add_trajectories([traj(k, wide=True)])
                    buffer.flush()
                assert trajectory_files(tmp_path / "store") == list(range(12))
                return gather_placed(form, *arguments)

            monkeypatch.setattr(MemmapFormat, "gather_placed", evict_first)
            batch, info = buffer.sample(200, return_info=True)
            check_rows(batch, info, {k: k for k in range(4)})
            buffer.flush()
            assert trajectory_files(tmp_path / "store") == [8, 9, 10, 11]
            check_rows(buffer.sample(50))

    def test_evicted_rows_are_told_and_never_others(self, tmp_path: Path) -> None:
        limits = Limits(max_trajectories=2)
        with open_memmap(tmp_path / "store", limits=limits) as buffer:
            for k in range(9):
                buffer.add_trajectories([traj(k)])
                buffer.flush()
            for rows in ([0], [83], [84, 3]):
                with pytest.raises(EvictedError):
                    buffer.gather(rows)
            check_rows(buffer.gather(np.arange(84, 108)))


class TestDeleting:
    def test_the_others_of_a_segment_stay(self, tmp_path: Path) -> None:
        with open_memmap(tmp_path / "store") as buffer:
            buffer.add_trajectories([traj(k, wide=True) for k in range(6)])
            buffer.flush()
            buffer.delete([0, 2, 5])
            buffer.flush()
            assert set(address_of(buffer.sample(200))[0].tolist()) == {1, 3, 4}
            for k in (1, 3, 4):
                assert same_trajectory(buffer.trajectory(k), traj(k, wide=True))
            buffer.add_trajectories([traj(6, wide=True)])
            check_rows(buffer.gather([12, 40, 50, 83]))
        with open_memmap(tmp_path / "store", if_exists="resume") as buffer:
            assert set(address_of(buffer.sample(200))[0].tolist()) == {1, 3, 4, 6}
            buffer.delete([1, 3, 4, 6])
            buffer.flush()
            assert segments_of(tmp_path / "store") == []
            buffer.add_trajectories([traj(7, wide=True)])
            buffer.flush()
            check_rows(buffer.sample(20))
            assert trajectory_files(tmp_path / "store") == [7]

    @pytest.mark.parametrize("empty", ["clear", "delete"])
    def test_nothing_is_left_of_a_store_that_was_emptied(self, empty: str, tmp_path: Path) -> None:
        num_open = num_open_below(tmp_path)
        with open_memmap(tmp_path / "store") as buffer:
            for k in range(0, 12, 3):
                buffer.add_trajectories([traj(n, wide=True) for n in range(k, k + 3)])
                check_rows(buffer.sample(20))
                buffer.clear() if empty == "clear" else buffer.delete([k, k + 1, k + 2])
                buffer.flush()
                assert segments_of(tmp_path / "store") == []
                assert _mapped(tmp_path / "store") == 0
        assert num_open_below(tmp_path) <= num_open

    def test_closing_lets_go_of_all_mappings(self, tmp_path: Path) -> None:
        with open_memmap(tmp_path / "store") as buffer:
            buffer.add_trajectories([traj(k, wide=True) for k in range(3)])
            buffer.flush()
            held = buffer.sample(20)
            assert _mapped(tmp_path / "store") == 2
        assert _mapped(tmp_path / "store") == 0
        check_rows(held)


class TestSeveralRanges:
    @pytest.mark.parametrize("most_slots", [1, 2, 3])
    def test_rows_are_the_same_from_several_ranges_of_addresses(
        self, most_slots: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("relive.address_range._MOST_SLOTS", most_slots)
        form = MemmapFormat(segment_bytes=1)
        limits = Limits(max_trajectories=7)
        with open_memmap(tmp_path / "store", trajectory_format=form, limits=limits) as buffer:
            for k in range(30):
                buffer.add_trajectories([traj(k, T=1 + k % 5, wide=True)])
                buffer.flush()
                batch, info = buffer.sample(60, return_info=True)
                check_rows(batch, info, {n: n for n in range(30)})

    def test_rows_of_many_segments_come_however_late_each_is_met(self, tmp_path: Path) -> None:
        form = MemmapFormat(segment_bytes=1)
        with open_memmap(tmp_path / "store", trajectory_format=form) as buffer:
            for k in range(70):
                buffer.add_trajectories([traj(k)])
                if k % 16 != 15:
                    continue
                buffer.flush()
                check_rows(buffer.gather(np.arange(12 * (k + 1))))
            buffer.flush()
            for k in (69, 64, 68, 65):
                check_rows(buffer.gather([12 * k + 5]))
            check_rows(buffer.gather(np.random.default_rng(1).permutation(70 * 12)))


def _mapped(folder: Path) -> int:
    """Return how many files below a folder are mapped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return len({line.split()[-1] for line in lines if str(folder) in line})


@contextmanager
def _switching_often() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


class TestThreads:
    @pytest.mark.parametrize("read_mode", ["mmap", "pread"])
    def test_some_sample_and_save_while_one_adds_and_old_ones_go(
        self, read_mode: Literal["mmap", "pread"], tmp_path: Path
    ) -> None:
        form = MemmapFormat(segment_bytes=100_000, read_mode=read_mode)
        limits = Limits(max_trajectories=8)
        is_done, failures = threading.Event(), list[BaseException]()

        def until_done(act: Callable[[int], object]) -> threading.Thread:
            def work() -> None:
                try:
                    turn = 0
                    while not is_done.is_set():
                        act(turn)
                        turn += 1
                except BaseException as error:  # told in the test's own thread
                    failures.append(error)

            return threading.Thread(target=work)

        with open_memmap(tmp_path / "store", trajectory_format=form, limits=limits) as buffer:
            buffer.add_trajectories([traj(0, wide=True)])

            def save(turn: int) -> None:
                buffer.save_checkpoint(tmp_path / f"checkpoint {turn % 2}")

            acts: list[Callable[[int], object]] = [
                lambda turn: check_rows(buffer.sample(64)),
                lambda turn: check_rows(buffer.sample(1 + turn % 9)),
                save,
            ]
            threads = [until_done(act) for act in acts]
            with _switching_often():
                for thread in threads:
                    thread.start()
                try:
                    for k in range(1, 120):
                        buffer.add_trajectories([traj(k, T=1 + k % 6, wide=True)])
                finally:
                    is_done.set()
                    for thread in threads:
                        thread.join()
            assert failures == []
            buffer.flush()
            check_rows(buffer.sample(200))
            save(0)
        with open_memmap(tmp_path / "other") as other:
            other.load_checkpoint(tmp_path / "checkpoint 0")
            assert set(address_of(other.sample(400))[0].tolist()) == set(range(112, 120))


FORKING = """
import os, sys
from pathlib import Path
from buffers import open_store
from relive import Limits
from trajectories import check_rows, traj

options = dict(trajectory_format="memmap", sample_window_size=0, framework="numpy")
limits = Limits(max_trajectories=4)
with open_store(Path(sys.argv[1]), limits=limits, **options) as buffer:
    buffer.add_trajectories([traj(k, wide=True) for k in range(3)])
    buffer.flush()
    check_rows(buffer.sample(50))
    read, write = os.pipe()
    has_mapped, tell_mapped = os.pipe()
    child = os.fork()
    if not child:
        os.close(write)
        for _ in range(3):
            check_rows(buffer.sample(50))
        os.write(tell_mapped, b"x")
        os.read(read, 1)  # the parent has removed the files by now
        check_rows(buffer.sample(50))
        os._exit(0)
    os.close(tell_mapped)
    os.read(has_mapped, 1)
    for k in range(3, 9):
        buffer.add_trajectories([traj(k, wide=True)])
        buffer.flush()
        check_rows(buffer.sample(50))
    os.close(write)
    print(os.waitpid(child, 0)[1])
"""


class TestForking:
    def test_a_child_samples_what_it_had_and_the_parent_goes_on(self, tmp_path: Path) -> None:
        assert run_program(FORKING, tmp_path / "store").split() == ["0"]
