# SPDX-License-Identifier: Apache-2.0
"""The formats that the trajectories of one folder are stored in.

A store writes in one format, but what it loaded may be in others: each record names its own.
"""

from __future__ import annotations

from copy import copy
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from relive.errors import CorruptFileError
from relive.formats import FORMATS, FileFormat, Format, create_format
from relive.formats.placed_format import PlacedFormat
from relive.index import Index
from relive.limits import Limits
from relive.record import Record
from relive.window import Window

__all__ = ["FormatSet"]


_FormatSet = TypeVar("_FormatSet", bound="FormatSet")


class FormatSet:
    """Formats by name, made when first needed. Any thread may use it."""

    def __init__(self, own: str | Format, *, allow_pickle: bool = False) -> None:
        """Choose the format to write in.

        Args:
            own: Its name, or a format object.
            allow_pickle: As in `relive.formats.create_format`.

        Raises:
            InvalidArgumentError: There is no format of this name.
        """
        self._allow_pickle = allow_pickle
        if isinstance(own, str):
            own = create_format(own, allow_pickle=allow_pickle)
        elif own.name in FORMATS:
            own = copy(own)  # what is open and mapped belongs to one store
        self.own = own
        """The format of new trajectories."""
        self._by_name = {self.own.name: self.own}
        self._placed: PlacedFormat | None = None  # so that each batch need not look for it

    def named(self, name: str) -> Format:
        """Return a format by name.

        Raises:
            InvalidArgumentError: There is no format of this name.
        """
        if name not in self._by_name:
            self._by_name.setdefault(name, create_format(name, allow_pickle=self._allow_pickle))
        return self._by_name[name]

    @property
    def placed(self) -> PlacedFormat:
        """The format whose records have a place (`Record.place`)."""
        if self._placed is None:
            form = self.named("memmap")
            assert isinstance(form, PlacedFormat), "it is ours"
            self._placed = form
        return self._placed

    def with_files(self, name: str) -> FileFormat:
        """Return a format by name that has a file for each trajectory.

        Raises:
            InvalidArgumentError: There is no format of this name.
            CorruptFileError: It is another kind of format.
        """
        form = self.named(name)
        if not isinstance(form, FileFormat):
            raise CorruptFileError(
                f"trajectory_format is {name!r}, but an index without records needs one with a "
                "file for each trajectory; restore the folder from a copy"
            )
        return form

    def of(self, record: Record) -> Format:
        """Return the format that stores a trajectory."""
        return self.named(record.format)

    def take_up(self, folder: Path, index: Index, limits: Limits | None = None) -> None:
        """Let the formats get to know a store, as `Format.take_up` does.

        Raises:
            StorageError: The disk refused.
            CorruptFileError: A file is cut or damaged.
        """
        formats = {form.name: form for form in self._by_name.values()}
        if (index.window(0).places >= 0).any():
            formats[self.placed.name] = self.placed
        for one in formats.values():
            one.take_up(folder, index, limits)

    def wasteful(self, folder: Path, window: Window) -> list[list[int]]:
        """Tell which trajectories to write anew, as `Format.wasteful` does."""
        return [ids for one in list(self._by_name.values()) for ids in one.wasteful(folder, window)]

    def usage(self, folder: Path) -> dict[str, float]:
        """Return what the store takes, as `Format.usage` does."""
        usage: dict[str, float] = {}
        for one in list(self._by_name.values()):
            usage |= one.usage(folder)
        return usage

    def release(self, folder: Path) -> None:
        """Let go of what is open or mapped of a folder that is read no more."""
        for one in list(self._by_name.values()):
            one.release(folder)

    def after_fork(self) -> None:
        """Become a forked child's copy: formats of ours are made anew, as they were made."""
        for name in [name for name in self._by_name if name in FORMATS]:
            self._by_name[name] = copy(self._by_name[name])
        self._placed = None
        self.own = self._by_name[self.own.name]

    def __enter__(self: _FormatSet) -> _FormatSet:
        """Return the formats themselves, which are closed when the block ends."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let go of all files."""
        self.close()

    def close(self) -> None:
        """Let go of all files; twice is fine."""
        for one in list(self._by_name.values()):
            one.close()
