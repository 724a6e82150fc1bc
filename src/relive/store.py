# SPDX-License-Identifier: Apache-2.0
"""Trajectories in memory and on disk behind two verbs: put and gather.

A trajectory put into the store is in memory until the disk has it; after that its rows come
from the cache or from its file. A store without a folder keeps everything in memory.
"""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relive.cache import TrajectoryCache
from relive.disk import Disk
from relive.errors import TimeLimitError
from relive.format_set import FormatSet
from relive.formats.base import row_source
from relive.formats.checksum import checksums
from relive.formats.layouts import layout_of
from relive.gather import KeptRows, RowBatch, RowSource, Wanted
from relive.index import Index, Numbering, Window
from relive.index_file import IndexContents
from relive.leases import Leases, Retired
from relive.limits import Limits
from relive.record import Record
from relive.snapshot import TEXT, Snapshot
from relive.spec import Columns, Schema, admit
from relive.texts import merge_texts
from relive.writer import STALL_LIMIT_S

__all__ = ["Store", "View", "describe"]


@dataclass(frozen=True, slots=True)
class View:
    """A window whose rows stay readable while it is held."""

    window: Window
    """The trajectories."""
    schema: Schema | None
    """What each of them has; None when there was none yet."""


@dataclass(frozen=True, slots=True)
class _Resident:
    """A trajectory in memory because no file has it."""

    snapshot: Snapshot
    rows: RowSource


