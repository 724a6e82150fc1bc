# SPDX-License-Identifier: Apache-2.0
"""The texts of one segment: `texts.bin` and `text_ends.bin`.

Records hold codes, numbers of texts in the order in which they were first written. Both files
only grow; texts stay on the disk and are read when a batch has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from relive import files, open_files
from relive.errors import CorruptFileError

__all__ = ["ENDS_NAME", "TEXTS_NAME", "TextWriter", "check_texts", "read_texts"]

TEXTS_NAME = "texts.bin"
"""Texts one after the other, UTF-8 (with lone surrogates as such)."""

ENDS_NAME = "text_ends.bin"
"""Where each text ends in `texts.bin`, as little-endian uint64."""

_END = np.dtype("<u8")
_MOST_REMEMBERED = 1 << 16
_MOST_TEXTS = 1 << 31  # codes are int32


class TextWriter:
    """Gives texts codes. Not safe for several threads at once."""

    def __init__(self, path: Path, *, is_new: bool) -> None:
        """Begin, or go on behind what is there.

        Args:
            path: Folder of the segment.
            is_new: Whether it has no texts yet.

        Raises:
            OSError: The disk refused.
        """
        self.num = 0 if is_new else files.size_bytes(path / ENDS_NAME) // _END.itemsize
        """How many texts there are."""
        self._end = 0 if is_new else files.size_bytes(path / TEXTS_NAME)
        self._codes: dict[str, int] = {}  # of those used last; others get another code
        self._texts = open_files.GrowingFile(path / TEXTS_NAME, is_new=is_new)
        try:
            self._ends = open_files.GrowingFile(path / ENDS_NAME, is_new=is_new)
        except BaseException:  # Ctrl+C among others: no descriptor stays open
            self._texts.close()
            raise

    @property
    def size_bytes(self) -> int:
        """Bytes of both files."""
        return self._end + self.num * _END.itemsize

    def has_room(self, num: int) -> bool:
        """Tell whether so many texts may still come."""
        return self.num + num <= _MOST_TEXTS

    def codes(self, texts: Sequence[str]) -> NDArray[np.int32]:
        """Return the code of each text, writing those that are new.

        Raises:
            OSError: The disk refused; what was there is as it was.
        """
        new = [text for text in dict.fromkeys(texts) if text not in self._codes]
        blocks = [text.encode("utf-8", "surrogatepass") for text in new]
        ends = self._end + np.cumsum([len(block) for block in blocks], dtype=np.int64)
        if new:
            self._texts.write_at(self._end, b"".join(blocks))
            self._ends.write_at(self.num * _END.itemsize, ends.astype(_END).tobytes())
            self._end = int(ends[-1])
        given = dict(zip(new, range(self.num, self.num + len(new)), strict=True))
        self.num += len(new)
        codes = [self._codes[text] if text in self._codes else given[text] for text in texts]
        self._codes |= given
        while len(self._codes) > _MOST_REMEMBERED:
            del self._codes[next(iter(self._codes))]
        return np.array(codes, np.int32)

    def sync(self) -> None:
        """Make what was written survive a power loss."""
        self._texts.sync()
        self._ends.sync()

    def close(self) -> None:
        """Close the files, until more is written; twice is fine."""
        self._texts.close()
        self._ends.close()


def check_texts(path: Path) -> bool:
    """Refuse texts that are cut.

    Args:
        path: Folder of the segment.

    Returns:
        Whether nothing lies behind the last text. Else a write was cut off, or it is not the last:
        then codes beyond are in use, which no other text must get.

    Raises:
        CorruptFileError: The last of them is not whole.
        OSError: A file cannot be read.
    """
    num = files.size_bytes(path / ENDS_NAME) // _END.itemsize
    size, end = files.size_bytes(path / TEXTS_NAME), 0
    if num:
        place = (num - 1) * _END.itemsize
        end = int(np.frombuffer(files.read_part(path / ENDS_NAME, place, _END.itemsize), _END)[0])
        if end > size:
            raise CorruptFileError(f"it has {size} bytes, but {end} of them are in use")
    return end == size


def read_texts(path: Path, codes: Sequence[int]) -> list[str]:
    """Return texts of a segment by their codes.

    Args:
        path: Folder of the segment.
        codes: In rising order, each once.

    Raises:
        CorruptFileError: There is no such text.
        OSError: A file cannot be read.
    """
    if not codes:
        return []
    num = files.size_bytes(path / ENDS_NAME) // _END.itemsize
    if not 0 <= codes[0] <= codes[-1] < num:
        raise CorruptFileError(
            f"a code is {codes[0]} or {codes[-1]}, but {str(path / ENDS_NAME)!r} has {num} texts; "
            "restore it from a copy",
            path=str(path / ENDS_NAME),
        )
    first = max(0, codes[0] - 1)
    block = files.read_part(
        path / ENDS_NAME, first * _END.itemsize, (codes[-1] + 1 - first) * _END.itemsize
    )
    ends = np.frombuffer(block, _END).astype(np.int64)
    start = int(ends[codes[0] - 1 - first]) if codes[0] else 0
    stop = int(ends[-1])
    if (np.diff(ends, prepend=start if codes[0] == 0 else ends[0]) < 0).any():
        raise CorruptFileError(
            f"{str(path / ENDS_NAME)!r} has ends that fall, but they rise; restore it from a copy",
            path=str(path / ENDS_NAME),
        )
    raw = files.read_part(path / TEXTS_NAME, start, stop - start)
    texts = []
    for code in codes:
        begin = int(ends[code - 1 - first]) if code else 0
        text = raw[begin - start : int(ends[code - first]) - start]
        texts.append(text.decode("utf-8", "surrogatepass"))
    return texts
