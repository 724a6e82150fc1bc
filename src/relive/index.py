# SPDX-License-Identifier: Apache-2.0
"""Which trajectories there are, in which order, and which rows are theirs. No I/O.

The numbers that sampling needs lie in arrays that are only ever appended to, so a `Window` is
a slice of them: taking one costs the same for ten trajectories and for a million, and it stays
as it was while the index goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from relive.errors import EvictedError, InvalidArgumentError
from relive.record import Record

__all__ = ["MAX_ROW_ID", "Index", "Numbering", "Window", "evicted_rows"]

MAX_ROW_ID = np.iinfo(np.int64).max
"""The largest row id."""

_MAX_TRAJECTORY_ID = 1 << 62

_START_AGAIN = "load the checkpoint into an empty folder"

_ID, _FIRST_ROW_ID, _END, _COUNT, _NUM_ENVS, _PLACE = range(6)
_NUM_FIELDS = 6

_RANK_SPACING = 1 << 40
"""Row ids set apart for each rank of a distributed load."""


@dataclass(frozen=True, slots=True)
class Numbering:
    """Which ids the next trajectory gets."""

    next_trajectory_id: int = 0
    """Its trajectory id."""
    stride: int = 1
    """What is added for the one after; the world size after a load by rank."""
    next_row_id: int = 0
    """The row id of its first row."""

    def after(self, num_rows: int) -> Numbering:
        """Return the numbering once a trajectory of this many rows has been numbered.

        Raises:
            InvalidArgumentError: No row id is left.
        """
        if self.next_row_id > MAX_ROW_ID - num_rows:
            raise InvalidArgumentError(
                f"row id {self.next_row_id} + {num_rows} is too large, but must fit int64; "
                f"{_START_AGAIN}"
            )
        return Numbering(
            self.next_trajectory_id + self.stride, self.stride, self.next_row_id + num_rows
        )

    def past(self, record: Record) -> Numbering:
        """Return the numbering moved on so that nothing of this record is given again."""
        return self.not_before(
            Numbering(record.trajectory_id + 1, next_row_id=record.first_row_id + record.num_rows)
        )

    def not_before(self, other: Numbering) -> Numbering:
        """Return the numbering moved on, in its own steps, past all that another one gave.

        Raises:
            InvalidArgumentError: No trajectory id or row id is left.
        """
        behind = other.next_trajectory_id - self.next_trajectory_id
        moved = self.next_trajectory_id + max(0, -(-behind // self.stride)) * self.stride
        if moved >= _MAX_TRAJECTORY_ID:
            raise InvalidArgumentError(
                f"trajectory id {moved} is too large, but must be below 2**62; {_START_AGAIN}"
            )
        return Numbering(moved, self.stride, self._row_id_past(other.next_row_id))

    def _row_id_past(self, row_id: int) -> int:
        """Return a row id not below another one, in this rank's own share of them."""
        start = self.next_row_id
        is_own = row_id < start + _RANK_SPACING
        if self.stride == 1 or is_own:
            return max(start, row_id)
        span = self.stride * _RANK_SPACING
        moved = start + -(-(row_id - start) // span) * span
        if moved > MAX_ROW_ID - _RANK_SPACING:
            raise InvalidArgumentError(
                f"row id {moved} leaves too few below int64's largest, but a rank needs "
                f"{_RANK_SPACING}; {_START_AGAIN}"
            )
        return moved

    def for_rank(self, local_rank: int, world_size: int) -> Numbering:
        """Return the numbering of one rank, disjoint from that of all others.

        Raises:
            InvalidArgumentError: No row id is left for this rank.
        """
        first_row = self.next_row_id + local_rank * _RANK_SPACING
        if first_row > MAX_ROW_ID - _RANK_SPACING:
            raise InvalidArgumentError(
                f"row id {first_row} of rank {local_rank} leaves too few below int64's largest, "
                f"but a rank needs {_RANK_SPACING}; {_START_AGAIN}"
            )
        return Numbering(self.next_trajectory_id + local_rank, world_size, first_row)


@dataclass(frozen=True, slots=True)
class Window:
    """The trajectories that may be drawn, as they were at one moment.

    Rows of the window are numbered 0 to `num_rows` - 1, oldest trajectory first; `row_ids`
    turns such numbers into row ids, which stay true for the life of the store.
    """

    trajectory_ids: NDArray[np.int64]
    """Oldest first, `[W]`."""
    first_row_ids: NDArray[np.int64]
    """Row id of row 0 of each, `[W]`."""
    ends: NDArray[np.int64]
    """Rows up to and with each trajectory, counted from any common start, `[W]`."""
    counts: NDArray[np.int64]
    """Rows of each trajectory, `[W]`."""
    num_envs: NDArray[np.int64]
    """B of each trajectory, `[W]`."""
    places: NDArray[np.int64]
    """`Record.place` of each trajectory, `[W]`."""
    by_row: NDArray[np.int64] | None = field(default=None, repr=False)
    """Positions in the order of first row ids, `[W]`; None when they are in order."""

    @property
    def _base(self) -> int:
        return int(self.ends[0] - self.counts[0]) if len(self.ends) else 0

    @property
    def num_rows(self) -> int:
        """Rows in the window."""
        return int(self.ends[-1]) - self._base if len(self.ends) else 0

    def row_ids(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Turn row numbers of the window, each in `[0, num_rows)`, into row ids."""
        absolute = numbers + self._base
        position = np.searchsorted(self.ends, absolute, side="right")
        begins = self.ends[position] - self.counts[position]
        return self.first_row_ids[position] + (absolute - begins)

    def locate(self, row_ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Find the trajectories of row ids.

        Returns:
            Position of each one's trajectory in the window, and its row number in it.

        Raises:
            EvictedError: A row id is not in the window.
        """
        if len(self.ends):
            firsts = self.first_row_ids if self.by_row is None else self.first_row_ids[self.by_row]
            order = np.searchsorted(firsts, row_ids, side="right") - 1
            position = order if self.by_row is None else self.by_row[order]
            first = self.first_row_ids[position]
            rows = row_ids - first
            # an id below all wraps to the last position, where it is still below
            found = (row_ids >= first) & (rows < self.counts[position])
            if found.all():
                return position, rows
        else:
            found = np.zeros(len(row_ids), np.bool_)
        if not len(row_ids):
            return row_ids, row_ids
        raise evicted_rows(row_ids[~found])


def evicted_rows(row_ids: NDArray[np.int64]) -> EvictedError:
    """Return the error for row ids that are not there, naming the first ten."""
    gone = tuple(np.unique(row_ids)[:10].tolist())
    return EvictedError(
        f"row ids {list(gone)}{' …' if len(gone) == 10 else ''} are not in this buffer, but only "
        "rows that were neither evicted nor deleted can be read; draw again",
        ids=gone,
    )


class Index:
    """Records in order of arrival, with their rows. Not safe for several threads at once."""

    def __init__(self, records: Iterable[Record] = (), numbering: Numbering | None = None) -> None:
        self.numbering = numbering or Numbering()
        """Ids of the next trajectory."""
        self.version = 0
        """Rises with each change."""
        self._records: dict[int, Record] = {}
        self._table = np.empty((_NUM_FIELDS, 64), np.int64)
        self._start = self._stop = 0
        self._size_bytes = 0
        self._is_ordered = True
        self._by_row: tuple[tuple[int, int], NDArray[np.int64]] | None = None
        for record in records:
            self.add(record)

    def __len__(self) -> int:
        """Return the number of trajectories."""
        return len(self._records)

    def __iter__(self) -> Iterator[Record]:
        """Go through the records, oldest first."""
        return iter(self._records.values())

    def __contains__(self, trajectory_id: object) -> bool:
        """Tell whether there is such a trajectory."""
        return trajectory_id in self._records

    @property
    def num_rows(self) -> int:
        """Rows of all trajectories."""
        if self._start == self._stop:
            return 0
        end, count = self._table[[_END, _COUNT], self._start]
        return int(self._table[_END, self._stop - 1] - end + count)

    @property
    def size_bytes(self) -> int:
        """Bytes of the columns of all trajectories."""
        return self._size_bytes

    def get(self, trajectory_id: int) -> Record:
        """Return one record.

        Raises:
            EvictedError: There is none of this id.
        """
        try:
            return self._records[trajectory_id]
        except KeyError:
            raise EvictedError(
                f"trajectory {trajectory_id} is not in this buffer, but only those that were "
                "neither evicted nor deleted can be read; sample with return_info=True for ids "
                "that are there",
                ids=(trajectory_id,),
            ) from None

    def oldest(self) -> Record:
        """Return the record of the oldest trajectory; there must be one."""
        return next(iter(self._records.values()))

    def newest(self, num: int) -> list[Record]:
        """Return the newest records, oldest of them first; 0 means all."""
        ids = self.window(num).trajectory_ids.tolist()
        return [self._records[trajectory_id] for trajectory_id in ids]

    def add(self, record: Record) -> None:
        """Append a record.

        Raises:
            InvalidArgumentError: There is one of this id already.
        """
        if record.trajectory_id in self._records:
            raise InvalidArgumentError(
                f"trajectory {record.trajectory_id} is in the index already, but an id stands for "
                "one trajectory; remove it first"
            )
        if self._stop == self._table.shape[1]:
            self._make_room()
        is_first = self._start == self._stop
        end = 0 if is_first else int(self._table[_END, self._stop - 1])
        if is_first:
            self._is_ordered = True
        elif record.first_row_id < self._table[_FIRST_ROW_ID, self._stop - 1]:
            self._is_ordered = False
        self._table[:, self._stop] = (
            record.trajectory_id,
            record.first_row_id,
            end + record.num_rows,
            record.num_rows,
            record.num_envs,
            record.place,
        )
        self._stop += 1
        self._records[record.trajectory_id] = record
        self._size_bytes += record.size_bytes
        self.version += 1
        self.numbering = self.numbering.past(record)

    def _make_room(self) -> None:
        used = self._table[:, self._start : self._stop]
        # windows keep the old one
        table = np.empty((_NUM_FIELDS, max(64, 2 * used.shape[1])), np.int64)
        table[:, : used.shape[1]] = used
        self._table, self._start, self._stop = table, 0, used.shape[1]

    def replace(self, record: Record) -> None:
        """Exchange a record for one that says more of the same trajectory."""
        self._size_bytes += record.size_bytes - self._records[record.trajectory_id].size_bytes
        self._records[record.trajectory_id] = record
        ids = self._table[_ID, self._start : self._stop]
        # also in the windows taken before: where it lay it lies no longer
        self._table[_PLACE, self._start + self._position(ids, record.trajectory_id)] = record.place

    @staticmethod
    def _position(ids: NDArray[np.int64], trajectory_id: int) -> int:
        """Find an id that is there: nearly always ids rise, and loads may bring any order."""
        position = int(np.searchsorted(ids, trajectory_id))
        if position < len(ids) and ids[position] == trajectory_id:
            return position
        return int(np.flatnonzero(ids == trajectory_id)[0])

    def remove(self, trajectory_ids: Iterable[int]) -> list[Record]:
        """Take records out.

        Returns:
            Those taken out, in the order given.

        Raises:
            EvictedError: One of them is not there; nothing was removed.
        """
        removed = [self.get(trajectory_id) for trajectory_id in dict.fromkeys(trajectory_ids)]
        gone = {record.trajectory_id for record in removed}
        for record in removed:
            del self._records[record.trajectory_id]
            self._size_bytes -= record.size_bytes
        while self._start < self._stop and int(self._table[_ID, self._start]) in gone:
            gone.discard(int(self._table[_ID, self._start]))
            self._start += 1
        if gone:
            used = self._table[:, self._start : self._stop]
            kept = used[:, ~np.isin(used[_ID], np.fromiter(gone, np.int64))]
            kept[_END] = np.cumsum(kept[_COUNT])
            self._table, self._start, self._stop = kept, 0, kept.shape[1]
        if removed:
            self.version += 1
        return removed

    def window(self, size: int) -> Window:
        """Return the newest trajectories; 0 means all of them."""
        start = self._start if size == 0 else max(self._start, self._stop - size)
        ids, firsts, ends, counts, num_envs, places = self._table[:, start : self._stop]
        by_row = None if self._is_ordered else self._sorted_by_row(start, firsts)
        return Window(ids, firsts, ends, counts, num_envs, places, by_row)

    def _sorted_by_row(self, start: int, firsts: NDArray[np.int64]) -> NDArray[np.int64]:
        key = (self.version, start)
        if self._by_row is None or self._by_row[0] != key:
            self._by_row = (key, np.argsort(firsts, kind="stable"))
        return self._by_row[1]
