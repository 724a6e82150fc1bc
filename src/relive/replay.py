# SPDX-License-Identifier: Apache-2.0
"""What the files of an index amount to: the snapshot, and the journal's lines over it.

What is on disk is the result of `Replay.apply` over the lines; what is in memory comes from
the same function, so the two cannot differ.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from relive.errors import CorruptFileError, FormatVersionError, ReplayError
from relive.index_file import INDEX_NAME, IndexContents, numbering_from_json, read_index
from relive.journal_lines import JOURNAL_NAME, JournalLines, read_lines
from relive.record import Layout
from relive.record_json import LayoutTable, record_from_json
from relive.spec import Schema

__all__ = ["PREVIOUS_SUFFIX", "Replay", "replay"]

PREVIOUS_SUFFIX = ".previous"
"""Ends the names of index and journal of the generation before."""


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
    was_closed: bool = False
    """Whether it was so when the journal was opened."""
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
    lines = read_lines(folder / JOURNAL_NAME)
    problems: list[str] = []
    contents = _snapshot_for(folder, lines, problems)
    result = Replay(contents, problems=problems)
    if lines.generation == contents.generation:
        _apply_lines(result, lines, from_byte=contents.journal_bytes)
        result.valid_bytes = lines.valid_bytes
    contents.journal_bytes = result.valid_bytes
    result.was_closed = result.is_closed
    return result


def _snapshot_for(folder: Path, lines: JournalLines, problems: list[str]) -> IndexContents:
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
    lines = read_lines(folder / (JOURNAL_NAME + PREVIOUS_SUFFIX))
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


def _apply_lines(result: Replay, lines: JournalLines, *, from_byte: int) -> None:
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
