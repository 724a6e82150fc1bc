# SPDX-License-Identifier: Apache-2.0
"""Adding to a buffer: all or nothing, copied at once, in declared columns, within limits."""

from __future__ import annotations

import gc
import json
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
import torch

from buffers import open_buffer, stats_of
from relive import Columns, ColumnSpec, Limits, Trajectory, TrajectoryReplayBuffer, files
from relive.errors import (
    ColumnMismatchError,
    EvictedError,
    LimitExceededError,
    ReplayError,
    UnsupportedValueError,
)
from relive.writer import Writer
from trajectories import address_of, check_rows, same_trajectory, traj, trajectory_files

KINDS = ["memory", "pt", "pkl", "memmap"]


def without(name: str) -> Trajectory:
    bad = traj(9)
    setattr(bad, name, None)
    return bad


def changed(name: str, value: Any) -> Trajectory:
    bad = traj(9)
    setattr(bad, name, value)
    return bad


def observed(name: str, value: Any) -> Trajectory:
    bad = traj(9)
    bad.curr_obs[name] = value
    return bad


def boxes_of(kind: type) -> Any:
    """Return from 0 to 5 boxes for each step and env, as an array of objects or as lists."""
    boxes = [[np.zeros(((3 * t + b) % 6, 4)) for b in range(3)] for t in range(4)]
    if kind is list:
        return boxes
    array = np.empty((4, 3), object)
    for t, b in np.ndindex(4, 3):
        array[t, b] = boxes[t][b]
    return array


def broken() -> list[tuple[str, Callable[[], Any], type[ReplayError], str]]:
    """Return what no buffer may take after `traj(0)`: name, trajectory, error, what it says."""
    mismatch, unsupported = ColumnMismatchError, UnsupportedValueError
    return [
        ("no trajectory", lambda: {"rewards": 1}, unsupported, "dict"),
        ("nothing in it", Trajectory, mismatch, "tell T and B"),
        ("a column less", lambda: without("rewards"), mismatch, "missing: rewards"),
        ("a column more", lambda: changed("versions", np.zeros((4, 3))), mismatch, "extra: vers"),
        ("another type", lambda: changed("rewards", np.zeros((4, 3))), mismatch, "float64"),
        ("another row", lambda: changed("actions", np.zeros((4, 3, 3))), mismatch, r"\[3\]"),
        (
            "another image size",
            lambda: observed("camera", {"pixels": np.zeros((4, 3, 6), "u1")}),
            mismatch,
            r"curr_obs/camera/pixels is uint8 \[6\]",
        ),
        ("boxes", lambda: observed("boxes", boxes_of(object)), unsupported, "curr_obs/boxes"),
        ("listed boxes", lambda: observed("boxes", boxes_of(list)), unsupported, "curr_obs/boxes"),
        (
            "another T",
            lambda: changed("rewards", np.zeros((5, 3), "f4")),
            mismatch,
            r"\[5, 3\].*\[4, 3\]",
        ),
        ("another B", lambda: changed("rewards", np.zeros((4, 2), "f4")), mismatch, "rewards"),
        ("flags of no epoch", lambda: changed("dones", np.zeros((7, 3), "?")), mismatch, "dones"),
        ("one axis", lambda: changed("rewards", np.zeros(12, "f4")), mismatch, "rewards"),
        ("empty", lambda: traj(9, T=0), mismatch, "at least 1"),
        ("objects", lambda: changed("rewards", np.full((4, 3), {})), unsupported, "rewards"),
        ("dates", lambda: changed("rewards", np.zeros((4, 3), "M8[s]")), unsupported, "rewards"),
        ("ragged", lambda: changed("rewards", [[1.0], [2.0, 3.0]]), unsupported, "rewards"),
        ("a number", lambda: changed("rewards", 1.0), unsupported, "rewards"),
        ("a set", lambda: changed("extras", {"x": {1}}), unsupported, "extras/x"),
        ("a slash", lambda: changed("extras", {"a/b": np.zeros((4, 3))}), ReplayError, "a/b"),
        ("no dict", lambda: changed("curr_obs", np.zeros((4, 3))), unsupported, "curr_obs"),
        ("sparse", lambda: changed("rewards", torch.zeros(4, 3).to_sparse()), unsupported, "rew"),
        ("meta", lambda: changed("rewards", torch.zeros(4, 3, device="meta")), unsupported, "rew"),
        ("a weights id", lambda: changed("model_weights_id", 3), unsupported, "weights_id"),
        ("a length", lambda: changed("max_episode_length", -1), unsupported, "episode_length"),
    ]


