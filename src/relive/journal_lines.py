# SPDX-License-Identifier: Apache-2.0
"""Lines of the journal: one change as one line of JSON, sealed with its checksum."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from relive.errors import FormatVersionError
from relive.index_file import VERSION
from relive.read_file import ReadFile

__all__ = [
    "ADDITION",
    "JOURNAL_NAME",
    "JournalLines",
    "Line",
    "decode_line",
    "encode_addition",
    "encode_line",
    "open_lines",
]

JOURNAL_NAME = "trajectory_index.journal"

ADDITION = b'{"op":"add","record":'
"""How a line begins that says that a trajectory is stored; the text of the record follows."""

_SEAL = ',"xxh3":"'
_SEAL_BYTES = len(_SEAL) + 16 + len('"}')
_ADDITION_END = re.compile(
    rb',"is_synced":(true|false),"generation":(\d{1,18}),"xxh3":"[0-9a-f]{16}"\}\Z'
)
_LONGEST_END = 90


def encode_line(change: dict[str, Any]) -> bytes:
    r"""Return a change as a line of the journal.

    Example:
        >>> encode_line({"op": "close"})
        b'{"op":"close","xxh3":"f3a96f7b164e114e"}\n'
    """
    return _sealed(json.dumps(change, separators=(",", ":"))[:-1].encode("ascii"))


def _sealed(body: bytes) -> bytes:
    return body + f'{_SEAL}{xxhash.xxh3_64_hexdigest(body)}"}}\n'.encode("ascii")


def decode_line(line: bytes) -> dict[str, Any] | None:
    """Return the change that a line without its end says, or None when the line is damaged.

    Example:
        >>> decode_line(encode_line({"op": "close"})[:-1])
        {'op': 'close'}
    """
    if not _is_sealed(line):
        return None
    try:
        change = json.loads(line[:-_SEAL_BYTES] + b"}")
    except (ValueError, RecursionError):
        return None
    return change if isinstance(change, dict) else None


def encode_addition(record: bytes, *, is_synced: bool, generation: int) -> bytes:
    """Return the line that says that a trajectory is stored.

    Args:
        record: The JSON text of its record; it begins in the line after `ADDITION`.
        is_synced: Whether its rows survive a power loss already.
        generation: That of the journal.
    """
    synced = "true" if is_synced else "false"
    return _sealed(
        b'%s%s,"is_synced":%s,"generation":%d' % (ADDITION, record, synced.encode(), generation)
    )


def _is_sealed(line: bytes) -> bool:
    body, seal = line[:-_SEAL_BYTES], line[-_SEAL_BYTES:]
    return seal == f'{_SEAL}{xxhash.xxh3_64_hexdigest(body)}"}}'.encode("ascii")


@dataclass(frozen=True, slots=True)
class Line:
    """One valid line of a journal."""

    start: int
    """The byte where it begins."""
    change: dict[str, Any]
    """What it says."""
    text_bytes: int = 0
    """Of an addition of ours: how long the text of the record is, which begins after
    `ADDITION`."""


class JournalLines:
    """The lines of a journal file, from some byte on. One goes through them once."""

    def __init__(self, file: ReadFile | None, start: int = 0) -> None:
        """Read a journal; None has no lines.

        Args:
            file: The journal.
            start: Where a line begins.

        Raises:
            OSError: The disk refused.
            FormatVersionError: A later release wrote it.
        """
        self.file = file
        """The journal."""
        self._start = start
        self._block = bytes(file.read_from(start)) if file else b""
        self.valid_bytes = start
        """Up to the end of the last valid line, of those gone through."""
        self.num_bad = 0
        """Damaged lines before that."""
        first = next((line.change for line in self._lines()), {})
        self.valid_bytes, self.num_bad = start, 0
        self.has_begin = first.get("op") == "begin"
        """Whether the first line is there."""
        version = first.get("version") if self.has_begin else VERSION
        if file is not None and (not isinstance(version, int) or version > VERSION):
            raise FormatVersionError(
                f"{str(file.path)!r} has format version {version!r}, but this release of relive "
                f"reads up to {VERSION}; upgrade relive",
                path=str(file.path),
            )
        # each line names the generation, so that one survives damage to the first
        generation = first.get("generation")
        self.generation = generation if isinstance(generation, int) else -1
        """Which generation of the index it goes on from; -1 when there is no valid line."""

    def __iter__(self) -> Iterator[Line]:
        """Go through the valid lines."""
        return self._lines()

    def _lines(self) -> Iterator[Line]:
        block, position, num_bad = self._block, 0, 0
        while (stop := block.find(b"\n", position)) >= 0:
            line = _decode(block[position:stop], self._start + position)
            position = stop + 1
            if line is None:
                num_bad += 1
            else:
                self.valid_bytes, self.num_bad = self._start + position, num_bad
                yield line


def open_lines(path: Path) -> JournalLines:
    """Read a journal file; one that is not there has no lines.

    Raises:
        FormatVersionError: A later release wrote it.
    """
    try:
        return JournalLines(ReadFile(path))
    except FileNotFoundError:
        return JournalLines(None)


def _decode(line: bytes, start: int) -> Line | None:
    """Return what a line says, or None when it is damaged."""
    ours = _ADDITION_END.search(line, len(line) - _LONGEST_END) if _is_addition(line) else None
    if ours is not None and _is_sealed(line):
        try:
            record = json.loads(line[len(ADDITION) : ours.start()])
        except (ValueError, RecursionError):
            record = None  # other keys stand between
        if record is not None:
            change = {
                "op": "add",
                "record": record,
                "is_synced": ours[1] == b"true",
                "generation": int(ours[2]),
            }
            return Line(start, change, ours.start() - len(ADDITION))
    change_or_none = decode_line(line)
    return None if change_or_none is None else Line(start, change_or_none)


def _is_addition(line: bytes) -> bool:
    return line.startswith(ADDITION) and len(line) > len(ADDITION) + _LONGEST_END
