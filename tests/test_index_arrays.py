# SPDX-License-Identifier: Apache-2.0
"""`relive.index_arrays`: the index as arrays is used when all fits, and passed over when not."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from journals import Model, add_next, fold, reopen, state_of
from records import make_layout, make_record
from relive import TrajectoryReplayBuffer, checkpoint_reading, journal_replay
from relive.index_arrays import ARRAYS_NAME, read_arrays
from relive.index_file import INDEX_NAME
from relive.journal import Journal
from relive.journal_lines import JOURNAL_NAME
from relive.journal_replay import replay
from relive.record_lookup import RECORD_COLUMNS
from trajectories import check_rows, make_checkpoint, traj

HEAD_BYTES = 56


def arrays_in(folder: Path) -> Any:
    return read_arrays(folder / ARRAYS_NAME, folder / INDEX_NAME, folder / JOURNAL_NAME)


def closed_store(folder: Path, num: int = 7) -> Model:
    """A store closed after an index file, more in the journal, and one removal in the middle."""
    folder.mkdir(exist_ok=True)
    journal, model = Journal(folder, None), Model()
    for k in range(num):
        add_next(journal, model, k % 3)
    fold(journal)
    add_next(journal, model, 1)
    journal.remove([2])
    model.remove([2])
    journal.export(lambda: None, with_index=False)
    add_next(journal, model, 2)
    journal.abandon()
    return model


def header_of(block: bytes) -> dict[str, Any]:
    size = struct.unpack_from("<Q", block, 32)[0]
    header: dict[str, Any] = json.loads(block[HEAD_BYTES : HEAD_BYTES + size])
    return header


def rewritten(block: bytes, header: dict[str, Any], columns: dict[str, Any]) -> bytes:
    """The file with other contents and the right checksum, as an attacker would write it."""
    size, num, num_unsynced = struct.unpack_from("<QQQ", block, 32)
    start = HEAD_BYTES + size + -size % 8
    text = json.dumps(header).encode()
    body = text + b"\0" * (-len(text) % 8)
    for name, dtype in RECORD_COLUMNS.items():
        column = np.frombuffer(block, dtype, num, start).copy()
        start += column.nbytes + -column.nbytes % 8
        if name in columns:
            columns[name](column)
        body += column.tobytes() + b"\0" * (-column.nbytes % 8)
    body = struct.pack("<IIQQQ", 1, 0, len(text), num, num_unsynced) + body + block[start:]
    return block[:8] + xxhash.xxh3_64_hexdigest(body).encode() + body


class TestUse:
    def test_only_the_end_of_the_journal_is_read_again(self, tmp_path: Path) -> None:
        model = closed_store(tmp_path)
        found = arrays_in(tmp_path)
        assert list(found.contents.records) == [r.trajectory_id for r in model.records[:-1]]
        with mock.patch.object(journal_replay, "open_lines", side_effect=AssertionError):
            assert state_of(replay(tmp_path).contents) == model.state

    def test_the_next_writer_goes_on_from_there(self, tmp_path: Path) -> None:
        model = closed_store(tmp_path)
        for _ in range(3):
            journal, found = reopen(tmp_path)
            assert found.problems == []
            assert state_of(journal.contents) == model.state
            add_next(journal, model)
            journal.mark_synced()
            journal.export(lambda: None)
            journal.close()
        fold_again, _ = reopen(tmp_path)
        fold(fold_again)
        assert state_of(replay(tmp_path).contents) == model.state
        fold_again.close()

    def test_an_index_file_that_says_all_is_not_written_again(self, tmp_path: Path) -> None:
        closed_store(tmp_path)
        for times in range(2):
            journal, _ = reopen(tmp_path)
            before = (tmp_path / INDEX_NAME).stat().st_ino
            journal.export(lambda: None)
            is_same = (tmp_path / INDEX_NAME).stat().st_ino == before
            assert is_same == (times == 1)
            journal.close()

    def test_a_trajectory_can_move_after_such_an_opening(self, tmp_path: Path) -> None:
        model = closed_store(tmp_path)
        journal, _ = reopen(tmp_path)
        for k in (0, -1):
            moved = replace(model.records[k], location={"segment": 4, "row": 7})
            journal.relocate(moved)
            model.records[k] = moved
            assert state_of(journal.contents) == state_of(replay(tmp_path).contents) == model.state
        journal.export(lambda: None, with_index=False)
        places = arrays_in(tmp_path).contents.records.column("place").tolist()
        assert places == [record.place for record in model.records]
        assert state_of(replay(tmp_path).contents) == model.state
        journal.close()

    def test_what_is_not_synced_is_known(self, tmp_path: Path) -> None:
        journal, model = Journal(tmp_path, None), Model()
        add_next(journal, model)
        journal.mark_synced()
        add_next(journal, model)
        journal.export(lambda: None)
        add_next(journal, model)
        assert arrays_in(tmp_path) is not None
        assert list(replay(tmp_path).unsynced) == [1, 2]
        journal.close()

    def test_damaged_lines_are_told_at_each_opening(self, tmp_path: Path) -> None:
        journal, model = Journal(tmp_path, None), Model()
        for _ in range(3):
            add_next(journal, model)
        journal.abandon()
        block = (tmp_path / JOURNAL_NAME).read_bytes()
        (tmp_path / JOURNAL_NAME).write_bytes(
            block.replace(b'"num_samples":2', b'"num_samples":3', 1)
        )
        for _ in range(2):
            journal, found = reopen(tmp_path)
            assert any("damaged lines" in problem for problem in found.problems)
            journal.export(lambda: None)
            journal.close()

    def test_a_loaded_trajectory_is_looked_up_in_the_index_file(self, tmp_path: Path) -> None:
        journal = Journal(tmp_path, None)
        record = make_record(5, 50)
        numbering = Model().numbering.past(record)
        journal.load([record], [], [5], numbering, None, "incoming")
        journal.mark_moved()
        assert journal.contents.records.num_without_text == 1
        journal.export(lambda: None, with_index=False)
        assert journal.contents.records.num_without_text == 0
        assert arrays_in(tmp_path).contents.records[5] == record
        journal.close()


class TestDamage:
    @settings(max_examples=60, deadline=None)
    @given(data=st.data())
    def test_a_damaged_file_is_passed_over(
        self, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
    ) -> None:
        folder = tmp_path_factory.mktemp("store")
        model = closed_store(folder)
        path = folder / ARRAYS_NAME
        block = bytearray(path.read_bytes())
        kind = data.draw(st.sampled_from(["flip", "cut", "longer"]))
        if kind == "flip":
            block[data.draw(st.integers(0, len(block) - 1))] ^= data.draw(st.integers(1, 255))
        elif kind == "cut":
            del block[data.draw(st.integers(0, len(block) - 1)) :]
        else:
            block += data.draw(st.binary(min_size=1, max_size=20))
        path.write_bytes(bytes(block))
        assert arrays_in(folder) is None
        assert state_of(replay(folder).contents) == model.state
        shutil.rmtree(folder)

    @pytest.mark.parametrize("name", [INDEX_NAME, JOURNAL_NAME])
    def test_one_that_goes_with_other_files_is_passed_over(self, tmp_path: Path, name: str) -> None:
        closed_store(tmp_path / "one", 7)
        closed_store(tmp_path / "two", 8)
        shutil.copy(tmp_path / "two" / name, tmp_path / "one" / name)
        assert arrays_in(tmp_path / "one") is None
        (tmp_path / "one" / name).unlink()
        assert arrays_in(tmp_path / "one") is None

    @pytest.mark.parametrize(
        "change",
        [
            lambda h: h.update(generation=-1),
            lambda h: h.update(numbering={}),
            lambda h: h.update(schema=3),
            lambda h: h.update(index=None),
            lambda h: h.update(journal=None),
            lambda h: h["index"].update(size_bytes=1 << 62),
            lambda h: h["journal"].update(size_bytes=5),
            lambda h: h["journal"].update(xxh3=7),
            lambda h: h.update(journal_bytes=3),
            lambda h: h.update(num_changes="1"),
            lambda h: h["layouts"].pop(),
            lambda h: h["layouts"].append(h["layouts"][0]),
            lambda h: h.update(layouts=[[0, 3]]),
            lambda h: h.update(journal_layouts=[99]),
            lambda h: h.pop("layouts"),
        ],
    )
    def test_a_forged_header_is_passed_over(
        self, tmp_path: Path, change: Callable[[dict[str, Any]], Any]
    ) -> None:
        model = closed_store(tmp_path)
        path = tmp_path / ARRAYS_NAME
        block, header = path.read_bytes(), header_of(path.read_bytes())
        path.write_bytes(rewritten(block, header, {}))
        assert arrays_in(tmp_path) is not None
        change(header)
        path.write_bytes(rewritten(block, header, {}))
        assert arrays_in(tmp_path) is None
        assert state_of(replay(tmp_path).contents) == model.state

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("trajectory_id", -1),
            ("trajectory_id", 1),
            ("first_row_id", -5),
            ("first_row_id", (1 << 63) - 1),
            ("num_rows", 0),
            ("num_rows", -2),
            ("num_rows", 1 << 62),
            ("num_envs", 0),
            ("num_envs", 5),
            ("layout", 77),
            ("place", -2),
            ("text_start", -1),
            ("text_start", (1 << 63) - 1),
            ("text_start", -(1 << 63)),
            ("text_bytes", (1 << 32) - 1),
        ],
    )
    def test_forged_numbers_are_passed_over(self, tmp_path: Path, name: str, value: int) -> None:
        model = closed_store(tmp_path)
        path = tmp_path / ARRAYS_NAME
        block = path.read_bytes()

        def forge(column: Any) -> None:
            column[0] = value

        path.write_bytes(rewritten(block, header_of(block), {name: forge}))
        assert arrays_in(tmp_path) is None
        assert state_of(replay(tmp_path).contents) == model.state

    def test_a_text_that_says_something_else_is_named(self, tmp_path: Path) -> None:
        closed_store(tmp_path)
        path = tmp_path / ARRAYS_NAME
        block = path.read_bytes()

        def swap(column: Any) -> None:
            column[:2] = column[1::-1]

        swaps = {"text_start": swap, "text_bytes": swap}
        path.write_bytes(rewritten(block, header_of(block), swaps))
        records = replay(tmp_path).contents.records
        with pytest.raises(ValueError, match=r"the index entry of trajectory 0 is .* restore it"):
            records[0]


class TestCheckpoints:
    def test_one_is_read_by_them_if_they_fit_and_else_without(self, tmp_path: Path) -> None:
        saved = tmp_path / "saved"
        make_checkpoint(saved, [traj(k) for k in range(3)])
        with mock.patch.object(checkpoint_reading, "read_index", side_effect=AssertionError):
            assert self.loaded(saved) == [0, 1, 2]
        path = saved / ARRAYS_NAME
        block = path.read_bytes()
        for damaged in (block[:-1], block.replace(b"layouts", b"lagouts"), b""):
            path.write_bytes(damaged)
            assert self.loaded(saved) == [0, 1, 2]
        path.unlink()
        assert self.loaded(saved) == [0, 1, 2]

    def test_an_index_that_was_exchanged_with_them_is_refused(self, tmp_path: Path) -> None:
        make_checkpoint(tmp_path / "one", [traj(0), traj(1)])
        make_checkpoint(tmp_path / "two", [traj(0), traj(1), traj(2)])
        for name in (INDEX_NAME, ARRAYS_NAME):
            shutil.copy(tmp_path / "two" / name, tmp_path / "one" / name)
        with pytest.raises(ValueError, match="is another index, but must be the one"):
            self.loaded(tmp_path / "one")

    def loaded(self, saved: Path) -> list[int]:
        with TrajectoryReplayBuffer(sample_window_size=0, framework="numpy") as buffer:
            buffer.load_checkpoint(saved)
            check_rows(buffer.sample(50))
            return [n for n in range(9) if n < len(buffer) and buffer.trajectory(n) is not None]


class TestLayouts:
    def test_a_fold_forgets_those_that_nothing_has(self, tmp_path: Path) -> None:
        journal, model = Journal(tmp_path, None), Model()
        for steps in range(1, 6):
            record = make_record(steps, 100 * steps, steps, layout=make_layout(steps))
            journal.add(record)
            model.add(record)
        journal.remove([1, 3])
        model.remove([1, 3])
        fold(journal)
        whole = json.loads((tmp_path / INDEX_NAME).read_text())
        assert [layout is None for layout in whole["relive"]["layouts"]] == [True, False] * 2 + [
            False
        ]
        again = make_record(9, 900, 1, layout=make_layout(1))
        journal.add(again)
        model.add(again)
        assert state_of(replay(tmp_path).contents) == model.state
        fold(journal)
        assert state_of(replay(tmp_path).contents) == model.state == state_of(journal.contents)
        journal.close()
