# SPDX-License-Identifier: Apache-2.0
"""`relive.record` and `relive.record_json`: index entries as JSON, ours and of later releases."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from records import make_layout, make_record
from relive.dtypes import DTYPE_NAMES, TEXT
from relive.errors import CorruptFileError, FormatVersionError
from relive.record import ColumnLayout, Layout, Record, quoted_weights_id
from relive.record_json import LayoutTable, record_from_json, record_to_json

any_text = st.text(st.characters(exclude_categories=()), max_size=8)
naturals = st.integers(0, 2**62)


@st.composite
def layouts(draw: st.DrawFn, num_steps: int, num_envs: int, num_epochs: int) -> Layout:
    columns = draw(
        st.lists(
            st.builds(
                ColumnLayout,
                name=any_text,
                dtype=st.sampled_from((*DTYPE_NAMES, TEXT)),
                shape=st.tuples(
                    st.sampled_from((num_steps, num_steps + num_epochs)),
                    st.just(num_envs),
                    st.integers(0, 5),
                ),
                offset=st.none() | naturals,
            ),
            max_size=3,
        )
    )
    return Layout(tuple(columns))


@st.composite
def records(draw: st.DrawFn) -> Record:
    num_epochs, num_envs = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    num_steps = num_epochs * draw(st.integers(1, 3))
    layout = draw(layouts(num_steps, num_envs, num_epochs))
    num_columns = len(layout.columns)
    ends = st.integers(-(2**70), 2**70)
    return Record(
        trajectory_id=draw(naturals),
        uuid=str(draw(st.uuids())),
        first_row_id=draw(naturals),
        shape=(num_steps, num_envs, *draw(st.lists(st.integers(0, 9), max_size=2))),
        num_epochs=num_epochs,
        max_episode_length=draw(naturals),
        model_weights_id=draw(any_text),
        format=draw(any_text),
        layout=layout,
        location=draw(st.dictionaries(any_text, naturals, max_size=3)),
        checksums=draw(
            st.just(b"") | st.binary(min_size=8 * num_columns, max_size=8 * num_columns)
        ),
        texts=draw(
            st.dictionaries(
                any_text,
                st.tuples(st.lists(any_text, max_size=3).map(tuple), st.booleans()),
                max_size=2,
            )
        ),
        run_lengths=draw(st.none() | st.just((1,) * (num_steps * num_envs))),
        version_range=draw(st.none() | st.tuples(ends, ends)),
        labels=draw(st.dictionaries(any_text, st.integers() | any_text, max_size=2)),
        added_at=draw(st.floats(0, 1e12)),
        others=draw(st.dictionaries(st.sampled_from(("tags", "tier")), any_text, max_size=2)),
    )


def entry_of(record: Record) -> dict[str, Any]:
    """Its JSON, as a program reads it."""
    entry: dict[str, Any] = json.loads(json.dumps(record_to_json(record, 0), allow_nan=False))
    return entry


class TestRecords:
    @settings(max_examples=60)
    @given(record=records())
    def test_any_record_is_read_back_the_same(self, record: Record) -> None:
        layout = Layout.from_json(json.loads(json.dumps(record.layout.to_json())))
        assert layout == record.layout
        assert record_from_json(entry_of(record), [layout]) == record

    def test_rlinf_finds_its_five_fields(self) -> None:
        entry = entry_of(make_record(7, 40, 3, 2, model_weights_id="a/b"))
        assert entry["trajectory_id"] == 7
        assert entry["num_samples"] == 6
        assert entry["shape"] == [3, 2]
        assert entry["max_episode_length"] == 3
        assert entry["model_weights_id"] == "a%2Fb"

    def test_fields_of_later_releases_are_kept(self) -> None:
        entry = {**entry_of(make_record(0)), "tags": {"a": [1]}}
        record = record_from_json(entry, [make_layout()])
        assert record.others == {"tags": {"a": [1]}}
        assert entry_of(record) == entry

    @pytest.mark.parametrize(
        "changes",
        [
            {"num_samples": None},
            {"num_samples": 5},
            {"trajectory_id": -1},
            {"trajectory_id": True},
            {"trajectory_id": 1 << 63},
            {"trajectory_id": "0"},
            {"uuid": "no uuid"},
            {"uuid": 3},
            {"first_row_id": 1.5},
            {"first_row_id": (1 << 63) - 1},
            {"shape": [4]},
            {"shape": [0, 1]},
            {"shape": "21"},
            {"num_epochs": 0},
            {"num_epochs": 3},
            {"format": None},
            {"layout": 1},
            {"layout": -1},
            {"location": [1]},
            {"location": {"size_bytes": -1}},
            {"checksums": ["0" * 16, "1" * 16]},
            {"checksums": ["0" * 14]},
            {"checksums": ["no hex" * 3]},
            {"checksums": "0" * 16},
            {"checksums": None},
            {"texts": {"task": {"table": "ab", "per_env": False}}},
            {"texts": {"task": {"table": [1], "per_env": False}}},
            {"run_lengths": [1]},
            {"run_lengths": [2, 0]},
            {"run_lengths": 2},
            {"version_range": [1]},
            {"version_range": [float("inf"), 1]},
            {"labels": 3},
            {"added_at": 10**400},
            {"model_weights_id": None},
        ],
    )
    def test_an_entry_that_contradicts_itself_is_a_corrupt_file(
        self, changes: dict[str, Any]
    ) -> None:
        entry = {**entry_of(make_record(0)), **changes}
        with pytest.raises(CorruptFileError, match=r"an index entry is .* no valid form"):
            record_from_json(entry, [make_layout()])

    @pytest.mark.parametrize("missing", sorted(set(entry_of(make_record(0))) - {"added_at"}))
    def test_an_entry_that_lacks_something_is_a_corrupt_file(self, missing: str) -> None:
        entry = entry_of(make_record(0))
        del entry[missing]
        with pytest.raises(CorruptFileError, match="no valid form"):
            record_from_json(entry, [make_layout()])

    @pytest.mark.parametrize("entry", [None, 3, "entry", [], {}])
    def test_something_else_is_a_corrupt_file(self, entry: Any) -> None:
        with pytest.raises(CorruptFileError, match="no valid form"):
            record_from_json(entry, [make_layout()])

    def test_columns_of_another_shape_are_noticed(self) -> None:
        for shape in [(3, 1), (2, 2), (2,), ()]:
            layout = Layout((ColumnLayout("rewards", "float32", shape),))
            with pytest.raises(CorruptFileError, match="columns are"):
                record_from_json(entry_of(make_record(0, num_epochs=2)), [layout])


class TestLayouts:
    def test_sizes_are_those_of_the_rows(self) -> None:
        layout = Layout(
            (
                ColumnLayout("a", "bfloat16", (4, 2, 3, 5)),
                ColumnLayout("dones", "bool", (6, 2)),
                ColumnLayout("task", TEXT, (4, 2)),
            )
        )
        assert [column.row_bytes for column in layout.columns] == [30, 1, 4]
        assert [column.num_rows for column in layout.columns] == [8, 12, 8]
        assert replace(make_record(0), layout=layout).size_bytes == 240 + 12 + 32

    def test_a_column_is_found_by_name(self) -> None:
        layout = make_layout(name="rewards")
        assert "rewards" in layout
        assert layout["rewards"].dtype == "float32"
        assert "actions" not in layout
        with pytest.raises(KeyError, match="actions"):
            layout["actions"]

    def test_fields_of_later_releases_are_kept(self) -> None:
        entries = [{**make_layout().to_json()[0], "bits": [3, {"a": None}]}]
        assert Layout.from_json(entries).to_json() == entries

    @pytest.mark.parametrize("changes", [{"codec": "zstd"}, {"variable_length": True}])
    def test_a_column_that_only_a_later_release_can_read_is_refused(
        self, changes: dict[str, Any]
    ) -> None:
        with pytest.raises(FormatVersionError, match=r"'rewards' is .* upgrade relive"):
            Layout.from_json([{**make_layout().to_json()[0], **changes}])

    @pytest.mark.parametrize(
        "entries",
        [
            None,
            3,
            [3],
            [{}],
            [{"name": "a", "dtype": "float31", "shape": [1, 1]}],
            [{"name": "a", "dtype": "float32", "shape": [-1, 1]}],
            [{"name": "a", "dtype": "float32", "shape": [1, 1], "offset": -1}],
            [{"name": "a", "dtype": "float32", "shape": 3}],
        ],
    )
    def test_something_else_is_a_corrupt_file(self, entries: Any) -> None:
        with pytest.raises(CorruptFileError, match=r"a layout is .* no valid form"):
            Layout.from_json(entries)


class TestLayoutTable:
    def test_each_layout_has_one_number(self) -> None:
        first, second = make_layout(2), make_layout(3)
        table = LayoutTable()
        layouts = (first, second, first, make_layout(3))
        assert [table.number_of(layout) for layout in layouts] == [0, 1, 0, 1]
        assert table == {0: first, 1: second}

    def test_numbers_are_not_given_twice(self) -> None:
        table = LayoutTable()
        table.put(4, make_layout(2))
        assert table.next_number == 5
        with pytest.raises(CorruptFileError, match="two layouts have the number 4"):
            table.put(4, make_layout(3))
        assert table.number_of(make_layout(3)) == 5

    def test_a_table_of_some_gives_no_number_again(self) -> None:
        table = LayoutTable()
        layouts = [make_layout(length) for length in (2, 3, 4)]
        numbers = [table.number_of(layout) for layout in layouts]
        some = table.only(numbers[:1])
        assert dict(some) == {0: layouts[0]}
        assert dict(table) == dict(enumerate(layouts))
        assert some.number_of(layouts[2]) == 3


class TestQuotedWeightsId:
    @given(weights_id=st.text(st.characters(exclude_categories=())))
    def test_no_path_escapes_the_folder(self, weights_id: str) -> None:
        quoted = quoted_weights_id(weights_id)
        assert len(quoted) <= 120
        assert quoted.isascii()
        assert not set(quoted) & set("/\\\0 ")
        if len(quoted) < 87:
            assert unquote(quoted, errors="surrogatepass") == weights_id

    @pytest.mark.parametrize("weights_id", ["", "3db5df6d-a5c9_0.7~x", "global_step_12"])
    def test_what_rlinf_writes_stays(self, weights_id: str) -> None:
        assert quoted_weights_id(weights_id) == weights_id

    def test_long_texts_that_begin_alike_stay_apart(self) -> None:
        texts = ["x" * 300 + str(number) for number in range(50)]
        assert len({quoted_weights_id(text) for text in texts}) == 50
