# SPDX-License-Identifier: Apache-2.0
"""The element types a column may have, by PyTorch's names, without importing PyTorch.

Most have a NumPy type of the same name. The others (bfloat16, the float8 family, complex32)
are moved as unsigned integers of their width, "storage type" below, and get their own type
back only at the edge, in `relive.tensors`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = [
    "DTYPE_NAMES",
    "MOST_ITEM_BYTES",
    "TEXT",
    "has_numpy_type",
    "items_dtype",
    "storage_dtype",
]

TEXT = "text"
"""Stands for the element type of a column of strings, which are held as codes into a table."""

_NATIVE = (
    "bool",
    "uint8",
    "int8",
    "uint16",
    "int16",
    "uint32",
    "int32",
    "uint64",
    "int64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
)
_MOVED_AS = {
    "bfloat16": "uint16",
    "complex32": "uint32",
    "float8_e4m3fn": "uint8",
    "float8_e4m3fnuz": "uint8",
    "float8_e5m2": "uint8",
    "float8_e5m2fnuz": "uint8",
    "float8_e8m0fnu": "uint8",
    "float4_e2m1fn_x2": "uint8",
}

DTYPE_NAMES = (*_NATIVE, *_MOVED_AS)
"""Every element type of numbers that a column may have."""

_STORAGE = {name: np.dtype(_MOVED_AS.get(name, name)) for name in DTYPE_NAMES}
_STORAGE[TEXT] = np.dtype(np.int32)


def storage_dtype(name: str) -> np.dtype[np.generic]:
    """Return the NumPy type in which columns of this element type are held and moved.

    Args:
        name: One of `DTYPE_NAMES`, or `TEXT`.

    Raises:
        KeyError: `name` is none of them.

    Example:
        >>> storage_dtype("bfloat16")
        dtype('uint16')
    """
    return _STORAGE[name]


MOST_ITEM_BYTES = (1 << 31) - 1
"""Rows of more bytes cannot be copied as one item."""


def items_dtype(row_bytes: int) -> np.dtype[Any]:
    """Return the type that copies rows of so many bytes fastest, one item a row.

    Example:
        >>> items_dtype(4), items_dtype(12)
        (dtype('uint32'), dtype('V12'))
    """
    return np.dtype(f"u{row_bytes}" if row_bytes in (1, 2, 4, 8) else (np.void, row_bytes))


def has_numpy_type(name: str) -> bool:
    """Tell whether NumPy has this element type itself.

    Example:
        >>> has_numpy_type("float16"), has_numpy_type("bfloat16")
        (True, False)
    """
    return name in _NATIVE