class TestAllOrNothing:
    """RLinf counted a trajectory that it had refused, and drew it afterwards."""

    @pytest.mark.parametrize("kind", ["memory", "pt"])
    @pytest.mark.parametrize(
        ("make", "error", "told"), [pytest.param(*case[1:], id=case[0]) for case in broken()]
    )
    def test_a_list_with_one_bad_trajectory_leaves_all_as_it_was(
        self,
        kind: str,
        make: Callable[[], Any],
        error: type[ReplayError],
        told: str,
        tmp_path: Path,
    ) -> None:
        with open_buffer(kind, tmp_path) as buffer:
            buffer.add_trajectories([traj(0)])
            buffer.flush()
            before = (len(buffer), buffer.state_dict(), stats_of(buffer))
            with pytest.raises(error, match=told):
                buffer.add_trajectories([traj(1), make(), traj(2)])
            assert (len(buffer), buffer.state_dict(), stats_of(buffer)) == before
            if kind == "pt":
                assert trajectory_files(tmp_path / "store") == [0]
            assert buffer.add_trajectories([traj(1)]) == [1]
            batch, info = buffer.sample(50, return_info=True)
            check_rows(batch, info, {0: 0, 1: 1})

    def test_a_bad_first_trajectory_declares_nothing(self) -> None:
        buffer = TrajectoryReplayBuffer()
        with pytest.raises(ColumnMismatchError):
            buffer.add_trajectories([without("rewards"), traj(0)])
        assert buffer.add_trajectories([traj(0)]) == [0]
        check_rows(buffer.sample(9))

    def test_an_iterator_that_fails_leaves_all_as_it_was(self) -> None:
        buffer = TrajectoryReplayBuffer()

        def trajectories() -> Any:
            yield traj(0)
            raise KeyError("from the caller")

        with pytest.raises(KeyError):
            buffer.add_trajectories(trajectories())
        assert (len(buffer), buffer.trajectory_counter) == (0, 0)

    def test_it_is_told_which_one_is_bad(self) -> None:
        buffer = TrajectoryReplayBuffer()
        for bad in (without("rewards"), changed("rewards", np.zeros((3, 4)))):
            with pytest.raises(ColumnMismatchError, match=r"^trajectories\[1\]: .*rewards"):
                buffer.add_trajectories([traj(0), bad, traj(2)])
        with pytest.raises(ColumnMismatchError, match=r"^column 'rewards'"):
            buffer.add_trajectories([bad])

    def test_an_empty_list_adds_nothing(self) -> None:
        assert TrajectoryReplayBuffer().add_trajectories([]) == []


