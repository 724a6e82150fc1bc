# SPDX-License-Identifier: Apache-2.0
"""Segments where two things meet: a kill, a full disk, a second owner, a reader amid a write."""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from buffers import ks_of, open_store
from relive import Limits, Trajectory, TrajectoryReplayBuffer, convert, files
from relive.errors import (
    CorruptFileError,
    MissingFileError,
    StorageError,
    StorageWriteError,
    TimeLimitError,
)
from relive.formats import MemmapFormat
from relive.formats.memmap.mapped_table import MappedTable
from relive.formats.memmap.segment_folder import SegmentFolder
from relive.journal import Journal
from relive.places import PLACE_BITS
from segments import segments_of
from trajectories import check_rows, same_trajectory, side_entries, traj

ROWS = 12
"""Of `traj(k)`."""

LONG_S = 20.0
"""Until a thread that waits for another is taken to wait for ever."""


def open_memmap(folder: Path, **options: Any) -> TrajectoryReplayBuffer:
    """Open a store whose window is all of it."""
    chosen = {"trajectory_format": "memmap", "sample_window_size": 0, **options}
    return open_store(folder, **{"framework": "numpy", **chosen})


def fill(folder: Path, ks: range, **options: Any) -> TrajectoryReplayBuffer:
    """Open a store and add trajectories, each with the id of its place."""
    buffer = open_memmap(folder, **options)
    buffer.add_trajectories([traj(k) for k in ks])
    buffer.flush()
    return buffer


def check(buffer: TrajectoryReplayBuffer, ks: dict[int, int]) -> None:
    """Prove that the buffer has these trajectories by their ids, whole and row by row."""
    assert buffer._store.index.window(0).trajectory_ids.tolist() == list(ks)
    for trajectory_id, k in ks.items():
        assert same_trajectory(buffer.trajectory(trajectory_id), traj(k))
    batch, info = buffer.sample(40 * len(ks), return_info=True)
    check_rows(batch, info, ks)
    row_ids = [ROWS * trajectory_id + row for trajectory_id in ks for row in range(ROWS)]
    check_rows(buffer.gather(row_ids))


def segments_of_rows(num_rows: int) -> Limits:
    """Return limits of which a segment may have a sixteenth, so many rows."""
    return Limits(max_samples=16 * num_rows)


def abandon(buffer: TrajectoryReplayBuffer) -> None:
    """Let go of a buffer as a kill would."""
    assert buffer._store.disk is not None
    buffer._store.disk.abandon()


FRAME_BYTES = 4096
"""A slot for files of such frames has no room but for those of a full segment."""


