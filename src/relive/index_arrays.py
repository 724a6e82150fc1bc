# SPDX-License-Identifier: Apache-2.0
"""`trajectory_index.bin`: the index as arrays, for opening it fast.

It says nothing that `trajectory_index.json` and the journal do not say, and names the checksums
of both as far as it goes with them. When anything in it does not fit, it is passed over and they
are read instead. docs/format.md describes its bytes.
"""

from __future__ import annotations

import json
import os
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import xxhash
from numpy.typing import NDArray

from relive import files
from relive.errors import ReplayError
from relive.index_file import IndexContents, check_schema
from relive.numbering import Numbering
from relive.read_file import ReadFile
from relive.record import Layout, natural
from relive.record_json import LayoutTable
from relive.record_lookup import RECORD_COLUMNS
from relive.record_table import RecordTable
from relive.record_texts import IN_MEMORY, at_journal
from relive.spec import Schema

__all__ = ["ARRAYS_NAME", "Covered", "IndexArrays", "read_arrays", "write_arrays"]

ARRAYS_NAME = "trajectory_index.bin"

_MAGIC = b"RELIVEIX"
_VERSION = 1
_HEAD = struct.Struct("<8s16sIIQQQ")  # magic, xxh3 of the rest, version, 0, three lengths
_SEALED_FROM = 24  # after magic and checksum
_ALIGN = 8
_SLICE_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class Covered:
    """How much of a file is covered: this many bytes from its beginning, of this checksum."""

    size_bytes: int
    """How many."""
    xxh3: str
    """Their xxh3-64, 16 hex digits."""


@dataclass
class IndexArrays:
    """What such a file says."""

    contents: IndexContents
    """The index, with its `journal_bytes` up to where the journal is covered."""
    journal_layouts: list[int] = field(default_factory=list)
    """Numbers of layouts that the journal has said."""
    unsynced: list[int] = field(default_factory=list)
    """Trajectories of which no line says that they are on the disk."""
    num_changes: int = 0
    """Changes that the index file lacks."""
    index: Covered | None = None
    """The index file beside it, the whole of it; None when there is none."""
    journal: Covered | None = None
    """The journal beside it; None in a checkpoint."""


def write_arrays(path: Path, arrays: IndexArrays, *, sync: bool = False) -> None:
    """Write such a file, atomically.

    Args:
        path: The file.
        arrays: What to write; each record has a text.
        sync: Whether it must survive a power loss.

    Raises:
        OSError: The disk refused; the old file is as it was.
    """
    contents, records = arrays.contents, arrays.contents.records
    header = {
        "generation": contents.generation,
        "journal_bytes": contents.journal_bytes,
        "numbering": contents.numbering.to_json(),
        "schema": None if contents.schema is None else contents.schema.to_json(),
        "num_changes": arrays.num_changes,
        "index": _covered_to_json(arrays.index),
        "journal": _covered_to_json(arrays.journal),
        "layouts": [[number, layout.to_json()] for number, layout in records.layouts.items()],
        "journal_layouts": arrays.journal_layouts,
    }
    text = json.dumps(header).encode("ascii")
    lengths = (len(text), len(records), len(arrays.unsynced))
    head = _HEAD.pack(_MAGIC, b"", _VERSION, 0, *lengths)
    parts: list[bytes | memoryview] = [head[_SEALED_FROM:]]
    blocks: list[bytes | memoryview] = [text]
    # not copied: a copy of megabytes would keep other threads waiting
    blocks += [records.column(name).view(np.uint8).data for name in RECORD_COLUMNS]
    for block in blocks:
        parts += [block, b"\0" * (-len(block) % _ALIGN)]
    parts.append(np.array(arrays.unsynced, "<i8").tobytes())

    def fill(file: BinaryIO) -> None:
        digest = xxhash.xxh3_64()
        file.write(head[:_SEALED_FROM])
        for part in parts:
            for start in range(0, len(part), _SLICE_BYTES):  # other threads run in between
                some = part[start : start + _SLICE_BYTES]
                digest.update(some)
                file.write(some)
        file.seek(len(_MAGIC))
        file.write(digest.hexdigest().encode("ascii"))
        file.seek(0, os.SEEK_END)

    files.write_atomic(path, fill, sync=sync)


def _covered_to_json(covered: Covered | None) -> dict[str, Any] | None:
    return None if covered is None else {"size_bytes": covered.size_bytes, "xxh3": covered.xxh3}


def read_arrays(path: Path, index: Path, journal: Path | None) -> IndexArrays | None:
    """Read such a file if it is whole and fits the files that it goes with.

    Args:
        path: The file.
        index: The index file beside it.
        journal: The journal beside it; None for a checkpoint.

    Returns:
        What it says; None when anything is amiss, the disk included.
    """
    try:
        block = files.read_bytes(path)
        header, columns, unsynced = _parts_of(block)
        index_file = _verified(index, header["index"], is_whole=True)
        journal_file = None if journal is None else _verified(journal, header["journal"])
        if (journal is None) != (header["journal"] is None):
            return None
        return _checked(header, columns, unsynced, index_file, journal_file)
    except (OSError, EOFError, ReplayError, RecursionError):
        return None
    except (LookupError, TypeError, AttributeError, ValueError, OverflowError, struct.error):
        return None


