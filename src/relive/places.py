# SPDX-License-Identifier: Apache-2.0
"""Where rows lie in segments, as one integer each."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

__all__ = ["PLACE_BITS", "by_segment", "segments_of"]

PLACE_BITS = 40
"""A place is a segment's number shifted left by so many bits, plus a row in the segment."""


def segments_of(places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the numbers of the segments that places are in, below 0 where a place is."""
    return places >> PLACE_BITS


def by_segment(places: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield each segment's number, and where its places are among these, in the segment's order.

    Args:
        places: In any order, `[N]`; each must be in a segment.
    """
    order = np.argsort(places, kind="stable")
    segments = segments_of(places[order])
    starts = np.flatnonzero(np.diff(segments, prepend=-1)).tolist()
    for start, stop in zip(starts, [*starts[1:], len(order)], strict=False):  # no place: no start
        yield int(segments[start]), order[start:stop]
