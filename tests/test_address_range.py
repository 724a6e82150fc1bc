# SPDX-License-Identifier: Apache-2.0
"""Files side by side in one range of addresses."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from processes import num_open_below
from programs import run_program
from relive.address_range import PAGE_BYTES, AddressRange


def make(path: Path, number: int, num_rows: int, row_bytes: int = 16) -> Path:
    """Write a file whose row r begins with `1_000_000 * number + r`, int64."""
    rows = np.zeros((num_rows, row_bytes), np.uint8)
    rows[:, :8] = (1_000_000 * number + np.arange(num_rows))[:, None].view(np.uint8).reshape(-1, 8)
    path.write_bytes(rows.tobytes())
    return path


def first(
    place: AddressRange, slot: int, rows: NDArray[np.int64], row_bytes: int = 16
) -> list[int]:
    """Take rows of a slot; return the number that each begins with."""
    items = place.rows(np.dtype((np.void, row_bytes)))
    taken = items.take(slot * place.rows_per_slot + rows)
    numbers: list[int] = (
        taken.view(np.uint8).reshape(-1, row_bytes)[:, :8].copy().view("<i8")[:, 0].tolist()
    )
    return numbers


class TestAddressRange:
    @pytest.mark.parametrize("row_bytes", [8, 16, 24, 4096, 4099, 49_152, 568])
    def test_rows_of_several_files_are_taken_by_one_array(
        self, row_bytes: int, tmp_path: Path
    ) -> None:
        place = AddressRange(row_bytes, 50)
        assert place.rows_per_slot >= 50
        assert place.slot_bytes == place.rows_per_slot * row_bytes
        assert place.slot_bytes % PAGE_BYTES == 0
        slots = [place.map(make(tmp_path / str(n), n, 50, row_bytes)) for n in range(5)]
        assert len(set(slots)) == 5
        at = np.concatenate([[slot * place.rows_per_slot + r for r in (0, 49)] for slot in slots])
        assert first(place, 0, at, row_bytes) == [
            1_000_000 * n + r for n in range(5) for r in (0, 49)
        ]
        place.close()

    def test_addresses_begin_and_slots_follow_where_it_says(self, tmp_path: Path) -> None:
        place = AddressRange(16, 50)
        rows = place.rows(np.dtype(np.uint8))
        assert rows.ctypes.data == place.address
        assert len(rows) == place.num_slots * place.slot_bytes
        assert not rows.flags.writeable
        place.close()

    def test_what_a_file_grows_by_is_seen(self, tmp_path: Path) -> None:
        place = AddressRange(16, 5000)
        slot = place.map(make(tmp_path / "a", 1, 3))
        assert first(place, slot, np.array([2])) == [1_000_002]
        whole = make(tmp_path / "b", 1, 5000).read_bytes()
        with (tmp_path / "a").open("r+b", buffering=0) as file:
            os.pwrite(file.fileno(), whole[3 * 16 :], 3 * 16)
        assert first(place, slot, np.array([2, 3, 4999])) == [1_000_002, 1_000_003, 1_004_999]
        place.close()

    def test_an_empty_file_may_be_mapped_and_grow(self, tmp_path: Path) -> None:
        place = AddressRange(16, 50)
        (tmp_path / "a").touch()
        slot = place.map(tmp_path / "a")
        make(tmp_path / "a", 4, 2)
        assert first(place, slot, np.array([1])) == [4_000_001]
        place.close()

    def test_a_slot_that_is_free_again_is_used_again(self, tmp_path: Path) -> None:
        place = AddressRange(16, 50)
        slots = [place.map(make(tmp_path / str(n), n, 50)) for n in range(3)]
        for n in range(3, 30):
            place.unmap(slots[n % 3])
            slots[n % 3] = place.map(make(tmp_path / str(n), n, 50))
            for one in range(3):
                expected = 1_000_000 * (n - (n - one) % 3) + 49
                assert first(place, slots[one], np.array([49])) == [expected]
        assert max(slots) <= 3
        place.close()

    def test_a_removed_file_stays_readable_until_it_is_unmapped(self, tmp_path: Path) -> None:
        place = AddressRange(16, 50)
        path = make(tmp_path / "a", 7, 50)
        slot = place.map(path)
        path.unlink()
        assert first(place, slot, np.array([31])) == [7_000_031]
        assert str(path) in Path("/proc/self/maps").read_text()
        place.unmap(slot)
        assert str(path) not in Path("/proc/self/maps").read_text()
        place.close()

    def test_a_file_that_is_not_there_takes_no_slot(self, tmp_path: Path) -> None:
        place = AddressRange(16, 50)
        for _ in range(3):
            with pytest.raises(FileNotFoundError):
                place.map(tmp_path / "gone")
        slot = place.map(make(tmp_path / "a", 1, 50))
        assert slot == 0
        place.close()

    def test_no_descriptor_stays_open(self, tmp_path: Path) -> None:
        before = num_open_below(tmp_path)
        place = AddressRange(16, 50)
        for n in range(20):
            place.map(make(tmp_path / str(n), n, 50))
        assert num_open_below(tmp_path) == before
        place.close()

    def test_it_is_full_when_each_slot_is_taken(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("relive.address_range._MOST_SLOTS", 3)
        place = AddressRange(16, 50)
        assert place.num_slots == 3
        was_full = []
        for n in range(3):
            was_full.append(place.is_full)
            slot = place.map(make(tmp_path / str(n), n, 50))
        was_full.append(place.is_full)
        place.unmap(slot)
        assert [*was_full, place.is_full] == [False, False, False, True, False]
        place.close()

    def test_closing_and_forgetting_give_the_addresses_back(self, tmp_path: Path) -> None:
        path = make(tmp_path / "a", 1, 50)
        for way in ("close", "forget"):
            place = AddressRange(16, 50)
            place.map(path)
            assert str(path) in Path("/proc/self/maps").read_text()
            if way == "close":
                place.close()
                place.close()
            del place
            gc.collect()
            assert str(path) not in Path("/proc/self/maps").read_text()

    def test_rows_that_are_held_keep_their_addresses(self, tmp_path: Path) -> None:
        """A thread may still be reading when the range is forgotten."""
        place = AddressRange(16, 50)
        slot = place.map(make(tmp_path / "a", 1, 50))
        rows = place.rows(np.dtype((np.void, 16)))
        at = slot * place.rows_per_slot + 7
        del place
        gc.collect()
        assert int(rows[at : at + 1].view(np.uint8)[:8].view("<i8")[0]) == 1_000_007

    def test_it_takes_addresses_and_no_memory(self) -> None:
        before = _resident_kb()
        ranges = [AddressRange(568, 2_000_000) for _ in range(8)]
        assert min(one.num_slots * one.slot_bytes for one in ranges) > 100 << 30
        assert _resident_kb() - before < 20_000
        for one in ranges:
            one.close()

    def test_without_addresses_for_one_slot_it_is_told(self) -> None:
        program = (
            "import resource\n"
            "from relive.address_range import AddressRange\n"
            "resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))\n"
            "small = AddressRange(1024, 1 << 20)\n"
            "assert small.num_slots >= 1\n"
            "try:\n"
            "    AddressRange(1024, 1 << 23)\n"
            "except MemoryError as error:\n"
            "    print(error)\n"
        )
        assert "no addresses for 8589934592 bytes" in run_program(program)


def _resident_kb() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    (resident,) = [line.split()[1] for line in lines if line.startswith("VmRSS:")]
    return int(resident)
