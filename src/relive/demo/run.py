# SPDX-License-Identifier: Apache-2.0
"""One run of the demo, from its folder to its last save."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode

from relive import Limits, TrajectoryReplayBuffer
from relive.demo.environments import EnvFacts, look_at, make_envs
from relive.demo.history import History
from relive.demo.interrupt import Interrupt, StopRequested
from relive.demo.plot import draw_curve
from relive.demo.progress import Display, return_text
from relive.demo.rollout import ActingPolicy, Rollouts
from relive.demo.sac import Actor, Sac
from relive.demo.saves import RunFolder
from relive.demo.settings import DEFAULT_ENV, DEFAULT_GOAL, DemoSettings
from relive.demo.train import Trainer
from relive.errors import InvalidArgumentError
from relive.folder import IfExists

__all__ = ["Outcome", "run_demo"]

_CACHE_TRAJECTORIES = 2_000
_CACHE_BYTES = 512 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended; everything it reached is saved."""

    settings: DemoSettings
    """Of the run, as resumed."""
    folder: RunFolder
    """Where everything lies."""
    history: History
    """Counters and returns."""
    was_interrupted: bool
    """Whether it was asked to stop before its goal and its last step."""
    buffer_stats: Mapping[str, float]
    """What the buffer said in the end."""


@dataclass(frozen=True, slots=True)
class _Beginning:
    """What a run starts from."""

    settings: DemoSettings
    facts: EnvFacts
    history: History
    if_exists: IfExists
    save: Path | None = None  # None: a new run
    agent_state: Mapping[str, Any] | None = None
    goal_before: float | None = None  # of a run that reached it and goes on without


def run_demo(
    path: Path,
    *,
    given: Mapping[str, Any],
    resume: bool,
    overwrite: bool,
    display: Display,
    interrupt: Interrupt,
) -> Outcome:
    """Train an agent, and leave the buffer, the saves and the learning curve in a folder.

    Args:
        path: The folder.
        given: Fields of `DemoSettings`; the others take their defaults, or on resuming what
            the run had.
        resume: Whether to go on with the run in the folder.
        overwrite: Whether a new run may replace the one in the folder.
        display: Told what happens.
        interrupt: Asked between two steps whether to stop.

    Raises:
        InvalidArgumentError: The settings make no sense, or not for this environment, or not
            for the run to resume.
        MissingPackageError: The environment needs a package that is not installed.
        StoreExistsError: The folder holds a run, and neither flag says what to do with it; or it
            holds other things.
        ReplayError: What the buffer, the channels or the disk met.
    """
    folder = RunFolder(path)
    begin = _resumed(folder, given) if resume else _new(folder, given, overwrite=overwrite)
    for note in _notes(begin):
        display.say(f"note: {note}")
    settings, facts, history = begin.settings, begin.facts, begin.history
    agent = Sac(facts.observation_size, facts.action_size, settings.sac, seed=settings.seed)
    with ExitStack() as stack:
        stack.enter_context(_one_torch_thread())
        buffer = stack.enter_context(_buffer(folder, settings, if_exists=begin.if_exists))
        if begin.agent_state is not None and begin.save is not None:
            if history.steps:
                _load(buffer, begin.save / "buffer", display)
            agent.load_state_dict(begin.agent_state)
        elif overwrite:
            folder.remove_saves()  # only now: the buffer holds the folder's lock
        rollouts = stack.enter_context(_rollouts(settings, facts, history))
        eval_envs = make_envs(facts, settings.eval_episodes, autoreset_mode=AutoresetMode.NEXT_STEP)
        stack.enter_context(closing(eval_envs))
        trainer = Trainer(
            settings,
            agent=agent,
            buffer=buffer,
            history=history,
            eval_envs=eval_envs,
            display=display,
            interrupt=interrupt,
        )

        save = partial(_save, folder, buffer, settings, history, agent)
        was_interrupted = False
        try:
            trainer.run(rollouts, save=save)
        except StopRequested:
            was_interrupted = True
            save()
        outcome = Outcome(
            settings=settings,
            folder=folder,
            history=history,
            was_interrupted=was_interrupted,
            buffer_stats=buffer.get_stats(),
        )
    draw_curve(folder.curve, history, env=settings.env, goal=settings.goal)
    return outcome


