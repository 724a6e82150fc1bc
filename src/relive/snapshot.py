# SPDX-License-Identifier: Apache-2.0
"""A trajectory as it was at one moment: checked, flat, in memory of our own.

`take_snapshot` is the one door by which a caller's trajectory enters; after it nobody else
can change what is stored. `restore` is the way back out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relive.columns import flatten, unflatten
from relive.dtypes import TEXT, has_numpy_type
from relive.errors import ColumnMismatchError, CorruptFileError, UnsupportedValueError
from relive.fields import EXTENDABLE_FIELDS, FLAG_FIELDS, SHAPE_FIELDS, TREE_FIELDS
from relive.options import is_count
from relive.runs import (
    check_leading_axes,
    num_epochs_of,
    run_breaks,
    run_lengths,
)
from relive.tensors import Framework, copy_in, is_array, shape_of, wrap_out
from relive.trajectory import COLUMN_FIELDS, Trajectory

__all__ = ["Column", "SideValue", "Snapshot", "restore", "take_snapshot"]

SideValue = Any
"""What stays with a trajectory beside its columns: bool, int, float, str, bytes, or {}."""

_PLAIN: Mapping[type, Callable[[Any], SideValue]] = {
    # an enum or another subclass would be stored by its class, which no safe reader makes again
    bool: bool,
    int: int.__int__,
    float: float.__float__,
    str: str.__str__,
    bytes: lambda value: memoryview(value).tobytes(),
}


@dataclass(frozen=True, slots=True)
class Column:
    """One column of one trajectory."""

    values: NDArray[Any]
    """Contiguous `[T, B, ...]`, or `[T + E, B, ...]`, in the storage type of `dtype`."""
    dtype: str
    """Name of the element type; `TEXT` for int32 codes into `table`."""
    table: tuple[str, ...] = ()
    """The strings that the codes of a text column stand for."""
    per_env: bool = False
    """Whether a text column was given as B strings, the same at each step."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A checked copy of one trajectory. Its arrays are shared, never written to."""

    num_steps: int
    """T."""
    num_envs: int
    """B."""
    num_epochs: int
    """E, as far as flags or values tell; else 1."""
    shape: tuple[int, ...]
    """Shape of the tensor that told T and B."""
    columns: Mapping[str, Column]
    """Every column by its full name."""
    side_values: Mapping[str, SideValue] = field(default_factory=dict)
    """What is not a column, by its full name."""
    gaps: NDArray[np.bool_] | None = None
    """Recorded gaps, bool `[T, B]`."""
    max_episode_length: int = 0
    """As in `Trajectory`."""
    model_weights_id: str = ""
    """As in `Trajectory`."""

    @property
    def num_rows(self) -> int:
        """T * B."""
        return self.num_steps * self.num_envs

    @property
    def size_bytes(self) -> int:
        """Bytes of all columns."""
        return sum(column.values.nbytes for column in self.columns.values())

    def texts(self) -> dict[str, tuple[tuple[str, ...], bool]]:
        """Return of each text column the table, and whether it was given as B strings."""
        return {
            name: (column.table, column.per_env)
            for name, column in self.columns.items()
            if column.dtype == TEXT
        }

    def run_lengths(self) -> tuple[int, ...] | None:
        """Return the lengths of all runs, as `relive.runs.run_lengths` does."""
        flags = {name: self.columns[name].values for name in FLAG_FIELDS if name in self.columns}
        breaks = run_breaks(flags, self.num_steps, self.num_envs, self.num_epochs, self.gaps)
        return run_lengths(breaks)

    def version_range(self) -> tuple[int, int] | None:
        """Return the smallest and largest model version that acted, or None if unknown."""
        column = self.columns.get("versions")
        if column is None or not has_numpy_type(column.dtype):
            return None
        if not column.values.size or column.values.dtype.kind not in "iuf":
            return None
        low, high = column.values.min(), column.values.max()
        if not (np.isfinite(low) and np.isfinite(high)):
            return None
        return int(low), int(high)


