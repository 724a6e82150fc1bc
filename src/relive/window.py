# SPDX-License-Identifier: Apache-2.0
"""The trajectories that may be drawn, and where their rows are. Pure: arrays in, arrays out."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from relive.errors import EvictedError
from relive.row_bins import BinsView

__all__ = ["Located", "RowOrder", "Window", "evicted_rows"]

_MANY = 512  # trajectories or rows, from which on a guess beats a search


class RowOrder:
    """The order of trajectories by their first row ids, sorted when it is first asked for."""

    def __init__(self, first_row_ids: NDArray[np.int64]) -> None:
        """Take the first row ids, `[W]`."""
        self._first_row_ids = first_row_ids
        self._positions: NDArray[np.int64] | None = None

    @property
    def positions(self) -> NDArray[np.int64]:
        """Positions of the trajectories in that order, `[W]`."""
        if self._positions is None:
            self._positions = np.argsort(self._first_row_ids, kind="stable")
        return self._positions


@dataclass(frozen=True, slots=True)
class Window:
    """The trajectories that may be drawn, as they were at one moment.

    Rows of the window are numbered 0 to `num_rows` - 1: oldest trajectory first, in each env
    after env, so that consecutive numbers are consecutive steps. `row_ids` turns such numbers
    into row ids, which stay true for the life of the store.
    """

    trajectory_ids: NDArray[np.int64]
    """Oldest first, `[W]`."""
    first_row_ids: NDArray[np.int64]
    """Row id of row 0 of each, `[W]`."""
    ends: NDArray[np.int64]
    """Rows up to and with each trajectory, counted from any common start, `[W]`."""
    counts: NDArray[np.int64]
    """Rows of each trajectory, `[W]`."""
    num_envs: NDArray[np.int64]
    """B of each trajectory, `[W]`."""
    places: NDArray[np.int64]
    """`Record.place` of each trajectory, `[W]`."""
    by_row: RowOrder | None = field(default=None, repr=False)
    """The order of first row ids; None when trajectories are in it."""
    bins: BinsView | None = field(default=None, repr=False)
    """Finds the trajectory of a row when there are many."""

    @property
    def num_rows(self) -> int:
        """Rows in the window."""
        return int(self.ends[-1]) - self._base if len(self.ends) else 0

    @property
    def _base(self) -> int:
        return int(self.ends[0]) - int(self.counts[0])

    def at(self, numbers: NDArray[np.int64]) -> Located:
        """Find the rows with these numbers, each in `[0, num_rows)`."""
        if not len(numbers):
            return Located(self, numbers, offsets=numbers)
        absolute = numbers + self._base
        position = self._find(absolute)
        absolute -= self.ends.take(position)
        absolute += self.counts.take(position)
        return Located(self, position, offsets=absolute)

    def _find(self, absolute: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return which trajectory each row is of, given its number counted as `ends` are."""
        if self.bins is not None:
            return self.bins.search(self.ends, absolute)
        num, base = len(self.ends), self._base
        if num < _MANY and len(absolute) < _MANY:
            return self.ends.searchsorted(absolute, side="right")
        # trajectories are often of one length; then this is right, with three looks and not twenty
        share = num / (int(self.ends[-1]) - base)
        position = ((absolute - base) * share).astype(np.int64)
        np.minimum(position, num - 1, out=position)
        ends = self.ends.take(position)
        is_wrong = (absolute >= ends) | (absolute < ends - self.counts.take(position))
        if is_wrong.any():
            position[is_wrong] = self.ends.searchsorted(absolute[is_wrong], side="right")
        return position

    def row_ids(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Turn row numbers of the window, each in `[0, num_rows)`, into row ids."""
        return self.at(numbers).row_ids

    def locate(self, row_ids: NDArray[np.int64]) -> Located:
        """Find rows by their ids.

        Raises:
            EvictedError: A row id is not in the window.
        """
        if not len(row_ids):
            return Located(self, row_ids, rows=row_ids)
        if not len(self.ends):
            raise evicted_rows(row_ids)
        by_row = None if self.by_row is None else self.by_row.positions
        firsts = self.first_row_ids if by_row is None else self.first_row_ids[by_row]
        order = firsts.searchsorted(row_ids, side="right") - 1
        position = order if by_row is None else by_row[order]
        first = self.first_row_ids[position]
        rows = row_ids - first
        # an id below all wraps to the last position, where it is still below
        found = (row_ids >= first) & (rows < self.counts[position])
        if not found.all():
            raise evicted_rows(row_ids[~found])
        return Located(self, position, rows=rows)


class Located:
    """Rows of a window by the trajectory that each is of; what else they are is told on demand."""

    __slots__ = ("_offsets", "_rows", "position", "window")

    def __init__(
        self,
        window: Window,
        position: NDArray[np.int64],
        *,
        rows: NDArray[np.int64] | None = None,
        offsets: NDArray[np.int64] | None = None,
    ) -> None:
        """Take what is known.

        Args:
            window: Has the rows.
            position: Of each row's trajectory in the window, `[N]`.
            rows: Row number `t * B + b` in it, `[N]`; or
            offsets: the same counted env after env, `b * T + t`, `[N]`.
        """
        self.window = window
        """Has the rows."""
        self.position = position
        """Of each row's trajectory in the window, `[N]`."""
        self._rows = rows
        self._offsets = offsets

    def __len__(self) -> int:
        """Return N."""
        return len(self.position)

    @property
    def rows(self) -> NDArray[np.int64]:
        """Number `t * B + b` of each row in its trajectory, `[N]`."""
        if self._rows is None:
            assert self._offsets is not None, "one of both is given"
            num_envs = self.window.num_envs.take(self.position)
            num_steps = self.window.counts.take(self.position) // num_envs
            self._rows = _transposed(self._offsets, num_steps, num_envs)
        return self._rows

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Number `b * T + t` of each row in its trajectory, `[N]`."""
        if self._offsets is None:
            assert self._rows is not None, "one of both is given"
            num_envs = self.window.num_envs.take(self.position)
            num_steps = self.window.counts.take(self.position) // num_envs
            self._offsets = _transposed(self._rows, num_envs, num_steps)
        return self._offsets

    @property
    def row_ids(self) -> NDArray[np.int64]:
        """Row ids, `[N]`."""
        return self.window.first_row_ids.take(self.position) + self.rows

    @property
    def places(self) -> NDArray[np.int64]:
        """`Record.place` of each row's trajectory, `[N]`."""
        return self.window.places.take(self.position)


def _transposed(
    numbers: NDArray[np.int64], num_inner: NDArray[np.int64], num_outer: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Turn numbers `outer * num_inner + inner` into `inner * num_outer + outer`."""
    outer = numbers // num_inner
    return (numbers - outer * num_inner) * num_outer + outer


def evicted_rows(row_ids: NDArray[np.int64]) -> EvictedError:
    """Return the error for row ids that are not there, naming the first ten."""
    gone = tuple(np.unique(row_ids)[:10].tolist())
    return EvictedError(
        f"row ids {list(gone)}{' …' if len(gone) == 10 else ''} are not in this buffer, but only "
        "rows that were neither evicted nor deleted can be read; draw again",
        ids=gone,
    )
