# SPDX-License-Identifier: Apache-2.0
"""Rows of one size in the files of many segments, by segment and number.

A `MappedTable` copies them out of memory, a `ReadTable` by reading the files: slower, but what
a network file system or a failing disk does to it is an `OSError` and not the end of the
process.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relive import files
from relive.address_range import AddressRange
from relive.announcing import Announcer, num_faults

__all__ = ["MappedTable", "ReadTable", "Table"]

_RANGE_BITS = 48  # a base is a range's number shifted left by so many bits, plus a row in it
_MOST_OPEN = 16


class Table(ABC):
    """Rows of one size. Any thread may take; one at a time may add and discard."""

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
            OSError: The file cannot be opened or mapped.
        """

    @abstractmethod
    def discard(self, segment: int) -> None:
        """Let go of a segment, whose rows nobody takes any more; an unknown one is fine."""

    @abstractmethod
    def take(
        self,
        segments: NDArray[np.int64],
        rows: NDArray[np.int64],
        outputs: Mapping[int, NDArray[Any]],
    ) -> None:
        """Copy rows that are there: nothing is checked.

        Args:
            segments: Segment of each, `[N]`.
            rows: Its number in the segment, `[N]`.
            outputs: Items `[N]` of one row each, by what is added to `rows` for them, 0 or 1.

        Raises:
            OSError: A file cannot be read.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of all files; nothing may be taken any more. Twice is fine."""


class MappedTable(Table):
    """Rows in mapped files, all of them copied by one call."""

    def __init__(self, row_bytes: int, item: np.dtype[Any]) -> None:
        """Begin without segments.

        Args:
            row_bytes: Of one row, at least 1.
            item: Type of one row.
        """
        super().__init__(row_bytes)
        self.announcer = Announcer()
        """Knows whether rows are cold."""
        self._item = item
        self._ranges: list[AddressRange] = []
        self._rows: list[NDArray[Any]] = []
        self._bases = np.full(16, -1, np.int64)  # by segment

    def add(self, segment: int, path: Path, num_rows: int) -> None:
        """Map the file of a segment; see `Table.add`."""
        number = self._range_for(num_rows)
        place = self._ranges[number]
        slot = place.map(path)
        bases = self._bases
        if segment >= len(bases):  # in an array of its own: a thread may be at the old one
            bases = np.full(2 * segment, -1, np.int64)
            bases[: len(self._bases)] = self._bases
        bases[segment] = (number << _RANGE_BITS) + slot * place.rows_per_slot
        self._bases = bases

    def _range_for(self, num_rows: int) -> int:
        for number, existing in enumerate(self._ranges):
            if not existing.is_full and num_rows <= existing.rows_per_slot:
                return number
        self._ranges.append(AddressRange(self.row_bytes, num_rows))
        self._rows.append(self._ranges[-1].rows(self._item))
        return len(self._ranges) - 1

    def discard(self, segment: int) -> None:
        """Unmap the file of a segment; see `Table.discard`."""
        if segment < len(self._bases) and self._bases[segment] >= 0:
            number, row = divmod(int(self._bases[segment]), 1 << _RANGE_BITS)
            self._bases[segment] = -1
            self._ranges[number].unmap(row // self._ranges[number].rows_per_slot)

    def take(
        self,
        segments: NDArray[np.int64],
        rows: NDArray[np.int64],
        outputs: Mapping[int, NDArray[Any]],
    ) -> None:
        """Copy rows out of the mapped files; see `Table.take`."""
        places = self._bases[segments]
        places += rows
        if len(self._ranges) == 1:
            self._take_from(0, places, outputs)
            return
        numbers = places >> _RANGE_BITS
        for number in np.unique(numbers).tolist():
            mine = np.flatnonzero(numbers == number)
            parts = {further: np.empty(len(mine), self._item) for further in outputs}
            self._take_from(number, places[mine] & ((1 << _RANGE_BITS) - 1), parts)
            for further, out in outputs.items():
                out[mine] = parts[further]

    def _take_from(
        self, number: int, places: NDArray[np.int64], outputs: Mapping[int, NDArray[Any]]
    ) -> None:
        source = self._rows[number]
        if self.announcer.is_on:
            starts = self._ranges[number].address + (places + min(outputs)) * self.row_bytes
            self.announcer.announce(starts, len(outputs) * self.row_bytes)
        before = num_faults()
        for further, out in outputs.items():
            # "clip" skips a buffered copy; a place that is not there would have been told before
            source.take(places + further if further else places, 0, out, "clip")
        self.announcer.learn(num_faults() - before, len(places))

    def close(self) -> None:
        """Unmap everything; see `Table.close`."""
        self._bases = np.full(16, -1, np.int64)
        self._rows.clear()
        for one in self._ranges:
            one.close()
        self._ranges.clear()


class ReadTable(Table):
    """Rows read from files, one after the other in the order of the files."""

    def __init__(self, row_bytes: int) -> None:
        """Begin without segments; see `Table`."""
        super().__init__(row_bytes)
        self._paths: dict[int, Path] = {}
        self._open: OrderedDict[int, int] = OrderedDict()  # descriptors, that used last at the end
        self._lock = threading.Lock()

    def add(self, segment: int, path: Path, num_rows: int) -> None:
        """Remember the file of a segment; see `Table.add`."""
        with self._lock:
            self._paths[segment] = path

    def discard(self, segment: int) -> None:
        """Forget the file of a segment; see `Table.discard`."""
        with self._lock:
            self._paths.pop(segment, None)
            if segment in self._open:
                files.close(self._open.pop(segment))

    def take(
        self,
        segments: NDArray[np.int64],
        rows: NDArray[np.int64],
        outputs: Mapping[int, NDArray[Any]],
    ) -> None:
        """Read rows from the files; see `Table.take`."""
        with self._lock:  # descriptors are closed while others are needed
            for at in np.lexsort((rows, segments)).tolist():
                descriptor = self._descriptor(int(segments[at]))
                for further, out in outputs.items():
                    start = (int(rows[at]) + further) * self.row_bytes
                    files.read_at(descriptor, start, out[at : at + 1].view(np.uint8).data)

    def _descriptor(self, segment: int) -> int:
        if segment not in self._open:
            if len(self._open) >= _MOST_OPEN:
                files.close(self._open.popitem(last=False)[1])
            self._open[segment] = files.open_to_read(self._paths[segment])
        self._open.move_to_end(segment)
        return self._open[segment]

    def close(self) -> None:
        """Close all files; see `Table.close`."""
        with self._lock:
            self._paths.clear()
            while self._open:
                files.close(self._open.popitem()[1])
