# SPDX-License-Identifier: Apache-2.0
"""`relive.collector`: exactly the trajectories that were published, whatever the order of parts.

Every value carries its address: `id[b]` of a part is that of its key plus b, `address` below, so
each row of a trajectory proves where it came from.
"""

from __future__ import annotations

import contextlib
import logging
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from relive.channel import Channel
from relive.collection.blocks import weights_id
from relive.collection.groups import FinishedNumbers
from relive.collector import TrajectoryCollector
from relive.columns import flatten
from relive.errors import (
    ClosedError,
    InvalidArgumentError,
    LimitExceededError,
    PartMismatchError,
    ReplayError,
    TimeLimitError,
    UnsupportedValueError,
)
from relive.part import TrajectoryPart
from relive.trajectory import Trajectory

GROUPS = ("left", "right", "top")


@dataclass(frozen=True)
class Key:
    """What a part belongs to."""

    group: str = "left"
    incarnation: int = 0
    trajectory: int = 0
    epoch: int = 0
    step: int = 0

    def address(self, num_envs: int) -> NDArray[np.int64]:
        """A number of its own for each env of this key, int64 [B]."""
        base = GROUPS.index(self.group) if self.group in GROUPS else 9
        for number in (self.incarnation, self.trajectory, self.epoch, self.step + 1):
            base = 100 * base + number
        return np.arange(num_envs) + 100 * base

    def part(self, columns: Mapping[str, Any], model_weights_id: str = "") -> TrajectoryPart:
        return TrajectoryPart(
            group=self.group,
            incarnation=self.incarnation,
            trajectory=self.trajectory,
            epoch=self.epoch,
            step=self.step,
            columns=columns,
            model_weights_id=model_weights_id,
        )

    def env_part(self, num_envs: int = 2, **changes: Any) -> TrajectoryPart:
        """What an environment publishes: never done, unless told otherwise."""
        ids = self.address(num_envs)
        columns = {
            "rewards": ids.astype(np.float64),
            "dones": np.zeros(num_envs, np.bool_),
            "terminations": np.zeros(num_envs, np.bool_),
            "truncations": np.zeros(num_envs, np.bool_),
            "curr_obs": {"id": ids, "arm": {"joints": np.stack([ids, -ids], axis=1)}},
        }
        return self.part({**columns, **changes})

    def policy_part(self, num_envs: int = 2, **changes: Any) -> TrajectoryPart:
        """What a policy publishes."""
        ids = self.address(num_envs)
        columns = {"actions": np.stack([ids, ids + 0.5], axis=1), "prev_values": ids / 4}
        return self.part({**columns, **changes}, model_weights_id="w")

    def first_flags(self, num_envs: int = 2, dones: Any = None) -> TrajectoryPart:
        """The state before the first step; done in env 0 by default."""
        flags = np.arange(num_envs) == 0 if dones is None else dones
        return replace(self, step=-1).part({"dones": flags})

    def bootstrap(self, step: int, num_envs: int = 2) -> TrajectoryPart:
        at = replace(self, step=step)
        return at.part({"prev_values": at.address(num_envs) / 4})


BOTH = ("rewards", "actions")


def add_all(collector: TrajectoryCollector, parts: list[TrajectoryPart]) -> list[Trajectory]:
    return [trajectory for part in parts for trajectory in collector.add(part)]


def steps_of(key: Key, steps: int, epochs: int = 1, num_envs: int = 2) -> list[TrajectoryPart]:
    """Both publishers' parts of whole epochs, in order of time."""
    keys = [replace(key, epoch=e, step=t) for e in range(epochs) for t in range(steps)]
    return [part for at in keys for part in (at.env_part(num_envs), at.policy_part(num_envs))]


def ids_of(trajectory: Trajectory) -> Any:
    return np.asarray(trajectory.curr_obs["id"])


def state_of(collector: TrajectoryCollector) -> dict[str, float]:
    """All that a refused part must leave as it was."""
    stats = collector.get_stats()
    del stats["num_refused_parts"]
    return stats


