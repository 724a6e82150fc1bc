# SPDX-License-Identifier: Apache-2.0
"""The "memmap" format: segments of packed records, rows read at the speed of memory."""

from relive.formats.memmap.format import MemmapFormat
from relive.formats.memmap.segment_files import SEGMENTS_NAME, segment_path

__all__ = ["SEGMENTS_NAME", "MemmapFormat", "segment_path"]
