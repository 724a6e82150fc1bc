# SPDX-License-Identifier: Apache-2.0
"""How a rollout is cut into epochs and trajectories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np

from relive.errors import InvalidArgumentError
from relive.options import check_kind, checked_count, is_count

__all__ = ["Position", "RewardType", "RolloutOptions", "checked_seed"]

RewardType = Literal["float32", "float64"]
"""The element type in which rewards are published."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutOptions:
    """How a rollout is cut into epochs and trajectories, and how its parts are named.

    Raises:
        InvalidArgumentError: A number is no integer or is below its lowest value, a switch is no
            bool, `group` is empty, or `reward_dtype` is unknown.
    """

    steps_per_epoch: int
    """Chunk steps in a rollout epoch, at least 1."""
    num_epochs: int = 1
    """Rollout epochs in a trajectory (E), at least 1; T is `num_epochs * steps_per_epoch`."""
    num_trajectories: int | None = None
    """After how many trajectories the rollout ends, at least 1; None: never."""
    group: str = "0"
    """Names this group of B envs in the key of each part."""
    incarnation: int = 0
    """Of the worker; give a higher number after each restart, since trajectories count from 0."""
    actions_per_chunk: int | None = None
    """K, the actions that the policy gives for one chunk step.

    None: one action, and no axis for K. An integer: actions `[B, K, ...]`, rewards and flags
    `[B, K]`, and a column `extras/action_mask`, also when K is 1. Above 1 it needs
    `AutoresetMode.DISABLED`. An env whose episode ends inside a chunk is reset at once, takes
    the other envs' remaining steps in an episode that is thrown away, and is reset again: mind
    this where a reset is dear or a step has effects outside the program.
    """
    reset_each_epoch: bool = False
    """Whether all envs are reset when an epoch ends; episodes it interrupts end as truncated."""
    bootstrap_values: bool = False
    """Whether the policy is asked for `prev_values` once more at the end of each epoch."""
    reward_dtype: RewardType = "float32"
    """Element type of the published rewards; environments mostly give float64."""
    max_queued_steps: int = 1024
    """How many steps an env may be ahead of the slowest one, at least 1.

    Envs get ahead of each other only under `AutoresetMode.NEXT_STEP`, where each reset costs
    its env one step that is no transition.
    """

    def __post_init__(self) -> None:
        for spec in fields(self):
            lowest = _LOWEST.get(spec.name)
            number = getattr(self, spec.name)
            if lowest is None or (number is None and spec.name in _MAY_BE_NONE):
                continue
            object.__setattr__(self, spec.name, checked_count(spec.name, number, lowest))
        check_kind("reset_each_epoch", self.reset_each_epoch, bool)
        check_kind("bootstrap_values", self.bootstrap_values, bool)
        group: object = self.group
        if not isinstance(group, str) or not group:
            raise InvalidArgumentError(
                f"group is {group!r}, but must be non-empty text; name the group of envs"
            )
        if self.reward_dtype not in ("float32", "float64"):
            raise InvalidArgumentError(
                f"reward_dtype is {self.reward_dtype!r}, but must be 'float32' or 'float64'; "
                "convert to others in the learner"
            )


_LOWEST = {
    "steps_per_epoch": 1,
    "num_epochs": 1,
    "num_trajectories": 1,
    "incarnation": 0,
    "actions_per_chunk": 1,
    "max_queued_steps": 1,
}
_MAY_BE_NONE = ("num_trajectories", "actions_per_chunk")


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where a rollout stands: the key of the part that comes next."""

    trajectory: int = 0
    """Number of the trajectory, from 0."""
    epoch: int = 0
    """Rollout epoch inside the trajectory, from 0."""
    step: int = -1
    """Chunk step inside the epoch; -1 and `steps_per_epoch` as in `TrajectoryPart`."""

    def following(self, options: RolloutOptions) -> Position:
        """Return the position of the part after this one.

        Example:
            >>> options = RolloutOptions(steps_per_epoch=2)
            >>> Position(step=1).following(options)
            Position(trajectory=1, epoch=0, step=-1)
        """
        last = options.steps_per_epoch - (not options.bootstrap_values)
        if self.step < last:
            return Position(trajectory=self.trajectory, epoch=self.epoch, step=self.step + 1)
        if self.epoch + 1 < options.num_epochs:
            return Position(trajectory=self.trajectory, epoch=self.epoch + 1)
        return Position(trajectory=self.trajectory + 1)


def checked_seed(seed: Any, num_envs: int) -> int | list[int] | None:
    """Return a seed as Gymnasium takes it: an int of Python, or a list of one for each env.

    Raises:
        InvalidArgumentError: It is neither one integer of at least 0, nor such a list, nor None.

    Example:
        >>> checked_seed(np.int64(3), 2), checked_seed(np.arange(2), 2)
        (3, [0, 1])
    """
    if seed is None:
        return None
    given = seed.tolist() if isinstance(seed, np.ndarray) else seed
    if is_count(given, 0):
        return int(given)
    is_list = isinstance(given, Sequence) and len(given) == num_envs
    if not is_list or not all(is_count(one, 0) for one in given):
        raise InvalidArgumentError(
            f"seed is {seed!r:.100}, but must be an integer of at least 0, or a list of one for "
            f"each of {num_envs} envs; leave it out to let the environments choose"
        )
    return [int(one) for one in given]