def take_snapshot(trajectory: Trajectory) -> Snapshot:
    """Check a trajectory and copy it.

    Args:
        trajectory: Its tensors may be non-contiguous, expanded, on a GPU, read-only or part
            of a graph; the caller may reuse them afterwards.

    Raises:
        UnsupportedValueError: A field, value or element type that cannot be stored.
        ColumnMismatchError: Columns disagree about T, B or E, or nothing tells T and B.
    """
    named = _named_values(trajectory)
    shapes = {name: shape_of(value, name) for name, value in named.items() if _is_column(value)}
    for name in SHAPE_FIELDS:
        if name in named and name not in shapes and isinstance(named[name], (list, tuple)):
            raise UnsupportedValueError(
                f"column {name!r} is a {type(named[name]).__name__}, but holds a tensor or array; "
                "convert it, such as by np.array()",
                column=name,
            )
    told_by = _find_telling(shapes)
    shape = shapes[told_by]
    num_steps, num_envs = shape[:2]
    for name, one in shapes.items():
        check_leading_axes(name, one, num_steps, num_envs, told_by=told_by)
    extendable = {name: shapes[name][0] for name in sorted(shapes.keys() & EXTENDABLE_FIELDS)}
    num_epochs = num_epochs_of(extendable, num_steps)
    columns: dict[str, Column] = {}
    side_values: dict[str, SideValue] = {}
    for name, value in named.items():
        if name in shapes:
            columns[name] = Column(*copy_in(value, name))
        elif isinstance(value, (list, tuple, np.ndarray)):
            columns[name] = _text_column(name, value, num_steps, num_envs)
        else:
            side_values[name] = _side_value(name, value)
    return Snapshot(
        num_steps=num_steps,
        num_envs=num_envs,
        num_epochs=num_epochs,
        shape=shape,
        columns=columns,
        side_values=side_values,
        gaps=_copy_gaps(trajectory.gaps, num_steps, num_envs),
        max_episode_length=_checked_length(trajectory.max_episode_length),
        model_weights_id=_checked_weights_id(trajectory.model_weights_id),
    )


def restore(snapshot: Snapshot, framework: Framework = "torch") -> Trajectory:
    """Build a `Trajectory` with the same values, in memory that the caller owns.

    Raises:
        UnsupportedValueError: NumPy was asked for, but a column's type does not exist there.
        CorruptFileError: A column or side value belongs to none of its fields.
    """
    flat: dict[str, Any] = {}
    for name, column in snapshot.columns.items():
        if column.dtype == TEXT:
            texts = np.array(column.table, dtype=object)[column.values].tolist()
            flat[name] = texts[0] if column.per_env else texts
        else:
            flat[name] = wrap_out(column.values.copy(), column.dtype, framework, name)
    flat.update(snapshot.side_values)  # after the columns, whose order must stay
    trajectory = Trajectory(
        max_episode_length=snapshot.max_episode_length, model_weights_id=snapshot.model_weights_id
    )
    for name, value in unflatten(flat).items():
        if name not in COLUMN_FIELDS:  # a file must not put itself in the place of a method
            raise CorruptFileError(f"{name!r} is stored, but is no field of a trajectory")
        setattr(trajectory, name, value)
    if snapshot.gaps is not None:
        trajectory.gaps = wrap_out(snapshot.gaps.copy(), "bool", framework, "gaps")
    return trajectory


def _named_values(trajectory: Trajectory) -> dict[str, Any]:
    if not isinstance(trajectory, Trajectory):
        raise UnsupportedValueError(
            f"a trajectory is a {type(trajectory).__name__}, but only relive.Trajectory can be "
            "added; build one, its fields are those of RLinf"
        )
    tree: dict[str, Any] = {}
    for name in COLUMN_FIELDS:
        value = getattr(trajectory, name)
        is_tree = isinstance(value, Mapping)
        if is_tree != (name in TREE_FIELDS) and value is not None:
            holds = "a dict" if name in TREE_FIELDS else "a tensor or array"
            cure = "extras={...}" if is_tree else f"{name}={{'states': ...}}"
            raise UnsupportedValueError(
                f"field {name!r} is a {type(value).__name__}, but it holds {holds}; give {cure}",
                column=name,
            )
        if not is_tree or value:
            tree[name] = value
    return flatten(tree)


