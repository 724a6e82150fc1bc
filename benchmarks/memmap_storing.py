# SPDX-License-Identifier: Apache-2.0
"""What memmap segments cost beside sampling: space, writing, checkpoints, a large index, memory."""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from protocol import Peer, PeerError
from report import Case, Figure, Finding, Measured, Target, ratio
from session import MEMMAP, Session, map_all, read_all
from workloads import WORKLOADS

__all__ = ["checkpoint", "disk_bytes", "memory", "size", "sustained"]

FEW = 1_000
"""Trajectories of the small index."""
FILL_BLOCK = 50_000
"""How many are added between two words on how far it is."""
ADDS = 200
"""Adds timed in one round, with their share of the writing."""
SUSTAINED_ROUNDS = 3
CHECKPOINTS = 5
MEMORY_BYTES = 500_000_000
"""What a process that samples a large store may have for itself."""
DISTINCT = 4
"""Trajectories made for a large store, which are stored again and again."""


def size(session: Session) -> list[Finding]:
    """Sampling and adding with a million trajectories of ten rows, against a thousand."""
    found: list[Finding] = []
    relive = _relive(session)
    folder = session.folder(relive)
    relive.call("open", _place("short", folder))
    cases: dict[str, list[Case]] = {"sample": [], "add": []}
    there = 0
    for count in (FEW, session.trajectories):
        there = _fill(session, relive, there, count - ADDS * (session.rounds + 1))
        session.note(f"size: measuring at {count:,} trajectories")
        adds = _adds(session, count)
        there = count
        read_all(folder)
        map_all(relive, count * WORKLOADS["short"].trajectory_bytes)
        rows = WORKLOADS["short"].steps * WORKLOADS["short"].envs
        name = f"{count:,} trajectories"
        sampled = session.in_turns("sample", {"num": 256})
        cases["sample"].append(Case("size", f"sample, n=256, of {name}", 256, sampled))
        cases["add"].append(Case("size", f"add, until stored, to {name}", rows, adds))
    for what, (few, many) in cases.items():
        found += [few, many]
        if session.of("floor") is not None:
            grown = _over_floor(many) / _over_floor(few)
            name = f"{what}, over the floor, {session.trajectories:,} against {FEW:,}"
            found.append(Figure("size", name, grown, "times", Target(at_most=1.5)))
    relive.call("close")
    found += _reopened(session, relive, folder)
    for peer in session.peers:
        if peer is not relive:
            peer.call("close")
        shutil.rmtree(session.scratch / peer.name)
    return found


def _fill(session: Session, relive: Peer, there: int, count: int) -> int:
    relive.call("prepare", {"count": 1})
    while there < count:
        block = min(FILL_BLOCK, count - there)
        seconds = relive.call("fill_alike", {"count": block}).seconds[0]
        there += block
        session.note(f"size: {there:,} trajectories, the last {block / seconds:,.0f} a second")
    return there


def _adds(session: Session, count: int) -> tuple[Measured, ...]:
    """Time adds, whose writing is waited for; open the floor at the same size first."""
    for peer in session.peers:
        if peer.name == "floor":
            if (session.scratch / peer.name).exists():
                peer.call("close")
            peer.call("open", {**_place("short", session.folder(peer)), "window": count})
    whole: dict[str, list[Sequence[float]]] = {peer.name: [] for peer in session.peers}
    for is_warm in [False] + [True] * session.rounds:
        for peer in session.peers:
            peer.call("prepare", {"count": 8})
            seconds = peer.call("fill", {"count": ADDS}).seconds[0]
            seconds += peer.call("settle").seconds[0]
            if is_warm:
                whole[peer.name].append([seconds / ADDS])
    return tuple(session.measured(peer, whole[peer.name]) for peer in session.peers)


def _over_floor(case: Case) -> float:
    ours, floor = case.of("relive"), case.of("floor")
    assert ours is not None
    assert floor is not None
    return ratio(ours, floor).median


def _reopened(session: Session, relive: Peer, folder: Path) -> list[Finding]:
    """Open a large store in fresh processes: how long it takes, and what it keeps in memory."""
    opened, kept = [], []
    for _ in range(3):
        fresh = Peer(relive.name, relive.python)
        try:
            empty = session.scratch / "empty"
            empty.mkdir()
            fresh.call("open", _place("short", empty))
            fresh.call("prepare", {"count": 1})
            fresh.call("add")
            fresh.call("settle")
            fresh.call("sample", {"num": 256})
            before = fresh.call("memory").value["Anonymous"]
            fresh.call("close")
            shutil.rmtree(empty)
            opening = {**_place("short", folder), "if_exists": "resume"}
            opened.append(fresh.call("open", opening).seconds[0])
            fresh.call("sample", {"num": 256})
            kept.append(fresh.call("memory").value["Anonymous"] - before)
            fresh.call("close")
        finally:
            fresh.close()
    num = session.trajectories
    each = statistics.median(kept) / num
    files = sum(1 for path in folder.rglob("*") if path.is_file())
    return [
        Figure("size", f"opening {num:,}", statistics.median(opened), "s", Target(at_most=3.0)),
        Figure("size", "private memory a trajectory", each, "bytes", Target(at_most=128)),
        Figure("size", "files", files, "files", Target(at_most=99)),
    ]


