# SPDX-License-Identifier: Apache-2.0
"""What the operating system refused, said in our own errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from relive.errors import StorageError

__all__ = ["naming_disk_errors"]


@contextmanager
def naming_disk_errors(
    kind: type[StorageError], path: Path, what: str, cure: str
) -> Iterator[None]:
    """Say what was being done when the disk refused.

    Args:
        kind: The error to raise in place of a plain `OSError`; errors of ours stay as they are.
        path: The file or folder concerned.
        what: What could not be done.
        cure: What holds now and what to do.

    Raises:
        StorageError: Of this kind, in place of `OSError`.
    """
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise kind(f"{what}: {error}; {cure}", path=str(path), errno=error.errno) from error
