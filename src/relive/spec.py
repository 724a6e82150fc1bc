# SPDX-License-Identifier: Apache-2.0
"""Which columns the trajectories of a buffer have, and the check that they do.

`Columns` is what a user declares. A `Schema` is what holds: it is made from the declaration
and the first trajectory, is stored with the data, and each later trajectory must fit it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relive.columns import flatten
from relive.dtypes import storage_dtype
from relive.errors import ColumnMismatchError, CorruptFileError, InvalidArgumentError
from relive.snapshot import TEXT, Column, Snapshot
from relive.tensors import copy_in

__all__ = ["ColumnSpec", "Columns", "Schema", "admit", "conform"]


@dataclass(frozen=True, slots=True)
class ColumnSpec:
    """Element type and row shape of one column."""

    dtype: str
    """PyTorch's name of the element type, such as "float32"; "text" for strings."""
    row_shape: tuple[int, ...] = ()
    """Shape of one row; () for one number or string."""

    @property
    def storage(self) -> np.dtype[Any]:
        """NumPy type in which rows are moved."""
        return np.dtype(np.int32) if self.dtype == TEXT else storage_dtype(self.dtype)

    def __str__(self) -> str:
        """Return the spec as errors and tables show it."""
        return f"{self.dtype} {list(self.row_shape)}"


@dataclass(frozen=True)
class Columns:
    """Declares the columns of a buffer.

    Example:
        >>> Columns(required=["actions", "rewards"], optional={"intervene_flags": False}).required
        ('actions', 'rewards')
    """

    required: Iterable[str] | Mapping[str, ColumnSpec] | None = None
    """Full names that each trajectory must have, with specs if known; None: those of the first."""
    optional: Mapping[str, Any] = field(default_factory=dict)
    """Names that may be missing, with the value that stands in: a number, a string, or an array
    of one row. Until a trajectory has the column, the default's own type and shape hold."""
    drop_others: bool = False
    """Whether columns that are neither are left out, instead of refused."""

    def __post_init__(self) -> None:
        """Check the declaration.

        Raises:
            InvalidArgumentError: A name is both required and optional, or is no text.
        """
        if isinstance(self.required, str):
            raise InvalidArgumentError(
                f"required is the text {self.required!r}, but must be a list of column names"
            )
        if self.required is not None and not isinstance(self.required, Mapping):
            object.__setattr__(self, "required", tuple(self.required))
        optional = flatten(self.optional) if self.optional else {}
        object.__setattr__(self, "optional", optional)
        names = [*(self.required or ()), *optional]
        both = sorted({name for name in names if names.count(name) > 1})
        if both or not all(isinstance(name, str) for name in names):
            raise InvalidArgumentError(
                f"columns {both or names} are declared twice or are no text, but each name is "
                "either required or optional"
            )


@dataclass(frozen=True, slots=True)
class Schema:
    """What each stored trajectory has, and so what batches have."""

    columns: Mapping[str, ColumnSpec]
    """Spec of every column by full name, in the order of batches."""
    defaults: Mapping[str, NDArray[Any] | str] = field(default_factory=dict)
    """What stands in for each optional column: an array that broadcasts to a row, or a string."""
    unseen: frozenset[str] = frozenset()
    """Optional columns that no trajectory has had yet, whose spec is that of the default."""
    drop_others: bool = False
    """As in `Columns`."""

    def to_json(self) -> dict[str, Any]:
        """Return the schema as JSON values."""
        return {
            "columns": {
                name: {"dtype": spec.dtype, "row_shape": list(spec.row_shape)}
                for name, spec in self.columns.items()
            },
            "defaults": {
                name: default
                if isinstance(default, str)
                else {"dtype": default.dtype.name, "value": default.tolist()}
                for name, default in self.defaults.items()
            },
            "unseen": sorted(self.unseen),
            "drop_others": self.drop_others,
        }

    @classmethod
    def from_json(cls, entry: Any) -> Schema:
        """Read what `to_json` gave.

        Raises:
            CorruptFileError: It is something else.
        """
        try:
            columns = {
                str(name): ColumnSpec(str(spec["dtype"]), tuple(int(n) for n in spec["row_shape"]))
                for name, spec in entry["columns"].items()
            }
            for spec in columns.values():
                _ = spec.storage
            defaults = {
                str(name): default
                if isinstance(default, str)
                else np.array(default["value"], np.dtype(default["dtype"]))
                for name, default in entry["defaults"].items()
            }
            return cls(columns, defaults, frozenset(entry["unseen"]), bool(entry["drop_others"]))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise CorruptFileError(f"a schema is {entry!r:.200}, but has no valid form") from error


