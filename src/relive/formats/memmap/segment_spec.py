# SPDX-License-Identifier: Apache-2.0
"""How the columns of a segment lie in its files. Pure: no file, no state.

Small columns are packed into one record a row, so that a cold row costs one page fault and not
one a column. Each kind of large column has a file of frames; the record holds the position of
the row's frame. An observation and its successor share one file: the frame after that of
`curr_obs` is that of `next_obs`, whether it is the next step's observation too or the final one
of an episode, so a run of T steps takes T + 1 frames and not 2 T.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import numpy as np
import xxhash
from numpy.typing import NDArray

from relive.dtypes import TEXT, items_dtype, storage_dtype
from relive.errors import CorruptFileError, FormatVersionError
from relive.record import natural

__all__ = ["LARGE_ROW_BYTES", "Field", "FrameGroup", "SegmentSpec"]

LARGE_ROW_BYTES = 4096
"""Columns with rows of at least so many bytes have a file of their own."""

VERSION = 1
"""Version of `segment.json` and of all that it describes."""

_POSITION = np.dtype(np.uint32)
_LONGEST_NAME = 100


@dataclass(frozen=True, slots=True)
class Field:
    """One column, and where its bytes lie in a record."""

    name: str
    """Full name."""
    dtype: str
    """Element type."""
    row_shape: tuple[int, ...]
    """Shape of one row."""
    offset: int = 0
    """Where its bytes begin in the record; of a large column those of its frame's position."""

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        size = storage_dtype(self.dtype).itemsize
        for length in self.row_shape:
            size *= length
        return size

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "name": self.name,
            "dtype": self.dtype,
            "row_shape": list(self.row_shape),
            "offset": self.offset,
        }

    @classmethod
    def from_json(cls, entry: Any) -> Field:
        """Read what `to_json` gave; raises LookupError, TypeError or ValueError for others."""
        storage_dtype(entry["dtype"])  # which refuses what is none
        row_shape = tuple(natural(length) for length in entry["row_shape"])
        return cls(str(entry["name"]), entry["dtype"], row_shape, natural(entry["offset"]))


@dataclass(frozen=True, slots=True)
class FrameGroup:
    """Large columns that share one file of frames."""

    columns: tuple[Field, ...]
    """One; or an observation of `curr_obs` and that of `next_obs`, one frame further."""

    @property
    def name(self) -> str:
        """Full name of the first column."""
        return self.columns[0].name

    @property
    def frame_bytes(self) -> int:
        """Bytes of one frame."""
        return self.columns[0].row_bytes

    @property
    def offset(self) -> int:
        """Where the position of a row's frame, uint32, lies in the record."""
        return self.columns[0].offset

    @property
    def is_pair(self) -> bool:
        """Whether it holds observations and their successors."""
        return len(self.columns) > 1

    @property
    def file_name(self) -> str:
        """Name of its file in a segment's folder."""
        # a dot stands for a slash alone: "a/b" and "a.b" may both be there
        quoted = ".".join(
            quote(part, safe="", errors="surrogatepass").replace(".", "%2E")
            for part in self.name.split("/")
        )
        if len(quoted) > _LONGEST_NAME:
            quoted = quoted[: _LONGEST_NAME - 33] + "-" + _digest(self.name)
        return f"{quoted}.bin"


