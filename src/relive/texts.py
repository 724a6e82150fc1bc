# SPDX-License-Identifier: Apache-2.0
"""Text columns of a batch: from each trajectory's table to one table of the batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relive.errors import CorruptFileError
from relive.record import Record

__all__ = ["TextGroup", "TextsOf", "all_the_same", "merge_texts", "strings_of", "texts_in"]

TextsOf = Callable[[Sequence[int]], list[str]]
"""Gives texts by their codes, which rise, each once; raises `CorruptFileError` for others."""

TextGroup = tuple[NDArray[np.int64], TextsOf]
"""Positions of rows in a batch, and what gives their texts."""


def merge_texts(codes: NDArray[np.int32], groups: Iterable[TextGroup]) -> list[str]:
    """Change codes of many tables into codes of one common table, in place.

    Args:
        codes: Codes as gathered, `[N]`.
        groups: Which rows have codes of which table.

    Returns:
        The common table.

    Raises:
        CorruptFileError: A code is beside its table.
    """
    number_of: dict[str, int] = {}
    for positions, texts_of in groups:
        used, places = np.unique(codes[positions], return_inverse=True)
        texts = texts_of(used.tolist())
        numbers = [number_of.setdefault(text, len(number_of)) for text in texts]
        codes[positions] = np.array(numbers, np.int32)[places]
    return list(number_of)


def all_the_same(text: str) -> TextsOf:
    """Return what gives one text for every code."""
    return lambda codes: [text] * len(codes)


def texts_in(record: Record, name: str, default: Any) -> TextsOf:
    """Return what gives the texts of a trajectory's own table.

    Args:
        record: The trajectory.
        name: The column.
        default: The text of trajectories without the column.
    """
    table, _ = record.texts.get(name, ((str(default),), False))

    def texts_of(codes: Sequence[int]) -> list[str]:
        if codes and not 0 <= codes[0] <= codes[-1] < len(table):
            raise CorruptFileError(
                f"text column {name!r} of trajectory {record.trajectory_id} has codes from "
                f"{codes[0]} to {codes[-1]}, but its table has {len(table)} texts; restore its "
                "file from a copy"
            )
        return [table[code] for code in codes]

    return texts_of


def strings_of(codes: NDArray[np.int32], table: Sequence[str]) -> list[str]:
    """Return the string of each code.

    Example:
        >>> strings_of(np.array([1, 0, 1]), ["pick", "place"])
        ['place', 'pick', 'place']
    """
    return [table[code] for code in codes.tolist()]
