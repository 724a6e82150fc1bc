# SPDX-License-Identifier: Apache-2.0
"""What other replay systems got wrong in the life of a store, each as a small story."""

from __future__ import annotations

import errno
import os
import pickle
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from buffers import open_at
from programs import Marker, run_program, start_program
from relive import Columns, Trajectory, TrajectoryReplayBuffer
from relive.errors import CorruptFileError, StoreExistsError, UnsafePickleError
from relive.maintenance import summarize
from rlinf_rows import DATA
from trajectories import (
    address_of,
    check_rows,
    make_checkpoint,
    traj,
    trajectory_files,
)

FORMATS = ["pt", "pkl"]


def open_store(folder: Path, form: str = "pt", **options: Any) -> TrajectoryReplayBuffer:
    return open_at(form, folder, framework="numpy", **options)


KILLS = """
import os, random, select, signal, sys, warnings
from pathlib import Path
from relive import TrajectoryReplayBuffer
from trajectories import same_trajectory, traj

folder, form = Path(sys.argv[1]), sys.argv[2]
options = dict(
    auto_save=True, auto_save_path=folder, trajectory_format=form, if_exists="resume",
    sample_window_size=0, cache_size=0, framework="numpy",
)
chance = random.Random(7)
known = set()
warnings.filterwarnings("ignore", message=".* are not in the index")

def record(report):
    buffer = TrajectoryReplayBuffer(**options)
    for _ in range(20):
        buffer.add_trajectories([traj(buffer.trajectory_counter)])
        buffer.flush()
        os.write(report, b".")
    signal.pause()

for _ in range(20):
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            record(writing)
        finally:
            os._exit(1)
    os.close(writing)
    flushed = 0
    for _ in range(chance.randrange(21)):
        flushed += len(os.read(reading, 1))
    select.select([reading], [], [], chance.random() * 0.005)  # into the next addition
    os.kill(child, signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    while more := os.read(reading, 100):
        flushed += len(more)
    os.close(reading)
    with TrajectoryReplayBuffer(**options) as buffer:
        ids = set(buffer._store.index.window(0).trajectory_ids.tolist())
        new = ids - known
        assert known <= ids
        assert flushed <= len(new) <= flushed + 1, (flushed, sorted(new))
        for k in new:
            assert same_trajectory(buffer.trajectory(k), traj(k)), k
        known = ids
print(len(known))
"""


class TestKills:
    """Recordings that were interrupted could not be read, for want of a footer."""

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
    @pytest.mark.parametrize("form", ["pt", pytest.param("pkl", marks=pytest.mark.slow)])
    def test_at_any_moment_at_most_the_addition_in_flight_is_lost(
        self, form: str, tmp_path: Path
    ) -> None:
        num = int(run_program(KILLS, tmp_path / "store", form))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".* are not in the index")
            buffer = open_store(tmp_path / "store", form, if_exists="resume", sample_window_size=0)
        with buffer:
            assert len(buffer) == num > 20
            check_rows(buffer.sample(100))


WRITER = """
import sys
from relive import TrajectoryReplayBuffer
from trajectories import traj

with TrajectoryReplayBuffer(
    auto_save=True, auto_save_path=sys.argv[1], trajectory_format=sys.argv[2], cache_size=0
) as buffer:
    for k in range(500):
        buffer.add_trajectories([traj(k)])
        if k % 50 == 5:
            buffer.flush()
            print(k + 1, flush=True)
            sys.stdin.readline()
"""


class TestReadersBesideAWriter:
    """Readers in another process met an index that was half written, and ids without a file."""

    @pytest.mark.filterwarnings("ignore:.*is open for writing by")
    @pytest.mark.parametrize("form", ["pt", pytest.param("pkl", marks=pytest.mark.slow)])
    def test_each_sees_all_that_was_flushed_and_can_read_it(
        self, form: str, tmp_path: Path
    ) -> None:
        store = tmp_path / "store"
        with start_program(WRITER, store, form) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            for _ in range(10):
                num_flushed = int(process.stdout.readline())
                process.stdin.write("\n")
                process.stdin.flush()  # and it goes on, beside what follows
                reader = TrajectoryReplayBuffer(sample_window_size=20, framework="numpy")
                reader.load_checkpoint(store)
                assert num_flushed <= len(reader) <= 500
                batch, info = reader.sample(32, return_info=True)
                check_rows(batch, info, {k: k for k in range(500)})
                assert num_flushed <= summarize(store).num_trajectories <= 500
            _, complaints = process.communicate()
        assert (process.returncode, complaints) == (0, "")
        assert summarize(store).num_trajectories == 500


