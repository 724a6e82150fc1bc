# SPDX-License-Identifier: Apache-2.0
"""Cold rows: they are announced while there are faults, and the rows that come are the same."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from buffers import open_store
from relive import TrajectoryReplayBuffer, announcing
from relive.announcing import Announcer, announce
from relive.formats.memmap import mapped_table
from trajectories import WIDE, check_rows, same_trajectory, traj

PAGE = 4096


class Told:
    """What the kernel was told, as page numbers; nothing is done."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[list[list[int]]] = []
        monkeypatch.setattr(announcing, "_advise", self.advise)

    def advise(self, ranges: NDArray[np.uint64]) -> None:
        assert ranges.flags.c_contiguous
        assert not (ranges % PAGE).any()
        self.calls.append((ranges // PAGE).tolist())

    @property
    def ranges(self) -> list[list[int]]:
        return [one for call in self.calls for one in call]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    return Told(monkeypatch)


class TestAnnounce:
    @given(
        starts=st.lists(st.integers(0, 60 * PAGE), min_size=1, max_size=30),
        row_bytes=st.sampled_from([1, 8, 568, PAGE, PAGE + 1, 5 * PAGE]),
    )
    def test_every_page_of_every_row_is_told_once(self, starts: list[int], row_bytes: int) -> None:
        with pytest.MonkeyPatch.context() as patch:
            told = Told(patch)
            announce(np.array(starts), np.array(starts) + row_bytes)
        pages = [page for first, num in told.ranges for page in range(first, first + num)]
        expected = {
            page
            for start in starts
            for page in range(start // PAGE, (start + row_bytes - 1) // PAGE + 1)
        }
        assert pages == sorted(expected)
        ends = [first + num for first, num in told.ranges]
        assert all(end < first for end, (first, _) in zip(ends, told.ranges[1:], strict=False))

    def test_more_ranges_than_one_call_takes_are_told_by_several(self, told: Told) -> None:
        announce(np.arange(2500) * 2 * PAGE, np.arange(2500) * 2 * PAGE + 1)
        assert [len(call) for call in told.calls] == [1024, 1024, 452]
        assert told.ranges == [[2 * n, 1] for n in range(2500)]

    def test_without_the_call_for_many_each_is_told(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As before Linux 5.10, or where a sandbox forbids it."""
        monkeypatch.setattr(announcing, "_own_process", lambda _: -1)
        store = Store(tmp_path / "store")
        try:
            store.turn_on()
            check_rows(store.buffer.sample(60))
        finally:
            store.buffer.close()


class TestAnnouncer:
    def test_it_begins_off_and_one_fault_among_many_rows_leaves_it_so(self) -> None:
        announcer = Announcer()
        assert not announcer.is_on
        announcer.learn(1, 1024)
        assert not announcer.is_on
        announcer.learn(0, 4)
        assert not announcer.is_on

    @pytest.mark.parametrize(("num_faults", "num_rows"), [(1, 1), (1, 127), (9, 1024), (900, 1024)])
    def test_a_fault_in_a_hundred_rows_turns_it_on(self, num_faults: int, num_rows: int) -> None:
        announcer = Announcer()
        announcer.learn(num_faults, num_rows)
        assert announcer.is_on

    def test_it_stays_on_while_there_are_faults_and_then_ends(self) -> None:
        announcer = Announcer()
        announcer.learn(500, 1024)
        for _ in range(3):
            announcer.learn(1, 1024)
            assert announcer.is_on
        announcer.learn(0, 1024)
        assert not announcer.is_on

    @pytest.mark.parametrize("num", [4, 5, 23, 24, 256, 1024, 4096])
    def test_it_leaves_a_few_out_which_tell_when_rows_are_warm(self, num: int, told: Told) -> None:
        announcer = Announcer()
        starts = np.arange(num) * 2 * PAGE
        left_out = set()
        for _ in range(20):
            told.calls.clear()
            announce(*announcer.ranges(starts, 8))
            missing = set(range(num)) - {first // 2 for first, _ in told.ranges}
            assert 1 <= len(missing) <= 8
            left_out |= missing
        assert len(left_out) > min(num - 1, 8)  # others each time
        assert announcer.num_announced == 20 * (num - len(missing))

    def test_of_wide_rows_only_the_first_page_of_a_few_is_left_out(self, told: Told) -> None:
        announcer = Announcer()
        announce(*announcer.ranges(np.arange(256) * 16 * PAGE, 12 * PAGE))
        missing = {first // 16 for first, num in told.ranges if num == 11}
        assert len(told.ranges) == announcer.num_announced == 256
        assert all([first % 16, num] in ([0, 12], [1, 11]) for first, num in told.ranges)
        assert 1 <= len(missing) <= 8

    @pytest.mark.parametrize("num", [1, 2, 3])
    def test_a_small_batch_is_told_whole(self, num: int, told: Told) -> None:
        announcer = Announcer()
        announce(*announcer.ranges(np.arange(num) * 2 * PAGE, 8))
        assert len(told.ranges) == announcer.num_announced == num

    def test_nothing_is_told_of_nothing(self, told: Told) -> None:
        announce(*Announcer().ranges(np.empty(0, np.int64), 8))
        assert told.calls == []


class Store:
    """A buffer of wide trajectories, stored and mapped, and its announcers."""

    def __init__(self, folder: Path, **options: Any) -> None:
        chosen = {"trajectory_format": "memmap", "sample_window_size": 0, **options}
        self.folder = folder
        self.buffer: TrajectoryReplayBuffer = open_store(folder, **chosen)
        self.buffer.add_trajectories([traj(k, T=40, wide=True) for k in range(10)])
        self.buffer.flush()
        self.buffer.sample(10)

    @property
    def announcers(self) -> list[Announcer]:
        form: Any = self.buffer._store.disk.formats.own  # type: ignore[union-attr]
        (layout,) = form._folders[self.folder].reader._layouts
        return [layout.records.announcer, *(table.announcer for table in layout.frames)]

    def turn_on(self) -> None:
        for announcer in self.announcers:
            announcer.is_on = True

    def reopen_cold(self) -> None:
        """Open the store again after its files were dropped from the page cache."""
        self.buffer.close()
        for path in (self.folder / "segments").rglob("*.bin"):
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)
        self.buffer = open_store(
            self.folder, trajectory_format="memmap", sample_window_size=0, if_exists="resume"
        )


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path / "store", seed=3)
    yield made
    made.buffer.close()


class TestColdRows:
    @pytest.mark.parametrize("num", [1, 3, 4, 50, 1500])
    def test_announced_rows_are_the_same(self, num: int, store: Store) -> None:
        rows = np.random.default_rng(num).integers(0, 1200, num)
        hot = store.buffer.gather(rows)
        store.turn_on()
        cold = store.buffer.gather(rows)
        assert sum(one.num_announced for one in store.announcers) >= num
        for batch in (hot, cold):
            check_rows(batch)
            address = 1_000_000 * (rows // 120) + 1_000 * (rows % 120 // 3) + rows % 3
            assert np.asarray(batch["curr_obs"]["id"]).tolist() == address.tolist()

    def test_rows_that_left_the_memory_come_back(self, store: Store) -> None:
        for seed in range(2):
            store.reopen_cold()
            for _ in range(4):
                rows = np.random.default_rng(seed).permutation(1200)[:300]
                check_rows(store.buffer.gather(rows))
            store.reopen_cold()
            assert same_trajectory(store.buffer.trajectory(4), traj(4, T=40, wide=True))

    def test_faults_turn_it_on_and_none_turn_it_off(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        count = 0

        def num_faults() -> int:
            nonlocal count
            count += 20
            return count

        assert not any(one.is_on for one in store.announcers)
        with monkeypatch.context() as patch:
            patch.setattr(mapped_table, "num_faults", num_faults)
            check_rows(store.buffer.sample(256))
            assert all(one.is_on for one in store.announcers)
            # of many bytes a sixteenth is looked at first, and the others are told already
            before = [one.num_announced for one in store.announcers]
            assert before == [0, 240]
            check_rows(store.buffer.sample(256))
            assert all(one.is_on for one in store.announcers)
            after = [one.num_announced for one in store.announcers]
            told = [now - then for now, then in zip(after, before, strict=True)]
            assert 240 <= told[0] <= 255  # of small rows some are left out
            assert told[1] == 256  # of wide ones the first page of some
            patch.setattr(mapped_table, "num_faults", lambda: 7)
            check_rows(store.buffer.sample(256))
            assert not any(one.is_on for one in store.announcers)
            more = [one.num_announced for one in store.announcers]
            check_rows(store.buffer.sample(256))
            assert [one.num_announced for one in store.announcers] == more

    def test_the_disk_reads_a_few_rows_ahead_of_those_that_are_copied(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        steps: list[tuple[str, int]] = []

        def note_told(first: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
            steps.append(("told", len(first)))

        def note_taken(table: Any, number: int, rows: NDArray[np.int64], outputs: Any) -> int:
            steps.append(("taken", len(rows)))
            return copy(table, number, rows, outputs)

        copy = mapped_table.MappedTable._copy
        store.turn_on()
        monkeypatch.setattr(mapped_table, "_CHUNK_BYTES", 50 * 4 * WIDE)  # 50 rows
        monkeypatch.setattr(mapped_table, "announce", note_told)
        monkeypatch.setattr(mapped_table.MappedTable, "_copy", note_taken)
        check_rows(store.buffer.gather(np.arange(320)))
        del steps[:2]  # of the records, which are small
        assert [num for kind, num in steps if kind == "told"] == [50] * 6 + [20]
        assert [num for kind, num in steps if kind == "taken"] == [50] * 6 + [20]
        ahead = np.cumsum([1 if kind == "told" else -1 for kind, _ in steps])
        assert ahead.min() == 0
        assert ahead.max() == mapped_table._CHUNKS_AHEAD

    def test_what_is_in_memory_turns_it_off_by_itself(self, store: Store) -> None:
        check_rows(store.buffer.gather(np.arange(1200)))  # all of it is read now
        store.turn_on()
        for _ in range(3):
            check_rows(store.buffer.sample(256))
        assert not any(one.is_on for one in store.announcers)

    def test_frames_that_are_not_asked_for_are_not_announced(self, store: Store) -> None:
        store.turn_on()
        store.buffer.sample(256, columns=["rewards"])
        records, frames = store.announcers
        assert (records.num_announced > 0, frames.num_announced) == (True, 0)