class Store:
    """The trajectories of one buffer. Any thread may call any method."""

    def __init__(
        self,
        *,
        disk: Disk | None,
        cache: TrajectoryCache,
        limits: Limits,
        remembered: int,
        declared: Columns,
        on_change: Callable[[Record, bool], None],
    ) -> None:
        """Go on with what the disk holds, or start empty.

        Args:
            disk: The opened folder; None keeps everything in memory.
            cache: For rows of trajectories that the disk has.
            limits: Retention and the bound of the write queue.
            remembered: Trajectories that a store without a disk remembers; 0 = all.
            declared: The user's declaration of columns.
            on_change: Called, under the lock, with each record added (True) or removed (False).
        """
        self.lock = threading.RLock()
        """Guards the index; held for moments only, never while anything is read or written."""
        self._adding = threading.RLock()  # one addition, deletion or load at a time
        self._disk = disk
        self._cache = cache
        self._limits = limits
        self._remembered = remembered
        self._declared = declared
        self._on_change = on_change
        self._resident: dict[int, _Resident] = {}
        self._leases: Leases[_Resident] = Leases()
        self.index = Index()
        """Records and numbering; look at it under the lock."""
        self.schema: Schema | None = None
        """What each trajectory has; None before the first."""
        self._listeners: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
        self.num_forgotten = 0
        """Trajectories that a store without a disk no longer remembers."""
        self.num_forgotten_rows = 0
        """Their rows."""
        self.changed = threading.Condition(self.lock)
        """Notified after each addition."""
        if disk is not None:
            self.index = Index(disk.contents.records.values(), disk.contents.numbering)
            self.schema = disk.contents.schema

    @property
    def disk(self) -> Disk | None:
        """The folder, or None."""
        return self._disk

    @property
    def num_resident(self) -> int:
        """Trajectories held in memory because no file has them."""
        return len(self._resident)

    def put(self, snapshots: Sequence[Snapshot]) -> list[int]:
        """Add trajectories: all of them or, when it raises, none.

        Returns:
            Their ids.

        Raises:
            ColumnMismatchError: One has other columns than hold here.
            LimitExceededError: One alone is larger than a limit.
            StorageWriteError: An earlier one could not be written.
            TimeLimitError: The write queue stayed full.
        """
        with self._adding:
            if self._disk is not None:
                self._disk.raise_failure_or_retry()
            schema, admitted = self.schema, []
            for snapshot in snapshots:
                schema, kept = admit(schema, self._declared, snapshot)
                self._limits.check_one(kept.num_rows, kept.size_bytes)
                admitted.append(kept)
            if self._disk is not None:
                size = sum(snapshot.size_bytes for snapshot in admitted)
                self._disk.wait_for_room(size, self._limits.max_pending_bytes)
            with self.lock:
                self.schema = schema
                ids = [self._add_one(snapshot) for snapshot in admitted]
                self._tell_listeners()
            return ids

    def _add_one(self, snapshot: Snapshot) -> int:
        numbering = self.index.numbering
        record = describe(snapshot, numbering)
        self.index.add(record)
        self.index.numbering = numbering.after(record.num_rows)
        self._keep(record, snapshot)
        if self._disk is not None:
            assert self.schema is not None
            self._disk.store(record, snapshot, self.schema, self._on_stored)
        self._on_change(record, True)
        self._retain()
        return record.trajectory_id

    def _keep(self, record: Record, snapshot: Snapshot) -> None:
        rows = KeptRows(row_source(snapshot))
        self._resident[record.trajectory_id] = _Resident(snapshot, rows)
        if self._disk is not None:
            self._cache.put(record.trajectory_id, rows)

    def _on_stored(self, record: Record) -> None:
        with self.lock:
            if record.trajectory_id in self.index:
                self.index.replace(record)
                self._resident.pop(record.trajectory_id, None)

    def _retain(self) -> None:
        """Let the oldest go until limits hold; a store without a disk forgets the rest."""
        limits = self._limits
        while len(self.index) > 1 and limits.exceeded(
            len(self.index), self.index.num_rows, self.index.size_bytes
        ):
            self._discard([self.index.oldest().trajectory_id])
        if self._disk is None and self._remembered:
            while len(self.index) > self._remembered:
                oldest = self.index.oldest()
                self.num_forgotten += 1
                self.num_forgotten_rows += oldest.num_rows
                self._discard([oldest.trajectory_id])

    def _discard(self, trajectory_ids: Iterable[int]) -> None:
        stored: list[tuple[Record, _Resident | None]] = []
        for record in self.index.remove(trajectory_ids):
            trajectory_id = record.trajectory_id
            resident = self._resident.pop(trajectory_id, None)
            self._cache.discard(trajectory_id)
            self._on_change(record, False)
            disk = self._disk
            if disk is None or (resident is not None and disk.cancel(trajectory_id)):
                self._leases.retire(Retired(record, resident, _nothing))
            else:
                stored.append((record, resident))
        if stored and self._disk is not None:
            ids = [record.trajectory_id for record, _ in stored]
            self._disk.forget(ids, self.index.numbering)
            for record, resident in stored:
                self._leases.retire(Retired(record, resident, _removal(self._disk, record)))

    def delete(self, trajectory_ids: Iterable[int]) -> None:
        """Take trajectories out for good.

        Raises:
            EvictedError: One of them is not there; nothing was deleted.
            StorageWriteError: An earlier one could not be written.
        """
        ids = list(trajectory_ids)
        with self._adding:
            if self._disk is not None:
                self._disk.raise_failure_or_retry()
            with self.lock:
                self._discard(ids)

    def clear(self) -> None:
        """Take all trajectories out. Ids and row ids go on where they were.

        Raises:
            StorageWriteError: An earlier one could not be written.
        """
        with self._adding:
            if self._disk is not None:
                self._disk.raise_failure_or_retry()
            with self.lock:
                self._discard([record.trajectory_id for record in self.index])
                self.num_forgotten = self.num_forgotten_rows = 0
                self.schema = None

    def cache(self, trajectory_id: int) -> None:
        """Read a trajectory into the cache."""
        self._cache.put(trajectory_id, KeptRows(row_source(self.read(trajectory_id))))

    @contextmanager
    def view(self, size: int) -> Iterator[View]:
        """Yield the newest trajectories, 0 = all, readable until the block ends."""
        with self.lock:
            lease = self._leases.begin()
            view = View(self.index.window(size), self.schema)
        try:
            yield view
        finally:
            with self.lock:
                self._leases.end(lease)
                self.changed.notify_all()

    def _find(self, trajectory_id: int) -> tuple[Record, _Resident | None]:
        """Return a record, and its rows while no file has them, retired ones included.

        Raises:
            EvictedError: It is not there.
        """
        with self.lock:
            retired = self._leases.find(trajectory_id)
            if retired is not None and trajectory_id not in self.index:
                return retired.record, retired.resident
            return self.index.get(trajectory_id), self._resident.get(trajectory_id)

    def read(self, trajectory_id: int) -> Snapshot:
        """Return a whole trajectory.

        Raises:
            EvictedError: It is not there.
            MissingFileError: Its file is not there.
            CorruptFileError: Its file is damaged.
        """
        with self.view(1):
            record, resident = self._find(trajectory_id)
            if resident is not None:
                return resident.snapshot
            assert self._disk is not None
            return self._disk.formats.of(record).read(self._disk.folder, record)

    def gather(
        self, view: View, row_ids: NDArray[np.int64], names: Sequence[str]
    ) -> tuple[dict[str, NDArray[Any]], dict[str, list[str]]]:
        """Copy rows into new arrays, in the order given, each trajectory read at most once.

        Args:
            view: Has all the rows; must still be held.
            row_ids: Which rows, `[N]`.
            names: Which columns; the schema has them all.

        Returns:
            Each column as `[N, ...]` in its storage type, text columns as codes; and the table
            of each text column.

        Raises:
            EvictedError: A row is not in the view.
            MissingFileError: A file is not there.
            CorruptFileError: A file is damaged.
        """
        assert view.schema is not None
        schema = view.schema
        specs = {name: schema.columns[name] for name in names}
        batch = RowBatch(len(row_ids), {n: (s.row_shape, s.storage) for n, s in specs.items()})
        wanted = self._fill(view.window, row_ids, batch)
        for name in specs.keys() & schema.defaults.keys():
            default = schema.defaults[name]
            stand_in = np.zeros((), np.int32) if isinstance(default, str) else default
            for one in wanted:
                if name not in one.record.layout:
                    batch.fill_default(one, name, stand_in)
        columns = batch.finish()
        tables = {
            name: merge_texts(name, columns[name], wanted, schema.defaults.get(name))
            for name, spec in specs.items()
            if spec.dtype == TEXT
        }
        return columns, tables

    def _fill(self, window: Window, row_ids: NDArray[np.int64], batch: RowBatch) -> list[Wanted]:
        """Fill a batch from memory, cache and files; return what each trajectory gave."""
        position, rows = window.locate(row_ids)
        order = np.argsort(position, kind="stable")
        rows, position = rows[order], position[order]
        starts = np.flatnonzero(np.diff(position, prepend=-1))
        all_wanted: list[Wanted] = []
        from_files: dict[str, list[Wanted]] = {}
        stops = [*starts[1:].tolist(), len(order)]
        ids = window.trajectory_ids[position[starts]].tolist()
        for trajectory_id, start, stop in zip(ids, starts.tolist(), stops, strict=True):
            record, resident = self._find(trajectory_id)
            wanted = Wanted(record, rows[start:stop], order[start:stop], start)
            all_wanted.append(wanted)
            source = resident.rows if resident else self._cache.get(trajectory_id)
            if source is not None:
                batch.fill(wanted, source)
            else:
                from_files.setdefault(record.format, []).append(wanted)
        for name, group in from_files.items():
            assert self._disk is not None
            self._disk.formats.named(name).gather(self._disk.folder, group, batch)
        return all_wanted

    @contextmanager
    def settled_view(self, size: int) -> Iterator[tuple[View, IndexContents]]:
        """Yield a view whose trajectories are all stored, and the index but for its records.

        Raises:
            StorageWriteError: Something could not be stored.
        """
        with ExitStack() as held:
            with self._adding:
                if self._disk is not None:
                    self._disk.flush(None)
                view = held.enter_context(self.view(size))
                contents = IndexContents(numbering=self.index.numbering, schema=view.schema)
            yield view, contents

    def write_to(self, folder: Path, window: Window, formats: FormatSet) -> list[Record]:
        """Write trajectories of a settled view into another folder, fsynced.

        Args:
            folder: Where to.
            window: Which.
            formats: Those of this store; its own is used for what no file has.

        Returns:
            Their records, oldest first.
        """
        records = []
        for trajectory_id in window.trajectory_ids.tolist():
            record, resident = self._find(trajectory_id)
            if resident is not None:
                digests = checksums(resident.snapshot, record.layout)
                summed = replace(record, checksums=digests)
                record = formats.own.write(folder, summed, resident.snapshot, sync=True)
            else:
                assert self._disk is not None
                formats.of(record).copy_to(self._disk.folder, record, folder, sync=True)
            records.append(record)
        return records

    def num_envs_of(self, trajectory_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return B of each trajectory of a view that is held, `[N]`."""
        distinct, places = np.unique(trajectory_ids, return_inverse=True)
        counts = [self._find(trajectory_id)[0].num_envs for trajectory_id in distinct.tolist()]
        return np.array(counts, np.int64)[places]

    async def wait_for_additions(self, is_enough: Callable[[], bool], timeout_s: float) -> bool:
        """Wait in an event loop until additions make something true, or the time is over."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while not is_enough():
            heard = asyncio.Event()
            listener = (loop, heard)
            with self.lock:
                self._listeners.append(listener)
            try:
                if is_enough():
                    break
                await asyncio.wait_for(heard.wait(), max(0.0, deadline - loop.time()))
            except asyncio.TimeoutError:
                return is_enough()
            finally:
                with self.lock, suppress(ValueError):
                    self._listeners.remove(listener)
        return True

    def _tell_listeners(self) -> None:
        self.changed.notify_all()
        for loop, heard in self._listeners:
            with suppress(RuntimeError):  # its loop has ended
                loop.call_soon_threadsafe(heard.set)

    def after_fork(self) -> None:
        """Become a forked child's copy: no thread of the parent will ever give a lock back."""
        self.lock = threading.RLock()
        self._adding = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self._leases = Leases()
        self._listeners.clear()
        self._cache.after_fork()
        if self._disk is not None:
            self._disk.formats.after_fork()

    def close(self) -> None:
        """Wait for readers, store everything and let go of the folder; twice is fine.

        Raises:
            StorageWriteError: Something could not be written; the store stays open.
            TimeLimitError: A reader did not end within `STALL_LIMIT_S`.
        """
        with self._adding:
            if self._disk is None:
                return
            self._disk.raise_failure_or_retry()
            with self.lock:
                if not self.changed.wait_for(lambda: not self._leases.num_held, STALL_LIMIT_S):
                    raise TimeLimitError(
                        f"waited {STALL_LIMIT_S:g} s for {self._leases.num_held} running reads to "
                        "end before closing; end the threads that sample"
                    )
            self._disk.close(self.index.numbering)

    def replace(
        self,
        records: Sequence[Record],
        snapshots: Mapping[int, Snapshot],
        numbering: Numbering,
        schema: Schema | None,
    ) -> None:
        """Let loaded trajectories take the place of the present ones.

        The caller holds `adding` and has brought the files to the disk.

        Args:
            records: All that the store holds afterwards, oldest first.
            snapshots: Those of them that are in memory: all in a store without a disk, those
                for the cache in one with.
            numbering: Ids of the next trajectory.
            schema: What each trajectory has.
        """
        with self.lock:
            stays = {record.trajectory_id: record.uuid for record in records}
            for record in list(self.index):
                if stays.get(record.trajectory_id) != record.uuid:
                    self._on_change(record, False)
                    resident = self._resident.get(record.trajectory_id)
                    self._leases.retire(Retired(record, resident, _nothing))
            before = {record.trajectory_id: record.uuid for record in self.index}
            self.index = Index(records, numbering)
            self.index.numbering = numbering
            self.schema = schema
            self._resident.clear()
            self._cache.clear()
            self.num_forgotten = self.num_forgotten_rows = 0
            for record in records:
                if before.get(record.trajectory_id) != record.uuid:
                    self._on_change(record, True)
                snapshot = snapshots.get(record.trajectory_id)
                if snapshot is not None:
                    rows = KeptRows(row_source(snapshot))
                    if self._disk is None:
                        self._resident[record.trajectory_id] = _Resident(snapshot, rows)
                    else:
                        self._cache.put(record.trajectory_id, rows)
            self._tell_listeners()

    @contextmanager
    def adding(self) -> Iterator[None]:
        """Keep all other threads from adding, deleting or loading until the block ends."""
        with self._adding:
            yield


def describe(snapshot: Snapshot, numbering: Numbering) -> Record:
    """Return the record of a trajectory that no file has yet.

    Args:
        snapshot: The trajectory.
        numbering: Its ids.
    """
    return Record(
        trajectory_id=numbering.next_trajectory_id,
        uuid=str(uuid.uuid4()),
        first_row_id=numbering.next_row_id,
        shape=snapshot.shape,
        num_epochs=snapshot.num_epochs,
        max_episode_length=snapshot.max_episode_length,
        model_weights_id=snapshot.model_weights_id,
        format="",
        layout=layout_of(snapshot),
        texts={
            name: (column.table, column.per_env)
            for name, column in snapshot.columns.items()
            if column.dtype == TEXT
        },
        run_lengths=snapshot.run_lengths(),
        version_range=snapshot.version_range(),
        added_at=time.time(),
    )


def _removal(disk: Disk, record: Record) -> Callable[[], None]:
    return lambda: disk.remove(record)


def _nothing() -> None:
    """Let go of a trajectory that memory alone held, or whose file was moved aside."""
