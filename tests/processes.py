# SPDX-License-Identifier: Apache-2.0
"""What tests look at, or change for a while, of their own process."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["num_open_below", "tiny_switch_interval"]


def num_open_below(folder: Path) -> int:
    """Return how many descriptors are open of a folder and all in it, removed files included.

    Others of the process may close at any moment, as what earlier tests left is collected.
    """
    paths = []
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # that of the listing itself
            paths.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
    return sum(path.is_relative_to(folder) for path in paths)


@contextmanager
def tiny_switch_interval() -> Iterator[None]:
    """Let threads take turns in the middle of nearly everything."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
