# SPDX-License-Identifier: Apache-2.0
"""Rows of all segments of one layout: records, frames, and taking them apart into columns."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relive.dtypes import items_dtype
from relive.formats.memmap.segment_spec import SegmentSpec
from relive.formats.memmap.tables import Table
from relive.places import PLACE_BITS

__all__ = ["ROWS_NAME", "MakeTable", "SegmentRows"]

ROWS_NAME = "rows.bin"
"""File of a segment's records."""

MakeTable = Callable[[int, "np.dtype[Any]"], Table]
"""Makes a table for rows of so many bytes, of this type."""

_MOST_SCRATCHES = 4
_MOST_SCRATCH_BYTES = 64 << 20


class SegmentRows:
    """Segments of one layout. Any thread may take; one at a time may add and discard."""

    def __init__(self, spec: SegmentSpec, make_table: MakeTable) -> None:
        """Begin without segments."""
        self.spec = spec
        """Their layout."""
        self.records = make_table(spec.stride, np.dtype((np.void, spec.stride)))
        """Their records."""
        self.frames = tuple(
            make_table(group.frame_bytes, items_dtype(group.frame_bytes)) for group in spec.groups
        )
        """Their frames, by group."""
        self._scratches = _Scratches()

    def add(self, segment: int, folder: Path, num_rows: int) -> None:
        """Get to know a segment.

        Args:
            segment: Its number.
            folder: Its folder.
            num_rows: How many rows it will have at most.

        Raises:
            CorruptFileError: A file is larger than so many rows are.
            OSError: A file cannot be opened.
            MemoryError: There are no addresses to map it at.
        """
        try:
            self.records.add(segment, folder / ROWS_NAME, num_rows)
            for table, group in zip(self.frames, self.spec.groups, strict=True):
                table.add(segment, folder / group.file_name, num_rows * len(group.columns))
        except BaseException:  # Ctrl+C among others: added again, it would be mapped twice
            self.discard(segment)
            raise

    def discard(self, segment: int) -> None:
        """Let go of a segment, whose rows nobody takes any more; an unknown one is fine."""
        for table in (self.records, *self.frames):
            table.discard(segment)

    def close(self) -> None:
        """Let go of all segments; nothing may be taken any more."""
        for table in (self.records, *self.frames):
            table.close()

    def take(
        self,
        segments: NDArray[np.int64],
        places: NDArray[np.int64],
        items: Mapping[str, NDArray[Any]],
    ) -> None:
        """Copy rows that are there: nothing is checked but that their segments are known.

        Args:
            segments: Segment of each, `[N]`.
            places: Likewise, shifted left by `PLACE_BITS`, plus the row's number there, `[N]`.
            items: Where to, by full name, `[N]` of one item a row. Those that the segments lack
                are left as they are.

        Raises:
            UnknownSegmentError: A segment is not known; some rows may have been copied.
            CorruptFileError: A record names a frame that is not there.
            OSError: A file cannot be read.
        """
        # taken out meanwhile: a signal handler may sample in the middle of this
        kept = self._scratches.by_rows
        scratch = kept.pop(len(places), None) or _Scratch(self.spec, len(places))
        self.records.take(segments, places, scratch.outputs)
        for name, column in scratch.columns.items():
            if name in items:
                items[name][...] = column
        if self.frames:
            self._take_frames(scratch, segments, items)
        if scratch.records.nbytes <= _MOST_SCRATCH_BYTES:
            kept[len(places)] = scratch
            if len(kept) > _MOST_SCRATCHES:
                del kept[next(iter(kept))]

    def _take_frames(
        self,
        scratch: _Scratch,
        segments: NDArray[np.int64],
        items: Mapping[str, NDArray[Any]],
    ) -> None:
        for table, group in zip(self.frames, self.spec.groups, strict=True):
            outputs = {
                further: items[one.name]
                for further, one in enumerate(group.columns)
                if one.name in items
            }
            if outputs:
                positions = scratch.positions[group.name].astype(np.int64)
                table.check(segments, positions + max(outputs))  # they are what a file says
                table.take(segments, positions + (segments << PLACE_BITS), outputs)


class _Scratches(threading.local):
    """Those of each thread."""

    def __init__(self) -> None:
        self.by_rows: dict[int, _Scratch] = {}


class _Scratch:
    """Room for records, and views of their fields."""

    __slots__ = ("columns", "outputs", "positions", "records")

    def __init__(self, spec: SegmentSpec, num_rows: int) -> None:
        fields = spec.empty_records(num_rows)
        self.records = fields.view(np.dtype((np.void, spec.stride)))
        self.outputs = {0: self.records}
        self.columns = {one.name: fields[one.name] for one in spec.fields if one.row_bytes}
        self.positions = {group.name: fields[group.name] for group in spec.groups}
