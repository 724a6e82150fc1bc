# SPDX-License-Identifier: Apache-2.0
"""Reading what a checkpoint holds: ours or RLinf's, one folder or a parent of `rank_*` folders.

Only indexes are read here, and the trajectory files they list are seen to be there. A store's
own folder can be read too, also one whose writer was killed.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right, insort
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from relive import files
from relive.checkpoint import finish_exchange
from relive.disk_errors import naming_disk_errors
from relive.errors import (
    ColumnMismatchError,
    CorruptFileError,
    MissingFileError,
    StorageError,
)
from relive.format_set import FormatSet
from relive.formats.memmap import SEGMENTS_NAME
from relive.index_arrays import ARRAYS_NAME, read_arrays
from relive.index_file import INDEX_NAME, METADATA_NAME, read_index, read_metadata
from relive.journal_lines import JOURNAL_NAME
from relive.journal_replay import replay
from relive.locks import FolderLock
from relive.numbering import Numbering
from relive.record import Record
from relive.record_table import RecordTable
from relive.spec import Schema
from relive.warning import warn

__all__ = ["Checkpoint", "Entry", "read_checkpoint", "rereading", "warn_of_writers"]

_RANK_FOLDER = re.compile(r"rank_(\d+)")
_RANK_FOLDER_BETWEEN = re.compile(r"\.(rank_\d+)\.(?:new|old)")

_MOST_READINGS = 20
"""How often a checkpoint is read that is replaced each time meanwhile."""

_Read = TypeVar("_Read")


@dataclass(frozen=True, slots=True)
class Entry:
    """One trajectory of a checkpoint."""

    folder: Path
    """The folder with its file."""
    format: str
    """Name of the format of its file."""
    records: Mapping[int, Record]
    """Where its record is looked up; empty when RLinf wrote it."""
    foreign: Mapping[str, Any]
    """RLinf's index entry; empty when there is a record."""
    saved_id: int
    """Its id in the checkpoint."""
    trajectory_id: int
    """Its id after loading: that of the checkpoint, unless two folders use it."""
    first_row_id: int
    """Row id of its row 0 after loading, likewise."""
    num_rows: int
    """T * B, as the index says."""

    @property
    def record(self) -> Record | None:
        """Its record, read anew each time: a million of them would take a gigabyte.

        None when RLinf wrote it.
        """
        return self.records.get(self.saved_id)

    def path(self, formats: FormatSet) -> Path:
        """Return its file."""
        record = self.record
        if record is not None:
            return formats.of(record).path(self.folder, record)
        suffix = formats.with_files(self.format).suffix
        name = (
            f"trajectory_{self.foreign['trajectory_id']}_{self.foreign['model_weights_id']}{suffix}"
        )
        return self.folder / name


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What one checkpoint says, from one folder or several."""

    entries: Sequence[Entry]
    """Oldest first."""
    numbering: Numbering
    """Ids that are free after it."""
    schema: Schema | None
    """What each trajectory has; None when RLinf wrote it."""
    state: Mapping[str, Any] | None
    """The buffer's state, when there is one folder and we wrote it."""


def read_checkpoint(path: Path, formats: FormatSet) -> Checkpoint:
    """Read what a checkpoint, a store's folder, or a parent of `rank_*` folders holds.

    Every file that it lists is checked to be there. See `rereading` for one that is replaced
    meanwhile.

    Raises:
        MissingFileError: The folder, an index or a trajectory file is not there.
        CorruptFileError: An index is cut, damaged or another program's, or the folders of
            several ranks contradict each other.
        FormatVersionError: A later release wrote it.
        StorageError: The disk refused.
    """
    what = f"the checkpoint {str(path)!r} could not be read"
    with naming_disk_errors(StorageError, path, what, "check path and permissions"):
        return rereading(path, lambda: _read_checkpoint(Path(os.path.realpath(path)), formats))


