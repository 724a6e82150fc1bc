# SPDX-License-Identifier: Apache-2.0
"""Playing action chunks in a vector environment, under each of Gymnasium's autoreset modes.

What a step means at an episode's end depends on the mode:

- NEXT_STEP: the step gives the final observation; the env's next step is its reset, no transition.
- SAME_STEP: the step gives the next episode's first observation, `infos["final_obs"]` the final
  one. An env that reuses one array for all its observations has overwritten it by then, which
  nobody can see from outside: use another mode for such envs.
- DISABLED: the step gives the final observation; the caller resets the env with `reset_mask`.

A vector env steps all its envs at once, so one that ends inside a chunk cannot simply stand
still until the chunk is over. Under DISABLED it is reset at once, because Gymnasium's envs may
not be stepped after their end; it then takes the rest of the chunk in an episode that is thrown
away, and is reset again before the next chunk. The other modes leave no say over the reset.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, VectorEnv
from numpy.typing import NDArray

from relive.errors import ColumnMismatchError, InvalidArgumentError
from relive.gym.spaces import Flat, ObservationSpec, copy_numpy

__all__ = ["Envs", "PlayedChunk", "Player", "make_player"]

Envs = VectorEnv[Any, Any, Any]
"""A vector environment, of whatever arrays."""

Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedChunk:
    """What one action chunk did in each env; the receiver owns the arrays."""

    obs: Flat
    """Before the chunk."""
    next_obs: Flat
    """After the chunk's last played action, so the final one where the episode ended."""
    rewards: NDArray[np.float64]
    """Of each action, `[B, K]`; 0 where it was not played."""
    terminations: Flags
    """Whether the action ended its episode for good, `[B, K]`."""
    truncations: Flags
    """Whether a limit cut the episode off at the action, `[B, K]`."""
    played: Flags
    """Whether the action was played, `[B, K]`: False after the episode's end."""
    valid: Flags
    """Whether the env's row is a transition at all, `[B]`; False for a reset."""


@dataclass(frozen=True, slots=True)
class _Step:
    """The copied result of one step of the vector environment."""

    obs: Flat
    rewards: NDArray[np.float64]
    terminations: Flags
    truncations: Flags
    infos: Any

    @property
    def dones(self) -> Flags:
        return self.terminations | self.truncations


class Player(ABC):
    """Owns the state of a vector environment between chunks.

    Args:
        envs: Stepped and reset here; closed by who made it.
        observations: What their observations look like.
    """

    def __init__(self, envs: Envs, observations: ObservationSpec) -> None:
        self._envs = envs
        self._observations = observations
        self._num_envs = envs.num_envs
        self.obs: Flat = {}
        """What the policy acts on next."""
        self.num_discarded = 0
        """Env steps that were played and are part of no transition, resets included."""

    def reset(self, seed: int | list[int] | None = None) -> None:
        """Reset every env, whatever it was at."""
        observation, _ = self._envs.reset(seed=seed)  # type: ignore[arg-type]  # lists work too
        self.obs = self._observations.read(observation)

    def prepare(self) -> None:  # noqa: B027 (nothing to do is right for two of three modes)
        """Bring every env to a state in which it can be acted on; may be called again."""

    @abstractmethod
    def play(self, actions: NDArray[Any]) -> PlayedChunk:
        """Play actions `[B, K, ...]`.

        Raises:
            ColumnMismatchError: The environment returned something of a wrong shape or type,
                or no final observation.
        """

    def _step(self, actions: NDArray[Any]) -> _Step:
        observation, rewards, terminations, truncations, infos = self._envs.step(actions)
        return _Step(
            self._observations.read(observation),
            self._per_env(rewards, "rewards").astype(np.float64, copy=False),
            self._per_env(terminations, "terminations").astype(np.bool_, copy=False),
            self._per_env(truncations, "truncations").astype(np.bool_, copy=False),
            infos,
        )

    def _per_env(self, values: Any, column: str) -> NDArray[Any]:
        array = copy_numpy(values, column)
        if array.shape != (self._num_envs,) or array.dtype.kind not in "fiub":
            raise ColumnMismatchError(
                f"the vector environment returned {column} {array.dtype} {array.shape}, but one "
                f"number for each of its {self._num_envs} envs is needed; see to its step(), or "
                "to the last wrapper around it",
                column=column,
            )
        return array

    def _one_action(self, step: _Step, next_obs: Flat, valid: Flags) -> PlayedChunk:
        """Return a chunk of one action, and go on with what the step observed."""
        chunk = PlayedChunk(
            obs=self.obs,
            next_obs=next_obs,
            rewards=step.rewards[:, None],
            terminations=step.terminations[:, None],
            truncations=step.truncations[:, None],
            played=np.ones((self._num_envs, 1), np.bool_),
            valid=valid,
        )
        self.obs = step.obs
        return chunk


