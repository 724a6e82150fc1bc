# SPDX-License-Identifier: Apache-2.0
"""Segments as another program would read them, by docs/format.md and without relive's own code."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Segment", "disk_bytes", "segments_of"]


@dataclass(frozen=True)
class Segment:
    """One folder below `segments`."""

    path: Path

    @property
    def head(self) -> dict[str, Any]:
        """What `segment.json` says."""
        head: dict[str, Any] = json.loads((self.path / "segment.json").read_text())
        return head

    @property
    def records(self) -> NDArray[np.uint8]:
        """`[rows, stride]`."""
        return np.fromfile(self.path / "rows.bin", np.uint8).reshape(
            -1, self.head["layout"]["stride"]
        )

    @property
    def num_rows(self) -> int:
        return len(self.records)

    def frames(self, file: str) -> NDArray[np.uint8]:
        """`[frames, bytes]` of a frame file."""
        (group,) = [one for one in self.head["layout"]["frames"] if one["file"] == file]
        return np.fromfile(self.path / file, np.uint8).reshape(-1, _size(group["columns"][0]))

    def num_frames(self, file: str) -> int:
        return len(self.frames(file))

    def column(self, name: str) -> NDArray[Any]:
        """All rows of a column, `[rows, ...]`."""
        layout = self.head["layout"]
        for one in layout["columns"]:
            if one["name"] == name:
                return _view(self.records[:, one["offset"] :], one)
        for group in layout["frames"]:
            for further, one in enumerate(group["columns"]):
                if one["name"] == name:
                    at = self.positions(name) + further
                    return _view(self.frames(group["file"])[at], one)
        raise KeyError(name)

    def positions(self, name: str) -> NDArray[np.int64]:
        """Position of the first frame of each row, `[rows]`."""
        for group in self.head["layout"]["frames"]:
            for one in group["columns"]:
                if one["name"] == name:
                    field = self.records[:, one["offset"] : one["offset"] + 4]
                    return np.ascontiguousarray(field).view("<u4")[:, 0].astype(np.int64)
        raise KeyError(name)


def _size(column: dict[str, Any]) -> int:
    item = np.dtype(str(column["dtype"])).itemsize
    return item * math.prod(int(length) for length in column["row_shape"])


def _view(rows: NDArray[np.uint8], column: dict[str, Any]) -> NDArray[Any]:
    flat = np.ascontiguousarray(rows[:, : _size(column)])
    values: NDArray[Any] = flat.view(np.dtype(column["dtype"]))
    return values.reshape(len(rows), *column["row_shape"])


def segments_of(folder: Path) -> list[Segment]:
    """Return the segments of a store or checkpoint, by number."""
    return [Segment(path) for path in sorted((folder / "segments").glob("*"))]


def disk_bytes(folder: Path) -> int:
    """Return the bytes of all segments below a folder."""
    return sum(path.stat().st_size for path in (folder / "segments").rglob("*") if path.is_file())
