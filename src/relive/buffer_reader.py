# SPDX-License-Identifier: Apache-2.0
"""The reading half of a buffer: sampling, looking up, counting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from relive.batches import BatchPlan, SampleInfo, TextForm, build_batch
from relive.buffer_state import BufferState
from relive.columns import Tree
from relive.draws import Draws
from relive.errors import (
    EmptyBufferError,
    InvalidArgumentError,
)
from relive.leases import Lease
from relive.memory import private_bytes
from relive.options import check_kind, checked_count, checked_time_limit
from relive.samplers import Draw
from relive.snapshot import restore
from relive.spec import Schema
from relive.store import Store
from relive.tensors import Framework
from relive.trajectory import Trajectory
from relive.window import evicted_rows

__all__ = ["BufferReader"]

_MOST_CHUNKS = (1 << 31) - 1
_MOST_PLANS = 64


class BufferReader:
    """Draws transitions from the trajectories of a store. Any thread may call any method.

    Not made by users: `TrajectoryReplayBuffer` is one that can also be added to.
    """

    def __init__(
        self, store: Store, draws: Draws, *, sample_window_size: int, framework: Framework
    ) -> None:
        self._store = store
        self._sample_window_size = sample_window_size
        self._draws = draws
        self._plans: dict[tuple[tuple[str, ...] | None, tuple[str, ...]], BatchPlan] = {}
        self._framework: Framework = framework

    @property
    def sample_window_size(self) -> int:
        """How many of the newest trajectories may be drawn; 0 = all.

        May be set at any time. Without a folder it is also how many are remembered, from the next
        addition on; what was forgotten does not come back.

        Raises:
            InvalidArgumentError: It was set to what is no integer of at least 0.
        """
        return self._sample_window_size

    @sample_window_size.setter
    def sample_window_size(self, size: int) -> None:
        size = checked_count("sample_window_size", size, 0)
        self._sample_window_size = self._store.remembered = size

    @property
    def seed(self) -> int:
        """The seed in use."""
        return self._draws.seed

    @overload
    def sample(
        self,
        num_chunks: int,
        *,
        return_info: Literal[False] = False,
        columns: Sequence[str] | None = None,
        text: TextForm = "strings",
    ) -> Tree: ...

    @overload
    def sample(
        self,
        num_chunks: int,
        *,
        return_info: Literal[True],
        columns: Sequence[str] | None = None,
        text: TextForm = "strings",
    ) -> tuple[Tree, SampleInfo]: ...

    def sample(
        self,
        num_chunks: int,
        *,
        return_info: bool = False,
        columns: Sequence[str] | None = None,
        text: TextForm = "strings",
    ) -> Tree | tuple[Tree, SampleInfo]:
        """Draw transitions from the window.

        Each trajectory drawn from is read at most once.

        Args:
            num_chunks: How many rows, at least 1. Exactly so many come, however few there are.
            return_info: Whether to return as well where the rows come from.
            columns: Full names, or names of whole dicts, to read only those; None for all.
            text: What text columns become: lists of strings, or int64 codes, whose strings are
                in `info.texts`.

        Returns:
            The trajectories' nested dict with each column as `[num_chunks, ...]`, in its stored
            dtype and in random order; and the `SampleInfo` if asked for. The caller owns the
            memory.

        Raises:
            InvalidArgumentError: An argument is out of range or unknown.
            EmptyBufferError: The window holds no row.
            ColumnMismatchError: There is no such column.
            UnsupportedValueError: NumPy has no type for a column.
            MissingFileError: The file of a trajectory is gone.
            ForkedError: This copy was forked amid a change, or while a load moved its files.
            StorageWriteError: The last load could not move its files into place.
            StorageError: The disk cannot read it.
            CorruptFileError: The file of a trajectory is damaged.
            TimeLimitError: A load, or `close`, did not end.
            ClosedError: The buffer is closed.
        """
        num_chunks = checked_count("num_chunks", num_chunks)
        if num_chunks > _MOST_CHUNKS:
            raise InvalidArgumentError(
                f"num_chunks is {num_chunks}, but must be at most {_MOST_CHUNKS}; draw more often"
            )
        if return_info is not False:  # a call less, as most say nothing
            check_kind("return_info", return_info, bool)
        if text not in ("strings", "codes") or (text == "codes" and not return_info):
            raise InvalidArgumentError(
                f"text is {text!r}, but must be 'strings', or 'codes' with return_info=True; codes "
                "need the tables in info.texts"
            )

        def read(lease: Lease) -> Tree | tuple[Tree, SampleInfo]:
            view = self._store.view(self._sample_window_size, lease)
            if not view.window.num_rows or view.schema is None:
                raise EmptyBufferError(
                    "the window has no row, but a draw needs one; call add_trajectories() first"
                )
            plan = self._plan(view.schema, columns, self._draws.sampler.needs)
            with self._store.lock:
                draw = self._draws.draw(view.window, num_chunks)
            rows, tables = self._store.gather(draw.located, plan)
            info = self._info(draw, tables) if return_info else None
            rows = self._draws.sampler.finish(rows, draw)
            batch = build_batch(rows, tables, plan, text)
            return batch if info is None else (batch, info)

        return self._store.leased(read)

    def _plan(
        self, schema: Schema, columns: Sequence[str] | None, needs: Sequence[str] = ()
    ) -> BatchPlan:
        """Return what batches of these columns are made of; the same as before if it still is."""
        is_named = columns is None or (
            isinstance(columns, (list, tuple)) and all(isinstance(name, str) for name in columns)
        )
        if not is_named:  # no key, and most likely refused
            return BatchPlan.of(schema, columns, needs, self._framework)
        key = None if columns is None else tuple(columns), tuple(needs)
        plan = self._plans.get(key)
        if plan is None or plan.schema is not schema:
            plan = BatchPlan.of(schema, columns, needs, self._framework)
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            self._plans[key] = plan
        return plan

    def _info(self, draw: Draw, tables: Mapping[str, Sequence[str]]) -> SampleInfo:
        located, num = draw.located, len(draw.located)
        num_envs, rows = located.window.num_envs[located.position], located.rows
        return SampleInfo(
            row_ids=draw.row_ids,
            trajectory_ids=located.window.trajectory_ids[located.position],
            steps=rows // num_envs,
            envs=rows % num_envs,
            weights=np.broadcast_to(np.asarray(draw.weights, np.float32), num).copy(),
            probabilities=np.broadcast_to(np.asarray(draw.probabilities, float), num).copy(),
            texts=tables,
        )

    def gather(
        self, row_ids: NDArray[np.int64] | Sequence[int], *, columns: Sequence[str] | None = None
    ) -> Tree:
        """Return rows by their ids, inside the window or not, as `sample` would.

        Args:
            row_ids: Such as `info.row_ids`, any number of at least 1, `[N]`.
            columns: As in `sample`.

        Raises:
            InvalidArgumentError: `row_ids` is not a list of integers.
            EvictedError: A row is no longer there.
            ColumnMismatchError: There is no such column.
            UnsupportedValueError: NumPy has no type for a column.
            MissingFileError: The file of a trajectory is gone.
            ForkedError: This copy was forked amid a change, or while a load moved its files.
            StorageWriteError: The last load could not move its files into place.
            StorageError: The disk cannot read it.
            CorruptFileError: The file of a trajectory is damaged.
            TimeLimitError: A load, or `close`, did not end.
            ClosedError: The buffer is closed.
        """
        self._store.check_open()
        ids = _as_array(row_ids)
        if ids.ndim != 1 or not ids.size or not _are_integers(ids):
            raise InvalidArgumentError(
                f"row_ids is {row_ids!r:.200}, but must be integers [N] with N of at least 1; give "
                "such as info.row_ids of sample(..., return_info=True)"
            )

        def read(lease: Lease) -> Tree:
            view = self._store.view(0, lease)
            if view.schema is None:
                raise evicted_rows(ids)
            if ids.dtype.kind != "i" and len(beyond := ids[~_are_in_int64(ids)]):
                raise evicted_rows(beyond)
            plan = self._plan(view.schema, columns)
            located = view.window.locate(ids.astype(np.int64))
            batch, tables = self._store.gather(located, plan)
            return build_batch(batch, tables, plan, "strings")

        return self._store.leased(read)

    def trajectory(self, trajectory_id: int) -> Trajectory:
        """Return one trajectory, bit-equal to what was added, T + E flag rows included.

        Raises:
            InvalidArgumentError: `trajectory_id` is no integer of at least 0.
            EvictedError: It is no longer there.
            MissingFileError: Its file is gone.
            ForkedError: This copy was forked amid a change, or while a load moved its files.
            StorageWriteError: The last load could not move its files into place.
            StorageError: The disk cannot read it.
            CorruptFileError: Its file is damaged.
            UnsupportedValueError: NumPy has no type for a column.
            TimeLimitError: A load, or `close`, did not end.
            ClosedError: The buffer is closed.
        """
        self._store.check_open()
        trajectory_id = checked_count("trajectory_id", trajectory_id, 0)
        return restore(self._store.read(trajectory_id), self._framework)

    def __len__(self) -> int:
        """Return `size`."""
        return self.size

    @property
    def size(self) -> int:
        """Trajectories added and loaded, less those evicted by limits or deleted.

        Without `auto_save` those that fell out of the window count too, though they can no
        longer be drawn.
        """
        return self._store.num_trajectories

    @property
    def total_samples(self) -> int:
        """Rows of the trajectories that `size` counts."""
        return self._store.num_rows

    @property
    def trajectory_counter(self) -> int:
        """The id that the next trajectory gets."""
        return self._store.index.numbering.next_trajectory_id

    def is_ready(self, min_size: int) -> bool:
        """Tell whether `size` is at least this many trajectories.

        Raises:
            InvalidArgumentError: `min_size` is no integer of at least 0.
        """
        return self.size >= checked_count("min_size", min_size, 0)

    async def is_ready_async(self, min_size: int, timeout_s: float | None = None) -> bool:
        """Tell whether `size` is at least this many trajectories, waiting for it if asked to.

        Args:
            min_size: In trajectories.
            timeout_s: How long to wait for it, in seconds; None answers at once.

        Raises:
            InvalidArgumentError: An argument is no number of at least 0.
            ClosedError: The buffer was closed before it got there.
        """
        limit_s = None if timeout_s is None else checked_time_limit("timeout_s", timeout_s)
        if limit_s is None or self.is_ready(min_size):
            return self.is_ready(min_size)
        store = self._store
        await store.listeners.wait_until(
            lambda: store.is_closed or self.is_ready(min_size), limit_s
        )
        if self.is_ready(min_size):
            return True
        store.check_open()
        return False

    def get_stats(self) -> dict[str, float]:
        """Return what the buffer holds and did, as flat floats.

        `num_trajectories`, `total_samples` and `cache_size` are RLinf's. Of the others,
        `sampleable_*` count what the window holds, `pending_*` what waits to be written,
        `size_bytes` the columns of all trajectories, `private_bytes` the memory of this process
        that no file backs (where the system tells it). A memmap store adds `segments`,
        `disk_bytes`, what they take on the disk, and `mapped_bytes`, what of that is mapped.

        Raises:
            StorageError: The disk refused.
        """
        with self._store.lock:
            window = self._store.index.window(self.sample_window_size)
            stats = {
                "num_trajectories": self.size,
                "total_samples": self.total_samples,
                "cache_size": self._store.num_in_memory,
                "sampleable_trajectories": len(window.trajectory_ids),
                "sampleable_samples": window.num_rows,
                "sampled_chunks": self._draws.num_drawn,
                "trajectory_counter": self.trajectory_counter,
                "size_bytes": self._store.index.size_bytes,
                "cache_bytes": self._store.cache_size_bytes,
                "pending_trajectories": self._store.num_pending,
                "pending_bytes": self._store.disk.writer.pending_bytes if self._store.disk else 0,
            }
        private = private_bytes()
        if private is not None:
            stats["private_bytes"] = private
        usage = {} if self._store.disk is None else self._store.disk.usage()
        return {name: float(value) for name, value in {**stats, **usage}.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return generator, sampler state and counters, as JSON values."""
        with self._store.lock:
            numbering = self._store.index.numbering
            return {
                **self._draws.state_dict(),
                "trajectory_counter": numbering.next_trajectory_id,
                "next_row_id": numbering.next_row_id,
            }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state: the next batch is the one that would have come.

        Counters only move forward. The state of another kind of sampler is left out, with a
        warning.

        Raises:
            CorruptFileError: It is no such state; nothing changed.
            FormatVersionError: A later release saved it; nothing changed.
            InvalidArgumentError: Its counters leave no id for another trajectory; nothing changed.
            ClosedError: The buffer is closed.
        """
        self._store.check_open()
        saved = BufferState.from_json(state)
        self._store.move_numbering(saved.next_trajectory_id, saved.next_row_id)  # may refuse
        with self._store.lock:
            self._draws.load(saved)
        if self._store.disk is not None:
            self._store.disk.note_state(self._store.index.numbering)


def _as_array(row_ids: Any) -> NDArray[Any]:
    try:
        ids = np.asarray(row_ids)
    except ValueError:
        return np.empty(0)  # of lists of several lengths
    # NumPy makes floats of integers that no one type of its holds.
    return np.asarray(row_ids, object) if ids.dtype.kind == "f" else ids


def _are_integers(ids: NDArray[Any]) -> bool:
    """Tell whether these are integers; beyond 64 bits NumPy holds them as objects of Python."""
    return ids.dtype.kind in "iu" or (ids.dtype == object and all(type(one) is int for one in ids))


def _are_in_int64(ids: NDArray[Any]) -> NDArray[np.bool_]:
    """Tell which integers are row ids at all; as int64 the others would be other ids."""
    bounds = np.iinfo(np.int64)
    return np.asarray((ids >= bounds.min) & (ids <= bounds.max), np.bool_)
