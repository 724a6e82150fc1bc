# SPDX-License-Identifier: Apache-2.0
"""Opening a store: new, found, locked, killed, damaged; forked children, and the program's end."""

from __future__ import annotations

import errno
import json
import os
import signal
import textwrap
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from buffers import ks_of, open_store
from programs import start_program
from relive import Columns, Trajectory, TrajectoryReplayBuffer, files
from relive.errors import (
    ColumnMismatchError,
    CorruptFileError,
    ForkedError,
    InvalidArgumentError,
    StorageError,
    StoreExistsError,
    StoreLockedError,
    UnsupportedValueError,
)
from relive.lifetime import leave_alone
from trajectories import (
    check_rows,
    make_checkpoint,
    same_trajectory,
    traj,
    trajectory_files,
)


def resume(folder: Path, **options: Any) -> TrajectoryReplayBuffer:
    return open_store(folder, if_exists="resume", **options)


def fill(folder: Path, num: int = 2, **options: Any) -> None:
    with open_store(folder, **options) as buffer:
        buffer.add_trajectories([traj(k) for k in range(num)])


def run_python(script: str, *arguments: Path) -> tuple[int, str, str]:
    """Run a program that may import what these tests import; return exit code and outputs."""
    with start_program(textwrap.dedent(script), *arguments) as process:
        printed, complaints = process.communicate()
    return process.returncode, printed, complaints


