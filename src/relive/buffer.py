# SPDX-License-Identifier: Apache-2.0
"""`TrajectoryReplayBuffer`: trajectories on disk, sampled one transition at a time."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NoReturn, overload

import numpy as np
from numpy.typing import NDArray

from relive.batches import SampleInfo, TextForm, build_batch, choose_columns
from relive.cache import TrajectoryCache
from relive.checkpoint import check_apart, metadata_of, save_checkpoint
from relive.checkpoint_reading import read_checkpoint
from relive.columns import Tree
from relive.disk import Disk, Durability
from relive.errors import (
    ClosedError,
    CorruptFileError,
    EmptyBufferError,
    ForkedError,
    InvalidArgumentError,
    UnsupportedValueError,
)
from relive.folder import IfExists, open_folder
from relive.format_set import FormatSet
from relive.formats import Format
from relive.index_file import METADATA_NAME, IndexContents, read_metadata
from relive.lifetime import unwatch, watch
from relive.limits import Limits
from relive.options import check_count, check_options
from relive.randomness import (
    checked_seed,
    generator_from_json,
    generator_to_json,
    new_generator,
)
from relive.record import Record
from relive.restoring import numbering_after, restore_entries
from relive.samplers import Sampler, Uniform
from relive.sharding import shard_bounds
from relive.snapshot import restore, take_snapshot
from relive.spec import Columns, conform
from relive.store import Store, View
from relive.tensors import Framework
from relive.trajectory import Trajectory

__all__ = ["TrajectoryReplayBuffer"]


class TrajectoryReplayBuffer:
    """Trajectories on disk, sampled one transition at a time.

    A buffer owns one folder, or none. Its index lives in memory; rows come from the write
    queue or the cache when their trajectory is there, else from disk. Any thread may call any
    method; one process at a time may write. A forked copy can sample, on a stream of its own.

    Example:
        >>> import numpy as np
        >>> buffer = TrajectoryReplayBuffer(framework="numpy")
        >>> steps = np.arange(6.0).reshape(3, 2)  # [T, B]
        >>> buffer.add_trajectories([Trajectory(actions=steps, rewards=steps)])
        [0]
        >>> batch = buffer.sample(4)
        >>> batch["rewards"].shape, bool((batch["rewards"] == batch["actions"]).all())
        ((4,), True)
    """

    def __init__(
        self,
        seed: int | None = 1234,
        enable_cache: bool = True,
        cache_size: int = 5,
        sample_window_size: int = 100,
        auto_save: bool = False,
        auto_save_path: str | os.PathLike[str] = "",
        trajectory_format: str | Format = "pt",
        *,
        sampler: Sampler | None = None,
        columns: Columns | None = None,
        limits: Limits | None = None,
        durability: Durability = "process",
        if_exists: IfExists = "refuse",
        allow_pickle: bool = False,
        framework: Framework = "torch",
        stream: Sequence[int] = (),
        break_lock: bool = False,
    ) -> None:
        """Open a buffer.

        Args:
            seed: Of the buffer's own generator, 0 to 2**64 - 1; None draws one and stores it.
            enable_cache: Whether to keep the newest trajectories in memory. Without `auto_save`
                the trajectories are in memory in any case.
            cache_size: Trajectories in that cache, at least 0.
            sample_window_size: How many of the newest trajectories may be drawn; 0 = all.
                Without `auto_save` also how many are remembered.
            auto_save: Whether trajectories are stored in `auto_save_path` as they are added.
            auto_save_path: The folder; used with `auto_save` only.
            trajectory_format: Name of the format to write, "pt" or "pkl", or a format object.
            sampler: Decides which rows make a batch; default `samplers.Uniform()`.
            columns: The columns trajectories have; default those of the first one.
            limits: How much to hold; default no retention, and 1 GiB of write queue.
            durability: What a stored trajectory survives: "process", a killed process;
                "power", a power loss, at the price of an fsync a trajectory.
            if_exists: What to do with a store found in `auto_save_path`: "refuse", "resume" or
                "overwrite". The last removes only what the found index names.
            allow_pickle: Whether "pkl" files may hold more than tensors and plain containers.
            framework: What batches and trajectories are made of: "torch" or "numpy".
            stream: Integers of at least 0 mixed into the seed, such as rank and worker.
            break_lock: Whether to take over a lock whose writer, on another host, is known dead.

        Raises:
            InvalidArgumentError: An argument is out of range or unknown, or `auto_save` lacks a
                path.
            StoreExistsError: `auto_save_path` is a file, or holds what `if_exists` refuses.
            StoreLockedError: Another writer has the folder.
            StorageError: The folder cannot be made or written.
            CorruptFileError: The store found cannot be read.
            ColumnMismatchError: The store found does not fit `columns`.
        """
        check_options(
            sample_window_size=sample_window_size,
            auto_save=auto_save,
            auto_save_path=auto_save_path,
            framework=framework,
            stream=stream,
        )
        self.seed = checked_seed(seed)
        """The seed in use."""
        self.auto_save = auto_save
        """Whether trajectories are stored as they are added."""
        self.auto_save_path = os.fspath(auto_save_path) if auto_save else None
        """The folder, or None."""
        self.sample_window_size = sample_window_size
        """How many of the newest trajectories may be drawn; 0 = all."""
        self._framework: Framework = framework
        self._columns = columns or Columns()
        self._stream = tuple(stream)
        self._rng = new_generator(self.seed, self._stream)
        self._sampler = sampler or Uniform()
        self._draw_lock = threading.Lock()
        self._formats = FormatSet(trajectory_format, allow_pickle=allow_pickle)
        self.trajectory_format = self._formats.own.name
        """Name of the format of new trajectories."""
        self._cache = TrajectoryCache(
            cache_size if enable_cache else 0, max_bytes=(limits or Limits()).cache_bytes
        )
        self._num_drawn = 0
        self._is_closed = False
        self._process = os.getpid()
        disk = self._open_disk(if_exists, break_lock, durability) if auto_save else None
        self._store = Store(
            disk=disk,
            cache=self._cache,
            limits=limits or Limits(),
            remembered=sample_window_size,
            declared=self._columns,
            on_change=self._tell_sampler,
        )
        if disk is not None:
            self._go_on(disk)
        watch(self, close_at_exit=disk is not None)

    def _open_disk(self, if_exists: IfExists, break_lock: bool, durability: Durability) -> Disk:
        assert self.auto_save_path is not None
        folder = Path(self.auto_save_path).absolute()
        opened = open_folder(folder, self._formats, if_exists=if_exists, break_lock=break_lock)
        try:
            found = opened.found
            if found is not None and found.contents.schema is not None:
                found.contents.schema = conform(found.contents.schema, self._columns)
            self._resumed = found is not None
            self._resumed_cleanly = found is not None and found.is_closed
            return Disk(
                folder,
                opened,
                formats=self._formats,
                durability=durability,
                metadata=self._metadata,
            )
        except BaseException:
            opened.lock.release()
            raise

    def _go_on(self, disk: Disk) -> None:
        """Continue the draws of a store that was closed, or begin another stream after a kill."""
        if self._resumed_cleanly:
            ours = read_metadata(disk.folder / METADATA_NAME).get("relive", {})
            if ours.get("state"):
                self._load_draws(ours["state"])
        elif self._resumed:
            self._rng = new_generator(self.seed, (*self._stream, disk.contents.generation, 1))
        for record in (
            self._store.index.newest(self._cache.max_size) if self._cache.max_size else ()
        ):
            self._store.cache(record.trajectory_id)

    def add_trajectories(self, trajectories: Iterable[Trajectory]) -> list[int]:
        """Add trajectories: all of them or, when it raises, none.

        They are checked and copied before this returns; the caller may reuse his tensors. With
        `auto_save` they are written in the background, and can be sampled at once. Waits while
        more than `limits.max_pending_bytes` are queued.

        Args:
            trajectories: Any number, each `[T, B, ...]`.

        Returns:
            Their ids.

        Raises:
            UnsupportedValueError: A value that cannot be stored.
            ColumnMismatchError: Columns disagree with each other or with those stored.
            LimitExceededError: One alone is larger than a limit.
            StorageWriteError: An earlier trajectory could not be stored; told once.
            TimeLimitError: The write queue stayed full.
            ClosedError: The buffer is closed.
            ForkedError: This is a forked copy.
        """
        self._check_writable()
        if isinstance(trajectories, Trajectory):
            raise InvalidArgumentError(
                "trajectories is one Trajectory, but must be a list; put it in brackets"
            )
        return self._store.put([take_snapshot(trajectory) for trajectory in trajectories])

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
            CorruptFileError: The file of a trajectory is damaged.
            ClosedError: The buffer is closed.
        """
        self._check_open()
        check_count("num_chunks", num_chunks)
        if text not in ("strings", "codes") or (text == "codes" and not return_info):
            raise InvalidArgumentError(
                f"text is {text!r}, but must be 'strings', or 'codes' with return_info=True"
            )
        with self._store.view(self.sample_window_size) as view:
            if not view.window.num_rows or view.schema is None:
                raise EmptyBufferError("the window holds no row; call add_trajectories() first")
            names = choose_columns(view.schema, columns, self._framework)
            with self._draw_lock:
                draw = self._sampler.draw(view.window, num_chunks, self._rng)
                self._num_drawn += num_chunks
            batch, tables = self._store.gather(view, draw.row_ids, names)
            batch = self._sampler.finish(batch, draw)
            info = self._info(view, draw.row_ids, tables) if return_info else {}
        whole = build_batch(batch, tables, view.schema, self._framework, text)
        if not return_info:
            return whole
        return whole, SampleInfo(**info, weights=draw.weights, probabilities=draw.probabilities)

    def _info(
        self, view: View, row_ids: NDArray[np.int64], tables: Mapping[str, Sequence[str]]
    ) -> dict[str, Any]:
        position, rows = view.window.locate(row_ids)
        trajectory_ids = view.window.trajectory_ids[position]
        num_envs = self._store.num_envs_of(trajectory_ids)
        return {
            "row_ids": row_ids,
            "trajectory_ids": trajectory_ids,
            "steps": rows // num_envs,
            "envs": rows % num_envs,
            "texts": tables,
        }

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
            MissingFileError: The file of a trajectory is gone.
            CorruptFileError: The file of a trajectory is damaged.
            ClosedError: The buffer is closed.
        """
        self._check_open()
        ids = np.asarray(row_ids)
        if ids.ndim != 1 or not ids.size or ids.dtype.kind not in "iu":
            raise InvalidArgumentError(
                f"row_ids is {ids.dtype} {list(ids.shape)}, but must be integers [N] with N >= 1"
            )
        with self._store.view(0) as view:
            if view.schema is None:
                view.window.locate(ids.astype(np.int64))
                raise EmptyBufferError("the buffer holds no row; call add_trajectories() first")
            names = choose_columns(view.schema, columns, self._framework)
            batch, tables = self._store.gather(view, ids.astype(np.int64), names)
        return build_batch(batch, tables, view.schema, self._framework, "strings")

    def trajectory(self, trajectory_id: int) -> Trajectory:
        """Return one trajectory, bit-equal to what was added, T + E flag rows included.

        Raises:
            EvictedError: It is no longer there.
            MissingFileError: Its file is gone.
            CorruptFileError: Its file is damaged.
            UnsupportedValueError: NumPy has no type for a column.
            ClosedError: The buffer is closed.
        """
        self._check_open()
        return restore(self._store.read(trajectory_id), self._framework)

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything added so far is stored as `durability` says.

        Args:
            timeout_s: Time limit in seconds; None waits as long as something gets stored at
                least every 5 minutes.

        Raises:
            StorageWriteError: A trajectory could not be stored; it stays in memory, can be
                sampled, and is tried again by the next call.
            TimeLimitError: The time limit came first.
            ClosedError: The buffer is closed.
            ForkedError: This is a forked copy.
        """
        self._check_writable()
        if self._store.disk is not None:
            self._store.disk.raise_failure_or_retry()
            self._store.disk.flush(timeout_s)

    def delete(self, trajectory_ids: Iterable[int]) -> None:
        """Take trajectories out for good, files included.

        Raises:
            EvictedError: One of them is not there; nothing was deleted.
            StorageWriteError: An earlier trajectory could not be stored; told once.
            ClosedError: The buffer is closed.
            ForkedError: This is a forked copy.
        """
        self._check_writable()
        self._store.delete(trajectory_ids)

    def clear(self) -> None:
        """Take all trajectories out, files included. The next ids go on where they were.

        Raises:
            StorageWriteError: An earlier trajectory could not be stored; told once.
            ClosedError: The buffer is closed.
            ForkedError: This is a forked copy.
        """
        self._check_writable()
        self._store.clear()

    def clear_cache(self) -> None:
        """Empty the cache. Nothing is lost: what no file has is not in the cache alone."""
        self._cache.clear()

    def close(self) -> None:
        """Store everything, complete the JSON files and let go of the folder; twice is fine.

        Raises:
            StorageWriteError: Something could not be stored; the buffer stays open, so that it
                can be closed again once there is room.
            TimeLimitError: The writer, or a thread that samples, did not end.
        """
        if self._is_closed or os.getpid() != self._process:
            return
        self._store.close()
        self._is_closed = True
        unwatch(self)

    def __enter__(self) -> TrajectoryReplayBuffer:
        """Return the buffer itself, which is closed when the block ends."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the buffer."""
        self.close()

    def __len__(self) -> int:
        """Return `size`."""
        return self.size

    @property
    def size(self) -> int:
        """Trajectories added and loaded, less those evicted by limits or deleted.

        Without `auto_save` those that fell out of the window count too, though they can no
        longer be drawn.
        """
        return len(self._store.index) + self._store.num_forgotten

    @property
    def total_samples(self) -> int:
        """Rows of the trajectories that `size` counts."""
        return self._store.index.num_rows + self._store.num_forgotten_rows

    @property
    def trajectory_counter(self) -> int:
        """The id that the next trajectory gets."""
        return self._store.index.numbering.next_trajectory_id

    def is_ready(self, min_size: int) -> bool:
        """Tell whether `size` is at least this many trajectories."""
        return self.size >= min_size

    async def is_ready_async(self, min_size: int, timeout_s: float | None = None) -> bool:
        """Tell whether `size` is at least this many trajectories, waiting for it if asked to.

        Args:
            min_size: In trajectories.
            timeout_s: How long to wait for it, in seconds; None answers at once.
        """
        if timeout_s is None or self.is_ready(min_size):
            return self.is_ready(min_size)
        return await self._store.wait_for_additions(lambda: self.is_ready(min_size), timeout_s)

    def get_stats(self) -> dict[str, float]:
        """Return what the buffer holds and did, as flat floats.

        `num_trajectories`, `total_samples` and `cache_size` are RLinf's. Of the others,
        `sampleable_*` count what the window holds, `pending_*` what waits to be written,
        `size_bytes` the columns of all trajectories.
        """
        with self._store.view(self.sample_window_size) as view:
            stats = {
                "num_trajectories": self.size,
                "total_samples": self.total_samples,
                "cache_size": len(self._cache) if self.auto_save else self._store.num_resident,
                "sampleable_trajectories": len(view.window.trajectory_ids),
                "sampleable_samples": view.window.num_rows,
                "sampled_chunks": self._num_drawn,
                "trajectory_counter": self.trajectory_counter,
                "size_bytes": self._store.index.size_bytes,
                "cache_bytes": self._cache.size_bytes,
                "pending_trajectories": self._store.num_resident if self.auto_save else 0,
                "pending_bytes": self._store.disk.pending_bytes if self._store.disk else 0,
            }
        return {name: float(value) for name, value in stats.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return generator, sampler state and counters, as JSON values."""
        with self._draw_lock:
            return {
                "version": 1,
                "seed": self.seed,
                "stream": list(self._stream),
                "generator": generator_to_json(self._rng),
                "sampler": {
                    "name": self._sampler.name,
                    "state": dict(self._sampler.state_dict()),
                },
                "sampled_chunks": self._num_drawn,
                "trajectory_counter": self.trajectory_counter,
                "next_row_id": self._store.index.numbering.next_row_id,
            }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state: the next batch is the one that would have come.

        Counters only move forward. The state of another kind of sampler is left out, with a
        warning.

        Raises:
            CorruptFileError: It is no such state; nothing changed.
        """
        self._check_open()
        self._load_draws(state)
        numbering = self._store.index.numbering
        self._store.index.numbering = numbering.at_least(
            int(state.get("trajectory_counter", 0)), int(state.get("next_row_id", 0))
        )

    def _load_draws(self, state: Mapping[str, Any]) -> None:
        try:
            seed, stream = int(state["seed"]), tuple(int(n) for n in state["stream"])
            generator = generator_from_json(state["generator"])
            name, inner = state["sampler"]["name"], state["sampler"]["state"]
            num_drawn = int(state.get("sampled_chunks", 0))
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptFileError(
                f"a buffer's state is {state!r:.200}, but has no valid form"
            ) from error
        with self._draw_lock:
            self.seed, self._stream, self._rng = seed, stream, generator
            self._num_drawn = num_drawn
            if name == self._sampler.name:
                self._sampler.load_state_dict(inner)
        if name != self._sampler.name:
            warnings.warn(
                f"the saved state is of sampler {name!r}, so {self._sampler.name!r} starts anew",
                stacklevel=3,
            )

    def save_checkpoint(self, save_path: str | os.PathLike[str]) -> None:
        """Save the window and everything needed to go on from it. The buffer is unchanged.

        With `auto_save` the files of the window's trajectories are copied (blocks are shared
        where the file system can); without, everything still in memory is written. All of it
        survives a power loss once this returns. An older checkpoint at the same place is
        replaced in one step.

        Args:
            save_path: A folder of the checkpoint's own.

        Raises:
            InvalidArgumentError: It lies in the buffer's own folder, or the other way round.
            StoreExistsError: It holds something that is not a checkpoint.
            StorageWriteError: Something could not be written; an older checkpoint is as it was.
            TimeLimitError: The write queue did not empty.
            ClosedError: The buffer is closed.
            ForkedError: This is a forked copy.
        """
        self._check_writable()
        path, disk = Path(os.fspath(save_path)).absolute(), self._store.disk
        check_apart(path, disk.folder if disk else None)
        if disk is not None:
            disk.raise_failure_or_retry()
        with self._store.settled_view(self.sample_window_size) as (view, contents):
            state = self.state_dict()
            save_checkpoint(
                path,
                contents,
                lambda folder: self._store.write_to(folder, view.window, self._formats),
                lambda whole: self._metadata_of(whole, "checkpoint", state),
            )

    def load_checkpoint(
        self,
        load_path: str | os.PathLike[str],
        is_distributed: bool = False,
        local_rank: int = 0,
        world_size: int = 1,
    ) -> None:
        """Let the trajectories of a checkpoint take the place of what the buffer holds.

        With `auto_save` they are brought into its folder; those it has already stay, others
        leave the index and are moved to `aside/` in it. Without, the window is read into memory.
        Afterwards the checkpoint may be deleted. A full load goes on with the saved generator.

        Args:
            load_path: A checkpoint of ours or RLinf's, a store's folder, or a parent of
                `rank_*` folders of either.
            is_distributed: Whether to load only one rank's shard: the contiguous part of the
                list that `sharding.shard_bounds` gives. Draws then come from a stream of the
                rank's own, and new trajectories get ids that no other rank gives.
            local_rank: The rank, in `[0, world_size)`.
            world_size: Number of ranks.

        Raises:
            InvalidArgumentError: The rank is not in the world, or is given without
                `is_distributed`.
            MissingFileError: The folder, its index or a trajectory file is not there.
            CorruptFileError: A file is cut, damaged or another program's.
            ColumnMismatchError: The trajectories differ from each other or from `columns`.
            StorageError: The disk refused.
            ClosedError: The buffer is closed.
            ForkedError: This is a forked copy.
        """
        self._check_writable()
        if not is_distributed and (local_rank, world_size) != (0, 1):
            raise InvalidArgumentError(
                f"local_rank is {local_rank} and world_size {world_size}, but without "
                "is_distributed=True everything is loaded; set it, or leave them out"
            )
        path = Path(os.fspath(load_path)).absolute()
        checkpoint = read_checkpoint(path, self._formats)
        start, stop = shard_bounds(len(checkpoint.entries), local_rank, world_size)
        numbering = checkpoint.numbering
        if is_distributed:
            numbering = numbering.for_rank(local_rank, world_size)
        with self._store.adding():
            if self._store.disk is not None:
                self._store.disk.raise_failure_or_retry()
                self._store.disk.flush(None)
            numbering = numbering_after(numbering, self._store.index.numbering)
            restore_entries(
                self._store,
                self._formats,
                checkpoint.entries[start:stop],
                numbering=numbering,
                schema=checkpoint.schema,
                declared=self._columns,
                num_in_memory=self._cache.max_size if self.auto_save else self.sample_window_size,
            )
        if is_distributed:
            self._stream = (local_rank, world_size)
            # the counter keeps a later load from repeating the draws of this one
            stream = (*self._stream, checkpoint.numbering.next_trajectory_id)
            self._rng = new_generator(self.seed, stream)
        elif checkpoint.state is not None:
            self._load_draws(checkpoint.state)
        if stop == start:
            warnings.warn(
                f"rank {local_rank} of {world_size} loaded no trajectory: {str(path)!r} holds "
                f"{len(checkpoint.entries)}",
                stacklevel=2,
            )

    def _metadata(self, contents: IndexContents, is_closing: bool) -> dict[str, Any]:
        del is_closing
        return self._metadata_of(contents, "store", self.state_dict())

    def _metadata_of(
        self, contents: IndexContents, kind: str, state: Mapping[str, Any]
    ) -> dict[str, Any]:
        return metadata_of(
            contents,
            format_name=self.trajectory_format,
            seed=self.seed,
            kind=kind,
            state=state,
            sample_window_size=self.sample_window_size,
        )

    def _tell_sampler(self, record: Record, was_added: bool) -> None:
        with self._draw_lock:
            if was_added:
                self._sampler.on_add(record)
            else:
                self._sampler.on_remove(record)

    def after_fork(self) -> None:
        """Become a copy that can sample, on a stream of its own, and write nothing."""
        self._draw_lock = threading.Lock()
        self._rng = new_generator(self.seed, (*self._stream, os.getpid()))
        self._store.after_fork()

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled.

        Raises:
            UnsupportedValueError: Always: a buffer is its process's.
        """
        raise UnsupportedValueError(
            "a TrajectoryReplayBuffer was to be pickled, but it belongs to one process; send its "
            "path, or load a checkpoint there"
        )

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError("the buffer is closed; open another one")

    def _check_writable(self) -> None:
        self._check_open()
        if os.getpid() != self._process:
            raise ForkedError(
                f"this is a forked copy of the buffer of process {self._process}, but only that "
                "process may change it; send the trajectories there"
            )
