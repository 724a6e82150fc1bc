# SPDX-License-Identifier: Apache-2.0
"""Rows by their ids, wherever they are: in memory or in files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relive.disk import Disk
from relive.dtypes import TEXT
from relive.gather import RowBatch, RowSource, Wanted
from relive.index import Window
from relive.record import Record
from relive.spec import Schema
from relive.texts import merge_texts

__all__ = ["FindRows", "read_rows"]

FindRows = Callable[[int], tuple[Record, "RowSource | None"]]
"""Gives the record of a trajectory by its id, and its rows when they are in memory."""


def read_rows(
    row_ids: NDArray[np.int64],
    names: Sequence[str],
    window: Window,
    schema: Schema,
    *,
    find: FindRows,
    disk: Disk | None,
) -> tuple[dict[str, NDArray[Any]], dict[str, list[str]]]:
    """Copy rows into new arrays, in the order given, each trajectory read at most once.

    Args:
        row_ids: Which rows, `[N]`.
        names: Which columns; the schema has them all.
        window: Has all the rows.
        schema: What each trajectory has.
        find: Looks trajectories up.
        disk: Where those that are not in memory lie.

    Returns:
        Each column as `[N, ...]` in its storage type, text columns as codes; and the table of
        each text column.

    Raises:
        EvictedError: A row is not in the window.
        MissingFileError: A file is not there.
        CorruptFileError: A file is damaged.
    """
    specs = {name: schema.columns[name] for name in names}
    batch = RowBatch(len(row_ids), {n: (s.row_shape, s.storage) for n, s in specs.items()})
    all_wanted = _fill(batch, row_ids, window, find, disk)
    for name in specs.keys() & schema.defaults.keys():
        default = schema.defaults[name]
        stand_in = np.zeros((), np.int32) if isinstance(default, str) else default
        for wanted in all_wanted:
            if name not in wanted.record.layout:
                batch.fill_default(wanted, name, stand_in)
    columns = batch.finish()
    tables = {
        name: merge_texts(name, columns[name], all_wanted, schema.defaults.get(name))
        for name, spec in specs.items()
        if spec.dtype == TEXT
    }
    return columns, tables


def _fill(
    batch: RowBatch,
    row_ids: NDArray[np.int64],
    window: Window,
    find: FindRows,
    disk: Disk | None,
) -> list[Wanted]:
    """Fill a batch; return what was wanted of each trajectory."""
    position, rows = window.locate(row_ids)
    order = np.argsort(position, kind="stable")
    rows, position = rows[order], position[order]
    starts = np.flatnonzero(np.diff(position, prepend=-1))
    stops = [*starts[1:].tolist(), len(order)]
    ids = window.trajectory_ids[position[starts]].tolist()
    all_wanted: list[Wanted] = []
    from_files: dict[str, list[Wanted]] = {}
    for trajectory_id, start, stop in zip(ids, starts.tolist(), stops, strict=True):
        record, source = find(trajectory_id)
        wanted = Wanted(record, rows[start:stop], order[start:stop], start)
        all_wanted.append(wanted)
        if source is not None:
            batch.fill(wanted, source)
        else:
            from_files.setdefault(record.format, []).append(wanted)
    for name, group in from_files.items():
        assert disk is not None, "without a disk every trajectory is in memory"
        disk.formats.named(name).gather(disk.folder, group, batch)
    return all_wanted
