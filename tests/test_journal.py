# SPDX-License-Identifier: Apache-2.0
"""`relive.journal` and `relive.journal_replay`: what is noted is what the next process finds."""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from journals import LAYOUTS, Disk, Model, add_next, fold, reopen, state_of
from records import make_record
from relive import journal as journal_module
from relive.errors import ClosedError, FormatVersionError, MissingFileError
from relive.index_file import INDEX_NAME, IndexContents, read_index
from relive.journal import Journal
from relive.journal_lines import JOURNAL_NAME, decode_line, encode_line, open_lines
from relive.journal_replay import PREVIOUS_SUFFIX, replay
from relive.numbering import Numbering
from relive.spec import ColumnSpec, Schema

SCHEMAS = [Schema({name: ColumnSpec("float32")}) for name in ("a", "b")]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


class JournalAndModel(RuleBasedStateMachine):
    """A journal beside a plain list, both told the same; each step is followed by a replay.

    The replay reads the files while the journal is open, so it sees what a kill at that moment
    leaves.
    """

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.model = Model()
        self.patch = mock.patch.object(journal_module, "_SMALLEST_FOLD_BYTES", 3000)
        self.patch.start()

    @initialize()
    def open_new(self) -> None:
        self.journal = Journal(self.folder, None)

    @rule(layout=st.integers(0, 2), is_synced=st.booleans())
    def add(self, layout: int, is_synced: bool) -> None:
        add_next(self.journal, self.model, layout, is_synced=is_synced)

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        ids = [record.trajectory_id for record in self.model.records]
        gone = data.draw(
            st.lists(st.sampled_from(ids), unique=True, max_size=3) if ids else st.just([])
        )
        self.journal.remove(gone)
        self.model.remove(gone)

    @rule(stride=st.integers(1, 4), ahead=st.integers(0, 9))
    def number(self, stride: int, ahead: int) -> None:
        old = self.model.numbering
        numbering = Numbering(old.next_trajectory_id + ahead, stride, old.next_row_id + ahead)
        self.journal.set_numbering(numbering)
        self.model.numbering = numbering

    @rule(schema=st.sampled_from([*SCHEMAS, None]))
    def say_what_holds(self, schema: Schema | None) -> None:
        self.journal.set_schema(schema)
        self.model.schema = schema

    @rule(num=st.integers(0, 3), keeps=st.booleans(), schema=st.sampled_from([*SCHEMAS, None]))
    def load(self, num: int, keeps: bool, schema: Schema | None) -> None:
        kept = self.model.records[::2] if keeps else []
        first = self.model.numbering
        loaded = [
            make_record(first.next_trajectory_id + n, first.next_row_id + 2 * n) for n in range(num)
        ]
        order = [*loaded, *kept]
        numbering = Numbering(first.next_trajectory_id + num, 1, first.next_row_id + 2 * num)
        ids = [record.trajectory_id for record in kept]
        self.journal.load(
            loaded, ids, [r.trajectory_id for r in order], numbering, schema, "incoming-1"
        )
        self.model.records, self.model.numbering, self.model.schema = order, numbering, schema
        assert replay(self.folder).moving == "incoming-1"
        self.journal.mark_moved()

    @rule()
    def sync(self) -> None:
        self.journal.mark_synced()
        assert replay(self.folder).unsynced == {}

    @rule()
    def export(self) -> None:
        self.journal.export(lambda: None)
        contents = read_index(self.folder / INDEX_NAME).contents
        assert contents is not None
        assert state_of(contents) == self.model.state

    @rule()
    def fold(self) -> None:
        before = self.journal.contents.generation
        fold(self.journal)
        assert self.journal.contents.generation == before + 1

    @rule(is_kill=st.booleans())
    def open_again(self, is_kill: bool) -> None:
        if is_kill:
            self.journal.abandon()
        else:
            self.journal.close()
        self.journal, found = reopen(self.folder)
        assert found.was_closed == (not is_kill)
        assert found.problems == []

    @invariant()
    def the_next_process_finds_what_was_noted(self) -> None:
        found = replay(self.folder)
        assert state_of(found.contents) == self.model.state == state_of(self.journal.contents)
        assert found.problems == []
        assert found.moving is None
        assert found.contents.generation == self.journal.contents.generation

    def teardown(self) -> None:
        self.patch.stop()
        self.journal.abandon()
        shutil.rmtree(self.folder)


