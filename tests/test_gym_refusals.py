# SPDX-License-Identifier: Apache-2.0
"""What rollouts take and what they refuse by name: spaces, answers, environments, options."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import DictInfoToList

import relive.gym
from relive.errors import (
    ColumnMismatchError,
    InvalidArgumentError,
    UnsupportedValueError,
)
from scripted_envs import (
    SCRIPTS,
    Envs,
    ScriptedEnv,
    env_makers,
    policy,
    sync_envs,
    where,
)


class HugeReward(ScriptedEnv):
    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, _, terminated, truncated, info = super().step(action)
        return obs, 1e300, terminated, truncated, info


class ShapedEnv(gymnasium.Env[Any, Any]):
    """Has the spaces it is given."""

    def __init__(self, observation: spaces.Space[Any], action: spaces.Space[Any]) -> None:
        self.observation_space = observation
        self.action_space = action

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        self.observation_space.seed(1)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        return self.observation_space.sample(), 0.0, False, False, {}


def shaped(observation: spaces.Space[Any], action: spaces.Space[Any] | None = None) -> Envs:
    action = spaces.Discrete(3) if action is None else action
    return SyncVectorEnv([partial(ShapedEnv, observation, action)] * 2)


BOX = spaces.Box(0, 1, (2,), np.float32)


class TestSpaces:
    @pytest.mark.parametrize(
        ("space", "column"),
        [
            (spaces.Tuple((BOX,)), "curr_obs/states"),
            (spaces.Text(5), "curr_obs/states"),
            (spaces.Sequence(BOX), "curr_obs/states"),
            (spaces.Graph(BOX, None), "curr_obs/states"),
            (spaces.OneOf((BOX, BOX)), "curr_obs/states"),
            (
                spaces.Dict({"arm": spaces.Dict({"pair": spaces.Tuple((BOX,))})}),
                "curr_obs/arm/pair",
            ),
            (spaces.Dict({"arm": spaces.Dict({})}), "curr_obs/arm"),
        ],
    )
    def test_an_observation_space_without_columns_is_refused_by_name(
        self, space: spaces.Space[Any], column: str
    ) -> None:
        envs = sync_envs(SCRIPTS, AutoresetMode.SAME_STEP)
        envs.single_observation_space = space
        with pytest.raises(
            UnsupportedValueError,
            match=type(space).__name__ if column == "curr_obs/states" else column,
        ) as error:
            relive.gym.rollout(envs, policy, steps_per_epoch=1)
        assert error.value.column == column

    def test_an_empty_dict_and_a_key_with_a_slash_are_refused(self) -> None:
        envs = sync_envs(SCRIPTS, AutoresetMode.SAME_STEP)
        for space in (spaces.Dict({}), spaces.Dict({"a/b": BOX})):
            envs.single_observation_space = space
            with pytest.raises(UnsupportedValueError):
                relive.gym.rollout(envs, policy, steps_per_epoch=1)

    @pytest.mark.parametrize(
        "space", [spaces.Tuple((BOX,)), spaces.Dict({"a": BOX}), spaces.Text(3)]
    )
    def test_an_action_space_without_one_column_is_refused(self, space: spaces.Space[Any]) -> None:
        envs = sync_envs(SCRIPTS, AutoresetMode.SAME_STEP)
        envs.single_action_space = space
        with pytest.raises(UnsupportedValueError, match=f"'actions' is {type(space).__name__}"):
            relive.gym.rollout(envs, policy, steps_per_epoch=1)

    @pytest.mark.parametrize(
        ("space", "actions", "dtype"),
        [
            (spaces.Discrete(3), np.array([0, 2], np.int32), "int64"),
            (spaces.Discrete(3), [1, 2], "int64"),
            (spaces.MultiDiscrete([3, 4]), np.array([[2, 3], [0, 0]]), "int64"),
            (spaces.MultiBinary(2), np.array([[True, False], [True, True]]), "int8"),
            (spaces.Box(0, 255, (2,), np.uint8), np.array([[255, 0], [1, 2]]), "uint8"),
            (BOX, np.array([[0.5, 1], [0, 0]]), "float32"),
        ],
    )
    def test_actions_are_played_and_stored_in_the_spaces_type(
        self, space: spaces.Space[Any], actions: Any, dtype: str
    ) -> None:
        rollout = relive.gym.rollout(shaped(BOX, space), lambda _: actions, steps_per_epoch=2)
        part = list(rollout.parts(1))[1]
        assert part.columns["actions"].dtype == dtype
        assert part.columns["actions"].tolist() == np.asarray(actions).tolist()

    @pytest.mark.parametrize(
        "space",
        [
            spaces.Discrete(7),
            spaces.MultiDiscrete([3, 4]),
            spaces.MultiBinary([2, 3]),
            spaces.Box(0, 255, (3, 4, 3), np.uint8),
            spaces.Box(-1, 1, (), np.float64),
        ],
    )
    def test_observations_keep_shape_and_type(self, space: spaces.Space[Any]) -> None:
        envs = shaped(space)
        rollout = relive.gym.rollout(envs, lambda _: [0, 1], steps_per_epoch=2)
        part = list(rollout.parts(1))[1]
        for name in ("curr_obs", "next_obs"):
            column = part.columns[name]["states"]
            assert column.dtype == space.dtype
            assert column.shape == (2, *(space.shape or ()))
            assert all(space.contains(np.asarray(row)) for row in column)


class TestRefusals:
    def rollout(self, act: Any, **options: Any) -> relive.gym.VectorRollout:
        """Past the first part, so that the next call asks the policy."""
        envs = sync_envs(SCRIPTS, AutoresetMode.SAME_STEP)
        rollout = relive.gym.rollout(envs, act, **{"steps_per_epoch": 3, **options})
        next(rollout)
        return rollout

    @pytest.mark.parametrize(
        ("actions", "message"),
        [
            (np.zeros((4, 3)), r"actions \(4, 3\).*\[B, \.\.\.\] = \(4, 2\)"),
            (np.zeros((3, 2)), r"actions \(3, 2\)"),
            (np.zeros((4, 1, 2)), r"actions \(4, 1, 2\)"),
            (np.zeros((4, 2), np.complex64), "complex64"),
        ],
    )
    def test_wrong_actions_are_named(self, actions: Any, message: str) -> None:
        with pytest.raises(ColumnMismatchError, match=message) as error:
            next(self.rollout(lambda _: actions))
        assert error.value.column == "actions"

    def test_actions_of_a_chunk_need_its_axis(self) -> None:
        envs = sync_envs(SCRIPTS, AutoresetMode.DISABLED)
        rollout = relive.gym.rollout(envs, policy, steps_per_epoch=3, actions_per_chunk=3)
        with pytest.raises(ColumnMismatchError, match=r"\[B, K, \.\.\.\] = \(4, 3, 2\)"):
            list(rollout)

    @pytest.mark.parametrize("actions", [[0.5, 1], [300, 1], [np.nan, 1]])
    def test_actions_that_would_change_are_refused(self, actions: list[float]) -> None:
        envs = shaped(BOX, spaces.Box(0, 255, (), np.uint8))
        rollout = relive.gym.rollout(envs, lambda _: np.array(actions), steps_per_epoch=3)
        with pytest.raises(ColumnMismatchError, match=r"holds uint8, and some would change"):
            list(rollout)

    def test_bfloat16_actions_are_refused(self) -> None:
        import torch

        with pytest.raises(UnsupportedValueError, match=r"bfloat16.*float32"):
            next(self.rollout(lambda _: torch.zeros(4, 2, dtype=torch.bfloat16)))

    @pytest.mark.parametrize(
        ("columns", "message"),
        [
            ({"rewards": np.zeros(4)}, "'rewards'"),
            ({"curr_obs": {"states": np.zeros(4)}}, "'curr_obs/states'"),
            ({"extras": {"action_mask": np.zeros(4)}}, "'extras/action_mask'"),
            ({"prev_values": np.zeros(3)}, r"'prev_values' \(3,\).*4 envs"),
            ({"versions": np.int64(3)}, r"'versions' \(\)"),
            ({"extras": {"task": ["a", "b"]}}, r"'extras/task' \(2,\)"),
        ],
    )
    def test_wrong_columns_are_named(self, columns: dict[str, Any], message: str) -> None:
        with pytest.raises(ColumnMismatchError, match=message):
            next(self.rollout(lambda obs: (policy(obs), columns)))

    @pytest.mark.parametrize("answer", [(1, 2, 3), (np.zeros((4, 2)), None), ()])
    def test_an_answer_of_another_form_is_refused(self, answer: Any) -> None:
        with pytest.raises(UnsupportedValueError, match="returned a tuple of"):
            next(self.rollout(lambda _: answer))

    @pytest.mark.parametrize("answer", [None, (None, {})])
    def test_a_policy_that_returns_nothing_is_named(self, answer: Any) -> None:
        with pytest.raises(UnsupportedValueError, match=r"returned None, .*`return act") as error:
            next(self.rollout(lambda _: answer))
        assert error.value.column == "actions"

    def test_a_policy_that_is_no_function_is_refused(self) -> None:
        with pytest.raises(InvalidArgumentError, match="policy is a ndarray, but must be callable"):
            self.rollout(np.zeros((4, 2)))

    @pytest.mark.parametrize("num_steps", [0, -1, 1.5, None])
    def test_a_number_of_steps_that_is_no_count_is_named(self, num_steps: Any) -> None:
        with pytest.raises(InvalidArgumentError, match=f"num_steps is {num_steps}, but must"):
            self.rollout(policy).parts(num_steps)

    def test_a_single_environment_is_refused(self) -> None:
        env = ScriptedEnv(0, SCRIPTS[0])
        singles: list[Any] = [env, gymnasium.wrappers.TimeLimit(env, 5), None]
        for single in singles:
            with pytest.raises(InvalidArgumentError, match=r"envs is .*make_vec.*SyncVectorEnv"):
                relive.gym.rollout(single, policy, steps_per_epoch=3)

    def test_a_mask_of_the_environment_does_not_get_lost(self) -> None:
        class Masking(SyncVectorEnv[Any, Any]):
            def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
                obs, rewards, terminations, truncations, infos = super().step(actions)
                masked: Any = np.ma.MaskedArray(rewards, rewards > 0)
                return obs, masked, terminations, truncations, infos

        envs = Masking(env_makers(SCRIPTS, "plain"))
        with pytest.raises(UnsupportedValueError, match="'rewards' is a masked array"):
            list(relive.gym.rollout(envs, policy, steps_per_epoch=3))

    def test_values_that_are_no_column_are_refused(self) -> None:
        with pytest.raises(UnsupportedValueError, match="returned a float as column 'versions'"):
            next(self.rollout(lambda obs: (policy(obs), {"versions": 0.5})))

    def test_columns_must_not_change_between_calls(self) -> None:
        def act(obs: Any) -> Any:
            step = where(obs)[3, 2]
            return policy(obs), {"versions": np.zeros(4, np.int64 if step < 2 else np.int32)}

        with pytest.raises(ColumnMismatchError, match=r"int32 \(4,\).*before that.*int64 \(4,\)"):
            list(self.rollout(act))

    def test_a_reward_too_large_for_its_type_is_refused(self) -> None:
        envs = SyncVectorEnv([partial(HugeReward, 0, SCRIPTS[0])])
        with pytest.raises(ColumnMismatchError, match=r'1e\+300.*reward_dtype="float64"'):
            list(relive.gym.rollout(envs, policy, steps_per_epoch=3))
        rollout = relive.gym.rollout(envs, policy, steps_per_epoch=3, reward_dtype="float64")
        assert list(rollout.parts(1))[1].columns["rewards"].tolist() == [1e300]

    def test_an_unnamed_autoreset_mode_is_refused(self) -> None:
        envs = sync_envs(SCRIPTS, AutoresetMode.SAME_STEP)
        for mode in (None, "sometimes"):
            envs.metadata["autoreset_mode"] = mode
            with pytest.raises(InvalidArgumentError, match=f"autoreset_mode.*{mode!r}"):
                relive.gym.rollout(envs, policy, steps_per_epoch=3)
        envs.metadata["autoreset_mode"] = "SameStep"
        assert len(list(relive.gym.rollout(envs, policy, steps_per_epoch=3).parts(3))) == 4

    def test_an_environment_that_heeds_no_reset_mask_is_refused(self) -> None:
        class Deaf(SyncVectorEnv[Any, Any]):
            def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
                return super().reset(seed=seed)

        envs = Deaf(env_makers(SCRIPTS, "plain"), autoreset_mode=AutoresetMode.DISABLED)
        with pytest.raises(InvalidArgumentError, match=r"only the envs \[0\].*reset_mask"):
            list(relive.gym.rollout(envs, policy, steps_per_epoch=3))

    def test_a_missing_final_observation_is_named(self) -> None:
        envs = DictInfoToList(sync_envs(SCRIPTS, AutoresetMode.SAME_STEP))
        with pytest.raises(ColumnMismatchError, match=r"env 0.*'final_obs'") as error:
            list(relive.gym.rollout(envs, policy, steps_per_epoch=3))
        assert error.value.column == "next_obs"

    def test_async_without_shared_memory_would_reset_twice(self) -> None:
        class Unshared(AsyncVectorEnv[Any, Any]):
            """Starts no process: it is refused before it is used."""

            def __init__(self) -> None:
                self.shared_memory = False
                self.num_envs, self.closed = 2, True
                self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
                self.single_observation_space, self.single_action_space = BOX, BOX

        with pytest.raises(InvalidArgumentError, match="shared_memory=True"):
            relive.gym.rollout(Unshared(), policy, steps_per_epoch=3)

    @pytest.mark.parametrize(
        "observe",
        [
            lambda obs: obs[:, :3],
            lambda obs: obs.astype(np.complex128),
            lambda obs: {"states": obs},
        ],
    )
    def test_observations_that_break_their_space_are_named(
        self, observe: Callable[[Any], Any]
    ) -> None:
        class Lying(SyncVectorEnv[Any, Any]):
            def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
                obs, infos = super().reset(**options)
                return observe(obs), infos

        envs = Lying(env_makers(SCRIPTS, "plain"))
        with pytest.raises(ColumnMismatchError) as error:
            list(relive.gym.rollout(envs, policy, steps_per_epoch=3))
        assert error.value.column.startswith("curr_obs")

    def test_missing_and_extra_keys_are_named(self) -> None:
        class Lying(SyncVectorEnv[Any, Any]):
            def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
                obs, infos = super().reset(**options)
                return {"where": obs["where"], "else": obs["step"]}, infos

        envs = Lying(env_makers(SCRIPTS, "dict"))
        with pytest.raises(ColumnMismatchError, match=r"\['else', 'where'\].*\['step', 'where'\]"):
            list(relive.gym.rollout(envs, policy, steps_per_epoch=3))

    def test_rewards_must_be_one_for_each_env(self) -> None:
        class Lying(SyncVectorEnv[Any, Any]):
            def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
                obs, rewards, terminations, truncations, infos = super().step(actions)
                return obs, rewards[:, None], terminations, truncations, infos

        with pytest.raises(ColumnMismatchError, match=r"rewards float64 \(4, 1\).*4 envs"):
            list(relive.gym.rollout(Lying(env_makers(SCRIPTS, "plain")), policy, steps_per_epoch=3))

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"steps_per_epoch": 0}, "steps_per_epoch is 0"),
            ({"steps_per_epoch": 2.0}, "steps_per_epoch is 2.0"),
            ({"num_epochs": 0}, "num_epochs is 0"),
            ({"num_epochs": None}, "num_epochs is None"),
            ({"num_trajectories": 0}, "num_trajectories is 0"),
            ({"incarnation": -1}, "incarnation is -1"),
            ({"incarnation": True}, "incarnation is True"),
            ({"actions_per_chunk": 0}, "actions_per_chunk is 0"),
            ({"max_queued_steps": 0}, "max_queued_steps is 0"),
            ({"group": ""}, "group is ''"),
            ({"group": 7}, "group is 7"),
            ({"reward_dtype": "float16"}, "reward_dtype is 'float16'"),
        ],
    )
    def test_options_out_of_range_are_named(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(InvalidArgumentError, match=message):
            self.rollout(policy, **options)
