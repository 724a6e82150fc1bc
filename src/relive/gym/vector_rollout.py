# SPDX-License-Identifier: Apache-2.0
"""Rollouts: the policy acts, the environments step, and a part comes out.

Axes and terms (B, K, E, chunk step, part, epoch) are those of docs/glossary.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gymnasium.vector import VectorEnv

from relive.columns import unflatten
from relive.errors import ClosedError, ColumnMismatchError, InvalidArgumentError
from relive.gym.episodes import Episode, EpisodeLog
from relive.gym.options import Position, RewardType, RolloutOptions, checked_seed
from relive.gym.part_columns import (
    chunk_columns,
    first_flags,
    next_obs,
    played_actions,
    truncate,
)
from relive.gym.players import Envs, make_player
from relive.gym.policy import Policy, PolicyReader
from relive.gym.spaces import ActionSpec, Flat, ObservationSpec
from relive.gym.step_queue import StepQueue
from relive.options import checked_count
from relive.part import TrajectoryPart

__all__ = ["VectorRollout", "rollout"]


class VectorRollout(Iterator[TrajectoryPart]):
    """The parts of one group of envs, one after the other: an iterator.

    Each epoch starts with a part of step -1 that holds the flags of the state before it, all
    False, then come the parts of its chunk steps, then with `bootstrap_values` one that holds
    `prev_values` only. Episodes go on over epochs and trajectories.

    A chunk step has `curr_obs` and `next_obs` (`curr_obs/states` when the observation is no
    dict), `actions` in the action space's element type, `rewards` in that of the options, bool
    `terminations`, `truncations` and `dones` (either of them), and what the policy adds. With
    action chunks, rewards and flags are `[B, K]`, flags are set at the action that ended the
    episode, and `extras/action_mask`, bool `[B, K]`, says which actions were played; after the
    end rewards are 0 and the actions what the policy chose. The receiver owns every array.

    Nothing here starts a thread or closes the environments. One thread at a time iterates;
    `close`, `pop_episodes` and `get_stats` may be called from any. Parts can come later than
    their steps, see `RolloutOptions.max_queued_steps`; steps still queued when the iteration is
    given up are part of no trajectory.

    Args:
        envs: A vector environment with Box, Discrete, MultiDiscrete or MultiBinary actions and
            observations, the latter also as (nested) Dict. It is reset at the first step.
        policy: Called once for each chunk step.
        options: How the rollout is cut.
        seed: Given to the first reset: an integer from which Gymnasium makes one for each env, or
            one for each.
        model_weights_id: Stamped on each part: a text, or a function that gives it, which is
            called before the policy. A part whose rows were played at different times bears
            that of the latest; let the policy return `versions` to have one for each row.

    Raises:
        InvalidArgumentError: `envs` is no vector environment, `policy` no function or `seed` none,
            or the autoreset mode is unknown or cannot do what is asked.
        UnsupportedValueError: A space has no columns.
    """

    def __init__(
        self,
        envs: Envs,
        policy: Policy,
        options: RolloutOptions,
        *,
        seed: int | Sequence[int] | None = None,
        model_weights_id: str | Callable[[], str] = "",
    ) -> None:
        given: object = envs
        if not isinstance(given, VectorEnv):
            raise InvalidArgumentError(
                f"envs is {given}, but must be a vector environment; make it with "
                "gymnasium.make_vec(id, num_envs=...), or of yours: "
                "gymnasium.vector.SyncVectorEnv([make_env])"
            )
        if not callable(policy):
            raise InvalidArgumentError(
                f"policy is a {type(policy).__name__}, but must be callable; give a function of "
                "the observations that returns the actions"
            )
        num_envs, num_actions = envs.num_envs, options.actions_per_chunk
        observations = ObservationSpec(envs.single_observation_space, num_envs)
        actions = ActionSpec(envs.single_action_space, num_envs, num_actions)
        self._policy = PolicyReader(policy, observations, actions, num_envs)
        self._player = make_player(envs, observations, num_actions or 1)
        self._queue = StepQueue(num_envs, options.max_queued_steps)
        self._episodes = EpisodeLog(num_envs)
        self._envs, self._options = envs, options
        self._seed = checked_seed(seed, num_envs)
        self._weights_id = model_weights_id
        self._latest_weights_id = ""
        self._at = Position()
        self._needs_reset = True
        self._is_closed = False
        self._is_broken = False
        self._num_dropped = 0
        self._last_obs: Flat = {}  # after the epoch so far, kept for bootstrap values only

    @property
    def position(self) -> Position:
        """Where the rollout stands: the key of the part that comes next."""
        return self._at

    def __iter__(self) -> VectorRollout:
        """Return itself."""
        return self

    def __next__(self) -> TrajectoryPart:
        """Play until the next part is there, and return it.

        An error of the policy or in what it returned leaves the envs as they were, so the
        call may be repeated.

        Raises:
            StopIteration: The last trajectory is complete, or `close` was called.
            ColumnMismatchError: The policy or the environment returned a wrong shape or type.
            UnsupportedValueError: The policy returned what no column can hold.
            LimitExceededError: An env is too far ahead of the slowest one.
            InvalidArgumentError: The environment does not heed `reset_mask`, or
                `model_weights_id` gave no text.
            ClosedError: The environment is closed, or an earlier call raised while it stepped.
        """
        try:
            part = self._next_part()
        except StopIteration as error:  # would end the caller's loop as if all were well
            raise InvalidArgumentError(
                "the policy or the environment raised StopIteration, but only the rollout ends its "
                "iteration; let it raise another error"
            ) from error
        if part is None:
            raise StopIteration
        return part

    def parts(self, num_steps: int) -> Iterator[TrajectoryPart]:
        """Yield the parts of the next chunk steps, and those of flags and values around them.

        Args:
            num_steps: How many chunk steps, at least 1; fewer come when the rollout ends.

        Raises:
            InvalidArgumentError: `num_steps` is no integer, or is below 1.
        """
        return self._parts(checked_count("num_steps", num_steps))

    def close(self) -> None:
        """Let the iteration end before its next step; the environments stay open."""
        self._is_closed = True

    def pop_episodes(self) -> list[Episode]:
        """Take the episodes that finished in the parts since the last call."""
        return self._episodes.pop()

    def get_stats(self) -> dict[str, float]:
        """Return flat counts over all parts so far.

        `num_env_steps`, `num_episodes`, `num_terminated_episodes`, `num_truncated_episodes`;
        once an episode has ended, min_, mean_ and max_ of `episode_length` and
        `episode_total_reward`; `num_discarded_env_steps`, played for no transition (resets, and
        steps after an episode's end inside a chunk); `num_queued_steps`, not published yet;
        `num_dropped_steps`, queued when `reset_each_epoch` reset their env.
        """
        return self._episodes.stats() | {
            "num_discarded_env_steps": float(self._player.num_discarded),
            "num_queued_steps": float(len(self._queue)),
            "num_dropped_steps": float(self._num_dropped),
        }

    def _parts(self, num_steps: int) -> Iterator[TrajectoryPart]:
        for part in self:
            yield part
            num_steps -= 0 <= part.step < self._options.steps_per_epoch
            if not num_steps and self._at.step != self._options.steps_per_epoch:
                return

    def _next_part(self) -> TrajectoryPart | None:
        """Return the next part, or None when there is none."""
        at, options = self._at, self._options
        if self._is_closed or at.trajectory == options.num_trajectories:
            return None
        columns: dict[str, Any] | None
        if at.step == -1:
            columns = first_flags(self._envs.num_envs, options.actions_per_chunk)
        elif at.step < options.steps_per_epoch:
            columns = self._next_step()
        else:
            columns = self._bootstrap_value()
        if columns is None:
            return None
        part = TrajectoryPart(
            group=options.group,
            incarnation=options.incarnation,
            trajectory=at.trajectory,
            epoch=at.epoch,
            step=at.step,
            columns=unflatten(columns),
            model_weights_id=self._latest_weights_id if at.step >= 0 else "",
        )
        self._at = at.following(options)
        return part

    def _next_step(self) -> dict[str, Any] | None:
        """Play until every env has a step; None when closed meanwhile."""
        columns = self._queue.get()
        while columns is None:
            if self._is_closed:
                return None
            self._play()
            columns = self._queue.get()
        if self._at.step + 1 == self._options.steps_per_epoch:
            columns = self._end_epoch(columns)
        played = played_actions(columns)
        rewards, terminations, truncations = (
            columns[name].reshape(played.shape)
            for name in ("rewards", "terminations", "truncations")
        )
        self._episodes.add(rewards, played, terminations, truncations)
        return columns

    def _end_epoch(self, columns: dict[str, Any]) -> dict[str, Any]:
        """Do what the options ask after the epoch's last step; return what to publish of it."""
        if self._options.bootstrap_values:
            self._last_obs = next_obs(columns)
        if not self._options.reset_each_epoch:
            return columns
        self._num_dropped += self._queue.clear()
        self._needs_reset = True
        return truncate(columns)

    def _play(self) -> None:
        """Let the policy act once, and queue what came of it."""
        with self._stepping():
            if self._needs_reset:
                self._player.reset(self._seed)
                self._needs_reset, self._seed = False, None
            self._player.prepare()
        weights_id: object = self._weights_id() if callable(self._weights_id) else self._weights_id
        if not isinstance(weights_id, str):
            raise InvalidArgumentError(
                f"model_weights_id is {weights_id!r}, but must be text or a function that gives "
                "it; convert it with str()"
            )
        actions, columns = self._policy.act(self._player.obs)
        has_chunks = self._options.actions_per_chunk is not None
        with self._stepping():
            chunk = self._player.play(actions if has_chunks else actions[:, None])
            columns |= chunk_columns(
                chunk, actions, self._options.reward_dtype, has_chunks=has_chunks
            )
            self._queue.put(columns, chunk.valid)
        self._latest_weights_id = weights_id

    def _bootstrap_value(self) -> dict[str, Any]:
        _, columns = self._policy.act(self._last_obs)
        if "prev_values" not in columns:
            raise ColumnMismatchError(
                "the policy returned no column 'prev_values', but bootstrap_values asks for it; "
                "let it return (actions, {'prev_values': ...})",
                column="prev_values",
            )
        return {"prev_values": columns["prev_values"]}

    @contextmanager
    def _stepping(self) -> Iterator[None]:
        """Remember when a call raised while the environments moved: steps are lost then."""
        if self._is_broken:
            raise ClosedError(
                f"the rollout of group {self._options.group!r} raised while its environments "
                "stepped, but goes on only from a whole step; start a new one with a higher "
                "incarnation"
            )
        if self._envs.closed:
            raise ClosedError(f"{self._envs} is closed, but the rollout steps it; close it after")
        self._is_broken = True
        yield
        self._is_broken = False


def rollout(
    envs: Envs,
    policy: Policy,
    *,
    steps_per_epoch: int,
    num_epochs: int = 1,
    num_trajectories: int | None = None,
    group: str = "0",
    incarnation: int = 0,
    actions_per_chunk: int | None = None,
    reset_each_epoch: bool = False,
    bootstrap_values: bool = False,
    reward_dtype: RewardType = "float32",
    max_queued_steps: int = 1024,
    seed: int | Sequence[int] | None = None,
    model_weights_id: str | Callable[[], str] = "",
) -> VectorRollout:
    """Iterate over the parts that a vector environment and a policy make.

    The arguments are those of `VectorRollout` and the fields of `RolloutOptions`, and are
    explained there; errors are theirs too.

    Example:
        >>> import gymnasium
        >>> envs = gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync")
        >>> policy = lambda obs: (obs[:, 2] > 0).astype(int)
        >>> parts = list(rollout(envs, policy, steps_per_epoch=3, num_trajectories=1, seed=0))
        >>> [part.step for part in parts]
        [-1, 0, 1, 2]
        >>> parts[1].columns["next_obs"]["states"].shape, parts[1].columns["rewards"].dtype
        ((2, 4), dtype('float32'))
        >>> envs.close()
    """
    options = RolloutOptions(
        steps_per_epoch=steps_per_epoch,
        num_epochs=num_epochs,
        num_trajectories=num_trajectories,
        group=group,
        incarnation=incarnation,
        actions_per_chunk=actions_per_chunk,
        reset_each_epoch=reset_each_epoch,
        bootstrap_values=bootstrap_values,
        reward_dtype=reward_dtype,
        max_queued_steps=max_queued_steps,
    )
    return VectorRollout(envs, policy, options, seed=seed, model_weights_id=model_weights_id)
