# SPDX-License-Identifier: Apache-2.0
"""`relive.row_bins`: bins find what bisection finds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relive.row_bins import RowBins

LENGTHS = st.lists(st.integers(1, 9) | st.sampled_from([1, 500, 4000]), min_size=1, max_size=60)


class TestSearch:
    @settings(max_examples=80, deadline=None)
    @given(first=LENGTHS, later=LENGTHS, begin=st.integers(0, 1 << 40), left_out=st.integers(0, 99))
    def test_it_is_that_of_searchsorted(
        self, first: list[int], later: list[int], begin: int, left_out: int
    ) -> None:
        ends = begin + np.cumsum(first + later)
        bins = RowBins(ends[: len(first)], begin, len(later))
        is_full = not all(bins.append(int(end)) for end in ends[len(first) :])
        held = ends[: len(first)] if is_full else ends
        start = left_out % len(held)
        window, low = held[start:], begin if start == 0 else int(held[start - 1])
        rows = np.unique(np.concatenate([window - 1, np.arange(low, int(window[-1]), 7), [low]]))
        found = bins.view(-start).search(window, rows)
        assert found.tolist() == np.searchsorted(window, rows, side="right").tolist()

    def test_a_crowded_bin_is_searched_all_the_same(self) -> None:
        ends = np.cumsum([1] * 1000 + [1 << 20])
        rows = np.arange(1200)
        found = RowBins(ends, 0, 0).view(0).search(ends, rows)
        assert found.tolist() == np.minimum(rows, 1000).tolist()

    @pytest.mark.parametrize("room", [0, 3])
    def test_a_trajectory_that_is_too_long_is_refused(self, room: int) -> None:
        bins = RowBins(np.arange(1, 11), 0, room)
        assert not bins.append(1 << 40)
