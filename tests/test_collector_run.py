# SPDX-License-Identifier: Apache-2.0
"""`relive.collector`: bounds on what is open and how long, channels in between, and threads."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from parts import BOTH, GROUPS, Key, add_all, ids_of, state_of, steps_of
from relive.channel import Channel
from relive.collector import TrajectoryCollector
from relive.errors import ClosedError, LimitExceededError, PartMismatchError, TimeLimitError
from relive.part import TrajectoryPart
from relive.trajectory import Trajectory


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

    @pytest.mark.parametrize("max_open", [1, 2, 3])
    def test_a_group_that_lags_behind_those_it_joins_finds_its_place_taken_for_it(
        self, max_open: int
    ) -> None:
        collector = TrajectoryCollector(2, max_open=max_open, join=("left", "right"))
        parts = {
            group: [part for k in range(9) for part in steps_of(Key(group, 0, k), 2)[::2]]
            for group in ("left", "right")
        }
        assert add_all(collector, parts["left"][: 2 * max_open]) == []
        for group in ("left", "top"):
            with pytest.raises(LimitExceededError):
                collector.add(Key(group, trajectory=max_open).env_part())
        joined = add_all(collector, parts["right"][: 2 * max_open])
        assert [ids_of(one).shape for one in joined] == [(2, 4)] * max_open
        add_all(collector, parts["right"][2 * max_open : 4 * max_open])  # now the other leads
        joined = add_all(collector, parts["left"][2 * max_open : 4 * max_open])
        assert len(joined) == max_open

    def test_joined_groups_and_others_share_the_places(self) -> None:
        collector = TrajectoryCollector(1, max_open=2, join=("left", "right"), columns=BOTH)
        collector.add(Key("left").env_part())
        collector.add(Key("top").env_part())
        collector.add(Key("right").env_part())  # of the trajectory that left began
        with pytest.raises(LimitExceededError):
            collector.add(Key("top", trajectory=1).env_part())
        collector.add(Key("top").policy_part())
        collector.add(Key("top", trajectory=1).env_part())
        with pytest.raises(LimitExceededError):
            collector.add(Key("right", trajectory=1).env_part())

    @pytest.mark.parametrize("join", [(), ("left", "right")])
    def test_what_is_closed_makes_room(
        self, join: tuple[str, ...], caplog: pytest.LogCaptureFixture
    ) -> None:
        collector = TrajectoryCollector(2, max_open=2, join=join)
        for incarnation in range(3):
            key = Key(incarnation=incarnation)
            collector.add(key.env_part())
            collector.add(replace(key, trajectory=1).env_part())
            if incarnation == 1:
                collector.flush()
        assert collector.get_stats()["num_open"] == 2
        with pytest.raises(LimitExceededError):
            collector.add(Key(incarnation=2, trajectory=2).env_part())

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

    @pytest.mark.parametrize("way", ["run", "close"])
    @pytest.mark.parametrize("num_taken", range(8))
    def test_what_could_not_be_handed_over_comes_next(
        self, num_taken: int, way: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The trainer takes so many of eight, then goes or is too slow; close() gives four."""
        parts = [part for k in range(3) for part in steps_of(Key(trajectory=k), 2, num_envs=4)]
        parts = [part for part in parts if part.trajectory < 2 or part.step == 0]
        parts += [Key("right").env_part(4), Key("right").policy_part(4)]
        plain = TrajectoryCollector(2, columns=BOTH, split=2)
        expected = [ids_of(one).tolist() for one in add_all(plain, parts) + plain.close()]
        collector = TrajectoryCollector(2, columns=BOTH, split=2)
        inbox: Channel[TrajectoryPart] = Channel(99)
        outbox: Channel[Trajectory] = Channel(max(1, num_taken), timeout_s=0)
        for part in parts:
            inbox.put(part)
        inbox.close()
        if not num_taken:
            outbox.close()
        with pytest.raises(TimeLimitError if num_taken else ClosedError):
            collector.run(inbox, outbox)
        taken = list(outbox)
        if way == "run":
            rest: Channel[Trajectory] = Channel(99)
            collector.run(inbox, rest)
            taken += rest
        else:
            taken += add_all(collector, list(inbox)) + collector.close()
        assert [ids_of(one).tolist() for one in taken] == expected
        assert collector.close() == []

    def test_what_could_not_be_handed_over_is_there_when_the_channel_is_closed(self) -> None:
        collector = TrajectoryCollector(1)
        found = []

        class Outbox(Channel[Trajectory]):
            def put(self, item: Trajectory, timeout_s: float | None = None) -> None:
                raise TimeLimitError("full")

            def close(self) -> None:
                super().close()
                found.extend(collector.close())

        inbox: Channel[TrajectoryPart] = Channel(9)
        inbox.put(Key().env_part())
        with pytest.raises(TimeLimitError):
            collector.run(inbox, Outbox(9))
        assert len(found) == 1

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
