# SPDX-License-Identifier: Apache-2.0
"""The pt format: rows where they lie, files of torch.save with nothing run."""

from __future__ import annotations

import io
import pickle
import struct
import subprocess
import sys
import warnings
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from programs import Marker
from relive import TrajectoryReplayBuffer, files
from relive.errors import (
    CorruptFileError,
    FormatVersionError,
    InvalidArgumentError,
    MissingPackageError,
    UnsafePickleError,
)
from relive.formats import FORMATS, FileFormat, PklFormat, PtFormat, create_format
from relive.formats.torchfile import read_torch_file
from relive.mapped_files import map_readonly
from relive.record import Layout, Record
from relive.snapshot import take_snapshot
from relive.testing import FileFormatConformance, addressed, differences, record_of
from relive.trajectory import Trajectory


class TestConformance(FileFormatConformance):
    def make_format(self) -> FileFormat:
        return PtFormat()


class TestSmallConformance(FileFormatConformance):
    """With a single mapping, so that each read evicts the one before."""

    def make_format(self) -> FileFormat:
        return PtFormat(most_mapped_files=1)


class TestRegistry:
    def test_formats_are_made_by_name(self) -> None:
        assert list(FORMATS) == ["pt", "pkl", "memmap"]
        assert isinstance(create_format("pt"), PtFormat)
        assert isinstance(create_format("pkl"), PklFormat)
        assert all(create_format(name).name == name for name in FORMATS)

    @pytest.mark.parametrize("name", ["pt", "pkl"])
    def test_without_pytorch_the_pip_line_is_named(
        self, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "torch", None)
        with pytest.raises(MissingPackageError, match=r"torch is not inst.*`pip install torch`"):
            TrajectoryReplayBuffer(
                auto_save=True, auto_save_path=tmp_path / "store", trajectory_format=name
            )

    @pytest.mark.parametrize("name", ["parquet", "", "PT"])
    def test_an_unknown_name_is_told_the_known_ones(self, name: str) -> None:
        with pytest.raises(InvalidArgumentError, match=f"{name!r}.*'pt', 'pkl'"):
            create_format(name)


def write(folder: Path, number: int, form: FileFormat | None = None) -> Record:
    snapshot = addressed(number)
    return (form or PtFormat()).write(folder, record_of(snapshot, number), snapshot, sync=False)


