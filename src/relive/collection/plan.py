# SPDX-License-Identifier: Apache-2.0
"""Which parts make up a trajectory, and in which row each of them lies.

A trajectory of E epochs of n chunk steps has T = E * n rows a column, but T + E rows of flags,
where the state before an epoch's first step comes first, and of awaited bootstrap values, which
come last in their epoch. Pure arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from relive.collection.incoming import check_name, mismatch
from relive.columns import SEPARATOR
from relive.errors import InvalidArgumentError
from relive.fields import FLAG_FIELDS, TREE_FIELDS, VALUE_FIELDS
from relive.options import checked_count
from relive.part import TrajectoryPart

__all__ = ["INITIAL_STEP", "Moment", "RolloutPlan"]

INITIAL_STEP = -1
"""Step number of the flags of the state before an epoch's first step."""

Moment = tuple[int, int]
"""Epoch and step, which order the parts of a trajectory in time."""


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """What every trajectory of a collector is made of.

    Raises:
        InvalidArgumentError: A number is below 1, or a column has no place in a trajectory.
    """

    steps_per_epoch: int
    """Chunk steps in an epoch, n."""
    num_epochs: int = 1
    """Rollout epochs in a trajectory, E."""
    columns: tuple[str, ...] | None = None
    """Columns or nested dicts that make a chunk step complete, and the flags among them an
    epoch's first flags; where none are named one part does."""
    bootstrap_values: bool = False
    """Whether every epoch's bootstrap value is awaited, else none is taken."""
    initial_flags: bool = False
    """Whether every epoch's first flag row is awaited, else what has come in time is taken."""

    def __post_init__(self) -> None:
        for name in ("steps_per_epoch", "num_epochs"):
            object.__setattr__(self, name, checked_count(name, getattr(self, name)))
        if self.columns is not None and not self.columns:
            raise InvalidArgumentError(
                "columns is empty, but must name what makes a chunk step complete; "
                "leave it out when one part does"
            )
        for name in self.columns or ():
            fault = name not in TREE_FIELDS and check_name(name)
            if fault:
                raise InvalidArgumentError(f"columns has a name of no trajectory: {fault}")

    @property
    def num_steps(self) -> int:
        """Chunk steps in a trajectory, T."""
        return self.steps_per_epoch * self.num_epochs

    def is_chunk_step(self, step: int) -> bool:
        """Tell chunk steps from the first flags and the bootstrap value of an epoch."""
        return 0 <= step < self.steps_per_epoch

    def check_moment(self, part: TrajectoryPart) -> None:
        """Check that a trajectory has the epoch and the step of a part.

        Raises:
            PartMismatchError: It has not.
        """
        if part.epoch >= self.num_epochs:
            raise mismatch(
                part,
                f"is past the last epoch, but a trajectory has {self.num_epochs} from 0; "
                "see num_epochs",
            )
        if part.step > self.steps_per_epoch - (not self.bootstrap_values):
            raise mismatch(
                part,
                f"is past the last step, but an epoch has {self.steps_per_epoch} from 0 and "
                f"{'one' if self.bootstrap_values else 'no'} bootstrap value; "
                "see steps_per_epoch and bootstrap_values",
            )

    def check_columns(self, part: TrajectoryPart, names: Iterable[str]) -> None:
        """Check that the step of a part has columns of these names.

        Raises:
            PartMismatchError: It has not.
        """
        for name in names:
            if not self._has_column(part.step, name):
                raise mismatch(
                    part,
                    f"has column {name!r}, but before the first step there are only "
                    f"{', '.join(FLAG_FIELDS)}, after the last only {', '.join(VALUE_FIELDS)}; "
                    f"send it with steps 0 to {self.steps_per_epoch - 1}",
                    column=name,
                )

    def lacking(self, step: int, names: Iterable[str]) -> list[str]:
        """Return which columns are awaited at a step and are not among these.

        Example:
            >>> plan = RolloutPlan(1, columns=("actions", "curr_obs", "dones"))
            >>> plan.lacking(0, ["curr_obs/states", "dones"]), plan.lacking(-1, [])
            (['actions'], ['dones'])
        """
        have = {name[:end] for name in names for end in _path_ends(name)}
        return [
            name for name in self.columns or () if name not in have and self._has_column(step, name)
        ]

    def awaits_first_flags(self, names: Iterable[str]) -> bool:
        """Tell whether no trajectory leaves before it has these first flags."""
        columns = self.columns
        return self.initial_flags and (columns is None or all(name in columns for name in names))

    def _has_column(self, step: int, name: str) -> bool:
        """Tell whether a step may have a column: of first flags and last values few do."""
        if self.is_chunk_step(step):
            return True
        return name in (FLAG_FIELDS if step == INITIAL_STEP else VALUE_FIELDS)

    def rows_per_epoch(self, column: str) -> int:
        """Return how many rows of a column each epoch has."""
        has_extra = column in FLAG_FIELDS or (column in VALUE_FIELDS and self.bootstrap_values)
        return self.steps_per_epoch + has_extra

    def row(self, column: str, moment: Moment) -> int:
        """Return in which row of its column the value of a moment lies.

        Example:
            >>> plan = RolloutPlan(10, num_epochs=2)
            >>> plan.row("rewards", (1, 0)), plan.row("dones", (1, -1)), plan.row("dones", (1, 0))
            (10, 11, 12)
        """
        epoch, step = moment
        return epoch * self.rows_per_epoch(column) + step + (column in FLAG_FIELDS)

    def awaited(self) -> Iterator[Moment]:
        """Yield every moment that a whole trajectory needs, in order of time."""
        first = INITIAL_STEP if self.initial_flags else 0
        stop = self.steps_per_epoch + self.bootstrap_values
        for epoch in range(self.num_epochs):
            for step in range(first, stop):
                yield epoch, step


def _path_ends(name: str) -> Iterator[int]:
    """Yield where each leading path of a name ends: "a/b" has "a" and "a/b"."""
    for index, letter in enumerate(name):
        if letter == SEPARATOR:
            yield index
    yield len(name)
