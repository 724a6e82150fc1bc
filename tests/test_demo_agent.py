# SPDX-License-Identifier: Apache-2.0
"""The demo's agent, its environments, and the threads between them."""

from __future__ import annotations

import io
import math
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from relive import Trajectory
from relive.demo.environments import EnvFacts, look_at, make_envs
from relive.demo.evaluation import EpisodeReturns, evaluate
from relive.demo.interrupt import StopRequested
from relive.demo.rollout import ActingPolicy, Rollouts, Weights
from relive.demo.sac import Actor, Sac
from relive.demo.settings import DemoSettings, SacOptions
from relive.errors import ClosedError, InvalidArgumentError, MissingPackageError
from small_demo import (
    EPISODE,
    FAILING,
    GIVEN,
    TINY,
    Line,
    demo_threads,
    facts,
    no_thread_is_left,
    one_torch_thread,
)

__all__ = ["facts", "no_thread_is_left", "one_torch_thread"]  # fixtures


def batch_of(num: int, *, terminations: bool) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(7)
    return {
        "curr_obs": {"states": torch.randn(num, 3, generator=generator)},
        "next_obs": {"states": torch.randn(num, 3, generator=generator)},
        "actions": torch.rand(num, 2, generator=generator),
        "rewards": torch.arange(float(num)),
        "terminations": torch.full((num,), terminations),
    }


class TestActor:
    def test_log_probabilities_are_those_of_a_squashed_normal(self) -> None:
        actor = Actor(3, 2, 8)
        observations, noise = torch.randn(5, 3), torch.randn(5, 2)
        actions, log_probs = actor(observations, noise)
        # Undo the squashing, and read mean and deviation off two draws.
        drawn = torch.atanh(actions.double())
        middle = torch.atanh(actor(observations, torch.zeros(5, 2))[0].double())
        deviation = torch.atanh(actor(observations, torch.ones(5, 2))[0].double()) - middle
        normal = -0.5 * ((drawn - middle) / deviation).square()
        normal -= deviation.log() + 0.5 * math.log(2.0 * math.pi)
        wanted = (normal - torch.log1p(-actions.double().square())).sum(dim=-1)
        assert torch.allclose(log_probs.double(), wanted, atol=1e-3)

    def test_best_actions_are_those_without_noise(self) -> None:
        actor = Actor(3, 2, 8)
        observations = torch.randn(5, 3)
        drawn, _ = actor(observations, torch.zeros(5, 2))
        assert torch.equal(actor.best_actions(observations), drawn)


class TestSac:
    def test_a_terminated_transition_is_worth_its_reward_alone(self) -> None:
        agent = Sac(3, 2, TINY, seed=0)
        batch = batch_of(6, terminations=True)
        assert torch.equal(agent.targets(batch), batch["rewards"])

    def test_a_truncated_transition_is_worth_what_comes_after_it_too(self) -> None:
        agent, twin = (Sac(3, 2, TINY, seed=0) for _ in range(2))
        going_on = batch_of(6, terminations=False)
        cut_off = {**going_on, "truncations": torch.ones(6, dtype=torch.bool)}
        wanted = agent.targets(going_on)
        assert torch.equal(twin.targets(cut_off), wanted)
        assert not torch.isclose(wanted, going_on["rewards"]).any()

    def test_the_same_state_gives_the_same_update(self) -> None:
        agent = Sac(3, 2, TINY, seed=0)
        agent.update(batch_of(8, terminations=False))
        file = io.BytesIO()
        torch.save(agent.state_dict(), file)
        file.seek(0)
        other = Sac(3, 2, TINY, seed=1)
        other.load_state_dict(torch.load(file, weights_only=True))
        for each in (agent, other):
            each.update(batch_of(8, terminations=False))
        weights = other.critic.state_dict()
        for key, tensor in agent.critic.state_dict().items():
            assert torch.equal(tensor, weights[key]), key
        assert torch.equal(agent.log_temperature, other.log_temperature)

    def test_the_global_generator_is_left_alone(self) -> None:
        torch.manual_seed(3)
        before = torch.get_rng_state()
        Sac(3, 2, TINY, seed=0).update(batch_of(8, terminations=False))
        assert torch.equal(torch.get_rng_state(), before)

    @pytest.mark.parametrize("sign", [1.0, -1.0])
    def test_it_learns_which_action_pays(self, sign: float) -> None:
        agent = Sac(3, 1, SacOptions(width=16, learning_rate=3e-3), seed=0)
        generator = torch.Generator().manual_seed(0)
        for _ in range(150):
            actions = 2.0 * torch.rand(64, 1, generator=generator) - 1.0
            agent.update(
                {
                    "curr_obs": {"states": torch.zeros(64, 3)},
                    "next_obs": {"states": torch.zeros(64, 3)},
                    "actions": actions,
                    "rewards": sign * 10.0 * actions[:, 0],
                    "terminations": torch.ones(64, dtype=torch.bool),
                }
            )
        assert sign * agent.actor.best_actions(torch.zeros(1, 3)).item() > 0.5