def tree(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


class TestWhatIsFound:
    """A folder that was used again showed its old values for columns that were lacking."""

    @pytest.mark.parametrize("if_exists", ["refuse", "resume", "overwrite"])
    @pytest.mark.parametrize("found", ["nothing", "parents missing", "empty"])
    def test_a_new_folder_is_begun_whatever_was_said(
        self, if_exists: Any, found: str, tmp_path: Path
    ) -> None:
        folder = tmp_path / ("a/b/c" if found == "parents missing" else "store")
        if found == "empty":
            folder.mkdir()
        with open_store(folder, if_exists=if_exists) as buffer:
            assert len(buffer) == 0
            assert buffer.add_trajectories([traj(0)]) == [0]
        assert trajectory_files(folder) == [0]

    def test_a_store_is_refused_unless_told_otherwise(self, tmp_path: Path) -> None:
        fill(tmp_path / "store")
        before = tree(tmp_path)
        with pytest.raises(StoreExistsError, match=r"if_exists='resume'.*'overwrite'") as raised:
            open_store(tmp_path / "store")
        assert isinstance(raised.value, FileExistsError)
        assert raised.value.path == str(tmp_path / "store")
        assert tree(tmp_path) == before

    def test_a_resumed_store_goes_on(self, tmp_path: Path) -> None:
        fill(tmp_path / "store")
        with resume(tmp_path / "store") as buffer:
            assert (len(buffer), buffer.total_samples, ks_of(buffer)) == (2, 24, {0, 1})
            assert buffer.get_stats()["cache_size"] == 2
            with pytest.raises(ColumnMismatchError):
                buffer.add_trajectories([Trajectory(rewards=np.zeros((2, 2)))])
            assert buffer.add_trajectories([traj(2)]) == [2]
        with resume(tmp_path / "store", trajectory_format="pkl") as buffer:
            buffer.add_trajectories([traj(3)])
            assert ks_of(buffer) == {0, 1, 2, 3}

    def test_an_overwritten_store_leaves_nothing(self, tmp_path: Path) -> None:
        folder = tmp_path / "store"
        with open_store(folder) as buffer:
            extra = {"d": np.full((4, 3), 1)}
            buffer.add_trajectories([traj(k, extra=extra, weights_id="old") for k in range(3)])
        with open_store(folder, if_exists="overwrite") as buffer:
            assert (len(buffer), buffer.trajectory_counter) == (0, 0)
            assert trajectory_files(folder) == []
            buffer.add_trajectories([traj(7)])
            assert "extras" not in buffer.sample(5)
        assert trajectory_files(folder) == [0]
        with resume(folder) as buffer:
            assert ks_of(buffer) == {7}

    @pytest.mark.parametrize("if_exists", ["refuse", "resume", "overwrite"])
    @pytest.mark.parametrize("found", ["file", "below a file", "others", "checkpoint"])
    def test_what_is_no_store_is_left_alone(
        self, if_exists: Any, found: str, tmp_path: Path
    ) -> None:
        folder = tmp_path / "place"
        if found == "checkpoint":
            make_checkpoint(folder, [traj(0)])
        elif found == "others":
            folder.mkdir()
            (folder / "thesis.tex").write_text("mine")
        else:
            folder.write_text("mine")
        before = tree(tmp_path)
        place = folder / "store" if found == "below a file" else folder
        with pytest.raises(StorageError, match="place"):
            open_store(place, if_exists=if_exists)
        assert tree(tmp_path) == before

    def test_overwriting_spares_what_the_index_does_not_name(self, tmp_path: Path) -> None:
        folder = tmp_path / "store"
        fill(folder)
        for name in ("notes.txt", "trajectory_9_.pt"):
            (folder / name).write_text("mine")
            before = tree(folder)
            with pytest.raises(StoreExistsError, match=f"{name}.*overwritten only when alone"):
                open_store(folder, if_exists="overwrite")
            assert tree(folder) == before
            (folder / name).unlink()
        with open_store(folder, if_exists="overwrite") as buffer:
            assert len(buffer) == 0

    @pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOSPC])
    @pytest.mark.parametrize("at", ["mkdir", "lock", "journal"])
    def test_a_folder_that_cannot_be_written_is_named(
        self, number: int, at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: Any, **__: Any) -> Any:
            raise OSError(number, os.strerror(number), str(tmp_path / "store"))

        with monkeypatch.context() as patch:
            if at == "mkdir":
                patch.setattr(files, "create_folder", fail)
            elif at == "lock":
                patch.setattr(os, "ftruncate", fail)
            else:
                patch.setattr(files, "write_atomic", fail)
            with pytest.raises(StorageError, match="store") as raised:
                open_store(tmp_path / "store")
            assert raised.value.errno == number
        with open_store(tmp_path / "store", if_exists="resume") as buffer:  # the lock is free
            buffer.add_trajectories([traj(0)])

    def test_a_declaration_that_does_not_fit_is_refused_and_the_lock_is_free(
        self, tmp_path: Path
    ) -> None:
        fill(tmp_path / "store")
        for columns in (Columns(required=["versions"]), Columns(required=["rewards"])):
            with pytest.raises(ColumnMismatchError, match="must fit those declared"):
                resume(tmp_path / "store", columns=columns)
        columns = Columns(required=["curr_obs/id", "rewards"], drop_others=True)
        with resume(tmp_path / "store", columns=columns) as buffer:
            assert set(buffer.sample(3)) == {"curr_obs", "rewards"}
        columns = Columns(optional={"versions": -1})
        with resume(tmp_path / "store", columns=columns) as buffer:
            assert buffer.sample(3)["versions"].tolist() == [-1] * 3


class TestExactResume:
    def test_a_closed_store_draws_on(self, tmp_path: Path) -> None:
        fill(tmp_path / "store", seed=5)
        draws = []
        for _ in range(3):
            with resume(tmp_path / "store") as buffer:
                draws.append(buffer.sample(20)["curr_obs"]["id"].tolist())
                assert buffer.seed == 5
        whole = TrajectoryReplayBuffer(seed=5)
        whole.add_trajectories([traj(0), traj(1)])
        assert draws == [whole.sample(20)["curr_obs"]["id"].tolist() for _ in range(3)]

    def test_a_killed_store_draws_something_else_each_time(self, tmp_path: Path) -> None:
        fill(tmp_path / "store")
        draws = []
        for _ in range(4):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                buffer = resume(tmp_path / "store")
            draws.append(tuple(buffer.sample(20)["curr_obs"]["id"].tolist()))
            kill(buffer)
        assert len(set(draws)) == 4


def kill(buffer: TrajectoryReplayBuffer) -> None:
    """Let go of the folder as a kill would, in this process."""
    disk = buffer._store.disk
    assert disk is not None
    disk.abandon()
    leave_alone(buffer)


