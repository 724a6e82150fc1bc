# SPDX-License-Identifier: Apache-2.0
"""Reading the segments of one folder, each of which is got to know when it is first needed."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from relive import files
from relive.errors import CorruptFileError
from relive.formats.checking import naming
from relive.formats.memmap.read_table import ReadTable
from relive.formats.memmap.segment_files import Ends, SegmentHead, segment_path
from relive.formats.memmap.segment_rows import MakeTable, SegmentRows
from relive.formats.memmap.segment_spec import SegmentSpec
from relive.formats.memmap.tables import Table, UnknownSegmentError
from relive.gather import Lacking
from relive.output_pool import Outputs
from relive.places import segments_of
from relive.record import Record
from relive.warning import warn

__all__ = ["SegmentReader"]


class SegmentReader:
    """Rows of the segments of a folder. Any thread may call any method."""

    def __init__(self, folder: Path, make_table: MakeTable) -> None:
        """Begin without segments.

        Args:
            folder: Holds them.
            make_table: Decides how rows are read.
        """
        self._folder = folder
        self._make_table = make_table
        self._lock = threading.RLock()
        self._heads: dict[int, SegmentHead] = {}
        self._layouts: list[SegmentRows] = []
        self._by_spec: dict[SegmentSpec, int] = {}
        self._layout_of = np.full(16, -1, np.int64)  # by segment

    def head(self, segment: int) -> SegmentHead:
        """Return what a segment is.

        Raises:
            MissingFileError: It is not there.
            CorruptFileError: Its head is damaged.
        """
        with self._lock:
            if segment not in self._heads:
                self._heads[segment] = SegmentHead.read(segment_path(self._folder, segment))
            return self._heads[segment]

    def check_whole(self, record: Record) -> None:
        """Refuse a segment that does not reach to the end of a trajectory.

        Raises:
            CorruptFileError: One of its files is cut.
            MissingFileError: It, or a file of it, is not there.
        """
        path = segment_path(self._folder, record.location["segment"])
        spec = self.head(record.location["segment"]).spec
        ends = Ends.after(record.location, record.num_rows, len(spec.groups))
        for name, size in ends.size_bytes(spec).items():
            with naming(path / name):
                found = files.size_bytes(path / name)
                if found < size:
                    raise CorruptFileError(f"it has {found} bytes, but {size} of them are in use")

    def gather(self, places: NDArray[np.int64], outputs: Outputs) -> Lacking:
        """Copy rows; see `PlacedFormat.gather_placed`.

        Raises:
            MissingFileError: A segment is not there.
            CorruptFileError: Its head is damaged.
            OSError: A file cannot be read.
        """
        segments = segments_of(places)
        try:
            return self._gather(segments, places, outputs)
        except UnknownSegmentError:  # once a segment: to suppress it would cost each batch a call
            return self._gather_unknown(segments, places, outputs)

    def _gather_unknown(
        self, segments: NDArray[np.int64], places: NDArray[np.int64], outputs: Outputs
    ) -> Lacking:
        for _ in range(2):  # once more when another thread gave up mapping
            self._get_to_know(np.unique(segments).tolist())
            with suppress(UnknownSegmentError):
                return self._gather(segments, places, outputs)
        raise CorruptFileError(
            f"a segment of {str(self._folder)!r} went while it was read, but nothing may take it "
            "away; look what else works on the folder",
            path=str(self._folder),
        )

    def _gather(
        self, segments: NDArray[np.int64], places: NDArray[np.int64], outputs: Outputs
    ) -> Lacking:
        layouts, layout_of = self._layouts, self._layout_of
        if len(layouts) == 1:
            layout = layouts[0]
            layout.take(segments, places, outputs.items)
            if outputs.columns.keys() <= layout.spec.by_name.keys():
                return {}
            lacks = outputs.columns.keys() - layout.spec.by_name.keys()
            return dict.fromkeys(lacks, np.arange(len(segments)))
        if segments.max() >= len(layout_of) or (layout_of[segments] < 0).any():
            raise UnknownSegmentError
        lacking: dict[str, list[NDArray[np.int64]]] = {}
        numbers = layout_of[segments]
        for number in np.unique(numbers).tolist():
            layout, mine = layouts[number], np.flatnonzero(numbers == number)
            parts = {
                name: np.empty(len(mine), items.dtype)
                for name, items in outputs.items.items()
                if name in layout.spec
            }
            layout.take(segments[mine], places[mine], parts)
            for name, part in parts.items():
                outputs.items[name][mine] = part
            for name in outputs.columns:
                if name not in layout.spec:
                    lacking.setdefault(name, []).append(mine)
        return {name: np.concatenate(some) for name, some in lacking.items()}

    def _get_to_know(self, segments: Sequence[int]) -> None:
        with self._lock:
            try:
                for segment in segments:
                    self._add(segment)
            except MemoryError as error:
                self._read_instead_of_mapping(error)
                self._get_to_know(segments)  # those before it are forgotten too

    def _add(self, segment: int) -> None:
        if self._knows(segment):
            return
        head = self.head(segment)
        number = self._by_spec.get(head.spec, len(self._layouts))
        if number == len(self._layouts):
            self._layouts.append(SegmentRows(head.spec, self._make_table))
            self._by_spec[head.spec] = number
        path = segment_path(self._folder, segment)
        self._layouts[number].add(segment, path, head.num_rows)
        layout_of = self._layout_of
        if segment >= len(layout_of):  # anew: a thread may be at the old one
            layout_of = np.full(2 * segment, -1, np.int64)
            layout_of[: len(self._layout_of)] = self._layout_of
        layout_of[segment] = number
        self._layout_of = layout_of

    def _knows(self, segment: int) -> bool:
        return segment < len(self._layout_of) and bool(self._layout_of[segment] >= 0)

    def _read_instead_of_mapping(self, error: MemoryError) -> None:
        """Begin anew with tables that need no addresses; who is reading keeps the old ones."""
        warn(
            f"files of {str(self._folder)!r} cannot be mapped ({error}), so rows are read one by "
            "one, which is slow; raise the limit of addresses (ulimit -v)"
        )
        self._make_table = lambda row_bytes, item: ReadTable(row_bytes)
        self._layout_of = np.full(16, -1, np.int64)  # first: readers look at it last
        self._layouts, self._by_spec = [], {}

    def has_mapped(self, segment: int) -> bool:
        """Tell whether rows of a segment have been read, so that its files are mapped."""
        with self._lock:
            if not self._knows(segment):
                return False
            records: Table = self._layouts[self._layout_of[segment]].records
            return records.is_mapped

    def let_go(self, segment: int) -> None:
        """Close and unmap a segment, whose rows nobody reads any more."""
        with self._lock:
            if self._knows(segment):
                self._layouts[self._layout_of[segment]].discard(segment)
                self._layout_of[segment] = -1
            self._heads.pop(segment, None)

    def close(self) -> None:
        """Let go of everything; twice is fine."""
        with self._lock:
            for layout in self._layouts:
                layout.close()
            self._layout_of = np.full(16, -1, np.int64)
