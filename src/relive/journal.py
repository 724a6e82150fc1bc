# SPDX-License-Identifier: Apache-2.0
"""The index on disk: an append-only journal over a snapshot.

Every change is one line of JSON with its checksum, appended to `trajectory_index.journal`;
storing the millionth trajectory costs what storing the first does. From time to time the
whole index is written to `trajectory_index.json`, which notes how much of the journal it
covers, and when the journal has grown as large as that file it starts anew with the next
generation number (a fold). Index and journal of the generation before are kept, so that a cut
index file can be rebuilt.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from relive import files
from relive.errors import ReplayError
from relive.index import Numbering
from relive.index_file import (
    INDEX_NAME,
    VERSION,
    IndexContents,
    numbering_to_json,
    read_index,
    write_index,
)
from relive.journal_lines import JOURNAL_NAME, encode_line
from relive.record import Record
from relive.record_json import LayoutTable, record_to_json
from relive.replay import PREVIOUS_SUFFIX, Replay
from relive.spec import Schema

__all__ = ["Journal"]

_SMALLEST_FOLD_BYTES = 1 << 20


class Journal:
    """The index of one store, open for writing. Only the writer's thread may use it."""

    def __init__(self, folder: Path, found: Replay | None) -> None:
        """Start a new index, or go on with one that `replay` read.

        Bytes after the last valid line are cut. The caller holds the folder's lock.

        Raises:
            OSError: The disk refused.
        """
        self._folder = folder
        self._state = found or Replay(IndexContents(generation=-1))
        self._index_bytes = 0
        self._must_renew = False
        if found is None or not found.valid_bytes:
            if found is not None:
                found.contents.generation -= 1
            self._begin_generation(sync=False)
        else:
            self._file = files.AppendFile(folder / JOURNAL_NAME)
            if self._file.size_bytes > found.valid_bytes:
                self._file.truncate(found.valid_bytes)
        dropped = [] if found is None else found.dropped
        self._append(
            [{"op": "open", "process": os.getpid()}, {"op": "remove", "ids": dropped}]
            if dropped
            else [{"op": "open", "process": os.getpid()}]
        )

    @property
    def contents(self) -> IndexContents:
        """What the files say now. Only the writer's thread may look at it."""
        return self._state.contents

    @property
    def has_unsynced(self) -> bool:
        """Whether a trajectory was added since the last `mark_synced`."""
        return bool(self._state.unsynced)

    def _begin_generation(self, *, sync: bool) -> None:
        """Replace the journal by an empty one of the next generation."""
        generation = self._state.contents.generation + 1
        first = encode_line({"op": "begin", "version": VERSION, "generation": generation})
        path = self._folder / JOURNAL_NAME
        files.write_atomic(path, lambda file: _write(file, first), sync=sync)
        self._file = files.AppendFile(path)
        self._must_renew = False
        self._state.layouts = LayoutTable()
        self._state.contents.generation = generation
        self._state.contents.journal_bytes = self._file.size_bytes

    def _append(self, changes: Sequence[dict[str, Any]]) -> None:
        if self._must_renew:
            self._fold(lambda: None)
        if self._file.is_closed:
            self._begin_generation(sync=True)
        self._file.append(b"".join(map(encode_line, changes)))
        for change in changes:
            if change["op"] not in {"add", "layout"}:  # those keep the objects they came from
                self._state.apply(change)
        self._state.contents.journal_bytes = self._file.size_bytes

    def add(self, record: Record) -> None:
        """Note a stored trajectory; after this it counts as stored.

        Raises:
            OSError: The disk refused; nothing was noted.
        """
        table = self._state.layouts
        changes: list[dict[str, Any]] = []
        is_new = record.layout not in table
        number = len(table.layouts) if is_new else table.number_of(record.layout)
        if is_new:
            changes.append({"op": "layout", "columns": record.layout.to_json()})
        changes.append({"op": "add", "record": record_to_json(record, number)})
        self._append(changes)
        table.number_of(record.layout)
        contents = self._state.contents
        contents.records[record.trajectory_id] = record
        contents.numbering = contents.numbering.past(record)
        self._state.unsynced[record.trajectory_id] = None

    def remove(self, trajectory_ids: Iterable[int]) -> None:
        """Note that trajectories are gone.

        Raises:
            OSError: The disk refused; nothing was noted.
        """
        self._append([{"op": "remove", "ids": list(trajectory_ids)}])

    def set_schema(self, schema: Schema) -> None:
        """Note what each trajectory has.

        Raises:
            OSError: The disk refused; nothing was noted.
        """
        if schema != self._state.contents.schema:
            self._append([{"op": "schema", "schema": schema.to_json()}])
            self._state.contents.schema = schema

    def set_numbering(self, numbering: Numbering) -> None:
        """Note which ids the next trajectory gets.

        Raises:
            OSError: The disk refused; nothing was noted.
        """
        if numbering != self._state.contents.numbering:
            self._append([{"op": "numbering", "numbering": numbering_to_json(numbering)}])

    def load(
        self,
        loaded: Sequence[Record],
        kept: Sequence[int],
        order: Sequence[int],
        numbering: Numbering,
        schema: Schema | None,
        moving: str,
    ) -> None:
        """Note in one line that other trajectories take the place of the present ones.

        Args:
            loaded: Records that come in.
            kept: Ids that stay.
            order: Ids of both, oldest first.
            numbering: Ids of the next trajectory.
            schema: What each trajectory has.
            moving: Name of the folder from which the files of `loaded` are moved into place
                after this; `mark_moved` notes that it is done.

        Raises:
            OSError: The disk refused; nothing was noted.
        """
        table = LayoutTable()
        records = [record_to_json(record, table.number_of(record.layout)) for record in loaded]
        self._append(
            [
                {
                    "op": "load",
                    "moving": moving,
                    "layouts": [layout.to_json() for layout in table.layouts],
                    "records": records,
                    "keep": list(kept),
                    "order": list(order),
                    "numbering": numbering_to_json(numbering),
                    "schema": None if schema is None else schema.to_json(),
                }
            ]
        )
        self.sync()

    def mark_moved(self) -> None:
        """Note that the files of the last load are in place.

        Raises:
            OSError: The disk refused.
        """
        self._append([{"op": "moved"}])

    def mark_synced(self) -> None:
        """Note that all trajectories so far are on the disk, and make the journal so.

        Raises:
            OSError: The disk refused.
        """
        self._append([{"op": "synced"}])
        self.sync()

    def sync(self) -> None:
        """Make what was noted survive a power loss.

        Raises:
            OSError: The disk refused; all is written anew to other files before the next change.
        """
        try:
            self._file.sync()
        except OSError:
            self._must_renew = True  # the kernel may have dropped the pages it could not write
            raise

    def export(self, between_slices: Callable[[], None]) -> None:
        """Write the index file; fold when the journal has grown as large as it.

        Raises:
            OSError: The disk refused; what was noted is as safe as before.
        """
        if self._must_renew or self._file.size_bytes >= max(
            _SMALLEST_FOLD_BYTES, self._index_bytes
        ):
            self._fold(between_slices)
            return
        path = self._folder / INDEX_NAME
        write_index(path, self.contents, sync=False, between_slices=between_slices)
        self._index_bytes = files.size_bytes(path)

    def _fold(self, between_slices: Callable[[], None]) -> None:
        path = self._folder / INDEX_NAME
        contents = self.contents
        for name in (INDEX_NAME, JOURNAL_NAME):
            files.keep_previous(self._folder / name, PREVIOUS_SUFFIX)
        generation = contents.generation + 1
        folded = IndexContents(contents.records, contents.numbering, contents.schema, generation)
        try:
            write_index(path, folded, sync=True, between_slices=between_slices)
        except OSError:
            if _generation_of(path) != generation:
                raise
        # from here on the old journal is void: nothing may be appended before there is a new one
        self._file.close()
        self._index_bytes = files.size_bytes(path)
        self._begin_generation(sync=True)

    def close(self) -> None:
        """Note that all was stored, and let go of the file; twice is fine.

        Raises:
            OSError: The disk refused.
        """
        self._append([{"op": "close"}])
        self._file.close()

    def abandon(self) -> None:
        """Let go of the file without a word, as a killed process would."""
        self._file.close()


def _generation_of(path: Path) -> int:
    """Return the generation of an index file, -1 when it cannot be read."""
    try:
        contents, _, _ = read_index(path)
    except (ReplayError, OSError):
        return -1
    return -1 if contents is None else contents.generation


def _write(file: BinaryIO, block: bytes) -> None:
    file.write(block)
