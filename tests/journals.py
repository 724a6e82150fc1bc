# SPDX-License-Identifier: Apache-2.0
"""A plain model of what a journal holds, and a disk that stops in the middle of something."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

from records import make_layout, make_record
from relive import journal as journal_module
from relive.index_file import IndexContents
from relive.journal import Journal
from relive.journal_replay import Replay, replay
from relive.numbering import Numbering
from relive.record import Record
from relive.spec import Schema

LAYOUTS = [make_layout(2, name=f"c{n}") for n in range(3)]

State = tuple[tuple[Record, ...], Numbering, Schema | None]
"""Records in order, what comes next, what holds."""


def state_of(contents: IndexContents) -> State:
    assert [r.trajectory_id for r in contents.records.values()] == list(contents.records)
    return tuple(contents.records.values()), contents.numbering, contents.schema


@dataclass
class Model:
    """What a journal should say, as a plain list."""

    records: list[Record] = field(default_factory=list)
    numbering: Numbering = field(default_factory=Numbering)
    schema: Schema | None = None

    @property
    def state(self) -> State:
        return tuple(self.records), self.numbering, self.schema

    def next_record(self, layout: int = 0) -> Record:
        numbering = self.numbering
        record = make_record(numbering.next_trajectory_id, numbering.next_row_id)
        return replace(record, layout=LAYOUTS[layout])

    def add(self, record: Record) -> None:
        self.records.append(record)
        self.numbering = self.numbering.past(record)

    def remove(self, ids: Sequence[int]) -> None:
        self.records = [record for record in self.records if record.trajectory_id not in ids]


def add_next(journal: Journal, model: Model, layout: int = 0, *, is_synced: bool = False) -> Record:
    """Add the next record to both."""
    record = model.next_record(layout)
    journal.add(record, is_synced=is_synced)
    model.add(record)
    return record


def fold(journal: Journal) -> None:
    """Export with a fold, however small the journal is."""
    with mock.patch.object(journal_module, "_SMALLEST_FOLD_BYTES", 0):
        journal._index_bytes = 0
        journal.export(lambda: None)


def reopen(folder: Path) -> tuple[Journal, Replay]:
    """Open as the next process would."""
    found = replay(folder)
    return Journal(folder, found), found


class Killed(BaseException):
    """The process is gone."""


DOORS: tuple[tuple[Any, str], ...] = (
    (os, "link"),
    (os, "replace"),
    (os, "fsync"),
    (os, "write"),
    (os, "pwrite"),
    (os, "pwritev"),
    (os, "ftruncate"),
    (os, "open"),
    (os, "unlink"),
    (pathlib.Path, "open"),
)
"""Where the library changes the disk."""


@dataclass
class Disk:
    """Counts what is done to the disk, and breaks one of the operations."""

    break_at: int
    """The number of the operation that breaks, from 0."""
    kills: bool = False
    """Whether nothing works from then on, as after a kill; else only that one is refused."""
    num_done: int = 0

    def guard(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*arguments: Any, **options: Any) -> Any:
            number = self.num_done
            self.num_done += 1
            if self.kills and number >= self.break_at:
                raise Killed
            if number == self.break_at:
                raise OSError(28, "no space")
            return function(*arguments, **options)

        return guarded

    @contextmanager
    def breaking(self) -> Iterator[None]:
        """Break an operation of a block; what the block raises because of it is swallowed."""
        with ExitStack() as patches:
            for owner, name in DOORS:
                guarded = self.guard(getattr(owner, name))
                patches.enter_context(mock.patch.object(owner, name, guarded))
            with suppress(Killed, OSError):
                yield
