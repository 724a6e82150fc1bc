# SPDX-License-Identifier: Apache-2.0
"""What a run of the demo is told."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from relive.errors import InvalidArgumentError

__all__ = ["DEFAULT_ENV", "DEFAULT_GOAL", "DemoSettings", "SacOptions"]

DEFAULT_ENV = "Pendulum-v1"
"""The environment of a run that names none."""

DEFAULT_GOAL = -150.0
"""Its goal: about what a good policy gets; Gymnasium itself names none for it."""

_FIXED = ("env", "seed", "num_envs", "trajectory_format")


@dataclass(frozen=True, slots=True, kw_only=True)
class SacOptions:
    """What the networks and the update need to know."""

    width: int = 128
    """Units in each of the two hidden layers."""
    batch_size: int = 128
    """Transitions in one update."""
    discount: float = 0.99
    """How much the next step's value counts, in [0, 1]."""
    learning_rate: float = 1e-3
    """Step size of the optimisers."""
    target_rate: float = 0.005
    """How far the target critics move towards the critics at each update."""
    start_temperature: float = 0.2
    """How much an entropy of one nat is worth in reward, at the start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """One run of the demo.

    Raises:
        InvalidArgumentError: A number is below the lowest that makes sense.
    """

    env: str = DEFAULT_ENV
    """The Gymnasium id of an environment with continuous actions."""
    steps: int = 8_000
    """Environment steps to collect at most, all envs together."""
    seed: int = 1
    """Of the agent, the buffer and the environments."""
    num_envs: int = 8
    """Environments that run in parallel: B."""
    trajectory_format: str = "pt"
    """How the buffer stores trajectories."""
    goal: float | None = None
    """Mean return of the evaluation episodes at which a run ends early; None: never."""
    steps_per_trajectory: int = 25
    """Chunk steps in each trajectory: T."""
    warmup_steps: int = 1_000
    """Environment steps with random actions before learning starts."""
    updates_per_step: float = 1.0
    """Updates for each environment step, once learning has started."""
    evaluate_every: int = 400
    """Environment steps between two evaluations."""
    eval_episodes: int = 10
    """Episodes in each evaluation."""
    sac: SacOptions = field(default_factory=SacOptions)
    """Of the agent."""

    def __post_init__(self) -> None:
        for name in ("steps", "num_envs", "steps_per_trajectory", "evaluate_every"):
            self._check_at_least(name, 1)
        for name in ("seed", "warmup_steps", "updates_per_step"):
            self._check_at_least(name, 0)
        self._check_at_least("eval_episodes", 1)
        if self.goal is not None and math.isnan(self.goal):
            raise InvalidArgumentError(
                f"goal is {self.goal}, but must be a mean return, or inf for never; give a number"
            )

    @property
    def rows_per_trajectory(self) -> int:
        """Return how many environment steps one trajectory holds: T * B."""
        return self.steps_per_trajectory * self.num_envs

    @property
    def warmup_trajectories(self) -> int:
        """Return how many whole trajectories the warm-up takes, at least one."""
        return max(1, -(-self.warmup_steps // self.rows_per_trajectory))

    def to_state(self) -> dict[str, Any]:
        """Give the settings as plain containers."""
        return asdict(self)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> DemoSettings:
        """Take back what `to_state` gave."""
        return cls(**{**state, "sac": SacOptions(**state["sac"])})

    def resumed_with(self, given: Mapping[str, Any]) -> DemoSettings:
        """Combine a saved run's settings with those given on resuming it.

        Args:
            given: Settings by name.

        Raises:
            InvalidArgumentError: What belongs to the run is to be changed.
        """
        for name in _FIXED:
            before = getattr(self, name)
            if given.get(name, before) != before:
                raise InvalidArgumentError(
                    f"{name} is {given[name]!r}, but the run to resume has {before!r}; "
                    "leave it out, or choose another folder for a new run"
                )
        return replace(self, **given)

    def _check_at_least(self, name: str, lowest: int) -> None:
        value = getattr(self, name)
        if value < lowest:
            raise InvalidArgumentError(
                f"{name} is {value!r}, but must be at least {lowest}; give {lowest} or more"
            )
