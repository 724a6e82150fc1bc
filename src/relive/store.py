# SPDX-License-Identifier: Apache-2.0
"""Trajectories in memory and on disk behind two verbs: put and gather.

A trajectory put into the store is in memory until the disk has it; after that its rows come
from the cache or from its file. A store without a folder keeps everything in memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relive.cache import TrajectoryCache
from relive.describe import describe
from relive.disk import Disk
from relive.errors import TimeLimitError
from relive.formats.base import row_source
from relive.gather import KeptRows, RowSource
from relive.index import Index, Numbering, Window
from relive.index_file import IndexContents
from relive.leases import Leases, Retired
from relive.limits import Limits
from relive.listeners import Listeners
from relive.record import Record
from relive.row_reading import read_rows
from relive.snapshot import Snapshot
from relive.spec import Columns, Schema, admit
from relive.writer import STALL_LIMIT_S

__all__ = ["Resident", "Store", "View"]


@dataclass(frozen=True, slots=True)
class View:
    """A window whose rows stay readable while it is held."""

    window: Window
    """The trajectories."""
    schema: Schema | None
    """What each of them has; None when there was none yet."""


@dataclass(frozen=True, slots=True)
class Resident:
    """A trajectory in memory because no file has it."""

    snapshot: Snapshot
    """The trajectory."""
    rows: RowSource
    """Its columns as rows."""


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
        self.remembered = remembered
        """Trajectories that a store without a disk remembers from the next addition on; 0 = all."""
        self._declared = declared
        self._on_change = on_change
        self._resident: dict[int, Resident] = {}
        self._leases: Leases[Resident] = Leases()
        self._is_replacing = False
        self.index = Index()
        """Records and numbering; look at it under the lock."""
        self.schema: Schema | None = None
        """What each trajectory has; None before the first."""
        self.listeners = Listeners()
        """Tasks that wait for additions."""
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
    def num_pending(self) -> int:
        """Trajectories that are to be written and are not yet."""
        return 0 if self._disk is None else len(self._resident)

    @property
    def num_in_memory(self) -> int:
        """Trajectories in the cache, or in memory when there is no disk."""
        return len(self._resident) if self._disk is None else len(self._cache)

    @property
    def cache_size_bytes(self) -> int:
        """Bytes of columns in the cache."""
        return self._cache.size_bytes

    def move_numbering(self, next_trajectory_id: int, next_row_id: int) -> None:
        """Let the next ids be at least these, in the steps of a rank."""
        with self._adding, self.lock:
            least = Numbering(next_trajectory_id, next_row_id=next_row_id)
            self.index.numbering = self.index.numbering.not_before(least)

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
        self._resident[record.trajectory_id] = Resident(snapshot, rows)
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
        while self._disk is None and self._remembers_too_much():
            oldest = self.index.oldest()
            self.num_forgotten += 1
            self.num_forgotten_rows += oldest.num_rows
            self._discard([oldest.trajectory_id])

    def _remembers_too_much(self) -> bool:
        """Tell whether a store without a disk is to forget its oldest trajectory."""
        num, most_bytes = len(self.index), self._limits.cache_bytes
        is_too_large = most_bytes is not None and self.index.size_bytes > most_bytes
        return num > 1 and (is_too_large or 0 < self.remembered < num)

    def _discard(self, trajectory_ids: Iterable[int]) -> None:
        stored: list[tuple[Record, Resident | None]] = []
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
            self._disk.forget(ids, self.index.numbering, self.schema)
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
                if self._disk is not None:
                    self._disk.forget([], self.index.numbering, None)

    def fill_cache(self) -> None:
        """Read the newest trajectories into the cache, those that are not there.

        Raises:
            MissingFileError: A file is not there.
            CorruptFileError: A file is damaged.
        """
        newest = self.index.newest(self._cache.max_size) if self._cache.max_size else []
        for record in newest:
            if record.trajectory_id not in self._cache:
                rows = KeptRows(row_source(self.read(record.trajectory_id)))
                self._cache.put(record.trajectory_id, rows)

    @contextmanager
    def view(self, size: int) -> Iterator[View]:
        """Yield the newest trajectories, 0 = all, readable until the block ends."""
        with self.lock:
            self._wait_for(lambda: not self._is_replacing, "a load to end")
            lease = self._leases.begin()
            view = View(self.index.window(size), self.schema)
        try:
            yield view
        finally:
            with self.lock:
                self._leases.end(lease)
                self.changed.notify_all()

    def find(self, trajectory_id: int) -> tuple[Record, Resident | None]:
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
            record, resident = self.find(trajectory_id)
            if resident is not None:
                return resident.snapshot
            assert self._disk is not None
            return self._disk.formats.of(record).read(self._disk.folder, record)

    def gather(
        self, view: View, row_ids: NDArray[np.int64], names: Sequence[str]
    ) -> tuple[dict[str, NDArray[Any]], dict[str, list[str]]]:
        """Copy rows of a view that is held, as `read_rows` does."""
        assert view.schema is not None
        return read_rows(
            row_ids, names, view.window, view.schema, find=self._find_rows, disk=self._disk
        )

    def _find_rows(self, trajectory_id: int) -> tuple[Record, RowSource | None]:
        record, resident = self.find(trajectory_id)
        return record, resident.rows if resident else self._cache.get(trajectory_id)

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

    def _tell_listeners(self) -> None:
        self.changed.notify_all()
        self.listeners.tell()

    def after_fork(self) -> None:
        """Become a forked child's copy: no thread of the parent will ever give a lock back."""
        self.lock = threading.RLock()
        self._adding = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self._leases = Leases()
        self.listeners = Listeners()
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
                self._wait_for_readers()
            self._disk.close(self.index.numbering)

    def _wait_for_readers(self) -> None:
        self._wait_for(lambda: not self._leases.num_held, "all running reads to end")

    def _wait_for(self, is_true: Callable[[], bool], what: str) -> None:
        if not self.changed.wait_for(is_true, STALL_LIMIT_S):
            raise TimeLimitError(
                f"waited {STALL_LIMIT_S:g} s for {what}, but it goes on; look at the threads that "
                "use this buffer"
            )

    @contextmanager
    def replacing(self) -> Iterator[None]:
        """Keep all other threads from reading until the block ends; the caller holds `adding`.

        Readers take a trajectory for that of its id, and a load may bring another one of that id.

        Raises:
            TimeLimitError: A reader did not end within `STALL_LIMIT_S`.
        """
        with self.lock:
            self._is_replacing = True
        try:
            with self.lock:
                self._wait_for_readers()
            yield
        finally:
            with self.lock:
                self._is_replacing = False
                self.changed.notify_all()

    def replace(
        self,
        records: Sequence[Record],
        snapshots: Mapping[int, Snapshot],
        numbering: Numbering,
        schema: Schema | None,
    ) -> None:
        """Let loaded trajectories take the place of the present ones.

        The caller is inside `adding` and `replacing`.

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
                        self._resident[record.trajectory_id] = Resident(snapshot, rows)
                    else:
                        self._cache.put(record.trajectory_id, rows)
            self._retain()
            self._tell_listeners()

    @contextmanager
    def adding(self) -> Iterator[None]:
        """Keep all other threads from adding, deleting or loading until the block ends."""
        with self._adding:
            yield


def _removal(disk: Disk, record: Record) -> Callable[[], None]:
    return lambda: disk.remove(record)


def _nothing() -> None:
    """Let go of a trajectory that memory alone held."""
