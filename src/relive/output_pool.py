# SPDX-License-Identifier: Apache-2.0
"""Memory for the columns of a batch, used again once nobody holds the batch.

Every batch needs outputs of its own, and fresh memory costs up to three times what copying the
rows into it does. So outputs are views of a block, which is handed out again when its reference
counts show that nothing refers to it: whatever shares memory with a NumPy array (a slice, a
tensor, a storage, a memoryview, DLPack, what autograd saved) holds that array, and NumPy lets
each view of a view hold the one array that owns the memory.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from math import prod
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relive.dtypes import MOST_ITEM_BYTES, items_dtype

__all__ = ["OutputPool", "Outputs", "Wants"]

Wants = Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]
"""Row shape and storage type of each column wanted, by name; no type holds objects."""

_PAGE_BYTES = 4096
"""Rows this large are copied three to four times as fast when they start on a page."""

_LINE_BYTES = 64
"""Small columns start on a cache line."""

_MOST_SHAPES = 64
"""With more shapes in use than this, a block would hardly be met again."""

_PATIENCE = 32
"""How often a block is found held while others were needed, until another takes its place."""

_NEVER = (None, None)

_COUNTS_ARE_EXACT = "free-threading" not in sys.version
"""Without the global lock a count may be seen too low while others change it."""


@dataclass(slots=True)  # not frozen: each batch makes one, which would take twice the time
class Outputs:
    """Where the rows of one batch go."""

    columns: dict[str, NDArray[Any]]
    """Fresh, uninitialized `[N, *row_shape]` by name; whoever holds one of them, or any view of
    it, keeps all from being used again."""
    items: Mapping[str, NDArray[Any]]
    """The same memory as `[N]` of `items_dtype`; none for rows of no bytes. Only for filling
    while `columns` is held: these hold nothing."""


class OutputPool:
    """Outputs for batches, out of memory that no earlier batch needs any more.

    Any thread may call any method; none ever waits, so signal handlers and finalizers may too.
    A call costs about 5 µs for ten columns when a block is free, as ten calls of `np.empty` do.

    Args:
        blocks_per_shape: How many are kept for one number of rows of the same columns, 1 or more.
        max_bytes: How much memory is kept in all, in use or free; the shape not asked for the
            longest loses its blocks first. A larger block is never kept.
    """

    def __init__(self, *, blocks_per_shape: int = 3, max_bytes: int = 512 << 20) -> None:
        self._blocks_per_shape = blocks_per_shape
        self._max_bytes = max_bytes if _COUNTS_ARE_EXACT else 0
        self._clock = count()
        self.after_fork()

    def after_fork(self) -> None:
        """In a forked child: forget every block, and what other threads were doing."""
        self._lock = Lock()
        self._shapes: dict[object, _Shape] = {}
        self._asked: dict[tuple[int, int], tuple[_Shape, Wants]] = {}  # by identity
        self._num_bytes = 0

    def take(self, num_rows: int, columns: Wants) -> Outputs:
        """Return outputs that share no memory with any that are still held.

        Args:
            num_rows: N, may be 0.
            columns: What a row has; it must not change afterwards.

        Raises:
            MemoryError: A new block was needed, and there is no memory for it.
        """
        shape, of = self._asked.get((num_rows, id(columns)), _NEVER)
        if of is not columns or shape is None or not shape.blocks:
            shape = self._shape_of(num_rows, columns)
        if shape is not None:
            shape.last_asked = next(self._clock)
            for block in shape.blocks:
                outputs = block.outputs_if_free()
                if outputs is not None:
                    return outputs
        block = _Block(num_rows, columns)
        outputs = block.outputs()  # held before any other thread can see it
        if block.num_bytes <= self._max_bytes and self._lock.acquire(blocking=False):
            # Else another thread is here, or what this call interrupted: this block is not kept.
            try:
                self._keep(_key_of(num_rows, columns), block)
            finally:
                self._lock.release()
        return outputs

    def _shape_of(self, num_rows: int, columns: Wants) -> _Shape | None:
        """Look a shape up by all that its columns are, which takes a third of a call."""
        shape = self._shapes.get(_key_of(num_rows, columns))
        if shape is not None:
            if len(self._asked) >= _MOST_SHAPES:
                self._asked.clear()
            self._asked[num_rows, id(columns)] = shape, columns
        return shape

    def _keep(self, key: object, block: _Block) -> None:
        shape = self._shapes.setdefault(key, _Shape(next(self._clock)))
        if len(shape.blocks) >= self._blocks_per_shape:
            for held in shape.blocks:
                held.num_refusals += 1
            stuck = max(shape.blocks, key=lambda one: one.num_refusals)
            if stuck.num_refusals < _PATIENCE:
                return
            self._forget(shape, stuck)
        shape.blocks += (block,)
        self._num_bytes += block.num_bytes
        while self._num_bytes > self._max_bytes or len(self._shapes) > _MOST_SHAPES:
            oldest_key, oldest = min(self._shapes.items(), key=lambda one: one[1].last_asked)
            self._forget(oldest, oldest.blocks[-1])  # the first is asked first, so the warmest
            if not oldest.blocks:
                del self._shapes[oldest_key]

    def _forget(self, shape: _Shape, block: _Block) -> None:
        shape.blocks = tuple(one for one in shape.blocks if one is not block)
        self._num_bytes -= block.num_bytes


def _key_of(num_rows: int, columns: Wants) -> object:
    return num_rows, tuple(columns.items())


class _Shape:
    """The blocks kept for one number of rows of the same columns."""

    __slots__ = ("blocks", "last_asked")

    def __init__(self, last_asked: int) -> None:
        self.blocks: tuple[_Block, ...] = ()  # replaced, never changed: others are reading it
        self.last_asked = last_asked


class _Block:
    """Memory for one batch.

    The small columns share one array of bytes, one after the other; a column of large rows has
    one of its own, so that who keeps the rewards of every batch does not keep the images too.
    """

    __slots__ = ("_columns", "_free_counts", "_items", "_owners", "num_bytes", "num_refusals")

    def __init__(self, num_rows: int, columns: Wants) -> None:
        self._owners: tuple[NDArray[np.uint8], ...] = ()
        self._columns: dict[str, NDArray[Any]] = {}
        self._items: dict[str, NDArray[Any]] = {}
        self.num_bytes = self.num_refusals = 0
        row_bytes = {name: prod(shape) * dtype.itemsize for name, (shape, dtype) in columns.items()}
        small = [name for name, size in row_bytes.items() if size < _PAGE_BYTES]
        large = [[name] for name, size in row_bytes.items() if size >= _PAGE_BYTES]
        expected = [self._add_owner(num_rows, columns, row_bytes, each) for each in (small, *large)]
        self._columns = {name: self._columns[name] for name in columns}  # in the order asked for
        # Counted as `outputs_if_free` counts; yet never more than the views here account for,
        # should a debugger hold an owner in this moment: that would hide a holder for ever.
        self._free_counts = list(map(min, _counts(list(self._owners)), expected))

    def _add_owner(
        self, num_rows: int, columns: Wants, row_bytes: Mapping[str, int], names: list[str]
    ) -> int:
        """Allocate some columns in one piece; return the count its array has while it is free."""
        # -(-x // y) rounds up
        room = [-(-num_rows * row_bytes[name] // _LINE_BYTES) * _LINE_BYTES for name in names]
        owner: NDArray[np.uint8] = np.empty(sum(room) + _PAGE_BYTES, np.uint8)
        at = -owner.ctypes.data % _PAGE_BYTES
        num_views = len(names)
        for name, taken in zip(names, room, strict=True):
            row_shape, dtype = columns[name]
            self._columns[name] = np.ndarray((num_rows, *row_shape), dtype, owner, at)
            if 0 < (size := row_bytes[name]) <= MOST_ITEM_BYTES:
                self._items[name] = np.ndarray((num_rows,), items_dtype(size), owner, at)
                num_views += 1
            at += taken
        self._owners += (owner,)
        self.num_bytes += owner.nbytes
        return num_views + 3  # and `_owners`, the list counted, and the call that counts

    def outputs_if_free(self) -> Outputs | None:
        """Return outputs unless someone holds the block."""
        # Hold first, count then: of several threads here at once, at most the last to hold sees
        # no other, and none that holds later does. So no lock is needed.
        held = list(self._owners)
        counts = list(map(sys.getrefcount, held))  # as `_counts`, of which a call would be felt
        return self.outputs() if counts == self._free_counts else None

    def outputs(self) -> Outputs:
        """Return outputs; the caller made sure that nobody holds the block."""
        self.num_refusals = 0
        return Outputs({name: one.view() for name, one in self._columns.items()}, self._items)


def _counts(held: list[NDArray[np.uint8]]) -> list[int]:
    return list(map(sys.getrefcount, held))
