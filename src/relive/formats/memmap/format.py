# SPDX-License-Identifier: Apache-2.0
"""Format "memmap": trajectories in append-only segments, rows at the speed of memory."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from relive import files
from relive.dtypes import MOST_ITEM_BYTES
from relive.errors import CorruptFileError, MissingFileError, StorageError, UnsupportedValueError
from relive.formats.base import Copier, Progress, no_progress
from relive.formats.checking import check_snapshot, naming
from relive.formats.layouts import layout_of
from relive.formats.memmap.mapped_table import MappedTable
from relive.formats.memmap.packing import RecordScratch, pack, spec_of, unpack, unpack_side
from relive.formats.memmap.read_table import ReadTable
from relive.formats.memmap.segment_files import (
    SEGMENTS_NAME,
    SIDE_NAME,
    SegmentHead,
    link_segment,
    segment_path,
)
from relive.formats.memmap.segment_folder import SegmentFolder
from relive.formats.memmap.segment_rows import ROWS_NAME
from relive.formats.memmap.segment_texts import TEXTS_NAME, read_texts
from relive.formats.memmap.tables import Table
from relive.formats.placed_format import PlacedFormat
from relive.gather import Lacking, RowSource, row_source
from relive.index import Index
from relive.limits import Limits
from relive.options import check_choice, checked_count
from relive.output_pool import Outputs
from relive.places import by_segment
from relive.record import Record
from relive.snapshot import Snapshot
from relive.texts import TextGroup
from relive.window import Window

__all__ = ["MemmapFormat", "ReadMode"]

ReadMode = Literal["mmap", "pread"]
"""How rows are read: out of mapped files, or by reading them; the latter is slower, but what
befalls a network file system is then an error and not the end of the process."""

_SMALL_SEGMENT_BYTES = 64 << 20  # one that still grows is copied up to here, else sealed


class MemmapFormat(PlacedFormat):
    """Format "memmap": segments of packed records and frames, many trajectories each.

    Rows are copied straight out of mapped files, those of a whole batch by one call; large
    observations lie on the disk once, not again as the next observation of the step before.
    The cache is not used: what is mapped is in memory as often as it is read.
    """

    name: ClassVar[str] = "memmap"
    ids_are_in_files: ClassVar[bool] = False
    needs_cache: ClassVar[bool] = False

    def __init__(self, *, segment_bytes: int = 1 << 30, read_mode: ReadMode = "mmap") -> None:
        """Begin without a folder.

        Args:
            segment_bytes: How large a segment may become; a larger trajectory gets one of its
                own. Segments are smaller when limits of the buffer are small.
            read_mode: "mmap", or "pread" for network file systems. Where files cannot be mapped
                over one another, as outside Linux, it is "pread" in any case.

        Raises:
            InvalidArgumentError: An argument is out of range or unknown.
        """
        self._segment_bytes = checked_count("segment_bytes", segment_bytes)
        check_choice("read_mode", read_mode, ("mmap", "pread"))
        self.read_mode: ReadMode = read_mode if sys.platform == "linux" else "pread"
        """How rows are read."""
        self._lock = threading.Lock()
        self._scratch = RecordScratch()
        self._folders: dict[Path, SegmentFolder] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        # what is mapped stays with this process
        size, mode = self._segment_bytes, self.read_mode
        return partial(type(self), segment_bytes=size, read_mode=mode), ()

    def _folder(self, folder: Path) -> SegmentFolder:
        known = self._folders.get(folder)
        if known is not None:  # as nearly always
            return known
        with self._lock:
            if folder not in self._folders:
                self._folders[folder] = SegmentFolder(folder, self._make_table, self._segment_bytes)
            return self._folders[folder]

    def _make_table(self, row_bytes: int, item: np.dtype[Any]) -> Table:
        return MappedTable(row_bytes, item) if self.read_mode == "mmap" else ReadTable(row_bytes)

    def take_up(self, folder: Path, index: Index, limits: Limits | None = None) -> None:
        """Get to know a store; see `Format.take_up`."""
        window = index.window(0)
        grouped = _by_segment(window)
        known = self._folder(folder)
        if limits is not None:
            known.limits = limits
        known.take_up(
            {segment: len(mine) for segment, mine in grouped},
            [index.get(int(window.trajectory_ids[mine[-1]])) for _, mine in grouped],
        )

    def check(self, snapshot: Snapshot) -> None:
        """Refuse rows of 2 GiB and more; see `Format.check`."""
        for name, column in snapshot.columns.items():
            row_bytes = column.values[:1, :1].nbytes
            if row_bytes > MOST_ITEM_BYTES:
                raise UnsupportedValueError(
                    f"a row of column {name!r} has {row_bytes} bytes, but memmap holds rows below "
                    "2 GiB; use trajectory_format='pt'",
                    column=name,
                )

    def write(self, folder: Path, record: Record, snapshot: Snapshot, *, sync: bool) -> Record:
        """Append a trajectory; see `Format.write`."""
        layout = layout_of(snapshot)
        completed = replace(record, format=self.name, layout=layout)
        spec = spec_of(snapshot)
        with self._scratch.lend(spec, snapshot.num_rows) as records:
            packed = pack(completed, snapshot, spec, records)
            location = self._folder(folder).append(packed, spec, sync=sync)
        return replace(completed, location=location)

    def rows(self, folder: Path, record: Record, names: Iterable[str]) -> RowSource:
        """Return columns of a stored trajectory; see `Format.rows`."""
        source = row_source(self._unpack(folder, record))
        return {name: source[name] for name in names if name in source}

    def read(self, folder: Path, record: Record) -> Snapshot:
        """Read a whole trajectory back; see `Format.read`."""
        snapshot = self._unpack(folder, record)
        with naming(self.path(folder, record), record):
            check_snapshot(record, record.uuid, snapshot)
        return snapshot

    def _unpack(self, folder: Path, record: Record) -> Snapshot:
        path = self.path(folder, record)
        with naming(path, record):
            head = self._folder(folder).reader.head(record.location["segment"])
            spec, location = head.spec, record.location
            side = _read(path / SIDE_NAME, location["side"], location["side_bytes"])
            entry, _ = unpack_side(side.tobytes())
            if entry["uuid"] != record.uuid:
                raise CorruptFileError(
                    f"it holds trajectory {entry['uuid']!r:.60}, but should hold {record.uuid!r}"
                )
            records = _read(
                path / ROWS_NAME, location["row"] * spec.stride, record.num_rows * spec.stride
            ).view(spec.record_dtype)
            frames = {}
            for place, group in enumerate(spec.groups):
                size, start = group.frame_bytes, location[f"frame_{place}"]
                num = location[f"num_frames_{place}"]
                block = _read(path / group.file_name, start * size, num * size)
                frames[group.name] = block.reshape(num, size)
                records[group.name] -= start
            texts_of = partial(_texts_of, path)
            return unpack(record, spec, records, frames, side.tobytes(), texts_of)

    def gather_placed(self, folder: Path, places: NDArray[np.int64], outputs: Outputs) -> Lacking:
        """Copy rows out of the segments; see `PlacedFormat.gather_placed`."""
        try:
            return self._folder(folder).reader.gather(places, outputs)
        except StorageError:
            raise
        except (OSError, EOFError):
            with naming(folder / SEGMENTS_NAME):  # only now, for it takes its time
                raise

    def text_groups(
        self, folder: Path, places: NDArray[np.int64], positions: NDArray[np.int64]
    ) -> Iterator[TextGroup]:
        """Tell what codes stand for, segment by segment; see `PlacedFormat.text_groups`."""
        for segment, mine in by_segment(places[positions]):
            yield positions[mine], partial(_texts_of, segment_path(folder, segment))

    def path(self, folder: Path, record: Record) -> Path:
        """Return the folder of a trajectory's segment."""
        return segment_path(folder, record.location["segment"])

    def is_whole(self, folder: Path, record: Record) -> bool:
        """Tell whether the segment reaches to the trajectory's end; see `Format.is_whole`."""
        try:
            self._folder(folder).reader.check_whole(record)
        except (FileNotFoundError, CorruptFileError):
            return False
        return True

    def copier(
        self,
        source: Path,
        target: Path,
        *,
        sync: bool,
        progress: Progress = no_progress,
    ) -> Copier:
        """Return what links whole segments, each once; see `Format.copier`."""
        known, there = self._folder(source), self._folder(target)
        numbers: dict[int, int] = {}

        def copy(record: Record) -> Record:
            segment = record.location["segment"]
            with naming(self.path(source, record), record):
                known.reader.check_whole(record)
            if segment not in numbers:
                number = there.new_number() if there.destination else segment
                path = segment_path(target, number)
                known.check_texts(segment)
                is_growing = known.settle(segment, _SMALL_SEGMENT_BYTES)
                here = self.path(source, record)
                with _naming_what_is_missing(here):
                    link_segment(here, path, is_growing=is_growing, sync=sync, progress=progress)
                if sync:
                    files.sync_folder(path.parent)
                numbers[segment] = number
            brought = replace(record, location={**record.location, "segment": numbers[segment]})
            there.count(brought)
            return brought

        return copy

    def prepare_incoming(self, incoming: Path, store: Path) -> None:
        """Let segments get numbers that are free in the store; see `Format.prepare_incoming`."""
        self._folder(incoming).destination = self._folder(store)

    def move_to(self, folder: Path, record: Record, target: Path) -> None:
        """Move or share the segment; see `Format.move_to`."""
        known, segment = self._folder(folder), record.location["segment"]
        here, there = self.path(folder, record), segment_path(target, segment)
        is_last = known.is_last(record)
        if files.exists(there):
            if SegmentHead.read(there).uuid != known.reader.head(segment).uuid:
                raise CorruptFileError(
                    f"{str(there)!r} is another segment than {str(here)!r}, but stands in its "
                    "place; move it away",
                    path=str(there),
                )
        elif is_last:
            known.let_go(segment)
            files.create_folder(there.parent)
            files.rename(here, there)
        else:
            known.seal(segment)
            with contextlib.suppress(FileNotFoundError):  # nobody can read what is left
                link_segment(here, there, is_growing=False, sync=False)
        if known.discount(record):  # last: when the disk refuses, all of it is tried again
            known.free(segment)
        self._folder(target).count(record)

    def sync(self, folder: Path, records: Iterable[Record]) -> None:
        """Sync the segments; see `Format.sync`."""
        self._folder(folder).sync(sorted({record.location["segment"] for record in records}))

    def remove(self, folder: Path, record: Record) -> None:
        """Free the segment when it was the last trajectory of it; see `Format.remove`."""
        known = self._folder(folder)
        if known.discount(record):
            known.free(record.location["segment"])

    def wasteful(self, folder: Path, window: Window) -> list[list[int]]:
        """Return the trajectories of segments that hold others no more; see `Format.wasteful`."""
        known, found = self._folder(folder), []
        for segment, mine in _by_segment(window):
            with naming(segment_path(folder, segment)):
                ends = known.ends(segment)
            if int(window.counts[mine].sum()) < ends.rows:
                known.seal(segment)
                found.append(window.trajectory_ids[mine].tolist())
        return found

    def usage(self, folder: Path) -> Mapping[str, float]:
        """Return segments, bytes on disk and bytes mapped; see `Format.usage`."""
        return self._folder(folder).usage()

    def release(self, folder: Path) -> None:
        """Unmap the segments of a folder; see `Format.release`."""
        with self._lock:
            known = self._folders.pop(folder, None)
        if known is not None:
            known.close()

    def close(self) -> None:
        """Unmap all segments; see `Format.close`."""
        for folder in list(self._folders):
            self.release(folder)


def _by_segment(window: Window) -> list[tuple[int, NDArray[np.int64]]]:
    """Return each segment's number and its trajectories' positions, as they lie in it."""
    placed = np.flatnonzero(window.places >= 0)
    return [(number, placed[mine]) for number, mine in by_segment(window.places[placed])]


@contextlib.contextmanager
def _naming_what_is_missing(path: Path) -> Iterator[None]:
    try:
        yield
    except MissingFileError:
        raise
    except FileNotFoundError as error:
        raise MissingFileError(
            f"a file of {str(path)!r} is not there: {error}; restore the segment from a copy",
            path=str(path),
        ) from error


def _texts_of(path: Path, codes: Sequence[int]) -> list[str]:
    with naming(path / TEXTS_NAME):
        try:
            return read_texts(path, codes)
        except UnicodeDecodeError as error:
            raise CorruptFileError(f"it holds no text: {error}") from error


def _read(path: Path, start: int, size: int) -> NDArray[np.uint8]:
    try:
        return np.frombuffer(files.read_part(path, start, size), np.uint8)
    except EOFError as error:
        raise CorruptFileError(f"{path.name} is cut: {error}") from error
