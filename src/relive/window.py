# SPDX-License-Identifier: Apache-2.0
"""The trajectories that may be drawn, and where their rows are. Pure: arrays in, arrays out."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from relive.errors import EvictedError
from relive.row_bins import BinsView

__all__ = ["Located", "RowOrder", "Window", "evicted_rows", "origins_of"]

_MANY = 4096  # trajectories and rows, from which on bins beat bisection
_NOWHERE = -(1 << 62)


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

    The ordinal of a row is its number over all trajectories, env after env likewise, from any
    start that the window's arrays have in common.
    """

    trajectory_ids: NDArray[np.int64]
    """Oldest first, `[W]`."""
    first_row_ids: NDArray[np.int64]
    """Row id of row 0 of each, `[W]`."""
    ends: NDArray[np.int64]
    """Ordinal one past the last row of each, `[W]`."""
    counts: NDArray[np.int64]
    """Rows of each trajectory, `[W]`."""
    num_envs: NDArray[np.int64]
    """B of each trajectory, `[W]`."""
    origins: NDArray[np.int64]
    """`Record.place` of each trajectory less the ordinal of its first row, `[W]`; see
    `origins_of`."""
    rows_each: int = 0
    """How many rows each of them has, when all have the same number; else 0."""
    by_row: RowOrder | None = field(default=None, repr=False)
    """The order of first row ids; None when trajectories are in it."""
    bins: BinsView | None = field(default=None, repr=False)
    """Finds the trajectory of a row when there are many."""

    num_rows: int = field(init=False)
    """Rows in the window."""
    base: int = field(init=False)
    """Ordinal of its first row."""

    def __post_init__(self) -> None:
        """Work out what each draw asks for."""
        base = int(self.ends[0]) - int(self.counts[0]) if len(self.ends) else 0
        object.__setattr__(self, "base", base)
        object.__setattr__(self, "num_rows", int(self.ends[-1]) - base if len(self.ends) else 0)

    @property
    def places(self) -> NDArray[np.int64]:
        """`Record.place` of each trajectory, below 0 where it is -1, `[W]`."""
        return self.origins + self.ends - self.counts

    def at(self, numbers: NDArray[np.int64]) -> Located:
        """Find the rows with these numbers, each in `[0, num_rows)`."""
        if not len(numbers):
            return Located(self, numbers, ordinals=numbers)
        if self.rows_each:
            return Located(self, numbers // self.rows_each, ordinals=numbers + self.base)
        ordinals = numbers + self.base
        return Located(self, self._find(ordinals), ordinals=ordinals)

    def _find(self, ordinals: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return which trajectory each row is of."""
        if self.bins is not None and len(self.ends) + len(ordinals) >= _MANY:
            return self.bins.search(self.ends, ordinals)
        return self.ends.searchsorted(ordinals, side="right")

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

    __slots__ = ("_ordinals", "_rows", "position", "window")

    def __init__(
        self,
        window: Window,
        position: NDArray[np.int64],
        *,
        rows: NDArray[np.int64] | None = None,
        ordinals: NDArray[np.int64] | None = None,
    ) -> None:
        """Take what is known.

        Args:
            window: Has the rows.
            position: Of each row's trajectory in the window, `[N]`.
            rows: Row number `t * B + b` in it, `[N]`; or
            ordinals: its ordinal, as `Window` says, `[N]`.
        """
        self.window = window
        """Has the rows."""
        self.position = position
        """Of each row's trajectory in the window, `[N]`."""
        self._rows = rows
        self._ordinals = ordinals

    def __len__(self) -> int:
        """Return N."""
        return len(self.position)

    @property
    def rows(self) -> NDArray[np.int64]:
        """Number `t * B + b` of each row in its trajectory, `[N]`."""
        if self._rows is None:
            assert self._ordinals is not None, "one of both is given"
            counts = self.window.counts.take(self.position)
            num_envs = self.window.num_envs.take(self.position)
            offsets = self._ordinals - self.window.ends.take(self.position) + counts
            self._rows = _transposed(offsets, counts // num_envs, num_envs)
        return self._rows

    @property
    def ordinals(self) -> NDArray[np.int64]:
        """Ordinals, as `Window` says: of the trajectory's first row, plus `b * T + t`, `[N]`."""
        if self._ordinals is None:
            assert self._rows is not None, "one of both is given"
            counts = self.window.counts.take(self.position)
            num_envs = self.window.num_envs.take(self.position)
            offsets = _transposed(self._rows, num_envs, counts // num_envs)
            self._ordinals = offsets + self.window.ends.take(self.position) - counts
        return self._ordinals

    @property
    def row_ids(self) -> NDArray[np.int64]:
        """Row ids, `[N]`."""
        return self.window.first_row_ids.take(self.position) + self.rows

    @property
    def places(self) -> NDArray[np.int64]:
        """Where each row is: segment and row in it, as `Record.place` has them of row 0, `[N]`.

        Below 0 for rows of trajectories that lie in no segment.
        """
        places = self.window.origins.take(self.position)
        # not by the property alone: after a copy has emptied the caches a call costs 1 µs
        places += self.ordinals if self._ordinals is None else self._ordinals
        return places


def origins_of(places: NDArray[np.int64], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return what makes a row's place of its ordinal, by one addition.

    Args:
        places: `Record.place` of each trajectory, -1 for none, `[W]`.
        starts: Ordinal of the first row of each, `[W]`.

    Returns:
        int64 `[W]`; of trajectories without a place so low that with any ordinal added it is
        below 0.
    """
    return np.where(places < 0, _NOWHERE, places - starts)


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
