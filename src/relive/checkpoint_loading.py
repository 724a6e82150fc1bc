# SPDX-License-Identifier: Apache-2.0
"""Bringing the trajectories of a checkpoint into a store.

Files of ours are copied as they are; what RLinf wrote, and what must get other ids, is read,
checked and written anew in the store's own format. Nothing of the store changes before all of
it is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from relive import files
from relive.checkpoint_contents import Entry
from relive.disk_errors import naming_disk_errors
from relive.entry_reading import EntryReader
from relive.errors import StorageError
from relive.folder import INCOMING_PREFIX
from relive.format_set import FormatSet
from relive.formats.base import Copier, Progress, no_progress
from relive.numbering import Numbering
from relive.record import Record
from relive.snapshot import Snapshot
from relive.spec import Columns, Schema, conform
from relive.store import Store

__all__ = ["restore_entries"]


class _Loading:
    """Reads and gathers the trajectories of one checkpoint; the store is not changed."""

    def __init__(
        self, store: Store, formats: FormatSet, reader: EntryReader, progress: Progress
    ) -> None:
        """Begin.

        Args:
            store: Where they go, and what it holds already.
            formats: To copy the checkpoint's files, and to write.
            reader: Reads what cannot be copied.
            progress: Called with the number of bytes copied since it was called last.
        """
        self.reader = reader
        """Reads them."""
        self.records: list[Record] = []
        """Of the trajectories brought so far."""
        self.kept: list[int] = []
        """Ids of those that the store had already."""
        self.snapshots: dict[int, Snapshot] = {}
        """Rows of those that go into memory."""
        self._disk = store.disk
        self._copiers: dict[tuple[str, Path], Copier] = {}
        self._formats = formats
        self._progress = progress
        self._present = store.index

    def hold(self, entry: Entry) -> None:
        """Read a trajectory for a store that keeps everything in memory."""
        record, snapshot = self.reader.read(entry)
        self.records.append(record.without_file())
        self.snapshots[record.trajectory_id] = snapshot

    def _must_be_rewritten(self, record: Record, ids: tuple[int, int]) -> bool:
        is_renumbered = (record.trajectory_id, record.first_row_id) != ids
        return is_renumbered and self._formats.of(record).ids_are_in_files

    def _copier(self, name: str, source: Path, incoming: Path) -> Copier:
        assert self._disk is not None, "without a disk trajectories are held"
        if (name, source) not in self._copiers:
            form = self._formats.named(name)
            form.prepare_incoming(incoming, self._disk.folder)
            copier = form.copier(source, incoming, sync=True, progress=self._progress)
            self._copiers[name, source] = copier
        return self._copiers[name, source]

    def bring(self, entry: Entry, incoming: Path, *, to_memory: bool) -> None:
        """Bring a trajectory's file into a folder, unless the store has it already.

        Args:
            entry: The trajectory.
            incoming: The folder.
            to_memory: Whether its rows are to be at hand as well.
        """
        assert self._disk is not None, "without a disk trajectories are held"
        formats, folder = self._formats, incoming
        record, snapshot, ids = entry.record, None, (entry.trajectory_id, entry.first_row_id)
        if record is None or self._must_be_rewritten(record, ids):
            record, snapshot = self.reader.read(entry)
        else:
            record = replace(record, trajectory_id=ids[0], first_row_id=ids[1])
        stored = self._present.get(ids[0]) if ids[0] in self._present else None
        if (
            stored is not None
            and (stored.uuid, stored.first_row_id) == (record.uuid, ids[1])
            and formats.of(stored).is_whole(self._disk.folder, stored)
        ):
            record, folder = stored, self._disk.folder
            self.kept.append(record.trajectory_id)
        elif snapshot is not None:
            record = formats.own.write(incoming, record, snapshot, sync=True)
        else:
            record = self._copier(record.format, entry.folder, incoming)(record)
        self.records.append(record)
        if to_memory:
            if snapshot is None:
                snapshot = formats.of(record).read(folder, record)
            self.snapshots[record.trajectory_id] = snapshot


def restore_entries(
    store: Store,
    formats: FormatSet,
    entries: Sequence[Entry],
    *,
    numbering: Numbering,
    schema: Schema | None,
    declared: Columns,
    num_in_memory: int,
    progress: Progress = no_progress,
) -> int:
    """Let the trajectories of a checkpoint take the place of what a store holds.

    Args:
        store: The store; its caller holds `adding`.
        formats: To read the checkpoint's files.
        entries: What to bring in, oldest first.
        numbering: Ids of the next trajectory afterwards.
        schema: The checkpoint's, if it has one.
        declared: The user's declaration, which the checkpoint must fit.
        num_in_memory: How many of the newest to hold in memory, at most all of them.
        progress: Called with the number of bytes copied since it was called last.

    Returns:
        How many trajectories of the store left the index, their files moved to `aside/`.

    Raises:
        ColumnMismatchError: The trajectories differ from each other or from the declaration.
        MissingFileError: A file is not there.
        CorruptFileError: A file is cut, damaged or another program's.
        StorageError: The disk refused.
    """
    own = None if store.disk is None else store.disk.folder
    known = None if schema is None else conform(schema, declared)
    loading = _Loading(store, formats, EntryReader(formats, declared, known), progress)
    try:
        return _restore(store, loading, entries, numbering, len(entries) - num_in_memory)
    finally:
        for folder in {entry.folder for entry in entries} - {own}:
            formats.release(folder)


def _restore(
    store: Store,
    loading: _Loading,
    entries: Sequence[Entry],
    numbering: Numbering,
    first_in_memory: int,
) -> int:
    present = list(store.index)
    if store.disk is None:
        for entry in entries[first_in_memory:]:
            loading.hold(entry)
        with store.replacing():
            schema = loading.reader.schema
            store.replace(present, loading.records, loading.snapshots, numbering, schema)
            left_out = entries[:first_in_memory]
            store.count_forgotten(len(left_out), sum(entry.num_rows for entry in left_out))
        return 0
    what = f"the checkpoint could not be brought into {str(store.disk.folder)!r}"
    with naming_disk_errors(StorageError, store.disk.folder, what, "the buffer is as it was"):
        _restore_to_disk(store, present, loading, entries, numbering, first_in_memory)
    return len({record.trajectory_id for record in present} - set(loading.kept))


def _restore_to_disk(
    store: Store,
    present: Sequence[Record],
    loading: _Loading,
    entries: Sequence[Entry],
    numbering: Numbering,
    first_in_memory: int,
) -> None:
    disk = store.disk
    assert disk is not None, "else nothing is brought to one"
    incoming = disk.folder / f"{INCOMING_PREFIX}{files.token()}"
    is_noted = False

    def switch() -> None:
        nonlocal is_noted
        is_noted = True
        schema = loading.reader.schema
        store.replace(present, loading.records, loading.snapshots, numbering, schema)

    try:
        files.create_folder(incoming)
        disk.formats.own.prepare_incoming(incoming, disk.folder)
        for place, entry in enumerate(entries):
            loading.bring(entry, incoming, to_memory=place >= first_in_memory)
        files.sync_folder(incoming)
        with store.replacing():
            disk.take_over(
                loading.records, loading.kept, numbering, loading.reader.schema, incoming, switch
            )
    finally:
        disk.formats.release(incoming)
        if not is_noted:
            files.remove_folder(incoming)
