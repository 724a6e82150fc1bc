# SPDX-License-Identifier: Apache-2.0
"""`relive.index_file`: `trajectory_index.json` and `metadata.json`, ours and RLinf's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import xxhash

from records import make_layout, make_record
from relive.errors import CorruptFileError, FormatVersionError, MissingFileError, StorageError
from relive.index_file import (
    IndexContents,
    read_index,
    read_metadata,
    write_metadata,
)
from relive.index_writer import IndexWriter
from relive.numbering import Numbering
from relive.record_table import RecordTable
from relive.spec import ColumnSpec, Schema

METADATA = {
    "trajectory_format": "pt",
    "size": 2,
    "total_samples": 8,
    "trajectory_counter": 2,
    "seed": 7,
}


def some_contents(num: int = 3) -> IndexContents:
    """An index of trajectories that were added in another order than their ids'."""
    layouts = [make_layout(2), make_layout(3)]
    records = [
        make_record(n, 10 * n, 2 + n % 2, layout=layouts[n % 2], run_lengths=(1,) * (2 + n % 2))
        for n in reversed(range(num))
    ]
    schema = Schema({"rewards": ColumnSpec("float32")})
    return IndexContents(
        records=RecordTable(records),
        numbering=Numbering(num + 4, 2, 1000),
        schema=schema,
        generation=5,
        journal_bytes=321,
    )


def write(path: Path, contents: IndexContents) -> str:
    writer = IndexWriter(contents)
    writer.write(path, sync=False)
    return writer.xxh3


def changed(path: Path, change: Any) -> Path:
    """Write the index of three trajectories, changed by a function of its JSON."""
    write(path, some_contents())
    whole = json.loads(path.read_text())
    change(whole)
    path.write_text(json.dumps(whole))
    return path


class TestIndexFile:
    @pytest.mark.parametrize("num", [0, 1, 3, 120])
    def test_it_is_read_back_the_same(self, tmp_path: Path, num: int) -> None:
        path, contents = tmp_path / "trajectory_index.json", some_contents(num)
        digest = write(path, contents)
        found = read_index(path)
        again = found.contents
        assert again == contents
        assert again is not None
        assert list(again.records) == list(contents.records)
        assert found.foreign == []
        assert digest == found.xxh3 == xxhash.xxh3_64_hexdigest(path.read_bytes())
        assert found.size_bytes == path.stat().st_size

    def test_an_index_without_a_schema_is_read_back_too(self, tmp_path: Path) -> None:
        path = tmp_path / "trajectory_index.json"
        write(path, IndexContents())
        assert read_index(path).contents == IndexContents()

    def test_equal_layouts_are_written_once_and_shared_when_read(self, tmp_path: Path) -> None:
        path = tmp_path / "trajectory_index.json"
        write(path, some_contents(6))
        assert len(json.loads(path.read_text())["relive"]["layouts"]) == 2
        again = read_index(path).contents
        assert again is not None
        assert again.records[0].layout is again.records[2].layout

    def test_rlinf_finds_what_it_knows(self, tmp_path: Path) -> None:
        path = tmp_path / "trajectory_index.json"
        write(path, some_contents())
        whole = json.loads(path.read_text())
        assert whole["trajectory_id_list"] == [2, 1, 0]
        assert sorted(whole["trajectory_index"]) == ["0", "1", "2"]

    def test_others_may_run_every_few_records(self, tmp_path: Path) -> None:
        calls: list[int] = []
        contents = some_contents(0)
        for n in range(200):
            record = make_record(n, 10 * n, layout=make_layout(2, name=f"c{n}"))
            contents.records[n] = record
        path = tmp_path / "trajectory_index.json"
        writer = IndexWriter(contents, between_slices=lambda: calls.append(1))
        writer.write(path, sync=False)
        assert len(calls) >= 8

    def test_rlinfs_own_index_is_read_as_such(self, tmp_path: Path) -> None:
        path = tmp_path / "trajectory_index.json"
        entries = {str(n): {"trajectory_id": n, "num_samples": 4} for n in range(3)}
        path.write_text(json.dumps({"trajectory_index": entries, "trajectory_id_list": [2, 0, 1]}))
        found = read_index(path)
        assert found.contents is None
        assert [entry["trajectory_id"] for entry in found.foreign] == [2, 0, 1]


