# SPDX-License-Identifier: Apache-2.0
"""`relive.record_table`: records as numbers in memory and text in files, beside a plain dict."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from journals import LAYOUTS
from records import make_record
from relive import record_lookup
from relive.errors import ClosedError, CorruptFileError
from relive.id_table import IdTable
from relive.index_file import IndexContents
from relive.index_writer import IndexWriter
from relive.record import Record
from relive.record_table import RecordTable


class TableAndDict(RuleBasedStateMachine):
    """A table beside a dict, both told the same; ids come in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.table, self.held = RecordTable(), dict[int, Record]()
        self.patch = mock.patch.object(record_lookup, "_NUM_RECENT", 3)
        self.patch.start()

    @rule(trajectory_id=st.integers(0, 60), layout=st.integers(0, 2))
    def put(self, trajectory_id: int, layout: int) -> None:
        record = replace(make_record(trajectory_id, 9 * trajectory_id), layout=LAYOUTS[layout])
        self.held.pop(trajectory_id, None)
        self.held[trajectory_id] = self.table[trajectory_id] = record

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def take_out(self, data: st.DataObject) -> None:
        gone = data.draw(st.lists(st.sampled_from(list(self.held)), min_size=1, max_size=4))
        self.table.discard(gone)
        for trajectory_id in gone:
            self.held.pop(trajectory_id, None)

    @precondition(lambda self: self.held)
    @rule(num=st.integers(1, 3))
    def evict(self, num: int) -> None:
        for trajectory_id in list(self.held)[:num]:
            del self.table[trajectory_id], self.held[trajectory_id]

    @rule()
    def write(self) -> None:
        writer = IndexWriter(IndexContents(self.table))
        writer.write(self.folder / "index", sync=False)
        writer.rebase()
        assert self.table.num_without_text == 0

    @rule(data=st.data())
    def load(self, data: st.DataObject) -> None:
        loaded = [make_record(n, 9 * n, format="pkl") for n in range(100, 103)]
        known = list(dict.fromkeys([*self.held, *(r.trajectory_id for r in loaded)]))
        order = data.draw(st.permutations(known))[:9]
        before, kept = self.table, dict(self.held)
        brought = {record.trajectory_id: record for record in loaded}
        self.table = self.table.successor(order, [brought[n] for n in order if n in brought])
        self.held = {n: brought.get(n) or kept[n] for n in order}
        assert dict(before) == kept

    @invariant()
    def both_say_the_same(self) -> None:
        assert list(self.table) == list(self.held)
        assert list(self.table.values()) == list(self.held.values())
        assert [self.table[n] for n in self.held] == list(self.held.values())
        assert self.table.num_rows == sum(record.num_rows for record in self.held.values())
        assert self.table.size_bytes == sum(record.size_bytes for record in self.held.values())
        assert self.table.get(99) is None
        assert 99 not in self.table

    def teardown(self) -> None:
        self.patch.stop()
        self.table.close()
        shutil.rmtree(self.folder)


TableAndDict.TestCase.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)
TestTableAgainstADict = TableAndDict.TestCase


def written(folder: Path, num: int = 4) -> RecordTable:
    """A table all of whose records are looked up in a file."""
    table = RecordTable(make_record(n, 2 * n) for n in range(num))
    writer = IndexWriter(IndexContents(table))
    writer.write(folder / "index", sync=False)
    writer.rebase()
    return table


class TestFiles:
    def test_a_file_that_is_cut_is_named(self, tmp_path: Path) -> None:
        table = written(tmp_path)
        path = tmp_path / "index"
        path.write_bytes(path.read_bytes()[:700])
        assert table[0] == make_record(0, 0)
        with pytest.raises(CorruptFileError, match=r"index' is cut.*restore it"):
            table[3]

    def test_a_text_that_was_changed_is_named(self, tmp_path: Path) -> None:
        table = written(tmp_path)
        path = tmp_path / "index"
        path.write_bytes(path.read_bytes().replace(b'"first_row_id":2,', b'"first_row_id":4,'))
        with pytest.raises(CorruptFileError, match=r"entry of trajectory 1 is .*something else"):
            table[1]
        path.write_bytes(path.read_bytes().replace(b'"uuid":', b'"uuid";'))
        with pytest.raises(CorruptFileError, match=r"entry of trajectory 0 is damaged"):
            list(table.values())

    def test_nothing_is_read_after_closing(self, tmp_path: Path) -> None:
        table = written(tmp_path)
        table.close()
        table.close()
        with pytest.raises(ClosedError, match="the index is closed"):
            table[1]


class TestIdTable:
    def test_an_id_that_comes_back_is_found_among_ids_in_any_order(self) -> None:
        table = IdTable({"id": "int64", "n": "int64"})
        for n, one in enumerate([9, 6]):
            table.append(one, n)
        table.remove([9, 6])
        for n, one in enumerate([6, 4]):
            table.append(one, n)
        assert [table.row_of(one) for one in (6, 4, 9)] == [0, 1, -1]

    def test_ids_that_no_array_holds_are_not_there(self) -> None:
        table = IdTable({"id": "int64", "n": "int64"})
        table.append(5, 50)
        assert [table.row_of(n) for n in (5, 4, 6, -1, 1 << 63, 1 << 80)] == [0, *[-1] * 5]

    def test_what_was_given_stays_as_it_was(self) -> None:
        table = IdTable({"id": "int64", "n": "int64"})
        for n in range(100):
            table.append(n, 10 * n)
        before = table.column("n", 3)
        table.remove([97, 98])
        for n in range(200, 400):
            table.append(n, 0)
        assert before.tolist() == [970, 980, 990]
        assert table.column("n", 201).tolist() == [990, *[0] * 200]
