# SPDX-License-Identifier: Apache-2.0
"""Rows by their ids, wherever they are: in memory, in segments, or in files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relive.batches import BatchPlan
from relive.disk import Disk
from relive.gather import Lacking, RowBatch, RowSource, Wanted
from relive.index import Window
from relive.output_pool import OutputPool, Outputs
from relive.record import Record
from relive.spec import Schema
from relive.texts import TextGroup, all_the_same, merge_texts, texts_in

__all__ = ["FindRows", "read_rows"]

FindRows = Callable[[int], tuple[Record, "RowSource | None"]]
"""Gives the record of a trajectory by its id, and its rows when they are in memory."""


def read_rows(
    row_ids: NDArray[np.int64],
    plan: BatchPlan,
    window: Window,
    *,
    find: FindRows,
    disk: Disk | None,
    pool: OutputPool,
) -> tuple[dict[str, NDArray[Any]], dict[str, list[str]]]:
    """Copy rows into outputs of their own, in the order given, each trajectory read at most once.

    Args:
        row_ids: Which rows, `[N]`.
        plan: Which columns.
        window: Has all the rows.
        find: Looks trajectories up.
        disk: Where those that are not in memory lie.
        pool: Memory for the columns.

    Returns:
        Each column as `[N, ...]` in its storage type, text columns as codes; and the table of
        each text column.

    Raises:
        EvictedError: A row is not in the window.
        MissingFileError: A file is not there.
        CorruptFileError: A file is damaged.
        StorageError: The disk cannot read it.
    """
    outputs = pool.take(len(row_ids), plan.wants)
    position, rows = window.locate(row_ids)
    others = np.flatnonzero(window.places[position] < 0)
    lacking: Lacking = {}
    places = None
    if len(others) < len(row_ids):
        assert disk is not None, "without a disk no trajectory has a place"
        places = _places(window, position, rows, others)
        form = disk.formats.named("memmap")
        lacking = form.gather_placed(disk.folder, places, outputs)
        for name, lacks in lacking.items():
            outputs.columns[name][lacks] = _default(plan.schema, name)
    wanted = _fill(outputs, others, window, position, rows, find, disk, plan.schema)
    tables = {}
    for name in plan.texts:
        default = plan.schema.defaults.get(name)
        groups: list[TextGroup] = [
            (one.positions, texts_in(one.record, name, default)) for one in wanted
        ]
        if places is not None and disk is not None:
            # of what another row stood in for, it is the other that may lack the column
            without = np.setdiff1d(lacking.get(name, np.empty(0, np.int64)), others)
            groups.append((without, all_the_same(str(default))))
            placed = np.setdiff1d(np.arange(len(row_ids)), np.concatenate([others, without]))
            groups += form.text_groups(disk.folder, places, placed)
        tables[name] = merge_texts(outputs.columns[name], groups)
    return outputs.columns, tables


def _places(
    window: Window,
    position: NDArray[np.int64],
    rows: NDArray[np.int64],
    others: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return the place of each row; for those without one, which are filled later, any other."""
    if len(others):
        is_other = np.zeros(len(rows), np.bool_)
        is_other[others] = True
        stand_in = int(np.argmin(is_other))
        position, rows = position.copy(), rows.copy()
        position[others], rows[others] = position[stand_in], rows[stand_in]
    places, num_envs = window.places[position], window.num_envs[position]
    # row t * B + b lies at b * T + t
    step = rows // num_envs
    num_steps = window.counts[position] // num_envs
    places += (rows - step * num_envs) * num_steps + step
    return places


def _default(schema: Schema, name: str) -> NDArray[Any]:
    default = schema.defaults[name]
    return np.zeros((), np.int32) if isinstance(default, str) else default


def _fill(
    outputs: Outputs,
    mine: NDArray[np.int64],
    window: Window,
    position: NDArray[np.int64],
    rows: NDArray[np.int64],
    find: FindRows,
    disk: Disk | None,
    schema: Schema,
) -> list[Wanted]:
    """Fill some positions of a batch; return what was wanted of each trajectory."""
    if not len(mine):
        return []
    batch = RowBatch(outputs, len(mine))
    all_wanted: list[Wanted] = []
    from_files: dict[str, list[Wanted]] = {}
    for wanted, source in _by_trajectory(mine, window, position, rows, find):
        all_wanted.append(wanted)
        if source is not None:
            batch.fill(wanted, source)
        else:
            from_files.setdefault(wanted.record.format, []).append(wanted)
    for name, group in from_files.items():
        assert disk is not None, "without a disk every trajectory is in memory"
        disk.formats.named(name).gather(disk.folder, group, batch)
    for name in outputs.columns.keys() & schema.defaults.keys():
        for wanted in all_wanted:
            if name not in wanted.record.layout:
                batch.fill_default(wanted, name, _default(schema, name))
    batch.finish()
    return all_wanted


def _by_trajectory(
    mine: NDArray[np.int64],
    window: Window,
    position: NDArray[np.int64],
    rows: NDArray[np.int64],
    find: FindRows,
) -> list[tuple[Wanted, RowSource | None]]:
    """Group positions of a batch by trajectory, and look each up."""
    mine = mine[np.argsort(position[mine], kind="stable")]
    here, rows = position[mine], rows[mine]
    starts = np.flatnonzero(np.diff(here, prepend=-1))
    stops = [*starts[1:].tolist(), len(mine)]
    found = []
    ids = window.trajectory_ids[here[starts]].tolist()
    for trajectory_id, start, stop in zip(ids, starts.tolist(), stops, strict=True):
        record, source = find(trajectory_id)
        found.append((Wanted(record, rows[start:stop], mine[start:stop], start), source))
    return found
