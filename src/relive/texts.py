# SPDX-License-Identifier: Apache-2.0
"""Text columns of a batch: from each trajectory's table to one table of the batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relive.errors import CorruptFileError
from relive.gather import Wanted

__all__ = ["merge_texts", "strings_of"]


def merge_texts(
    name: str, codes: NDArray[np.int32], wanted: Sequence[Wanted], default: Any
) -> list[str]:
    """Change codes of each trajectory's own table into codes of one common table, in place.

    Args:
        name: The column.
        codes: Codes as gathered, `[N]`.
        wanted: Which rows came from which trajectory.
        default: The string for trajectories without the column.

    Returns:
        The common table.

    Raises:
        CorruptFileError: A code is beside its trajectory's table.
    """
    number_of: dict[str, int] = {}
    for one in wanted:
        table, _ = one.record.texts.get(name, ((str(default),), False))
        used, places = np.unique(codes[one.positions], return_inverse=True)
        if len(used) and not 0 <= used[0] <= used[-1] < len(table):
            raise CorruptFileError(
                f"text column {name!r} of trajectory {one.record.trajectory_id} has codes from "
                f"{used[0]} to {used[-1]}, but its table has {len(table)} texts; restore its file "
                "from a copy"
            )
        numbers = [number_of.setdefault(table[code], len(number_of)) for code in used.tolist()]
        codes[one.positions] = np.array(numbers, np.int32)[places]
    return list(number_of)


def strings_of(codes: NDArray[np.int32], table: Sequence[str]) -> list[str]:
    """Return the string of each code.

    Example:
        >>> strings_of(np.array([1, 0, 1]), ["pick", "place"])
        ['place', 'pick', 'place']
    """
    return [table[code] for code in codes.tolist()]
