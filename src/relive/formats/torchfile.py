# SPDX-License-Identifier: Apache-2.0
"""Files of `torch.save`, read without PyTorch and without running what is in them.

The file is an archive: a pickle, and one plainly stored member for each storage. What lies
beyond tensors and plain containers, and the older forms, are left to
`torch.load(weights_only=True)`.
"""

from __future__ import annotations

import io
import sys
import zlib
from dataclasses import dataclass
from pickle import UnpicklingError
from typing import Any

from relive.errors import CorruptFileError, UnsafePickleError
from relive.formats.archive import Member, read_members
from relive.formats.tensorpickle import Storage, TensorGlobals, storage_of
from relive.formats.unpickle import unpickle
from relive.importing import importing

__all__ = ["Decoded", "read_torch_file"]

_LEGACY_START = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_ARCHIVE_START = b"PK\x03\x04"
_MOST_OBJECTS = 1 << 20
_SAVE_PLAINLY = "save it again as a dict of tensors"


@dataclass(frozen=True, slots=True)
class Decoded:
    """What a file held."""

    tree: Any
    """Plain containers with a `StoredTensor`, or a PyTorch tensor, for each tensor."""
    num_steps: int
    """A bound for the number of objects that were made for it."""
    first_offset: int = 0
    """Where the bytes of the first tensor begin in the file."""


def read_torch_file(memory: memoryview, *, check_crc: bool) -> Decoded:
    """Read what `torch.save` wrote.

    Args:
        memory: The whole file; tensors are left where they are in it.
        check_crc: Whether to compare the checksums of the archive for all tensors.

    Raises:
        UnsafePickleError: It asks for more than tensors and plain containers.
        CorruptFileError: It is cut, damaged, or of another kind.
    """
    if memory[: len(_LEGACY_START)] == _LEGACY_START:
        return _load_with_torch(memory)
    if memory[: len(_ARCHIVE_START)] != _ARCHIVE_START:
        raise CorruptFileError("it is not a file that torch.save writes, or its start is damaged")
    reader = _Reader(memory, check_crc=check_crc)
    if not reader.has_our_byte_order():
        return _load_with_torch(memory)
    try:
        return reader.read()
    except UnsafePickleError as error:
        return _load_with_torch(memory, because=error)


class _Reader:
    """One archive while it is read."""

    def __init__(self, memory: memoryview, *, check_crc: bool) -> None:
        self._memory = memory
        self._check_crc = check_crc
        self._members = read_members(memory)
        self._folder = next(iter(self._members), "").split("/", 1)[0]
        self._offsets: dict[str, int] = {}

    def has_our_byte_order(self) -> bool:
        order = self._members.get(f"{self._folder}/byteorder")
        stored = "little" if order is None else str(self._bytes_of(order), "latin1")
        return stored == sys.byteorder == "little"

    def read(self) -> Decoded:
        pickle = self._bytes_of(self._member("data.pkl"), check_crc=True)
        admitted = TensorGlobals(len(self._memory)).in_archive()
        root = unpickle(bytes(pickle), admitted, self._load_storage)
        return Decoded(root.value, root.num_steps, min(self._offsets.values(), default=0))

    def _member(self, name: str) -> Member:
        member = self._members.get(f"{self._folder}/{name}")
        if member is None:
            raise CorruptFileError(f"the archive has no member {name!r:.200}")
        return member

    def _bytes_of(self, member: Member, *, check_crc: bool = False) -> memoryview:
        content = self._memory[member.offset : member.offset + member.size_bytes]
        if check_crc and member.crc32 and zlib.crc32(content) != member.crc32:
            raise CorruptFileError("a member of the archive is damaged: its checksum does not fit")
        return content

    def _load_storage(self, persistent_id: Any) -> Storage:
        if type(persistent_id) is not tuple or len(persistent_id) != 5:
            raise CorruptFileError("a pickled storage is of an unknown form")
        kind, type_, key, _location, num_elements = persistent_id
        if kind != "storage" or type(key) is not str:
            raise CorruptFileError("a pickled storage is of an unknown form")
        member = self._member(f"data/{key}")
        if key not in self._offsets:
            self._bytes_of(member, check_crc=self._check_crc)
            self._offsets[key] = member.offset
        return storage_of(type_, num_elements, self._memory, member.offset, member.size_bytes)


def _load_with_torch(memory: memoryview, because: UnsafePickleError | None = None) -> Decoded:
    with importing.lock:
        import torch

    try:
        tree = torch.load(io.BytesIO(memory), map_location="cpu", weights_only=True)
    except Exception as error:  # whatever PyTorch raises, the file is one it refuses
        if because is not None:
            raise UnsafePickleError(f"{because}; {_SAVE_PLAINLY}") from error
        # the reason is one line in the midst of advice to load the file with less care
        reason = str(error).partition("\n\nCheck the documentation")[0].rpartition("\n")[2].strip()
        said = f"torch.load(weights_only=True) refuses it: {reason.rstrip('.'):.200}"
        if isinstance(error, UnpicklingError):
            raise UnsafePickleError(f"{said}; {_SAVE_PLAINLY}") from error
        raise CorruptFileError(said) from error
    return Decoded(tree, min(len(memory), _MOST_OBJECTS))