JournalAndModel.TestCase.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)
TestJournalAgainstAList = JournalAndModel.TestCase


class TestLines:
    @given(change=st.dictionaries(st.text(max_size=3), json_values, max_size=4))
    def test_any_change_is_read_back(self, change: dict[str, Any]) -> None:
        line = encode_line({"op": "x", **change})
        assert line.count(b"\n") == 1
        assert line.isascii()
        assert decode_line(line[:-1]) == {"op": "x", **change}

    def test_no_changed_byte_goes_unnoticed(self) -> None:
        line = encode_line({"op": "remove", "ids": [1, 23]})[:-1]
        for place in range(len(line)):
            for flip in (1, 4, 32, 255):
                damaged = line[:place] + bytes([line[place] ^ flip]) + line[place + 1 :]
                assert decode_line(damaged) is None
        for length in range(len(line)):
            assert decode_line(line[:length]) is None

    def test_a_missing_file_has_no_lines(self, tmp_path: Path) -> None:
        lines = open_lines(tmp_path / JOURNAL_NAME)
        assert (list(lines), lines.generation, lines.valid_bytes) == ([], -1, 0)

    def test_a_journal_of_a_later_release_is_told_apart(self, tmp_path: Path) -> None:
        line = encode_line({"op": "begin", "version": 2, "generation": 0})
        (tmp_path / JOURNAL_NAME).write_bytes(line)
        with pytest.raises(FormatVersionError, match=r"has format version 2.*upgrade relive"):
            replay(tmp_path)

    def test_a_change_of_a_later_release_is_told_apart(self, tmp_path: Path) -> None:
        Journal(tmp_path, None).abandon()
        with (tmp_path / JOURNAL_NAME).open("ab") as file:
            file.write(encode_line({"op": "compact", "generation": 0}))
        with pytest.raises(FormatVersionError, match="'compact'"):
            replay(tmp_path)


class TestCost:
    def test_the_thousandth_trajectory_takes_as_many_bytes_as_the_hundredth(
        self, tmp_path: Path
    ) -> None:
        journal, model = Journal(tmp_path, None), Model()
        sizes = []
        for _ in range(1000):
            add_next(journal, model)
            sizes.append((tmp_path / JOURNAL_NAME).stat().st_size)
        added = [after - before for before, after in pairwise(sizes)]
        assert added[-1] - added[100] <= 8  # longer numbers
        assert not (tmp_path / INDEX_NAME).exists()
        journal.close()

    def test_a_fold_empties_the_journal_once_it_is_as_large_as_the_index(
        self, tmp_path: Path
    ) -> None:
        journal, model = Journal(tmp_path, None), Model()
        with mock.patch.object(journal_module, "_SMALLEST_FOLD_BYTES", 2000):
            sizes = []
            for _ in range(60):
                add_next(journal, model)
                journal.export(lambda: None)
                sizes.append(tuple((tmp_path / name).stat().st_size for name in NAMES))
        assert journal.contents.generation > 1
        assert all(noted <= max(2000, index) + 700 for index, noted in sizes)
        journal.close()


NAMES = (INDEX_NAME, JOURNAL_NAME)


