# SPDX-License-Identifier: Apache-2.0
"""The segments of one folder: a store's, or that of a checkpoint that is read."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from relive import files
from relive.errors import MissingFileError
from relive.formats.checking import naming
from relive.formats.memmap.packing import Packed
from relive.formats.memmap.segment_files import (
    HEAD_NAME,
    SEGMENTS_NAME,
    Ends,
    segment_path,
)
from relive.formats.memmap.segment_reading import SegmentReader
from relive.formats.memmap.segment_rows import MakeTable
from relive.formats.memmap.segment_spec import SegmentSpec
from relive.formats.memmap.segment_texts import TEXTS_NAME, check_texts
from relive.formats.memmap.segment_writers import SegmentWriters
from relive.limits import Limits
from relive.record import Record

__all__ = ["SegmentFolder"]

_NUMBER = re.compile("[0-9]{8,12}")


class SegmentFolder:
    """Counts what the segments of a folder hold, appends to them and frees those that hold nothing.

    Any thread may call any method; they wait for one another, but who reads waits for none.
    """

    def __init__(self, folder: Path, make_table: MakeTable, segment_bytes: int) -> None:
        """Begin without knowing what the segments hold.

        Args:
            folder: The folder.
            make_table: Decides how rows are read.
            segment_bytes: How large a segment may become.
        """
        self.folder = folder
        """The folder."""
        self.reader = SegmentReader(folder, make_table)
        """Reads their rows."""
        self._writers = SegmentWriters(folder, segment_bytes, self.new_number)
        self._lock = threading.RLock()
        self._num_live: dict[int, int] = {}
        self._sizes: dict[int, int] = {}  # bytes of those that were looked at
        self._next_number = 1 + max(self._numbers_there(), default=-1)
        self.destination: SegmentFolder | None = None
        """Where the segments will be moved, whose numbers they get; None when they stay."""

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
                self.reader.check_whole(record)  # mapped, what is cut would end the process
                if self.check_texts(segment):
                    with naming(path), self._lock:
                        self._writers.go_on_with(segment, self.reader.head(segment))

    def check_texts(self, segment: int) -> bool:
        """Refuse texts that are cut; tell whether nothing lies behind the last.

        Raises:
            CorruptFileError: They are cut.
            MissingFileError: It, or a file of it, is not there.
        """
        path = segment_path(self.folder, segment)
        if not self.reader.head(segment).spec.text_names:
            return True
        with naming(path / TEXTS_NAME):
            return check_texts(path)

    def _numbers_there(self) -> list[int]:
        path = self.folder / SEGMENTS_NAME
        names = files.list_names(path) if files.exists(path) else []
        return [int(name) for name in names if _NUMBER.fullmatch(name)]

    def append(self, packed: Packed, spec: SegmentSpec, *, sync: bool) -> Mapping[str, int]:
        """Write a trajectory; return its location.

        Raises:
            OSError: The disk refused; what was there is as it was.
        """
        with self._lock:
            location = self._writers.append(packed, spec, sync=sync)
            segment = location["segment"]
            self._num_live[segment] = self._num_live.get(segment, 0) + 1
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
            if writer.size_bytes <= small_bytes:
                return True
            self.seal(segment)
            return False

    def ends(self, segment: int) -> Ends:
        """Return how far a segment is in use, by trajectories that are gone too.

        Raises:
            MissingFileError: It is not there.
            CorruptFileError: Its head is damaged.
            OSError: One of its files is not there.
        """
        with self._lock:
            writer = self._writers.of(segment)
            if writer is not None:
                return writer.ends
            path = segment_path(self.folder, segment)
            return Ends.of_files(path, self.reader.head(segment).spec)

    def sync(self, segments: Iterable[int]) -> None:
        """Make segments survive a power loss, but for the name of their parent.

        Raises:
            OSError: The disk refused.
        """
        for segment in segments:  # without the lock: who appends or removes must not wait for it
            path = segment_path(self.folder, segment)
            with suppress(FileNotFoundError):
                for name in (*self.reader.head(segment).names(), HEAD_NAME):
                    with suppress(FileNotFoundError):  # whoever reads it is told
                        files.sync_file(path / name)
                files.sync_folder(path)
        if files.exists(self.folder / SEGMENTS_NAME):
            files.sync_folder(self.folder / SEGMENTS_NAME)

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
                files.remove_folder(path, at_once=True)  # half of it would be taken for whole
            self._sizes.pop(segment, None)
            self._num_live.pop(segment, None)  # last: when the disk refuses, it is tried again

    def let_go(self, segment: int) -> None:
        """Close and unmap a segment, whose rows nobody reads any more."""
        with self._lock:
            self.seal(segment)
            self.reader.let_go(segment)

    def close(self) -> None:
        """Let go of everything; twice is fine."""
        with self._lock:
            self._writers.close()
            self.reader.close()

    def usage(self) -> dict[str, float]:
        """Return how many segments there are, and their bytes on disk and mapped.

        Raises:
            OSError: The disk refused.
        """
        disk_bytes = mapped_bytes = 0
        with self._lock:
            segments = list(self._num_live)
            for segment in segments:
                size = self._size_bytes(segment)
                disk_bytes += size
                if self.reader.has_mapped(segment):
                    mapped_bytes += size
        return {"segments": len(segments), "disk_bytes": disk_bytes, "mapped_bytes": mapped_bytes}

    def _size_bytes(self, segment: int) -> int:
        """Return what a segment takes; of one that grows no more it is remembered."""
        grows = self._writers.of(segment) is not None
        if segment in self._sizes and not grows:
            return self._sizes[segment]
        path, size = segment_path(self.folder, segment), 0
        with suppress(FileNotFoundError):  # whoever reads or writes it is told
            names = self.reader.head(segment).names()
            size = sum(files.size_bytes(path / name) for name in names)
        if not grows:
            self._sizes[segment] = size
        return size