def _find_telling(shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Return the column whose first two axes are taken for T and B."""
    observations = [name for name in shapes if name.startswith(("curr_obs/", "next_obs/"))]
    for name in (*SHAPE_FIELDS, *observations):
        if name not in shapes:
            continue
        shape = shapes[name]
        if len(shape) < 2 or 0 in shape[:2]:
            cure = "give one env an axis of its own, such as x[:, None]"
            if 0 in shape[:2]:
                cure = "leave a trajectory without rows out"
            raise ColumnMismatchError(
                f"column {name!r} is {list(shape)}, but columns are [T, B, ...] with T and B at "
                f"least 1; {cure}",
                column=name,
            )
        return name
    raise ColumnMismatchError(
        "the trajectory has neither actions, rewards, prev_logprobs nor an observation, but one "
        "of them must tell T and B; set one"
    )


def _is_column(value: object) -> bool:
    """Tell whether it is a tensor or array of numbers, not a single number and no text."""
    is_text = isinstance(value, np.ndarray) and value.dtype.kind in "UO"
    return is_array(value) and not isinstance(value, np.generic) and not is_text


def _text_column(name: str, value: Any, num_steps: int, num_envs: int) -> Column:
    """Read B strings, or T lists of B strings, from a list or array."""
    if name in EXTENDABLE_FIELDS:
        kind = f"an array of {value.dtype}" if isinstance(value, np.ndarray) else "a list"
        raise UnsupportedValueError(
            f"column {name!r} is {kind}, but flags and values are tensors or arrays of numbers; "
            "convert it",
            column=name,
        )
    kind = "a list"
    if isinstance(value, np.ndarray):
        kind, value = f"an array of {value.dtype}", value.tolist()
    per_env = all(isinstance(entry, str) for entry in value)
    rows = [value] if per_env else value
    if len(rows) != (1 if per_env else num_steps) or not all(
        isinstance(row, (list, tuple))
        and len(row) == num_envs
        and all(isinstance(entry, str) for entry in row)
        for row in rows
    ):
        raise UnsupportedValueError(
            f"column {name!r} is {kind} of other things, but such hold text: B = {num_envs} "
            f"strings, or T = {num_steps} lists of B strings; make anything else a tensor "
            "[T, B, ...] of numbers (pad what has no fixed length)",
            column=name,
        )
    codes_of: dict[str, int] = {}
    codes = [
        [codes_of.setdefault(str.__str__(text), len(codes_of)) for text in row] for row in rows
    ]
    values = np.broadcast_to(np.array(codes, np.int32), (num_steps, num_envs))
    return Column(np.ascontiguousarray(values), TEXT, tuple(codes_of), per_env)


def _side_value(name: str, value: Any) -> SideValue:
    if isinstance(value, np.generic):
        value = value.item()
    if name not in COLUMN_FIELDS:
        if isinstance(value, Mapping) and not value:
            return {}
        for kind, plain in _PLAIN.items():
            if isinstance(value, kind):
                return plain(value)
    raise UnsupportedValueError(
        f"{name!r} is a {type(value).__name__}, but a column is a tensor, an array or lists of "
        "strings, and a side value below extras or an observation is a bool, int, float, str or "
        "bytes; convert it",
        column=name,
    )


def _copy_gaps(gaps: Any, num_steps: int, num_envs: int) -> NDArray[np.bool_] | None:
    if gaps is None:
        return None
    if not is_array(gaps):
        raise UnsupportedValueError(
            f"gaps is a {type(gaps).__name__}, but must be a bool tensor or array [T, B]; convert "
            "it",
            column="gaps",
        )
    copied, dtype = copy_in(gaps, "gaps")
    if dtype != "bool" or copied.shape != (num_steps, num_envs):
        raise ColumnMismatchError(
            f"gaps is {dtype} {list(copied.shape)}, but must be bool [T, B] = "
            f"[{num_steps}, {num_envs}]; give one flag for each row",
            column="gaps",
        )
    return copied


def _checked_length(length: Any) -> int:
    if not is_count(length, 0) or length >= 1 << 63:
        raise UnsupportedValueError(
            f"max_episode_length is {length!r}, but must be an integer from 0 to 2**63 - 1; leave "
            "it at 0 when unknown",
            column="max_episode_length",
        )
    return int(length)


def _checked_weights_id(weights_id: Any) -> str:
    if not isinstance(weights_id, str):
        raise UnsupportedValueError(
            f"model_weights_id is a {type(weights_id).__name__}, but must be text; convert it with "
            "str()",
            column="model_weights_id",
        )
    return str.__str__(weights_id)
