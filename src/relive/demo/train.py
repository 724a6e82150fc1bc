# SPDX-License-Identifier: Apache-2.0
"""The training loop: take a trajectory, add it, sample, learn, hand out the weights.

Everything that learning uses comes out of the buffer. The loop stops only between two steps,
where agent, buffer and history fit together.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from gymnasium.vector import SyncVectorEnv

from relive import TrajectoryReplayBuffer
from relive.demo.evaluation import EpisodeReturns, evaluate
from relive.demo.history import Evaluation, History
from relive.demo.interrupt import Interrupt
from relive.demo.progress import Display, Progress, return_text
from relive.demo.rollout import Rollouts, Weights
from relive.demo.sac import Sac
from relive.demo.settings import DemoSettings

__all__ = ["Trainer"]

_COLUMNS = ("curr_obs/states", "next_obs/states", "actions", "rewards", "terminations")
_NUM_RECENT = 20  # training episodes in the mean that is shown


class Trainer:
    """Trains one agent from one buffer; owns neither.

    Args:
        settings: How long, and in which proportions.
        agent: Trained in place.
        buffer: Gets every trajectory and gives every batch.
        history: Counters and returns, written in place.
    """

    def __init__(
        self,
        settings: DemoSettings,
        *,
        agent: Sac,
        buffer: TrajectoryReplayBuffer,
        history: History,
        eval_envs: SyncVectorEnv,
        display: Display,
        interrupt: Interrupt,
    ) -> None:
        self._settings = settings
        self._agent = agent
        self._buffer = buffer
        self._history = history
        self._eval_envs = eval_envs
        self._display = display
        self._interrupt = interrupt
        self._returns = EpisodeReturns(settings.num_envs)
        self._started = time.monotonic()
        self._seconds_before = history.seconds
        self._shown_at = (self._started, history.updates)

    def run(self, rollouts: Rollouts, *, save: Callable[[], None]) -> None:
        """Train until the goal or the last step.

        Args:
            rollouts: Started, and at its first trajectory.
            save: Called after each evaluation, when everything fits together.

        Raises:
            StopRequested: Somebody asked for it; what is left to do is done by the next run.
            ReplayError: The buffer, the channel or a thread of `rollouts` met it.
        """
        self._learn()  # what an interrupted run had left to learn
        self._evaluate_if_due(save)
        rollouts.hand_out(self._weights())
        while not self._is_finished():
            # One set of weights starts one trajectory, so the next is collected while this one
            # is learned from, and each acts with weights of the same age in every run.
            rollouts.hand_out(self._weights())
            trajectory = rollouts.next_trajectory(on_wait=self._between_steps)
            self._buffer.add_trajectories([trajectory])
            self._history.steps += np.asarray(trajectory.rewards).size
            for value in self._returns.add(trajectory):
                self._history.episodes.append((self._history.steps, value))
            self._learn()
            self._evaluate_if_due(save)

    def _is_finished(self) -> bool:
        return self._history.steps >= self._settings.steps or self._history.has_reached(
            self._settings.goal
        )

    def _is_warm(self) -> bool:
        return self._buffer.is_ready(self._settings.warmup_trajectories)

    def _weights(self) -> Weights:
        if not self._is_warm():
            return Weights("random", None)
        tensors = {name: each.clone() for name, each in self._agent.actor.state_dict().items()}
        return Weights(f"update{self._history.updates}", tensors)

    def _learn(self) -> None:
        if not self._is_warm():
            return
        due = int(self._history.steps * self._settings.updates_per_step)
        while self._history.updates < due:
            batch = self._buffer.sample(self._settings.sac.batch_size, columns=_COLUMNS)
            self._agent.update(batch)
            self._history.updates += 1
            self._between_steps()

    def _evaluate_if_due(self, save: Callable[[], None]) -> None:
        if not self._is_evaluation_due():
            return
        returns = evaluate(self._agent.actor, self._eval_envs, on_step=self._between_steps)
        newest = Evaluation(self._history.steps, tuple(returns.tolist()))
        self._history.evaluations.append(newest)
        self._display.say(
            f"{newest.steps:>7,} steps: mean return {return_text(newest.mean)} "
            f"of {len(newest.returns)} evaluation episodes"
        )
        save()

    def _is_evaluation_due(self) -> bool:
        if not self._history.evaluations:
            return True  # the curve starts with the untrained agent
        since = self._history.steps - self._history.evaluations[-1].steps
        if self._history.steps >= self._settings.steps:
            return since > 0  # and ends with the last step
        return self._history.updates > 0 and since >= self._settings.evaluate_every

    def _between_steps(self) -> None:
        self._history.seconds = self._seconds_before + time.monotonic() - self._started
        if self._display.is_due():
            self._display.show(self._progress())
        self._interrupt.check()

    def _progress(self) -> Progress:
        history, stats = self._history, self._buffer.get_stats()
        now = time.monotonic()
        before, updates = self._shown_at
        self._shown_at = (now, history.updates)
        rows = (history.updates - updates) * self._settings.sac.batch_size
        recent = [value for _, value in history.episodes[-_NUM_RECENT:]]
        return Progress(
            steps=history.steps,
            total_steps=self._settings.steps,
            evaluation_return=history.evaluations[-1].mean if history.evaluations else None,
            training_return=sum(recent) / len(recent) if recent else None,
            samples_per_s=rows / max(now - before, 1e-9),
            num_trajectories=int(stats["num_trajectories"]),
            seconds=history.seconds,
        )
