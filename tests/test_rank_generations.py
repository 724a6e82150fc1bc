# SPDX-License-Identifier: Apache-2.0
"""Ranks over many saves and loads: nothing is lost, doubled, renamed or drawn alike."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relive import TrajectoryReplayBuffer
from relive.errors import MissingFileError
from trajectories import address_of, check_rows, make_checkpoint, same_trajectory, traj


def open_rank(folder: Path | None = None, **options: Any) -> TrajectoryReplayBuffer:
    options = {"sample_window_size": 0, **options}
    if folder is not None:
        options |= {"auto_save": True, "auto_save_path": folder}
    return TrajectoryReplayBuffer(**options)


def load_ranks(
    path: Path, world: int, parent: Path | None = None, **options: Any
) -> list[TrajectoryReplayBuffer]:
    """Load a checkpoint into a buffer for each rank; the ranks without data say so."""
    buffers = []
    for rank in range(world):
        buffer = open_rank(None if parent is None else parent / f"{rank}", **options)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            buffer.load_checkpoint(path, is_distributed=True, local_rank=rank, world_size=world)
        messages = [str(warning.message) for warning in told]
        # as of those whose writer this process let go of as a kill would
        messages = [one for one in messages if "open for writing" not in one]
        assert bool(messages) == (len(buffer) == 0), messages
        assert all(f"rank {rank} of {world} loaded no traj" in message for message in messages)
        buffers.append(buffer)
    return buffers


def save_ranks(buffers: Sequence[TrajectoryReplayBuffer], path: Path) -> None:
    for rank, buffer in enumerate(buffers):
        buffer.save_checkpoint(path / f"rank_{rank}")


def close_all(buffers: Iterable[TrajectoryReplayBuffer]) -> None:
    for buffer in buffers:
        buffer.close()


def held(buffer: TrajectoryReplayBuffer) -> dict[int, int]:
    """Return the number of each trajectory by its id, proven by its rows' addresses."""
    if not len(buffer):
        return {}
    batch, info = buffer.sample(60 * len(buffer), return_info=True)
    numbers = dict(zip(info.trajectory_ids.tolist(), address_of(batch)[0].tolist(), strict=True))
    assert len(numbers) == len(buffer)
    check_rows(batch, info, numbers)
    return numbers


def row_ids(buffer: TrajectoryReplayBuffer) -> set[int]:
    """Return the row ids of all rows."""
    if not len(buffer):
        return set()
    _, info = buffer.sample(200 * len(buffer), return_info=True)
    return set(info.row_ids.tolist())


class TestGenerations:
    @pytest.mark.parametrize("kind", ["memory", "disk"])
    def test_nothing_is_lost_doubled_or_renamed_as_the_world_changes(
        self, kind: str, tmp_path: Path
    ) -> None:
        saved = tmp_path / "saved"
        make_checkpoint(saved, [traj(k) for k in range(10)])
        expected = {k: k for k in range(10)}
        numbers = count(10)
        for generation, world in enumerate((3, 1, 4, 16, 2)):
            stores = None if kind == "memory" else tmp_path / f"stores-{generation}"
            buffers = load_ranks(saved, world, stores, trajectory_format="pkl", cache_size=1)
            shards = [held(buffer) for buffer in buffers]
            assert sum(map(len, shards)) == len(expected)
            assert {n: k for shard in shards for n, k in shard.items()} == expected
            for buffer in buffers:
                for k in (next(numbers), next(numbers)):
                    (new,) = buffer.add_trajectories([traj(k)])
                    assert new not in expected
                    expected[new] = k
            all_rows = [row_ids(buffer) for buffer in buffers]
            assert len(set().union(*all_rows)) == sum(map(len, all_rows)) == 12 * len(expected)
            saved = tmp_path / f"saved-{generation}"
            save_ranks(buffers, saved)
            close_all(buffers)

    def test_rows_keep_their_ids(self, tmp_path: Path) -> None:
        make_checkpoint(tmp_path / "a", [traj(k) for k in range(6)])
        buffers = load_ranks(tmp_path / "a", 3)
        for rank, buffer in enumerate(buffers):
            buffer.add_trajectories([traj(10 + rank)])
        sampled = [buffer.sample(40, return_info=True) for buffer in buffers]
        save_ranks(buffers, tmp_path / "b")
        whole = open_rank()
        whole.load_checkpoint(tmp_path / "b")
        for batch, info in sampled:
            again = whole.gather(info.row_ids)
            assert again["curr_obs"]["id"].tolist() == batch["curr_obs"]["id"].tolist()

    def test_a_rank_that_saves_anew_replaces_its_own_folder_only(self, tmp_path: Path) -> None:
        make_checkpoint(tmp_path / "a", [traj(k) for k in range(4)])
        buffers = load_ranks(tmp_path / "a", 2)
        save_ranks(buffers, tmp_path / "b")
        buffers[1].add_trajectories([traj(9)])
        buffers[1].save_checkpoint(tmp_path / "b" / "rank_1")
        whole = open_rank()
        whole.load_checkpoint(tmp_path / "b")
        assert sorted(held(whole).values()) == [0, 1, 2, 3, 9]

    def test_no_two_ranks_draw_alike_and_none_repeats_itself(self, tmp_path: Path) -> None:
        saved = tmp_path / "a"
        make_checkpoint(saved, [traj(k) for k in range(12)])
        drawn = []
        for generation in range(2):
            buffers = load_ranks(saved, 4)
            for buffer in buffers:
                _, info = buffer.sample(60, return_info=True)
                drawn.append(tuple((info.row_ids - info.row_ids.min()).tolist()))
            saved = tmp_path / f"{generation}"
            save_ranks(buffers, saved)
        assert len(set(drawn)) == len(drawn)