def rereading(path: Path, read: Callable[[], _Read]) -> _Read:
    """Read from a checkpoint, and again when another one was put into its place meanwhile.

    The place holds a whole one all the time, but who read the index of the one that is gone
    looks in vain for its files. So does who reads a store from which others go meanwhile.

    Args:
        path: The checkpoint.
        read: Reads from it; changes nothing when it raises.

    Returns:
        What `read` returned.

    Raises:
        MissingFileError: From `read`, though the checkpoint is the one that it began with, or
            for the last of many times.
        CorruptFileError: Likewise.
    """
    for _ in range(_MOST_READINGS - 1):
        before = _generations(path)
        try:
            return read()
        except (MissingFileError, CorruptFileError):
            if _generations(path) == before:
                raise
    try:
        return read()
    except (MissingFileError, CorruptFileError) as error:
        raise type(error)(
            f"{str(path)!r} was read {_MOST_READINGS} times, but each time something went while "
            "it was read; close the buffer that evicts from it, or save a checkpoint of it and "
            f"read that (at last: {error})",
            path=error.path,
        ) from error


def warn_of_writers(path: Path, own: Path | None = None) -> None:
    """Warn of stores that are open for writing: of them only what is stored by now is read.

    Args:
        path: What will be read: a folder, or a parent of `rank_*` folders.
        own: The caller's own store, of which he stored all.
    """
    for folder in (path, *sorted(path.glob("rank_*"))):
        owner = FolderLock.owner_of(folder)
        if owner and (own is None or os.path.realpath(folder) != os.path.realpath(own)):
            warn(
                f"{str(folder)!r} is open for writing by {owner}: what is not stored yet is not "
                "read; flush or close it first for all of it"
            )


def _generations(path: Path) -> list[tuple[str, int, int]]:
    """Return what tells the folders at a place, or in it, from those that take their place."""
    found = []
    with suppress(OSError):  # it may be between two renames; whoever reads says what is wrong
        for folder in (path, *sorted(path.glob("rank_*"))):
            for inside in (folder, folder / SEGMENTS_NAME):
                with suppress(FileNotFoundError):
                    status = inside.stat()
                    # the number of a removed folder may be given to a new one, at another time
                    found.append((inside.name, status.st_ino, status.st_mtime_ns))
    return found


def _read_checkpoint(path: Path, formats: FormatSet) -> Checkpoint:
    finish_exchange(path, tidy=False)
    if not path.is_dir():
        found = "a file" if files.exists(path) else "not there"
        raise MissingFileError(
            f"{str(path)!r} is {found}, but a checkpoint is a folder; check the path",
            path=str(path),
        )
    if files.exists(path / METADATA_NAME) or not (ranks := _rank_folders(path)):
        return _read_folder(path, formats)
    parts = [_read_folder(folder, formats) for folder in ranks]
    strides = {part.numbering.stride for part in parts}
    if len(strides) == 1 and (world_size := strides.pop()) > len(parts):
        raise MissingFileError(
            f"{str(path)!r} holds {len(parts)} rank folders, but they were saved by {world_size} "
            "ranks; restore the others, or load the folders one by one",
            path=str(path),
        )
    return _merge(parts, path)


def _rank_folders(path: Path) -> list[Path]:
    """Return the `rank_*` folders in a folder by their numbers, which must have no gap."""
    names = files.list_names(path)
    for name in names:
        if match := _RANK_FOLDER_BETWEEN.fullmatch(name):
            finish_exchange(path / match[1], tidy=False)
    found = {
        int(match[1]): path / name
        for name in files.list_names(path)
        if (match := _RANK_FOLDER.fullmatch(name)) and (path / name).is_dir()
    }
    missing = sorted(set(range(max(found, default=-1) + 1)) - found.keys())
    if missing:
        raise MissingFileError(
            f"{str(path)!r} holds {len(found)} rank folders, but lacks "
            f"{', '.join(f'rank_{number}' for number in missing[:5])}; restore what is missing, or "
            "load the folders one by one",
            path=str(path),
        )
    return [found[number] for number in sorted(found)]