class TestBadIndexFiles:
    def test_a_file_cut_anywhere_is_named(self, tmp_path: Path) -> None:
        path = tmp_path / "trajectory_index.json"
        write(path, some_contents())
        whole = path.read_bytes()
        for length in [*range(0, len(whole) - 2, 37), len(whole) - 2]:
            path.write_bytes(whole[:length])
            with pytest.raises(CorruptFileError, match="is cut or damaged") as caught:
                read_index(path)
            assert caught.value.path == str(path)

    @pytest.mark.parametrize("text", ["", "[]", "3", "{}", '"a"', "\x00" * 50, "[" * 100_000])
    def test_something_else_is_named(self, tmp_path: Path, text: str) -> None:
        path = tmp_path / "trajectory_index.json"
        path.write_text(text)
        with pytest.raises(CorruptFileError, match=r"trajectory_index\.json") as caught:
            read_index(path)
        assert caught.value.path == str(path)

    def test_a_missing_file_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(MissingFileError, match="check the path") as caught:
            read_index(tmp_path / "trajectory_index.json")
        assert caught.value.path == str(tmp_path / "trajectory_index.json")

    def test_a_folder_in_its_place_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(StorageError, match="cannot be read") as caught:
            read_index(tmp_path)
        assert caught.value.path == str(tmp_path)

    @pytest.mark.parametrize(
        "change",
        [
            lambda whole: whole.pop("trajectory_index"),
            lambda whole: whole.update(trajectory_index=[]),
            lambda whole: whole.update(trajectory_id_list={}),
            lambda whole: whole["trajectory_id_list"].append(7),
            lambda whole: whole["trajectory_id_list"].append([]),
            lambda whole: whole["trajectory_id_list"].append(2),
            lambda whole: whole["trajectory_index"].update({"1": None}),
            lambda whole: whole["trajectory_index"]["1"].update(trajectory_id=2),
            lambda whole: whole["trajectory_index"]["1"].update(layout=9),
            lambda whole: whole["trajectory_index"]["1"].pop("num_samples"),
            lambda whole: whole.update(relive=None),
            lambda whole: whole["relive"].pop("version"),
            lambda whole: whole["relive"].update(version="1"),
            lambda whole: whole["relive"].update(version=0),
            lambda whole: whole["relive"].update(generation=-1),
            lambda whole: whole["relive"].update(generation=float("inf")),
            lambda whole: whole["relive"].pop("journal_bytes"),
            lambda whole: whole["relive"].pop("layouts"),
            lambda whole: whole["relive"].update(layouts=[3, 4]),
            lambda whole: whole["relive"].update(schema=3),
            lambda whole: whole["relive"].update(numbering=[]),
        ],
    )
    def test_one_that_contradicts_itself_is_named(self, tmp_path: Path, change: Any) -> None:
        path = changed(tmp_path / "trajectory_index.json", change)
        with pytest.raises(CorruptFileError) as caught:
            read_index(path)
        assert caught.value.path == str(path)

    @pytest.mark.parametrize("forged", [{"row_shape": [10**9]}, {"dtype": "float64"}])
    def test_a_schema_that_differs_from_the_columns_is_named(
        self, tmp_path: Path, forged: dict[str, Any]
    ) -> None:
        contents = some_contents()
        (column, *_) = contents.records[0].layout.columns
        contents.schema = Schema({column.name: ColumnSpec(column.dtype, column.row_shape)})
        path = tmp_path / "trajectory_index.json"
        write(path, contents)
        assert read_index(path).contents == contents
        whole = json.loads(path.read_text())
        whole["relive"]["schema"]["columns"][column.name].update(forged)
        path.write_text(json.dumps(whole))
        told = rf"the schema has .* as {column.name!r}, but a trajectory has .*; restore it from"
        with pytest.raises(CorruptFileError, match=told):
            read_index(path)

    def test_one_of_a_later_release_is_told_apart(self, tmp_path: Path) -> None:
        path = tmp_path / "trajectory_index.json"
        changed(path, lambda whole: whole["relive"].update(version=2))
        with pytest.raises(FormatVersionError, match=r"has format version 2.*upgrade relive"):
            read_index(path)
        changed(path, lambda whole: whole["relive"]["layouts"][0][0].update(codec="zstd"))
        with pytest.raises(FormatVersionError, match="upgrade relive"):
            read_index(path)


class TestMetadata:
    def test_it_is_read_back_the_same(self, tmp_path: Path) -> None:
        path = tmp_path / "metadata.json"
        whole = {**METADATA, "relive": {"version": 1, "state": {"seed": 3}}}
        write_metadata(path, whole, sync=True)
        assert read_metadata(path) == whole

    @pytest.mark.parametrize("name", sorted(set(METADATA) - {"seed"}))
    @pytest.mark.parametrize("value", [None, [], 1.5])
    def test_what_lacks_a_field_is_named(self, tmp_path: Path, name: str, value: Any) -> None:
        path = tmp_path / "metadata.json"
        path.write_text(json.dumps({**METADATA, name: value}))
        with pytest.raises(CorruptFileError, match="metadata has them all") as caught:
            read_metadata(path)
        assert caught.value.path == str(path)

    def test_a_cut_one_is_named_and_a_later_one_told_apart(self, tmp_path: Path) -> None:
        path = tmp_path / "metadata.json"
        write_metadata(path, {**METADATA, "relive": {"version": 3}}, sync=False)
        with pytest.raises(FormatVersionError, match="format version 3"):
            read_metadata(path)
        path.write_bytes(path.read_bytes()[:-3])
        with pytest.raises(CorruptFileError, match="cut or damaged"):
            read_metadata(path)
