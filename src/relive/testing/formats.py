# SPDX-License-Identifier: Apache-2.0
"""The tests that every storage format passes.

A format's own test file inherits them::

    class TestMyFormat(FormatConformance):
        def make_format(self) -> Format:
            return MyFormat()
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
from abc import abstractmethod
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from relive import files
from relive.dtypes import storage_dtype
from relive.errors import CorruptFileError
from relive.formats.base import Format
from relive.gather import RowBatch, Wanted, row_source
from relive.output_pool import OutputPool
from relive.record import Record
from relive.snapshot import Snapshot
from relive.testing.comparing import addressed, differences, record_of
from relive.testing.strategies import snapshots

__all__ = ["WEIGHTS_IDS", "FormatConformance", "any_snapshot", "write_addressed"]

WEIGHTS_IDS = ("", "a/b", "../up", "..", "x" * 300, "nul\0", "\ud800", "日本" * 60, "a b%2F")

any_snapshot = settings(
    max_examples=40,
    deadline=None,
    # each format runs the same test in a class of its own
    suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow],
)


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
class FormatConformance:
    """Inherit and implement `make_format`; pytest finds the tests."""

    @abstractmethod
    def make_format(self) -> Format:
        """Return a new format object."""

    @pytest.fixture
    def form(self) -> Format:
        """A format object of the test's own."""
        return self.make_format()

    @given(snapshot=snapshots())
    @any_snapshot
    def test_any_trajectory_is_read_back_bit_for_bit(
        self, tmp_path_factory: pytest.TempPathFactory, snapshot: Snapshot
    ) -> None:
        folder, form = tmp_path_factory.mktemp("store"), self.make_format()
        record = form.write(folder, record_of(snapshot, 3), snapshot, sync=False)
        assert differences(form.read(folder, record), snapshot) == []
        rows, expected = form.rows(folder, record, snapshot.columns), row_source(snapshot)
        assert rows.keys() == expected.keys()
        for name, column in expected.items():
            assert rows[name].dtype == column.dtype
            assert rows[name].shape == column.shape
            assert rows[name].tobytes() == column.tobytes()

    def test_the_record_is_completed_and_else_unchanged(self, form: Format, tmp_path: Path) -> None:
        snapshot = addressed(1)
        before = record_of(snapshot, 1, first_row_id=1 << 40)
        after = form.write(tmp_path, before, snapshot, sync=True)
        assert after.format == form.name
        assert [(c.name, c.dtype, c.shape) for c in after.layout.columns] == [
            (name, column.dtype, column.values.shape) for name, column in snapshot.columns.items()
        ]
        assert replace(after, format="", layout=before.layout, location={}) == before

    def test_equal_trajectories_share_one_layout(self, form: Format, tmp_path: Path) -> None:
        layouts = [
            form.write(tmp_path, record_of(snapshot, number), snapshot, sync=False).layout
            for number, snapshot in [(5, addressed(5)), (70_000, addressed(70_000))]
        ]
        assert layouts[0] is layouts[1]

    def test_gathered_rows_prove_where_they_come_from(self, form: Format, tmp_path: Path) -> None:
        records = [write_addressed(form, tmp_path, number) for number in range(4)]
        drawn = np.random.default_rng(8).integers(0, 18, (4, 5))
        positions = np.random.default_rng(9).permutation(20).reshape(4, 5)
        wanted = [
            Wanted(record=record, rows=drawn[i], positions=positions[i], start=5 * i)
            for i, record in enumerate(records)
        ]
        out = _gather(
            form, tmp_path, wanted, ["curr_obs/id", "next_obs/arm/id", "versions", "dones"]
        )
        for i in range(4):
            for row, position in zip(drawn[i].tolist(), positions[i].tolist(), strict=True):
                assert out["curr_obs/id"][position] == 1_000_000 * i + row
                assert out["next_obs/arm/id"][position] == -1_000_000 * i - row
                assert out["versions"][position].tolist() == [row, row]
                assert out["dones"][position] == (row // 3 % 3 == 2)  # T = 6, B = 3, E = 2

    def test_a_column_that_a_trajectory_lacks_is_left_out(
        self, form: Format, tmp_path: Path
    ) -> None:
        record = write_addressed(form, tmp_path, 1)
        assert "intervene_flags" not in form.rows(tmp_path, record, ["intervene_flags", "rewards"])

    def test_closing_twice_is_fine(self, form: Format, tmp_path: Path) -> None:
        form.rows(tmp_path, write_addressed(form, tmp_path, 3), ["rewards"])
        form.close()
        form.close()

    def test_a_format_can_be_sent_to_another_process(self, form: Format, tmp_path: Path) -> None:
        record = write_addressed(form, tmp_path, 3)
        form.rows(tmp_path, record, ["rewards"])
        sent = pickle.loads(pickle.dumps(form))
        assert differences(sent.read(tmp_path, record), addressed(3)) == []

    def test_threads_read_while_one_writes(self, form: Format, tmp_path: Path) -> None:
        records = [write_addressed(form, tmp_path, number) for number in range(3)]
        is_done, failures = threading.Event(), list[BaseException]()

        def read() -> None:
            try:
                while not is_done.is_set():
                    for number, record in enumerate(records[-6:-3], len(records[:-6])):
                        ids = form.rows(tmp_path, record, ["curr_obs/id"])["curr_obs/id"]
                        assert ids[5] == 1_000_000 * record.trajectory_id + 5, number
            except BaseException as error:  # told in the test's own thread
                failures.append(error)

        threads = [threading.Thread(target=read) for _ in range(3)]
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        try:
            for thread in threads:
                thread.start()
            for number in range(3, 40):
                records += [write_addressed(form, tmp_path, number)]
        finally:
            is_done.set()
            for thread in threads:
                thread.join()
            sys.setswitchinterval(interval)
        assert failures == []

    @pytest.mark.parametrize("weights_id", WEIGHTS_IDS)
    def test_any_weights_id_comes_back(self, form: Format, tmp_path: Path, weights_id: str) -> None:
        folder = tmp_path / "deep" / "store"
        files.create_folder(folder)
        snapshot = replace(addressed(2), model_weights_id=weights_id)
        record = form.write(folder, record_of(snapshot, 2), snapshot, sync=False)
        assert form.read(folder, record).model_weights_id == weights_id
        assert folder in form.path(folder, record).parents
        for path in tmp_path.rglob("*"):
            assert path == folder or folder in path.parents or path in folder.parents

    def test_a_copy_is_whole_and_stays(self, form: Format, tmp_path: Path) -> None:
        store, checkpoint = tmp_path / "store", tmp_path / "checkpoint"
        files.create_folder(store)
        files.create_folder(checkpoint)
        records = [write_addressed(form, store, number) for number in range(4)]
        copy = form.copier(store, checkpoint, sync=True)
        copied = [copy(record) for record in records[1:]]
        for record in records:
            form.remove(store, record)
        for number, record in enumerate(copied, 1):
            assert form.is_whole(checkpoint, record)
            assert differences(form.read(checkpoint, record), addressed(number)) == []

    def test_what_is_written_after_a_copy_is_not_in_it(self, form: Format, tmp_path: Path) -> None:
        store, checkpoint = tmp_path / "store", tmp_path / "checkpoint"
        files.create_folder(store)
        files.create_folder(checkpoint)
        form.copier(store, checkpoint, sync=False)(write_addressed(form, store, 3))
        before = {path: path.read_bytes() for path in checkpoint.rglob("*") if path.is_file()}
        for number in range(4, 9):
            write_addressed(form, store, number)
        assert before == {p: p.read_bytes() for p in checkpoint.rglob("*") if p.is_file()}

    def test_copies_get_names_that_are_free_where_they_go(
        self, form: Format, tmp_path: Path
    ) -> None:
        store, other, incoming = (tmp_path / name for name in ("store", "other", "store/incoming"))
        for folder in (store, other, incoming):
            files.create_folder(folder)
        mine = write_addressed(form, store, 1)
        theirs = self.make_format()
        record = write_addressed(theirs, other, 2)
        form.prepare_incoming(incoming, store)
        brought = form.copier(other, incoming, sync=False)(record)
        form.move_to(incoming, brought, store)
        assert differences(form.read(store, mine), addressed(1)) == []
        assert differences(form.read(store, brought), addressed(2)) == []

    def test_a_moved_trajectory_leaves_the_others(self, form: Format, tmp_path: Path) -> None:
        aside = tmp_path / "aside"
        files.create_folder(aside)
        records = [write_addressed(form, tmp_path, number) for number in range(3)]
        form.move_to(tmp_path, records[1], aside)
        assert differences(form.read(aside, records[1]), addressed(1)) == []
        for number in (0, 2):
            assert differences(form.read(tmp_path, records[number]), addressed(number)) == []

    def test_a_removed_trajectory_leaves_the_others(self, form: Format, tmp_path: Path) -> None:
        records = [write_addressed(form, tmp_path, number) for number in range(3)]
        form.remove(tmp_path, records[1])
        for number in (0, 2):
            assert differences(form.read(tmp_path, records[number]), addressed(number)) == []

    def test_what_is_gone_can_be_synced(self, form: Format, tmp_path: Path) -> None:
        records = [write_addressed(form, tmp_path, number) for number in range(3)]
        form.remove(tmp_path, records[1])
        form.sync(tmp_path, records)

    def test_a_trajectory_that_is_not_whole_is_told(self, form: Format, tmp_path: Path) -> None:
        record = write_addressed(form, tmp_path, 1)
        assert form.is_whole(tmp_path, record)
        for path in tmp_path.rglob("*"):
            if path.is_file():
                os.truncate(path, path.stat().st_size - 1)
        again = self.make_format()
        assert not again.is_whole(tmp_path, record)
        with pytest.raises(CorruptFileError, match="trajectory 1"):
            again.read(tmp_path, record)


def write_addressed(form: Format, folder: Path, number: int) -> Record:
    """Write the trajectory of this number; return its record."""
    snapshot = addressed(number)
    return form.write(folder, record_of(snapshot, number), snapshot, sync=False)


def _gather(
    form: Format, folder: Path, wanted: list[Wanted], names: list[str]
) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]]:
    layout = wanted[0].record.layout
    empties = {
        name: (
            layout[name].row_shape,
            storage_dtype(layout[name].dtype),
        )
        for name in names
    }
    num_rows = sum(len(one.rows) for one in wanted)
    batch = RowBatch(OutputPool().take(num_rows, empties), num_rows)
    form.gather(folder, wanted, batch)
    return batch.finish()