def _read_folder(folder: Path, formats: FormatSet) -> Checkpoint:
    if files.exists(folder / JOURNAL_NAME):
        return _read_store(folder, formats)
    metadata = read_metadata(folder / METADATA_NAME)
    ours = metadata.get("relive")
    arrays = None if ours is None else read_arrays(folder / ARRAYS_NAME, folder / INDEX_NAME, None)
    if ours is not None and arrays is not None and arrays.index is not None:
        contents = arrays.contents
        if ours.get("index_xxh3") == arrays.index.xxh3:
            entries = _entries_of(folder, contents.records, formats)
            return Checkpoint(entries, contents.numbering, contents.schema, ours.get("state"))
    return _read_checked(folder, metadata, formats)


def _read_checked(folder: Path, metadata: Mapping[str, Any], formats: FormatSet) -> Checkpoint:
    """Read a checkpoint by its index file."""
    found = read_index(folder / INDEX_NAME)
    contents, ours = found.contents, metadata.get("relive")
    if contents is None or ours is None:
        return _read_foreign(folder, metadata, found.foreign, formats)
    if ours.get("index_xxh3", found.xxh3) != found.xxh3:
        raise CorruptFileError(
            f"{str(folder / INDEX_NAME)!r} is another index, but must be the one that "
            f"{METADATA_NAME} was written for; restore the folder from a copy",
            path=str(folder / INDEX_NAME),
        )
    entries = _entries_of(folder, contents.records, formats)
    return Checkpoint(entries, contents.numbering, contents.schema, ours.get("state"))


def _read_store(folder: Path, formats: FormatSet) -> Checkpoint:
    """Read a store's folder by its journal, whose metadata may be old or missing."""
    found = replay(folder)
    # those that a killed load had still to move
    incoming = None if found.moving is None else folder / Path(found.moving).name
    entries = _entries_of(folder, found.contents.records, formats, incoming)
    state = None
    if found.is_closed:
        state = read_metadata(folder / METADATA_NAME).get("relive", {}).get("state")
    return Checkpoint(entries, found.contents.numbering, found.contents.schema, state)


def _entries_of(
    folder: Path, records: RecordTable, formats: FormatSet, incoming: Path | None = None
) -> list[Entry]:
    """List trajectories of ours, each with its file, and check that the files are there.

    Args:
        folder: Where they are.
        records: Of them.
        formats: Know the names of their files.
        incoming: Where files of some still are, whose places others may have.
    """
    names = ("trajectory_id", "first_row_id", "num_rows")
    numbers = zip(*(records.column(name).tolist() for name in names), strict=True)
    entries, checked = [], None
    for record, (one, first_row_id, num_rows) in zip(records.values(), numbers, strict=True):
        form, here = formats.of(record), folder
        if incoming is not None and files.exists(form.path(incoming, record)):
            here = incoming
        path = form.path(here, record)
        if path != checked:  # many share a segment
            _check_there(path, one)
        entries.append(Entry(here, record.format, records, {}, one, one, first_row_id, num_rows))
        checked = path
    return entries


def _read_foreign(
    folder: Path,
    metadata: Mapping[str, Any],
    foreign: Sequence[Mapping[str, Any]],
    formats: FormatSet,
) -> Checkpoint:
    """Read RLinf's index, which may list old trajectories that it never saved."""
    format_name = metadata["trajectory_format"]
    entries: list[Entry] = []
    next_row_id = 0
    for one in foreign:
        _check_foreign(folder / INDEX_NAME, one)
        num_rows = one["num_samples"]
        saved_id = one["trajectory_id"]
        entry = Entry(folder, format_name, {}, one, saved_id, saved_id, next_row_id, num_rows)
        entries.append(entry)
        next_row_id += num_rows
    saved = [i for i, entry in enumerate(entries) if files.exists(entry.path(formats))]
    first = saved[0] if saved else 0
    for entry in entries[first:]:
        _check_there(entry.path(formats), entry.trajectory_id)
    if first:
        warn(
            f"{str(folder)!r} lists {first} older trajectories that RLinf did not save there; the "
            f"{len(entries) - first} newer ones are loaded"
        )
    last_id = max((entry.trajectory_id for entry in entries), default=-1)
    next_id = max(int(metadata["trajectory_counter"]), last_id + 1)
    numbering = Numbering(next_id, next_row_id=next_row_id)
    return Checkpoint(entries[first:], numbering, None, None)


