# SPDX-License-Identifier: Apache-2.0
"""The buffer against a plain list: whatever is done to it, it holds what the list holds."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from numpy.typing import NDArray

from relive import Limits, Trajectory, TrajectoryReplayBuffer
from relive.errors import ColumnMismatchError, EmptyBufferError, EvictedError
from trajectories import address_of, check_rows, same_trajectory, traj, trajectory_files


@dataclass(frozen=True)
class Entry:
    """What the list knows of one trajectory."""

    trajectory_id: int
    k: int
    T: int
    B: int
    E: int
    weights_id: str
    first_row_id: int

    @property
    def num_rows(self) -> int:
        return self.T * self.B

    def make(self) -> Trajectory:
        return traj(self.k, self.T, self.B, E=self.E, weights_id=self.weights_id)


@dataclass
class Listed:
    """The model: what a buffer holds."""

    entries: list[Entry] = field(default_factory=list)
    forgotten: int = 0
    forgotten_rows: int = 0
    next_id: int = 0
    next_row_id: int = 0

    def window(self, size: int) -> list[Entry]:
        return self.entries[-size:] if size else list(self.entries)


@dataclass(frozen=True)
class Saved:
    """A checkpoint, and what must come of it."""

    path: Path
    listed: Listed
    state: dict[str, Any]
    next_draw: NDArray[np.int64] | None


shapes = st.tuples(
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(0, 2),
    st.sampled_from(["", "w1", "a/b", "../up"]),
)


class BufferMachine(RuleBasedStateMachine):
    """Does to a buffer and to a list what a trainer, an operator and a restart do."""

    kind = "pt"

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.num_folders = 0
        self.num_made = 0
        self.saved: list[Saved] = []
        self.listed = Listed()
        self.told_row_ids: list[int] = []

    @initialize(
        cache_size=st.sampled_from([0, 1, 5]),
        window=st.integers(0, 4),
        limit=st.sampled_from([None, None, 2, 5]),
        rows=st.sampled_from([None, None, 15, 40]),
        seed=st.integers(0, 3),
    )
    def open(
        self, cache_size: int, window: int, limit: int | None, rows: int | None, seed: int
    ) -> None:
        self.options: dict[str, Any] = {
            "seed": seed,
            "cache_size": cache_size,
            "sample_window_size": window,
            "limits": Limits(max_trajectories=limit, max_samples=rows),
        }
        self.limits = (limit, rows)
        self.buffer = self.new_buffer(self.kind)

    def new_buffer(self, kind: str) -> TrajectoryReplayBuffer:
        self.kind = kind
        self.remembered = self.options["sample_window_size"] if kind == "memory" else 0
        if kind == "memory":
            return TrajectoryReplayBuffer(**self.options, trajectory_format="pkl")
        self.num_folders += 1
        self.folder = self.root / f"store {self.num_folders}"
        return TrajectoryReplayBuffer(
            **self.options,
            auto_save=True,
            auto_save_path=self.folder,
            trajectory_format=kind,
        )

    def teardown(self) -> None:
        if hasattr(self, "buffer"):
            self.buffer.close()
        shutil.rmtree(self.root)

    @rule(chosen=st.lists(shapes, min_size=1, max_size=3))
    def add(self, chosen: list[tuple[int, int, int, str]]) -> None:
        entries = []
        for T, B, E, weights_id in chosen:
            entry = Entry(
                self.listed.next_id,
                self.num_made,
                T,
                B,
                E if E and T % E == 0 else 0,
                weights_id,
                self.listed.next_row_id,
            )
            self.num_made += 1
            self.listed.next_id += 1
            self.listed.next_row_id += entry.num_rows
            entries.append(entry)
            self.listed.entries.append(entry)
            self.retain()
        ids = self.buffer.add_trajectories([entry.make() for entry in entries])
        assert ids == [entry.trajectory_id for entry in entries]

    def retain(self) -> None:
        listed, (limit, rows) = self.listed, self.limits
        while len(listed.entries) > 1 and (
            (limit is not None and len(listed.entries) > limit)
            or (rows is not None and sum(e.num_rows for e in listed.entries) > rows)
        ):
            del listed.entries[0]
        while self.remembered and len(listed.entries) > self.remembered:
            listed.forgotten += 1
            listed.forgotten_rows += listed.entries.pop(0).num_rows

    @rule(T=st.integers(1, 3))
    def add_what_is_refused(self, T: int) -> None:
        bad = traj(999, T)
        bad.rewards = np.zeros((T + 1, 3), np.float32)
        with pytest.raises(ColumnMismatchError):
            self.buffer.add_trajectories([traj(998), bad])

    @rule(num=st.integers(1, 20))
    def sample(self, num: int) -> None:
        window = self.listed.window(self.buffer.sample_window_size)
        if not window:
            with pytest.raises(EmptyBufferError):
                self.buffer.sample(num)
            return
        batch = self.buffer.sample(num)
        check_rows(batch)
        assert len(batch["rewards"]) == num
        assert set(address_of(batch)[0].tolist()) <= {entry.k for entry in window}

    @precondition(lambda self: self.listed.window(self.buffer.sample_window_size))
    @rule(num=st.integers(1, 20))
    def sample_with_info(self, num: int) -> None:
        window = self.listed.window(self.buffer.sample_window_size)
        batch, info = self.buffer.sample(num, return_info=True)
        check_rows(batch, info, {entry.trajectory_id: entry.k for entry in window})
        first = {entry.trajectory_id: (entry.first_row_id, entry.B) for entry in window}
        for n, trajectory_id in enumerate(info.trajectory_ids.tolist()):
            first_row_id, B = first[trajectory_id]
            assert info.row_ids[n] == first_row_id + info.steps[n] * B + info.envs[n]
        share = 1 / sum(entry.num_rows for entry in window)
        np.testing.assert_array_equal(info.probabilities, np.full(num, share))
        self.told_row_ids = [*self.told_row_ids, *info.row_ids.tolist()][-100:]

    @rule(picks=st.lists(st.integers(0, 99), min_size=1, max_size=10))
    def gather(self, picks: list[int]) -> None:
        here = {
            entry.first_row_id + row: 1_000_000 * entry.k + 1_000 * (row // entry.B) + row % entry.B
            for entry in self.listed.entries
            for row in range(entry.num_rows)
        }
        told = [row_id for row_id in self.told_row_ids if row_id in here]
        row_ids = [(told or list(here) or [0])[n % len(told or here or [0])] for n in picks]
        if not here:
            with pytest.raises(EvictedError):
                self.buffer.gather(row_ids)
            return
        batch = self.buffer.gather(row_ids)
        check_rows(batch)
        assert batch["curr_obs"]["id"].tolist() == [here[row_id] for row_id in row_ids]
        gone = [row_id for row_id in self.told_row_ids if row_id not in here]
        if gone:
            with pytest.raises(EvictedError):
                self.buffer.gather([*row_ids, gone[-1]])

    @rule(n=st.integers(0, 5))
    def look_up_one(self, n: int) -> None:
        if n < len(self.listed.entries):
            entry = self.listed.entries[n]
            assert same_trajectory(self.buffer.trajectory(entry.trajectory_id), entry.make())
        else:
            with pytest.raises(EvictedError):
                self.buffer.trajectory(self.listed.next_id + n)

    @rule(size=st.integers(0, 4))
    def change_the_window(self, size: int) -> None:
        self.buffer.sample_window_size = size
        self.options["sample_window_size"] = size
        if self.kind == "memory":
            self.remembered = size

    @precondition(lambda self: self.listed.entries)
    @rule(picks=st.lists(st.integers(0, 9), min_size=1, max_size=2))
    def delete(self, picks: list[int]) -> None:
        ids = {self.listed.entries[n % len(self.listed.entries)].trajectory_id for n in picks}
        with pytest.raises(EvictedError):
            self.buffer.delete([*ids, self.listed.next_id])
        self.buffer.delete(sorted(ids))
        self.listed.entries = [e for e in self.listed.entries if e.trajectory_id not in ids]

    @rule()
    def clear(self) -> None:
        self.buffer.clear()
        self.listed.entries.clear()
        self.listed.forgotten = self.listed.forgotten_rows = 0

    @rule()
    def clear_the_cache(self) -> None:
        self.buffer.clear_cache()

    @rule()
    def flush(self) -> None:
        self.buffer.flush()
        if self.kind != "memory":
            assert trajectory_files(self.folder) == sorted(
                entry.trajectory_id for entry in self.listed.entries
            )

    @rule()
    def save(self) -> None:
        self.num_folders += 1
        path = self.root / f"checkpoint {self.num_folders}"
        self.buffer.save_checkpoint(path)
        window = self.listed.window(self.buffer.sample_window_size)
        assert trajectory_files(path) == sorted(entry.trajectory_id for entry in window)
        state = self.buffer.state_dict()
        next_draw = None
        if window:
            next_draw = self.buffer.sample(7, return_info=True)[1].row_ids
        listed = replace(self.listed, entries=window, forgotten=0, forgotten_rows=0)
        self.saved.append(Saved(path, listed, state, next_draw))

    @precondition(lambda self: self.saved)
    @rule(n=st.integers(0, 9), into=st.sampled_from(["same", "same", "pt", "pkl", "memory"]))
    def load(self, n: int, into: str) -> None:
        saved = self.saved[n % len(self.saved)]
        before = self.listed
        if into != "same":
            self.buffer.close()
            self.buffer = self.new_buffer(into)
            before = Listed()
        entries = list(saved.listed.entries)
        kept = entries[-self.remembered :] if self.remembered else entries
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # how many were moved aside, or that nothing came
            self.buffer.load_checkpoint(saved.path)
        self.listed = Listed(
            kept,
            len(entries) - len(kept),
            sum(entry.num_rows for entry in entries) - sum(entry.num_rows for entry in kept),
            max(saved.listed.next_id, before.next_id),
            max(saved.listed.next_row_id, before.next_row_id),
        )
        self.told_row_ids.clear()  # other trajectories of other folders may have the same ids
        if into != "same":
            shutil.rmtree(saved.path)
            self.saved = [other for other in self.saved if other is not saved]
        assert self.buffer.state_dict()["generator"] == saved.state["generator"]
        size = self.buffer.sample_window_size
        if saved.next_draw is not None and self.listed.window(size) == saved.listed.entries:
            batch, info = self.buffer.sample(7, return_info=True)
            np.testing.assert_array_equal(info.row_ids, saved.next_draw)
            check_rows(batch, info, {entry.trajectory_id: entry.k for entry in entries})

    @precondition(lambda self: self.kind != "memory")
    @rule(kind=st.sampled_from(["pt", "pkl", "memmap"]))
    def close_and_resume(self, kind: str) -> None:
        state = self.buffer.state_dict()
        self.buffer.close()
        self.buffer.close()
        self.kind = kind
        self.buffer = TrajectoryReplayBuffer(
            **self.options,
            auto_save=True,
            auto_save_path=self.folder,
            trajectory_format=kind,
            if_exists="resume",
        )
        assert self.buffer.state_dict() == state

    @invariant()
    def counts_agree(self) -> None:
        if not hasattr(self, "buffer"):
            return
        listed = self.listed
        num_rows = sum(entry.num_rows for entry in listed.entries)
        assert len(self.buffer) == len(listed.entries) + listed.forgotten
        assert self.buffer.total_samples == num_rows + listed.forgotten_rows
        assert self.buffer.trajectory_counter == listed.next_id
        stats = self.buffer.get_stats()
        window = listed.window(self.buffer.sample_window_size)
        assert stats["sampleable_trajectories"] == len(window)
        assert stats["sampleable_samples"] == sum(entry.num_rows for entry in window)
        if self.kind != "memory":
            assert stats["cache_size"] <= self.options["cache_size"]


class TestBufferAgainstAList:
    @pytest.mark.parametrize("kind", ["pt", "pkl", "memory"])
    def test_it_holds_what_the_list_holds(self, kind: str) -> None:
        machine = type("Machine", (BufferMachine,), {"kind": kind})
        run_state_machine_as_test(
            machine, settings=settings(max_examples=12, stateful_step_count=25, deadline=None)
        )
