# SPDX-License-Identifier: Apache-2.0
"""Checksums of columns: xxh3-64 over the bytes of their rows, extra rows included."""

from __future__ import annotations

from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from relive.record import Layout
from relive.snapshot import Snapshot

__all__ = ["checksum", "checksums"]


def checksum(values: NDArray[Any]) -> bytes:
    """Return the xxh3-64 of an array's bytes, 8 bytes.

    Example:
        >>> checksum(np.array([[1, 2]], np.uint8)).hex()
        '08130b77ddef5807'
    """
    flat = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    return xxhash.xxh3_64_digest(flat.data)


def checksums(snapshot: Snapshot, layout: Layout) -> bytes:
    """Return the checksums of all columns, in the order of the layout.

    Raises:
        KeyError: The snapshot lacks a column of the layout.
    """
    return b"".join(checksum(snapshot.columns[column.name].values) for column in layout.columns)
