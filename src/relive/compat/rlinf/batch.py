# SPDX-License-Identifier: Apache-2.0
"""RLinf's `convert_trajectories_to_batch`: trajectories side by side along B."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from relive.columns import Tree, unflatten
from relive.compat.rlinf.trajectory import as_trajectory
from relive.errors import ColumnMismatchError
from relive.fields import TREE_FIELDS
from relive.importing import importing
from relive.interventions import named_columns
from relive.options import checked_list
from relive.tensors import copy_in, is_array, is_tensor, wrap_out

__all__ = ["convert_trajectories_to_batch"]


def convert_trajectories_to_batch(trajectories: Sequence[Any]) -> Tree:
    """Join trajectories along B into one nested dict `[T, B1 + B2 + ..., ...]`.

    Args:
        trajectories: Of equal T and E, with the same columns, ours or RLinf's. Fields that are
            None or empty are left out.

    Returns:
        Tensors, on the device they were on; text as lists; side values that all have alike. Empty
        when there are no trajectories.

    Raises:
        InvalidArgumentError: `trajectories` is no list.
        ColumnMismatchError: A column is missing in some, or differs in more than B.
        UnsupportedValueError: Something is no trajectory, or a column has no element type of ours.

    Example:
        >>> import torch
        >>> from relive import Trajectory
        >>> parts = [Trajectory(rewards=torch.full((3, 2), float(k))) for k in range(2)]
        >>> convert_trajectories_to_batch(parts)["rewards"][0]
        tensor([0., 0., 1., 1.])
    """
    given = checked_list("trajectories", trajectories, "trajectories")
    flats = [_columns_of(one) for one in given]
    batch: dict[str, Any] = {}
    for name in dict.fromkeys(name for flat in flats for name in flat):
        lacking = [place for place, flat in enumerate(flats) if name not in flat]
        if lacking:
            raise ColumnMismatchError(
                f"column {name!r} is missing in {len(lacking)} of {len(flats)} trajectories, the "
                f"first being number {lacking[0]}, but must be in all; set it in all or in none",
                column=name,
            )
        batch[name] = _join(name, [flat[name] for flat in flats])
    return unflatten(batch)


def _columns_of(one: Any) -> dict[str, Any]:
    trajectory = as_trajectory(one)
    named = named_columns(trajectory)
    if trajectory.gaps is not None:
        named["gaps"] = trajectory.gaps
    return {name: value for name, value in named.items() if name not in TREE_FIELDS}


def _join(name: str, values: list[Any]) -> Any:
    """Join one column of all trajectories along B."""
    if all(is_array(value) and len(value.shape) >= 2 for value in values):
        return _join_tensors(name, values)
    if all(isinstance(value, list) for value in values):
        return _join_texts(name, values)
    if any(type(value) is not type(values[0]) or value != values[0] for value in values[1:]):
        raise _differing(name, [repr(value) for value in values])
    return values[0]


def _join_tensors(name: str, values: list[Any]) -> Any:
    with importing.lock:
        import torch

    tensors = [v if is_tensor(v) else wrap_out(*copy_in(v, name), "torch", name) for v in values]
    kinds = [f"{one.dtype} [{one.shape[0]}, B, {list(one.shape[2:])}]" for one in tensors]
    if len(set(kinds)) > 1:
        raise _differing(name, kinds)
    # [T, B1, ...], [T, B2, ...] -> [T, B1 + B2, ...]
    return torch.cat(tensors, dim=1)


def _join_texts(name: str, values: list[list[Any]]) -> list[Any]:
    """Join lists of B strings, or T lists of B strings."""
    per_env = [all(isinstance(entry, str) for entry in value) for value in values]
    if all(per_env):
        return [entry for value in values for entry in value]
    if any(per_env) or len({len(value) for value in values}) > 1:
        raise _differing(name, [f"a list of {len(value)}" for value in values])
    return [[entry for row in rows for entry in row] for rows in zip(*values, strict=True)]


def _differing(name: str, kinds: list[str]) -> ColumnMismatchError:
    return ColumnMismatchError(
        f"column {name!r} is {' / '.join(dict.fromkeys(kinds))}, but trajectories that are joined "
        "differ in B only; make them alike",
        column=name,
    )
