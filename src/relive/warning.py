# SPDX-License-Identifier: Apache-2.0
"""Warnings that name the line of the caller's program, however deep they arise."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

__all__ = ["cause_of", "warn"]

_PACKAGE = str(Path(__file__).parent)


def cause_of(error: Exception) -> str:
    """Return what an error says without what to do, for a warning that says what was done.

    Example:
        >>> cause_of(ValueError("x is 1, but must be 2; give 2"))
        'x is 1, but must be 2'
    """
    return str(error).rpartition("; ")[0] or str(error)


def warn(message: str) -> None:
    """Warn of something after which the outcome is still right.

    Args:
        message: What was found and what was done about it.
    """
    level = 2
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
        level += 1
    warnings.warn(message, stacklevel=level)
