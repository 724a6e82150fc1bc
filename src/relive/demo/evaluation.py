# SPDX-License-Identifier: Apache-2.0
"""Returns: of evaluation episodes, and of the episodes that training collects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium.vector import SyncVectorEnv
from numpy.typing import NDArray

from relive import Trajectory
from relive.demo.sac import Actor

__all__ = ["EpisodeReturns", "evaluate"]


def evaluate(
    actor: Actor, envs: SyncVectorEnv, *, on_step: Callable[[], None]
) -> NDArray[np.float64]:
    """Play one episode in each environment, without noise.

    The episodes start from the same states each time, whatever the seed of the run, so that
    the points of a curve, and curves of different runs, compare.

    Args:
        actor: Plays the middle of its policy.
        envs: `num_envs` environments; nothing else may use them.
        on_step: Called after each step; what it raises ends the evaluation.

    Returns:
        The undiscounted returns, float64 `[num_envs]`.
    """
    observations, _ = envs.reset(seed=list(range(envs.num_envs)))
    returns = np.zeros(envs.num_envs)
    running = np.ones(envs.num_envs, np.bool_)
    while running.any():
        with torch.no_grad():
            actions = actor.best_actions(torch.from_numpy(observations).float())
        observations, rewards, terminated, truncated, _ = envs.step(
            actions.numpy().reshape(envs.action_space.shape)
        )
        returns[running] += rewards[running]
        running &= ~(terminated | truncated)
        on_step()
    return returns


class EpisodeReturns:
    """Sums rewards over episodes that span trajectories."""

    def __init__(self, num_envs: int) -> None:
        self._running = np.zeros(num_envs)

    def add(self, trajectory: Trajectory) -> list[float]:
        """Take the next trajectory of the same environments.

        Args:
            trajectory: With `rewards` and `dones`, `[T, B]`, or `[T + 1, B]` for `dones`.

        Returns:
            The returns of the episodes that ended in it, by time, then env.
        """
        rewards: NDArray[Any] = np.asarray(trajectory.rewards)
        dones: NDArray[Any] = np.asarray(trajectory.dones)[-len(rewards) :]
        finished: list[float] = []
        for reward, done in zip(rewards, dones, strict=True):
            self._running += reward
            finished += self._running[done].tolist()
            self._running[done] = 0.0
        return finished