class TestEpisodeReturns:
    def test_an_episode_may_span_trajectories_and_each_reward_counts_once(self) -> None:
        returns = EpisodeReturns(2)
        rewards = np.arange(12, dtype=np.float32).reshape(6, 2)
        dones = np.zeros((6, 2), np.bool_)
        dones[3, 0] = dones[1, 1] = dones[5] = True
        finished = []
        for start in (0, 2, 4):
            rows = slice(start, start + 2)
            with_first = np.concatenate([np.ones((1, 2), np.bool_), dones[rows]])
            finished += returns.add(Trajectory(rewards=rewards[rows], dones=with_first))
        assert finished == [1 + 3, 0 + 2 + 4 + 6, 8 + 10, 5 + 7 + 9 + 11]


class TestEvaluate:
    def test_each_episode_is_played_once_from_the_same_start(self, facts: EnvFacts) -> None:
        actor = Actor(facts.observation_size, facts.action_size, 8)
        envs = make_envs(facts, 3, autoreset_mode=AutoresetMode.NEXT_STEP)
        steps: list[int] = []
        first = evaluate(actor, envs, on_step=lambda: steps.append(1))
        second = evaluate(actor, envs, on_step=lambda: None)
        envs.close()
        assert first.tolist() == second.tolist()
        assert len(steps) <= EPISODE