class TestCopies:
    @pytest.mark.parametrize("kind", KINDS)
    def test_the_caller_may_reuse_his_arrays_at_once(self, kind: str, tmp_path: Path) -> None:
        """Buffers that kept references held the latest values in every trajectory."""
        with open_buffer(kind, tmp_path, sample_window_size=0, cache_size=0) as buffer:
            reused = traj(0, T=64, B=64)
            address = np.arange(64)[:, None] * 1_000 + np.arange(64)
            for k in range(60):
                reused.curr_obs["id"][...] = 1_000_000 * k + address
                reused.next_obs["id"][...] = reused.curr_obs["id"] + 1_000
                buffer.add_trajectories([reused])
                reused.next_obs["id"][...] = 0
                reused.curr_obs["id"] += 5
            buffer.flush()
            for k in range(60):
                stored = buffer.trajectory(k)
                np.testing.assert_array_equal(
                    np.asarray(stored.next_obs["id"]), 1_000_000 * k + 1_000 + address
                )

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.filterwarnings("error")
    def test_any_strides_owners_and_graphs_are_taken(self, kind: str, tmp_path: Path) -> None:
        """Read-only arrays, as object stores and raw bytes give them, made other buffers fail."""
        plain = np.arange(24.0).reshape(4, 6)
        read_only = plain.copy()
        read_only.flags.writeable = False
        on_a_tape = torch.arange(24.0).reshape(4, 6).requires_grad_() * 1.0
        leaf = torch.nn.Parameter(torch.arange(24.0).reshape(4, 6))
        columns = {
            "read-only": read_only,
            "from bytes": np.frombuffer(plain.tobytes()).reshape(4, 6),
            "transposed": np.ascontiguousarray(plain.T).T,
            "strided": np.repeat(plain, 2, 1)[:, ::2],
            "backwards": plain[::-1].copy()[::-1],
            "other byte order": plain.astype(">f8"),
            "permuted tensor": torch.from_numpy(plain.T.copy()).T,
            "on a tape": on_a_tape,
            "parameter": leaf,
        }
        expanded = torch.tensor([7]).expand(4, 6)
        with open_buffer(kind, tmp_path, cache_size=0) as buffer:
            buffer.add_trajectories(
                [Trajectory(rewards=plain, curr_obs={**columns, "expanded": expanded})]
            )
            buffer.flush()
            batch = buffer.sample(50)
            for name in columns:
                assert torch.equal(batch["curr_obs"][name].double(), batch["rewards"]), name
                assert not batch["curr_obs"][name].requires_grad
            assert batch["curr_obs"]["expanded"].tolist() == [7] * 50
            batch["rewards"] += 1
            assert buffer.trajectory(0).curr_obs["expanded"].shape == (4, 6)
        assert on_a_tape.grad_fn is not None


class TestDeclaredColumns:
    """RLinf filled a column that was lacking with the values of an evicted trajectory."""

    def test_a_column_that_only_some_have_is_never_left_to_chance(self) -> None:
        buffer = TrajectoryReplayBuffer(sample_window_size=1)
        buffer.add_trajectories([traj(0, extra={"d": np.full((4, 3), 7)})])
        with pytest.raises(ColumnMismatchError, match=r"missing: extras/d.*optional=") as raised:
            buffer.add_trajectories([traj(1)])
        assert raised.value.column == "extras/d"
        buffer.add_trajectories([traj(2, extra={"d": np.full((4, 3), 8)})])
        assert set(buffer.sample(60)["extras"]["d"].tolist()) == {8}

    @pytest.mark.parametrize("kind", KINDS)
    def test_optional_columns_come_late_go_and_stay_right(self, kind: str, tmp_path: Path) -> None:
        columns = Columns(optional={"intervene_flags": False, "versions": -1})
        with open_buffer(kind, tmp_path, columns=columns, cache_size=0) as buffer:
            flags = np.ones((4, 3), np.bool_)
            late = traj(2)
            late.intervene_flags, late.versions = flags, np.full((4, 3), 6)
            buffer.add_trajectories([traj(0)])
            assert buffer.sample(20)["versions"].tolist() == [-1] * 20
            buffer.add_trajectories([traj(1), late, traj(3)])
            buffer.flush()
            batch = buffer.sample(200)
            check_rows(batch)
            k = address_of(batch)[0]
            assert batch["intervene_flags"].tolist() == (k == 2).tolist()
            assert batch["versions"].tolist() == np.where(k == 2, 6, -1).tolist()
            assert buffer.trajectory(0).intervene_flags is None
            with pytest.raises(ColumnMismatchError, match=r"different: versions is float64"):
                buffer.add_trajectories([changed("versions", np.zeros((4, 3)))])

    def test_required_columns_are_checked_from_the_first_on(self) -> None:
        columns = Columns(
            required={"rewards": ColumnSpec("float32"), "actions": ColumnSpec("float64", (2,))},
            drop_others=True,
        )
        buffer = TrajectoryReplayBuffer(columns=columns)
        with pytest.raises(ColumnMismatchError, match="different: rewards is float64"):
            buffer.add_trajectories([changed("rewards", np.zeros((4, 3)))])
        with pytest.raises(ColumnMismatchError, match="rewards"):
            buffer.add_trajectories([without("rewards")])
        buffer.add_trajectories([traj(0), traj(1, extra={"only here": np.zeros((4, 3))})])
        assert set(buffer.sample(4)) == {"rewards", "actions"}
        assert buffer.trajectory(1).extras == {}

    def test_columns_that_nobody_declared_are_refused_unless_dropped(self) -> None:
        strict = TrajectoryReplayBuffer(columns=Columns(required=["rewards"]))
        with pytest.raises(ColumnMismatchError, match="extra: actions, "):
            strict.add_trajectories([traj(0)])
        assert strict.add_trajectories([Trajectory(rewards=np.zeros((2, 2)))]) == [0]

    def test_a_cleared_buffer_takes_other_columns(self, tmp_path: Path) -> None:
        for kind in KINDS:
            with open_buffer(kind, tmp_path / kind) as buffer:
                buffer.add_trajectories([traj(0)])
                buffer.flush()
                buffer.clear()
                buffer.add_trajectories([Trajectory(actions=np.zeros((2, 2)))])
                assert set(buffer.sample(2)) == {"actions"}
            if kind != "memory":
                with open_buffer(kind, tmp_path / kind, if_exists="resume") as buffer:
                    assert set(buffer.sample(2)) == {"actions"}
                    buffer.clear()
                with open_buffer(kind, tmp_path / kind, if_exists="resume") as buffer:
                    assert buffer.add_trajectories([traj(5)]) == [2]


