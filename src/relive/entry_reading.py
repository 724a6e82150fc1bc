# SPDX-License-Identifier: Apache-2.0
"""Reading the trajectories that a checkpoint lists, ours and RLinf's alike."""

from __future__ import annotations

from dataclasses import replace
from uuid import NAMESPACE_OID, uuid5

from relive.checkpoint_contents import Entry
from relive.describe import describe
from relive.errors import CorruptFileError
from relive.format_set import FormatSet
from relive.formats.checksum import checksums
from relive.formats.layouts import layout_of
from relive.numbering import Numbering
from relive.record import Record
from relive.snapshot import Snapshot, take_snapshot
from relive.spec import Columns, Schema, admit

__all__ = ["EntryReader"]


class EntryReader:
    """Reads trajectories one after the other, and sees to it that their columns agree."""

    def __init__(self, formats: FormatSet, declared: Columns, schema: Schema | None) -> None:
        """Begin.

        Args:
            formats: To read files.
            declared: The user's declaration.
            schema: What each trajectory has; None takes it from the first one read.
        """
        self.schema = schema
        """What each trajectory has, as far as they were read."""
        self._formats = formats
        self._declared = declared

    def read(self, entry: Entry) -> tuple[Record, Snapshot]:
        """Read a trajectory, and let the schema admit it.

        Raises:
            ColumnMismatchError: Its columns differ from those before it.
            MissingFileError: Its file is not there.
            CorruptFileError: Its file is cut, damaged or another program's.
        """
        saved = entry.record
        if saved is None:
            snapshot = self._read_foreign(entry)
            record = _describe_foreign(snapshot, entry)
        else:
            snapshot = self._formats.of(saved).read(entry.folder, saved)
            record = replace(
                saved,
                trajectory_id=entry.trajectory_id,
                first_row_id=entry.first_row_id,
            )
            snapshot = _without_dropped(snapshot, self.schema)
        self.schema, snapshot = admit(self.schema, self._declared, snapshot)
        if len(snapshot.columns) != len(record.layout.columns):
            layout = layout_of(snapshot)
            texts = {name: text for name, text in record.texts.items() if name in layout}
            digests = checksums(snapshot, layout)
            record = replace(record, layout=layout, checksums=digests, texts=texts)
        return record, snapshot

    def _read_foreign(self, entry: Entry) -> Snapshot:
        path = entry.path(self._formats)
        snapshot = take_snapshot(self._formats.with_files(entry.format).read_file(path))
        if snapshot.num_rows != entry.num_rows:
            raise CorruptFileError(
                f"{str(path)!r} holds {snapshot.num_rows} rows, but the index says "
                f"{entry.num_rows}; restore the folder from a copy",
                path=str(path),
            )
        return snapshot


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
