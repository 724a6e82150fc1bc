# SPDX-License-Identifier: Apache-2.0
"""What tests look at, or change for a while, of their own process."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["num_open_descriptors", "tiny_switch_interval"]


def num_open_descriptors() -> int:
    """Return how many file descriptors are open."""
    return len(os.listdir("/proc/self/fd"))


@contextmanager
def tiny_switch_interval() -> Iterator[None]:
    """Let threads take turns in the middle of nearly everything."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
