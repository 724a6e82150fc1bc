# SPDX-License-Identifier: Apache-2.0
"""`trajectory_index.json` and `metadata.json`: the index as RLinf and people read it.

Both are whole files, replaced by a rename. Everything of ours stands under the key "relive",
beside RLinf's own keys; docs/format.md describes every field.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from relive import files
from relive.errors import CorruptFileError, FormatVersionError, MissingFileError, StorageError
from relive.numbering import Numbering
from relive.read_file import ReadFile
from relive.record import Layout, natural
from relive.record_json import record_from_json
from relive.record_table import RecordTable
from relive.spec import ColumnSpec, Schema

__all__ = [
    "BETWEEN",
    "HEAD",
    "INDEX_NAME",
    "LIST",
    "METADATA_NAME",
    "OURS",
    "VERSION",
    "FoundIndex",
    "IndexContents",
    "check_schema",
    "read_index",
    "read_metadata",
    "write_metadata",
]

INDEX_NAME = "trajectory_index.json"
METADATA_NAME = "metadata.json"
VERSION = 1
"""Version of every JSON file of ours."""

HEAD = b'{"trajectory_index": {'
LIST = b'}, "trajectory_id_list": ['
OURS = b'], "relive": '
BETWEEN = b", "
"""How our own index files begin, go on, and separate what they list."""

_KEY = re.compile(r'"(\d{1,19})": ')
_RESTORE = "restore it from a copy"


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


@dataclass(frozen=True)
class FoundIndex:
    """What an index file says."""

    contents: IndexContents | None
    """When it is ours."""
    foreign: list[dict[str, Any]]
    """RLinf's entries, oldest first; empty when it is ours."""
    xxh3: str
    """xxh3-64 of the file, 16 hex digits."""
    size_bytes: int
    """Of the file."""


def read_index(path: Path) -> FoundIndex:
    """Read an index file.

    Raises:
        MissingFileError: It is not there.
        StorageError: It cannot be read.
        CorruptFileError: It is cut, damaged, or something else.
        FormatVersionError: A later release wrote it.
    """
    with _naming(path):
        file = ReadFile(path)
        try:
            block = bytes(file.read_from(0))
            return _read_index(path, file, block)
        except BaseException:  # Ctrl+C among others: no descriptor stays open
            file.close()
            raise


def _read_index(path: Path, file: ReadFile, block: bytes) -> FoundIndex:
    digest, size = xxhash.xxh3_64_hexdigest(block), len(block)
    scanned = _scan(path, file, block)
    if scanned is not None:
        return FoundIndex(scanned, [], digest, size)
    whole = _load_json(path, block)
    file.close()
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
    if "relive" not in whole:
        return FoundIndex(None, ordered, digest, size)
    with _naming_damage(path):
        contents = _our_contents(path, whole["relive"])
        for entry in ordered:
            record = record_from_json(entry, contents.records.layouts)
            contents.records[record.trajectory_id] = record
        check_schema(contents)
    return FoundIndex(contents, [], digest, size)


def _scan(path: Path, file: ReadFile, block: bytes) -> IndexContents | None:
    """Read an index as `IndexWriter` writes it, entry after entry, noting where each lies.

    Anything else is read as a whole: that takes more memory, and says what is amiss.
    """
    end = block.rfind(LIST)
    if end < len(HEAD) - 1 or not block.startswith(HEAD) or not block.isascii():
        return None
    try:
        rest = json.loads(b"{" + block[end + len(b"}, ") :])
        contents = _our_contents(path, rest["relive"])
        records, text = contents.records, block.decode("ascii")
        records.read_index_from(file)
        place, decoder = len(HEAD), json.JSONDecoder()
        while place < end:
            key = _KEY.match(text, place)
            if key is None:
                return None
            entry, stop = decoder.raw_decode(text, key.end())
            record = record_from_json(entry, records.layouts)
            if record.trajectory_id != int(key[1]) or record.trajectory_id in records:
                return None
            records.note(record, entry["layout"], key.end(), stop - key.end())
            place = stop if stop == end else stop + len(BETWEEN)
            if stop != end and block[stop:place] != BETWEEN:
                return None
        check_schema(contents)
    except FormatVersionError:
        raise
    except (CorruptFileError, LookupError, TypeError, ValueError, RecursionError):
        return None
    return contents if rest["trajectory_id_list"] == list(records) else None


def _our_contents(path: Path, ours: Any) -> IndexContents:
    """Return what an index of ours says, but for its records."""
    _check_version(path, ours)
    records = RecordTable()
    for number, entry in enumerate(ours["layouts"]):
        if entry is not None:  # nothing has this number any more
            records.layouts.put(number, Layout.from_json(entry))
    return IndexContents(
        records=records,
        numbering=Numbering.from_json(ours["numbering"]),
        schema=None if ours["schema"] is None else Schema.from_json(ours["schema"]),
        generation=natural(ours["generation"]),
        journal_bytes=natural(ours["journal_bytes"]),
    )


@contextmanager
def _naming_damage(path: Path) -> Iterator[None]:
    """Name the file in what a block finds wrong with it.

    Raises:
        CorruptFileError: Something is.
        FormatVersionError: A later release wrote it.
    """
    try:
        yield
    except FormatVersionError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptFileError(
            f"{str(path)!r} is damaged: {error}; {_RESTORE}", path=str(path)
        ) from error


def check_schema(contents: IndexContents) -> None:
    """Refuse a schema that says something else of a column than the layouts of records do.

    A batch has room for what the schema says, before any file is looked at.

    Raises:
        ValueError: It does.
    """
    schema, records = contents.schema, contents.records
    if schema is None:
        return
    for number in records.used_layouts():
        for column in records.layouts[number].columns:
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
    with _naming(path):
        block = files.read_bytes(path)
    whole = _load_json(path, block)
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


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Name the file in what the disk refuses to a block.

    Raises:
        MissingFileError: In place of `FileNotFoundError`.
        StorageError: In place of any other `OSError`.
    """
    try:
        yield
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


def _load_json(path: Path, block: bytes) -> dict[str, Any]:
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
    return whole


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
