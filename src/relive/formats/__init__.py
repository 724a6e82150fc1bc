# SPDX-License-Identifier: Apache-2.0
"""Storage formats, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from relive.formats.base import Format
from relive.formats.file_format import FileFormat
from relive.formats.memmap import MemmapFormat
from relive.formats.pkl import PklFormat
from relive.formats.pt import PtFormat
from relive.options import check_choice

__all__ = [
    "FORMATS",
    "FileFormat",
    "Format",
    "MemmapFormat",
    "PklFormat",
    "PtFormat",
    "create_format",
]

FORMATS: Mapping[str, Callable[[bool], Format]] = {
    "pt": lambda allow_pickle: PtFormat(),
    "pkl": lambda allow_pickle: PklFormat(allow_pickle=allow_pickle),
    "memmap": lambda allow_pickle: MemmapFormat(),
}
"""How each format is made, given whether pickles may ask for anything."""


def create_format(name: str, *, allow_pickle: bool = False) -> Format:
    """Make a format for one store.

    Args:
        name: One of `FORMATS`.
        allow_pickle: Whether "pkl" files may hold more than tensors and plain containers, and so
            run code when they are read.

    Raises:
        InvalidArgumentError: There is no such format.
    """
    check_choice("trajectory_format", name, list(FORMATS))
    return FORMATS[name](allow_pickle)
