# SPDX-License-Identifier: Apache-2.0
"""The folder of one store while it is open for writing: lock, journal, files, writer thread.

Order of every write: the rows, then the line in the journal, then "stored". Only the writer's
thread changes the folder.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from relive import files
from relive.disk_errors import naming_disk_errors
from relive.errors import StorageError, StorageWriteError
from relive.folder import OpenedFolder, finish_moves, naming_folder, set_aside
from relive.format_set import FormatSet
from relive.formats import FileFormat
from relive.formats.checksum import checksums
from relive.index import Index, Numbering
from relive.index_file import METADATA_NAME, IndexContents, write_metadata
from relive.journal import Journal
from relive.record import NOTHING, Record
from relive.snapshot import Snapshot
from relive.spec import Schema
from relive.writer import Job, Writer

__all__ = ["Disk", "Durability"]

Durability = Literal["process", "power"]
"""What a stored trajectory survives: a killed process, or a power loss too."""

_SYNC_BYTES = 256 << 20
_SYNC_SECONDS = 5.0
_EXPORT_SHARE = 20  # an export of one second is followed by at least 19 without
_YIELD_S = 0.0005  # gives up the interpreter lock, which a thread may else hold for 5 ms


class Disk:
    """Stores, forgets and reads trajectories in one folder. Any thread may call any method."""

    def __init__(
        self,
        opened: OpenedFolder,
        *,
        formats: FormatSet,
        durability: Durability,
        metadata: Callable[[IndexContents], Mapping[str, Any]],
    ) -> None:
        """Go on with an opened folder.

        Args:
            opened: The folder, its lock and index.
            formats: How trajectories are stored.
            durability: When a trajectory counts as stored.
            metadata: Gives the contents of `metadata.json` for an index. Called in the writer's
                thread.

        Raises:
            StorageError: The disk refused.
        """
        self.folder = opened.folder
        """Where everything lies."""
        self.formats = formats
        """How trajectories are stored."""
        formats.own.prepare_to_write()
        self._lock = opened.lock
        self._metadata = metadata
        self._syncs_each = durability == "power"
        with naming_folder(self.folder):
            self._journal = Journal(self.folder, opened.found)
        self._writer = Writer(f"relive writer of {self.folder.name}", self._do_idle_work)
        self._forgotten: dict[int, Record] = {}  # as they were stored, until they are removed
        self._unsynced: list[Record] = []
        self._unsynced_bytes = 0
        self._unsynced_since = 0.0
        self._is_exported = False
        self._is_in_place = True
        self._next_export_at = 0.0
        self._is_closed = False
        self._writer.start()

    @property
    def contents(self) -> IndexContents:
        """What the folder held when it was opened; later only the writer may look at it."""
        return self._journal.contents

    @property
    def pending_bytes(self) -> int:
        """Bytes of columns waiting to be written."""
        return self._writer.pending_bytes

    def usage(self) -> Mapping[str, float]:
        """Return what the store takes, as `Format.usage` does.

        Raises:
            StorageError: The disk refused.
        """
        what = f"{str(self.folder)!r} cannot be looked at"
        with naming_disk_errors(StorageError, self.folder, what, "look at the disk"):
            return self.formats.usage(self.folder)

    def check_in_place(self) -> None:
        """Refuse to read files while another trajectory's may lie in the place of one loaded.

        Raises:
            StorageWriteError: The last load could not move all files into place.
        """
        if not self._is_in_place:
            raise StorageWriteError(
                f"files that the last load brought into {str(self.folder)!r} are not all in their "
                "places, but rows are read from there; make room on the disk and call flush()",
                path=str(self.folder),
            )

    def raise_failure_or_retry(self) -> None:
        """Raise what the writer met and nobody was told; what was told is tried again.

        Raises:
            StorageWriteError: Something could not be written.
        """
        self._writer.raise_failure_or_retry()

    def wait_for_room(self, size_bytes: int, max_pending_bytes: int) -> None:
        """Wait until this many bytes more may be pending, as `Writer.wait_for_room` does."""
        self._writer.wait_for_room(size_bytes, max_pending_bytes)

    def store(
        self,
        record: Record,
        snapshot: Snapshot,
        schema: Schema,
        on_stored: Callable[[Record], None],
    ) -> None:
        """Queue a trajectory.

        Args:
            record: What is known of it.
            snapshot: Its rows.
            schema: What holds with it.
            on_stored: Called in the writer's thread with the record completed.
        """

        def run() -> None:
            # tried again after a sync failed it may be noted already; its file must then stay
            stored = self._journal.contents.records.get(record.trajectory_id)
            if stored is None:
                summed = replace(record, checksums=checksums(snapshot, record.layout))
                own = self.formats.own
                stored = own.write(self.folder, summed, snapshot, sync=self._syncs_each)
                with self._taking_back(stored):
                    self._journal.set_schema(schema)
                    self._journal.add(stored, is_synced=self._syncs_each)
            self._note_unsynced(stored, snapshot.size_bytes)
            self._is_exported = False
            on_stored(stored)
            if self._is_sync_due():
                self._sync()

        what = f"trajectory {record.trajectory_id}"
        self._writer.submit(Job(what, run, record.trajectory_id, snapshot.size_bytes))

    def rewrite(self, trajectory_id: int, on_moved: Callable[[Record, Record], None]) -> None:
        """Write a stored trajectory once more, behind what was stored last; wait for it.

        Args:
            trajectory_id: The trajectory; one that is gone meanwhile is passed over.
            on_moved: Called in the writer's thread with its record as it was and as it is.

        Raises:
            MissingFileError: Its file is not there; nothing changed.
            CorruptFileError: Its file is damaged; nothing changed.
            StorageWriteError: Something queued before could not be written.
            OSError: The disk refused; nothing changed.
        """

        def run() -> None:
            held = self._journal.contents.records.get(trajectory_id)
            if held is None:
                return
            snapshot = self.formats.of(held).read(self.folder, held)
            bare = replace(held, format="", location=NOTHING)
            moved = self.formats.own.write(self.folder, bare, snapshot, sync=self._syncs_each)
            with self._taking_back(moved):
                self._journal.relocate(moved, is_synced=self._syncs_each)
            self._note_unsynced(moved, snapshot.size_bytes)
            self._is_exported = False
            on_moved(held, moved)

        self.run_now(f"trajectory {trajectory_id}", run)

    @contextmanager
    def _taking_back(self, record: Record) -> Iterator[None]:
        """Remove what was just written when the block cannot note it: it is written once more."""
        try:
            yield
        except BaseException:  # Ctrl+C among others: nothing stays that no line names
            with suppress(OSError):
                self.formats.of(record).remove(self.folder, record)
            raise

    def sync_now(self) -> None:
        """Put everything stored so far on the disk, and wait for it.

        Raises:
            StorageWriteError: Something queued before could not be written.
            OSError: The disk refused.
        """
        self.run_now("the index", lambda: self._sync() if self._unsynced else None)

    def _note_unsynced(self, record: Record, size_bytes: int) -> None:
        """Put what was just noted on the disk, or remember to do so."""
        if self._syncs_each:
            self._journal.sync()
            return
        if not self._unsynced:
            self._unsynced_since = time.monotonic()
        self._unsynced.append(record)
        self._unsynced_bytes += size_bytes

    def cancel(self, trajectory_id: int) -> bool:
        """Take a queued trajectory back; False when it is being written or stored already."""
        return self._writer.cancel(trajectory_id)

    def forget(
        self, trajectory_ids: Sequence[int], numbering: Numbering, schema: Schema | None
    ) -> None:
        """Queue the note that trajectories left the index; their files stay for now.

        Args:
            trajectory_ids: Which.
            numbering: Ids of the next trajectory.
            schema: What holds without them.
        """

        def run() -> None:
            held = self._journal.contents.records
            known = {n: held[n] for n in trajectory_ids if n in held}
            if known:
                self._journal.remove(known)
                self._forgotten |= known
            self._journal.set_schema(schema)
            self._journal.set_numbering(numbering)
            self._is_exported = False

        self._writer.submit(Job("the index", run))

    def remove(self, record: Record) -> None:
        """Queue the removal of a forgotten trajectory's file; it is told to `forget` first."""

        def run() -> None:
            stored = self._forgotten.get(record.trajectory_id)
            if stored is not None:
                self.formats.of(stored).remove(self.folder, stored)
                del self._forgotten[record.trajectory_id]

        self._writer.submit(Job(f"the removal of trajectory {record.trajectory_id}", run))

    def discard(self, record: Record) -> None:
        """Queue the removal of what a record names that the index names no longer."""
        self._writer.submit(
            Job(
                f"the removal of trajectory {record.trajectory_id}",
                lambda: self.formats.of(record).remove(self.folder, record),
            )
        )

    def run_now(self, what: str, action: Callable[[], None]) -> None:
        """Run something in the writer's thread after all that is queued, and wait for it.

        Raises:
            StorageWriteError: Something queued before could not be written.
            BaseException: What the action raised; it is not tried again.
        """
        raised: list[BaseException] = []
        is_given_up = False

        def run() -> None:
            if is_given_up:
                return
            try:
                action()
            except BaseException as error:  # raised in the caller's thread below
                raised.append(error)

        self._writer.submit(Job(what, run))
        try:
            self._writer.drain(None)
        except BaseException:  # Ctrl+C among others: nobody waits for the action any more
            is_given_up = True
            raise
        if raised:
            raise raised[0]

    def take_over(
        self,
        records: Sequence[Record],
        kept: Sequence[int],
        numbering: Numbering,
        schema: Schema | None,
        incoming: Path,
        on_noted: Callable[[], None],
    ) -> None:
        """Let loaded trajectories take the place of the present ones.

        Args:
            records: All that the store holds afterwards, oldest first.
            kept: Ids of those that it holds already.
            numbering: Ids of the next trajectory.
            schema: What each trajectory has.
            incoming: Folder inside the store with the files of the others.
            on_noted: Called in the writer's thread once the index says so. From then on there is
                no way back: a file that cannot be moved into place is tried again, as a
                trajectory that cannot be written is, and until then nothing can be read.

        Raises:
            StorageWriteError: Something queued before could not be written, or a file could not
                be moved.
            OSError: The disk refused before anything changed.
        """
        stays = set(kept)
        loaded = [record for record in records if record.trajectory_id not in stays]
        leaving: deque[Record] = deque()

        def note() -> None:
            if self._unsynced:
                self._sync()
            present = self._journal.contents.records.values()
            leaving.extend(record for record in present if record.trajectory_id not in stays)
            order = [record.trajectory_id for record in records]
            self._journal.load(loaded, kept, order, numbering, schema, incoming.name)
            self._is_in_place = False
            until_then = "all is loaded, but can be read only when its files are in their places"
            self._writer.submit(Job("the loaded index", move, until_then=until_then))
            on_noted()  # after it, for limits may remove files that are still to be moved

        def move() -> None:
            if leaving:
                set_aside(self.folder, self.formats, leaving)
            finish_moves(self.folder, self.formats, loaded, incoming.name)
            self._journal.mark_moved()
            self.formats.take_up(self.folder, Index.over(self._journal.contents.records))
            self._is_in_place = True
            self._is_exported = False
            self._export(is_closing=False)

        self.run_now("the loaded index", note)
        self._writer.drain(None)

    def flush(self, timeout_s: float | None) -> None:
        """Wait until everything queued is stored and, unless that was just done, exported.

        Raises:
            StorageWriteError: Something could not be written.
            TimeLimitError: The time limit came first.
        """
        self._writer.drain(timeout_s, with_idle=True)

    def close(self, numbering: Numbering) -> None:
        """Store everything, complete the JSON files, let go of the folder; twice is fine.

        Args:
            numbering: Ids of the next trajectory.

        Raises:
            StorageWriteError: Something could not be written; the folder stays open.
        """
        if self._is_closed:
            return

        def finish() -> None:
            if self._unsynced:
                self._sync()
            self._journal.set_numbering(numbering)
            self._export(is_closing=True)
            self._journal.close()

        what = f"the index in {str(self.folder)!r} could not be completed"
        cure = "the buffer is still open, close it again once there is room"
        with naming_disk_errors(StorageWriteError, self.folder, what, cure):
            self.run_now("the index", finish)
        self._writer.close()
        self.formats.close()
        self._lock.release()
        self._is_closed = True

    def abandon(self) -> None:
        """Let go of the folder as it is, as a kill would."""
        if not self._is_closed:
            self._writer.abandon()
            self._journal.abandon()
            self.formats.close()
            self._lock.drop()
            self._is_closed = True

    def _do_idle_work(self) -> float | None:
        """Sync and export when due; return in how many seconds something will be."""
        now = time.monotonic()
        waits = []
        if self._unsynced:
            if self._is_sync_due():
                self._sync()
            else:
                waits.append(self._unsynced_since + _SYNC_SECONDS - now)
        if not self._is_exported:
            if now >= self._next_export_at:
                self._export(is_closing=False)
            else:
                waits.append(self._next_export_at - now)
        return min(waits, default=None)

    def _is_sync_due(self) -> bool:
        is_late = time.monotonic() >= self._unsynced_since + _SYNC_SECONDS
        return bool(self._unsynced) and (is_late or self._unsynced_bytes >= _SYNC_BYTES)

    def _sync(self) -> None:
        """Put everything stored so far on the disk, and note it in the journal."""
        held = self._journal.contents.records
        by_format: dict[str, list[Record]] = {}
        for record in self._unsynced:
            if record.trajectory_id in held:
                by_format.setdefault(record.format, []).append(record)
        for name, records in by_format.items():
            self.formats.named(name).sync(self.folder, records)
        files.sync_folder(self.folder)
        self._journal.mark_synced()
        self._unsynced.clear()
        self._unsynced_bytes = 0

    def _export(self, *, is_closing: bool) -> None:
        start = time.monotonic()
        # RLinf's tools and people read what each trajectory has a file for
        with_index = is_closing or isinstance(self.formats.own, FileFormat)
        self._journal.export(
            lambda: time.sleep(0.0 if is_closing else _YIELD_S), with_index=with_index
        )
        metadata = self._metadata(self._journal.contents)
        write_metadata(self.folder / METADATA_NAME, metadata, sync=is_closing)
        self._is_exported = True
        self._next_export_at = time.monotonic() + (_EXPORT_SHARE - 1) * (time.monotonic() - start)
