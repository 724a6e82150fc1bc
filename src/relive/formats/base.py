# SPDX-License-Identifier: Apache-2.0
"""What a storage format must do.

A format knows how one trajectory lies on disk and nothing of indexes, windows or samplers.
`relive.testing.FormatConformance` checks any implementation against this page.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from relive import files
from relive.dtypes import TEXT
from relive.errors import CorruptFileError, MissingFileError, StorageError
from relive.formats.checksum import checksums
from relive.gather import RowBatch, RowSource, Wanted
from relive.record import CHECKSUM_BYTES, Record, quoted_weights_id
from relive.snapshot import Snapshot
from relive.trajectory import Trajectory

__all__ = ["Format", "check_size", "check_snapshot", "naming", "row_source"]


class Format(ABC):
    """One way to store trajectories, one file each unless a subclass says otherwise.

    Any thread may read while one thread writes. A format object belongs to one folder's store
    and may keep files mapped; `close` lets go of them.
    """

    name: ClassVar[str]
    """As in `trajectory_format` and in records."""
    suffix: ClassVar[str]
    """Ending of its files, with the dot."""

    def prepare_to_write(self) -> None:  # noqa: B027 - most formats need nothing
        """Import what writing needs, in the thread that opens the store.

        A late import of PyTorch in the writer's thread could meet the end of the process.
        """

    @abstractmethod
    def write(self, folder: Path, record: Record, snapshot: Snapshot, *, sync: bool) -> Record:
        """Store a trajectory: whole under its final name, or not at all.

        Args:
            folder: The store.
            record: Everything known but `format`, `layout`, `location`.
            snapshot: The rows.
            sync: Whether the bytes must survive a power loss when this returns.

        Returns:
            The record completed.

        Raises:
            OSError: The disk refused; nothing is left behind.
        """

    @abstractmethod
    def rows(self, folder: Path, record: Record, names: Iterable[str]) -> RowSource:
        """Return the columns of a stored trajectory for reading single rows.

        Args:
            folder: The store.
            record: The trajectory.
            names: The columns wanted; those the trajectory lacks are left out. No byte of the
                others need be read, but they may be in the result.

        Raises:
            MissingFileError: Its file is not there.
            CorruptFileError: Its file is cut or is not what the record says.
        """

    @abstractmethod
    def read(self, folder: Path, record: Record) -> Snapshot:
        """Read a whole trajectory back, bit for bit.

        Raises:
            MissingFileError: Its file is not there.
            CorruptFileError: Its file is cut, damaged, or not what the record says.
        """

    @abstractmethod
    def read_file(self, path: Path) -> Trajectory:
        """Read a trajectory file that has no record, such as RLinf's.

        Raises:
            MissingFileError: It is not there.
            CorruptFileError: It is cut, or holds something else.
            UnsafePickleError: It asks for more than tensors and plain containers.
        """

    def gather(self, folder: Path, wanted: Sequence[Wanted], batch: RowBatch) -> None:
        """Fill a batch from stored trajectories, each read at most once.

        Raises:
            MissingFileError: A file is not there.
            CorruptFileError: A file is cut or is not what its record says.
        """
        for one in wanted:
            batch.fill(one, self.rows(folder, one.record, batch.names))

    def path(self, folder: Path, record: Record) -> Path:
        """Return the file of a trajectory."""
        weights_id = quoted_weights_id(record.model_weights_id)
        return folder / f"trajectory_{record.trajectory_id}_{weights_id}{self.suffix}"

    def is_whole(self, folder: Path, record: Record) -> bool:
        """Tell whether the file of a trajectory is there and as long as it was written."""
        path = self.path(folder, record)
        try:
            return files.size_bytes(path) == record.location.get("size_bytes")
        except FileNotFoundError:
            return False

    def copy_to(self, folder: Path, record: Record, target: Path, *, sync: bool) -> None:
        """Copy a stored trajectory to another folder, sharing blocks where possible.

        With `sync` its bytes survive a power loss; its name does once `target` is synced.

        Raises:
            MissingFileError: Its file is not there.
            CorruptFileError: It is cut; nothing is left in `target`.
            OSError: The disk refused.
        """
        path = self.path(folder, record)
        with naming(path, record):
            check_size(record, files.size_bytes(path))
        files.copy(path, self.path(target, record), sync=sync)

    def move_to(self, folder: Path, record: Record, target: Path) -> None:
        """Move a stored trajectory to a folder on the same file system.

        Raises:
            OSError: The disk refused.
        """
        files.rename(self.path(folder, record), self.path(target, record))
        self.forget(folder, record)

    def sync(self, folder: Path, record: Record) -> None:
        """Make a stored trajectory survive a power loss, but for the name in its folder.

        Raises:
            OSError: The disk refused.
        """
        files.sync_file(self.path(folder, record))

    def remove(self, folder: Path, record: Record) -> None:
        """Remove a stored trajectory; one that is gone already is fine."""
        files.remove(self.path(folder, record))
        self.forget(folder, record)

    def forget(self, folder: Path, record: Record) -> None:  # noqa: B027 - most hold nothing
        """Let go of what is kept open or mapped of a trajectory."""

    def close(self) -> None:  # noqa: B027 - most formats hold nothing
        """Let go of files kept open or mapped; twice is fine."""


def row_source(snapshot: Snapshot) -> RowSource:
    """Return the columns of a snapshot as rows, `[T * B, ...]` or `[(T + E) * B, ...]`."""
    return {
        # [T, B, ...] -> [T * B, ...]; -1 would not do for rows of no width
        name: column.values.reshape(
            column.values.shape[0] * column.values.shape[1], *column.values.shape[2:]
        )
        for name, column in snapshot.columns.items()
    }


@contextlib.contextmanager
def naming(path: Path, record: Record | None = None) -> Iterator[None]:
    """Name file and trajectory in the errors of a block that reads one.

    Raises:
        MissingFileError: In place of `FileNotFoundError`.
        StorageError: In place of any other `OSError`.
        CorruptFileError: With the path before its message; of the same class as was raised.
    """
    whose = "" if record is None else f" of trajectory {record.trajectory_id}"
    try:
        yield
    except FileNotFoundError as error:
        raise MissingFileError(
            f"{str(path)!r}{whose} is not there, but the index names it; restore it from a copy, "
            "or delete the trajectory",
            path=str(path),
            errno=error.errno,
        ) from error
    except OSError as error:
        raise StorageError(
            f"{str(path)!r}{whose} cannot be read: {error}", path=str(path), errno=error.errno
        ) from error
    except CorruptFileError as error:
        raise type(error)(
            f"{str(path)!r}{whose} cannot be read: {error}", path=str(path)
        ) from error


def check_size(record: Record, size_bytes: int) -> None:
    """Compare a file's size with the record's.

    Raises:
        CorruptFileError: They differ.
    """
    expected = record.location.get("size_bytes", size_bytes)
    if size_bytes != expected:
        raise CorruptFileError(f"it has {size_bytes} bytes, but {expected} were written")


def check_snapshot(record: Record, uuid: str, snapshot: Snapshot) -> None:
    """Compare what was read with the record.

    Raises:
        CorruptFileError: It is another trajectory, has other columns or texts, or a
            column's bytes have another checksum.
    """
    if uuid != record.uuid:
        raise CorruptFileError(f"it holds trajectory {uuid!r:.60}, but should hold {record.uuid!r}")
    found = {name: (column.dtype, column.values.shape) for name, column in snapshot.columns.items()}
    expected = {column.name: (column.dtype, column.shape) for column in record.layout.columns}
    if found != expected or snapshot.shape != record.shape:
        differing = sorted(
            name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name)
        )
        raise CorruptFileError(f"it has other columns or shapes than the index says: {differing}")
    texts = {
        name: (column.table, column.per_env)
        for name, column in snapshot.columns.items()
        if column.dtype == TEXT
    }
    for name, held, stored in (
        ("num_epochs", snapshot.num_epochs, record.num_epochs),
        ("max_episode_length", snapshot.max_episode_length, record.max_episode_length),
        ("model_weights_id", snapshot.model_weights_id, record.model_weights_id),
        ("the texts", texts, dict(record.texts)),
    ):
        if held != stored:
            raise CorruptFileError(f"it says something else of {name} than the index does")
    if not record.checksums:
        return
    found_sums = checksums(snapshot, record.layout)
    for place, column in enumerate(record.layout.columns):
        part = slice(CHECKSUM_BYTES * place, CHECKSUM_BYTES * (place + 1))
        if found_sums[part] != record.checksums[part]:
            raise CorruptFileError(f"column {column.name!r} is damaged: its checksum does not fit")
