# SPDX-License-Identifier: Apache-2.0
"""The columns of one part, by name: pure functions of what was played."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from relive.errors import ColumnMismatchError
from relive.fields import FLAG_FIELDS
from relive.gym.options import RewardType
from relive.gym.players import PlayedChunk
from relive.gym.spaces import Flat
from relive.tensors import convert

__all__ = ["MASK", "chunk_columns", "first_flags", "next_obs", "played_actions", "truncate"]

MASK = "extras/action_mask"
"""The column that says which actions of a chunk were played."""

_NEXT = "next_obs/"


def first_flags(num_envs: int, num_actions: int | None) -> dict[str, Any]:
    """Return the flags of the state before an epoch's first step: all False.

    Args:
        num_envs: B.
        num_actions: K, or None where flags have no such axis.
    """
    shape = (num_envs,) if num_actions is None else (num_envs, num_actions)
    return {name: np.zeros(shape, np.bool_) for name in FLAG_FIELDS}


def chunk_columns(
    chunk: PlayedChunk, actions: NDArray[Any], dtype: RewardType, *, has_chunks: bool
) -> dict[str, Any]:
    """Return the columns of one chunk step.

    Args:
        chunk: What was played.
        actions: `[B, K, ...]` as the policy chose them, or `[B, ...]` without axis K.
        dtype: Element type of the rewards.
        has_chunks: Whether there is an axis K, and so a mask of the played actions.

    Raises:
        ColumnMismatchError: A reward is beyond what `dtype` holds.
    """
    columns: dict[str, Any] = {f"curr_obs/{name}": column for name, column in chunk.obs.items()}
    columns |= {f"{_NEXT}{name}": column for name, column in chunk.next_obs.items()}
    columns["actions"] = actions
    per_action: dict[str, NDArray[Any]] = {
        "rewards": _cast_rewards(chunk.rewards, dtype),
        "terminations": chunk.terminations,
        "truncations": chunk.truncations,
        "dones": chunk.terminations | chunk.truncations,
    }
    if has_chunks:
        return columns | per_action | {MASK: chunk.played}
    return columns | {name: column[:, 0] for name, column in per_action.items()}


def played_actions(columns: dict[str, Any]) -> NDArray[np.bool_]:
    """Return which actions were played, `[B, K]`, with K = 1 where there is no such axis."""
    mask: NDArray[np.bool_] = columns.get(MASK, np.ones((len(columns["dones"]), 1), np.bool_))
    return mask


def next_obs(columns: dict[str, Any]) -> Flat:
    """Return a copy of the observations after the step."""
    return {
        name.removeprefix(_NEXT): column.copy()
        for name, column in columns.items()
        if name.startswith(_NEXT)
    }


def truncate(columns: dict[str, Any]) -> dict[str, Any]:
    """Return the columns with every episode ended that was still on, at its last played action."""
    played = played_actions(columns)
    dones = columns["dones"].reshape(played.shape)
    truncations = columns["truncations"].reshape(played.shape).copy()
    is_on = (~dones.any(1)).nonzero()[0]
    truncations[is_on, played[is_on].sum(1) - 1] = True
    shape = columns["dones"].shape
    return columns | {
        "truncations": truncations.reshape(shape),
        "dones": (dones | truncations).reshape(shape),
    }


def _cast_rewards(rewards: NDArray[np.float64], dtype: RewardType) -> NDArray[Any]:
    cast = convert(rewards, rewards.dtype.name, dtype)
    if cast is None:
        raise ColumnMismatchError(
            f"a reward is {np.abs(rewards).max()}, but {dtype} holds none so large; use "
            'reward_dtype="float64"',
            column="rewards",
        )
    return cast
