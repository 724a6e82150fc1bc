# SPDX-License-Identifier: Apache-2.0
"""Trajectory files of RLinf, which say nothing of themselves.

Files that RLinf writes from its cache (`auto_save=False`) have lost the shape of
`prev_values`; it is found again from the other fields.
"""

from __future__ import annotations

from typing import Any

from relive.columns import Tree
from relive.errors import CorruptFileError
from relive.fields import FACT_FIELDS, FLAG_FIELDS, SHAPE_FIELDS, TREE_FIELDS
from relive.snapshot import Column
from relive.tensors import wrap_out
from relive.trajectory import COLUMN_FIELDS, Trajectory

__all__ = ["trajectory_of"]

_OBSERVATIONS = ("curr_obs", "next_obs")


def trajectory_of(tree: Tree) -> Trajectory:
    """Build the trajectory that a file of RLinf describes.

    Args:
        tree: As `relive.formats.contents.plain_tree` gives it.

    Returns:
        Its tensors are PyTorch's, in memory that the caller owns. What the file holds under
        names that are no fields of `Trajectory` is found under these names in `extras`.

    Raises:
        CorruptFileError: A key is not text, a field that must be a dict is none, or a name
            stands both in the file and in its `extras`.
    """
    trajectory = Trajectory()
    known = {*FACT_FIELDS, *COLUMN_FIELDS}
    others: Tree = {}
    values = tree.get("prev_values")
    if isinstance(values, Column):
        tree = tree | {"prev_values": _restored_values(values, tree)}
    for name, value in tree.items():
        if not isinstance(name, str):
            raise CorruptFileError(
                f"it has a key of type {type(name).__name__}, but fields have names"
            )
        if name in TREE_FIELDS and not isinstance(value, dict):
            raise CorruptFileError(
                f"its field {name!r} is a {type(value).__name__}, but holds a dict"
            )
        if name in known:
            setattr(trajectory, name, _own(value, name))
        else:
            others[name] = _own(value, name)
    twice = others.keys() & trajectory.extras.keys()
    if twice:
        raise CorruptFileError(f"it has {sorted(twice)} both beside and in its extras")
    trajectory.extras = trajectory.extras | others
    return trajectory


def _own(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        return {key: _own(entry, f"{name}/{key}") for key, entry in value.items()}
    if isinstance(value, Column):
        return wrap_out(value.values.copy(), value.dtype, "torch", name)
    return value


def _restored_values(values: Column, tree: Tree) -> Column:
    """Give `[(T + E) * B, ...]` its shape `[T + E, B, ...]` back, if it has lost it."""
    reference, rewards = _reference(tree), tree.get("rewards")
    if reference is None or not values.values.ndim:
        return values
    num_steps, num_envs = reference.values.shape[:2]
    length, num_axes = values.values.shape[0], values.values.ndim
    num_epochs = length // num_envs - num_steps
    is_whole = length % num_envs == 0 and num_epochs >= 1 and num_steps % num_epochs == 0
    # With one env, [T + E, 1] may be whole, or be [T + E, 1, 1] flattened. RLinf flattens only
    # what has lost its extra flag rows too, and its values have as many axes as its rewards.
    is_flat = (
        num_axes == 1
        or num_envs > 1
        or (
            isinstance(rewards, Column)
            and num_axes < rewards.values.ndim
            and not _has_extra_flag_rows(tree, num_steps)
        )
    )
    if not is_whole or not is_flat:
        return values
    # [(T + E) * B, ...] -> [T + E, B, ...]
    shape = (num_steps + num_epochs, num_envs, *values.values.shape[1:])
    return Column(values.values.reshape(shape), values.dtype)


def _reference(tree: Tree) -> Column | None:
    """Return a column that tells T and B."""
    observations = [tree.get(name) for name in _OBSERVATIONS]
    candidates = [tree.get(name) for name in SHAPE_FIELDS]
    for observation in observations:
        if isinstance(observation, dict):
            candidates.extend(observation.values())
    for candidate in candidates:
        if isinstance(candidate, Column) and candidate.values.ndim >= 2 and candidate.values.size:
            return candidate
    return None


def _has_extra_flag_rows(tree: Tree, num_steps: int) -> bool:
    flags = [tree.get(name) for name in FLAG_FIELDS]
    return any(isinstance(flag, Column) and flag.values.shape[:1] > (num_steps,) for flag in flags)
