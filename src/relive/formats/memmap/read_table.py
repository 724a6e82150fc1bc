# SPDX-License-Identifier: Apache-2.0
"""Rows read from files that are not mapped; see `tables`."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from relive import files
from relive.formats.memmap.tables import Table, UnknownSegmentError
from relive.places import PLACE_BITS, by_segment

__all__ = ["ReadTable"]

_MOST_IDLE = 16  # descriptors kept open while nobody reads by them


class ReadTable(Table):
    """Rows read from files, one after the other in the order of the files."""

    is_mapped: ClassVar[bool] = False

    def __init__(self, row_bytes: int) -> None:
        """Begin without segments; see `Table`."""
        super().__init__(row_bytes)
        self._paths: dict[int, Path] = {}
        self._idle: OrderedDict[int, int] = OrderedDict()  # descriptors, that used last at the end
        self._lock = threading.RLock()  # signal handlers may sample

    def add(self, segment: int, path: Path, num_rows: int) -> None:
        """Remember the file of a segment; see `Table.add`."""
        with self._lock:
            self._paths[segment] = path

    def check(self, segments: NDArray[np.int64], rows: NDArray[np.int64]) -> None:
        """Refuse rows that no file has; see `Table.check`."""
        for segment in np.unique(segments).tolist():
            if segment in self._paths:
                num_rows = files.size_bytes(self._paths[segment]) // self.row_bytes
                self._refuse_beyond(segment, rows[segments == segment], num_rows)

    def discard(self, segment: int) -> None:
        """Forget the file of a segment; see `Table.discard`."""
        with self._lock:
            self._paths.pop(segment, None)
            if segment in self._idle:
                files.close(self._idle.pop(segment))

    def take(
        self,
        segments: NDArray[np.int64],
        places: NDArray[np.int64],
        outputs: Mapping[int, NDArray[Any]],
    ) -> None:
        """Read rows from the files; see `Table.take`."""
        if not self._paths.keys() >= set(segments.tolist()):
            raise UnknownSegmentError
        rows = places & ((1 << PLACE_BITS) - 1)
        for segment, mine in by_segment(places):
            with self._lend(segment) as descriptor:
                for at in mine.tolist():
                    for further, out in outputs.items():
                        start = (int(rows[at]) + further) * self.row_bytes
                        files.read_at(descriptor, start, out[at : at + 1].view(np.uint8).data)

    @contextmanager
    def _lend(self, segment: int) -> Iterator[int]:
        """Yield a descriptor that no other thread has, nor closes, meanwhile."""
        with self._lock:
            descriptor = self._idle.pop(segment, None)
            path = self._paths.get(segment)
        if descriptor is None:
            if path is None:
                raise UnknownSegmentError
            descriptor = files.open_to_read(path)
        try:
            yield descriptor
        finally:
            with self._lock:
                if segment not in self._paths or segment in self._idle:
                    files.close(descriptor)  # discarded meanwhile, or another thread's is there
                else:
                    self._idle[segment] = descriptor
                    if len(self._idle) > _MOST_IDLE:
                        files.close(self._idle.popitem(last=False)[1])

    def close(self) -> None:
        """Close all files; see `Table.close`."""
        with self._lock:
            self._paths.clear()
            while self._idle:
                files.close(self._idle.popitem()[1])
