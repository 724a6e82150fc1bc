# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: what they hold, how they replace each other, and loading them."""

from __future__ import annotations

import errno
import json
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest

from buffers import contents_of, ks_of, open_at, stats_of
from relive import Columns, Trajectory, TrajectoryReplayBuffer, files, linux_files, open_files
from relive.checkpoint_reading import read_checkpoint
from relive.errors import (
    ColumnMismatchError,
    CorruptFileError,
    EvictedError,
    InvalidArgumentError,
    MissingFileError,
    StorageError,
    StorageWriteError,
    StoreExistsError,
)
from trajectories import (
    address_of,
    check_rows,
    make_checkpoint,
    same_trajectory,
    traj,
    trajectory_files,
)

KINDS = ["memory", "pt", "pkl", "memmap"]


class TestContents:
    @pytest.mark.parametrize("kind", ["memory", "pkl"])
    def test_the_documented_example(self, kind: str, tmp_path: Path) -> None:
        """Five added with a window of two: ids 3 and 4 are saved, one for each of two ranks."""
        with open_at(kind, tmp_path / "store", sample_window_size=2) as buffer:
            buffer.add_trajectories([traj(k, T=4, B=2) for k in range(5)])
            buffer.save_checkpoint(tmp_path / "checkpoint")
            assert (len(buffer), buffer.total_samples, buffer.trajectory_counter) == (5, 40, 5)
        metadata = json.loads((tmp_path / "checkpoint" / "metadata.json").read_text())
        assert (metadata["size"], metadata["total_samples"]) == (2, 16)
        index = json.loads((tmp_path / "checkpoint" / "trajectory_index.json").read_text())
        assert index["trajectory_id_list"] == [3, 4]
        assert trajectory_files(tmp_path / "checkpoint") == [3, 4]
        for rank, k in ((0, 3), (1, 4)):
            one = TrajectoryReplayBuffer(sample_window_size=2)
            one.load_checkpoint(tmp_path / "checkpoint", True, rank, 2)
            assert (ks_of(one), len(one), one.total_samples) == ({k}, 1, 8)
        whole = TrajectoryReplayBuffer(sample_window_size=2)
        whole.load_checkpoint(tmp_path / "checkpoint")
        assert whole.add_trajectories([traj(5, T=4, B=2)]) == [5]
        assert ks_of(whole) == {4, 5}

    @pytest.mark.parametrize("kind", KINDS)
    def test_the_window_is_that_of_the_moment_of_saving(self, kind: str, tmp_path: Path) -> None:
        """RLinf saved no trajectory at all before something was sampled."""
        with open_at(kind, tmp_path / "store", sample_window_size=3) as buffer:
            buffer.add_trajectories([traj(0, T=4, B=2), traj(1, T=4, B=2)])
            buffer.save_checkpoint(tmp_path / "checkpoint")
            with TrajectoryReplayBuffer() as other:
                other.load_checkpoint(tmp_path / "checkpoint")
                assert (len(other), other.total_samples) == (2, 16)
            buffer.sample(5)
            buffer.add_trajectories([traj(2, T=4, B=2)])
            buffer.save_checkpoint(tmp_path / "checkpoint")
            with TrajectoryReplayBuffer() as other:
                other.load_checkpoint(tmp_path / "checkpoint")
                assert ks_of(other) == {0, 1, 2}
            buffer.add_trajectories([traj(3, T=4, B=2)])
            buffer.save_checkpoint(tmp_path / "checkpoint")
            with TrajectoryReplayBuffer() as other:
                other.load_checkpoint(tmp_path / "checkpoint")
                assert ks_of(other) == {1, 2, 3}
            # of segments the whole is there, though the index names only what is in the window
            is_whole = kind == "memmap"
            found = trajectory_files(tmp_path / "checkpoint")
            assert found == ([0, 1, 2, 3] if is_whole else [1, 2, 3])
            if kind != "memory":
                assert trajectory_files(tmp_path / "store") == [0, 1, 2, 3]

    @pytest.mark.parametrize("kind", KINDS)
    def test_saving_leaves_the_buffer_unchanged(self, kind: str, tmp_path: Path) -> None:
        with open_at(kind, tmp_path / "store", sample_window_size=2) as buffer:
            buffer.add_trajectories([traj(k) for k in range(4)])
            buffer.flush()
            before = (buffer.state_dict(), stats_of(buffer))
            buffer.save_checkpoint(tmp_path / "checkpoint")
            assert (buffer.state_dict(), stats_of(buffer)) == before

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("into", KINDS)
    def test_every_row_side_value_and_extra_flag_row_comes_back(
        self, kind: str, into: str, tmp_path: Path
    ) -> None:
        made = [
            traj(0, T=6, B=2, E=3, weights_id="a/b", wide=True, extra={"task": ["x", "y"]}),
            traj(1, T=2, B=3, E=1, wide=True, extra={"task": [["x", "", "z"], ["y", "y", "y"]]}),
        ]
        made[0].extras |= {"note": "kept", "n": {"raw": b"\0", "deep": {"f": 0.5, "none": {}}}}
        made[0].gaps = np.zeros((6, 2), np.bool_)
        with open_at(kind, tmp_path / "store", cache_size=0) as buffer:
            buffer.add_trajectories(made)
            buffer.save_checkpoint(tmp_path / "checkpoint")
        with open_at(into, tmp_path / "other", cache_size=0) as other:
            other.load_checkpoint(tmp_path / "checkpoint")
            shutil.rmtree(tmp_path / "checkpoint")
            for trajectory_id, trajectory in enumerate(made):
                assert same_trajectory(other.trajectory(trajectory_id), trajectory)
            assert other.trajectory(0).gaps.shape == (6, 2)
            assert ks_of(other) == {0, 1}
            other.save_checkpoint(tmp_path / "again")
        with open_at("memory", tmp_path) as third:
            third.load_checkpoint(tmp_path / "again")
            assert same_trajectory(third.trajectory(0), made[0])

    def test_an_empty_buffer_can_be_saved_and_loaded(self, tmp_path: Path) -> None:
        with open_at("pt", tmp_path / "store") as buffer:
            buffer.save_checkpoint(tmp_path / "checkpoint")
        with open_at("memory", tmp_path) as other:
            other.add_trajectories([traj(0)])
            with pytest.warns(UserWarning, match="loaded no trajectory"):
                other.load_checkpoint(tmp_path / "checkpoint")
            assert (len(other), other.trajectory_counter) == (0, 1)
            assert other.add_trajectories([Trajectory(actions=np.zeros((1, 1)))]) == [1]

    def test_declared_columns_go_with_the_checkpoint(self, tmp_path: Path) -> None:
        columns = Columns(optional={"extras/score": np.full(3, -1.0)})
        with open_at("pt", tmp_path / "store", columns=columns) as buffer:
            buffer.add_trajectories([traj(0), traj(1, extra={"score": np.ones((4, 3, 3))})])
            buffer.save_checkpoint(tmp_path / "checkpoint")
        for n, declared in enumerate((None, columns)):
            with open_at("pkl", tmp_path / f"other {n}", columns=declared) as other:
                other.load_checkpoint(tmp_path / "checkpoint")
                batch = other.sample(60)
                score = np.where(address_of(batch)[0] == 0, -1.0, 1.0)
                assert batch["extras"]["score"].tolist() == [[one] * 3 for one in score]
                assert other.add_trajectories([traj(2)]) == [2]
                other.flush()
                assert ks_of(other) == {0, 1, 2}

    @pytest.mark.parametrize("into", KINDS)
    def test_what_does_not_fit_the_declaration_is_refused(self, into: str, tmp_path: Path) -> None:
        make_checkpoint(tmp_path / "checkpoint", [traj(0)])
        columns = Columns(required=["versions"])
        with open_at(into, tmp_path / "store", columns=columns) as buffer:
            with pytest.raises(ColumnMismatchError, match="versions"):
                buffer.load_checkpoint(tmp_path / "checkpoint")
            assert len(buffer) == 0

    @pytest.mark.parametrize("into", KINDS)
    def test_columns_can_be_dropped_at_loading(self, into: str, tmp_path: Path) -> None:
        make_checkpoint(tmp_path / "checkpoint", [traj(0, extra={"task": ["a", "b", "c"]})])
        columns = Columns(required=["curr_obs/id", "rewards"], drop_others=True)
        with open_at(into, tmp_path / "store", columns=columns) as buffer:
            buffer.load_checkpoint(tmp_path / "checkpoint")
            assert set(buffer.sample(5)) == {"curr_obs", "rewards"}
            buffer.add_trajectories([traj(1)])
            buffer.save_checkpoint(tmp_path / "again")
        with open_at("memory", tmp_path) as other:
            other.load_checkpoint(tmp_path / "again")
            batch = other.sample(50)
            assert set(address_of(batch)[0].tolist()) == {0, 1}
            assert set(batch) == {"curr_obs", "rewards"}