class TestLocks:
    def test_a_folder_has_one_writer(self, tmp_path: Path) -> None:
        with open_store(tmp_path / "store") as buffer:
            for if_exists in ("resume", "overwrite"):
                with pytest.raises(StoreLockedError, match=r"this process.* close that buffer"):
                    open_store(tmp_path / "store", if_exists=if_exists)
            buffer.add_trajectories([traj(0)])
        with resume(tmp_path / "store") as buffer:
            assert ks_of(buffer) == {0}

    def test_a_lock_of_another_host_is_broken_only_when_told(self, tmp_path: Path) -> None:
        fill(tmp_path / "store")
        lock = tmp_path / "store" / "writer.lock"
        lock.write_text(json.dumps({"process": 77, "host": "elsewhere", "time": 0.0}))
        with pytest.raises(StoreLockedError, match=r"process 77 on elsewhere.*break_lock=True"):
            resume(tmp_path / "store")
        with resume(tmp_path / "store", break_lock=True) as buffer:
            assert ks_of(buffer) == {0, 1}

    def test_another_process_is_kept_out_too(self, tmp_path: Path) -> None:
        script = """
            import sys
            from relive.errors import StoreLockedError
            from relive import TrajectoryReplayBuffer
            try:
                TrajectoryReplayBuffer(
                    auto_save=True, auto_save_path=sys.argv[1], if_exists="resume"
                )
            except StoreLockedError as error:
                print(error)
        """
        with open_store(tmp_path / "store"):
            _, printed, complaints = run_python(script, tmp_path / "store")
            assert f"process {os.getpid()}" in printed, complaints


class TestKills:
    """A recording that was interrupted could not be read at all, for want of a footer."""

    SCRIPT = """
        import os, sys
        from trajectories import traj
        from relive import TrajectoryReplayBuffer
        folder, kind, num_flushed = sys.argv[1], sys.argv[2], int(sys.argv[3])
        buffer = TrajectoryReplayBuffer(
            auto_save=True, auto_save_path=folder, trajectory_format=kind, if_exists="resume"
        )
        start = buffer.trajectory_counter
        for k in range(start, start + num_flushed):
            buffer.add_trajectories([traj(k, weights_id=f"w{k}")])
            buffer.flush()
        for k in range(start + num_flushed, start + 200):
            buffer.add_trajectories([traj(k, weights_id=f"w{k}")])
            if k == start + num_flushed + 3:
                print(start, flush=True)
    """

    @pytest.mark.parametrize(("kind", "runs"), [("pt", [1, 6]), ("pkl", [3])])
    def test_what_was_flushed_is_there_after_a_kill(
        self, kind: str, runs: list[int], tmp_path: Path
    ) -> None:
        folder = tmp_path / "store"
        for num_flushed in runs:
            with start_program(textwrap.dedent(self.SCRIPT), folder, kind, num_flushed) as process:
                assert process.stdout is not None
                start = int(process.stdout.readline())
                os.kill(process.pid, signal.SIGKILL)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".*trajectory files are not in the ind")
                buffer = resume(folder, sample_window_size=0)
            with buffer:
                ids = buffer._store.index.window(0).trajectory_ids.tolist()
                assert set(range(start, start + num_flushed)) <= set(ids)
                for k in ids:
                    assert same_trajectory(buffer.trajectory(k), traj(k, weights_id=f"w{k}"))
                assert ks_of(buffer) <= set(ids)
                assert buffer.trajectory_counter > max(ids)

    def test_torn_files_that_were_not_synced_are_set_aside(self, tmp_path: Path) -> None:
        folder = tmp_path / "store"
        buffer = open_store(folder)
        buffer.add_trajectories([traj(k) for k in range(4)])
        buffer.flush()
        kill(buffer)
        (torn,) = folder.glob("trajectory_1_*")
        content = torn.read_bytes()
        torn.write_bytes(content.replace(np.array([1_001_000]).tobytes(), b"\0" * 8))
        next(folder.glob("trajectory_3_*")).unlink()
        with (
            pytest.warns(UserWarning, match="trajectory 1 was set aside"),
            pytest.warns(UserWarning, match="trajectory 3 was set aside"),
        ):
            buffer = resume(folder)
        with buffer:
            assert ks_of(buffer) == {0, 2}
            assert trajectory_files(folder) == [0, 2]
            (aside,) = (folder / "aside").iterdir()
            assert [path.name for path in aside.iterdir()] == [torn.name]
            assert buffer.add_trajectories([traj(4)]) == [4]
        with resume(folder) as buffer:
            assert ks_of(buffer) == {0, 2, 4}

    def test_files_synced_before_are_taken_as_they_are(self, tmp_path: Path) -> None:
        folder = tmp_path / "store"
        fill(folder, 3)
        (damaged,) = folder.glob("trajectory_1_*")
        damaged.write_bytes(damaged.read_bytes()[:-20])
        buffer = resume(folder, cache_size=0)
        kill(buffer)
        with resume(folder, cache_size=0) as buffer:
            assert len(buffer) == 3
            with pytest.raises(CorruptFileError, match="trajectory 1"):
                buffer.trajectory(1)
            check_rows(buffer.gather([0, 24]))

    def test_one_that_is_open_elsewhere_is_not_said_to_be_free(self, tmp_path: Path) -> None:
        with (
            open_store(tmp_path / "store"),
            pytest.raises(StoreExistsError, match=r"open for writing by .*; close it there first"),
        ):
            open_store(tmp_path / "store")

    def test_orphan_files_are_reported_and_their_ids_not_given_again(self, tmp_path: Path) -> None:
        folder = tmp_path / "store"
        fill(folder)
        (folder / "trajectory_6_x.pt").write_bytes(b"of a write that was cut off")
        (folder / ".trajectory_7_.pt.0123abcd.tmp").write_bytes(b"likewise")
        with pytest.warns(UserWarning, match=r"1 trajectory files are not in the index.*_6_x"):
            buffer = resume(folder)
        with buffer:
            assert ks_of(buffer) == {0, 1}
            assert buffer.add_trajectories([traj(7)]) == [7]
        assert (folder / "trajectory_6_x.pt").exists()
        assert not list(folder.glob(".*.tmp"))


