# SPDX-License-Identifier: Apache-2.0
"""Returns and lengths of the episodes that a rollout published."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["MAX_KEPT", "Episode", "EpisodeLog"]

MAX_KEPT = 10_000
"""How many finished episodes wait to be taken; older ones stay in the totals only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One finished episode of one env."""

    env: int
    """Number of the env in its group."""
    total_reward: float
    """Sum of its rewards, undiscounted."""
    length: int
    """Env steps it took; with action chunks each action played is one."""
    terminated: bool
    """Whether it ended for good."""
    truncated: bool
    """Whether a limit cut it off, or a reset interrupted it."""


class EpisodeLog:
    """Follows B envs and notes each episode that ends.

    It is fed with what is published, so it counts exactly the episodes in the parts, also
    those that go on over epochs and trajectories. Any thread may call any method.

    Args:
        num_envs: B.
    """

    def __init__(self, num_envs: int) -> None:
        self._rewards = np.zeros(num_envs)
        self._lengths = np.zeros(num_envs, np.int64)
        self._finished: deque[Episode] = deque(maxlen=MAX_KEPT)
        self._totals = {"num_env_steps": 0.0, "num_episodes": 0.0}
        self._totals |= {"num_terminated_episodes": 0.0, "num_truncated_episodes": 0.0}
        self._ranges: dict[str, float] = {}
        self._lock = threading.Lock()

    def add(
        self,
        rewards: NDArray[np.floating],
        played: NDArray[np.bool_],
        terminations: NDArray[np.bool_],
        truncations: NDArray[np.bool_],
    ) -> None:
        """Note one chunk step of every env; all arguments are `[B, K]`."""
        terminated, truncated = terminations.sum(1) > 0, truncations.sum(1) > 0
        with self._lock:
            self._rewards += rewards.sum(1, dtype=np.float64)
            self._lengths += played.sum(1)
            self._totals["num_env_steps"] += float(played.sum())
            for env in (terminated | truncated).nonzero()[0].tolist():
                episode = Episode(
                    env=env,
                    total_reward=float(self._rewards[env]),
                    length=int(self._lengths[env]),
                    terminated=bool(terminated[env]),
                    truncated=bool(truncated[env]),
                )
                self._rewards[env] = self._lengths[env] = 0
                self._finish(episode)

    def pop(self) -> list[Episode]:
        """Take the episodes that finished since the last call, at most the newest `MAX_KEPT`."""
        with self._lock:
            finished = list(self._finished)
            self._finished.clear()
        return finished

    def stats(self) -> dict[str, float]:
        """Return totals over all episodes so far; minima, means and maxima from the first on."""
        with self._lock:
            stats = self._totals | self._ranges
        if stats["num_episodes"]:
            for name in ("length", "total_reward"):
                stats[f"mean_episode_{name}"] = stats.pop(f"sum_{name}") / stats["num_episodes"]
        return stats

    def _finish(self, episode: Episode) -> None:
        self._finished.append(episode)
        self._totals["num_episodes"] += 1
        self._totals["num_terminated_episodes"] += episode.terminated
        self._totals["num_truncated_episodes"] += episode.truncated
        ranges = self._ranges
        for name, value in (
            ("length", float(episode.length)),
            ("total_reward", episode.total_reward),
        ):
            least, most, total = f"min_episode_{name}", f"max_episode_{name}", f"sum_{name}"
            ranges[least] = min(ranges.get(least, value), value)
            ranges[most] = max(ranges.get(most, value), value)
            ranges[total] = ranges.get(total, 0.0) + value
