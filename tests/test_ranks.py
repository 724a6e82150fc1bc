# SPDX-License-Identifier: Apache-2.0
"""Distributed loading: every trajectory to one rank, and nothing two ranks give alike."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relive import Trajectory, TrajectoryReplayBuffer
from relive.errors import ColumnMismatchError, CorruptFileError, InvalidArgumentError
from relive.sharding import shard_bounds
from trajectories import address_of, check_rows, make_checkpoint, same_trajectory, traj

WORLDS = [1, 2, 3, 4, 10, 16]


@contextmanager
def load_all(
    path: Path, world: int, stores: Path | None = None, **options: Any
) -> Iterator[list[TrajectoryReplayBuffer]]:
    """Yield the buffer of each rank, loaded from a checkpoint; without a warning in between."""
    buffers = []
    for rank in range(world):
        if stores is not None:
            options |= {"auto_save": True, "auto_save_path": stores / str(rank)}
        buffer = TrajectoryReplayBuffer(**{"sample_window_size": 0, **options})
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="rank .* loaded no trajectory")
            buffer.load_checkpoint(path, is_distributed=True, local_rank=rank, world_size=world)
        buffers.append(buffer)
    yield buffers
    for buffer in buffers:
        buffer.close()


def ids_of(buffer: TrajectoryReplayBuffer) -> list[int]:
    """Return the ids of all trajectories, in order of arrival."""
    ids: list[int] = buffer._store.index.window(0).trajectory_ids.tolist()
    return ids


def ks_of(buffer: TrajectoryReplayBuffer) -> list[int]:
    """Return the numbers of all trajectories, in order of arrival."""
    firsts = [buffer.trajectory(trajectory_id).curr_obs["id"] for trajectory_id in ids_of(buffer)]
    return [int(first[0, 0]) // 1_000_000 for first in firsts]


def row_ids_of(buffer: TrajectoryReplayBuffer) -> set[int]:
    window = buffer._store.index.window(0)
    return {
        first + row
        for first, count in zip(window.first_row_ids.tolist(), window.counts.tolist(), strict=True)
        for row in range(count)
    }


def save_all(buffers: Sequence[TrajectoryReplayBuffer], parent: Path) -> None:
    for rank, buffer in enumerate(buffers):
        buffer.save_checkpoint(parent / f"rank_{rank}")


class TestOneFolder:
    @pytest.mark.parametrize("world", WORLDS)
    def test_each_trajectory_goes_to_one_rank(self, world: int, tmp_path: Path) -> None:
        make_checkpoint(tmp_path / "checkpoint", [traj(k, T=k + 1, B=1) for k in range(10)])
        with load_all(tmp_path / "checkpoint", world) as buffers:
            shards = [ks_of(buffer) for buffer in buffers]
            assert list(itertools.chain(*shards)) == list(range(10))
            sizes = [len(shard) for shard in shards]
            assert max(sizes) - min(sizes) <= 1
            assert sizes == sorted(sizes, reverse=True)
            assert shards == [list(range(*shard_bounds(10, rank, world))) for rank in range(world)]
            assert sum(buffer.total_samples for buffer in buffers) == 55

    @pytest.mark.parametrize("world", WORLDS)
    def test_what_ranks_add_afterwards_has_ids_of_its_own(self, world: int, tmp_path: Path) -> None:
        make_checkpoint(tmp_path / "checkpoint", [traj(k) for k in range(10)])
        with load_all(tmp_path / "checkpoint", world) as buffers:
            for rank, buffer in enumerate(buffers):
                added = buffer.add_trajectories([traj(100 + rank), traj(200 + rank)])
                assert added == [10 + rank, 10 + rank + world]
            ids = list(itertools.chain(*map(ids_of, buffers)))
            assert len(set(ids)) == len(ids) == 10 + 2 * world
            row_ids = [row_ids_of(buffer) for buffer in buffers]
            assert len(set().union(*row_ids)) == sum(map(len, row_ids)) == 12 * len(ids)

    def test_ranks_draw_different_streams(self, tmp_path: Path) -> None:
        make_checkpoint(tmp_path / "checkpoint", [traj(k, T=50, B=10) for k in range(4)], seed=3)
        with load_all(tmp_path / "checkpoint", 4, seed=3) as buffers:
            draws = [self.places(buffer) for buffer in buffers]
            assert len(set(draws)) == 4
            assert [buffer.state_dict()["stream"] for buffer in buffers] == [
                [rank, 4] for rank in range(4)
            ]
        with load_all(tmp_path / "checkpoint", 4, seed=3) as buffers:
            assert [self.places(buffer) for buffer in buffers] == draws
        with load_all(tmp_path / "checkpoint", 2, seed=3) as buffers:
            assert self.places(buffers[0]) not in draws

    def places(self, buffer: TrajectoryReplayBuffer) -> tuple[int, ...]:
        _, t, b = address_of(buffer.sample(30))
        return tuple((t * 10 + b).tolist())

    def test_a_world_of_one_goes_on_where_it_was(self, tmp_path: Path) -> None:
        """Else each resume of a run of one rank would repeat the draws of the one before."""
        buffer = TrajectoryReplayBuffer(seed=3)
        buffer.add_trajectories([traj(0, T=50, B=10)])
        draws = set()
        for _ in range(3):
            buffer.save_checkpoint(tmp_path / "checkpoint")
            buffer = TrajectoryReplayBuffer(seed=3)
            buffer.load_checkpoint(tmp_path / "checkpoint", True, 0, 1)
            draws.add(self.places(buffer))
        assert len(draws) == 3

    def test_a_rank_without_a_trajectory_says_so(self, tmp_path: Path) -> None:
        make_checkpoint(tmp_path / "checkpoint", [traj(0)])
        buffer = TrajectoryReplayBuffer()
        with pytest.warns(UserWarning, match=r"rank 1 of 2 loaded no trajectory: .* holds 1"):
            buffer.load_checkpoint(tmp_path / "checkpoint", True, 1, 2)
        assert (len(buffer), buffer.trajectory_counter) == (0, 2)
        assert buffer.add_trajectories([traj(5)]) == [2]
        check_rows(buffer.sample(5))

    @pytest.mark.parametrize(
        ("rank", "world", "told"), [(2, 2, "local_rank"), (-1, 2, "local_rank"), (0, 0, "world")]
    )
    def test_a_rank_outside_the_world_is_refused(
        self, rank: int, world: int, told: str, tmp_path: Path
    ) -> None:
        make_checkpoint(tmp_path / "checkpoint", [traj(0)])
        buffer = TrajectoryReplayBuffer()
        buffer.add_trajectories([traj(7)])
        with pytest.raises(InvalidArgumentError, match=told):
            buffer.load_checkpoint(tmp_path / "checkpoint", True, rank, world)
        assert ks_of(buffer) == [7]

    def test_ranks_need_a_distributed_load(self, tmp_path: Path) -> None:
        make_checkpoint(tmp_path / "checkpoint", [traj(0)])
        with pytest.raises(InvalidArgumentError, match="is_distributed=True"):
            TrajectoryReplayBuffer().load_checkpoint(tmp_path / "checkpoint", local_rank=1)


class TestRankFolders:
    @pytest.mark.parametrize(
        ("world", "then"), [(1, 3), (2, 4), (3, 2), (4, 1), (10, 3), (16, 4), (3, 16)]
    )
    def test_another_world_loads_what_all_ranks_saved(
        self, world: int, then: int, tmp_path: Path
    ) -> None:
        make_checkpoint(tmp_path / "checkpoint", [traj(k) for k in range(10)])
        with load_all(tmp_path / "checkpoint", world) as buffers:
            for rank, buffer in enumerate(buffers):
                buffer.add_trajectories([traj(100 + rank), traj(200 + rank)])
            save_all(buffers, tmp_path / "parent")
        with load_all(tmp_path / "parent", then) as buffers:
            shards = [ks_of(buffer) for buffer in buffers]
            first = (
                list(range(10)) + [100 + r for r in range(world)] + [200 + r for r in range(world)]
            )
            assert list(itertools.chain(*shards)) == first
            ids = list(itertools.chain(*map(ids_of, buffers)))
            assert ids == list(range(10 + 2 * world))
            for buffer in buffers:
                buffer.add_trajectories([traj(300), traj(301)])
            ids = list(itertools.chain(*map(ids_of, buffers)))
            assert len(set(ids)) == len(ids) == 10 + 2 * world + 2 * then
            row_ids = [row_ids_of(buffer) for buffer in buffers]
            assert len(set().union(*row_ids)) == sum(map(len, row_ids))
            for buffer in buffers:
                check_rows(buffer.sample(50))
            save_all(buffers, tmp_path / "next")
        with load_all(tmp_path / "next", 2) as buffers:
            assert sum(len(buffer) for buffer in buffers) == 10 + 2 * world + 2 * then

    def test_stores_of_ranks_are_loaded_and_resumed_too(self, tmp_path: Path) -> None:
        make_checkpoint(tmp_path / "checkpoint", [traj(k) for k in range(5)])
        stores = tmp_path / "stores"
        with load_all(tmp_path / "checkpoint", 2, stores) as buffers:
            for rank, buffer in enumerate(buffers):
                buffer.add_trajectories([traj(100 + rank, weights_id=f"w{rank}")])
        options: dict[str, Any] = {"auto_save": True, "if_exists": "resume"}
        for rank in range(2):
            path = stores / str(rank)
            with TrajectoryReplayBuffer(auto_save_path=path, **options) as buffer:
                assert buffer.add_trajectories([traj(200 + rank)]) == [7 + rank]
            path.rename(stores / f"rank_{rank}")
        whole = TrajectoryReplayBuffer(sample_window_size=0)
        whole.load_checkpoint(stores)
        assert ids_of(whole) == list(range(9))
        assert ks_of(whole) == [0, 1, 2, 3, 4, 100, 101, 200, 201]
        assert whole.add_trajectories([traj(9)]) == [10]  # 9 was rank 0's to give

    def test_an_orphan_does_not_take_a_rank_off_its_steps(self, tmp_path: Path) -> None:
        make_checkpoint(tmp_path / "checkpoint", [traj(k) for k in range(4)])
        store = tmp_path / "store"
        with TrajectoryReplayBuffer(auto_save=True, auto_save_path=store) as buffer:
            buffer.load_checkpoint(tmp_path / "checkpoint", True, 1, 4)
        (store / "trajectory_7_.pt").write_bytes(b"of a writer that was killed")
        with (
            pytest.warns(UserWarning, match="not in the index"),
            TrajectoryReplayBuffer(
                auto_save=True, auto_save_path=store, if_exists="resume"
            ) as buffer,
        ):
            assert buffer.add_trajectories([traj(5)]) == [9]  # 4 + 1, then in steps of 4

    @pytest.mark.parametrize("then", [1, 2, 5])
    def test_ids_that_collide_are_given_anew_alike_on_all_ranks(
        self, then: int, tmp_path: Path
    ) -> None:
        """Ranks that each began a buffer of their own all count from 0."""
        kinds = ("pt", "pkl", "pt")
        for rank, kind in enumerate(kinds):
            make_checkpoint(
                tmp_path / "parent" / f"rank_{rank}",
                [traj(10 * rank + n, T=n + 1, B=rank + 1) for n in range(4)],
                trajectory_format=kind,
            )
        expected = {10 * rank + n for rank in range(3) for n in range(4)}
        seen: dict[int, tuple[int, int]] = {}
        for stores in (None, tmp_path / "stores"):
            with load_all(tmp_path / "parent", then, stores) as buffers:
                shards = [ks_of(buffer) for buffer in buffers]
                assert sorted(itertools.chain(*shards)) == sorted(expected)
                ids = list(itertools.chain(*map(ids_of, buffers)))
                assert len(set(ids)) == len(ids) == 12
                row_ids = [row_ids_of(buffer) for buffer in buffers]
                assert len(set().union(*row_ids)) == sum(map(len, row_ids)) == 60
                for buffer, shard in zip(buffers, shards, strict=True):
                    if not shard:
                        continue
                    batch, info = buffer.sample(100, return_info=True)
                    check_rows(batch, info, dict(zip(ids_of(buffer), shard, strict=True)))
                    check_rows(buffer.gather(info.row_ids))
                for trajectory_id, k in zip(ids, itertools.chain(*shards), strict=True):
                    first_row = min(
                        row
                        for buffer in buffers
                        if trajectory_id in ids_of(buffer)
                        for row in [self.first_row(buffer, trajectory_id)]
                    )
                    assert seen.setdefault(k, (trajectory_id, first_row)) == (
                        trajectory_id,
                        first_row,
                    )
                for buffer in buffers:
                    buffer.add_trajectories([traj(90)])
                ids = list(itertools.chain(*map(ids_of, buffers)))
                assert len(set(ids)) == 12 + then

    @staticmethod
    def first_row(buffer: TrajectoryReplayBuffer, trajectory_id: int) -> int:
        return buffer._store.index.get(trajectory_id).first_row_id

    def test_what_was_given_new_ids_is_kept_when_loaded_again(self, tmp_path: Path) -> None:
        for rank in range(2):
            make_checkpoint(tmp_path / "parent" / f"rank_{rank}", [traj(rank), traj(rank + 5)])
        with TrajectoryReplayBuffer(auto_save=True, auto_save_path=tmp_path / "store") as buffer:
            for _ in range(3):
                buffer.load_checkpoint(tmp_path / "parent")
                assert (len(buffer), sorted(ks_of(buffer))) == (4, [0, 1, 5, 6])
            assert not (tmp_path / "store" / "aside").exists()

    def test_rows_of_flags_with_extra_rows_survive_a_new_id(self, tmp_path: Path) -> None:
        for rank in range(2):
            made = traj(rank, T=6, B=2, E=3, extra={"task": ["a", "b"]})
            make_checkpoint(tmp_path / "parent" / f"rank_{rank}", [made])
        for stores in (None, tmp_path / "stores"):
            with load_all(tmp_path / "parent", 1, stores) as (buffer,):
                for trajectory_id, k in zip(ids_of(buffer), ks_of(buffer), strict=True):
                    made = traj(k, T=6, B=2, E=3, extra={"task": ["a", "b"]})
                    assert same_trajectory(buffer.trajectory(trajectory_id), made)

    def test_a_trajectory_in_two_folders_is_refused(self, tmp_path: Path) -> None:
        make_checkpoint(tmp_path / "checkpoint", [traj(0), traj(1)])
        with load_all(tmp_path / "checkpoint", 1) as buffers:
            save_all([*buffers, *buffers], tmp_path / "parent")
        with pytest.raises(CorruptFileError, match="hold a trajectory twice"):
            TrajectoryReplayBuffer().load_checkpoint(tmp_path / "parent")

    def test_folders_with_other_columns_are_refused(self, tmp_path: Path) -> None:
        make_checkpoint(tmp_path / "parent" / "rank_0", [traj(0)])
        make_checkpoint(
            tmp_path / "parent" / "rank_1", [Trajectory(rewards=np.zeros((2, 2), np.float32))]
        )
        with pytest.raises(ColumnMismatchError, match="rank folders"):
            TrajectoryReplayBuffer().load_checkpoint(tmp_path / "parent")

    def test_folders_are_taken_in_the_order_of_their_numbers(self, tmp_path: Path) -> None:
        for rank in range(11):  # as text rank_10 comes before rank_2
            make_checkpoint(tmp_path / "parent" / f"rank_{rank}", [traj(rank)])
        (tmp_path / "parent" / "rank_none").mkdir()
        (tmp_path / "parent" / "notes.txt").write_text("mine")
        buffer = TrajectoryReplayBuffer()
        buffer.load_checkpoint(tmp_path / "parent")
        assert ks_of(buffer) == list(range(11))