class TestDraws:
    """Elsewhere a resumed run began the random sequence again."""

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("into", KINDS)
    def test_a_loaded_buffer_draws_what_would_have_come(
        self, kind: str, into: str, tmp_path: Path
    ) -> None:
        with open_at(kind, tmp_path / "store", seed=7) as buffer:
            buffer.add_trajectories([traj(k) for k in range(3)])
            first = buffer.sample(40)["curr_obs"]["id"].tolist()
            buffer.save_checkpoint(tmp_path / "checkpoint")
            second = [buffer.sample(40)["curr_obs"]["id"].tolist() for _ in range(3)]
        with open_at(into, tmp_path / "other", seed=1) as other:
            other.load_checkpoint(tmp_path / "checkpoint")
            assert other.seed == 7
            assert [other.sample(40)["curr_obs"]["id"].tolist() for _ in range(3)] == second
            assert first not in second

    def test_a_damaged_state_is_refused_before_anything_changes(self, tmp_path: Path) -> None:
        make_checkpoint(tmp_path / "checkpoint", [traj(0)])
        path = tmp_path / "checkpoint" / "metadata.json"
        metadata = json.loads(path.read_text())
        del metadata["relive"]["state"]["generator"]["buffer"]
        path.write_text(json.dumps(metadata))
        buffer = TrajectoryReplayBuffer()
        buffer.add_trajectories([traj(5)])
        before = buffer.state_dict()
        with pytest.raises(CorruptFileError, match="state"):
            buffer.load_checkpoint(tmp_path / "checkpoint")
        assert (ks_of(buffer), buffer.trajectory_counter) == ({5}, before["trajectory_counter"])