class TestStores:
    def test_a_rank_that_resumes_its_own_goes_on_exactly(self, tmp_path: Path) -> None:
        make_checkpoint(tmp_path / "a", [traj(k) for k in range(6)])
        buffers = load_ranks(tmp_path / "a", 2, tmp_path / "stores")
        state = buffers[1].state_dict()
        _, info = buffers[1].sample(30, return_info=True)
        buffers[1].load_state_dict(state)
        close_all(buffers)
        with open_rank(tmp_path / "stores" / "1", if_exists="resume") as buffer:
            assert buffer.state_dict() == state
            _, again = buffer.sample(30, return_info=True)
            np.testing.assert_array_equal(again.row_ids, info.row_ids)
            assert buffer.add_trajectories([traj(7), traj(9)]) == [7, 9]

    def test_a_load_into_a_ranks_own_store_keeps_what_is_still_its(self, tmp_path: Path) -> None:
        make_checkpoint(tmp_path / "a", [traj(k) for k in range(4)])
        buffers = load_ranks(tmp_path / "a", 2, tmp_path / "stores")
        for rank, buffer in enumerate(buffers):
            buffer.add_trajectories([traj(10 + rank)])
        save_ranks(buffers, tmp_path / "b")
        close_all(buffers)
        for rank in range(2):
            store = tmp_path / "stores" / f"{rank}"
            before = {path.name: path.stat().st_mtime_ns for path in store.glob("*.pt")}
            with open_rank(store, if_exists="resume") as buffer:
                with pytest.warns(UserWarning, match=r"1 trajectory of the store .*aside"):
                    buffer.load_checkpoint(
                        tmp_path / "b", is_distributed=True, local_rank=rank, world_size=2
                    )
                numbers = held(buffer)
                assert len(numbers) == 3
                for trajectory_id, k in numbers.items():
                    assert same_trajectory(buffer.trajectory(trajectory_id), traj(k))
            after = {path.name: path.stat().st_mtime_ns for path in store.glob("*.pt")}
            assert len(before.items() & after.items()) == 2

    def test_those_of_killed_and_closed_writers_load_as_one(self, tmp_path: Path) -> None:
        buffers = [open_rank(tmp_path / "run" / f"rank_{rank}") for rank in range(3)]
        for rank, buffer in enumerate(buffers):
            buffer.add_trajectories([traj(10 * rank + k) for k in range(2)])
            buffer.flush()
        buffers[0].close()
        loaded = load_ranks(tmp_path / "run", 2)  # the others are as a kill would leave them
        shards = [held(buffer) for buffer in loaded]
        assert sorted(k for shard in shards for k in shard.values()) == [0, 1, 10, 11, 20, 21]
        assert [len(shard) for shard in shards] == [3, 3]
        close_all(buffers)


class TestDamage:
    def test_a_rank_without_its_index_is_named_to_every_rank(self, tmp_path: Path) -> None:
        make_checkpoint(tmp_path / "a", [traj(k) for k in range(4)])
        save_ranks(load_ranks(tmp_path / "a", 2), tmp_path / "b")
        (tmp_path / "b" / "rank_1" / "metadata.json").unlink()
        for rank in range(2):
            buffer = open_rank()
            buffer.add_trajectories([traj(9)])
            with pytest.raises(MissingFileError, match=r"rank_1/metadata\.json"):
                buffer.load_checkpoint(
                    tmp_path / "b", is_distributed=True, local_rank=rank, world_size=2
                )
            assert held(buffer) == {0: 9}
