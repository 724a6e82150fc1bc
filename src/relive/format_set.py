# SPDX-License-Identifier: Apache-2.0
"""The formats that the trajectories of one folder are stored in.

A store writes in one format, but what it loaded may be in others: each record names its own.
"""

from __future__ import annotations

from relive.formats import FORMATS, Format, create_format
from relive.record import Record

__all__ = ["FormatSet"]


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
        self.own = create_format(own, allow_pickle=allow_pickle) if isinstance(own, str) else own
        """The format of new trajectories."""
        self._by_name = {self.own.name: self.own}

    def named(self, name: str) -> Format:
        """Return a format by name.

        Raises:
            InvalidArgumentError: There is no format of this name.
        """
        if name not in self._by_name:
            self._by_name.setdefault(name, create_format(name, allow_pickle=self._allow_pickle))
        return self._by_name[name]

    def of(self, record: Record) -> Format:
        """Return the format that stores a trajectory."""
        return self.named(record.format)

    def after_fork(self) -> None:
        """Become a forked child's copy: formats made by name are made anew."""
        for name in [name for name in self._by_name if name in FORMATS]:
            self._by_name[name] = create_format(name, allow_pickle=self._allow_pickle)
        self.own = self._by_name[self.own.name]

    def close(self) -> None:
        """Let go of all files; twice is fine."""
        for one in self._by_name.values():
            one.close()
