# SPDX-License-Identifier: Apache-2.0
"""Whether what was read is what the record says, told by errors that name the file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from relive.errors import CorruptFileError, MissingFileError, StorageError
from relive.formats.checksum import checksums
from relive.record import CHECKSUM_BYTES, Record
from relive.snapshot import Snapshot

__all__ = ["check_size", "check_snapshot", "naming"]


@contextlib.contextmanager
def naming(path: Path, record: Record | None = None) -> Iterator[None]:
    """Name file and trajectory in the errors of a block that reads one.

    Raises:
        MissingFileError: In place of `FileNotFoundError`.
        StorageError: In place of any other `OSError`.
        CorruptFileError: In place of `EOFError`; and in place of itself, of the same class, with
            the path before its message and what to do behind it, which subclasses say themselves.
    """
    whose = "" if record is None else f" of trajectory {record.trajectory_id}"
    cure = "restore it from a copy" + ("" if record is None else ", or delete the trajectory")
    try:
        yield
    except FileNotFoundError as error:
        missing = str(getattr(error, "path", None) or error.filename or path)  # inside, perhaps
        raise MissingFileError(
            f"{missing!r}{whose} is not there, but the index names it; {cure}",
            path=missing,
            errno=error.errno,
        ) from error
    except OSError as error:
        raise StorageError(
            f"{str(path)!r}{whose} cannot be read: {error}; check its permissions and the disk",
            path=str(path),
            errno=error.errno,
        ) from error
    except EOFError as error:
        raise CorruptFileError(
            f"{str(path)!r}{whose} cannot be read: it is cut: {error}; {cure}", path=str(path)
        ) from error
    except CorruptFileError as error:
        said = f"{error}; {cure}" if type(error) is CorruptFileError else str(error)
        raise type(error)(f"{str(path)!r}{whose} cannot be read: {said}", path=str(path)) from error


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
    for name, held, stored in (
        ("num_epochs", snapshot.num_epochs, record.num_epochs),
        ("max_episode_length", snapshot.max_episode_length, record.max_episode_length),
        ("model_weights_id", snapshot.model_weights_id, record.model_weights_id),
        ("the texts", snapshot.texts(), dict(record.texts)),
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
