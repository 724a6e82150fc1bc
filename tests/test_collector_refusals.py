# SPDX-License-Identifier: Apache-2.0
"""`relive.collector`: parts that come twice or late, or do not fit, and wrong arguments.

Every value carries its address, `Key.address` of `parts`, so each row of a trajectory proves where
it came from.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from parts import BOTH, Key, add_all, ids_of, state_of, steps_of
from relive.collector import TrajectoryCollector
from relive.columns import flatten
from relive.errors import InvalidArgumentError, PartMismatchError, UnsupportedValueError
from relive.part import TrajectoryPart


def stamped(version: Any) -> TrajectoryPart:
    return Key().part({"rewards": np.zeros(2), "versions": version})


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

    @pytest.mark.parametrize("columns", [None, ("rewards", "dones")])
    def test_late_first_flags_that_were_not_waited_for_are_told_though_others_were(
        self, columns: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        collector = TrajectoryCollector(1, columns=columns, initial_flags=True)
        collector.add(Key().first_flags())
        collector.add(Key().env_part())
        collector.add(Key().first_flags())  # it came in time, too
        assert not caplog.records
        flags = np.ones(2, np.bool_)
        collector.add(Key(step=-1).part({"dones": flags, "truncations": flags}))
        assert bool(caplog.records) == (columns is not None)

    def test_a_column_for_a_complete_step_is_an_error(self) -> None:
        collector = TrajectoryCollector(2)
        collector.add(Key().env_part())
        with pytest.raises(PartMismatchError, match=r"'actions', but its step is complete"):
            collector.add(Key().policy_part())


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
            (stamped(2**70), r"has the single number 118.* for each", "versions"),
            (stamped(np.uint64(2**63)), r"the single number 922", "versions"),
            (stamped(-(2**63) - 1), r"the single number -922", "versions"),
            (stamped(1e300), r"the single number 1e\+300", "versions"),
            (stamped(16777217.5), r"the single number 16777217\.5", "versions"),
            (stamped(np.float64(0.1)), r"the single number 0\.1", "versions"),
            (stamped(np.complex64(1j)), r"the single number 1j", "versions"),
            (stamped(np.bool_(True)), r"the single number True", "versions"),
            (stamped(np.array("1")), r"the single number '1'", "versions"),
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

    @pytest.mark.parametrize("at", [Key(step=2), Key(step=99), Key(epoch=1)])
    def test_what_no_trajectory_has_is_refused_of_one_that_left_too(self, at: Key) -> None:
        """Whoever publishes it counts otherwise, and half of what he has would be lost unseen."""
        collector = TrajectoryCollector(2)
        add_all(collector, [Key(step=0).env_part(), Key(step=1).env_part()])
        with pytest.raises(PartMismatchError, match=r"is past the last (step|epoch)"):
            collector.add(at.env_part())
        stats = collector.get_stats()
        assert (stats["num_late_parts"], stats["num_refused_parts"]) == (0, 1)

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

    def test_first_flags_beyond_those_of_the_steps_are_refused_also_when_others_come_first(
        self,
    ) -> None:
        collector = TrajectoryCollector(2)
        collector.add(Key().part({"rewards": np.zeros(2), "dones": np.zeros(2, np.bool_)}))
        collector.add(Key().first_flags())
        before = state_of(collector)
        with pytest.raises(PartMismatchError, match=r"with \['truncations'\] beyond") as error:
            collector.add(Key(step=-1).part({"truncations": np.ones(2, np.bool_)}))
        assert (error.value.step, error.value.column) == (-1, "truncations")
        assert state_of(collector) == before
        collector.add(Key().first_flags())
        assert collector.get_stats()["num_duplicate_parts"] == 1

    def test_a_part_of_first_flags_counts_for_the_steps_before_all_have_come(self) -> None:
        collector = TrajectoryCollector(1, columns=("rewards", "dones", "truncations"))
        collector.add(Key().first_flags())
        with pytest.raises(PartMismatchError, match=r"again with other values"):
            collector.add(Key().first_flags(dones=np.zeros(2, np.bool_)))
        terminations = {"terminations": np.zeros(2, np.bool_)}
        collector.add(Key(step=-1).part(terminations))
        flags = {"dones": np.zeros(2, np.bool_), "truncations": np.zeros(2, np.bool_)}
        with pytest.raises(PartMismatchError, match=r"without \['terminations'\]"):
            collector.add(Key().part({"rewards": np.zeros(2), **flags}))
        assert (
            len(collector.add(Key().part({"rewards": np.zeros(2), **flags, **terminations}))) == 1
        )

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
            {"split": {2, 1}},
            {"split": frozenset((3,))},
            {"join": "ab"},
            {"join": {"a", "b"}},
            {"join": ("a",)},
            {"join": ("a", "b", "a")},
            {"max_open": 0},
            {"max_episode_length": -4},
            {"max_episode_length": 2.0},
            {"max_episode_length": 2**63},
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
