# SPDX-License-Identifier: Apache-2.0
"""What an add costs does not grow with what is there, on disk or in memory."""

from __future__ import annotations

import gc
import json
import sys
import threading
import tracemalloc
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO

import pytest

import relive
from buffers import open_store
from programs import run_program
from relive import Limits, TrajectoryReplayBuffer, disk, files, journal, open_files, record_lookup
from relive.index_file import INDEX_NAME, METADATA_NAME
from relive.journal_lines import JOURNAL_NAME
from relive.record_table import RecordTable
from trajectories import check_rows, same_trajectory, traj


def open_lean(folder: Path, **options: Any) -> TrajectoryReplayBuffer:
    """Open a store that keeps no rows in memory, and whose window is all of it."""
    lean = {"sample_window_size": 0, "cache_size": 0, "framework": "numpy"}
    return open_store(folder, **{"trajectory_format": "pkl", **lean, **options})


def add(buffer: TrajectoryReplayBuffer, num: int) -> None:
    for _ in range(num):
        buffer.add_trajectories([traj(buffer.trajectory_counter % 900, T=1, B=1)])


class Clock:
    """Stands in for `time` where the disk looks at it; only writing the index takes time."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept = 0.0
        self.on_sleep: Callable[[], None] = self.pass_time

    def pass_time(self) -> None:
        self.now += 0.25
        self.slept += 0.25

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        del seconds
        self.on_sleep()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    stopped = Clock()
    monkeypatch.setattr(disk, "time", stopped)
    return stopped


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[int]]:
    """Sizes of all that is written from now on, by the name of the file."""
    sizes: dict[str, list[int]] = defaultdict(list)
    write_atomic, append = files.write_atomic, open_files.AppendFile.append

    def write(path: Path, fill: Callable[[BinaryIO], None], *, sync: bool) -> int:
        size = write_atomic(path, fill, sync=sync)
        sizes[path.name].append(size)
        return size

    def append_block(self: open_files.AppendFile, block: bytes) -> None:
        sizes[JOURNAL_NAME].append(len(block))
        append(self, block)

    monkeypatch.setattr(files, "write_atomic", write)
    monkeypatch.setattr(open_files.AppendFile, "append", append_block)
    return sizes


class TestBytes:
    """Elsewhere an add took the longer the more was stored: 25 seconds instead of 3."""

    def test_an_addition_writes_its_rows_and_one_line(
        self, tmp_path: Path, clock: Clock, written: dict[str, list[int]]
    ) -> None:
        with open_lean(tmp_path / "store") as buffer:
            add(buffer, 2)
            buffer.flush()
            costs = []
            for num in (10, 300):
                add(buffer, num)
                buffer.flush()
                written.clear()
                add(buffer, 1)
                buffer.flush()
                assert len(written) == 2
                assert len(written[JOURNAL_NAME]) == 1
                costs.append(sum(map(sum, written.values())))
        assert abs(costs[0] - costs[1]) < 20  # the digits of larger numbers

    def test_the_index_file_takes_a_twentieth_of_the_time_at_most(
        self, tmp_path: Path, clock: Clock, written: dict[str, list[int]]
    ) -> None:
        start = clock.now
        with open_lean(tmp_path / "store") as buffer:
            for _ in range(100):
                add(buffer, 1)
                buffer.flush()
                clock.now += 1.0
            # metadata once more, as the store is made
            assert len(written[METADATA_NAME]) - 1 == len(written[INDEX_NAME]) >= 4
            assert clock.slept <= (clock.now - start) / 20 + 1.0

    def test_a_fold_keeps_the_journal_as_small_as_the_index(
        self,
        tmp_path: Path,
        clock: Clock,
        written: dict[str, list[int]],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(journal, "_SMALLEST_FOLD_BYTES", 10_000)
        folder = tmp_path / "store"
        generations = set()
        with open_lean(folder, limits=Limits(max_trajectories=20)) as buffer:
            for _ in range(20):
                written[JOURNAL_NAME].clear()
                add(buffer, 10)
                clock.now += 1000.0
                buffer.flush()
                index_bytes = (folder / INDEX_NAME).stat().st_size
                newest = sum(written[JOURNAL_NAME])  # may have come after the fold of this round
                assert (folder / JOURNAL_NAME).stat().st_size < max(10_000, index_bytes) + newest
                metadata = json.loads((folder / METADATA_NAME).read_text())
                generations.add(metadata["relive"]["generation"])
            assert len(generations) >= 4
            check_rows(buffer.sample(100))
        with open_lean(folder, if_exists="resume") as buffer:
            assert len(buffer) == 20
            assert same_trajectory(buffer.trajectory(199), traj(199, T=1, B=1))


class Steps:
    """Counts calls of functions, in the threads that look in while it is on."""

    def __init__(self) -> None:
        self.is_on = False
        self.num: Counter[int] = Counter()

    def look_in(self) -> None:
        sys.setprofile(self.count if self.is_on else None)

    def count(self, frame: FrameType, event: str, argument: Any) -> None:
        del frame, argument
        if event.endswith("call"):
            self.num[threading.get_ident()] += 1


class TestWork:
    """What an addition does, counted and not timed; `benchmarks/run.py journal` times it."""

    @pytest.mark.parametrize(
        ("early", "late", "last"),
        [(120, 480, 40), pytest.param(1_000, 20_000, 100, marks=pytest.mark.slow)],
    )
    def test_the_last_of_many_additions_do_what_the_first_did(
        self,
        early: int,
        late: int,
        last: int,
        tmp_path: Path,
        clock: Clock,
        written: dict[str, list[int]],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        steps = Steps()
        write_atomic = files.write_atomic

        def look_in(path: Path, fill: Callable[[BinaryIO], None], *, sync: bool) -> int:
            steps.look_in()  # in the writer's thread
            return write_atomic(path, fill, sync=sync)

        monkeypatch.setattr(files, "write_atomic", look_in)
        found: list[tuple[int, int, int]] = []
        with open_lean(tmp_path / "store") as buffer:
            add(buffer, 1)
            for num in (early, late):
                while buffer.trajectory_counter < num - last:
                    add(buffer, 1)
                buffer.flush()
                assert buffer._store.disk is not None
                buffer._store.disk.sync_now()  # else the time may come for all those before
                written.clear()
                tracemalloc.start()
                try:
                    for is_on in (True, False):
                        steps.is_on = is_on
                        steps.look_in()
                        add(buffer, last // 2)
                        buffer.flush()
                    peak = tracemalloc.get_traced_memory()[1]
                finally:
                    steps.is_on = False
                    tracemalloc.stop()
                num_bytes = sum(map(sum, written.values()))
                found.append((sum(steps.num.values()), num_bytes, peak))
                steps.num.clear()
        calls, sizes, peaks = zip(*found, strict=True)
        assert last < calls[1] < 1.2 * calls[0]
        assert 0 < sizes[1] < 1.05 * sizes[0]
        assert peaks[1] < 1.5 * peaks[0]


class TestStalls:
    @pytest.mark.parametrize("folds", [False, True])
    def test_others_get_their_turn_every_few_records(
        self, folds: bool, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        in_turn = [0]
        texts, run_of_texts = RecordTable.texts, RecordTable.run_of_texts

        def counted(self: RecordTable, first: int, stop: int) -> list[bytes]:
            found = texts(self, first, stop)
            in_turn[-1] += len(found)
            return found

        def counted_run(self: RecordTable, first: int, stop: int, distances: Any) -> Any:
            run = run_of_texts(self, first, stop, distances)
            in_turn[-1] += 0 if run is None else stop - first
            return run

        monkeypatch.setattr("relive.index_writer._COPIED", 50)
        monkeypatch.setattr("relive.index_writer._RUN", 50)
        with open_lean(tmp_path / "store") as buffer:
            add(buffer, 260)
            buffer.flush()
            monkeypatch.setattr(RecordTable, "texts", counted)
            monkeypatch.setattr(RecordTable, "run_of_texts", counted_run)
            monkeypatch.setattr(journal, "_SMALLEST_FOLD_BYTES", 1000 if folds else 1 << 40)
            clock.on_sleep = lambda: in_turn.append(0)
            clock.now += 1000.0
            add(buffer, 1)
            buffer.flush()
        assert sum(in_turn) >= 261
        assert max(in_turn) <= 50

    def test_a_sample_is_drawn_while_the_index_is_half_written(
        self, tmp_path: Path, clock: Clock
    ) -> None:
        is_halfway, may_go_on = threading.Event(), threading.Event()

        def wait() -> None:
            is_halfway.set()
            assert may_go_on.wait(60)

        with open_lean(tmp_path / "store") as buffer:
            add(buffer, 60)
            buffer.flush()
            clock.now += 1000.0
            clock.on_sleep = wait
            add(buffer, 1)
            assert is_halfway.wait(60)
            check_rows(buffer.sample(64))
            add(buffer, 1)
            assert buffer.get_stats()["pending_trajectories"] == 1
            check_rows(buffer.sample(64))
            may_go_on.set()


class TestMemory:
    """Stores on disk that kept all in memory too grew with each episode."""

    @pytest.mark.parametrize("trajectory_format", ["pt", "pkl", "memmap"])
    def test_the_index_takes_128_bytes_a_trajectory(
        self, trajectory_format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(record_lookup, "_NUM_RECENT", 10)  # records read last are kept
        with open_lean(tmp_path / "store", trajectory_format=trajectory_format) as buffer:
            store = buffer._store.disk
            assert store is not None

            def used_after(num: int) -> int:
                for _ in range(num // 20):  # few are pending at a time
                    add(buffer, 20)
                    buffer.flush()
                store.writer.run(
                    "the index", measure
                )  # in its thread, which else may write the index
                return sizes[-1]

            def measure() -> None:
                store._sync()  # what is not synced yet is remembered
                gc.collect()
                taken = tracemalloc.take_snapshot().filter_traces([ours])
                sizes.append(sum(trace.size for trace in taken.traces))

            sizes: list[int] = []

            ours = tracemalloc.Filter(True, str(Path(relive.__file__).parent / "*"))
            add(buffer, 200)
            buffer.flush()
            tracemalloc.start()
            try:
                before = used_after(200)
                after = used_after(1000)
            finally:
                tracemalloc.stop()
        assert 50 < (after - before) / 1000 < 128


SAVER = """
import resource, sys
from pathlib import Path
import numpy as np
import torch
from relive import Trajectory, TrajectoryReplayBuffer

