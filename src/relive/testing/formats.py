# SPDX-License-Identifier: Apache-2.0
"""The tests that every storage format passes.

A format's own test file inherits them::

    class TestMyFormat(FormatConformance):
        def make_format(self) -> Format:
            return MyFormat()
"""

from __future__ import annotations

import errno
import os
import pickle
import sys
import threading
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from relive import files
from relive.dtypes import storage_dtype
from relive.errors import CorruptFileError, MissingFileError
from relive.formats.base import Format, row_source
from relive.gather import RowBatch, Wanted
from relive.record import Record
from relive.snapshot import Snapshot, take_snapshot
from relive.testing.comparing import addressed, differences, record_of
from relive.testing.strategies import snapshots
from relive.trajectory import Trajectory

__all__ = ["FormatConformance"]

_WEIGHTS_IDS = ("", "a/b", "../up", "..", "x" * 300, "nul\0", "\ud800", "日本" * 60, "a b%2F")

_any_snapshot = settings(
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

    # ---------------------------------------------------------------- what was written

    @given(snapshot=snapshots())
    @_any_snapshot
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

    @given(snapshot=snapshots())
    @_any_snapshot
    def test_any_file_can_be_read_without_its_record(
        self, tmp_path_factory: pytest.TempPathFactory, snapshot: Snapshot
    ) -> None:
        folder, form = tmp_path_factory.mktemp("store"), self.make_format()
        record = form.write(folder, record_of(snapshot), snapshot, sync=False)
        again = take_snapshot(form.read_file(form.path(folder, record)))
        assert differences(again, snapshot) == []

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

    @pytest.mark.parametrize("weights_id", _WEIGHTS_IDS)
    def test_any_weights_id_keeps_the_file_in_the_folder(
        self, form: Format, tmp_path: Path, weights_id: str
    ) -> None:
        folder = tmp_path / "deep" / "store"
        files.create_folder(folder)
        snapshot = replace(addressed(2), model_weights_id=weights_id)
        record = form.write(folder, record_of(snapshot, 2), snapshot, sync=False)
        assert form.read(folder, record).model_weights_id == weights_id
        found = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert found == [form.path(folder, record)]
        assert found[0].parent == folder

    def test_images_take_no_more_than_their_bytes(self, form: Format, tmp_path: Path) -> None:
        images = np.arange(8 * 2 * 3 * 64 * 64, dtype=np.uint8).reshape(8, 2, 3, 64, 64)
        snapshot = take_snapshot(Trajectory(curr_obs={"image": images}))
        record = form.write(tmp_path, record_of(snapshot), snapshot, sync=False)
        assert form.rows(tmp_path, record, ["curr_obs/image"])["curr_obs/image"].dtype == np.uint8
        assert images.nbytes <= form.path(tmp_path, record).stat().st_size < 1.05 * images.nbytes

    # ---------------------------------------------------------------- gather

    def test_gathered_rows_prove_where_they_come_from(self, form: Format, tmp_path: Path) -> None:
        records = [_write(form, tmp_path, number) for number in range(4)]
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
        record = _write(form, tmp_path, 1)
        assert "intervene_flags" not in form.rows(tmp_path, record, ["intervene_flags", "rewards"])

    # ---------------------------------------------------------------- failures

    def test_a_refused_write_leaves_nothing_behind(
        self, form: Format, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: object) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", refuse)
            with pytest.raises(OSError, match="No space left"):
                _write(form, tmp_path, 1)
        assert list(tmp_path.iterdir()) == []
        assert differences(form.read(tmp_path, _write(form, tmp_path, 1)), addressed(1)) == []

    def test_a_full_disk_is_told_as_the_system_tells_it(self, form: Format, tmp_path: Path) -> None:
        resource = pytest.importorskip("resource")
        snapshot = take_snapshot(Trajectory(rewards=np.zeros((4, 2, 40_000))))
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
        try:
            with pytest.raises(OSError, match="too large") as caught:
                form.write(tmp_path, record_of(snapshot), snapshot, sync=False)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert caught.value.errno == errno.EFBIG
        assert list(tmp_path.iterdir()) == []

    def test_a_missing_file_is_named_with_its_trajectory(
        self, form: Format, tmp_path: Path
    ) -> None:
        record = _write(form, tmp_path, 17)
        path = form.path(tmp_path, record)
        path.unlink()
        for read in _ways_to_read(form, tmp_path, record):
            with pytest.raises(MissingFileError) as caught:
                read()
            assert caught.value.path == str(path)
            assert str(path) in str(caught.value)
        for read in _ways_to_read(form, tmp_path, record)[:3]:
            with pytest.raises(MissingFileError, match="trajectory 17 "):
                read()

    def test_a_file_cut_anywhere_is_named(self, form: Format, tmp_path: Path) -> None:
        record = _write(form, tmp_path, 17)
        path = form.path(tmp_path, record)
        whole = path.read_bytes()
        for length in [0, 1, 3, 20, 100, *range(200, len(whole), 97), len(whole) - 1]:
            path.write_bytes(whole[:length])
            for read in _ways_to_read(self.make_format(), tmp_path, record):
                with pytest.raises(CorruptFileError) as caught:
                    read()
                assert caught.value.path == str(path)
                assert str(path) in str(caught.value)

    def test_a_changed_byte_of_a_column_is_named(self, form: Format, tmp_path: Path) -> None:
        record = _write(form, tmp_path, 4)
        path = form.path(tmp_path, record)
        content = path.read_bytes()
        address = np.int64(4_000_000 + 7).tobytes()
        assert content.count(address) == 1
        path.write_bytes(content.replace(address, np.int64(4_000_000 + 8).tobytes()))
        with pytest.raises(CorruptFileError, match="'curr_obs/id' is damaged") as caught:
            form.read(tmp_path, record)
        assert caught.value.path == str(path)

    def test_another_trajectory_under_the_name_is_noticed(
        self, form: Format, tmp_path: Path
    ) -> None:
        first, second = _write(form, tmp_path, 4), _write(form, tmp_path, 5)
        files.copy(form.path(tmp_path, second), form.path(tmp_path, first), sync=False)
        for read in (form.read, lambda folder, record: form.rows(folder, record, ["rewards"])):
            with pytest.raises(CorruptFileError, match="trajectory 4 "):
                read(tmp_path, first)

    def test_something_else_under_the_name_is_noticed(self, form: Format, tmp_path: Path) -> None:
        record = _write(form, tmp_path, 4)
        path = form.path(tmp_path, record)
        path.write_bytes(os.urandom(record.location["size_bytes"]))
        read, rows, _copy_to, read_file = _ways_to_read(form, tmp_path, record)
        for way in (read, rows, read_file):
            with pytest.raises(CorruptFileError):
                way()

    # ---------------------------------------------------------------- life of a file

    def test_a_copy_is_whole_and_its_own(self, form: Format, tmp_path: Path) -> None:
        store, checkpoint = tmp_path / "store", tmp_path / "checkpoint"
        files.create_folder(store)
        files.create_folder(checkpoint)
        record = _write(form, store, 3)
        form.copy_to(store, record, checkpoint, sync=True)
        form.path(store, record).write_bytes(b"rewritten in place")
        assert differences(form.read(checkpoint, record), addressed(3)) == []

    def test_a_moved_trajectory_is_read_where_it_is(self, form: Format, tmp_path: Path) -> None:
        aside = tmp_path / "aside"
        files.create_folder(aside)
        record = _write(form, tmp_path, 3)
        form.rows(tmp_path, record, ["rewards"])
        form.move_to(tmp_path, record, aside)
        assert differences(form.read(aside, record), addressed(3)) == []
        with pytest.raises(MissingFileError):
            form.rows(tmp_path, record, ["rewards"])

    def test_a_removed_trajectory_is_gone_but_rows_held_stay(
        self, form: Format, tmp_path: Path
    ) -> None:
        record = _write(form, tmp_path, 3)
        held = form.rows(tmp_path, record, ["curr_obs/id"])
        form.remove(tmp_path, record)
        form.remove(tmp_path, record)
        assert list(tmp_path.iterdir()) == []
        with pytest.raises(MissingFileError):
            form.rows(tmp_path, record, ["curr_obs/id"])
        assert held["curr_obs/id"].tolist() == [3_000_000 + row for row in range(18)]

    def test_what_is_written_again_is_read_anew(self, form: Format, tmp_path: Path) -> None:
        first = _write(form, tmp_path, 3)
        assert form.rows(tmp_path, first, ["rewards"])["rewards"].max() == 6
        changed = addressed(3, num_envs=2)
        second = form.write(tmp_path, record_of(changed, 3), changed, sync=False)
        assert len(form.rows(tmp_path, second, ["rewards"])["rewards"]) == 12

    def test_closing_twice_is_fine(self, form: Format, tmp_path: Path) -> None:
        form.rows(tmp_path, _write(form, tmp_path, 3), ["rewards"])
        form.close()
        form.close()

    def test_a_format_can_be_sent_to_another_process(self, form: Format, tmp_path: Path) -> None:
        record = _write(form, tmp_path, 3)
        form.rows(tmp_path, record, ["rewards"])
        sent = pickle.loads(pickle.dumps(form))
        assert differences(sent.read(tmp_path, record), addressed(3)) == []

    def test_threads_read_while_one_writes(self, form: Format, tmp_path: Path) -> None:
        records = [_write(form, tmp_path, number) for number in range(3)]
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
                records += [_write(form, tmp_path, number)]
        finally:
            is_done.set()
            for thread in threads:
                thread.join()
            sys.setswitchinterval(interval)
        assert failures == []


def _write(form: Format, folder: Path, number: int) -> Record:
    snapshot = addressed(number)
    return form.write(folder, record_of(snapshot, number), snapshot, sync=False)


def _ways_to_read(form: Format, folder: Path, record: Record) -> list[Callable[[], object]]:
    """Return read, rows, copy_to and read_file, to be called without arguments."""
    target = folder / "copies"
    files.create_folder(target)
    return [
        lambda: form.read(folder, record),
        lambda: form.rows(folder, record, ["rewards"]),
        lambda: form.copy_to(folder, record, target, sync=False),
        lambda: form.read_file(form.path(folder, record)),
    ]


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
    batch = RowBatch(sum(len(one.rows) for one in wanted), empties)
    form.gather(folder, wanted, batch)
    return batch.finish()
