# SPDX-License-Identifier: Apache-2.0
"""Where the JSON texts of records lie, and what they say.

A place is one number: a byte of `trajectory_index.json`; or, below -1, a byte of the journal; or
`IN_MEMORY` for a record that has no text yet.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from relive.errors import ClosedError, CorruptFileError, StorageError
from relive.read_file import ReadFile
from relive.record import Layout, Record
from relive.record_json import record_from_json

__all__ = [
    "CHECKED",
    "IN_MEMORY",
    "Fetched",
    "RecordTexts",
    "at_journal",
    "checked_numbers",
    "decode",
]

IN_MEMORY = -1
"""The place of a record that has no text yet."""

CHECKED = ("first_row_id", "num_rows", "place", "num_envs")
"""Numbers that the index keeps of each record, which its text must say too."""

_DENSE_BYTES = 1 << 16  # between texts that may be read in vain


def at_journal(start: int) -> int:
    """Return the place of a text in the journal, which begins at this byte.

    Example:
        >>> at_journal(0), at_journal(100)
        (-2, -102)
    """
    return -2 - start


class RecordTexts:
    """Reads the texts of records out of the index file and the journal. One thread at a time."""

    def __init__(self, index: ReadFile | None = None, journal: ReadFile | None = None) -> None:
        self.index = index
        """The index file, if there is one."""
        self.journal = journal
        """The journal, if there is one."""

    def one(self, place: int, size: int) -> bytes:
        """Return one text.

        Args:
            place: Where it begins; not `IN_MEMORY`.
            size: How long it is.

        Raises:
            CorruptFileError: The file is cut.
            StorageError: The disk cannot read it.
            ClosedError: The index is closed.
        """
        if place >= 0:
            return _read(self.index, place, size)
        return _read(self.journal, at_journal(place), size)

    def several(self, places: NDArray[Any], sizes: NDArray[Any]) -> list[bytes | None]:
        """Return texts, read together where they lie close; None for those without.

        Raises:
            CorruptFileError: A file is cut.
            StorageError: The disk cannot read it.
            ClosedError: The index is closed.
        """
        texts: list[bytes | None] = [None] * len(places)
        for file, is_there, starts in (
            (self.index, places >= 0, places),
            (self.journal, places < IN_MEMORY, at_journal(0) - places),
        ):
            where = np.flatnonzero(is_there)
            if not len(where):
                continue
            begins, lengths = starts[where], sizes[where].astype(np.int64)
            first, last = int(begins.min()), int((begins + lengths).max())
            parts = zip(where.tolist(), begins.tolist(), lengths.tolist(), strict=True)
            if last - first <= 2 * int(lengths.sum()) + _DENSE_BYTES:
                block = _read(file, first, last - first)
                for row, begin, length in parts:
                    texts[row] = block[begin - first : begin - first + length]
            else:
                for row, begin, length in parts:
                    texts[row] = _read(file, begin, length)
        return texts

    def close(self) -> None:
        """Let go of the files; twice is fine."""
        for file in (self.index, self.journal):
            if file is not None:
                file.close()
        self.index = self.journal = None


def _read(file: ReadFile | None, start: int, size: int) -> bytes:
    if file is None:
        raise ClosedError("the index is closed, but a record was looked up; open it again")
    try:
        return bytes(file.read(start, size))
    except EOFError as error:
        raise CorruptFileError(
            f"{str(file.path)!r} is cut: {error}; restore it from a copy", path=str(file.path)
        ) from error
    except OSError as error:
        raise StorageError(
            f"{str(file.path)!r} cannot be read: {error}; check the disk",
            path=str(file.path),
            errno=error.errno,
        ) from error


class Fetched(NamedTuple):
    """A record that was looked up, not decoded yet."""

    trajectory_id: int
    """Its id."""
    numbers: tuple[int, ...]
    """What the index keeps of it, in the order of `CHECKED`."""
    found: bytes | Record
    """Its text, or itself."""
    layouts: Mapping[int, Layout]
    """Layouts by the numbers that texts name."""


def checked_numbers(record: Record) -> tuple[int, int, int, int]:
    """Return the numbers of a record in the order of `CHECKED`."""
    return record.first_row_id, record.num_rows, record.place, record.num_envs


def decode(fetched: Fetched) -> Record:
    """Decode a record, which must be what the index says of it.

    Raises:
        CorruptFileError: It is not, or is damaged.
    """
    found, one = fetched.found, fetched.trajectory_id
    if isinstance(found, Record):
        return found
    try:
        record = record_from_json(json.loads(found), fetched.layouts)
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(
            f"the index entry of trajectory {one} is damaged: {error}; restore it from a copy"
        ) from error
    if (record.trajectory_id, *checked_numbers(record)) != (one, *fetched.numbers):
        raise CorruptFileError(
            f"the index entry of trajectory {one} is {found!r:.200}, but the index says something "
            "else of it; restore it from a copy"
        )
    return record
