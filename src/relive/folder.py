# SPDX-License-Identifier: Apache-2.0
"""What a store's folder holds, and opening it: create, resume, overwrite or refuse.

Opening repairs what a killed writer leaves: temporary files go, moves that a load had
announced are finished, and trajectories that were added after the last sync are checked.
Nothing that might be data is ever deleted; it is moved to `aside/<time>/` and reported.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from relive import files
from relive.disk_errors import naming_disk_errors
from relive.errors import (
    CorruptFileError,
    MissingFileError,
    StorageError,
    StoreExistsError,
)
from relive.format_set import FormatSet
from relive.formats.memmap import SEGMENTS_NAME, segment_path
from relive.index_arrays import ARRAYS_NAME
from relive.index_file import INDEX_NAME, METADATA_NAME
from relive.journal_lines import JOURNAL_NAME
from relive.journal_replay import PREVIOUS_SUFFIX, Replay, replay
from relive.locks import LOCK_NAME, FolderLock
from relive.numbering import Numbering
from relive.places import segments_of
from relive.record import Record
from relive.warning import cause_of, warn

__all__ = [
    "ASIDE_NAME",
    "INCOMING_PREFIX",
    "IfExists",
    "OpenedFolder",
    "finish_moves",
    "naming_folder",
    "open_folder",
    "set_aside",
]

IfExists = Literal["refuse", "resume", "overwrite"]
"""What to do with a store found in the folder."""

ASIDE_NAME = "aside"
"""Folder inside a store for what left the index without being asked to."""

INCOMING_PREFIX = "incoming-"
"""Begins the name of the folder inside a store in which a load gathers files."""

_OWN_NAMES = frozenset(
    {
        LOCK_NAME,
        INDEX_NAME,
        METADATA_NAME,
        JOURNAL_NAME,
        ARRAYS_NAME,
        INDEX_NAME + PREVIOUS_SUFFIX,
        JOURNAL_NAME + PREVIOUS_SUFFIX,
        ASIDE_NAME,
    }
)
_TRAJECTORY_FILE = re.compile(r"trajectory_(\d{1,18})_.*\.(pt|pkl)")


@dataclass
class OpenedFolder:
    """A folder locked for writing, and what was found in it."""

    folder: Path
    """The folder."""
    lock: FolderLock
    """Held until the store is closed."""
    found: Replay | None
    """Its index; None when it is new."""

    def release(self) -> None:
        """Let go of it without having written."""
        if self.found is not None:
            self.found.close()
        self.lock.release()


def open_folder(
    folder: Path, formats: FormatSet, *, if_exists: IfExists, break_lock: bool
) -> OpenedFolder:
    """Open a folder for writing.

    Args:
        folder: The folder; made if need be.
        formats: To check and find files of trajectories.
        if_exists: What to do with a store found in it.
        break_lock: As in `FolderLock`.

    Raises:
        StoreExistsError: It is a file, holds a store to be refused, or holds other things.
        StoreLockedError: Another writer holds it.
        StorageError: The disk refused.
        CorruptFileError: Its index cannot be read.
    """
    with naming_folder(folder):
        return _open(folder, formats, if_exists, break_lock)


@contextmanager
def naming_folder(folder: Path) -> Iterator[None]:
    """Name the folder in what the disk refuses to a block that opens it.

    Raises:
        StorageError: In place of `OSError`.
    """
    what = f"{str(folder)!r} cannot be opened for writing"
    with naming_disk_errors(StorageError, folder, what, "check path and permissions"):
        yield


def _open(folder: Path, formats: FormatSet, if_exists: IfExists, break_lock: bool) -> OpenedFolder:
    if files.exists(folder) and not folder.is_dir():
        raise StoreExistsError(
            f"{str(folder)!r} is a file, but a store needs a folder; choose another path",
            path=str(folder),
        )
    _check_contents(folder, if_exists)
    if not files.exists(folder):
        files.create_folder(folder)
        files.sync_folder(folder.parent)
    lock = FolderLock(folder, break_lock=break_lock)
    found = None
    try:
        _check_contents(folder, if_exists)  # again: another process may have been here
        names = files.list_names(folder)
        for name in _names_in(folder):
            if files.is_temporary(Path(name).name):
                files.remove_any(folder / name)
        if JOURNAL_NAME not in names:
            return OpenedFolder(folder, lock, None)
        found = replay(folder)
        for name in names:
            if name.startswith(INCOMING_PREFIX) and name != found.moving:
                files.remove_any(folder / name)  # of a load that changed nothing yet
        if if_exists == "overwrite":
            _wipe(folder, formats, found)
            found.close()
            return OpenedFolder(folder, lock, None)
        _repair(folder, formats, found)
        for problem in found.problems:
            warn(f"{str(folder)!r}: {problem}")
        return OpenedFolder(folder, lock, found)
    except BaseException:  # Ctrl+C among others: the folder must not stay locked
        OpenedFolder(folder, lock, found).release()
        raise


def _check_contents(folder: Path, if_exists: IfExists) -> None:
    names = files.list_names(folder) if folder.is_dir() else []
    others = [n for n in names if n != LOCK_NAME and not files.is_temporary(n)]
    if JOURNAL_NAME in names and if_exists == "refuse":
        owner = FolderLock.owner_of(folder)
        cure = "open it with if_exists='resume', replace it with if_exists='overwrite'"
        if owner:
            cure = "close it there first, to resume or overwrite it here"
        raise StoreExistsError(
            f"{str(folder)!r} holds a store already{f', open for writing by {owner}' * bool(owner)}"
            f", but a new one needs a folder of its own; {cure}, or choose another path",
            path=str(folder),
        )
    if others and JOURNAL_NAME not in names:
        what, cure = "other things", "choose another path"
        if METADATA_NAME in names:
            what = "a checkpoint"
            cure = "choose another path, and bring in what it holds with load_checkpoint()"
        shown = ", ".join(others[:3]) + (" …" if len(others) > 3 else "")
        raise StoreExistsError(
            f"{str(folder)!r} holds {what} ({shown}), but a store needs a folder of its own; "
            f"{cure}",
            path=str(folder),
        )


def _wipe(folder: Path, formats: FormatSet, found: Replay) -> None:
    """Remove a store whose folder holds nothing else."""
    ours = {formats.of(record).path(folder, record) for record in found.contents.records.values()}
    others = [n for n in _names_in(folder) if folder / n not in ours and n not in _OWN_NAMES]
    if others:
        raise StoreExistsError(
            f"{str(folder)!r} holds things that its index does not name ({', '.join(others[:3])}"
            f"{' …' if len(others) > 3 else ''}), but a store is overwritten only when alone; move "
            "them away",
            path=str(folder),
        )
    for name in sorted(_OWN_NAMES - {LOCK_NAME, ASIDE_NAME, JOURNAL_NAME}):
        files.remove(folder / name)
    for path in sorted(ours):
        files.remove_any(path)
    if files.exists(folder / SEGMENTS_NAME):
        files.remove_folder(folder / SEGMENTS_NAME)
    files.remove(folder / JOURNAL_NAME)  # last: without it nothing says that this is a store


def _names_in(folder: Path) -> list[str]:
    """Return the names inside a store; in place of the folder of segments those of segments."""
    names = files.list_names(folder)
    if SEGMENTS_NAME in names:
        names.remove(SEGMENTS_NAME)
        names += [f"{SEGMENTS_NAME}/{name}" for name in files.list_names(folder / SEGMENTS_NAME)]
    return names


def _repair(folder: Path, formats: FormatSet, found: Replay) -> None:
    records = found.contents.records
    if found.moving is not None:
        finish_moves(folder, formats, records.values(), found.moving)
    if not found.is_closed:
        _check_unsynced(folder, formats, found)
    names = _names_in(folder)
    matches = [(name, match) for name in names if (match := _TRAJECTORY_FILE.fullmatch(name))]
    ids = set(records) if matches else set()
    orphans = [(name, int(match[1])) for name, match in matches if int(match[1]) not in ids]
    numbers = np.unique(segments_of(records.column("place"))).tolist()
    known = {segment_path(folder, number).name for number in numbers if number >= 0}
    inside = [name.removeprefix(f"{SEGMENTS_NAME}/") for name in names if "/" in name]
    segments = [f"{SEGMENTS_NAME}/{name}" for name in inside if name not in known]
    cure = "they may be deleted"
    if found.problems:
        cure = "keep them until it is clear whether what the other problems name is in them"
    if segments:
        found.problems.append(
            f"{len(segments)} segments hold nothing that is in the index, such as {segments[0]!r}: "
            f"they were being written or removed when the process ended; {cure}"
        )
    if orphans:
        found.problems.append(
            f"{len(orphans)} trajectory files are not in the index, such as {orphans[0][0]!r}: "
            f"they were being written or removed when the process ended; {cure}"
        )
        last = max(number for _, number in orphans)
        found.contents.numbering = found.contents.numbering.not_before(Numbering(last + 1))


def _check_unsynced(folder: Path, formats: FormatSet, found: Replay) -> None:
    """Set aside what a power loss may have torn: a line may survive the pages it speaks of."""
    torn: list[int] = []
    for trajectory_id in found.unsynced:
        record = found.contents.records[trajectory_id]
        try:
            formats.of(record).read(folder, record)
        except (CorruptFileError, MissingFileError) as error:
            torn.append(trajectory_id)
            found.problems.append(f"trajectory {trajectory_id} was set aside: {cause_of(error)}")
    if torn:
        records = [found.contents.records.pop(trajectory_id) for trajectory_id in torn]
        set_aside(folder, formats, deque(records))
        found.dropped.extend(torn)


def set_aside(folder: Path, formats: FormatSet, records: deque[Record]) -> Path:
    """Move the files of records to `aside/<time>/`, emptying the deque; return that folder."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    target = folder / ASIDE_NAME / stamp
    attempt = 0
    while files.exists(target):
        attempt += 1
        target = folder / ASIDE_NAME / f"{stamp}-{attempt}"
    files.create_folder(target)
    while records:
        form = formats.of(records[0])
        if files.exists(form.path(folder, records[0])):
            form.move_to(folder, records[0], target)
        records.popleft()  # when the disk refuses, what was moved is not moved again
    return target


def finish_moves(
    folder: Path, formats: FormatSet, records: Iterable[Record], incoming: str
) -> None:
    """Move what a load brought in to its place; what is there already stays."""
    source = folder / incoming
    for record in records:
        form = formats.of(record)
        if files.exists(form.path(source, record)):
            # names that no trajectory has are free there: what has one was moved before
            if form.ids_are_in_files and files.exists(form.path(folder, record)):
                set_aside(folder, formats, deque([record]))
            form.move_to(source, record, folder)
    files.remove_folder(source)
