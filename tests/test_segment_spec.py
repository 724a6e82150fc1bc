# SPDX-License-Identifier: Apache-2.0
"""How columns lie in segments: records packed and aligned, frames in pairs, and back from JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relive.dtypes import DTYPE_NAMES, storage_dtype
from relive.errors import CorruptFileError, FormatVersionError
from relive.formats.memmap.segment_spec import LARGE_ROW_BYTES, SegmentSpec

Columns = dict[str, tuple[str, tuple[int, ...]]]

NAMES = st.text(st.characters(exclude_categories=()), min_size=1, max_size=12)
ROW_SHAPES = st.one_of(
    st.lists(st.integers(0, 4), max_size=3), st.lists(st.integers(60, 70), min_size=2, max_size=2)
).map(tuple)


@st.composite
def columns_of_observations(draw: st.DrawFn) -> Columns:
    """Columns among which some of `next_obs` are as those of `curr_obs`, and some are not."""
    kinds = st.tuples(st.sampled_from(DTYPE_NAMES), ROW_SHAPES)
    columns: Columns = {}
    for tail in draw(st.sets(NAMES, max_size=4)):
        columns[f"curr_obs/{tail}"] = draw(kinds)
        if draw(st.booleans()):
            columns[f"next_obs/{tail}"] = columns[f"curr_obs/{tail}"]
        else:
            columns[f"next_obs/{tail}"] = draw(kinds)
    return columns | draw(st.dictionaries(NAMES, kinds, max_size=4))


def row_bytes(kind: tuple[str, tuple[int, ...]]) -> int:
    return int(np.prod(kind[1], dtype=np.int64)) * storage_dtype(kind[0]).itemsize


class TestSegmentSpec:
    @given(columns=columns_of_observations())
    def test_each_column_has_bytes_of_its_own(self, columns: Columns) -> None:
        spec = SegmentSpec.of(columns)
        assert spec.stride % 8 == 0
        taken = np.zeros(spec.stride, np.int64)
        for field in spec.fields:
            assert columns[field.name] == (field.dtype, field.row_shape)
            taken[field.offset : field.offset + row_bytes(columns[field.name])] += 1
            assert field.offset + field.row_bytes <= spec.stride
        for group in spec.groups:
            taken[group.offset : group.offset + 4] += 1
            assert group.offset % 4 == 0
            assert {columns[one.name] for one in group.columns} == {columns[group.name]}
        assert taken.max(initial=0) <= 1
        assert spec.stride - taken.sum() <= 8  # nothing is lost but to the stride
        large = [one.name for group in spec.groups for one in group.columns]
        small = [one.name for one in spec.fields]
        assert sorted([*small, *large]) == sorted(columns)
        assert all(
            (row_bytes(columns[name]) >= LARGE_ROW_BYTES) == (name in large) for name in columns
        )

    @given(columns=columns_of_observations())
    def test_columns_lie_on_multiples_of_what_they_are_copied_by(self, columns: Columns) -> None:
        for field in SegmentSpec.of(columns).fields:
            if field.row_bytes:
                assert field.offset % min(8, field.row_bytes & -field.row_bytes) == 0

    @given(columns=columns_of_observations())
    def test_it_comes_back_from_json(self, columns: Columns) -> None:
        spec = SegmentSpec.of(columns)
        again = SegmentSpec.from_json(json.loads(json.dumps(spec.to_json())))
        assert again == spec
        assert hash(again) == hash(spec)
        assert again.record_dtype == spec.record_dtype

    @given(columns=columns_of_observations(), seed=st.randoms())
    def test_the_order_of_columns_does_not_matter(self, columns: Columns, seed: Any) -> None:
        order = list(columns)
        seed.shuffle(order)
        assert SegmentSpec.of({name: columns[name] for name in order}) == SegmentSpec.of(columns)

    @given(names=st.sets(NAMES.map("extras/{}".format), min_size=2, max_size=6))
    @example(names={"extras/a/b", "extras/a.b", "extras/a%2Eb", "extras/a%252Eb", "extras/.", "a"})
    def test_files_have_names_of_their_own_that_stay_in_the_folder(self, names: set[str]) -> None:
        spec = SegmentSpec.of(dict.fromkeys(names, ("uint8", (LARGE_ROW_BYTES,))))
        files = [group.file_name for group in spec.groups]
        assert all("/" not in name and "\0" not in name and len(name) < 200 for name in files)
        assert len(set(files)) == len(files)
        assert not {"rows.bin", "side.bin", "segment.json"} & set(files)

    @pytest.mark.parametrize("name", ["curr_obs/" + "x" * 300, "curr_obs/" + "重" * 80, "a" * 101])
    def test_a_long_name_is_cut_and_told_from_others_by_its_digest(self, name: str) -> None:
        one, other = (
            SegmentSpec.of({text: ("uint8", (LARGE_ROW_BYTES,))}).groups[0].file_name
            for text in (name, name[:-1] + "y")
        )
        assert one != other
        assert max(len(one), len(other)) <= 104

    def test_an_observation_and_its_successor_of_the_same_kind_share_a_file(self) -> None:
        spec = SegmentSpec.of(
            {
                "curr_obs/a": ("uint8", (64, 64)),
                "curr_obs/b": ("uint8", (64, 64)),
                "curr_obs/c": ("uint8", (64, 64)),
                "curr_obs/d": ("uint8", (64, 64)),
                "next_obs/a": ("uint8", (64, 64)),
                "next_obs/b": ("int8", (64, 64)),
                "next_obs/c": ("uint8", (64, 65)),
                "next_obs/e": ("uint8", (64, 64)),
                "extras/curr_obs/a": ("uint8", (64, 64)),
                "curr_obs": ("uint8", (64, 64)),
                "next_obs": ("uint8", (64, 64)),
            }
        )
        found = {group.name: [one.name for one in group.columns] for group in spec.groups}
        assert found == {
            "curr_obs/a": ["curr_obs/a", "next_obs/a"],
            **{
                name: [name]
                for name in (
                    *("curr_obs/b", "curr_obs/c", "curr_obs/d", "next_obs/b", "next_obs/c"),
                    *("next_obs/e", "extras/curr_obs/a", "curr_obs", "next_obs"),
                )
            },
        }
        assert [group.is_pair for group in spec.groups].count(True) == 1

    def test_without_small_columns_there_is_room_for_positions(self) -> None:
        spec = SegmentSpec.of({"rewards": ("float64", (512,))})
        assert (spec.fields, spec.stride) == ((), 8)
        assert spec.record_dtype.names == ("rewards",)

    def test_of_nothing_there_is_a_record_all_the_same(self) -> None:
        spec = SegmentSpec.of({"rewards": ("float64", (0,))})
        assert spec.stride == 8
        assert spec.record_dtype.names == ()
        assert spec.empty_records(3).nbytes == 24


def valid() -> dict[str, Any]:
    spec = SegmentSpec.of(
        {
            "rewards": ("float32", ()),
            "actions": ("float32", (3,)),
            "curr_obs/image": ("uint8", (64, 64)),
            "next_obs/image": ("uint8", (64, 64)),
        }
    )
    entry: dict[str, Any] = json.loads(json.dumps(spec.to_json()))
    return entry


def changed(*path: str | int, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(entry: Any) -> None:
        for key in path[:-1]:
            entry = entry[key]
        entry[path[-1]] = to

    return change


def without(*path: str | int) -> Callable[[dict[str, Any]], None]:
    def change(entry: Any) -> None:
        for key in path[:-1]:
            entry = entry[key]
        del entry[path[-1]]

    return change


class TestDamaged:
    def test_the_undamaged_one_is_read(self) -> None:
        assert SegmentSpec.from_json(valid()).stride == 24

    @pytest.mark.parametrize(
        "damage",
        [
            without("stride"),
            without("columns"),
            without("frames"),
            without("version"),
            changed("version", to=None),
            changed("version", to="1"),
            changed("version", to=-1),
            changed("stride", to=25),
            changed("stride", to=16),
            changed("stride", to=0),
            changed("stride", to=-8),
            changed("stride", to=1 << 41),
            changed("stride", to=8.0),
            changed("columns", to=[1]),
            changed("columns", to=None),
            changed("columns", 0, "offset", to=8),
            changed("columns", 1, "offset", to=1 << 62),
            changed("columns", 1, "offset", to=True),
            changed("columns", 0, "dtype", to="object"),
            changed("columns", 0, "dtype", to=["uint8"]),
            changed("columns", 0, "row_shape", to=[-3]),
            changed("columns", 0, "row_shape", to=[1 << 60]),
            changed("columns", 0, "row_shape", to=3),
            changed("columns", 1, "name", to="actions"),
            changed("columns", 1, "name", to="next_obs/image"),
            changed("frames", 0, "columns", 1, "row_shape", to=[64, 65]),
            changed("frames", 0, "columns", 1, "offset", to=0),
            changed("frames", 0, "columns", 0, "row_shape", to=[64, 1]),
            changed("frames", 0, "columns", to=[]),
            changed("frames", 0, to=None),
            without("frames", 0, "columns", 0, "dtype"),
        ],
    )
    def test_any_other_form_is_refused(self, damage: Callable[[dict[str, Any]], None]) -> None:
        entry = valid()
        damage(entry)
        with pytest.raises(CorruptFileError, match="no valid form"):
            SegmentSpec.from_json(entry)

    @pytest.mark.parametrize("entry", [None, [], 3, "x", {}, {"version": 1}])
    def test_something_else_is_refused(self, entry: object) -> None:
        with pytest.raises(CorruptFileError, match=r"no valid form .*restore the folder from"):
            SegmentSpec.from_json(entry)

    def test_a_later_version_asks_for_a_later_release(self) -> None:
        entry = valid() | {"version": 2, "columns": "as it pleases"}
        with pytest.raises(FormatVersionError, match=r"version 2, .*up to 1; upgrade relive$"):
            SegmentSpec.from_json(entry)
