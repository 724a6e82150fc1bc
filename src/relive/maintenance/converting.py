# SPDX-License-Identifier: Apache-2.0
"""Writing what a store or checkpoint holds in another format."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from relive import files
from relive.checkpoint import check_apart, metadata_of, save_checkpoint
from relive.checkpoint_contents import Checkpoint
from relive.checkpoint_reading import read_checkpoint, rereading, warn_of_writers
from relive.entry_reading import EntryReader
from relive.errors import ReplayError, StoreExistsError
from relive.format_set import FormatSet
from relive.formats import Format
from relive.formats.checksum import checksums
from relive.formats.layouts import layout_of
from relive.index_file import METADATA_NAME, IndexContents, read_metadata
from relive.options import check_kind, checked_path
from relive.randomness import DEFAULT_SEED
from relive.record import Record
from relive.spec import Columns

__all__ = ["convert"]

_DEFAULT_WINDOW = 100


def convert(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    trajectory_format: str | Format = "memmap",
    *,
    allow_pickle: bool = False,
    progress: Callable[[int, int], object] | None = None,
) -> int:
    """Write a checkpoint of all that a folder holds, in another format.

    Ids, row ids, runs, texts, side values, gaps and, if it has one, the buffer's state stay as
    they are: a buffer that loads the target goes on as with the source, which is only read.
    Trajectories are read and written one by one, each compared with its checksums.

    Args:
        source: A store's folder, a checkpoint of ours or RLinf's, or a parent of `rank_*`
            folders. Of a store that is open for writing only what is stored by now is read, with
            a warning.
        target: A folder that is not there yet, or is empty.
        trajectory_format: Of the target: "pt", "pkl", "memmap", or a format object.
        allow_pickle: Whether "pkl" files may hold more than tensors and plain containers.
        progress: Called with the number of trajectories written and of all, after each; from 1 on
            again when the source was replaced meanwhile.

    Returns:
        How many trajectories were written.

    Raises:
        InvalidArgumentError: An argument is of the wrong kind, there is no such format, or one
            folder lies in the other.
        StoreExistsError: The target holds something.
        MissingFileError: The source, its index or a trajectory file is not there.
        CorruptFileError: A file is cut, damaged or another program's.
        ColumnMismatchError: The trajectories have different columns.
        StorageWriteError: The disk refused; nothing is left of the target.
    """
    check_kind("trajectory_format", trajectory_format, str, Format)
    start, end = checked_path("source", source), checked_path("target", target)
    check_apart(end, start)
    if files.exists(end) and (not end.is_dir() or files.list_names(end)):
        raise StoreExistsError(
            f"target {str(end)!r} holds something already, but must be new or empty; choose "
            "another path",
            path=str(end),
        )

    def read_and_write() -> int:
        # anew each time: what was got to know of a folder that was replaced holds no more
        with FormatSet(trajectory_format, allow_pickle=allow_pickle) as formats:
            return _convert(read_checkpoint(start, formats), start, end, formats, progress)

    num = rereading(start, read_and_write)
    warn_of_writers(start)
    return num


def _convert(
    checkpoint: Checkpoint,
    source: Path,
    target: Path,
    formats: FormatSet,
    progress: Callable[[int, int], object] | None,
) -> int:
    entries = checkpoint.entries
    reader = EntryReader(formats, Columns(), checkpoint.schema)
    contents = IndexContents(numbering=checkpoint.numbering)

    def write(folder: Path) -> list[Record]:
        records = []
        for number, entry in enumerate(entries, 1):
            record, snapshot = reader.read(entry)
            layout = layout_of(snapshot)
            sums = checksums(snapshot, layout)
            plain = replace(record.without_file(), layout=layout, checksums=sums)
            records.append(formats.own.write(folder, plain, snapshot, sync=False))
            if progress is not None:
                progress(number, len(entries))
        formats.own.sync(folder, records)
        files.sync_folder(folder)
        contents.schema = reader.schema
        return records

    told = _metadata(source)
    save_checkpoint(
        target,
        contents,
        write,
        lambda whole: metadata_of(
            whole,
            format_name=formats.own.name,
            seed=told.get("seed", DEFAULT_SEED),
            kind="checkpoint",
            state=checkpoint.state,
            sample_window_size=told.get("relive", {}).get("sample_window_size", _DEFAULT_WINDOW),
        ),
    )
    return len(entries)


def _metadata(source: Path) -> dict[str, Any]:
    """Return the metadata of a folder; a parent of ranks has none, and a killed store may not."""
    try:
        return read_metadata(source / METADATA_NAME)
    except ReplayError:
        return {}
