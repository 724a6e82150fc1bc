# SPDX-License-Identifier: Apache-2.0
"""Rows by their ids, wherever they are: in memory, in segments, or in files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relive.batches import BatchPlan
from relive.disk import Disk
from relive.gather import Lacking, RowBatch, RowSource, Wanted
from relive.output_pool import OutputPool, Outputs
from relive.record import Record
from relive.spec import Schema
from relive.texts import TextGroup, all_the_same, merge_texts, texts_in
from relive.window import Located

__all__ = ["FindRows", "read_rows"]

FindRows = Callable[[int], tuple[Record, "RowSource | None"]]
"""Gives the record of a trajectory by its id, and its rows when they are in memory."""

_NONE = np.empty(0, np.int64)


def read_rows(
    located: Located,
    plan: BatchPlan,
    *,
    find: FindRows,
    disk: Disk | None,
    pool: OutputPool,
) -> tuple[dict[str, NDArray[Any]], dict[str, list[str]]]:
    """Copy rows into outputs of their own, in the order given, each trajectory read at most once.

    Args:
        located: Which rows, `[N]` with N of at least 1.
        plan: Which columns.
        find: Looks trajectories up.
        disk: Where those that are not in memory lie.
        pool: Memory for the columns.

    Returns:
        Each column as `[N, ...]` in its storage type, text columns as codes; and the table of
        each text column.

    Raises:
        MissingFileError: A file is not there.
        CorruptFileError: A file is damaged.
        StorageError: The disk cannot read it.
    """
    places = located.places
    outputs = pool.take(len(places), plan.wants)
    # of `min` this is a quarter of the time
    others = _NONE if places[places.argmin()] >= 0 else np.flatnonzero(places < 0)
    lacking: Lacking = {}
    if len(others) < len(places):
        assert disk is not None, "without a disk no trajectory has a place"
        if len(others):
            places[others] = places.max()  # any row, for now
        lacking = disk.formats.placed.gather_placed(disk.folder, places, outputs)
        for name, positions in lacking.items():
            outputs.columns[name][positions] = _default(plan.schema, name)
    by_trajectory = _fill_others(outputs, plan, located, others, find, disk) if len(others) else []
    tables: dict[str, list[str]] = {}
    for name in plan.texts:
        default = plan.schema.defaults.get(name)
        groups: list[TextGroup] = []
        if len(others) < len(places):
            assert disk is not None, "as above"
            groups += _placed_texts(name, default, places, others, lacking, disk)
        groups += [(one.positions, texts_in(one.record, name, default)) for one in by_trajectory]
        tables[name] = merge_texts(outputs.columns[name], groups)
    return outputs.columns, tables


def _placed_texts(
    name: str,
    default: object,
    places: NDArray[np.int64],
    others: NDArray[np.int64],
    lacking: Lacking,
    disk: Disk,
) -> Iterator[TextGroup]:
    """Tell what the codes of a column stand for, at all positions of a batch but some."""
    without = np.setdiff1d(lacking.get(name, _NONE), others)
    yield without, all_the_same(str(default))
    rest = np.setdiff1d(np.arange(len(places)), np.concatenate([others, without]))
    yield from disk.formats.placed.text_groups(disk.folder, places, rest)


def _fill_others(
    outputs: Outputs,
    plan: BatchPlan,
    located: Located,
    others: NDArray[np.int64],
    find: FindRows,
    disk: Disk | None,
) -> list[Wanted]:
    """Fill some positions of a batch, trajectory by trajectory; return which these are."""
    batch = RowBatch(outputs, len(others))
    all_wanted: list[Wanted] = []
    from_files: dict[str, list[Wanted]] = {}
    for wanted, source in _by_trajectory(located, others, find):
        all_wanted.append(wanted)
        if source is not None:
            batch.fill(wanted, source)
        else:
            from_files.setdefault(wanted.record.format, []).append(wanted)
    for name, group in from_files.items():
        assert disk is not None, "without a disk every trajectory is in memory"
        disk.formats.named(name).gather(disk.folder, group, batch)
    defaults = plan.schema.defaults
    for name in outputs.columns.keys() & defaults.keys():
        for wanted in all_wanted:
            if name not in wanted.record.layout:
                batch.fill_default(wanted, name, _default(plan.schema, name))
    batch.finish()
    return all_wanted


def _default(schema: Schema, name: str) -> NDArray[Any]:
    default = schema.defaults[name]
    return np.zeros((), np.int32) if isinstance(default, str) else default


def _by_trajectory(
    located: Located, mine: NDArray[np.int64], find: FindRows
) -> list[tuple[Wanted, RowSource | None]]:
    """Group positions of a batch by trajectory, and look each up."""
    mine = mine[np.argsort(located.position[mine], kind="stable")]
    here, rows = located.position[mine], located.rows[mine]
    starts = np.flatnonzero(np.diff(here, prepend=-1))
    stops = [*starts[1:].tolist(), len(mine)]
    found = []
    ids = located.window.trajectory_ids[here[starts]].tolist()
    for trajectory_id, start, stop in zip(ids, starts.tolist(), stops, strict=True):
        record, source = find(trajectory_id)
        found.append((Wanted(record, rows[start:stop], mine[start:stop], start), source))
    return found