class TestWeightsIds:
    """RLinf lost a trajectory whose weights id had a slash in it, without an error."""

    @pytest.mark.parametrize("kind", ["pt", "pkl", "memmap"])
    def test_any_text_works_and_files_stay_in_the_folder(self, kind: str, tmp_path: Path) -> None:
        weights_ids = [
            *("a/b", "", "x" * 300, "../up", "/etc/passwd", "..", "Gewicht ü 重", "a\\b", "%2F"),
            *("new\nline", "nul\0", "con", 'quo"te', "\ud800", "y" * 299 + "z", "y" * 300),
        ]
        with open_buffer(kind, tmp_path, cache_size=0, sample_window_size=0) as buffer:
            for k, weights_id in enumerate(weights_ids):
                buffer.add_trajectories([traj(k, T=1, B=1, weights_id=weights_id)])
            buffer.flush()
            self.check(buffer, weights_ids)
            assert trajectory_files(tmp_path / "store") == list(range(len(weights_ids)))
            buffer.save_checkpoint(tmp_path / "checkpoint")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint", "store"]
        with open_buffer(kind, tmp_path, sample_window_size=0, if_exists="resume") as buffer:
            self.check(buffer, weights_ids)
        with TrajectoryReplayBuffer(sample_window_size=0) as other:
            other.load_checkpoint(tmp_path / "checkpoint")
            self.check(other, weights_ids)

    @staticmethod
    def check(buffer: TrajectoryReplayBuffer, weights_ids: list[str]) -> None:
        for k, weights_id in enumerate(weights_ids):
            assert buffer.trajectory(k).model_weights_id == weights_id
        check_rows(buffer.sample(60))


