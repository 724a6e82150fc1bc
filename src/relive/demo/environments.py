# SPDX-License-Identifier: Apache-2.0
"""Making the demo's environments, or saying why they cannot be made."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import FlattenObservation, RescaleAction, TransformObservation
from numpy.typing import NDArray

from relive.errors import InvalidArgumentError, MissingPackageError

__all__ = ["EnvFacts", "look_at", "make_envs"]

_EPISODE_LIMIT = 1_000  # for environments that name none: evaluation must end
_EXTRAS = ("box2d", "mujoco")  # of Gymnasium, named as the folders of its environments


@dataclass(frozen=True, slots=True)
class EnvFacts:
    """What the demo needs to know about an environment."""

    env: str
    """Its Gymnasium id."""
    observation_size: int
    """Numbers in an observation, once it is flat."""
    action_size: int
    """Numbers in an action."""
    episode_limit: int
    """Steps after which an episode is truncated."""
    goal: float | None
    """The return at which its authors call it solved; None when they name none."""
    notes: tuple[str, ...]
    """What the person who chose it should know."""


def look_at(env_id: str) -> EnvFacts:
    """Make one environment, measure it and close it.

    Raises:
        InvalidArgumentError: There is no such environment, or its actions are not a Box of
            finite floats, or its observations are no fixed number of numbers.
        MissingPackageError: A package that the environment needs is not installed.
    """
    env = _make(env_id)
    try:
        _check_spaces(env_id, env)
        limit = None if env.spec is None else env.spec.max_episode_steps
        notes = []
        if limit is None:
            notes.append(f"{env_id} has no longest episode; the demo cuts at {_EPISODE_LIMIT:,}")
        if isinstance(env.observation_space, Box) and len(env.observation_space.shape) == 3:
            notes.append(f"{env_id} shows pictures, from which small dense networks learn slowly")
        flat = _wrap(env, limit)
        assert flat.observation_space.shape is not None
        assert flat.action_space.shape is not None
        return EnvFacts(
            env=env_id,
            observation_size=flat.observation_space.shape[0],
            action_size=int(np.prod(flat.action_space.shape)),
            episode_limit=limit or _EPISODE_LIMIT,
            goal=None if env.spec is None else env.spec.reward_threshold,
            notes=tuple(notes),
        )
    finally:
        env.close()


def make_envs(facts: EnvFacts, num_envs: int, *, autoreset_mode: AutoresetMode) -> SyncVectorEnv:
    """Make environments that step together, with flat observations and actions in [-1, 1].

    Args:
        facts: What `look_at` gave.
        num_envs: How many.
        autoreset_mode: What they do at an episode's end. `relive.gym` takes each of the three.
    """

    def make_one() -> gymnasium.Env[Any, Any]:
        env = _make(facts.env)
        return _wrap(env, None if env.spec is None else env.spec.max_episode_steps)

    return SyncVectorEnv([make_one] * num_envs, autoreset_mode=autoreset_mode)


def _make(env_id: str) -> gymnasium.Env[Any, Any]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of the id's version
            return gymnasium.make(env_id)
    except gymnasium.error.DependencyNotInstalled as error:
        raise MissingPackageError(
            f"env {env_id!r} needs a package, but it is not installed; {_pip_line(env_id)} "
            f"(Gymnasium says: {error})"
        ) from error
    except ImportError as error:
        raise MissingPackageError(
            f"env {env_id!r} cannot be imported: {error}; install the package that holds it, "
            "and give the id as module:id when the package does not register it by itself"
        ) from error
    except gymnasium.error.Error as error:
        raise InvalidArgumentError(
            f"env is {env_id!r}, but Gymnasium cannot make it: {str(error).rstrip('.')}; "
            "choose an id with continuous actions, such as 'Pendulum-v1'"
        ) from error


def _pip_line(env_id: str) -> str:
    folder = str(gymnasium.spec(env_id).entry_point).removeprefix("gymnasium.envs.")
    for extra in _EXTRAS:
        if folder.startswith(extra):
            return f'run `pip install "gymnasium[{extra}]"`'
    return "install it with pip"


def _check_spaces(env_id: str, env: gymnasium.Env[Any, Any]) -> None:
    actions = env.action_space
    if not isinstance(actions, Box) or actions.dtype.kind != "f":
        raise InvalidArgumentError(
            f"env {env_id!r} has actions {actions}, but the demo's agent needs continuous ones, "
            "a Box of floats; choose another env, such as 'Pendulum-v1'"
        )
    if not actions.is_bounded():
        raise InvalidArgumentError(
            f"env {env_id!r} has actions {actions}, but the demo's agent needs finite bounds; "
            "choose another env, such as 'Pendulum-v1'"
        )
    if not env.observation_space.is_np_flattenable:
        raise InvalidArgumentError(
            f"env {env_id!r} has observations {env.observation_space}, but the demo's agent needs "
            "a fixed number of numbers; choose another env, such as 'Pendulum-v1'"
        )


def _wrap(env: gymnasium.Env[Any, Any], limit: int | None) -> gymnasium.Env[Any, Any]:
    if limit is None:
        env = gymnasium.wrappers.TimeLimit(env, _EPISODE_LIMIT)
    if not isinstance(env.observation_space, Box) or len(env.observation_space.shape) != 1:
        env = FlattenObservation(env)
    seen = env.observation_space
    if isinstance(seen, Box) and seen.dtype == np.float64:
        # Half the bytes, and what the networks take. Gymnasium's DtypeObservation does this too,
        # but warns about it each time.
        low, high = seen.low.astype(np.float32), seen.high.astype(np.float32)
        env = TransformObservation(env, _to_float32, Box(low, high, dtype=np.float32))
    return RescaleAction(env, np.float32(-1.0), np.float32(1.0))


def _to_float32(observation: NDArray[np.float64]) -> NDArray[np.float32]:
    return observation.astype(np.float32)
