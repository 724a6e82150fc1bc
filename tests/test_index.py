# SPDX-License-Identifier: Apache-2.0
"""`relive.index`: which trajectories there are, and which rows are theirs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from numpy.typing import NDArray

from records import make_record
from relive import index as index_module
from relive import window as window_module
from relive.errors import EvictedError, InvalidArgumentError
from relive.index import Index
from relive.numbering import MAX_ROW_ID
from relive.record import Record
from relive.window import Window

LENGTHS = st.integers(1, 4)


def rows_of(records: list[Record]) -> list[int]:
    """The row ids of trajectories, one after another."""
    return [r.first_row_id + row for r in records for row in range(r.num_rows)]


def row_ids_of(window: Window) -> list[int]:
    return [int(row_id) for row_id in window.row_ids(np.arange(window.num_rows))]


def check_window(window: Window, records: list[Record]) -> None:
    """Compare a window with the plain list of records that it stands for."""
    expected = rows_of(records)
    assert window.trajectory_ids.tolist() == [r.trajectory_id for r in records]
    assert window.num_rows == len(expected)
    by_env = [
        r.first_row_id + t * r.num_envs + b
        for r in records
        for b in range(r.num_envs)
        for t in range(r.num_steps)
    ]
    assert row_ids_of(window) == by_env
    located = window.locate(np.array(expected, np.int64))
    owners = [k for k, r in enumerate(records) for _ in range(r.num_rows)]
    assert located.position.tolist() == owners
    assert located.rows.tolist() == [row for r in records for row in range(r.num_rows)]
    assert located.row_ids.tolist() == expected
    found = window.at(np.arange(window.num_rows))
    assert found.position.tolist() == owners
    again = window.locate(found.row_ids)
    assert again.ordinals.tolist() == found.ordinals.tolist()
    offsets = found.ordinals - (window.ends - window.counts)[found.position]
    assert offsets.tolist() == [row for r in records for row in range(r.num_rows)]


def check_places(window: Window, records: list[Record]) -> None:
    """Compare where a window says that rows are with what the records say."""
    found = window.at(np.arange(window.num_rows))
    expected = [
        record.place + row if record.place >= 0 else -1
        for record in records
        for row in range(record.num_rows)
    ]
    for located in (found, window.locate(found.row_ids)):
        assert np.maximum(located.places, -1).tolist() == expected
    assert np.maximum(window.places, -1).tolist() == [record.place for record in records]


def check_owners(window: Window) -> None:
    """Compare of which trajectory each row is with their counts, asking for enough to use bins."""
    numbers = np.resize(np.arange(window.num_rows), 5000)
    owners = np.repeat(np.arange(len(window.counts)), window.counts)
    assert np.array_equal(window.at(numbers).position, owners[numbers])


class IndexAndList(RuleBasedStateMachine):
    """An index beside a list of records: any ids, row ids in any order, deletions anywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.index = Index()
        self.records: list[Record] = []
        self.taken_rows: set[int] = set()
        self.taken_ids: set[int] = set()
        self.windows: list[tuple[Window, list[Record]]] = []

    @rule(num_steps=LENGTHS, num_envs=LENGTHS)
    def add_next(self, num_steps: int, num_envs: int) -> None:
        numbering = self.index.numbering
        record = make_record(
            numbering.next_trajectory_id, numbering.next_row_id, num_steps, num_envs
        )
        self._add(record)

    @rule(trajectory_id=st.integers(0, 400), block=st.integers(0, 99), num_steps=LENGTHS)
    def add_loaded(self, trajectory_id: int, block: int, num_steps: int) -> None:
        record = make_record(trajectory_id, 100 * block, num_steps)
        if trajectory_id not in self.taken_ids and not self.taken_rows & set(rows_of([record])):
            self._add(record)

    def _add(self, record: Record) -> None:
        assert record.trajectory_id not in self.taken_ids
        assert not self.taken_rows & set(rows_of([record]))
        self.index.add(record)
        self.records.append(record)
        self.taken_ids.add(record.trajectory_id)
        self.taken_rows |= set(rows_of([record]))

    @precondition(lambda self: self.records)
    @rule(data=st.data())
    def remove_anywhere(self, data: st.DataObject) -> None:
        gone = data.draw(st.lists(st.sampled_from(self.records), min_size=1, max_size=4))
        distinct = list({record.trajectory_id: record for record in gone}.values())
        removed = self.index.remove([record.trajectory_id for record in gone])
        assert removed == distinct
        self.records = [record for record in self.records if record not in gone]

    @precondition(lambda self: self.records)
    @rule(data=st.data(), segment=st.integers(0, 3), row=st.integers(0, 1 << 39))
    def say_where_one_lies(self, data: st.DataObject, segment: int, row: int) -> None:
        number = data.draw(st.integers(0, len(self.records) - 1))
        location = {"segment": segment, "row": row}
        placed = replace(self.records[number], location=location)
        self.index.replace(placed)
        self.records[number] = placed

    @precondition(lambda self: self.records)
    @rule(num=st.integers(1, 3))
    def evict_the_oldest(self, num: int) -> None:
        for record in self.records[:num]:
            assert self.index.oldest() == record
            self.index.remove([record.trajectory_id])
        self.records = self.records[num:]

    @rule()
    def clear(self) -> None:
        self.index.remove([record.trajectory_id for record in self.records])
        self.records = []

    @rule(size=st.integers(0, 6))
    def look_through_a_window(self, size: int) -> None:
        records = self.records if size == 0 else self.records[-size:]
        window = self.index.window(size)
        check_window(window, records)
        check_places(window, records)
        assert self.index.newest(size) == records
        self.windows = [*self.windows[-3:], (window, list(records))]

    @invariant()
    def windows_stay_as_they_were(self) -> None:
        for window, records in self.windows:
            check_window(window, records)

    @invariant()
    def everything_is_counted(self) -> None:
        assert list(self.index) == self.records
        assert len(self.index) == len(self.records)
        assert self.index.num_rows == len(rows_of(self.records))
        assert self.index.size_bytes == sum(record.size_bytes for record in self.records)

    @invariant()
    def rows_that_are_gone_are_not_found(self) -> None:
        gone = self.taken_rows - set(rows_of(self.records)) | {-1, MAX_ROW_ID}
        ids = np.array(sorted(gone), np.int64)
        with pytest.raises(EvictedError) as caught:
            self.index.window(0).locate(ids)
        assert caught.value.ids == tuple(sorted(gone)[:10])


