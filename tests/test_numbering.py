# SPDX-License-Identifier: Apache-2.0
"""`relive.numbering`: which ids the next trajectory gets."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from records import make_record
from relive.errors import CorruptFileError, InvalidArgumentError
from relive.numbering import MAX_ROW_ID, Numbering


class TestNumbering:
    def test_ids_and_row_ids_go_on(self) -> None:
        numbering = Numbering().after(6).after(2)
        assert numbering == Numbering(2, 1, 8)

    def test_ranks_give_ids_and_row_ids_of_their_own(self) -> None:
        base = Numbering(10, 1, 500)
        given_ids, given_rows = [], []
        for rank in range(4):
            numbering = base.for_rank(rank, 4)
            for _ in range(5):
                given_ids.append(numbering.next_trajectory_id)
                given_rows.append((numbering.next_row_id, numbering.next_row_id + 64))
                numbering = numbering.after(64)
        assert sorted(given_ids) == list(range(10, 30))
        ordered = sorted(given_rows)
        assert ordered[0][0] == 500
        assert all(one[1] <= two[0] for one, two in pairwise(ordered))

    @given(
        start=st.integers(0, 50),
        rank=st.integers(0, 6),
        world_size=st.integers(1, 7),
        foreign=st.integers(0, 200),
    )
    def test_what_others_gave_is_passed_in_steps_of_ones_own(
        self, start: int, rank: int, world_size: int, foreign: int
    ) -> None:
        own = Numbering(start).for_rank(rank % world_size, world_size)
        moved = own.past(make_record(foreign, 1000))
        assert moved.next_trajectory_id > foreign
        assert moved.next_trajectory_id >= own.next_trajectory_id
        assert (moved.next_trajectory_id - own.next_trajectory_id) % world_size == 0
        assert moved.next_trajectory_id <= max(own.next_trajectory_id, foreign + world_size)
        assert moved.next_row_id == max(own.next_row_id, 1002)

    def test_it_never_moves_back(self) -> None:
        assert Numbering(9, 2, 90).not_before(Numbering(4, 1, 40)) == Numbering(9, 2, 90)
        assert Numbering(9, 2, 90).not_before(Numbering(10, 1, 95)) == Numbering(11, 2, 95)

    def test_the_end_of_all_numbers_is_told(self) -> None:
        with pytest.raises(InvalidArgumentError, match="must fit int64"):
            Numbering(next_row_id=MAX_ROW_ID - 3).after(4)
        with pytest.raises(InvalidArgumentError, match=r"row id .* of rank 7 leaves too few"):
            Numbering(next_row_id=MAX_ROW_ID - (1 << 41)).for_rank(7, 8)
        with pytest.raises(InvalidArgumentError, match=r"row id .* leaves too few below int64"):
            Numbering(stride=2).not_before(Numbering(next_row_id=MAX_ROW_ID - 5))
        with pytest.raises(InvalidArgumentError, match=r"trajectory id .* is too large"):
            Numbering().not_before(Numbering(1 << 62))
        with pytest.raises(InvalidArgumentError, match=r"trajectory id .* is too large"):
            Numbering((1 << 62) - 1).after(1)


class TestShares:
    @given(
        adds=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 1 << 30)), max_size=30),
        start=st.integers(0, 1 << 42),
        world_size=st.integers(2, 3),
    )
    def test_ranks_that_take_over_each_other_share_no_row_id(
        self, adds: list[tuple[int, int]], start: int, world_size: int
    ) -> None:
        """What a rank gave is its own, however much another one had given when it took over."""
        saved = Numbering(3, next_row_id=start)
        ranks = [saved.for_rank(rank, world_size) for rank in range(world_size)]
        given_ids = [(0, start)]
        for number, (rank, num_rows) in enumerate(adds):
            mine = rank % world_size
            if number % 3 == 2:
                ranks[mine] = ranks[mine].not_before(ranks[(mine + 1) % world_size])
            begin = ranks[mine].next_row_id
            given_ids.append((begin, begin + num_rows))
            ranks[mine] = ranks[mine].after(num_rows)
        given_ids.sort()
        assert all(stop <= begin for (_, stop), (begin, _) in pairwise(given_ids))

    @pytest.mark.parametrize("start", [(1 << 40) - 5, (3 << 40) - 1, 7 << 40])
    def test_a_block_that_is_almost_used_up_is_left(self, start: int) -> None:
        ranks = [Numbering(0, next_row_id=start).for_rank(rank, 2) for rank in range(2)]
        shares = [(rank.next_row_id, rank.after(1 << 39).next_row_id) for rank in ranks]
        assert all(begin >= start for begin, _ in shares)
        (_, stop), (begin, _) = sorted(shares)
        assert stop <= begin


class TestNumberingAsJson:
    def test_it_is_read_back_the_same(self) -> None:
        numbering = Numbering(7, 3, 1 << 50)
        assert Numbering.from_json(json.loads(json.dumps(numbering.to_json()))) == numbering

    @pytest.mark.parametrize(
        "changes",
        [
            {"stride": 0},
            {"stride": None},
            {"next_row_id": -1},
            {"next_row_id": 1 << 63},
            {"next_trajectory_id": 1.0},
            {"next_trajectory_id": True},
        ],
    )
    def test_anything_else_is_a_corrupt_file(self, changes: dict[str, Any]) -> None:
        with pytest.raises(CorruptFileError, match="a numbering is"):
            Numbering.from_json({**Numbering().to_json(), **changes})

    @pytest.mark.parametrize("entry", [None, 3, [], {}])
    def test_something_else_is_a_corrupt_file(self, entry: Any) -> None:
        with pytest.raises(CorruptFileError, match="a numbering is"):
            Numbering.from_json(entry)
