# SPDX-License-Identifier: Apache-2.0
"""What a collector remembers of one group of envs, in bounded space."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from relive.collection.rollout import Rollout

__all__ = ["FinishedNumbers", "Group", "OpenRollout"]


class FinishedNumbers:
    """Which trajectories of one incarnation are finished: a counter and a few numbers above it.

    Trajectories may finish in any order. Every number below the counter is finished, unless it
    is open just now; of those above, the finished ones are remembered one by one. The counter
    rises over finished and open numbers. Only a number that never came holds it back, and that is
    given up when more than `max_ahead` numbers above the counter are finished.

    Example:
        >>> finished = FinishedNumbers(max_ahead=2)
        >>> finished.add(1, open_numbers=())
        0
        >>> 0 in finished, 1 in finished
        (False, True)
        >>> finished.add(0, open_numbers=())
        0
        >>> finished.below
        2
    """

    def __init__(self, max_ahead: int) -> None:
        self.below = 0
        self._max_ahead = max_ahead
        self._ahead: set[int] = set()

    def __contains__(self, number: int) -> bool:
        """Tell whether a trajectory that is not open is finished or given up."""
        return number < self.below or number in self._ahead

    def add(self, number: int, open_numbers: Collection[int]) -> int:
        """Remember one more finished trajectory.

        Args:
            number: Its number.
            open_numbers: Those that have begun and are not finished.

        Returns:
            How many numbers that never came were given up, mostly 0.
        """
        if number >= self.below:
            self._ahead.add(number)
        self._rise(open_numbers)
        num_given_up = 0
        while len(self._ahead) > self._max_ahead:
            lowest = min(self._ahead.union(at for at in open_numbers if at >= self.below))
            num_given_up += lowest - self.below
            self.below = lowest
            self._rise(open_numbers)
        return num_given_up

    def _rise(self, open_numbers: Collection[int]) -> None:
        while self.below in self._ahead or self.below in open_numbers:
            self._ahead.discard(self.below)
            self.below += 1


@dataclass(slots=True)
class OpenRollout:
    """A trajectory that has begun."""

    rollout: Rollout
    """Its parts."""
    since: float
    """When the last new part came, by the collector's clock."""


@dataclass(slots=True)
class Group:
    """Where one group of envs stands."""

    num_envs: int
    """B, the same for the group's whole life."""
    incarnation: int
    """The newest one that published anything."""
    finished: FinishedNumbers
    """Of this incarnation."""
    open: dict[int, OpenRollout] = field(default_factory=dict)
    """Of this incarnation, by number."""
    finished_names: frozenset[str] = frozenset()
    """Columns of the trajectory that finished last."""