class _NextStepPlayer(Player):
    def __init__(self, envs: Envs, observations: ObservationSpec) -> None:
        super().__init__(envs, observations)
        self._is_resetting = np.zeros(self._num_envs, np.bool_)

    def reset(self, seed: int | list[int] | None = None) -> None:
        super().reset(seed)
        self._is_resetting[:] = False

    def play(self, actions: NDArray[Any]) -> PlayedChunk:
        step = self._step(actions[:, 0])
        self.num_discarded += int(self._is_resetting.sum())
        valid, self._is_resetting = ~self._is_resetting, step.dones
        return self._one_action(step, _copy(step.obs), valid)


class _SameStepPlayer(Player):
    def play(self, actions: NDArray[Any]) -> PlayedChunk:
        step = self._step(actions[:, 0])
        next_obs = _copy(step.obs)
        for env in step.dones.nonzero()[0].tolist():
            _put_row(next_obs, env, self._final_obs(step.infos, env))
        return self._one_action(step, next_obs, np.ones(self._num_envs, np.bool_))

    def _final_obs(self, infos: Any, env: int) -> Flat:
        final = infos.get("final_obs") if isinstance(infos, Mapping) else None
        if final is not None and infos.get("_final_obs", np.ones(self._num_envs))[env]:
            if not isinstance(final, np.ndarray) or final.dtype != object:
                # Some environments (ALE's) give those of all envs as one batch.
                batch = self._observations.read(final)
                return {name: column[env] for name, column in batch.items()}
            if final[env] is not None:
                return self._observations.read_one(final[env])
        raise ColumnMismatchError(
            f"env {env} ended an episode, but infos has no 'final_obs' for it as "
            "AutoresetMode.SAME_STEP promises; make the vector environment give it, leave out a "
            "wrapper that changes infos, or use another autoreset mode",
            column="next_obs",
        )