def _new(folder: RunFolder, given: Mapping[str, Any], *, overwrite: bool) -> _Beginning:
    settings = DemoSettings(**given)
    facts = look_at(settings.env)
    if "goal" not in given:
        goal = DEFAULT_GOAL if settings.env == DEFAULT_ENV else facts.goal
        settings = replace(settings, goal=goal)
    folder.check_free(overwrite=overwrite)
    return _Beginning(
        settings, facts, History(sessions=1), if_exists="overwrite" if overwrite else "refuse"
    )


def _resumed(folder: RunFolder, given: Mapping[str, Any]) -> _Beginning:
    save = folder.newest_save()
    state = folder.read_state(save)
    settings = DemoSettings.from_state(state["settings"]).resumed_with(given)
    history = History.from_state(state["history"])
    if history.steps >= settings.steps and history.evaluations[-1].steps == history.steps:
        raise InvalidArgumentError(
            f"steps is {settings.steps:,}, but the run in {str(folder.path)!r} has "
            f"{history.steps:,} already; give a larger --steps to go on"
        )
    goal_before = None
    if "goal" not in given and history.has_reached(settings.goal):
        goal_before = settings.goal
        settings = replace(settings, goal=None)  # who resumes a finished run wants more
    history.sessions += 1
    # What a killed run added after its save is put aside by loading the save, and collected again.
    if_exists: IfExists = "resume" if history.steps else "overwrite"
    facts = look_at(settings.env)
    return _Beginning(settings, facts, history, if_exists, save, state["agent"], goal_before)


def _save(
    folder: RunFolder,
    buffer: TrajectoryReplayBuffer,
    settings: DemoSettings,
    history: History,
    agent: Sac,
) -> None:
    state = {
        "settings": settings.to_state(),
        "history": history.to_state(),
        "agent": agent.state_dict(),
    }
    folder.write_save(buffer, state)


def _load(buffer: TrajectoryReplayBuffer, checkpoint: Path, display: Display) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        buffer.load_checkpoint(str(checkpoint))
    for each in caught:  # such as what a killed run had added after its save
        display.say(f"note: {each.message}")


def _notes(begin: _Beginning) -> list[str]:
    notes = list(begin.facts.notes)
    if begin.goal_before is not None:
        notes.append(
            f"the goal of {return_text(begin.goal_before)} is reached already, so the run goes on "
            f"without one, to {begin.settings.steps:,} steps; --goal gives it another"
        )
    warm_up = begin.settings.warmup_trajectories * begin.settings.rows_per_trajectory
    if begin.settings.steps < warm_up:
        notes.append(f"nothing is learned in so few steps: the first {warm_up:,} act at random")
    return notes


def _buffer(
    folder: RunFolder, settings: DemoSettings, *, if_exists: IfExists
) -> TrajectoryReplayBuffer:
    return TrajectoryReplayBuffer(
        seed=settings.seed,
        enable_cache=True,
        cache_size=_CACHE_TRAJECTORIES,
        sample_window_size=0,  # everything: SAC learns from any policy's transitions
        auto_save=True,
        auto_save_path=str(folder.buffer),
        trajectory_format=settings.trajectory_format,
        limits=Limits(cache_bytes=_CACHE_BYTES),
        if_exists=if_exists,
    )


@contextmanager
def _rollouts(settings: DemoSettings, facts: EnvFacts, history: History) -> Iterator[Rollouts]:
    # Each session of a run draws new noise and new starts: it repeats nothing of the others.
    seeds = np.random.SeedSequence([settings.seed, history.sessions]).generate_state(2)
    envs = make_envs(facts, settings.num_envs, autoreset_mode=AutoresetMode.DISABLED)
    with closing(envs):
        shape = envs.action_space.shape
        assert shape is not None
        actor = Actor(facts.observation_size, prod(shape[1:]), settings.sac.width)
        policy = ActingPolicy(actor, shape, seed=int(seeds[0]))
        with Rollouts(
            envs,
            policy,
            settings,
            incarnation=history.sessions - 1,
            seed=int(seeds[1] >> 1),  # Gymnasium adds the env's number to it
        ) as rollouts:
            yield rollouts


@contextmanager
def _one_torch_thread() -> Iterator[None]:
    """Let torch use one thread: networks this small are slower with more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