def admit(schema: Schema | None, declared: Columns, snapshot: Snapshot) -> tuple[Schema, Snapshot]:
    """Check a trajectory against what holds, before anything else changes.

    Args:
        schema: What holds so far; None before the first trajectory.
        declared: The user's declaration, which shapes the first schema.
        snapshot: The trajectory.

    Returns:
        What holds after it, and the trajectory without columns to be dropped.

    Raises:
        ColumnMismatchError: Columns are missing, extra or different; all of them are listed.
    """
    found = {name: _spec_of(column) for name, column in snapshot.columns.items()}
    if schema is None:
        schema = _first_schema(declared, found)
    schema = _with_newly_seen(schema, found)
    missing = [n for n in schema.columns if n not in found and n not in schema.defaults]
    extra = [] if schema.drop_others else [n for n in found if n not in schema.columns]
    different = [
        f"{name} is {found[name]}, not {spec}"
        for name, spec in schema.columns.items()
        if name in found and found[name] != spec
    ]
    if missing or extra or different:
        told = [
            f"{word}: {', '.join(names)}"
            for word, names in (("missing", missing), ("extra", extra), ("different", different))
            if names
        ]
        first = (missing + extra + [entry.split(" ", 1)[0] for entry in different])[0]
        raise ColumnMismatchError(
            f"the trajectory has other columns than this buffer holds ({'; '.join(told)}); make "
            "them alike, or declare them: columns=relive.Columns(optional=..., drop_others=...)",
            column=first,
        )
    kept = {name: snapshot.columns[name] for name in schema.columns if name in found}
    return schema, snapshot if len(kept) == len(found) else replace(snapshot, columns=kept)


def conform(schema: Schema, declared: Columns) -> Schema:
    """Check what a checkpoint or store holds against the user's declaration.

    Returns:
        The schema as the declaration wants it: with its defaults, and without the columns it drops.

    Raises:
        ColumnMismatchError: A required column is missing or different, or one is not declared.
    """
    if declared == Columns():
        return schema
    specs = declared.required if isinstance(declared.required, Mapping) else {}
    wanted = schema.columns if declared.required is None else list(declared.required)
    missing = [n for n in wanted if n not in schema.columns or n in schema.unseen]
    different = [
        f"{name} is {schema.columns[name]}, not {spec}"
        for name, spec in specs.items()
        if name in schema.columns and schema.columns[name] != spec
    ]
    others = [n for n in schema.columns if n not in wanted and n not in declared.optional]
    if missing or different or (others and not declared.drop_others):
        raise ColumnMismatchError(
            "what is stored does not fit the declared columns (missing: "
            f"{', '.join(missing) or '-'}; different: {', '.join(different) or '-'}; not declared: "
            f"{', '.join(others) or '-'}); change columns="
        )
    fresh = _first_schema(Columns(optional=declared.optional), {})
    columns = {n: spec for n, spec in schema.columns.items() if n not in others}
    return replace(
        schema,
        columns={**fresh.columns, **columns},
        defaults={**schema.defaults, **fresh.defaults},
        unseen=schema.unseen | (fresh.unseen - columns.keys()),
        drop_others=declared.drop_others,
    )


def _spec_of(column: Column) -> ColumnSpec:
    return ColumnSpec(column.dtype, column.values.shape[2:])


def _first_schema(declared: Columns, found: Mapping[str, ColumnSpec]) -> Schema:
    defaults: dict[str, NDArray[Any] | str] = {}
    optional: dict[str, ColumnSpec] = {}
    for name, default in declared.optional.items():
        if isinstance(default, str):
            defaults[name], optional[name] = default, ColumnSpec(TEXT)
        else:
            row, dtype = copy_in(np.asarray(default) if np.isscalar(default) else default, name)
            defaults[name], optional[name] = row, ColumnSpec(dtype, row.shape)
    required: dict[str, ColumnSpec | None]
    if isinstance(declared.required, Mapping):
        required = dict(declared.required)
    else:
        names = declared.required
        chosen = [n for n in found if n not in optional] if names is None else list(names)
        required = {name: found.get(name) for name in chosen}
    absent = [name for name, spec in required.items() if spec is None]
    if absent:
        raise ColumnMismatchError(
            f"the trajectory lacks the required columns {', '.join(absent)}; it has "
            f"{', '.join(found)}",
            column=absent[0],
        )
    known = {name: spec for name, spec in required.items() if spec is not None}
    order = [*found, *known, *optional]  # batches keep the trajectory's order
    columns = {n: spec for n in order if (spec := known.get(n, optional.get(n))) is not None}
    return Schema(columns, defaults, frozenset(optional), declared.drop_others)


def _with_newly_seen(schema: Schema, found: Mapping[str, ColumnSpec]) -> Schema:
    """Let the first trajectory that has an optional column fix its spec."""
    columns = dict(schema.columns)
    newly = schema.unseen & found.keys()
    for name in sorted(newly):
        default = schema.defaults[name]
        spec = found[name]
        if isinstance(default, str) != (spec.dtype == TEXT):
            continue  # stays different, and is refused as such
        if not isinstance(default, str) and not _fits(default, spec):
            continue
        columns[name] = spec
    return replace(schema, columns=columns, unseen=schema.unseen - newly) if newly else schema


def _fits(default: NDArray[Any], spec: ColumnSpec) -> bool:
    try:
        broadcast = np.broadcast_shapes(default.shape, spec.row_shape)
    except ValueError:
        return False
    return broadcast == spec.row_shape and np.can_cast(default.dtype, spec.storage, "same_kind")