class TestDamagedIndex:
    """Readers met an index that was half written."""

    @pytest.mark.parametrize("content", [b"", b"half", b"[1, 2]", b'{"a": 1}'])
    def test_a_cut_or_foreign_index_is_rebuilt_from_the_journal(
        self, content: bytes, tmp_path: Path
    ) -> None:
        folder = tmp_path / "store"
        with open_store(folder) as buffer:
            buffer.add_trajectories([traj(k) for k in range(5)])
            buffer.delete([2])
        path = folder / "trajectory_index.json"
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2] if content == b"half" else content)
        with pytest.warns(UserWarning, match=r"trajectory_index\.json.*rebuilt"):
            buffer = resume(folder)
        with buffer:
            assert (ks_of(buffer), len(buffer)) == ({0, 1, 3, 4}, 4)
            assert buffer.add_trajectories([traj(5)]) == [5]
        assert json.loads(path.read_text())["trajectory_id_list"] == [0, 1, 3, 4, 5]

    def test_a_missing_index_is_written_again(self, tmp_path: Path) -> None:
        fill(tmp_path / "store")
        index = tmp_path / "store" / "trajectory_index.json"
        index.unlink()  # as in a store that was killed before it first wrote one
        with resume(tmp_path / "store") as buffer:
            assert ks_of(buffer) == {0, 1}
        assert json.loads(index.read_text())["trajectory_id_list"] == [0, 1]

    def test_metadata_that_is_gone_or_foreign_only_costs_the_draws(self, tmp_path: Path) -> None:
        folder = tmp_path / "store"
        fill(folder)
        for content in (b"{", b"{}", None):
            path = folder / "metadata.json"
            path.unlink() if content is None else path.write_bytes(content)
            with pytest.warns(UserWarning, match=r"draws do not go on.*metadata\.json"):
                buffer = resume(folder)
            with buffer:
                assert ks_of(buffer) == {0, 1}
        json.loads((folder / "metadata.json").read_text())

    def test_without_index_and_journal_nothing_is_guessed(self, tmp_path: Path) -> None:
        folder = tmp_path / "store"
        fill(folder)
        (folder / "trajectory_index.json").write_bytes(b"{")
        (folder / "trajectory_index.journal").write_bytes(b"no line of ours\n")
        before = tree(folder)
        with pytest.raises(CorruptFileError, match="trajectory_index"):
            resume(folder)
        assert tree(folder) == before
        assert trajectory_files(folder) == [0, 1]

    @pytest.mark.parametrize("damage", ["missing", "cut"])
    def test_a_store_with_a_bad_trajectory_file_opens_and_the_rest_is_usable(
        self, damage: str, tmp_path: Path
    ) -> None:
        folder = tmp_path / "store"
        fill(folder, 3)
        (path,) = folder.glob("trajectory_2_*")
        path.unlink() if damage == "missing" else path.write_bytes(path.read_bytes()[:100])
        with pytest.warns(UserWarning, match="trajectory 2"):
            buffer = resume(folder)
        with buffer:
            assert len(buffer) == 3
            check_rows(buffer.gather([0, 12]))
            buffer.delete([2])
            assert ks_of(buffer) == {0, 1}


