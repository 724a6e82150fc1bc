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
from relive.errors import CorruptFileError, InvalidArgumentError, StorageError
from relive.format_set import FormatSet
from relive.formats.checksum import checksums
from relive.index import Numbering
from relive.record import Record
from relive.snapshot import Snapshot, take_snapshot
from relive.spec import Columns, Schema, admit, conform
from relive.store import Store

__all__ = ["numbering_after", "restore_entries"]


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
    newest = entries[-num_in_memory:] if num_in_memory else entries
    in_memory = {entry.trajectory_id for entry in newest}
    if store.disk is None:
        for entry in newest:
            _read(entry, formats, declared, brought)
        store.replace(brought.records, brought.snapshots, numbering, brought.schema)
        left_out = entries[: len(entries) - len(newest)]
        store.num_forgotten = len(left_out)
        store.num_forgotten_rows = sum(entry.num_rows for entry in left_out)
        return
    disk = store.disk
    present = {record.uuid: record for record in store.index}
    incoming = disk.folder / f"incoming-{files.token()}"
    try:
        files.create_folder(incoming)
        for entry in entries:
            _bring(entry, formats, declared, brought, present, incoming, disk.formats)
            if not (num_in_memory and entry.trajectory_id in in_memory):
                brought.snapshots.pop(entry.trajectory_id, None)
        files.sync_folder(incoming)
        disk.take_over(brought.records, brought.kept, numbering, brought.schema, incoming)
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
        files.remove_folder(incoming)
    store.replace(brought.records, brought.snapshots, numbering, brought.schema)
    store.fill_cache()


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
    brought.schema, snapshot = admit(brought.schema, declared, snapshot)
    brought.records.append(record)
    brought.snapshots[record.trajectory_id] = snapshot


def _describe_foreign(snapshot: Snapshot, entry: Entry) -> Record:
    """Return a record for what RLinf wrote, the same at each load of the same rows."""
    numbers = Numbering(entry.trajectory_id, next_row_id=entry.first_row_id)
    record = describe(snapshot, numbers)
    digests = checksums(snapshot, record.layout)
    identity = ":".join([str(entry.foreign["trajectory_id"]), *digests])
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
    into: FormatSet,
) -> None:
    """Bring one trajectory into the incoming folder, unless the store has it already."""
    record = entry.record
    if record is not None and (
        record.trajectory_id == entry.trajectory_id and record.first_row_id == entry.first_row_id
    ):
        stored = present.get(record.uuid)
        if stored is not None and stored.trajectory_id == record.trajectory_id:
            brought.records.append(stored)
            brought.kept.append(stored.trajectory_id)
        else:
            formats.of(record).copy_to(entry.folder, record, incoming, sync=True)
            brought.records.append(record)
        return
    _read(entry, formats, declared, brought)
    record = brought.records.pop()
    stored = present.get(record.uuid)
    if stored is not None and stored.trajectory_id == record.trajectory_id:
        brought.records.append(stored)
        brought.kept.append(stored.trajectory_id)
        return
    snapshot = brought.snapshots[record.trajectory_id]
    brought.records.append(into.own.write(incoming, record, snapshot, sync=True))


def numbering_after(numbering: Numbering, own: Numbering) -> Numbering:
    """Return the numbering that repeats neither what the checkpoint used nor what the store did.

    Args:
        numbering: Free after the checkpoint, for one rank or for all.
        own: Free in the store.

    Raises:
        InvalidArgumentError: No row id is left.
    """
    behind = own.next_trajectory_id - numbering.next_trajectory_id
    steps = max(0, -(-behind // numbering.stride))
    moved = numbering.next_trajectory_id + steps * numbering.stride
    if moved >= 1 << 62:
        raise InvalidArgumentError(f"trajectory id {moved} is too large")
    return Numbering(moved, numbering.stride, max(numbering.next_row_id, own.next_row_id))