class _DisabledPlayer(Player):
    def __init__(self, envs: Envs, observations: ObservationSpec) -> None:
        super().__init__(envs, observations)
        self._has_ended = np.zeros(self._num_envs, np.bool_)

    def reset(self, seed: int | list[int] | None = None) -> None:
        super().reset(seed)
        self._has_ended[:] = False

    def prepare(self) -> None:
        if self._has_ended.any():
            self.obs = self._reset_some(self._has_ended, self.obs)
            self._has_ended = np.zeros(self._num_envs, np.bool_)

    def play(self, actions: NDArray[Any]) -> PlayedChunk:
        num_envs, num_actions = actions.shape[:2]
        rewards = np.zeros((num_envs, num_actions))
        flags = np.zeros((3, num_envs, num_actions), np.bool_)
        terminations, truncations, played = flags
        is_on, next_obs = np.ones(num_envs, np.bool_), self.obs
        for k in range(num_actions):
            step = self._step(actions[:, k])
            self.num_discarded += int((~is_on).sum())
            rewards[is_on, k] = step.rewards[is_on]
            terminations[:, k] = step.terminations & is_on
            truncations[:, k] = step.truncations & is_on
            played[:, k] = is_on
            next_obs = _choose(is_on, step.obs, next_obs)
            is_on = is_on & ~step.dones
            latest = step.obs
            if not is_on.any():
                break
            if k + 1 < num_actions and step.dones.any():
                latest = self._reset_some(step.dones, step.obs)
        chunk = PlayedChunk(
            obs=self.obs,
            next_obs=_copy(next_obs),
            rewards=rewards,
            terminations=terminations,
            truncations=truncations,
            played=played,
            valid=np.ones(num_envs, np.bool_),
        )
        self.obs, self._has_ended = latest, ~is_on
        return chunk

    def _reset_some(self, mask: Flags, obs: Flat) -> Flat:
        """Reset the envs of the mask and return the new observations of all."""
        observation, _ = self._envs.reset(options={"reset_mask": mask.copy()})
        after = self._observations.read(observation)
        if any(
            after[name][~mask].tobytes() != column[~mask].tobytes() for name, column in obs.items()
        ):
            raise InvalidArgumentError(
                f"{self._envs} was asked to reset only the envs {mask.nonzero()[0].tolist()}, but "
                "others' observations changed too; under AutoresetMode.DISABLED it must heed "
                "options['reset_mask'] as Gymnasium's own vector environments do"
            )
        return after


def make_player(envs: Envs, observations: ObservationSpec, num_actions: int) -> Player:
    """Return the player for the autoreset mode that `envs.metadata` names.

    Args:
        envs: Any vector environment of Gymnasium 1.1 or later.
        observations: What its observations look like.
        num_actions: K, at least 1.

    Raises:
        InvalidArgumentError: The mode is not named, or cannot do what is asked.
    """
    mode = _autoreset_mode(envs)
    if mode is AutoresetMode.DISABLED:
        return _DisabledPlayer(envs, observations)
    if num_actions > 1:
        raise InvalidArgumentError(
            f"the vector environment uses {mode}, but actions_per_chunk is {num_actions}: an env "
            "whose episode ends inside a chunk must wait for the next one, while this mode resets "
            "it and plays the rest of the chunk in its new episode; make the environment with "
            "autoreset_mode=AutoresetMode.DISABLED"
        )
    if mode is AutoresetMode.SAME_STEP:
        return _SameStepPlayer(envs, observations)
    base = envs.unwrapped
    if isinstance(base, AsyncVectorEnv) and not base.shared_memory:
        # Seen in Gymnasium 1.4.0: its worker clears the pending autoreset of an env in reset()
        # only with shared memory; without, the first step after reset() can be a reset again.
        raise InvalidArgumentError(
            "the AsyncVectorEnv has shared_memory=False and AutoresetMode.NEXT_STEP, but there a "
            "step after reset() may be a second reset; use shared_memory=True or another mode"
        )
    return _NextStepPlayer(envs, observations)


def _autoreset_mode(envs: Envs) -> AutoresetMode:
    named = envs.metadata.get("autoreset_mode")
    try:
        return AutoresetMode(named)
    except ValueError:
        raise InvalidArgumentError(
            f"metadata['autoreset_mode'] of {envs} is {named!r}, but must be a "
            "gymnasium.vector.AutoresetMode; set it to the one that the environment follows"
        ) from None


def _copy(obs: Flat) -> Flat:
    return {name: column.copy() for name, column in obs.items()}


def _put_row(obs: Flat, env: int, row: Flat) -> None:
    for name, column in obs.items():
        column[env] = row[name]


def _choose(mask: Flags, chosen: Flat, other: Flat) -> Flat:
    """Return the rows of `chosen` where the mask is set, else those of `other`."""
    if mask.all():
        return chosen
    mixed = _copy(other)
    for name, column in mixed.items():
        column[mask] = chosen[name][mask]
    return mixed