class TestForks:
    """A forked copy samples on a stream of its own, and writes nothing."""

    pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")

    def in_child(self, work: Callable[[], Any]) -> Any:
        """Run something in a forked child and return what it gives, as JSON."""
        reading, writing = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads
            child = os.fork()
        if not child:
            try:
                os.close(reading)
                with os.fdopen(writing, "w") as pipe:
                    json.dump(work(), pipe)
            except BaseException as error:
                os.write(2, repr(error).encode())
                os._exit(1)
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            told = json.load(pipe)
        assert os.waitpid(child, 0)[1] == 0
        return told

    @pytest.mark.parametrize("kind", ["memory", "pt", "pkl", "memmap"])
    def test_children_draw_streams_of_their_own(self, kind: str, tmp_path: Path) -> None:
        options: dict[str, Any] = {"cache_size": 1, "framework": "numpy"}
        if kind != "memory":
            options |= {"auto_save": True, "trajectory_format": kind}
            options |= {"auto_save_path": tmp_path / "store"}
        with TrajectoryReplayBuffer(**options) as buffer:
            buffer.add_trajectories([traj(k, T=20, B=5) for k in range(3)])

            def draw() -> list[int]:
                batch, info = buffer.sample(30, return_info=True)
                check_rows(batch, info, {0: 0, 1: 1, 2: 2})
                check_rows(buffer.gather(info.row_ids))
                assert same_trajectory(buffer.trajectory(0), traj(0, T=20, B=5))
                ids: list[int] = info.row_ids.tolist()
                return ids

            draws = [self.in_child(draw), self.in_child(draw), draw(), draw()]
            assert len(set(map(tuple, draws))) == 4
            buffer.add_trajectories([traj(3, T=20, B=5)])
            buffer.flush()

    @pytest.mark.parametrize("kind", ["memory", "pt"])
    def test_a_fork_beside_a_writer_copies_nothing_half_changed(
        self, kind: str, tmp_path: Path
    ) -> None:
        options: dict[str, Any] = {"framework": "numpy", "sample_window_size": 3}
        if kind == "pt":
            options |= {"auto_save": True, "auto_save_path": tmp_path / "store"}
        with TrajectoryReplayBuffer(**options) as buffer:
            buffer.add_trajectories([traj(k % 900, T=2, B=2) for k in range(3)])
            must_stop = threading.Event()

            def produce() -> None:
                k = 3
                while not must_stop.is_set():
                    buffer.add_trajectories([traj(k % 900, T=2, B=2)])
                    k += 1

            def draw() -> int:
                for _ in range(5):
                    check_rows(buffer.sample(30))
                return len(buffer)

            producer = threading.Thread(target=produce)
            producer.start()
            try:
                sizes = [self.in_child(draw) for _ in range(6)]
            finally:
                must_stop.set()
                producer.join()
            assert sizes == sorted(sizes)

    def test_children_cannot_write_and_leave_the_store_to_the_parent(self, tmp_path: Path) -> None:
        with open_store(tmp_path / "store") as buffer:
            buffer.add_trajectories([traj(0)])

            def try_all() -> list[str]:
                told = []
                calls: list[Callable[[], Any]] = [
                    lambda: buffer.add_trajectories([traj(1)]),
                    lambda: buffer.delete([0]),
                    buffer.clear,
                    buffer.flush,
                    lambda: buffer.save_checkpoint(tmp_path / "checkpoint"),
                    lambda: buffer.load_checkpoint(tmp_path / "checkpoint"),
                ]
                for call in calls:
                    with pytest.raises(ForkedError) as raised:
                        call()
                    told.append(str(raised.value))
                buffer.close()
                return told

            told = self.in_child(try_all)
            assert len(told) == 6
            assert all(f"process {os.getpid()}" in text for text in told)
            assert buffer.add_trajectories([traj(1)]) == [1]
            with pytest.raises(StoreLockedError):
                resume(tmp_path / "store")
        assert trajectory_files(tmp_path / "store") == [0, 1]

    def test_a_child_that_outlives_the_parents_buffer_does_not_hold_the_lock(
        self, tmp_path: Path
    ) -> None:
        buffer = open_store(tmp_path / "store")
        waiting, go = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if not child:
            os.close(go)
            os.read(waiting, 1)
            os._exit(0)
        os.close(waiting)
        try:
            buffer.close()
            resume(tmp_path / "store").close()
        finally:
            os.close(go)
            os.waitpid(child, 0)

    def test_a_buffer_does_not_travel_by_pickle(self) -> None:
        import pickle

        with pytest.raises(UnsupportedValueError, match="belongs to one process"):
            pickle.dumps(TrajectoryReplayBuffer())


