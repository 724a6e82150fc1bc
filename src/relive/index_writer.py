# SPDX-License-Identifier: Apache-2.0
"""Writing `trajectory_index.json`, in slices that let other threads run.

Entries that have a text already are copied as they are: writing a million records makes no
object of any.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import numpy as np
import xxhash
from numpy.typing import NDArray

from relive import files
from relive.index_file import BETWEEN, HEAD, LIST, OURS, VERSION, IndexContents
from relive.read_file import ReadFile
from relive.record import Layout, Record
from relive.record_json import record_text
from relive.record_table import RecordTable

__all__ = ["IndexWriter"]

# How much is written between two chances for other threads to run, each a fifth of a millisecond:
_SLICE = 20  # records or layouts that are encoded
_COPIED = 100  # records whose text is there already
_RUN = 250  # records whose text is there in one piece
_LISTED = 300  # ids
_POWERS_OF_10 = 10 ** np.arange(1, 19)


class IndexWriter:
    """Writes one index file, and knows afterwards where in it the text of each record lies."""

    def __init__(
        self,
        contents: IndexContents,
        added: Iterable[Record] = (),
        *,
        between_slices: Callable[[], object] = lambda: None,
    ) -> None:
        """Choose what to write.

        Args:
            contents: The index; not changed meanwhile by others.
            added: Records that come after those of `contents` and are put into it one by one as
                they are written.
            between_slices: Called every few records, so that a long write lets others run.
        """
        self._contents = contents
        self._added = added
        self._between_slices = between_slices
        self._digest = xxhash.xxh3_64()
        self.size_bytes = 0
        """Of the file, as far as it is written."""
        self._starts = array("q")  # where the text of each record begins
        self._sizes = array("I")
        self.file: ReadFile | None = None
        """The file, once all is written; it may have its name only after that."""

    @property
    def xxh3(self) -> str:
        """xxh3-64 of the file, 16 hex digits."""
        return self._digest.hexdigest()

    def write(self, path: Path, *, sync: bool) -> None:
        """Write the file, atomically.

        Args:
            path: The file.
            sync: Whether it must survive a power loss.

        Raises:
            OSError: The disk refused; the old file is as it was, or with `sync` the new file is
                there but its name may not survive a power loss.
        """
        try:
            files.write_atomic(path, self._fill, sync=sync)
        finally:
            if self.file is not None:
                self.file.path = path

    def rebase(self) -> None:
        """Let all records of the contents be looked up in the file just written."""
        assert self.file is not None, "it is written first"
        starts, sizes = np.array(self._starts, np.int64), np.array(self._sizes, np.uint32)
        self._contents.records.rebase(self.file, starts, sizes)

    def _fill(self, file: BinaryIO) -> None:
        for block in self._blocks():
            self._digest.update(block)
            file.write(block)
            self.size_bytes += len(block)
        file.flush()
        self.file = ReadFile(Path(file.name))

    def _blocks(self) -> Iterator[bytes]:
        contents, records = self._contents, self._contents.records
        yield HEAD
        yield from self._entries(records)
        yield LIST
        ids = iter(records)
        separator = ""
        while numbers := list(islice(ids, _LISTED)):
            yield (separator + ", ".join(map(str, numbers))).encode("ascii")
            separator = ", "
            self._between_slices()
        ours = {
            "version": VERSION,
            "generation": contents.generation,
            "journal_bytes": contents.journal_bytes,
            "numbering": contents.numbering.to_json(),
            "schema": None if contents.schema is None else contents.schema.to_json(),
        }
        yield OURS + json.dumps(ours)[:-1].encode("ascii") + b', "layouts": ['
        yield from self._layouts(records.layout_list())
        yield b"]}}\n"

    def _entries(self, records: RecordTable) -> Iterator[bytes]:
        """Yield the entries in blocks; texts that are there are copied as they are."""
        ids = records.column("trajectory_id")
        num_at_once = _SLICE if records.num_without_text else _COPIED
        first = 0
        while first < len(ids):
            stop = min(first + _RUN, len(ids))
            block = self._copied_run(records, ids[first:stop], first)
            if block is None:
                stop = min(first + num_at_once, len(ids))
                block = self._block(ids[first:stop].tolist(), records.texts(first, stop))
            yield block
            first = stop
            self._between_slices()
        for record in self._added:
            number = records.layouts.number_of(record.layout)
            text = record_text(record, number)
            block = self._block([record.trajectory_id], [text])
            records.note(record, number, self._starts[-1], len(text))
            yield block

    def _copied_run(self, records: RecordTable, ids: NDArray[np.int64], first: int) -> bytes | None:
        """Return entries as they stand in the index file before, if they stand there in a row."""
        distances = len(BETWEEN) + len('"0": ') + np.searchsorted(_POWERS_OF_10, ids, "right")
        distances[0] -= len(BETWEEN)
        run = records.run_of_texts(first, first + len(ids), distances)
        if run is None or not run[0].startswith(b'"%d": ' % ids[0]):
            return None
        block, starts, sizes = run
        before = BETWEEN if self._starts else b""
        self._starts.frombytes((starts + (self.size_bytes + len(before))).tobytes())
        self._sizes.frombytes(sizes.astype(np.uint32).tobytes())
        return before + block

    def _block(self, ids: Sequence[int], texts: Sequence[bytes]) -> bytes:
        """Return entries as they follow those before, and note where their texts will be."""
        before = BETWEEN if self._starts else b""
        keys = [b'"%d": ' % one for one in ids]
        place = self.size_bytes + len(before)
        for key, text in zip(keys, texts, strict=True):
            self._starts.append(place + len(key))
            self._sizes.append(len(text))
            place += len(key) + len(text) + len(BETWEEN)
        return before + BETWEEN.join(map(bytes.__add__, keys, texts))

    def _layouts(self, layouts: Sequence[Layout | None]) -> Iterator[bytes]:
        for first in range(0, len(layouts), _SLICE):
            some = (
                "null" if layout is None else json.dumps(layout.to_json())
                for layout in layouts[first : first + _SLICE]
            )
            yield ((", " if first else "") + ", ".join(some)).encode("ascii")
            self._between_slices()