class TestUsedFolders:
    """A folder used again showed its old values where the new data had none."""

    @pytest.mark.parametrize("form", FORMATS)
    @pytest.mark.parametrize("if_exists", ["resume", "overwrite"])
    def test_a_missing_value_is_its_default_and_never_the_old_one(
        self, if_exists: Any, form: str, tmp_path: Path
    ) -> None:
        def with_d(k: int, d: float) -> Trajectory:
            return traj(k, T=3, B=2, extra={"d": np.full((3, 2), d)})

        store = tmp_path / "store"
        with open_store(store, form) as buffer:
            buffer.add_trajectories([with_d(0, 1.0)])
        columns = Columns(optional={"extras/d": -1.0})
        with pytest.raises(StoreExistsError):
            open_store(store, form, columns=columns)
        with open_store(store, form, columns=columns, if_exists=if_exists, cache_size=0) as buffer:
            buffer.add_trajectories([traj(1, T=3, B=2), with_d(2, 2.0), traj(3, T=3, B=2)])
            for _ in range(2):  # while they wait to be written, and from their files
                batch = buffer.sample(200)
                check_rows(batch)
                k = address_of(batch)[0]
                assert set(k.tolist()) == {1, 2, 3} | ({0} if if_exists == "resume" else set())
                np.testing.assert_array_equal(
                    batch["extras"]["d"], np.array([1.0, -1.0, 2.0, -1.0])[k]
                )
                buffer.flush()


class TestRestarts:
    """Data that came from the store's folder and again from the checkpoint were held twice."""

    @pytest.mark.parametrize("form", FORMATS)
    def test_a_store_and_its_own_checkpoint_are_held_once(self, form: str, tmp_path: Path) -> None:
        with open_store(tmp_path / "store", form) as buffer:
            buffer.add_trajectories([traj(k) for k in range(3)])
            buffer.save_checkpoint(tmp_path / "saved")
        for _ in range(3):
            with open_store(tmp_path / "store", form, if_exists="resume") as buffer:
                for num_loads in range(3):
                    if num_loads:
                        buffer.load_checkpoint(tmp_path / "saved")
                    assert (len(buffer), buffer.total_samples) == (3, 36)
                    assert buffer.get_stats()["cache_size"] == 3
                    batch, info = buffer.sample(60, return_info=True)
                    check_rows(batch, info, {0: 0, 1: 1, 2: 2})
            assert trajectory_files(tmp_path / "store") == [0, 1, 2]
            assert not (tmp_path / "store" / "aside").exists()

    def test_a_memory_buffer_that_loads_twice_holds_all_once(self, tmp_path: Path) -> None:
        make_checkpoint(tmp_path / "saved", [traj(k) for k in range(3)])
        buffer = TrajectoryReplayBuffer(framework="numpy")
        for _ in range(3):
            buffer.load_checkpoint(tmp_path / "saved")
            stats = buffer.get_stats()
            assert (len(buffer), stats["total_samples"], stats["cache_size"]) == (3, 36, 3)
            buffer.save_checkpoint(tmp_path / "saved")
        batch, info = buffer.sample(60, return_info=True)
        check_rows(batch, info, {0: 0, 1: 1, 2: 2})


class TestPending:
    @pytest.mark.parametrize("form", FORMATS)
    def test_large_trajectories_are_sampled_while_they_are_written(
        self, form: str, tmp_path: Path
    ) -> None:
        """Files that were not whole yet were read: here six of 12 MB, and one in the cache."""
        with open_store(tmp_path / "store", form, cache_size=1) as buffer:
            buffer.add_trajectories([traj(k, T=50, B=50, wide=True) for k in range(6)])
            assert buffer.get_stats()["size_bytes"] > 6 * 12e6
            for _ in range(5):
                batch, info = buffer.sample(64, return_info=True)
                check_rows(batch, info, {k: k for k in range(6)})


FULL_DISK = """
import resource, sys
from pathlib import Path
from relive import TrajectoryReplayBuffer
from relive.errors import StorageWriteError
from trajectories import check_rows, same_trajectory, traj

_, most = resource.getrlimit(resource.RLIMIT_FSIZE)

def tree(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

for kind in ("memory", "pt", "pkl"):
    folder = Path(sys.argv[1]) / kind
    place = folder / "here" / "saved"
    options = {} if kind == "memory" else dict(
        auto_save=True, auto_save_path=folder / "store", trajectory_format=kind
    )
    with TrajectoryReplayBuffer(framework="numpy", **options) as buffer:
        buffer.add_trajectories([traj(0)])
        buffer.save_checkpoint(place)
        before = tree(place.parent)
        buffer.add_trajectories([traj(1, T=400, B=20)])
        buffer.flush()
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, most))  # a write is cut off there
        try:
            buffer.save_checkpoint(place)
        except StorageWriteError as error:
            print(error.errno)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        assert tree(place.parent) == before
        assert [path.name for path in place.parent.iterdir()] == ["saved"]
        other = TrajectoryReplayBuffer(framework="numpy")
        other.load_checkpoint(place)
        assert len(other) == 1
        check_rows(other.sample(20))
        buffer.save_checkpoint(place)
        other.load_checkpoint(place)
        assert same_trajectory(other.trajectory(1), traj(1, T=400, B=20))
"""


