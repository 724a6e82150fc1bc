# SPDX-License-Identifier: Apache-2.0
"""What formats with one file for each trajectory have in common."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO, ClassVar

from relive import files
from relive.formats.base import Copier, Format, Progress, no_progress
from relive.formats.checking import check_size, naming
from relive.record import Record, quoted_weights_id
from relive.trajectory import Trajectory

__all__ = ["FileFormat"]


class FileFormat(Format):
    """A format with one file for each trajectory."""

    suffix: ClassVar[str]
    """Ending of its files, with the dot."""

    @abstractmethod
    def read_file(self, path: Path) -> Trajectory:
        """Read a trajectory file that has no record, such as RLinf's.

        Raises:
            MissingFileError: It is not there.
            CorruptFileError: It is cut, or holds something else.
            UnsafePickleError: It asks for more than tensors and plain containers.
        """

    def path(self, folder: Path, record: Record) -> Path:
        """Return the file of a trajectory."""
        weights_id = quoted_weights_id(record.model_weights_id)
        return folder / f"trajectory_{record.trajectory_id}_{weights_id}{self.suffix}"

    def is_whole(self, folder: Path, record: Record) -> bool:
        """Tell whether the file is there and as long as it was written; see `Format.is_whole`."""
        path = self.path(folder, record)
        try:
            return files.size_bytes(path) == record.location.get("size_bytes")
        except FileNotFoundError:
            return False

    def copier(
        self,
        source: Path,
        target: Path,
        *,
        sync: bool,
        progress: Progress = no_progress,
    ) -> Copier:
        """Return what copies files, sharing blocks where possible; see `Format.copier`."""

        def copy(record: Record) -> Record:
            path = self.path(source, record)
            with naming(path, record):
                check_size(record, files.size_bytes(path))
            try:
                files.copy(path, self.path(target, record), sync=sync, progress=progress)
            except FileNotFoundError:
                with naming(path, record):  # its store may have evicted it meanwhile
                    files.size_bytes(path)
                raise
            return record

        return copy

    def write_file(
        self, folder: Path, record: Record, fill: Callable[[BinaryIO], object], *, sync: bool
    ) -> int:
        """Write the file of a trajectory that has none yet; return its size in bytes.

        Raises:
            OSError: The disk refused; nothing is left behind.
        """
        path = self.path(folder, record)
        try:
            return files.write_atomic(path, fill, sync=sync)
        except BaseException:  # it may be there under its name, which did not get synced
            with contextlib.suppress(OSError):
                files.remove(path)
            raise

    def move_to(self, folder: Path, record: Record, target: Path) -> None:
        """Rename the file; see `Format.move_to`."""
        files.rename(self.path(folder, record), self.path(target, record))
        self.forget(folder, record)

    def sync(self, folder: Path, records: Iterable[Record]) -> None:
        """Sync the files; see `Format.sync`."""
        for record in records:
            with contextlib.suppress(FileNotFoundError):
                files.sync_file(self.path(folder, record))

    def remove(self, folder: Path, record: Record) -> None:
        """Remove the file; see `Format.remove`."""
        files.remove(self.path(folder, record))
        self.forget(folder, record)

    def forget(self, folder: Path, record: Record) -> None:
        """Let go of what is kept open or mapped of a trajectory."""
