# SPDX-License-Identifier: Apache-2.0
"""What to say of a folder that is no store and no checkpoint, but holds some."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from relive import files
from relive.cli.programs import programs_folder
from relive.errors import MissingFileError
from relive.index_file import METADATA_NAME

__all__ = ["naming_what_is_inside"]

_MOST_STORES = 3


@contextmanager
def naming_what_is_inside(folder: Path, command: str, *arguments: str) -> Iterator[None]:
    """Name the stores in a folder that is none itself, such as that of the demo.

    Args:
        folder: What the block reads.
        command: The command that was called, to be called again for one of them.
        arguments: What it is given after the folder.

    Raises:
        MissingFileError: The block found no store or checkpoint.
    """
    try:
        yield
    except MissingFileError as error:
        if error.path != str(files.real_path(folder) / METADATA_NAME):
            raise  # it is one, or a parent of ranks, and lacks something else
        from relive.maintenance import find_stores

        inside = find_stores(folder, at_most=_MOST_STORES + 1)
        if not inside:
            raise
        calls = [
            f"`{programs_folder()}relive {shlex.join([command, str(path), *arguments])}`"
            for path in inside[:_MOST_STORES]
        ]
        more = ", among others" if len(inside) > _MOST_STORES else ""
        raise MissingFileError(
            f"{str(folder)!r} is neither a store nor a checkpoint, but holds some; "
            f"run {' or '.join(calls)}{more}",
            path=str(folder),
        ) from error
