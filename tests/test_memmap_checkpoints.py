# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of segments: by link where a segment is sealed, and never written to again."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from buffers import open_store
from processes import num_open_below
from relive import Limits, TrajectoryReplayBuffer
from relive.formats import MemmapFormat
from relive.record import Record
from segments import disk_bytes, segments_of
from trajectories import address_of, check_rows, make_checkpoint, same_trajectory, traj

SEGMENT_BYTES = 60_000
"""Of wide trajectories, 58 kB each with both observations, one fills a segment."""


def open_memmap(folder: Path, **options: Any) -> TrajectoryReplayBuffer:
    """Open a store of small segments whose window is all of it."""
    form = MemmapFormat(segment_bytes=SEGMENT_BYTES)
    chosen = {"trajectory_format": form, "sample_window_size": 0, **options}
    return open_store(folder, **chosen)


def holds(buffer: TrajectoryReplayBuffer, ks: dict[int, int]) -> bool:
    """Prove that the buffer has these trajectories by their ids, and no other."""
    assert len(buffer) == len(ks)
    for trajectory_id, k in ks.items():
        found = buffer.trajectory(trajectory_id)
        assert same_trajectory(found, traj(k, wide="wide" in found.curr_obs))
    batch, info = buffer.sample(40 * len(ks), return_info=True)
    check_rows(batch, info, ks)
    return set(address_of(batch)[0].tolist()) == set(ks.values())


