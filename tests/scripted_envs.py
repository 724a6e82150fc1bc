# SPDX-License-Identifier: Apache-2.0
"""Environments that end by script and show where they are, and what a plain loop finds in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from numpy.typing import NDArray

from relive.part import TrajectoryPart

MODES = tuple(AutoresetMode)
Script = tuple[tuple[int, str], ...]
Envs = VectorEnv[Any, Any, Any]

SCRIPTS: tuple[Script, ...] = (
    ((1, "terminated"),),  # ends on its first step, each time
    ((3, "truncated"), (1, "both"), (2, "terminated")),
    ((2, "terminated"), (4, "truncated")),
    ((1000, "terminated"),),
)
"""How long each env's episodes take and how they end, over and over."""


class ScriptedEnv(gymnasium.Env[Any, Any]):
    """Ends its episodes by script; what it shows is where it is: env, episode, step, action."""

    def __init__(self, number: int, script: Script, shape: str = "plain") -> None:
        self._script = script
        self._shape = shape
        self._at = np.array([number, -1, 0, 0], np.float64)
        self._is_over = True
        self.action_space = spaces.Box(-1e6, 1e6, (2,), np.float64)
        where = spaces.Box(-1e6, 1e6, (4,), np.float64)
        count = spaces.Discrete(2000)
        if shape == "dict":
            self.observation_space = spaces.Dict({"where": where, "step": count})
        elif shape == "nested":
            arm = spaces.Dict({"where": where, "inner": spaces.Dict({"step": count})})
            self.observation_space = spaces.Dict({"arm": arm, "bits": spaces.MultiBinary(3)})
        else:
            self.observation_space = where

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        self._at[1:] = self._at[1] + 1, 0, 0
        self._is_over = False
        return self._show(), {}

    def step(self, action: NDArray[np.float64]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._is_over:
            raise AssertionError(f"env at {self._at} was stepped after its end")
        self._at[2:] += 1, 0
        self._at[3] = action[0]
        length, end = script_of(self._script, int(self._at[1]))
        self._is_over = bool(self._at[2] == length)
        terminated = self._is_over and end != "truncated"
        truncated = self._is_over and end != "terminated"
        return self._show(), reward_at(self._at), terminated, truncated, {"step": self._at[2]}

    def _show(self) -> Any:
        step = np.int64(self._at[2])
        if self._shape == "reused":
            return self._at
        if self._shape == "dict":
            return {"where": self._at.copy(), "step": step}
        if self._shape == "nested":
            arm = {"where": self._at.copy(), "inner": {"step": step}}
            return {"arm": arm, "bits": bits_of(int(step))}
        return self._at.copy()


def script_of(script: Script, episode: int) -> tuple[int, str]:
    return script[episode % len(script)]


def reward_at(at: NDArray[np.float64]) -> float:
    env, episode, step, _ = at.tolist()
    return float(1 + 10_000 * env + 100 * episode + step)


def bits_of(step: int) -> NDArray[np.int8]:
    return np.array([step >> bit & 1 for bit in range(3)], np.int8)


def where(obs: Any) -> NDArray[np.float64]:
    """The address inside an observation of any of the shapes; `[B, 4]`."""
    if not isinstance(obs, dict):
        return np.asarray(obs)
    if "states" in obs:
        return np.asarray(obs["states"])
    if "arm" in obs:
        at = np.asarray(obs["arm"]["where"])
        assert obs["arm"]["inner"]["step"].tolist() == at[:, 2].tolist()
        assert obs["bits"].tolist() == [bits_of(int(step)).tolist() for step in at[:, 2]]
        return at
    at = np.asarray(obs["where"])
    assert obs["step"].tolist() == at[:, 2].tolist()
    return at


def policy(obs: Any) -> NDArray[np.float64]:
    """Actions `[B, 2]` that say on what they were chosen."""
    at = where(obs)
    return np.stack([at[:, 1] * 1000 + at[:, 2], at[:, 0]], axis=1)


def chunk_policy(num_actions: int) -> Callable[[Any], NDArray[np.float64]]:
    def act(obs: Any) -> NDArray[np.float64]:
        # [B, 2] -> [B, K, 2]: the k-th action has k / 10 more
        return policy(obs)[:, None] + np.arange(num_actions)[:, None] / 10

    return act


def env_makers(scripts: Sequence[Script], shape: str) -> list[Callable[[], ScriptedEnv]]:
    return [partial(ScriptedEnv, b, script, shape) for b, script in enumerate(scripts)]


def sync_envs(
    scripts: Sequence[Script], mode: AutoresetMode, shape: str = "plain", *, copy: bool = True
) -> SyncVectorEnv[Any, Any]:
    return SyncVectorEnv(env_makers(scripts, shape), copy=copy, autoreset_mode=mode)


@dataclass
class Transition:
    """One env at one step, as a plain loop over a single env finds it."""

    at: list[float]
    action: list[float]
    reward: float
    terminated: bool
    truncated: bool
    next_at: list[float]


def plain_loop(number: int, script: Script, num_steps: int) -> list[Transition]:
    """Step one env by hand, with the same policy."""
    env = ScriptedEnv(number, script)
    transitions: list[Transition] = []
    obs, _ = env.reset()
    while len(transitions) < num_steps:
        action = policy(obs[None])[0]
        next_obs, reward, terminated, truncated, _ = env.step(action)
        transitions.append(
            Transition(
                obs.tolist(), action.tolist(), reward, terminated, truncated, next_obs.tolist()
            )
        )
        obs = env.reset()[0] if terminated or truncated else next_obs
    return transitions


def in_parts(parts: Sequence[TrajectoryPart], env: int) -> list[Transition]:
    """The same of what was published, of parts without an axis for K."""
    found = []
    for part in parts:
        columns = part.columns
        if part.step < 0:
            continue
        done = columns["terminations"] | columns["truncations"]
        assert columns["dones"].tolist() == done.tolist()
        found.append(
            Transition(
                where(columns["curr_obs"])[env].tolist(),
                columns["actions"][env].tolist(),
                float(columns["rewards"][env]),
                bool(columns["terminations"][env]),
                bool(columns["truncations"][env]),
                where(columns["next_obs"])[env].tolist(),
            )
        )
    return found


def check_chunks(
    parts: Sequence[TrajectoryPart], scripts: Sequence[Script], num_actions: int
) -> None:
    """Check every chunk of every env against its script, and that nothing lies between two."""
    act = chunk_policy(num_actions)
    steps = [part.columns for part in parts if part.step >= 0]
    for env, script in enumerate(scripts):
        due: list[float] = [0, 0]  # episode and step that must come next
        may_skip = False
        for columns in steps:
            at, end = where(columns["curr_obs"])[env], where(columns["next_obs"])[env]
            episode, step = at[1:3].astype(int).tolist()
            if may_skip and step == 0:
                assert episode >= due[0]
            else:
                assert [episode, step] == due
            length, how = script_of(script, episode)
            num_played = min(num_actions, length - step)
            has_ended = step + num_played == length
            actions = act(columns["curr_obs"]["states"])[env]
            last = np.zeros((2, num_actions), bool)
            last[0, num_played - 1] = has_ended and how != "truncated"
            last[1, num_played - 1] = has_ended and how != "terminated"
            rewards = [
                reward_at(np.add(at, [0, 0, k + 1, 0])) if k < num_played else 0
                for k in range(num_actions)
            ]
            assert columns["actions"][env].tolist() == actions.tolist()
            assert columns["rewards"][env].tolist() == rewards
            assert columns["terminations"][env].tolist() == last[0].tolist()
            assert columns["truncations"][env].tolist() == last[1].tolist()
            assert columns["dones"][env].tolist() == last.any(0).tolist()
            mask = columns["extras"]["action_mask"][env]
            assert mask.tolist() == [k < num_played for k in range(num_actions)]
            assert end.tolist() == [env, episode, step + num_played, actions[num_played - 1, 0]]
            due = [episode + 1, 0] if has_ended else [episode, step + num_played]
            others = columns["extras"]["action_mask"].sum(1).max()
            may_skip = has_ended and num_played < others  # it was reset to wait for the others
