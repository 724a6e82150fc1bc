# SPDX-License-Identifier: Apache-2.0
"""Whether anybody still reads what a command prints."""

from __future__ import annotations

import select
import sys

__all__ = ["is_output_gone"]


def is_output_gone() -> bool:
    """Tell whether standard output is a pipe whose reader, such as `head`, has left."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):  # it is no file, or closed
        return False
    poll = select.poll()
    poll.register(descriptor, 0)  # errors are told unasked
    return any(events & select.POLLERR for _, events in poll.poll(0))
