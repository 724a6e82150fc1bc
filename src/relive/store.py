# SPDX-License-Identifier: Apache-2.0
"""Trajectories in memory and on disk behind two verbs: put and gather; here all that changes them.

A trajectory put into the store is in memory until the disk has it; after that its rows come
from the cache or from its file. A store without a folder keeps everything in memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from threading import get_ident

from relive.cache import TrajectoryCache
from relive.describe import describe
from relive.disk import Disk
from relive.errors import TimeLimitError
from relive.index import Index
from relive.index_file import IndexContents
from relive.leases import Lease, Retired
from relive.limits import Limits
from relive.listeners import Listeners
from relive.numbering import Numbering
from relive.options import naming_item
from relive.record import Record
from relive.snapshot import Snapshot
from relive.spec import Columns, Schema, admit
from relive.store_reader import StoreReader, View

__all__ = ["Store"]


class Store(StoreReader):
    """The trajectories of one buffer, to be read and changed. Any thread may call any method."""

    def __init__(
        self,
        *,
        disk: Disk | None,
        cache: TrajectoryCache,
        limits: Limits,
        remembered: int,
        declared: Columns,
        on_add: Callable[[Record], None],
        on_remove: Callable[[Record], None],
    ) -> None:
        """Go on with what the disk holds, or start empty.

        Args:
            disk: The opened folder; None keeps everything in memory.
            cache: For rows of trajectories that the disk has.
            limits: Retention and the bound of the write queue.
            remembered: Trajectories that a store without a disk remembers; 0 = all.
            declared: The user's declaration of columns.
            on_add: Called, under the lock, with each record added; must not raise.
            on_remove: Likewise with each one removed.

        Raises:
            StorageError: The disk refused.
            CorruptFileError: A file is cut or damaged.
        """
        super().__init__(disk=disk, cache=cache)
        self._adding = threading.RLock()  # one addition, deletion or load at a time
        self._limits = limits
        self.remembered = remembered
        """Trajectories that a store without a disk remembers from the next addition on; 0 = all."""
        self._declared = declared
        self._on_add = on_add
        self._on_remove = on_remove
        self.listeners = Listeners()
        """Tasks that wait for additions."""
        self._num_forgotten = 0
        self._num_forgotten_rows = 0
        if disk is not None:
            disk.formats.take_up(disk.folder, self.index, limits)

    @property
    def num_trajectories(self) -> int:
        """Trajectories held, and those that a store without a disk no longer remembers."""
        with self.lock:
            return len(self.index) + self._num_forgotten

    @property
    def num_rows(self) -> int:
        """Rows of the trajectories that `num_trajectories` counts."""
        with self.lock:
            return self.index.num_rows + self._num_forgotten_rows

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
            UnsupportedValueError: The format cannot store one.
            InvalidArgumentError: No id is left.
            StorageWriteError: An earlier one could not be written.
            TimeLimitError: The write queue stayed full.
            ClosedError: The store is closed.
        """
        with self._adding:
            self._check_changeable()
            schema, admitted = self.schema, []
            for place, snapshot in enumerate(snapshots):
                with naming_item("trajectories", place, len(snapshots)):
                    schema, kept = admit(schema, self._declared, snapshot)
                    self._limits.check_one(kept.num_rows, kept.size_bytes)
                    if self.disk is not None:
                        self.disk.formats.own.check(kept)
                admitted.append(kept)
            most = self._limits.max_pending_bytes
            if self.disk is not None and most is not None:
                added_bytes = sum(snapshot.size_bytes for snapshot in admitted)
                self.disk.writer.wait_for_room(added_bytes, most)
            self.index.make_room(len(admitted), self.lock)
            with self.lock:
                records, numbering = self._number(admitted)  # last to raise; nothing changed yet
                self.schema = schema
                for record, snapshot in zip(records, admitted, strict=True):
                    self._add_one(record, snapshot)
                self.index.numbering = numbering
                self.listeners.tell()
            return [record.trajectory_id for record in records]

    def _check_changeable(self) -> None:
        """Refuse to change a closed store, and tell what an earlier change met.

        Raises:
            StorageWriteError: An earlier one could not be written.
            ClosedError: The store is closed.
        """
        self.check_open()
        if self.disk is not None:
            self.disk.writer.raise_failure_or_retry()

    def _add_one(self, record: Record, snapshot: Snapshot) -> None:
        self.index.add(record)
        self._hold(record, snapshot, has_file=False)
        if self.disk is not None:
            assert self.schema is not None, "put sets it first"
            self.disk.store(record, snapshot, self.schema, self._on_stored)
        self._on_add(record)
        self._retain()

    def _number(self, snapshots: Sequence[Snapshot]) -> tuple[list[Record], Numbering]:
        """Return the records of new trajectories, and the numbering after them."""
        numbering, records = self.index.numbering, []
        for snapshot in snapshots:
            records.append(describe(snapshot, numbering))
            numbering = numbering.after(snapshot.num_rows)
        return records, numbering

    def _on_stored(self, record: Record) -> None:
        with self.lock:
            if record.trajectory_id in self.index:
                self.index.replace(record)
                self._resident.pop(record.trajectory_id, None)

    def wasteful(self) -> list[list[int]]:
        """Tell which trajectories to write anew, as `PlacedFormat.wasteful` does."""
        disk = self.disk
        assert disk is not None, "without a disk nothing is stored"
        with self._adding:
            self.flush()  # what is being written has no place in the window yet
            with self.lock:
                window = self.index.window(0)
            return disk.formats.wasteful(disk.folder, window)

    def rewrite(self, trajectory_ids: Iterable[int]) -> None:
        """Write trajectories anew, those that are still there; others may add between two.

        What they took before goes when nobody reads it, but not before the new is on the disk.

        Raises:
            MissingFileError: A file is not there; those before it were rewritten.
            CorruptFileError: A file is damaged; likewise.
            StorageWriteError: The disk refused; likewise.
            OSError: Likewise.
            ClosedError: The store was closed meanwhile.
        """
        disk = self.disk
        assert disk is not None, "without a disk nothing is stored"

        def on_moved(record: Record) -> None:
            with self.lock:
                if record.trajectory_id in self.index:
                    self.index.replace(record)

        def on_synced(before: Record) -> None:
            with self.lock:
                self._leases.retire(Retired(before, None, partial(disk.remove_replaced, before)))

        for trajectory_id in trajectory_ids:
            with self.adding():  # no load may move files meanwhile
                disk.rewrite(trajectory_id, on_moved, on_synced)
        with self.adding():
            disk.sync_now()

    def _retain(self) -> None:
        """Let the oldest go until limits hold; a store without a disk forgets the rest."""
        limits = self._limits
        while len(self.index) > 1 and limits.exceeded(
            len(self.index), self.index.num_rows, self.index.size_bytes
        ):
            self._discard([self.index.oldest().trajectory_id])
        while self.disk is None and self._remembers_too_much():
            oldest = self.index.oldest()
            self._discard([oldest.trajectory_id])
            self._num_forgotten += 1
            self._num_forgotten_rows += oldest.num_rows

    def count_forgotten(self, num_trajectories: int, num_rows: int) -> None:
        """Count trajectories that a checkpoint had and this store does not remember."""
        with self.lock:
            self._num_forgotten += num_trajectories
            self._num_forgotten_rows += num_rows

    def _remembers_too_much(self) -> bool:
        """Tell whether a store without a disk is to forget its oldest trajectory."""
        num, most_bytes = len(self.index), self._limits.cache_bytes
        is_too_large = most_bytes is not None and self.index.size_bytes > most_bytes
        return num > 1 and (is_too_large or 0 < self.remembered < num)

    def _discard(self, trajectory_ids: Iterable[int]) -> None:
        disk, removed = self.disk, self.index.remove(trajectory_ids)
        residents = [self._resident.pop(record.trajectory_id, None) for record in removed]
        for record, resident in zip(removed, residents, strict=True):
            self._cache.discard(record.trajectory_id)
            self._on_remove(record)
            if disk is not None and resident is not None:
                disk.writer.cancel(record.trajectory_id)
        if removed and disk is not None:
            # also what was taken back in time: an attempt that failed may have noted it
            ids = [record.trajectory_id for record in removed]
            disk.forget(ids, self.index.numbering, self.schema)
        for record, resident in zip(removed, residents, strict=True):
            remove = _nothing if disk is None else partial(disk.remove_forgotten, record)
            self._leases.retire(Retired(record, resident, remove))

    def delete(self, trajectory_ids: Iterable[int]) -> None:
        """Take trajectories out for good.

        Raises:
            EvictedError: One of them is not there; nothing was deleted.
            StorageWriteError: An earlier one could not be written.
            ClosedError: The store is closed.
        """
        ids = list(trajectory_ids)
        with self._adding:
            self._check_changeable()
            with self.lock:
                self._discard(ids)

    def clear(self) -> None:
        """Take all trajectories out. Ids and row ids go on where they were.

        Raises:
            StorageWriteError: An earlier one could not be written.
            ClosedError: The store is closed.
        """
        with self._adding:
            self._check_changeable()
            with self.lock:
                self._discard([record.trajectory_id for record in self.index])
                self._num_forgotten = self._num_forgotten_rows = 0
                self.schema = None
                if self.disk is not None:
                    self.disk.forget([], self.index.numbering, None)

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything put so far is stored; without a disk there is nothing to do.

        Args:
            timeout_s: Time limit in seconds; None waits as long as something gets stored.

        Raises:
            StorageWriteError: Something could not be stored; it is tried again by the next call.
            TimeLimitError: The time limit came first.
        """
        if self.disk is not None:
            self.disk.writer.raise_failure_or_retry()
            self.disk.flush(timeout_s)

    def settled_view(self, size: int, lease: Lease) -> tuple[View, IndexContents]:
        """Return a view whose trajectories are all stored, and the index of just these.

        A store without a disk has no records for it.

        Args:
            size: As `view` says.
            lease: Likewise.

        Raises:
            StorageWriteError: Something could not be stored.
            TimeLimitError: The write queue did not empty.
            ClosedError: The store is closed.
        """
        with self._adding:
            self.flush()
            view = self.view(size, lease)
            contents = IndexContents(numbering=self.index.numbering, schema=view.schema)
            if self.disk is not None:
                ids = view.window.trajectory_ids
                contents.records = self.disk.contents.records.selection(ids)
            return view, contents

    def after_fork(self, *, is_whole: bool) -> None:
        """Become a forked child's copy: no thread of the parent will ever give a lock back.

        Args:
            is_whole: Whether no thread was amid a change; else nothing is given out any more.
        """
        self._is_torn = not is_whole
        self.lock = threading.RLock()
        self._adding = threading.RLock()
        self._changed = threading.Condition(self.lock)
        self._leases.after_fork()
        self._is_replacing = False  # who was at it is not here
        self.index.after_fork()
        self.listeners = Listeners()
        self._cache.after_fork()
        self._pool.after_fork()
        if self.disk is not None:
            self.disk.formats.after_fork()

    def close(self) -> None:
        """Wait for readers, store everything and let go of the folder; twice is fine.

        Raises:
            StorageWriteError: Something could not be written; the store stays open.
            TimeLimitError: A reader did not end within `STALL_LIMIT_S`.
        """
        with self._adding:
            if self.is_closed:
                return
            if self.disk is not None:
                self.disk.writer.raise_failure_or_retry()
            with self.replacing():  # else threads that sample on and on would never all be out
                if self.disk is not None:
                    self.disk.close(self.index.numbering)
                self.is_closed = True
            self.listeners.tell()

    @contextmanager
    def replacing(self) -> Iterator[None]:
        """Keep all other threads from reading until the block ends; the caller holds `adding`.

        Readers take a trajectory for that of its id, and a load may bring another one of that id;
        `close` lets the files go.

        Raises:
            TimeLimitError: A reader did not end within `STALL_LIMIT_S`, or would not: this
                thread is amid a read.
        """
        with self.lock:
            if get_ident() in self._leases.threads():
                raise TimeLimitError(
                    "a signal's handler closes the buffer, or loads into it, but came amid a read "
                    "of its own thread, which would not end meanwhile; do it after the handler, as "
                    "sys.exit() there does: what is open is closed at exit"
                )
            self._is_replacing = True
        try:
            with self.lock:
                self._wait_for(lambda: not self._leases.threads(), "all running reads to end")
            yield
        finally:
            with self.lock:
                self._is_replacing = False
                self._changed.notify_all()

    def replace(
        self,
        present: Sequence[Record],
        records: Sequence[Record],
        snapshots: Mapping[int, Snapshot],
        numbering: Numbering,
        schema: Schema | None,
    ) -> None:
        """Let loaded trajectories take the place of the present ones.

        The caller is inside `adding` and `replacing`.

        Args:
            present: All that it holds now; to look them up here might fail, when it is too late.
            records: All that the store holds afterwards, oldest first.
            snapshots: Those of them that are in memory: all in a store without a disk, those
                for the cache in one with.
            numbering: Ids of the next trajectory.
            schema: What each trajectory has.
        """
        with self.lock:
            stays = {record.trajectory_id: record.uuid for record in records}
            for record in present:
                if stays.get(record.trajectory_id) != record.uuid:
                    self._on_remove(record)
            before = {record.trajectory_id: record.uuid for record in present}
            if self.disk is None:
                self.index = Index(records, numbering)
            else:  # this runs in the writer's thread, which has noted them
                self.index = Index.over(self.disk.contents.records)
            self.index.numbering = numbering
            self.schema = schema
            self._resident.clear()
            self._cache.clear()
            self._num_forgotten = self._num_forgotten_rows = 0
            for record in records:
                if before.get(record.trajectory_id) != record.uuid:
                    self._on_add(record)
                snapshot = snapshots.get(record.trajectory_id)
                if snapshot is not None:
                    self._hold(record, snapshot, has_file=self.disk is not None)
            self._retain()
            self.listeners.tell()

    @contextmanager
    def adding(self) -> Iterator[None]:
        """Keep all other threads from adding, deleting or loading until the block ends.

        Raises:
            ClosedError: The store is closed.
        """
        with self._adding:
            self.check_open()
            yield


def _nothing() -> None:
    """Let go of a trajectory that memory alone held."""
