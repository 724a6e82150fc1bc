# SPDX-License-Identifier: Apache-2.0
"""What a store's folder or a checkpoint holds, told without opening it for writing."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relive import files
from relive.checkpoint_contents import Checkpoint, Entry
from relive.checkpoint_reading import read_checkpoint
from relive.errors import ReplayError
from relive.format_set import FormatSet
from relive.index_file import METADATA_NAME, read_metadata
from relive.journal_lines import JOURNAL_NAME
from relive.locks import FolderLock
from relive.record import Layout
from relive.snapshot import take_snapshot
from relive.spec import ColumnSpec, Schema

__all__ = ["Summary", "summarize"]


@dataclass(frozen=True)
class Summary:
    """What was found in a folder."""

    path: Path
    """The folder."""
    kind: str
    """"store", "checkpoint", "RLinf checkpoint" or "checkpoint of N ranks"."""
    writer: str
    """Who has the store open for writing; "" when nobody does."""
    formats: Mapping[str, int]
    """Trajectories by the name of their format."""
    num_trajectories: int
    """Trajectories listed."""
    total_samples: int
    """Rows of them all."""
    next_trajectory_id: int
    """The id that the next trajectory gets."""
    seed: int | None
    """Of the buffer, when there is one folder."""
    sample_window_size: int | None
    """The window that the buffer had, when we wrote the folder."""
    file_bytes: int
    """Bytes of the trajectory files."""
    columns: Mapping[str, ColumnSpec]
    """Every column."""
    column_bytes: Mapping[str, int]
    """Bytes of each column over all trajectories; empty for RLinf's."""
    optional: Sequence[str]
    """Columns that a trajectory may lack."""
    shapes: Mapping[tuple[int, int], int]
    """Trajectories by [T, B]; empty for RLinf's."""
    num_weights_ids: int
    """Different model weights that acted."""
    version_range: tuple[int, int] | None
    """Smallest and largest model version that acted, if known."""
    added_between: tuple[float, float] | None
    """When the first and the last were added, seconds since 1970 UTC, if known."""
    problems: Sequence[str]
    """What was odd about the folder."""


def summarize(path: str | Path) -> Summary:
    """Tell what a folder holds. Only indexes are read, and of RLinf's checkpoints one file.

    Args:
        path: A store's folder, also one being written or killed; a checkpoint of ours or RLinf's;
            or a parent of `rank_*` folders.

    Raises:
        MissingFileError: The folder, its index or a trajectory file is not there.
        CorruptFileError: An index is cut, damaged or another program's.
    """
    with FormatSet("pt") as formats:
        return _summary_of(Path(path).absolute(), formats)


def _summary_of(path: Path, formats: FormatSet) -> Summary:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        checkpoint = read_checkpoint(path, formats)
    metadata = _metadata(path)
    entries = checkpoint.entries
    totals = _Totals()
    for entry in entries:
        totals.count(entry, formats)
    schema = checkpoint.schema or _foreign_schema(entries, formats)
    return Summary(
        path=path,
        kind=_kind(path, checkpoint),
        writer=FolderLock.owner_of(path),
        formats=Counter(entry.format for entry in entries),
        num_trajectories=len(entries),
        total_samples=sum(entry.num_rows for entry in entries),
        next_trajectory_id=checkpoint.numbering.next_trajectory_id,
        seed=metadata.get("seed"),
        sample_window_size=metadata.get("relive", {}).get("sample_window_size"),
        file_bytes=sum(map(files.total_bytes, totals.paths)),
        columns=schema.columns,
        column_bytes=totals.column_bytes(),
        optional=sorted(schema.defaults),
        shapes=totals.shapes,
        num_weights_ids=len(totals.weights_ids),
        version_range=totals.version_range,
        added_between=totals.added_between,
        problems=[str(warning.message) for warning in caught],
    )


class _Totals:
    """What the records of many trajectories say together; each is looked at once."""

    def __init__(self) -> None:
        self.paths: set[Path] = set()
        self.shapes: Counter[tuple[int, int]] = Counter()
        self.weights_ids: set[str] = set()
        self.version_range: tuple[int, int] | None = None
        self.added_between: tuple[float, float] | None = None
        self._layouts: Counter[Layout] = Counter()

    def count(self, entry: Entry, formats: FormatSet) -> None:
        """Count one in."""
        record = entry.record
        self.paths.add(entry.path(formats))
        if record is None:
            self.weights_ids.add(str(entry.foreign["model_weights_id"]))
            return
        self.weights_ids.add(record.model_weights_id)
        self._layouts[record.layout] += 1
        self.shapes[record.num_steps, record.num_envs] += 1
        if record.version_range is not None:
            low, high = self.version_range or record.version_range
            self.version_range = (
                min(low, record.version_range[0]),
                max(high, record.version_range[1]),
            )
        if record.added_at:
            first, last = self.added_between or (record.added_at, record.added_at)
            self.added_between = (min(first, record.added_at), max(last, record.added_at))

    def column_bytes(self) -> Counter[str]:
        """Return the bytes of each column."""
        sizes: Counter[str] = Counter()
        for layout, num in self._layouts.items():
            for column in layout.columns:
                sizes[column.name] += num * column.size_bytes
        return sizes


def _metadata(path: Path) -> Mapping[str, Any]:
    """Return the metadata of the one folder; a killed store may have none yet."""
    try:
        return read_metadata(path / METADATA_NAME)
    except ReplayError:
        return {}


def _kind(path: Path, checkpoint: Checkpoint) -> str:
    if files.exists(path / JOURNAL_NAME):
        return "store"
    if not files.exists(path / METADATA_NAME):
        folders = {entry.folder for entry in checkpoint.entries}
        return f"checkpoint of {len(folders)} ranks"
    return "RLinf checkpoint" if checkpoint.schema is None else "checkpoint"


def _foreign_schema(entries: Sequence[Entry], formats: FormatSet) -> Schema:
    """Return the columns of the newest trajectory of RLinf's."""
    if not entries or entries[-1].record is not None:
        return Schema({})
    newest = entries[-1]
    snapshot = take_snapshot(formats.with_files(newest.format).read_file(newest.path(formats)))
    return Schema(
        {
            name: ColumnSpec(column.dtype, column.values.shape[2:])
            for name, column in snapshot.columns.items()
        }
    )
