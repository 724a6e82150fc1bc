# SPDX-License-Identifier: Apache-2.0
"""Which trajectories there are, in which order, and which rows are theirs.

The numbers that sampling needs lie in arrays that are only ever appended to, so a `Window` is
a slice of them: taking one costs the same for ten trajectories and for a million, and it stays
as it was while the index goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager

import numpy as np
from numpy.typing import NDArray

from relive.errors import EvictedError, InvalidArgumentError
from relive.id_table import IdTable
from relive.lifetime import ReentrantLock
from relive.numbering import Numbering
from relive.record import Record
from relive.record_table import RecordTable
from relive.row_bins import MIN_TRAJECTORIES, BinsView, RowBins
from relive.window import RowOrder, Window, origins_of

__all__ = ["Index"]

_COLUMNS = ("trajectory_id", "first_row_id", "end", "count", "num_envs", "origin")
_MOST_WINDOWS = 4
_BLOCK = 256  # records looked up at once by those who go through all


class Index:
    """Trajectories in order of arrival, with their rows. Not safe for several threads at once.

    Of what a store has on disk only numbers are here, 48 bytes a trajectory; records are looked up
    in a `RecordTable`. Records of trajectories that no file has are kept.
    """

    def __init__(self, records: Iterable[Record] = (), numbering: Numbering | None = None) -> None:
        self.numbering = numbering or Numbering()
        """Ids of the next trajectory."""
        self.version = 0
        """Rises with each addition and removal."""
        self._held: dict[int, Record] = {}
        self._stored: RecordTable | None = None
        self._rows = IdTable(dict.fromkeys(_COLUMNS, "int64"))
        self._size_bytes = 0
        self._is_ordered = True
        self._num_alike = 0  # of the newest, how many have the same number of rows
        self._by_row: tuple[tuple[int, int], RowOrder] | None = None
        self._windows: dict[int, Window] = {}  # by size, of one version
        self._windowed = 0
        self._bins: RowBins | None = None
        self._binned = (0, 0)  # how often the columns had moved then, and the oldest row
        for record in records:
            self.add(record)

    @classmethod
    def over(cls, stored: RecordTable, numbering: Numbering | None = None) -> Index:
        """Return an index of all that a store has on disk.

        Args:
            stored: Its records, which are looked up there from then on, those of trajectories
                that get stored later too.
            numbering: Ids of the next trajectory.
        """
        index = cls((), numbering)
        index._stored = stored
        counts = stored.column("num_rows").astype(np.int64)
        firsts = stored.column("first_row_id").astype(np.int64)
        ends = np.cumsum(counts)
        columns = (
            stored.column("trajectory_id").astype(np.int64),
            firsts,
            ends,
            counts,
            stored.column("num_envs").astype(np.int64),
            origins_of(stored.column("place").astype(np.int64), ends - counts),
        )
        index._rows = IdTable.of(dict(zip(_COLUMNS, columns, strict=True)))
        index._num_alike = _num_alike(counts)
        index._is_ordered = bool((firsts[1:] >= firsts[:-1]).all())
        index._size_bytes = stored.size_bytes
        index.window(0)  # which sorts what is to be searched, once
        return index

    def __len__(self) -> int:
        """Return the number of trajectories."""
        return len(self._rows)

    def __iter__(self) -> Iterator[Record]:
        """Go through the records, oldest first."""
        ids = self._rows.column("trajectory_id")
        for start in range(0, len(ids), _BLOCK):
            yield from self._several(ids[start : start + _BLOCK].tolist())

    def _several(self, trajectory_ids: Sequence[int]) -> Iterator[Record]:
        stored = [one for one in trajectory_ids if one not in self._held]
        found = self._stored.several(stored) if self._stored is not None and stored else []
        looked_up = iter(found)
        for one in trajectory_ids:
            yield self._held[one] if one in self._held else next(looked_up)

    def __contains__(self, trajectory_id: object) -> bool:
        """Tell whether there is such a trajectory."""
        if trajectory_id in self._held:
            return True
        return isinstance(trajectory_id, int) and self._rows.row_of(trajectory_id) >= 0

    @property
    def num_rows(self) -> int:
        """Rows of all trajectories."""
        ends = self._rows.column("end")
        return int(ends[-1] - ends[0] + self._rows.column("count")[0]) if len(ends) else 0

    @property
    def size_bytes(self) -> int:
        """Bytes of the columns of all trajectories."""
        return self._size_bytes

    def get(self, trajectory_id: int) -> Record:
        """Return one record.

        Raises:
            EvictedError: There is none of this id.
            CorruptFileError: The file that holds it is damaged.
            StorageError: The disk cannot read it.
        """
        held = self._held.get(trajectory_id)
        if held is not None:
            return held
        if self._stored is None or self._rows.row_of(trajectory_id) < 0:
            raise EvictedError(
                f"trajectory {trajectory_id} is not in this buffer, but only those are that were "
                "neither evicted nor deleted; info.trajectory_ids of sample(..., return_info=True) "
                "has such",
                ids=(trajectory_id,),
            )
        return self._stored[trajectory_id]

    def oldest(self) -> Record:
        """Return the record of the oldest trajectory; there must be one."""
        return self.get(int(self._rows.column("trajectory_id")[0]))

    def newest(self, num: int) -> list[Record]:
        """Return the newest records, oldest of them first; 0 means all."""
        return list(self._several(self._rows.column("trajectory_id", num).tolist()))

    def add(self, record: Record) -> None:
        """Append a record.

        Raises:
            InvalidArgumentError: There is one of this id already.
        """
        if record.trajectory_id in self:
            raise InvalidArgumentError(
                f"trajectory {record.trajectory_id} is in the index already, but an id stands for "
                "one trajectory; remove it first"
            )
        firsts, start = self._rows.column("first_row_id", 1), 0
        if not len(firsts):
            self._is_ordered, self._num_alike, self._bins = True, 1, None
        else:
            start = int(self._rows.column("end", 1)[0])
            self._is_ordered &= record.first_row_id >= int(firsts[0])
            is_alike = record.num_rows == self._rows.column("count", 1)[0]
            self._num_alike = self._num_alike + 1 if is_alike else 1
        self._rows.append(
            record.trajectory_id,
            record.first_row_id,
            start + record.num_rows,
            record.num_rows,
            record.num_envs,
            _origin(record, start),
        )
        if self._bins is not None and not self._bins.append(start + record.num_rows):
            self._bins = None
        self._held[record.trajectory_id] = record
        self._size_bytes += record.size_bytes
        self.version += 1
        self.numbering = self.numbering.past(record)

    def make_room(self, num: int, lock: AbstractContextManager[object]) -> None:
        """Make room for more trajectories, so that no sample waits while megabytes are copied.

        Args:
            num: How many.
            lock: Guards the index and is not held. The caller sees to it that nothing is added or
                removed meanwhile; what `replace` and `window` do is fine.
        """
        if self._rows.num_spare >= num:
            return
        columns = self._rows.grown(num)
        bins = None
        if len(self) >= MIN_TRAJECTORIES:
            ends = columns["end"][: len(self)]
            begin = int(ends[0] - columns["count"][0])
            bins = RowBins(ends, begin, len(columns["end"]) - len(ends))
        with lock:
            self._rows.move_to(columns, ["origin"])
            self._bins, self._binned = bins, (self._rows.num_moves, self._rows.start)

    def replace(self, record: Record) -> None:
        """Exchange a record for one that says more of the same trajectory, such as where it lies.

        What the table of stored records has is kept here no longer.

        Raises:
            EvictedError: There is none of this id.
        """
        one = record.trajectory_id
        self._size_bytes += record.size_bytes - self.get(one).size_bytes
        if self._stored is not None and one in self._stored:
            self._held.pop(one, None)
        else:
            self._held[one] = record
        self._windows.clear()
        # also in most windows taken before; where others say that it was, it stays while they are
        # held
        row = self._rows.row_of(one)
        start = int(self._rows.column("end")[row] - self._rows.column("count")[row])
        self._rows.change(row, "origin", _origin(record, start))

    def remove(self, trajectory_ids: Iterable[int]) -> list[Record]:
        """Take records out.

        Returns:
            Those taken out, in the order given.

        Raises:
            EvictedError: One of them is not there; nothing was removed.
        """
        removed = [self.get(trajectory_id) for trajectory_id in dict.fromkeys(trajectory_ids)]
        if not removed:
            return removed
        for record in removed:
            self._held.pop(record.trajectory_id, None)
            self._size_bytes -= record.size_bytes
        if self._rows.remove([record.trajectory_id for record in removed]):
            counts = self._rows.column("count")
            places = self._rows.column("origin") + self._rows.column("end") - counts
            ends = np.cumsum(counts)
            self._rows.set_column("end", ends)
            self._rows.set_column("origin", origins_of(places, ends - counts))
            self._num_alike = _num_alike(counts)
            self._bins = None
        self.version += 1
        return removed

    def window(self, size: int) -> Window:
        """Return the newest trajectories; 0 means all of them."""
        if self._windowed != self.version or len(self._windows) > _MOST_WINDOWS:
            self._windows.clear()
            self._windowed = self.version
        if size not in self._windows:
            self._windows[size] = self._take_window(size)
        return self._windows[size]

    def _take_window(self, size: int) -> Window:
        columns = {name: self._rows.column(name, size) for name in _COLUMNS}
        counts = columns["count"]
        by_row = None if self._is_ordered else self._sorted_by_row(columns["first_row_id"])
        return Window(
            trajectory_ids=columns["trajectory_id"],
            first_row_ids=columns["first_row_id"],
            ends=columns["end"],
            counts=counts,
            num_envs=columns["num_envs"],
            origins=columns["origin"],
            rows_each=int(counts[-1]) if 0 < len(counts) <= self._num_alike else 0,
            by_row=by_row,
            bins=self._view_bins(columns["end"]),
        )

    def _view_bins(self, ends: NDArray[np.int64]) -> BinsView | None:
        """Return the bins for a window with these ends, None for one of few trajectories."""
        if len(ends) < MIN_TRAJECTORIES:
            return None
        if self._bins is None or self._binned[0] != self._rows.num_moves:
            all_ends = self._rows.column("end")
            begin = int(all_ends[0] - self._rows.column("count")[0])
            self._bins = RowBins(all_ends, begin, self._rows.num_spare)
            self._binned = (self._rows.num_moves, self._rows.start)
        return self._bins.view(self._binned[1] - (self._rows.stop - len(ends)))

    def _sorted_by_row(self, firsts: NDArray[np.int64]) -> RowOrder:
        key = (self.version, len(firsts))
        if self._by_row is None or self._by_row[0] != key:
            self._by_row = (key, RowOrder(firsts))
        return self._by_row[1]

    def locks(self) -> Iterator[ReentrantLock]:
        """Yield what guards the table of stored records, which others change too."""
        if self._stored is not None:
            yield self._stored.lock

    def after_fork(self) -> None:
        """Become a forked child's copy."""
        if self._stored is not None:
            self._stored.after_fork()


def _origin(record: Record, start: int) -> int:
    return int(origins_of(np.asarray(record.place), np.asarray(start)))


def _num_alike(counts: NDArray[np.int64]) -> int:
    """Return how many at the end are the same number."""
    others = np.flatnonzero(counts != counts[-1:])
    return len(counts) - (int(others[-1]) + 1 if len(others) else 0)
