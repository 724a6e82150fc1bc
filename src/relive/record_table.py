# SPDX-License-Identifier: Apache-2.0
"""The records of stored trajectories as the writer changes them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relive.id_table import IdTable
from relive.read_file import ReadFile
from relive.record import Record
from relive.record_json import LayoutTable
from relive.record_lookup import RECORD_COLUMNS, RecordLookup
from relive.record_texts import CHECKED, IN_MEMORY, RecordTexts, checked_numbers

__all__ = ["RecordTable"]


class RecordTable(RecordLookup, MutableMapping[int, Record]):
    """Records by trajectory id, oldest first.

    One thread may change it, the writer's. Any thread may look records up meanwhile.
    """

    def __init__(self, records: Iterable[Record] = ()) -> None:
        """Begin with records that are kept as objects until they have a text."""
        super().__init__()
        for record in records:
            self[record.trajectory_id] = record

    @classmethod
    def of(
        cls,
        columns: Mapping[str, NDArray[Any]],
        layouts: LayoutTable,
        *,
        index: ReadFile | None,
        journal: ReadFile | None,
    ) -> RecordTable:
        """Return a table of records that all have a text.

        Args:
            columns: Those of `RECORD_COLUMNS`, which are not written to.
            layouts: By the numbers in the texts.
            index: The index file.
            journal: The journal.
        """
        table = cls()
        table.layouts = layouts
        table._rows = IdTable.of({name: columns[name] for name in RECORD_COLUMNS})
        table._texts = RecordTexts(index, journal)
        return table

    def __setitem__(self, trajectory_id: int, record: Record) -> None:
        """Put a record that has no text yet at the end; one of its id goes."""
        self.discard([trajectory_id])
        number = self.layouts.number_of(record.layout)
        with self.lock:
            self._append(record, number, IN_MEMORY, 0)
            self._held[trajectory_id] = record

    def note(self, record: Record, layout_number: int, text_start: int, text_bytes: int) -> None:
        """Append a record whose text is in a file; one of its id goes.

        Args:
            record: What the text says.
            layout_number: The number of its layout here and in the text.
            text_start: As in `RECORD_COLUMNS`.
            text_bytes: How long the text is.
        """
        if record.trajectory_id in self:
            self.discard([record.trajectory_id])
        with self.lock:
            self._append(record, layout_number, text_start, text_bytes)
            self._remember(record)

    def relocate(self, record: Record) -> None:
        """Let a record that is there say where its rows lie now; it stays where it is in order.

        Raises:
            KeyError: It is not there.
        """
        number = self.layouts.number_of(record.layout)
        with self.lock:
            row = self._rows.row_of(record.trajectory_id)
            if row < 0:
                raise KeyError(record.trajectory_id)
            values = (*checked_numbers(record), number, IN_MEMORY, 0)
            names = (*CHECKED, "layout", "text_start", "text_bytes")
            for name, value in zip(names, values, strict=True):
                self._rows.change(row, name, value)
            self._held[record.trajectory_id] = record
            self._recent.pop(record.trajectory_id, None)

    def _append(self, record: Record, number: int, text_start: int, text_bytes: int) -> None:
        first, num_rows, place, num_envs = checked_numbers(record)
        self._rows.append(
            record.trajectory_id,
            first,
            num_rows,
            place,
            text_start,
            text_bytes,
            num_envs,
            number,
        )

    def __delitem__(self, trajectory_id: int) -> None:
        """Take a record out.

        Raises:
            KeyError: There is none.
        """
        if trajectory_id not in self:
            raise KeyError(trajectory_id)
        self.discard([trajectory_id])

    def discard(self, trajectory_ids: Collection[int]) -> None:
        """Take records out; those that are not there are passed over."""
        with self.lock:
            self._rows.remove(trajectory_ids)
            for trajectory_id in trajectory_ids:
                self._held.pop(trajectory_id, None)
                self._recent.pop(trajectory_id, None)

    def successor(self, order: Sequence[int], loaded: Iterable[Record]) -> RecordTable:
        """Return another table of records of this one and of new ones; this one stays as it is.

        Args:
            order: Ids of all of them, oldest first.
            loaded: The new ones, which have no text yet and stand for those of the same id.

        Raises:
            KeyError: One is in neither.
        """
        brought = {record.trajectory_id: record for record in loaded}
        with self.lock:
            rows = [0 if one in brought else self._rows.row_of(one) for one in order]
            if -1 in rows:
                raise KeyError(order[rows.index(-1)])
            old = self._rows.take(np.array(rows, np.int64)) if len(self._rows) else None
            held = {one: self._held[one] for one in order if one in self._held}
        numbers = {one: self.layouts.number_of(r.layout) for one, r in brought.items()}
        columns = {
            name: np.zeros(len(order), dtype) if old is None else old[name]
            for name, dtype in RECORD_COLUMNS.items()
        }
        for row, one in enumerate(order):
            if one in brought:
                values = (one, IN_MEMORY, numbers[one], *checked_numbers(brought[one]))
                names = ("trajectory_id", "text_start", "layout", *CHECKED)
                for name, value in zip(names, values, strict=True):
                    columns[name][row] = value
        files = self._texts
        table = RecordTable.of(columns, self.layouts, index=files.index, journal=files.journal)
        table._held = held | brought
        return table

    def selection(self, trajectory_ids: NDArray[np.int64]) -> RecordTable:
        """Return another table of some of the records; neither knows of the other.

        Args:
            trajectory_ids: Which, in the order in which they stand there, `[N]`.

        Raises:
            KeyError: One is not there.
        """
        with self.lock:
            rows = self._rows.rows_of(trajectory_ids)
            columns = self._rows.take(rows)
            held = dict(self._held)
            index, journal = self._texts.index, self._texts.journal
            layouts = self.layouts.only(np.unique(columns["layout"]).tolist())
        selected = RecordTable.of(columns, layouts, index=index, journal=journal)
        selected._held = {one: record for one, record in held.items() if one in selected}
        return selected

    def drop_unused_layouts(self) -> None:
        """Forget the layouts that no record has; their numbers are not given again."""
        # another table: threads that decode texts outside the lock go on with the one they have
        self.layouts = self.layouts.only(self.used_layouts())

    def rebase(self, index: ReadFile, starts: NDArray[np.int64], sizes: NDArray[np.uint32]) -> None:
        """Let all texts be those of another index file.

        Args:
            index: The file.
            starts: Where the text of each record begins, oldest first.
            sizes: How long each is.
        """
        with self.lock:
            self._rows.set_column("text_start", starts)
            self._rows.set_column("text_bytes", sizes)
            self._texts.index = index
            self._held.clear()

    def read_index_from(self, index: ReadFile) -> None:
        """Let texts in the index file be those of another file."""
        with self.lock:
            self._texts.index = index

    def read_journal_from(self, journal: ReadFile | None) -> None:
        """Let texts in the journal be those of another file."""
        with self.lock:
            self._texts.journal = journal
