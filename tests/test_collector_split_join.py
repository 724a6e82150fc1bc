# SPDX-License-Identifier: Apache-2.0
"""`relive.collector`: trajectories cut along B, and those of several groups side by side.

Every value carries its address, `Key.address` of `parts`, so each row of a trajectory proves where
it came from.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from parts import BOTH, GROUPS, Key, add_all, ids_of, state_of, steps_of
from relive.collector import TrajectoryCollector
from relive.errors import PartMismatchError
from relive.trajectory import Trajectory


class TestSplit:
    def split(self, sizes: Any, num_envs: int, **columns: Any) -> list[Trajectory]:
        collector = TrajectoryCollector(2, split=sizes)
        parts = [Key(step=t).env_part(num_envs, **columns) for t in (0, 1)]
        return add_all(collector, parts)

    @pytest.mark.parametrize(
        ("sizes", "expected"),
        [
            (1, [5]),
            (2, [3, 2]),
            (5, [1, 1, 1, 1, 1]),
            ([5], [5]),
            ((1, 3, 1), [1, 3, 1]),
            ([4, 1], [4, 1]),
        ],
    )
    def test_pieces_hold_all_envs_in_order(self, sizes: Any, expected: list[int]) -> None:
        pieces = self.split(sizes, 5)
        assert [ids_of(piece).shape for piece in pieces] == [(2, size) for size in expected]
        whole = np.stack([Key(step=t).address(5) for t in (0, 1)])
        np.testing.assert_array_equal(np.concatenate([*map(ids_of, pieces)], axis=1), whole)
        assert [piece.dones.shape for piece in pieces] == [(3, size) for size in expected]

    def test_texts_are_cut_too(self) -> None:
        pieces = self.split((1, 2), 3, extras={"task": ["a", "b", "c"]})
        assert [piece.extras["task"] for piece in pieces] == [[["a"]] * 2, [["b", "c"]] * 2]

    def test_pieces_share_no_memory_and_are_contiguous(self) -> None:
        first, second = self.split(2, 4)
        first.rewards[:] = -1
        assert second.rewards.min() > 0
        assert second.rewards.flags.c_contiguous
        assert second.curr_obs["arm"]["joints"].flags.c_contiguous

    @pytest.mark.parametrize("sizes", [6, (2, 2), (3, 3)])
    def test_sizes_that_do_not_fit_are_refused(self, sizes: Any) -> None:
        with pytest.raises(PartMismatchError, match=r"'left'.* step 0 makes 5 envs") as error:
            self.split(sizes, 5)
        assert (error.value.group, error.value.step) == ("left", 0)


class TestJoin:
    def test_groups_stand_side_by_side_in_the_order_asked(self) -> None:
        collector = TrajectoryCollector(2, join=("right", "left"), columns=BOTH)
        assert add_all(collector, steps_of(Key("left"), 2, num_envs=2)) == []
        assert collector.get_stats()["num_waiting_to_join"] == 1
        [trajectory] = add_all(collector, steps_of(Key("right"), 2, num_envs=3))
        expected = [
            [*Key("right", step=t).address(3), *Key("left", step=t).address(2)] for t in (0, 1)
        ]
        np.testing.assert_array_equal(ids_of(trajectory), expected)
        assert trajectory.dones.shape == (3, 5)
        assert trajectory.model_weights_id == "w"
        assert collector.get_stats()["num_waiting_to_join"] == 0
        assert collector.get_stats()["num_trajectories"] == 1

    def test_the_first_goes_with_the_first_and_others_go_alone(self) -> None:
        collector = TrajectoryCollector(1, join=("left", "right"))
        parts = [Key(group, 0, k).env_part(1) for group in GROUPS for k in (0, 1)]
        trajectories = [ids_of(trajectory).tolist() for trajectory in add_all(collector, parts)]
        ids = {(group, k): Key(group, 0, k).address(1)[0] for group in GROUPS for k in (0, 1)}
        assert trajectories == [
            [[ids["left", 0], ids["right", 0]]],
            [[ids["left", 1], ids["right", 1]]],
            [[ids["top", 0]]],
            [[ids["top", 1]]],
        ]

    def test_texts_and_tensors_are_joined(self) -> None:
        collector = TrajectoryCollector(1, join=("left", "right"))
        collector.add(Key("left").part({"rewards": np.zeros(1), "extras": {"task": ["a"]}}))
        columns = {"rewards": torch.ones(2).double(), "extras": {"task": ["b", "c"]}}
        [trajectory] = collector.add(Key("right").part(columns))
        assert trajectory.extras["task"] == [["a", "b", "c"]]
        assert trajectory.rewards.tolist() == [[0, 1, 1]]

    def test_what_was_joined_can_be_split(self) -> None:
        collector = TrajectoryCollector(1, join=("left", "right"), split=(1, 4))
        collector.add(Key("left").env_part(2))
        pieces = collector.add(Key("right").env_part(3))
        assert [ids_of(piece).shape for piece in pieces] == [(1, 1), (1, 4)]

    def test_their_sum_must_fit_the_split(self) -> None:
        collector = TrajectoryCollector(1, join=("left", "right"), split=(1, 3))
        collector.add(Key("left").env_part(2))
        with pytest.raises(PartMismatchError, match=r"'right'.* makes 5 envs.* \(1, 3\)"):
            collector.add(Key("right").env_part(3))
        [*pieces] = collector.add(Key("right").env_part(2))
        assert len(pieces) == 2

    def test_groups_with_other_columns_are_refused(self) -> None:
        collector = TrajectoryCollector(1, join=("left", "right"))
        collector.add(Key("left").env_part())
        before = state_of(collector)
        with pytest.raises(PartMismatchError, match=r"'right'.* float64 .* int64 .* came before"):
            collector.add(Key("right").env_part(curr_obs={"id": np.zeros(2)}))
        with pytest.raises(PartMismatchError, match=r"'right'.* without .*'curr_obs/arm/joints'"):
            collector.add(Key("right").env_part(curr_obs={"id": np.zeros(2, np.int64)}))
        assert state_of(collector) == before

    def test_what_is_closed_early_leaves_alone(self, caplog: pytest.LogCaptureFixture) -> None:
        collector = TrajectoryCollector(2, join=("left", "right"), split=2)
        parts = [Key("left", step=t).env_part() for t in (0, 1)]
        parts += [Key("right").env_part()]
        assert add_all(collector, parts) == []
        whole, part = collector.flush()
        assert ids_of(whole).shape == (2, 2)
        assert not whole.truncations.any()
        assert ids_of(part).shape == (1, 2)
        assert part.truncations.tolist() == [[False] * 2, [True] * 2]
        assert collector.get_stats()["num_trajectories"] == 2
