# SPDX-License-Identifier: Apache-2.0
"""Looking up the records of stored trajectories: numbers in memory, the rest as text in files.

A record as an object takes almost a kilobyte, so a store of a million would take one gigabyte.
Here each has a row of numbers, about 50 bytes, which also say where its JSON lies in
`trajectory_index.json` or in the journal; it is read and decoded when somebody asks, and the
records asked for last are kept.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence, ValuesView
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relive.id_table import IdTable
from relive.read_file import ReadFile
from relive.record import Layout, Record
from relive.record_json import LayoutTable, record_text
from relive.record_texts import CHECKED, Fetched, RecordTexts, decode

__all__ = ["RECORD_COLUMNS", "RecordLookup"]

RECORD_COLUMNS = {
    "trajectory_id": "<i8",
    "first_row_id": "<i8",
    "num_rows": "<i8",
    "place": "<i8",
    "text_start": "<i8",
    "text_bytes": "<u4",
    "num_envs": "<u4",
    "layout": "<u4",
}
"""Columns of a table and NumPy's names of their types; `text_start` is as in `record_texts`."""

_NUM_RECENT = 1024
_BLOCK = 256  # records read at once by those who go through all


class RecordLookup(Mapping[int, Record]):
    """Records by trajectory id, oldest first. Any thread may look records up."""

    def __init__(self) -> None:
        """Begin empty."""
        self.layouts = LayoutTable()
        """Layouts by the numbers that the texts name."""
        self.lock = threading.RLock()  # a signal may come in the middle, and its handler look up
        """Guards all of it."""
        self._rows = IdTable(RECORD_COLUMNS)
        self._held: dict[int, Record] = {}
        self._recent: OrderedDict[int, Record] = OrderedDict()
        self._texts = RecordTexts()

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self._rows)

    def __iter__(self) -> Iterator[int]:
        """Go through the ids, oldest first."""
        ids = self.column("trajectory_id")
        for start in range(0, len(ids), _BLOCK):  # a list of them all would take its time
            yield from ids[start : start + _BLOCK].tolist()

    def __contains__(self, trajectory_id: object) -> bool:
        """Tell whether there is such a record."""
        with self.lock:
            return isinstance(trajectory_id, int) and self._rows.row_of(trajectory_id) >= 0

    def column(self, name: str) -> NDArray[Any]:
        """Return a column of `RECORD_COLUMNS`, oldest first; `relocate` changes it in place."""
        with self.lock:
            return self._rows.column(name)

    @property
    def num_rows(self) -> int:
        """Rows of all trajectories."""
        return int(self.column("num_rows").sum())

    @property
    def size_bytes(self) -> int:
        """Bytes of the columns of all trajectories."""
        numbers, counts = np.unique(self.column("layout"), return_counts=True)
        sizes = (self.layouts[number].size_bytes for number in numbers.tolist())
        return sum(size * count for size, count in zip(sizes, counts.tolist(), strict=True))

    @property
    def num_without_text(self) -> int:
        """Records that have no text yet."""
        return len(self._held)

    def __getitem__(self, trajectory_id: int) -> Record:
        """Return a record.

        Raises:
            KeyError: There is none.
            CorruptFileError: The file of its text is damaged.
            StorageError: The disk cannot read it.
        """
        with self.lock:
            recent = self._recent.get(trajectory_id)
            if recent is not None:
                self._recent.move_to_end(trajectory_id)
                return recent
            row = self._rows.row_of(trajectory_id)
            if row < 0:
                raise KeyError(trajectory_id)
            record = self._held.get(trajectory_id) or self._read(trajectory_id, row)
            self._remember(record)
            return record

    def _read(self, trajectory_id: int, row: int) -> Record:
        start, size, *numbers = (
            int(self._rows.column(name)[row]) for name in ("text_start", "text_bytes", *CHECKED)
        )
        text = self._texts.one(start, size)
        return decode(Fetched(trajectory_id, tuple(numbers), text, self.layouts))

    def _remember(self, record: Record) -> None:
        self._recent[record.trajectory_id] = record
        while len(self._recent) > _NUM_RECENT:
            self._recent.popitem(last=False)

    def values(self) -> ValuesView[Record]:
        """Return the records, oldest first; they are read in blocks and not kept."""
        return _Values(self)

    def several(self, trajectory_ids: Sequence[int]) -> list[Record]:
        """Return records, of which none is kept.

        Raises:
            KeyError: One is not there.
            CorruptFileError: The file of a text is damaged.
            StorageError: The disk cannot read it.
        """
        with self.lock:
            rows = [self._rows.row_of(trajectory_id) for trajectory_id in trajectory_ids]
            if -1 in rows:
                raise KeyError(trajectory_ids[rows.index(-1)])
            found = self._fetch(rows)
        return list(map(decode, found))  # which takes its time, and needs no lock

    def _fetch(self, rows: Sequence[int]) -> list[Fetched]:
        ids = self._rows.column("trajectory_id")[rows].tolist()
        numbers = zip(*(self._rows.column(n)[rows].tolist() for n in CHECKED), strict=True)
        return [
            Fetched(one, checked, self._held[one] if text is None else text, self.layouts)
            for one, checked, text in zip(ids, numbers, self._texts_of(rows), strict=True)
        ]

    def _texts_of(self, rows: Sequence[int]) -> list[bytes | None]:
        """Return JSON texts, None for those that have none."""
        starts = self._rows.column("text_start")[rows]
        return self._texts.several(starts, self._rows.column("text_bytes")[rows])

    def texts(self, first: int, stop: int) -> list[bytes]:
        """Return the JSON texts of rows counted from the oldest, encoded if there is none yet.

        Raises:
            CorruptFileError: The file of a text is cut.
            StorageError: The disk cannot read it.
        """
        with self.lock:
            rows = range(first, min(stop, len(self._rows)))
            if not rows:
                return []
            ids = self._rows.column("trajectory_id")[first:stop].tolist()
            numbers = self._rows.column("layout")[first:stop].tolist()
            return [
                record_text(self._held[one], number) if text is None else text
                for one, number, text in zip(ids, numbers, self._texts_of(rows), strict=True)
            ]

    def run_of_texts(
        self, first: int, stop: int, distances: NDArray[np.int64]
    ) -> tuple[bytes, NDArray[np.int64], NDArray[np.int64]] | None:
        """Return a part of the index file with the texts of rows, if they lie there in a run.

        Args:
            first: The first row, counted from the oldest.
            stop: One past the last.
            distances: From the text before each, or what the first begins after, to its own.

        Returns:
            The part, where in it each text begins, and how long each is; None when they do not
            follow each other just so.

        Raises:
            CorruptFileError: The file is cut.
            StorageError: The disk cannot read it.
        """
        with self.lock:
            starts = self._rows.column("text_start")[first:stop]
            sizes = self._rows.column("text_bytes")[first:stop].astype(np.int64)
            begins = starts - distances
            if (starts < 0).any() or begins[0] < 0 or (begins[1:] != (starts + sizes)[:-1]).any():
                return None
            begin = int(begins[0])
            block = self._texts.one(begin, int(starts[-1] + sizes[-1]) - begin)
            return block, starts - begin, sizes

    @property
    def journal(self) -> ReadFile | None:
        """The journal in which texts are looked up."""
        return self._texts.journal

    def used_layouts(self) -> set[int]:
        """Return the numbers of layouts that a record has."""
        return set(np.unique(self.column("layout")).tolist())

    def layout_list(self) -> list[Layout | None]:
        """Return the layouts by their numbers, None for those without."""
        layouts = self.layouts
        return [layouts.get(number) for number in range(max(layouts, default=-1) + 1)]

    def close(self) -> None:
        """Let go of the files; texts cannot be read any more."""
        with self.lock:
            self._texts.close()

    def after_fork(self) -> None:
        """Become a forked child's copy: no thread of the parent will ever give a lock back."""
        self.lock = threading.RLock()


class _Values(ValuesView[Record]):
    """The records of a table, read a block at a time."""

    def __init__(self, table: RecordLookup) -> None:
        super().__init__(table)
        self._table = table

    def __iter__(self) -> Iterator[Record]:
        ids = self._table.column("trajectory_id")
        for start in range(0, len(ids), _BLOCK):
            yield from self._table.several(ids[start : start + _BLOCK].tolist())
