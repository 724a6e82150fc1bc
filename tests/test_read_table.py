# SPDX-License-Identifier: Apache-2.0
"""`relive.formats.memmap.read_table`: rows read by several threads, out of few open files."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from processes import num_open_below
from relive import files
from relive.formats.memmap.read_table import ReadTable
from relive.formats.memmap.tables import UnknownSegmentError
from relive.places import PLACE_BITS

ROWS, LONG_S = 5, 30.0


@pytest.fixture
def table(tmp_path: Path) -> ReadTable:
    """Segments 0 to 39, whose row r of segment s is 100 * s + r."""
    table = ReadTable(8)
    for segment in range(40):
        (100 * segment + np.arange(ROWS)).astype("<i8").tofile(tmp_path / str(segment))
        table.add(segment, tmp_path / str(segment), ROWS)
    return table


def taken(table: ReadTable, numbers: list[int]) -> list[int]:
    """Return rows by what they should be."""
    segments, rows = np.array(numbers) // 100, np.array(numbers) % 100
    out = np.zeros(len(numbers), "<i8")
    table.take(segments, (segments << PLACE_BITS) + rows, {0: out})
    return list(map(int, out))


class TestTaking:
    def test_rows_of_many_segments_come_in_the_order_asked_for(self, table: ReadTable) -> None:
        asked = [3900, 4, 102, 3, 3900, 3904, 1203, 2]
        assert taken(table, asked) == asked

    def test_few_files_stay_open(self, table: ReadTable, tmp_path: Path) -> None:
        taken(table, [100 * segment for segment in range(40)])
        assert num_open_below(tmp_path) == 16
        table.close()
        assert num_open_below(tmp_path) == 0

    def test_a_segment_that_was_discarded_is_unknown(
        self, table: ReadTable, tmp_path: Path
    ) -> None:
        taken(table, [301, 400])
        table.discard(3)
        assert num_open_below(tmp_path) == 1
        with pytest.raises(UnknownSegmentError):
            taken(table, [400, 301])
        assert taken(table, [400]) == [400]


class TestThreads:
    def test_one_that_reads_keeps_no_other_from_reading(
        self, table: ReadTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        is_reading, may_go_on = threading.Event(), threading.Event()
        read_at, got = files.read_at, list[int]()

        def wait_first(*arguments: Any) -> None:
            if threading.current_thread() is slow:
                is_reading.set()
                may_go_on.wait(LONG_S)
            read_at(*arguments)

        monkeypatch.setattr(files, "read_at", wait_first)
        slow = threading.Thread(target=lambda: got.extend(taken(table, [501, 502])))
        slow.start()
        assert is_reading.wait(LONG_S)
        assert taken(table, [503, 601]) == [503, 601]  # the same file, and another one
        table.discard(5)
        may_go_on.set()
        slow.join(LONG_S)
        assert got == [501, 502]
        assert num_open_below(tmp_path) == 1  # of segment 6
