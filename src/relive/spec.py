# SPDX-License-Identifier: Apache-2.0
"""Which columns the trajectories of a buffer have, and the check that they do.

`Columns` is what a user declares. A `Schema` is what holds: it is made from the declaration
and the first trajectory, is stored with the data, and each later trajectory must fit it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relive.column_spec import ColumnSpec, Default, row_from_json, row_to_json
from relive.columns import SEPARATOR
from relive.dtypes import TEXT, has_numpy_type
from relive.errors import ColumnMismatchError, CorruptFileError, InvalidArgumentError
from relive.fields import TREE_FIELDS
from relive.options import check_kind, nearest
from relive.snapshot import Column, Snapshot
from relive.tensors import is_tensor
from relive.trajectory import COLUMN_FIELDS

__all__ = ["ColumnSpec", "Columns", "Schema", "admit", "conform"]


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
    """Full names that may be missing, with the value that stands in: a number, a string, or an
    array of one row. Until a trajectory has the column, the value's own type and shape hold."""
    drop_others: bool = False
    """Whether columns that are neither are left out, instead of refused."""

    def __post_init__(self) -> None:
        """Check the declaration.

        Raises:
            InvalidArgumentError: A name is both required and optional, or is no text, or a spec
                is none.
            UnsupportedValueError: No column can hold a value that stands in.
        """
        optional: object = self.optional
        required: object = self.required
        is_list = required is None or isinstance(required, Iterable)
        if not is_list or isinstance(required, str) or not isinstance(optional, Mapping):
            raise InvalidArgumentError(
                f"required is {self.required!r} and optional {self.optional!r}, but they must be a "
                "list of column names, and a dict of names and values; put one name in brackets, "
                "and give each optional one a value"
            )
        if self.required is not None and not isinstance(self.required, Mapping):
            object.__setattr__(self, "required", tuple(self.required))
        names: list[object] = [*(self.required or ()), *self.optional]
        both = sorted({str(name) for name in names if names.count(name) > 1})
        if both or not all(isinstance(name, str) and name for name in names):
            raise InvalidArgumentError(
                f"columns {both or names} are declared twice or are no text, but each name is "
                "either required or optional; name each once"
            )
        check_kind("drop_others", self.drop_others, bool)
        _check_names([str(name) for name in names])
        if isinstance(self.required, Mapping):
            for name, spec in self.required.items():
                _check_declared(name, spec)
        own = {
            name: value.detach().clone() if is_tensor(value) else deepcopy(value)
            for name, value in self.optional.items()
        }
        object.__setattr__(self, "optional", own)
        _defaults_of(self)


def _check_names(names: Sequence[str]) -> None:
    """Refuse names that are no place in a trajectory, or that lie in one another."""
    for name in names:
        root, *path = name.split(SEPARATOR)
        is_place = root in COLUMN_FIELDS and bool(path) == (root in TREE_FIELDS) and all(path)
        inner = [other for other in names if other.startswith(f"{name}{SEPARATOR}")]
        if not is_place or inner:
            close = nearest(root, COLUMN_FIELDS)
            cure = f"did you mean {close!r}?" if close else "correct the name"
            if root in TREE_FIELDS:
                cure = f"name what is in {root}, such as '{root}/states'"
            raise InvalidArgumentError(
                f"column {name!r} is declared{f' beside {inner[0]!r}' if inner else ''}, but a "
                f"column is a field of Trajectory, or a path below {', '.join(TREE_FIELDS)}; {cure}"
            )


def _check_declared(name: str, spec: object) -> None:
    told = (
        f"column {name!r} is declared as {spec!r}, but must be a ColumnSpec of a PyTorch type or "
        "'text' and of a shape"
    )
    cure = "give one such as ColumnSpec('float32', (3,))"
    if not isinstance(spec, ColumnSpec):
        raise InvalidArgumentError(f"{told}; {cure}")
    try:
        spec.check(None)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidArgumentError(f"{told} ({error}); {cure}") from error


