# SPDX-License-Identifier: Apache-2.0
"""`relive.leases`: what left the index stays for those who began before, and no longer."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from records import make_record
from relive.leases import Leases, Retired


class LeasesAndSets(RuleBasedStateMachine):
    """Leases beside a plain list of who may still read what."""

    def __init__(self) -> None:
        super().__init__()
        self.leases: Leases[str] = Leases()
        self.held: dict[int, set[int]] = {}  # lease -> what it saw in the index
        self.present: set[int] = set()
        self.retired: set[int] = set()
        self.gone: set[int] = set()
        self.num_made = 0

    @rule()
    def add(self) -> None:
        self.present.add(self.num_made)
        self.num_made += 1

    @rule()
    def begin(self) -> None:
        lease = self.leases.begin()
        assert lease not in self.held
        self.held[lease] = set(self.present)

    @precondition(lambda self: self.present)
    @rule(data=st.data())
    def retire(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.present)))
        self.present.discard(number)
        self.retired.add(number)
        record = make_record(number)
        self.leases.retire(Retired(record, f"rows of {number}", lambda: self.gone.add(number)))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(sorted(self.held)))
        del self.held[lease]
        self.leases.end(lease)

    @invariant()
    def what_somebody_saw_can_be_found_and_nothing_is_let_go_twice(self) -> None:
        seen = set().union(*self.held.values())
        assert self.leases.num_held == len(self.held)
        for number in self.retired:
            found = self.leases.find(number)
            if number in seen:
                assert found is not None
                assert (found.record.trajectory_id, found.resident) == (number, f"rows of {number}")
                assert number not in self.gone
            if number in self.gone:
                assert found is None
        if not self.held:
            assert self.gone == self.retired


LeasesAndSets.TestCase.settings = settings(max_examples=50, deadline=None)
TestLeasesAgainstSets = LeasesAndSets.TestCase


class TestLeases:
    def test_without_a_reader_it_goes_at_once(self) -> None:
        leases: Leases[str] = Leases()
        gone: list[int] = []
        leases.retire(Retired(make_record(3), None, lambda: gone.append(3)))
        assert gone == [3]
        assert leases.find(3) is None

    def test_a_reader_that_came_later_keeps_nothing(self) -> None:
        leases: Leases[str] = Leases()
        gone: list[int] = []
        before = leases.begin()
        leases.retire(Retired(make_record(3), None, lambda: gone.append(3)))
        after = leases.begin()
        leases.end(before)
        assert gone == [3]
        leases.end(after)

    def test_of_two_with_one_id_each_goes_in_its_time(self) -> None:
        leases: Leases[str] = Leases()
        gone: list[str] = []
        first = leases.begin()
        leases.retire(Retired(make_record(3), "old", lambda: gone.append("old")))
        second = leases.begin()
        leases.retire(Retired(make_record(3), "new", lambda: gone.append("new")))
        leases.end(first)
        found = leases.find(3)
        assert gone == ["old"]
        assert found is not None
        assert found.resident == "new"
        leases.end(second)
        assert gone == ["old", "new"]
        assert leases.find(3) is None
