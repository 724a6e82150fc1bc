# SPDX-License-Identifier: Apache-2.0
"""The demo: its agent, its threads, its saves, and whole runs in small."""

from __future__ import annotations

import io
import math
import os
import shutil
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

gymnasium = pytest.importorskip("gymnasium")
pytest.importorskip("matplotlib")

from gymnasium.vector import AutoresetMode  # noqa: E402 (needs the package checked above)
from numpy.typing import NDArray  # noqa: E402

from relive import Trajectory, TrajectoryReplayBuffer  # noqa: E402
from relive.demo.environments import EnvFacts, look_at, make_envs  # noqa: E402
from relive.demo.evaluation import EpisodeReturns, evaluate  # noqa: E402
from relive.demo.history import Evaluation, History  # noqa: E402
from relive.demo.interrupt import Interrupt, StopRequested  # noqa: E402
from relive.demo.plot import draw_curve  # noqa: E402
from relive.demo.progress import LineDisplay, Progress, TerminalDisplay, open_display  # noqa: E402
from relive.demo.report import closing_words  # noqa: E402
from relive.demo.rollout import ActingPolicy, Rollouts, Weights  # noqa: E402
from relive.demo.run import Outcome, run_demo  # noqa: E402
from relive.demo.sac import Actor, Sac  # noqa: E402
from relive.demo.saves import RunFolder  # noqa: E402
from relive.demo.settings import DemoSettings, SacOptions  # noqa: E402
from relive.errors import (  # noqa: E402
    ClosedError,
    CorruptFileError,
    InvalidArgumentError,
    MissingFileError,
    MissingPackageError,
    StorageWriteError,
    StoreExistsError,
)

ENV = "ReliveTest/Line-v0"
FAILING = "ReliveTest/FailingLine-v0"
EPISODE = 7
TINY = SacOptions(width=8, batch_size=8)
GIVEN: dict[str, Any] = {
    "env": ENV,
    "steps": 96,
    "num_envs": 2,
    "steps_per_trajectory": 8,
    "warmup_steps": 32,
    "updates_per_step": 0.25,
    "evaluate_every": 48,
    "eval_episodes": 2,
    "sac": TINY,
}


class Line(gymnasium.Env[NDArray[np.float64], NDArray[np.float32]]):  # type: ignore[name-defined,misc]  # importorskip hides the types
    """A point that is pushed along a line; going right pays, and beyond 3 it ends."""

    def __init__(self, fail_at: int = 0) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2, 1), np.float64)
        self.action_space = gymnasium.spaces.Box(-2.0, 2.0, (1,), np.float32)
        self._left = fail_at
        self._at = np.zeros((2, 1))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float64], dict[str, Any]]:
        super().reset(seed=seed)
        self._at = self.np_random.uniform(-1.0, 1.0, (2, 1))
        return self._at.copy(), {}

    def step(
        self, action: NDArray[np.float32]
    ) -> tuple[NDArray[np.float64], float, bool, bool, dict[str, Any]]:
        self._left -= 1
        if self._left == 0:
            raise OSError("the line broke")
        self._at = self._at + 0.5 * action
        return self._at.copy(), float(action[0]), bool(self._at[0, 0] > 3.0), False, {}


for name, kwargs in ((ENV, {}), (FAILING, {"fail_at": 40})):
    if name not in gymnasium.registry:
        gymnasium.register(name, Line, max_episode_steps=EPISODE, kwargs=kwargs)


class Recorder:
    """A display that keeps what it is told, and calls back at every progress."""

    def __init__(self, on_show: Callable[[Progress], None] = lambda progress: None) -> None:
        self.said: list[str] = []
        self.shown: list[Progress] = []
        self._on_show = on_show

    def say(self, text: str) -> None:
        self.said.append(text)

    def is_due(self) -> bool:
        return True

    def show(self, progress: Progress) -> None:
        self.shown.append(progress)
        self._on_show(progress)


def run(
    path: Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    stop_at: int | None = None,
    **given: Any,
) -> tuple[Outcome, Recorder]:
    """Run the demo in small; with `stop_at`, ask it to stop once it shows so many steps."""
    interrupt = Interrupt()

    def look(progress: Progress) -> None:
        if stop_at is not None and progress.steps >= stop_at:
            interrupt.request()

    display = Recorder(look)
    outcome = run_demo(
        path,
        given=given if resume else {**GIVEN, **given},
        resume=resume,
        overwrite=overwrite,
        display=display,
        interrupt=interrupt,
    )
    return outcome, display