class Clock:
    """The collector's time, which only tests move."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("relive.collector.monotonic", clock)
    return clock


class TestJoiningParts:
    def test_one_part_a_step_is_enough_by_default(self) -> None:
        collector = TrajectoryCollector(2)
        assert collector.add(Key(step=0).env_part()) == []
        [trajectory] = collector.add(Key(step=1).env_part())
        expected = np.stack([Key(step=t).address(2) for t in (0, 1)])
        np.testing.assert_array_equal(ids_of(trajectory), expected)
        np.testing.assert_array_equal(trajectory.rewards, expected.astype(np.float64))
        np.testing.assert_array_equal(trajectory.curr_obs["arm"]["joints"][..., 1], -expected)
        assert trajectory.actions is None
        assert trajectory.next_obs == {}

    def test_a_step_waits_for_every_named_column(self) -> None:
        collector = TrajectoryCollector(1, columns=BOTH)
        assert collector.add(Key().policy_part()) == []
        [trajectory] = collector.add(Key().env_part())
        assert trajectory.actions.shape == (1, 2, 2)
        assert trajectory.prev_values.shape == (1, 2)
        np.testing.assert_array_equal(ids_of(trajectory), [Key().address(2)])

    @pytest.mark.parametrize(
        ("columns", "is_enough"),
        [
            (["curr_obs"], True),
            (["curr_obs/arm"], True),
            (["curr_obs/arm/joints"], True),
            (["curr_obs/arm/q"], False),
            (["next_obs"], False),
            (["curr_obs", "actions"], False),
        ],
    )
    def test_a_nested_dict_is_there_with_any_column_inside(
        self, columns: list[str], is_enough: bool
    ) -> None:
        collector = TrajectoryCollector(1, columns=columns)
        assert len(collector.add(Key().env_part())) == is_enough

    def test_columns_of_one_dict_may_come_from_two_publishers(self) -> None:
        collector = TrajectoryCollector(1, columns=("curr_obs/cam", "curr_obs/arm"))
        collector.add(Key().part({"curr_obs": {"cam": np.zeros((2, 3), np.uint8)}}))
        [trajectory] = collector.add(Key().part({"curr_obs": {"arm": {"q": np.ones(2)}}}))
        assert list(flatten(trajectory.curr_obs)) == ["arm/q", "cam"]

    def test_types_and_nesting_stay(self) -> None:
        columns = {
            "actions": np.zeros((2, 3), np.float16),
            "rewards": torch.zeros(2, 4, dtype=torch.bfloat16),
            "curr_obs": {"cam": {"wrist": {"rgb": np.zeros((2, 4, 4, 3), np.uint8)}}},
            "forward_inputs": {"tokens": torch.arange(6, dtype=torch.int32).reshape(2, 3)},
            "extras": {"task": ["pick", "place"]},
        }
        [trajectory] = TrajectoryCollector(1).add(Key().part(columns))
        assert trajectory.actions.dtype == np.float16
        assert isinstance(trajectory.rewards, torch.Tensor)
        assert trajectory.rewards.dtype == torch.bfloat16
        assert trajectory.rewards.shape == (1, 2, 4)
        assert trajectory.curr_obs["cam"]["wrist"]["rgb"].shape == (1, 2, 4, 4, 3)
        assert trajectory.forward_inputs["tokens"].tolist() == [[[0, 1, 2], [3, 4, 5]]]
        assert trajectory.extras == {"task": [["pick", "place"]]}

    def test_a_column_is_a_tensor_when_any_part_brought_one(self) -> None:
        collector = TrajectoryCollector(2)
        collector.add(Key(step=0).part({"rewards": np.zeros(2)}))
        [trajectory] = collector.add(Key(step=1).part({"rewards": torch.ones(2).double()}))
        assert trajectory.rewards.tolist() == [[0, 0], [1, 1]]
        assert isinstance(trajectory.rewards, torch.Tensor)

    def test_inputs_are_copied_and_outputs_are_the_callers(self) -> None:
        collector = TrajectoryCollector(2, columns=("rewards", "actions"))
        rewards, actions = np.ones(2), torch.ones(2, 3, requires_grad=True)
        frozen = np.arange(2)
        frozen.flags.writeable = False
        for step in (0, 1):
            with torch.no_grad():
                rewards[:], actions[:] = step, step
            columns = {"rewards": rewards, "actions": actions[:, ::2], "versions": frozen}
            leaving = collector.add(Key(step=step).part(columns))
        rewards[:] = 9
        [trajectory] = leaving
        assert trajectory.rewards.tolist() == [[0, 0], [1, 1]]
        assert trajectory.actions.tolist() == [[[0, 0]] * 2, [[1, 1]] * 2]
        assert not trajectory.actions.requires_grad
        trajectory.rewards += 1
        trajectory.actions += 1
        trajectory.versions += 1

    def test_max_episode_length_is_stamped(self) -> None:
        [trajectory] = TrajectoryCollector(1, max_episode_length=7).add(Key().env_part())
        assert trajectory.max_episode_length == 7

    def test_several_trajectories_of_several_groups_may_be_open(self) -> None:
        collector = TrajectoryCollector(2, columns=BOTH)
        keys = [Key(group, 0, number) for group in GROUPS for number in (0, 1)]
        parts = [
            part for pair in zip(*(steps_of(key, 2) for key in keys), strict=True) for part in pair
        ]
        trajectories = add_all(collector, parts)
        assert [ids_of(trajectory)[0, 0] for trajectory in trajectories] == [
            key.address(1)[0] for key in keys
        ]
        assert collector.get_stats()["num_open"] == 0


class TestRows:
    def test_flags_have_a_first_row_for_each_epoch(self) -> None:
        collector = TrajectoryCollector(2, num_epochs=2)
        parts = []
        for epoch in (0, 1):
            parts += [Key(epoch=epoch, step=0).env_part()]
            parts += [Key(epoch=epoch, step=1).env_part(dones=np.ones(2, np.bool_))]
        [trajectory] = add_all(collector, parts)
        assert trajectory.dones[:, 0].tolist() == [False, False, True] * 2
        assert trajectory.truncations.shape == trajectory.terminations.shape == (6, 2)
        assert trajectory.rewards.shape == (4, 2)

    def test_first_flags_are_those_that_were_published(self) -> None:
        collector = TrajectoryCollector(1, num_epochs=2)
        parts = [Key(epoch=1).first_flags(), *steps_of(Key(), 1, epochs=2)[::2]]
        [trajectory] = add_all(collector, parts)
        assert trajectory.dones.tolist() == [[False] * 2, [False] * 2, [True, False], [False] * 2]
        assert not trajectory.terminations.any()

    def test_awaited_first_flags_are_waited_for(self) -> None:
        collector = TrajectoryCollector(1, num_epochs=2, initial_flags=True)
        parts = steps_of(Key(), 1, epochs=2)[::2]
        assert add_all(collector, [*parts, Key(epoch=1).first_flags()]) == []
        [trajectory] = collector.add(Key(epoch=0).first_flags())
        assert trajectory.dones.tolist() == [[True, False], [False] * 2] * 2

    def test_flags_with_trailing_axes_keep_them(self) -> None:
        collector = TrajectoryCollector(2)
        flags = np.zeros((2, 3), np.bool_)
        parts = [Key(step=t).part({"dones": flags}) for t in (0, 1)]
        [trajectory] = add_all(collector, parts)
        assert trajectory.dones.shape == (3, 2, 3)

    def test_bootstrap_values_are_the_last_row_of_each_epoch(self) -> None:
        collector = TrajectoryCollector(2, num_epochs=2, columns=BOTH, bootstrap_values=True)
        parts = [*steps_of(Key(), 2, epochs=2), Key(epoch=1).bootstrap(2)]
        assert add_all(collector, parts) == []
        [trajectory] = collector.add(Key(epoch=0).bootstrap(2))
        expected = [Key(epoch=e, step=t).address(2) / 4 for e in (0, 1) for t in (0, 1, 2)]
        np.testing.assert_array_equal(trajectory.prev_values, np.stack(expected))
        assert trajectory.rewards.shape == (4, 2)

    def test_values_have_a_row_a_step_without_them(self) -> None:
        [trajectory] = add_all(TrajectoryCollector(2, columns=BOTH), steps_of(Key(), 2))
        assert trajectory.prev_values.shape == (2, 2)


class TestStamps:
    def test_the_weights_that_all_parts_name(self) -> None:
        [trajectory] = add_all(TrajectoryCollector(2, columns=BOTH), steps_of(Key(), 2))
        assert trajectory.model_weights_id == "w"

    def test_nothing_is_known_of_them_without_a_policy(self) -> None:
        [trajectory] = TrajectoryCollector(1).add(Key().env_part())
        assert trajectory.model_weights_id == ""

    @pytest.mark.parametrize("as_tensor", [False, True])
    def test_versions_name_them_as_rlinf_does(self, as_tensor: bool) -> None:
        # The names of shared fixtures that RLinf 0.3.0 wrote: versions k, [4, 2, 1] and [6, 2, 1].
        names = {
            (0, 4): "87a64d8e-0f54-5c7c-a19d-0b3753cad97c",
            (1, 6): "87549d8d-b007-5b17-b1d3-5e3037e144cf",
            (2, 4): "3db5df6d-a5c9-59e4-913c-8aa0093702c2",
        }
        for (version, num_steps), name in names.items():
            versions: Any = np.full((2, 1), version, np.float32)
            if as_tensor:
                versions = torch.from_numpy(versions)
            collector = TrajectoryCollector(num_steps, split=2)
            parts = [Key(step=t).part({"versions": versions}) for t in range(num_steps)]
            trajectories = add_all(collector, parts)
            assert [trajectory.model_weights_id for trajectory in trajectories] == [name] * 2

    def test_versions_decide_when_the_weights_changed_on_the_way(self) -> None:
        collector = TrajectoryCollector(2)
        parts = [
            Key(step=t).part({"rewards": np.zeros(2), "versions": t}, model_weights_id=f"w{t}")
            for t in (0, 1)
        ]
        [trajectory] = add_all(collector, parts)
        assert trajectory.model_weights_id == weights_id(trajectory.versions)

    def test_without_versions_changed_weights_get_a_name_of_their_own(self) -> None:
        def name_of(ids: list[str]) -> str:
            collector = TrajectoryCollector(len(ids))
            parts = [
                replace(Key(step=t).env_part(), model_weights_id=weights)
                for t, weights in enumerate(ids)
            ]
            [trajectory] = add_all(collector, parts)
            return trajectory.model_weights_id

        assert name_of(["a", "", "a"]) == "a"
        assert name_of(["a", "b"]) == name_of(["a", "a", "b"]) != name_of(["b", "a"])
        assert len(name_of(["a", "b"])) == 36

    @pytest.mark.parametrize(
        ("version", "dtype"),
        [(3, "int64"), (2.5, "float32"), (np.int32(4), "int64"), (torch.tensor(5.0), "float32")],
    )
    def test_one_version_is_stamped_on_every_env(self, version: Any, dtype: str) -> None:
        collector = TrajectoryCollector(1)
        columns = {"rewards": np.zeros(3), "versions": version}
        [trajectory] = collector.add(Key().part(columns))
        assert trajectory.versions.dtype == dtype
        assert trajectory.versions.tolist() == [[float(version)] * 3]

    def test_it_is_a_tensor_among_tensors(self) -> None:
        columns = {"rewards": torch.zeros(3), "versions": 1}
        [trajectory] = TrajectoryCollector(1).add(Key().part(columns))
        assert isinstance(trajectory.versions, torch.Tensor)

    def test_it_needs_another_column_to_tell_how_many_envs(self) -> None:
        with pytest.raises(PartMismatchError, match=r"has no column \[B, \.\.\.\]"):
            TrajectoryCollector(1).add(Key().part({"versions": 1}))


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


class TestTwiceAndLate:
    def test_the_same_part_twice_counts_once(self) -> None:
        collector = TrajectoryCollector(2, columns=BOTH)
        parts = steps_of(Key(), 2)
        [trajectory] = add_all(collector, [part for part in parts[:3] for _ in (1, 2)] + parts[3:])
        np.testing.assert_array_equal(
            ids_of(trajectory), np.stack([Key(step=t).address(2) for t in (0, 1)])
        )
        stats = collector.get_stats()
        assert (stats["num_parts"], stats["num_duplicate_parts"]) == (7, 3)

    def test_not_a_number_equals_itself(self) -> None:
        collector = TrajectoryCollector(2)
        for _ in (1, 2):
            assert collector.add(Key().part({"rewards": np.full(2, np.nan)})) == []
        assert collector.get_stats()["num_duplicate_parts"] == 1

    def test_texts_twice_count_once(self) -> None:
        collector = TrajectoryCollector(2)
        for _ in (1, 2):
            assert collector.add(Key().part({"extras": {"task": ["a", "b"]}})) == []
        assert collector.get_stats()["num_duplicate_parts"] == 1
        with pytest.raises(PartMismatchError, match=r"'extras/task' again with other values"):
            collector.add(Key().part({"extras": {"task": ["a", "c"]}}))

    @pytest.mark.parametrize(
        "changes",
        [
            {"rewards": np.ones(2)},
            {"curr_obs": {"arm": {"joints": np.zeros((2, 2), np.int64)}}},
            {"dones": np.ones(2, np.bool_)},
        ],
    )
    def test_other_values_are_refused_and_nothing_changes(self, changes: dict[str, Any]) -> None:
        collector = TrajectoryCollector(2, columns=BOTH)
        collector.add(Key(step=1).env_part())
        before = state_of(collector)
        [column] = flatten(changes)
        with pytest.raises(PartMismatchError, match=r"'left'.* step 1 .*again") as error:
            collector.add(Key(step=1).env_part(**changes))
        assert (error.value.group, error.value.step) == ("left", 1)
        assert error.value.column == column
        assert state_of(collector) == before
        assert collector.get_stats()["num_refused_parts"] == 1
        parts = [Key(step=1).policy_part(), Key(step=0).env_part(), Key(step=0).policy_part()]
        [trajectory] = add_all(collector, parts)
        assert not trajectory.dones.any()

    def test_other_weights_are_refused(self) -> None:
        collector = TrajectoryCollector(2, columns=("rewards", "actions", "versions"))
        collector.add(Key().policy_part())
        other = Key().part({"versions": np.zeros(2)}, model_weights_id="x")
        with pytest.raises(PartMismatchError, match=r"'x', but 'w' came before") as error:
            collector.add(other)
        assert error.value.column == "model_weights_id"

    def test_late_duplicates_open_nothing_in_any_order(self) -> None:
        collector = TrajectoryCollector(1)
        parts = [Key(trajectory=k).env_part() for k in (3, 1, 0, 2, 4)]
        assert len(add_all(collector, parts)) == 5
        assert add_all(collector, parts) == []
        stats = collector.get_stats()
        assert (stats["num_late_parts"], stats["num_open"]) == (5, 0)
        assert stats["num_trajectories"] == 5

    def test_a_late_part_with_a_column_that_never_left_is_an_error(self) -> None:
        collector = TrajectoryCollector(1)
        collector.add(Key().env_part())
        with pytest.raises(PartMismatchError, match=r"'actions'.* has left without.* columns="):
            collector.add(Key().policy_part())

    def test_late_first_flags_are_told_when_they_say_something(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        collector = TrajectoryCollector(1)
        collector.add(Key().env_part())
        collector.add(Key().first_flags(dones=np.zeros(2, np.bool_)))
        assert not caplog.records
        collector.add(Key().first_flags())
        assert "initial_flags=True waits" in caplog.text

    def test_a_column_for_a_complete_step_is_an_error(self) -> None:
        collector = TrajectoryCollector(2)
        collector.add(Key().env_part())
        with pytest.raises(PartMismatchError, match=r"'actions' to a step that is complete"):
            collector.add(Key().policy_part())


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


class TestRestart:
    def test_it_closes_what_was_open_as_truncated_and_says_so(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        collector = TrajectoryCollector(4, columns=BOTH)
        parts = [*steps_of(Key(), 2), Key(step=2).env_part()]
        [truncated] = add_all(collector, [*parts, Key(incarnation=1).env_part()])
        np.testing.assert_array_equal(
            ids_of(truncated), np.stack([Key(step=t).address(2) for t in (0, 1)])
        )
        assert truncated.dones.tolist() == [[False] * 2, [False] * 2, [True] * 2]
        assert truncated.truncations.tolist() == truncated.dones.tolist()
        assert not truncated.terminations.any()
        [record] = caplog.records
        assert record.levelno == logging.WARNING
        assert record.getMessage() == (
            "trajectory 0 of group 'left', incarnation 0, which lacks columns ['actions'] of epoch "
            "0, step 2 (2 of 4 chunk steps are complete), is closed early, since incarnation 1 has "
            "begun: 2 chunk steps leave as truncated, 1 dropped"
        )
        stats = collector.get_stats()
        assert (stats["num_restarts"], stats["num_truncated"], stats["num_dropped_steps"]) == (
            1,
            1,
            1,
        )
        assert stats["num_open"] == 1

    def test_an_env_that_ended_in_the_last_step_is_not_truncated(self) -> None:
        collector = TrajectoryCollector(2)
        ended = np.array([True, False, True])
        by_limit = np.array([False, False, True])
        columns = {"dones": ended, "terminations": ended & ~by_limit, "truncations": by_limit}
        collector.add(Key().part(columns))
        [truncated] = collector.add(Key(incarnation=1).part(columns))
        assert truncated.truncations[-1].tolist() == [False, True, True]
        assert truncated.terminations[-1].tolist() == [True, False, False]
        assert truncated.dones[-1].tolist() == [True, True, True]

    def test_in_a_chunk_the_last_action_is_marked(self) -> None:
        collector = TrajectoryCollector(2)
        dones = np.array([[False, True], [False, False], [True, False]])
        columns = {"dones": dones, "truncations": torch.zeros(3, 2, dtype=torch.bool)}
        collector.add(Key().part(columns))
        [truncated] = collector.flush()
        assert truncated.dones[-1].tolist() == [[False, True], [False, True], [True, False]]
        assert truncated.truncations[-1].tolist() == [[False] * 2, [False, True], [False] * 2]

    def test_absent_flags_stay_absent(self) -> None:
        collector = TrajectoryCollector(2)
        collector.add(Key().part({"rewards": np.zeros(2)}))
        [truncated] = collector.flush()
        assert (truncated.dones, truncated.truncations, truncated.terminations) == (None,) * 3

    def test_whole_epochs_and_the_begun_one_leave_apart(self) -> None:
        collector = TrajectoryCollector(2, num_epochs=3, columns=BOTH, bootstrap_values=True)
        parts = steps_of(Key(), 2, epochs=3)[:10]  # two whole epochs and a step
        parts += [Key(epoch=e).bootstrap(2) for e in (0, 1)]
        parts += [Key(epoch=e).first_flags() for e in (0, 1, 2)]
        assert add_all(collector, parts) == []
        whole, begun = collector.add(Key(incarnation=1).env_part())
        assert ids_of(whole).shape == (4, 2)
        assert whole.dones.tolist() == [[True, False], [False] * 2, [False] * 2] * 2
        assert not whole.truncations.any()
        assert whole.prev_values[2].tolist() == (Key(step=2).address(2) / 4).tolist()
        assert ids_of(begun).tolist() == [Key(epoch=2).address(2).tolist()]
        assert begun.dones.tolist() == [[True, False], [True, True]]
        assert begun.truncations.tolist() == [[False, False], [True, True]]
        assert begun.prev_values.tolist() == [(Key(epoch=2).address(2) / 4).tolist()]

    def test_a_whole_epoch_without_its_bootstrap_value_is_cut(self) -> None:
        collector = TrajectoryCollector(2, columns=BOTH, bootstrap_values=True)
        add_all(collector, steps_of(Key(), 2))
        [truncated] = collector.flush()
        assert truncated.prev_values.shape == (2, 2)
        assert truncated.truncations.tolist() == [[False] * 2, [False] * 2, [True] * 2]

    def test_nothing_leaves_when_nothing_is_complete(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        collector = TrajectoryCollector(2, columns=BOTH)
        collector.add(Key(trajectory=1).env_part())
        assert collector.add(Key(incarnation=2).env_part()) == []
        stats = collector.get_stats()
        assert (stats["num_lost"], stats["num_trajectories"], stats["num_dropped_steps"]) == (
            1,
            0,
            1,
        )
        assert "0 chunk steps leave" in caplog.text

    def test_steps_after_a_missing_one_are_dropped_and_counted(self) -> None:
        collector = TrajectoryCollector(5)
        add_all(collector, [Key(step=t).env_part() for t in (0, 1, 3)])
        [truncated] = collector.add(Key(incarnation=1).env_part())
        assert len(ids_of(truncated)) == 2
        assert collector.get_stats()["num_dropped_steps"] == 1

    def test_old_parts_that_come_late_are_ignored_and_counted(self) -> None:
        collector = TrajectoryCollector(2)
        collector.add(Key(incarnation=3).env_part())
        before = state_of(collector)
        for incarnation in (0, 2):
            assert collector.add(Key(incarnation=incarnation, step=1).env_part()) == []
        stats = collector.get_stats()
        assert stats["num_stale_parts"] == 2
        assert stats["num_open"] == before["num_open"]

    def test_numbers_begin_again(self) -> None:
        collector = TrajectoryCollector(1)
        for incarnation in (0, 1):
            [trajectory] = collector.add(Key(incarnation=incarnation).env_part())
            assert ids_of(trajectory)[0, 0] == Key(incarnation=incarnation).address(1)[0]

    def test_other_groups_go_on(self) -> None:
        collector = TrajectoryCollector(2)
        add_all(collector, [Key("right").env_part(), Key("left").env_part()])
        assert len(collector.add(Key("left", 1).env_part())) == 1
        [trajectory] = collector.add(Key("right", step=1).env_part())
        assert not trajectory.truncations.any()

    def test_a_bad_part_closes_nothing(self) -> None:
        collector = TrajectoryCollector(2)
        collector.add(Key().env_part())
        before = state_of(collector)
        with pytest.raises(PartMismatchError):
            collector.add(Key(incarnation=1, step=5).env_part())
        with pytest.raises(PartMismatchError):
            collector.add(Key(incarnation=1).env_part(3))
        assert state_of(collector) == before
        assert len(collector.add(Key(step=1).env_part())) == 1


class TestFlush:
    def test_it_returns_what_is_complete_and_goes_on(self) -> None:
        collector = TrajectoryCollector(3)
        add_all(collector, [Key("right", step=t).env_part() for t in (0, 1)])
        add_all(collector, [Key("left", 0, k).env_part() for k in (1, 0)])
        trajectories = collector.flush()
        assert [ids_of(trajectory)[0, 0] for trajectory in trajectories] == [
            key.address(1)[0] for key in (Key("right"), Key("left"), Key("left", 0, 1))
        ]
        assert all(trajectory.truncations[-1].all() for trajectory in trajectories)
        assert collector.flush() == []
        assert collector.add(Key("right", step=2).env_part()) == []
        assert collector.get_stats()["num_late_parts"] == 1
        assert collector.add(Key("right", 0, 1).env_part()) == []
        assert collector.get_stats()["num_open"] == 1

    def test_pieces_are_split(self) -> None:
        collector = TrajectoryCollector(3, split=2)
        collector.add(Key().env_part())
        assert [ids_of(piece).shape for piece in collector.flush()] == [(1, 1), (1, 1)]

    @pytest.mark.parametrize("way", ["flush", "close"])
    def test_a_missing_step_is_an_error_and_nothing_changes(self, way: str) -> None:
        collector = TrajectoryCollector(3, num_epochs=2)
        add_all(collector, [Key("right").env_part(), Key(epoch=1).env_part()])
        add_all(collector, [Key(step=t).env_part() for t in (0, 2)])
        before = state_of(collector)
        call: Callable[..., list[Trajectory]] = getattr(collector, way)
        with pytest.raises(PartMismatchError) as error:
            call()
        assert str(error.value) == (
            "trajectory 0 of group 'left', incarnation 0, lacks every part of epoch 0, step 1 (3 "
            "of 6 chunk steps are complete), but complete chunk steps come after it; add what is "
            "missing, or flush with allow_missing=True to drop what comes after"
        )
        assert (error.value.group, error.value.step) == ("left", 1)
        assert state_of(collector) == before
        right, left = call(allow_missing=True)
        assert len(ids_of(right)) == len(ids_of(left)) == 1
        assert collector.get_stats()["num_dropped_steps"] == 2

    def test_awaited_first_flags_may_be_what_is_missing(self) -> None:
        collector = TrajectoryCollector(2, initial_flags=True)
        collector.add(Key().env_part())
        with pytest.raises(PartMismatchError, match=r"epoch 0, step -1") as error:
            collector.flush()
        assert error.value.step == -1
        assert collector.flush(allow_missing=True) == []

    def test_close_flushes_once_and_takes_no_more(self) -> None:
        collector = TrajectoryCollector(3)
        collector.add(Key().env_part())
        assert len(collector.close()) == 1
        assert collector.close() == []
        with pytest.raises(ClosedError, match="collector is closed"):
            collector.add(Key(step=1).env_part())


class TestWrongParts:
    @pytest.mark.parametrize(
        ("part", "fault", "column"),
        [
            (Key(epoch=2).env_part(), r"past the last epoch, .* has 2 from 0; see num_epochs", ""),
            (Key(step=3).env_part(), r"past the last step, .* has 3 from 0 and no bootstrap", ""),
            (Key().bootstrap(3), r"see steps_per_epoch and bootstrap_values", ""),
            (Key().part({}), r"has no column", ""),
            (Key().part({"curr_obs": {}}), r"has no column", ""),
            (Key().part({"actions": None}), r"has no column", ""),
            (Key().part({"obs": np.zeros(2)}), r"'obs' is no field .* 'extras/obs'", "obs"),
            (Key().part({"curr_obs": np.zeros(2)}), r"'curr_obs' is a nested dict", "curr_obs"),
            (Key().part({"rewards": {"a": np.zeros(2)}}), r"is one column", "rewards/a"),
            (Key().part({"rewards": np.float32(1)}), r"a single number", "rewards"),
            (Key().part({"dones": ["a", "b"]}), r"has text .* numbers", "dones"),
            (Key().part({"dones": np.zeros((2, 0), np.bool_)}), r"bool \[B, 0\]", "dones"),
            (Key().part({"versions": torch.zeros(2).bfloat16()}), r"has bfloat16", "versions"),
            (Key().part({"rewards": np.zeros(0)}), r"has 0 rows .* B at least 1", "rewards"),
            (
                Key().part({"actions": np.zeros(2), "rewards": np.zeros(3)}),
                r"has 3 rows",
                "rewards",
            ),
            (Key(step=-1).env_part(), r"before the first step there are only dones", "rewards"),
        ],
    )
    def test_a_part_that_fits_no_trajectory_names_group_step_and_column(
        self, part: TrajectoryPart, fault: str, column: str
    ) -> None:
        collector = TrajectoryCollector(3, num_epochs=2)
        before = state_of(collector)
        with pytest.raises(PartMismatchError, match=fault) as error:
            collector.add(part)
        assert (
            f"group 'left', incarnation 0, trajectory 0, epoch {part.epoch}, step {part.step} "
            in (str(error.value))
        )
        assert (error.value.group, error.value.step) == ("left", part.step)
        assert error.value.column == column
        assert state_of(collector) == before
        assert collector.flush() == []

    def test_only_values_come_after_the_last_step(self) -> None:
        collector = TrajectoryCollector(3, bootstrap_values=True)
        with pytest.raises(PartMismatchError, match=r"after the last only prev_values"):
            collector.add(Key(step=3).env_part())
        with pytest.raises(PartMismatchError, match=r"past the last step"):
            collector.add(Key(step=4).bootstrap(4))

    @pytest.mark.parametrize(
        ("changes", "fault", "column"),
        [
            ({"rewards": np.zeros(2, np.float32)}, r"float32 \[B\] .* float64 \[B\]", "rewards"),
            ({"rewards": np.zeros((2, 1))}, r"float64 \[B, 1\] .* float64 \[B\]", "rewards"),
            ({"curr_obs": {"id": ["a", "b"]}}, r"text \[B\] .* int64 \[B\]", "curr_obs/id"),
            ({"rewards": None}, r"without \['rewards'\] and with \[\]", "rewards"),
            ({"actions": np.zeros(2)}, r"without \[\] and with \['actions'\]", "actions"),
        ],
    )
    def test_other_columns_than_in_the_first_step_are_refused(
        self, changes: dict[str, Any], fault: str, column: str
    ) -> None:
        collector = TrajectoryCollector(2)
        collector.add(Key().env_part())
        before = state_of(collector)
        with pytest.raises(PartMismatchError, match=fault) as error:
            collector.add(Key(step=1).env_part(**changes))
        assert (error.value.group, error.value.step, error.value.column) == ("left", 1, column)
        assert state_of(collector) == before
        assert len(collector.add(Key(step=1).env_part())) == 1

    def test_first_flags_need_the_flags_in_every_step(self) -> None:
        flags_first = TrajectoryCollector(2)
        flags_first.add(Key().first_flags())
        with pytest.raises(PartMismatchError, match=r"without \['dones'\]"):
            flags_first.add(Key().part({"rewards": np.zeros(2)}))
        step_first = TrajectoryCollector(2)
        step_first.add(Key().part({"rewards": np.zeros(2)}))
        with pytest.raises(PartMismatchError, match=r"with \['dones'\] beyond"):
            step_first.add(Key().first_flags())

    def test_another_number_of_envs_is_refused_for_all_time(self) -> None:
        collector = TrajectoryCollector(1)
        collector.add(Key().env_part(2))
        with pytest.raises(PartMismatchError, match=r"has 3 envs, but its group has 2") as error:
            collector.add(Key(trajectory=1).env_part(3))
        assert (error.value.group, error.value.step) == ("left", 0)
        assert len(collector.add(Key("right").env_part(3))) == 1

    @pytest.mark.parametrize(
        ("columns", "column"),
        [
            ({"rewards": [1.0, 2.0]}, "rewards"),
            ({"rewards": "text"}, "rewards"),
            ({"rewards": np.array(["a", "b"])}, "rewards"),
            ({"rewards": np.array([None, 1])}, "rewards"),
            ({"curr_obs": {"x": {}}}, "curr_obs/x"),
            ({"extras": {"x": 3}}, "extras/x"),
            ({"extras": {"a/b": np.zeros(2)}}, "extras"),
            ({"rewards": torch.zeros(2, 2).to_sparse()}, "rewards"),
        ],
    )
    def test_a_value_that_no_column_holds_is_refused(
        self, columns: dict[str, Any], column: str
    ) -> None:
        collector = TrajectoryCollector(1)
        with pytest.raises(UnsupportedValueError) as error:
            collector.add(Key().part(columns))
        assert error.value.column == column
        assert collector.get_stats()["num_refused_parts"] == 1

    def test_what_is_no_part_is_refused(self) -> None:
        wrong: Any = {"rewards": np.zeros(2)}
        with pytest.raises(UnsupportedValueError, match=r"part is a dict"):
            TrajectoryCollector(1).add(wrong)

    @pytest.mark.parametrize(
        "arguments",
        [
            {"steps_per_epoch": 0},
            {"steps_per_epoch": 2.0},
            {"num_epochs": 0},
            {"num_epochs": True},
            {"columns": ()},
            {"columns": "rewards"},
            {"columns": ["obs"]},
            {"columns": ["rewards/x"]},
            {"columns": ["curr_obs/"]},
            {"columns": [3]},
            {"split": 0},
            {"split": ()},
            {"split": (1, 0)},
            {"split": True},
            {"join": "ab"},
            {"join": ("a",)},
            {"join": ("a", "b", "a")},
            {"max_open": 0},
            {"max_episode_length": -4},
            {"max_episode_length": 2.0},
            {"stall_timeout_s": 0},
            {"stall_timeout_s": "x"},
            {"stall_timeout_s": True},
            {"stall_timeout_s": float("nan")},
            {"stall_timeout_s": float("inf")},
        ],
    )
    def test_an_argument_out_of_range_is_named(self, arguments: dict[str, Any]) -> None:
        [name] = arguments
        with pytest.raises(InvalidArgumentError, match=name):
            TrajectoryCollector(**{"steps_per_epoch": 2, **arguments})

    def test_integers_of_numpy_are_taken(self) -> None:
        two: Any = np.int64(2)
        collector = TrajectoryCollector(
            two, num_epochs=two, split=(two,), max_open=two, max_episode_length=two
        )
        [trajectory] = add_all(collector, steps_of(Key(), 2, epochs=2)[::2])
        assert type(trajectory.max_episode_length) is int


class TestLimits:
    def test_open_trajectories_are_bounded(self, clock: Clock) -> None:
        collector = TrajectoryCollector(2, max_open=2)
        collector.add(Key("left").env_part())
        clock.now += 1
        collector.add(Key("right").env_part())
        before = state_of(collector)
        with pytest.raises(LimitExceededError) as error:
            collector.add(Key("top").env_part())
        assert str(error.value) == (
            "2 trajectories are open or waiting to be joined, and the part of group 'top', "
            "trajectory 0 would open one more, but max_open is 2; see to the oldest, or raise it: "
            "trajectory 0 of group 'left', incarnation 0, lacks every part of epoch 0, step 1 (1 "
            "of 2 chunk steps are complete)"
        )
        assert state_of(collector) == before
        collector.add(Key("left", step=1).env_part())
        assert collector.add(Key("top").env_part()) == []

    def test_a_restart_makes_room_for_itself(self) -> None:
        collector = TrajectoryCollector(2, max_open=1)
        collector.add(Key().env_part())
        assert len(collector.add(Key(incarnation=1).env_part())) == 1

    def test_those_that_wait_to_be_joined_count(self) -> None:
        collector = TrajectoryCollector(1, max_open=1, join=("left", "right"))
        collector.add(Key("left").env_part())
        with pytest.raises(LimitExceededError, match=r"lacks those of groups \['right'\] to join"):
            collector.add(Key("left", trajectory=1).env_part())

    def test_a_stalled_one_is_reported_with_what_it_lacks(self, clock: Clock) -> None:
        collector = TrajectoryCollector(2, columns=BOTH, stall_timeout_s=10)
        collector.add(Key().env_part())
        collector.add(Key("right").env_part())
        clock.now += 9
        collector.add(Key("right", step=1).env_part())
        collector.check_stalled()
        clock.now += 1
        for _ in (1, 2):
            with pytest.raises(TimeLimitError) as error:
                collector.check_stalled()
        assert str(error.value) == (
            "1 of 2 open trajectories got no part for 10 s, but all parts of one must come within "
            "that time; see to their workers, or give a longer stall_timeout_s: trajectory 0 of "
            "group 'left', incarnation 0, lacks columns ['actions'] of epoch 0, step 0 (0 of 2 "
            "chunk steps are complete)"
        )
        collector.add(Key().policy_part())
        collector.check_stalled()

    def test_a_duplicate_is_no_progress(self, clock: Clock) -> None:
        collector = TrajectoryCollector(2, stall_timeout_s=10)
        collector.add(Key().env_part())
        clock.now += 9
        collector.add(Key().env_part())
        clock.now += 1
        with pytest.raises(TimeLimitError):
            collector.check_stalled()

    def test_one_that_waits_for_its_partner_stalls_too(self, clock: Clock) -> None:
        collector = TrajectoryCollector(1, join=("left", "right"), stall_timeout_s=10)
        collector.add(Key().env_part())
        clock.now += 10
        with pytest.raises(TimeLimitError, match=r"of group 'left' lacks those of .*'right'"):
            collector.check_stalled()

    def test_at_most_five_are_described(self, clock: Clock) -> None:
        collector = TrajectoryCollector(2, stall_timeout_s=10)
        add_all(collector, [Key(trajectory=k).env_part() for k in range(7)])
        clock.now += 10
        with pytest.raises(TimeLimitError, match=r"^7 of 7 open") as error:
            collector.check_stalled()
        assert str(error.value).count("lacks every part") == 5


class TestRun:
    def pump(
        self, collector: TrajectoryCollector, parts: list[TrajectoryPart], maxsize: int = 1
    ) -> tuple[list[Trajectory], BaseException | None]:
        """Run a collector between a worker's and a trainer's thread."""
        inbox: Channel[TrajectoryPart] = Channel(maxsize, name="parts")
        outbox: Channel[Trajectory] = Channel(maxsize, name="trajectories")

        def publish() -> None:
            try:
                with inbox:
                    for part in parts:
                        inbox.put(part)
            except ClosedError:
                pass

        with ThreadPoolExecutor(3) as pool:
            publisher = pool.submit(publish)
            trainer = pool.submit(list[Trajectory], outbox)
            runner = pool.submit(collector.run, inbox, outbox)
            publisher.result()
            assert inbox.closed
            error = runner.exception()
            assert outbox.closed
            return trainer.result(), error

    def test_it_pumps_until_the_parts_end_and_hands_over_the_rest(self) -> None:
        parts = [part for k in range(5) for part in steps_of(Key(trajectory=k), 2)]
        trajectories, error = self.pump(TrajectoryCollector(2, columns=BOTH), parts[:-2])
        assert error is None
        assert [ids_of(trajectory)[0, 0] for trajectory in trajectories] == [
            Key(trajectory=k).address(1)[0] for k in range(5)
        ]
        assert [len(ids_of(trajectory)) for trajectory in trajectories] == [2, 2, 2, 2, 1]

    def test_a_bad_part_closes_both_channels_and_is_raised(self) -> None:
        collector = TrajectoryCollector(2)
        parts = [Key(step=0).env_part(), Key(step=1).env_part(3), *steps_of(Key("right"), 2)]
        trajectories, error = self.pump(collector, parts)
        assert isinstance(error, PartMismatchError)
        assert trajectories == []
        assert len(collector.close()) == 1

    def test_a_part_that_never_came_is_raised_at_the_end(self) -> None:
        collector = TrajectoryCollector(3)
        parts = [Key(step=t).env_part() for t in (0, 2)]
        _, error = self.pump(collector, parts)
        assert isinstance(error, PartMismatchError)
        assert "step 1" in str(error)
        assert len(collector.close(allow_missing=True)) == 1

    def test_a_trainer_that_has_gone_is_told_and_so_are_the_workers(self) -> None:
        inbox: Channel[TrajectoryPart] = Channel(9)
        outbox: Channel[Trajectory] = Channel(9)
        outbox.close()
        inbox.put(Key().env_part())
        with pytest.raises(ClosedError):
            TrajectoryCollector(1).run(inbox, outbox)
        assert inbox.closed

    def test_a_trainer_that_is_too_slow_is_told(self) -> None:
        inbox: Channel[TrajectoryPart] = Channel(9)
        outbox: Channel[Trajectory] = Channel(1, timeout_s=0)
        for k in (0, 1):
            inbox.put(Key(trajectory=k).env_part())
        with pytest.raises(TimeLimitError, match="full"):
            TrajectoryCollector(1).run(inbox, outbox)
        assert inbox.closed
        assert outbox.closed

    def test_workers_that_say_nothing_are_told_of_by_name(self) -> None:
        inbox: Channel[TrajectoryPart] = Channel(9, timeout_s=0.001, name="parts")
        outbox: Channel[Trajectory] = Channel(1)
        with pytest.raises(
            TimeLimitError, match=r"no part came through channel 'parts' for 0\.001"
        ):
            TrajectoryCollector(1).run(inbox, outbox)
        assert inbox.closed
        assert outbox.closed

    def test_a_stalled_trajectory_ends_it(self) -> None:
        inbox: Channel[TrajectoryPart] = Channel(9)
        outbox: Channel[Trajectory] = Channel(1)
        inbox.put(Key().env_part())
        collector = TrajectoryCollector(2, stall_timeout_s=0.001)
        with pytest.raises(TimeLimitError, match=r"'left'.* lacks every part of epoch 0, step 1"):
            collector.run(inbox, outbox)
        assert inbox.closed
        assert outbox.closed

    def test_stalls_are_seen_while_other_parts_flow(self, clock: Clock) -> None:
        inbox: Channel[TrajectoryPart] = Channel(9)
        outbox: Channel[Trajectory] = Channel(9)

        class Flow(Channel[TrajectoryPart]):
            def get(self, timeout_s: float | None = None) -> TrajectoryPart:
                clock.now += 6
                return super().get(timeout_s)

        inbox = Flow(9)
        inbox.put(Key().env_part())
        for k in range(5):
            inbox.put(Key("right", trajectory=k, step=1).env_part())
        collector = TrajectoryCollector(2, stall_timeout_s=10)
        with pytest.raises(TimeLimitError, match=r"'left'"):
            collector.run(inbox, outbox)
        assert len(inbox) > 0


class TestThreads:
    def test_publishers_may_add_from_their_own_threads(self) -> None:
        collector = TrajectoryCollector(5, num_epochs=2, columns=BOTH)
        num_trajectories = 10
        barrier = threading.Barrier(6)

        def publish(group: str, publisher: int) -> list[Trajectory]:
            parts = [
                part
                for k in range(num_trajectories)
                for part in steps_of(Key(group, 0, k), 5, epochs=2)[publisher::2]
            ]
            barrier.wait()
            return add_all(collector, parts)

        with ThreadPoolExecutor(6) as pool:
            runs = [pool.submit(publish, group, who) for group in GROUPS for who in (0, 1)]
            trajectories = [trajectory for run in runs for trajectory in run.result()]
        assert sorted(ids_of(trajectory)[0, 0] for trajectory in trajectories) == sorted(
            Key(group, 0, k).address(1)[0] for group in GROUPS for k in range(num_trajectories)
        )
        for trajectory in trajectories:
            np.testing.assert_array_equal(trajectory.actions[..., 0], ids_of(trajectory))


class TestImport:
    def test_torch_is_not_imported(self) -> None:
        code = (
            "import sys, numpy as np\n"
            "from relive.collector import TrajectoryCollector\n"
            "from relive.part import TrajectoryPart\n"
            "part = TrajectoryPart(group='g', incarnation=0, trajectory=0, epoch=0, step=0,\n"
            "    columns={'rewards': np.zeros(2), 'versions': 1, 'extras': {'task': ['a', 'b']}})\n"
            "[trajectory] = TrajectoryCollector(1).add(part)\n"
            "assert trajectory.model_weights_id\n"
            "assert 'torch' not in sys.modules\n"
        )
        subprocess.run([sys.executable, "-c", code], check=True)


# The property: whatever was published, in whatever order, leaves exactly once.


@dataclass(frozen=True)
class Story:
    """What some groups publish over their incarnations, and what never arrives."""

    steps_per_epoch: int
    num_epochs: int
    bootstrap_values: bool
    initial_flags: bool
    num_trajectories: dict[str, list[int]]
    """For each group, for each incarnation: how many trajectories it begins."""
    seed: int

    def parts_of(self, key: Key) -> list[TrajectoryPart]:
        """All parts of one trajectory."""
        parts = steps_of(key, self.steps_per_epoch, self.num_epochs)
        for epoch in range(self.num_epochs):
            at = replace(key, epoch=epoch)
            parts += [at.first_flags()] * self.initial_flags
            parts += [at.bootstrap(self.steps_per_epoch)] * self.bootstrap_values
        return parts

    def awaited(self) -> list[tuple[int, int]]:
        """Epoch and step of all that makes a trajectory, in order of time."""
        steps = range(-self.initial_flags, self.steps_per_epoch + self.bootstrap_values)
        return [(epoch, step) for epoch in range(self.num_epochs) for step in steps]


@st.composite
def stories(draw: st.DrawFn) -> Story:
    groups = draw(st.lists(st.sampled_from(GROUPS), min_size=1, max_size=3, unique=True))
    incarnations = st.lists(st.integers(1, 3), min_size=1, max_size=3)
    return Story(
        steps_per_epoch=draw(st.integers(1, 4)),
        num_epochs=draw(st.integers(1, 3)),
        bootstrap_values=draw(st.booleans()),
        initial_flags=draw(st.booleans()),
        num_trajectories={group: draw(incarnations) for group in groups},
        seed=draw(st.integers(0, 2**32)),
    )


def play(story: Story) -> tuple[list[TrajectoryPart], dict[Key, int]]:
    """Tell a story: parts in an order that can happen, and how many moments of each are whole.

    In the last trajectory of an incarnation some parts never arrive. Parts come in any order
    within an incarnation, up to three times, and groups interleave.
    """
    rng = random.Random(story.seed)
    awaited = story.awaited()
    streams, whole = [], {}
    for group, counts in story.num_trajectories.items():
        stream: list[TrajectoryPart] = []
        for incarnation, count in enumerate(counts):
            arriving = []
            for number in range(count):
                key = Key(group, incarnation, number)
                parts = story.parts_of(key)
                if number == count - 1:
                    parts = rng.sample(parts, rng.randint(1, len(parts)))
                arriving += parts
                came = [(part.epoch, part.step) for part in parts]
                is_step = range(story.steps_per_epoch)
                counts_needed = [came.count(at) == 1 + (at[1] in is_step) for at in awaited]
                whole[key] = [*counts_needed, False].index(False)
            arriving += rng.choices(arriving, k=rng.randint(0, 3))
            rng.shuffle(arriving)
            stream += arriving
        streams.append(stream)
    order = []
    while any(streams):
        stream = rng.choice([stream for stream in streams if stream])
        order.append(stream.pop(0))
    return order, whole


def expected_ids(story: Story, key: Key, num_whole: int) -> list[list[list[int]]]:
    """What must leave of a trajectory, as ids [T][B] of each piece."""
    moments = story.awaited()[:num_whole]
    per_epoch = len(story.awaited()) // story.num_epochs
    whole_epochs = num_whole // per_epoch
    in_epochs = [at for at in moments if at[0] < whole_epochs]
    begun = moments[len(in_epochs) :]
    pieces = []
    for piece in (in_epochs, begun):
        steps = [at for at in piece if 0 <= at[1] < story.steps_per_epoch]
        ids = [replace(key, epoch=epoch, step=step).address(2).tolist() for epoch, step in steps]
        pieces += [ids] * bool(ids)
    return pieces


def make_collector(story: Story) -> TrajectoryCollector:
    return TrajectoryCollector(
        story.steps_per_epoch,
        num_epochs=story.num_epochs,
        columns=BOTH,
        bootstrap_values=story.bootstrap_values,
        initial_flags=story.initial_flags,
    )


class TestAnyOrder:
    @settings(max_examples=150)
    @given(story=stories())
    def test_exactly_what_was_published_leaves(self, story: Story) -> None:
        order, whole = play(story)
        collector = make_collector(story)
        leaving = add_all(collector, order) + collector.flush(allow_missing=True)
        expected = [ids for key, count in whole.items() for ids in expected_ids(story, key, count)]
        assert sorted(ids_of(trajectory).tolist() for trajectory in leaving) == sorted(expected)
        assert collector.get_stats()["num_open"] == 0
        for trajectory in leaving:
            self.check_rows(story, trajectory)

    def check_rows(self, story: Story, trajectory: Trajectory) -> None:
        """Every row of every column belongs to its id; flags and values have theirs."""
        ids = ids_of(trajectory)
        num_steps = len(ids)
        num_epochs = max(1, num_steps // story.steps_per_epoch)
        np.testing.assert_array_equal(trajectory.rewards, ids)
        np.testing.assert_array_equal(trajectory.curr_obs["arm"]["joints"][..., 0], ids)
        np.testing.assert_array_equal(trajectory.actions[..., 1], ids + 0.5)
        is_cut = bool(trajectory.truncations.any())
        assert trajectory.dones.shape == (num_steps + num_epochs, 2)
        # [T + E, B] -> [E, steps and the state before them, B]
        epochs = trajectory.dones.reshape(num_epochs, -1, 2)
        assert epochs[:, 0].tolist() == [[story.initial_flags, False]] * num_epochs
        assert not epochs[:, 1:-1].any()
        assert epochs[:, -1].all() == is_cut
        assert trajectory.truncations[-1].all() == is_cut
        assert not trajectory.truncations[:-1].any()
        has_bootstrap = story.bootstrap_values and not is_cut
        assert len(trajectory.prev_values) == num_steps + num_epochs * has_bootstrap
        values = trajectory.prev_values.reshape(num_epochs, -1, 2)
        steps = values[:, :-1] if has_bootstrap else values
        np.testing.assert_array_equal(4 * steps.reshape(num_steps, 2), ids)
        if has_bootstrap:
            np.testing.assert_array_equal(4 * (values[:, -1] - values[:, -2]), 100)

    @settings(max_examples=50)
    @given(story=stories())
    def test_a_refused_part_leaves_no_trace(self, story: Story) -> None:
        """Wrong parts in between, of old and new incarnations, change nothing of what leaves."""
        rng = random.Random(story.seed + 1)
        order, _ = play(story)
        plain, disturbed = make_collector(story), make_collector(story)
        expected, got = [], []
        for part in order:
            expected += plain.add(part)
            got += disturbed.add(part)
            newer = replace(part, incarnation=part.incarnation + rng.randint(0, 1))
            faults: list[dict[str, Any]] = [
                {"columns": {"rewards": np.zeros(3)}},
                {"columns": {"rewards": np.zeros(2), "extras": {"x": 3}}},
                {"columns": {}},
                {"epoch": 9},
            ]
            with contextlib.suppress(ReplayError):
                assert disturbed.add(replace(newer, **rng.choice(faults))) == []
            assert disturbed.get_stats()["num_open"] == plain.get_stats()["num_open"]
        expected += plain.flush(allow_missing=True)
        got += disturbed.flush(allow_missing=True)
        assert [ids_of(one).tolist() for one in got] == [ids_of(one).tolist() for one in expected]
