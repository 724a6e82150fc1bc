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
from numpy.typing import NDArray

import relive.gym
from relive.columns import flatten
from relive.errors import (
    ColumnMismatchError,
    InvalidArgumentError,
    ReplayError,
    UnsupportedValueError,
)
from relive.part import TrajectoryPart
from scripted_envs import (
    SCRIPTS,
    Envs,
    ScriptedEnv,
    chunk_policy,
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

    @pytest.mark.parametrize("column", ["curr_obs/states", "actions"])
    def test_a_space_whose_elements_no_column_holds_is_refused(self, column: str) -> None:
        envs = sync_envs(SCRIPTS, AutoresetMode.SAME_STEP)
        space: Any = spaces.Box(0, 1, (2,), np.float32)
        space.dtype = np.dtype(np.longdouble)
        if column == "actions":
            envs.single_action_space = space
        else:
            envs.single_observation_space = space
        with pytest.raises(UnsupportedValueError, match=f"{column!r} has elements of float") as err:
            relive.gym.rollout(envs, policy, steps_per_epoch=1)
        assert err.value.column == column

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
            ([[0.0, 0.0], [1.0]], r"'actions' is a list that NumPy .* of the same shape"),
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

    @pytest.mark.parametrize(
        ("dtype", "given"),
        [
            (np.float32, np.array([1e300, 0])),
            (np.float32, np.array([0, -1e39])),
            (np.float16, np.array([70000, 1], np.float32)),
            (np.float16, np.array([70000, 1])),
            (np.float32, np.array([2**24 + 1, 1])),
        ],
    )
    def test_actions_that_their_float_type_lacks_are_refused(
        self, dtype: Any, given: NDArray[Any]
    ) -> None:
        envs = shaped(BOX, spaces.Box(-np.inf, np.inf, (), dtype))
        rollout = relive.gym.rollout(envs, lambda _: given, steps_per_epoch=3)
        with pytest.raises(ColumnMismatchError, match=r"holds float\d\d, and some would") as error:
            list(rollout.parts(5))
        assert error.value.column == "actions"

    @pytest.mark.parametrize("given", [0.1, np.inf, np.nan])
    def test_floats_are_rounded_to_their_type(self, given: float) -> None:
        envs = shaped(BOX, spaces.Box(-np.inf, np.inf, (), np.float32))
        envs.single_action_space.contains = lambda x: True  # type: ignore[method-assign]
        rollout = relive.gym.rollout(envs, lambda _: np.full(2, given), steps_per_epoch=3)
        actions = list(rollout.parts(1))[1].columns["actions"]
        np.testing.assert_array_equal(actions, np.full(2, given, np.float32))

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
            ({"extras": np.zeros(4)}, r"'extras' is a nested dict"),
            ({"forward_inputs": ["a"] * 4}, r"'forward_inputs' is a nested dict"),
            ({"prev_values": {"a": np.zeros(4)}}, r"'prev_values', which is one column"),
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

    @pytest.mark.parametrize("num_actions", [None, 2])
    @pytest.mark.parametrize(
        "answer",
        [
            {"extras": np.zeros(4)},
            {"prev_values": {"a": np.zeros(4)}},
            {"versions": np.zeros(3)},
            {"rewards": np.zeros(4)},
            {"extras": {"x": 3}},
            None,
        ],
        ids=str,
    )
    def test_a_refused_answer_leaves_envs_and_position_as_they_were(
        self, answer: Any, num_actions: int | None
    ) -> None:
        """Every second answer is wrong; what comes in between is what comes without them."""
        act = policy if num_actions is None else chunk_policy(num_actions)
        is_wrong = True

        def faulty(obs: Any) -> Any:
            nonlocal is_wrong
            is_wrong = not is_wrong
            if is_wrong:
                return act(obs), {"prev_values": where(obs)[:, 0]}
            return (act(obs), answer) if answer else np.full((4, 2), "x")

        def fine(obs: Any) -> Any:
            return act(obs), {"prev_values": where(obs)[:, 0]}

        options: dict[str, Any] = {
            "steps_per_epoch": 4,
            "num_trajectories": 1,
            "bootstrap_values": True,
            "actions_per_chunk": num_actions,
        }
        got: list[TrajectoryPart] = []
        envs = sync_envs(SCRIPTS, AutoresetMode.DISABLED)
        expected = list(relive.gym.rollout(envs, fine, **options))
        rollout = relive.gym.rollout(sync_envs(SCRIPTS, AutoresetMode.DISABLED), faulty, **options)
        for _ in range(2 * len(expected)):
            before = rollout.position
            try:
                got += [part for part in [next(rollout, None)] if part is not None]
            except ReplayError:
                assert rollout.position == before
        assert len(got) == len(expected) == 6
        for mine, other in zip(got, expected, strict=True):
            assert mine.step == other.step
            columns = flatten(mine.columns)
            assert columns.keys() == flatten(other.columns).keys()
            for name, column in flatten(other.columns).items():
                np.testing.assert_array_equal(columns[name], column)

    def test_empty_nested_dicts_of_the_policy_are_nothing(self) -> None:
        empty: dict[str, Any] = {"extras": {}, "forward_inputs": {}}
        part = next(self.rollout(lambda obs: (policy(obs), empty)))
        assert not empty.keys() & part.columns.keys()

    @pytest.mark.parametrize(
        ("seed", "plain"),
        [
            (np.int64(3), 3),
            (np.uint8(3), 3),
            (np.array(3), 3),
            (np.arange(2), [0, 1]),
            ([np.int32(5), 6], [5, 6]),
            ((5, 6), [5, 6]),
        ],
    )
    def test_seeds_of_numpy_are_those_of_python(self, seed: Any, plain: Any) -> None:
        envs = gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync")
        expected, _ = envs.reset(seed=plain)
        rollout = relive.gym.rollout(envs, lambda _: [0, 1], steps_per_epoch=3, seed=seed)
        part = list(rollout.parts(1))[1]
        np.testing.assert_array_equal(part.columns["curr_obs"]["states"], expected)

    @pytest.mark.parametrize(
        "seed",
        [-1, 1.5, "3", True, [1], [1, 2, 3, -4], {1, 2, 3, 4}, np.zeros(4), np.zeros((4, 1), int)],
        ids=str,
    )
    def test_a_seed_that_is_none_is_named(self, seed: Any) -> None:
        with pytest.raises(InvalidArgumentError, match=r"(?s)seed is .* one for each of 4 envs"):
            self.rollout(policy, seed=seed)

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

    @pytest.mark.parametrize("late", [False, True])
    @pytest.mark.parametrize(
        ("dtype", "value"),
        [
            (np.int32, np.int64(2**32 + 7)),
            (np.int8, np.int64(-129)),
            (np.float32, np.float64(1e300)),
            (np.float16, np.float32(70000)),
            (np.float32, np.int64(2**24 + 1)),
        ],
    )
    def test_observations_that_their_type_lacks_are_named(
        self, dtype: Any, value: Any, late: bool
    ) -> None:
        class Wide(SyncVectorEnv[Any, Any]):
            def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
                return np.full((4, 1), 0 if late else value, value.dtype), {}

            def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
                flags = np.zeros(4, np.bool_)
                return np.full((4, 1), value, value.dtype), np.zeros(4), flags, flags, {}

        envs = Wide(env_makers(SCRIPTS, "plain"))
        is_float = np.issubdtype(dtype, np.floating)
        low, high = (-np.inf, np.inf) if is_float else (-9, 9)
        envs.single_observation_space = spaces.Box(low, high, (1,), dtype)
        rollout = relive.gym.rollout(envs, lambda _: np.zeros((4, 2)), steps_per_epoch=3)
        with pytest.raises(ColumnMismatchError, match="some of it would be another num") as error:
            list(rollout.parts(5))
        assert error.value.column == "curr_obs/states"

    def test_a_final_observation_that_its_type_lacks_is_named(self) -> None:
        class Wide(SyncVectorEnv[Any, Any]):
            def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
                *result, infos = super().step(actions)
                if "final_obs" in infos:
                    final = np.empty(4, object)
                    final[:] = [np.full(4, 1e300)] * 4
                    infos["final_obs"] = final
                return (*result, infos)

        envs = Wide(env_makers(SCRIPTS, "plain"), autoreset_mode=AutoresetMode.SAME_STEP)
        envs.single_observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
        with pytest.raises(ColumnMismatchError, match="some of it would be another number"):
            list(relive.gym.rollout(envs, policy, steps_per_epoch=3).parts(5))

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
            ({"reset_each_epoch": "no"}, "reset_each_epoch is 'no'"),
            ({"reset_each_epoch": 1}, "reset_each_epoch is 1"),
            ({"bootstrap_values": None}, "bootstrap_values is None"),
        ],
    )
    def test_options_out_of_range_are_named(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(InvalidArgumentError, match=message):
            self.rollout(policy, **options)
