# SPDX-License-Identifier: Apache-2.0
"""`relive.collector`: parts joined into trajectories: their columns, rows and stamps.

Every value carries its address, `Key.address` of `parts`, so each row of a trajectory proves where
it came from.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from parts import BOTH, GROUPS, Key, add_all, ids_of, steps_of
from relive.collection.blocks import weights_id
from relive.collector import TrajectoryCollector
from relive.columns import flatten
from relive.errors import PartMismatchError


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

    @pytest.mark.parametrize("initial_flags", [False, True])
    @pytest.mark.parametrize("columns", [None, ("rewards", "dones", "truncations")])
    def test_first_flags_may_come_from_two_publishers(
        self, columns: Any, initial_flags: bool
    ) -> None:
        collector = TrajectoryCollector(1, columns=columns, initial_flags=initial_flags)
        dones, truncations = np.array([True, False]), np.array([False, True])
        collector.add(Key(step=-1).part({"dones": dones}))
        collector.add(Key(step=-1).part({"truncations": truncations}))
        [trajectory] = collector.add(Key().env_part())
        assert trajectory.dones.tolist() == [[True, False], [False] * 2]
        assert trajectory.truncations.tolist() == [[False, True], [False] * 2]

    def test_awaited_first_flags_are_those_that_columns_names(self) -> None:
        columns = ("rewards", "dones", "truncations")
        collector = TrajectoryCollector(1, columns=columns, initial_flags=True)
        flags = np.array([True, False])
        assert collector.add(Key().env_part()) == []
        assert collector.add(Key(step=-1).part({"dones": flags})) == []
        with pytest.raises(PartMismatchError, match=r"lacks columns \['truncations'\].* step -1"):
            collector.close()
        [trajectory] = collector.add(Key(step=-1).part({"truncations": flags}))
        assert trajectory.dones[0].tolist() == trajectory.truncations[0].tolist() == [True, False]

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
        # RLinf 0.3.0 gave these names to versions k, [4, 2, 1] and [6, 2, 1]: tests/data/rlinf.
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