folder, form, num, spare_mb = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
options = dict(
    sample_window_size=0, auto_save=True, trajectory_format=form, cache_size=2, framework="numpy"
)
with TrajectoryReplayBuffer(auto_save_path=folder / "store", **options) as buffer:
    for k in range(num):
        states = np.full((8, 1, 1 << 20), k, np.uint8)
        buffer.add_trajectories([Trajectory(curr_obs={"states": states})])
        buffer.flush()
    buffer.sample(1)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + (spare_mb << 20)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    buffer.save_checkpoint(folder / "saved")
    with TrajectoryReplayBuffer(auto_save_path=folder / "other", **options) as other:
        other.load_checkpoint(folder / "saved")
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
        for k in range(num):
            assert (other.gather([8 * k + 3])["curr_obs"]["states"] == k).all()
print("done")
"""


class TestCheckpoint:
    @pytest.mark.parametrize("trajectory_format", ["pt", "pkl", "memmap"])
    @pytest.mark.parametrize(
        ("num", "spare_mb"), [(20, 100), pytest.param(50, 200, marks=pytest.mark.slow)]
    )
    def test_it_takes_the_memory_of_a_few_trajectories_not_of_all(
        self, trajectory_format: str, num: int, spare_mb: int, tmp_path: Path
    ) -> None:
        """Pickling a buffer took seven times its size; 160 MB are saved and loaded with 100."""
        assert run_program(SAVER, tmp_path, trajectory_format, num, spare_mb) == "done\n"
