# SPDX-License-Identifier: Apache-2.0
"""Lines of the journal: one change as one line of JSON, sealed with its checksum."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from relive import files
from relive.errors import FormatVersionError
from relive.index_file import VERSION

__all__ = ["JOURNAL_NAME", "JournalLines", "decode_line", "encode_line", "read_lines"]

JOURNAL_NAME = "trajectory_index.journal"

_SEAL = ',"xxh3":"'
_SEAL_BYTES = len(_SEAL) + 16 + len('"}')


def encode_line(change: dict[str, Any]) -> bytes:
    r"""Return a change as a line of the journal.

    Example:
        >>> encode_line({"op": "close"})
        b'{"op":"close","xxh3":"f3a96f7b164e114e"}\n'
    """
    body = json.dumps(change, separators=(",", ":"))[:-1].encode("ascii")
    return body + f'{_SEAL}{xxhash.xxh3_64_hexdigest(body)}"}}\n'.encode("ascii")


def decode_line(line: bytes) -> dict[str, Any] | None:
    """Return the change that a line without its end says, or None when the line is damaged.

    Example:
        >>> decode_line(encode_line({"op": "close"})[:-1])
        {'op': 'close'}
    """
    body, seal = line[:-_SEAL_BYTES], line[-_SEAL_BYTES:]
    if seal != f'{_SEAL}{xxhash.xxh3_64_hexdigest(body)}"}}'.encode("ascii"):
        return None
    try:
        change = json.loads(body + b"}")
    except (ValueError, RecursionError):
        return None
    return change if isinstance(change, dict) else None


@dataclass
class JournalLines:
    """What a journal file says."""

    changes: list[tuple[int, dict[str, Any]]]
    """The valid lines, each with the byte where it begins."""
    generation: int
    """Which generation of the index it goes on from; -1 when there is no valid line."""
    has_begin: bool
    """Whether the first line is there."""
    valid_bytes: int
    """Up to the end of the last valid line."""
    num_bad: int
    """Damaged lines before the last valid one."""


def read_lines(path: Path) -> JournalLines:
    """Read a journal file; one that is not there has no lines.

    Raises:
        FormatVersionError: A later release wrote it.
    """
    try:
        block = files.read_bytes(path)
    except FileNotFoundError:
        block = b""
    changes: list[tuple[int, dict[str, Any]]] = []
    position = valid_bytes = num_bad = pending_bad = 0
    while (stop := block.find(b"\n", position)) >= 0:
        change = decode_line(block[position:stop])
        if change is None:
            pending_bad += 1
        else:
            changes.append((position, change))
            valid_bytes, num_bad = stop + 1, pending_bad
        position = stop + 1
    first = changes[0][1] if changes else {}
    has_begin = first.get("op") == "begin"
    version = first.get("version") if has_begin else VERSION
    if not isinstance(version, int) or version > VERSION:
        raise FormatVersionError(
            f"{str(path)!r} has format version {version!r}, but this release of relive reads up to "
            f"{VERSION}; upgrade relive",
            path=str(path),
        )
    # each line names the generation, so that one survives damage to the first
    generation = first.get("generation")
    if not isinstance(generation, int):
        generation = -1
    return JournalLines(changes, generation, has_begin, valid_bytes, num_bad)
