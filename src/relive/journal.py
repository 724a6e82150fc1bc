# SPDX-License-Identifier: Apache-2.0
"""The index on disk: an append-only journal over an index file.

Every change is one line of JSON with its checksum, appended to `trajectory_index.journal`;
storing the millionth trajectory costs what storing the first does. From time to time the
whole index is written to `trajectory_index.json`, which notes how much of the journal it
covers, and when the journal has grown as large as that file it starts anew with the next
generation number (a fold). Index and journal of the generation before are kept, so that a cut
index file can be rebuilt.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import xxhash

from relive import files, open_files
from relive.errors import ClosedError
from relive.index_arrays import ARRAYS_NAME, Covered, IndexArrays, write_arrays
from relive.index_file import (
    INDEX_NAME,
    VERSION,
    IndexContents,
)
from relive.index_writer import IndexWriter
from relive.journal_lines import ADDITION, JOURNAL_NAME, encode_addition, encode_line
from relive.journal_replay import PREVIOUS_SUFFIX, Replay
from relive.numbering import Numbering
from relive.read_file import ReadFile
from relive.record import Record
from relive.record_json import LayoutTable, record_text, record_to_json
from relive.record_texts import at_journal
from relive.spec import Schema

__all__ = ["Journal"]

_SMALLEST_FOLD_BYTES = 1 << 20
_LONG_TAIL_BYTES = 16 << 20  # of the journal, which take seconds to read
_ARRAYS_ROW_BYTES = 52


class Journal:
    """The index of one store, open for writing. Only the writer's thread may use it."""

    def __init__(self, folder: Path, found: Replay | None) -> None:
        """Start a new index, or go on with one that `replay` read.

        Bytes after the last valid line are cut. The caller holds the folder's lock.

        Raises:
            OSError: The disk refused.
        """
        self._folder = folder
        self._state = found or Replay(IndexContents())
        self._file: open_files.AppendFile | None = None  # None until the generation has a journal
        self._must_renew = False
        self._is_closed = False
        self._arrays_due_at = _LONG_TAIL_BYTES
        self._digest = xxhash.xxh3_64()  # of the journal
        self._covered = self._state.index  # None when it is not what records are looked up in
        path = folder / INDEX_NAME
        self._index_bytes = files.size_bytes(path) if files.exists(path) else 0
        try:
            self._open(found)
        except BaseException:  # Ctrl+C among others: no descriptor stays open
            self.abandon()
            raise

    def _open(self, found: Replay | None) -> None:
        if found is not None and found.is_cut:
            self._fold(lambda: None)
        elif found is not None and found.valid_bytes:
            assert found.file is not None, "else it has no valid byte"
            self._digest = found.file.digest(found.valid_bytes)
            self._file = open_files.AppendFile(self._folder / JOURNAL_NAME)
            if self._file.size_bytes > found.valid_bytes:
                self._file.truncate(found.valid_bytes)
        changes: list[dict[str, Any]] = [{"op": "open", "process": os.getpid()}]
        if found is not None and found.dropped:
            changes.append({"op": "remove", "ids": found.dropped})
        self._append(changes)

    @property
    def contents(self) -> IndexContents:
        """What the files say now. Only the writer's thread may look at it."""
        return self._state.contents

    def _begin(self) -> open_files.AppendFile:
        """Replace the journal by an empty one of the index's generation."""
        contents = self.contents
        first = {
            "op": "begin",
            "version": VERSION,
            "unsynced": list(self._state.unsynced),
            "moving": self._state.moving,
        }
        block = self._encode([first])
        path = self._folder / JOURNAL_NAME
        files.write_atomic(path, lambda file: file.write(block), sync=True)
        contents.records.read_journal_from(ReadFile(path))
        self._file = open_files.AppendFile(path)
        self._digest = xxhash.xxh3_64(block)
        self._must_renew = False
        self._arrays_due_at = _LONG_TAIL_BYTES
        self._state.layouts, self._state.is_whole = {}, True
        contents.journal_bytes = self._file.size_bytes
        return self._file

    def _encode(self, changes: Sequence[dict[str, Any]]) -> bytes:
        generation = self.contents.generation
        return b"".join(encode_line({**change, "generation": generation}) for change in changes)

    def _ready_file(self) -> open_files.AppendFile:
        """Return the journal file when lines may follow what is in it."""
        if self._is_closed:
            raise ClosedError("the index is closed, but a change came; open the store again")
        if self._must_renew and self._file is not None:
            self._fold(lambda: None)
        return self._file or self._begin()

    def _append(self, changes: Sequence[dict[str, Any]]) -> None:
        file = self._ready_file()  # which may begin another generation
        self._write(file, self._encode(changes))
        for change in changes:
            self._state.apply(change)

    def _write(self, file: open_files.AppendFile, block: bytes) -> int:
        """Append lines; return the byte where they begin."""
        start = file.size_bytes
        file.append(block)
        self._digest.update(block)
        self.contents.journal_bytes = file.size_bytes
        return start

    def add(self, record: Record, *, is_synced: bool = False) -> None:
        """Note a stored trajectory; after this it counts as stored.

        Args:
            record: The trajectory.
            is_synced: Whether its rows survive a power loss already.

        Raises:
            OSError: The disk refused; nothing was noted.
        """
        file = self._ready_file()  # which may begin a journal without layouts
        table, spoken = self.contents.records.layouts, self._state.layouts
        number = table.number_of(record.layout)
        before = b""
        if number not in spoken:
            columns = record.layout.to_json()
            before = self._encode([{"op": "layout", "number": number, "columns": columns}])
        text, generation = record_text(record, number), self.contents.generation
        line = encode_addition(text, is_synced=is_synced, generation=generation)
        start = self._write(file, before + line) + len(before) + len(ADDITION)
        spoken[number] = table[number]
        self.contents.records.note(record, number, at_journal(start), len(text))
        self.contents.numbering = self.contents.numbering.past(record)
        self._state.track_addition(record.trajectory_id, is_synced=is_synced)
        self._state.num_changes += 1
        if file.size_bytes >= self._arrays_due_at:
            with contextlib.suppress(OSError):  # nothing is lost without them
                self._write_arrays()

    def relocate(self, record: Record, *, is_synced: bool = False) -> None:
        """Note that the rows of a stored trajectory lie elsewhere now.

        Args:
            record: The trajectory.
            is_synced: Whether its rows survive a power loss already.

        Raises:
            OSError: The disk refused; nothing was noted.
        """
        self._ready_file()  # which may begin a journal without layouts
        number = self.contents.records.layouts.number_of(record.layout)
        changes: list[dict[str, Any]] = []
        if number not in self._state.layouts:
            columns = record.layout.to_json()
            changes.append({"op": "layout", "number": number, "columns": columns})
        entry = record_to_json(record, number)
        self._append([*changes, {"op": "relocate", "record": entry, "is_synced": is_synced}])

    def remove(self, trajectory_ids: Iterable[int]) -> None:
        """Note that trajectories are gone.

        Raises:
            OSError: The disk refused; nothing was noted.
        """
        self._append([{"op": "remove", "ids": list(trajectory_ids)}])

    def set_schema(self, schema: Schema | None) -> None:
        """Note what each trajectory has; None when nothing holds any more.

        Raises:
            OSError: The disk refused; nothing was noted.
        """
        if schema is not self._state.contents.schema:
            entry = None if schema is None else schema.to_json()
            self._append([{"op": "schema", "schema": entry}])
            self._state.contents.schema = schema

    def set_numbering(self, numbering: Numbering) -> None:
        """Note which ids the next trajectory gets.

        Raises:
            OSError: The disk refused; nothing was noted.
        """
        if numbering != self._state.contents.numbering:
            self._append([{"op": "numbering", "numbering": numbering.to_json()}])

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
        change = {
            "op": "load",
            "moving": moving,
            "layouts": [layout.to_json() for layout in table.values()],
            "records": records,
            "keep": list(kept),
            "order": list(order),
            "numbering": numbering.to_json(),
            "schema": None if schema is None else schema.to_json(),
        }
        file = self._ready_file()
        before = self._write(file, self._encode([change]))
        try:
            self.sync()
        except OSError:
            with contextlib.suppress(OSError):  # the next change begins another file in any case
                file.truncate(before)
            self.contents.journal_bytes = before
            raise
        self._state.apply(change)
        self.contents.schema = schema

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
        if self._must_renew:
            self._ready_file()
        if self._file is None:
            return  # the index file says it all, and was synced
        try:
            self._file.sync()
        except OSError:
            self._must_renew = True  # the kernel may have dropped the pages it could not write
            raise

    def export(self, between_slices: Callable[[], None], *, with_index: bool = True) -> None:
        """Write the index file; fold when the journal has grown as large as it.

        Beside it the index is written as arrays, for the next opening.

        Args:
            between_slices: Called every few records, so that a long write lets others run.
            with_index: Whether the index file must be complete; else only a fold writes it.

        Raises:
            OSError: The disk refused; what was noted is as safe as before.
        """
        limit = max(_SMALLEST_FOLD_BYTES, self._index_bytes)
        file = self._file or self._begin()
        is_lost = self._covered is None and files.exists(self._folder / INDEX_NAME)
        is_old = with_index and (self._covered is None or self._state.num_changes)
        if self._must_renew or file.size_bytes >= limit:
            self._fold(between_slices)
        elif is_old or is_lost or self.contents.records.num_without_text:
            writer = IndexWriter(self.contents, between_slices=between_slices)
            writer.write(self._folder / INDEX_NAME, sync=False)
            self._take_over(writer)
        self._write_arrays()

    def _take_over(self, writer: IndexWriter) -> None:
        """Look records up in the index file just written."""
        writer.rebase()
        self._covered = Covered(writer.size_bytes, writer.xxh3)
        self._index_bytes, self._state.num_changes = writer.size_bytes, 0

    def _write_arrays(self) -> None:
        """Write the index as arrays, unless the next opening has something to say of the lines."""
        num_bytes = max(_LONG_TAIL_BYTES, _ARRAYS_ROW_BYTES * len(self.contents.records))
        self._arrays_due_at = self.contents.journal_bytes + num_bytes
        state, contents = self._state, self.contents
        table, file = contents.records.layouts, self._file
        is_plain = all(table.get(number) == layout for number, layout in state.layouts.items())
        is_plain &= state.is_whole and state.moving is None
        is_plain &= not contents.records.num_without_text
        path = self._folder / INDEX_NAME
        if not is_plain or file is None or (self._covered is None and files.exists(path)):
            return
        arrays = IndexArrays(
            contents,
            list(state.layouts),
            list(state.unsynced),
            state.num_changes,
            index=self._covered,
            journal=Covered(file.size_bytes, self._digest.hexdigest()),
        )
        write_arrays(self._folder / ARRAYS_NAME, arrays)

    def _fold(self, between_slices: Callable[[], None]) -> None:
        """Write all to an index file of the next generation, and begin its journal."""
        path = self._folder / INDEX_NAME
        contents = self.contents
        for name in (INDEX_NAME, JOURNAL_NAME):
            files.keep_previous(self._folder / name, PREVIOUS_SUFFIX)
        contents.records.drop_unused_layouts()
        generation = contents.generation + 1
        folded = IndexContents(contents.records, contents.numbering, contents.schema, generation)
        writer = IndexWriter(folded, between_slices=between_slices)
        try:
            writer.write(path, sync=True)
        except OSError:
            if writer.file is None or not writer.file.is_at(path):
                raise
        # from here on the old journal is void: nothing may be appended before there is a new one
        contents.generation = generation
        if self._file is not None:
            self._file.close()
            self._file = None
        self._take_over(writer)
        self._begin()

    def close(self) -> None:
        """Note that all was stored, and let go of the file; twice is fine.

        Raises:
            OSError: The disk refused.
        """
        if not self._is_closed:
            self._append([{"op": "close"}])
            self.abandon()

    def abandon(self) -> None:
        """Let go of the files without a word, as a killed process would."""
        self._is_closed = True
        self.contents.records.close()
        if self._file is not None:
            self._file.close()
