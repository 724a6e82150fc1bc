# SPDX-License-Identifier: Apache-2.0
"""Sampling out of memmap segments: in memory beside the peers, and from the disk."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import page_cache
from protocol import Peer, PeerError
from report import Case, Finding, Measured, Target
from session import MEMMAP, Session, fill_stores, map_all
from workloads import WORKLOADS

__all__ = ["cold", "cold_test", "memmap"]

NUMS = (256, 1024, 4096)
COLD_NUM = 1024
COLD_ROUNDS = 5
"""A mapping as the kernel gives it takes several seconds a batch."""
COLD_CALLS = 4
"""Batches of relive and of O_DIRECT reads in a round, where those are short."""
SWITCHES, SWITCH_S = 10, 0.03
"""How often and how long with and without the test in one round: what is sought is small."""
MOST_RESIDENT = 0.01
"""Which part of the files may be in memory for rows to count as cold."""
COLD_TARGETS = {
    "state": (
        Target(longer="plain", shorter="relive", at_least=50),
        Target(longer="narrow", shorter="relive", at_least=20),
    ),
    "image": (
        Target(longer="plain", shorter="relive", at_least=15),
        Target(longer="direct", shorter="relive", at_least=0.8),
    ),
}


def memmap(session: Session) -> list[Finding]:
    """Sampling from memmap segments in memory; cpprb and RLinf in memory, torchrl on disk."""
    found: list[Finding] = []
    for name in session.workloads:
        fill_stores(session, "memmap", name, _options)
        for peer in session.peers:
            if peer.name in ("relive", "torchrl"):
                map_all(peer, WORKLOADS[name].num_rows * WORKLOADS[name].row_bytes)
        for num in NUMS if max(NUMS) <= WORKLOADS[name].num_rows else (16,):
            session.note(f"memmap: sampling {num} {name} rows")
            measured = session.in_turns("sample", {"num": num})
            found.append(
                Case("memmap", f"{name} rows, n={num}", num, measured, _targets(name, num))
            )
        session.close_all()
    return found


def _options(peer: Peer) -> Mapping[str, Any]:
    if peer.name == "rlinf":
        return {"auto_save": False, "enable_cache": True}
    return MEMMAP if peer.name == "relive" else {"auto_save": True, "enable_cache": False}


def _targets(workload: str, num: int) -> tuple[Target, ...]:
    if workload == "image":
        return (
            Target(longer="relive", shorter="floor", at_most=1 / 0.85),
            Target(longer="rlinf", shorter="relive", at_least=5),
        )
    return (
        Target(longer="relive", shorter="floor", at_most=2.0 if num <= 256 else 1.7),
        Target(longer="cpprb", shorter="relive", at_least=1.8),
        Target(longer="rlinf", shorter="relive", at_least=20),
    )


def cold(session: Session) -> list[Finding]:
    """Sampling rows that are not in memory, against plain mappings and O_DIRECT reads."""
    found: list[Finding] = []
    relive, floor = session.of("relive"), session.of("floor")
    if relive is None or floor is None:
        raise PeerError("cold is measured with relive and floor only")
    read_ahead = page_cache.read_ahead_kb(session.scratch)
    session.note(f"cold: this disk's read-ahead is {read_ahead or 'unknown'} KiB: that of 'plain'")
    session.note("cold: 'narrow' asks for the 128 KiB around each row and reads no further ahead")
    for name in session.workloads:
        num = min(COLD_NUM, WORKLOADS[name].num_rows // 4)
        num_rows = _fill_cold(session, name, relive, floor)
        share = _share_after_drop(session, relive, num)
        session.note(f"cold: {share:.2%} of relive's files are in memory after dropping them")
        if share > MOST_RESIDENT:
            raise PeerError(f"{share:.0%} of the files stay in memory, so no row is cold")
        ways: dict[str, tuple[Peer, str, Mapping[str, Any]]] = {
            "relive": (relive, "sample", {"num": num})
        }
        for how in ("plain", "narrow", "direct"):
            ways[how] = (floor, "sample_cold", {"num": num, "how": how})
        first = [_cold_call(*ways["relive"], num)]  # which finds out that rows are cold
        rounds: dict[str, list[Sequence[float]]] = {way: [] for way in ways}
        for _ in range(min(session.rounds, COLD_ROUNDS)):
            for way, (peer, method, arguments) in ways.items():
                calls = 1 if way in ("plain", "narrow") else COLD_CALLS
                timed = [_cold_call(peer, method, arguments, num) for _ in range(calls)]
                rounds[way].append(timed)
        what = f"{name} rows of {num_rows * WORKLOADS[name].row_bytes / 1e9:.1f} GB, n={num}"
        measured = tuple(
            session.labelled(way, _label(session, way, read_ahead), rounds[way]) for way in ways
        )
        found.append(Case("cold", what, num, measured, COLD_TARGETS.get(name, ())))
        surprised = (session.measured(relive, [first]),)
        found.append(Case("cold", f"{what}, the first batch after hot ones", num, surprised))
        session.close_all()
    return found


def _fill_cold(session: Session, name: str, relive: Peer, floor: Peer) -> int:
    """Make relive's store and bare files of as many rows; return how many."""
    workload = WORKLOADS[name]
    count = max(4, session.size_bytes(4) // workload.stored_bytes)
    rows = count * workload.steps * workload.envs
    for peer in (relive, floor):
        session.note(f"cold: {peer.name} stores {rows:,} {name} rows")
        folder = session.folder(peer)
        place = {"workload": name, "folder": str(folder), "window": 0}
        peer.call("open", {**place, **MEMMAP})
    relive.call("prepare", {"count": 4})
    relive.call("fill", {"count": count})
    relive.call("settle")
    floor.call("make_bare", {"num_rows": rows})
    return rows


def _share_after_drop(session: Session, relive: Peer, num: int) -> float:
    for _ in range(3):
        relive.call("sample", {"num": num})  # so that there is something to let go of
    relive.call("drop_pages", {"num": num})
    return page_cache.resident_share(session.scratch / relive.name)


def _cold_call(peer: Peer, method: str, arguments: Mapping[str, Any], num: int) -> float:
    peer.call("drop_pages", {"num": num})
    return peer.call(method, arguments).seconds[0]


def _label(session: Session, way: str, read_ahead: int | None) -> str:
    known = {
        "relive": session.versions["relive"],
        "plain": f"plain mapping, read-ahead {read_ahead} KiB",
        "narrow": "plain mapping, as at 128 KiB",
    }
    return known.get(way, "O_DIRECT by 32 threads")


def cold_test(session: Session) -> list[Finding]:
    """Sampling rows in memory with and without the test whether they are cold."""
    found: list[Finding] = []
    (peer,) = session.peers
    for name in session.workloads:
        fill_stores(session, "cold-test", name, _options)
        map_all(peer, WORKLOADS[name].num_rows * WORKLOADS[name].row_bytes)
        for num in NUMS if max(NUMS) <= WORKLOADS[name].num_rows else (16,):
            session.note(f"cold-test: sampling {num} {name} rows")
            rounds: dict[str, list[list[float]]] = {"relive": [], "untested": []}
            peer.call("sample", {"num": num})
            for _ in range(session.rounds):
                for seconds in rounds.values():
                    seconds.append([])
                for _, way in itertools.product(range(SWITCHES), rounds):
                    peer.call("test_for_cold", {"is_on": way == "relive"})
                    timing = peer.call("sample", {"num": num}, budget_s=SWITCH_S, max_calls=200)
                    rounds[way][-1] += timing.seconds
            peer.call("test_for_cold", {"is_on": True})
            measured: tuple[Measured, ...] = (
                session.measured(peer, rounds["relive"]),
                session.labelled("untested", "without the test", rounds["untested"]),
            )
            target = Target(longer="relive", shorter="untested", at_most=1.05)
            found.append(Case("cold-test", f"{name} rows, n={num}", num, measured, (target,)))
        session.close_all()
    return found
