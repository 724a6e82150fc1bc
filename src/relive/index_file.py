# SPDX-License-Identifier: Apache-2.0
"""`trajectory_index.json` and `metadata.json`: the index as RLinf and people read it.

Both are whole files, replaced by a rename. Everything of ours stands under the key "relive",
beside RLinf's own keys; docs/format.md describes every field.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import xxhash

from relive import files
from relive.errors import CorruptFileError, FormatVersionError, MissingFileError, StorageError
from relive.index import Numbering
from relive.record import Layout, Record, natural
from relive.record_json import LayoutTable, record_from_json, record_to_json
from relive.spec import ColumnSpec, Schema

__all__ = [
    "INDEX_NAME",
    "METADATA_NAME",
    "VERSION",
    "IndexContents",
    "numbering_from_json",
    "numbering_to_json",
    "read_index",
    "read_metadata",
    "write_index",
    "write_metadata",
]

INDEX_NAME = "trajectory_index.json"
METADATA_NAME = "metadata.json"
VERSION = 1
"""Version of every JSON file of ours."""

_RESTORE = "restore it from a copy"

_SLICE = 50  # records between two chances for other threads to run


@dataclass
class IndexContents:
    """What an index says."""

    records: dict[int, Record] = field(default_factory=dict)
    """By id, oldest first."""
    numbering: Numbering = field(default_factory=Numbering)
    """Ids of the next trajectory."""
    schema: Schema | None = None
    """What each trajectory has."""
    generation: int = 0
    """Rises each time the journal starts anew."""
    journal_bytes: int = 0
    """How much of the journal of this generation it covers."""


def write_index(
    path: Path,
    contents: IndexContents,
    *,
    sync: bool,
    between_slices: Callable[[], object] = lambda: None,
) -> str:
    """Write an index file, atomically.

    Args:
        path: The file.
        contents: What to write; not changed meanwhile.
        sync: Whether it must survive a power loss.
        between_slices: Called every few records, so that a long write lets others run.

    Returns:
        xxh3-64 of the file, 16 hex digits.

    Raises:
        OSError: The disk refused; the old file is as it was.
    """
    digest = xxhash.xxh3_64()

    def write(file: BinaryIO) -> None:
        for piece in _pieces(contents, between_slices):
            block = piece.encode("ascii")
            digest.update(block)
            file.write(block)

    files.write_atomic(path, write, sync=sync)
    return digest.hexdigest()


def _pieces(contents: IndexContents, between_slices: Callable[[], object]) -> Iterable[str]:
    layouts = LayoutTable()
    yield '{"trajectory_index": {'
    remaining = iter(contents.records.values())
    separator = ""
    while group := list(islice(remaining, _SLICE)):
        entries = [
            f'"{record.trajectory_id}": '
            + json.dumps(record_to_json(record, layouts.number_of(record.layout)))
            for record in group
        ]
        yield separator + ", ".join(entries)
        separator = ", "
        between_slices()
    yield '}, "trajectory_id_list": ['
    ids = iter(contents.records)
    separator = ""
    while numbers := list(islice(ids, 100 * _SLICE)):
        yield separator + ", ".join(map(str, numbers))
        separator = ", "
        between_slices()
    ours = {
        "version": VERSION,
        "generation": contents.generation,
        "journal_bytes": contents.journal_bytes,
        "numbering": numbering_to_json(contents.numbering),
        "schema": None if contents.schema is None else contents.schema.to_json(),
    }
    yield '], "relive": ' + json.dumps(ours)[:-1] + ', "layouts": ['
    to_come = iter(layouts.layouts.values())
    separator = ""
    while some := list(islice(to_come, _SLICE)):
        yield separator + ", ".join(json.dumps(layout.to_json()) for layout in some)
        separator = ", "
        between_slices()
    yield "]}}\n"


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
        layouts = [Layout.from_json(entry) for entry in ours["layouts"]]
        records = [record_from_json(entry, layouts) for entry in entries]
        contents = IndexContents(
            records={record.trajectory_id: record for record in records},
            numbering=numbering_from_json(ours["numbering"]),
            schema=None if ours["schema"] is None else Schema.from_json(ours["schema"]),
            generation=natural(ours["generation"]),
            journal_bytes=natural(ours["journal_bytes"]),
        )
        if contents.schema is not None:
            _check_schema(contents.schema, records)
    except FormatVersionError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptFileError(
            f"{str(path)!r} is damaged: {error}; {_RESTORE}", path=str(path)
        ) from error
    return contents


def _check_schema(schema: Schema, records: Iterable[Record]) -> None:
    """Refuse a schema that says something else of a column than the records do.

    A batch has room for what the schema says, before any file is looked at.
    """
    for layout in {id(record.layout): record.layout for record in records}.values():
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
