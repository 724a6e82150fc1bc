# SPDX-License-Identifier: Apache-2.0
"""The asynchronous writer of a buffer: nothing swallowed, nothing lost, read your own writes."""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest

from buffers import open_buffer, open_store
from relive import Limits, Trajectory, TrajectoryReplayBuffer, files, open_files
from relive.errors import (
    ClosedError,
    CorruptFileError,
    MissingFileError,
    StorageWriteError,
    TimeLimitError,
)
from relive.formats import MemmapFormat
from relive.formats.memmap.format import ReadMode
from relive.journal_replay import replay
from relive.lifetime import leave_alone
from trajectories import address_of, check_rows, same_trajectory, traj, trajectory_files

KINDS = ["pt", "pkl", "memmap"]


class Disk:
    """Makes writes of trajectory files fail, or wait, while told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error_number = 0
        self.may_write = threading.Event()
        self.may_write.set()
        self.num_tried = 0
        self._write_atomic = files.write_atomic
        monkeypatch.setattr(files, "write_atomic", self.write_atomic)

    def write_atomic(self, path: Path, write: Callable[[BinaryIO], None], *, sync: bool) -> int:
        def write_or_fail(file: BinaryIO) -> None:
            if path.suffix in (".pt", ".pkl"):
                self.num_tried += 1
                assert self.may_write.wait(600)
                if self.error_number:
                    file.write(b"the beginning of it")
                    raise OSError(self.error_number, os.strerror(self.error_number), str(path))
            write(file)

        return self._write_atomic(path, write_or_fail, sync=sync)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


class TestDeleting:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("how", ["deleted", "evicted"])
    def test_what_was_noted_and_not_synced_does_not_come_back(
        self, how: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sync, refusals = open_files.AppendFile.sync, [errno.EIO]

        def refuse_once(file: open_files.AppendFile) -> None:
            if refusals:
                raise OSError(refusals.pop(), "the disk is ill")
            sync(file)

        limits = Limits(max_trajectories=1 if how == "evicted" else None)
        options = {"durability": "power", "limits": limits, "sample_window_size": 0}
        with open_buffer(kind, tmp_path, **options) as buffer:
            with monkeypatch.context() as patch:
                patch.setattr(open_files.AppendFile, "sync", refuse_once)
                buffer.add_trajectories([traj(0)])
                with pytest.raises(StorageWriteError, match=r"trajectory 0 .* disk is ill"):
                    buffer.flush()
                if how == "deleted":
                    buffer.delete([0])
                buffer.add_trajectories([traj(1)])
                buffer.flush()
            assert len(buffer) == 1
        with open_buffer(kind, tmp_path, if_exists="resume", **options) as again:
            assert len(again) == 1
            assert same_trajectory(again.trajectory(1), traj(1))

    @pytest.mark.parametrize("kind", ["pt", "pkl"])
    def test_a_file_whose_name_was_not_synced_goes_too(
        self, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sync, refusals = files.sync_folder, [errno.EIO]

        def refuse_once(folder: Path) -> None:
            if refusals:
                raise OSError(refusals.pop(), "the disk is ill")
            sync(folder)

        with open_buffer(kind, tmp_path, durability="power") as buffer:
            buffer.flush()
            with monkeypatch.context() as patch:
                patch.setattr(files, "sync_folder", refuse_once)
                buffer.add_trajectories([traj(0)])
                with pytest.raises(StorageWriteError, match="disk is ill"):
                    buffer.flush()
                buffer.delete([0])
                buffer.flush()
            assert trajectory_files(tmp_path / "store") == []


class TestStoring:
    @pytest.mark.parametrize("kind", KINDS)
    def test_a_flush_returns_when_all_is_in_files_and_in_the_index(
        self, kind: str, tmp_path: Path
    ) -> None:
        with open_buffer(kind, tmp_path) as buffer:
            buffer.add_trajectories([traj(k) for k in range(5)])
            buffer.flush()
            assert trajectory_files(tmp_path / "store") == list(range(5))
            assert list(replay(tmp_path / "store").contents.records) == list(range(5))
            if kind != "memmap":  # whose index file is complete after closing
                index = json.loads((tmp_path / "store" / "trajectory_index.json").read_text())
                assert index["trajectory_id_list"] == list(range(5))
            metadata = json.loads((tmp_path / "store" / "metadata.json").read_text())
            assert (metadata["size"], metadata["total_samples"]) == (5, 60)
            assert buffer.get_stats()["pending_trajectories"] == 0

    def test_the_json_files_are_complete_after_closing(self, tmp_path: Path) -> None:
        with open_buffer("pt", tmp_path) as buffer:
            for k in range(20):
                buffer.add_trajectories([traj(k)])
            buffer.delete([3])
        index = json.loads((tmp_path / "store" / "trajectory_index.json").read_text())
        ids = [k for k in range(20) if k != 3]
        assert index["trajectory_id_list"] == ids
        assert sorted(index["trajectory_index"], key=int) == list(map(str, ids))
        entry = index["trajectory_index"]["4"]
        assert (entry["trajectory_id"], entry["num_samples"], entry["shape"]) == (4, 12, [4, 3, 2])
        assert {"uuid", "max_episode_length", "model_weights_id"} <= entry.keys()
        metadata = json.loads((tmp_path / "store" / "metadata.json").read_text())
        assert metadata["trajectory_counter"] == 20
        assert (metadata["trajectory_format"], metadata["seed"]) == ("pt", 1234)

    @pytest.mark.parametrize("kind", KINDS)
    def test_rows_are_the_same_pending_cached_and_from_files(
        self, kind: str, tmp_path: Path, disk: Disk
    ) -> None:
        with open_buffer(kind, tmp_path, cache_size=2) as buffer:
            disk.may_write.clear()
            buffer.add_trajectories([traj(k, T=6, B=4, E=2, wide=True) for k in range(4)])
            ids = np.arange(0, 96, 5)
            pending = buffer.gather(ids)
            whole = buffer.trajectory(1)
            disk.may_write.set()
            buffer.flush()
            cached = buffer.gather(ids)
            buffer.clear_cache()
            from_files = buffer.gather(ids)
            for batch in (pending, cached, from_files):
                check_rows(batch)
            assert same_trajectory(buffer.trajectory(1), whole)
            assert buffer.get_stats()["cache_size"] == 0

    def test_a_flush_does_not_wait_for_what_comes_after_it(
        self, tmp_path: Path, disk: Disk
    ) -> None:
        """A producer that never pauses must not keep a flush for ever."""
        limits = Limits(max_pending_bytes=20_000, max_trajectories=20)
        with open_buffer("pt", tmp_path, limits=limits, sample_window_size=0) as buffer:
            must_stop = threading.Event()

            def produce() -> None:
                k = 0
                while not must_stop.is_set():
                    buffer.add_trajectories([traj(k % 1000, T=1, B=1) for _ in range(5)])
                    k += 1

            producer = threading.Thread(target=produce)
            producer.start()
            try:
                for _ in range(3):
                    buffer.flush()
            finally:
                must_stop.set()
                producer.join()

    def test_a_time_limit_says_what_is_left(self, tmp_path: Path, disk: Disk) -> None:
        with open_buffer("pt", tmp_path) as buffer:
            disk.may_write.clear()
            buffer.add_trajectories([traj(0)])
            with pytest.raises(TimeLimitError, match=r"waited 0\.01 s .* bytes are left"):
                buffer.flush(timeout_s=0.01)
            disk.may_write.set()
            buffer.flush(timeout_s=600)

    def test_power_durability_syncs_before_a_flush_returns(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        synced: list[int] = []
        fsync = os.fsync

        def note(descriptor: int) -> None:
            synced.append(os.fstat(descriptor).st_ino)
            fsync(descriptor)

        monkeypatch.setattr(os, "fsync", note)
        with open_buffer("pt", tmp_path, durability="power") as buffer:
            buffer.add_trajectories([traj(0)])
            buffer.flush()
            folder = tmp_path / "store"
            for path in (next(folder.glob("*.pt")), folder, folder / "trajectory_index.journal"):
                assert path.stat().st_ino in synced, path
        with open_buffer("pt", tmp_path / "other") as buffer:
            synced.clear()
            buffer.add_trajectories([traj(0)])
            buffer.flush()
            (file,) = (tmp_path / "other" / "store").glob("*.pt")
            assert file.stat().st_ino not in synced
        assert file.stat().st_ino in synced


class TestFailingWrites:
    """Errors of writers in the background were swallowed, and seen hours later."""

    @pytest.mark.parametrize("call", ["flush", "add", "save", "close", "delete", "load"])
    def test_an_error_is_told_once_by_the_next_call(
        self, call: str, tmp_path: Path, disk: Disk
    ) -> None:
        self.check(call, "pt", errno.ENOSPC, tmp_path, disk)

    @pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.EDQUOT])
    def test_any_error_is_told(self, number: int, tmp_path: Path, disk: Disk) -> None:
        self.check("flush", "pkl", number, tmp_path, disk)

    def check(self, call: str, kind: str, number: int, tmp_path: Path, disk: Disk) -> None:
        limits = Limits(max_pending_bytes=1)  # an add waits for what is queued before it
        buffer = open_buffer(kind, tmp_path, cache_size=0, limits=limits)
        buffer.add_trajectories([traj(0)])
        buffer.flush()
        buffer.save_checkpoint(tmp_path / "good")
        disk.error_number = number
        buffer.add_trajectories([traj(1)])
        calls: dict[str, Callable[[], Any]] = {
            "flush": buffer.flush,
            "add": lambda: buffer.add_trajectories([traj(9)]),
            "save": lambda: buffer.save_checkpoint(tmp_path / "checkpoint"),
            "close": buffer.close,
            "delete": lambda: self.delete_until_told(buffer),
            "load": lambda: buffer.load_checkpoint(tmp_path / "good"),
        }
        with pytest.raises(StorageWriteError, match="trajectory 1 could not be written") as raised:
            calls[call]()
        error = raised.value
        assert (error.trajectory_id, error.errno) == (1, number)
        assert isinstance(error.__cause__, OSError)
        assert trajectory_files(tmp_path / "store") == [0]

        assert (len(buffer), buffer.trajectory_counter) == (2, 2)
        assert buffer.get_stats()["pending_trajectories"] == 1
        batch, info = buffer.sample(40, return_info=True)
        check_rows(batch, info, {0: 0, 1: 1})
        assert same_trajectory(buffer.trajectory(1), traj(1))

        disk.error_number = 0
        assert buffer.add_trajectories([traj(2)]) == [2]
        buffer.flush()
        assert trajectory_files(tmp_path / "store") == [0, 1, 2]
        buffer.close()
        with open_buffer(kind, tmp_path, if_exists="resume") as again:
            assert set(address_of(again.sample(60))[0].tolist()) == {0, 1, 2}

    @staticmethod
    def delete_until_told(buffer: TrajectoryReplayBuffer) -> None:
        while True:
            buffer.delete([])

    def test_it_is_told_again_as_long_as_it_fails_and_nothing_is_left_behind(
        self, tmp_path: Path, disk: Disk
    ) -> None:
        buffer = open_buffer("pt", tmp_path)
        disk.error_number = errno.ENOSPC
        buffer.add_trajectories([traj(0), traj(1)])
        for attempt in range(1, 4):
            with pytest.raises(StorageWriteError, match="trajectory 0"):
                buffer.flush()
            assert disk.num_tried == attempt
        with pytest.raises(StorageWriteError):
            buffer.close()
        assert [path for path in (tmp_path / "store").iterdir() if path.suffix == ".tmp"] == []
        assert trajectory_files(tmp_path / "store") == []
        check_rows(buffer.sample(10))
        disk.error_number = 0
        buffer.close()
        assert trajectory_files(tmp_path / "store") == [0, 1]

    def test_a_trajectory_that_cannot_be_written_can_be_deleted(
        self, tmp_path: Path, disk: Disk
    ) -> None:
        buffer = open_buffer("pt", tmp_path)
        disk.error_number = errno.EFBIG
        buffer.add_trajectories([traj(0)])
        with pytest.raises(StorageWriteError):
            buffer.flush()
        buffer.delete([0])
        buffer.flush()
        buffer.add_trajectories([traj(1)])
        buffer.clear()
        buffer.close()
        assert trajectory_files(tmp_path / "store") == []

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("call", ["flush", "add", "close", "save"])
    def test_a_removed_folder_is_told(self, call: str, kind: str, tmp_path: Path) -> None:
        limits = Limits(max_pending_bytes=1)  # an add waits for what is queued before it
        buffer = open_buffer(kind, tmp_path, limits=limits)
        buffer.add_trajectories([traj(0)])
        buffer.flush()
        shutil.rmtree(tmp_path / "store")
        buffer.add_trajectories([traj(1)])
        calls: dict[str, Callable[[], Any]] = {
            "flush": buffer.flush,
            "add": lambda: buffer.add_trajectories([traj(9)]),
            "close": buffer.close,
            "save": lambda: buffer.save_checkpoint(tmp_path / "checkpoint"),
        }
        with pytest.raises(StorageWriteError) as raised:
            calls[call]()
        assert (raised.value.trajectory_id, raised.value.errno) == (1, errno.ENOENT)
        assert isinstance(raised.value.__cause__, FileNotFoundError)
        assert (buffer.trajectory_counter, buffer.get_stats()["pending_trajectories"]) == (2, 1)
        assert same_trajectory(buffer.trajectory(1), traj(1))
        assert list(tmp_path.iterdir()) == []
        with pytest.raises(StorageWriteError):
            buffer.close()
        buffer.delete([1])  # or the end of the program would try once more, and say so
        leave_alone(buffer)

    def test_a_failing_journal_line_stores_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        buffer = open_buffer("pt", tmp_path)
        buffer.add_trajectories([traj(0)])
        buffer.flush()
        append = open_files.AppendFile.append

        def fail(file: open_files.AppendFile, block: bytes) -> None:
            raise OSError(errno.ENOSPC, "no room", "the journal")

        monkeypatch.setattr(open_files.AppendFile, "append", fail)
        buffer.add_trajectories([traj(1)])
        with pytest.raises(StorageWriteError, match="trajectory 1") as raised:
            buffer.flush()
        assert raised.value.trajectory_id == 1
        assert buffer.get_stats()["pending_trajectories"] == 1
        monkeypatch.setattr(open_files.AppendFile, "append", append)
        buffer.flush()
        buffer.close()
        with open_buffer("pt", tmp_path, if_exists="resume") as again:
            assert len(again) == 2
            check_rows(again.sample(30))

    @pytest.mark.parametrize("name", ["trajectory_index.json", "metadata.json"])
    def test_an_index_that_cannot_be_completed_keeps_the_buffer_open(
        self, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        buffer = open_buffer("pt", tmp_path)
        buffer.add_trajectories([traj(0)])
        buffer.flush()
        # which the index file does not say yet
        buffer.load_state_dict({**buffer.state_dict(), "trajectory_counter": 7})
        write_atomic = files.write_atomic

        def fail(path: Path, write: Callable[[BinaryIO], None], *, sync: bool) -> int:
            if path.name == name:
                raise OSError(errno.ENOSPC, "no room", str(path))
            return write_atomic(path, write, sync=sync)

        monkeypatch.setattr(files, "write_atomic", fail)
        for _ in range(2):
            with pytest.raises(StorageWriteError) as raised:
                buffer.close()
            assert raised.value.errno == errno.ENOSPC
        check_rows(buffer.sample(10))
        monkeypatch.setattr(files, "write_atomic", write_atomic)
        buffer.close()
        with open_buffer("pt", tmp_path, if_exists="resume") as again:
            check_rows(again.sample(10))


class TestLostFiles:
    @pytest.mark.parametrize("kind", ["pt", "pkl"])
    def test_a_missing_or_cut_file_is_named_and_the_others_stay_usable(
        self, kind: str, tmp_path: Path
    ) -> None:
        with open_buffer(kind, tmp_path, cache_size=0) as buffer:
            buffer.add_trajectories([traj(k) for k in range(4)])
            buffer.flush()
            (missing,) = (tmp_path / "store").glob("trajectory_1_*")
            missing.unlink()
            (cut,) = (tmp_path / "store").glob("trajectory_2_*")
            cut.write_bytes(cut.read_bytes()[:-50])
            with pytest.raises(MissingFileError, match="of trajectory 1 is not there") as raised:
                buffer.trajectory(1)
            assert raised.value.path == str(missing)
            with pytest.raises(CorruptFileError, match="of trajectory 2") as damaged:
                buffer.trajectory(2)
            assert damaged.value.path == str(cut)
            with pytest.raises(MissingFileError):
                buffer.gather([0, 12])
            with pytest.raises(CorruptFileError):
                buffer.gather([0, 24])
            with pytest.raises((MissingFileError, CorruptFileError)):
                buffer.sample(100)
            with pytest.raises(MissingFileError, match="trajectory 1"):
                buffer.save_checkpoint(tmp_path / "checkpoint")
            assert not (tmp_path / "checkpoint").exists()
            check_rows(buffer.gather([0, 11, 36, 47]))
            assert same_trajectory(buffer.trajectory(3), traj(3))
            assert len(buffer) == 4
            buffer.delete([1, 2])
            check_rows(buffer.sample(100))
            buffer.save_checkpoint(tmp_path / "checkpoint")
            assert trajectory_files(tmp_path / "checkpoint") == [0, 3]

    @pytest.mark.parametrize("read_mode", ["mmap", "pread"])
    def test_a_missing_or_cut_segment_is_named_and_the_others_stay_usable(
        self, read_mode: ReadMode, tmp_path: Path
    ) -> None:
        form = MemmapFormat(segment_bytes=1, read_mode=read_mode)  # one for each trajectory
        with open_store(tmp_path / "store", trajectory_format=form) as buffer:
            buffer.add_trajectories([traj(k) for k in range(4)])
            buffer.flush()
            segments = tmp_path / "store" / "segments"
            missing, cut = segments / "00000001", segments / "00000002"
            shutil.rmtree(missing)
            os.truncate(cut / "side.bin", 50)
            with pytest.raises(MissingFileError, match="of trajectory 1 is not there") as raised:
                buffer.trajectory(1)
            assert raised.value.path == str(missing / "segment.json")
            with pytest.raises(CorruptFileError, match=r"trajectory 2 cannot be read: side\.bin"):
                buffer.trajectory(2)
            for _ in range(2):
                with pytest.raises(MissingFileError, match="00000001") as unread:
                    buffer.gather([0, 12])
                assert unread.value.path.startswith(str(missing))
            with pytest.raises(MissingFileError):
                buffer.sample(100)
            for lost, error in ((1, MissingFileError), (2, CorruptFileError)):
                with pytest.raises(error, match=f"trajectory {lost}"):
                    buffer.save_checkpoint(tmp_path / "checkpoint")
                assert not (tmp_path / "checkpoint").exists()
                check_rows(buffer.gather([0, 11, 36, 47]))
                assert same_trajectory(buffer.trajectory(3), traj(3))
                buffer.delete([lost])
            check_rows(buffer.sample(100))
            buffer.save_checkpoint(tmp_path / "checkpoint")
            assert trajectory_files(tmp_path / "checkpoint") == [0, 3]

    def test_rows_of_a_cut_segment_are_told_when_they_are_read_and_not_mapped(
        self, tmp_path: Path
    ) -> None:
        form = MemmapFormat(segment_bytes=1, read_mode="pread")
        with open_store(tmp_path / "store", trajectory_format=form) as buffer:
            buffer.add_trajectories([traj(k, wide=True) for k in range(3)])
            buffer.flush()
            cut = tmp_path / "store" / "segments" / "00000001" / "curr_obs.wide.bin"
            os.truncate(cut, 100)
            with pytest.raises(CorruptFileError, match="says frame 0, but its file has 0"):
                buffer.gather([0, 12])
            check_rows(buffer.gather([0, 24]))


class TestClosing:
    @pytest.mark.parametrize("kind", ["memory", "pt"])
    def test_a_closed_buffer_says_so(self, kind: str, tmp_path: Path) -> None:
        buffer = open_buffer(kind, tmp_path)
        buffer.add_trajectories([traj(0)])
        buffer.close()
        buffer.close()
        calls: list[Callable[[], Any]] = [
            lambda: buffer.add_trajectories([traj(1)]),
            lambda: buffer.sample(1),
            lambda: buffer.gather([0]),
            lambda: buffer.trajectory(0),
            buffer.flush,
            lambda: buffer.delete([0]),
            buffer.clear,
            lambda: buffer.save_checkpoint(tmp_path / "checkpoint"),
            lambda: buffer.load_checkpoint(tmp_path / "checkpoint"),
            lambda: buffer.load_state_dict({}),
        ]
        for call in calls:
            with pytest.raises(ClosedError, match="closed"):
                call()
        assert len(buffer) == 1
        assert buffer.get_stats()["num_trajectories"] == 1

    @pytest.mark.parametrize("kind", ["memory", "pt"])
    def test_nothing_is_added_once_it_is_closed_while_the_list_is_read(
        self, kind: str, tmp_path: Path
    ) -> None:
        buffer = TrajectoryReplayBuffer() if kind == "memory" else open_buffer("pt", tmp_path)

        def close_then_give() -> Iterator[Trajectory]:
            buffer.close()
            yield traj(0)

        with pytest.raises(ClosedError, match="the buffer is closed"):
            buffer.add_trajectories(close_then_give())
        assert len(buffer) == 0

    def test_a_with_block_closes(self, tmp_path: Path) -> None:
        with open_buffer("pt", tmp_path) as buffer:
            buffer.add_trajectories([traj(0)])
        assert trajectory_files(tmp_path / "store") == [0]
        with pytest.raises(ClosedError):
            buffer.sample(1)

    def test_a_closed_buffer_leaves_no_thread(self, tmp_path: Path) -> None:
        before = set(threading.enumerate())
        with open_buffer("pt", tmp_path) as buffer:
            buffer.add_trajectories([traj(0)])
            assert set(threading.enumerate()) != before
        assert set(threading.enumerate()) == before