class TestFiles:
    def test_are_what_rlinf_writes_and_reads(self, tmp_path: Path) -> None:
        record = write(tmp_path, 2)
        tree = torch.load(PtFormat().path(tmp_path, record), weights_only=True)
        assert list(tree) == [
            "max_episode_length",
            "model_weights_id",
            "rewards",
            "dones",
            "prev_values",
            "versions",
            "forward_inputs",
            "curr_obs",
            "next_obs",
            "relive",
        ]
        assert tree["forward_inputs"] == {}
        assert tree["curr_obs"]["id"].tolist()[1] == [2_000_003, 2_000_004, 2_000_005]
        assert tree["next_obs"]["arm"]["id"].shape == (6, 3)
        assert tree["relive"]["uuid"] == record.uuid
        assert tree["relive"]["texts"]["curr_obs/task"]["table"] == ["a", "b", "c"]

    def test_hold_each_column_in_a_storage_of_its_own_size(self, tmp_path: Path) -> None:
        big = torch.arange(4 * 2 * 1000).reshape(4, 2, 1000)
        snapshot = take_snapshot(Trajectory(rewards=big[:, :, 3], actions=big[:, :, 5:7]))
        record = PtFormat().write(tmp_path, record_of(snapshot), snapshot, sync=False)
        tree = torch.load(PtFormat().path(tmp_path, record), weights_only=True)
        assert tree["rewards"].untyped_storage().nbytes() == 4 * 2 * 8
        assert tree["actions"].untyped_storage().nbytes() == 4 * 2 * 2 * 8

    def test_have_columns_where_the_record_says(self, tmp_path: Path) -> None:
        record = write(tmp_path, 2)
        content = PtFormat().path(tmp_path, record).read_bytes()
        assert record.location["size_bytes"] == len(content)
        for column in record.layout.columns:
            assert column.offset is not None
            start = record.location["data_start"] + column.offset
            stored = addressed(2).columns[column.name].values.tobytes()
            assert content[start : start + column.size_bytes] == stored
            assert start % 64 == 0

    def test_of_read_only_memory_are_written_without_a_warning(self, tmp_path: Path) -> None:
        first = write(tmp_path, 2)
        snapshot = PtFormat().read(tmp_path, first)
        assert not snapshot.columns["rewards"].values.flags.writeable
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for form in (PtFormat(), PklFormat()):
                again = form.write(tmp_path, record_of(snapshot, 9), snapshot, sync=False)
                assert differences(form.read(tmp_path, again), addressed(2)) == []

    def test_of_a_later_version_say_so(self, tmp_path: Path) -> None:
        record = write(tmp_path, 2)
        path = PtFormat().path(tmp_path, record)
        tree = torch.load(path, weights_only=True)
        tree["relive"]["version"] = 2
        torch.save(tree, path)
        with pytest.raises(FormatVersionError, match="version 2, but this release knows 1"):
            PtFormat().read_file(path)

    @pytest.mark.parametrize(
        "change",
        [
            {"relive": 5},
            {"relive": {"version": 1}},
            {"rewards": 5},
            {"rewards": {}},
            {"curr_obs": 5},
            {"curr_obs": {}},
            {"curr_obs": {"a/b": 1}},
            {"gaps": torch.zeros(6, 3)},
            {"gaps": torch.zeros(3, 6, dtype=torch.bool)},
            {"gaps": [True]},
            {"max_episode_length": 7},
            {"max_episode_length": "seven"},
            {"model_weights_id": "another"},
            {"advantages": torch.zeros(6, 3), "relive": {}},
        ],
        ids=str,
    )
    def test_whose_fields_do_not_fit_together_are_refused(
        self, tmp_path: Path, change: dict[str, Any]
    ) -> None:
        record = write(tmp_path, 2)
        path = PtFormat().path(tmp_path, record)
        torch.save(torch.load(path, weights_only=True) | change, path)
        resized = replace(record, location={"size_bytes": path.stat().st_size})
        with pytest.raises(CorruptFileError, match="trajectory 2 cannot be read"):
            PtFormat().read(tmp_path, resized)

    @pytest.mark.parametrize(
        "name",
        [
            "extract_interventions",
            "__class__",
            "relive/x",
            "gaps",
            "curr_obs",
            "curr_obs/id/x",
            "a/b",
            "rewards/x",
        ],
    )
    def test_whose_texts_would_overwrite_something_are_refused(
        self, tmp_path: Path, name: str
    ) -> None:
        record = write(tmp_path, 2)
        path = PtFormat().path(tmp_path, record)
        tree = torch.load(path, weights_only=True)
        tree["relive"]["texts"][name] = tree["relive"]["texts"].pop("curr_obs/task")
        tree["relive"]["columns"][tree["relive"]["columns"].index("curr_obs/task")] = name
        torch.save(tree, path)
        with pytest.raises(CorruptFileError):
            PtFormat().read_file(path)

    def test_of_deeply_nested_dicts_are_read_back(self, tmp_path: Path) -> None:
        tree: dict[str, Any] = {"x": torch.zeros(4, 2)}
        for depth in range(98):
            tree = {f"level {depth}": tree}
        snapshot = take_snapshot(Trajectory(curr_obs=tree))
        for form in (PtFormat(), PklFormat()):
            record = form.write(tmp_path, record_of(snapshot), snapshot, sync=False)
            assert differences(form.read(tmp_path, record), snapshot) == []

    def test_with_codes_outside_the_table_are_refused(self, tmp_path: Path) -> None:
        record = write(tmp_path, 2)
        path = PtFormat().path(tmp_path, record)
        tree = torch.load(path, weights_only=True)
        for code in (-1, 3):
            tree["relive"]["texts"]["curr_obs/task"]["codes"][0, 0] = code
            torch.save(tree, path)
            with pytest.raises(CorruptFileError, match="'curr_obs/task'"):
                PtFormat().read_file(path)


