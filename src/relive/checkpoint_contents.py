# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint holds, as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relive.format_set import FormatSet
from relive.numbering import Numbering
from relive.record import Record
from relive.spec import Schema

__all__ = ["Checkpoint", "Entry"]


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
