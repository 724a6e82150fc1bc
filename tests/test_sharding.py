# SPDX-License-Identifier: Apache-2.0
"""`relive.sharding`: which trajectories of a list a rank loads."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relive.errors import InvalidArgumentError
from relive.sharding import check_rank, shard_bounds


class TestShardBounds:
    @given(num_trajectories=st.integers(0, 10**9), world_size=st.integers(1, 40))
    def test_shards_tile_the_list_and_the_earlier_ones_are_larger(
        self, num_trajectories: int, world_size: int
    ) -> None:
        bounds = [shard_bounds(num_trajectories, rank, world_size) for rank in range(world_size)]
        assert [start for start, _ in bounds] == [0, *(stop for _, stop in bounds[:-1])]
        assert bounds[-1][1] == num_trajectories
        sizes = [stop - start for start, stop in bounds]
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[0] - sizes[-1] <= 1

    def test_ten_over_four_ranks(self) -> None:
        assert [shard_bounds(10, rank, 4) for rank in range(4)] == [(0, 3), (3, 6), (6, 8), (8, 10)]

    def test_more_ranks_than_trajectories_leave_the_last_with_nothing(self) -> None:
        assert [shard_bounds(2, rank, 4) for rank in range(4)] == [(0, 1), (1, 2), (2, 2), (2, 2)]


class TestCheckRank:
    @pytest.mark.parametrize(
        ("local_rank", "world_size", "told"),
        [
            (0, 0, "world_size is 0"),
            (0, -2, "world_size is -2"),
            (0, "2", "world_size is '2'"),
            (0, 2.0, "world_size is 2.0"),
            (2, 2, r"local_rank is 2, but must be .* \[0, 2\)"),
            (-1, 2, "local_rank is -1"),
            (True, 2, "local_rank is True"),
            (None, 2, "local_rank is None"),
        ],
    )
    def test_a_rank_outside_the_world_is_refused(
        self, local_rank: Any, world_size: Any, told: str
    ) -> None:
        with pytest.raises(InvalidArgumentError, match=told):
            check_rank(local_rank, world_size)