class TestRows:
    def test_are_views_of_the_file(self, tmp_path: Path) -> None:
        rows = PtFormat().rows(tmp_path, write(tmp_path, 2), ["rewards"])
        assert all(not column.flags.writeable for column in rows.values())
        assert all(not column.flags.owndata for column in rows.values())

    def test_are_mapped_once(self, tmp_path: Path) -> None:
        form = PtFormat()
        record = write(tmp_path, 2, form)
        assert form.rows(tmp_path, record, ["rewards"]) is form.rows(tmp_path, record, ["dones"])

    @pytest.mark.parametrize("place", [0, 1])
    def test_of_a_column_without_a_known_place_are_refused(
        self, tmp_path: Path, place: int
    ) -> None:
        record = write(tmp_path, 2)
        columns = list(record.layout.columns)
        columns[place] = replace(columns[place], offset=None)
        lying = replace(record, layout=Layout(tuple(columns)))
        with pytest.raises(CorruptFileError, match="does not say where column"):
            PtFormat().rows(tmp_path, lying, ["rewards"])

    def test_at_odd_places_are_aligned_all_the_same(self, tmp_path: Path) -> None:
        record = write(tmp_path, 2)
        path = PtFormat().path(tmp_path, record)
        path.write_bytes(b"!" + path.read_bytes())
        location = {name: number + 1 for name, number in record.location.items()}
        rows = PtFormat().rows(tmp_path, replace(record, location=location), ["rewards"])
        assert rows["curr_obs/id"].flags.aligned
        assert rows["curr_obs/id"].tolist() == [2_000_000 + row for row in range(18)]

    def test_of_a_record_that_lies_are_refused(self, tmp_path: Path) -> None:
        record = write(tmp_path, 2)
        last = replace(record.layout.columns[-1], offset=1 << 40)
        layout = Layout((*record.layout.columns[:-1], last))
        with pytest.raises(CorruptFileError, match="lies outside it"):
            PtFormat().rows(tmp_path, replace(record, layout=layout), ["rewards"])


def mapped_files(folder: Path) -> list[str]:
    lines = Path("/proc/self/maps").read_text("utf-8").splitlines()
    return [line for line in lines if str(folder) in line]


@pytest.mark.skipif(sys.platform != "linux", reason="counts mappings in /proc")
class TestMappings:
    def test_are_no_more_than_allowed(self, tmp_path: Path) -> None:
        form = PtFormat(most_mapped_files=10)
        records = [write(tmp_path, number, form) for number in range(30)]
        for _ in range(2):
            for record in records:
                assert form.rows(tmp_path, record, ["rewards"])["curr_obs/id"][0] == (
                    1_000_000 * record.trajectory_id
                )
        assert len(mapped_files(tmp_path)) == 10
        form.close()
        assert mapped_files(tmp_path) == []

    def test_used_last_are_kept(self, tmp_path: Path) -> None:
        form = PtFormat(most_mapped_files=2)
        first, second, third = (write(tmp_path, number, form) for number in range(3))
        kept = form.rows(tmp_path, first, ["rewards"])
        form.rows(tmp_path, second, ["rewards"])
        assert form.rows(tmp_path, first, ["rewards"]) is kept
        form.rows(tmp_path, third, ["rewards"])
        assert form.rows(tmp_path, first, ["rewards"]) is kept

    def test_of_removed_files_end(self, tmp_path: Path) -> None:
        form = PtFormat()
        records = [write(tmp_path, number, form) for number in range(3)]
        for record in records:
            form.rows(tmp_path, record, ["rewards"])
        form.remove(tmp_path, records[1])
        files.create_folder(tmp_path / "aside")
        form.move_to(tmp_path, records[2], tmp_path / "aside")
        assert len(mapped_files(tmp_path)) == 1

    def test_of_a_file_removed_while_it_is_mapped_are_not_kept(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        form = PtFormat()
        record = write(tmp_path, 3, form)

        def map_and_lose(path: Path) -> Any:
            mapped = map_readonly(path)
            form.remove(tmp_path, record)
            return mapped

        monkeypatch.setattr("relive.formats.pt.map_readonly", map_and_lose)
        rows = form.rows(tmp_path, record, ["rewards"])
        assert rows["curr_obs/id"][0] == 3_000_000
        del rows
        assert mapped_files(tmp_path) == []


class TestProcess:
    def test_reading_imports_no_torch(self, tmp_path: Path) -> None:
        record = write(tmp_path, 2)
        code = (
            "import pickle, sys\n"
            "from pathlib import Path\n"
            "from relive.formats import PtFormat\n"
            "record = pickle.loads(sys.stdin.buffer.read())\n"
            "assert PtFormat().rows(Path(sys.argv[1]), record, [])['curr_obs/id'][0] == 2_000_000\n"
            "assert PtFormat().read(Path(sys.argv[1]), record).num_rows == 18\n"
            "assert 'torch' not in sys.modules\n"
        )
        subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)], input=pickle.dumps(record), check=True
        )


def saved(value: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file, **options)
    return file.getvalue()


