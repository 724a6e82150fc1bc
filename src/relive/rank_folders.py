# SPDX-License-Identifier: Apache-2.0
"""The folders that ranks saved side by side, and their contents as those of one checkpoint."""

from __future__ import annotations

import re
from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from relive import files
from relive.checkpoint import finish_exchange
from relive.checkpoint_contents import Checkpoint, Entry
from relive.errors import ColumnMismatchError, CorruptFileError, MissingFileError
from relive.numbering import Numbering

__all__ = ["merged", "rank_folders"]

_RANK_FOLDER = re.compile(r"rank_(\d+)")
_RANK_FOLDER_BETWEEN = re.compile(r"\.(rank_\d+)\.(?:new|old)")


def rank_folders(path: Path) -> list[Path]:
    """Return the `rank_*` folders in a folder by their numbers.

    Raises:
        MissingFileError: A number between others is missing.
        OSError: The disk refused.
    """
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


def merged(parts: Sequence[Checkpoint], path: Path) -> Checkpoint:
    """Join the folders of several ranks into one list in order of arrival.

    Args:
        parts: What each of them holds.
        path: Where they are, for the errors.

    Raises:
        ColumnMismatchError: They hold different columns.
        CorruptFileError: A trajectory is in two of them.
    """
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