class BinnedIndexAndList(IndexAndList):
    """The same, rows being found by bins as among very many trajectories."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = ExitStack()
        self.patches.enter_context(mock.patch.object(index_module, "MIN_TRAJECTORIES", 2))
        self.patches.enter_context(mock.patch.object(window_module, "_MANY", 0))

    @rule(num=st.integers(1, 200))
    def make_room(self, num: int) -> None:
        self.index.make_room(num, nullcontext())

    @rule(num_steps=st.integers(1, 3000))
    def add_a_long_one(self, num_steps: int) -> None:
        numbering = self.index.numbering
        self._add(make_record(numbering.next_trajectory_id, numbering.next_row_id, num_steps))

    def teardown(self) -> None:
        self.patches.close()


BinnedIndexAndList.TestCase.settings = settings(
    max_examples=40, stateful_step_count=25, deadline=None
)
TestBinnedIndexAgainstAList = BinnedIndexAndList.TestCase
IndexAndList.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestIndexAgainstAList = IndexAndList.TestCase


def index_of(*lengths: int) -> Index:
    """An index of trajectories with B = 1."""
    index = Index()
    for num_steps in lengths:
        numbering = index.numbering
        index.add(make_record(numbering.next_trajectory_id, numbering.next_row_id, num_steps))
    return index


class TestIndex:
    def test_an_id_comes_once(self) -> None:
        index = index_of(3, 2)
        with pytest.raises(InvalidArgumentError, match="trajectory 1 is in the index already"):
            index.add(make_record(1, 99))
        assert index.num_rows == 5

    def test_removing_what_is_not_there_removes_nothing(self) -> None:
        index = index_of(3, 2)
        version = index.version
        with pytest.raises(EvictedError, match=r"7 is not in this buffer.*return_info") as caught:
            index.remove([0, 7])
        assert caught.value.ids == (7,)
        assert (len(index), index.version) == (2, version)
        assert index.remove([]) == []

    def test_the_version_rises_with_each_change(self) -> None:
        index = index_of(3)
        before = index.version
        index.add(make_record(1, 3))
        middle = index.version
        index.remove([0])
        assert before < middle < index.version

    def test_a_record_can_say_more_later(self) -> None:
        index = index_of(3, 2)
        later = replace(index.get(0), format="pkl")
        index.replace(later)
        assert next(iter(index)) is later
        assert index.size_bytes == sum(record.size_bytes for record in index)

    def test_some_of_one_length_may_go(self) -> None:
        index = index_of(2, 3, 3, 3)
        index.remove([2])
        check_window(index.window(0), list(index))
        check_window(index.window(2), index.newest(2))

    def test_many_trajectories_cost_no_window_a_copy(self) -> None:
        index = index_of(*[2] * 500)
        window = index.window(0)
        assert np.shares_memory(window.ends, index.window(3).ends)


class TestManyTrajectories:
    """Of one length, or of several, found by bins."""

    @pytest.mark.parametrize("lengths", [[3], [1, 9], [700, 1, 1], [1, 1, 1, 4000]])
    @pytest.mark.parametrize("evicted", [0, 1, 350])
    def test_each_row_is_found(self, lengths: list[int], evicted: int) -> None:
        records = list(index_of(*(lengths * (1400 // len(lengths)))))
        index = Index(records)
        index.remove([record.trajectory_id for record in records[:evicted]])
        window = index.window(0)
        owners = np.repeat(np.arange(len(index)), window.counts)
        numbers = np.arange(window.num_rows)
        assert np.array_equal(window.at(numbers).position, owners)
        assert np.array_equal(window.at(numbers[::-1][:1000]).position, owners[::-1][:1000])

    def test_each_row_is_found_while_trajectories_come_and_go(self) -> None:
        index = Index()
        for number in range(300):
            numbering = index.numbering
            num_steps = 5000 if number in (170, 260) else 1 + number % 3
            index.add(make_record(numbering.next_trajectory_id, numbering.next_row_id, num_steps))
            if number % 2:
                index.remove([index.oldest().trajectory_id])
            if number == 290:
                index.remove([int(index.window(0).trajectory_ids[len(index) // 2])])
            check_owners(index.window(0))

    def test_room_is_made_while_others_say_where_one_lies(self) -> None:
        index = index_of(40, *[2, 3] * 50)
        check_places(index.window(0), list(index))

        def say(trajectory_id: int) -> None:
            location = {"segment": 1, "row": 100 * trajectory_id}
            index.replace(replace(index.get(trajectory_id), location=location))

        @contextmanager
        def lock() -> Iterator[None]:
            say(7)  # the last moment at which another thread can
            yield

        index.make_room(500, lock())
        check_owners(index.window(0))
        check_places(index.window(0), list(index))
        say(8)
        check_places(index.window(0), list(index))


class TestLocate:
    @settings(max_examples=60)
    @given(ids=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=5))
    def test_ids_that_nobody_gave_are_named(self, ids: list[int]) -> None:
        index = Index([make_record(0, MAX_ROW_ID - 10, 5), make_record(1, 7, 3)])
        given_rows = set(rows_of(list(index)))
        wanted = np.array(ids, np.int64)
        if set(ids) <= given_rows:
            index.window(0).locate(wanted)
            return
        with pytest.raises(EvictedError, match="neither evicted nor deleted") as caught:
            index.window(0).locate(wanted)
        assert caught.value.ids == tuple(sorted(set(ids) - given_rows))

    @pytest.mark.parametrize("lengths", [(), (3, 2)])
    def test_no_ids_are_found_anywhere(self, lengths: tuple[int, ...]) -> None:
        none: NDArray[np.int64] = np.empty(0, np.int64)
        located = index_of(*lengths).window(0).locate(none)
        assert len(located) == len(located.rows) == len(located.row_ids) == 0

    def test_an_empty_window_has_no_row(self) -> None:
        window = index_of().window(0)
        assert window.num_rows == 0
        with pytest.raises(EvictedError, match=r"row ids \[0\] are not"):
            window.locate(np.array([0]))

    def test_a_window_knows_only_its_own_rows(self) -> None:
        window = index_of(3, 2, 4).window(1)
        assert row_ids_of(window) == [5, 6, 7, 8]
        with pytest.raises(EvictedError) as caught:
            window.locate(np.array([5, 4]))
        assert caught.value.ids == (4,)