def rebuilt(content: bytes, **changed: bytes) -> bytes:
    """Return an archive with other bytes in some members, stored as torch.save does."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(file, "w") as new:
        for info in old.infolist():
            key = info.filename.rsplit("/", 1)[1].replace(".", "_")
            new.writestr(info.filename, changed.get(key, old.read(info)))
    return file.getvalue()


class TestHostileFiles:
    @pytest.mark.parametrize("form", [PtFormat(), PklFormat()], ids=["pt", "pkl"])
    @pytest.mark.parametrize("kind", ["archive", "legacy", "bare pickle", "nested"])
    def test_run_nothing(self, tmp_path: Path, form: FileFormat, kind: str) -> None:
        marker = tmp_path / "marker"
        tree = {"rewards": torch.zeros(4, 2), "curr_obs": Marker(marker)}
        content = {
            "archive": lambda: saved(tree),
            "legacy": lambda: saved(tree, _use_new_zipfile_serialization=False),
            "bare pickle": lambda: pickle.dumps(tree),
            "nested": lambda: saved({"rewards": saved(tree)}),
        }[kind]()
        record = write(tmp_path, 2, form)
        path = form.path(tmp_path, record)
        path.write_bytes(content)
        resized = replace(record, location={**record.location, "size_bytes": len(content)})
        for read in (
            lambda: form.read_file(path),
            lambda: form.read(tmp_path, resized),
            lambda: form.rows(tmp_path, resized, ["rewards"])["rewards"],
        ):
            if kind == "nested" and form.name == "pt":
                assert isinstance(take_nested(path), bytes)
                break
            with pytest.raises(CorruptFileError) as caught:
                read()
            assert caught.value.path == str(path)
        assert not marker.exists()

    def test_are_told_apart_from_damaged_ones(self, tmp_path: Path) -> None:
        path = tmp_path / "hostile.pt"
        for options in ({}, {"_use_new_zipfile_serialization": False}):
            path.write_bytes(saved({"a": Marker(tmp_path / "marker")}, **options))
            with pytest.raises(UnsafePickleError, match="mkdir"):
                PtFormat().read_file(path)


def take_nested(path: Path) -> Any:
    return PtFormat().read_file(path).rewards


class TestOtherFilesOfTorch:
    """What our own reader leaves to `torch.load(weights_only=True)`."""

    TREE: dict[str, Any] = {"rewards": torch.arange(8.0).reshape(4, 2), "curr_obs": {}}  # noqa: RUF012 - never changed

    def read(self, tmp_path: Path, content: bytes) -> Trajectory:
        path = tmp_path / "trajectory.pt"
        path.write_bytes(content)
        return PtFormat().read_file(path)

    def test_legacy_files_are_read(self, tmp_path: Path) -> None:
        content = saved(self.TREE, _use_new_zipfile_serialization=False)
        assert self.read(tmp_path, content).rewards.tolist() == self.TREE["rewards"].tolist()

    def test_parameters_are_read(self, tmp_path: Path) -> None:
        tree = self.TREE | {"actions": torch.nn.Parameter(torch.ones(4, 2))}
        read = self.read(tmp_path, saved(tree))
        assert read.actions.tolist() == torch.ones(4, 2).tolist()

    def test_files_of_a_big_endian_machine_are_read(self, tmp_path: Path) -> None:
        values = self.TREE["rewards"].numpy().astype(">f4").tobytes()
        content = rebuilt(saved(self.TREE), byteorder=b"big", **{"0": values})
        assert self.read(tmp_path, content).rewards.tolist() == self.TREE["rewards"].tolist()

    def test_files_without_checksums_are_read(self, tmp_path: Path) -> None:
        before = torch.serialization.get_crc32_options()
        torch.serialization.set_crc32_options(False)
        try:
            content = saved(self.TREE)
        finally:
            torch.serialization.set_crc32_options(before)
        assert self.read(tmp_path, content).rewards.tolist() == self.TREE["rewards"].tolist()

    def test_views_of_one_storage_are_read(self, tmp_path: Path) -> None:
        big = torch.arange(48.0).reshape(4, 2, 6)
        tree = {"rewards": big[:, :, 1], "actions": big[:, :, 2:5], "dones": big.bool()[:, :, 0]}
        read = self.read(tmp_path, saved(tree))
        for name, tensor in tree.items():
            assert getattr(read, name).tolist() == tensor.tolist()

    def test_bytes_and_texts_are_read(self, tmp_path: Path) -> None:
        tree = self.TREE | {"curr_obs": {"task": ["a", "b"], "raw": b"\xffab"}}
        read = self.read(tmp_path, saved(tree))
        assert read.curr_obs == {"task": ["a", "b"], "raw": b"\xffab"}

    @pytest.mark.parametrize("value", [None, 5, [], torch.zeros(3), "text"], ids=str)
    def test_what_is_no_trajectory_is_refused(self, tmp_path: Path, value: Any) -> None:
        with pytest.raises(CorruptFileError, match="fields of a trajectory"):
            self.read(tmp_path, saved(value))

    def test_a_tensor_of_no_use_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(CorruptFileError, match="sparse"):
            self.read(tmp_path, saved(self.TREE | {"actions": torch.eye(2).to_sparse()}))


class TestArchives:
    CONTENT = saved({"rewards": torch.arange(8.0).reshape(4, 2), "extras": {"n": 3}})

    def test_with_compressed_members_are_refused(self) -> None:
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("archive/data.pkl", bytes(100))
        with pytest.raises(CorruptFileError, match=r"data\.pkl' is compressed"):
            read(file.getvalue())

    def test_of_other_programs_are_refused(self) -> None:
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("readme.txt", b"hello")
        with pytest.raises(CorruptFileError, match=r"has no member 'data\.pkl'"):
            read(file.getvalue())

    def test_with_a_comment_are_read(self) -> None:
        file = io.BytesIO(self.CONTENT)
        with zipfile.ZipFile(file, "a") as archive:
            archive.comment = b"a comment " * 100
        assert read(file.getvalue())["extras"] == {"n": 3}

    def test_with_64_bit_entries_are_read(self) -> None:
        file = io.BytesIO()
        with (
            zipfile.ZipFile(io.BytesIO(self.CONTENT)) as old,
            zipfile.ZipFile(file, "w") as new,
        ):
            for info in old.infolist():
                content = old.read(info)
                with new.open(info.filename, "w", force_zip64=True) as member:
                    member.write(content)
        assert read(file.getvalue())["extras"] == {"n": 3}

    def test_with_a_damaged_column_are_noticed(self, tmp_path: Path) -> None:
        path = tmp_path / "trajectory.pt"
        old, new = struct.pack("<f", 5), struct.pack("<f", 9)
        assert self.CONTENT.count(old) == 1
        path.write_bytes(self.CONTENT.replace(old, new))
        with pytest.raises(CorruptFileError, match="checksum does not fit"):
            PtFormat().read_file(path)

    def test_that_name_a_storage_they_lack_are_refused(self) -> None:
        with zipfile.ZipFile(io.BytesIO(self.CONTENT)) as archive:
            pickled = archive.read("archive/data.pkl")
        forged = pickled.replace(b"X\x01\x00\x00\x000", b"X\x01\x00\x00\x007")
        with pytest.raises(CorruptFileError, match="no member 'data/7'"):
            read(rebuilt(self.CONTENT, data_pkl=forged))

    def test_whose_storage_is_shorter_than_it_says_are_refused(self) -> None:
        with pytest.raises(CorruptFileError, match="do not fit the 12 bytes"):
            read(rebuilt(self.CONTENT, **{"0": bytes(12)}))

    def test_that_contain_themselves_are_refused(self, tmp_path: Path) -> None:
        tree: dict[str, Any] = {"rewards": torch.zeros(4, 2)}
        tree["curr_obs"] = tree
        path = tmp_path / "trajectory.pt"
        path.write_bytes(saved(tree))
        with pytest.raises(CorruptFileError, match="contain each other"):
            PtFormat().read_file(path)

    def test_that_repeat_themselves_without_end_are_refused(self, tmp_path: Path) -> None:
        tree: dict[str, Any] = {"x": 1}
        for _ in range(60):
            tree = {"a": tree, "b": tree}
        path = tmp_path / "trajectory.pt"
        path.write_bytes(saved({"curr_obs": tree}))
        with pytest.raises(CorruptFileError, match="contain each other"):
            PtFormat().read_file(path)

    @given(
        position=st.integers(0, len(CONTENT) - 1),
        replacement=st.binary(max_size=4),
        length=st.integers(0, 4),
    )
    def test_that_were_changed_raise_only_our_errors(
        self, position: int, replacement: bytes, length: int
    ) -> None:
        changed = self.CONTENT[:position] + replacement + self.CONTENT[position + length :]
        try:
            read(changed)
        except CorruptFileError as error:
            assert str(error)  # noqa: PT017 - what was changed may be of no consequence


def read(content: bytes) -> Any:
    return read_torch_file(memoryview(content), check_crc=True).tree