class TestSyncedPoint:
    def test_what_was_added_since_is_known_after_a_kill_even_when_folded(
        self, tmp_path: Path
    ) -> None:
        journal, model = Journal(tmp_path, None), Model()
        add_next(journal, model)
        journal.mark_synced()
        add_next(journal, model)
        add_next(journal, model, is_synced=True)
        add_next(journal, model)
        journal.remove([3])
        for _ in range(3):
            assert list(replay(tmp_path).unsynced) == [1]
            fold(journal)
        journal.abandon()
        journal, found = reopen(tmp_path)
        assert list(found.unsynced) == [1]
        journal.mark_synced()
        assert list(replay(tmp_path).unsynced) == []
        journal.close()

    def test_an_exported_index_does_not_hide_it(self, tmp_path: Path) -> None:
        journal, model = Journal(tmp_path, None), Model()
        add_next(journal, model)
        journal.export(lambda: None)
        add_next(journal, model)
        assert list(replay(tmp_path).unsynced) == [0, 1]
        journal.mark_synced()
        journal.export(lambda: None)
        assert list(replay(tmp_path).unsynced) == []
        journal.close()

    def test_a_fold_between_a_load_and_its_end_keeps_the_folder(self, tmp_path: Path) -> None:
        journal = Journal(tmp_path, None)
        journal.load([make_record(0)], [], [0], Numbering(1, 1, 2), None, "incoming-7")
        fold(journal)
        assert replay(tmp_path).moving == "incoming-7"
        journal.mark_moved()
        assert replay(tmp_path).moving is None
        journal.close()


class TestReaders:
    def test_beside_the_writer_they_find_all_that_was_noted_before(self, tmp_path: Path) -> None:
        journal, model = Journal(tmp_path, None), Model()
        num_noted = 0
        num_read: list[int] = []
        problems: list[str] = []
        is_over = threading.Event()

        def read() -> None:
            while not is_over.is_set():
                before = num_noted
                found = replay(tmp_path)
                ids = list(found.contents.records)
                problems.extend(found.problems)
                if ids != list(range(len(ids))) or len(ids) < before:
                    problems.append(f"{before} were noted, but {ids} are found")
                num_read.append(len(ids))

        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(read)
            while (num_noted < 100 or len(set(num_read)) < 5) and not reading.done():
                add_next(journal, model, num_noted % 3)
                num_noted += 1
                if num_noted % 4 == 0:
                    journal.export(lambda: None)
                if num_noted % 7 == 0:
                    fold(journal)
            is_over.set()
            reading.result()
        journal.close()
        assert problems == []


class TestFailures:
    @pytest.mark.parametrize("change", ["add", "remove", "number", "schema", "load"])
    def test_a_refused_change_is_not_noted(self, tmp_path: Path, change: str) -> None:
        journal, model = Journal(tmp_path, None), Model()
        add_next(journal, model)
        record = model.next_record(1)
        numbering = Numbering(9, 1, 90)
        calls: dict[str, Any] = {
            "add": lambda: journal.add(record),
            "remove": lambda: journal.remove([0]),
            "number": lambda: journal.set_numbering(numbering),
            "schema": lambda: journal.set_schema(SCHEMAS[0]),
            "load": lambda: journal.load([record], [], [1], numbering, SCHEMAS[0], "incoming"),
        }
        for number in range(2):
            disk = Disk(break_at=number)
            with disk.breaking():
                calls[change]()
            if disk.num_done <= number:
                break  # an append is one operation
            assert state_of(journal.contents) == state_of(replay(tmp_path).contents) == model.state
        journal.remove([])
        assert state_of(replay(tmp_path).contents) == state_of(journal.contents)
        calls[change]()
        assert state_of(replay(tmp_path).contents) == state_of(journal.contents) != model.state
        journal.close()

    def test_after_a_refused_sync_all_is_written_to_other_files(self, tmp_path: Path) -> None:
        journal, model = Journal(tmp_path, None), Model()
        add_next(journal, model)
        with Disk(break_at=0).breaking():
            journal.sync()
        before = (tmp_path / JOURNAL_NAME).stat().st_ino
        journal.sync()
        assert (tmp_path / JOURNAL_NAME).stat().st_ino != before
        assert journal.contents.generation == 1
        add_next(journal, model)
        assert state_of(replay(tmp_path).contents) == model.state
        journal.close()

    def test_closing_twice_is_fine_and_changes_are_refused(self, tmp_path: Path) -> None:
        journal, model = Journal(tmp_path, None), Model()
        add_next(journal, model)
        journal.close()
        before = (tmp_path / JOURNAL_NAME).read_bytes()
        journal.close()
        with pytest.raises(ClosedError, match="the index is closed"):
            journal.add(model.next_record())
        assert (tmp_path / JOURNAL_NAME).read_bytes() == before
        assert replay(tmp_path).was_closed

    def test_a_folder_without_an_index_is_told(self, tmp_path: Path) -> None:
        with pytest.raises(MissingFileError, match=r"trajectory_index\.json"):
            replay(tmp_path)


