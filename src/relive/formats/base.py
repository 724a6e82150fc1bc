# SPDX-License-Identifier: Apache-2.0
"""What a storage format must do.

A format knows how one trajectory lies on disk and nothing of indexes, windows or samplers.
`relive.testing.FormatConformance` checks any implementation against this page.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from relive.gather import RowBatch, RowSource, Wanted
from relive.index import Index
from relive.limits import Limits
from relive.record import Record
from relive.snapshot import Snapshot
from relive.window import Window

__all__ = [
    "Copier",
    "Format",
    "Progress",
    "no_progress",
]

Copier = Callable[[Record], Record]
"""Brings one trajectory and returns its record there.

Raises `MissingFileError` or `CorruptFileError` for a file that is gone or cut, of which nothing is
left in the target, and `OSError`."""

Progress = Callable[[int], object]
"""Told how many bytes were copied since the last call."""


def no_progress(num_bytes: int) -> None:
    """Tell nobody how many bytes were copied."""


class Format(ABC):
    """One way to store trajectories.

    Any thread may read while one thread writes. A format object belongs to one store, whose
    folder it is given with each call, and reads other folders too while they are loaded. It may
    keep files open or mapped; `close` lets go of them.
    """

    name: ClassVar[str]
    """As in `trajectory_format` and in records."""
    ids_are_in_files: ClassVar[bool] = True
    """Whether a trajectory must be written anew to get another id."""
    needs_cache: ClassVar[bool] = True
    """Whether rows are faster in the cache than in its files."""

    def prepare_to_write(self) -> None:  # noqa: B027 - most formats need nothing
        """Import what writing needs, in the thread that opens the store.

        A late import of PyTorch in the writer's thread could meet the end of the process.
        """

    def take_up(  # noqa: B027 - likewise
        self, folder: Path, index: Index, limits: Limits | None = None
    ) -> None:
        """Get to know what a store holds, before it is written to and after a load.

        Args:
            folder: The store.
            index: Its trajectories, those of other formats included.
            limits: How much it will hold; None for as much as was said before.

        Raises:
            StorageError: The disk refused.
            CorruptFileError: A file is cut or damaged.
        """

    def check(self, snapshot: Snapshot) -> None:  # noqa: B027 - most formats take anything
        """Refuse a trajectory that cannot be stored, before it is added.

        Raises:
            UnsupportedValueError: It has something that the format has no place for.
        """

    @abstractmethod
    def write(self, folder: Path, record: Record, snapshot: Snapshot, *, sync: bool) -> Record:
        """Store a trajectory, so that it can be read by its record, or not at all.

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

    def gather(self, folder: Path, wanted: Sequence[Wanted], batch: RowBatch) -> None:
        """Fill a batch from stored trajectories, each read at most once.

        Raises:
            MissingFileError: A file is not there.
            CorruptFileError: A file is cut or is not what its record says.
        """
        for one in wanted:
            batch.fill(one, self.rows(folder, one.record, batch.names))

    @abstractmethod
    def path(self, folder: Path, record: Record) -> Path:
        """Return what holds a trajectory: its file, or a folder that it shares."""

    @abstractmethod
    def is_whole(self, folder: Path, record: Record) -> bool:
        """Tell whether all of a trajectory is there, as long as it was written."""

    @abstractmethod
    def copier(
        self,
        source: Path,
        target: Path,
        *,
        sync: bool,
        progress: Progress = no_progress,
    ) -> Copier:
        """Return what brings stored trajectories into another folder, sharing bytes if it can.

        Args:
            source: Where they lie.
            target: Where to; the caller syncs it afterwards.
            sync: Whether the bytes must survive a power loss.
            progress: Called with the number of bytes copied since it was called last.
        """

    def prepare_incoming(self, incoming: Path, store: Path) -> None:  # noqa: B027 - likewise
        """Let what comes into a folder get names that are free in the store it will move to.

        Before, it keeps the names that it has.

        Args:
            incoming: The folder.
            store: The store, whose writer calls.
        """

    @abstractmethod
    def move_to(self, folder: Path, record: Record, target: Path) -> None:
        """Move a stored trajectory to a folder on the same file system.

        What holds others too is moved if all of them are to leave, else shared.

        Raises:
            OSError: The disk refused.
        """

    @abstractmethod
    def sync(self, folder: Path, records: Iterable[Record]) -> None:
        """Make stored trajectories survive a power loss, but for names in the folder.

        Those that are no longer there are left out: whoever reads them is told.

        Raises:
            OSError: The disk refused.
        """

    @abstractmethod
    def remove(self, folder: Path, record: Record) -> None:
        """Remove a stored trajectory; one that is gone already is fine."""

    def wasteful(self, folder: Path, window: Window) -> list[list[int]]:
        """Tell which trajectories to write anew, so that what was deleted takes no room.

        Args:
            folder: The store.
            window: All that it holds.

        Returns:
            Ids of those that lie together, for each piece that holds others no more. From now on
            nothing is written to these pieces.

        Raises:
            MissingFileError: A file is not there.
            CorruptFileError: A file is damaged.
            StorageError: The disk refused.
        """
        return []

    def usage(self, folder: Path) -> Mapping[str, float]:
        """Return what a store takes, as further statistics, where it is cheap to tell.

        Raises:
            OSError: The disk refused.
        """
        return {}

    def release(self, folder: Path) -> None:  # noqa: B027 - most formats hold nothing
        """Let go of what is open or mapped of a folder that is read no more."""

    def close(self) -> None:  # noqa: B027 - most formats hold nothing
        """Let go of files kept open or mapped; twice is fine."""
