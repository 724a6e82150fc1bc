# SPDX-License-Identifier: Apache-2.0
"""`TrajectoryPart`: what a worker publishes for one chunk step of one group of envs.

Axes and terms (B, E, chunk step, part, epoch) are those of docs/glossary.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from relive.errors import InvalidArgumentError, UnsupportedValueError
from relive.options import checked_count

__all__ = ["TrajectoryPart"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryPart:
    """Some columns of one chunk step of one group of B parallel envs.

    The first five fields are its key. Parts with one key, from any number of publishers, make
    up one chunk step: an environment publishes rewards and flags, a policy actions and
    log-probabilities. The columns are not copied and not looked into here: whoever receives
    the part checks and copies them.

    Raises:
        InvalidArgumentError: A key field is not text or an integer as declared, is empty or is
            below its lowest value.
        UnsupportedValueError: `columns` is not a mapping.

    Example:
        >>> import numpy as np
        >>> part = TrajectoryPart(
        ...     group="worker-0",
        ...     incarnation=0,
        ...     trajectory=0,
        ...     epoch=0,
        ...     step=3,
        ...     columns={"rewards": np.zeros(8, np.float32), "curr_obs": {"q": np.zeros((8, 3))}},
        ... )
        >>> part.step, sorted(part.columns)
        (3, ['curr_obs', 'rewards'])
    """

    group: str
    """Names the group of B envs; any text but the empty one."""
    incarnation: int
    """Of the worker that runs the group, from 0; rises at each restart."""
    trajectory: int
    """Number of the trajectory inside the incarnation, from 0."""
    epoch: int
    """Rollout epoch inside the trajectory, from 0."""
    step: int
    """Chunk step inside the epoch, from 0.

    -1 holds the flags of the state before the first step (only dones, terminations, truncations);
    the number of steps per epoch holds the bootstrap value (only prev_values).
    """
    columns: Mapping[str, Any]
    """Nested dict named as in `Trajectory`: tensors or arrays `[B, ...]`, or lists of B texts."""
    model_weights_id: str = ""
    """Names the model weights of the policy that acted, if known; any text."""

    def __post_init__(self) -> None:
        group: object = self.group
        if not (isinstance(group, str) and group):
            raise InvalidArgumentError(
                f"group is {self.group!r}, but must be non-empty text; name the group of envs"
            )
        for name, lowest in (("incarnation", 0), ("trajectory", 0), ("epoch", 0), ("step", -1)):
            told = f"{name} of a part of group {self.group!r}"
            object.__setattr__(self, name, checked_count(told, getattr(self, name), lowest))
        if not isinstance(self.model_weights_id, str):
            raise InvalidArgumentError(
                f"model_weights_id is {self.model_weights_id!r} in a part of group "
                f"{self.group!r}, but must be text; use '' when it is not known"
            )
        if not isinstance(self.columns, Mapping):
            raise UnsupportedValueError(
                f"columns is a {type(self.columns).__name__} in a part of group {self.group!r}, "
                "but must be a mapping from names to [B, ...] arrays; give one such as "
                "{'actions': actions}"
            )
