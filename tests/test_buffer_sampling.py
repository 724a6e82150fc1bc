# SPDX-License-Identifier: Apache-2.0
"""Sampling from a buffer: exactly what was asked, in the rollout's structure, uniformly."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from buffers import open_buffer
from relive import Columns, Limits, Trajectory, TrajectoryReplayBuffer
from relive.errors import (
    ClosedError,
    ColumnMismatchError,
    EmptyBufferError,
    EvictedError,
    InvalidArgumentError,
    UnsupportedValueError,
)
from trajectories import address_of, check_rows, same_trajectory, traj

KINDS = ["memory", "pt", "pkl", "memmap"]

# chi-square is below these with probability 0.999 (1 - 1e-3), by degrees of freedom
CHI_SQUARE_999 = {11: 31.26, 23: 49.73, 35: 66.62}


def leaves(tree: dict[str, Any], path: str = "") -> dict[str, Any]:
    """Return the columns of a batch by their full names."""
    found: dict[str, Any] = {}
    for name, value in tree.items():
        is_dict = isinstance(value, dict)
        found |= leaves(value, f"{path}{name}/") if is_dict else {f"{path}{name}": value}
    return found


def drawn(buffer: TrajectoryReplayBuffer, num: int = 50) -> list[int]:
    """Return the row ids of the next batch."""
    ids: list[int] = buffer.sample(num, return_info=True)[1].row_ids.tolist()
    return ids


class TestCounts:
    """Numbers are rows where rows are meant, and never fewer than asked."""

    @pytest.mark.parametrize("num", [1, 3, 4, 10, 1000])
    def test_a_batch_has_exactly_the_rows_asked_for(self, num: int) -> None:
        buffer = TrajectoryReplayBuffer()
        buffer.add_trajectories([traj(0, T=2, B=2)])
        batch = buffer.sample(num_chunks=num)
        assert len(batch["rewards"]) == len(batch["curr_obs"]["id"]) == num
        check_rows(batch)

    def test_size_is_in_trajectories_and_total_samples_in_rows(self) -> None:
        buffer = TrajectoryReplayBuffer(sample_window_size=1)
        buffer.add_trajectories([traj(0, T=4, B=4)])
        assert (len(buffer), buffer.size, buffer.total_samples) == (1, 1, 16)
        distinct = [len(set(drawn(buffer, 16))) for _ in range(100)]
        assert 9.5 < np.mean(distinct) < 11.1  # 16 * (1 - (15 / 16) ** 16) = 10.3 are expected
        assert (buffer.is_ready(1), buffer.is_ready(2)) == (True, False)

    def test_an_empty_window_has_no_row_to_draw(self, tmp_path: Path) -> None:
        for kind in KINDS:
            buffer = open_buffer(kind, tmp_path / kind)
            with pytest.raises(EmptyBufferError, match="add_trajectories"):
                buffer.sample(1)
            with pytest.raises(EvictedError):
                buffer.gather([0])
            buffer.close()


class TestFilledPart:
    """Elsewhere rows came that nobody had written yet: black images, and empty slots."""

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("lengths", [[], [31] * 3, [31] * 3 + [1], [31] * 3 + [2]], ids=str)
    def test_a_bound_in_rows_gives_only_rows_that_are_there(
        self, kind: str, lengths: list[int], tmp_path: Path
    ) -> None:
        """Six rows of a hundred; then 99, 100, and 101, of which the first six have to go."""
        limits = Limits(max_samples=100)
        with open_buffer(kind, tmp_path, limits=limits, sample_window_size=0) as buffer:
            shapes = self.add(buffer, lengths)
            if sum(lengths) == 95:
                del shapes[0]
            self.check(buffer, shapes)

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("num", [1, 4, 5, 6])
    def test_a_window_gives_only_rows_of_its_trajectories(
        self, kind: str, num: int, tmp_path: Path
    ) -> None:
        with open_buffer(kind, tmp_path, sample_window_size=5) as buffer:
            shapes = self.add(buffer, range(1, num))
            self.check(buffer, dict(list(shapes.items())[-5:]))

    def add(
        self, buffer: TrajectoryReplayBuffer, lengths: Iterable[int]
    ) -> dict[int, tuple[int, int]]:
        """Add a trajectory of 3 by 2, and others of these lengths; return their T and B."""
        shapes = dict(enumerate([(3, 2), *((T, 1) for T in lengths)]))
        for k, (T, B) in shapes.items():
            one = traj(k, T, B)
            for observation in (one.curr_obs, one.next_obs):
                observation["image"] = np.full((T, B, 4, 4, 3), 200, np.uint8)
            buffer.add_trajectories([one])
        return shapes

    def check(self, buffer: TrajectoryReplayBuffer, shapes: dict[int, tuple[int, int]]) -> None:
        batch = buffer.sample(2000)
        check_rows(batch)
        assert bool((batch["curr_obs"]["image"] == 200).all())
        assert bool((batch["next_obs"]["image"] == 200).all())
        seen = set(zip(*(part.tolist() for part in address_of(batch)), strict=True))
        there = {(k, t, b) for k, (T, B) in shapes.items() for t in range(T) for b in range(B)}
        assert seen == there


class TestStructure:
    def test_a_batch_has_the_keys_of_the_trajectory_at_any_depth(self) -> None:
        buffer = TrajectoryReplayBuffer()
        column = torch.arange(12).reshape(3, 4)
        buffer.add_trajectories(
            [
                Trajectory(
                    rewards=column,
                    curr_obs={"robot": {"arm": {"joint": {"q": column[..., None]}}}, "x": column},
                    forward_inputs={"tokens": column[..., None, None]},
                    extras={"task": {"level": column}, "note": "kept with the trajectory"},
                )
            ]
        )
        batch = buffer.sample(5)
        assert set(batch) == {"rewards", "curr_obs", "forward_inputs", "extras"}
        assert batch["curr_obs"]["robot"]["arm"]["joint"]["q"].shape == (5, 1)
        assert batch["forward_inputs"]["tokens"].shape == (5, 1, 1)
        assert set(batch["extras"]) == {"task"}
        assert set(batch["extras"]["task"]) == {"level"}
        assert batch["rewards"].shape == (5,)
        assert buffer.trajectory(0).extras["note"] == "kept with the trajectory"

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("cuts", [[0, 1, 2, 3], [0, 2, 3], [0, 1, 3]], ids=str)
    def test_adding_one_by_one_or_at_once_comes_to_the_same(
        self, kind: str, cuts: list[int], tmp_path: Path
    ) -> None:
        """Elsewhere one by one and as a list gave samples of different shapes."""
        made = [traj(0, T=3, B=1), traj(1, T=2, B=4), traj(2, T=1, B=1)]
        options: dict[str, Any] = {"seed": 5, "cache_size": 1}
        with (
            open_buffer(kind, tmp_path / "in portions", **options) as in_portions,
            open_buffer(kind, tmp_path / "at once", **options) as at_once,
        ):
            ids = [
                trajectory_id
                for start, stop in pairwise(cuts)
                for trajectory_id in in_portions.add_trajectories(made[start:stop])
            ]
            assert at_once.add_trajectories(made) == ids == [0, 1, 2]
            for buffer in (in_portions, at_once):
                buffer.flush()
            first, info = in_portions.sample(64, return_info=True)
            second, other_info = at_once.sample(64, return_info=True)
            check_rows(first, info, {0: 0, 1: 1, 2: 2})
            np.testing.assert_array_equal(info.row_ids, other_info.row_ids)
            assert list(leaves(first)) == list(leaves(second))
            for name, column in leaves(first).items():
                assert torch.equal(column, leaves(second)[name]), name

    @pytest.mark.parametrize("kind", KINDS)
    def test_t_and_b_of_one_are_kept_as_axes(self, kind: str, tmp_path: Path) -> None:
        with open_buffer(kind, tmp_path, cache_size=0) as buffer:
            buffer.add_trajectories([traj(0, T=1, B=1)])
            buffer.flush()
            whole, batch = buffer.trajectory(0), buffer.sample(3)
            assert (whole.rewards.shape, whole.actions.shape) == ((1, 1), (1, 1, 2))
            assert (whole.dones.shape, whole.curr_obs["id"].shape) == ((1, 1), (1, 1))
            assert (batch["rewards"].shape, batch["actions"].shape) == ((3,), (3, 2))
            assert (batch["dones"].shape, batch["curr_obs"]["id"].shape) == ((3,), (3,))

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("cache_size", [0, 5])
    def test_the_first_flag_row_of_each_epoch_and_the_last_value_are_no_samples(
        self, kind: str, cache_size: int, tmp_path: Path
    ) -> None:
        """RLinf had flags one step late; T = B, so that swapped axes cannot hide."""
        with open_buffer(kind, tmp_path, cache_size=cache_size) as buffer:
            buffer.add_trajectories([traj(0, T=6, B=6, E=3), traj(1, T=6, B=2, E=1)])
            buffer.flush()
            batch, info = buffer.sample(400, return_info=True)
            check_rows(batch, info, {0: 0, 1: 1})
            assert buffer.trajectory(0).dones.shape == (9, 6)
            assert buffer.trajectory(0).prev_values.shape == (9, 6)


DTYPES = [
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64),
]


class TestElementTypes:
    """Whatever goes in comes out, at each station: elsewhere images came out as float32."""

    @pytest.mark.parametrize("kind", KINDS)
    def test_types_are_kept_in_batches_files_and_checkpoints(
        self, kind: str, tmp_path: Path
    ) -> None:
        columns = {
            str(dtype): (torch.arange(24).reshape(4, 6) % 2 + torch.arange(6)).to(dtype)
            for dtype in DTYPES
        }
        columns["float8"] = torch.arange(24.0).reshape(4, 6).to(torch.float8_e4m3fn)
        trajectory = Trajectory(
            rewards=torch.zeros(4, 6),
            curr_obs=columns,
            next_obs={"row": torch.arange(24).view(4, 6)},
        )
        with open_buffer(kind, tmp_path, cache_size=0) as buffer:
            buffer.add_trajectories([trajectory])
            buffer.flush()
            self.check(buffer, columns)
            buffer.save_checkpoint(tmp_path / "checkpoint" / "rank_0")
        with TrajectoryReplayBuffer() as other:
            other.load_checkpoint(tmp_path / "checkpoint" / "rank_0")
            self.check(other, columns)
        with TrajectoryReplayBuffer() as second:
            second.add_trajectories([trajectory])
            second.save_checkpoint(tmp_path / "checkpoint" / "rank_1")
        with open_buffer(kind, tmp_path / "merged", cache_size=0) as merged:
            merged.load_checkpoint(tmp_path / "checkpoint")
            assert (len(merged), merged.total_samples) == (2, 48)
            self.check(merged, columns)

    @staticmethod
    def check(buffer: TrajectoryReplayBuffer, columns: dict[str, torch.Tensor]) -> None:
        batch = buffer.sample(30)
        rows = batch["next_obs"]["row"]
        stored = buffer.trajectory(0)
        for name, column in columns.items():
            got = batch["curr_obs"][name]
            assert got.dtype == column.dtype
            as_bytes = column.reshape(24, 1).view(torch.uint8)
            assert torch.equal(got[:, None].view(torch.uint8), as_bytes[rows])
            assert stored.curr_obs[name].dtype == column.dtype
            assert torch.equal(stored.curr_obs[name].view(torch.uint8), column.view(torch.uint8))

    @pytest.mark.parametrize("kind", ["pt", "pkl", "memmap"])
    def test_an_image_takes_its_own_bytes_on_disk(self, kind: str, tmp_path: Path) -> None:
        images = torch.randint(0, 256, (8, 4, 3, 64, 64), dtype=torch.uint8)
        with open_buffer(kind, tmp_path) as buffer:
            buffer.add_trajectories([Trajectory(curr_obs={"image": images})])
            assert buffer.get_stats()["size_bytes"] == 8 * 4 * 12_288
        patterns = {"memmap": "segments/*/*.bin"}
        stored = list((tmp_path / "store").glob(patterns.get(kind, f"*.{kind}")))
        assert len(stored) == (3 if kind == "memmap" else 1)
        assert 1 <= sum(path.stat().st_size for path in stored) / (8 * 4 * 12_288) < 1.05

    @pytest.mark.parametrize("kind", KINDS)
    def test_trajectories_of_any_length_take_their_own_bytes(
        self, kind: str, tmp_path: Path
    ) -> None:
        """Elsewhere all had to be padded to the longest."""
        lengths = [1, 7, 300]
        with open_buffer(kind, tmp_path, cache_size=0) as buffer:
            made = [traj(k, T=T, B=2, wide=True) for k, T in enumerate(lengths)]
            assert buffer.add_trajectories(made) == [0, 1, 2]
            row_bytes = buffer.get_stats()["size_bytes"] / sum(2 * T for T in lengths)
            buffer.flush()
            batch, info = buffer.sample(3000, return_info=True)
            check_rows(batch, info, {0: 0, 1: 1, 2: 2})
            assert set(info.trajectory_ids.tolist()) == {0, 1, 2}
            for k, one in enumerate(made):
                assert same_trajectory(buffer.trajectory(k), one)
        if kind == "memory":
            return
        if kind == "memmap":
            stored = (tmp_path / "store").glob("segments/00000000/*.bin")
            size = sum(path.stat().st_size for path in stored)
            assert 0 <= size - sum(2 * T for T in lengths) * row_bytes < 10_000
            return
        for k, T in enumerate(lengths):
            (file,) = (tmp_path / "store").glob(f"trajectory_{k}_*.{kind}")
            assert 0 <= file.stat().st_size - 2 * T * row_bytes < 10_000  # names, shapes, sums

    def test_framework_numpy_gives_arrays_and_refuses_what_numpy_has_not(self) -> None:
        buffer = TrajectoryReplayBuffer(framework="numpy")
        buffer.add_trajectories(
            [
                Trajectory(
                    rewards=np.arange(6, dtype=">f4").reshape(3, 2),
                    actions=torch.zeros(3, 2, dtype=torch.bfloat16),
                )
            ]
        )
        with pytest.raises(UnsupportedValueError, match=r"'actions' is bfloat16.*columns="):
            buffer.sample(1)
        with pytest.raises(UnsupportedValueError, match="actions"):
            buffer.trajectory(0)
        rewards = buffer.sample(2, columns=["rewards"])["rewards"]
        assert isinstance(rewards, np.ndarray)
        assert rewards.dtype == np.dtype("=f4")

    def test_framework_torch_gives_tensors_whatever_was_added(self) -> None:
        buffer = TrajectoryReplayBuffer()
        buffer.add_trajectories([traj(0)])
        assert isinstance(buffer.sample(1)["curr_obs"]["camera"]["pixels"], torch.Tensor)
        assert isinstance(buffer.trajectory(0).rewards, torch.Tensor)


class TestChosenColumns:
    def test_only_the_columns_asked_for_come(self) -> None:
        buffer = TrajectoryReplayBuffer()
        buffer.add_trajectories([traj(0)])
        batch = buffer.sample(3, columns=["curr_obs/camera", "rewards"])
        assert set(batch) == {"rewards", "curr_obs"}
        assert set(batch["curr_obs"]) == {"camera"}
        assert set(buffer.gather([0], columns=["dones"])) == {"dones"}

    def test_the_same_rows_come_whichever_columns_are_asked_for(self) -> None:
        one, other = TrajectoryReplayBuffer(), TrajectoryReplayBuffer()
        for buffer in (one, other):
            buffer.add_trajectories([traj(0), traj(1)])
        all_of_it = one.sample(20)["curr_obs"]["id"]
        assert torch.equal(other.sample(20, columns=["curr_obs/id"])["curr_obs"]["id"], all_of_it)

    @pytest.mark.parametrize("name", ["reward", "curr_obs/nothing", "curr", ""])
    def test_a_column_that_is_not_there_is_named(self, name: str) -> None:
        buffer = TrajectoryReplayBuffer()
        buffer.add_trajectories([traj(0)])
        with pytest.raises(ColumnMismatchError, match=f"column '{name}' is not") as raised:
            buffer.sample(3, columns=[name])
        assert raised.value.column == name

    @pytest.mark.parametrize("columns", ["rewards", [], 5])
    def test_columns_are_a_list(self, columns: Any) -> None:
        buffer = TrajectoryReplayBuffer()
        buffer.add_trajectories([traj(0)])
        with pytest.raises(InvalidArgumentError, match="columns"):
            buffer.sample(3, columns=columns)


class TestText:
    @pytest.mark.parametrize("kind", KINDS)
    def test_text_comes_as_strings_or_as_codes(self, kind: str, tmp_path: Path) -> None:
        with open_buffer(kind, tmp_path, cache_size=0) as buffer:
            buffer.add_trajectories(
                [
                    traj(0, T=2, B=2, extra={"task": ["pick", "place"]}),
                    traj(1, T=2, B=2, extra={"task": [["place", "push"], ["", "pick"]]}),
                ]
            )
            buffer.flush()
            told = {
                (0, t, b): text for t in range(2) for b, text in enumerate(["pick", "place"])
            } | {(1, 0, 0): "place", (1, 0, 1): "push", (1, 1, 0): "", (1, 1, 1): "pick"}
            batch = buffer.sample(40)
            rows = list(zip(*(part.tolist() for part in address_of(batch)), strict=True))
            assert batch["extras"]["task"] == [told[row] for row in rows]
            batch, info = buffer.sample(40, return_info=True, text="codes")
            rows = list(zip(*(part.tolist() for part in address_of(batch)), strict=True))
            codes = batch["extras"]["task"]
            assert codes.dtype == torch.int64
            table = info.texts["extras/task"]
            assert [table[code] for code in codes.tolist()] == [told[row] for row in rows]
            assert buffer.trajectory(0).extras["task"] == ["pick", "place"]
            assert buffer.trajectory(1).extras["task"] == [["place", "push"], ["", "pick"]]

    def test_codes_need_the_info_that_explains_them(self) -> None:
        buffer = TrajectoryReplayBuffer()
        buffer.add_trajectories([traj(0)])
        for options in ({"text": "codes"}, {"text": "utf8", "return_info": True}):
            with pytest.raises(InvalidArgumentError, match="text"):
                buffer.sample(1, **options)


class TestInfo:
    @pytest.mark.parametrize("kind", KINDS)
    def test_the_same_rows_are_gathered_again(self, kind: str, tmp_path: Path) -> None:
        with open_buffer(kind, tmp_path, cache_size=1) as buffer:
            buffer.add_trajectories([traj(k, T=3 + k, B=2, wide=True) for k in range(4)])
            batch, info = buffer.sample(100, return_info=True)
            check_rows(batch, info, {k: k for k in range(4)})
            again = buffer.gather(info.row_ids)
            assert torch.equal(again["curr_obs"]["wide"], batch["curr_obs"]["wide"])
            check_rows(again)
            assert info.weights.tolist() == [1.0] * 100
            np.testing.assert_allclose(info.probabilities, 1 / buffer.total_samples)
            in_lists = buffer.gather(info.row_ids.tolist())
            assert torch.equal(in_lists["curr_obs"]["id"], batch["curr_obs"]["id"])
            as_tensor: Any = torch.from_numpy(info.row_ids)
            assert torch.equal(buffer.gather(as_tensor)["rewards"], batch["rewards"])

    def test_rows_outside_the_window_are_gathered_too(self, tmp_path: Path) -> None:
        with open_buffer("pt", tmp_path, sample_window_size=1, cache_size=0) as buffer:
            buffer.add_trajectories([traj(0, T=2, B=2), traj(1, T=2, B=2)])
            assert buffer.gather([3, 4, 3])["curr_obs"]["id"].tolist() == [
                1_001,
                1_000_000,
                1_001,
            ]

    def test_rows_that_are_gone_are_named(self) -> None:
        buffer = TrajectoryReplayBuffer(limits=Limits(max_trajectories=1))
        buffer.add_trajectories([traj(0, T=1, B=2), traj(1, T=1, B=2)])
        for row_ids, gone in (([2, 1, 0], (0, 1)), ([4], (4,)), ([-1], (-1,))):
            with pytest.raises(EvictedError, match="row ids") as raised:
                buffer.gather(row_ids)
            assert raised.value.ids == gone


class TestUniformity:
    """Chi-square over all rows of the window, with a fixed seed."""

    @pytest.mark.parametrize(
        "shapes", [[(12, 1)], [(2, 3), (6, 1), (4, 6)], [(1, 1), (5, 7)]], ids=str
    )
    def test_each_row_of_the_window_has_the_same_chance(
        self, shapes: list[tuple[int, int]]
    ) -> None:
        buffer = TrajectoryReplayBuffer(seed=11, sample_window_size=len(shapes))
        buffer.add_trajectories([traj(99, T=9, B=9)])
        buffer.add_trajectories([traj(k, T, B) for k, (T, B) in enumerate(shapes)])
        num_rows = sum(T * B for T, B in shapes)
        counts = np.zeros(num_rows, np.int64)
        batches = [np.asarray(drawn(buffer, 256)) - 81 for _ in range(100)]
        for rows in batches:
            counts += np.bincount(rows, minlength=num_rows)
        expected = counts.sum() / num_rows
        chi_square = float(((counts - expected) ** 2 / expected).sum())
        assert chi_square < CHI_SQUARE_999[num_rows - 1]
        # places in a batch are alike too: the first half of all batches draws as the second does
        halves = np.concatenate([rows[:128] for rows in batches])
        assert abs(halves.mean() - np.concatenate(batches).mean()) < 0.05 * num_rows

    def test_draws_of_one_batch_are_independent(self) -> None:
        buffer = TrajectoryReplayBuffer(seed=3)
        buffer.add_trajectories([traj(0, T=2, B=1)])
        pairs = np.array([drawn(buffer, 2) for _ in range(1000)])
        share = float((pairs[:, 0] == pairs[:, 1]).mean())
        assert abs(share - 0.5) < 4 * 0.5 / np.sqrt(1000)


class TestWindow:
    @pytest.mark.parametrize("kind", KINDS)
    def test_only_the_newest_are_drawn_as_the_window_moves(self, kind: str, tmp_path: Path) -> None:
        with open_buffer(kind, tmp_path, sample_window_size=2, cache_size=1) as buffer:
            for k in range(6):
                buffer.add_trajectories([traj(k, T=2 + k % 2, B=2)])
                seen = set(address_of(buffer.sample(100))[0].tolist())
                assert seen == {max(0, k - 1), k}
            assert len(buffer) == 6
            assert buffer.get_stats()["sampleable_trajectories"] == 2

    def test_without_a_window_everything_is_drawn(self) -> None:
        buffer = TrajectoryReplayBuffer(sample_window_size=0)
        buffer.add_trajectories([traj(k, T=1, B=1) for k in range(8)])
        assert set(address_of(buffer.sample(200))[0].tolist()) == set(range(8))

    def test_the_window_can_be_changed_at_any_time(self, tmp_path: Path) -> None:
        with open_buffer("pt", tmp_path, sample_window_size=1) as buffer:
            buffer.add_trajectories([traj(k, T=1, B=1) for k in range(5)])
            buffer.sample_window_size = 3
            assert set(address_of(buffer.sample(100))[0].tolist()) == {2, 3, 4}
            buffer.sample_window_size = 0
            assert set(address_of(buffer.sample(100))[0].tolist()) == set(range(5))
            with pytest.raises(InvalidArgumentError, match="sample_window_size is -1"):
                buffer.sample_window_size = -1
            assert buffer.sample_window_size == 0

    def test_a_smaller_window_forgets_more_at_the_next_addition(self) -> None:
        buffer = TrajectoryReplayBuffer(sample_window_size=4)
        buffer.add_trajectories([traj(k, T=1, B=1) for k in range(4)])
        buffer.sample_window_size = 2
        buffer.add_trajectories([traj(4, T=1, B=1)])
        assert set(address_of(buffer.sample(100))[0].tolist()) == {3, 4}
        assert (len(buffer), buffer.get_stats()["cache_size"]) == (5, 2)


class TestSeeds:
    """Elsewhere resumed runs began their draws again, and all workers drew the same."""

    def filled(self, **options: Any) -> TrajectoryReplayBuffer:
        buffer = TrajectoryReplayBuffer(**options)
        buffer.add_trajectories([traj(0, T=10, B=10)])
        return buffer

    def test_one_seed_gives_one_sequence(self) -> None:
        one, other = self.filled(seed=7), self.filled(seed=7)
        assert [drawn(one) for _ in range(3)] == [drawn(other) for _ in range(3)]

    def test_seeds_and_streams_differ(self) -> None:
        options: list[dict[str, Any]] = [
            {"seed": 7},
            {"seed": 8},
            {"seed": None},
            {"seed": None},
            *({"seed": 7, "stream": stream} for stream in [(0,), (1,), (0, 1), (1, 0), [0, 0]]),
        ]
        draws = [tuple(drawn(self.filled(**one))) for one in options]
        assert len(set(draws)) == len(draws)

    def test_a_drawn_seed_is_told_and_repeats_the_draws(self) -> None:
        buffer = self.filled(seed=None)
        assert drawn(self.filled(seed=buffer.seed)) == drawn(buffer)

    def test_no_global_generator_is_touched(self) -> None:
        before: tuple[Any, Any] = np.random.get_state(), torch.get_rng_state()
        drawn(self.filled(seed=7))
        drawn(self.filled(seed=None))
        after: tuple[Any, Any] = np.random.get_state(), torch.get_rng_state()
        assert np.array_equal(before[0][1], after[0][1])
        assert torch.equal(before[1], after[1])

    def test_a_saved_state_goes_on_in_another_process(self, tmp_path: Path) -> None:
        buffer = self.filled(seed=7)
        first = drawn(buffer)
        buffer.save_checkpoint(tmp_path / "checkpoint")
        second = drawn(buffer)
        script = (
            "import sys, relive\n"
            "buffer = relive.TrajectoryReplayBuffer(seed=1, framework='numpy')\n"
            "buffer.load_checkpoint(sys.argv[1])\n"
            "print(buffer.sample(50, return_info=True)[1].row_ids.tolist())\n"
        )
        ran = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path / "checkpoint")],
            capture_output=True,
            text=True,
            check=True,
        )
        assert ran.stdout.strip() == str(second) != str(first)

    def test_a_state_dict_goes_on_and_only_moves_counters_forward(self) -> None:
        buffer, other = self.filled(seed=7), self.filled(seed=9)
        buffer.add_trajectories([traj(1, T=10, B=10)])
        buffer.delete([1])
        state = buffer.state_dict()
        expected = drawn(buffer)
        other.load_state_dict(state)
        assert drawn(other) == expected
        assert other.trajectory_counter == 2
        other.add_trajectories([traj(5), traj(6)])
        other.load_state_dict(state)
        assert other.trajectory_counter == 4
        assert other.gather([200])["curr_obs"]["id"].tolist() == [5_000_000]

    def test_a_state_dict_whose_counters_are_spent_changes_nothing(self) -> None:
        buffer, other = self.filled(seed=7), self.filled(seed=9)
        before = other.state_dict()
        with pytest.raises(InvalidArgumentError, match=r"trajectory id .* is too large"):
            other.load_state_dict({**buffer.state_dict(), "trajectory_counter": 1 << 62})
        assert other.state_dict() == before

    def test_without_an_id_left_nothing_is_added(self) -> None:
        buffer = self.filled(seed=7)
        buffer.load_state_dict({**buffer.state_dict(), "trajectory_counter": (1 << 62) - 2})
        expected = buffer.state_dict()
        with pytest.raises(InvalidArgumentError, match=r"trajectory id .* is too large"):
            buffer.add_trajectories([traj(1), traj(2)])
        assert (len(buffer), buffer.state_dict()) == (1, expected)


class TestBatchMemory:
    """A batch is the caller's; nothing that he does to it reaches the buffer."""

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("cache_size", [0, 5])
    @pytest.mark.parametrize("framework", ["torch", "numpy"])
    def test_writing_to_a_batch_changes_nothing_stored(
        self, kind: str, cache_size: int, framework: str, tmp_path: Path
    ) -> None:
        with open_buffer(kind, tmp_path, cache_size=cache_size, framework=framework) as buffer:
            buffer.add_trajectories([traj(0, wide=True)])
            for _ in range(2):
                batch = buffer.sample(30)
                check_rows(batch)
                self.spoil(batch)
                whole = buffer.trajectory(0)
                self.spoil({"a": whole.rewards, "b": whole.curr_obs, "c": whole.dones})
                buffer.flush()
            check_rows(buffer.sample(30))

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("cache_size", [0, 5])
    @pytest.mark.parametrize("framework", ["torch", "numpy"])
    def test_rows_of_read_only_arrays_can_be_changed_in_place(
        self, kind: str, cache_size: int, framework: str, tmp_path: Path
    ) -> None:
        """Arrays out of an object store or raw bytes are read-only; batches of them were too."""
        one = traj(0, wide=True)
        for column in leaves(vars(one)).values():
            if isinstance(column, np.ndarray):
                column.flags.writeable = False
        with open_buffer(kind, tmp_path, cache_size=cache_size, framework=framework) as buffer:
            buffer.add_trajectories([one])
            for _ in range(2):  # while it waits to be written, and from its file
                batch = buffer.sample(30)
                check_rows(batch)
                before = np.asarray(batch["rewards"]).copy()
                batch["rewards"] += 1
                batch["curr_obs"]["wide"] += 1
                np.testing.assert_array_equal(batch["rewards"], before + 1)
                assert same_trajectory(buffer.trajectory(0), traj(0, wide=True))
                buffer.flush()
            check_rows(buffer.sample(30))

    def spoil(self, tree: dict[str, Any]) -> None:
        for value in tree.values():
            if isinstance(value, dict):
                self.spoil(value)
            else:
                value[...] = 1

    def test_batches_do_not_share_memory(self) -> None:
        buffer = TrajectoryReplayBuffer(framework="numpy")
        buffer.add_trajectories([traj(0, wide=True)])
        one, other = buffer.sample(5), buffer.sample(5)
        arrays: list[Callable[[Any], NDArray[Any]]] = [
            lambda batch: batch["rewards"],
            lambda batch: batch["curr_obs"]["wide"],
        ]
        for pick in arrays:
            assert not np.shares_memory(pick(one), pick(other))


