# SPDX-License-Identifier: Apache-2.0
"""Trajectories in pickle files, read whole.

The format is there for RLinf's checkpoints and tools; "pt" reads single rows and is faster in
everything. Reading runs nothing that a file contains, unless `allow_pickle=True` says so.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

from relive import files
from relive.columns import Tree
from relive.errors import CorruptFileError, UnsafePickleError
from relive.formats.checking import check_size, check_snapshot, naming
from relive.formats.contents import (
    file_tree,
    import_torch,
    plain_tree,
    snapshot_of,
    trajectory_in,
)
from relive.formats.file_format import FileFormat
from relive.formats.layouts import layout_of
from relive.formats.tensorpickle import TensorGlobals
from relive.formats.unpickle import unpickle
from relive.gather import RowSource, row_source
from relive.record import Record, shared_location
from relive.snapshot import Snapshot
from relive.trajectory import Trajectory

__all__ = ["PklFormat"]

_PROTOCOL = 4  # what RLinf writes, and Python 3.8 reads
_MOST_OBJECTS = 1 << 20


class PklFormat(FileFormat):
    """Format "pkl": one pickle a trajectory, as RLinf writes it.

    Each call reads the whole file. A pickle may hold tensors and plain containers only.
    """

    name: ClassVar[str] = "pkl"
    suffix: ClassVar[str] = ".pkl"

    def __init__(self, *, allow_pickle: bool = False) -> None:
        """Open nothing.

        Args:
            allow_pickle: Whether files that ask for more are loaded with Python's own
                unpickler, which runs whatever code they name. Only for files you trust.
        """
        self._allow_pickle = allow_pickle

    def prepare_to_write(self) -> None:
        """Import PyTorch, whose tensors the files hold.

        Raises:
            MissingPackageError: It is not installed.
        """
        import_torch(self.name)

    def write(self, folder: Path, record: Record, snapshot: Snapshot, *, sync: bool) -> Record:
        """Store a trajectory; see `Format.write`."""
        tree = file_tree(record, snapshot)

        def fill(file: BinaryIO) -> None:
            pickle.dump(tree, file, protocol=_PROTOCOL)

        size = self.write_file(folder, record, fill, sync=sync)
        layout = layout_of(snapshot)
        return replace(
            record,
            format=self.name,
            layout=layout,
            location=shared_location((("size_bytes", size),)),
        )

    def rows(self, folder: Path, record: Record, names: Iterable[str]) -> RowSource:
        """Read a whole trajectory for its rows; see `Format.rows`."""
        return row_source(self.read(folder, record))

    def read(self, folder: Path, record: Record) -> Snapshot:
        """Read a whole trajectory back; see `Format.read`."""
        path = self.path(folder, record)
        with naming(path, record):
            content = files.read_bytes(path)
            check_size(record, len(content))
            uuid, snapshot = snapshot_of(self._tree(content))
            check_snapshot(record, uuid, snapshot)
        return snapshot

    def read_file(self, path: Path) -> Trajectory:
        """Read a file that has no record; see `FileFormat.read_file`."""
        with naming(path):
            return trajectory_in(self._tree(files.read_bytes(path)))

    def _tree(self, content: bytes) -> Tree:
        try:
            root = unpickle(content, TensorGlobals(len(content)).in_pickle())
        except UnsafePickleError as error:
            if not self._allow_pickle:
                raise UnsafePickleError(
                    f"{error}; only if you trust the file, read it with allow_pickle=True"
                ) from error
            return plain_tree(_load_anything(content), _MOST_OBJECTS)
        return plain_tree(root.value, root.num_steps)


def _load_anything(content: bytes) -> Any:
    try:
        return pickle.load(io.BytesIO(content))
    except Exception as error:  # code of the file may raise anything
        raise CorruptFileError(f"the unpickler of Python refuses it: {error!r:.300}") from error
