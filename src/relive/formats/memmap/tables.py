# SPDX-License-Identifier: Apache-2.0
"""Rows of one size in the files of many segments, by segment and number.

A `MappedTable` copies them out of memory, a `ReadTable` by reading the files: slower, but what
a network file system or a failing disk does to it is an `OSError` and not the end of the
process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from relive.errors import CorruptFileError

__all__ = ["Table", "UnknownSegmentError"]


class UnknownSegmentError(LookupError):
    """A segment must be got to know first; this never leaves the format."""


class Table(ABC):
    """Rows of one size. Any thread may take; one at a time may add and discard."""

    is_mapped: ClassVar[bool]
    """Whether the files are mapped."""

    def __init__(self, row_bytes: int) -> None:
        """Begin without segments.

        Args:
            row_bytes: Of one row, at least 1.
        """
        self.row_bytes = row_bytes
        """Bytes of one row."""

    @abstractmethod
    def add(self, segment: int, path: Path, num_rows: int) -> None:
        """Get to know the file of a segment.

        Args:
            segment: Number of the segment.
            path: Its file, which may still grow.
            num_rows: How many rows it will have at most.

        Raises:
            CorruptFileError: The file is larger than so many rows are.
            OSError: The file cannot be opened.
            MemoryError: There are no addresses to map it at.
        """

    @abstractmethod
    def discard(self, segment: int) -> None:
        """Let go of a segment, whose rows nobody takes any more; an unknown one is fine."""

    @abstractmethod
    def check(self, segments: NDArray[np.int64], rows: NDArray[np.int64]) -> None:
        """Refuse rows that no file has.

        Args:
            segments: Segment of each, `[N]`.
            rows: Its number there, `[N]`.

        Raises:
            CorruptFileError: There is no such row.
            OSError: A file cannot be looked at.
        """

    def _refuse_beyond(self, segment: int, rows: NDArray[np.int64], num_rows: int) -> None:
        last = int(rows.max())
        if last >= num_rows:
            raise CorruptFileError(
                f"a row of segment {segment} says frame {last}, but its file has {num_rows}; "
                "restore the segment from a copy"
            )

    @abstractmethod
    def take(
        self,
        segments: NDArray[np.int64],
        places: NDArray[np.int64],
        outputs: Mapping[int, NDArray[Any]],
    ) -> None:
        """Copy rows that are there: nothing is checked but that their segments are known.

        Args:
            segments: Segment of each, `[N]`.
            places: Likewise, shifted left by `PLACE_BITS`, plus the row's number there, `[N]`.
            outputs: Items `[N]` of one row each, by what is added to the row for them, 0 or 1.

        Raises:
            UnknownSegmentError: A segment is not known; some rows may have been copied.
            OSError: A file cannot be read.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of all files; nothing may be taken any more. Twice is fine."""
