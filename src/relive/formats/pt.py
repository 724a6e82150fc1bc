# SPDX-License-Identifier: Apache-2.0
"""Trajectories in files of `torch.save`, rows read where they lie.

Tensors lie plainly inside such a file, so a mapped file is the columns themselves: reading
three rows touches the pages of three rows. The record knows where each column begins.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from relive import files
from relive.columns import Tree, flatten
from relive.dtypes import storage_dtype
from relive.errors import CorruptFileError
from relive.formats.checking import check_size, check_snapshot, naming
from relive.formats.contents import (
    OURS,
    file_tree,
    import_torch,
    plain_tree,
    snapshot_of,
    trajectory_in,
)
from relive.formats.file_format import FileFormat
from relive.formats.layouts import layout_of
from relive.formats.mappings import Mappings
from relive.formats.torchfile import Decoded, read_torch_file
from relive.gather import KeptRows, RowSource
from relive.importing import importing
from relive.mapped_files import map_readonly
from relive.record import ColumnLayout, Layout, Record, shared_location
from relive.snapshot import Snapshot
from relive.trajectory import COLUMN_FIELDS, Trajectory

__all__ = ["MOST_MAPPED_FILES", "PtFormat"]

MOST_MAPPED_FILES = 1024
"""How many files a `PtFormat` keeps mapped. None stays open: mapping needs no descriptor."""


class PtFormat(FileFormat):
    """Format "pt": one `torch.save` file a trajectory, as RLinf writes it.

    Reading neither imports PyTorch nor runs anything that a file contains. Up to
    `MOST_MAPPED_FILES` files stay mapped, those used last. Rows are compared with the record by
    size, place and the trajectory's uuid; checksums are compared when a whole trajectory is read.
    """

    name: ClassVar[str] = "pt"
    suffix: ClassVar[str] = ".pt"

    def __init__(self, *, most_mapped_files: int = MOST_MAPPED_FILES) -> None:
        """Keep nothing mapped yet.

        Args:
            most_mapped_files: How many files to keep mapped at most, at least 1.
        """
        self._mappings: Mappings[RowSource] = Mappings(most_mapped_files)
        self._most_mapped_files = most_mapped_files

    def __reduce__(self) -> tuple[Any, ...]:
        # what is mapped stays with this process
        return partial(PtFormat, most_mapped_files=self._most_mapped_files), ()

    def prepare_to_write(self) -> None:
        """Import PyTorch, which writes the files.

        Raises:
            MissingPackageError: It is not installed.
        """
        import_torch(self.name)

    def write(self, folder: Path, record: Record, snapshot: Snapshot, *, sync: bool) -> Record:
        """Store a trajectory; see `Format.write`.

        Offsets of the layout count from `location["data_start"]`, so that trajectories which
        differ only in their texts share one layout.
        """
        tree = file_tree(record, snapshot)
        placed: list[tuple[Layout, int]] = []

        def fill(file: BinaryIO) -> None:
            _save(tree, file)
            file.flush()
            written = read_torch_file(map_readonly(Path(file.name)).data, check_crc=False)
            placed.append(_find_layout(written, snapshot))

        size = self.write_file(folder, record, fill, sync=sync)
        self.forget(folder, record)
        ((layout, data_start),) = placed
        location = shared_location((("size_bytes", size), ("data_start", data_start)))
        return replace(record, format=self.name, layout=layout, location=location)

    def rows(self, folder: Path, record: Record, names: Iterable[str]) -> RowSource:
        """Return the columns of a stored trajectory; see `Format.rows`."""
        return self._mappings.get(
            (folder, record.uuid),
            lambda: self._map(folder, record),
            lambda: files.exists(self.path(folder, record)),
        )

    def read(self, folder: Path, record: Record) -> Snapshot:
        """Read a whole trajectory back; see `Format.read`."""
        path = self.path(folder, record)
        with naming(path, record):
            content = files.read_bytes(path)
            check_size(record, len(content))
            decoded = read_torch_file(memoryview(content), check_crc=not record.checksums)
            uuid, snapshot = snapshot_of(plain_tree(decoded.tree, decoded.num_steps))
            check_snapshot(record, uuid, snapshot)
        return snapshot

    def read_file(self, path: Path) -> Trajectory:
        """Read a file that has no record; see `FileFormat.read_file`."""
        with naming(path):
            decoded = read_torch_file(memoryview(files.read_bytes(path)), check_crc=True)
            return trajectory_in(plain_tree(decoded.tree, decoded.num_steps))

    def forget(self, folder: Path, record: Record) -> None:
        """Let go of the mapping of a trajectory's file."""
        self._mappings.forget((folder, record.uuid))

    def close(self) -> None:
        """Let go of the mapped files."""
        self._mappings.clear()

    def _map(self, folder: Path, record: Record) -> RowSource:
        path = self.path(folder, record)
        with naming(path, record):
            mapped = map_readonly(path)
            check_size(record, len(mapped))
            data_start = record.location.get("data_start", 0)
            if mapped[:data_start].tobytes().find(record.uuid.encode()) < 0:
                raise CorruptFileError(f"it does not hold trajectory {record.uuid!r}")
            return KeptRows(
                {
                    column.name: _column_view(mapped, data_start, column)
                    for column in record.layout.columns
                }
            )


class _WatchedFile:
    """A file that remembers the error PyTorch turns into one of its own."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.error: BaseException | None = None

    def write(self, block: Any) -> int:
        try:
            return self._file.write(block)
        except BaseException as error:  # PyTorch turns whatever it is into a RuntimeError
            self.error = error
            raise

    def flush(self) -> None:
        self._file.flush()


def _save(tree: Tree, file: BinaryIO) -> None:
    with importing.lock:
        import torch

    target = _WatchedFile(file)
    try:
        torch.save(tree, cast("BinaryIO", target))
    except RuntimeError:
        # PyTorch says "unexpected pos" of a full disk
        if target.error is not None:
            raise target.error from None
        raise


def _find_layout(written: Decoded, snapshot: Snapshot) -> tuple[Layout, int]:
    """Return where the columns lie in the file just written, and where the first one begins."""
    tree = written.tree
    leaves = flatten({name: tree[name] for name in COLUMN_FIELDS if name in tree})
    leaves.update((name, facts["codes"]) for name, facts in tree[OURS]["texts"].items())
    offsets = {name: leaves[name].offset - written.first_offset for name in snapshot.columns}
    return layout_of(snapshot, offsets), written.first_offset


def _column_view(mapped: NDArray[np.uint8], data_start: int, column: ColumnLayout) -> NDArray[Any]:
    """Return the rows of a column where they lie: `[(T or T + E) * B, ...]`."""
    shape = (column.num_rows, *column.row_shape)
    dtype = storage_dtype(column.dtype)
    if not column.size_bytes:
        return np.empty(shape, dtype)
    if column.offset is None:
        raise CorruptFileError(f"the index does not say where column {column.name!r} lies in it")
    offset = data_start + column.offset
    if offset + column.size_bytes > len(mapped):
        raise CorruptFileError(f"column {column.name!r} lies outside it")
    return np.require(np.ndarray(shape, dtype, mapped, offset), requirements=["A"])
