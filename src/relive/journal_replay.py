# SPDX-License-Identifier: Apache-2.0
"""What the files of an index amount to: the index file, and the journal's lines over it.

What is on disk is the result of `Replay.apply` over the lines; what is in memory comes from
the same function, so the two cannot differ.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from relive.errors import CorruptFileError, FormatVersionError, MissingFileError, ReplayError
from relive.index_arrays import ARRAYS_NAME, Covered, read_arrays
from relive.index_file import (
    INDEX_NAME,
    FoundIndex,
    IndexContents,
    read_index,
)
from relive.journal_lines import ADDITION, JOURNAL_NAME, JournalLines, open_lines
from relive.numbering import Numbering
from relive.read_file import ReadFile
from relive.record import Layout, natural
from relive.record_json import record_from_json
from relive.record_texts import at_journal
from relive.spec import Schema
from relive.warning import cause_of

__all__ = ["PREVIOUS_SUFFIX", "Replay", "replay"]

PREVIOUS_SUFFIX = ".previous"
"""Ends the names of index and journal of the generation before."""


_NO_NAMES = frozenset({"", ".", ".."})
_NO_CHANGES = frozenset({"begin", "open", "layout", "moved", "synced", "close"})


@dataclass
class Replay:
    """What the lines of a journal amount to, and what was found on the way."""

    contents: IndexContents
    """The index."""
    layouts: dict[int, Layout] = field(default_factory=dict)
    """Layouts by the numbers that this journal gave them."""
    valid_bytes: int = 0
    """Up to the end of the last valid line; 0 when the journal is void or gone."""
    is_cut: bool = False
    """Whether the index covers lines that the journal lacks, so that a new one must begin."""
    is_closed: bool = False
    """Whether the last line says that the writer closed the store."""
    was_closed: bool = False
    """Whether it was so when the journal was opened."""
    unsynced: dict[int, None] = field(default_factory=dict)
    """Trajectories of which no line says that they are on the disk."""
    moving: str | None = None
    """Name of the folder whose files a load is moving into place, until that is done."""
    dropped: list[int] = field(default_factory=list)
    """Trajectories that the opening took out, which the journal still has to say."""
    problems: list[str] = field(default_factory=list)
    """What was skipped or repaired, for a warning."""
    is_whole: bool = True
    """Whether no line was skipped; else the next opening has to say so too."""
    file: ReadFile | None = None
    """The journal."""
    index: Covered | None = None
    """The index file, when records are looked up in it."""
    num_changes: int = 0
    """Changes of the index that this file lacks."""

    @property
    def is_exported(self) -> bool:
        """Whether the index file says all, as that of a store that was closed does."""
        return self.was_closed and self.index is not None and not self.problems

    def close(self) -> None:
        """Let go of the files: nothing is looked up in them any more."""
        self.contents.records.close()
        if self.file is not None:
            self.file.close()

    def apply(self, change: dict[str, Any], text: tuple[int, int] | None = None) -> None:
        """Carry out one change.

        Args:
            change: What a line says.
            text: Of an addition, where the text of its record begins in the journal, and how
                long it is, if it stands there as `record_text` gives it.

        Raises:
            CorruptFileError: It contradicts what holds.
            FormatVersionError: A later release wrote it.
        """
        try:
            self._apply(change, text)
            self.track(change)
            self.num_changes += change["op"] not in _NO_CHANGES
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            if isinstance(error, ReplayError):
                raise
            raise CorruptFileError(f"{change!r:.200} does not fit what was before it") from error

    def _apply(self, change: dict[str, Any], text: tuple[int, int] | None) -> None:
        contents, records = self.contents, self.contents.records
        op = change.get("op")
        if op == "add":
            entry = change.get("record")
            record = record_from_json(entry, self.layouts)
            if record.trajectory_id in records:
                raise CorruptFileError(f"trajectory {record.trajectory_id} is added twice")
            contents.numbering = contents.numbering.past(record)
            number = records.layouts.number_of(record.layout)
            if text is None or number != change["record"]["layout"]:
                records[record.trajectory_id] = record
            else:
                records.note(record, number, at_journal(text[0]), text[1])
        elif op == "relocate":
            records.relocate(record_from_json(change.get("record"), self.layouts))
        elif op == "remove":
            records.discard([natural(n) for n in change["ids"]])
        elif op == "schema":
            contents.schema = _schema_of(change)
        elif op == "numbering":
            contents.numbering = Numbering.from_json(change.get("numbering"))
        elif op == "load":
            self._apply_load(change)
        elif op not in _NO_CHANGES:
            raise FormatVersionError(
                f"a journal line says {op!r:.40}, but this release of relive knows no such change; "
                "upgrade relive"
            )

    def _apply_load(self, change: dict[str, Any]) -> None:
        contents = self.contents
        layouts = [Layout.from_json(entry) for entry in change["layouts"]]
        loaded = [record_from_json(entry, layouts) for entry in change["records"]]
        kept, order = change["keep"], list(dict.fromkeys(change["order"]))
        there = {n: None for n in kept if n in contents.records}
        if len(there) < len(kept) or not set(order) <= {*kept, *(r.trajectory_id for r in loaded)}:
            raise CorruptFileError(
                f"a load keeps {kept!r:.100}, but they are not all there; restore the folder from "
                "a copy"
            )
        in_order = contents.records.successor(order, loaded)
        numbering, schema = Numbering.from_json(change["numbering"]), _schema_of(change)
        contents.records, contents.numbering, contents.schema = in_order, numbering, schema

    def track(self, change: dict[str, Any]) -> None:
        """Carry out what a change means for everything but the index."""
        op = change.get("op")
        self.is_closed = op == "close"
        if op == "layout":
            number, layout = natural(change["number"]), Layout.from_json(change["columns"])
            if number in self.layouts:
                raise CorruptFileError(
                    f"layout {number} is {layout!r:.100}, but another one has the number already; "
                    "restore the folder from a copy"
                )
            self.layouts[number] = layout
            self.contents.records.layouts.offer(number, layout)
        elif op in {"add", "relocate"}:
            self.track_addition(
                change["record"]["trajectory_id"], is_synced=bool(change.get("is_synced"))
            )
        elif op == "remove":
            for trajectory_id in change["ids"]:
                self.unsynced.pop(trajectory_id, None)
        elif op == "begin":
            self.unsynced = dict.fromkeys(change["unsynced"])
            self.moving = _checked_name(change["moving"])
        elif op == "load":
            self.unsynced.clear()
            self.moving = _checked_name(change["moving"])
        elif op == "moved":
            self.moving = None
        elif op in {"synced", "close"}:
            self.unsynced.clear()

    def track_addition(self, trajectory_id: int, *, is_synced: bool) -> None:
        """Carry out what an addition means for everything but the index."""
        self.is_closed = False
        if not is_synced:
            self.unsynced[trajectory_id] = None


def _checked_name(moving: object) -> str | None:
    if moving is not None and (not isinstance(moving, str) or "/" in moving or moving in _NO_NAMES):
        raise CorruptFileError(
            f"a load moves from {moving!r:.100}, but the journal names folders inside its own; "
            "restore the folder from a copy"
        )
    return moving


def _schema_of(change: dict[str, Any]) -> Schema | None:
    return None if change["schema"] is None else Schema.from_json(change["schema"])


def replay(folder: Path) -> Replay:
    """Read the index of a store from its files, changing none.

    Raises:
        MissingFileError: There is no index.
        CorruptFileError: Neither the index nor its previous copy can be used.
        FormatVersionError: A later release wrote it.
    """
    result = _replay_arrays(folder) or _replay_all(folder)
    result.was_closed = result.is_closed
    return result


def _replay_arrays(folder: Path) -> Replay | None:
    """Go on from the index as arrays, if it fits: only what the journal says since is read."""
    journal = folder / JOURNAL_NAME
    found = read_arrays(folder / ARRAYS_NAME, folder / INDEX_NAME, journal)
    if found is None:
        return None
    contents = found.contents
    layouts = contents.records.layouts
    result = Replay(
        contents,
        {number: layouts[number] for number in found.journal_layouts},
        unsynced=dict.fromkeys(found.unsynced),
        file=contents.records.journal,
        index=found.index,
        num_changes=found.num_changes,
    )
    try:
        lines = JournalLines(result.file, contents.journal_bytes)
        _apply_lines(result, lines)
    except BaseException:  # Ctrl+C among others: no descriptor stays open
        result.close()
        raise
    result.valid_bytes = contents.journal_bytes = lines.valid_bytes
    return result


def _replay_all(folder: Path) -> Replay:
    lines = open_lines(folder / JOURNAL_NAME)
    try:
        return _replay_lines(folder, lines)
    except BaseException:  # Ctrl+C among others: no descriptor stays open
        if lines.file is not None:
            lines.file.close()
        raise


def _replay_lines(folder: Path, lines: JournalLines) -> Replay:
    problems: list[str] = []
    contents, covered = _index_for(folder, lines, problems)
    result = Replay(contents, problems=problems, file=lines.file, index=covered)
    contents.records.read_journal_from(lines.file)
    if lines.generation == contents.generation:
        _apply_lines(result, lines, from_byte=contents.journal_bytes)
        result.valid_bytes = lines.valid_bytes
    elif lines.generation >= 0:  # the writer was killed while it folded: the index has it all
        _apply_lines(result, lines, from_byte=None)
        result.is_closed = False
    else:
        problems.append(f"{JOURNAL_NAME} is damaged: what it said beyond {INDEX_NAME} is lost")
    result.is_cut = contents.journal_bytes > result.valid_bytes
    if not lines.has_begin:
        result.unsynced = dict.fromkeys(contents.records)
    contents.journal_bytes = result.valid_bytes
    return result


def _index_for(
    folder: Path, lines: JournalLines, problems: list[str]
) -> tuple[IndexContents, Covered | None]:
    """Return the index file's contents, or what its previous copies give when it cannot be used.

    Returns:
        Them; and the index file, when all records can be looked up in it.
    """
    found = _found_at(folder / INDEX_NAME)
    if isinstance(found, FoundIndex) and _ours(found).generation >= lines.generation:
        contents = _ours(found)
        is_scanned = not contents.records.num_without_text
        return contents, Covered(found.size_bytes, found.xxh3) if is_scanned else None
    failure = found if isinstance(found, ReplayError) else None
    if lines.generation == 0:
        rebuilt = IndexContents()
    elif lines.generation > 0:
        rebuilt = _previous_contents(folder, lines.generation, failure, problems)
    else:
        raise failure or CorruptFileError(
            f"{str(folder / JOURNAL_NAME)!r} is damaged, but goes with the index; restore the "
            "folder from a copy",
            path=str(folder / JOURNAL_NAME),
        )
    if lines.generation or not isinstance(failure, MissingFileError):  # a new store has none yet
        reason = f"{str(folder / INDEX_NAME)!r} is an old copy"
        reason = reason if failure is None else cause_of(failure)
        problems.append(f"{reason}; the index was rebuilt from the journal")
    return rebuilt, None


def _ours(found: FoundIndex) -> IndexContents:
    assert found.contents is not None, "of RLinf's there is an error"
    return found.contents


def _found_at(path: Path) -> FoundIndex | ReplayError:
    """Return what an index of ours says, or why it cannot be used.

    Raises:
        FormatVersionError: A later release wrote it.
    """
    try:
        found = read_index(path)
    except FormatVersionError:
        raise
    except ReplayError as error:
        return error
    if found.contents is not None:
        return found
    return CorruptFileError(
        f"{str(path)!r} is an index of RLinf, but a store has one of relive; load the folder with "
        "load_checkpoint(), or take the index away",
        path=str(path),
    )


def _previous_contents(
    folder: Path, generation: int, failure: ReplayError | None, problems: list[str]
) -> IndexContents:
    """Return the index as it was when the journal of a generation began, or in its course."""
    found = _found_at(folder / (INDEX_NAME + PREVIOUS_SUFFIX))
    contents = None if isinstance(found, ReplayError) else found.contents
    if contents is not None and contents.generation == generation:
        return contents  # the writer was killed while it folded
    lines = open_lines(folder / (JOURNAL_NAME + PREVIOUS_SUFFIX))
    if generation == 1:
        contents = IndexContents()
    if contents is None or not (
        contents.generation == lines.generation == generation - 1 and lines.has_begin
    ):
        raise failure or CorruptFileError(
            f"index and journal in {str(folder)!r} are of different times, but must belong "
            "together, or else their previous copies; restore the folder from a copy",
            path=str(folder),
        )
    previous = Replay(contents, problems=problems)
    _apply_lines(previous, lines, from_byte=contents.journal_bytes, has_texts=False)
    contents, contents.generation, contents.journal_bytes = previous.contents, generation, 0
    return contents


def _apply_lines(
    result: Replay, lines: JournalLines, *, from_byte: int | None = 0, has_texts: bool = True
) -> None:
    """Carry out the lines after a byte; of those before, what the index file does not say.

    Args:
        result: Where they are carried out.
        lines: The lines.
        from_byte: The byte; None is after them all.
        has_texts: Whether records are to be looked up in this journal.
    """
    for line in lines:
        text = (line.start + len(ADDITION), line.text_bytes) if line.text_bytes else None
        is_covered = from_byte is None or line.start < from_byte
        _carry_out(result, line.change, text if has_texts else None, is_covered=is_covered)
    result.unsynced = {n: None for n in result.unsynced if n in result.contents.records}
    if lines.num_bad:
        result.problems.append(f"{lines.num_bad} damaged lines of {JOURNAL_NAME} were skipped")
        result.is_whole = False


def _carry_out(
    result: Replay, change: dict[str, Any], text: tuple[int, int] | None, *, is_covered: bool
) -> None:
    try:
        if is_covered:
            result.track(change)
        else:
            result.apply(change, text)
    except FormatVersionError:
        raise
    except (ReplayError, LookupError, TypeError, AttributeError, ValueError) as error:
        result.problems.append(f"a line of {JOURNAL_NAME} was skipped: {error}")
        result.is_whole = False
