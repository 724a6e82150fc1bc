# SPDX-License-Identifier: Apache-2.0
"""The pkl format: pickles of tensors and plain containers, nothing else unless allowed."""

from __future__ import annotations

import datetime
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from programs import Marker
from relive.errors import CorruptFileError, UnsafePickleError
from relive.format_set import FormatSet
from relive.formats import FileFormat, PklFormat, PtFormat
from relive.testing import FileFormatConformance, addressed, record_of


class TestConformance(FileFormatConformance):
    def make_format(self) -> FileFormat:
        return PklFormat()


class TestUnrestrictedConformance(FileFormatConformance):
    def make_format(self) -> FileFormat:
        return PklFormat(allow_pickle=True)


class TestFiles:
    def test_are_read_by_a_plain_pickle_load(self, tmp_path: Path) -> None:
        snapshot = addressed(2)
        record = PklFormat().write(tmp_path, record_of(snapshot, 2), snapshot, sync=False)
        content = PklFormat().path(tmp_path, record).read_bytes()
        assert content[:2] == b"\x80\x04"
        tree = pickle.loads(content)
        assert tree["curr_obs"]["id"].tolist()[1] == [2_000_003, 2_000_004, 2_000_005]
        assert isinstance(tree["dones"], torch.Tensor)
        assert tree["forward_inputs"] == {}

    def test_have_no_offsets(self, tmp_path: Path) -> None:
        snapshot = addressed(2)
        record = PklFormat().write(tmp_path, record_of(snapshot, 2), snapshot, sync=False)
        assert all(column.offset is None for column in record.layout.columns)

    def test_rows_need_the_whole_file_to_be_sound(self, tmp_path: Path) -> None:
        snapshot = addressed(2)
        record = PklFormat().write(tmp_path, record_of(snapshot, 2), snapshot, sync=False)
        path = PklFormat().path(tmp_path, record)
        old, new = struct.pack("<2q", 2_000_007, 2_000_008), struct.pack("<2q", 2_000_007, 5)
        path.write_bytes(path.read_bytes().replace(old, new))
        with pytest.raises(CorruptFileError, match="'curr_obs/id' is damaged"):
            PklFormat().rows(tmp_path, record, ["rewards"])


class TestAllowPickle:
    TREE = {"rewards": torch.zeros(4, 2), "extras": {"when": datetime.date(2026, 1, 2)}}  # noqa: RUF012 - never changed

    def test_other_objects_need_it(self, tmp_path: Path) -> None:
        path = tmp_path / "trajectory.pkl"
        path.write_bytes(pickle.dumps(self.TREE))
        for form in (PklFormat(), FormatSet("pkl").with_files("pkl")):
            with pytest.raises(UnsafePickleError, match=r"datetime\.date, .*allow_pickle=True$"):
                form.read_file(path)
        allowed = FormatSet("pkl", allow_pickle=True).with_files("pkl").read_file(path)
        assert allowed.extras == self.TREE["extras"]
        assert allowed.rewards.tolist() == torch.zeros(4, 2).tolist()

    def test_arrays_of_numpy_are_read_with_it(self, tmp_path: Path) -> None:
        path = tmp_path / "trajectory.pkl"
        path.write_bytes(pickle.dumps({"rewards": np.ones((4, 2)), "curr_obs": {"x": np.ones(2)}}))
        read = PklFormat(allow_pickle=True).read_file(path)
        assert read.rewards.tolist() == np.ones((4, 2)).tolist()

    def test_it_is_not_for_pt(self, tmp_path: Path) -> None:
        marker = tmp_path / "marker"
        path = tmp_path / "trajectory.pt"
        torch.save({"rewards": Marker(marker)}, path)
        with pytest.raises(UnsafePickleError):
            FormatSet("pt", allow_pickle=True).with_files("pt").read_file(path)
        assert not marker.exists()

    def test_without_it_pt_says_how_to_save(self, tmp_path: Path) -> None:
        path = tmp_path / "trajectory.pt"
        torch.save(self.TREE, path)
        told = r"datetime\.date, .*; save it again as a dict of tensors$"
        with pytest.raises(UnsafePickleError, match=told):
            PtFormat().read_file(path)

    def test_whatever_the_file_raises_is_told(self, tmp_path: Path) -> None:
        path = tmp_path / "trajectory.pkl"
        path.write_bytes(pickle.dumps({"rewards": Marker(tmp_path)}))  # a folder that exists
        with pytest.raises(CorruptFileError, match="FileExistsError") as caught:
            PklFormat(allow_pickle=True).read_file(path)
        assert caught.value.path == str(path)
