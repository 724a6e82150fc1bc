# SPDX-License-Identifier: Apache-2.0
"""The files of one segment: `segment.json`, `rows.bin`, `side.bin` and one for each frame group.

`segment.json` is written first and never again. The others only grow, behind an end that the
index tells: what lies beyond it, of a write that was cut off, is written over.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from relive import files, open_files
from relive.errors import CorruptFileError, MissingFileError, StorageError
from relive.formats.memmap.packing import Packed
from relive.formats.memmap.segment_rows import ROWS_NAME
from relive.formats.memmap.segment_spec import SegmentSpec
from relive.formats.memmap.segment_texts import ENDS_NAME, TEXTS_NAME, TextWriter
from relive.places import PLACE_BITS
from relive.record import natural

__all__ = [
    "HEAD_NAME",
    "SEGMENTS_NAME",
    "SIDE_NAME",
    "Ends",
    "SegmentHead",
    "SegmentWriter",
    "link_segment",
    "segment_path",
]

SEGMENTS_NAME = "segments"
"""Folder of the segments inside a store."""

HEAD_NAME = "segment.json"
SIDE_NAME = "side.bin"

_MOST_FRAMES = 1 << 32  # positions are uint32


def segment_path(folder: Path, number: int) -> Path:
    """Return the folder of a segment of a store."""
    return folder / SEGMENTS_NAME / f"{number:08d}"


@dataclass(frozen=True)
class SegmentHead:
    """What `segment.json` says."""

    spec: SegmentSpec
    """How the columns lie."""
    num_rows: int
    """How many rows it will have at most."""
    uuid: str
    """Names the segment in every store and checkpoint it is linked into."""

    @classmethod
    def read(cls, path: Path) -> SegmentHead:
        """Read the head of the segment in a folder.

        Raises:
            MissingFileError: It is not there.
            StorageError: It cannot be read.
            CorruptFileError: It is something else.
            FormatVersionError: A later release wrote it.
        """
        name = path / HEAD_NAME
        try:
            entry = json.loads(files.read_bytes(name))
            return cls(
                SegmentSpec.from_json(entry["layout"]),
                _checked_num_rows(entry["num_rows"]),
                str(uuid.UUID(entry["uuid"])),
            )
        except (FileNotFoundError, NotADirectoryError) as error:
            raise MissingFileError(
                f"{str(name)!r} is not there, but the index names the segment; restore it from a "
                "copy, or delete its trajectories",
                path=str(name),
            ) from error
        except OSError as error:
            raise StorageError(
                f"{str(name)!r} cannot be read: {error}; check its permissions and the disk",
                path=str(name),
                errno=error.errno,
            ) from error
        except CorruptFileError as error:
            raise type(error)(f"{str(name)!r}: {error}", path=str(name)) from error
        except (LookupError, TypeError, AttributeError, ValueError, RecursionError) as error:
            raise CorruptFileError(
                f"{str(name)!r} is cut or damaged ({error}), but says how the segment's columns "
                "lie; restore it from a copy",
                path=str(name),
            ) from error

    def write(self, path: Path, *, sync: bool) -> None:
        """Write the head of a new segment into its folder.

        Raises:
            OSError: The disk refused.
        """
        entry = {"layout": self.spec.to_json(), "num_rows": self.num_rows, "uuid": self.uuid}
        text = json.dumps(entry, indent=1) + "\n"
        name = path / HEAD_NAME
        files.write_atomic(name, lambda file: file.write(text.encode("ascii")), sync=sync)

    def names(self) -> Iterator[str]:
        """Go through the names of the files that grow."""
        yield ROWS_NAME
        yield SIDE_NAME
        for group in self.spec.groups:
            yield group.file_name
        if self.spec.text_names:
            # the ends first: texts are written before their ends, and so a copy has all of them
            yield ENDS_NAME
            yield TEXTS_NAME


def _checked_num_rows(number: object) -> int:
    if not 1 <= natural(number) <= 1 << PLACE_BITS:
        raise ValueError(f"num_rows is {number}")
    return natural(number)


@dataclass(frozen=True, slots=True)
class Ends:
    """How far the files of a segment are in use."""

    rows: int
    """Rows."""
    side_bytes: int
    """Bytes of the side file."""
    frames: tuple[int, ...]
    """Frames of each group."""

    @classmethod
    def after(cls, location: Mapping[str, int], num_rows: int, num_groups: int) -> Ends:
        """Return the ends behind the trajectory of a record."""
        return cls(
            location["row"] + num_rows,
            location["side"] + location["side_bytes"],
            tuple(
                location[f"frame_{group}"] + location[f"num_frames_{group}"]
                for group in range(num_groups)
            ),
        )

    @classmethod
    def of_files(cls, path: Path, spec: SegmentSpec) -> Ends:
        """Return where the files of a segment end, a part of a row counted as one.

        Raises:
            OSError: One is not there.
        """

        def num(name: str, row_bytes: int) -> int:
            return -(-files.size_bytes(path / name) // row_bytes)

        return cls(
            num(ROWS_NAME, spec.stride),
            num(SIDE_NAME, 1),
            tuple(num(group.file_name, group.frame_bytes) for group in spec.groups),
        )

    def size_bytes(self, spec: SegmentSpec) -> dict[str, int]:
        """Return the bytes in use of each file that grows."""
        sizes = {ROWS_NAME: self.rows * spec.stride, SIDE_NAME: self.side_bytes}
        for group, num in zip(spec.groups, self.frames, strict=True):
            sizes[group.file_name] = num * group.frame_bytes
        return sizes


class SegmentWriter:
    """A segment that still grows. Not safe for several threads at once."""

    def __init__(self, path: Path, number: int, head: SegmentHead, ends: Ends | None) -> None:
        """Begin a segment, or go on with one.

        Args:
            path: Its folder, which is there.
            number: Its number.
            head: What it is.
            ends: How far it is in use; None when it is new.

        Raises:
            OSError: The disk refused.
        """
        self.path = path
        """Its folder."""
        self.number = number
        """Its number in the store."""
        self.head = head
        """What it is."""
        self.ends = ends or Ends(0, 0, (0,) * len(head.spec.groups))
        """How far it is in use."""
        self.num_trajectories = 0
        """Appended since it was opened."""
        self._files: dict[str, open_files.GrowingFile] = {}
        self._texts: TextWriter | None = None
        with ExitStack() as opened:
            for name in self.ends.size_bytes(head.spec):
                self._files[name] = open_files.GrowingFile(path / name, is_new=ends is None)
                opened.callback(self._files[name].close)
            if head.spec.text_names:
                self._texts = TextWriter(path, is_new=ends is None)
            opened.pop_all()

    @classmethod
    def create(
        cls, folder: Path, number: int, spec: SegmentSpec, num_rows: int, *, sync: bool
    ) -> SegmentWriter:
        """Begin a segment in a store.

        Args:
            folder: The store.
            number: Number of the segment.
            spec: How its columns lie.
            num_rows: How many rows it will have at most.
            sync: Whether its names must survive a power loss.

        Raises:
            OSError: The disk refused; nothing is left behind.
        """
        path = segment_path(folder, number)
        files.create_folder(path.parent)
        files.create_new_folder(path)  # one that is there is another's
        try:
            head = SegmentHead(spec, num_rows, str(uuid.uuid4()))
            head.write(path, sync=sync)
            writer = cls(path, number, head, None)
            if sync:
                for changed in (path, path.parent, folder):
                    files.sync_folder(changed)
        except BaseException:  # Ctrl+C among others: no half segment stays
            files.remove_folder(path)
            raise
        return writer

    @property
    def size_bytes(self) -> int:
        """Bytes of its files that are in use."""
        texts = 0 if self._texts is None else self._texts.size_bytes
        return texts + sum(self.ends.size_bytes(self.head.spec).values())

    def has_room(self, packed: Packed) -> bool:
        """Tell whether a trajectory fits behind those that are there."""
        num_texts = sum(map(len, packed.tables.values()))
        return (
            self.ends.rows + len(packed.records) <= self.head.num_rows
            and (self._texts is None or self._texts.has_room(num_texts))
            and all(
                end + len(frames) <= min(_MOST_FRAMES, self.head.num_rows * len(group.columns))
                for end, frames, group in zip(
                    self.ends.frames, packed.frames, self.head.spec.groups, strict=True
                )
            )
        )

    def append(self, packed: Packed) -> dict[str, int]:
        """Write a trajectory behind those that are there; there must be room.

        Returns:
            Its location.

        Raises:
            OSError: The disk refused; what was there is as it was.
        """
        ends, spec = self.ends, self.head.spec
        location = {
            "segment": self.number,
            "row": ends.rows,
            "side": ends.side_bytes,
            "side_bytes": len(packed.side),
        }
        for place, (group, frames) in enumerate(zip(spec.groups, packed.frames, strict=True)):
            start = ends.frames[place]
            location |= {f"frame_{place}": start, f"num_frames_{place}": len(frames)}
            packed.records[group.name] += start
            self._write(group.file_name, start * group.frame_bytes, frames.reshape(-1).data)
        for name, table in packed.tables.items():
            assert self._texts is not None, "the layout has text columns"
            codes = self._texts.codes(table).astype(np.uint32)
            packed.records[name] = codes[packed.records[name]]
        self._write(SIDE_NAME, ends.side_bytes, packed.side)
        self._write(ROWS_NAME, ends.rows * spec.stride, packed.records.view("u1").data)
        self.ends = Ends.after(location, len(packed.records), len(spec.groups))
        self.num_trajectories += 1
        return location

    def _write(self, name: str, start: int, block: memoryview | bytes) -> None:
        self._files[name].write_at(start, block)

    def sync(self) -> None:
        """Make what was appended survive a power loss.

        Raises:
            OSError: The disk refused.
        """
        for one in self._files.values():
            one.sync()
        if self._texts is not None:
            self._texts.sync()

    def close(self) -> None:
        """Close the files, until more is appended; twice is fine."""
        for one in self._files.values():
            one.close()
        if self._texts is not None:
            self._texts.close()


def link_segment(
    source: Path,
    target: Path,
    *,
    is_growing: bool,
    sync: bool,
    progress: Callable[[int], object] = lambda _: None,
) -> None:
    """Bring a segment into another folder: by link, or by copy while it may still grow.

    Args:
        source: Its folder.
        target: The folder to be made.
        is_growing: Whether it is still written to, so that it must be copied.
        sync: Whether it must survive a power loss, but for its name.
        progress: Called with the number of bytes copied since it was called last.

    Raises:
        MissingFileError: Its head is not there.
        CorruptFileError: Its head is something else.
        OSError: The disk refused; nothing is left behind.
    """
    head = SegmentHead.read(source)
    with files.building_folder(target) as folder:
        for name in (HEAD_NAME, *head.names()):
            bring = files.copy if is_growing else files.link_or_copy
            bring(source / name, folder / name, sync=sync, progress=progress)
        if sync:
            files.sync_folder(folder)
        files.rename(folder, target)  # whole, or not there
