# SPDX-License-Identifier: Apache-2.0
"""What the rows of one column are, and what stands in for a column that is missing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relive.dtypes import TEXT, has_numpy_type, storage_dtype
from relive.errors import UnsupportedValueError
from relive.tensors import convert, copy_in, is_array

__all__ = ["ColumnSpec", "Default", "row_from_json", "row_to_json"]


@dataclass(frozen=True, slots=True)
class ColumnSpec:
    """Element type and row shape of one column."""

    dtype: str
    """PyTorch's name of the element type, such as "float32"; "text" for strings."""
    row_shape: tuple[int, ...] = ()
    """Shape of one row; () for one number or string."""

    @property
    def storage(self) -> np.dtype[Any]:
        """NumPy type in which rows are moved."""
        return storage_dtype(self.dtype)

    def check(self, default: NDArray[Any] | str | None) -> None:
        """Check what was read from a file: the spec itself, and what stands in for the column.

        Raises:
            KeyError: There is no such element type.
            ValueError: The shape is none, or the default is no row of the column.
        """
        storage = self.storage
        if any(length < 0 for length in self.row_shape):
            raise ValueError("a row has a negative length")
        if default is None:
            return
        if isinstance(default, str) or self.dtype == TEXT:
            fits = isinstance(default, str) and self == ColumnSpec(TEXT)
        else:
            fits = default.dtype == storage and self.takes(default.shape)
        if not fits:
            raise ValueError("a default is no row of its column")

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Tell whether an array of this shape broadcasts to a row."""
        try:
            return np.broadcast_shapes(shape, self.row_shape) == self.row_shape
        except ValueError:
            return False

    def __str__(self) -> str:
        """Return the spec as errors and tables show it."""
        return f"{self.dtype} {list(self.row_shape)}"


@dataclass(frozen=True, slots=True)
class Default:
    """What stands in for an optional column, and its own type and shape."""

    value: NDArray[Any] | str
    """A row, or an array that broadcasts to one, in the storage type of `spec`; or a string."""
    spec: ColumnSpec
    """Its own."""

    @classmethod
    def of(cls, name: str, value: Any) -> Default:
        """Read a declared value.

        Raises:
            UnsupportedValueError: No column can hold it.
        """
        if isinstance(value, str):
            return cls(str.__str__(value), ColumnSpec(TEXT))
        array = value if is_array(value) else np.asarray(value)
        if array.dtype == object:
            raise UnsupportedValueError(
                f"the default of column {name!r} is {value!r:.100}, but must be a number, an array "
                "or tensor of numbers, or a text; give what stands for a row that has none",
                column=name,
            )
        row, dtype = copy_in(array, name)
        return cls(row, ColumnSpec(dtype, row.shape))

    def value_for(self, spec: ColumnSpec) -> NDArray[Any] | str | None:
        """Return the value as rows of a column have it, or None when none of them can be it."""
        if isinstance(self.value, str) or spec.dtype == TEXT:
            return self.value if self.spec == spec else None
        if not spec.takes(self.value.shape):
            return None
        return convert(self.value, self.spec.dtype, spec.dtype)


def row_to_json(row: NDArray[Any]) -> dict[str, Any]:
    """Return an array as JSON values; what is no number in JSON stands as text."""
    # [...] of complex -> [..., 2], which JSON has numbers for
    parts = np.stack([row.real, row.imag], axis=-1) if row.dtype.kind == "c" else row
    value = parts.astype(object)
    if parts.dtype.kind == "f":
        value = np.where(np.isfinite(parts), value, parts.astype(str).astype(object))
    return {"dtype": row.dtype.name, "value": value.tolist()}


def row_from_json(entry: Any) -> NDArray[Any]:
    """Read what `row_to_json` gave.

    Raises:
        KeyError: It lacks its type or value.
        TypeError: It is something else.
        ValueError: The value has another form, or the type of no column.
        OverflowError: A number is larger than its type.
    """
    dtype = np.dtype(entry["dtype"])
    if not has_numpy_type(dtype.name):
        raise ValueError(f"{dtype} is the type of no column")
    if dtype.kind != "c":
        return np.array(entry["value"], dtype)
    part = np.dtype(f"f{dtype.itemsize // 2}")
    row: NDArray[Any] = np.array(entry["value"], part).view(dtype)[..., 0]
    return row
