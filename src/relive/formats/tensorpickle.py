# SPDX-License-Identifier: Apache-2.0
"""Tensors out of pickles, without PyTorch: where their bytes lie and how to read them.

A pickled tensor is a call of one of PyTorch's rebuild functions with a storage and a shape.
Here these calls build a `StoredTensor` that only describes it; nothing is imported or run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relive.dtypes import DTYPE_NAMES, storage_dtype
from relive.errors import CorruptFileError, UnsafePickleError
from relive.formats.unpickle import checked_items, unpickle
from relive.snapshot import Column

__all__ = ["ElementType", "Storage", "StorageType", "StoredTensor", "TensorGlobals", "storage_of"]

_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_LEGACY_VERSION = 1001
_MOST_EXPANDED = 64
_ALWAYS_ALLOWED_BYTES = 64 << 20
_OBJECT_BYTES = 64
_MOST_AXES = 32  # of NumPy before 2.0
_LARGEST_BYTES = 1 << 62


@dataclass(frozen=True, slots=True)
class ElementType:
    """A `torch.dtype`."""

    name: str
    """Without the "torch."."""


@dataclass(frozen=True, slots=True)
class StorageType:
    """A class of storages."""

    dtype: str | None
    """Its element type; None when it holds plain bytes."""


@dataclass(frozen=True, slots=True)
class Storage:
    """A stretch of bytes that tensors are views of."""

    memory: memoryview
    """The bytes it lies in."""
    offset: int
    """Where it begins in `memory`."""
    size_bytes: int
    """How long it is."""
    dtype: str | None
    """Element type; None for plain bytes."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor that lies somewhere in memory or in a mapped file."""

    memory: memoryview
    """The bytes it lies in."""
    offset: int
    """Where its first element lies in `memory`."""
    dtype: str
    """Name of its element type."""
    shape: tuple[int, ...]
    """Length of each axis."""
    strides: tuple[int, ...]
    """Bytes from one element to the next, for each axis."""

    def view(self) -> NDArray[Any]:
        """Return its elements in their storage type, as they lie."""
        dtype = storage_dtype(self.dtype)
        view: NDArray[Any] = np.ndarray(self.shape, dtype, self.memory, self.offset, self.strides)
        return view

    def column(self) -> Column:
        """Return it as a column: a view where it lies contiguous and aligned, else a copy."""
        return Column(np.require(self.view(), requirements=["C", "A"]), self.dtype)


_STORAGE_TYPES = {
    "Bool": "bool",
    "Byte": "uint8",
    "Char": "int8",
    "Short": "int16",
    "Int": "int32",
    "Long": "int64",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Float": "float32",
    "Double": "float64",
    "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
}


_STORAGES: Mapping[str, object] = {
    **{f"torch {name}Storage": StorageType(dtype) for name, dtype in _STORAGE_TYPES.items()},
    "torch UntypedStorage": StorageType(None),
    "torch.storage UntypedStorage": StorageType(None),
}

_ELEMENT_TYPES: Mapping[str, object] = {f"torch {name}": ElementType(name) for name in DTYPE_NAMES}


