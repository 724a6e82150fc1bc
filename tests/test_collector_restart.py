# SPDX-License-Identifier: Apache-2.0
"""`relive.collector`: what a restart, `flush` or `close` makes of what was open.

Every value carries its address, `Key.address` of `parts`, so each row of a trajectory proves where
it came from.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
import pytest
import torch

from parts import BOTH, Key, add_all, ids_of, state_of, steps_of
from relive.collector import TrajectoryCollector
from relive.errors import ClosedError, PartMismatchError
from relive.trajectory import Trajectory


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
