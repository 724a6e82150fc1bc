# SPDX-License-Identifier: Apache-2.0
"""`trajectory_index.json` and `metadata.json`: the index as RLinf and people read it.

Both are whole files, replaced by a rename. Everything of ours stands under the key "relive",
beside RLinf's own keys; docs/format.md describes every field.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import xxhash

from relive import files
from relive.errors import CorruptFileError, FormatVersionError, MissingFileError, StorageError
from relive.index import Numbering
from relive.read_file import ReadFile
from relive.record import Layout, Record, natural
from relive.record_json import record_from_json, record_text
from relive.record_table import RecordTable
from relive.spec import ColumnSpec, Schema

__all__ = [
    "INDEX_NAME",
    "METADATA_NAME",
    "VERSION",
    "IndexContents",
    "IndexWriter",
    "check_schema",
    "numbering_from_json",
    "numbering_to_json",
    "read_index",
    "read_metadata",
    "write_metadata",
]

INDEX_NAME = "trajectory_index.json"
METADATA_NAME = "metadata.json"
VERSION = 1
"""Version of every JSON file of ours."""

_BETWEEN = b", "
_RESTORE = "restore it from a copy"

_SLICE = 50  # records or layouts encoded between two chances for other threads to run
_COPIED = 250  # and records whose text is there already


@dataclass
class IndexContents:
    """What an index says."""

    records: RecordTable = field(default_factory=RecordTable)
    """By id, oldest first."""
    numbering: Numbering = field(default_factory=Numbering)
    """Ids of the next trajectory."""
    schema: Schema | None = None
    """What each trajectory has."""
    generation: int = 0
    """Rises each time the journal starts anew."""
    journal_bytes: int = 0
    """How much of the journal of this generation it covers."""


class IndexWriter:
    """Writes one index file, and knows afterwards where in it the text of each record lies."""

    def __init__(
        self,
        contents: IndexContents,
        added: Iterable[Record] = (),
        *,
        between_slices: Callable[[], object] = lambda: None,
    ) -> None:
        """Choose what to write.

        Args:
            contents: The index; not changed meanwhile by others.
            added: Records that come after those of `contents` and are put into it one by one as
                they are written.
            between_slices: Called every few records, so that a long write lets others run.
        """
        self._contents = contents
        self._added = added
        self._between_slices = between_slices
        self._digest = xxhash.xxh3_64()
        self.size_bytes = 0
        """Of the file, as far as it is written."""
        self._starts = array("q")  # where the text of each record begins
        self._sizes = array("I")
        self.file: ReadFile | None = None
        """The file, once all is written; it may have its name only after that."""

    @property
    def xxh3(self) -> str:
        """xxh3-64 of the file, 16 hex digits."""
        return self._digest.hexdigest()

    def write(self, path: Path, *, sync: bool) -> None:
        """Write the file, atomically.

        Args:
            path: The file.
            sync: Whether it must survive a power loss.

        Raises:
            OSError: The disk refused; the old file is as it was, or with `sync` the new file is
                there but its name may not survive a power loss.
        """
        files.write_atomic(path, self._fill, sync=sync)

    def rebase(self) -> None:
        """Let all records of the contents be looked up in the file just written."""
        assert self.file is not None, "it is written first"
        starts, sizes = np.array(self._starts, np.int64), np.array(self._sizes, np.uint32)
        self._contents.records.rebase(self.file, starts, sizes)

    def _fill(self, file: BinaryIO) -> None:
        for block in self._blocks():
            self._digest.update(block)
            file.write(block)
            self.size_bytes += len(block)
        file.flush()
        self.file = ReadFile(Path(file.name))

    def _blocks(self) -> Iterator[bytes]:
        contents, records = self._contents, self._contents.records
        yield b'{"trajectory_index": {'
        yield from self._entries(records)
        yield b'}, "trajectory_id_list": ['
        ids = iter(records)
        separator = ""
        while numbers := list(islice(ids, 100 * _SLICE)):
            yield (separator + ", ".join(map(str, numbers))).encode("ascii")
            separator = ", "
            self._between_slices()
        ours = {
            "version": VERSION,
            "generation": contents.generation,
            "journal_bytes": contents.journal_bytes,
            "numbering": numbering_to_json(contents.numbering),
            "schema": None if contents.schema is None else contents.schema.to_json(),
        }
        yield ('], "relive": ' + json.dumps(ours)[:-1] + ', "layouts": [').encode("ascii")
        yield from self._layouts(records.layout_list())
        yield b"]}}\n"

    def _entries(self, records: RecordTable) -> Iterator[bytes]:
        """Yield the entries in blocks; texts that are there are copied as they are."""
        ids = records.column("trajectory_id")
        num_at_once = _SLICE if records.num_in_memory else _COPIED
        for first in range(0, len(ids), num_at_once):
            some = ids[first : first + num_at_once].tolist()
            yield self._block(some, records.texts(first, first + num_at_once))
            self._between_slices()
        for record in self._added:
            number = records.layouts.number_of(record.layout)
            text = record_text(record, number)
            block = self._block([record.trajectory_id], [text])
            records.note(record, number, self._starts[-1], len(text))
            yield block

    def _block(self, ids: Sequence[int], texts: Sequence[bytes]) -> bytes:
        """Return entries as they follow those before, and note where their texts will be."""
        before = _BETWEEN if self._starts else b""
        keys = [b'"%d": ' % one for one in ids]
        place = self.size_bytes + len(before)
        for key, text in zip(keys, texts, strict=True):
            self._starts.append(place + len(key))
            self._sizes.append(len(text))
            place += len(key) + len(text) + len(_BETWEEN)
        return before + _BETWEEN.join(map(bytes.__add__, keys, texts))

    def _layouts(self, layouts: Sequence[Layout | None]) -> Iterator[bytes]:
        for first in range(0, len(layouts), _SLICE):
            some = (
                "null" if layout is None else json.dumps(layout.to_json())
                for layout in layouts[first : first + _SLICE]
            )
            yield ((", " if first else "") + ", ".join(some)).encode("ascii")
            self._between_slices()


def read_index(path: Path) -> tuple[IndexContents | None, list[dict[str, Any]], str]:
    """Read an index file.

    Returns:
        What it says when it is ours, else None; RLinf's entries, oldest first; and xxh3-64 of
        the file.

    Raises:
        MissingFileError: It is not there.
        StorageError: It cannot be read.
        CorruptFileError: It is cut, damaged, or something else.
        FormatVersionError: A later release wrote it.
    """
    block, whole = _load_json(path)
    entries = whole.get("trajectory_index")
    ids = whole.get("trajectory_id_list")
    if not isinstance(entries, dict) or not isinstance(ids, list):
        raise CorruptFileError(
            f"{str(path)!r} lacks trajectory_index or trajectory_id_list, but an index has both; "
            "give the folder of a store or a checkpoint",
            path=str(path),
        )
    ordered: list[dict[str, Any]] = []
    for trajectory_id in ids:
        entry = entries.get(str(trajectory_id))
        if not isinstance(entry, dict) or entry.get("trajectory_id") != trajectory_id:
            raise CorruptFileError(
                f"{str(path)!r} lists trajectory {trajectory_id!r:.40}, but has no entry for it; "
                f"{_RESTORE}",
                path=str(path),
            )
        ordered.append(entry)
    if len(set(map(str, ids))) != len(ids):
        raise CorruptFileError(
            f"{str(path)!r} lists a trajectory twice, but each stands there once; {_RESTORE}",
            path=str(path),
        )
    digest = xxhash.xxh3_64_hexdigest(block)
    if "relive" not in whole:
        return None, ordered, digest
    return _our_contents(path, whole["relive"], ordered), ordered, digest


def _our_contents(path: Path, ours: Any, entries: list[dict[str, Any]]) -> IndexContents:
    _check_version(path, ours)
    try:
        records = RecordTable()
        for number, entry in enumerate(ours["layouts"]):
            if entry is not None:  # nothing has this number any more
                records.layouts.put(number, Layout.from_json(entry))
        for entry in entries:
            record = record_from_json(entry, records.layouts.layouts)
            records[record.trajectory_id] = record
        contents = IndexContents(
            records=records,
            numbering=numbering_from_json(ours["numbering"]),
            schema=None if ours["schema"] is None else Schema.from_json(ours["schema"]),
            generation=natural(ours["generation"]),
            journal_bytes=natural(ours["journal_bytes"]),
        )
        if contents.schema is not None:
            check_schema(contents.schema, records.layouts.layouts.values())
    except FormatVersionError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptFileError(
            f"{str(path)!r} is damaged: {error}; {_RESTORE}", path=str(path)
        ) from error
    return contents


def check_schema(schema: Schema, layouts: Iterable[Layout]) -> None:
    """Refuse a schema that says something else of a column than the layouts do.

    A batch has room for what the schema says, before any file is looked at.

    Raises:
        ValueError: It does.
    """
    for layout in layouts:
        for column in layout.columns:
            spec = schema.columns.get(column.name)
            if spec is not None and spec != ColumnSpec(column.dtype, column.row_shape):
                raise ValueError(
                    f"the schema has {spec} as {column.name!r}, but a trajectory has "
                    f"{column.dtype} {list(column.row_shape)}"
                )


def write_metadata(path: Path, metadata: Mapping[str, Any], *, sync: bool) -> None:
    """Write a metadata file, atomically.

    Raises:
        OSError: The disk refused; the old file is as it was.
    """
    text = json.dumps(metadata, indent=1) + "\n"
    files.write_atomic(path, lambda file: file.write(text.encode("ascii")), sync=sync)


def read_metadata(path: Path) -> dict[str, Any]:
    """Read a metadata file, ours or RLinf's.

    Raises:
        MissingFileError: It is not there.
        StorageError: It cannot be read.
        CorruptFileError: It is cut, damaged, or something else.
        FormatVersionError: A later release wrote it.
    """
    _, whole = _load_json(path)
    if not isinstance(whole.get("trajectory_format"), str) or not all(
        isinstance(whole.get(name), int) for name in ("size", "total_samples", "trajectory_counter")
    ):
        raise CorruptFileError(
            f"{str(path)!r} lacks trajectory_format, size, total_samples or trajectory_counter, "
            "but metadata has them all; give the folder of a store or a checkpoint",
            path=str(path),
        )
    if "relive" in whole:
        _check_version(path, whole["relive"])
    return whole


def _load_json(path: Path) -> tuple[bytes, dict[str, Any]]:
    try:
        block = files.read_bytes(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise MissingFileError(
            f"{str(path)!r} is not there, but a checkpoint or store has {INDEX_NAME} and "
            f"{METADATA_NAME}; check the path",
            path=str(path),
        ) from error
    except OSError as error:
        raise StorageError(
            f"{str(path)!r} cannot be read: {error}; check its permissions and the disk",
            path=str(path),
            errno=error.errno,
        ) from error
    try:
        whole = json.loads(block)
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(
            f"{str(path)!r} is cut or damaged: {error}; {_RESTORE}", path=str(path)
        ) from error
    if not isinstance(whole, dict):
        raise CorruptFileError(
            f"{str(path)!r} holds a JSON {type(whole).__name__}, but must hold an object; "
            f"{_RESTORE}",
            path=str(path),
        )
    return block, whole


def _check_version(path: Path, ours: Any) -> None:
    version = ours.get("version") if isinstance(ours, dict) else None
    if not isinstance(version, int) or version < 1:
        raise CorruptFileError(
            f"{str(path)!r} has version {version!r:.40}, but versions count from 1; {_RESTORE}",
            path=str(path),
        )
    if version > VERSION:
        raise FormatVersionError(
            f"{str(path)!r} has format version {version}, but this release of relive reads up to "
            f"{VERSION}; upgrade relive",
            path=str(path),
        )


def numbering_to_json(numbering: Numbering) -> dict[str, int]:
    """Return a numbering as JSON values."""
    return {
        "next_trajectory_id": numbering.next_trajectory_id,
        "stride": numbering.stride,
        "next_row_id": numbering.next_row_id,
    }


def numbering_from_json(entry: Any) -> Numbering:
    """Read what `numbering_to_json` gave.

    Raises:
        CorruptFileError: It is something else.
    """
    try:
        names = ("next_trajectory_id", "stride", "next_row_id")
        numbering = Numbering(*(natural(entry[name]) for name in names))
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptFileError(f"a numbering is {entry!r:.200}, but has no valid form") from error
    if not numbering.stride:
        raise CorruptFileError(f"a numbering is {entry!r:.200}, but its stride is at least 1")
    return numbering
