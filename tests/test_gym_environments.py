# SPDX-License-Identifier: Apache-2.0
"""Rollouts of other kinds of environments, and how rollouts end."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
from itertools import pairwise
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray

import relive.gym
from relive.errors import (
    ClosedError,
    InvalidArgumentError,
)
from scripted_envs import (
    MODES,
    SCRIPTS,
    env_makers,
    in_parts,
    plain_loop,
    policy,
    sync_envs,
)


class TensorVectorEnv(SyncVectorEnv[Any, Any]):
    """Speaks tensors, as environments on a GPU do."""

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        import torch

        obs, infos = super().reset(**options)
        return torch.from_numpy(obs), infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        import torch

        *results, infos = super().step(actions)
        obs, rewards, terminations, truncations = map(torch.from_numpy, results)
        return obs, rewards, terminations, truncations, infos


class TestEnvironments:
    @pytest.mark.parametrize("mode", MODES)
    def test_environments_that_speak_tensors(self, mode: AutoresetMode) -> None:
        import torch

        envs = TensorVectorEnv(env_makers(SCRIPTS, "plain"), autoreset_mode=mode)

        def act(obs: Any) -> torch.Tensor:
            return torch.from_numpy(policy(obs)).requires_grad_()

        parts = list(relive.gym.rollout(envs, act, steps_per_epoch=12, num_trajectories=1))
        for env, script in enumerate(SCRIPTS):
            assert in_parts(parts, env) == plain_loop(env, script, 12)

    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1"])
    def test_gymnasiums_own(self, name: str, mode: AutoresetMode) -> None:
        envs = gymnasium.make_vec(
            name, 3, vectorization_mode="sync", vector_kwargs={"autoreset_mode": mode}
        )
        envs.action_space.seed(1)
        rollout = relive.gym.rollout(
            envs,
            lambda _: envs.action_space.sample(),
            steps_per_epoch=250,
            num_trajectories=1,
            seed=1,
        )
        parts = list(rollout)[1:]
        assert rollout.get_stats()["num_episodes"] >= 3
        for part, after in pairwise(parts):
            goes_on = ~part.columns["dones"]
            np.testing.assert_array_equal(
                part.columns["next_obs"]["states"][goes_on],
                after.columns["curr_obs"]["states"][goes_on],
            )
            starts = after.columns["curr_obs"]["states"][~goes_on]
            if name == "CartPole-v1":
                assert (np.abs(starts) <= 0.05).all()
                assert (part.columns["rewards"] == 1).all()
        envs.close()

    def test_a_native_vector_environment(self) -> None:
        envs = gymnasium.make_vec("CartPole-v1", 4, vectorization_mode="vector_entry_point")
        envs.action_space.seed(2)
        rollout = relive.gym.rollout(
            envs,
            lambda _: envs.action_space.sample(),
            steps_per_epoch=200,
            num_trajectories=1,
            seed=2,
        )
        for part in list(rollout)[1:]:
            assert (part.columns["rewards"] == 1).all()
            final = np.abs(part.columns["next_obs"]["states"])
            is_out = (final[:, 0] > 2.4) | (final[:, 2] > 12 * np.pi / 180)
            assert part.columns["terminations"].tolist() == is_out.tolist()

    def test_the_same_seed_gives_the_same_parts(self) -> None:
        def collect(seed: int | list[int]) -> list[Any]:
            envs = gymnasium.make_vec("Pendulum-v1", 2, vectorization_mode="sync")
            rollout = relive.gym.rollout(
                envs, lambda obs: obs[:, :1], steps_per_epoch=5, num_trajectories=1, seed=seed
            )
            return [part.columns["curr_obs"]["states"].tolist() for part in list(rollout)[1:]]

        assert collect(5) == collect(5) == collect([5, 6])
        assert collect(5) != collect(6)

    def test_final_observations_may_come_as_one_batch(self) -> None:
        class Batched(SyncVectorEnv[Any, Any]):
            def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
                *results, infos = super().step(actions)
                if "final_obs" in infos:
                    batch = np.array(results[0])
                    for env in infos.pop("_final_obs").nonzero()[0]:
                        batch[env] = infos["final_obs"][env]
                    infos["final_obs"] = batch
                return (*results, infos)

        envs = Batched(env_makers(SCRIPTS, "plain"), autoreset_mode=AutoresetMode.SAME_STEP)
        parts = list(relive.gym.rollout(envs, policy, steps_per_epoch=10, num_trajectories=1))
        for env, script in enumerate(SCRIPTS):
            assert in_parts(parts, env) == plain_loop(env, script, 10)


class TestEnding:
    def test_closing_from_another_thread_ends_the_loop(self) -> None:
        rollout = relive.gym.rollout(
            sync_envs(SCRIPTS, AutoresetMode.NEXT_STEP), policy, steps_per_epoch=10
        )
        has_begun, count = threading.Event(), 0

        def iterate() -> None:
            nonlocal count
            for _ in rollout:
                count += 1
                has_begun.set()

        thread = threading.Thread(target=iterate)
        thread.start()
        has_begun.wait()
        rollout.close()
        rollout.close()
        thread.join()
        assert count
        assert list(rollout) == []

    def test_the_policy_may_close_between_steps(self) -> None:
        envs = sync_envs([((1, "terminated"),)], AutoresetMode.NEXT_STEP)
        calls = []

        def act(obs: Any) -> NDArray[np.float64]:
            calls.append(1)
            if len(calls) == 2:
                rollout.close()  # while the env is at its reset
            return policy(obs)

        rollout = relive.gym.rollout(envs, act, steps_per_epoch=5)
        assert [part.step for part in rollout] == [-1, 0]
        assert not envs.closed

    def test_after_an_error_of_the_policy_the_rollout_goes_on(self) -> None:
        envs = sync_envs(SCRIPTS, AutoresetMode.DISABLED)
        calls = []

        def act(obs: Any) -> NDArray[np.float64]:
            calls.append(1)
            if len(calls) % 2:
                raise ZeroDivisionError
            return policy(obs)

        rollout = relive.gym.rollout(envs, act, steps_per_epoch=10, num_trajectories=1)
        parts = [next(rollout)]
        for _ in range(10):
            with pytest.raises(ZeroDivisionError):
                next(rollout)
            parts.append(next(rollout))
        for env, script in enumerate(SCRIPTS):
            assert in_parts(parts, env) == plain_loop(env, script, 10)

    def test_after_an_error_of_the_environment_it_does_not(self) -> None:
        envs = sync_envs(SCRIPTS, AutoresetMode.SAME_STEP)
        rollout = relive.gym.rollout(envs, policy, steps_per_epoch=10)
        list(rollout.parts(1))
        envs.envs[1] = None  # type: ignore[call-overload]  # the fault
        with pytest.raises(AttributeError):
            next(rollout)
        with pytest.raises(ClosedError, match=r"group '0'.*higher incarnation") as error:
            next(rollout)
        assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)

    def test_a_closed_environment_is_named(self) -> None:
        envs = sync_envs(SCRIPTS, AutoresetMode.SAME_STEP)
        rollout = relive.gym.rollout(envs, policy, steps_per_epoch=10)
        list(rollout.parts(1))
        envs.close()
        with pytest.raises(ClosedError, match="is closed"):
            next(rollout)

    def test_a_stray_stop_iteration_is_no_end(self) -> None:
        def act(obs: Any) -> Any:
            return next(iter(()))

        rollout = relive.gym.rollout(
            sync_envs(SCRIPTS, AutoresetMode.SAME_STEP), act, steps_per_epoch=10
        )
        next(rollout)
        with pytest.raises(InvalidArgumentError, match="StopIteration"):
            next(rollout)


class TestModelWeights:
    def test_each_part_bears_the_id_in_force_when_it_was_played(self) -> None:
        ids = iter("abcd")
        rollout = relive.gym.rollout(
            sync_envs(SCRIPTS, AutoresetMode.SAME_STEP),
            policy,
            steps_per_epoch=2,
            model_weights_id=lambda: next(ids),
        )
        assert [part.model_weights_id for part in rollout.parts(4)] == ["", "a", "b", "", "c", "d"]

    def test_an_id_that_is_no_text_is_refused_before_the_step(self) -> None:
        rollout = relive.gym.rollout(
            sync_envs(SCRIPTS, AutoresetMode.SAME_STEP),
            policy,
            steps_per_epoch=2,
            model_weights_id=lambda: 7,  # type: ignore[arg-type, return-value]  # the fault
        )
        next(rollout)
        with pytest.raises(InvalidArgumentError, match="model_weights_id is 7"):
            next(rollout)


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


class TestImport:
    def test_torch_stays_out(self) -> None:
        assert run_python("import sys, relive.gym; print('torch' in sys.modules)") == "False"

    def test_without_gymnasium_the_error_has_the_pip_line(self) -> None:
        code = (
            "import sys; sys.modules['gymnasium'] = None\n"
            "from relive.errors import MissingPackageError\n"
            "try: import relive.gym\n"
            "except MissingPackageError as error: print(error)\n"
        )
        assert 'pip install "relive[gym]"' in run_python(code)
