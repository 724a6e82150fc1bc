# SPDX-License-Identifier: Apache-2.0
"""Parts whose values carry their address: `id[b]` is that of the key plus b."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relive.collector import TrajectoryCollector
from relive.part import TrajectoryPart
from relive.trajectory import Trajectory

GROUPS = ("left", "right", "top")


@dataclass(frozen=True)
class Key:
    """What a part belongs to."""

    group: str = "left"
    incarnation: int = 0
    trajectory: int = 0
    epoch: int = 0
    step: int = 0

    def address(self, num_envs: int) -> NDArray[np.int64]:
        """A number of its own for each env of this key, int64 [B]."""
        base = GROUPS.index(self.group) if self.group in GROUPS else 9
        for number in (self.incarnation, self.trajectory, self.epoch, self.step + 1):
            base = 100 * base + number
        return np.arange(num_envs) + 100 * base

    def part(self, columns: Mapping[str, Any], model_weights_id: str = "") -> TrajectoryPart:
        return TrajectoryPart(
            group=self.group,
            incarnation=self.incarnation,
            trajectory=self.trajectory,
            epoch=self.epoch,
            step=self.step,
            columns=columns,
            model_weights_id=model_weights_id,
        )

    def env_part(self, num_envs: int = 2, **changes: Any) -> TrajectoryPart:
        """What an environment publishes: never done, unless told otherwise."""
        ids = self.address(num_envs)
        columns = {
            "rewards": ids.astype(np.float64),
            "dones": np.zeros(num_envs, np.bool_),
            "terminations": np.zeros(num_envs, np.bool_),
            "truncations": np.zeros(num_envs, np.bool_),
            "curr_obs": {"id": ids, "arm": {"joints": np.stack([ids, -ids], axis=1)}},
        }
        return self.part({**columns, **changes})

    def policy_part(self, num_envs: int = 2, **changes: Any) -> TrajectoryPart:
        """What a policy publishes."""
        ids = self.address(num_envs)
        columns = {"actions": np.stack([ids, ids + 0.5], axis=1), "prev_values": ids / 4}
        return self.part({**columns, **changes}, model_weights_id="w")

    def first_flags(self, num_envs: int = 2, dones: Any = None) -> TrajectoryPart:
        """The state before the first step; done in env 0 by default."""
        flags = np.arange(num_envs) == 0 if dones is None else dones
        return replace(self, step=-1).part({"dones": flags})

    def bootstrap(self, step: int, num_envs: int = 2) -> TrajectoryPart:
        at = replace(self, step=step)
        return at.part({"prev_values": at.address(num_envs) / 4})


BOTH = ("rewards", "actions")


def add_all(collector: TrajectoryCollector, parts: list[TrajectoryPart]) -> list[Trajectory]:
    return [trajectory for part in parts for trajectory in collector.add(part)]


def steps_of(key: Key, steps: int, epochs: int = 1, num_envs: int = 2) -> list[TrajectoryPart]:
    """Both publishers' parts of whole epochs, in order of time."""
    keys = [replace(key, epoch=e, step=t) for e in range(epochs) for t in range(steps)]
    return [part for at in keys for part in (at.env_part(num_envs), at.policy_part(num_envs))]


def ids_of(trajectory: Trajectory) -> Any:
    return np.asarray(trajectory.curr_obs["id"])


def state_of(collector: TrajectoryCollector) -> dict[str, float]:
    """All that a refused part must leave as it was."""
    stats = collector.get_stats()
    del stats["num_refused_parts"]
    return stats
