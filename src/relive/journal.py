# SPDX-License-Identifier: Apache-2.0
"""The index on disk: an append-only journal over a snapshot.

Every change is one line of JSON with its checksum, appended to `trajectory_index.journal`;
storing the millionth trajectory costs what storing the first does. From time to time the
whole index is written to `trajectory_index.json`, which notes how much of the journal it
covers, and when the journal has grown as large as that file it starts anew with the next
generation number (a fold). Index and journal of the generation before are kept, so that a cut
index file can be rebuilt.

What is on disk is the result of `apply` over the lines; what is in memory comes from the
same function, so the two cannot differ.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import xxhash

from relive import files
from relive.errors import CorruptFileError, FormatVersionError, ReplayError
from relive.index import Numbering
from relive.index_file import (
    INDEX_NAME,
    VERSION,
    IndexContents,
    numbering_from_json,
    numbering_to_json,
    read_index,
    write_index,
)
from relive.record import Layout, Record
from relive.record_json import LayoutTable, record_from_json, record_to_json
from relive.spec import Schema

__all__ = [
    "JOURNAL_NAME",
    "PREVIOUS_SUFFIX",
    "Journal",
    "Replay",
    "decode_line",
    "encode_line",
    "replay",
]

JOURNAL_NAME = "trajectory_index.journal"
PREVIOUS_SUFFIX = ".previous"
"""Ends the names of index and journal of the generation before."""

_SEAL = ',"xxh3":"'
_SEAL_BYTES = len(_SEAL) + 16 + len('"}')
_SMALLEST_FOLD_BYTES = 1 << 20


def encode_line(change: dict[str, Any]) -> bytes:
    r"""Return a change as a line of the journal.

    Example:
        >>> encode_line({"op": "close"})
        b'{"op":"close","xxh3":"f3a96f7b164e114e"}\n'
    """
    body = json.dumps(change, separators=(",", ":"))[:-1].encode("ascii")
    return body + f'{_SEAL}{xxhash.xxh3_64_hexdigest(body)}"}}\n'.encode("ascii")


def decode_line(line: bytes) -> dict[str, Any] | None:
    """Return the change that a line without its end says, or None when the line is damaged.

    Example:
        >>> decode_line(encode_line({"op": "close"})[:-1])
        {'op': 'close'}
    """
    body, seal = line[:-_SEAL_BYTES], line[-_SEAL_BYTES:]
    if seal != f'{_SEAL}{xxhash.xxh3_64_hexdigest(body)}"}}'.encode("ascii"):
        return None
    try:
        change = json.loads(body + b"}")
    except (ValueError, RecursionError):
        return None
    return change if isinstance(change, dict) else None


@dataclass
class Replay:
    """What the lines of a journal amount to, and what was found on the way."""

    contents: IndexContents
    """The index."""
    layouts: LayoutTable = field(default_factory=LayoutTable)
    """Layouts by the numbers of this journal."""
    valid_bytes: int = 0
    """Up to the end of the last valid line."""
    is_closed: bool = False
    """Whether the last line says that the writer closed the store."""
    unsynced: dict[int, None] = field(default_factory=dict)
    """Trajectories added since the last line that says all before it is on the disk."""
    moving: str | None = None
    """Name of the folder whose files a load is moving into place, until that is done."""
    dropped: list[int] = field(default_factory=list)
    """Trajectories that the opening took out, which the journal still has to say."""
    problems: list[str] = field(default_factory=list)
    """What was skipped or repaired, for a warning."""

    def apply(self, change: dict[str, Any]) -> None:
        """Carry out one change.

        Raises:
            CorruptFileError: It contradicts what holds.
            FormatVersionError: A later release wrote it.
        """
        contents = self.contents
        op = change.get("op")
        self.is_closed = op == "close"
        if op == "add":
            record = record_from_json(change.get("record"), self.layouts.layouts)
            if record.trajectory_id in contents.records:
                raise CorruptFileError(f"trajectory {record.trajectory_id} is added twice")
            contents.records[record.trajectory_id] = record
            contents.numbering = contents.numbering.past(record)
            self.unsynced[record.trajectory_id] = None
        elif op == "remove":
            for trajectory_id in change["ids"]:
                contents.records.pop(trajectory_id, None)
                self.unsynced.pop(trajectory_id, None)
        elif op == "layout":
            self.layouts.number_of(Layout.from_json(change.get("columns")))
        elif op == "schema":
            contents.schema = Schema.from_json(change.get("schema"))
        elif op == "numbering":
            contents.numbering = numbering_from_json(change.get("numbering"))
        elif op == "load":
            self._apply_load(change)
        elif op == "moved":
            self.moving = None
        elif op == "synced":
            self.unsynced.clear()
        elif op not in {"open", "close"}:
            raise FormatVersionError(f"a journal line says {op!r}, which this release cannot read")

    def _apply_load(self, change: dict[str, Any]) -> None:
        contents = self.contents
        layouts = [Layout.from_json(entry) for entry in change["layouts"]]
        loaded = [record_from_json(entry, layouts) for entry in change["records"]]
        kept = {n: contents.records[n] for n in change["keep"]}
        records = {**kept, **{record.trajectory_id: record for record in loaded}}
        contents.records = {n: records[n] for n in change["order"]}
        contents.numbering = numbering_from_json(change["numbering"])
        contents.schema = None if change["schema"] is None else Schema.from_json(change["schema"])
        self.unsynced.clear()
        self.moving = str(change["moving"])


def replay(folder: Path) -> Replay:
    """Read the index of a store from its files, changing none.

    Raises:
        MissingFileError: There is no index.
        CorruptFileError: Neither the index nor its previous copy can be used.
        FormatVersionError: A later release wrote it.
    """
    lines = _read_journal(folder / JOURNAL_NAME)
    problems: list[str] = []
    contents = _snapshot_for(folder, lines, problems)
    result = Replay(contents, problems=problems)
    if lines.generation == contents.generation:
        _apply_lines(result, lines, from_byte=contents.journal_bytes)
        result.valid_bytes = lines.valid_bytes
    contents.journal_bytes = result.valid_bytes
    return result


@dataclass
class _Lines:
    """The valid lines of a journal file, each with the byte where it begins."""

    changes: list[tuple[int, dict[str, Any]]]
    generation: int
    valid_bytes: int
    num_bad: int


def _read_journal(path: Path) -> _Lines:
    try:
        block = files.read_bytes(path)
    except FileNotFoundError:
        return _Lines([], -1, 0, 0)
    changes: list[tuple[int, dict[str, Any]]] = []
    position = valid_bytes = num_bad = pending_bad = 0
    while (stop := block.find(b"\n", position)) >= 0:
        change = decode_line(block[position:stop])
        if change is None:
            pending_bad += 1
        else:
            changes.append((position, change))
            valid_bytes, num_bad = stop + 1, pending_bad
        position = stop + 1
    generation = -1
    if changes and changes[0][0] == 0 and changes[0][1].get("op") == "begin":
        version = changes[0][1].get("version")
        if not isinstance(version, int) or version > VERSION:
            raise FormatVersionError(
                f"{str(path)!r} has format version {version!r}, but this release of relive reads "
                f"up to {VERSION}; upgrade relive",
                path=str(path),
            )
        generation = int(changes.pop(0)[1].get("generation", -1))
    return _Lines(changes, generation, valid_bytes, num_bad)


def _snapshot_for(folder: Path, lines: _Lines, problems: list[str]) -> IndexContents:
    """Return the index file's contents, or what its previous copies give when it cannot be used."""
    path = folder / INDEX_NAME
    failure: ReplayError | None = None
    try:
        contents, _, _ = read_index(path)
    except FormatVersionError:
        raise
    except ReplayError as error:
        contents, failure = None, error
    if contents is not None and lines.generation <= contents.generation:
        return contents
    if lines.generation == 0:
        rebuilt = IndexContents()
    elif lines.generation > 0:
        rebuilt = _previous_contents(folder, lines.generation, failure)
    else:
        raise failure or CorruptFileError(
            f"{str(path)!r} is not an index of relive, and {JOURNAL_NAME} does not help; load the "
            "folder with load_checkpoint() if RLinf wrote it",
            path=str(path),
        )
    if failure is not None:
        problems.append(f"{failure}; the index was rebuilt from the journal")
    return rebuilt