def framed(k: int) -> Trajectory:
    """Eight rows, each with a frame of its own."""
    plain = traj(k, T=8, B=1)
    frame = np.repeat(plain.curr_obs["id"][..., None], FRAME_BYTES // 8, 2)
    return replace(plain, forward_inputs={"frame": frame})


class TestDeadFrames:
    """What a kill between frames and rows leaves in the frame file counts as room taken."""

    def test_a_segment_filled_after_it_keeps_clear_of_the_next(self, tmp_path: Path) -> None:
        num_rows = 512  # 2 MiB of frames
        limits = segments_of_rows(num_rows)
        killed = open_memmap(tmp_path / "store", limits=limits)
        killed.add_trajectories([framed(0)])
        killed.flush()
        abandon(killed)
        (segment,) = segments_of(tmp_path / "store")
        assert segment.head["num_rows"] == num_rows
        file = segment.head["layout"]["frames"][0]["file"]
        with (segment.path / file).open("ab") as frames:
            frames.write(b"\xee" * (100 * FRAME_BYTES))
        with open_memmap(tmp_path / "store", limits=limits, if_exists="resume") as buffer:
            num = num_rows // 8 + 36  # enough for the next segment's frames to be there
            buffer.add_trajectories([framed(k) for k in range(1, num)])
            buffer.flush()
            assert len(segments_of(tmp_path / "store")) > 1
            order = np.random.default_rng(1).permutation(8 * num)
            for row_ids in (np.arange(8 * num), order):
                batch = buffer.gather(row_ids)
                check_rows(batch)
                expected = np.repeat(batch["curr_obs"]["id"][:, None], FRAME_BYTES // 8, 1)
                assert np.array_equal(batch["forward_inputs"]["frame"], expected)


class TestOneFormatObject:
    """Given to several, it stands for how segments are written, not for whose they are."""

    def test_two_buffers_may_have_it_and_either_may_close_first(self, tmp_path: Path) -> None:
        form = MemmapFormat(segment_bytes=4000)
        with open_memmap(tmp_path / "b", trajectory_format=form) as second:
            first = fill(tmp_path / "a", range(2), trajectory_format=form)
            second.add_trajectories([traj(10), traj(11)])
            second.flush()
            first.close()
            second.add_trajectories([traj(12)])
            second.flush()
            check(second, {0: 10, 1: 11, 2: 12})
        for name, ks in (("a", {0: 0, 1: 1}), ("b", {0: 10, 1: 11, 2: 12})):
            with open_memmap(tmp_path / name, if_exists="resume") as buffer:
                check(buffer, ks)

    def test_convert_may_have_that_of_a_buffer_in_use(self, tmp_path: Path) -> None:
        form = MemmapFormat()
        with fill(tmp_path / "store", range(2), trajectory_format=form) as buffer:
            buffer.save_checkpoint(tmp_path / "saved")
            assert convert(tmp_path / "saved", tmp_path / "converted", form) == 2
            buffer.add_trajectories([traj(2)])
            buffer.flush()
            check(buffer, {0: 0, 1: 1, 2: 2})
        with open_memmap(tmp_path / "store", if_exists="resume") as buffer:
            check(buffer, {0: 0, 1: 1, 2: 2})
            with pytest.warns(UserWarning, match="aside"):
                buffer.load_checkpoint(tmp_path / "converted")
            check(buffer, {0: 0, 1: 1})


class TestOrphans:
    def test_a_load_into_a_store_of_files_passes_over_the_number_of_one(
        self, tmp_path: Path
    ) -> None:
        """A load that was killed leaves a segment that no index names."""
        with fill(tmp_path / "source", range(7, 9)) as source:
            source.save_checkpoint(tmp_path / "saved")
        fill(tmp_path / "other", range(50, 52)).close()
        fill(tmp_path / "store", range(1), trajectory_format="pt").close()
        shutil.copytree(tmp_path / "other" / "segments", tmp_path / "store" / "segments")
        with pytest.warns(UserWarning, match="hold nothing that is in the index"):
            buffer = open_memmap(tmp_path / "store", trajectory_format="pt", if_exists="resume")
        with buffer:
            with pytest.warns(UserWarning, match="aside"):
                buffer.load_checkpoint(tmp_path / "saved")
            check(buffer, {0: 7, 1: 8})


class _Loading:
    """A store, and a checkpoint to be loaded into it."""

    def __init__(self, kind: str, tmp_path: Path) -> None:
        """Make both; segments hold two trajectories, the last is still written to.

        Args:
            kind: "own" when the store has some of the checkpoint's trajectories already, in
                segments that they share with others; "foreign" when it has none, but others of
                the same ids.
            tmp_path: Where to.
        """
        self.store, self.saved = tmp_path / "made", tmp_path / "saved"
        self._limits = segments_of_rows(2 * ROWS)
        buffer = fill(self.store, range(7), limits=self._limits)
        with buffer:
            if kind == "own":
                buffer.sample_window_size = 4
                buffer.save_checkpoint(self.saved)
            buffer.add_trajectories([traj(7), traj(8)])
            buffer.delete([4])
        self.before = {k: k for k in range(9) if k != 4}
        if kind == "own":
            self.after = {k: k for k in range(3, 7)}
            self.leaving = {0, 1, 2, 7, 8}
        else:
            with fill(tmp_path / "foreign", range(100, 105), limits=self._limits) as other:
                other.save_checkpoint(self.saved)
            self.after = {k: 100 + k for k in range(5)}
            self.leaving = set(self.before)

    def open(self, folder: Path) -> TrajectoryReplayBuffer:
        """Open the store, or a copy."""
        return open_memmap(folder, limits=self._limits, if_exists="resume")

    def check(self, buffer: TrajectoryReplayBuffer) -> bool:
        """Prove that all is as it was, or all is loaded; tell whether it is loaded."""
        ids = buffer._store.index.window(0).trajectory_ids.tolist()
        is_loaded: bool = ids == list(self.after)
        check(buffer, self.after if is_loaded else self.before)
        return is_loaded

    def check_nothing_is_lost(self, folder: Path, pattern: str) -> None:
        """Prove that what left the index is in segments below folders of this pattern."""
        found: set[int] = set()
        for path in folder.glob(f"{pattern}/segments/*/side.bin"):
            found |= {entry["trajectory_id"] for entry in side_entries(path)}
        assert self.leaving <= found


@pytest.fixture(params=["own", "foreign"])
def loading(request: pytest.FixtureRequest, tmp_path: Path) -> _Loading:
    return _Loading(request.param, tmp_path)


class _Naming:
    """Comes before every link, rename and removal."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, before_each: Callable[[int], object]
    ) -> None:
        """Begin.

        Args:
            monkeypatch: Of the test.
            before_each: Called with the number of the call, from 1 on.
        """
        self.num = 0
        self._lock = threading.RLock()  # the writer's thread has to wait meanwhile
        for name in ("link", "replace", "rename", "unlink", "rmdir"):
            monkeypatch.setattr(os, name, self._watched(getattr(os, name), before_each))

    def _watched(
        self, do: Callable[..., Any], before_each: Callable[[int], object]
    ) -> Callable[..., Any]:
        def watched(*args: Any, **options: Any) -> Any:
            with self._lock:
                self.num += 1
                before_each(self.num)
                return do(*args, **options)

        return watched


@pytest.mark.filterwarnings("ignore:.*aside", "ignore:.*hold nothing that is in the index")
class TestLoadCutShort:
    @pytest.fixture(autouse=True)
    def without_sync(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Hundreds of loads; no power is lost here."""
        monkeypatch.setattr(os, "fsync", lambda descriptor: None)

    def test_a_full_disk_at_each_step_costs_nothing(
        self, loading: _Loading, tmp_path: Path
    ) -> None:
        """Once; what was set aside by then must not be counted as gone once more."""
        for number in itertools.count(1):
            folder = tmp_path / f"store {number}"
            shutil.copytree(loading.store, folder)
            refused: list[int] = []

            def refuse(call: int, number: int = number, refused: list[int] = refused) -> None:
                if call == number:
                    refused.append(call)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

            told = None
            with loading.open(folder) as buffer:
                with pytest.MonkeyPatch.context() as patch:
                    _Naming(patch, refuse)
                    try:
                        buffer.load_checkpoint(loading.saved)
                    except StorageError as error:
                        told = error.errno
                    with suppress(StorageWriteError):  # of the index, written while idle
                        buffer.flush()
                    buffer.flush()
                is_loaded = loading.check(buffer)
                assert told == errno.ENOSPC or (is_loaded and told is None)
                if is_loaded:
                    loading.check_nothing_is_lost(folder, "aside/*")
            with loading.open(folder) as buffer:
                assert loading.check(buffer) == is_loaded
            if not refused:
                break
        assert number > 10

    def test_a_kill_at_each_step_leaves_a_whole_store(
        self, loading: _Loading, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What is on the disk before each of these is what a kill there would leave."""
        store, left = tmp_path / "store", []
        shutil.copytree(loading.store, store)

        def kill(call: int) -> None:
            left.append(tmp_path / f"killed {call}")
            shutil.copytree(store, left[-1])

        with loading.open(store) as buffer:
            with monkeypatch.context() as patch:
                _Naming(patch, kill)
                buffer.load_checkpoint(loading.saved)
            assert loading.check(buffer)
        are_loaded = []
        for folder in left:
            with loading.open(folder) as buffer:
                are_loaded.append(loading.check(buffer))
            if are_loaded[-1]:
                loading.check_nothing_is_lost(folder, "**")
            assert not list(folder.glob("incoming-*"))
            with loading.open(folder) as buffer:
                assert loading.check(buffer) == are_loaded[-1]
        assert are_loaded == sorted(are_loaded)
        assert are_loaded.count(True) > 3
        assert are_loaded.count(False) > 3

    def test_an_interrupt_at_each_step_leaves_a_whole_store(
        self, loading: _Loading, tmp_path: Path
    ) -> None:
        """Ctrl+C, with what the library does about it, and a kill right after."""
        for number in itertools.count(1):
            folder = tmp_path / f"store {number}"
            shutil.copytree(loading.store, folder)
            interrupted: list[int] = []

            def interrupt(
                call: int, number: int = number, interrupted: list[int] = interrupted
            ) -> None:
                # it comes to the thread that loads, never to the writer's
                if call >= number and threading.current_thread() is threading.main_thread():
                    interrupted.append(call)
                    raise KeyboardInterrupt

            buffer = loading.open(folder)
            with pytest.MonkeyPatch.context() as patch:
                _Naming(patch, interrupt)
                with suppress(KeyboardInterrupt):
                    buffer.load_checkpoint(loading.saved)
            abandon(buffer)
            with loading.open(folder) as again:
                assert loading.check(again) == (not interrupted)
                assert not list(folder.glob("incoming-*"))
            if not interrupted:
                break
        assert number > 3


class TestTextsThatGrow:
    @pytest.mark.parametrize("at", ["texts.bin", "text_ends.bin"])
    def test_a_checkpoint_taken_amid_an_addition_can_be_loaded(
        self, at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Texts and where they end are two files, copied one after the other."""

        def told(k: int) -> Trajectory:
            return traj(k, extra={"task": [f"task {k} of {b}" for b in range(3)]})

        added: list[int] = []
        with open_memmap(tmp_path / "store") as buffer:
            buffer.add_trajectories([told(0), told(1)])
            buffer.flush()
            rename = os.replace

            def add_after(source: Path, target: Path) -> None:
                rename(source, target)
                if not added and Path(target).name == at:
                    added.extend(buffer.add_trajectories([told(2)]))
                    with suppress(TimeLimitError):  # it may have to wait for the copy
                        buffer.flush(timeout_s=1.0)

            with monkeypatch.context() as patch:
                patch.setattr(os, "replace", add_after)
                buffer.save_checkpoint(tmp_path / "saved")
            assert added == [2]
            for k in range(3):
                assert same_trajectory(buffer.trajectory(k), told(k))
        with open_memmap(tmp_path / "other") as other:
            other.load_checkpoint(tmp_path / "saved")
            for k in range(2):
                assert same_trajectory(other.trajectory(k), told(k))
            batch = other.gather(np.arange(2 * ROWS))
            check_rows(batch)
            assert batch["extras"]["task"] == [
                f"task {n // 1_000_000} of {n % 1_000}" for n in batch["curr_obs"]["id"].tolist()
            ]
            other.add_trajectories([told(5)])
            other.flush()
            assert same_trajectory(other.trajectory(2), told(5))


class TestReentry:
    """A signal handler, or whatever runs amid a call, may use the buffer too."""

    def test_a_sample_inside_another_gets_its_own_rows_and_leaves_the_others(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ks = {k: k for k in range(5)}
        with open_memmap(tmp_path / "store") as buffer:
            buffer.add_trajectories([traj(k, wide=True) for k in ks])
            buffer.flush()
            check_rows(buffer.sample(16))
            copy = MappedTable._copy
            for number in itertools.count(1):
                calls, inner = itertools.count(1), list[Any]()

                def sample_after(
                    self: MappedTable,
                    *args: Any,
                    number: int = number,
                    calls: itertools.count[int] = calls,
                    inner: list[Any] = inner,
                ) -> int:
                    num_faults = copy(self, *args)
                    if next(calls) == number:
                        inner.append(buffer.sample(16, return_info=True))
                    return num_faults

                with monkeypatch.context() as patch:
                    patch.setattr(MappedTable, "_copy", sample_after)
                    outer = buffer.sample(16, return_info=True)
                for batch, info in (outer, *inner):
                    check_rows(batch, info, ks)
                if not inner:
                    break
            assert number > 2  # records, and frames

    def test_a_save_inside_another_leaves_two_whole_checkpoints(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        append, inner = SegmentFolder.append, list[Path]()
        with TrajectoryReplayBuffer(
            trajectory_format="memmap", sample_window_size=0, framework="numpy"
        ) as buffer:
            buffer.add_trajectories([traj(k) for k in range(3)])

            def save_before(self: SegmentFolder, *args: Any, **options: Any) -> Any:
                if not inner:
                    inner.append(tmp_path / "inner")
                    buffer.save_checkpoint(tmp_path / "inner")
                return append(self, *args, **options)

            with monkeypatch.context() as patch:
                patch.setattr(SegmentFolder, "append", save_before)
                buffer.save_checkpoint(tmp_path / "outer")
        for name in ("inner", "outer"):
            with open_memmap(tmp_path / f"from {name}") as other:
                other.load_checkpoint(tmp_path / name)
                check(other, {k: k for k in range(3)})


class TestPowerLossWhileCompacting:
    @pytest.mark.parametrize("limits", [Limits(), segments_of_rows(2 * ROWS)])
    def test_what_is_written_anew_is_on_the_disk_before_the_old_goes(
        self, limits: Limits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        synced: dict[int, int] = {}  # bytes of each file that survive, by inode
        sync, remove = os.fsync, files.remove_folder
        removed: list[str] = []
        store = tmp_path / "store"

        def watched_sync(descriptor: int) -> None:
            facts = os.fstat(descriptor)
            synced[facts.st_ino] = facts.st_size
            sync(descriptor)

        def watched_remove(folder: Path, **options: Any) -> None:
            if folder.parent == store / "segments" and not folder.name.startswith("."):
                removed.append(folder.name)
                for path in (store / "segments").glob("*/*"):
                    if path.parent != folder:
                        facts = path.stat()
                        assert synced.get(facts.st_ino) == facts.st_size, path
                journal = store / "trajectory_index.journal"
                block = journal.read_bytes()
                on_disk = block[: synced.get(journal.stat().st_ino, 0)]
                assert on_disk.count(b'"relocate"') == block.count(b'"relocate"') > 0
            remove(folder, **options)

        monkeypatch.setattr(os, "fsync", watched_sync)
        monkeypatch.setattr(files, "remove_folder", watched_remove)
        with fill(store, range(8), limits=limits) as buffer:
            buffer.delete(range(0, 8, 2))
            buffer.flush()
            assert removed == []
            assert buffer.compact() > 0
            assert removed
            monkeypatch.setattr(files, "remove_folder", remove)
            check(buffer, {k: k for k in range(1, 8, 2)})


class TestTelling:
    def test_disk_bytes_are_right_when_segments_filled_up(self, tmp_path: Path) -> None:
        def on_disk() -> int:
            return sum(p.stat().st_size for p in (tmp_path / "store").glob("segments/*/*.bin"))

        form = MemmapFormat(segment_bytes=6_000)
        with fill(tmp_path / "store", range(1), trajectory_format=form) as buffer:
            for k in range(1, 30, 7):  # several, for one fills up between two looks
                assert buffer.get_stats()["disk_bytes"] == on_disk() > 0
                buffer.add_trajectories([traj(k + n, T=4 + n % 3) for n in range(7)])
                buffer.flush()
            assert len(segments_of(tmp_path / "store")) > 3
            assert buffer.get_stats()["disk_bytes"] == on_disk()
            buffer.save_checkpoint(tmp_path / "saved")
            buffer.add_trajectories([traj(50)])
            buffer.flush()
            assert buffer.get_stats()["disk_bytes"] == on_disk()
            buffer.delete(range(10))
            buffer.flush()
            assert buffer.get_stats()["disk_bytes"] == on_disk()


class TestMissingFiles:
    @pytest.mark.parametrize("name", ["rows.bin", "side.bin", "segment.json", ""])
    def test_closing_works_and_reading_names_what_is_missing(
        self, name: str, tmp_path: Path
    ) -> None:
        path = tmp_path / "store" / "segments" / "00000000" / name
        with fill(tmp_path / "store", range(2)):
            if name:
                path.unlink()
            else:
                shutil.rmtree(path)
        with open_memmap(tmp_path / "store", if_exists="resume") as buffer:
            assert len(buffer) == 2
            with pytest.raises(MissingFileError) as raised:
                buffer.trajectory(0)
            assert str(path) in str(raised.value)
            if name != "side.bin":
                with pytest.raises(MissingFileError, match="segment"):
                    buffer.sample(10)
            buffer.delete([0, 1])
            buffer.flush()
            assert segments_of(tmp_path / "store") == []
            buffer.add_trajectories([traj(2)])
            assert ks_of(buffer) == {2}


class TestNotNoted:
    def test_what_the_index_could_not_note_leaves_nothing_behind(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Rows are written first, then the line in the index, and the disk fills up between."""
        add = Journal.add
        for segment_bytes in (1, 1 << 30):
            folder = tmp_path / f"store {segment_bytes}"
            refused: list[int] = []

            def refuse_once(
                self: Journal, *args: Any, refused: list[int] = refused, **options: Any
            ) -> None:
                if not refused:
                    refused.append(1)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                add(self, *args, **options)

            form = MemmapFormat(segment_bytes=segment_bytes)
            with open_memmap(folder, trajectory_format=form) as buffer:
                with monkeypatch.context() as patch:
                    patch.setattr(Journal, "add", refuse_once)
                    buffer.add_trajectories([traj(0)])
                    with pytest.raises(StorageWriteError, match="trajectory 0"):
                        buffer.flush()
                    buffer.flush()
                check(buffer, {0: 0})
                buffer.clear()
                buffer.flush()
                assert segments_of(folder) == []

    def test_a_segment_that_could_not_be_removed_is_removed_later(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        remove, refused = files.remove_folder, list[Path]()

        def refuse_once(folder: Path, **options: Any) -> None:
            if not refused:
                refused.append(folder)
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(folder))
            remove(folder, **options)

        with fill(tmp_path / "store", range(2)) as buffer:
            with monkeypatch.context() as patch:
                patch.setattr(files, "remove_folder", refuse_once)
                buffer.clear()
                with pytest.raises(StorageWriteError, match="removal of trajectory"):
                    buffer.flush()
                buffer.flush()
            assert segments_of(tmp_path / "store") == []


class TestSyncing:
    def test_a_sample_that_meets_a_new_segment_does_not_wait_for_the_disk(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        is_syncing, may_end = threading.Event(), threading.Event()
        sync, are_let_go = files.sync_file, list[bool]()

        def wait(path: Path) -> None:
            if "segments" in path.parts:
                is_syncing.set()
                are_let_go.append(may_end.wait(LONG_S))
                may_end.set()  # one wait that nobody ends is enough
            sync(path)

        form = MemmapFormat(segment_bytes=1)
        with fill(tmp_path / "store", range(1), trajectory_format=form) as buffer:
            buffer.add_trajectories([traj(1)])
            buffer.flush()
            with monkeypatch.context() as patch:
                patch.setattr(files, "sync_file", wait)
                patch.setattr("relive.unsynced._MOST_SECONDS", 0.0)
                buffer.add_trajectories([traj(2)])
                assert is_syncing.wait(LONG_S)
                assert ks_of(buffer) == {0, 1, 2}
                may_end.set()
                buffer.flush()
            assert all(are_let_go)


class TestNumbers:
    """Of rows and segments, as a damaged file may say them."""

    @pytest.mark.parametrize("num_rows", [0, 10**18])
    def test_a_head_of_no_rows_or_too_many_is_refused_by_name(
        self, num_rows: int, tmp_path: Path
    ) -> None:
        with fill(tmp_path / "store", range(2)) as buffer:
            buffer.save_checkpoint(tmp_path / "saved")
        heads = [
            tmp_path / n / "segments" / "00000000" / "segment.json" for n in ("store", "saved")
        ]
        for path in heads:
            head = json.loads(path.read_text())
            path.unlink()  # which may be a link
            path.write_text(json.dumps({**head, "num_rows": num_rows}))
        with pytest.raises(CorruptFileError) as raised:
            open_memmap(tmp_path / "store", if_exists="resume")
        assert raised.value.path == str(heads[0])
        assert str(heads[0]) in str(raised.value)
        with open_memmap(tmp_path / "other") as other:
            with pytest.raises(CorruptFileError, match=r"segment\.json"):
                other.load_checkpoint(tmp_path / "saved")
            assert len(other) == 0

    def test_a_head_of_fewer_rows_than_there_are_is_refused_when_they_are_read(
        self, tmp_path: Path
    ) -> None:
        """Mapped over a slot that is too small, frames would be the next segment's."""
        with open_memmap(tmp_path / "store") as buffer:
            buffer.add_trajectories([framed(k) for k in range(75)])
        (segment,) = segments_of(tmp_path / "store")
        path = segment.path / "segment.json"
        path.write_text(json.dumps({**segment.head, "num_rows": 1}))
        with open_memmap(tmp_path / "store", if_exists="resume") as buffer:
            with pytest.raises(CorruptFileError) as raised:
                buffer.sample(100)
            assert str(segment.path) in str(raised.value)
            assert same_trajectory(buffer.trajectory(3), framed(3))

    def test_a_segment_far_beyond_those_known_is_not_known(self, tmp_path: Path) -> None:
        path = tmp_path / "rows.bin"
        path.write_bytes(np.arange(1000, dtype=np.int64).tobytes())
        table = MappedTable(8, np.dtype(np.int64))
        table.add(0, path, 1000)
        out = np.zeros(1, np.int64)
        for number in (1, 1 << 10, 1 << 22):
            segments = np.array([number])
            with pytest.raises(LookupError):
                table.take(segments, (segments << PLACE_BITS) + 7, {0: out})
        table.take(np.array([0]), np.array([7]), {0: out})
        assert out.tolist() == [7]
        table.close()
