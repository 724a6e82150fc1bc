# SPDX-License-Identifier: Apache-2.0
"""What observation and action spaces mean as columns.

A Box, Discrete, MultiDiscrete or MultiBinary space is one column, a Dict of them (nested to
any depth) one column each. Values take the element type that their space declares, as they do
in Gymnasium's own vector environments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from relive.columns import flatten, unflatten
from relive.dtypes import has_numpy_type
from relive.errors import ColumnMismatchError, UnsupportedValueError
from relive.tensors import convert, copy_in

__all__ = ["ActionSpec", "Flat", "ObservationSpec", "copy_numpy"]

Flat = dict[str, NDArray[Any]]
"""Observation columns by their path inside the observation, each `[B, ...]`."""

_ONE_COLUMN = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
_PLAIN_NAME = "states"  # what an observation that is no dict is called, as in RLinf


class ObservationSpec:
    """The columns of one observation space.

    Args:
        space: Of a single env.
        num_envs: B.

    Raises:
        UnsupportedValueError: The space, or one inside it, has no fixed shape and element type
            (Tuple, Text, Sequence, Graph, OneOf, others), or a key is no column name.
    """

    def __init__(self, space: Space[Any], num_envs: int) -> None:
        self._is_dict = isinstance(space, spaces.Dict)
        self._leaves: dict[str, Space[Any]] = flatten(
            space.spaces if isinstance(space, spaces.Dict) else {_PLAIN_NAME: space}
        )
        self._num_envs = num_envs
        if not self._leaves:
            raise UnsupportedValueError(
                f"the observation space is {space}, but must hold at least one column; add a Box "
                "or another space to it",
                column="curr_obs",
            )
        for name, leaf in self._leaves.items():
            _check_one_column(leaf, f"curr_obs/{name}")

    def read(self, observation: Any) -> Flat:
        """Copy the observations of all envs, as `reset` and `step` give them.

        Raises:
            ColumnMismatchError: A column is missing, extra, or not as its space says.
            UnsupportedValueError: A value is no array or tensor.
        """
        return self._read(observation, (self._num_envs,))

    def read_one(self, observation: Any) -> Flat:
        """Copy the observation of one env, without the axis B; raises as `read` does."""
        return self._read(observation, ())

    def tree(self, columns: Flat) -> Any:
        """Return copies of the columns in the structure of the space, for the policy."""
        if not self._is_dict:
            return columns[_PLAIN_NAME].copy()
        return unflatten({name: column.copy() for name, column in columns.items()})

    def _read(self, observation: Any, batch: tuple[int, ...]) -> Flat:
        if self._is_dict != isinstance(observation, Mapping):
            raise ColumnMismatchError(
                f"an observation is a {type(observation).__name__}, but the observation space "
                f"{'is' if self._is_dict else 'is not'} a Dict; correct the space, or the wrapper "
                "that changes one of the two",
                column="curr_obs",
            )
        flat = flatten(observation if self._is_dict else {_PLAIN_NAME: observation})
        if flat.keys() != self._leaves.keys():
            raise ColumnMismatchError(
                f"an observation has the keys {sorted(flat)}, but its space has "
                f"{sorted(self._leaves)}; correct the space, or the wrapper that changes one of "
                "the two",
                column="curr_obs",
            )
        return {
            name: _read_column(flat[name], leaf, batch, f"curr_obs/{name}")
            for name, leaf in self._leaves.items()
        }


class ActionSpec:
    """The column of one action space.

    Args:
        space: Of a single env.
        num_envs: B.
        num_actions: K, or None where actions have no such axis.

    Raises:
        UnsupportedValueError: The space is not Box, Discrete, MultiDiscrete or MultiBinary.
    """

    def __init__(self, space: Space[Any], num_envs: int, num_actions: int | None) -> None:
        _check_one_column(space, "actions")
        self._dtype = np.dtype(space.dtype)
        chunk = () if num_actions is None else (num_actions,)
        self._shape = (num_envs, *chunk, *(space.shape or ()))
        self._axes = f"[{', '.join(['B', *('K' for _ in chunk)])}, ...]"

    def read(self, actions: Any) -> NDArray[Any]:
        """Copy what the policy returned, in the element type of the action space.

        Returns:
            `[B, ...]`, or `[B, K, ...]` when there is an axis K.

        Raises:
            ColumnMismatchError: The shape differs, or a value cannot be held: a fraction where
                the space has integers, or one out of the element type's range. Floats may be
                rounded, but not to infinity.
            UnsupportedValueError: It is no array or tensor of a type that NumPy has.
        """
        array = copy_numpy(actions, "actions")
        if array.shape != self._shape:
            raise ColumnMismatchError(
                f"the policy returned actions {array.shape}, but the action space asks for "
                f"{self._axes} = {self._shape}; return one row for each env",
                column="actions",
            )
        cast = convert(array, array.dtype.name, self._dtype.name)
        if cast is None:
            raise ColumnMismatchError(
                f"the policy returned actions of {array.dtype}, but the action space holds "
                f"{self._dtype}, and some would change; return {self._dtype}",
                column="actions",
            )
        return cast


def _check_one_column(space: Space[Any], column: str) -> None:
    if not isinstance(space, _ONE_COLUMN):
        allowed = ", ".join(kind.__name__ for kind in _ONE_COLUMN)
        nested = " or a Dict of them" if column != "actions" else ""
        raise UnsupportedValueError(
            f"the space of {column!r} is {type(space).__name__}, but a column needs a fixed shape "
            f"and element type: {allowed}{nested}; use a wrapper that flattens it",
            column=column,
        )
    if not has_numpy_type(np.dtype(space.dtype).name):
        raise UnsupportedValueError(
            f"the space of {column!r} has elements of {space.dtype}, but no column has such; use "
            "float32 or another type of relive.dtypes.DTYPE_NAMES",
            column=column,
        )


def copy_numpy(value: Any, column: str) -> NDArray[Any]:
    """Copy an array or tensor into an array of our own.

    Raises:
        ColumnMismatchError: It is a list of rows of different lengths.
        UnsupportedValueError: It is of an element type that NumPy or a column lacks.
    """
    if type(value) is np.ndarray and value.dtype.isbuiltin == 1 and value.dtype.kind in "fiub":
        return np.array(value, order="C")  # nearly all are; `copy_in` takes ten times as long
    try:
        array, dtype = copy_in(value, column)
    except ValueError as error:
        raise ColumnMismatchError(
            f"column {column!r} is a {type(value).__name__} that NumPy takes for no array "
            f"({error}), but must have a row of the same shape for each env; make it an array",
            column=column,
        ) from error
    if not has_numpy_type(dtype):
        raise UnsupportedValueError(
            f"column {column!r} is {dtype}, but NumPy and so Gymnasium has no such type; return "
            "float32",
            column=column,
        )
    return array


def _read_column(
    value: Any, space: Space[Any], batch: tuple[int, ...], column: str
) -> NDArray[Any]:
    array = copy_numpy(value, column)
    dtype, shape = np.dtype(space.dtype), (*batch, *(space.shape or ()))
    if array.shape != shape or not np.can_cast(array.dtype, dtype, "same_kind"):
        raise ColumnMismatchError(
            f"{column!r} is {array.dtype} {array.shape}, but its space says {dtype} {shape}; "
            "correct the space, or what the environment returns",
            column=column,
        )
    cast = convert(array, array.dtype.name, dtype.name)
    if cast is None:
        raise ColumnMismatchError(
            f"{column!r} is {array.dtype}, but its space says {dtype}, in which some of it would "
            "be another number; correct the space, or what the environment returns",
            column=column,
        )
    return cast
