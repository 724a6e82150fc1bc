# SPDX-License-Identifier: Apache-2.0
"""Checks of plain arguments, the same wherever they are given."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np

from relive.errors import InvalidArgumentError, ReplayError

__all__ = [
    "check_choice",
    "check_kind",
    "checked_count",
    "checked_list",
    "checked_names",
    "checked_path",
    "checked_stream",
    "checked_time_limit",
    "is_count",
    "naming_item",
    "nearest",
]


@contextmanager
def naming_item(name: str, place: int, num: int) -> Iterator[None]:
    """Say of an error of a block which item of a list it is about, if there are others.

    Args:
        name: The argument that is the list.
        place: Of the item, from 0.
        num: How many there are.
    """
    try:
        yield
    except ReplayError as error:
        if num > 1:
            error.args = (f"{name}[{place}]: {error}",)
        raise


def is_count(number: Any, least: int = 1) -> bool:
    """Tell whether this is an integer, of Python or NumPy, of at least `least`; a bool is none."""
    is_integer = isinstance(number, (int, np.integer)) and not isinstance(number, bool)
    return is_integer and bool(number >= least)


def checked_count(name: str, number: Any, least: int = 1) -> int:
    """Return an integer of at least `least` as an int of Python.

    Raises:
        InvalidArgumentError: It is not.
    """
    if type(number) is int and number >= least:  # as nearly always; the rest takes its time
        return number
    if not is_count(number, least):
        is_integer = isinstance(number, (int, np.integer)) and not isinstance(number, bool)
        cure = f"give {least} or more" if is_integer else "give a whole number, as int() makes one"
        raise InvalidArgumentError(
            f"{name} is {number!r}, but must be an integer of at least {least}; {cure}"
        )
    return int(number)


def nearest(given: Any, names: Iterable[str]) -> str | None:
    """Return the name that was probably meant, or None.

    Example:
        >>> nearest("reward", ["actions", "rewards"])
        'rewards'
    """
    close = get_close_matches(given, names, 1) if isinstance(given, str) else []
    return close[0] if close else None


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    """Refuse what is none of a few words.

    Raises:
        InvalidArgumentError: It is none of them.
    """
    if not isinstance(value, str) or value not in choices:
        close = nearest(value, choices)
        cure = f"did you mean {close!r}?" if close else "choose one of these"
        raise InvalidArgumentError(
            f"{name} is {value!r}, but must be one of {', '.join(map(repr, choices))}; {cure}"
        )


def check_kind(name: str, value: Any, *kinds: type) -> None:
    """Refuse what is of another type.

    Raises:
        InvalidArgumentError: It is.
    """
    if not isinstance(value, kinds):
        told = " or ".join("None" if kind is NoneType else kind.__name__ for kind in kinds)
        cure = _CURES.get(kinds[0], "build one, or leave it out")
        raise InvalidArgumentError(f"{name} is {value!r:.100}, but must be {told}; {cure}")


_CURES: Mapping[type, str] = {
    bool: "give True or False",
    list: "put one value in brackets",
    str: "give its name in quotes",
}
"""What to do about a value that is not of a type."""


def checked_list(name: str, values: Any, what: str) -> list[Any]:
    """Return several values as a list.

    Args:
        name: The argument.
        values: What was given.
        what: What must be in the list, in the plural.

    Raises:
        InvalidArgumentError: It is one value, or a text.
    """
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        is_plain = values is None or isinstance(values, (str, bytes, int, float))
        got = f"{values!r:.100}" if is_plain else f"one {type(values).__name__}"
        raise InvalidArgumentError(
            f"{name} is {got}, but must be a list of {what}; put one in brackets"
        )
    return list(values)


def checked_path(name: str, path: Any) -> Path:
    """Return a path made absolute.

    Raises:
        InvalidArgumentError: It is empty, or no path.
    """
    name_of = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
    if not isinstance(name_of, str) or "\0" in name_of:
        raise InvalidArgumentError(
            f"{name} is {path!r:.100}, but must be a path; give a str or a pathlib.Path"
        )
    if not name_of:
        raise InvalidArgumentError(f"{name} is empty, but must be a path; give the folder")
    return Path(name_of).absolute()


def checked_stream(stream: Any) -> tuple[int, ...]:
    """Return a stream as a tuple.

    Raises:
        InvalidArgumentError: It is no sequence of integers of at least 0.
    """
    check_kind("stream", stream, list, tuple)
    return tuple(checked_count("a number in stream", number, 0) for number in stream)


def checked_time_limit(name: str, seconds: Any) -> float:
    """Return a time limit as a float.

    Raises:
        InvalidArgumentError: It is no number, negative, not finite, or longer than Python can wait.
    """
    is_number = isinstance(seconds, (int, float, np.integer, np.floating))
    # the comparison is false for NaN
    if not is_number or isinstance(seconds, bool) or not 0 <= seconds <= threading.TIMEOUT_MAX:
        raise InvalidArgumentError(
            f"{name} is {seconds!r}, but must be a number of seconds from 0 to "
            f"{threading.TIMEOUT_MAX:.0f}; give a large one to wait long"
        )
    return float(seconds)


def checked_names(name: str, names: Any, *, ordered: bool = False) -> tuple[str, ...]:
    """Return a list of names as a tuple.

    Args:
        name: The argument.
        names: What was given.
        ordered: Whether the order means something, so that a set is no list.

    Raises:
        InvalidArgumentError: It is a text, no list, or holds something that is no text.
    """
    is_list = isinstance(names, Iterable) and not isinstance(names, str)
    is_list = is_list and not (ordered and isinstance(names, Set))
    listed: tuple[Any, ...] = tuple(names) if is_list else ()
    if not is_list or not all(isinstance(one, str) for one in listed):
        raise InvalidArgumentError(
            f"{name} is {names!r}, but must be a list of names; put one name in brackets"
        )
    return listed
