# SPDX-License-Identifier: Apache-2.0
"""Records of trajectories that no file has, for tests of the index."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from relive.record import ColumnLayout, Layout, Record


def make_layout(num_steps: int = 2, num_envs: int = 1, name: str = "rewards") -> Layout:
    """A layout of one float32 column."""
    return Layout((ColumnLayout(name, "float32", (num_steps, num_envs), offset=64),))


def make_record(
    trajectory_id: int,
    first_row_id: int = 0,
    num_steps: int = 2,
    num_envs: int = 1,
    **changes: Any,
) -> Record:
    """A record whose uuid and weights id carry its trajectory id."""
    record = Record(
        trajectory_id=trajectory_id,
        uuid=f"00000000-0000-4000-8000-{trajectory_id:012d}",
        first_row_id=first_row_id,
        shape=(num_steps, num_envs),
        num_epochs=1,
        max_episode_length=num_steps,
        model_weights_id=f"w{trajectory_id}",
        format="pt",
        layout=make_layout(num_steps, num_envs),
        location={"size_bytes": 1000 + trajectory_id},
        checksums=bytes.fromhex("0123456789abcdef"),
    )
    return replace(record, **changes)