@dataclass(frozen=True, slots=True, eq=False)
class Schema:
    """What each stored trajectory has, and so what batches have."""

    columns: Mapping[str, ColumnSpec]
    """Spec of every column by full name, in the order of batches."""
    defaults: Mapping[str, NDArray[Any] | str] = field(default_factory=dict)
    """What stands in for each optional column: an array that broadcasts to a row of it, in its
    storage type, or a string."""
    unseen: frozenset[str] = frozenset()
    """Optional columns that no trajectory has had yet, whose spec is that of the default."""
    drop_others: bool = False
    """As in `Columns`."""

    def __eq__(self, other: object) -> bool:
        """Tell whether the same holds, to the order of the columns and the bits of the defaults."""
        return isinstance(other, Schema) and json.dumps(self.to_json()) == json.dumps(
            other.to_json()
        )

    def to_json(self) -> dict[str, Any]:
        """Return the schema as JSON values."""
        return {
            "columns": {
                name: {"dtype": spec.dtype, "row_shape": list(spec.row_shape)}
                for name, spec in self.columns.items()
            },
            "defaults": {
                name: default if isinstance(default, str) else row_to_json(default)
                for name, default in self.defaults.items()
            },
            "unseen": sorted(self.unseen),
            "drop_others": self.drop_others,
        }

    @classmethod
    def from_json(cls, entry: Any) -> Schema:
        """Read what `to_json` gave.

        Raises:
            CorruptFileError: It is something else, or contradicts itself.
        """
        try:
            return _read_schema(entry)
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
            raise CorruptFileError(f"a schema is {entry!r:.200}, but has no valid form") from error


def _read_schema(entry: Any) -> Schema:
    columns = {
        str(name): ColumnSpec(str(spec["dtype"]), tuple(int(n) for n in spec["row_shape"]))
        for name, spec in entry["columns"].items()
    }
    defaults = {
        str(name): default if isinstance(default, str) else row_from_json(default)
        for name, default in entry["defaults"].items()
    }
    for name, spec in columns.items():
        spec.check(defaults.get(name))
    unseen = frozenset(entry["unseen"])
    if not unseen <= defaults.keys() <= columns.keys():
        raise ValueError("unseen columns have defaults, and defaults columns")
    if any(np.shape(defaults[name]) != columns[name].row_shape for name in unseen):
        raise ValueError("unseen columns have the shape of their defaults")
    return Schema(columns, defaults, unseen, bool(entry["drop_others"]))


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
    different = {
        name: f"{name} is {found[name]}, not {spec}{' as its default is' * (name in schema.unseen)}"
        for name, spec in schema.columns.items()
        if name in found and found[name] != spec
    }
    for name in schema.columns.keys() & snapshot.side_values.keys():
        different[name] = f"{name} is a side value, not {schema.columns[name]}"
    missing = [name for name in missing if name not in different]
    if missing or extra or different:
        told = [
            f"{word}: {', '.join(names)}"
            for word, names in (
                ("missing", missing),
                ("extra", extra),
                ("different", different.values()),
            )
            if names
        ]
        first = [*missing, *extra, *different][0]
        cure = _cure(schema, found, len(missing) + len(extra), different)
        raise ColumnMismatchError(
            f"the trajectory has other columns than this buffer holds ({'; '.join(told)}), but all "
            f"trajectories must be alike; {cure}",
            column=first,
        )
    kept = {name: snapshot.columns[name] for name in schema.columns if name in found}
    return schema, snapshot if len(kept) == len(found) else replace(snapshot, columns=kept)


def _cure(
    schema: Schema, found: Mapping[str, ColumnSpec], num_others: int, different: Iterable[str]
) -> str:
    """Say how a trajectory comes to fit: what to convert, and how to declare anything else."""
    cures = []
    for name in different:
        wanted = schema.columns[name]
        if name in schema.unseen:
            cures.append(f"give {name} a default that is such a row, in columns=")
        elif name in found and found[name].row_shape == wanted.row_shape and wanted.dtype != TEXT:
            by_numpy = f".astype({wanted.dtype!r}) or " if has_numpy_type(wanted.dtype) else ""
            cures.append(f"convert {name} with {by_numpy}.to(torch.{wanted.dtype})")
        else:
            num_others += 1
    if num_others:
        cures.append(
            "make the columns alike, or declare them: columns=relive.Columns(optional=..., "
            "drop_others=...)"
        )
    return ", and ".join(cures)