@dataclass(frozen=True)
class SegmentSpec:
    """How the columns of a segment lie in its files."""

    fields: tuple[Field, ...]
    """Small columns, in the order of their bytes."""
    groups: tuple[FrameGroup, ...]
    """Large columns."""
    stride: int
    """Bytes of one record, a multiple of 8."""
    by_name: Mapping[str, Field] = field(init=False, repr=False, compare=False)
    """Each column by its full name."""
    _record_dtype: np.dtype[np.void] | None = field(
        default=None, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        """Look columns up by name."""
        large = (column for group in self.groups for column in group.columns)
        by_name = {column.name: column for column in (*self.fields, *large)}
        object.__setattr__(self, "by_name", by_name)

    def __hash__(self) -> int:
        """Return the hash of what is compared."""
        return hash((self.fields, self.groups, self.stride))

    def __contains__(self, name: object) -> bool:
        """Tell whether there is a column of this name."""
        return name in self.by_name

    @classmethod
    def of(cls, columns: Mapping[str, tuple[str, tuple[int, ...]]]) -> SegmentSpec:
        """Lay columns out.

        Args:
            columns: Element type and row shape by full name.

        Example:
            >>> spec = SegmentSpec.of({"dones": ("bool", ()), "actions": ("float32", (3,))})
            >>> [(one.name, one.offset) for one in spec.fields], spec.stride
            ([('actions', 0), ('dones', 12)], 16)
        """
        given = [Field(name, dtype, shape) for name, (dtype, shape) in sorted(columns.items())]
        large = [one for one in given if one.row_bytes >= LARGE_ROW_BYTES]
        small = [one for one in given if one.row_bytes < LARGE_ROW_BYTES]
        # the widest first, so that each lies on a multiple of what it is copied by
        small.sort(key=lambda one: (-_alignment(one.row_bytes), one.name))
        offset, fields = 0, []
        pairs = list(_pairs(large))
        positions = [Field("", _POSITION.name, ())] * len(pairs)
        wide = [one for one in small if _alignment(one.row_bytes) >= _POSITION.itemsize]
        starts = []
        for one in (*wide, *positions, *small[len(wide) :]):
            if one.name:
                fields.append(Field(one.name, one.dtype, one.row_shape, offset))
            else:
                starts.append(offset)
            offset += one.row_bytes
        groups = tuple(
            FrameGroup(tuple(Field(c.name, c.dtype, c.row_shape, start) for c in pair))
            for pair, start in zip(pairs, starts, strict=True)
        )
        return cls(tuple(fields), groups, max(8, -(-offset // 8) * 8))

    @property
    def text_names(self) -> list[str]:
        """Full names of the text columns, whose codes are those of the segment."""
        return [one.name for one in self.fields if one.dtype == TEXT]

    @property
    def record_dtype(self) -> np.dtype[np.void]:
        """One record; a field for each column of its name, as one item, and for each group."""
        # no cached_property: before Python 3.12 it has a lock, for which a forked child would
        # wait for ever when another thread of the parent has it
        if self._record_dtype is None:
            object.__setattr__(self, "_record_dtype", self._make_record_dtype())
        assert self._record_dtype is not None, "just made"
        return self._record_dtype

    def _make_record_dtype(self) -> np.dtype[np.void]:
        inside = [one for one in self.fields if one.row_bytes]
        return np.dtype(
            {
                "names": [*(one.name for one in inside), *(g.name for g in self.groups)],
                "formats": [
                    *(items_dtype(one.row_bytes) for one in inside),
                    *(_POSITION for _ in self.groups),
                ],
                "offsets": [*(one.offset for one in inside), *(g.offset for g in self.groups)],
                "itemsize": self.stride,
            }
        )

    def empty_records(self, num_rows: int) -> NDArray[np.void]:
        """Return records, `[num_rows]`, with zeros in what no column fills."""
        return np.zeros(num_rows, self.record_dtype)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "version": VERSION,
            "stride": self.stride,
            "columns": [one.to_json() for one in self.fields],
            "frames": [
                {"file": group.file_name, "columns": [one.to_json() for one in group.columns]}
                for group in self.groups
            ],
        }

    @classmethod
    def from_json(cls, entry: Any) -> SegmentSpec:
        """Read what `to_json` gave.

        Raises:
            CorruptFileError: It is something else, or columns overlap.
            FormatVersionError: A later release wrote it.
        """
        try:
            version = natural(entry["version"])
            if version > VERSION:
                raise FormatVersionError(
                    f"the segment has format version {version}, but this release of relive reads "
                    f"up to {VERSION}; upgrade relive"
                )
            spec = cls(
                tuple(Field.from_json(one) for one in entry["columns"]),
                tuple(
                    FrameGroup(tuple(Field.from_json(one) for one in group["columns"]))
                    for group in entry["frames"]
                ),
                natural(entry["stride"]),
            )
            _check(spec)
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            if isinstance(error, (CorruptFileError, FormatVersionError)):
                raise
            raise CorruptFileError(
                f"the columns of the segment are {json.dumps(entry, default=str)[:200]}, but that "
                f"has no valid form ({error}); restore the folder from a copy"
            ) from error
        return spec


def _alignment(row_bytes: int) -> int:
    """Return the largest power of two up to 8 that divides a row's size."""
    return min(8, row_bytes & -row_bytes) if row_bytes else 1


def _pairs(large: Iterable[Field]) -> Iterable[tuple[Field, ...]]:
    """Put observations and their successors of the same kind together; others stay alone."""
    left = {one.name: one for one in large}
    for name in list(left):  # "curr_obs" comes before "next_obs"
        one = left.pop(name, None)
        if one is None:
            continue
        head, _, tail = name.partition("/")
        after = left.get(f"next_obs/{tail}") if head == "curr_obs" else None
        if after is not None and (after.dtype, after.row_shape) == (one.dtype, one.row_shape):
            del left[after.name]
            yield one, after
        else:
            yield (one,)


def _check(spec: SegmentSpec) -> None:
    """Refuse what reading would go astray on."""
    spans = [(one.offset, one.row_bytes) for one in spec.fields if one.row_bytes]
    spans += [(group.offset, _POSITION.itemsize) for group in spec.groups]
    spans.sort()
    ends = [start + size for start, size in spans]
    if any(end > start for end, (start, _) in zip(ends, spans[1:], strict=False)):
        raise ValueError("columns overlap")
    if spec.stride % 8 or spec.stride < max([8, *ends]) or spec.stride > 1 << 40:
        raise ValueError("records do not hold their columns")
    names = [one.name for one in spec.fields]
    names += [one.name for group in spec.groups for one in group.columns]
    if len(set(names)) != len(names):
        raise ValueError("a column stands there twice")
    for group in spec.groups:
        if len({(one.row_bytes, one.offset) for one in group.columns}) != 1:
            raise ValueError("frames of one file have one size")
        if len(group.columns) > 2 or group.frame_bytes < LARGE_ROW_BYTES:
            raise ValueError("frames are large columns, alone or in pairs")


def _digest(name: str) -> str:
    return xxhash.xxh3_128_hexdigest(name.encode("utf-8", "surrogatepass"))
