# SPDX-License-Identifier: Apache-2.0
"""Where stores and checkpoints lie below a folder."""

from __future__ import annotations

from collections import deque
from pathlib import Path

from relive import files
from relive.index_file import INDEX_NAME
from relive.journal_lines import JOURNAL_NAME

__all__ = ["find_stores"]

_MAX_DEPTH = 3
_MAX_FOLDERS = 1_000


def find_stores(folder: str | Path, *, at_most: int = 5) -> list[Path]:
    """Find the nearest stores and checkpoints below a folder.

    Nothing is read but names, of three levels and at most 1,000 folders: it is quick wherever it
    is pointed at, and may miss what lies deeper. Links are not followed.

    Args:
        folder: Where to look; is not among the results itself.
        at_most: How many to find, at least 1.

    Returns:
        Their paths, beginning with `folder`; the nearest first, then by name.
    """
    found: list[Path] = []
    ahead = deque([(Path(folder), 0)])
    for _ in range(_MAX_FOLDERS):
        if not ahead or len(found) >= at_most:
            break
        place, depth = ahead.popleft()
        try:
            names = files.list_names(place)
        except OSError:  # not ours to read: whatever lies there, nobody can be sent to it
            continue
        if depth and (JOURNAL_NAME in names or INDEX_NAME in names):
            found.append(place)
        elif depth < _MAX_DEPTH:
            below = (place / name for name in names)
            ahead.extend((each, depth + 1) for each in below if _is_folder(each))
    return found


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()
