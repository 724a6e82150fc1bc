# SPDX-License-Identifier: Apache-2.0
"""`relive.Limits`: bounds that say clearly what they refuse."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from typing import Any

import numpy as np
import pytest

from relive import Limits
from relive.errors import InvalidArgumentError, LimitExceededError

NAMES = [field.name for field in fields(Limits)]


class TestLimits:
    def test_by_default_only_the_write_queue_is_bounded(self) -> None:
        limits = Limits()
        bounds = {name: getattr(limits, name) for name in NAMES}
        assert bounds == {**dict.fromkeys(NAMES), "max_pending_bytes": 1 << 30}
        assert not limits.exceeded(10**9, 10**12, 10**15)
        limits.check_one(10**12, 10**15)

    @pytest.mark.parametrize("name", NAMES)
    @pytest.mark.parametrize("bound", [0, -1, 1.0, True, "1"])
    def test_a_bound_that_is_no_count_is_refused(self, name: str, bound: Any) -> None:
        with pytest.raises(InvalidArgumentError, match=rf"{name} is {bound!r}, .* at least 1"):
            Limits(**{name: bound})

    @pytest.mark.parametrize("name", NAMES)
    def test_none_is_no_bound(self, name: str) -> None:
        limits = Limits(**{name: None})
        assert getattr(limits, name) is None
        assert not limits.exceeded(10**9, 10**12, 10**15)

    def test_numpys_integers_are_bounds_too(self) -> None:
        limits = Limits(max_samples=np.int64(3))
        assert limits.exceeded(1, 4, 1)
        assert type(limits.max_samples) is int

    def test_they_cannot_be_changed(self) -> None:
        limits = Limits()
        with pytest.raises(FrozenInstanceError):
            limits.max_bytes = 3  # type: ignore[misc]  # that it is refused is the point


class TestExceeded:
    @pytest.mark.parametrize(
        ("held", "expected"),
        [((3, 30, 300), False), ((4, 1, 1), True), ((1, 31, 1), True), ((1, 1, 301), True)],
    )
    def test_any_of_the_three_bounds_counts(
        self, held: tuple[int, int, int], expected: bool
    ) -> None:
        limits = Limits(max_trajectories=3, max_samples=30, max_bytes=300)
        assert limits.exceeded(*held) == expected


class TestCheckOne:
    def test_one_as_large_as_the_bound_is_taken(self) -> None:
        Limits(max_trajectories=1, max_samples=30, max_bytes=300).check_one(30, 300)

    @pytest.mark.parametrize(
        ("size", "told"),
        [((31, 1), "has 31 samples, but max_samples is 30"), ((1, 301), "has 301 bytes")],
    )
    def test_a_larger_one_is_refused(self, size: tuple[int, int], told: str) -> None:
        with pytest.raises(LimitExceededError, match=told):
            Limits(max_samples=30, max_bytes=300).check_one(*size)
