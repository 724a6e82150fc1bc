# SPDX-License-Identifier: Apache-2.0
"""Writing checkpoints: a folder of trajectories, their index, and metadata written last.

A checkpoint is written into a folder beside its place and then exchanged with what stood
there, so the place always holds the old one whole or the new one whole.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from relive import files, linux_files
from relive.disk_errors import naming_disk_errors
from relive.errors import (
    InvalidArgumentError,
    StorageWriteError,
    StoreExistsError,
)
from relive.format_set import FormatSet
from relive.formats.base import Copier, Progress, no_progress
from relive.formats.checksum import checksums
from relive.index_arrays import ARRAYS_NAME, Covered, IndexArrays, write_arrays
from relive.index_file import (
    INDEX_NAME,
    METADATA_NAME,
    VERSION,
    IndexContents,
    write_metadata,
)
from relive.index_writer import IndexWriter
from relive.places import segments_of
from relive.record import Record
from relive.record_table import RecordTable
from relive.store import Store
from relive.store_reader import View
from relive.warning import warn

__all__ = [
    "check_apart",
    "finish_exchange",
    "metadata_of",
    "save_checkpoint",
    "write_trajectories",
]


def metadata_of(
    contents: IndexContents, *, format_name: str, seed: int, kind: str, **ours: Any
) -> dict[str, Any]:
    """Return the contents of `metadata.json`: RLinf's five fields, and ours.

    Args:
        contents: The index that it goes with.
        format_name: The format of new trajectories.
        seed: The buffer's seed.
        kind: "store" or "checkpoint".
        ours: Further fields of ours.
    """
    return {
        "trajectory_format": format_name,
        "size": len(contents.records),
        "total_samples": contents.records.num_rows,
        "trajectory_counter": contents.numbering.next_trajectory_id,
        "seed": seed,
        "relive": {"version": VERSION, "kind": kind, "generation": contents.generation, **ours},
    }


def save_checkpoint(
    path: Path,
    contents: IndexContents,
    write_files: Callable[[Path], Iterable[Record]],
    metadata: Callable[[IndexContents], dict[str, Any]],
) -> None:
    """Write a checkpoint, replacing an older one at the same place.

    Args:
        path: Where it is to be.
        contents: The index, with records or without.
        write_files: Writes all trajectories into a folder, fsynced, and gives the records that
            `contents` lacks as it goes.
        metadata: Gives `metadata.json` for the completed index.

    Raises:
        StoreExistsError: The place holds something that is not a checkpoint.
        StorageWriteError: The disk refused; an older checkpoint is as it was.
    """
    what = f"the checkpoint {str(path)!r} could not be written"
    with naming_disk_errors(StorageWriteError, path, what, "what stood there is as it was"):
        # else a link would be replaced, and what it leads to be left
        path = files.real_path(path)
        _check_place(path)
        finish_exchange(path, tidy=True)
        with files.building_folder(path) as folder:
            writer = IndexWriter(contents, write_files(folder))
            writer.write(folder / INDEX_NAME, sync=True)
            writer.rebase()
            covered = Covered(writer.size_bytes, writer.xxh3)
            arrays = IndexArrays(contents, index=covered)
            write_arrays(folder / ARRAYS_NAME, arrays, sync=True)
            whole = metadata(contents)
            whole["relive"]["index_xxh3"] = writer.xxh3
            whole["relive"]["saved_at"] = time.time()
            write_metadata(folder / METADATA_NAME, whole, sync=True)
            old = _put_in_place(folder, path)
    what = f"the checkpoint {str(path)!r} is in place, but its name may not survive a power loss"
    with naming_disk_errors(StorageWriteError, path, what, "save it again"):
        files.sync_folder(path.parent)
    if old is not None:
        _remove_old(old)


def write_trajectories(
    store: Store,
    view: View,
    contents: IndexContents,
    folder: Path,
    formats: FormatSet,
    progress: Progress = no_progress,
) -> Iterable[Record]:
    """Write trajectories of a settled view into another folder, fsynced.

    Args:
        store: Has them.
        view: Says which.
        contents: Has their records when they are on disk; then it has those of the copies.
        folder: Where to.
        formats: Those of the store; its own is used for what no file has.
        progress: Called with the number of bytes copied since it was called last.

    Returns:
        The records that `contents` lacks, oldest first, each once its trajectory is written.

    Raises:
        MissingFileError: A file of the store is not there.
        CorruptFileError: A file of the store is cut.
        OSError: The disk refused.
    """
    if store.disk is None:
        return _write_from_memory(store, view, folder, formats)
    _copy_files(store.disk.folder, contents.records, folder, formats, progress)
    return ()


def _write_from_memory(
    store: Store, view: View, folder: Path, formats: FormatSet
) -> Iterator[Record]:
    try:
        for trajectory_id in view.window.trajectory_ids.tolist():
            record, resident = store.find(trajectory_id)
            assert resident is not None, "without a disk every trajectory is in memory"
            summed = replace(record, checksums=checksums(resident.snapshot, record.layout))
            yield formats.own.write(folder, summed, resident.snapshot, sync=True)
    finally:
        formats.release(folder)  # whose files are never written to again


def _copy_files(
    source: Path, records: RecordTable, folder: Path, formats: FormatSet, progress: Progress
) -> None:
    """Copy what holds trajectories, each file or segment once, and let records say where it is."""
    copiers: dict[str, Copier] = {}
    try:
        for trajectory_id in _one_of_each_file(records):
            record = records[trajectory_id]
            if record.format not in copiers:
                form = formats.of(record)
                copiers[record.format] = form.copier(source, folder, sync=True, progress=progress)
            copied = copiers[record.format](record)
            if copied != record:
                records.relocate(copied)
    finally:
        formats.release(folder)  # whose files are never written to again


def _one_of_each_file(records: RecordTable) -> list[int]:
    """Return the ids of all trajectories that have a file, and of the last one in each segment.

    A segment is copied whole, so that of a million trajectories not each must be looked at; it
    reaches to the end of all when it does to that of the last.
    """
    places = records.column("place")
    order = np.argsort(places, kind="stable")
    segments = segments_of(places[order])
    is_last = np.append(segments[1:] != segments[:-1], True)[: len(order)]
    chosen = order[is_last | (segments < 0)]
    return [int(one) for one in records.column("trajectory_id")[chosen]]


def _check_place(path: Path) -> None:
    """Refuse a place whose contents are not ours to replace."""
    if not files.exists(path):
        return
    if not path.is_dir():
        raise StoreExistsError(
            f"{str(path)!r} is a file, but a checkpoint is a folder; choose another path",
            path=str(path),
        )
    names = files.list_names(path)
    ours = re.compile(
        r"trajectory_\d+_.*\.[a-z]+|trajectory_index\.(?:json|bin)|metadata\.json|segments"
    )
    others = [name for name in names if not ours.fullmatch(name)]
    if others or (names and METADATA_NAME not in names):
        raise StoreExistsError(
            f"{str(path)!r} holds {', '.join((others or names)[:3])}, but only a checkpoint or an "
            "empty folder is replaced by one; choose a folder of its own",
            path=str(path),
        )


def _place_names(path: Path) -> tuple[Path, Path]:
    return path.with_name(f".{path.name}.new"), path.with_name(f".{path.name}.old")


def _put_in_place(folder: Path, path: Path) -> Path | None:
    """Give a new checkpoint its name; return where the old one is now, if there was one."""
    if not files.exists(path):
        files.rename(folder, path)
        return None
    if linux_files.exchange(folder, path):
        return folder
    new, old = _place_names(path)
    files.rename(folder, new)
    files.rename(path, old)
    try:
        files.rename(new, path)
    except OSError:
        files.rename(old, path)
        raise
    return old


def _remove_old(folder: Path) -> None:
    try:
        files.remove_folder(folder)
    except OSError as error:
        warn(f"the replaced checkpoint {str(folder)!r} could not be removed: {error}")


def finish_exchange(path: Path, *, tidy: bool) -> None:
    """Complete an exchange of two renames that was cut off in between.

    Args:
        path: Where the checkpoint is to be.
        tidy: Whether to remove what is left of it then; a reader need not be able to.
    """
    new, old = _place_names(path)
    if not files.exists(path):
        if files.exists(new / METADATA_NAME):
            files.rename(new, path)
        elif files.exists(old / METADATA_NAME):
            files.rename(old, path)
    if not tidy:
        return
    for leftover in (new, old):
        if files.exists(path) and files.exists(leftover):
            files.remove_folder(leftover)
    if files.exists(path.parent):
        for abandoned in files.abandoned_beside(path):
            files.remove_folder(abandoned)


def check_apart(path: Path, store: Path | None) -> None:
    """Refuse a checkpoint that would lie in the store's folder, or the other way round.

    Raises:
        InvalidArgumentError: It would.
        StorageWriteError: Links on the way lead to each other.
    """
    if store is None:
        return
    what = f"the checkpoint {str(path)!r} could not be written"
    with naming_disk_errors(StorageWriteError, path, what, "choose another path"):
        place, own = files.real_path(path), files.real_path(store)
    if place == own or own in place.parents or place in own.parents:
        raise InvalidArgumentError(
            f"the checkpoint {str(path)!r} and the store {str(store)!r} lie in one another, but "
            "each needs a folder of its own; choose another path"
        )
