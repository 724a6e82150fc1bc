# SPDX-License-Identifier: Apache-2.0
"""Trajectories whose values carry their address, and what differs between two trajectories."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from relive.describe import describe
from relive.formats.checksum import checksums
from relive.numbering import Numbering
from relive.record import Record
from relive.snapshot import Column, Snapshot, take_snapshot
from relive.trajectory import Trajectory

__all__ = ["addressed", "differences", "record_of"]

Value = TypeVar("Value")


def addressed(
    trajectory_id: int, num_steps: int = 6, num_envs: int = 3, num_epochs: int = 2
) -> Snapshot:
    """Return a trajectory each of whose values says where it comes from.

    `curr_obs/id[t, b]` is `1_000_000 * trajectory_id + t * B + b`, and "next_obs/arm/id" the
    same, negative; `versions`, `[T, B, 2]`, is the row number as int16. `dones`, with T + E rows,
    is set where an epoch ends, so that the extra first rows are False. `prev_values`, with T + E
    rows, has its own row number, `t' * B + b`.
    """
    rows = np.arange(num_steps * num_envs).reshape(num_steps, num_envs)
    length = num_steps // num_epochs + 1
    extended = np.arange((num_steps + num_epochs) * num_envs).reshape(-1, num_envs)
    dones = np.zeros((num_epochs, length, num_envs), np.bool_)
    dones[:, -1] = True
    return take_snapshot(
        Trajectory(
            max_episode_length=num_steps,
            model_weights_id=f"weights-{trajectory_id}",
            rewards=(rows % 7).astype(np.float32),
            versions=np.stack([rows, rows], axis=-1).astype(np.int16),
            dones=dones.reshape(-1, num_envs),
            prev_values=extended.astype(np.float32),
            curr_obs={
                "id": 1_000_000 * trajectory_id + rows,
                "task": [["a", "b", "c"][:num_envs]] * num_steps,
            },
            next_obs={"arm": {"id": -1_000_000 * trajectory_id - rows}},
        )
    )


def record_of(snapshot: Snapshot, trajectory_id: int = 0, first_row_id: int = 0) -> Record:
    """Return the record of a trajectory that no format has stored yet."""
    record = describe(snapshot, Numbering(trajectory_id, next_row_id=first_row_id))
    return replace(
        record,
        uuid=f"00000000-0000-4000-8000-{trajectory_id:012d}",
        checksums=checksums(snapshot, record.layout),
        added_at=0.0,
    )


def differences(first: Snapshot, second: Snapshot) -> list[str]:
    """Return the names of everything in which two trajectories are not the same, bit for bit."""
    facts = (
        "num_steps",
        "num_envs",
        "num_epochs",
        "shape",
        "max_episode_length",
        "model_weights_id",
    )
    found = [name for name in facts if getattr(first, name) != getattr(second, name)]
    if list(first.columns) != list(second.columns):
        found.append("the order of columns")
    found += _differing(first.columns, second.columns, _column_facts)
    found += _differing(first.side_values, second.side_values, _value_facts)
    gaps = [one.gaps if one.gaps is None else one.gaps.tolist() for one in (first, second)]
    return found if gaps[0] == gaps[1] else [*found, "gaps"]


def _differing(
    first: Mapping[str, Value], second: Mapping[str, Value], facts: Callable[[Value], object]
) -> list[str]:
    common = first.keys() & second.keys()
    different = {name for name in common if facts(first[name]) != facts(second[name])}
    return sorted((first.keys() ^ second.keys()) | different)


def _column_facts(column: Column) -> object:
    values: NDArray[Any] = column.values
    return values.shape, values.dtype, values.tobytes(), column.dtype, column.table, column.per_env


def _value_facts(value: object) -> object:
    return type(value), repr(value)  # by repr, since NaN differs from itself