class TestLimits:
    @pytest.mark.parametrize("kind", ["memory", "pt"])
    def test_rows_stay_bounded_as_episodes_get_longer(self, kind: str, tmp_path: Path) -> None:
        """A bound that counts trajectories lets memory grow as episodes get longer."""
        limits = Limits(max_samples=1000)
        with open_buffer(kind, tmp_path, limits=limits, sample_window_size=0) as buffer:
            for k, T in enumerate([10] * 101 + [200] * 20):
                buffer.add_trajectories([traj(k, T=T, B=1)])
                assert buffer.total_samples <= 1000
                assert same_trajectory(buffer.trajectory(k), traj(k, T=T, B=1))
                if k in (99, 100):
                    assert (len(buffer), buffer.total_samples) == (100, 1000)
            assert (len(buffer), buffer.total_samples) == (5, 1000)
            with pytest.raises(LimitExceededError, match="1002 samples"):
                buffer.add_trajectories([traj(121, T=501, B=2)])
            assert (len(buffer), buffer.trajectory_counter) == (5, 121)
            assert set(address_of(buffer.sample(300))[0].tolist()) == set(range(116, 121))

    @pytest.mark.parametrize("kind", ["memory", "pt"])
    def test_bytes_are_bounded_likewise(self, kind: str, tmp_path: Path) -> None:
        limits = Limits(max_bytes=8_000)
        with open_buffer(kind, tmp_path, limits=limits, sample_window_size=0) as buffer:
            for n, T in enumerate([10] * 101 + [200] * 20):
                rewards = np.full((T, 1), float(n))
                buffer.add_trajectories([Trajectory(rewards=rewards)])
                assert buffer.get_stats()["size_bytes"] <= 8_000
                assert buffer.trajectory(n).rewards.tolist() == rewards.tolist()
                if n in (99, 100):
                    assert (len(buffer), buffer.get_stats()["size_bytes"]) == (100, 8_000)
            assert (len(buffer), buffer.get_stats()["size_bytes"]) == (5, 8_000)
            with pytest.raises(LimitExceededError, match="max_bytes is 8000"):
                buffer.add_trajectories([Trajectory(rewards=np.zeros((501, 2)))])
            assert (len(buffer), buffer.trajectory_counter) == (5, 121)
        if kind == "pt":
            assert trajectory_files(tmp_path / "store") == list(range(116, 121))

    @pytest.mark.parametrize("kind", ["pt", "pkl", "memmap"])
    def test_files_of_evicted_trajectories_are_removed(self, kind: str, tmp_path: Path) -> None:
        """RLinf never removed a file: thirty trajectories left thirty, for a window of two."""
        limits = Limits(max_trajectories=2)
        with open_buffer(kind, tmp_path, limits=limits, sample_window_size=2) as buffer:
            ids = buffer.add_trajectories([traj(k) for k in range(10)])
            for k in range(10, 30):
                ids += buffer.add_trajectories([traj(k)])
                if k % 7 == 0:
                    buffer.flush()
                    assert trajectory_files(tmp_path / "store") == [k - 1, k]
            assert ids == list(range(30))
            with pytest.raises(EvictedError) as raised:
                buffer.trajectory(27)
            assert raised.value.ids == (27,)
        assert trajectory_files(tmp_path / "store") == [28, 29]
        index = json.loads((tmp_path / "store" / "trajectory_index.json").read_text())
        assert list(index["trajectory_index"]) == ["28", "29"]
        with open_buffer(kind, tmp_path, if_exists="resume") as buffer:
            assert (len(buffer), buffer.trajectory_counter) == (2, 30)

    @pytest.mark.parametrize("kind", ["pt", "pkl", "memmap"])
    def test_without_limits_all_are_kept(self, kind: str, tmp_path: Path) -> None:
        with open_buffer(kind, tmp_path, sample_window_size=2) as buffer:
            buffer.add_trajectories([traj(k) for k in range(30)])
            buffer.flush()
            assert trajectory_files(tmp_path / "store") == list(range(30))
            assert len(buffer) == 30
        index = json.loads((tmp_path / "store" / "trajectory_index.json").read_text())
        assert list(index["trajectory_index"]) == [str(k) for k in range(30)]

    def test_an_evicted_trajectory_stays_readable_for_a_running_sample(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        limits = Limits(max_trajectories=1)
        with open_buffer("pkl", tmp_path, limits=limits, cache_size=0) as buffer:
            buffer.add_trajectories([traj(0)])
            buffer.flush()
            read_bytes = files.read_bytes

            def evict_first(path: Path) -> bytes:
                monkeypatch.setattr(files, "read_bytes", read_bytes)
                buffer.add_trajectories([traj(1)])
                buffer.flush()
                return read_bytes(path)

            monkeypatch.setattr(files, "read_bytes", evict_first)
            batch, info = buffer.sample(9, return_info=True)
            check_rows(batch, info, {0: 0})
            buffer.flush()
            assert trajectory_files(tmp_path / "store") == [1]


class TestPending:
    def test_what_waits_to_be_written_is_sampled_at_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """RLinf read a file that was not yet whole, and failed."""
        may_write = threading.Event()
        write_atomic = files.write_atomic

        def wait_first(path: Path, write: Callable[[BinaryIO], None], *, sync: bool) -> int:
            assert may_write.wait(600)
            return write_atomic(path, write, sync=sync)

        with open_buffer("pt", tmp_path, cache_size=1) as buffer:
            monkeypatch.setattr(files, "write_atomic", wait_first)
            buffer.add_trajectories([traj(k, T=30, B=3, wide=True) for k in range(6)])
            assert trajectory_files(tmp_path / "store") == []
            assert buffer.get_stats()["pending_trajectories"] == 6
            batch, info = buffer.sample(64, return_info=True)
            check_rows(batch, info, {k: k for k in range(6)})
            buffer.delete([2, 5])
            assert set(address_of(buffer.sample(64))[0].tolist()) == {0, 1, 3, 4}
            may_write.set()
            buffer.flush()
            assert trajectory_files(tmp_path / "store") == [0, 1, 3, 4]
            assert buffer.get_stats()["pending_bytes"] == 0

    def test_producers_wait_when_the_queue_is_full(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Queues without bound filled memory; this slow disk writes one trajectory when told to."""
        turns = threading.Semaphore(0)
        write_atomic = files.write_atomic

        def wait_first(path: Path, write: Callable[[BinaryIO], None], *, sync: bool) -> int:
            if path.suffix == ".pt":
                assert turns.acquire(timeout=600)
            return write_atomic(path, write, sync=sync)

        one = Trajectory(rewards=np.zeros((1000, 10)))  # 80,000 bytes
        limit = 400_000
        pending: list[float] = []
        is_full = threading.Event()
        wait_for_room = Writer.wait_for_room

        def note_first(self: Writer, size: int, most: int) -> None:
            if self.pending_bytes + size > most:
                is_full.set()
            wait_for_room(self, size, most)

        monkeypatch.setattr(Writer, "wait_for_room", note_first)
        with open_buffer("pt", tmp_path, limits=Limits(max_pending_bytes=limit)) as buffer:
            monkeypatch.setattr(files, "write_atomic", wait_first)

            def produce() -> None:
                for _ in range(30):
                    buffer.add_trajectories([one])
                    pending.append(buffer.get_stats()["pending_bytes"])

            producer = threading.Thread(target=produce)
            producer.start()
            assert is_full.wait(600)  # nothing was written yet, and no more has room
            turns.release(30)
            producer.join(600)
            buffer.flush()
            assert len(pending) == 30
            assert max(pending) == limit
            assert len(trajectory_files(tmp_path / "store")) == 30

    def test_without_a_bound_nothing_waits(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(self: Writer, size: int, most: int) -> None:
            raise AssertionError("it was asked to wait")

        monkeypatch.setattr(Writer, "wait_for_room", refuse)
        with open_buffer("pt", tmp_path, limits=Limits(max_pending_bytes=None)) as buffer:
            for k in range(3):
                buffer.add_trajectories([traj(k)])
            check_rows(buffer.sample(20))

    def test_one_larger_than_the_queue_is_taken_when_the_queue_is_empty(
        self, tmp_path: Path
    ) -> None:
        with open_buffer("pt", tmp_path, limits=Limits(max_pending_bytes=10)) as buffer:
            for k in range(3):
                buffer.add_trajectories([traj(k)])
            check_rows(buffer.sample(20))


class TestMemory:
    def test_memory_does_not_grow_with_what_is_on_disk(self, tmp_path: Path) -> None:
        """Stores on disk that kept all in memory too grew with each episode: arrays are counted."""
        one = Trajectory(rewards=np.zeros((100, 1000)))  # 0.8 MB
        with open_buffer("pt", tmp_path, cache_size=2, sample_window_size=0) as buffer:
            tracemalloc.start()
            try:
                held = []
                for _ in range(2):
                    for _ in range(15):
                        buffer.add_trajectories([one])
                    buffer.flush()
                    buffer.sample(200)
                    gc.collect()
                    held.append(tracemalloc.get_traced_memory()[0])
            finally:
                tracemalloc.stop()
            assert held[0] < 3 * 800_000
            assert held[1] - held[0] < 100_000
