# SPDX-License-Identifier: Apache-2.0
"""Which ids the next trajectory gets, on one rank of many.

Pure values. The journal, the index file and checkpoints hold a numbering as JSON.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from relive.errors import CorruptFileError, InvalidArgumentError
from relive.record import Record, natural

__all__ = ["MAX_ROW_ID", "Numbering"]

MAX_ROW_ID = np.iinfo(np.int64).max
"""The largest row id."""

_TRAJECTORY_ID_BOUND = 1 << 62
_RANK_SPACING = 1 << 40
"""Row ids come in blocks of so many: of `stride` ranks each has every `stride`-th block."""

_START_AGAIN = "load the checkpoint into an empty folder"


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
            InvalidArgumentError: No trajectory id or row id is left.
        """
        _check_trajectory_id(self.next_trajectory_id + self.stride)
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
        _check_trajectory_id(moved)
        return Numbering(moved, self.stride, self._row_id_past(other.next_row_id))

    def _row_id_past(self, row_id: int) -> int:
        """Return a row id not below another one, in this rank's own share of them."""
        own, other = self.next_row_id // _RANK_SPACING, row_id // _RANK_SPACING
        behind = (own - other) % self.stride
        if row_id <= self.next_row_id or not behind:
            return max(self.next_row_id, row_id)
        moved = (other + behind) * _RANK_SPACING
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
        block, used = divmod(self.next_row_id, _RANK_SPACING)
        if used > _RANK_SPACING // 2:  # what is left of it would not last
            block, used = block + 1, 0
        first_row = (block + local_rank) * _RANK_SPACING + (0 if local_rank else used)
        if first_row > MAX_ROW_ID - _RANK_SPACING:
            raise InvalidArgumentError(
                f"row id {first_row} of rank {local_rank} leaves too few below int64's largest, "
                f"but a rank needs {_RANK_SPACING}; {_START_AGAIN}"
            )
        return Numbering(self.next_trajectory_id + local_rank, world_size, first_row)

    def to_json(self) -> dict[str, int]:
        """Return the numbering as JSON values."""
        return {
            "next_trajectory_id": self.next_trajectory_id,
            "stride": self.stride,
            "next_row_id": self.next_row_id,
        }

    @classmethod
    def from_json(cls, entry: Any) -> Numbering:
        """Read what `to_json` gave.

        Raises:
            CorruptFileError: It is something else.
        """
        try:
            names = ("next_trajectory_id", "stride", "next_row_id")
            numbering = cls(*(natural(entry[name]) for name in names))
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptFileError(
                f"a numbering is {entry!r:.200}, but has no valid form"
            ) from error
        if not numbering.stride:
            raise CorruptFileError(f"a numbering is {entry!r:.200}, but its stride is at least 1")
        return numbering


def _check_trajectory_id(next_id: int) -> None:
    if next_id >= _TRAJECTORY_ID_BOUND:
        raise InvalidArgumentError(
            f"trajectory id {next_id} is too large, but must be below 2**62; {_START_AGAIN}"
        )
