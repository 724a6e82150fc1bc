# SPDX-License-Identifier: Apache-2.0
"""`relive.unsynced`: when what was stored is due to be synced, and who hears that it is."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from records import make_record
from relive import unsynced as unsynced_module
from relive.unsynced import Unsynced


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What the time is, as `now`."""
    clock = SimpleNamespace(now=100.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(unsynced_module, "time", clock)
    return clock


class TestUnsynced:
    def test_a_sync_is_due_some_time_after_the_first_and_not_the_last(
        self, clock: SimpleNamespace
    ) -> None:
        unsynced = Unsynced()
        assert (unsynced.due_in_s(), unsynced.is_due) == (None, False)
        unsynced.note(make_record(0), 8)
        most = unsynced.due_in_s()
        assert most is not None
        assert most > 0
        clock.now += most / 2
        unsynced.note(make_record(1), 8)
        assert (unsynced.due_in_s(), unsynced.is_due) == (most / 2, False)
        clock.now += most
        assert (unsynced.due_in_s(), unsynced.is_due) == (0.0, True)
        unsynced.mark_synced()
        assert (unsynced.records, unsynced.due_in_s()) == ([], None)
        unsynced.note(make_record(2), 8)
        assert unsynced.due_in_s() == most

    def test_many_bytes_are_due_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(unsynced_module, "_MOST_BYTES", 100)
        unsynced = Unsynced()
        for number in range(3):
            assert not unsynced.is_due
            unsynced.note(make_record(number), 40)
        assert unsynced.is_due
        unsynced.mark_synced()
        unsynced.note(make_record(3), 40)
        assert not unsynced.is_due

    def test_who_waits_hears_it_once_in_the_order_of_the_notes(self) -> None:
        unsynced, told = Unsynced(), list[int]()
        unsynced.note(make_record(0), 8, lambda: told.append(0))
        unsynced.note(make_record(1), 8)
        unsynced.note(make_record(2), 8, lambda: told.append(2))
        assert told == []
        unsynced.mark_synced()
        unsynced.mark_synced()
        assert told == [0, 2]
