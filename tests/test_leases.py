# SPDX-License-Identifier: Apache-2.0
"""`relive.leases`: what left the index stays for those who began before, and no longer."""

from __future__ import annotations

import threading

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from records import make_record
from relive.leases import Lease, Leases, Retired


def take(leases: Leases[str]) -> Lease:
    lease = Lease()
    lease.acquire()
    leases.begin(lease)
    return lease


def give_back(leases: Leases[str], lease: Lease) -> None:
    lease.release()
    leases.end(lease)


class LeasesAndSets(RuleBasedStateMachine):
    """Leases beside a plain list of who may still read what."""

    def __init__(self) -> None:
        super().__init__()
        self.leases: Leases[str] = Leases()
        self.held: list[tuple[Lease, set[int]]] = []  # each with what it saw in the index
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
        self.held.append((take(self.leases), set(self.present)))

    @precondition(lambda self: self.present)
    @rule(data=st.data())
    def retire(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.present)))
        self.present.discard(number)
        self.retired.add(number)
        record = make_record(number)
        self.leases.retire(Retired(record, f"rows of {number}", lambda: self.gone.add(number)))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), is_told=st.booleans())
    def end(self, data: st.DataObject, is_told: bool) -> None:
        """Give a lease back; an exception may keep the reader from telling."""
        lease, _ = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        lease.release()
        if is_told:
            self.leases.end(lease)

    @invariant()
    def what_somebody_saw_can_be_found_and_nothing_is_let_go_twice(self) -> None:
        seen = set().union(*(what for _, what in self.held))
        assert bool(self.leases.threads()) == bool(self.held)
        for number in self.retired:
            found = self.leases.find(number)
            if number in seen:
                assert found is not None
                assert (found.record.trajectory_id, found.resident) == (number, f"rows of {number}")
                assert number not in self.gone
            if number in self.gone:
                assert found is None

    @precondition(lambda self: not self.held)
    @rule()
    def who_comes_and_goes_lets_the_rest_go(self) -> None:
        give_back(self.leases, take(self.leases))
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
        before = take(leases)
        leases.retire(Retired(make_record(3), None, lambda: gone.append(3)))
        after = take(leases)
        give_back(leases, before)
        assert gone == [3]
        give_back(leases, after)

    def test_of_two_with_one_id_each_goes_in_its_time(self) -> None:
        leases: Leases[str] = Leases()
        gone: list[str] = []
        first = take(leases)
        leases.retire(Retired(make_record(3), "old", lambda: gone.append("old")))
        second = take(leases)
        leases.retire(Retired(make_record(3), "new", lambda: gone.append("new")))
        give_back(leases, first)
        found = leases.find(3)
        assert gone == ["old"]
        assert found is not None
        assert found.resident == "new"
        give_back(leases, second)
        assert gone == ["old", "new"]
        assert leases.find(3) is None

    def test_what_a_reader_left_without_a_word_is_let_go_by_the_next(self) -> None:
        leases: Leases[str] = Leases()
        gone: list[int] = []
        lease = take(leases)
        leases.retire(Retired(make_record(3), None, lambda: gone.append(3)))
        lease.release()  # and `end` is never called
        assert gone == []
        give_back(leases, take(leases))
        assert gone == [3]
        assert leases.threads() == set()

    def test_a_forked_copy_keeps_its_own_reads_and_removes_nothing(self) -> None:
        leases: Leases[str] = Leases()
        gone: list[int] = []
        other = threading.Thread(target=take, args=(leases,))
        other.start()
        other.join()
        leases.retire(Retired(make_record(3), None, lambda: gone.append(3)))
        lease = take(leases)
        leases.retire(Retired(make_record(4), "rows", lambda: gone.append(4)))
        leases.after_fork()
        assert leases.threads() == {threading.get_ident()}
        assert leases.find(3) is None
        found = leases.find(4)
        assert found is not None
        assert found.resident == "rows"
        give_back(leases, lease)
        assert leases.find(4) is None
        assert gone == []
