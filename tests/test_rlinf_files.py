# SPDX-License-Identifier: Apache-2.0
"""Trajectory files that RLinf wrote, in both formats; data/rlinf/README.md has the values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from relive.columns import Tree
from relive.errors import CorruptFileError
from relive.format_set import FormatSet
from relive.formats.foreign import trajectory_of
from relive.snapshot import Column, take_snapshot
from relive.trajectory import Trajectory
from rlinf_rows import DATA, NUM_ENVS, NUM_EPOCHS, NUM_STEPS, WEIGHTS_IDS, code

REWARDS = (1.24, 15.06, 17.24)


@dataclass(frozen=True)
class Fixture:
    path: Path
    number: int
    keeps_extra_flag_rows: bool

    def __str__(self) -> str:
        return str(self.path.relative_to(DATA).with_suffix(""))[:-37]

    def read(self) -> Trajectory:
        name = self.path.suffix[1:]
        return FormatSet(name).with_files(name).read_file(self.path)


def fixtures() -> Iterator[Fixture]:
    for folder in sorted(DATA.glob("*/*_autosave_*")):
        for number, weights_id in enumerate(WEIGHTS_IDS):
            name = f"trajectory_{number}_{weights_id}.{folder.name.split('_')[0]}"
            yield Fixture(folder / name, number, "autosave_true" in folder.name)


ALL = list(fixtures())
every_fixture = pytest.mark.parametrize("fixture", ALL, ids=str)


class TestRLinfFiles:
    def test_all_folders_of_both_versions_are_here(self) -> None:
        assert len(ALL) == 2 * 6 * 3
        assert all(fixture.path.is_file() for fixture in ALL)

    @every_fixture
    def test_what_the_policy_saw_and_did(self, fixture: Fixture) -> None:
        read, k = fixture.read(), fixture.number
        assert (read.max_episode_length, read.model_weights_id) == (50, WEIGHTS_IDS[k])
        assert read.rewards.shape == (NUM_STEPS[k], NUM_ENVS, 1)
        assert read.rewards.sum().item() == pytest.approx(REWARDS[k], abs=1e-4)
        assert np.allclose(read.actions, code(k, 3), atol=1e-4)
        assert np.allclose(read.prev_logprobs, -code(k, 3) / 1000, atol=1e-6)
        assert (read.versions == k).all()
        assert read.versions.shape == (NUM_STEPS[k], NUM_ENVS, 1)
        flags = (np.arange(read.intervene_flags.numel()) % 5 == 0).reshape(
            NUM_STEPS[k], NUM_ENVS, 3
        )
        assert read.intervene_flags.tolist() == flags.tolist()
        assert np.array_equal(read.forward_inputs["action"], read.actions)
        assert read.forward_inputs["chains"].shape == (NUM_STEPS[k], NUM_ENVS, 2, 3)
        assert np.array_equal(
            read.forward_inputs["chains"].flatten(), np.arange(NUM_STEPS[k] * NUM_ENVS * 6)
        )
        assert read.extras == {}
        assert read.gaps is None

    @every_fixture
    def test_observations(self, fixture: Fixture) -> None:
        read, k = fixture.read(), fixture.number
        assert np.allclose(read.curr_obs["states"], code(k, 4), atol=1e-4)
        assert np.allclose(read.next_obs["states"], code(k, 4) + 10, atol=1e-4)
        t, b, pixel = np.ogrid[: NUM_STEPS[k], :NUM_ENVS, :192]
        images = (pixel + 50 * k + 7 * t + 3 * b).reshape(NUM_STEPS[k], NUM_ENVS, 8, 8, 3)
        assert read.curr_obs["main_images"].dtype == torch.uint8
        assert np.array_equal(read.curr_obs["main_images"], images % 256)
        assert np.array_equal(read.next_obs["main_images"], (images + 7) % 256)

    @every_fixture
    def test_flags_and_values_have_their_extra_rows(self, fixture: Fixture) -> None:
        read, k = fixture.read(), fixture.number
        epoch = NUM_STEPS[k] // NUM_EPOCHS[k]
        first = [0] if fixture.keeps_extra_flag_rows else []
        dones = (first + [0] * (epoch - 1) + [1]) * NUM_EPOCHS[k]
        assert read.dones.shape == (len(dones), NUM_ENVS, 1)
        assert read.dones[:, 0, 0].tolist() == dones
        assert read.dones[:, 1, 0].tolist() == dones
        assert read.terminations[:, 0, 0].tolist() == dones
        assert read.truncations[:, 1, 0].tolist() == dones
        assert not read.terminations[:, 1].any()
        assert not read.truncations[:, 0].any()
        r, b, _ = np.ogrid[: NUM_STEPS[k] + NUM_EPOCHS[k], :NUM_ENVS, :1]
        assert np.array_equal(read.prev_values, 1000 * k + 2 * r + b)

    @every_fixture
    def test_a_buffer_takes_them(self, fixture: Fixture) -> None:
        snapshot = take_snapshot(fixture.read())
        k = fixture.number
        assert (snapshot.num_steps, snapshot.num_envs) == (NUM_STEPS[k], NUM_ENVS)
        assert snapshot.num_epochs == NUM_EPOCHS[k]


def column(*shape: int, dtype: str = "float32") -> Column:
    return Column(np.arange(np.prod(shape), dtype=dtype).reshape(shape), dtype)


def flags(*shape: int) -> Column:
    return Column(np.zeros(shape, np.bool_), "bool")


class TestFlattenedValues:
    @pytest.mark.parametrize(
        ("rewards", "values", "others", "expected"),
        [
            # [T, B, ...], prev_values as stored, other fields, prev_values as they were
            ((4, 2, 1), (10, 1), {}, (5, 2, 1)),
            ((4, 2, 1), (12, 1), {}, (6, 2, 1)),
            ((4, 2, 1), (16, 1), {}, (8, 2, 1)),
            ((4, 2), (10,), {}, (5, 2)),
            ((4, 2, 1), (4, 2, 1), {}, (4, 2, 1)),
            ((4, 2, 1), (6, 2, 1), {}, (6, 2, 1)),
            ((4, 2), (6, 2), {}, (6, 2)),
            ((2, 3, 2), (12, 3), {}, (4, 3, 3)),
            # with one env [T + E, 1] is what it is, unless rewards have one axis more and flags
            # have lost their extra rows too
            ((4, 1), (5,), {}, (5, 1)),
            ((4, 1), (5, 1), {}, (5, 1)),
            ((4, 1, 1), (5, 1), {}, (5, 1, 1)),
            ((4, 1, 1), (5, 1), {"dones": flags(4, 1, 1)}, (5, 1, 1)),
            ((4, 1, 1), (5, 1), {"dones": flags(5, 1, 1)}, (5, 1)),
            ((4, 1, 1), (5, 1, 1), {}, (5, 1, 1)),
            # what fits neither way is left for the buffer to refuse
            ((4, 2, 1), (11, 1), {}, (11, 1)),
            ((4, 2, 1), (14, 1), {}, (14, 1)),
            ((4, 2, 1), (), {}, ()),
        ],
    )
    def test_find_their_shape_again(
        self,
        rewards: tuple[int, ...],
        values: tuple[int, ...],
        others: dict[str, Column],
        expected: tuple[int, ...],
    ) -> None:
        tree = {"rewards": column(*rewards), "prev_values": column(*values), **others}
        read = trajectory_of(tree).prev_values
        assert read.shape == expected
        assert read.flatten().tolist() == list(range(read.numel()))

    def test_are_left_alone_where_nothing_tells_t_and_b(self) -> None:
        assert trajectory_of({"prev_values": column(10, 1)}).prev_values.shape == (10, 1)

    def test_observations_tell_t_and_b_as_well(self) -> None:
        tree: Tree = {"prev_values": column(10, 1), "next_obs": {"x": column(4, 2, 3)}}
        assert trajectory_of(tree).prev_values.shape == (5, 2, 1)


class TestOtherFields:
    def test_an_unknown_one_is_found_in_extras(self) -> None:
        tree: Tree = {"rewards": column(4, 2), "advantages": column(4, 2), "extras": {"a": 1}}
        read = trajectory_of(tree)
        assert set(read.extras) == {"a", "advantages"}
        assert not hasattr(read, "advantages")

    def test_no_name_overwrites_what_is_no_field(self) -> None:
        names = ["__class__", "__dict__", "__init__", "__setattr__", "extract_intervene_traj"]
        read = trajectory_of(dict.fromkeys(names, "overwritten"))
        assert type(read) is Trajectory
        assert set(vars(read)) == {spec.name for spec in fields(Trajectory)}
        assert set(read.extras) == set(names)

    @pytest.mark.parametrize(
        ("tree", "named"),
        [
            ({"curr_obs": column(4, 2)}, "curr_obs"),
            ({"forward_inputs": 5}, "forward_inputs"),
            ({5: column(4, 2)}, "key of type int"),
            ({"a": 1, "extras": {"a": 2}}, r"\['a'\]"),
        ],
    )
    def test_one_of_the_wrong_kind_is_named(self, tree: Any, named: str) -> None:
        with pytest.raises(CorruptFileError, match=named):
            trajectory_of(tree)
