# SPDX-License-Identifier: Apache-2.0
"""Rows in mapped files, copied out of memory; see `tables`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from relive import files
from relive.address_range import AddressRange
from relive.announcing import Announcer, announce, num_faults
from relive.errors import CorruptFileError
from relive.formats.memmap.tables import Table, UnknownSegmentError
from relive.places import PLACE_BITS

__all__ = ["MappedTable"]

_RANGE_BITS = 48  # a row of the ranges is a range's number shifted left, plus a row in it
_MANY_BYTES = 512 << 10
_CHUNK_BYTES = 2 << 20
_CHUNKS_AHEAD = 4  # of what is copied next
_UNKNOWN = int(np.iinfo(np.int64).min)  # with any place added it is still below 0


class MappedTable(Table):
    """Rows in mapped files, all of them copied by one call."""

    is_mapped: ClassVar[bool] = True

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
        # what is added to a place to make it a row of the ranges, by segment
        self._shifts = np.full(16, _UNKNOWN, np.int64)
        self._num_rows = np.zeros(16, np.int64)  # that each file has at least, by segment
        self._paths: dict[int, Path] = {}

    def check(self, segments: NDArray[np.int64], rows: NDArray[np.int64]) -> None:
        """Refuse rows that files say and no file has; see `Table.check`."""
        # "clip" makes the last of segments that are not known, which `take` tells
        is_beyond = rows >= self._num_rows.take(segments, mode="clip")
        if not is_beyond.any():
            return
        for segment in np.unique(segments[is_beyond]).tolist():
            if segment in self._paths:  # it may have grown
                size = files.size_bytes(self._paths[segment])
                self._num_rows[segment] = size // self.row_bytes
                self._refuse_beyond(
                    segment, rows[segments == segment], int(self._num_rows[segment])
                )

    def add(self, segment: int, path: Path, num_rows: int) -> None:
        """Map the file of a segment; see `Table.add`."""
        number = self._range_for(num_rows)
        chosen = self._ranges[number]
        if files.size_bytes(path) > chosen.slot_bytes:
            raise CorruptFileError(
                f"{str(path)!r} has {files.size_bytes(path)} bytes, but with {num_rows} rows has "
                f"at most {chosen.slot_bytes}; restore the segment from a copy",
                path=str(path),
            )
        slot = chosen.map(path)
        shifts = self._shifts
        if segment >= len(shifts) - 1:  # in an array of its own: a thread may be at the old one
            shifts = np.full(2 * segment + 2, _UNKNOWN, np.int64)  # the last stays unknown
            shifts[: len(self._shifts)] = self._shifts
            lengths = np.zeros(len(shifts), np.int64)
            lengths[: len(self._num_rows)] = self._num_rows
            self._num_rows = lengths
        self._paths[segment] = path
        self._num_rows[segment] = 0  # looked at when it is needed
        base = (number << _RANGE_BITS) + slot * chosen.rows_per_slot
        shifts[segment] = base - (segment << PLACE_BITS)  # last: from here on rows are taken
        self._shifts = shifts

    def _range_for(self, num_rows: int) -> int:
        for number, existing in enumerate(self._ranges):
            if not existing.is_full and num_rows <= existing.rows_per_slot:
                return number
        self._ranges.append(AddressRange(self.row_bytes, num_rows))
        self._rows.append(self._ranges[-1].rows(self._item))
        return len(self._ranges) - 1

    def discard(self, segment: int) -> None:
        """Unmap the file of a segment; see `Table.discard`."""
        if segment < len(self._shifts) and self._shifts[segment] != _UNKNOWN:
            base = int(self._shifts[segment]) + (segment << PLACE_BITS)
            number, row = divmod(base, 1 << _RANGE_BITS)
            self._shifts[segment] = _UNKNOWN
            del self._paths[segment]
            self._ranges[number].unmap(row // self._ranges[number].rows_per_slot)

    def take(
        self,
        segments: NDArray[np.int64],
        places: NDArray[np.int64],
        outputs: Mapping[int, NDArray[Any]],
    ) -> None:
        """Copy rows out of the mapped files; see `Table.take`."""
        # "clip" makes the last of those that are not there, which is never known
        rows = self._shifts.take(segments, mode="clip")
        rows += places
        if len(rows) and rows[rows.argmin()] < 0:
            raise UnknownSegmentError
        if len(self._ranges) == 1:
            self._take_from(0, rows, outputs)
            return
        numbers = rows >> _RANGE_BITS
        for number in np.unique(numbers).tolist():
            mine = np.flatnonzero(numbers == number)
            parts = {further: np.empty(len(mine), self._item) for further in outputs}
            self._take_from(number, rows[mine] & ((1 << _RANGE_BITS) - 1), parts)
            for further, out in outputs.items():
                out[mine] = parts[further]

    def _take_from(
        self, number: int, rows: NDArray[np.int64], outputs: Mapping[int, NDArray[Any]]
    ) -> None:
        announcer = self.announcer
        if not announcer.is_on and len(rows) * self.row_bytes >= _MANY_BYTES:
            # a sixteenth tells whether the others are cold too, before each of them is waited for
            num_first = len(rows) // 16
            few = {further: out[:num_first] for further, out in outputs.items()}
            announcer.learn(self._copy(number, rows[:num_first], few), num_first)
            rows = rows[num_first:]
            outputs = {further: out[num_first:] for further, out in outputs.items()}
        copy = self._copy_announced if announcer.is_on else self._copy
        found = copy(number, rows, outputs)
        if found or announcer.is_on:
            announcer.learn(found, len(rows))

    def _copy(
        self, number: int, rows: NDArray[np.int64], outputs: Mapping[int, NDArray[Any]]
    ) -> int:
        """Copy rows; return for how many pages this waited."""
        source, before = self._rows[number], num_faults()
        for further, out in outputs.items():
            # "clip" skips a buffered copy: these rows are there
            source.take(rows + further if further else rows, 0, out, "clip")
        return num_faults() - before

    def _copy_announced(
        self, number: int, rows: NDArray[np.int64], outputs: Mapping[int, NDArray[Any]]
    ) -> int:
        """Copy cold rows a few at a time, while the disk reads the next ones, as `_copy` does."""
        bytes_each = len(outputs) * self.row_bytes
        starts = self._ranges[number].address + (rows + min(outputs)) * self.row_bytes
        first, ends = self.announcer.ranges(starts, bytes_each)
        step = max(1, _CHUNK_BYTES // bytes_each)
        chunks = [slice(one, one + step) for one in range(0, len(rows), step)]
        found = num_told = 0
        for at, chunk in enumerate(chunks):
            for told in chunks[num_told : at + _CHUNKS_AHEAD]:
                announce(first[told], ends[told])
                num_told += 1
            parts = {further: out[chunk] for further, out in outputs.items()}
            found += self._copy(number, rows[chunk], parts)
        return found

    def close(self) -> None:
        """Unmap everything; see `Table.close`."""
        self._shifts = np.full(16, _UNKNOWN, np.int64)
        self._rows.clear()
        for one in self._ranges:
            one.close()
        self._ranges.clear()