def conform(schema: Schema, declared: Columns) -> Schema:
    """Check what a checkpoint or store holds against the user's declaration.

    Returns:
        The schema as the declaration wants it: with its defaults, and without the columns it drops.

    Raises:
        ColumnMismatchError: A required column is missing or different, a column is not declared,
            or the value that stands in for one does not fit it.
    """
    specs = declared.required if isinstance(declared.required, Mapping) else {}
    required = schema.columns if declared.required is None else list(declared.required)
    missing = [n for n in declared.required or () if n not in schema.columns.keys() - schema.unseen]
    others = [n for n in schema.columns if n not in required and n not in declared.optional]
    different = [
        f"{name} is {schema.columns[name]}, not {spec}"
        for name, spec in specs.items()
        if name in schema.columns and schema.columns[name] != spec
    ]
    columns, defaults = {**schema.columns}, {**schema.defaults}
    for name, default in _defaults_of(declared).items():
        if name not in schema.columns or name in schema.unseen:
            columns[name], defaults[name] = default.spec, default.value
            continue
        value = default.value_for(schema.columns[name])
        if value is None:
            different.append(f"{name} is {schema.columns[name]}, not {default.spec}")
        else:
            defaults[name] = value
    if missing or different or (others and not declared.drop_others):
        raise ColumnMismatchError(
            "what is stored has other columns (missing: "
            f"{', '.join(missing) or '-'}; different: {', '.join(different) or '-'}; not declared: "
            f"{', '.join(others) or '-'}), but must fit those declared; change columns=, or open "
            "without it"
        )
    kept = {name: spec for name, spec in columns.items() if name not in others}
    return Schema(
        columns=kept,
        defaults={name: value for name, value in defaults.items() if name in kept},
        unseen=(schema.unseen | (declared.optional.keys() - schema.columns.keys())) & kept.keys(),
        drop_others=declared.drop_others or (declared.required is None and schema.drop_others),
    )


def _spec_of(column: Column) -> ColumnSpec:
    return ColumnSpec(column.dtype, column.values.shape[2:])


def _defaults_of(declared: Columns) -> dict[str, Default]:
    return {name: Default.of(name, value) for name, value in declared.optional.items()}


def _first_schema(declared: Columns, found: Mapping[str, ColumnSpec]) -> Schema:
    optional = _defaults_of(declared)
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
            f"the trajectory has {', '.join(found)}, but lacks the required columns "
            f"{', '.join(absent)}; set them, or declare them optional",
            column=absent[0],
        )
    known = {name: spec for name, spec in required.items() if spec is not None}
    known |= {name: default.spec for name, default in optional.items()}
    order = dict.fromkeys([*found, *known])  # batches keep the trajectory's order
    return Schema(
        columns={name: known[name] for name in order if name in known},
        defaults={name: default.value for name, default in optional.items()},
        unseen=frozenset(optional),
        drop_others=declared.drop_others,
    )


def _with_newly_seen(schema: Schema, found: Mapping[str, ColumnSpec]) -> Schema:
    """Let the first trajectory that has an optional column fix its spec."""
    columns, defaults, unseen = {**schema.columns}, {**schema.defaults}, set(schema.unseen)
    for name in sorted(schema.unseen & found.keys()):
        default = Default(defaults[name], columns[name])
        value = default.value_for(found[name])
        if value is not None:  # else it stays different, and is refused as such
            columns[name], defaults[name] = found[name], value
            unseen.discard(name)
    if len(unseen) == len(schema.unseen):
        return schema
    return replace(schema, columns=columns, defaults=defaults, unseen=frozenset(unseen))
