# SPDX-License-Identifier: Apache-2.0
"""Records as JSON: the entries of `trajectory_index.json` and of the journal.

An entry has RLinf's five fields, so that its tools read our index, and ours beside them. Fields
that we do not know are kept and written again. docs/format.md lists them all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from sys import intern
from typing import Any
from uuid import UUID

from relive.errors import CorruptFileError
from relive.record import (
    CHECKSUM_BYTES,
    NOTHING,
    Layout,
    Record,
    natural,
    quoted_weights_id,
    shared_location,
)

__all__ = ["LayoutTable", "record_from_json", "record_text", "record_to_json"]

Layouts = Sequence[Layout] | Mapping[int, Layout]
"""Layouts by number."""

MAX_ENVS = (1 << 32) - 1
"""The largest B of a record."""

MAX_LAYOUT_NUMBER = (1 << 32) - 1
"""The largest number of a layout."""

_OURS = frozenset(
    {
        "num_samples",
        "trajectory_id",
        "max_episode_length",
        "shape",
        "model_weights_id",
        "original_model_weights_id",
        "uuid",
        "first_row_id",
        "num_epochs",
        "format",
        "layout",
        "location",
        "checksums",
        "texts",
        "run_lengths",
        "version_range",
        "labels",
        "added_at",
    }
)


_PLAIN_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class LayoutTable(Mapping[int, Layout]):
    """Layouts by number, each distinct one once; a number keeps its layout."""

    def __init__(self) -> None:
        self.next_number = 0
        """That of the next layout."""
        self._by_number: dict[int, Layout] = {}
        self._numbers: dict[Layout, int] = {}
        self._by_identity: dict[int, int] = {}  # formats share equal layouts: no hash of them all

    def __getitem__(self, number: int) -> Layout:
        """Return the layout of a number.

        Raises:
            KeyError: None has it.
        """
        return self._by_number[number]

    def __iter__(self) -> Iterator[int]:
        """Go through the numbers, in the order in which they were given."""
        return iter(self._by_number)

    def __len__(self) -> int:
        """Return the number of layouts."""
        return len(self._by_number)

    def number_of(self, layout: Layout) -> int:
        """Return the layout's number, giving it the next one if it has none."""
        number = self._by_identity.get(id(layout))
        if number is None:
            number = self._numbers.get(layout)
        if number is None:
            number = self.next_number
            self.put(number, layout)
        return number

    def put(self, number: int, layout: Layout) -> None:
        """Give a layout a number; the last of several is the one that `number_of` returns.

        Raises:
            CorruptFileError: Another one has it.
        """
        if number in self._by_number:
            raise CorruptFileError(f"two layouts have the number {number}")
        if natural(number) > MAX_LAYOUT_NUMBER:
            raise CorruptFileError(
                f"a layout has the number {number}, but the largest is 2**32 - 1; restore the "
                "folder from a copy"
            )
        self.next_number = max(self.next_number, number + 1)
        self._by_number[number] = layout
        self._numbers[layout] = self._by_identity[id(layout)] = number

    def offer(self, number: int, layout: Layout) -> None:
        """Give a layout a number if both are free."""
        if (
            number <= MAX_LAYOUT_NUMBER
            and number not in self._by_number
            and layout not in self._numbers
        ):
            self.put(number, layout)

    def only(self, numbers: Collection[int]) -> LayoutTable:
        """Return a table of some of the layouts; the other numbers are not given again there."""
        table = LayoutTable()
        for number in sorted(numbers):
            table.put(number, self[number])
        table.next_number = self.next_number
        return table


def record_to_json(record: Record, layout_number: int) -> dict[str, Any]:
    """Return a record as JSON values, its layout by number."""
    entry: dict[str, Any] = {
        "num_samples": record.num_rows,
        "trajectory_id": record.trajectory_id,
        "max_episode_length": record.max_episode_length,
        "shape": list(record.shape),
        "model_weights_id": quoted_weights_id(record.model_weights_id),
        "uuid": record.uuid,
        "first_row_id": record.first_row_id,
        "num_epochs": record.num_epochs,
        "format": record.format,
        "layout": layout_number,
        "location": dict(record.location),
        "checksums": [
            record.checksums[n : n + CHECKSUM_BYTES].hex()
            for n in range(0, len(record.checksums), CHECKSUM_BYTES)
        ],
        "added_at": record.added_at,
    }
    if entry["model_weights_id"] != record.model_weights_id:
        entry["original_model_weights_id"] = record.model_weights_id
    if record.texts:
        entry["texts"] = {
            name: {"table": list(table), "per_env": per_env}
            for name, (table, per_env) in record.texts.items()
        }
    if record.run_lengths is not None:
        entry["run_lengths"] = list(record.run_lengths)
    if record.version_range is not None:
        entry["version_range"] = list(record.version_range)
    if record.labels:
        entry["labels"] = dict(record.labels)
    return {**record.others, **entry}


