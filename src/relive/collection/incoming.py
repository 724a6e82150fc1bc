# SPDX-License-Identifier: Apache-2.0
"""The columns of one part: checked by themselves, copied, flattened.

What a part must agree on with other parts of its trajectory is checked in `rollout`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relive.column_spec import ColumnSpec
from relive.columns import SEPARATOR, flatten
from relive.dtypes import TEXT, has_numpy_type
from relive.errors import PartMismatchError, UnsupportedValueError
from relive.fields import FLAG_FIELDS, TREE_FIELDS
from relive.options import is_count
from relive.part import TrajectoryPart
from relive.tensors import copy_in, is_array, is_tensor
from relive.trajectory import COLUMN_FIELDS

__all__ = [
    "VERSIONS",
    "Incoming",
    "check_name",
    "flat_columns",
    "mismatch",
    "read_part",
    "shown",
]

VERSIONS = "versions"
"""The one column that may be given as a single number, for all envs."""

_NUMBER_FIELDS = (*FLAG_FIELDS, VERSIONS, "gaps")


@dataclass(frozen=True, slots=True)
class Incoming:
    """One column of one part, in memory of our own."""

    rows: NDArray[Any] | list[str]
    """`[B, ...]` in the storage type, or B texts."""
    spec: ColumnSpec
    """What its rows have in common."""
    is_tensor: bool
    """Whether it came as a PyTorch tensor."""

    def has_same_values(self, rows: NDArray[Any] | list[str]) -> bool:
        """Tell whether these rows of the same spec are the same, bit for bit."""
        if isinstance(self.rows, list):
            return bool(self.rows == rows)
        return self.rows.tobytes() == np.asarray(rows).tobytes()


def shown(spec: ColumnSpec) -> str:
    """Return a spec as messages about parts show it.

    Example:
        >>> shown(ColumnSpec("float32", (3,)))
        'float32 [B, 3]'
    """
    return f"{spec.dtype} [{', '.join(map(str, ('B', *spec.row_shape)))}]"


def mismatch(part: TrajectoryPart, fault: str, *, column: str = "") -> PartMismatchError:
    """Return the error that this part does not fit, naming its key.

    Args:
        part: The part.
        fault: What it has or is, what holds, and what to do.
        column: The column concerned, or "".
    """
    return PartMismatchError(
        f"the part of group {part.group!r}, incarnation {part.incarnation}, trajectory "
        f"{part.trajectory}, epoch {part.epoch}, step {part.step} {fault}",
        group=part.group,
        step=part.step,
        column=column,
    )


def check_name(name: object) -> str:
    """Return what is wrong with a column's name; "" when nothing is.

    Example:
        >>> check_name("curr_obs/states"), check_name("obs")
        ('', "'obs' is no field of a trajectory; use 'extras/obs'")
    """
    if not isinstance(name, str) or not all(name.split(SEPARATOR)):
        return f"{name!r} is no path of names; use one such as 'curr_obs/states'"
    field, separator, rest = name.partition(SEPARATOR)
    if field not in COLUMN_FIELDS and field != "gaps":
        return f"{name!r} is no field of a trajectory; use {'extras/' + name!r}"
    if field in TREE_FIELDS and not rest:
        return f"{name!r} is a nested dict in a trajectory; name what lies in it"
    if field not in TREE_FIELDS and separator:
        return f"{name!r} lies in {field!r}, which is one column in a trajectory; use 'extras'"
    return ""


def flat_columns(part: TrajectoryPart) -> dict[str, Any]:
    """Return a part's columns as they are, by their full names.

    Raises:
        UnsupportedValueError: A name is no text, is empty, or has a "/" in it.
    """
    return {
        name: leaf
        for name, leaf in flatten(part.columns).items()
        # An empty tree field is what a trajectory has by default.
        if not (name in TREE_FIELDS and isinstance(leaf, Mapping))
    }


def read_part(part: TrajectoryPart) -> tuple[dict[str, Incoming], int]:
    """Check and copy the columns of a part.

    A single number as `versions` is stamped on all envs: int64 `[B]`, or float32 `[B]` for one
    of a float type; as a tensor when another column of the part is one.

    Args:
        part: Any part; its arrays may be reused afterwards.

    Returns:
        The columns by their full names, and B.

    Raises:
        PartMismatchError: There is no column, a name is no field of a trajectory, or the columns
            do not all have B rows, at least 1; or `versions` is a number that its type has not.
        UnsupportedValueError: A value is no tensor, array or list of texts, or has an element
            type that cannot be stored.
    """
    given = flat_columns(part)
    for name in given:
        if fault := check_name(name):
            raise mismatch(part, f"has a column of no trajectory: {fault}", column=name)
    version = given.pop(VERSIONS) if _is_number(given.get(VERSIONS)) else None
    incoming = {name: _read_column(part, name, leaf) for name, leaf in given.items()}
    num_envs = _num_envs(part, incoming)
    if version is not None:
        is_torch = any(column.is_tensor for column in incoming.values())
        incoming[VERSIONS] = _stamp(part, version, num_envs, is_torch)
    return incoming, num_envs


def _is_number(leaf: Any) -> bool:
    if is_array(leaf):
        return np.ndim(leaf) == 0
    return isinstance(leaf, (int, float)) and not isinstance(leaf, bool)


def _stamp(part: TrajectoryPart, version: Any, num_envs: int, is_torch: bool) -> Incoming:
    number = version.item() if is_array(version) else version
    dtype = "int64" if isinstance(number, int) else "float32"
    if not _is_held(number):
        raise mismatch(
            part,
            f"has the single number {number!r} as 'versions', but one number is stored as int64 or "
            f"float32, and neither holds it; give an array of {num_envs}, one for each env",
            column=VERSIONS,
        )
    rows = np.full(num_envs, number, dtype)
    return Incoming(rows, ColumnSpec(dtype), is_torch)


def _is_held(number: Any) -> bool:
    """Tell whether int64 holds an integer, or float32 a float, as it is."""
    if isinstance(number, float):
        with np.errstate(over="ignore"):
            return float(np.float32(number)) == number or math.isnan(number)
    return is_count(number, -1 << 63) and bool(number < 1 << 63)


def _read_column(part: TrajectoryPart, name: str, leaf: Any) -> Incoming:
    if isinstance(leaf, (list, tuple)) and all(isinstance(text, str) for text in leaf):
        column = Incoming([str(text) for text in leaf], ColumnSpec(TEXT), is_tensor=False)
    elif is_array(leaf):
        rows, dtype = copy_in(leaf, name)
        if not rows.ndim:
            raise mismatch(
                part,
                f"has a single number as {name!r}, but columns are [B, ...]; give one for each env",
                column=name,
            )
        column = Incoming(rows, ColumnSpec(dtype, rows.shape[1:]), is_tensor(leaf))
    else:
        raise UnsupportedValueError(
            f"column {name!r} is a {type(leaf).__name__} in a part of group {part.group!r}, step "
            f"{part.step}, but must be a tensor, an array or a list of B texts; convert it",
            column=name,
        )
    numbers = has_numpy_type(column.spec.dtype) and 0 not in column.spec.row_shape
    if name in _NUMBER_FIELDS and not numbers:
        raise mismatch(
            part,
            f"has {shown(column.spec)} as {name!r}, but that must be numbers of a NumPy type; "
            "convert it, or put it below extras",
            column=name,
        )
    return column


def _num_envs(part: TrajectoryPart, incoming: Mapping[str, Incoming]) -> int:
    counts = {name: len(column.rows) for name, column in incoming.items()}
    if not counts:
        raise mismatch(
            part, "has no column [B, ...], but must bring at least one; put it into columns"
        )
    first, num_envs = next(iter(counts.items()))
    for name, count in counts.items():
        if count != num_envs or not count:
            raise mismatch(
                part,
                f"has {count} rows in column {name!r} and {num_envs} in {first!r}, but all "
                "columns of a part have one row for each of its B envs, B at least 1; give them "
                "the same length",
                column=name,
            )
    return num_envs
