# SPDX-License-Identifier: Apache-2.0
"""The benchmarks: which jobs, on which data, in which order.

Each gets a `Session` and returns the lines of one table. Here are those that are not about the
memmap format alone, and the list of all.
"""

from __future__ import annotations

import itertools
import shutil
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memmap_sampling import cold, cold_test, memmap
from memmap_storing import checkpoint, disk_bytes, memory, size, sustained
from protocol import Peer
from report import Case, Finding, Target
from session import Session, fill_stores
from workloads import WORKLOADS

__all__ = ["BENCHMARKS", "Benchmark"]

JOURNAL_BLOCK = 100
"""How many adds are timed, after all those before."""
FOLDED_TRAJECTORIES = 5_000
"""How many records each fold writes."""
FOLDING_S = 3.0
"""How long a round samples beside folds: hundreds of samples say little of the longest."""


def pt(session: Session) -> list[Finding]:
    """Sampling from pt files that the page cache holds, without the library's own cache."""
    return _sampling(session, "pt", auto_save=True, enable_cache=False, nums=(256, 1024))


def cached(session: Session) -> list[Finding]:
    """Sampling from memory only: every trajectory is in the library's own cache."""
    return _sampling(session, "cached", auto_save=False, enable_cache=True, nums=(256, 1024, 4096))


def _sampling(
    session: Session, benchmark: str, auto_save: bool, enable_cache: bool, nums: Sequence[int]
) -> list[Finding]:
    def options(peer: Peer) -> Mapping[str, Any]:
        return {"auto_save": auto_save, "enable_cache": enable_cache}

    cases: list[Finding] = []
    for name in session.workloads:
        fill_stores(session, benchmark, name, options)
        for num in nums if max(nums) <= WORKLOADS[name].num_rows else (16,):
            session.note(f"{benchmark}: sampling {num} {name} rows")
            measured = session.in_turns("sample", {"num": num})
            cases.append(Case(benchmark, f"{name} rows, n={num}", num, measured))
        session.close_all()
    return cases


