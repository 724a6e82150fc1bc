# SPDX-License-Identifier: Apache-2.0
"""Checks of a buffer's plain arguments."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from relive.errors import InvalidArgumentError

__all__ = ["check_count", "check_options"]


def check_count(name: str, number: Any, least: int = 1) -> None:
    """Refuse what is not an integer of at least `least`.

    Raises:
        InvalidArgumentError: It is not.
    """
    is_integer = isinstance(number, (int, np.integer)) and not isinstance(number, bool)
    if not is_integer or number < least:
        raise InvalidArgumentError(
            f"{name} is {number!r}, but must be an integer of at least {least}"
        )


def check_options(
    *,
    sample_window_size: Any,
    auto_save: Any,
    auto_save_path: Any,
    framework: Any,
    stream: Sequence[Any],
) -> None:
    """Check arguments of `TrajectoryReplayBuffer` that no other part checks.

    Raises:
        InvalidArgumentError: One is out of range or unknown, or `auto_save` lacks a path.
    """
    check_count("sample_window_size", sample_window_size, 0)
    if not isinstance(auto_save_path, (str, os.PathLike)):
        raise InvalidArgumentError(f"auto_save_path is {auto_save_path!r}, but must be a path")
    if auto_save and not os.fspath(auto_save_path):
        raise InvalidArgumentError(
            "auto_save is True, but auto_save_path is empty; give the folder to store in"
        )
    if framework not in ("torch", "numpy"):
        raise InvalidArgumentError(f"framework is {framework!r}, but must be 'torch' or 'numpy'")
    for number in stream:
        check_count("a number in stream", number, 0)