class TestAfterClearing:
    def test_rows_are_found_anew_whatever_was_there_before(self) -> None:
        """What helps to find rows among many trajectories once outlived them."""
        buffer = TrajectoryReplayBuffer(sample_window_size=0, framework="numpy")
        buffer.add_trajectories([traj(k % 1000, T=1 + k % 2, B=1) for k in range(1000)])
        buffer.delete(range(140))
        buffer.add_trajectories([traj(0, T=1, B=1)])
        buffer.clear()
        ids = [buffer.add_trajectories([traj(k, T=1 + k % 2, B=1)])[0] for k in range(106)]
        batch, info = buffer.sample(5000, return_info=True)
        k, t, _ = address_of(batch)
        assert len(np.unique(batch["curr_obs"]["id"])) == 159
        assert np.array_equal(info.trajectory_ids, np.array(ids)[k])
        assert np.array_equal(info.steps, t)
        assert np.array_equal(
            buffer.gather(info.row_ids)["curr_obs"]["id"], batch["curr_obs"]["id"]
        )


class TestReadiness:
    def test_waiting_for_trajectories_ends_when_they_come(self) -> None:
        async def main() -> tuple[bool, bool, bool]:
            buffer = TrajectoryReplayBuffer()
            at_once = await buffer.is_ready_async(2)
            in_vain = await buffer.is_ready_async(2, timeout_s=0.01)
            waiting = asyncio.ensure_future(buffer.is_ready_async(2, timeout_s=600))
            await asyncio.sleep(0)
            buffer.add_trajectories([traj(0)])
            await asyncio.sleep(0)
            await asyncio.to_thread(buffer.add_trajectories, [traj(1)])
            return at_once, in_vain, await waiting

        assert asyncio.run(main()) == (False, False, True)

    @pytest.mark.parametrize("kind", ["memory", "pt"])
    def test_waiting_ends_when_the_buffer_is_closed(self, kind: str, tmp_path: Path) -> None:
        buffer = TrajectoryReplayBuffer() if kind == "memory" else open_buffer("pt", tmp_path)

        async def main() -> None:
            waiting = asyncio.ensure_future(buffer.is_ready_async(1, timeout_s=600))
            await asyncio.sleep(0)
            buffer.close()
            with pytest.raises(ClosedError, match="the buffer is closed"):
                # long before its own limit, at which it would look too
                await asyncio.wait_for(waiting, 60)

        asyncio.run(main())


class TestDefaults:
    def test_a_missing_optional_column_is_its_default_in_the_drawn_order(
        self, tmp_path: Path
    ) -> None:
        columns = Columns(
            optional={"intervene_flags": False, "extras/task": "none", "extras/big": 2.5}
        )
        with open_buffer("pt", tmp_path, cache_size=0, columns=columns) as buffer:
            plain, full = traj(0, T=2, B=2), traj(1, T=2, B=2)
            full.intervene_flags = np.ones((2, 2, 3), np.bool_)
            full.extras = {"task": ["pick", "place"], "big": np.ones((2, 2, 1500), np.float32)}
            buffer.add_trajectories([plain, full])
            batch = buffer.sample(60)
            k, _, b = address_of(batch)
            assert batch["intervene_flags"].dtype == torch.bool
            assert batch["intervene_flags"].tolist() == [[bool(one)] * 3 for one in k]
            told = np.where(k == 0, "none", np.where(b == 0, "pick", "place"))
            assert batch["extras"]["task"] == told.tolist()
            big = batch["extras"]["big"].numpy()
            assert big.shape == (60, 1500)
            np.testing.assert_array_equal(big, np.where(k == 0, 2.5, 1)[:, None].repeat(1500, 1))