class TestFullDisk:
    """A disk that filled up during a save left neither the old checkpoint nor the new one."""

    def test_a_write_that_the_kernel_cuts_off_leaves_the_checkpoint_before(
        self, tmp_path: Path
    ) -> None:
        assert run_program(FULL_DISK, tmp_path) == f"{errno.EFBIG}\n" * 3


def write_hostile(path: Path, marker: Path) -> None:
    """Write what a naive reader of such a file would run."""
    tree = {"rewards": torch.zeros(4, 2), "curr_obs": Marker(marker)}
    if path.suffix == ".pt":
        torch.save(tree, path)
    else:
        path.write_bytes(pickle.dumps(tree))


class TestHostileFolders:
    """Files with data can hide code that runs when they are read."""

    @pytest.mark.parametrize("into", ["memory", "pt"])
    @pytest.mark.parametrize("name", ["pt_autosave_false", "pkl_autosave_true"])
    def test_a_checkpoint_of_others_runs_nothing(
        self, into: str, name: str, tmp_path: Path
    ) -> None:
        """RLinf's own say nothing of size and checksum, which would give such a file away."""
        shutil.copytree(DATA / "v0.3.0" / name, tmp_path / "saved")
        (path,) = (tmp_path / "saved").glob("trajectory_2_*")
        write_hostile(path, tmp_path / "marker")
        options: dict[str, Any] = {"auto_save": True, "auto_save_path": tmp_path / "store"}
        with TrajectoryReplayBuffer(**({} if into == "memory" else options)) as buffer:
            with pytest.raises(UnsafePickleError, match="mkdir") as raised:
                buffer.load_checkpoint(tmp_path / "saved")
            assert raised.value.path == str(path)
            assert len(buffer) == 0
        assert not (tmp_path / "marker").exists()

    @pytest.mark.filterwarnings("ignore:.*is open for writing by")
    @pytest.mark.parametrize("form", FORMATS)
    @pytest.mark.parametrize("call", ["read", "sample", "load"])
    def test_a_file_in_a_store_runs_nothing(self, form: str, call: str, tmp_path: Path) -> None:
        store = tmp_path / "store"
        with open_store(store, form, cache_size=0) as buffer:
            buffer.add_trajectories([traj(0), traj(1)])
            buffer.flush()
            (path,) = store.glob("trajectory_1_*")
            write_hostile(path, tmp_path / "marker")
            calls: dict[str, Callable[[], Any]] = {
                "read": lambda: buffer.trajectory(1),
                "sample": lambda: buffer.sample(100),
                "load": lambda: TrajectoryReplayBuffer().load_checkpoint(store),
            }
            with pytest.raises(CorruptFileError) as raised:
                calls[call]()
            assert raised.value.path == str(path)
            check_rows(buffer.gather([0, 11]))
        with pytest.warns(UserWarning, match="cache could not be filled"):
            open_store(store, form, if_exists="resume").close()
        assert not (tmp_path / "marker").exists()

    @pytest.mark.parametrize("name", ["trajectory_index.json", "metadata.json"])
    def test_an_index_runs_nothing(self, name: str, tmp_path: Path) -> None:
        make_checkpoint(tmp_path / "saved", [traj(0)])
        write_hostile(tmp_path / "saved" / name, tmp_path / "marker")
        with pytest.raises(CorruptFileError, match=name):
            TrajectoryReplayBuffer().load_checkpoint(tmp_path / "saved")
        with open_store(tmp_path / "store") as buffer:
            buffer.add_trajectories([traj(0)])
        write_hostile(tmp_path / "store" / name, tmp_path / "marker")
        with pytest.warns(UserWarning, match=name.replace(".", r"\.")):
            buffer = open_store(tmp_path / "store", if_exists="resume")
        with buffer:
            check_rows(buffer.sample(20))
        for each in (name, "trajectory_index.journal", "trajectory_index.json"):
            write_hostile(tmp_path / "store" / each, tmp_path / "marker")
        with pytest.raises(CorruptFileError, match="trajectory_index"):
            open_store(tmp_path / "store", if_exists="resume")
        assert not (tmp_path / "marker").exists()
