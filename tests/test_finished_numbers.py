# SPDX-License-Identifier: Apache-2.0
"""`relive.collection.groups.FinishedNumbers`: every number that left, in bounded space."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parts import Key, add_all
from relive.collection.groups import FinishedNumbers
from relive.collector import TrajectoryCollector


class TestFinishedNumbers:
    @given(order=st.permutations(range(20)), max_ahead=st.integers(20, 30))
    def test_all_and_only_the_added_are_in(self, order: list[int], max_ahead: int) -> None:
        finished = FinishedNumbers(max_ahead)
        for index, number in enumerate(order):
            assert finished.add(number, ()) == 0
            added = set(order[: index + 1])
            assert {number for number in range(25) if number in finished} == added
        assert finished.below == 20

    @given(order=st.permutations(range(20)), max_ahead=st.integers(1, 5))
    def test_a_number_that_never_came_is_given_up_and_space_is_bounded(
        self, order: list[int], max_ahead: int
    ) -> None:
        finished = FinishedNumbers(max_ahead)
        given_up = 0
        for index, number in enumerate(order):
            was_in = number in finished
            given_up += finished.add(number, ()) - was_in
            assert set(order[: index + 1]) <= {at for at in range(25) if at in finished}
            assert len(finished._ahead) <= max_ahead
        assert finished.below == 20 + given_up

    def test_open_numbers_do_not_hold_it_back(self) -> None:
        finished = FinishedNumbers(1)
        assert [finished.add(number, {0, 3}) for number in (1, 2, 4, 5)] == [0, 0, 0, 0]
        assert finished.below == 6

    def test_the_collector_says_what_it_gives_up(self, caplog: pytest.LogCaptureFixture) -> None:
        collector = TrajectoryCollector(1, max_open=2)
        parts = [Key(trajectory=k).env_part() for k in (57, 58, 59)]
        assert len(add_all(collector, parts)) == 3
        assert collector.get_stats()["num_given_up"] == 57
        assert "57 trajectories of group 'left' below 60 never came" in caplog.text
        assert collector.add(Key(trajectory=3).env_part()) == []
        assert collector.get_stats()["num_late_parts"] == 1
