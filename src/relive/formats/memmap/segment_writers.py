# SPDX-License-Identifier: Apache-2.0
"""Which segment a trajectory is appended to: one for each layout, until it is full or sealed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from relive import files
from relive.formats.memmap.packing import Packed
from relive.formats.memmap.segment_files import (
    Ends,
    SegmentHead,
    SegmentWriter,
    segment_path,
)
from relive.formats.memmap.segment_spec import SegmentSpec
from relive.limits import Limits

__all__ = ["SegmentWriters"]

_MOST_WRITERS = 64  # so many layouts in turn do not make more segments than one would
_MOST_OPEN = 2
_LIMIT_SHARE = 16  # a segment holds at most this part of what the limits let stay


class SegmentWriters:
    """The segments of a folder that still grow. Not safe for several threads at once."""

    def __init__(self, folder: Path, segment_bytes: int, new_number: Callable[[], int]) -> None:
        """Begin without segments.

        Args:
            folder: The store.
            segment_bytes: How large a segment may become.
            new_number: Gives the number of the next segment.
        """
        self.limits = Limits()
        """How much the store will hold."""
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._new_number = new_number
        self._writers: dict[SegmentSpec, SegmentWriter] = {}  # that used last at the end

    def go_on_with(self, segment: int, head: SegmentHead) -> None:
        """Append to a segment that was begun before, unless a newer one of its layout grows.

        Raises:
            OSError: The disk refused.
        """
        if head.spec in self._writers or len(self._writers) >= _MOST_WRITERS:
            return
        path = segment_path(self._folder, segment)
        # behind all that is there: another process may be reading what this one deleted
        ends = Ends.of_files(path, head.spec)
        is_ours_alone = all(files.has_one_name(path / name) for name in head.names())
        if is_ours_alone and ends.rows < head.num_rows:
            writer = SegmentWriter(path, segment, head, ends)
            writer.close()  # until there is something to append
            self._writers[head.spec] = writer

    def append(self, packed: Packed, spec: SegmentSpec, *, sync: bool) -> Mapping[str, int]:
        """Write a trajectory; return its location.

        Raises:
            OSError: The disk refused; what was there is as it was.
        """
        writer = self._writers.pop(spec, None)
        if writer is not None and not self._may_take(writer, packed):
            writer.close()
            writer = None
        if writer is None:
            writer = self._create(spec, len(packed.records), sync=sync)
        self._writers[spec] = writer
        for resting in list(self._writers.values())[:-_MOST_OPEN]:
            resting.close()
        location = writer.append(packed)
        if sync:
            writer.sync()
        return location

    def _may_take(self, writer: SegmentWriter, packed: Packed) -> bool:
        most = self.limits.max_trajectories
        is_full = most is not None and writer.num_trajectories >= max(1, most // _LIMIT_SHARE)
        size = writer.size_bytes + packed.size_bytes
        is_new = not writer.ends.rows  # perhaps of a write that was refused
        return writer.has_room(packed) and (is_new or (size <= self._most_bytes() and not is_full))

    def _create(self, spec: SegmentSpec, least_rows: int, *, sync: bool) -> SegmentWriter:
        while len(self._writers) >= _MOST_WRITERS:
            self.seal(next(iter(self._writers.values())).number)
        num_rows = max(least_rows, self._rows_per_segment(spec))
        return SegmentWriter.create(self._folder, self._new_number(), spec, num_rows, sync=sync)

    def _most_bytes(self) -> int:
        """Return how large a segment may become: of many layouts each has one that is half gone."""
        if self.limits.max_bytes is None:
            return self._segment_bytes
        # the one at hand is taken out
        share = self.limits.max_bytes // (_LIMIT_SHARE * (1 + len(self._writers)))
        return min(self._segment_bytes, share)

    def _rows_per_segment(self, spec: SegmentSpec) -> int:
        row_bytes = spec.stride + sum(group.frame_bytes for group in spec.groups)
        num_rows = self._most_bytes() // row_bytes
        if self.limits.max_samples is not None:
            num_rows = min(num_rows, self.limits.max_samples // _LIMIT_SHARE)
        return max(1, num_rows)

    def of(self, segment: int) -> SegmentWriter | None:
        """Return who still writes to a segment."""
        return next((one for one in self._writers.values() if one.number == segment), None)

    def seal(self, segment: int) -> None:
        """Write to a segment no more; it never changes from now on."""
        writer = self.of(segment)
        if writer is not None:
            writer.close()
            del self._writers[writer.head.spec]

    def close(self) -> None:
        """Close all files; twice is fine."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()