class TestPreviousCopies:
    def filled(self, folder: Path, num_folds: int) -> Model:
        """A killed store whose index was folded some times, with lines after each fold."""
        journal, model = Journal(folder, None), Model()
        for n in range(num_folds):
            add_next(journal, model, n % 3)
            journal.export(lambda: None)
            add_next(journal, model)
            journal.remove([model.records[0].trajectory_id])
            model.remove([model.records[0].trajectory_id])
            fold(journal)
        add_next(journal, model, 1)
        journal.abandon()
        return model

    @pytest.mark.parametrize("num_folds", [0, 1, 2, 3])
    @pytest.mark.parametrize("left", [0, 0.5, 1, None])
    def test_a_cut_index_is_rebuilt(
        self, tmp_path: Path, num_folds: int, left: float | None
    ) -> None:
        model = self.filled(tmp_path, num_folds)
        path = tmp_path / INDEX_NAME
        if left is None:
            path.unlink(missing_ok=True)
        elif path.exists():
            block = path.read_bytes()
            path.write_bytes(block[: min(int(left * len(block)), len(block) - 3)])
        found = replay(tmp_path)
        assert state_of(found.contents) == model.state
        if num_folds:
            assert any("rebuilt from the journal" in problem for problem in found.problems)
        journal, _ = reopen(tmp_path)
        add_next(journal, model)
        assert state_of(replay(tmp_path).contents) == model.state
        journal.close()

    def test_rlinfs_index_in_its_place_is_passed_over(self, tmp_path: Path) -> None:
        model = self.filled(tmp_path, 1)
        whole: dict[str, Any] = {"trajectory_index": {}, "trajectory_id_list": []}
        (tmp_path / INDEX_NAME).write_text(json.dumps(whole))
        found = replay(tmp_path)
        assert state_of(found.contents) == model.state
        assert any("an index of RLinf, but" in problem for problem in found.problems)

    def test_an_old_index_in_its_place_is_passed_over(self, tmp_path: Path) -> None:
        journal, model = Journal(tmp_path, None), Model()
        add_next(journal, model)
        fold(journal)
        old = (tmp_path / INDEX_NAME).read_bytes()
        add_next(journal, model)
        fold(journal)
        add_next(journal, model)
        journal.abandon()
        (tmp_path / INDEX_NAME).write_bytes(old)
        found = replay(tmp_path)
        assert state_of(found.contents) == model.state
        assert any("old copy" in problem for problem in found.problems)

    def test_without_any_usable_index_nothing_is_made_up(self, tmp_path: Path) -> None:
        self.filled(tmp_path, 3)
        for name in (INDEX_NAME, INDEX_NAME + PREVIOUS_SUFFIX):
            (tmp_path / name).write_bytes(b"{}")
        with pytest.raises(ValueError, match=r"trajectory_index\.json' .* an index has both"):
            replay(tmp_path)

    def test_layouts_are_shared_after_opening(self, tmp_path: Path) -> None:
        journal, model = Journal(tmp_path, None), Model()
        for _ in range(3):
            add_next(journal, model, 1)
        found = replay(tmp_path)
        assert len({id(record.layout) for record in found.contents.records.values()}) == 1
        assert next(iter(found.contents.records.values())).layout == LAYOUTS[1]
        journal.close()

    def test_a_new_index_starts_empty(self, tmp_path: Path) -> None:
        journal = Journal(tmp_path, None)
        assert state_of(journal.contents) == state_of(IndexContents())
        journal.abandon()
        found = replay(tmp_path)
        assert (found.problems, found.was_closed) == ([], False)