class TestReplacing:
    """A disk that filled up during a save left neither the old checkpoint nor the new one."""

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("file", ["trajectory", "trajectory_index", "metadata"])
    def test_a_failing_second_save_keeps_the_first(
        self, kind: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with open_at(kind, tmp_path / "store") as buffer:
            buffer.add_trajectories([traj(0)])
            buffer.save_checkpoint(tmp_path / "here" / "checkpoint")
            before = contents_of(tmp_path / "here")
            buffer.add_trajectories([traj(1), traj(2)])
            buffer.flush()
            start = f"{file}.json"
            if file == "trajectory":
                start = "side" if kind == "memmap" else "trajectory_"
            num_written = 0
            write_atomic = files.write_atomic

            def fail(path: Path, write: Callable[[BinaryIO], None], *, sync: bool) -> int:
                nonlocal num_written
                if tmp_path / "here" in path.parents and path.name.startswith(start):
                    num_written += 1
                    if file != "trajectory" or kind == "memmap" or num_written == 2:

                        def part(target: BinaryIO) -> None:
                            target.write(b"half of it")
                            raise OSError(errno.ENOSPC, "no room", str(path))

                        return write_atomic(path, part, sync=sync)
                return write_atomic(path, write, sync=sync)

            monkeypatch.setattr(files, "write_atomic", fail)
            with pytest.raises(StorageWriteError, match="checkpoint") as raised:
                buffer.save_checkpoint(tmp_path / "here" / "checkpoint")
            assert raised.value.errno == errno.ENOSPC
            assert contents_of(tmp_path / "here") == before
            assert [path.name for path in (tmp_path / "here").iterdir()] == ["checkpoint"]
            assert ks_of(buffer) == {0, 1, 2}
            monkeypatch.setattr(files, "write_atomic", write_atomic)
            buffer.save_checkpoint(tmp_path / "here" / "checkpoint")
            assert trajectory_files(tmp_path / "here" / "checkpoint") == [0, 1, 2]

    @pytest.mark.parametrize("can_exchange", [True, False])
    def test_an_older_checkpoint_is_replaced_whole(
        self, can_exchange: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if not can_exchange:
            monkeypatch.setattr(linux_files, "exchange", lambda first, second: False)
        place = tmp_path / "here" / "checkpoint"
        buffer = TrajectoryReplayBuffer(sample_window_size=2)
        for k in range(6):
            buffer.add_trajectories([traj(k)])
            buffer.save_checkpoint(place)
            assert [path.name for path in place.parent.iterdir()] == ["checkpoint"]
            assert trajectory_files(place) == list(range(max(0, k - 1), k + 1))
        other = TrajectoryReplayBuffer()
        other.load_checkpoint(place)
        assert ks_of(other) == {4, 5}

    @pytest.mark.parametrize("num_renames", [1, 2])
    @pytest.mark.parametrize("then", ["load", "save"])
    def test_an_exchange_cut_off_in_between_is_completed(
        self, num_renames: int, then: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        place = tmp_path / "here" / "checkpoint"
        make_checkpoint(place, [traj(0)])
        buffer = TrajectoryReplayBuffer()
        buffer.add_trajectories([traj(1)])
        monkeypatch.setattr(linux_files, "exchange", lambda first, second: False)
        rename, left = files.rename, num_renames

        def stop(source: Path, target: Path) -> None:
            nonlocal left
            if not left:
                raise KeyboardInterrupt
            left -= 1
            rename(source, target)

        monkeypatch.setattr(files, "rename", stop)
        with pytest.raises(KeyboardInterrupt):
            buffer.save_checkpoint(place)
        monkeypatch.setattr(files, "rename", rename)
        assert place.exists() == (num_renames == 1)
        other = TrajectoryReplayBuffer()
        if then == "load":
            other.load_checkpoint(place)
            assert ks_of(other) == ({0} if num_renames == 1 else {1})
            # after a load what is left over may stay; a save tidies up
        buffer.save_checkpoint(place)
        other.load_checkpoint(place)
        assert ks_of(other) == {1}
        assert [path.name for path in place.parent.iterdir()] == ["checkpoint"]

    def test_an_exchange_that_fails_in_between_is_taken_back(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        place = tmp_path / "here" / "checkpoint"
        make_checkpoint(place, [traj(0)])
        before = contents_of(place)
        buffer = TrajectoryReplayBuffer()
        buffer.add_trajectories([traj(1)])
        monkeypatch.setattr(linux_files, "exchange", lambda first, second: False)
        rename = files.rename

        def fail(source: Path, target: Path) -> None:
            if source.name == ".checkpoint.new":
                raise OSError(errno.EIO, "bad disk", str(source))
            rename(source, target)

        monkeypatch.setattr(files, "rename", fail)
        with pytest.raises(StorageWriteError, match="as it was"):
            buffer.save_checkpoint(place)
        assert contents_of(place) == before
        monkeypatch.setattr(files, "rename", rename)
        buffer.save_checkpoint(place)
        assert [path.name for path in place.parent.iterdir()] == ["checkpoint"]

    @pytest.mark.parametrize("content", ["file", "folder", "store", "a file of others"])
    def test_what_is_no_checkpoint_is_not_replaced(self, content: str, tmp_path: Path) -> None:
        place = tmp_path / "place"
        if content == "file":
            place.write_text("mine")
        elif content == "store":
            with open_at("pt", place) as store:
                store.add_trajectories([traj(3)])
        elif content == "folder":
            place.mkdir()
            (place / "thesis.tex").write_text("mine")
        else:
            make_checkpoint(place, [traj(0)])
            (place / "notes.txt").write_text("mine")
        before = contents_of(tmp_path)
        buffer = TrajectoryReplayBuffer()
        buffer.add_trajectories([traj(1)])
        with pytest.raises(StoreExistsError, match=r"choose .*(folder|path)"):
            buffer.save_checkpoint(place)
        assert contents_of(tmp_path) == before

    def test_an_empty_folder_may_be_the_place(self, tmp_path: Path) -> None:
        make_checkpoint(tmp_path / "a" / "b" / "c", [traj(0)])
        (tmp_path / "empty").mkdir()
        make_checkpoint(tmp_path / "empty", [traj(0)])
        assert trajectory_files(tmp_path / "empty") == [0]


class TestPlaces:
    """Elsewhere a save into the store's own folder failed half way."""

    @pytest.mark.parametrize("place", ["store", "store/checkpoint", "link", "link/deep/er", "."])
    def test_a_place_in_or_around_the_own_folder_is_refused(
        self, place: str, tmp_path: Path
    ) -> None:
        with open_at("pt", tmp_path / "store") as buffer:
            buffer.add_trajectories([traj(0)])
            buffer.flush()
            (tmp_path / "link").symlink_to(tmp_path / "store", target_is_directory=True)
            before = contents_of(tmp_path)
            with pytest.raises(InvalidArgumentError, match="a folder of its own"):
                buffer.save_checkpoint(tmp_path / place)
            assert contents_of(tmp_path) == before
            check_rows(buffer.sample(20))

    def test_a_relative_place_is_that_of_the_moment(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("here", "there"):
            (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / "here")
        with open_at("pt", Path("store")) as buffer:
            buffer.add_trajectories([traj(0)])
            monkeypatch.chdir(tmp_path / "there")
            buffer.save_checkpoint("checkpoint")
            buffer.add_trajectories([traj(1)])
            with pytest.raises(InvalidArgumentError):
                buffer.save_checkpoint("../here/store")
        assert trajectory_files(tmp_path / "there" / "checkpoint") == [0]
        assert trajectory_files(tmp_path / "here" / "store") == [0, 1]

    def test_behind_a_link_lies_the_checkpoint(self, tmp_path: Path) -> None:
        (tmp_path / "disk").mkdir()
        (tmp_path / "link").symlink_to(tmp_path / "disk" / "checkpoint", target_is_directory=True)
        buffer = TrajectoryReplayBuffer(sample_window_size=1)
        for k in range(3):
            buffer.add_trajectories([traj(k)])
            buffer.save_checkpoint(tmp_path / "link")
            assert (tmp_path / "link").is_symlink()
            assert [path.name for path in (tmp_path / "disk").iterdir()] == ["checkpoint"]
            assert trajectory_files(tmp_path / "disk" / "checkpoint") == [k]
        other = TrajectoryReplayBuffer()
        other.load_checkpoint(tmp_path / "link")
        assert ks_of(other) == {2}

    @pytest.mark.parametrize("kind", ["memory", "pt"])
    @pytest.mark.parametrize("inside", ["", "checkpoint"])
    def test_a_link_to_itself_is_refused(self, inside: str, kind: str, tmp_path: Path) -> None:
        (tmp_path / "ring").symlink_to("ring")
        with open_at(kind, tmp_path / "store") as buffer:
            buffer.add_trajectories([traj(0)])
            with pytest.raises(StorageError, match="Too many levels of symbolic links"):
                buffer.save_checkpoint(tmp_path / "ring" / inside)
            with pytest.raises(StorageError, match="Too many levels of symbolic links"):
                buffer.load_checkpoint(tmp_path / "ring" / inside)
            assert ks_of(buffer) == {0}


class TestLoading:
    @pytest.mark.parametrize("into", KINDS)
    def test_the_checkpoint_may_be_deleted_afterwards(self, into: str, tmp_path: Path) -> None:
        make_checkpoint(tmp_path / "checkpoint", [traj(k) for k in range(4)])
        with open_at(into, tmp_path / "store", cache_size=1) as buffer:
            buffer.load_checkpoint(tmp_path / "checkpoint")
            shutil.rmtree(tmp_path / "checkpoint")
            assert ks_of(buffer) == {0, 1, 2, 3}
            if into != "memory":
                assert trajectory_files(tmp_path / "store") == [0, 1, 2, 3]
        if into != "memory":
            with open_at(into, tmp_path / "store", if_exists="resume") as again:
                assert ks_of(again) == {0, 1, 2, 3}

    def test_loading_the_same_again_doubles_nothing(self, tmp_path: Path) -> None:
        """Data that came from the folder and again from the checkpoint were held twice."""
        make_checkpoint(tmp_path / "checkpoint", [traj(k) for k in range(3)])
        for restart in range(3):
            with open_at("pt", tmp_path / "store", if_exists="resume") as buffer:
                assert len(buffer) == (3 if restart else 0)
                names = [path.name for path in (tmp_path / "store").glob("*.pt")]
                stamps = [path.stat().st_ino for path in (tmp_path / "store").glob("*.pt")]
                for _ in range(2):
                    buffer.load_checkpoint(tmp_path / "checkpoint")
                    assert (len(buffer), buffer.total_samples) == (3, 36)
                if restart:
                    kept = [path.stat().st_ino for path in (tmp_path / "store").glob("*.pt")]
                    assert kept == stamps
                    assert [path.name for path in (tmp_path / "store").glob("*.pt")] == names
                assert not (tmp_path / "store" / "aside").exists()
                assert buffer.trajectory_counter == 3

    def test_the_own_checkpoint_and_the_own_folder_can_be_loaded(self, tmp_path: Path) -> None:
        with open_at("pt", tmp_path / "store", sample_window_size=2) as buffer:
            buffer.add_trajectories([traj(k) for k in range(3)])
            buffer.load_checkpoint(tmp_path / "store")
            assert (len(buffer), ks_of(buffer)) == (3, {1, 2})
            buffer.save_checkpoint(tmp_path / "checkpoint")
            with pytest.warns(UserWarning, match="1 trajectory of the store"):
                buffer.load_checkpoint(tmp_path / "checkpoint")
            assert len(buffer) == 2

    @pytest.mark.parametrize("cache_size", [0, 2])
    def test_a_buffer_that_holds_data_keeps_the_same_and_moves_the_rest_aside(
        self, cache_size: int, tmp_path: Path
    ) -> None:
        store = tmp_path / "store"
        with open_at("pt", store, cache_size=cache_size) as buffer:
            buffer.add_trajectories([traj(k) for k in range(3)])
            buffer.save_checkpoint(tmp_path / "checkpoint")
            buffer.add_trajectories([traj(3, weights_id="x"), traj(4)])
            buffer.delete([1])
            buffer.flush()
            inode = next(store.glob("trajectory_0_*")).stat().st_ino
            with pytest.warns(UserWarning, match=r"2 trajectories of the store.*aside"):
                buffer.load_checkpoint(tmp_path / "checkpoint")
            assert ks_of(buffer) == {0, 1, 2}
            assert next(store.glob("trajectory_0_*")).stat().st_ino == inode
            (aside,) = (store / "aside").iterdir()
            assert trajectory_files(aside) == [3, 4]
            assert trajectory_files(store) == [0, 1, 2]
            assert buffer.add_trajectories([traj(5)]) == [5]
            batch, info = buffer.sample(100, return_info=True)
            check_rows(batch, info, {0: 0, 1: 1, 2: 2, 5: 5})
            with pytest.raises(EvictedError):
                buffer.trajectory(3)
            assert info.row_ids.max() >= 60  # row ids are not given twice either
        with open_at("pt", store, if_exists="resume") as again:
            assert ks_of(again) == {0, 1, 2, 5}

    @pytest.mark.parametrize("saved_as", ["memory", "pt", "pkl"])
    @pytest.mark.parametrize("kind", ["memory", "pt"])
    def test_one_that_is_replaced_while_it_is_loaded_is_read_again(
        self, kind: str, saved_as: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        place = tmp_path / "checkpoint"
        with open_at(saved_as, tmp_path / "saver", sample_window_size=2) as saver:
            saver.add_trajectories([traj(0), traj(1)])
            saver.save_checkpoint(place)

            def read_and_save(path: Path, formats: Any) -> Any:
                checkpoint = read_checkpoint(path, formats)
                k = saver.trajectory_counter
                if k < 10:
                    saver.add_trajectories([traj(k), traj(k + 1)])
                    saver.save_checkpoint(place)
                return checkpoint

            monkeypatch.setattr("relive.buffer.read_checkpoint", read_and_save)
            with open_at(kind, tmp_path / "store") as buffer:
                buffer.load_checkpoint(place)
                assert ks_of(buffer) == {8, 9}

    def test_a_file_is_missed_at_once_when_nothing_took_the_place(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        place = tmp_path / "checkpoint"
        make_checkpoint(place, [traj(0), traj(1)])
        next(place.glob("trajectory_1_*.pt")).unlink()
        reads = []

        def count(path: Path, formats: Any) -> Any:
            reads.append(path)
            return read_checkpoint(path, formats)

        monkeypatch.setattr("relive.buffer.read_checkpoint", count)
        with pytest.raises(MissingFileError, match="trajectory_1_"):
            TrajectoryReplayBuffer().load_checkpoint(place)
        assert len(reads) == 1

    def test_one_that_is_replaced_for_ever_is_given_up(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        saver = TrajectoryReplayBuffer(sample_window_size=1)
        saver.add_trajectories([traj(0)])
        saver.save_checkpoint(tmp_path / "checkpoint")

        def read_and_save(path: Path, formats: Any) -> Any:
            checkpoint = read_checkpoint(path, formats)
            saver.add_trajectories([traj(saver.trajectory_counter)])
            saver.save_checkpoint(tmp_path / "checkpoint")
            return checkpoint

        monkeypatch.setattr("relive.buffer.read_checkpoint", read_and_save)
        with pytest.raises(MissingFileError, match="is not there"):
            TrajectoryReplayBuffer().load_checkpoint(tmp_path / "checkpoint")

    def test_another_trajectory_of_the_same_id_takes_its_place(self, tmp_path: Path) -> None:
        make_checkpoint(tmp_path / "checkpoint", [traj(10, T=2), traj(11, T=9)])
        for weights_id in ("", "other"):
            store = tmp_path / f"store {weights_id}"
            with open_at("pt", store) as buffer:
                buffer.add_trajectories([traj(k, T=7, weights_id=weights_id) for k in range(3)])
                buffer.sample(50)
                with pytest.warns(UserWarning, match="3 trajectories"):
                    buffer.load_checkpoint(tmp_path / "checkpoint")
                batch, info = buffer.sample(100, return_info=True)
                check_rows(batch, info, {0: 10, 1: 11})
                (aside,) = (store / "aside").iterdir()
                assert trajectory_files(aside) == [0, 1, 2]
                assert buffer.add_trajectories([traj(12)]) == [3]
            with open_at("pt", store, if_exists="resume") as again:
                assert ks_of(again) == {10, 11, 12}

    def test_formats_may_be_mixed(self, tmp_path: Path) -> None:
        make_checkpoint(
            tmp_path / "checkpoint", [traj(k) for k in range(3)], trajectory_format="pkl"
        )
        with open_at("pt", tmp_path / "store", cache_size=0) as buffer:
            buffer.load_checkpoint(tmp_path / "checkpoint")
            buffer.add_trajectories([traj(3)])
            buffer.flush()
            suffixes = sorted(path.suffix for path in (tmp_path / "store").glob("trajectory_*_*"))
            assert suffixes == [".pkl"] * 3 + [".pt"]
            assert ks_of(buffer) == {0, 1, 2, 3}
            buffer.save_checkpoint(tmp_path / "mixed")
        for into in KINDS:
            with open_at(into, tmp_path / f"store {into}") as other:
                other.load_checkpoint(tmp_path / "mixed")
                assert ks_of(other) == {0, 1, 2, 3}

    def test_a_memory_buffer_keeps_its_window_and_counts_the_rest(self, tmp_path: Path) -> None:
        make_checkpoint(tmp_path / "checkpoint", [traj(k, T=k + 1, B=1) for k in range(5)])
        buffer = TrajectoryReplayBuffer(sample_window_size=2)
        buffer.load_checkpoint(tmp_path / "checkpoint")
        assert (len(buffer), buffer.total_samples, ks_of(buffer)) == (5, 15, {3, 4})
        assert buffer.get_stats()["sampleable_trajectories"] == 2

    def test_the_cache_is_filled_at_loading_with_the_newest(self, tmp_path: Path) -> None:
        make_checkpoint(tmp_path / "checkpoint", [traj(k) for k in range(5)])
        with open_at("pt", tmp_path / "store", cache_size=2) as buffer:
            buffer.add_trajectories([traj(9)])
            with pytest.warns(UserWarning, match="1 trajectory"):
                buffer.load_checkpoint(tmp_path / "checkpoint")
            assert buffer.get_stats()["cache_size"] == 2
            for path in (tmp_path / "store").glob("*.pt"):
                path.unlink()
            check_rows(buffer.gather([36, 59]))  # of trajectories 3 and 4
            with pytest.raises(MissingFileError):
                buffer.gather([35])

    def test_a_file_that_the_store_lost_comes_from_the_checkpoint(self, tmp_path: Path) -> None:
        with open_at("pt", tmp_path / "store", cache_size=0) as buffer:
            buffer.add_trajectories([traj(k) for k in range(3)])
            buffer.save_checkpoint(tmp_path / "checkpoint")
            next((tmp_path / "store").glob("trajectory_1_*")).unlink()
            cut = next((tmp_path / "store").glob("trajectory_2_*"))
            cut.write_bytes(cut.read_bytes()[:-9])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                buffer.load_checkpoint(tmp_path / "checkpoint")
            assert ks_of(buffer) == {0, 1, 2}


class TestFailingLoads:
    @pytest.mark.parametrize("into", KINDS)
    @pytest.mark.parametrize("damage", ["missing", "cut", "torn", "swapped"])
    def test_a_bad_trajectory_file_is_named_and_nothing_changes(
        self, into: str, damage: str, tmp_path: Path
    ) -> None:
        make_checkpoint(tmp_path / "checkpoint", [traj(k) for k in range(3)])
        (path,) = (tmp_path / "checkpoint").glob("trajectory_2_*")
        content = path.read_bytes()
        if damage == "missing":
            path.unlink()
        elif damage == "cut":
            path.write_bytes(content[: len(content) // 2])
        elif damage == "torn":
            path.write_bytes(content.replace(np.array([2_001_000]).tobytes(), b"\0" * 8))
        else:
            shutil.copy(next((tmp_path / "checkpoint").glob("trajectory_1_*")), path)
        with open_at(into, tmp_path / "store") as buffer:
            buffer.add_trajectories([traj(7)])
            buffer.flush()
            before = contents_of(tmp_path / "store") if into != "memory" else {}
            state = buffer.state_dict()
            if into == "memmap" and damage in ("torn", "swapped"):
                # nothing is read into a cache, so the bytes are seen when they are read
                with pytest.warns(UserWarning, match="moved to 'aside'"):
                    buffer.load_checkpoint(tmp_path / "checkpoint")
                with pytest.raises(CorruptFileError, match="trajectory_2_"):
                    buffer.trajectory(2)
                assert same_trajectory(buffer.trajectory(1), traj(1))
                return
            with pytest.raises((MissingFileError, CorruptFileError), match="trajectory_2_"):
                buffer.load_checkpoint(tmp_path / "checkpoint")
            assert buffer.state_dict() == state
            assert ks_of(buffer) == {7}
            if into != "memory":
                assert contents_of(tmp_path / "store") == before

    @pytest.mark.parametrize("name", ["trajectory_index.json", "metadata.json"])
    @pytest.mark.parametrize(
        "content", [None, b"", b"{", b"[1]", b'"a"', b"{}", b"\xff\xfe", b'{"relive": {}}', b"cut"]
    )
    def test_a_bad_index_is_named_and_nothing_changes(
        self, name: str, content: bytes | None, tmp_path: Path
    ) -> None:
        make_checkpoint(tmp_path / "checkpoint", [traj(0)])
        path = tmp_path / "checkpoint" / name
        if content is None:
            path.unlink()
        else:
            path.write_bytes(path.read_bytes()[:-40] if content == b"cut" else content)
        buffer = TrajectoryReplayBuffer()
        buffer.add_trajectories([traj(7)])
        error = MissingFileError if content is None else CorruptFileError
        with pytest.raises(error, match=f"{str(path)!r}"):
            buffer.load_checkpoint(tmp_path / "checkpoint")
        assert ks_of(buffer) == {7}

    def test_an_index_of_another_save_is_refused(self, tmp_path: Path) -> None:
        make_checkpoint(tmp_path / "one", [traj(0)])
        make_checkpoint(tmp_path / "other", [traj(0)])
        shutil.copy(
            tmp_path / "one" / "trajectory_index.json", tmp_path / "other" / "trajectory_index.json"
        )
        with pytest.raises(CorruptFileError, match=r"must be the one that metadata\.json"):
            TrajectoryReplayBuffer().load_checkpoint(tmp_path / "other")

    @pytest.mark.parametrize("place", ["nothing here", "empty", "file"])
    def test_a_place_without_a_checkpoint_is_named(self, place: str, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        (tmp_path / "file").write_text("mine")
        with pytest.raises(MissingFileError, match=place) as raised:
            TrajectoryReplayBuffer().load_checkpoint(tmp_path / place)
        assert isinstance(raised.value, FileNotFoundError)

    @pytest.mark.parametrize("when", ["copying", "noting"])
    def test_a_full_disk_changes_nothing(
        self, when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        make_checkpoint(tmp_path / "checkpoint", [traj(k) for k in range(3)])
        with open_at("pt", tmp_path / "store") as buffer:
            buffer.add_trajectories([traj(7)])
            buffer.flush()
            before = contents_of(tmp_path / "store")

            def fail(*_: Any, **__: Any) -> None:
                raise OSError(errno.ENOSPC, "no room", "here")

            with monkeypatch.context() as patch:
                if when == "copying":
                    patch.setattr(files, "copy", fail)
                else:
                    patch.setattr(open_files.AppendFile, "append", fail)
                with pytest.raises(StorageError, match="as it was") as raised:
                    buffer.load_checkpoint(tmp_path / "checkpoint")
                assert raised.value.errno == errno.ENOSPC
            assert contents_of(tmp_path / "store") == before
            assert ks_of(buffer) == {7}
            buffer.add_trajectories([traj(8)])
            buffer.flush()
            with pytest.warns(UserWarning, match="2 trajectories"):
                buffer.load_checkpoint(tmp_path / "checkpoint")
            assert ks_of(buffer) == {0, 1, 2}

    def test_files_that_cannot_be_moved_into_place_are_tried_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """After the index says what was loaded there is no way back, only forward."""
        make_checkpoint(tmp_path / "checkpoint", [traj(k) for k in range(3)])
        with open_at("pt", tmp_path / "store", cache_size=0) as buffer:
            buffer.add_trajectories([traj(7), traj(8)])
            buffer.flush()
            rename = files.rename

            def fail(source: Path, target: Path) -> None:
                if source.parent.name.startswith("incoming") and "_1_" in source.name:
                    raise OSError(errno.EIO, "bad disk", str(source))
                rename(source, target)

            with monkeypatch.context() as patch:
                patch.setattr(files, "rename", fail)
                with pytest.raises(StorageWriteError, match=r"loaded index.*in their places"):
                    buffer.load_checkpoint(tmp_path / "checkpoint")
                for read in (lambda: buffer.sample(64), lambda: buffer.trajectory(1)):
                    with pytest.raises(StorageWriteError, match=r"make room .* flush\(\)"):
                        read()  # where 1 is to lie the other 1 still lies
                with pytest.raises(StorageWriteError, match="loaded index"):
                    buffer.flush()
            buffer.flush()
            assert ks_of(buffer) == {0, 1, 2}
            assert buffer.add_trajectories([traj(9)]) == [3]
            aside = list((tmp_path / "store" / "aside").glob("*/*.pt"))
            assert sorted(path.name for path in aside) == ["trajectory_0_.pt", "trajectory_1_.pt"]
        with open_at("pt", tmp_path / "store", if_exists="resume") as again:
            assert ks_of(again) == {0, 1, 2, 9}

    def test_folders_of_a_load_that_was_killed_are_cleared_away(self, tmp_path: Path) -> None:
        store = tmp_path / "store"
        with open_at("pt", store) as buffer:
            buffer.add_trajectories([traj(0)])
        (store / "incoming-0123abcd").mkdir()
        (store / "incoming-0123abcd" / "trajectory_5_.pt").write_bytes(b"part of it")
        with open_at("pt", store, if_exists="resume") as buffer:
            assert ks_of(buffer) == {0}
            assert not list(store.glob("incoming-*"))


class TestSafety:
    def test_a_loaded_checkpoint_runs_nothing(self, tmp_path: Path) -> None:
        """Data files can hide code that runs when they are read."""
        make_checkpoint(tmp_path / "checkpoint", [traj(0)], trajectory_format="pkl")
        (path,) = (tmp_path / "checkpoint").glob("*.pkl")
        marker = tmp_path / "marker"
        path.write_bytes(f"cos\nsystem\n(S'touch {marker}'\ntR.".encode())
        size = path.stat().st_size
        index = tmp_path / "checkpoint" / "trajectory_index.json"
        entries = json.loads(index.read_text())
        entries["trajectory_index"]["0"]["location"]["size_bytes"] = size
        index.write_text(json.dumps(entries))
        metadata = tmp_path / "checkpoint" / "metadata.json"
        whole = json.loads(metadata.read_text())
        del whole["relive"]["index_xxh3"]
        metadata.write_text(json.dumps(whole))
        with pytest.raises(CorruptFileError, match="allow_pickle"):
            TrajectoryReplayBuffer().load_checkpoint(tmp_path / "checkpoint")
        assert not marker.exists()

    def test_a_checkpoint_is_on_the_disk_when_saving_returns(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        synced: set[int] = set()
        fsync = os.fsync

        def note(descriptor: int) -> None:
            synced.add(os.fstat(descriptor).st_ino)
            fsync(descriptor)

        for kind in KINDS:
            with open_at(kind, tmp_path / f"store {kind}") as buffer:
                buffer.add_trajectories([traj(0), traj(1)])
                buffer.flush()
                place = tmp_path / kind / "checkpoint"
                with monkeypatch.context() as patch:
                    patch.setattr(os, "fsync", note)
                    buffer.save_checkpoint(place)
                for path in (*place.iterdir(), place, place.parent):
                    assert path.stat().st_ino in synced, path


class TestProgress:
    @pytest.mark.parametrize("kind", ["pt", "pkl", "memmap"])
    def test_bytes_that_are_copied_are_told(
        self, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As on another file system: no links, no shared blocks."""

        def refuse(*_: object, **__: object) -> None:
            raise OSError(errno.EXDEV, "another file system")

        monkeypatch.setattr(files, "share_blocks", lambda *_: False)
        monkeypatch.setattr("os.link", refuse)
        saved, loaded = list[int](), list[int]()
        with open_at(kind, tmp_path / "store", framework="numpy") as buffer:
            buffer.add_trajectories([traj(k, T=50, B=4) for k in range(3)])
            buffer.save_checkpoint(tmp_path / "saved", progress=saved.append)
        with open_at(kind, tmp_path / "other", framework="numpy") as buffer:
            buffer.load_checkpoint(tmp_path / "saved", progress=loaded.append)
            assert ks_of(buffer) == {0, 1, 2}
        expected = sum(
            path.stat().st_size
            for path in (tmp_path / "saved").rglob("*")
            if path.is_file() and not path.name.startswith(("trajectory_index", "metadata"))
        )
        assert sum(saved) == sum(loaded) == expected
