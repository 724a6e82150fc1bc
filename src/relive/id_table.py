# SPDX-License-Identifier: Apache-2.0
"""Arrays with a row for each trajectory, found by its id.

They grow at the end, a little at a time, and shrink at the front for nothing. Ids nearly always
rise, so an id is found by bisection; loads may bring any order.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["IdTable"]

_LEAST_SPARE = 64
_SPARE_SHARE = 8  # an eighth to spare: doubling would be half of what an index takes
_LARGE_BYTES = 1 << 18


def _empty(num: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an array whose memory is the system's again once it is dropped.

    The C library keeps pieces of what growing columns leave behind: a quarter more in all.
    """
    size = num * dtype.itemsize
    if size >= _LARGE_BYTES and sys.platform == "linux":
        with suppress(OSError):  # of too many mappings; when memory is short NumPy says so
            pages = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            return np.frombuffer(pages, dtype)
    return np.empty(num, dtype)


class IdTable:
    """Columns of one length, the first of them ids. Not safe for several threads at once.

    What `column` gave stays as it was when rows are appended or removed.
    """

    def __init__(self, dtypes: Mapping[str, str]) -> None:
        """Begin empty.

        Args:
            dtypes: NumPy's name of each column's type, that of the ids first.
        """
        self._columns: dict[str, NDArray[Any]] = {n: np.empty(0, t) for n, t in dtypes.items()}
        (self._ids_name, *_) = dtypes
        self.num_moves = 0
        """How often the columns moved to other arrays."""
        self._start = self._stop = 0
        self._rises_from = 0  # from this row on ids rise
        self._head: tuple[NDArray[Any], int, NDArray[np.int64]] | None = None

    @classmethod
    def of(cls, columns: Mapping[str, NDArray[Any]]) -> IdTable:
        """Return a table of filled columns, which it does not write to."""
        table = cls({name: column.dtype.str for name, column in columns.items()})
        table._columns = dict(columns)
        table._stop = len(table._ids)
        table._rises_from = _rises_from(table._ids)
        return table

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._stop - self._start

    @property
    def start(self) -> int:
        """Where in its arrays the oldest row is."""
        return self._start

    @property
    def stop(self) -> int:
        """Where in its arrays the next row will be."""
        return self._stop

    @property
    def num_spare(self) -> int:
        """How many rows can be appended before the columns move."""
        return len(self._ids) - self._stop

    @property
    def _ids(self) -> NDArray[Any]:
        return self._columns[self._ids_name]

    def column(self, name: str, newest: int = 0) -> NDArray[Any]:
        """Return a column, oldest first, or the end of it.

        Args:
            name: Which.
            newest: How many rows; 0 for all.
        """
        start = self._start if newest == 0 else max(self._start, self._stop - newest)
        return self._columns[name][start : self._stop]

    def row_of(self, trajectory_id: int) -> int:
        """Return the row of an id, counted from the oldest; -1 when it is not there."""
        if not 0 <= trajectory_id < 1 << 63:
            return -1
        ids, tail = self._ids, max(self._start, self._rises_from)
        if tail == self._start < self._stop and trajectory_id > ids[self._stop - 1]:
            return -1  # as each new one is
        row = tail + int(np.searchsorted(ids[tail : self._stop], trajectory_id))
        if row < self._stop and ids[row] == trajectory_id:
            return row - self._start
        if tail > self._start:
            order = self._head_order()
            # the last of its like: those before it are gone
            place = int(np.searchsorted(ids[order], trajectory_id, side="right")) - 1
            if place >= 0 and ids[order[place]] == trajectory_id:
                return max(-1, int(order[place]) - self._start)
        return -1

    def rows_of(self, trajectory_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows of ids, counted from the oldest.

        Raises:
            KeyError: One is not there.
        """
        ids = self._ids[self._start : self._stop]
        if self._rises_from <= self._start:
            rows = np.searchsorted(ids, trajectory_ids).astype(np.int64)
            rows[rows == len(ids)] = 0
        else:
            rows = np.array([self.row_of(one) for one in trajectory_ids.tolist()], np.int64)
        is_there = ids[rows] == trajectory_ids if len(ids) else np.zeros(len(rows), np.bool_)
        if not is_there.all():
            raise KeyError(int(trajectory_ids[~is_there][0]))
        return rows

    def _head_order(self) -> NDArray[np.int64]:
        """Return the rows before those that rise, by their ids."""
        ids, stop = self._ids, self._rises_from
        if self._head is None or self._head[0] is not ids or self._head[1] != stop:
            self._head = (ids, stop, np.argsort(ids[:stop], kind="stable"))
        return self._head[2]

    def append(self, *values: int) -> None:
        """Append a row, its values in the order of the columns; its id must not be there."""
        if not self.num_spare:
            self.move_to(self.grown(1))
        stop = self._stop
        if stop > self._start and values[0] <= self._ids[stop - 1]:
            self._rises_from = stop
        for column, value in zip(self._columns.values(), values, strict=True):
            column[stop] = value
        self._stop += 1

    def grown(self, num: int) -> dict[str, NDArray[Any]]:
        """Return larger copies of the columns for `move_to`; here nothing changes.

        Args:
            num: How many rows will be appended at least.
        """
        spare = max(_LEAST_SPARE, num, len(self) // _SPARE_SHARE)
        columns = {}
        for name, column in self._columns.items():
            columns[name] = _empty(len(self) + spare, column.dtype)  # windows keep the old one
            columns[name][: len(self)] = column[self._start : self._stop]
        return columns

    def move_to(self, columns: dict[str, NDArray[Any]], changed: Collection[str] = ()) -> None:
        """Go on in columns of `grown`.

        Args:
            columns: As rows were appended or removed by none since.
            changed: Columns in which `change` set values since.
        """
        for name in changed:
            columns[name][: len(self)] = self.column(name)
        self._replace(columns, len(self))

    def _replace(self, columns: dict[str, NDArray[Any]], num: int) -> None:
        self._columns = columns
        self.num_moves += 1
        self._rises_from = max(0, self._rises_from - self._start)
        self._start, self._stop, self._head = 0, num, None

    def change(self, row: int, name: str, value: int) -> None:
        """Set one value, also in what `column` gave before.

        Args:
            row: Counted from the oldest.
            name: Of the column.
            value: Its value from now on.
        """
        column = self._columns[name]
        if not column.flags.writeable:  # it is a file's, and nobody changed it yet
            column = self._columns[name] = column.copy()
        column[self._start + row] = value

    def set_column(self, name: str, values: NDArray[Any]) -> None:
        """Exchange a column for another one, with a value for each row."""
        column = _empty(len(self._ids), self._columns[name].dtype)
        column[self._start : self._stop] = values
        self._columns[name] = column

    def remove(self, trajectory_ids: Collection[int]) -> bool:
        """Remove rows by their ids; those that are not there are passed over.

        Returns:
            Whether rows in the middle went, so that all columns are other arrays now.
        """
        gone = set(trajectory_ids)
        ids = self._ids
        while gone and self._start < self._stop and int(ids[self._start]) in gone:
            gone.discard(int(ids[self._start]))
            self._start += 1
        rows = [row for row in map(self.row_of, gone) if row >= 0]
        if not rows:
            return False
        is_kept = np.ones(len(self), np.bool_)
        is_kept[rows] = False
        kept = {name: self.column(name)[is_kept] for name in self._columns}
        self._replace(kept, len(kept[self._ids_name]))
        self._rises_from = _rises_from(self._ids)
        return True

    def take(self, rows: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Return copies of some rows of all columns."""
        return {name: self.column(name)[rows] for name in self._columns}


def _rises_from(ids: NDArray[Any]) -> int:
    """Return the row from which on ids rise."""
    falls = np.flatnonzero(ids[1:] <= ids[:-1])
    return int(falls[-1]) + 1 if len(falls) else 0
