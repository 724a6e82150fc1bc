# SPDX-License-Identifier: Apache-2.0
"""Format "memmap": segments of packed records, rows at the speed of memory."""

from __future__ import annotations

from relive.formats import Format, MemmapFormat
from relive.testing import FormatConformance


class TestConformance(FormatConformance):
    def make_format(self) -> Format:
        return MemmapFormat()


class TestReadingConformance(FormatConformance):
    def make_format(self) -> Format:
        return MemmapFormat(read_mode="pread")


class TestSmallConformance(FormatConformance):
    """Every trajectory is larger than a segment."""

    def make_format(self) -> Format:
        return MemmapFormat(segment_bytes=1)