def _previous_contents(folder: Path, generation: int, failure: ReplayError | None) -> IndexContents:
    lines = _read_journal(folder / (JOURNAL_NAME + PREVIOUS_SUFFIX))
    try:
        if generation == 1:
            contents: IndexContents | None = IndexContents()
        else:
            contents, _, _ = read_index(folder / (INDEX_NAME + PREVIOUS_SUFFIX))
    except ReplayError as error:
        raise failure or error from error
    if contents is None or not contents.generation == lines.generation == generation - 1:
        raise failure or CorruptFileError(
            f"index and journal in {str(folder)!r} do not belong together, nor do their previous "
            "copies; restore the folder from a copy",
            path=str(folder),
        )
    before = Replay(contents)
    _apply_lines(before, lines, from_byte=contents.journal_bytes)
    contents.generation, contents.journal_bytes = generation, 0
    return contents


def _apply_lines(result: Replay, lines: _Lines, *, from_byte: int) -> None:
    """Carry out the lines after a byte; of those before, only what later lines refer to."""
    bad = lines.num_bad
    for position, change in lines.changes:
        if position < from_byte:
            if change.get("op") == "layout":
                result.apply(change)
            elif change.get("op") in {"synced", "close"}:
                result.unsynced.clear()
            elif change.get("op") == "add":
                result.unsynced[change["record"]["trajectory_id"]] = None
            elif change.get("op") in {"load", "moved"}:
                result.unsynced.clear()
                result.moving = change.get("moving")
            continue
        try:
            result.apply(change)
        except FormatVersionError:
            raise
        except (ReplayError, KeyError, TypeError, ValueError) as error:
            bad += 1
            result.problems.append(f"a journal line was skipped: {error}")
    result.unsynced = {n: None for n in result.unsynced if n in result.contents.records}
    if lines.changes:
        result.is_closed = lines.changes[-1][1].get("op") == "close"
    if lines.num_bad:
        result.problems.append(f"{lines.num_bad} damaged lines of {JOURNAL_NAME} were skipped")


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
