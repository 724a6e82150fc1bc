# SPDX-License-Identifier: Apache-2.0
"""`relive.TrajectoryCache`: first in, first out, bounded by count and by bytes."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relive import TrajectoryCache
from relive.errors import InvalidArgumentError, UnsupportedValueError


def rows(number: int, size: int = 8) -> dict[str, Any]:
    """Columns of so many bytes whose values say whose they are."""
    return {
        "rewards": np.full(size // 2, number % 251, np.uint8),
        "acts": np.zeros((size + 1) // 2, "u1"),
    }


def held(cache: TrajectoryCache) -> list[int]:
    return [number for number in range(40) if number in cache]


class TestAgainstAList:
    @given(
        max_size=st.integers(0, 4),
        max_bytes=st.none() | st.integers(1, 30),
        operations=st.lists(
            st.tuples(st.sampled_from(["put", "discard"]), st.integers(0, 6), st.integers(1, 20)),
            max_size=30,
        ),
    )
    def test_the_newest_that_fit_are_held(
        self, max_size: int, max_bytes: int | None, operations: list[tuple[str, int, int]]
    ) -> None:
        cache = TrajectoryCache(max_size, max_bytes=max_bytes)
        model: dict[int, int] = {}
        for verb, number, size in operations:
            if verb == "discard":
                cache.discard(number)
                model.pop(number, None)
                continue
            cache.put(number, rows(number, size))
            model[number] = size
            if not max_size or (max_bytes is not None and size > max_bytes):
                del model[number]
            while len(model) > max_size or (max_bytes and sum(model.values()) > max_bytes):
                del model[next(iter(model))]
            assert held(cache) == sorted(model)
            assert (len(cache), cache.size_bytes) == (len(model), sum(model.values()))
        for number in model:
            columns = cache.get(number)
            assert columns is not None
            assert (columns["rewards"] == number).all()


class TestTrajectoryCache:
    def test_what_is_not_held_is_none(self) -> None:
        cache = TrajectoryCache(2)
        for number in range(3):
            cache.put(number, rows(number))
        assert cache.get(0) is None
        assert (0 in cache, 1 in cache) == (False, True)

    def test_reading_does_not_make_one_newer(self) -> None:
        cache = TrajectoryCache(2)
        cache.put(0, rows(0))
        cache.put(1, rows(1))
        cache.get(0)
        cache.put(2, rows(2))
        assert held(cache) == [1, 2]

    def test_one_put_again_keeps_its_place(self) -> None:
        cache = TrajectoryCache(2)
        cache.put(0, rows(0))
        cache.put(1, rows(1))
        cache.put(0, rows(0, 20))
        assert cache.size_bytes == 28
        cache.put(2, rows(2))
        assert held(cache) == [1, 2]

    def test_one_that_has_grown_too_large_goes(self) -> None:
        cache = TrajectoryCache(2, max_bytes=10)
        cache.put(0, rows(0))
        cache.put(0, rows(0, 20))
        assert (len(cache), cache.size_bytes) == (0, 0)

    def test_clearing_lets_all_go(self) -> None:
        cache = TrajectoryCache(2)
        cache.put(0, rows(0))
        cache.clear()
        assert (len(cache), cache.size_bytes, cache.get(0)) == (0, 0, None)

    def test_threads_may_fill_it_together(self) -> None:
        cache = TrajectoryCache(8, max_bytes=100)

        def fill(first: int) -> None:
            for number in range(first, first + 500):
                cache.put(number, rows(number, 16))
                cache.discard(number - 3)

        threads = [threading.Thread(target=fill, args=(1000 * k,)) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(cache) <= 6
        assert cache.size_bytes == 16 * len(cache)

    def test_numpys_integers_are_bounds_too(self) -> None:
        assert TrajectoryCache(np.int64(3)).max_size == 3

    @pytest.mark.parametrize("columns", [None, 3, [np.zeros(3)], {"a": None}, {"a": [1.0]}])
    def test_what_is_no_columns_is_refused_and_nothing_changes(self, columns: Any) -> None:
        cache = TrajectoryCache(2)
        cache.put(1, rows(1))
        with pytest.raises(UnsupportedValueError, match="columns of trajectory 1 "):
            cache.put(1, columns)
        assert (held(cache), cache.size_bytes) == ([1], 8)

    @pytest.mark.parametrize(
        ("bounds", "told"),
        [
            ({"max_size": -1}, "max_size is -1"),
            ({"max_size": None}, "max_size is None"),
            ({"max_size": 1.5}, r"max_size is 1\.5"),
            ({"max_size": True}, "max_size is True"),
            ({"max_bytes": 0}, "max_bytes is 0"),
            ({"max_bytes": "1"}, "max_bytes is '1'"),
        ],
    )
    def test_a_bound_that_is_none_is_refused(self, bounds: dict[str, Any], told: str) -> None:
        with pytest.raises(InvalidArgumentError, match=told):
            TrajectoryCache(**bounds)
