# SPDX-License-Identifier: Apache-2.0
"""What a store goes on with when it is opened again, and what is told of one that is open."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

import relive
from buffers import open_store
from programs import run_program
from relive import TrajectoryReplayBuffer
from relive.errors import StorageError, StoreExistsError
from trajectories import traj

KINDS = ["pt", "pkl", "memmap"]


def resume(folder: Path, **options: Any) -> TrajectoryReplayBuffer:
    return open_store(folder, if_exists="resume", framework="numpy", **options)


def leave(folder: Path, *, is_killed: bool, seed: int = 3) -> list[Any]:
    """Make a store and return its first draw; then close it, or let go of it as a kill would."""
    buffer = open_store(folder, seed=seed, framework="numpy")
    buffer.add_trajectories([traj(k) for k in range(5)])
    buffer.flush()
    drawn: list[Any] = buffer.sample(50)["curr_obs"]["id"].tolist()
    if is_killed:
        assert buffer._store.disk is not None
        buffer._store.disk.abandon()
    else:
        buffer.close()
    return drawn


class TestSeed:
    @pytest.mark.parametrize("is_killed", [False, True])
    def test_a_store_keeps_its_own(self, is_killed: bool, tmp_path: Path) -> None:
        drawn = leave(tmp_path / "store", is_killed=is_killed)
        with resume(tmp_path / "store") as again:
            assert again.seed == 3
            assert again.sample(50)["curr_obs"]["id"].tolist() != drawn
        with resume(tmp_path / "store", seed=None) as again:
            assert again.seed == 3

    def test_one_killed_amid_its_first_additions_keeps_it_too(self, tmp_path: Path) -> None:
        program = (
            "import os, sys\n"
            "from buffers import open_store\n"
            "from trajectories import traj\n"
            "buffer = open_store(sys.argv[1], seed=int(sys.argv[2]))\n"
            "buffer._store.disk.writer._idle = lambda: None\n"
            "buffer.add_trajectories([traj(0)])\n"
            "buffer.flush()\n"
            "os._exit(0)\n"
        )
        run_program(program, tmp_path / "store", 77)
        with resume(tmp_path / "store") as again:
            assert (again.seed, len(again)) == (77, 1)

    @pytest.mark.parametrize("how", ["state", "checkpoint"])
    def test_one_taken_over_is_kept_from_then_on(self, how: str, tmp_path: Path) -> None:
        with TrajectoryReplayBuffer(seed=8) as other:
            other.add_trajectories([traj(0)])
            other.save_checkpoint(tmp_path / "saved")
        buffer = open_store(tmp_path / "store", seed=7)
        buffer.flush()  # else its own seed, not written yet, would be looked up too late
        if how == "state":
            buffer.load_state_dict(other.state_dict())
        else:
            buffer.load_checkpoint(tmp_path / "saved")
        buffer.flush()
        assert buffer._store.disk is not None
        buffer._store.disk.abandon()
        with resume(tmp_path / "store") as again:
            assert again.seed == 8

    def test_counters_taken_over_are_kept_too(self, tmp_path: Path) -> None:
        with TrajectoryReplayBuffer(seed=8) as other:
            other.add_trajectories([traj(k) for k in range(3)])
            state = other.state_dict()
        buffer = open_store(tmp_path / "store")
        buffer.load_state_dict(state)
        buffer.flush()
        assert buffer._store.disk is not None
        buffer._store.disk.abandon()
        with resume(tmp_path / "store") as again:
            assert again.trajectory_counter == 3
            assert again.add_trajectories([traj(3)]) == [3]
            assert again.sample(1, return_info=True)[1].row_ids.min() >= state["next_row_id"]

    def test_a_forked_copy_that_takes_one_over_waits_for_nobody(self, tmp_path: Path) -> None:
        program = (
            "import os, signal, sys, threading\n"
            "from buffers import open_store\n"
            "from trajectories import traj\n"
            "with open_store(sys.argv[1]) as buffer:\n"
            "    buffer.add_trajectories([traj(0)])\n"
            "    buffer.flush()\n"
            "    held, may_end = threading.Event(), threading.Event()\n"
            "    def hold():  # as the writer's own thread may, which the child has not\n"
            "        with buffer._store.disk.writer._condition:\n"
            "            held.set()\n"
            "            may_end.wait(60)\n"
            "    holder = threading.Thread(target=hold)\n"
            "    holder.start()\n"
            "    held.wait(60)\n"
            "    child = os.fork()\n"
            "    if not child:\n"
            "        signal.alarm(30)  # else it would wait for ever\n"
            "        buffer.load_state_dict(buffer.state_dict())\n"
            "        buffer.sample(3)\n"
            "        os._exit(0)\n"
            "    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
            "    may_end.set()\n"
            "    holder.join()\n"
        )
        assert run_program(program, tmp_path / "store").strip() == "0"

    def test_a_file_that_cannot_be_read_costs_the_draws_alone(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        leave(tmp_path / "store", is_killed=True)

        def refuse(path: Path) -> NoReturn:
            raise StorageError(f"{path} cannot be read, but must be; look at the disk")

        monkeypatch.setattr("relive.buffer.read_metadata", refuse)
        with pytest.warns(UserWarning, match="draws do not go on where they were"):
            again = resume(tmp_path / "store")
        with again:
            assert len(again) == 5

    @pytest.mark.parametrize("is_killed", [False, True])
    def test_another_one_is_told(self, is_killed: bool, tmp_path: Path) -> None:
        leave(tmp_path / "store", is_killed=is_killed)
        with pytest.warns(UserWarning, match=r"seed is 99, but .* its own, 3; give another stream"):
            again = resume(tmp_path / "store", seed=99)
        with again:
            assert again.seed == 3


class TestOpenStores:
    @pytest.mark.parametrize("kind", KINDS)
    def test_who_reads_one_is_told_that_it_may_lack_something(
        self, kind: str, tmp_path: Path
    ) -> None:
        with open_store(tmp_path / "store", trajectory_format=kind) as buffer:
            buffer.add_trajectories([traj(0)])
            buffer.flush()
            with pytest.warns(UserWarning, match="is open for writing by .*flush or close it"):
                assert relive.convert(tmp_path / "store", tmp_path / "target", kind) == 1
            with TrajectoryReplayBuffer() as other:
                with pytest.warns(UserWarning, match="is open for writing by"):
                    other.load_checkpoint(tmp_path / "store")
                assert len(other) == 1
            buffer.load_checkpoint(tmp_path / "store")  # its own: all of it is stored
        assert relive.convert(tmp_path / "store", tmp_path / "closed", kind) == 1


class TestIndexFile:
    def test_that_of_a_killed_store_is_complete_after_a_flush(self, tmp_path: Path) -> None:
        leave(tmp_path / "store", is_killed=True)
        (tmp_path / "store" / "trajectory_index.json").unlink(missing_ok=True)
        with resume(tmp_path / "store") as again:
            again.flush()
            index = json.loads((tmp_path / "store" / "trajectory_index.json").read_text())
            assert index["trajectory_id_list"] == list(range(5))


class TestCheckpoints:
    @pytest.mark.parametrize("if_exists", ["refuse", "resume", "overwrite"])
    def test_one_is_no_store_and_is_called_what_it_is(self, if_exists: Any, tmp_path: Path) -> None:
        with TrajectoryReplayBuffer() as buffer:
            buffer.add_trajectories([traj(0)])
            buffer.save_checkpoint(tmp_path / "saved")
        with pytest.raises(StoreExistsError, match=r"holds a checkpoint .*load_checkpoint\(\)"):
            open_store(tmp_path / "saved", if_exists=if_exists)


class TestRepr:
    def test_it_says_what_the_buffer_holds_and_where(self, tmp_path: Path) -> None:
        with open_store(tmp_path / "store", trajectory_format="memmap") as buffer:
            buffer.add_trajectories([traj(0, T=3, B=2)])
            found = repr(buffer)
        assert found.startswith("<TrajectoryReplayBuffer in ")
        assert str(tmp_path / "store") in found
        assert found.endswith(": memmap, 1 trajectories, 6 rows>")
        assert ": closed, memmap" in repr(buffer)

    def test_that_of_infos_has_no_thousand_numbers(self) -> None:
        with TrajectoryReplayBuffer() as buffer:
            buffer.add_trajectories([traj(0, T=3, B=2)])
            _, info = buffer.sample(1000, return_info=True)
        assert np.unique(info.trajectory_ids).tolist() == [0]
        assert repr(info) == "<SampleInfo of 1000 rows from 1 trajectories>"
