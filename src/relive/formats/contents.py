# SPDX-License-Identifier: Apache-2.0
"""The dict that a pt or pkl file holds: RLinf's fields, and one of ours beside them.

`file_tree` builds it from a snapshot, `snapshot_of` is the way back. docs/format.md describes
it.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relive.columns import SEPARATOR, Tree, flatten, unflatten
from relive.dtypes import TEXT
from relive.errors import (
    CorruptFileError,
    FormatVersionError,
    MissingPackageError,
    UnsupportedValueError,
)
from relive.fields import TREE_FIELDS
from relive.formats.foreign import trajectory_of
from relive.formats.tensorpickle import StoredTensor
from relive.importing import importing
from relive.record import Record
from relive.snapshot import Column, SideValue, Snapshot, restore
from relive.tensors import copy_in, is_tensor, wrap_out
from relive.trajectory import COLUMN_FIELDS, Trajectory

__all__ = ["OURS", "file_tree", "import_torch", "plain_tree", "snapshot_of", "trajectory_in"]

OURS = "relive"
"""The key under which our own facts stand; RLinf keeps it as an attribute that it never reads."""

_VERSION = 1
_ALWAYS_WRITTEN = ("forward_inputs", "curr_obs", "next_obs")
_MOST_VISITS = 16
_MISFITS = (LookupError, TypeError, AttributeError, ValueError, ArithmeticError)


def import_torch(format_name: str) -> None:
    """Import PyTorch, whose tensors stand in the files.

    Raises:
        MissingPackageError: It is not installed.
    """
    try:
        with importing.lock:
            importlib.import_module("torch")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise  # it is there, and lacks something itself
        raise MissingPackageError(
            f"torch is not installed, but the files of format {format_name!r} hold its tensors; "
            "run `pip install torch`, or choose format 'memmap'"
        ) from error


def file_tree(record: Record, snapshot: Snapshot) -> Tree:
    """Return the dict to write, with PyTorch tensors that share the snapshot's memory.

    Each tensor has a storage of its own that is no larger than it.
    """
    texts = {name for name, column in snapshot.columns.items() if column.dtype == TEXT}
    leaves = {name: _side_leaf(value) for name, value in snapshot.side_values.items()}
    leaves.update(
        (name, _tensor(column.values, column.dtype, name))
        for name, column in snapshot.columns.items()
        if name not in texts
    )
    fields = unflatten(leaves)
    tree: Tree = {
        "max_episode_length": snapshot.max_episode_length,
        "model_weights_id": snapshot.model_weights_id,
    }
    for name in COLUMN_FIELDS:
        if name in fields or name in _ALWAYS_WRITTEN:
            tree[name] = fields.get(name, {})
    if snapshot.gaps is not None:
        tree["gaps"] = _tensor(snapshot.gaps, "bool", "gaps")
    tree[OURS] = {
        "version": _VERSION,
        "uuid": record.uuid,
        "trajectory_id": record.trajectory_id,
        "first_row_id": record.first_row_id,
        "num_epochs": snapshot.num_epochs,
        "shape": list(snapshot.shape),
        "columns": list(snapshot.columns),
        "bytes": [name for name, value in snapshot.side_values.items() if isinstance(value, bytes)],
        "texts": {name: _text_facts(snapshot.columns[name], name) for name in sorted(texts)},
    }
    return tree


def _side_leaf(value: SideValue) -> Any:
    # torch.load(weights_only=True), with which RLinf reads, refuses empty bytes
    return (
        _tensor(np.frombuffer(value, np.uint8), "uint8", "") if isinstance(value, bytes) else value
    )


def _text_facts(column: Column, name: str) -> Tree:
    return {
        "codes": _tensor(column.values, "int32", name),
        "table": list(column.table),
        "per_env": column.per_env,
    }


def _tensor(values: NDArray[Any], dtype: str, name: str) -> Any:
    # PyTorch warns of memory that it could write to but must not
    own = values if values.flags.writeable and values.flags.c_contiguous else values.copy(order="C")
    return wrap_out(own, dtype, "torch", name)


def plain_tree(value: Any, num_steps: int) -> Tree:
    """Return what a decoded file holds, with a `Column` for each tensor.

    Args:
        value: What was decoded.
        num_steps: How many instructions made it. What has 16 times as many parts repeats itself,
            and could keep a reader busy for ever.

    Raises:
        CorruptFileError: It is no dict, is nested deeper than Python's stack, has too many parts,
            or a tensor that no column can hold.
    """
    if not isinstance(value, Mapping):
        raise CorruptFileError(f"it holds a {type(value).__name__}, not the fields of a trajectory")
    try:
        tree: Tree = _Plain(_MOST_VISITS * num_steps).copy(value)
    except RecursionError as error:
        raise CorruptFileError("it holds containers that contain each other") from error
    return tree


class _Plain:
    """A walk with a limit of visits."""

    def __init__(self, most_visits: int) -> None:
        self._visits_left = most_visits

    def copy(self, value: Any) -> Any:
        self._visits_left -= 1
        if self._visits_left < 0:
            raise CorruptFileError("it holds containers that contain each other")
        if isinstance(value, Mapping):
            return {key: self.copy(entry) for key, entry in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.copy(entry) for entry in value]
        if isinstance(value, StoredTensor):
            return value.column()
        if is_tensor(value):
            return _column_of(value)
        return value


def _column_of(tensor: Any) -> Column:
    try:
        return Column(*copy_in(tensor, ""))
    except UnsupportedValueError as error:
        raise CorruptFileError(f"it holds a tensor of no use: {error}") from error


def trajectory_in(tree: Tree) -> Trajectory:
    """Read the dict of any file, ours or RLinf's.

    Args:
        tree: As `plain_tree` gives it.

    Returns:
        Its tensors are PyTorch's, in memory that the caller owns.

    Raises:
        CorruptFileError: The dict is no trajectory.
        FormatVersionError: A later release wrote it.
    """
    if OURS not in tree:
        return trajectory_of(tree)
    _, snapshot = snapshot_of(tree)
    try:
        return restore(snapshot)
    except _MISFITS as error:
        raise CorruptFileError(f"its fields do not fit together: {error}") from error


def snapshot_of(tree: Tree) -> tuple[str, Snapshot]:
    """Read the dict of a file that we wrote.

    Args:
        tree: As `plain_tree` gives it.

    Returns:
        The uuid of the trajectory, and its rows.

    Raises:
        CorruptFileError: The dict is none of ours.
        FormatVersionError: A later release wrote it.
    """
    ours = tree.get(OURS)
    if not isinstance(ours, Mapping) or not isinstance(ours.get("version"), int):
        raise CorruptFileError(f"it has no version under {OURS!r}, so another program wrote it")
    if ours["version"] > _VERSION:
        raise FormatVersionError(
            f"it is of version {ours['version']}, but this release knows {_VERSION}; update relive"
        )
    try:
        return str(ours["uuid"]), _Ours(tree, ours).snapshot()
    except CorruptFileError:
        raise
    except _MISFITS as error:
        raise CorruptFileError(f"its fields do not fit together: {error}") from error


@dataclass(frozen=True, slots=True)
class _Ours:
    """The dict of a file of ours, while it is read."""

    tree: Tree
    facts: Mapping[str, Any]

    def snapshot(self) -> Snapshot:
        shape = tuple(int(length) for length in self.facts["shape"])
        if min(shape) < 0 or not shape[0] or not shape[1]:
            raise CorruptFileError(f"it says that its shape is {list(shape)}")
        leaves = flatten({name: self.tree[name] for name in COLUMN_FIELDS if name in self.tree})
        columns = {name: self._column(name, leaves) for name in self.facts["columns"]}
        side_values = self._side_values(leaves)
        _check_names([*columns, *side_values])
        gaps = self.tree.get("gaps")
        if gaps is not None and (gaps.dtype != "bool" or gaps.values.shape != shape[:2]):
            raise CorruptFileError("its gaps are not bool [T, B]")
        return Snapshot(
            num_steps=shape[0],
            num_envs=shape[1],
            num_epochs=int(self.facts["num_epochs"]),
            shape=shape,
            columns=columns,
            side_values=side_values,
            gaps=None if gaps is None else gaps.values,
            max_episode_length=int(self.tree["max_episode_length"]),
            model_weights_id=str(self.tree["model_weights_id"]),
        )

    def _column(self, name: str, leaves: dict[str, Any]) -> Column:
        text = self.facts["texts"].get(name)
        if text is None:
            column = leaves.pop(name)
            if not isinstance(column, Column):
                raise CorruptFileError(f"column {name!r} is a {type(column).__name__}")
            return column
        codes, table = text["codes"].values, tuple(text["table"])
        if not all(isinstance(entry, str) for entry in table) or (
            codes.size and not 0 <= codes.min() <= codes.max() < len(table)
        ):
            raise CorruptFileError(f"the codes of text column {name!r} do not fit its table")
        return Column(codes, TEXT, table, bool(text["per_env"]))

    def _side_values(self, leaves: dict[str, Any]) -> dict[str, SideValue]:
        side_values: dict[str, SideValue] = {}
        for name, value in leaves.items():
            if name in TREE_FIELDS and value == {}:
                continue  # a tree without leaves
            if name in self.facts["bytes"]:
                side_values[name] = value.values.tobytes()
            elif not isinstance(value, (bool, int, float, str)) and value != {}:
                raise CorruptFileError(f"it has {name!r}, which is none of its columns")
            else:
                side_values[name] = value
        return side_values


def _check_names(names: list[str]) -> None:
    """Refuse names that are no places in a trajectory, or of which one lies below another.

    The names of text columns are what the file says of them, and become names of attributes.
    """
    parents: set[str] = set()
    for name in names:
        keys = name.split(SEPARATOR)
        parents.update(SEPARATOR.join(keys[:depth]) for depth in range(1, len(keys)))
        if keys[0] not in COLUMN_FIELDS or (keys[0] in TREE_FIELDS) != (len(keys) > 1):
            raise CorruptFileError(f"it has {name!r:.200}, which is no place in a trajectory")
    below = sorted(parents.intersection(names))
    if below:
        raise CorruptFileError(f"it has {below[0]!r:.200} and something below it")