class TestProgramEnd:
    def test_what_was_not_closed_is_stored_all_the_same(self, tmp_path: Path) -> None:
        script = """
            import sys
            from trajectories import traj
            from relive import TrajectoryReplayBuffer
            for name in ("one", "other"):
                buffer = TrajectoryReplayBuffer(
                    auto_save=True, auto_save_path=f"{sys.argv[1]}/{name}", if_exists="resume"
                )
                buffer.add_trajectories([traj(k, T=50, B=20, wide=True) for k in range(8)])
            raise SystemExit(3)
        """
        code, _, complaints = run_python(script, tmp_path)
        assert (code, complaints) == (3, "")
        for name in ("one", "other"):
            with resume(tmp_path / name) as buffer:
                assert ks_of(buffer) == set(range(8))

    def test_an_end_that_cannot_store_says_so(self, tmp_path: Path) -> None:
        script = """
            import shutil, sys
            from trajectories import traj
            from relive import TrajectoryReplayBuffer
            buffer = TrajectoryReplayBuffer(auto_save=True, auto_save_path=sys.argv[1])
            buffer.flush()
            shutil.rmtree(sys.argv[1])
            buffer.add_trajectories([traj(0)])
        """
        _, _, complaints = run_python(script, tmp_path / "store")
        assert "could not store everything at exit" in complaints
        assert "trajectory 0 could not be written" in complaints

    def test_an_opened_store_that_nothing_was_added_to_ends_well(self, tmp_path: Path) -> None:
        fill(tmp_path / "store")
        script = """
            import sys
            from relive import TrajectoryReplayBuffer
            buffer = TrajectoryReplayBuffer(
                auto_save=True, auto_save_path=sys.argv[1], if_exists="resume", framework="numpy"
            )
            print(buffer.sample(5)["rewards"].shape)
        """
        assert run_python(script, tmp_path / "store") == (0, "(5,)\n", "")
        with resume(tmp_path / "store") as buffer:
            assert ks_of(buffer) == {0, 1}

    def test_an_unknown_answer_to_what_exists_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidArgumentError, match=r"if_exists is 'append'.*'overwrite'"):
            open_store(tmp_path / "store", if_exists="append")
        assert not (tmp_path / "store").exists()
