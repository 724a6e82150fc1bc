# SPDX-License-Identifier: Apache-2.0
"""Reading what a checkpoint holds: ours or RLinf's, one folder or a parent of `rank_*` folders.

Only indexes are read here, and the trajectory files they list are seen to be there. A store's
own folder can be read too, also one whose writer was killed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from relive import files
from relive.checkpoint import finish_exchange
from relive.checkpoint_contents import Checkpoint, Entry
from relive.disk_errors import naming_disk_errors
from relive.errors import (
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
from relive.rank_folders import merged, rank_folders
from relive.record_table import RecordTable
from relive.warning import warn

__all__ = ["read_checkpoint", "rereading", "warn_of_writers"]

_MOST_READINGS = 20
"""How often a checkpoint is read that is replaced, or a store that evicts, each time meanwhile."""

_Read = TypeVar("_Read")


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
        return rereading(path, lambda: _read_checkpoint(files.real_path(path), formats))


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
            f"{str(path)!r} was read {_MOST_READINGS} times, but changed each time meanwhile; let "
            f"no program save there, or evict from it, while it is read (at last: {error})",
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
        if owner and (own is None or files.real_path(folder) != files.real_path(own)):
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
            f"{str(path)!r} is {found}, but a store or checkpoint is a folder; check the path",
            path=str(path),
        )
    if files.exists(path / METADATA_NAME) or not (ranks := rank_folders(path)):
        return _read_folder(path, formats)
    parts = [_read_folder(folder, formats) for folder in ranks]
    strides = {part.numbering.stride for part in parts}
    if len(strides) == 1 and (world_size := strides.pop()) > len(parts):
        raise MissingFileError(
            f"{str(path)!r} holds {len(parts)} rank folders, but they were saved by {world_size} "
            "ranks; restore the others, or load the folders one by one",
            path=str(path),
        )
    return merged(parts, path)


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
    incoming = None if found.moving is None else folder / found.moving
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
        incoming: Where files that a killed load had to move may still be. They are looked for
            there first: in the folder, another trajectory's file may have the name.
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
