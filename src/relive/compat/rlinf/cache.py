# SPDX-License-Identifier: Apache-2.0
"""RLinf's `TrajectoryCache`: nested dicts of tensors in, the same out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import relive.cache
from relive.columns import Tree, flatten, unflatten
from relive.errors import UnsupportedValueError
from relive.tensors import copy_in, is_array, wrap_out

__all__ = ["TrajectoryCache"]


class TrajectoryCache(relive.cache.TrajectoryCache):
    """The newest trajectories, first in, first out, each a dict of `[rows, ...]` of any depth.

    Each trajectory comes back as it was put, whatever columns, lengths and texts the others
    have. Any thread may call any method.

    Example:
        >>> import torch
        >>> cache = TrajectoryCache(max_size=2)
        >>> for number in range(3):
        ...     cache.put(number, {"curr_obs": {"states": torch.full((4,), number)}})
        >>> list(cache.cache), cache.get(2)
        ([1, 2], {'curr_obs': {'states': tensor([2, 2, 2, 2])}})
    """

    @property
    def cache(self) -> dict[int, int]:
        """The trajectories held, oldest first, each with its place in this order."""
        return {trajectory_id: place for place, trajectory_id in enumerate(list(self._columns))}

    def put(self, trajectory_id: int, trajectory: Mapping[str, Any]) -> None:
        """Keep a copy of a trajectory, and let the oldest go until the bounds hold.

        Args:
            trajectory_id: Its id; one that is held already is replaced in its place.
            trajectory: A nested dict with at least one tensor or array `[rows, ...]`, and nothing
                else.

        Raises:
            UnsupportedValueError: It is no dict, there is no tensor in it, something that is
                none, or a tensor that cannot be stored.
        """
        given: object = trajectory
        if not isinstance(given, Mapping):
            raise UnsupportedValueError(
                f"trajectory {trajectory_id} is a {type(given).__name__}, but the cache holds "
                "nested dicts of tensors [rows, ...]; give one"
            )
        named = flatten(trajectory)
        if not named:
            raise UnsupportedValueError(
                f"trajectory {trajectory_id} has no tensor, but the cache holds tensors "
                "[rows, ...]; put at least one"
            )
        copies = {name: _copy(value, name) for name, value in named.items()}
        super().put(trajectory_id, copies)

    def get(self, trajectory_id: int) -> Tree | None:
        """Return a trajectory as the cache holds it, or None; nobody may write to its tensors."""
        columns = super().get(trajectory_id)
        return None if columns is None else unflatten(columns)


def _copy(value: Any, name: str) -> Any:
    if not is_array(value):
        raise UnsupportedValueError(
            f"{name!r} is a {type(value).__name__}, but the cache holds tensors [rows, ...]; leave "
            "it out",
            column=name,
        )
    return wrap_out(*copy_in(value, name), "torch", name)
