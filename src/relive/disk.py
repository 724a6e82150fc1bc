# SPDX-License-Identifier: Apache-2.0
"""The folder of one store while it is open for writing: lock, journal, files, writer thread.

Order of every write: the rows, then the line in the journal, then "stored". Only the writer's
thread changes the folder.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from relive import files
from relive.disk_errors import naming_disk_errors
from relive.errors import ForkedError, StorageError, StorageWriteError
from relive.folder import OpenedFolder, finish_moves, naming_folder, set_aside
from relive.format_set import FormatSet
from relive.formats import FileFormat
from relive.formats.checksum import checksums
from relive.index import Index
from relive.index_file import METADATA_NAME, IndexContents, write_metadata
from relive.journal import Journal
from relive.numbering import Numbering
from relive.record import Record
from relive.snapshot import Snapshot
from relive.spec import Schema
from relive.unsynced import Unsynced
from relive.writer import Job, Writer

__all__ = ["Disk", "Durability"]

Durability = Literal["process", "power"]
"""What a stored trajectory survives: a killed process, or a power loss too."""

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
        self._process = os.getpid()
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
        self.writer = Writer(f"relive writer of {self.folder.name}", self._do_idle_work)
        """Does it all, one thing after the other."""
        self._forgotten: dict[int, Record] = {}  # as they were stored, until they are removed
        self._unsynced = Unsynced()
        self._is_exported = opened.found is None or opened.found.is_exported
        self._is_in_place = True
        self._next_export_at = 0.0
        self._is_closed = False
        self.writer.start()

    @property
    def contents(self) -> IndexContents:
        """What the folder held when it was opened; later only the writer may look at it."""
        return self._journal.contents

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
            ForkedError: This copy was forked while a load moved them.
            StorageWriteError: The last load could not move all files into place.
        """
        if not self._is_in_place:
            if os.getpid() != self._process:
                raise ForkedError(
                    f"rows of {str(self.folder)!r} were asked for, but this copy was forked while "
                    "load_checkpoint() moved files into their places, so it cannot tell where "
                    "they are; fork once that has returned"
                )
            raise StorageWriteError(
                f"files that the last load brought into {str(self.folder)!r} are not all in their "
                "places, but rows are read from there; make room on the disk and call flush()",
                path=str(self.folder),
            )

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
            self._unsynced.note(stored, snapshot.size_bytes)
            self._sync_if_each()
            self._is_exported = False
            on_stored(stored)
            if self._unsynced.is_due:
                self._sync()

        what = f"trajectory {record.trajectory_id}"
        self.writer.submit(Job(what, run, record.trajectory_id, snapshot.size_bytes))

    def rewrite(
        self,
        trajectory_id: int,
        on_moved: Callable[[Record], None],
        on_synced: Callable[[Record], None],
    ) -> None:
        """Write a stored trajectory once more, behind what was stored last; wait for it.

        Args:
            trajectory_id: The trajectory; one that is gone meanwhile is passed over.
            on_moved: Called in the writer's thread with its record as it is now.
            on_synced: Called there with its record as it was, once the new one survives whatever
                the old one survived.

        Raises:
            MissingFileError: Its file is not there; nothing changed.
            CorruptFileError: Its file is damaged; nothing changed.
            StorageWriteError: Something queued before could not be written.
            OSError: The disk refused; nothing changed, or the new one is noted and not yet synced.
        """

        def run() -> None:
            held = self._journal.contents.records.get(trajectory_id)
            if held is None:
                return
            snapshot = self.formats.of(held).read(self.folder, held)
            own, bare = self.formats.own, held.without_file()
            moved = own.write(self.folder, bare, snapshot, sync=self._syncs_each)
            with self._taking_back(moved):
                self._journal.relocate(moved, is_synced=self._syncs_each)
            self._unsynced.note(moved, snapshot.size_bytes, lambda: on_synced(held))
            self._is_exported = False
            on_moved(moved)
            self._sync_if_each()

        self.writer.run(f"trajectory {trajectory_id}", run)

    @contextmanager
    def _taking_back(self, record: Record) -> Iterator[None]:
        """Remove what was just written when the block cannot note it: it is written once more."""
        try:
            yield
        except BaseException:  # Ctrl+C among others: nothing stays that no line names
            with suppress(OSError):  # the first error is told; what stays goes at the next opening
                self.formats.of(record).remove(self.folder, record)
            raise

    def note_state(self, numbering: Numbering) -> None:
        """Queue a note of the buffer's state, its seed among other things.

        A forked copy, whose state is its own, notes nothing.

        Args:
            numbering: Ids of the next trajectory.
        """

        def run() -> None:
            # others may have added since it was looked at
            noted = self._journal.contents.numbering
            self._journal.set_numbering(noted.not_before(numbering))
            path = self.folder / METADATA_NAME
            write_metadata(path, self._metadata(self._journal.contents), sync=False)

        if os.getpid() == self._process:
            self.writer.submit(Job("metadata.json", run))

    def sync_now(self) -> None:
        """Put everything stored so far on the disk, and wait for it.

        Raises:
            StorageWriteError: Something queued before could not be written.
            OSError: The disk refused.
        """
        self.writer.run("the index", self._sync_if_needed)

    def _sync_if_each(self) -> None:
        if self._syncs_each:  # its file was synced as it was written
            self._journal.sync()
            self._unsynced.mark_synced()

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

        self.writer.submit(Job("the index", run))

    def remove_forgotten(self, record: Record) -> None:
        """Queue the removal of a forgotten trajectory's file; it is told to `forget` first."""

        def run() -> None:
            stored = self._forgotten.get(record.trajectory_id)
            if stored is not None:
                self.formats.of(stored).remove(self.folder, stored)
                del self._forgotten[record.trajectory_id]

        self.writer.submit(Job(f"the removal of trajectory {record.trajectory_id}", run))

    def remove_replaced(self, record: Record) -> None:
        """Queue the removal of what a record names that the index names no longer."""
        self.writer.submit(
            Job(
                f"the removal of trajectory {record.trajectory_id}",
                lambda: self.formats.of(record).remove(self.folder, record),
            )
        )

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
            self._sync_if_needed()
            present = self._journal.contents.records.values()
            leaving.extend(record for record in present if record.trajectory_id not in stays)
            order = [record.trajectory_id for record in records]
            self._journal.load(loaded, kept, order, numbering, schema, incoming.name)
            self._is_in_place = False
            until_then = "all is loaded, but can be read only when its files are in their places"
            self.writer.submit(Job("the loaded index", move, until_then=until_then))
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

        self.writer.run("the loaded index", note)
        self.writer.drain(None)

    def flush(self, timeout_s: float | None) -> None:
        """Wait until everything queued is stored and, unless that was just done, exported.

        Raises:
            StorageWriteError: Something could not be written.
            TimeLimitError: The time limit came first.
        """
        self.writer.drain(timeout_s, with_idle=True)

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
            self._sync_if_needed()
            self._journal.set_numbering(numbering)
            self._export(is_closing=True)
            self._journal.close()

        what = f"the index in {str(self.folder)!r} could not be completed"
        cure = "the buffer is still open, close it again once there is room"
        with naming_disk_errors(StorageWriteError, self.folder, what, cure):
            self.writer.run("the index", finish)
        self.writer.close()
        self.formats.close()
        self._lock.release()
        self._is_closed = True

    def abandon(self) -> None:
        """Let go of the folder as it is, as a kill would."""
        if not self._is_closed:
            self.writer.abandon()
            self._journal.abandon()
            self.formats.close()
            self._lock.drop()
            self._is_closed = True

    def _do_idle_work(self) -> float | None:
        """Sync and export when due; return in how many seconds something will be."""
        if self._unsynced.is_due:
            self._sync()
        if not self._is_exported and time.monotonic() >= self._next_export_at:
            self._export(is_closing=False)
        waits = [self._unsynced.due_in_s()]
        if not self._is_exported:
            waits.append(max(0.0, self._next_export_at - time.monotonic()))
        return min((wait for wait in waits if wait is not None), default=None)

    def _sync_if_needed(self) -> None:
        if self._unsynced.records:
            self._sync()

    def _sync(self) -> None:
        """Put everything stored so far on the disk, and note it in the journal."""
        held = self._journal.contents.records
        by_format: dict[str, list[Record]] = {}
        for record in self._unsynced.records:
            if record.trajectory_id in held:
                by_format.setdefault(record.format, []).append(record)
        for name, records in by_format.items():
            self.formats.named(name).sync(self.folder, records)
        files.sync_folder(self.folder)
        self._journal.mark_synced()
        self._unsynced.mark_synced()

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
