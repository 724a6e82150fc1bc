# SPDX-License-Identifier: Apache-2.0
"""`relive.samplers.Uniform`: each row of the window with the same probability."""

from __future__ import annotations

import math

import numpy as np
import pytest

from records import make_record
from relive.index import Index
from relive.samplers import Sampler, Uniform
from relive.testing import SamplerConformance
from relive.window import Window

SHAPES = [(1, 1), (40, 2), (3, 1), (7, 5), (2, 3)]
"""T and B of the trajectories drawn from."""


def window_of(order: list[int], size: int = 0) -> Window:
    """A window of these trajectories, whose row ids have holes."""
    records = [make_record(k, 1000 * k, *SHAPES[k]) for k in range(len(SHAPES))]
    return Index([records[k] for k in order]).window(size)


def is_plausible(counts: list[int], expected: list[float]) -> bool:
    """Whether a chi-square test at 5 sigma lets these counts pass."""
    statistic = sum((c - e) ** 2 / e for c, e in zip(counts, expected, strict=True))
    freedom = len(counts) - 1
    return statistic < freedom + 5 * math.sqrt(2 * freedom)


class TestUniform(SamplerConformance):
    def make_sampler(self) -> Sampler:
        return Uniform()

    @pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [3, 0, 4, 1, 2]])
    @pytest.mark.parametrize("size", [0, 3])
    def test_rows_come_equally_often(self, order: list[int], size: int) -> None:
        window = window_of(order, size)
        draw = Uniform().draw(window, 200_000, np.random.default_rng(1))
        ids, counts = np.unique(draw.row_ids, return_counts=True)
        assert sorted(ids.tolist()) == sorted(window.row_ids(np.arange(window.num_rows)).tolist())
        expected = [200_000 / window.num_rows] * window.num_rows
        assert is_plausible(counts.tolist(), expected)

    def test_a_trajectorys_chance_is_its_share_of_rows(self) -> None:
        window = window_of([0, 1, 2, 3, 4])
        draw = Uniform().draw(window, 200_000, np.random.default_rng(2))
        position = window.locate(draw.row_ids).position
        counts = np.bincount(position, minlength=5).tolist()
        expected = [200_000 * T * B / window.num_rows for T, B in SHAPES]
        assert is_plausible(counts, expected)

    def test_places_of_a_batch_are_independent(self) -> None:
        window = window_of([4])  # six rows: 36 pairs
        draw = Uniform().draw(window, 100_000, np.random.default_rng(3))
        rows = (draw.row_ids - draw.row_ids.min()).reshape(-1, 2)
        counts = np.bincount(rows[:, 0] * 6 + rows[:, 1], minlength=36).tolist()
        assert is_plausible(counts, [50_000 / 36] * 36)

    def test_every_row_has_the_same_probability_and_weight(self) -> None:
        window = window_of([1, 3])
        draw = Uniform().draw(window, 10, np.random.default_rng(4))
        assert draw.probabilities == 1 / 115
        assert draw.weights == 1.0

    def test_a_skewed_draw_would_be_noticed(self) -> None:
        assert not is_plausible([10_000, 10_500], [10_250, 10_250])
