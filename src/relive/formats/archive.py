# SPDX-License-Identifier: Apache-2.0
"""Where the members of a zip archive lie, for archives that store them plainly.

`torch.save` writes such archives, so the bytes of a tensor are a stretch of the file. Python's
zipfile would give the same answers several times slower, and not the one wanted most: the
place of a member's first byte.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from relive.errors import CorruptFileError

__all__ = ["Member", "read_members"]

# Layouts from PKWARE's APPNOTE.TXT, sections 4.3.7, 4.3.12, 4.3.14 to 4.3.16 and 4.5.3.
_LOCAL = struct.Struct("<4s22xHH")
_CENTRAL = struct.Struct("<4s4xHH4xIIIHHH8xI")
_END = struct.Struct("<4s4xHHIIH")
_END_64_LOCATOR = struct.Struct("<4s4xQ4x")
_END_64 = struct.Struct("<4s20xQQQQ")
_LONGEST_COMMENT = 0xFFFF
_IN_EXTRA = 0xFFFFFFFF
_ENCRYPTED = 1


@dataclass(frozen=True, slots=True)
class Member:
    """One file inside an archive."""

    offset: int
    """Where its first byte lies in the archive."""
    size_bytes: int
    """How long it is."""
    crc32: int
    """Checksum of its bytes; 0 when the writer computed none."""


def read_members(archive: memoryview) -> dict[str, Member]:
    """Read the directory of a zip archive.

    Args:
        archive: The whole file.

    Returns:
        The members by their full names, in the order of the directory.

    Raises:
        CorruptFileError: It is no archive, is cut or damaged, or a member is compressed or
            encrypted.
    """
    try:
        count, size, start = _find_directory(archive)
        if start + size > len(archive):
            raise CorruptFileError("the archive is cut inside its directory")
        members: dict[str, Member] = {}
        position = start
        for _ in range(count):
            name, member, position = _read_entry(archive, position, start)
            if name in members:
                raise CorruptFileError(f"the archive has two members {name!r:.200}")
            members[name] = member
    except (struct.error, UnicodeDecodeError) as error:
        raise CorruptFileError(f"the archive's directory is damaged: {error}") from error
    if position > start + size:
        raise CorruptFileError("the archive's directory is longer than it says")
    return members


def _find_directory(archive: memoryview) -> tuple[int, int, int]:
    """Return the number of members, and the size and the start of the directory."""
    tail_start = max(len(archive) - _END.size - _LONGEST_COMMENT, 0)
    at_end = len(archive) - _END.size
    if at_end < 0 or bytes(archive[at_end : at_end + 4]) != b"PK\x05\x06":
        at_end = tail_start + bytes(archive[tail_start:]).rfind(b"PK\x05\x06")
        if at_end < tail_start:
            raise CorruptFileError("the archive is cut, or is no archive: it has no directory")
    _, _, count, size, start, _ = _END.unpack_from(archive, at_end)
    at_locator = at_end - _END_64_LOCATOR.size
    if at_locator >= 0 and bytes(archive[at_locator : at_locator + 4]) == b"PK\x06\x07":
        _, at_end_64 = _END_64_LOCATOR.unpack_from(archive, at_locator)
        if at_end_64 > len(archive):
            raise CorruptFileError("the archive's directory lies outside it")
        signature, _, count, size, start = _END_64.unpack_from(archive, at_end_64)
        if signature != b"PK\x06\x06":
            raise CorruptFileError("the archive's 64-bit directory is damaged")
    if count * _CENTRAL.size > size:
        raise CorruptFileError(f"the archive's directory names {count} members in {size} bytes")
    return count, size, start


def _read_entry(archive: memoryview, position: int, end: int) -> tuple[str, Member, int]:
    """Read one entry of the directory; return name, member and the place of the next entry."""
    fields = _CENTRAL.unpack_from(archive, position)
    signature, flags, method, crc32, packed, size, *lengths, header = fields
    name_length, extra_length, comment_length = lengths
    if signature != b"PK\x01\x02":
        raise CorruptFileError("the archive's directory is damaged")
    name_start = position + _CENTRAL.size
    extra_start = name_start + name_length
    name = str(archive[name_start:extra_start], "utf-8")
    if _IN_EXTRA in (packed, size, header):
        extra = archive[extra_start : extra_start + extra_length]
        size, packed, header = _wide_numbers(extra, size, packed, header)
    if method or flags & _ENCRYPTED or packed != size:
        raise CorruptFileError(
            f"member {name!r:.200} is compressed or encrypted, but torch.save stores members as "
            "they are"
        )
    if header + _LOCAL.size > end:
        raise CorruptFileError(f"member {name!r:.200} lies outside the archive")
    local_signature, local_name, local_extra = _LOCAL.unpack_from(archive, header)
    offset = header + _LOCAL.size + local_name + local_extra
    if local_signature != b"PK\x03\x04" or offset + size > end:
        raise CorruptFileError(f"member {name!r:.200} lies outside the archive, or is overwritten")
    return name, Member(offset, size, crc32), extra_start + extra_length + comment_length


def _wide_numbers(extra: memoryview, *numbers: int) -> list[int]:
    """Replace what did not fit 32 bits by the 64-bit numbers of the extra field, in its order."""
    position = 0
    while position + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, position)
        if kind == 1:
            wide = iter(extra[position + 4 : position + 4 + length // 8 * 8].cast("Q"))
            try:
                return [next(wide) if number == _IN_EXTRA else number for number in numbers]
            except StopIteration:
                break
        position += 4 + length
    raise CorruptFileError("the archive's directory lacks a 64-bit number")
