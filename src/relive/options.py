# SPDX-License-Identifier: Apache-2.0
"""Checks of a buffer's plain arguments."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from relive.errors import InvalidArgumentError

__all__ = [
    "check_choice",
    "check_count",
    "check_kind",
    "check_time_limit",
    "checked_path",
    "checked_stream",
]


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


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    """Refuse what is none of a few words.

    Raises:
        InvalidArgumentError: It is none of them.
    """
    if not isinstance(value, str) or value not in choices:
        raise InvalidArgumentError(
            f"{name} is {value!r}, but must be one of {', '.join(map(repr, choices))}"
        )


def check_kind(name: str, value: Any, *kinds: type) -> None:
    """Refuse what is of another type.

    Raises:
        InvalidArgumentError: It is.
    """
    if not isinstance(value, kinds):
        told = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
        raise InvalidArgumentError(f"{name} is {value!r:.100}, but must be {told}")


def checked_path(name: str, path: Any) -> Path:
    """Return a path made absolute.

    Raises:
        InvalidArgumentError: It is empty, or no path.
    """
    if not isinstance(path, (str, os.PathLike)) or not isinstance(os.fspath(path), str):
        raise InvalidArgumentError(f"{name} is {path!r:.100}, but must be a path")
    if not os.fspath(path):
        raise InvalidArgumentError(f"{name} is empty, but must be a path; give the folder")
    return Path(path).absolute()


def checked_stream(stream: Any) -> tuple[int, ...]:
    """Return a stream as a tuple.

    Raises:
        InvalidArgumentError: It is no sequence of integers of at least 0.
    """
    check_kind("stream", stream, list, tuple)
    for number in stream:
        check_count("a number in stream", number, 0)
    return tuple(int(number) for number in stream)


def check_time_limit(timeout_s: Any) -> None:
    """Refuse what is neither a number of seconds of at least 0 nor None.

    Raises:
        InvalidArgumentError: It is.
    """
    is_number = isinstance(timeout_s, (int, float)) and not isinstance(timeout_s, bool)
    if timeout_s is not None and not (is_number and timeout_s >= 0):
        raise InvalidArgumentError(
            f"timeout_s is {timeout_s!r}, but must be seconds of at least 0, or None"
        )
