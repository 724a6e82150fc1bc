# SPDX-License-Identifier: Apache-2.0
"""`relive.spec` and `relive.column_spec`: what holds of all trajectories, and who fits it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from relive.column_spec import row_from_json, row_to_json
from relive.dtypes import DTYPE_NAMES, has_numpy_type, storage_dtype
from relive.errors import (
    ColumnMismatchError,
    CorruptFileError,
    InvalidArgumentError,
    UnsupportedValueError,
)
from relive.snapshot import Snapshot, take_snapshot
from relive.spec import Columns, ColumnSpec, Schema, admit, conform
from relive.tensors import convert
from relive.trajectory import Trajectory

T, B = 3, 2
NATIVE = [name for name in DTYPE_NAMES if has_numpy_type(name)]


def column(*row_shape: int, dtype: str = "float32") -> NDArray[Any]:
    return np.zeros((T, B, *row_shape), dtype)


def snapshot(**extras: Any) -> Snapshot:
    """A trajectory with rewards and these extras."""
    return take_snapshot(Trajectory(rewards=column(), extras=extras))


def schema_of(declared: Columns, *snapshots: Snapshot) -> Schema:
    """What holds after these were admitted."""
    schema = None
    for one in snapshots:
        schema, _ = admit(schema, declared, one)
    assert schema is not None
    return schema


class TestFirstTrajectory:
    @pytest.mark.parametrize("default", [[0.0, 0.0], "none"])
    def test_a_default_that_is_no_row_of_the_column_is_what_is_wrong(self, default: Any) -> None:
        declared = Columns(optional={"extras/x": default})
        with pytest.raises(
            ColumnMismatchError,
            match=r"extras/x is float32 \[1\], not .* as its default is.*give extras/x a default",
        ):
            schema_of(declared, snapshot(x=column(1)))

    def test_a_default_of_none_is_told_as_one(self) -> None:
        with pytest.raises(UnsupportedValueError, match="default of column 'extras/x' is None"):
            Columns(optional={"extras/x": None})

    def test_it_says_what_holds(self) -> None:
        schema = schema_of(Columns(), snapshot(x=column(4), task=["a", "b"]))
        assert schema.columns == {
            "rewards": ColumnSpec("float32"),
            "extras/x": ColumnSpec("float32", (4,)),
            "extras/task": ColumnSpec("text"),
        }
        assert list(schema.columns) == ["rewards", "extras/x", "extras/task"]
        assert not schema.defaults

    def test_extra_rows_of_flags_are_no_part_of_the_spec(self) -> None:
        long = Trajectory(rewards=column(), dones=np.zeros((T + 1, B), np.bool_))
        short = Trajectory(rewards=column(), dones=np.zeros((T, B), np.bool_))
        schema_of(Columns(), take_snapshot(long), take_snapshot(short))

    def test_required_columns_that_it_lacks_are_named(self) -> None:
        declared = Columns(required=["actions", "rewards", "extras/x"])
        with pytest.raises(ColumnMismatchError, match=r"lacks .* actions, extras/x") as caught:
            admit(None, declared, snapshot())
        assert caught.value.column == "actions"

    def test_declared_specs_hold_from_the_start(self) -> None:
        declared = Columns(required={"rewards": ColumnSpec("float32", (7,))})
        with pytest.raises(ColumnMismatchError, match=r"rewards is float32 \[\], not float32 \[7"):
            admit(None, declared, snapshot())


class TestLaterTrajectories:
    def test_all_that_differs_is_listed_at_once(self) -> None:
        schema = schema_of(Columns(), snapshot(a=column(), b=column(2), c=column()))
        other = snapshot(b=column(3), c=column(dtype="int8"), d=column())
        with pytest.raises(ColumnMismatchError) as caught:
            admit(schema, Columns(), other)
        for told in (
            "missing: extras/a",
            "extra: extras/d",
            "different: extras/b is float32 [3], not float32 [2], extras/c is int8 [], not float32",
        ):
            assert told in str(caught.value)
        assert caught.value.column == "extras/a"

    @pytest.mark.parametrize(
        ("dtype", "told"),
        [
            ("float32", r"convert extras/x with \.astype\('float32'\) or \.to\(torch\.float32\)$"),
            ("bfloat16", r"; convert extras/x with \.to\(torch\.bfloat16\)$"),
        ],
    )
    def test_another_type_is_told_to_be_converted(self, dtype: str, told: str) -> None:
        first = torch.zeros(T, B, dtype=getattr(torch, dtype))
        schema = schema_of(Columns(), take_snapshot(Trajectory(rewards=first, extras={"x": first})))
        other = Trajectory(rewards=first, extras={"x": column(dtype="float64")})
        with pytest.raises(ColumnMismatchError, match=told) as caught:
            admit(schema, Columns(), take_snapshot(other))
        assert "Columns(" not in str(caught.value)

    def test_a_type_is_told_beside_what_is_to_be_declared(self) -> None:
        schema = schema_of(Columns(), snapshot(a=column(), b=column(2)))
        told = r"; convert extras/a with .*, and make the columns alike, .*optional="
        retyped = column(dtype="int8")
        for other in (snapshot(a=retyped), snapshot(a=retyped, b=column())):
            with pytest.raises(ColumnMismatchError, match=told):
                admit(schema, Columns(), other)

    def test_a_column_with_spaces_in_its_name_is_named_whole(self) -> None:
        schema = schema_of(Columns(), snapshot(**{"my column": column()}))
        with pytest.raises(ColumnMismatchError) as caught:
            admit(schema, Columns(), snapshot(**{"my column": column(1)}))
        assert caught.value.column == "extras/my column"

    def test_what_is_not_declared_is_left_out_when_asked(self) -> None:
        declared = Columns(required=["rewards"], drop_others=True)
        schema, kept = admit(None, declared, snapshot(x=column()))
        assert list(schema.columns) == list(kept.columns) == ["rewards"]
        _, kept = admit(schema, declared, snapshot(y=column()))
        assert list(kept.columns) == ["rewards"]

    def test_one_that_fits_is_not_copied(self) -> None:
        schema, first = admit(None, Columns(), one := snapshot(x=column()))
        assert first is one
        assert admit(schema, Columns(), one)[1] is one


class TestOptionalColumns:
    def test_until_one_has_the_column_the_default_tells_its_spec(self) -> None:
        schema = schema_of(Columns(optional={"extras/x": 0.5}), snapshot())
        assert schema.columns["extras/x"] == ColumnSpec("float64")
        assert schema.unseen == {"extras/x"}

    @pytest.mark.parametrize(
        ("default", "value"),
        [
            (0, column(dtype="float32")),
            (False, column(dtype="bool")),
            (7, column(3, 4, dtype="uint8")),
            (np.arange(4), column(3, 4, dtype="uint8")),
            (0.1, column(2)),
            (float("nan"), column(2)),
            (1j, column(dtype="complex64")),
            (True, torch.zeros(T, B, 5, dtype=torch.bfloat16)),
            (0.5, torch.zeros(T, B, 5, dtype=torch.bfloat16)),
            (torch.tensor(0.5, dtype=torch.bfloat16), column(2)),
            ("none", ["a", "b"]),
        ],
    )
    def test_the_first_that_has_it_fixes_its_spec_and_the_default_becomes_a_row_of_it(
        self, default: Any, value: Any
    ) -> None:
        declared = Columns(optional={"extras/x": default})
        schema = schema_of(declared, snapshot(), snapshot(x=value), snapshot())
        spec, row = schema.columns["extras/x"], schema.defaults["extras/x"]
        assert not schema.unseen
        if isinstance(row, str):
            assert row == default
            return
        assert row.dtype == spec.storage
        given_row = default if isinstance(default, torch.Tensor) else torch.as_tensor(default)
        stored = convert(row, spec.dtype, "complex128")
        assert stored is not None
        expected = np.broadcast_to(given_row.to(torch.complex128).numpy(), stored.shape)
        assert np.allclose(stored, expected, equal_nan=True)

    @pytest.mark.parametrize(
        ("default", "value"),
        [
            (0.5, column(dtype="int64")),
            (300, column(dtype="uint8")),
            (-1, column(dtype="uint8")),
            (2, column(dtype="bool")),
            (1e300, column()),
            (0.1, torch.zeros(T, B, dtype=torch.bfloat16)),
            (np.zeros(3), column(4)),
            (np.zeros((2, 4)), column(4)),
            ("none", column()),
            (0, ["a", "b"]),
        ],
    )
    def test_a_default_that_no_row_can_be_is_refused(self, default: Any, value: Any) -> None:
        declared = Columns(optional={"extras/x": default})
        schema = schema_of(declared, snapshot())
        with pytest.raises(ColumnMismatchError, match="different: extras/x is") as caught:
            admit(schema, declared, snapshot(x=value))
        assert caught.value.column == "extras/x"

    def test_a_later_one_with_another_spec_is_refused(self) -> None:
        declared = Columns(optional={"extras/x": 0})
        schema = schema_of(declared, snapshot(x=column(2)))
        with pytest.raises(ColumnMismatchError, match=r"extras/x is float32 \[3\], not float32 \["):
            admit(schema, declared, snapshot(x=column(3)))

    def test_a_default_is_the_librarys_own(self) -> None:
        row = np.zeros(2)
        declared = Columns(optional={"extras/x": row})
        row += 7
        default = schema_of(declared, snapshot()).defaults["extras/x"]
        assert isinstance(default, np.ndarray)
        assert default.tolist() == [0.0, 0.0]


class TestDeclarations:
    @pytest.mark.parametrize(
        "arguments",
        [
            {"required": "actions"},
            {"required": ["actions", 3]},
            {"required": ["actions", "actions"]},
            {"required": ["actions"], "optional": {"actions": 0}},
            {"optional": {3: 0}},
            {"optional": {"": 0}},
            {"optional": ["actions"]},
            {"required": {"actions": "float32"}},
            {"required": {"actions": ColumnSpec("float31")}},
            {"required": {"actions": ColumnSpec("float32", (-1,))}},
        ],
    )
    def test_names_are_texts_that_come_once_and_specs_are_specs(
        self, arguments: dict[str, Any]
    ) -> None:
        with pytest.raises(InvalidArgumentError, match=r"but (each|must|they)"):
            Columns(**arguments)

    @pytest.mark.parametrize("default", [None, object(), {"x": 0}, b"a", [None], 2**70])
    def test_a_default_that_no_column_holds_is_refused_at_once(self, default: Any) -> None:
        with pytest.raises(UnsupportedValueError, match="'extras/x'") as caught:
            Columns(optional={"extras/x": default})
        assert caught.value.column == "extras/x"

    def test_any_list_of_names_will_do(self) -> None:
        assert Columns(required=iter(["actions", "dones"])).required == ("actions", "dones")


class TestConform:
    def stored(self) -> Schema:
        """Rewards, x that was optional and came, y that never came."""
        declared = Columns(optional={"extras/x": 0, "extras/y": False})
        return schema_of(declared, snapshot(x=column(2)))

    def test_no_declaration_takes_what_is_stored(self) -> None:
        assert conform(self.stored(), Columns()) == self.stored()

    def test_what_never_came_cannot_be_required(self) -> None:
        with pytest.raises(ColumnMismatchError, match="missing: extras/y, extras/z;"):
            conform(
                self.stored(), Columns(required=["rewards", "extras/y", "extras/z", "extras/x"])
            )

    def test_what_is_stored_must_be_declared_or_dropped(self) -> None:
        with pytest.raises(ColumnMismatchError, match="not declared: extras/x, extras/y"):
            conform(self.stored(), Columns(required=["rewards"]))
        schema = conform(self.stored(), Columns(required=["rewards"], drop_others=True))
        assert list(schema.columns) == ["rewards"]
        assert not schema.defaults
        assert not schema.unseen

    def test_a_declared_spec_must_be_the_stored_one(self) -> None:
        with pytest.raises(ColumnMismatchError, match=r"rewards is float32 \[\], not int8 \[\]"):
            conform(
                self.stored(),
                Columns(required={"rewards": ColumnSpec("int8")}, drop_others=True),
            )

    def test_a_new_default_replaces_the_stored_one(self) -> None:
        schema = conform(self.stored(), Columns(optional={"extras/x": 7, "extras/y": 0.5}))
        row = schema.defaults["extras/x"]
        assert isinstance(row, np.ndarray)
        assert (row.dtype, row.tolist()) == (np.dtype(np.float32), 7.0)
        assert schema.columns["extras/x"] == ColumnSpec("float32", (2,))
        assert schema.columns["extras/y"] == ColumnSpec("float64")
        assert schema.unseen == {"extras/y"}

    def test_a_new_default_must_fit_the_stored_column(self) -> None:
        with pytest.raises(ColumnMismatchError, match=r"extras/x is float32 \[2\], not text"):
            conform(self.stored(), Columns(optional={"extras/x": "a"}))

    def test_a_further_optional_column_may_be_declared(self) -> None:
        schema = conform(self.stored(), Columns(optional={"extras/z": 1}))
        assert schema.unseen == {"extras/y", "extras/z"}
        admit(schema, Columns(), snapshot(z=column(5)))


class TestJson:
    def test_a_schema_is_read_back_the_same(self) -> None:
        optional = {"extras/x": [0.5, float("nan")], "extras/t": "none", "extras/c": 1j}
        schema = schema_of(Columns(optional=optional, drop_others=True), snapshot(x=column(2)))
        text = json.dumps(schema.to_json(), allow_nan=False)
        again = Schema.from_json(json.loads(text))
        assert again == schema
        assert list(again.columns) == list(schema.columns)

    def test_schemas_are_equal_when_all_holds_alike(self) -> None:
        one, two = (Schema({"x": ColumnSpec("float32", (2,))}, {"x": np.zeros(2, "f4")}),) * 2
        assert one == two
        assert one != Schema(one.columns, {"x": np.ones(2, "f4")})
        assert one != Schema(one.columns)
        assert one != 3

    @given(dtype=st.sampled_from(NATIVE), seed=st.integers(0, 99), shape=st.integers(0, 2))
    def test_any_row_is_read_back_bit_for_bit(self, dtype: str, seed: int, shape: int) -> None:
        sizes = (2,) * shape
        storage = storage_dtype(dtype)
        high = 2 if dtype == "bool" else 256
        drawn = np.random.default_rng(seed).integers(0, high, 2**shape * storage.itemsize, np.uint8)
        row = drawn.view(storage).reshape(sizes)
        again = row_from_json(json.loads(json.dumps(row_to_json(row), allow_nan=False)))
        assert (again.dtype, again.shape) == (row.dtype, row.shape)
        np.testing.assert_array_equal(again, row)

    @pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, -0.0, 1e-45])
    def test_numbers_that_json_lacks_are_kept(self, number: float) -> None:
        row = np.array([number, 1], np.float32)
        again = row_from_json(json.loads(json.dumps(row_to_json(row), allow_nan=False)))
        assert again.tobytes() == row.tobytes()

    @pytest.mark.parametrize(
        "changes",
        [
            None,
            [],
            {"columns": None},
            {"columns": {"x": {"dtype": "float31", "row_shape": []}}},
            {"columns": {"x": {"dtype": "float32", "row_shape": [-1]}}},
            {"columns": {"x": {"dtype": "float32", "row_shape": [float("inf")]}}},
            {"columns": {"x": {"dtype": "float32"}}},
            {"defaults": {"x": {"dtype": "float64", "value": 0}}},
            {"defaults": {"x": {"dtype": "float32", "value": [0, 0, 0]}}},
            {"defaults": {"x": {"dtype": "O", "value": 0}}},
            {"defaults": {"x": {"dtype": "float32", "value": {}}}},
            {"defaults": {"x": "text"}},
            {"defaults": {"y": "text"}},
            {"unseen": ["x"]},
            {"unseen": ["x"], "defaults": {"x": {"dtype": "float32", "value": 0}}},
            {"unseen": 3},
        ],
    )
    def test_anything_else_is_a_corrupt_file(self, changes: Any) -> None:
        entry: Any = Schema({"x": ColumnSpec("float32", (2,))}).to_json()
        Schema.from_json(entry)
        with pytest.raises(CorruptFileError, match=r"a schema is .* no valid form"):
            Schema.from_json({**entry, **changes} if isinstance(changes, dict) else changes)
