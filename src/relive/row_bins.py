# SPDX-License-Identifier: Apache-2.0
"""Which of a million trajectories a row belongs to, without bisecting them all.

Bisection in a table larger than the processor's cache waits for memory some twenty times a row: at
a million trajectories ten times as long as at a thousand. Here rows are sorted into bins as long
as a mean trajectory, each of which knows the first trajectory that reaches into it; from there it
is a step or two.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["MIN_TRAJECTORIES", "BinsView", "RowBins"]

MIN_TRAJECTORIES = 64
"""With fewer trajectories there are no bins."""

_MOST_STEPS = 8


class BinsView(NamedTuple):
    """Bins as they are seen from a window."""

    firsts: NDArray[np.int32]
    """Of each bin the trajectory that reaches into it first."""
    origin: int
    """The number of the first bin."""
    shift: int
    """A bin has `1 << shift` rows."""
    offset: int
    """What is added to a trajectory to have its position in the window."""

    def search(self, ends: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Find the trajectories of rows, as `numpy.searchsorted(ends, rows, side="right")` does.

        Args:
            ends: Rows up to and with each trajectory of the window, `[W]`.
            rows: Counted from the same start, all in the window, `[N]`.
        """
        found: NDArray[np.int64] = self.firsts[(rows >> self.shift) - self.origin].astype(np.int64)
        found += self.offset
        np.maximum(found, 0, out=found)  # the first bin may begin before the window does
        for _ in range(_MOST_STEPS):
            is_behind = ends[found] <= rows
            if not is_behind.any():
                return found
            found += is_behind
        return np.searchsorted(ends, rows, side="right")


class RowBins:
    """Bins over trajectories that lie one after another. What `view` gave stays true."""

    def __init__(self, ends: NDArray[np.int64], begin: int, room: int) -> None:
        """Sort the rows of trajectories into bins.

        Args:
            ends: Rows up to and with each, `[W]` with W of at least 1.
            begin: Where the first one begins, counted likewise.
            room: How many trajectories may follow at most.
        """
        mean = max(1, -(-(int(ends[-1]) - begin) // len(ends)))
        self._shift = (mean - 1).bit_length()
        self._origin = begin >> self._shift
        self._num = len(ends)
        self._filled = self._bin_of(int(ends[-1]) - 1) + 1
        self._firsts = np.empty(self._filled + 2 * room, np.int32)
        # the first bin that begins at or after the end of each
        after = ((ends - 1) >> self._shift) + (1 - self._origin)
        per_bin = np.bincount(after, minlength=self._filled)[: self._filled]
        np.cumsum(per_bin, out=self._firsts[: self._filled], dtype=np.int32)

    def _bin_of(self, row: int) -> int:
        return (row >> self._shift) - self._origin

    def append(self, end: int) -> bool:
        """Add a trajectory behind the others.

        Returns:
            False when there is no room: all must be sorted anew.
        """
        filled = self._bin_of(end - 1) + 1
        if filled > len(self._firsts):
            return False
        self._firsts[self._filled : filled] = self._num
        self._filled = max(filled, self._filled)
        self._num += 1
        return True

    def view(self, offset: int) -> BinsView:
        """Return the bins as a window sees them.

        Args:
            offset: Position in the window of what was the first trajectory at the beginning, 0 or
                below.
        """
        return BinsView(self._firsts, self._origin, self._shift, offset)
