# SPDX-License-Identifier: Apache-2.0
"""`relive.collector`: what was published, in whatever order, leaves exactly once.

Every value carries its address, `Key.address` of `parts`, so each row of a trajectory proves where
it came from.
"""

from __future__ import annotations

import contextlib
import random
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from parts import BOTH, GROUPS, Key, add_all, ids_of, steps_of
from relive.collector import TrajectoryCollector
from relive.errors import ReplayError
from relive.part import TrajectoryPart
from relive.trajectory import Trajectory


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