def add(session: Session) -> list[Finding]:
    """Adding one trajectory: the call alone, and with its share of the writing that follows."""
    found: list[Finding] = []
    for where, name in itertools.product(("pt files", "memmap", "memory only"), session.workloads):
        session.note(f"add: {name} trajectories to {where}")
        workload = WORKLOADS[name]
        count = max(3, min(20, (128 << 20) // workload.trajectory_bytes))
        options = {"auto_save": where != "memory only", "enable_cache": True}
        for peer in session.peers:
            place = {"workload": name, "folder": str(session.folder(peer)), "window": 20}
            if where == "memmap" and peer.name != "rlinf":  # which writes pt files here too
                place["trajectory_format"] = "memmap"
            peer.call("open", {**place, **options})  # as by default
        calls: dict[str, list[Sequence[float]]] = {peer.name: [] for peer in session.peers}
        whole: dict[str, list[Sequence[float]]] = {peer.name: [] for peer in session.peers}
        for warm_up in [True] + [False] * session.rounds:
            for peer in session.peers:
                peer.call("prepare", {"count": count})
                adds = peer.call("add", budget_s=1e9, max_calls=count).seconds
                settling = peer.call("settle").seconds[0]
                if not warm_up:
                    calls[peer.name].append(adds)
                    whole[peer.name].append([(sum(adds) + settling) / count])
        rows = workload.steps * workload.envs
        is_bound = where == "memmap"
        slower = (Target(longer="rlinf", shorter="relive", at_least=1.0),) if is_bound else ()
        for what, times, targets in (("the call", calls, slower), ("until stored", whole, ())):
            if where != "memory only" or times is calls:
                measured = tuple(session.measured(p, times[p.name]) for p in session.peers)
                case = f"{name} trajectory, {where}, {what}"
                found.append(Case("add", case, rows, measured, targets))
        session.close_all()
    return found


def journal(session: Session) -> list[Finding]:
    """What an add costs, its writing included, when many trajectories are there already."""
    cases: list[Case] = []
    # RLinf rewrites its index at every add: 20,000 of them would take most of an hour.
    counts = {"relive": (1_000, 20_000), "rlinf": (1_000, 2_000)}
    rows = WORKLOADS["tiny"].steps * WORKLOADS["tiny"].envs
    for peer in session.peers:
        options: dict[str, Any] = {"auto_save": True, "enable_cache": False, "window": 0}
        if peer.name == "relive":
            # A queue that is always full: so the calls take what the writing takes.
            options["max_pending_bytes"] = 64 << 10
        folder = session.folder(peer)
        if peer.name not in counts:
            continue
        peer.call("open", {"workload": "tiny", "folder": str(folder), **options})
        there = 0
        for count in counts[peer.name]:
            session.note(f"journal: {peer.name} adds up to {count:,} trajectories")
            while there < count - JOURNAL_BLOCK:
                _add_block(peer)
                there += JOURNAL_BLOCK
            seconds, written = _add_block(peer)
            there += JOURNAL_BLOCK
            measured = session.measured(peer, [seconds], written)
            name = f"one add, the last {JOURNAL_BLOCK} of {count:,}"
            cases.append(Case("journal", name, rows, (measured,)))
        peer.call("close")
        shutil.rmtree(folder)
        few, many = (case.measured[0].median_s for case in cases[-2:])
        first, last = (f"{count:,}th" for count in counts[peer.name])
        session.note(f"journal: {peer.name}'s {last} add costs {many / few:.2f} times its {first}")
    return _merged(cases)


def fold(session: Session) -> list[Finding]:
    """Sampling beside a journal that is folded again and again, and beside one at rest."""
    num = 256
    (peer,) = session.peers
    folder = session.folder(peer)
    options: dict[str, Any] = {"auto_save": True, "enable_cache": True, "window": 5}
    peer.call("open", {"workload": "tiny", "folder": str(folder), **options})
    for _ in range(FOLDED_TRAJECTORIES // JOURNAL_BLOCK):
        _add_block(peer)
    peer.call("settle")
    calls: dict[str, list[Sequence[float]]] = {"at rest": [], "beside a fold": []}
    for _ in range(session.rounds):
        for name, seconds in calls.items():
            if name != "at rest":
                peer.call("begin_folds")
            timing = peer.call("sample", {"num": num}, budget_s=FOLDING_S, max_calls=100_000)
            seconds.append(timing.seconds)
            if name != "at rest":
                folds = peer.call("end_folds").value
                session.note(f"fold: {folds} folds of {FOLDED_TRAJECTORIES:,} records in a round")
    session.close_all()
    for name, rounds in calls.items():
        each = sorted(call * 1e3 for seconds in rounds for call in seconds)
        longest = statistics.median(max(seconds) * 1e3 for seconds in rounds)
        session.note(
            f"fold: a sample {name} takes {statistics.median(each):.2f} ms, 999 of 1,000 at most "
            f"{each[-1 - len(each) // 1000]:.2f} ms, the longest of {len(each):,} {each[-1]:.2f} "
            f"ms; the longest of a round, the median of {len(rounds)}, {longest:.2f} ms"
        )
    return [
        Case("fold", f"tiny rows, n={num}, {name}", num, (session.measured(peer, rounds),))
        for name, rounds in calls.items()
    ]


def _add_block(peer: Peer) -> tuple[Sequence[float], float | None]:
    """Add a block of trajectories.

    Returns:
        What adds cost in seconds, their share of the writing included: of relive each of them,
        since its calls wait for the writing (see `journal`), of others the mean. And the mean of
        the bytes written.
    """
    peer.call("prepare", {"count": JOURNAL_BLOCK})
    adds = peer.call("add", budget_s=1e9, max_calls=JOURNAL_BLOCK)
    seconds, written = adds.seconds, adds.written_bytes
    if peer.name != "relive":
        settling = peer.call("settle")
        seconds = ((sum(adds.seconds) + settling.seconds[0]) / JOURNAL_BLOCK,)
        if written is not None and settling.written_bytes is not None:
            written += settling.written_bytes
    return seconds, None if written is None else written / JOURNAL_BLOCK


def _merged(cases: Sequence[Case]) -> list[Finding]:
    """Join cases of one name, each of which has one peer."""
    names = list(dict.fromkeys(case.name for case in cases))
    return [
        Case(
            "journal",
            name,
            next(case.rows for case in cases if case.name == name),
            tuple(one for case in cases if case.name == name for one in case.measured),
        )
        for name in names
    ]


@dataclass(frozen=True)
class Benchmark:
    """A benchmark as the runner lists it."""

    run: Callable[[Session], list[Finding]]
    """What it does."""
    peers: tuple[str, ...]
    """Who takes part, relive first."""

    @property
    def title(self) -> str:
        """Return the first line of its docstring."""
        return (self.run.__doc__ or "").splitlines()[0].rstrip(".")


BENCHMARKS = {
    "pt": Benchmark(pt, ("relive", "rlinf", "floor")),
    "cached": Benchmark(cached, ("relive", "rlinf", "floor")),
    "memmap": Benchmark(memmap, ("relive", "cpprb", "torchrl", "rlinf", "floor")),
    "cold": Benchmark(cold, ("relive", "floor")),
    "cold-test": Benchmark(cold_test, ("relive",)),
    "size": Benchmark(size, ("relive", "floor")),
    "disk-bytes": Benchmark(disk_bytes, ("relive", "torchrl", "rlinf")),
    "add": Benchmark(add, ("relive", "rlinf", "floor")),
    "sustained": Benchmark(sustained, ("relive", "floor")),
    "checkpoint": Benchmark(checkpoint, ("relive",)),
    "memory": Benchmark(memory, ("relive",)),
    "journal": Benchmark(journal, ("relive", "rlinf")),
    "fold": Benchmark(fold, ("relive",)),
}
"""Every benchmark by the name it has on the command line."""
