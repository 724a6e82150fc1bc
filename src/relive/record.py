# SPDX-License-Identifier: Apache-2.0
"""What the index knows of one trajectory, version 1.

A record says everything about a stored trajectory but its rows: what it is, which row ids it
has, where its runs lie, and where a format put its bytes. `record_json` writes it as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import xxhash

from relive.dtypes import storage_dtype
from relive.errors import CorruptFileError, FormatVersionError
from relive.places import PLACE_BITS

if TYPE_CHECKING:
    pass

__all__ = [
    "CHECKSUM_BYTES",
    "NOTHING",
    "ColumnLayout",
    "Layout",
    "Record",
    "interned",
    "natural",
    "quoted_weights_id",
    "shared_location",
]

_OURS = frozenset({"name", "dtype", "shape", "offset", "codec", "variable_length"})
_LONGEST_QUOTED = 120  # with the id and the ending well below the 255 bytes a file name may have


@dataclass(frozen=True, slots=True)
class ColumnLayout:
    """How one column of one trajectory is stored."""

    name: str
    """Full name."""
    dtype: str
    """Element type, or `relive.dtypes.TEXT` for codes."""
    shape: tuple[int, ...]
    """`[T, B, ...]` or `[T + E, B, ...]`."""
    offset: int | None = None
    """Where its bytes begin, contiguous, counted from the record's `location["data_start"]`, or
    from the start of the file; None when rows cannot be read in place."""
    codec: str | None = None
    """Reserved for compression; None means plain bytes."""
    variable_length: bool = False
    """Reserved for ragged columns."""
    others: tuple[tuple[str, str], ...] = ()
    """Fields of later versions, kept as they are: names, and values as JSON text."""

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one row."""
        return self.shape[2:]

    @property
    def num_rows(self) -> int:
        """Rows of the column, the extra ones of each epoch included."""
        return self.shape[0] * self.shape[1]

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return storage_dtype(self.dtype).itemsize * prod(self.row_shape)

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole column."""
        return self.num_rows * self.row_bytes


@dataclass(frozen=True, slots=True)
class Layout:
    """How the columns of a trajectory are stored; equal layouts are shared between records."""

    columns: tuple[ColumnLayout, ...]
    """In the order of the checksums of a record."""

    @property
    def size_bytes(self) -> int:
        """Bytes of all columns."""
        return sum(column.size_bytes for column in self.columns)

    def __getitem__(self, name: str) -> ColumnLayout:
        """Return the layout of one column.

        Raises:
            KeyError: There is none of this name.
        """
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        """Tell whether there is a column of this name."""
        return any(column.name == name for column in self.columns)

    def to_json(self) -> list[dict[str, Any]]:
        """Return the layout as JSON values."""
        return [
            {"name": column.name, "dtype": column.dtype, "shape": list(column.shape)}
            | ({} if column.offset is None else {"offset": column.offset})
            | ({} if column.codec is None else {"codec": column.codec})
            | ({"variable_length": True} if column.variable_length else {})
            | {name: json.loads(value) for name, value in column.others}
            for column in self.columns
        ]

    @classmethod
    def from_json(cls, entries: Any) -> Layout:
        """Read what `to_json` gave.

        Raises:
            CorruptFileError: It is something else.
            FormatVersionError: A column is stored in a way that only a later release reads.
        """
        try:
            layout = cls(tuple(_column_from_json(entry) for entry in entries))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise CorruptFileError(
                f"a layout is {entries!r:.200}, but has no valid form"
            ) from error
        for column in layout.columns:
            if column.codec is not None or column.variable_length:
                raise FormatVersionError(
                    f"column {column.name!r} is compressed or of variable length, but this release "
                    "of relive reads neither; upgrade relive"
                )
        return interned(layout)


@lru_cache(maxsize=4096)
def shared_location(items: tuple[tuple[str, int], ...]) -> Mapping[str, int]:
    """Return one and the same `Record.location` for equal items, so that records can share it."""
    return dict(items)


@lru_cache(maxsize=256)
def interned(layout: Layout) -> Layout:
    """Return one and the same object for equal layouts, so that records can share it.

    Only the 256 used last are remembered; more kinds of trajectories cost memory, no more.
    """
    return layout


def _column_from_json(entry: Any) -> ColumnLayout:
    dtype = str(entry["dtype"])
    storage_dtype(dtype)  # which refuses what is none
    return ColumnLayout(
        name=str(entry["name"]),
        dtype=dtype,
        shape=tuple(natural(length) for length in entry["shape"]),
        offset=None if entry.get("offset") is None else natural(entry["offset"]),
        codec=None if entry.get("codec") is None else str(entry["codec"]),
        variable_length=bool(entry.get("variable_length", False)),
        others=tuple((name, json.dumps(entry[name])) for name in entry if name not in _OURS),
    )


def natural(number: Any) -> int:
    """Return a number read from a file if it is a natural number below 2**63.

    Raises:
        ValueError: It is not.
    """
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 1 << 63:
        raise ValueError(f"{number!r:.40} is no natural number below 2**63")
    return number


CHECKSUM_BYTES = 8
"""Bytes of the checksum of one column."""

NOTHING: Mapping[str, Any] = {}
"""An empty mapping, one for all records: each of its own would take 64 bytes."""


@dataclass(frozen=True, slots=True)
class Record:
    """Everything the index knows about one trajectory, in less than 1 kB."""

    trajectory_id: int
    """Rises with each trajectory added; never reused in a store."""
    uuid: str
    """Names this trajectory in every store and checkpoint it is copied to."""
    first_row_id: int
    """Row id of its row 0; the others follow."""
    shape: tuple[int, ...]
    """Shape of the tensor that told T and B."""
    num_epochs: int
    """E."""
    max_episode_length: int
    """As in `Trajectory`."""
    model_weights_id: str
    """As in `Trajectory`, unquoted."""
    format: str
    """Name of the format that stores it; "" while it is only in memory."""
    layout: Layout
    """How its columns are stored."""
    location: Mapping[str, int] = field(default_factory=lambda: NOTHING)
    """What its format needs to find it, such as the size of its file."""
    checksums: bytes = b""
    """xxh3-64 of each column's bytes, 8 bytes each, in the order of the layout; b"" = unknown."""
    texts: Mapping[str, tuple[tuple[str, ...], bool]] = field(default_factory=lambda: NOTHING)
    """Of each text column the table, and whether it was given as B strings."""
    run_lengths: tuple[int, ...] | None = None
    """Lengths of all runs, env after env; None when each env is one run of T steps."""
    version_range: tuple[int, int] | None = None
    """Smallest and largest model version that acted."""
    labels: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    """Labels for stratified draws; reserved."""
    added_at: float = 0.0
    """When it was added, seconds since 1970 UTC; 0 when unknown."""
    others: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    """Fields of later versions, kept as they are."""

    @property
    def num_steps(self) -> int:
        """T."""
        return self.shape[0]

    @property
    def num_envs(self) -> int:
        """B."""
        return self.shape[1]

    @property
    def num_rows(self) -> int:
        """T * B."""
        return self.shape[0] * self.shape[1]

    @property
    def place(self) -> int:
        """Segment and row in it where its rows begin, as one number; -1 without segments."""
        if "segment" not in self.location:
            return -1
        return self.location["segment"] << PLACE_BITS | self.location["row"]

    @property
    def size_bytes(self) -> int:
        """Bytes of its columns."""
        return self.layout.size_bytes

    def without_file(self) -> Record:
        """Return what holds of the trajectory while it is only in memory."""
        return replace(self, format="", location=NOTHING)


def quoted_weights_id(weights_id: str) -> str:
    """Return a weights id as it stands in file names and in the index.

    Args:
        weights_id: Any text.

    Returns:
        The same for what RLinf writes; else percent-encoded, so that no path escapes the
        folder, and when too long cut and completed by its xxh3-128.

    Example:
        >>> quoted_weights_id("../up"), quoted_weights_id("3db5df6d-a5c9")
        ('..%2Fup', '3db5df6d-a5c9')
    """
    quoted = quote(weights_id, safe="", errors="surrogatepass")
    if len(quoted) <= _LONGEST_QUOTED:
        return quoted
    digest = xxhash.xxh3_128_hexdigest(weights_id.encode("utf-8", "surrogatepass"))
    return f"{quoted[: _LONGEST_QUOTED - 33]}-{digest}"
