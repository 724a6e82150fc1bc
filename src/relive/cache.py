# SPDX-License-Identifier: Apache-2.0
"""A first-in-first-out cache of whole trajectories in memory."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from relive.errors import UnsupportedValueError
from relive.options import checked_count
from relive.tensors import is_array

__all__ = ["TrajectoryCache"]


class TrajectoryCache:
    """The newest trajectories, each flattened to rows so that single transitions can be taken.

    Filled when trajectories are added and loaded, not when one is missed: a uniform draw over
    a window larger than the cache would otherwise turn it over at each batch. Any thread may
    call any method. The arrays are kept, not copied; nobody may write to them.

    Example:
        >>> import numpy as np
        >>> cache = TrajectoryCache(max_size=1)
        >>> cache.put(0, {"rewards": np.zeros(6)})
        >>> cache.put(1, {"rewards": np.ones(6)})
        >>> cache.get(0) is None, len(cache)
        (True, 1)
    """

    def __init__(self, max_size: int = 5, *, max_bytes: int | None = None) -> None:
        """Make an empty cache.

        Args:
            max_size: Trajectories kept, at least 0; with 0 nothing is.
            max_bytes: Bytes kept, at least 1; None for no bound.

        Raises:
            InvalidArgumentError: A bound is too small or no integer.
        """
        self.max_size = checked_count("max_size", max_size, 0)
        """Trajectories kept."""
        self.max_bytes = None if max_bytes is None else checked_count("max_bytes", max_bytes)
        """Bytes kept, or None."""
        self._columns: dict[int, Mapping[str, NDArray[Any]]] = {}
        self._sizes: dict[int, int] = {}
        self._size_bytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Return the number of trajectories held."""
        return len(self._columns)

    def __contains__(self, trajectory_id: object) -> bool:
        """Tell whether a trajectory is held."""
        return trajectory_id in self._columns

    @property
    def size_bytes(self) -> int:
        """Bytes held."""
        return self._size_bytes

    def put(self, trajectory_id: int, columns: Mapping[str, NDArray[Any]]) -> None:
        """Keep a trajectory, and let the oldest ones go until the bounds hold.

        One that alone exceeds `max_bytes` is not kept.

        Args:
            trajectory_id: Its id; one that is held already is replaced in its place.
            columns: Its columns by full name, each `[rows, ...]`.

        Raises:
            UnsupportedValueError: `columns` is no mapping, or a column no array.
        """
        given: object = columns
        is_mapping = isinstance(given, Mapping)
        if not is_mapping or not all(map(is_array, columns.values())):
            what = "holds what is no array" if is_mapping else f"is a {type(given).__name__}"
            raise UnsupportedValueError(
                f"columns of trajectory {trajectory_id} {what}, but must be a mapping from names "
                "to arrays [rows, ...]; give one such as {'rewards': rewards}"
            )
        size = sum(column.nbytes for column in columns.values())
        if not self.max_size or (self.max_bytes is not None and size > self.max_bytes):
            self.discard(trajectory_id)
            return
        with self._lock:
            self._size_bytes += size - self._sizes.get(trajectory_id, 0)
            self._columns[trajectory_id] = columns
            self._sizes[trajectory_id] = size
            while len(self._columns) > self.max_size or (
                self.max_bytes is not None and self._size_bytes > self.max_bytes
            ):
                self._drop(next(iter(self._columns)))

    def get(self, trajectory_id: int) -> Mapping[str, NDArray[Any]] | None:
        """Return a trajectory's columns, or None when it is not held."""
        return self._columns.get(trajectory_id)

    def discard(self, trajectory_id: int) -> None:
        """Let one trajectory go; one that is not held is fine."""
        with self._lock:
            if trajectory_id in self._columns:
                self._drop(trajectory_id)

    def clear(self) -> None:
        """Let all go."""
        with self._lock:
            self._columns.clear()
            self._sizes.clear()
            self._size_bytes = 0

    def after_fork(self) -> None:
        """Become a forked child's copy."""
        self._lock = threading.Lock()

    def _drop(self, trajectory_id: int) -> None:
        del self._columns[trajectory_id]
        self._size_bytes -= self._sizes.pop(trajectory_id)