def agent_of(outcome: Outcome) -> dict[str, torch.Tensor]:
    """Read the saved actor back."""
    state = outcome.folder.read_state(outcome.folder.newest_save())
    actor: dict[str, torch.Tensor] = state["agent"]["actor"]
    return actor


def assert_same_run(first: Outcome, second: Outcome) -> None:
    assert first.history.steps == second.history.steps
    assert first.history.updates == second.history.updates
    assert first.history.evaluations == second.history.evaluations
    assert first.history.episodes == second.history.episodes
    weights = agent_of(second)
    for key, tensor in agent_of(first).items():
        assert torch.equal(tensor, weights[key]), key


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Fail a test that leaves a thread of the demo behind."""
    yield
    assert not demo_threads()


def demo_threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.startswith("relive-demo")]


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    """Tiny networks are slower with more threads, above all beside other busy processes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def no_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the picture, which takes most of the time of a run this short."""
    monkeypatch.setattr("relive.demo.run.draw_curve", lambda *args, **kwargs: None)


@pytest.fixture
def facts() -> EnvFacts:
    return look_at(ENV)


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


class TestRunDemo:
    def test_it_leaves_buffer_save_and_curve(self, tmp_path: Path) -> None:
        outcome, display = run(tmp_path / "run")
        assert not outcome.was_interrupted
        assert outcome.history.steps == outcome.buffer_stats["total_samples"] == 96
        assert outcome.history.updates == 24
        assert [each.steps for each in outcome.history.evaluations] == [0, 48, 96]
        assert outcome.folder.curve.read_bytes().startswith(b"\x89PNG")
        assert len(list(outcome.folder.saves.iterdir())) == 1
        assert display.shown[-1].total_steps == 96
        assert display.shown[-1].num_trajectories == 6

    @pytest.mark.usefixtures("no_curve")
    def test_a_run_too_short_to_learn_says_so(self, tmp_path: Path) -> None:
        outcome, display = run(tmp_path / "run", steps=16)
        assert outcome.history.updates == 0
        assert display.said[0].startswith("note: nothing is learned in so few steps")

    @pytest.mark.usefixtures("no_curve")
    def test_the_buffer_left_behind_holds_every_transition(self, tmp_path: Path) -> None:
        outcome, _ = run(tmp_path / "run")
        with TrajectoryReplayBuffer(
            auto_save=True, auto_save_path=str(outcome.folder.buffer), if_exists="resume"
        ) as buffer:
            assert len(buffer) == 6
            batch = buffer.sample(50)
        assert batch["curr_obs"]["states"].shape == (50, 2)
        assert set(batch) >= {"actions", "rewards", "terminations", "truncations", "next_obs"}

    @pytest.mark.usefixtures("no_curve")
    @pytest.mark.parametrize("trajectory_format", ["pt", "pkl"])
    def test_the_same_seed_gives_the_same_run(self, trajectory_format: str, tmp_path: Path) -> None:
        first, _ = run(tmp_path / "a", trajectory_format=trajectory_format)
        second, _ = run(tmp_path / "b", trajectory_format=trajectory_format)
        assert_same_run(first, second)

    @pytest.mark.usefixtures("no_curve")
    def test_another_seed_gives_another_run(self, tmp_path: Path) -> None:
        first, _ = run(tmp_path / "a", seed=1)
        second, _ = run(tmp_path / "b", seed=2)
        assert first.history.episodes != second.history.episodes

    @pytest.mark.usefixtures("no_curve")
    def test_the_goal_ends_it_early(self, tmp_path: Path) -> None:
        outcome, _ = run(tmp_path / "run", goal=-1e9)
        assert outcome.history.steps == 0
        assert outcome.history.has_reached(outcome.settings.goal)

    @pytest.mark.usefixtures("no_curve")
    def test_a_run_in_the_folder_is_not_touched(self, tmp_path: Path) -> None:
        outcome, _ = run(tmp_path / "run")
        before = outcome.folder.newest_save()
        with pytest.raises(StoreExistsError, match=r"--resume .* --overwrite .* --dir"):
            run(tmp_path / "run")
        assert outcome.folder.newest_save() == before

    @pytest.mark.usefixtures("no_curve")
    def test_overwrite_starts_again(self, tmp_path: Path) -> None:
        run(tmp_path / "run", seed=5)
        again, _ = run(tmp_path / "run", seed=1, overwrite=True)
        fresh, _ = run(tmp_path / "fresh", seed=1, overwrite=True)
        assert_same_run(again, fresh)
        assert again.buffer_stats["total_samples"] == 96

    @pytest.mark.usefixtures("no_curve")
    def test_torch_has_its_threads_back_afterwards(self, tmp_path: Path) -> None:
        torch.set_num_threads(2)
        run(tmp_path / "run", steps=16)
        assert torch.get_num_threads() == 2

    def test_an_error_in_a_thread_ends_it_and_the_last_save_goes_on(self, tmp_path: Path) -> None:
        with pytest.raises(OSError, match="the line broke"):
            run(tmp_path / "run", env=FAILING, steps=400)
        with pytest.raises(OSError, match="the line broke"):  # from its save, into the same wall
            run(tmp_path / "run", resume=True)

    def test_a_disk_that_refuses_the_save_ends_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def save(*args: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(torch, "save", save)
        with pytest.raises(OSError, match="No space left"):
            run(tmp_path / "run")


@pytest.mark.usefixtures("no_curve")
class TestResume:
    @pytest.mark.parametrize("stop_at", [0, 16, 48, 96])
    def test_an_interrupted_run_goes_on_to_its_end(self, stop_at: int, tmp_path: Path) -> None:
        stopped, _ = run(tmp_path / "run", stop_at=stop_at)
        assert stopped.was_interrupted
        steps, updates = stopped.history.steps, stopped.history.updates
        resumed, _ = run(tmp_path / "run", resume=True)
        assert not resumed.was_interrupted
        assert resumed.settings == stopped.settings
        assert resumed.history.steps == resumed.buffer_stats["total_samples"] == 96
        assert resumed.history.updates == 24
        assert updates < 24
        assert steps <= 96
        assert resumed.history.sessions == 2
        before = stopped.history.evaluations
        assert resumed.history.evaluations[: len(before)] == before

    def test_the_same_save_goes_on_in_the_same_way(self, tmp_path: Path) -> None:
        run(tmp_path / "a", stop_at=48)
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        first, _ = run(tmp_path / "a", resume=True)
        second, _ = run(tmp_path / "b", resume=True)
        assert_same_run(first, second)

    def test_what_a_run_had_left_to_learn_is_learned_as_if_never_interrupted(
        self, tmp_path: Path
    ) -> None:
        # All steps are collected at once, so that only learning is left when it is stopped.
        given: dict[str, Any] = {"steps": 16, "warmup_steps": 16, "updates_per_step": 4.0}
        whole, _ = run(tmp_path / "a", **given)
        stopped, _ = run(tmp_path / "b", stop_at=16, **given)
        assert stopped.history.steps == 16
        assert 0 < stopped.history.updates < whole.history.updates == 64
        resumed, _ = run(tmp_path / "b", resume=True)
        assert_same_run(whole, resumed)

    def test_a_finished_run_goes_on_with_more_steps(self, tmp_path: Path) -> None:
        run(tmp_path / "run")
        resumed, _ = run(tmp_path / "run", resume=True, steps=128)
        assert resumed.history.steps == 128
        assert resumed.buffer_stats["num_trajectories"] == 8

    def test_a_finished_run_without_more_steps_says_what_to_give(self, tmp_path: Path) -> None:
        run(tmp_path / "run")
        with pytest.raises(InvalidArgumentError, match="has 96 already; give a larger --steps"):
            run(tmp_path / "run", resume=True)

    def test_a_run_that_reached_its_goal_goes_on_without_it(self, tmp_path: Path) -> None:
        run(tmp_path / "run", goal=-1e9)
        resumed, _ = run(tmp_path / "run", resume=True)
        assert resumed.history.steps == 96

    @pytest.mark.parametrize(
        "given", [{"env": "Pendulum-v1"}, {"seed": 9}, {"num_envs": 3}, {"trajectory_format": "x"}]
    )
    def test_what_belongs_to_the_run_cannot_change(
        self, given: dict[str, Any], tmp_path: Path
    ) -> None:
        run(tmp_path / "run", stop_at=0)
        with pytest.raises(InvalidArgumentError, match=f"{next(iter(given))} is .* to resume has"):
            run(tmp_path / "run", resume=True, **given)

    def test_a_folder_without_a_save_says_so(self, tmp_path: Path) -> None:
        with pytest.raises(MissingFileError, match="no complete save"):
            run(tmp_path / "nothing", resume=True)

    def test_a_killed_run_goes_on_from_its_newest_complete_save(self, tmp_path: Path) -> None:
        stopped, _ = run(tmp_path / "run", stop_at=48)
        saved = stopped.folder.newest_save()
        shutil.copytree(saved, tmp_path / "copy")
        first, _ = run(tmp_path / "run", resume=True)
        # As if it had been killed at its end, while it saved: the store has more than the save.
        shutil.rmtree(stopped.folder.saves)
        shutil.copytree(tmp_path / "copy", saved)
        cut = stopped.folder.saves / "000099" / "buffer"
        cut.mkdir(parents=True)
        second, display = run(tmp_path / "run", resume=True)
        assert_same_run(first, second)
        assert second.buffer_stats["total_samples"] == 96
        assert any("trajectories of the store that the checkpoint lacks" in x for x in display.said)
        assert not cut.exists()

    @pytest.mark.parametrize("content", [b"", b"not a save", b"PK\x03\x04 cut"])
    def test_a_damaged_save_is_named(self, content: bytes, tmp_path: Path) -> None:
        stopped, _ = run(tmp_path / "run", stop_at=0)
        (stopped.folder.newest_save() / "agent.pt").write_bytes(content)
        with pytest.raises(CorruptFileError, match=r"agent\.pt' is not a readable save"):
            run(tmp_path / "run", resume=True)


class TestInterrupt:
    def test_the_first_ctrl_c_is_remembered_and_the_second_raises(self) -> None:
        before = signal.getsignal(signal.SIGINT)
        with Interrupt() as interrupt:
            interrupt.check()
            signal.raise_signal(signal.SIGINT)
            with pytest.raises(StopRequested):
                interrupt.check()
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is before

    def test_a_polite_kill_is_remembered_too(self) -> None:
        with Interrupt() as interrupt:
            signal.raise_signal(signal.SIGTERM)
            with pytest.raises(StopRequested):
                interrupt.check()

    def test_outside_the_main_thread_it_can_be_requested(self) -> None:
        met: list[BaseException] = []

        def work() -> None:
            with Interrupt() as interrupt:
                interrupt.request()
                try:
                    interrupt.check()
                except StopRequested as stop:
                    met.append(stop)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert len(met) == 1

    def test_a_real_ctrl_c_saves_a_run(self, tmp_path: Path) -> None:
        def press(progress: Progress) -> None:
            if progress.steps >= 48 and not pressed:
                pressed.append(True)
                os.kill(os.getpid(), signal.SIGINT)

        pressed: list[bool] = []
        with Interrupt() as interrupt:
            outcome = run_demo(
                tmp_path / "run",
                given=GIVEN,
                resume=False,
                overwrite=False,
                display=Recorder(press),
                interrupt=interrupt,
            )
        assert outcome.was_interrupted
        assert outcome.folder.newest_save().exists()


class TestSettings:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("steps", 0),
            ("num_envs", 0),
            ("seed", -1),
            ("steps_per_trajectory", 0),
            ("evaluate_every", 0),
            ("eval_episodes", 0),
            ("updates_per_step", -1.0),
        ],
    )
    def test_a_number_that_is_too_low_is_named(self, name: str, value: float) -> None:
        with pytest.raises(InvalidArgumentError, match=f"{name} is {value}, but must be at least"):
            DemoSettings(**{name: value})  # type: ignore[arg-type]  # one name at a time

    def test_they_survive_a_save(self) -> None:
        settings = DemoSettings(**GIVEN)
        assert DemoSettings.from_state(settings.to_state()) == settings

    def test_the_warm_up_takes_whole_trajectories(self) -> None:
        assert (
            DemoSettings(num_envs=3, steps_per_trajectory=5, warmup_steps=31).warmup_trajectories
            == 3
        )
        assert DemoSettings(warmup_steps=0).warmup_trajectories == 1


PROGRESS = Progress(
    steps=1_600,
    total_steps=8_000,
    evaluation_return=-1_234.5,
    training_return=None,
    samples_per_s=12_345.6,
    num_trajectories=8,
    seconds=12.3,
)


class TestDisplays:
    def test_a_log_gets_whole_lines_without_control_characters(self) -> None:
        out = io.StringIO()
        with open_display(out) as display:
            display.say("hello")
            assert display.is_due()
            display.show(PROGRESS)
            assert not display.is_due()
        assert out.getvalue() == (
            "hello\n"
            "  1,600 of 8,000 steps | return: evaluation -1,234, training - | 12,346 samples/s "
            "| buffer 8 trajectories | 12 s\n"
        )

    def test_a_log_stays_plain_when_colours_are_forced(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FORCE_COLOR", "1")
        with open_display() as display:
            display.show(PROGRESS)
        assert "\x1b" not in capsys.readouterr().out

    def test_the_interval_of_a_log_is_kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        now = 100.0
        clock = types.SimpleNamespace(monotonic=lambda: now)
        monkeypatch.setattr("relive.demo.progress.time", clock)
        display = LineDisplay(io.StringIO(), interval_s=5.0)
        display.show(PROGRESS)
        assert not display.is_due()
        now = 105.0
        assert display.is_due()

    def test_a_terminal_gets_a_bar_and_lines_above_it(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        with open_display() as display:
            assert isinstance(display, TerminalDisplay)
            display.say("[hello]")
            display.show(PROGRESS)
        out = capsys.readouterr().out
        assert "[hello]" in out
        assert "1,600 of 8,000 steps" in out


class TestCurve:
    @pytest.mark.parametrize("num_evaluations", [0, 1, 3])
    def test_it_is_a_picture_however_little_there_is(
        self, num_evaluations: int, tmp_path: Path
    ) -> None:
        history = History(
            evaluations=[Evaluation(at, (-1.0, 2.0)) for at in range(num_evaluations)],
            episodes=[(at, 0.5) for at in range(num_evaluations)],
        )
        draw_curve(tmp_path / "new" / "curve.png", history, env="X", goal=1.0)
        assert (tmp_path / "new" / "curve.png").read_bytes().startswith(b"\x89PNG")

    def test_a_disk_that_refuses_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(StorageWriteError, match=r"curve\.png' could not be written"):
            draw_curve(tmp_path / "file" / "curve.png", History(), env="X", goal=None)


class TestClosingWords:
    def words(self, *, steps: int, goal: float, was_interrupted: bool = False) -> str:
        history = History(steps=steps, seconds=61.2, evaluations=[Evaluation(steps, (-3.0, -1.0))])
        return "\n".join(
            closing_words(
                Outcome(
                    settings=DemoSettings(steps=8_000, goal=goal),
                    folder=RunFolder(Path("a b")),
                    history=history,
                    was_interrupted=was_interrupted,
                    buffer_stats={"num_trajectories": 20.0, "total_samples": 4_000.0},
                )
            )
        )

    def test_they_say_what_was_reached_and_where_it_lies(self) -> None:
        words = self.words(steps=4_000, goal=-2.0)
        assert (
            "the goal is reached; mean return -2.00 of 2 evaluation episodes after 4,000" in words
        )
        assert f"a b{os.sep}buffer  (20 trajectories, 4,000 transitions, pt)" in words
        assert f"a b{os.sep}learning_curve.png" in words
        assert "relive demo --resume --dir 'a b' --steps 8000" in words

    def test_they_do_not_claim_a_goal_that_was_missed(self) -> None:
        words = self.words(steps=8_000, goal=-1.0)
        assert "all steps are taken" in words
        assert "(the goal was -1.00)" in words
        assert "--steps 16000" in words

    def test_an_interrupted_run_says_how_to_go_on(self) -> None:
        words = self.words(steps=4_000, goal=math.inf, was_interrupted=True)
        assert "Stopped after 4,000 of 8,000 steps, and saved" in words
        assert words.endswith("relive demo --resume --dir 'a b'")