class TestLookAt:
    def test_it_tells_sizes_limits_and_goal(self) -> None:
        facts = look_at("MountainCarContinuous-v0")
        assert (facts.observation_size, facts.action_size) == (2, 1)
        assert (facts.episode_limit, facts.goal, facts.notes) == (999, 90.0, ())

    def test_observations_of_any_shape_become_flat_float32(self, facts: EnvFacts) -> None:
        envs = make_envs(facts, 2, autoreset_mode=AutoresetMode.DISABLED)
        observations, _ = envs.reset(seed=0)
        envs.close()
        assert (observations.shape, observations.dtype) == ((2, 2), np.float32)
        assert envs.single_action_space == gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    @pytest.mark.parametrize("env_id", ["NoSuchEnv-v0", "NoSuchSpace/Env-v0", "Pendulum-v99", ""])
    def test_an_unknown_env_is_named(self, env_id: str) -> None:
        with pytest.raises(InvalidArgumentError, match=f"env is '{env_id}', but Gymnasium cannot"):
            look_at(env_id)

    def test_discrete_actions_are_refused_by_name(self) -> None:
        with pytest.raises(InvalidArgumentError, match=r"'CartPole-v1' has actions Discrete\(2\)"):
            look_at("CartPole-v1")

    @pytest.mark.parametrize(
        ("name", "space"),
        [
            ("actions", gymnasium.spaces.Box(-np.inf, np.inf, (1,))),
            ("actions", gymnasium.spaces.Box(0, 9, (1,), np.int64)),
            ("observations", gymnasium.spaces.Sequence(gymnasium.spaces.Discrete(3))),
        ],
    )
    def test_spaces_that_the_agent_cannot_use_are_refused(
        self, name: str, space: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        env = Line()
        setattr(env, "action_space" if name == "actions" else "observation_space", space)
        monkeypatch.setattr(gymnasium, "make", lambda env_id: env)
        with pytest.raises(InvalidArgumentError, match=rf"'X-v0' has {name} .* but the demo's"):
            look_at("X-v0")

    @pytest.mark.parametrize(
        ("env_id", "line"),
        [
            ("HalfCheetah-v5", 'pip install "gymnasium[mujoco]"'),
            ("BipedalWalker-v3", 'pip install "gymnasium[box2d]"'),
        ],
    )
    def test_a_missing_package_comes_with_its_pip_line(
        self, env_id: str, line: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def make(env_id: str) -> None:
            raise gymnasium.error.DependencyNotInstalled("it is not there")

        monkeypatch.setattr(gymnasium, "make", make)
        with pytest.raises(MissingPackageError) as err:
            look_at(env_id)
        assert line in str(err.value)
        assert env_id in str(err.value)

    def test_a_missing_module_is_named(self) -> None:
        with pytest.raises(MissingPackageError, match="no_such_module_of_ours"):
            look_at("no_such_module_of_ours:Env-v0")

    def test_an_endless_env_gets_a_limit_and_a_note(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(gymnasium, "make", lambda env_id: Line())
        facts = look_at("X-v0")
        assert facts.episode_limit == 1_000
        assert "no longest episode" in facts.notes[0]


class TestRollouts:
    def make(self, facts: EnvFacts, **given: Any) -> tuple[Rollouts, Any]:
        settings = DemoSettings(**{**GIVEN, **given})
        envs = make_envs(facts, settings.num_envs, autoreset_mode=AutoresetMode.DISABLED)
        actor = Actor(facts.observation_size, facts.action_size, settings.sac.width)
        assert envs.action_space.shape is not None
        policy = ActingPolicy(actor, envs.action_space.shape, seed=0)
        return Rollouts(envs, policy, settings, incarnation=0, seed=0), envs

    def test_a_trajectory_is_named_after_the_weights_it_was_collected_with(
        self, facts: EnvFacts
    ) -> None:
        rollouts, envs = self.make(facts)
        with rollouts:
            rollouts.hand_out(Weights("random", None))
            rollouts.hand_out(Weights("u5", Actor(2, 1, 8).state_dict()))
            got = [rollouts.next_trajectory(on_wait=lambda: None) for _ in range(2)]
        envs.close()
        assert [each.model_weights_id for each in got] == ["random", "u5"]
        assert [np.asarray(each.rewards).shape for each in got] == [(8, 2)] * 2

    def test_the_final_observation_is_the_next_one_of_a_step_that_ends_an_episode(
        self, facts: EnvFacts
    ) -> None:
        rollouts, envs = self.make(facts)
        with rollouts:
            rollouts.hand_out(Weights("random", None))
            trajectory = rollouts.next_trajectory(on_wait=lambda: None)
        envs.close()
        now = np.asarray(trajectory.curr_obs["states"])
        after = np.asarray(trajectory.next_obs["states"])
        moved = np.asarray(trajectory.actions)  # in [-1, 1] for pushes in [-2, 2], halved
        assert np.allclose(after, now + moved, atol=1e-6)
        dones = np.asarray(trajectory.dones)[1:]
        assert dones.any()
        assert not np.allclose(now[1:][dones[:-1]], after[:-1][dones[:-1]])

    def test_nothing_is_collected_beyond_the_weights_handed_out(self, facts: EnvFacts) -> None:
        rollouts, envs = self.make(facts)
        with rollouts:
            rollouts.hand_out(Weights("random", None))
            rollouts.next_trajectory(on_wait=lambda: None)
            with pytest.raises(StopRequested):
                rollouts.next_trajectory(on_wait=_stop)
        envs.close()

    def test_what_the_environment_raises_is_raised_to_who_waits(self) -> None:
        rollouts, envs = self.make(look_at(FAILING), steps_per_trajectory=50)
        rollouts.__enter__()
        rollouts.hand_out(Weights("random", None))
        with pytest.raises(OSError, match="the line broke"):
            rollouts.next_trajectory(on_wait=lambda: None)
        rollouts.close()
        envs.close()

    def test_what_nobody_waits_for_is_raised_at_the_end(self) -> None:
        rollouts, envs = self.make(look_at(FAILING), steps_per_trajectory=50)
        rollouts.__enter__()
        rollouts.hand_out(Weights("random", None))
        for thread in demo_threads():
            thread.join()
        with pytest.raises(OSError, match="the line broke"):
            rollouts.__exit__(None, None, None)
        envs.close()

    def test_closed_rollouts_say_so_and_close_twice(self, facts: EnvFacts) -> None:
        rollouts, envs = self.make(facts)
        with rollouts:
            rollouts.close()
            with pytest.raises(ClosedError):
                rollouts.next_trajectory(on_wait=lambda: None)
            with pytest.raises(ClosedError):
                rollouts.hand_out(Weights("random", None))
        envs.close()

    def test_they_can_be_closed_at_any_moment(self, facts: EnvFacts) -> None:
        for num_weights in range(4):
            rollouts, envs = self.make(facts, steps_per_trajectory=2_000)
            with rollouts:
                for _ in range(num_weights):
                    rollouts.hand_out(Weights("random", None))
            envs.close()


def _stop() -> None:
    raise StopRequested