def record_text(record: Record, layout_number: int) -> bytes:
    """Return what `record_to_json` gives as JSON text, without spaces and in ASCII."""
    entry = record_to_json(record, layout_number)
    return json.dumps(entry, separators=(",", ":")).encode("ascii")


def record_from_json(entry: Any, layouts: Layouts) -> Record:
    """Read what `record_to_json` gave.

    Args:
        entry: The JSON values.
        layouts: The layouts of the same file, by number.

    Raises:
        CorruptFileError: It is something else, or contradicts itself.
    """
    try:
        record = _read(entry, layouts)
        _check(record, entry["num_samples"])
    except (LookupError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise CorruptFileError(
            f"an index entry is {entry!r:.300}, but has no valid form: {error}"
        ) from error
    return record


def _read(entry: Any, layouts: Layouts) -> Record:
    version_range = entry.get("version_range")
    run_lengths = entry.get("run_lengths")
    return Record(
        trajectory_id=natural(entry["trajectory_id"]),
        uuid=_uuid(entry["uuid"]),
        first_row_id=natural(entry["first_row_id"]),
        shape=tuple(natural(length) for length in entry["shape"]),
        num_epochs=natural(entry["num_epochs"]),
        max_episode_length=natural(entry["max_episode_length"]),
        model_weights_id=intern(
            _text(entry.get("original_model_weights_id", entry["model_weights_id"]))
        ),
        format=intern(_text(entry["format"])),
        layout=layouts[natural(entry["layout"])],
        location=shared_location(
            tuple((_text(key), natural(value)) for key, value in entry["location"].items())
        ),
        checksums=_checksums(entry["checksums"]),
        texts={
            _text(name): (tuple(_text(t) for t in _list(text["table"])), bool(text["per_env"]))
            for name, text in entry.get("texts", {}).items()
        }
        or NOTHING,
        run_lengths=None if run_lengths is None else tuple(natural(n) for n in run_lengths),
        version_range=None
        if version_range is None
        else (int(version_range[0]), int(version_range[1])),
        labels=_mapping(entry.get("labels", NOTHING)),
        added_at=float(entry.get("added_at", 0.0)),
        others={key: value for key, value in entry.items() if key not in _OURS} or NOTHING,
    )


def _check(record: Record, num_samples: Any) -> None:
    """Refuse a record that contradicts itself."""
    if len(record.shape) < 2 or not record.num_rows or not record.num_epochs:
        raise ValueError("T, B and E are at least 1")
    if record.num_steps % record.num_epochs:
        raise ValueError("E divides T")
    if record.num_rows != num_samples:
        raise ValueError("num_samples is T * B")
    natural(record.first_row_id + record.num_rows)
    if record.num_envs > MAX_ENVS or record.place >= 1 << 63:
        raise ValueError(f"B is at most {MAX_ENVS}, and a place fits int64")
    steps, num_envs = (record.num_steps, record.num_steps + record.num_epochs), record.shape[1:2]
    if any(c.shape[1:2] != num_envs or c.shape[0] not in steps for c in record.layout.columns):
        raise ValueError("columns are [T, B, ...] or [T + E, B, ...]")
    if len(record.checksums) not in (0, CHECKSUM_BYTES * len(record.layout.columns)):
        raise ValueError("each column has a checksum, or none has")
    lengths = record.run_lengths
    if lengths is not None and (sum(lengths) != record.num_rows or 0 in lengths):
        raise ValueError("the runs of all envs together have T * B rows")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.40} is no text")
    return value


def _uuid(value: Any) -> str:
    # UUID takes fifteen times as long
    return value if _PLAIN_UUID.fullmatch(_text(value)) else str(UUID(value))


def _checksums(digests: Any) -> bytes:
    checksums = bytes.fromhex("".join(_list(digests)))
    is_whole = len(checksums) == CHECKSUM_BYTES * len(digests)
    if not is_whole or any(len(digest) != 2 * CHECKSUM_BYTES for digest in digests):
        raise ValueError(f"{digests!r:.40} are no checksums")
    return checksums


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r:.40} is no list")
    return value


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{value!r:.40} is no object")
    return value
