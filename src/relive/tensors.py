# SPDX-License-Identifier: Apache-2.0
"""The edge between the caller's tensors or arrays and the NumPy arrays held inside.

PyTorch is imported here, when a tensor is first made; recognising one needs no import, since
a tensor can only exist once its program has imported PyTorch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from relive.dtypes import DTYPE_NAMES, has_numpy_type, storage_dtype
from relive.errors import UnsupportedValueError
from relive.importing import importing
from relive.memory import own_copy

if TYPE_CHECKING:
    import torch

__all__ = [
    "Framework",
    "convert",
    "copy_in",
    "is_array",
    "is_tensor",
    "plain_wrapper",
    "shape_of",
    "wrap_out",
]

_SIGNED = {1: "int8", 2: "int16", 4: "int32"}
"""Integer types of PyTorch by their size in bytes, as which other types are copied."""

Framework = Literal["torch", "numpy"]
"""What batches and trajectories are made of when they leave."""


def is_tensor(value: object) -> bool:
    """Tell whether the value is a PyTorch tensor, without importing PyTorch."""
    # while another thread imports PyTorch the module is there, but its class may not be
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    return tensor is not None and isinstance(value, tensor)


def is_array(value: object) -> bool:
    """Tell whether the value is a tensor or a NumPy array or scalar."""
    return isinstance(value, (np.ndarray, np.generic)) or is_tensor(value)


def shape_of(value: Any, column: str) -> tuple[int, ...]:
    """Return the shape of a tensor or array.

    Raises:
        UnsupportedValueError: It is a nested tensor, which has none.
    """
    if getattr(value, "is_nested", False):
        raise UnsupportedValueError(
            f"column {column!r} is a nested tensor, but columns are [T, B, ...]; pad it",
            column=column,
        )
    return tuple(int(length) for length in value.shape)


def copy_in(value: Any, column: str) -> tuple[NDArray[Any], str]:
    """Copy a tensor or array into memory of our own: detached, on the CPU, contiguous.

    Args:
        value: A tensor on any device, strided in any way, or a NumPy array; may be read-only.
        column: The column's name, for the error.

    Returns:
        The copy in its storage type, and the name of its element type.

    Raises:
        UnsupportedValueError: The element type or the tensor's layout cannot be stored, or it is
            a masked array.
    """
    if is_tensor(value):
        return _copy_tensor(value, column)
    if isinstance(value, np.ma.MaskedArray):
        raise UnsupportedValueError(
            f"column {column!r} is a masked array, but columns hold no mask; give its filled(), "
            "and the mask as a column below extras",
            column=column,
        )
    array = np.asarray(value)
    native = array.dtype.newbyteorder("=")
    if not has_numpy_type(native.name):
        raise UnsupportedValueError(
            f"column {column!r} is a NumPy array of {array.dtype}, but columns hold "
            f"{', '.join(name for name in DTYPE_NAMES if has_numpy_type(name))}; convert it",
            column=column,
        )
    return own_copy(array, native), native.name


def _copy_tensor(tensor: torch.Tensor, column: str) -> tuple[NDArray[Any], str]:
    import torch

    name = str(tensor.dtype).removeprefix("torch.")
    if (
        tensor.layout is not torch.strided
        or tensor.device.type == "meta"
        or name not in DTYPE_NAMES
    ):
        raise UnsupportedValueError(
            f"column {column!r} is a tensor of {tensor.dtype}, {tensor.layout}, on "
            f"{tensor.device}, but columns hold dense tensors of {', '.join(DTYPE_NAMES)}; "
            "convert it",
            column=column,
        )
    plain = tensor.detach().cpu().resolve_conj().resolve_neg()
    if not has_numpy_type(name):
        plain = plain.view(getattr(torch, _SIGNED[storage_dtype(name).itemsize]))
    # NumPy copies: PyTorch would start a team of threads, which waits when cores are busy
    array = plain.numpy()
    return own_copy(array, array.dtype).view(storage_dtype(name)), name


def plain_wrapper(framework: Framework) -> Callable[[NDArray[Any]], Any]:
    """Return what does the work of `wrap_out` for element types that NumPy has."""
    if framework == "numpy":
        return _itself
    with importing.lock:
        import torch

    return torch.from_numpy


def _itself(array: NDArray[Any]) -> NDArray[Any]:
    return array


def wrap_out(array: NDArray[Any], dtype: str, framework: Framework, column: str) -> Any:
    """Hand an array of ours to the caller as what he asked for, without a copy.

    Args:
        array: Writable and contiguous, in the storage type of `dtype`; the caller owns it after.
        dtype: The name of its element type.
        framework: What to make of it.
        column: The column's name, for the error.

    Raises:
        UnsupportedValueError: NumPy was asked for, but has no such element type.
    """
    if framework == "numpy":
        if not has_numpy_type(dtype):
            raise UnsupportedValueError(
                f"column {column!r} is {dtype}, but NumPy has no such type; "
                'use framework="torch" or leave the column out with columns=',
                column=column,
            )
        return array
    with importing.lock:
        import torch

    if has_numpy_type(dtype):
        return torch.from_numpy(array)
    flat = torch.from_numpy(array.reshape(-1).view(np.uint8))
    return flat.view(getattr(torch, dtype)).reshape(array.shape)


def convert(values: NDArray[Any], dtype: str, target: str) -> NDArray[Any] | None:
    """Return numbers of one element type as the same numbers of another, None if it has them not.

    Between NumPy's own floats they may be rounded, but not to infinity.

    Args:
        values: In the storage type of `dtype`.
        dtype: The name of their element type.
        target: The name of the element type wanted.
    """
    if dtype == target:
        return values
    if dtype.startswith("complex") and not target.startswith("complex"):
        return None
    if not (has_numpy_type(dtype) and has_numpy_type(target)):
        return _convert_by_torch(values, dtype, target)
    with np.errstate(all="ignore"):
        converted = values.astype(target)
    if values.dtype.kind in "fc" and converted.dtype.kind in "fc":
        is_same = np.isfinite(converted) == np.isfinite(values)
    else:
        is_same = converted == values
    return converted if is_same.all() else None


def _convert_by_torch(values: NDArray[Any], dtype: str, target: str) -> NDArray[Any] | None:
    with importing.lock:
        import torch

    if "_x2" in dtype + target:  # two numbers in one element
        return None
    tensor = wrap_out(values.copy(), dtype, "torch", "")
    converted = tensor.to(getattr(torch, target))
    first, second = tensor.to(torch.complex128), converted.to(torch.complex128)
    is_same = torch.isclose(first, second, rtol=0, atol=0, equal_nan=True)
    return copy_in(converted, "")[0] if bool(is_same.all()) else None
