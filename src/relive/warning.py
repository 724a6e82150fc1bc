# SPDX-License-Identifier: Apache-2.0
"""Warnings that name the line of the caller's program, however deep they arise."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

__all__ = ["warn"]

_PACKAGE = str(Path(__file__).parent)


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