def _check_foreign(path: Path, entry: Any) -> None:
    """Refuse an index entry that is not RLinf's, or that would lead out of the folder."""
    numbers = [entry.get(name) for name in ("trajectory_id", "num_samples")]
    weights_id = entry.get("model_weights_id")
    if not isinstance(weights_id, str) or not all(
        isinstance(number, int) and 0 <= number < 1 << 62 for number in numbers
    ):
        raise CorruptFileError(
            f"{str(path)!r} has the entry {entry!r:.200}, but an entry has trajectory_id, "
            "num_samples and model_weights_id; restore the folder from a copy",
            path=str(path),
        )
    if "/" in weights_id or "\0" in weights_id:
        raise CorruptFileError(
            f"{str(path)!r} names {weights_id!r:.100}, but a weights id with '/' leads out of the "
            "folder; restore the folder from a copy, or do not load it",
            path=str(path),
        )


def _check_there(path: Path, trajectory_id: int) -> None:
    if not files.exists(path):
        raise MissingFileError(
            f"{str(path)!r} of trajectory {trajectory_id} is not there, but the index lists it; "
            "restore it from a copy",
            path=str(path),
        )


def _merge(parts: Sequence[Checkpoint], path: Path) -> Checkpoint:
    """Join the folders of several ranks into one list in order of arrival."""
    schemas = [part.schema for part in parts if part.schema is not None]
    if any(schema.columns != schemas[0].columns for schema in schemas):
        raise ColumnMismatchError(
            f"the rank folders in {str(path)!r} hold different columns "
            f"({' / '.join(', '.join(schema.columns) for schema in schemas)}), but are joined only "
            "when alike; load them one by one"
        )
    entries = [entry for part in parts for entry in part.entries]
    uuids = [record.uuid for entry in entries if (record := entry.record) is not None]
    if len(set(uuids)) != len(uuids):
        raise CorruptFileError(
            f"the rank folders in {str(path)!r} hold a trajectory twice, but each rank saves its "
            "own; restore the folders of one save, or load them one by one",
            path=str(path),
        )
    numbering = Numbering(
        max(part.numbering.next_trajectory_id for part in parts),
        1,
        max(part.numbering.next_row_id for part in parts),
    )
    entries.sort(key=lambda entry: entry.trajectory_id)
    entries, numbering = _renumber(entries, numbering)
    return Checkpoint(entries, numbering, schemas[0] if schemas else None, None)


def _renumber(entries: Sequence[Entry], numbering: Numbering) -> tuple[list[Entry], Numbering]:
    """Give new ids to trajectories whose ids or row ids another folder uses too.

    Ranks that each began a buffer of their own all count from 0. The outcome depends on the
    folders alone, so all ranks that load them agree.
    """
    ids: set[int] = set()
    rows: list[tuple[int, int]] = []  # first and one past the last of each taken range
    result = []
    for entry in entries:
        first, stop = entry.first_row_id, entry.first_row_id + entry.num_rows
        place = bisect_right(rows, (first, stop))
        is_taken = (
            entry.trajectory_id in ids
            or (place > 0 and rows[place - 1][1] > first)
            or (place < len(rows) and rows[place][0] < stop)
        )
        if is_taken:
            entry = replace(
                entry,
                trajectory_id=numbering.next_trajectory_id,
                first_row_id=numbering.next_row_id,
            )
            numbering = numbering.after(entry.num_rows)
        ids.add(entry.trajectory_id)
        insort(rows, (entry.first_row_id, entry.first_row_id + entry.num_rows))
        result.append(entry)
    return result, numbering