class TensorGlobals:
    """The globals that pickled tensors ask for, for one file.

    It keeps count of the bytes that the objects they make stand for: a few bytes of storage can
    be expanded to any shape, and a function be called on the same text any number of times.
    """

    def __init__(self, file_bytes: int) -> None:
        """Start counting.

        Args:
            file_bytes: Size of the file; its objects may stand for 64 times as much, and 64 MiB.
        """
        self._allowed_bytes = _ALWAYS_ALLOWED_BYTES + _MOST_EXPANDED * file_bytes

    def in_archive(self) -> dict[str, object]:
        """Return what a pickle may ask for whose storages are members of an archive."""
        return {**self._common(), **_STORAGES}

    def in_pickle(self) -> dict[str, object]:
        """Return what a pickle may ask for that holds its storages itself."""
        return {**self._common(), "torch.storage _load_from_bytes": self._load_storage}

    def _common(self) -> dict[str, object]:
        return {
            **_ELEMENT_TYPES,
            "torch._utils _rebuild_tensor_v2": self._rebuild_v2,
            "torch._utils _rebuild_tensor_v3": self._rebuild_v3,
            "torch Size": self._size,
            "collections OrderedDict": self._ordered_dict,
            "_codecs encode": self._encode,
        }

    def _charge(self, size_bytes: int) -> None:
        self._allowed_bytes -= size_bytes
        if self._allowed_bytes < 0:
            raise CorruptFileError(
                f"what it holds would take over {_MOST_EXPANDED} times its size, which no "
                "trajectory needs"
            )

    def _size(self, lengths: tuple[int, ...]) -> tuple[int, ...]:
        self._charge(_OBJECT_BYTES * len(lengths))
        return tuple(lengths)

    def _ordered_dict(self, items: Sequence[tuple[Any, Any]] = ()) -> dict[Any, Any]:
        self._charge(_OBJECT_BYTES * len(items))
        return checked_items((key, value) for key, value in items)

    def _encode(self, text: str, encoding: str) -> bytes:
        # how protocol 2 writes bytes
        if type(text) is not str or encoding != "latin1":
            raise UnsafePickleError("a pickle encodes something else than text as latin1")
        self._charge(len(text))
        return text.encode("latin1")

    def _load_storage(self, payload: bytes) -> Storage:
        if type(payload) is not bytes:
            raise CorruptFileError("a pickled storage has no bytes")
        self._charge(len(payload))
        return _load_storage(payload)

    def _rebuild_v2(
        self,
        storage: object,
        first: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        _requires_grad: object,
        _hooks: object,
        _metadata: object = None,
    ) -> StoredTensor:
        if not isinstance(storage, Storage) or storage.dtype is None:
            raise CorruptFileError("a pickled tensor has a storage without element type")
        return self._rebuild(storage, storage.dtype, first, shape, strides)

    def _rebuild_v3(
        self,
        storage: object,
        first: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        _requires_grad: object,
        _hooks: object,
        dtype: object,
        _metadata: object = None,
    ) -> StoredTensor:
        if not isinstance(storage, Storage) or not isinstance(dtype, ElementType):
            raise CorruptFileError("a pickled tensor has no storage or no element type")
        return self._rebuild(storage, dtype.name, first, shape, strides)

    def _rebuild(
        self,
        storage: Storage,
        dtype: str,
        first: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
    ) -> StoredTensor:
        numbers = (first, *shape, *strides)
        valid = len(shape) == len(strides) <= _MOST_AXES and all(
            type(number) is int and number >= 0 for number in numbers
        )
        item_bytes = storage_dtype(dtype).itemsize
        if not valid or math.prod(n or 1 for n in shape) * item_bytes > _LARGEST_BYTES:
            raise CorruptFileError("a pickled tensor has no valid shape")
        num_elements = math.prod(shape)
        last = first + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
        if num_elements and (last + 1) * item_bytes > storage.size_bytes:
            raise CorruptFileError("a pickled tensor reaches beyond the bytes of its storage")
        self._charge(num_elements * item_bytes)
        return StoredTensor(
            memory=storage.memory,
            offset=storage.offset + (first * item_bytes if num_elements else 0),
            dtype=dtype,
            shape=tuple(shape),
            # where there is no second element the pickle's number means nothing, and may be huge
            strides=tuple(
                stride * item_bytes if num_elements and n > 1 else 0
                for n, stride in zip(shape, strides, strict=True)
            ),
        )


def storage_of(
    type_: object, num_elements: object, memory: memoryview, offset: int, size_bytes: int
) -> Storage:
    """Return a storage after checking that its bytes are there.

    Args:
        type_: What the pickle names as its class.
        num_elements: How many elements the pickle says it has.
        memory: The bytes it lies in.
        offset: Where it begins.
        size_bytes: How many bytes there are for it.

    Raises:
        CorruptFileError: It has other bytes than it says.
    """
    if not isinstance(type_, StorageType) or type(num_elements) is not int:
        raise CorruptFileError("a pickled storage has no known type or length")
    item_bytes = storage_dtype(type_.dtype or "uint8").itemsize
    if not 0 <= num_elements * item_bytes <= size_bytes:
        raise CorruptFileError(
            f"a pickled storage has elements of {item_bytes} bytes that do not fit the "
            f"{size_bytes} bytes there are"
        )
    return Storage(memory, offset, num_elements * item_bytes, type_.dtype)


def _load_storage(payload: bytes) -> Storage:
    """Read one storage as PyTorch pickles it outside archives: torch.save's form before 1.6.

    That is five pickles (a magic number, a version, the machine's kind, the storage, the keys of
    all storages), the storage's length, and its bytes.
    """
    ids: list[tuple[Any, ...]] = []

    def note(persistent_id: Any) -> None:
        ids.append(persistent_id)

    magic = unpickle(payload, {})
    version = unpickle(payload, {}, start=magic.end)
    machine = unpickle(payload, {}, start=version.end)
    root = unpickle(payload, _STORAGES, note, start=machine.end)
    keys = unpickle(payload, {}, start=root.end)
    if magic.value != _LEGACY_MAGIC or version.value != _LEGACY_VERSION:
        raise CorruptFileError("a pickled storage is of an unknown form")
    if type(machine.value) is not dict or machine.value.get("little_endian") is not True:
        raise CorruptFileError("a pickled storage is of a big-endian machine, which is not read")
    if root.value is not None or len(ids) != 1 or type(ids[0]) is not tuple or len(ids[0]) != 6:
        raise CorruptFileError("a pickled storage is of an unknown form")
    kind, type_, key, _location, num_elements, view = ids[0]
    if kind != "storage" or type(key) is not str or keys.value != [key] or view is not None:
        raise CorruptFileError("a pickled storage is of an unknown form")
    start = keys.end + 8
    length = int.from_bytes(payload[keys.end : start], "little")
    if length != num_elements:
        raise CorruptFileError("a pickled storage has two lengths")
    return storage_of(type_, num_elements, memoryview(payload), start, len(payload) - start)