def disk_bytes(session: Session) -> list[Finding]:
    """Bytes on disk over those of the present and the next observations."""
    found: list[Finding] = []
    workload = WORKLOADS["image20"]
    count = 10
    logical = count * workload.observation_bytes
    for peer in session.peers:
        folder = session.folder(peer)
        options = MEMMAP if peer.name == "relive" else {"auto_save": True, "enable_cache": False}
        place = {"workload": workload.name, "folder": str(folder), "window": count}
        peer.call("open", {**place, **options})
        for _ in range(count):
            peer.call("prepare", {"count": 1})
            peer.call("add")
        peer.call("settle")
        # torchrl's files are gone when it is closed, so they are counted before
        used = sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())
        target = Target(at_most=0.55) if peer.name == "relive" else None
        name = f"image rows, T={workload.steps}, {session.versions[peer.name]}"
        found.append(Figure("disk-bytes", name, used / logical, "of curr_obs + next_obs", target))
    session.close_all()
    return found


def sustained(session: Session) -> list[Finding]:
    """Adding more than the kernel lets lie unwritten, until it is on the disk."""
    found: list[Finding] = []
    for name in session.workloads:
        workload = WORKLOADS[name]
        count = max(4, session.size_bytes(6) // workload.trajectory_bytes)
        rounds: dict[str, list[Sequence[float]]] = {peer.name: [] for peer in session.peers}
        for turn in range(min(session.rounds, SUSTAINED_ROUNDS)):
            for peer in session.peers:
                session.note(f"sustained: {peer.name} adds {count:,} {name} trajectories ({turn})")
                peer.call("open", _place(name, session.folder(peer)))
                peer.call("prepare", {"count": DISTINCT})
                seconds = peer.call("fill", {"count": count}).seconds[0]
                seconds += peer.call("settle").seconds[0] + peer.call("sync_files").seconds[0]
                rounds[peer.name].append([seconds])
                peer.call("close")
                shutil.rmtree(session.scratch / peer.name)
        rows = count * workload.steps * workload.envs
        what = f"{name} rows, {count * workload.trajectory_bytes / 1e9:.1f} GB, and fsync"
        measured = tuple(session.measured(peer, rounds[peer.name]) for peer in session.peers)
        target = Target(longer="floor", shorter="relive", at_least=0.8)
        found.append(Case("sustained", what, rows, measured, (target,)))
    return found


def checkpoint(session: Session) -> list[Finding]:
    """Saving a checkpoint of a large memmap store that is at rest."""
    found: list[Finding] = []
    relive = _relive(session)
    for name in session.workloads:
        workload = WORKLOADS[name]
        folder = session.folder(relive)
        count = max(4, session.size_bytes(2) // workload.stored_bytes)
        session.note(f"checkpoint: relive stores {count:,} {name} trajectories")
        relive.call("open", _place(name, folder / "store"))
        relive.call("prepare", {"count": DISTINCT})
        relive.call("fill", {"count": count})
        relive.call("settle")
        relive.call("sync_files")
        seconds = []
        for number in range(CHECKPOINTS):
            path = str(folder / f"checkpoint-{number}")
            seconds.append(relive.call("checkpoint", {"path": path}).seconds[0])
        held = f"{count * workload.stored_bytes / 1e9:.1f} GB, {count:,} {name} trajectories"
        median = statistics.median(seconds)
        limit = Target(at_most=1.0)
        found += [
            Figure("checkpoint", f"{held}, the first", seconds[0], "s", limit),
            Figure("checkpoint", f"{held}, median of {CHECKPOINTS}", median, "s", limit),
        ]
        session.close_all()
    return found


def memory(session: Session) -> list[Finding]:
    """Sampling a large memmap store in a process that may have little memory of its own."""
    found: list[Finding] = []
    relive = _relive(session)
    for name in session.workloads:
        workload = WORKLOADS[name]
        folder = session.folder(relive)
        count = max(4, session.size_bytes(20) // workload.stored_bytes)
        block = max(1, count // 16)
        session.note(f"memory: the {name} store is sparse: its rows are freed once written, and 0")
        relive.call("open", _place(name, folder))
        relive.call("prepare", {"count": DISTINCT})
        there = 0
        while there < count:
            relive.call("fill", {"count": min(block, count - there)})
            there += block
            relive.call("settle")
            relive.call("punch")
        relive.call("close")
        found += _limited(session, relive, name, folder)
        shutil.rmtree(folder)
    return found


def _limited(session: Session, relive: Peer, name: str, folder: Path) -> list[Finding]:
    """Sample in a fresh process that may not have more than so much."""
    held = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e9
    num, batches = min(256, WORKLOADS[name].num_rows), 400
    session.note(f"memory: sampling {batches} times {num} rows of {held:.1f} GB")
    fresh = Peer(relive.name, relive.python)
    try:
        fresh.call("limit_memory", {"size_bytes": MEMORY_BYTES})
        fresh.call("open", {**_place(name, folder), "if_exists": "resume"})
        timing = fresh.call("sample", {"num": num}, budget_s=60.0, max_calls=batches)
        if timing.value != num:
            raise PeerError(f"relive gave {timing.value} rows, not {num}")
        used: dict[str, int] = fresh.call("memory").value
        fresh.call("close")
    finally:
        fresh.close()
    what = f"{name} rows, {held:.1f} GB of files, {len(timing.seconds)} batches of {num}"
    limit = Target(at_most=MEMORY_BYTES / 1e6)
    return [
        Figure("memory", f"{what}: private memory", used["Anonymous"] / 1e6, "MB", limit),
        Figure("memory", f"{what}: resident, mapped files too", used["Rss"] / 1e6, "MB"),
    ]


def _relive(session: Session) -> Peer:
    relive = session.of("relive")
    if relive is None:
        raise PeerError("relive was left out, but this benchmark is about it")
    return relive


def _place(workload: str, folder: Path) -> dict[str, Any]:
    return {"workload": workload, "folder": str(folder), "window": 0, **MEMMAP}
