# SPDX-License-Identifier: Apache-2.0
"""`relive.journal` under attack: cut at any byte, damaged anywhere, killed or refused anywhere."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from journals import Disk, Model, State, add_next, fold, reopen, state_of
from records import make_record
from relive.index_file import INDEX_NAME, IndexContents
from relive.journal import Journal
from relive.journal_lines import JOURNAL_NAME, decode_line
from relive.journal_replay import Replay, replay
from relive.numbering import Numbering
from relive.spec import ColumnSpec, Schema

SCHEMA = Schema({"a": ColumnSpec("float32")})

KILLS = [pytest.param(True, id="killed"), pytest.param(False, id="refused")]


@dataclass
class Step:
    """One change, and how the folder is after it."""

    journal_bytes: int
    state: State


@dataclass
class Written:
    """A killed store of one generation, with all changes that were made to it."""

    folder: Path
    steps: list[Step]
    exported_at: int
    """Which step the index file covers; -1 for none."""

    def after_cut(self, length: int) -> State:
        """What must still hold when the journal has only so many bytes."""
        kept = [k for k, step in enumerate(self.steps) if step.journal_bytes <= length]
        return self.steps[max([self.exported_at, *kept])].state


def write_store(folder: Path, exported_at: int = -1) -> Written:
    """Make every kind of change, and export the index after one of them."""
    folder.mkdir(exist_ok=True)
    journal, model = Journal(folder, None), Model()

    def remove(ids: list[int]) -> None:
        journal.remove(ids)
        model.remove(ids)

    def hold() -> None:
        journal.set_schema(SCHEMA)
        model.schema = SCHEMA

    def number() -> None:
        model.numbering = Numbering(20, 2, 200)
        journal.set_numbering(model.numbering)

    def load() -> None:
        loaded, kept = make_record(31, 310), model.records[-1]
        model.numbering = Numbering(40, 1, 400)
        model.records, model.schema = [loaded, kept], None
        order = [31, kept.trajectory_id]
        journal.load([loaded], order[1:], order, model.numbering, None, "incoming")

    changes: list[Callable[[], object]] = [
        lambda: None,
        hold,
        *[lambda n=n: add_next(journal, model, n) for n in (0, 0, 1, 2, 1)],
        lambda: remove([1, 3]),
        number,
        lambda: add_next(journal, model, 2),
        journal.mark_synced,
        load,
        journal.mark_moved,
        lambda: add_next(journal, model, 0),
    ]
    steps = []
    for k, change in enumerate(changes):
        change()
        steps.append(Step(journal.contents.journal_bytes, model.state))
        if k == exported_at:
            journal.export(lambda: None)
    journal.abandon()
    return Written(folder, steps, exported_at)


def check_goes_on(folder: Path, expected: State) -> None:
    """Open the store, add to it, kill it, open it: nothing of before and nothing new is lost."""
    journal, found = reopen(folder)
    assert state_of(found.contents) == expected
    model = Model(list(expected[0]), expected[1], expected[2])
    for _ in range(3):
        add_next(journal, model, 1)
        assert state_of(replay(folder).contents) == model.state
    journal.abandon()
    journal, found = reopen(folder)
    assert state_of(found.contents) == model.state
    journal.close()
    assert replay(folder).was_closed


class TestCutJournal:
    @pytest.mark.parametrize("exported_at", [-1, 4, 13])
    def test_at_any_byte_what_was_complete_is_found(self, tmp_path: Path, exported_at: int) -> None:
        written = write_store(tmp_path, exported_at)
        path = tmp_path / JOURNAL_NAME
        block = path.read_bytes()
        assert len(block) == written.steps[-1].journal_bytes
        ends = [step.journal_bytes for step in written.steps]
        near_ends = {end + aside for end in ends for aside in (-2, -1, 0, 1)}
        for length in sorted(near_ends | set(range(ends[0], ends[-1], 41))):
            if not ends[0] <= length < ends[-1]:
                continue
            path.write_bytes(block[:length])
            found = replay(tmp_path)
            assert state_of(found.contents) == written.after_cut(length)
            assert found.problems == []

    @pytest.mark.parametrize("exported_at", [-1, 4, 13])
    def test_the_next_writer_goes_on_from_there(self, tmp_path: Path, exported_at: int) -> None:
        written = write_store(tmp_path / "store", exported_at)
        block = (tmp_path / "store" / JOURNAL_NAME).read_bytes()
        for k, length in enumerate(range(written.steps[0].journal_bytes, len(block), 331)):
            folder = tmp_path / str(k)
            shutil.copytree(tmp_path / "store", folder)
            (folder / JOURNAL_NAME).write_bytes(block[:length])
            check_goes_on(folder, written.after_cut(length))

    @pytest.mark.parametrize("left", [b"", b"{", b"\0" * 5000])
    def test_one_that_is_gone_loses_only_what_the_index_lacks(
        self, tmp_path: Path, left: bytes
    ) -> None:
        written = write_store(tmp_path, exported_at=8)
        (tmp_path / JOURNAL_NAME).write_bytes(left)
        found = replay(tmp_path)
        assert any("damaged: what it said beyond" in problem for problem in found.problems)
        assert list(found.unsynced) == [r.trajectory_id for r in written.steps[8].state[0]]
        check_goes_on(tmp_path, written.steps[8].state)


def survivors(block: bytes) -> State:
    """What the undamaged lines say; an addition is void without the line of its layout."""
    replayed = Replay(IndexContents())
    for line in block.split(b"\n"):
        change = decode_line(line)
        if change is None:
            continue
        try:
            replayed.apply(change)
        except ValueError:
            continue
    return state_of(replayed.contents)


class TestDamagedJournal:
    @settings(max_examples=40)
    @given(data=st.data())
    def test_a_damaged_line_costs_only_itself(
        self, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
    ) -> None:
        folder = tmp_path_factory.mktemp("store")
        write_store(folder)
        path = folder / JOURNAL_NAME
        block = bytearray(path.read_bytes())
        last_line = block.rindex(b"\n", 0, len(block) - 1)
        places = st.lists(st.integers(0, last_line - 1), min_size=1, max_size=3, unique=True)
        for place in data.draw(places):
            block[place] ^= data.draw(st.sampled_from([1, 16, 129]))
        path.write_bytes(bytes(block))
        found = replay(folder)
        assert any("damaged lines" in problem for problem in found.problems)
        check_goes_on(folder, survivors(bytes(block)))


class TestFoldThatBreaks:
    """Every operation of a fold is killed, or refused, in turn."""

    @pytest.mark.parametrize("kills", KILLS)
    @pytest.mark.parametrize("num_folds", [0, 1])
    def test_nothing_that_was_noted_is_lost(
        self, tmp_path: Path, kills: bool, num_folds: int
    ) -> None:
        num_broken = 0
        for number in range(60):
            folder = tmp_path / str(number)
            folder.mkdir()
            journal, model = self.filled(folder, num_folds)
            disk = Disk(number, kills)
            with disk.breaking():
                fold(journal)
            assert state_of(replay(folder).contents) == model.state
            assert list(replay(folder).unsynced) == [model.records[-1].trajectory_id]
            if not kills:
                self.check_same_journal_goes_on(folder, journal, model)
            else:
                journal.abandon()
                check_goes_on(folder, model.state)
            if disk.num_done <= number:
                break
            num_broken += 1
        assert 10 < num_broken < 60

    @pytest.mark.parametrize("num_folds", [0, 1, 2])
    def test_nor_when_the_index_is_cut_as_well(self, tmp_path: Path, num_folds: int) -> None:
        for number in range(60):
            folder = tmp_path / str(number)
            folder.mkdir()
            journal, model = self.filled(folder, num_folds)
            disk = Disk(number, kills=True)
            with disk.breaking():
                fold(journal)
            journal.abandon()
            block = (folder / INDEX_NAME).read_bytes()
            (folder / INDEX_NAME).unlink()  # its previous copy may be the same file
            (folder / INDEX_NAME).write_bytes(block[: len(block) // 2])
            assert state_of(replay(folder).contents) == model.state
            check_goes_on(folder, model.state)
            if disk.num_done <= number:
                break

    def filled(self, folder: Path, num_folds: int) -> tuple[Journal, Model]:
        """An open index with an exported file, changes after it, and one addition not synced."""
        journal, model = Journal(folder, None), Model()
        for _ in range(num_folds):
            add_next(journal, model)
            fold(journal)
        add_next(journal, model, 0)
        journal.export(lambda: None)
        add_next(journal, model, 1)
        journal.mark_synced()
        add_next(journal, model, 2)
        return journal, model

    def check_same_journal_goes_on(self, folder: Path, journal: Journal, model: Model) -> None:
        for layout in (2, 0, 1):
            add_next(journal, model, layout)
            assert state_of(replay(folder).contents) == model.state == state_of(journal.contents)
        fold(journal)
        assert state_of(replay(folder).contents) == model.state
        journal.close()
        assert replay(folder).was_closed
        assert not [path for path in folder.iterdir() if path.name.endswith(".tmp")]


class TestOtherStepsThatBreak:
    @pytest.mark.parametrize("kills", KILLS)
    @pytest.mark.parametrize("is_cut", [False, True])
    def test_opening(self, tmp_path: Path, kills: bool, is_cut: bool) -> None:
        for number in range(60):
            folder = tmp_path / str(number)
            folder.mkdir()
            written = write_store(folder, exported_at=4)
            if is_cut:
                length = written.steps[2].journal_bytes
                block = (folder / JOURNAL_NAME).read_bytes()
                (folder / JOURNAL_NAME).write_bytes(block[:length])
            expected = written.after_cut(length if is_cut else 10**9)
            disk = Disk(number, kills)
            with disk.breaking():
                Journal(folder, replay(folder)).abandon()
            check_goes_on(folder, expected)
            if disk.num_done <= number:
                break

    @pytest.mark.parametrize("kills", KILLS)
    def test_creating(self, tmp_path: Path, kills: bool) -> None:
        for number in range(60):
            folder = tmp_path / str(number)
            folder.mkdir()
            disk = Disk(number, kills)
            with disk.breaking():
                Journal(folder, None).abandon()
            if (folder / JOURNAL_NAME).exists():
                check_goes_on(folder, Model().state)
            if disk.num_done <= number:
                break

    @pytest.mark.parametrize("kills", KILLS)
    def test_loading(self, tmp_path: Path, kills: bool) -> None:
        for number in range(60):
            folder = tmp_path / str(number)
            folder.mkdir()
            journal, model = Journal(folder, None), Model()
            add_next(journal, model)
            before, loaded = model.state, make_record(7, 70)
            after: State = (loaded,), Numbering(8, 1, 80), SCHEMA
            disk, is_noted = Disk(number, kills), False
            with disk.breaking():
                journal.load([loaded], [], [7], after[1], SCHEMA, "incoming")
                is_noted = True
            journal.abandon()
            found = state_of(replay(folder).contents)
            if kills and not is_noted:
                assert found in (before, after)  # the line may be there, but not synced
            else:
                assert found == (after if is_noted else before)
            check_goes_on(folder, found)
            if disk.num_done <= number:
                break
