# SPDX-License-Identifier: Apache-2.0
"""Bringing the trajectories of a checkpoint into a store.

Files of ours are copied as they are; what RLinf wrote, and what must get other ids, is read,
checked and written anew in the store's own format. Nothing of the store changes before all of
it is there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import NAMESPACE_OID, uuid5

from relive import files
from relive.checkpoint_reading import Entry
from relive.describe import describe
from relive.disk import Disk
from relive.errors import CorruptFileError, StorageError
from relive.folder import ASIDE_NAME, INCOMING_PREFIX
from relive.format_set import FormatSet
from relive.formats.checksum import checksums
from relive.formats.layouts import layout_of
from relive.index import Numbering
from relive.record import Record
from relive.snapshot import Snapshot, take_snapshot
from relive.spec import Columns, Schema, admit, conform
from relive.store import Store
from relive.warning import warn

__all__ = ["restore_entries"]


@dataclass
class _Brought:
    """What has been brought so far."""

    schema: Schema | None
    records: list[Record] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    snapshots: dict[int, Snapshot] = field(default_factory=dict)


def restore_entries(
    store: Store,
    formats: FormatSet,
    entries: Sequence[Entry],
    *,
    numbering: Numbering,
    schema: Schema | None,
    declared: Columns,
    num_in_memory: int,
) -> None:
    """Let the trajectories of a checkpoint take the place of what a store holds.

    Args:
        store: The store; its caller holds `adding`.
        formats: To read the checkpoint's files.
        entries: What to bring in, oldest first.
        numbering: Ids of the next trajectory afterwards.
        schema: The checkpoint's, if it has one.
        declared: The user's declaration, which the checkpoint must fit.
        num_in_memory: How many of the newest to hold in memory; 0 = all for a store without a
            folder, none for one with.

    Raises:
        ColumnMismatchError: The trajectories differ from each other or from the declaration.
        MissingFileError: A file is not there.
        CorruptFileError: A file is cut, damaged or another program's.
        StorageError: The disk refused.
    """
    brought = _Brought(None if schema is None else conform(schema, declared))
    if store.disk is None:
        newest = entries[-num_in_memory:] if num_in_memory else entries
        for entry in newest:
            _read(entry, formats, declared, brought)
        with store.replacing():
            store.replace(brought.records, brought.snapshots, numbering, brought.schema)
            left_out = entries[: len(entries) - len(newest)]
            store.forget(len(left_out), sum(entry.num_rows for entry in left_out))
        return
    before = [record.trajectory_id for record in store.index]
    _restore_to_disk(
        store, store.disk, formats, entries, numbering, declared, num_in_memory, brought
    )
    num_aside = len(set(before) - set(brought.kept))
    if num_aside:
        warn(
            f"{num_aside} trajectories of the store that the checkpoint lacks left the index; "
            f"their files were moved to {str(store.disk.folder / ASIDE_NAME)!r}"
        )


def _restore_to_disk(
    store: Store,
    disk: Disk,
    formats: FormatSet,
    entries: Sequence[Entry],
    numbering: Numbering,
    declared: Columns,
    num_in_memory: int,
    brought: _Brought,
) -> None:
    present = {record.uuid: record for record in store.index}
    first_in_memory = len(entries) - num_in_memory
    incoming = disk.folder / f"{INCOMING_PREFIX}{files.token()}"
    is_noted = False

    def switch() -> None:
        nonlocal is_noted
        is_noted = True
        store.replace(brought.records, brought.snapshots, numbering, brought.schema)

    try:
        files.create_folder(incoming)
        for place, entry in enumerate(entries):
            _bring(entry, formats, declared, brought, present, incoming, disk)
            trajectory_id = brought.records[-1].trajectory_id
            if place < first_in_memory:
                brought.snapshots.pop(trajectory_id, None)
            elif trajectory_id not in brought.snapshots:
                record, is_kept = brought.records[-1], trajectory_id in brought.kept
                folder = disk.folder if is_kept else incoming
                brought.snapshots[trajectory_id] = disk.formats.of(record).read(folder, record)
        files.sync_folder(incoming)
        with store.replacing():
            disk.take_over(
                brought.records, brought.kept, numbering, brought.schema, incoming, switch
            )
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(
            f"the checkpoint could not be brought into {str(disk.folder)!r}: {error}; the buffer "
            "is as it was",
            path=str(disk.folder),
            errno=error.errno,
        ) from error
    finally:
        if not is_noted:
            files.remove_folder(incoming)


def _read(entry: Entry, formats: FormatSet, declared: Columns, brought: _Brought) -> None:
    """Read a trajectory of a checkpoint into memory."""
    record = entry.record
    if record is None:
        snapshot = take_snapshot(formats.named(entry.format).read_file(entry.path(formats)))
        if snapshot.num_rows != entry.num_rows:
            raise CorruptFileError(
                f"{str(entry.path(formats))!r} holds {snapshot.num_rows} rows, but the index says "
                f"{entry.num_rows}; restore the folder from a copy",
                path=str(entry.path(formats)),
            )
        record = _describe_foreign(snapshot, entry)
    else:
        snapshot = formats.of(record).read(entry.folder, record)
        record = replace(record, trajectory_id=entry.trajectory_id, first_row_id=entry.first_row_id)
        snapshot = _without_dropped(snapshot, brought.schema)
    brought.schema, snapshot = admit(brought.schema, declared, snapshot)
    if len(snapshot.columns) != len(record.layout.columns):
        layout = layout_of(snapshot)
        texts = {name: text for name, text in record.texts.items() if name in layout}
        digests = checksums(snapshot, layout)
        record = replace(record, layout=layout, checksums=digests, texts=texts)
    brought.records.append(record)
    brought.snapshots[record.trajectory_id] = snapshot


def _without_dropped(snapshot: Snapshot, schema: Schema | None) -> Snapshot:
    """Leave out columns that a file has, though its store dropped them when it was loaded."""
    known = snapshot.columns if schema is None else schema.columns
    columns = {name: column for name, column in snapshot.columns.items() if name in known}
    return replace(snapshot, columns=columns)


def _describe_foreign(snapshot: Snapshot, entry: Entry) -> Record:
    """Return a record for what RLinf wrote, the same at each load of the same rows."""
    numbers = Numbering(entry.trajectory_id, next_row_id=entry.first_row_id)
    record = describe(snapshot, numbers)
    digests = checksums(snapshot, record.layout)
    identity = ":".join([str(entry.foreign["trajectory_id"]), digests.hex()])
    return replace(
        record, uuid=str(uuid5(NAMESPACE_OID, identity)), checksums=digests, added_at=0.0
    )


def _bring(
    entry: Entry,
    formats: FormatSet,
    declared: Columns,
    brought: _Brought,
    present: Mapping[str, Record],
    incoming: Path,
    disk: Disk,
) -> None:
    """Bring one trajectory into the incoming folder, unless the store has it already."""
    record = entry.record
    ids = (entry.trajectory_id, entry.first_row_id)
    must_read = record is None or (record.trajectory_id, record.first_row_id) != ids
    if must_read:
        _read(entry, formats, declared, brought)
        record = brought.records.pop()
    assert record is not None
    stored = present.get(record.uuid)
    if (
        stored is not None
        and (stored.trajectory_id, stored.first_row_id) == ids
        and disk.formats.of(stored).is_whole(disk.folder, stored)
    ):
        brought.kept.append(stored.trajectory_id)
        record = stored
    elif must_read:
        snapshot = brought.snapshots[record.trajectory_id]
        record = disk.formats.own.write(incoming, record, snapshot, sync=True)
    else:
        formats.of(record).copy_to(entry.folder, record, incoming, sync=True)
    brought.records.append(record)
