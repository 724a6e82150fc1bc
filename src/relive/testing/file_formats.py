# SPDX-License-Identifier: Apache-2.0
"""The tests that every format with one file for each trajectory passes, beside those of all."""

from __future__ import annotations

import errno
import os
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given

from relive import files
from relive.errors import CorruptFileError, MissingFileError
from relive.formats.file_format import FileFormat
from relive.record import Record
from relive.snapshot import Snapshot, take_snapshot
from relive.testing.comparing import addressed, differences, record_of
from relive.testing.formats import (
    WEIGHTS_IDS,
    FormatConformance,
    any_snapshot,
    write_addressed,
)
from relive.testing.strategies import snapshots
from relive.trajectory import Trajectory

__all__ = ["FileFormatConformance"]


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
class FileFormatConformance(FormatConformance):
    """Inherit and implement `make_format`; pytest finds the tests."""

    @abstractmethod
    def make_format(self) -> FileFormat:
        """Return a new format object."""

    @pytest.fixture
    def form(self) -> FileFormat:
        """A format object of the test's own."""
        return self.make_format()

    @given(snapshot=snapshots())
    @any_snapshot
    def test_any_file_can_be_read_without_its_record(
        self, tmp_path_factory: pytest.TempPathFactory, snapshot: Snapshot
    ) -> None:
        folder, form = tmp_path_factory.mktemp("store"), self.make_format()
        record = form.write(folder, record_of(snapshot), snapshot, sync=False)
        again = take_snapshot(form.read_file(form.path(folder, record)))
        assert differences(again, snapshot) == []

    @pytest.mark.parametrize("weights_id", WEIGHTS_IDS)
    def test_any_weights_id_keeps_the_file_in_the_folder(
        self, form: FileFormat, tmp_path: Path, weights_id: str
    ) -> None:
        folder = tmp_path / "deep" / "store"
        files.create_folder(folder)
        snapshot = replace(addressed(2), model_weights_id=weights_id)
        record = form.write(folder, record_of(snapshot, 2), snapshot, sync=False)
        assert form.read(folder, record).model_weights_id == weights_id
        found = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert found == [form.path(folder, record)]
        assert found[0].parent == folder

    def test_images_take_no_more_than_their_bytes(self, form: FileFormat, tmp_path: Path) -> None:
        images = np.arange(8 * 2 * 3 * 64 * 64, dtype=np.uint8).reshape(8, 2, 3, 64, 64)
        snapshot = take_snapshot(Trajectory(curr_obs={"image": images}))
        record = form.write(tmp_path, record_of(snapshot), snapshot, sync=False)
        assert form.rows(tmp_path, record, ["curr_obs/image"])["curr_obs/image"].dtype == np.uint8
        assert images.nbytes <= form.path(tmp_path, record).stat().st_size < 1.05 * images.nbytes

    def test_a_refused_write_leaves_nothing_behind(
        self, form: FileFormat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: object) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", refuse)
            with pytest.raises(OSError, match="No space left"):
                write_addressed(form, tmp_path, 1)
        assert list(tmp_path.iterdir()) == []
        assert (
            differences(form.read(tmp_path, write_addressed(form, tmp_path, 1)), addressed(1)) == []
        )

    def test_a_full_disk_is_told_as_the_system_tells_it(
        self, form: FileFormat, tmp_path: Path
    ) -> None:
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
        self, form: FileFormat, tmp_path: Path
    ) -> None:
        record = write_addressed(form, tmp_path, 17)
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

    def test_a_file_cut_anywhere_is_named(self, form: FileFormat, tmp_path: Path) -> None:
        record = write_addressed(form, tmp_path, 17)
        path = form.path(tmp_path, record)
        whole = path.read_bytes()
        for length in [0, 1, 3, 20, 100, *range(200, len(whole), 97), len(whole) - 1]:
            path.write_bytes(whole[:length])
            for read in _ways_to_read(self.make_format(), tmp_path, record):
                with pytest.raises(CorruptFileError) as caught:
                    read()
                assert caught.value.path == str(path)
                assert str(path) in str(caught.value)

    def test_a_changed_byte_of_a_column_is_named(self, form: FileFormat, tmp_path: Path) -> None:
        record = write_addressed(form, tmp_path, 4)
        path = form.path(tmp_path, record)
        content = path.read_bytes()
        address = np.int64(4_000_000 + 7).tobytes()
        assert content.count(address) == 1
        path.write_bytes(content.replace(address, np.int64(4_000_000 + 8).tobytes()))
        with pytest.raises(CorruptFileError, match="'curr_obs/id' is damaged") as caught:
            form.read(tmp_path, record)
        assert caught.value.path == str(path)

    def test_another_trajectory_under_the_name_is_noticed(
        self, form: FileFormat, tmp_path: Path
    ) -> None:
        first, second = write_addressed(form, tmp_path, 4), write_addressed(form, tmp_path, 5)
        files.copy(form.path(tmp_path, second), form.path(tmp_path, first), sync=False)
        for read in (form.read, lambda folder, record: form.rows(folder, record, ["rewards"])):
            with pytest.raises(CorruptFileError, match="trajectory 4 "):
                read(tmp_path, first)

    def test_something_else_under_the_name_is_noticed(
        self, form: FileFormat, tmp_path: Path
    ) -> None:
        record = write_addressed(form, tmp_path, 4)
        path = form.path(tmp_path, record)
        path.write_bytes(os.urandom(record.location["size_bytes"]))
        read, rows, _copy_to, read_file = _ways_to_read(form, tmp_path, record)
        for way in (read, rows, read_file):
            with pytest.raises(CorruptFileError):
                way()

    def test_a_copy_is_whole_and_its_own(self, form: FileFormat, tmp_path: Path) -> None:
        store, checkpoint = tmp_path / "store", tmp_path / "checkpoint"
        files.create_folder(store)
        files.create_folder(checkpoint)
        record = write_addressed(form, store, 3)
        form.copier(store, checkpoint, sync=True)(record)
        form.path(store, record).write_bytes(b"rewritten in place")
        assert differences(form.read(checkpoint, record), addressed(3)) == []

    def test_a_moved_trajectory_is_read_where_it_is(self, form: FileFormat, tmp_path: Path) -> None:
        aside = tmp_path / "aside"
        files.create_folder(aside)
        record = write_addressed(form, tmp_path, 3)
        form.rows(tmp_path, record, ["rewards"])
        form.move_to(tmp_path, record, aside)
        assert differences(form.read(aside, record), addressed(3)) == []
        with pytest.raises(MissingFileError):
            form.rows(tmp_path, record, ["rewards"])

    def test_a_removed_trajectory_is_gone_but_rows_held_stay(
        self, form: FileFormat, tmp_path: Path
    ) -> None:
        record = write_addressed(form, tmp_path, 3)
        held = form.rows(tmp_path, record, ["curr_obs/id"])
        form.remove(tmp_path, record)
        form.remove(tmp_path, record)
        assert list(tmp_path.iterdir()) == []
        with pytest.raises(MissingFileError):
            form.rows(tmp_path, record, ["curr_obs/id"])
        assert held["curr_obs/id"].tolist() == [3_000_000 + row for row in range(18)]

    def test_what_is_written_again_is_read_anew(self, form: FileFormat, tmp_path: Path) -> None:
        first = write_addressed(form, tmp_path, 3)
        assert form.rows(tmp_path, first, ["rewards"])["rewards"].max() == 6
        changed = addressed(3, num_envs=2)
        second = form.write(tmp_path, record_of(changed, 3), changed, sync=False)
        assert len(form.rows(tmp_path, second, ["rewards"])["rewards"]) == 12


def _ways_to_read(form: FileFormat, folder: Path, record: Record) -> list[Callable[[], object]]:
    """Return read, rows, copier and read_file, to be called without arguments."""
    target = folder / "copies"
    files.create_folder(target)
    return [
        lambda: form.read(folder, record),
        lambda: form.rows(folder, record, ["rewards"]),
        lambda: form.copier(folder, target, sync=False)(record),
        lambda: form.read_file(form.path(folder, record)),
    ]
