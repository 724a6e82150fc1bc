# SPDX-License-Identifier: Apache-2.0
"""`TrajectoryReplayBuffer`: trajectories on disk, sampled one transition at a time."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import NoneType, TracebackType
from typing import Any, NoReturn, TypeVar, get_args

from relive.buffer_reader import BufferReader
from relive.buffer_state import BufferState
from relive.cache import TrajectoryCache
from relive.checkpoint import (
    check_apart,
    metadata_of,
    save_checkpoint,
    write_trajectories,
)
from relive.checkpoint_contents import Checkpoint
from relive.checkpoint_loading import restore_entries
from relive.checkpoint_reading import read_checkpoint, rereading, warn_of_writers
from relive.disk import Disk, Durability
from relive.disk_errors import naming_disk_errors
from relive.draws import Draws
from relive.errors import (
    CorruptFileError,
    ForkedError,
    InvalidArgumentError,
    MissingFileError,
    StorageError,
    StorageWriteError,
    UnsupportedValueError,
)
from relive.folder import ASIDE_NAME, IfExists, OpenedFolder, open_folder
from relive.forking import Forking
from relive.format_set import FormatSet
from relive.formats import Format
from relive.formats.base import Progress, no_progress
from relive.index_file import METADATA_NAME, IndexContents, read_metadata
from relive.journal_replay import Replay
from relive.leases import Lease
from relive.lifetime import close_at_exit, leave_alone, watch_forks
from relive.limits import Limits
from relive.options import (
    check_choice,
    check_kind,
    checked_count,
    checked_list,
    checked_path,
    checked_stream,
    checked_time_limit,
    naming_item,
)
from relive.randomness import DEFAULT_SEED, checked_seed
from relive.samplers import Sampler, Uniform
from relive.sharding import shard_bounds
from relive.snapshot import take_snapshot
from relive.spec import Columns, conform
from relive.store import Store
from relive.tensors import Framework
from relive.trajectory import Trajectory
from relive.warning import warn

__all__ = ["TrajectoryReplayBuffer"]

_Buffer = TypeVar("_Buffer", bound="TrajectoryReplayBuffer")


class TrajectoryReplayBuffer(BufferReader):
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
        seed: int | None = DEFAULT_SEED,
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
            seed: Of the buffer's own generator, 0 to 2**64 - 1; None draws one and stores it. A
                store that is resumed keeps its own.
            enable_cache: Whether to keep the newest trajectories in memory. Without `auto_save`
                the trajectories are in memory in any case.
            cache_size: Trajectories in that cache, at least 0.
            sample_window_size: How many of the newest trajectories may be drawn; 0 = all.
                Without `auto_save` also how many are remembered.
            auto_save: Whether trajectories are stored in `auto_save_path` as they are added.
            auto_save_path: The folder; only with `auto_save`.
            trajectory_format: Name of the format to write, "pt", "pkl" or "memmap", or a format
                object.
            sampler: Decides which rows make a batch; default `samplers.Uniform()`.
            columns: The columns trajectories have; default those of the first one.
            limits: How much to hold; default no retention, and 1 GiB of write queue.
            durability: What a stored trajectory survives: "process", a killed process;
                "power", a power loss, at the price of an fsync a trajectory.
            if_exists: What to do with a store found in `auto_save_path`: "refuse", "resume" or
                "overwrite". The last removes only what the found index names. A closed store that
                is resumed draws on where it stopped, unless `stream` says otherwise.
            allow_pickle: Whether "pkl" files may hold more than tensors and plain containers.
            framework: What batches and trajectories are made of: "torch" or "numpy".
            stream: Integers of at least 0 mixed into the seed, such as rank and worker.
            break_lock: Whether to take over a lock whose writer, on another host, is known dead.

        Raises:
            InvalidArgumentError: An argument is out of range or unknown, `auto_save` lacks a path,
                or a path lacks `auto_save`.
            StoreExistsError: `auto_save_path` is a file, or holds what `if_exists` refuses.
            StoreLockedError: Another writer has the folder.
            StorageError: The folder cannot be made or written.
            CorruptFileError: The store found cannot be read.
            ColumnMismatchError: The store found does not fit `columns`.
        """
        sample_window_size = checked_count("sample_window_size", sample_window_size, 0)
        cache_size = checked_count("cache_size", cache_size, 0)
        check_choice("framework", framework, get_args(Framework))
        check_choice("durability", durability, get_args(Durability))
        check_choice("if_exists", if_exists, get_args(IfExists))
        check_kind("enable_cache", enable_cache, bool)
        check_kind("auto_save", auto_save, bool)
        check_kind("allow_pickle", allow_pickle, bool)
        check_kind("break_lock", break_lock, bool)
        check_kind("trajectory_format", trajectory_format, str, Format)
        check_kind("sampler", sampler, Sampler, NoneType)
        check_kind("columns", columns, Columns, NoneType)
        check_kind("limits", limits, Limits, NoneType)
        limits = limits or Limits()
        self.auto_save = auto_save
        """Whether trajectories are stored as they are added."""
        if auto_save_path and not auto_save:
            raise InvalidArgumentError(
                f"auto_save_path is {auto_save_path!r}, but without auto_save nothing is stored "
                "there; give auto_save=True, or leave the path out"
            )
        folder = checked_path("auto_save_path", auto_save_path) if auto_save else None
        self.auto_save_path = os.fspath(auto_save_path) if auto_save else None
        """The folder, or None."""
        self._columns = columns or Columns()
        self._process = os.getpid()
        self._formats = FormatSet(trajectory_format, allow_pickle=allow_pickle)
        self.trajectory_format = self._formats.own.name
        """Name of the format of new trajectories."""
        self._cache = TrajectoryCache(
            cache_size if enable_cache else 0, max_bytes=limits.cache_bytes
        )
        draws = Draws(sampler or Uniform(), checked_seed(seed), checked_stream(stream))
        opened = (
            None
            if folder is None
            else open_folder(folder, self._formats, if_exists=if_exists, break_lock=break_lock)
        )
        disk = None if opened is None else self._open_disk(opened, durability)
        try:
            store = Store(
                disk=disk,
                cache=self._cache,
                limits=limits,
                remembered=sample_window_size,
                declared=self._columns,
                on_add=draws.on_add,
                on_remove=draws.on_remove,
            )
        except BaseException:  # Ctrl+C among others: the folder must not stay locked
            if disk is not None:
                disk.abandon()
            raise
        super().__init__(store, draws, sample_window_size=sample_window_size, framework=framework)
        if disk is not None and opened is not None and opened.found is not None:
            try:
                self._go_on(disk, opened.found, seed)
            except BaseException:  # Ctrl+C among others: the folder must not stay locked
                disk.abandon()
                raise
        if disk is not None:
            # before the first trajectory: a killed store keeps its seed
            disk.note_state(store.index.numbering)
        self._forking = Forking(store, draws)
        watch_forks(self._forking)
        if disk is not None:
            close_at_exit(self)

    def _open_disk(self, opened: OpenedFolder, durability: Durability) -> Disk:
        try:
            found = opened.found
            if found is not None and found.contents.schema is not None:
                found.contents.schema = conform(found.contents.schema, self._columns)
            return Disk(
                opened, formats=self._formats, durability=durability, metadata=self._metadata
            )
        except BaseException:  # Ctrl+C among others: the folder must not stay locked
            opened.release()
            raise

    def _go_on(self, disk: Disk, found: Replay, given: int | None) -> None:
        """Continue the draws of a store that was closed, or begin another stream after a kill."""
        contents = disk.contents
        saved = None
        try:
            metadata = read_metadata(disk.folder / METADATA_NAME)
            saved = BufferState.from_json(metadata["relive"]["state"])
        except MissingFileError:
            if found.was_closed:  # else it was killed before it wrote one
                warn(f"the store's draws do not go on where they were: its {METADATA_NAME} is gone")
        except (CorruptFileError, StorageError, KeyError) as error:
            warn(f"the store's draws do not go on where they were: {error}")
        if saved is not None:
            if given not in (None, DEFAULT_SEED, saved.seed):
                warn(
                    f"seed is {given}, but the store goes on with its own, {saved.seed}; give "
                    "another stream= for other draws"
                )
            self._draws.seed = saved.seed
        # each opening makes the journal longer, so no two begin the same stream
        self._draws.begin_stream(self._draws.stream, contents.generation, contents.journal_bytes)
        if saved is not None and found.was_closed:
            self._draws.go_on_from(saved, contents.journal_bytes)
        try:
            self._store.fill_cache()
        except (CorruptFileError, StorageError) as error:
            warn(f"the cache could not be filled: {error}")

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
            InvalidArgumentError: It is no list of trajectories, or no id is left for them.
            UnsupportedValueError: A value that cannot be stored.
            ColumnMismatchError: Columns disagree with each other or with those stored.
            LimitExceededError: One alone is larger than a limit.
            StorageWriteError: An earlier trajectory could not be stored; told once.
            TimeLimitError: The write queue stayed full.
            ClosedError: The buffer is closed.
            ForkedError: This is a forked copy.
        """
        self._check_writable()
        given = checked_list("trajectories", trajectories, "trajectories")
        snapshots = []
        for place, trajectory in enumerate(given):
            with naming_item("trajectories", place, len(given)):
                snapshots.append(take_snapshot(trajectory))
        return self._store.put(snapshots)

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything added so far is stored as `durability` says.

        Args:
            timeout_s: Time limit in seconds; None waits as long as something gets stored at
                least every 5 minutes.

        Raises:
            InvalidArgumentError: `timeout_s` is no number of at least 0.
            StorageWriteError: A trajectory could not be stored; it stays in memory, can be
                sampled, and is tried again by the next call.
            TimeLimitError: The time limit came first.
            ClosedError: The buffer is closed.
            ForkedError: This is a forked copy.
        """
        self._check_writable()
        if timeout_s is not None:
            timeout_s = checked_time_limit("timeout_s", timeout_s)
        self._store.flush(timeout_s)

    def delete(self, trajectory_ids: Iterable[int]) -> None:
        """Take trajectories out for good, files included.

        Raises:
            InvalidArgumentError: It is no list of ids.
            EvictedError: One of them is not there; nothing was deleted.
            StorageWriteError: An earlier trajectory could not be stored; told once.
            ClosedError: The buffer is closed.
            ForkedError: This is a forked copy.
        """
        self._check_writable()
        ids = checked_list("trajectory_ids", trajectory_ids, "trajectory ids")
        self._store.delete([checked_count("a trajectory id", one, 0) for one in ids])

    def clear_cache(self) -> None:
        """Empty the cache. Nothing is lost: what no file has is not in the cache alone."""
        self._cache.clear()

    def clear(self) -> None:
        """Take all trajectories out, files included. The next ids go on where they were.

        Raises:
            StorageWriteError: An earlier trajectory could not be stored; told once.
            ClosedError: The buffer is closed.
            ForkedError: This is a forked copy.
        """
        self._check_writable()
        self._store.clear()

    def compact(self) -> int:
        """Rewrite what deletions left in segments, so that only what is held takes room.

        Ids, row ids and contents stay; others may sample and add meanwhile. Only memmap stores
        have segments; elsewhere each trajectory has a file, and there is nothing to do.

        Returns:
            How many bytes less the store takes on the disk; 0 if others added more meanwhile.

        Raises:
            MissingFileError: A segment is not there; the trajectories before were rewritten.
            CorruptFileError: A trajectory is damaged; likewise.
            StorageWriteError: The disk refused; likewise.
            TimeLimitError: The write queue did not empty; likewise.
            ClosedError: The buffer is closed.
            ForkedError: This is a forked copy.
        """
        self._check_writable()
        disk = self._store.disk
        if disk is None:
            return 0
        self.flush()
        before = disk.usage().get("disk_bytes", 0.0)
        what = f"{str(disk.folder)!r} could not be compacted further"
        with naming_disk_errors(StorageWriteError, disk.folder, what, "make room, then go on"):
            for together in self._store.wasteful():
                self._store.rewrite(together)
        self.flush()
        return max(0, int(before - disk.usage().get("disk_bytes", 0.0)))

    def close(self) -> None:
        """Store everything, complete the JSON files and let go of the folder; twice is fine.

        Raises:
            StorageWriteError: Something could not be stored; the buffer stays open, so that it
                can be closed again once there is room.
            TimeLimitError: The writer, or a thread that samples, did not end.
        """
        if self._store.is_closed or os.getpid() != self._process:
            return
        self._store.close()
        leave_alone(self)

    def __enter__(self: _Buffer) -> _Buffer:
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

    def save_checkpoint(
        self,
        save_path: str | os.PathLike[str],
        *,
        progress: Progress | None = None,
    ) -> None:
        """Save the window and everything needed to go on from it. The buffer is unchanged.

        With `auto_save` the files of the window's trajectories are copied (blocks are shared
        where the file system can), segments are linked, the newest of them perhaps copied;
        without, everything still in memory is written. All of it
        survives a power loss once this returns. An older checkpoint at the same place is
        replaced in one step.

        Args:
            save_path: A folder of the checkpoint's own.
            progress: Called, again and again, with the number of bytes copied since it was called
                last; what is linked or shared counts nothing.

        Raises:
            InvalidArgumentError: It lies in the buffer's own folder, or the other way round.
            StoreExistsError: It holds something that is not a checkpoint.
            MissingFileError: The file of a trajectory is gone; likewise.
            CorruptFileError: The file of a trajectory is cut; likewise.
            StorageWriteError: Something could not be written; an older checkpoint is as it was.
            TimeLimitError: The write queue did not empty.
            ClosedError: The buffer is closed.
            ForkedError: This is a forked copy.
        """
        self._check_writable()
        path, disk = checked_path("save_path", save_path), self._store.disk
        check_apart(path, disk.folder if disk else None)

        def save(lease: Lease) -> None:
            view, contents = self._store.settled_view(self.sample_window_size, lease)
            state = self.state_dict()
            save_checkpoint(
                path,
                contents,
                lambda folder: write_trajectories(
                    self._store, view, contents, folder, self._formats, progress or no_progress
                ),
                lambda whole: self._metadata_of(whole, "checkpoint", state),
            )

        self._store.leased(save)

    def load_checkpoint(
        self,
        load_path: str | os.PathLike[str],
        is_distributed: bool = False,
        local_rank: int = 0,
        world_size: int = 1,
        *,
        progress: Progress | None = None,
    ) -> None:
        """Let the trajectories of a checkpoint take the place of what the buffer holds.

        With `auto_save` they are brought into its folder; those it has already stay, others
        leave the index and are moved to `aside/` in it. Without, the window is read into memory.
        Afterwards the checkpoint may be deleted. A full load goes on with the saved generator,
        unless the buffer was given a `stream` and another stream's was saved: then with its own.

        Args:
            load_path: A checkpoint of ours or RLinf's, a store's folder, or a parent of
                `rank_*` folders of either.
            is_distributed: Whether to load only one rank's shard: the contiguous part of the
                list that `sharding.shard_bounds` gives. Draws then come from a stream of the
                rank's own, and new trajectories get ids that no other rank gives.
            local_rank: The rank, in `[0, world_size)`.
            world_size: Number of ranks.
            progress: As in `save_checkpoint`.

        Raises:
            InvalidArgumentError: The rank is not in the world, or is given without
                `is_distributed`.
            MissingFileError: The folder, its index or a trajectory file is not there.
            CorruptFileError: A file is cut, damaged or another program's.
            ColumnMismatchError: The trajectories differ from each other or from `columns`.
            StorageError: The disk refused.
            TimeLimitError: The write queue did not empty, or a thread that samples did not end.
            ClosedError: The buffer is closed.
            ForkedError: This is a forked copy.
        """
        self._check_writable()
        check_kind("is_distributed", is_distributed, bool)
        if not is_distributed and (local_rank, world_size) != (0, 1):
            raise InvalidArgumentError(
                f"local_rank is {local_rank} and world_size {world_size}, but without "
                "is_distributed=True everything is loaded; set it, or leave them out"
            )
        local_rank = checked_count("local_rank", local_rank, 0)
        world_size = checked_count("world_size", world_size)
        path = checked_path("load_path", load_path)
        with self._store.adding():
            self._store.flush()  # first, for the checkpoint may be the own folder
            rank = (local_rank, world_size) if is_distributed else None
            checkpoint, saved, num_loaded, num_aside = rereading(
                path, lambda: self._restore(path, rank, progress)
            )
        # the counter keeps a later load from repeating the draws of this one
        counter = checkpoint.numbering.next_trajectory_id
        with self._store.lock:
            if is_distributed and (world_size > 1 or saved is None):
                self._draws.begin_stream((local_rank, world_size), counter)
            elif saved is not None:
                self._draws.go_on_from(saved, counter)
        if self._store.disk is not None:
            self._store.disk.note_state(self._store.index.numbering)
        if num_aside:
            is_one = num_aside == 1
            warn(
                f"{num_aside} {'trajectory' if is_one else 'trajectories'} of the store that "
                f"{'was' if is_one else 'were'} not loaded left the index; "
                f"{'its' if is_one else 'their'} files were moved to {ASIDE_NAME!r} in its folder"
            )
        if not num_loaded:
            warn(
                f"rank {local_rank} of {world_size} loaded no trajectory: {str(path)!r} holds "
                f"{len(checkpoint.entries)}"
            )

    def _restore(
        self,
        path: Path,
        rank: tuple[int, int] | None,
        progress: Progress | None,
    ) -> tuple[Checkpoint, BufferState | None, int, int]:
        """Let a checkpoint, or a rank's shard of it, take the place of what the store holds.

        Returns:
            The checkpoint; the buffer's state in it; how many trajectories were loaded; how many
            left the index for them.
        """
        checkpoint = read_checkpoint(path, self._formats)
        warn_of_writers(path, None if self._store.disk is None else self._store.disk.folder)
        saved = None if checkpoint.state is None else BufferState.from_json(checkpoint.state)
        start, stop = shard_bounds(len(checkpoint.entries), *(rank or (0, 1)))
        entries, numbering = checkpoint.entries[start:stop], checkpoint.numbering
        window = self.sample_window_size or len(entries)
        if rank is not None:
            numbering = numbering.for_rank(*rank)
        cached = self._cache.max_size if self._formats.own.needs_cache else 0
        num_aside = restore_entries(
            self._store,
            self._formats,
            entries,
            numbering=numbering.not_before(self._store.index.numbering),
            schema=checkpoint.schema,
            declared=self._columns,
            num_in_memory=min(len(entries), cached if self.auto_save else window),
            progress=progress or no_progress,
        )
        return checkpoint, saved, len(entries), num_aside

    def _metadata(self, contents: IndexContents) -> dict[str, Any]:
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

    def __repr__(self) -> str:
        """Return what it holds, and where."""
        state = "closed, " if self._store.is_closed else ""
        where = f" in {self.auto_save_path!r}" if self.auto_save else ""
        return (
            f"<{type(self).__name__}{where}: {state}{self.trajectory_format}, {self.size} "
            f"trajectories, {self.total_samples} rows>"
        )

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled.

        Raises:
            UnsupportedValueError: Always: a buffer is its process's.
        """
        raise UnsupportedValueError(
            "a TrajectoryReplayBuffer was to be pickled, but it belongs to one process; send its "
            "path, or load a checkpoint there"
        )

    def _check_writable(self) -> None:
        self._store.check_open()
        if os.getpid() != self._process:
            raise ForkedError(
                f"this is a forked copy of the buffer of process {self._process}, but only that "
                "process may change it; send the trajectories there"
            )
