# SPDX-License-Identifier: Apache-2.0
"""Rows of many trajectories into one batch.

Rows that have a place are copied by their format all at once. Others are copied
trajectory by trajectory: `Wanted` says which rows of one trajectory go where, `RowBatch` holds
the outputs. There small rows are taken, trajectory after trajectory, into a scratch in that
order and put into the drawn order by one take a column at the end, which costs less than
scattering each group; large rows are copied once, straight to their place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relive.fields import FLAG_FIELDS
from relive.output_pool import Outputs
from relive.record import Record
from relive.runs import extended_rows
from relive.snapshot import Snapshot

__all__ = ["KeptRows", "Lacking", "RowBatch", "RowSource", "Wanted", "row_source"]

Lacking = Mapping[str, NDArray[np.int64]]
"""Columns that rows lack, and the positions of those rows in the batch."""

RowSource = Mapping[str, NDArray[Any]]
"""Columns of one trajectory by name, `[T * B, ...]` or `[(T + E) * B, ...]`, only read from."""

Items = NDArray[np.void]
"""Rows as one-dimensional opaque items: taken twice as fast as rows of several numbers."""

_LARGE_ROW_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Wanted:
    """The rows of one trajectory that a batch needs."""

    record: Record
    """The trajectory."""
    rows: NDArray[np.int64]
    """Row numbers `t * B + b`, `[n]`; may repeat."""
    positions: NDArray[np.int64]
    """Where in the batch each goes, `[n]`."""
    start: int
    """Number of rows wanted of the trajectories before this one."""


class KeptRows(dict[str, NDArray[Any]]):
    """A `RowSource` that is filled from many times: what a fill works out is kept with it."""

    __slots__ = ("items_of",)

    def __init__(self, columns: RowSource) -> None:
        """Keep columns, which must not change any more."""
        super().__init__(columns)
        self.items_of: dict[str, Items] = {}


class RowBatch:
    """Rows of a batch that are copied trajectory by trajectory: all of them, or some.

    Not for several threads. Each must be filled once, by `fill` or `fill_default`.
    """

    def __init__(self, outputs: Outputs, num_rows: int) -> None:
        """Begin.

        Args:
            outputs: Columns of the whole batch.
            num_rows: How many of its rows will be filled.
        """
        self._out = outputs.columns
        self._items = {
            name: items.view(np.dtype((np.void, items.itemsize)))
            for name, items in outputs.items.items()
        }
        self._scratch = {
            name: np.empty((num_rows, *column.shape[1:]), column.dtype)
            for name, column in outputs.columns.items()
            if column[:1].nbytes < _LARGE_ROW_BYTES
        }
        self._small = {
            name: _items(column) for name, column in self._scratch.items() if column.nbytes
        }
        self._large = {
            name: column for name, column in self._out.items() if name not in self._scratch
        }
        self._positions = np.empty(num_rows, np.int64)

    @property
    def names(self) -> tuple[str, ...]:
        """The columns wanted."""
        return tuple(self._out)

    def fill(self, wanted: Wanted, source: RowSource) -> None:
        """Copy the rows wanted of one trajectory, for each column that its source has."""
        start, stop = wanted.start, wanted.start + len(wanted.rows)
        self._positions[start:stop] = wanted.positions
        rows, num_rows = wanted.rows, wanted.record.num_rows
        extended = _ExtendedRows(wanted)
        kept = source.items_of if isinstance(source, KeptRows) else {}
        for name, target in self._small.items():
            items = kept.get(name)
            if items is None:
                if name not in source:
                    continue
                items = kept[name] = _items(source[name])
            # mode="clip" skips a buffered copy; the rows were checked against the window before
            here = rows if len(items) == num_rows else extended.of(name)
            items.take(here, 0, target[start:stop], "clip")
        for name, out in self._large.items():
            if name in source:
                column = source[name]
                here = rows if len(column) == num_rows else extended.of(name)
                for row, position in zip(here.tolist(), wanted.positions.tolist(), strict=True):
                    out[position] = column[row]

    def fill_default(self, wanted: Wanted, name: str, default: NDArray[Any]) -> None:
        """Set a column that the trajectory lacks to its declared default."""
        if name in self._scratch:
            self._scratch[name][wanted.start : wanted.start + len(wanted.rows)] = default
        else:
            self._out[name][wanted.positions] = default

    def finish(self) -> dict[str, NDArray[Any]]:
        """Put what was filled into the order of the batch; return the columns of all of it."""
        if self._out and len(self._positions) == len(next(iter(self._out.values()))):
            order = np.empty_like(self._positions)
            order[self._positions] = np.arange(len(order))
            for name, scratch in self._small.items():
                scratch.take(order, 0, self._items[name], "clip")
        else:
            for name, scratch in self._small.items():
                self._items[name][self._positions] = scratch
        return self._out


class _ExtendedRows:
    """Where rows lie in columns with T + E rows; each of the two kinds computed once."""

    __slots__ = ("_computed", "_wanted")

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._computed: dict[bool, NDArray[np.int64]] = {}

    def of(self, name: str) -> NDArray[np.int64]:
        leading = name in FLAG_FIELDS
        if leading not in self._computed:
            record = self._wanted.record
            self._computed[leading] = extended_rows(
                self._wanted.rows,
                record.num_envs,
                record.num_steps // record.num_epochs,
                leading=leading,
            )
        return self._computed[leading]


def _items(column: NDArray[Any]) -> Items:
    """View the rows of a column with at least one row and one byte a row as items."""
    # [rows, ...] -> [rows, bytes] -> [rows] of items
    flat = column.reshape(len(column), -1)
    return flat.view(np.dtype((np.void, flat.shape[1] * flat.itemsize)))[:, 0]


def row_source(snapshot: Snapshot) -> RowSource:
    """Return the columns of a snapshot as rows, `[T * B, ...]` or `[(T + E) * B, ...]`."""
    return {
        # [T, B, ...] -> [T * B, ...]; -1 would not do for rows of no width
        name: column.values.reshape(
            column.values.shape[0] * column.values.shape[1], *column.values.shape[2:]
        )
        for name, column in snapshot.columns.items()
    }
