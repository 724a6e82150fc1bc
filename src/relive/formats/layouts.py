# SPDX-License-Identifier: Apache-2.0
"""Layouts of snapshots."""

from __future__ import annotations

from collections.abc import Mapping

from relive.record import ColumnLayout, Layout, interned
from relive.snapshot import Snapshot

__all__ = ["layout_of"]


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
