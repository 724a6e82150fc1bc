# SPDX-License-Identifier: Apache-2.0
"""Layouts of snapshots, one object for all that are equal."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from relive.record import ColumnLayout, Layout
from relive.snapshot import Snapshot

__all__ = ["interned", "layout_of"]


@lru_cache(maxsize=256)
def interned(layout: Layout) -> Layout:
    """Return one and the same object for equal layouts, so that records can share it.

    Only the 256 used last are remembered; more kinds of trajectories cost memory, no more.
    """
    return layout


def layout_of(snapshot: Snapshot, offsets: Mapping[str, int] | None = None) -> Layout:
    """Return the layout of a trajectory's columns, in the order of the snapshot.

    Args:
        snapshot: The trajectory.
        offsets: Where each column begins in its file; None when rows cannot be read in place.
    """
    return interned(
        Layout(
            tuple(
                ColumnLayout(
                    name=name,
                    dtype=column.dtype,
                    shape=column.values.shape,
                    offset=None if offsets is None else offsets[name],
                )
                for name, column in snapshot.columns.items()
            )
        )
    )
