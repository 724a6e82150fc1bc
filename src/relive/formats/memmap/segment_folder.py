# SPDX-License-Identifier: Apache-2.0
"""The segments of one folder: a store's, or that of a checkpoint that is read."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from relive import files
from relive.errors import CorruptFileError, MissingFileError
from relive.formats.base import naming
from relive.formats.memmap.packing import Packed
from relive.formats.memmap.segment_files import (
    HEAD_NAME,
    SEGMENTS_NAME,
    Ends,
    SegmentHead,
    segment_path,
)
from relive.formats.memmap.segment_rows import MakeTable, SegmentRows
from relive.formats.memmap.segment_spec import SegmentSpec
from relive.formats.memmap.segment_texts import TEXTS_NAME, check_texts
from relive.formats.memmap.segment_writers import SegmentWriters
from relive.formats.memmap.tables import ReadTable, UnknownSegmentError
from relive.gather import Lacking
from relive.limits import Limits
from relive.output_pool import Outputs
from relive.record import PLACE_BITS, Record
from relive.warning import warn

__all__ = ["SegmentFolder"]

_NUMBER = re.compile("[0-9]{8,12}")


class SegmentFolder:
    """Knows the segments of a folder, writes new ones and frees those that hold nothing.

    Any thread may read. Writing, freeing and getting to know segments happen one at a time.
    """

    def __init__(self, folder: Path, make_table: MakeTable, segment_bytes: int) -> None:
        """Begin without segments: each is got to know when it is first needed.

        Args:
            folder: The folder.
            make_table: Decides how rows are read.
            segment_bytes: How large a segment may become.
        """
        self.folder = folder
        """The folder."""
        self._make_table = make_table
        self._writers = SegmentWriters(folder, segment_bytes, self.new_number)
        self._lock = threading.RLock()
        self._layouts: list[SegmentRows] = []
        self._by_spec: dict[SegmentSpec, int] = {}
        self._layout_of = np.full(16, -1, np.int64)  # by segment
        self._heads: dict[int, SegmentHead] = {}
        self._num_live: dict[int, int] = {}
        self._sizes: dict[int, int] = {}  # bytes of those that were looked at
        self._next_number = 1 + max(self._numbers_there(), default=-1)
        self.destination: SegmentFolder | None = None
        """Where the segments will be moved, whose numbers they get; None when they stay."""

    # -------------------------------------------------------------- getting to know

    @property
    def limits(self) -> Limits:
        """How much the store will hold."""
        return self._writers.limits

    @limits.setter
    def limits(self, limits: Limits) -> None:
        self._writers.limits = limits

    def take_up(self, num_live: Mapping[int, int], last: Iterable[Record]) -> None:
        """Get to know what a store holds.

        Args:
            num_live: How many trajectories each segment holds, by its number.
            last: Of each segment the trajectory that lies behind the others.

        Raises:
            CorruptFileError: A segment's file is cut.
            StorageError: The disk refused.
        """
        with self._lock:
            self._next_number = max(self._next_number, 1 + max(self._numbers_there(), default=-1))
            self._num_live = dict(num_live)
        for record in sorted(last, key=lambda one: one.location["segment"], reverse=True):
            segment = record.location["segment"]
            path = segment_path(self.folder, segment)
            # what is not there is told when it is read, and can be deleted
            with suppress(MissingFileError):
                self.check_whole(record)  # mapped, what is cut would end the process
                if self.may_append(segment):
                    with naming(path), self._lock:
                        self._writers.go_on_with(segment, self.head(segment))

    def may_append(self, segment: int) -> bool:
        """Tell whether the texts of a segment, if it has any, end where they are to go on.

        Raises:
            CorruptFileError: They are cut.
            MissingFileError: It, or a file of it, is not there.
        """
        path = segment_path(self.folder, segment)
        if not self.head(segment).spec.text_names:
            return True
        with naming(path / TEXTS_NAME):
            return check_texts(path)

    def check_whole(self, record: Record) -> None:
        """Refuse a segment that does not reach to the end of a trajectory.

        Raises:
            CorruptFileError: One of its files is cut.
            MissingFileError: It, or a file of it, is not there.
        """
        path = segment_path(self.folder, record.location["segment"])
        spec = self.head(record.location["segment"]).spec
        for name, size in self.ends_of(record).size_bytes(spec).items():
            with naming(path / name):
                found = files.size_bytes(path / name)
                if found < size:
                    raise CorruptFileError(f"it has {found} bytes, but {size} of them are in use")

    def _numbers_there(self) -> list[int]:
        path = self.folder / SEGMENTS_NAME
        names = files.list_names(path) if files.exists(path) else []
        return [int(name) for name in names if _NUMBER.fullmatch(name)]

    def head(self, segment: int) -> SegmentHead:
        """Return what a segment is.

        Raises:
            MissingFileError: It is not there.
            CorruptFileError: Its head is damaged.
        """
        with self._lock:
            if segment not in self._heads:
                self._heads[segment] = SegmentHead.read(segment_path(self.folder, segment))
            return self._heads[segment]

    def _get_to_know(self, segments: Iterable[int]) -> None:
        for segment in segments:
            with self._lock:
                if segment < len(self._layout_of) and self._layout_of[segment] >= 0:
                    continue
                head = self.head(segment)
                number = self._by_spec.get(head.spec, len(self._layouts))
                if number == len(self._layouts):
                    self._layouts.append(SegmentRows(head.spec, self._make_table))
                    self._by_spec[head.spec] = number
                path = segment_path(self.folder, segment)
                try:
                    self._layouts[number].add(segment, path, head.num_rows)
                except MemoryError as error:
                    self._read_instead_of_mapping(error)
                    self._get_to_know([segment])
                    continue
                layout_of = self._layout_of
                if segment >= len(layout_of):  # anew: a thread may be at the old one
                    layout_of = np.full(2 * segment, -1, np.int64)
                    layout_of[: len(self._layout_of)] = self._layout_of
                layout_of[segment] = number
                self._layout_of = layout_of

    def _read_instead_of_mapping(self, error: MemoryError) -> None:
        """Begin anew with tables that need no addresses; who is reading keeps the old ones."""
        warn(
            f"files of {str(self.folder)!r} cannot be mapped ({error}), so rows are read one by "
            "one, which is slow; raise the limit of addresses (ulimit -v)"
        )
        self._make_table = lambda row_bytes, item: ReadTable(row_bytes)
        self._layout_of = np.full(16, -1, np.int64)  # first: readers look at it last
        self._layouts, self._by_spec = [], {}

    # -------------------------------------------------------------- reading

    def gather(self, places: NDArray[np.int64], outputs: Outputs) -> Lacking:
        """Copy rows; see `Format.gather_placed`.

        Raises:
            MissingFileError: A segment is not there.
            CorruptFileError: Its head is damaged.
            OSError: A file cannot be read.
        """
        segments = places >> PLACE_BITS
        with suppress(UnknownSegmentError):
            return self._gather(segments, places, outputs)
        self._get_to_know(np.unique(segments).tolist())
        try:
            return self._gather(segments, places, outputs)
        except UnknownSegmentError as error:
            raise CorruptFileError(
                f"a segment of {str(self.folder)!r} went while it was read, but nothing may take "
                "it away; look what else works on the folder",
                path=str(self.folder),
            ) from error

    def _gather(
        self, segments: NDArray[np.int64], places: NDArray[np.int64], outputs: Outputs
    ) -> Lacking:
        layouts, layout_of = self._layouts, self._layout_of
        if len(layouts) == 1:
            layout = layouts[0]
            layout.take(segments, places, outputs.items)
            lacks = outputs.columns.keys() - layout.spec.names
            return dict.fromkeys(lacks, np.arange(len(segments))) if lacks else {}
        if segments.max() >= len(layout_of) or (layout_of[segments] < 0).any():
            raise UnknownSegmentError
        lacking: dict[str, list[NDArray[np.int64]]] = {}
        numbers = layout_of[segments]
        for number in np.unique(numbers).tolist():
            layout, mine = layouts[number], np.flatnonzero(numbers == number)
            parts = {
                name: np.empty(len(mine), items.dtype)
                for name, items in outputs.items.items()
                if name in layout.spec
            }
            layout.take(segments[mine], places[mine], parts)
            for name, part in parts.items():
                outputs.items[name][mine] = part
            for name in outputs.columns:
                if name not in layout.spec:
                    lacking.setdefault(name, []).append(mine)
        return {name: np.concatenate(some) for name, some in lacking.items()}

    # -------------------------------------------------------------- writing

    def append(self, packed: Packed, spec: SegmentSpec, *, sync: bool) -> Mapping[str, int]:
        """Write a trajectory; return its location.

        Raises:
            OSError: The disk refused; what was there is as it was.
        """
        with self._lock:
            location = self._writers.append(packed, spec, sync=sync)
            segment = location["segment"]
            self._num_live[segment] = self._num_live.get(segment, 0) + 1
            self._sizes.pop(segment, None)
            return location

    def new_number(self) -> int:
        """Return a number that no segment of the folder has or will get."""
        if self.destination is not None:
            return self.destination.new_number()
        with self._lock:
            self._next_number += 1
            return self._next_number - 1

    def seal(self, segment: int) -> None:
        """Write to a segment no more; it never changes from now on."""
        with self._lock:
            self._writers.seal(segment)
            self._sizes.pop(segment, None)

    def settle(self, segment: int, small_bytes: int) -> bool:
        """Tell whether a segment still grows; one that is no longer small does no more after this.

        Args:
            segment: Its number.
            small_bytes: Up to which size it may go on.
        """
        with self._lock:
            writer = self._writers.of(segment)
            if writer is None:
                return False
            if sum(writer.ends.size_bytes(writer.head.spec).values()) <= small_bytes:
                return True
            self.seal(segment)
            return False

    def sync(self, segments: Iterable[int]) -> None:
        """Make segments survive a power loss, but for the name of their parent.

        Raises:
            OSError: The disk refused.
        """
        for segment in segments:  # without the lock: who reads must not wait for the disk
            path = segment_path(self.folder, segment)
            with suppress(FileNotFoundError):
                for name in (*self.head(segment).names(), HEAD_NAME):
                    with suppress(FileNotFoundError):  # whoever reads it is told
                        files.sync_file(path / name)
                files.sync_folder(path)
        if files.exists(self.folder / SEGMENTS_NAME):
            files.sync_folder(self.folder / SEGMENTS_NAME)

    # -------------------------------------------------------------- freeing

    def count(self, record: Record) -> None:
        """Count a trajectory that was brought into a segment of this folder."""
        with self._lock:
            segment = record.location["segment"]
            self._num_live[segment] = self._num_live.get(segment, 0) + 1
            self._next_number = max(self._next_number, segment + 1)

    def is_last(self, record: Record) -> bool:
        """Tell whether its segment is known to hold no other trajectory."""
        with self._lock:
            return self._num_live.get(record.location["segment"]) == 1

    def discount(self, record: Record) -> bool:
        """Count a trajectory that is gone; tell whether its segment holds none any more."""
        with self._lock:
            segment = record.location["segment"]
            if segment not in self._num_live:
                return False  # the folder was not taken up: nobody knows what else is there
            self._num_live[segment] -= 1
            return self._num_live[segment] <= 0

    def free(self, segment: int) -> None:
        """Remove a segment that holds nothing; one that is gone already is fine.

        Raises:
            OSError: The disk refused.
        """
        with self._lock:
            self.let_go(segment)
            path = segment_path(self.folder, segment)
            if files.exists(path):
                files.remove_folder(path)
            self._num_live.pop(segment, None)  # last: when the disk refuses, it is tried again

    def let_go(self, segment: int) -> None:
        """Close and unmap a segment, whose rows nobody reads any more."""
        with self._lock:
            self.seal(segment)
            if segment < len(self._layout_of) and self._layout_of[segment] >= 0:
                self._layouts[self._layout_of[segment]].discard(segment)
                self._layout_of[segment] = -1
            self._heads.pop(segment, None)
            self._sizes.pop(segment, None)

    def close(self) -> None:
        """Let go of everything; twice is fine."""
        with self._lock:
            self._writers.close()
            for layout in self._layouts:
                layout.close()
            self._layout_of = np.full(16, -1, np.int64)

    # -------------------------------------------------------------- telling

    def usage(self) -> dict[str, float]:
        """Return how many segments there are, and their bytes on disk and mapped.

        Raises:
            OSError: The disk refused.
        """
        disk_bytes = mapped_bytes = 0
        with self._lock:
            segments = list(self._num_live)
            for segment in segments:
                if segment not in self._sizes or self._writers.of(segment) is not None:
                    path = segment_path(self.folder, segment)
                    self._sizes[segment] = 0
                    with suppress(FileNotFoundError):  # whoever reads or writes it is told
                        names = self.head(segment).names()
                        self._sizes[segment] = sum(files.size_bytes(path / name) for name in names)
                disk_bytes += self._sizes[segment]
                if segment < len(self._layout_of) and self._layout_of[segment] >= 0:
                    mapped_bytes += self._sizes[segment]
        return {"segments": len(segments), "disk_bytes": disk_bytes, "mapped_bytes": mapped_bytes}

    def ends_of(self, record: Record) -> Ends:
        """Return where a trajectory's bytes end in the files of its segment."""
        groups = len(self.head(record.location["segment"]).spec.groups)
        return Ends.after(record.location, record.num_rows, groups)
