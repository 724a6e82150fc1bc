# SPDX-License-Identifier: Apache-2.0
"""From environments to trajectories: a rollout thread, a collector thread, three channels.

::

    hand_out() -> weights -> rollout thread -> parts -> collector thread -> trajectories -> next

The same shape works with workers in other processes or on other machines; only the channels
change.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from gymnasium.vector import SyncVectorEnv
from numpy.typing import NDArray

import relive.gym
from relive import Channel, Trajectory, TrajectoryCollector, TrajectoryPart
from relive.demo.sac import Actor
from relive.demo.settings import DemoSettings
from relive.errors import ClosedError, TimeLimitError

__all__ = ["ActingPolicy", "Rollouts", "Weights"]

_POLL_S = 0.2  # how soon the waiting loop sees Ctrl+C
_FOREVER_S = 30 * 86_400.0  # waits end when a channel closes, not by the clock: envs may be slow
_PATIENCE_S = 60.0  # how long an environment may take for one step once it should stop


@dataclass(frozen=True, slots=True)
class Weights:
    """What a policy acts with for one trajectory."""

    name: str
    """Stamped on the trajectory as its `model_weights_id`."""
    tensors: Mapping[str, torch.Tensor] | None
    """The actor's state, not shared with the learner; None: act at random."""


class ActingPolicy:
    """Chooses actions for all envs with weights of its own; only the rollout thread uses it.

    Args:
        actor: A copy of the learner's, overwritten by each `take`.
        action_shape: `[B, ...]`.
        seed: Of the noise.
    """

    def __init__(self, actor: Actor, action_shape: tuple[int, ...], seed: int) -> None:
        self._actor = actor
        self._shape = action_shape
        self._generator = torch.Generator().manual_seed(seed)
        self._is_random = True
        self.weights_name = ""
        """Of the weights taken last."""

    def take(self, weights: Weights) -> None:
        """Act with these weights from now on."""
        self.weights_name = weights.name
        self._is_random = weights.tensors is None
        if weights.tensors is not None:
            self._actor.load_state_dict(weights.tensors)

    def __call__(self, observations: NDArray[Any]) -> torch.Tensor:
        """Choose actions `[B, ...]` for observations `[B, observation_size]`."""
        if self._is_random:
            return torch.empty(self._shape).uniform_(-1.0, 1.0, generator=self._generator)
        # [B, ...] -> [B, action_size]: networks know flat actions only
        noise = torch.randn(self._shape, generator=self._generator).flatten(1)
        with torch.no_grad():
            actions: torch.Tensor = self._actor(torch.from_numpy(observations).float(), noise)[0]
            return actions.reshape(self._shape)


class Rollouts:
    """Collects trajectories while somebody else learns; owns two threads, borrows the envs.

    Each trajectory waits for weights, so the rollout is never further ahead than weights were
    handed out, and a run's trajectories depend on its seed alone, not on the threads' timing.

    Args:
        envs: Stepped by the rollout thread only, from enter to exit.
        policy: Acts; used by the rollout thread only.
        settings: T and B.
        incarnation: Rises with each start of the run.
        seed: Of the environments.
    """

    def __init__(
        self,
        envs: SyncVectorEnv,
        policy: ActingPolicy,
        settings: DemoSettings,
        *,
        incarnation: int,
        seed: int,
    ) -> None:
        self._weights: Channel[Weights] = Channel(maxsize=4, name="weights", timeout_s=_FOREVER_S)
        self._parts: Channel[TrajectoryPart] = Channel(
            maxsize=16, name="parts", timeout_s=_FOREVER_S
        )
        self._trajectories: Channel[Trajectory] = Channel(
            maxsize=2, name="trajectories", timeout_s=_FOREVER_S
        )
        self._policy = policy
        self._steps_per_trajectory = settings.steps_per_trajectory
        self._rollout = relive.gym.rollout(
            envs,
            policy,
            steps_per_epoch=settings.steps_per_trajectory,
            group="demo",
            incarnation=incarnation,
            seed=seed,
            model_weights_id=lambda: policy.weights_name,
        )
        self._collector = TrajectoryCollector(settings.steps_per_trajectory)
        self._is_closing = False
        self._threads = [
            _Worker("rollout", self._roll_out, self._parts.close),
            _Worker("collector", self._collect, self._trajectories.close),
        ]

    def hand_out(self, weights: Weights) -> None:
        """Let the next trajectory be collected with these weights.

        Raises:
            ClosedError: The rollouts have ended.
        """
        self._weights.put(weights)

    def next_trajectory(self, *, on_wait: Callable[[], None]) -> Trajectory:
        """Wait for the next trajectory.

        Args:
            on_wait: Called several times a second; what it raises ends the wait.

        Raises:
            ClosedError: The rollouts were closed.
            Exception: What a thread has met.
        """
        while (trajectory := self._poll()) is None:
            on_wait()
        return trajectory

    def close(self) -> None:
        """End both threads and wait for them; what they were at is given up. Twice is fine.

        Raises:
            TimeLimitError: An environment does not come back from a step.
        """
        self._is_closing = True
        self._rollout.close()
        for channel in (self._weights, self._parts, self._trajectories):
            channel.close()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(_PATIENCE_S)
            if thread.is_alive():
                raise TimeLimitError(
                    f"the {thread.name} thread has not ended for {_PATIENCE_S:g} s, but was asked "
                    "to; the environment does not come back from a step"
                )

    def __enter__(self) -> Rollouts:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
        if error is None:
            self._raise_what_a_thread_met()

    def _roll_out(self) -> None:
        for weights in self._weights:
            self._policy.take(weights)
            for part in self._rollout.parts(self._steps_per_trajectory):
                self._parts.put(part)

    def _collect(self) -> None:
        # collector.run() does this too, and in the end hands over what a trajectory has so far;
        # here that is given up, because a resumed run collects it again.
        for part in self._parts:
            for trajectory in self._collector.add(part):
                self._trajectories.put(trajectory)

    def _poll(self) -> Trajectory | None:
        try:
            return self._trajectories.get(timeout_s=_POLL_S)
        except TimeLimitError:
            return None
        except ClosedError as error:
            ended = error
        self._raise_what_a_thread_met()
        raise ended

    def _raise_what_a_thread_met(self) -> None:
        for thread in self._threads:
            error = thread.error
            # Closing the channels is how the threads are told to end.
            if error is not None and not (self._is_closing and isinstance(error, ClosedError)):
                raise error


class _Worker(threading.Thread):
    """A thread that keeps what it met for another thread to raise.

    Args:
        name: For messages and debuggers.
        work: Done once.
        close: Called at the end, so that whoever waits for this thread's output is woken.
    """

    def __init__(self, name: str, work: Callable[[], None], close: Callable[[], None]) -> None:
        super().__init__(name=f"relive-demo-{name}", daemon=True)
        self._work = work
        self._close = close
        self.error: BaseException | None = None
        """What the work met; read it once the thread has closed its output."""

    def run(self) -> None:
        """Do the work."""
        try:
            self._work()
        except BaseException as error:  # whatever it is, the main thread raises it
            self.error = error
        finally:
            self._close()