def state_of(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return inode and bytes of every file below a folder."""
    return {
        str(path.relative_to(folder)): (path.stat().st_ino, path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def inodes(folder: Path) -> set[int]:
    """Return the inodes of the rows of all segments."""
    return {(one.path / "rows.bin").stat().st_ino for one in segments_of(folder)}


@contextmanager
def without_links(monkeypatch: pytest.MonkeyPatch, number: int = errno.EXDEV) -> Iterator[None]:
    """Let every link be refused, as between two file systems."""

    def refuse(source: Path, target: Path) -> None:
        raise OSError(number, os.strerror(number), str(source), None, str(target))

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", refuse)
        yield


class TestSaving:
    def test_sealed_segments_are_linked_and_the_growing_one_is_copied(self, tmp_path: Path) -> None:
        with open_memmap(tmp_path / "store") as buffer:
            buffer.add_trajectories([traj(k, wide=True) for k in range(5)])
            buffer.save_checkpoint(tmp_path / "checkpoint")
            here, there = segments_of(tmp_path / "store"), segments_of(tmp_path / "checkpoint")
            assert [one.path.name for one in here] == [one.path.name for one in there]
            shared = inodes(tmp_path / "store") & inodes(tmp_path / "checkpoint")
            assert len(shared) == len(here) - 1 >= 3
            for one, other in zip(here[:-1], there[:-1], strict=True):
                for path in one.path.iterdir():
                    assert path.stat().st_ino == (other.path / path.name).stat().st_ino
            last = state_of(there[-1].path)
            assert {name: block for name, (_, block) in state_of(here[-1].path).items()} == {
                name: block for name, (_, block) in last.items()
            }

    def test_a_large_growing_segment_is_sealed_and_linked(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("relive.formats.memmap.format._SMALL_SEGMENT_BYTES", 100_000)
        with open_store(tmp_path / "store", trajectory_format="memmap") as buffer:
            buffer.add_trajectories([traj(k, wide=True) for k in range(3)])
            buffer.save_checkpoint(tmp_path / "checkpoint")
            assert inodes(tmp_path / "store") == inodes(tmp_path / "checkpoint")
            before = state_of(tmp_path / "checkpoint")
            buffer.add_trajectories([traj(3, wide=True)])
            buffer.flush()
            assert len(segments_of(tmp_path / "store")) == 2
            assert state_of(tmp_path / "checkpoint") == before
            check_rows(buffer.sample(200))

    def test_nothing_ever_writes_to_a_checkpoint(self, tmp_path: Path) -> None:
        """Whatever the store does next, and whoever opens it."""
        limits = Limits(max_trajectories=20)
        saved = [tmp_path / f"checkpoint {n}" for n in range(4)]
        states = {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what a load moves aside
            for n, place in enumerate(saved):
                if_exists = "resume" if n else "refuse"
                with open_memmap(tmp_path / "store", limits=limits, if_exists=if_exists) as buffer:
                    for k in range(6):
                        buffer.add_trajectories([traj(10 * n + k)])
                    buffer.save_checkpoint(place)
                    states[place] = state_of(place)
                    buffer.add_trajectories([traj(10 * n + 6), traj(10 * n + 7)])
                    buffer.delete([buffer.trajectory_counter - 2])
                    buffer.flush()
                    assert all(state_of(one) == state for one, state in states.items())
                    if n == 2:
                        buffer.load_checkpoint(saved[1])
                        buffer.add_trajectories([traj(40 + k) for k in range(4)])
                        buffer.flush()
                    if n == 3:
                        buffer.clear()
                        buffer.add_trajectories([traj(50)])
                assert all(state_of(one) == state for one, state in states.items())
        shutil.rmtree(tmp_path / "store")
        for n, place in enumerate(saved):
            with open_memmap(tmp_path / f"from {n}") as buffer:
                buffer.load_checkpoint(place)
                check_rows(buffer.sample(300))

    @pytest.mark.parametrize("number", [errno.EXDEV, errno.EPERM, errno.EMLINK])
    def test_where_nothing_can_be_linked_it_is_copied(
        self, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ks = {k: k for k in range(4)}
        with open_memmap(tmp_path / "store") as buffer:
            buffer.add_trajectories([traj(k, wide=True) for k in range(4)])
            with without_links(monkeypatch, number):
                buffer.save_checkpoint(tmp_path / "checkpoint")
            assert not inodes(tmp_path / "store") & inodes(tmp_path / "checkpoint")
            buffer.clear()
        with open_memmap(tmp_path / "other") as buffer:
            with without_links(monkeypatch, number):
                buffer.load_checkpoint(tmp_path / "checkpoint")
            assert not inodes(tmp_path / "other") & inodes(tmp_path / "checkpoint")
            shutil.rmtree(tmp_path / "checkpoint")
            assert holds(buffer, ks)

    def test_progress_is_told_of_copied_bytes_alone(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        form = MemmapFormat(segment_bytes=SEGMENT_BYTES)
        with open_memmap(tmp_path / "store") as buffer:
            buffer.add_trajectories([traj(k, wide=True) for k in range(3)])
        with open_memmap(tmp_path / "store", if_exists="resume") as buffer:
            records = [buffer._store.index.get(k) for k in range(3)]
            for name, expected in (("linked", 0), ("copied", disk_bytes(tmp_path / "store"))):
                told: list[int] = []
                (tmp_path / name).mkdir()
                with monkeypatch.context() as patch:
                    if name == "copied":
                        patch.setattr("relive.files.share_blocks", lambda *_: False)
                        patch.setattr(os, "link", _refuse_link)
                    copy = form.copier(
                        tmp_path / "store", tmp_path / name, sync=False, progress=told.append
                    )
                    for record in records:
                        copy(record)
                assert sum(told) == expected

    def test_a_refused_link_leaves_the_older_checkpoint(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with open_memmap(tmp_path / "store") as buffer:
            buffer.add_trajectories([traj(0, wide=True), traj(1, wide=True)])
            buffer.save_checkpoint(tmp_path / "checkpoint")
            before = state_of(tmp_path / "checkpoint")
            buffer.add_trajectories([traj(2, wide=True)])
            with (
                without_links(monkeypatch, errno.ENOSPC),
                pytest.raises(OSError, match=r"checkpoint.*could not be written") as raised,
            ):
                buffer.save_checkpoint(tmp_path / "checkpoint")
            assert raised.value.errno == errno.ENOSPC
            assert state_of(tmp_path / "checkpoint") == before
            assert sorted(os.listdir(tmp_path)) == ["checkpoint", "store"]
            buffer.save_checkpoint(tmp_path / "checkpoint")
            assert holds(buffer, {k: k for k in range(3)})

    def test_a_buffer_in_memory_keeps_nothing_open(self, tmp_path: Path) -> None:
        with TrajectoryReplayBuffer(trajectory_format="memmap", sample_window_size=0) as buffer:
            buffer.add_trajectories([traj(k, wide=True) for k in range(3)])
            buffer.save_checkpoint(tmp_path / "checkpoint 0")
            num_open = num_open_below(tmp_path)
            for n in range(1, 6):
                buffer.add_trajectories([traj(2 + n, wide=True)])
                buffer.save_checkpoint(tmp_path / f"checkpoint {n}")
            assert num_open_below(tmp_path) <= num_open
        for n in range(6):
            with TrajectoryReplayBuffer(sample_window_size=0) as other:
                other.load_checkpoint(tmp_path / f"checkpoint {n}")
                assert holds(other, {k: k for k in range(3 + n)})


def _refuse_link(source: Path, target: Path) -> None:
    raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))


@pytest.mark.filterwarnings("ignore:.*moved to 'aside'")
class TestLoading:
    def save(self, path: Path, ks: range, **options: Any) -> None:
        """Write a checkpoint of wide trajectories in small segments."""
        folder = path.with_name(f"{path.name} store")
        make_checkpoint(
            path,
            [traj(k, wide=True) for k in ks],
            auto_save=True,
            auto_save_path=folder,
            trajectory_format=MemmapFormat(segment_bytes=SEGMENT_BYTES),
            **options,
        )

    def test_segments_come_by_link_and_the_checkpoint_may_go(self, tmp_path: Path) -> None:
        self.save(tmp_path / "checkpoint", range(4))
        with open_memmap(tmp_path / "store") as buffer:
            buffer.load_checkpoint(tmp_path / "checkpoint")
            assert inodes(tmp_path / "store") == inodes(tmp_path / "checkpoint")
            before = state_of(tmp_path / "checkpoint")
            assert buffer.add_trajectories([traj(4, wide=True)]) == [4]
            buffer.flush()
            assert state_of(tmp_path / "checkpoint") == before
            shutil.rmtree(tmp_path / "checkpoint")
            assert holds(buffer, {k: k for k in range(5)})
        with open_memmap(tmp_path / "store", if_exists="resume") as buffer:
            assert holds(buffer, {k: k for k in range(5)})
            assert not list((tmp_path / "store").glob("incoming-*"))

    def test_a_rank_takes_only_the_segments_of_its_part(self, tmp_path: Path) -> None:
        self.save(tmp_path / "checkpoint", range(6))
        whole = inodes(tmp_path / "checkpoint")
        assert len(whole) >= 5
        taken = []
        for rank, ks in ((0, (0, 1)), (1, (2, 3)), (2, (4, 5))):
            with open_memmap(tmp_path / f"rank {rank}") as buffer:
                buffer.load_checkpoint(tmp_path / "checkpoint", True, rank, 3)
                assert holds(buffer, {k: k for k in ks})
                taken.append(inodes(tmp_path / f"rank {rank}"))
                assert len(taken[-1]) <= 2
        assert set.union(*taken) == whole

    def test_a_segment_that_two_ranks_share_comes_to_both(self, tmp_path: Path) -> None:
        make_checkpoint(
            tmp_path / "checkpoint", [traj(k) for k in range(4)], trajectory_format="memmap"
        )
        for rank, ks in ((0, (0, 1)), (1, (2, 3))):
            with open_memmap(tmp_path / f"rank {rank}") as buffer:
                buffer.load_checkpoint(tmp_path / "checkpoint", True, rank, 2)
                assert holds(buffer, {k: k for k in ks})
                buffer.delete([ks[0]])
                buffer.flush()
                assert holds(buffer, {ks[1]: ks[1]})
                buffer.delete([ks[1]])
                buffer.flush()
                assert segments_of(tmp_path / f"rank {rank}") == []

    @pytest.mark.parametrize("kind", ["memmap", "pt"])
    def test_folders_of_ranks_come_together_whatever_their_numbers(
        self, kind: str, tmp_path: Path
    ) -> None:
        """Each has a segment 0 of its own, as the store they come to has."""
        for rank in range(3):
            form = MemmapFormat(segment_bytes=SEGMENT_BYTES) if kind == "memmap" else kind
            with open_store(
                tmp_path / f"store {rank}", trajectory_format=form, sample_window_size=0
            ) as buffer:
                buffer.add_trajectories([traj(10 * rank + k, wide=True) for k in range(3)])
                buffer.save_checkpoint(tmp_path / "ranks" / f"rank_{rank}")
        ks = {3 * rank + k: 10 * rank + k for rank in range(3) for k in range(3)}
        with open_memmap(tmp_path / "whole") as buffer:
            buffer.add_trajectories([traj(100 + k, wide=True) for k in range(3)])
            buffer.load_checkpoint(tmp_path / "ranks")
            by_id = {
                trajectory_id: int(
                    np.asarray(buffer.trajectory(trajectory_id).curr_obs["id"])[0, 0]
                )
                // 1_000_000
                for trajectory_id in buffer._store.index.window(0).trajectory_ids.tolist()
            }
            assert sorted(by_id.values()) == sorted(ks.values())
            assert holds(buffer, by_id)
            new = buffer.add_trajectories([traj(50, wide=True)])
            assert holds(buffer, {**by_id, new[0]: 50})
            buffer.flush()
            aside = list((tmp_path / "whole" / "aside").glob("*"))
            assert len(aside) == 1  # of the three that were there before
        with open_memmap(tmp_path / "whole", if_exists="resume") as buffer:
            assert holds(buffer, {**by_id, new[0]: 50})

    def test_what_is_written_anew_never_takes_the_place_of_what_is_kept(
        self, tmp_path: Path
    ) -> None:
        """Trajectories of pt files get other ids, so they are written into new segments."""
        for n in range(2):
            for rank in range(2):
                with open_store(
                    tmp_path / f"store {rank}",
                    sample_window_size=0,
                    if_exists="resume" if n else "refuse",
                ) as buffer:
                    buffer.add_trajectories([traj(50 * n + 10 * rank + k) for k in range(3)])
                    buffer.save_checkpoint(tmp_path / "ranks" / f"rank_{rank}")
            with open_memmap(tmp_path / "whole", if_exists="resume" if n else "refuse") as buffer:
                for _ in range(3):
                    buffer.load_checkpoint(tmp_path / "ranks")
                batch = buffer.sample(600)
                check_rows(batch)
                ks = {
                    50 * m + 10 * rank + k
                    for m in range(n + 1)
                    for rank in (0, 1)
                    for k in range(3)
                }
                assert set(address_of(batch)[0].tolist()) == ks
                assert len(buffer) == len(ks)

    @pytest.mark.parametrize("has_more", [False, True])
    def test_the_own_checkpoint_is_kept_as_it_is(self, has_more: bool, tmp_path: Path) -> None:
        with open_memmap(tmp_path / "store") as buffer:
            buffer.add_trajectories([traj(k, wide=True) for k in range(4)])
            buffer.save_checkpoint(tmp_path / "checkpoint")
            before = state_of(tmp_path / "store" / "segments")
            if has_more:
                buffer.add_trajectories([traj(9, wide=True)])
            for _ in range(3):
                buffer.load_checkpoint(tmp_path / "checkpoint")
                assert holds(buffer, {k: k for k in range(4)})
                buffer.flush()
            assert state_of(tmp_path / "store" / "segments") == before
            next_id = 5 if has_more else 4
            assert buffer.add_trajectories([traj(7, wide=True)]) == [next_id]
            assert holds(buffer, {**{k: k for k in range(4)}, next_id: 7})
        with open_memmap(tmp_path / "store", if_exists="resume") as buffer:
            assert holds(buffer, {**{k: k for k in range(4)}, next_id: 7})

    def test_what_was_deleted_since_comes_back_beside_what_was_kept(self, tmp_path: Path) -> None:
        """In the store's own segment, which still has its rows, or in the checkpoint's."""
        with open_store(
            tmp_path / "store", trajectory_format="memmap", sample_window_size=0
        ) as buffer:
            buffer.add_trajectories([traj(k) for k in range(4)])
            buffer.save_checkpoint(tmp_path / "checkpoint")
            for _ in range(3):
                buffer.delete([1, 2])
                buffer.flush()
                buffer.load_checkpoint(tmp_path / "checkpoint")
                assert holds(buffer, {k: k for k in range(4)})
            buffer.delete([0, 3])
            buffer.flush()
            assert holds(buffer, {1: 1, 2: 2})
            buffer.delete([1])
            assert holds(buffer, {2: 2})
            buffer.delete([2])
            buffer.flush()
            assert segments_of(tmp_path / "store") == []
            buffer.load_checkpoint(tmp_path / "checkpoint")
            assert holds(buffer, {k: k for k in range(4)})

    def test_what_left_the_index_lies_aside_and_nothing_else(self, tmp_path: Path) -> None:
        self.save(tmp_path / "checkpoint", range(3))
        with open_memmap(tmp_path / "store") as buffer:
            buffer.add_trajectories([traj(20 + k, wide=True) for k in range(3)])
            buffer.flush()
            old = {one.path.name: state_of(one.path) for one in segments_of(tmp_path / "store")}
            buffer.load_checkpoint(tmp_path / "checkpoint")
            assert holds(buffer, {k: k for k in range(3)})
            (aside,) = (tmp_path / "store" / "aside").iterdir()
            assert {one.path.name: state_of(one.path) for one in segments_of(aside)} == old
            assert inodes(tmp_path / "store") == inodes(tmp_path / "checkpoint")
            buffer.clear()
            buffer.flush()
            assert segments_of(tmp_path / "store") == []
            assert len(segments_of(aside)) == len(old)

    @pytest.mark.filterwarnings("ignore:.*segments hold nothing that is in the index")
    def test_a_kill_among_the_moves_is_completed_by_the_next_opening(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        make_checkpoint(
            tmp_path / "checkpoint", [traj(k) for k in range(3)], trajectory_format="memmap"
        )
        for break_at in range(1, 12):
            store = tmp_path / f"store {break_at}"
            with monkeypatch.context() as patch:
                patch.setattr(MemmapFormat, "move_to", _stopping_at(break_at))
                buffer = open_memmap(store)
                buffer.add_trajectories([traj(20 + k) for k in range(2)])
                try:
                    buffer.load_checkpoint(tmp_path / "checkpoint")
                except OSError:
                    shutil.copytree(store, tmp_path / f"killed {break_at}")
                else:
                    assert break_at > 5
                    buffer.close()
                    break
            buffer.flush()
            assert holds(buffer, {k: k for k in range(3)})
            buffer.close()
            with open_memmap(tmp_path / f"killed {break_at}", if_exists="resume") as again:
                assert holds(again, {k: k for k in range(3)})
                again.add_trajectories([traj(3)])
                again.flush()
                check_rows(again.sample(50))
        else:
            pytest.fail("there were more moves than were tried")


def _stopping_at(break_at: int) -> Callable[..., None]:
    """Return `MemmapFormat.move_to` whose call of this number is refused, once."""
    calls = itertools.count(1)
    move_to = MemmapFormat.move_to

    def stop(self: MemmapFormat, folder: Path, record: Record, target: Path) -> None:
        if next(calls) == break_at:
            raise OSError(errno.EIO, "ill")
        move_to(self, folder, record, target)

    return stop