def _parts_of(block: bytes) -> tuple[Any, dict[str, NDArray[Any]], NDArray[np.int64]]:
    """Return header, columns and ids of the unsynced, or raise what fits."""
    magic, seal, version, zero, num_header, num, num_unsynced = _HEAD.unpack_from(block)
    if (magic, version, zero) != (_MAGIC, _VERSION, 0):
        raise ValueError("another kind or version")
    if seal != xxhash.xxh3_64_hexdigest(memoryview(block)[_SEALED_FROM:]).encode("ascii"):
        raise ValueError("it is damaged")
    header = json.loads(block[_HEAD.size : _HEAD.size + num_header])
    start = _HEAD.size + num_header + -num_header % _ALIGN
    columns: dict[str, NDArray[Any]] = {}
    for name, dtype in RECORD_COLUMNS.items():
        columns[name] = np.frombuffer(block, dtype, num, start)
        start += columns[name].nbytes + -columns[name].nbytes % _ALIGN
    unsynced: NDArray[np.int64] = np.frombuffer(block[start:], "<i8")
    if len(unsynced) != num_unsynced:
        raise ValueError("it has another length than it says")
    return header, columns, unsynced


def _verified(path: Path, covered: Any, *, is_whole: bool = False) -> ReadFile | None:
    """Return a file, opened, if it is as it was; None when it was not there, and is not."""
    if covered is None:
        if files.exists(path):
            raise ValueError("a file came since")
        return None
    file, size = ReadFile(path), natural(covered["size_bytes"])
    if is_whole and file.size_bytes != size:
        raise ValueError("it has another size")
    if file.digest(size).hexdigest() != covered["xxh3"]:
        raise ValueError("it says something else")
    return file


def _checked(
    header: Any,
    columns: dict[str, NDArray[Any]],
    unsynced: NDArray[Any],
    index: ReadFile | None,
    journal: ReadFile | None,
) -> IndexArrays:
    """Put together what a file says, or raise what fits when it contradicts itself."""
    layouts = LayoutTable()
    for number, entry in header["layouts"]:
        layouts.put(number, Layout.from_json(entry))
    _check_columns(columns, layouts, header)
    contents = IndexContents(
        records=RecordTable.of(columns, layouts, index=index, journal=journal),
        numbering=Numbering.from_json(header["numbering"]),
        schema=None if header["schema"] is None else Schema.from_json(header["schema"]),
        generation=natural(header["generation"]),
        journal_bytes=natural(header["journal_bytes"]),
    )
    if journal is not None and contents.journal_bytes != header["journal"]["size_bytes"]:
        raise ValueError("two sizes of the journal")
    check_schema(contents)
    spoken = [natural(number) for number in header["journal_layouts"]]
    if not set(spoken) <= layouts.keys():
        raise ValueError("a layout is lacking")
    is_known = np.isin(unsynced, columns["trajectory_id"])
    return IndexArrays(
        contents,
        spoken,
        unsynced[is_known].astype(np.int64).tolist(),
        natural(header["num_changes"]),
        None if index is None else Covered(**header["index"]),
    )


def _check_columns(columns: dict[str, NDArray[Any]], layouts: LayoutTable, header: Any) -> None:
    """Refuse numbers that no record has: whoever reads the arrays does not check them again."""
    if not len(columns["trajectory_id"]):
        return
    ids, firsts, counts = (columns[n] for n in ("trajectory_id", "first_row_id", "num_rows"))
    num_envs, starts, sizes = (columns[n] for n in ("num_envs", "text_start", "text_bytes"))
    largest = np.iinfo(np.int64).max
    limits = [at and at["size_bytes"] for at in (header["index"], header["journal"])]
    in_index, in_journal = starts >= 0, starts < IN_MEMORY
    stops = np.where(in_index, starts, at_journal(0) - starts) + sizes.astype(np.int64)
    fits = (
        (ids >= 0).all()
        and (firsts >= 0).all()
        and (counts >= 1).all()
        and (firsts <= largest - counts).all()
        and float(counts.astype(np.float64).sum()) < float(1 << 62)
        and (num_envs >= 1).all()
        and not (counts % num_envs).any()
        and (columns["place"] >= -1).all()
        and np.isin(columns["layout"], list(layouts)).all()
        and (in_index | in_journal).all()
        and (starts < 1 << 62).all()
        and (starts > -(1 << 62)).all()
        and (not in_index.any() or (stops[in_index] <= limits[0]).all())
        and (not in_journal.any() or (stops[in_journal] <= limits[1]).all())
        and ((ids[1:] > ids[:-1]).all() or len(np.unique(ids)) == len(ids))
    )
    if not fits:
        raise ValueError("it contradicts itself")
