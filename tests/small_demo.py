# SPDX-License-Identifier: Apache-2.0
"""A run of the demo in small: an environment, a display, and what tests of it share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from relive.demo.environments import EnvFacts, look_at
from relive.demo.interrupt import Interrupt
from relive.demo.progress import Progress
from relive.demo.run import Outcome, run_demo
from relive.demo.settings import SacOptions

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


class Line(gymnasium.Env[NDArray[np.float64], NDArray[np.float32]]):
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


def make_line(**kwargs: Any) -> Line:
    return Line(**kwargs)


for name, kwargs in ((ENV, {}), (FAILING, {"fail_at": 40})):
    if name not in gymnasium.registry:
        gymnasium.register(name, make_line, max_episode_steps=EPISODE, kwargs=kwargs)


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


def demo_threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.startswith("relive-demo")]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Fail a test that leaves a thread of the demo behind."""
    yield
    assert not demo_threads()


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
