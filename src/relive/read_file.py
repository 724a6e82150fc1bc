# SPDX-License-Identifier: Apache-2.0
"""A file that stays open to be read anywhere, whatever happens to its name."""

from __future__ import annotations

import os
import threading
import weakref
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import xxhash

from relive import files

__all__ = ["ReadFile"]

_BLOCK_BYTES = 1 << 20


class ReadFile:
    """A file open for reading; closed at the latest when nobody has it. Any thread may read."""

    def __init__(self, path: Path) -> None:
        """Open a file.

        Raises:
            OSError: It is not there, or cannot be read.
        """
        self.path = path
        """Its name, for messages."""
        self._descriptor = files.open_to_read(path)
        # where a read moves the file's one position, one thread reads at a time
        self._turn: AbstractContextManager[object] = (
            nullcontext() if hasattr(os, "preadv") else threading.Lock()
        )
        self._closing = weakref.finalize(self, files.close, self._descriptor)
        self._closing.atexit = False

    @property
    def size_bytes(self) -> int:
        """How long it is now."""
        return os.fstat(self._descriptor).st_size

    def read(self, start: int, size: int) -> bytearray:
        """Return bytes of the file.

        Raises:
            OSError: The disk refused.
            EOFError: The file is shorter.
        """
        block = bytearray(size)
        with self._turn:
            files.read_at(self._descriptor, start, memoryview(block))
        return block

    def read_from(self, start: int) -> bytearray:
        """Return the bytes from `start` to the end, which may move meanwhile.

        Raises:
            OSError: The disk refused.
        """
        try:
            return self.read(start, max(0, self.size_bytes - start))
        except EOFError:  # the writer took back what it could not write whole
            return self.read_from(start)

    def close(self) -> None:
        """Close it now, whoever else has it; twice is fine."""
        self._descriptor = -1
        self._closing()

    def is_at(self, path: Path) -> bool:
        """Tell whether it is this very file that has a name now."""
        try:
            return os.path.samestat(os.fstat(self._descriptor), path.stat())
        except FileNotFoundError:
            return False

    def digest(self, stop: int) -> xxhash.xxh3_64:
        """Return the xxh3-64 of the bytes before `stop`, to be gone on with.

        Raises:
            OSError: The disk refused.
            EOFError: The file is shorter.
        """
        state, block = xxhash.xxh3_64(), memoryview(bytearray(min(stop, _BLOCK_BYTES)))
        for start in range(0, stop, _BLOCK_BYTES):
            part = block[: min(_BLOCK_BYTES, stop - start)]
            with self._turn:
                files.read_at(self._descriptor, start, part)
            state.update(part)
        return state
