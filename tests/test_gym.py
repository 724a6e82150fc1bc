# SPDX-License-Identifier: Apache-2.0
"""Vector environments become parts: every transition once, none that is a reset."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import relive.gym
from relive.collector import TrajectoryCollector
from relive.columns import flatten
from relive.errors import (
    ColumnMismatchError,
    InvalidArgumentError,
    LimitExceededError,
)
from relive.gym.options import Position
from relive.part import TrajectoryPart
from scripted_envs import (
    MODES,
    SCRIPTS,
    Script,
    Transition,
    check_chunks,
    chunk_policy,
    env_makers,
    in_parts,
    plain_loop,
    policy,
    script_of,
    sync_envs,
    where,
)

scripts_strategy = st.lists(
    st.lists(
        st.tuples(st.integers(1, 6), st.sampled_from(["terminated", "truncated", "both"])),
        min_size=1,
        max_size=4,
    ).map(tuple),
    min_size=1,
    max_size=4,
)


class TestOneActionPerStep:
    @pytest.mark.parametrize("shape", ["plain", "dict", "nested"])
    @pytest.mark.parametrize("mode", MODES)
    def test_what_is_published_is_what_a_plain_loop_finds(
        self, mode: AutoresetMode, shape: str
    ) -> None:
        envs = sync_envs(SCRIPTS, mode, shape)
        parts = list(relive.gym.rollout(envs, policy, steps_per_epoch=40, num_trajectories=1))
        for env, script in enumerate(SCRIPTS):
            assert in_parts(parts, env) == plain_loop(env, script, 40)

    @given(
        scripts=scripts_strategy,
        mode=st.sampled_from(MODES),
        num_steps=st.integers(1, 30),
        copy=st.booleans(),
    )
    def test_and_so_for_any_script(
        self, scripts: list[Script], mode: AutoresetMode, num_steps: int, copy: bool
    ) -> None:
        envs = sync_envs(scripts, mode, copy=copy)
        parts = list(
            relive.gym.rollout(envs, policy, steps_per_epoch=num_steps, num_trajectories=1)
        )
        assert [part.step for part in parts] == list(range(-1, num_steps))
        for env, script in enumerate(scripts):
            assert in_parts(parts, env) == plain_loop(env, script, num_steps)

    @pytest.mark.parametrize("mode", MODES)
    def test_processes_give_the_same(self, mode: AutoresetMode) -> None:
        scripts = SCRIPTS[1:3]
        envs = AsyncVectorEnv(
            env_makers(scripts, "nested"), copy=False, context="spawn", autoreset_mode=mode
        )
        parts = list(relive.gym.rollout(envs, policy, steps_per_epoch=25, num_trajectories=1))
        envs.close()
        for env, script in enumerate(scripts):
            assert in_parts(parts, env) == plain_loop(env, script, 25)

    @pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
    def test_an_env_may_reuse_its_observation(self, mode: AutoresetMode) -> None:
        envs = sync_envs(SCRIPTS, mode, "reused", copy=False)
        parts = list(relive.gym.rollout(envs, policy, steps_per_epoch=20, num_trajectories=1))
        for env, script in enumerate(SCRIPTS):
            assert in_parts(parts, env) == plain_loop(env, script, 20)

    def test_a_truncated_step_keeps_its_final_observation(self) -> None:
        for mode in MODES:
            envs = sync_envs([((3, "truncated"),)], mode)
            parts = list(relive.gym.rollout(envs, policy, steps_per_epoch=4, num_trajectories=1))
            last, after = parts[3].columns, parts[4].columns
            assert last["truncations"].tolist() == [True]
            assert last["terminations"].tolist() == [False]
            assert last["next_obs"]["states"].tolist() == [[0, 0, 3, 2]]
            assert after["curr_obs"]["states"].tolist() == [[0, 1, 0, 0]]

    def test_types_and_shapes_are_those_documented(self) -> None:
        envs = sync_envs(SCRIPTS[:3], AutoresetMode.SAME_STEP)
        for options, dtype in (({}, "float32"), ({"reward_dtype": "float64"}, "float64")):
            parts = relive.gym.rollout(envs, policy, steps_per_epoch=2, **options)  # type: ignore[arg-type]  # keywords by hand
            first, step = next(parts), next(parts)
            assert {name: (x.dtype.name, x.shape) for name, x in first.columns.items()} == {
                "dones": ("bool", (3,)),
                "terminations": ("bool", (3,)),
                "truncations": ("bool", (3,)),
            }
            assert {name: (x.dtype.name, x.shape) for name, x in flatten(step.columns).items()} == {
                "actions": ("float64", (3, 2)),
                "curr_obs/states": ("float64", (3, 4)),
                "next_obs/states": ("float64", (3, 4)),
                "rewards": (dtype, (3,)),
                "dones": ("bool", (3,)),
                "terminations": ("bool", (3,)),
                "truncations": ("bool", (3,)),
            }


class TestChunks:
    @pytest.mark.parametrize("num_actions", [2, 3, 5])
    def test_a_chunk_ends_where_its_episode_ends(self, num_actions: int) -> None:
        envs = sync_envs(SCRIPTS, AutoresetMode.DISABLED)
        parts = list(
            relive.gym.rollout(
                envs,
                chunk_policy(num_actions),
                steps_per_epoch=30,
                num_trajectories=1,
                actions_per_chunk=num_actions,
            )
        )
        check_chunks(parts, SCRIPTS, num_actions)
        assert parts[0].columns["dones"].shape == (4, num_actions)

    @given(scripts=scripts_strategy, num_actions=st.integers(1, 5), num_steps=st.integers(1, 12))
    def test_and_so_for_any_script(
        self, scripts: list[Script], num_actions: int, num_steps: int
    ) -> None:
        envs = sync_envs(scripts, AutoresetMode.DISABLED, copy=False)
        parts = list(
            relive.gym.rollout(
                envs,
                chunk_policy(num_actions),
                steps_per_epoch=num_steps,
                num_trajectories=1,
                actions_per_chunk=num_actions,
            )
        )
        check_chunks(parts, scripts, num_actions)

    def test_processes_give_the_same(self) -> None:
        envs = AsyncVectorEnv(
            env_makers(SCRIPTS[:3], "plain"),
            context="spawn",
            autoreset_mode=AutoresetMode.DISABLED,
        )
        parts = list(
            relive.gym.rollout(
                envs,
                chunk_policy(4),
                steps_per_epoch=15,
                num_trajectories=1,
                actions_per_chunk=4,
            )
        )
        envs.close()
        check_chunks(parts, SCRIPTS[:3], 4)

    def test_a_lone_env_skips_no_episode_and_wastes_no_step(self) -> None:
        envs = sync_envs([((3, "terminated"),)], AutoresetMode.DISABLED)
        rollout = relive.gym.rollout(
            envs, chunk_policy(2), steps_per_epoch=6, num_trajectories=1, actions_per_chunk=2
        )
        starts = [
            part.columns["curr_obs"]["states"][0, 1:3].tolist()
            for part in rollout
            if part.step >= 0
        ]
        assert starts == [[0, 0], [0, 2], [1, 0], [1, 2], [2, 0], [2, 2]]
        assert rollout.get_stats()["num_discarded_env_steps"] == 0

    @pytest.mark.parametrize("mode", MODES)
    def test_one_action_a_chunk_works_in_every_mode(self, mode: AutoresetMode) -> None:
        envs = sync_envs(SCRIPTS, mode)
        parts = list(
            relive.gym.rollout(
                envs,
                chunk_policy(1),
                steps_per_epoch=20,
                num_trajectories=1,
                actions_per_chunk=1,
            )
        )
        check_chunks(parts, SCRIPTS, 1)

    @pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
    def test_a_mode_that_cannot_hold_an_env_is_refused_by_name(self, mode: AutoresetMode) -> None:
        envs = sync_envs(SCRIPTS, mode)
        with pytest.raises(InvalidArgumentError, match=rf"{mode}.*AutoresetMode.DISABLED"):
            relive.gym.rollout(envs, chunk_policy(2), steps_per_epoch=4, actions_per_chunk=2)


class TestOrderOfParts:
    def test_epochs_begin_with_flags_and_trajectories_follow_each_other(self) -> None:
        envs = sync_envs(SCRIPTS, AutoresetMode.SAME_STEP)
        parts = list(
            relive.gym.rollout(
                envs,
                policy,
                steps_per_epoch=2,
                num_epochs=2,
                num_trajectories=2,
                group="arm",
                incarnation=3,
            )
        )
        assert [(part.trajectory, part.epoch, part.step) for part in parts] == [
            (trajectory, epoch, step)
            for trajectory in range(2)
            for epoch in range(2)
            for step in (-1, 0, 1)
        ]
        assert {(part.group, part.incarnation) for part in parts} == {("arm", 3)}
        assert not any(part.columns["dones"].any() for part in parts if part.step < 0)

    @pytest.mark.parametrize("mode", MODES)
    def test_episodes_go_on_over_epochs_and_trajectories(self, mode: AutoresetMode) -> None:
        envs = sync_envs(SCRIPTS, mode)
        parts = list(
            relive.gym.rollout(envs, policy, steps_per_epoch=3, num_epochs=2, num_trajectories=4)
        )
        for env, script in enumerate(SCRIPTS):
            assert in_parts(parts, env) == plain_loop(env, script, 24)

    def test_the_collector_makes_trajectories_of_them(self) -> None:
        envs = sync_envs(SCRIPTS, AutoresetMode.NEXT_STEP, "nested")
        collector = TrajectoryCollector(steps_per_epoch=5, num_epochs=2)
        trajectories = []
        for part in relive.gym.rollout(
            envs,
            policy,
            steps_per_epoch=5,
            num_epochs=2,
            num_trajectories=3,
            model_weights_id="w1",
        ):
            trajectories += collector.add(part)
        assert [trajectory.dones.shape for trajectory in trajectories] == [(12, 4)] * 3
        assert [trajectory.model_weights_id for trajectory in trajectories] == ["w1"] * 3
        for env, script in enumerate(SCRIPTS):
            plain = plain_loop(env, script, 30)
            rewards = [reward for one in trajectories for reward in one.rewards[:, env].tolist()]
            assert rewards == [step.reward for step in plain]
            dones = [
                done
                for one in trajectories
                for row in (slice(1, 6), slice(7, 12))
                for done in one.dones[row, env].tolist()
            ]
            assert dones == [step.terminated or step.truncated for step in plain]

    def test_parts_come_in_portions(self) -> None:
        envs = sync_envs(SCRIPTS, AutoresetMode.SAME_STEP)
        rollout = relive.gym.rollout(envs, policy, steps_per_epoch=3, num_trajectories=1)
        assert [part.step for part in rollout.parts(2)] == [-1, 0, 1]
        assert rollout.position == Position(step=2)
        assert [part.step for part in rollout.parts(2)] == [2]
        assert list(rollout.parts(2)) == []
        with pytest.raises(InvalidArgumentError, match="num_steps is 0"):
            rollout.parts(0)

    def test_values_after_the_epoch_are_asked_for_when_wanted(self) -> None:
        envs = sync_envs(SCRIPTS[:2], AutoresetMode.SAME_STEP)

        def with_values(obs: Any) -> tuple[NDArray[np.float64], dict[str, Any]]:
            return policy(obs), {"prev_values": where(obs)[:, 2] + 0.5}

        rollout = relive.gym.rollout(
            envs, with_values, steps_per_epoch=2, num_epochs=2, bootstrap_values=True
        )
        parts = [*rollout.parts(2), *rollout.parts(2)]
        assert [part.step for part in parts] == [-1, 0, 1, 2] * 2
        assert list(parts[3].columns) == ["prev_values"]
        # After its last step: env 0 shows the final observation of an episode of one step.
        assert parts[3].columns["prev_values"].tolist() == [1.5, 2.5]
        plain = list(
            relive.gym.rollout(envs, policy, steps_per_epoch=2, bootstrap_values=True).parts(1)
        )
        assert len(plain) == 2
        with pytest.raises(ColumnMismatchError, match="no column 'prev_values'"):
            list(
                relive.gym.rollout(envs, policy, steps_per_epoch=1, bootstrap_values=True).parts(1)
            )

    @pytest.mark.parametrize("mode", MODES)
    def test_resets_at_each_epoch_end_episodes_as_truncated(self, mode: AutoresetMode) -> None:
        scripts = SCRIPTS[1:]
        rollout = relive.gym.rollout(
            sync_envs(scripts, mode),
            policy,
            steps_per_epoch=4,
            num_epochs=3,
            num_trajectories=1,
            reset_each_epoch=True,
        )
        epochs: list[list[TrajectoryPart]] = [[], [], []]
        for part in rollout:
            epochs[part.epoch].append(part)
        next_episode = dict.fromkeys(range(3), 0.0)
        for parts in epochs:
            for env, script in enumerate(scripts):
                found = in_parts(parts, env)
                assert found[0].at[2] == 0
                if mode is AutoresetMode.DISABLED:  # no reset but the one of the epoch
                    assert found[0].at[1] == next_episode[env]
                    next_episode[env] = found[-1].at[1] + 1
                assert found[-1].terminated or found[-1].truncated
                for step, after in pairwise(found):
                    if not (step.terminated or step.truncated):
                        assert step.next_at == after.at
                    length, _ = script_of(script, int(step.at[1]))
                    assert (step.terminated or step.truncated) == (step.next_at[2] == length)
        stats = rollout.get_stats()
        ends = [
            (step.terminated, step.truncated)
            for parts in epochs
            for env in range(3)
            for step in in_parts(parts, env)
            if step.terminated or step.truncated
        ]
        assert stats["num_episodes"] == len(ends)
        assert stats["num_terminated_episodes"] == sum(terminated for terminated, _ in ends)
        assert stats["num_truncated_episodes"] == sum(truncated for _, truncated in ends) > 0
        assert (stats["num_dropped_steps"] > 0) == (mode is AutoresetMode.NEXT_STEP)

    def test_an_interrupted_chunk_step_is_truncated_at_its_last_action(self) -> None:
        envs = sync_envs([((5, "terminated"),), ((4, "terminated"),)], AutoresetMode.DISABLED)
        *_, last = relive.gym.rollout(
            envs,
            chunk_policy(3),
            steps_per_epoch=1,
            num_trajectories=1,
            actions_per_chunk=3,
            reset_each_epoch=True,
        )
        assert last.columns["truncations"].tolist() == [[False, False, True]] * 2
        assert last.columns["dones"].tolist() == last.columns["truncations"].tolist()
        assert not last.columns["terminations"].any()


class TestNextStepQueue:
    def test_an_env_too_far_behind_is_named(self) -> None:
        envs = sync_envs([((50, "terminated"),), ((1, "truncated"),)], AutoresetMode.NEXT_STEP)
        rollout = relive.gym.rollout(envs, policy, steps_per_epoch=100, max_queued_steps=5)
        with pytest.raises(LimitExceededError, match=r"env 0 is 6 steps ahead of env 1.*SAME_STEP"):
            list(rollout)

    @pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
    def test_no_env_falls_behind_in_other_modes(self, mode: AutoresetMode) -> None:
        envs = sync_envs(SCRIPTS, mode)
        rollout = relive.gym.rollout(envs, policy, steps_per_epoch=50, max_queued_steps=1)
        assert len(list(rollout.parts(50))) == 51
        assert rollout.get_stats()["num_queued_steps"] == 0

    def test_resets_and_waiting_steps_are_counted(self) -> None:
        envs = sync_envs([((1, "terminated"),), ((100, "terminated"),)], AutoresetMode.NEXT_STEP)
        rollout = relive.gym.rollout(envs, policy, steps_per_epoch=10)
        list(rollout.parts(10))
        stats = rollout.get_stats()
        assert stats["num_env_steps"] == 20
        assert stats["num_discarded_env_steps"] == 9
        assert stats["num_queued_steps"] == 9

    def test_further_columns_stay_with_their_row(self) -> None:
        import torch

        envs = sync_envs(SCRIPTS, AutoresetMode.NEXT_STEP)

        def act(obs: Any) -> tuple[Any, dict[str, Any]]:
            step = torch.from_numpy(where(obs)[:, 2])
            return policy(obs), {
                "prev_logprobs": step.clone().requires_grad_(),
                "versions": where(obs)[:, 1].astype(np.int32),
                "forward_inputs": {"deep": {"step": step.to(torch.bfloat16)}},
                "extras": {"task": [f"step {int(each)}" for each in step]},
            }

        for part in relive.gym.rollout(envs, act, steps_per_epoch=30, num_trajectories=1):
            if part.step < 0:
                continue
            at = part.columns["curr_obs"]["states"]
            assert part.columns["prev_logprobs"].tolist() == at[:, 2].tolist()
            assert part.columns["versions"].dtype == np.int32
            assert part.columns["versions"].tolist() == at[:, 1].tolist()
            deep = part.columns["forward_inputs"]["deep"]["step"]
            assert deep.dtype == torch.bfloat16
            assert deep.tolist() == at[:, 2].tolist()
            assert part.columns["extras"]["task"] == [f"step {int(each)}" for each in at[:, 2]]


class TestEpisodes:
    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize(
        ("end", "other"), [("terminated", "truncated"), ("truncated", "terminated")]
    )
    def test_twenty_episodes_recorded_as_one_stream_are_twenty(
        self, mode: AutoresetMode, end: str, other: str
    ) -> None:
        envs = sync_envs([((5, end),)], mode)
        rollout = relive.gym.rollout(envs, policy, steps_per_epoch=100, num_trajectories=1)
        list(rollout)
        stats = rollout.get_stats()
        assert stats["num_episodes"] == stats[f"num_{end}_episodes"] == 20
        assert stats[f"num_{other}_episodes"] == 0
        assert stats["min_episode_length"] == stats["max_episode_length"] == 5
        assert stats["mean_episode_length"] == 5
        episodes = rollout.pop_episodes()
        assert [episode.total_reward for episode in episodes] == [
            5 + 500 * number + 15 for number in range(20)
        ]
        assert rollout.pop_episodes() == []

    def test_ends_and_lengths_are_those_of_the_script(self) -> None:
        envs = sync_envs([SCRIPTS[1]], AutoresetMode.NEXT_STEP)
        rollout = relive.gym.rollout(envs, policy, steps_per_epoch=2)
        assert "min_episode_length" not in rollout.get_stats()
        list(rollout.parts(6))
        assert [
            (episode.env, episode.length, episode.terminated, episode.truncated)
            for episode in rollout.pop_episodes()
        ] == [(0, 3, False, True), (0, 1, True, True), (0, 2, True, False)]

    def test_with_chunks_each_played_action_is_a_step(self) -> None:
        envs = sync_envs([((5, "terminated"),), ((3, "truncated"),)], AutoresetMode.DISABLED)
        rollout = relive.gym.rollout(
            envs, chunk_policy(4), steps_per_epoch=2, num_trajectories=1, actions_per_chunk=4
        )
        parts = list(rollout)
        lengths = {(episode.env, episode.length) for episode in rollout.pop_episodes()}
        assert lengths == {(0, 5), (1, 3)}
        stats = rollout.get_stats()
        assert stats["num_env_steps"] == sum(
            part.columns["extras"]["action_mask"].sum() for part in parts if part.step >= 0
        )
        assert stats["num_discarded_env_steps"] == 3  # env 1 waited for one, then env 0 for two


class TestOwnership:
    @pytest.mark.parametrize("shape", ["plain", "dict"])
    @pytest.mark.parametrize("mode", MODES)
    def test_policy_and_receiver_may_change_what_they_get(
        self, mode: AutoresetMode, shape: str
    ) -> None:
        def vandal(obs: Any) -> NDArray[np.float64]:
            actions = policy(obs)
            where(obs)[:] = -1
            return actions

        envs = sync_envs(SCRIPTS, mode, shape, copy=False)
        found: list[list[Transition]] = [[], [], [], []]
        for part in relive.gym.rollout(envs, vandal, steps_per_epoch=20, num_trajectories=1):
            for env in range(4):
                found[env] += in_parts([part], env)
            for column in flatten(part.columns).values():
                column[:] = 0
        for env, script in enumerate(SCRIPTS):
            assert found[env] == plain_loop(env, script, 20)

    def test_the_policys_own_arrays_are_copied(self) -> None:
        actions, values = np.zeros((2, 2)), np.zeros(2)

        def act(obs: Any) -> tuple[Any, dict[str, Any]]:
            actions[:], values[:] = where(obs)[:, 2:3], where(obs)[:, 2]
            return actions, {"prev_values": values}

        envs = sync_envs(SCRIPTS[2:], AutoresetMode.SAME_STEP)
        for part in list(relive.gym.rollout(envs, act, steps_per_epoch=9, num_trajectories=1))[1:]:
            step = part.columns["curr_obs"]["states"][:, 2].tolist()
            assert part.columns["prev_values"].tolist() == step
            assert part.columns["actions"][:, 0].tolist() == step
