# SPDX-License-Identifier: Apache-2.0
"""The reading half of a store: which trajectories there are, and their rows.

A trajectory's rows come from memory while no file has them, else from the cache or its file.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from numpy.typing import NDArray

from relive.batches import BatchPlan
from relive.cache import TrajectoryCache
from relive.disk import Disk
from relive.errors import ClosedError, ForkedError, TimeLimitError
from relive.gather import KeptRows, RowSource, row_source
from relive.index import Index
from relive.leases import Lease, Leases
from relive.output_pool import OutputPool
from relive.record import Record
from relive.row_reading import read_rows
from relive.snapshot import Snapshot
from relive.spec import Schema
from relive.window import Located, Window
from relive.writer import STALL_LIMIT_S

__all__ = ["Resident", "StoreReader", "View"]

_Result = TypeVar("_Result")

_LOOK_AGAIN_S = 0.5
"""How often is looked for reads that ended without a word, by a signal handler's exception."""


@dataclass(frozen=True, slots=True)
class Resident:
    """A trajectory in memory because no file has it."""

    snapshot: Snapshot
    """The trajectory."""
    rows: RowSource
    """Its columns as rows."""


class View(NamedTuple):
    """A window whose rows stay readable as long as its lease."""

    window: Window
    """The trajectories."""
    schema: Schema | None
    """What each of them has; None when there was none yet."""


class StoreReader:
    """Trajectories as they can be read. Any thread may call any method."""

    def __init__(self, *, disk: Disk | None, cache: TrajectoryCache) -> None:
        """Begin with what the disk holds, or empty.

        Args:
            disk: The opened folder; None when everything is in memory.
            cache: For rows of trajectories that the disk has.
        """
        self.disk = disk
        """The folder, or None."""
        self.lock = threading.RLock()
        """Guards the index; held for moments only, never while anything is read or written."""
        self._changed = threading.Condition(self.lock)
        """Notified when a read ends that a load or `close` waits for, and when these end."""
        self.index = Index()
        """Records and numbering; look at it under the lock."""
        self.schema: Schema | None = None
        """What each trajectory has; None before the first."""
        self._cache = cache
        self._pool = OutputPool()
        self._resident: dict[int, Resident] = {}
        self._leases: Leases[Resident] = Leases()
        self._is_replacing = False
        self._is_torn = False
        self.is_closed = False
        """Whether `close` came; look at it under the lock, or when nothing hangs on it."""
        if disk is not None:
            self.index = Index.over(disk.contents.records, disk.contents.numbering)
            self.schema = disk.contents.schema

    @property
    def num_pending(self) -> int:
        """Trajectories that are to be written and are not yet."""
        return 0 if self.disk is None else len(self._resident)

    @property
    def num_in_memory(self) -> int:
        """Trajectories in the cache, or in memory when there is no disk."""
        return len(self._resident) if self.disk is None else len(self._cache)

    @property
    def cache_size_bytes(self) -> int:
        """Bytes of columns in the cache."""
        return self._cache.size_bytes

    def _hold(self, record: Record, snapshot: Snapshot, *, has_file: bool) -> None:
        """Keep the rows of a trajectory: in the cache, and in any case while no file has them."""
        rows = KeptRows(row_source(snapshot))
        if not has_file:
            self._resident[record.trajectory_id] = Resident(snapshot, rows)
        if self.disk is not None and self.disk.formats.own.needs_cache:
            self._cache.put(record.trajectory_id, rows)

    def fill_cache(self) -> None:
        """Read the newest trajectories into the cache, those that are not there.

        Raises:
            MissingFileError: A file is not there.
            CorruptFileError: A file is damaged.
        """
        if self.disk is None or not self.disk.formats.own.needs_cache or not self._cache.max_size:
            return
        for record in self.index.newest(self._cache.max_size):
            if record.trajectory_id not in self._cache:
                self._hold(record, self.read(record.trajectory_id), has_file=True)

    def leased(self, read: Callable[[Lease], _Result]) -> _Result:
        """Call what reads with a lease for `view`, which ends with the call; return its result."""
        lease = Lease()
        try:
            with lease:
                return read(lease)
        finally:
            with self.lock:
                self._leases.end(lease)
                if self._is_replacing:  # only then somebody waits for it
                    self._changed.notify_all()

    def view(self, size: int, lease: Lease) -> View:
        """Return the newest trajectories, readable as long as the caller holds the lease.

        Args:
            size: How many; 0 = all.
            lease: From `leased`.

        Raises:
            ClosedError: The store is closed.
            ForkedError: This copy was forked amid a change, or while a load moved its files.
            StorageWriteError: The last load could not move its files into place.
            TimeLimitError: A load, or `close`, did not end within `STALL_LIMIT_S`.
        """
        with self.lock:
            if self._is_replacing:
                self._wait_for(lambda: not self._is_replacing, "a load or close() to end")
            self.check_open()
            if self.disk is not None:
                self.disk.check_in_place()
            self._leases.begin(lease)
            return View(self.index.window(size), self.schema)

    def check_open(self) -> None:
        """Refuse what comes after `close`, or waited for its end.

        Raises:
            ClosedError: The store is closed.
            ForkedError: This copy was forked amid a change.
        """
        if self.is_closed:
            raise ClosedError("the buffer is closed, but only an open one is of use; open another")
        if self._is_torn:
            raise ForkedError(
                "this copy was forked while another thread changed the buffer, but only one that "
                "was forked between two changes has right rows; fork again"
            )

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
            ClosedError, ForkedError, StorageWriteError, TimeLimitError: As `view` says.
        """

        def read(lease: Lease) -> Snapshot:
            self.view(1, lease)
            record, resident = self.find(trajectory_id)
            if resident is not None:
                return resident.snapshot
            assert self.disk is not None
            return self.disk.formats.of(record).read(self.disk.folder, record)

        return self.leased(read)

    def gather(
        self, located: Located, plan: BatchPlan
    ) -> tuple[dict[str, NDArray[Any]], dict[str, list[str]]]:
        """Copy rows of the window of a view that is held, as `read_rows` does."""
        return read_rows(
            located,
            plan,
            find=self._find_rows,
            disk=self.disk,
            pool=self._pool,
        )

    def _find_rows(self, trajectory_id: int) -> tuple[Record, RowSource | None]:
        record, resident = self.find(trajectory_id)
        return record, resident.rows if resident else self._cache.get(trajectory_id)

    def _wait_for(self, is_true: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + STALL_LIMIT_S
        while not self._changed.wait_for(is_true, _LOOK_AGAIN_S):
            if time.monotonic() >= deadline:
                raise TimeLimitError(
                    f"waited {STALL_LIMIT_S:g} s for {what}, but it goes on; look at the threads "
                    "that use this buffer"
                )
