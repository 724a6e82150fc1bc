# SPDX-License-Identifier: Apache-2.0
"""The tests that every sampler passes.

A sampler's own test file inherits them::

    class TestMySampler(SamplerConformance):
        def make_sampler(self) -> Sampler:
            return MySampler()
"""

from __future__ import annotations

import json
import random
import sys
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from relive.index import Index
from relive.record import Record
from relive.samplers import Draw, Sampler
from relive.testing.comparing import addressed, record_of
from relive.window import Window

__all__ = ["SamplerConformance"]


@dataclass
class _Rows:
    """An index, and the sampler that hears of its changes."""

    sampler: Sampler
    index: Index = field(default_factory=Index)

    def add(self, records: Iterable[Record]) -> _Rows:
        for record in records:
            self.index.add(record)
            self.sampler.on_add(record)
        return self

    def remove(self, trajectory_ids: Iterable[int]) -> None:
        for record in self.index.remove(trajectory_ids):
            self.sampler.on_remove(record)

    def draw(self, num: int, seed: int = 0, size: int = 0) -> tuple[Draw, Window]:
        window = self.index.window(size)
        return self.sampler.draw(window, num, np.random.default_rng(seed)), window


def _records(num: int, spacing: int = 0) -> list[Record]:
    """Trajectories of three lengths, each with B = 2, with unused row ids between them."""
    models = [record_of(addressed(0, num_steps, 2, 1)) for num_steps in (1, 5, 8)]
    records, next_row_id = [], 0
    for k in range(num):
        records.append(replace(models[k % 3], trajectory_id=k, first_row_id=next_row_id))
        next_row_id += models[k % 3].num_rows + spacing
    return records


def _row_ids(window: Window) -> set[int]:
    return set(window.row_ids(np.arange(window.num_rows)).tolist())


def _check(draw: Draw, num: int, window: Window) -> None:
    assert draw.row_ids.dtype == np.int64
    probabilities, weights = np.asarray(draw.probabilities), np.asarray(draw.weights)
    assert len(draw.row_ids) == num
    assert probabilities.shape in ((), (num,))
    assert weights.shape in ((), (num,))
    assert set(draw.row_ids.reshape(-1).tolist()) <= _row_ids(window)
    assert ((probabilities > 0) & (probabilities <= 1)).all()
    assert (np.isfinite(weights) & (weights >= 0)).all()


def _global_states() -> list[Any]:
    torch = sys.modules.get("torch")
    return [
        repr(np.random.get_state()),
        random.getstate(),
        [] if torch is None else torch.get_rng_state().tolist(),
    ]


class SamplerConformance:
    """Inherit and implement `make_sampler`; pytest finds the tests."""

    @abstractmethod
    def make_sampler(self) -> Sampler:
        """Return a new sampler."""

    @pytest.fixture
    def rows(self) -> _Rows:
        """A sampler of the test's own that was told of nine trajectories."""
        return _Rows(self.make_sampler()).add(_records(9))

    @pytest.mark.parametrize("num", [1, 7, 500])
    def test_exactly_so_many_rows_of_the_window_come(self, rows: _Rows, num: int) -> None:
        draw, window = rows.draw(num)
        _check(draw, num, window)

    @pytest.mark.parametrize("size", [1, 2, 5, 9, 30])
    def test_older_rows_than_the_windows_never_come(self, rows: _Rows, size: int) -> None:
        for seed in range(5):
            draw, window = rows.draw(100, seed, size)
            _check(draw, 100, window)

    def test_a_window_of_one_row_gives_that_row(self) -> None:
        snapshot = addressed(0, 1, 1, 1)
        record = record_of(snapshot, trajectory_id=70, first_row_id=1 << 50)
        rows = _Rows(self.make_sampler()).add([record])
        draw, window = rows.draw(20)
        _check(draw, 20, window)
        assert set(draw.row_ids.reshape(-1).tolist()) == {1 << 50}

    def test_a_large_window_is_drawn_from_its_ends_too(self) -> None:
        rows = _Rows(self.make_sampler()).add(_records(3000))
        draw, window = rows.draw(5000)
        _check(draw, 5000, window)
        assert draw.row_ids.min() < 0.02 * window.num_rows
        assert draw.row_ids.max() > 0.98 * window.num_rows

    def test_evicted_rows_never_come(self, rows: _Rows) -> None:
        rows.remove([0, 1])
        rows.draw(50)
        rows.remove([4, 8, 5])
        rows.add([replace(record_of(addressed(0, 5, 2, 1)), trajectory_id=99, first_row_id=900)])
        for seed in range(5):
            draw, window = rows.draw(200, seed)
            _check(draw, 200, window)
            assert window.trajectory_ids.tolist() == [2, 3, 6, 7, 99]

    def test_row_ids_may_have_holes_and_any_order(self) -> None:
        records = _records(9, spacing=1 << 40)
        rows = _Rows(self.make_sampler()).add([records[k] for k in (4, 0, 8, 3, 1, 7, 2, 6, 5)])
        for size in (0, 3):
            draw, window = rows.draw(300, size=size)
            _check(draw, 300, window)

    def test_one_seed_gives_the_same_draws_and_another_gives_others(self) -> None:
        def drawn(seed: int) -> list[Any]:
            rows = _Rows(self.make_sampler()).add(_records(9))
            rng = np.random.default_rng(seed)
            return [
                rows.sampler.draw(rows.index.window(5), num, rng).row_ids.tolist()
                for num in (8, 1, 30)
            ]

        assert drawn(3) == drawn(3)
        assert drawn(3) != drawn(4)

    def test_a_saved_state_goes_on_exactly(self, rows: _Rows) -> None:
        rng = np.random.default_rng(5)
        window = rows.index.window(0)
        rows.sampler.draw(window, 11, rng)
        state = json.loads(json.dumps(dict(rows.sampler.state_dict())))
        generator_state = rng.bit_generator.state
        expected = [rows.sampler.draw(window, num, rng) for num in (9, 40)]

        resumed = _Rows(self.make_sampler()).add(_records(9))
        resumed.sampler.load_state_dict(state)
        rng.bit_generator.state = generator_state
        for draw in expected:
            again = resumed.sampler.draw(resumed.index.window(0), len(draw.row_ids), rng)
            assert again.row_ids.tolist() == draw.row_ids.tolist()
            assert np.array_equal(again.probabilities, draw.probabilities)
            assert np.array_equal(again.weights, draw.weights)

    def test_its_generator_is_the_only_one_it_touches(self, rows: _Rows) -> None:
        before = _global_states()
        rows.draw(100)
        assert _global_states() == before

    def test_the_window_stays_as_it_is(self, rows: _Rows) -> None:
        window = rows.index.window(0)
        arrays = (window.trajectory_ids, window.first_row_ids, window.ends, window.counts)
        before = [array.tolist() for array in arrays]
        rows.draw(100)
        assert [array.tolist() for array in arrays] == before

    def test_it_has_a_name_and_names_what_it_needs(self, rows: _Rows) -> None:
        assert isinstance(rows.sampler.name, str)
        assert rows.sampler.name == self.make_sampler().name != ""
        assert all(isinstance(name, str) for name in rows.sampler.needs)
