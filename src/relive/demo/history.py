# SPDX-License-Identifier: Apache-2.0
"""How far a run has come, and what it has reached on the way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["Evaluation", "History"]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The returns of one evaluation."""

    steps: int
    """Environment steps the agent had learned from."""
    returns: tuple[float, ...]
    """Of each episode, undiscounted."""

    @property
    def mean(self) -> float:
        """Return the mean over the episodes."""
        return sum(self.returns) / len(self.returns)


@dataclass(slots=True)
class History:
    """Counters and returns of a run, over all its sessions; the training loop writes it."""

    steps: int = 0
    """Environment steps added to the buffer."""
    updates: int = 0
    """Updates of the agent."""
    sessions: int = 0
    """How often the run was started or resumed."""
    seconds: float = 0.0
    """How long the earlier sessions took, up to the save they were resumed from."""
    evaluations: list[Evaluation] = field(default_factory=list)
    """In order of steps."""
    episodes: list[tuple[int, float]] = field(default_factory=list)
    """Steps at the end of a training episode, and its return."""

    def has_reached(self, goal: float | None) -> bool:
        """Tell whether the newest evaluation reached the goal; None is never reached."""
        return goal is not None and bool(self.evaluations) and self.evaluations[-1].mean >= goal

    def to_state(self) -> dict[str, Any]:
        """Give it as plain containers."""
        return {
            "steps": self.steps,
            "updates": self.updates,
            "sessions": self.sessions,
            "seconds": self.seconds,
            "evaluations": [(each.steps, list(each.returns)) for each in self.evaluations],
            "episodes": list(self.episodes),
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> History:
        """Take back what `to_state` gave."""
        evaluations = [Evaluation(steps, tuple(each)) for steps, each in state["evaluations"]]
        episodes = [(steps, value) for steps, value in state["episodes"]]
        return cls(**{**state, "evaluations": evaluations, "episodes": episodes})
