# SPDX-License-Identifier: Apache-2.0
"""The benchmarks: which jobs, on which data, in which order.

Each gets a `Session` and returns the cases of one table. Peers take turns inside a round, and
there are many rounds, so that all of them meet the same machine.
"""

from __future__ import annotations

import itertools
import shutil
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protocol import Peer, PeerError
from report import Case, Measured
from workloads import WORKLOADS

__all__ = ["BENCHMARKS", "Benchmark", "Session"]

TURN_S = 0.3
"""How long one peer goes on in one round, unless a single call takes longer."""
MAX_CALLS = 200
"""And how many calls it makes at most."""
JOURNAL_BLOCK = 100
"""How many adds are timed, after all those before."""
FOLDED_TRAJECTORIES = 5_000
"""How many records each fold writes."""


@dataclass(frozen=True)
class Session:
    """What one run of the runner has: the peers, and how long to measure."""

    peers: tuple[Peer, ...]
    """Their processes, relive's first."""
    versions: Mapping[str, str]
    """What each calls itself, by the peer's name."""
    scratch: Path
    """Where stores are made and removed."""
    rounds: int
    """How often each peer gets its turn in each case."""
    workloads: tuple[str, ...]
    """Which of the large workloads to run."""
    note: Callable[[str], None]
    """Says what is going on."""

    def measured(
        self,
        peer: Peer,
        rounds: Sequence[Sequence[float]],
        written_bytes: float | None = None,
    ) -> Measured:
        """Put a peer's times together."""
        return Measured(
            peer.name,
            self.versions[peer.name],
            tuple(tuple(calls) for calls in rounds),
            written_bytes,
        )


def pt(session: Session) -> list[Case]:
    """Sampling from pt files that the page cache holds, without the library's own cache."""
    return _sampling(session, "pt", auto_save=True, enable_cache=False, nums=(256, 1024))


def cached(session: Session) -> list[Case]:
    """Sampling from memory only: every trajectory is in the library's own cache."""
    return _sampling(session, "cached", auto_save=False, enable_cache=True, nums=(256, 1024, 4096))


def _sampling(
    session: Session, benchmark: str, auto_save: bool, enable_cache: bool, nums: Sequence[int]
) -> list[Case]:
    cases = []
    for name in session.workloads:
        count = WORKLOADS[name].trajectories
        for peer in session.peers:
            session.note(f"{benchmark}: {peer.name} stores {count} {name} trajectories")
            folder = _folder(session, peer)
            options = {"auto_save": auto_save, "enable_cache": enable_cache, "window": count}
            peer.call("open", {"workload": name, "folder": str(folder), **options})
            if peer.name != "floor":
                for _ in range(count):
                    peer.call("prepare", {"count": 1})
                    peer.call("add")
                peer.call("settle")
            _read_all(folder)
        for num in nums if max(nums) <= WORKLOADS[name].num_rows else (16,):
            session.note(f"{benchmark}: sampling {num} {name} rows")
            measured = _in_turns(session, "sample", {"num": num})
            cases.append(Case(benchmark, f"{name} rows, n={num}", num, measured))
        _close_all(session)
    return cases


def _in_turns(session: Session, method: str, arguments: Mapping[str, Any]) -> tuple[Measured, ...]:
    for peer in session.peers:
        peer.call(method, arguments)  # the first call makes what later ones use again
    rounds: dict[str, list[Sequence[float]]] = {peer.name: [] for peer in session.peers}
    for _ in range(session.rounds):
        for peer in session.peers:
            timing = peer.call(method, arguments, budget_s=TURN_S, max_calls=MAX_CALLS)
            if timing.value != arguments["num"]:
                raise PeerError(f"{peer.name} gave {timing.value} rows for {arguments}")
            rounds[peer.name].append(timing.seconds)
    return tuple(session.measured(peer, rounds[peer.name]) for peer in session.peers)


def add(session: Session) -> list[Case]:
    """Adding one trajectory: the call alone, and with its share of the writing that follows."""
    cases = []
    for auto_save, name in itertools.product((True, False), session.workloads):
        where = "pt files" if auto_save else "memory only"
        session.note(f"add: {name} trajectories to {where}")
        workload = WORKLOADS[name]
        count = max(3, min(20, (128 << 20) // workload.trajectory_bytes))
        options = {"auto_save": auto_save, "enable_cache": True, "window": 20}  # as by default
        for peer in session.peers:
            folder = _folder(session, peer)
            peer.call("open", {"workload": name, "folder": str(folder), **options})
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
        for what, times in (("the call", calls), ("until stored", whole)):
            if auto_save or times is calls:
                measured = tuple(session.measured(p, times[p.name]) for p in session.peers)
                cases.append(Case("add", f"{name} trajectory, {where}, {what}", rows, measured))
        _close_all(session)
    return cases


def journal(session: Session) -> list[Case]:
    """What an add costs, its writing included, when many trajectories are there already."""
    cases = []
    # RLinf rewrites its index at every add: 20,000 of them would take most of an hour.
    counts = {"relive": (1_000, 20_000), "rlinf": (1_000, 2_000)}
    rows = WORKLOADS["tiny"].steps * WORKLOADS["tiny"].envs
    for peer in session.peers:
        options: dict[str, Any] = {"auto_save": True, "enable_cache": False, "window": 0}
        if peer.name == "relive":
            # A queue that is always full: so the calls take what the writing takes.
            options["max_pending_bytes"] = 64 << 10
        folder = _folder(session, peer)
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


def fold(session: Session) -> list[Case]:
    """Sampling beside a journal that is folded again and again, and beside one at rest."""
    num = 256
    (peer,) = session.peers
    folder = _folder(session, peer)
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
            timing = peer.call("sample", {"num": num}, budget_s=TURN_S, max_calls=MAX_CALLS)
            seconds.append(timing.seconds)
            if name != "at rest":
                folds = peer.call("end_folds").value
                session.note(f"fold: {folds} folds of {FOLDED_TRAJECTORIES:,} records in a round")
    _close_all(session)
    for name, rounds in calls.items():
        each = sorted(call * 1e3 for seconds in rounds for call in seconds)
        session.note(
            f"fold: a sample {name} takes {statistics.median(each):.2f} ms, 99 of 100 at most "
            f"{each[-1 - len(each) // 100]:.2f} ms, the longest of {len(each)} {each[-1]:.2f} ms"
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


def _merged(cases: Sequence[Case]) -> list[Case]:
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


def _folder(session: Session, peer: Peer) -> Path:
    folder = session.scratch / peer.name
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    return folder


def _read_all(folder: Path) -> None:
    """Read every file once, so that the page cache holds it."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                while file.read(8 << 20):
                    pass


def _close_all(session: Session) -> None:
    for peer in session.peers:
        peer.call("close")
        shutil.rmtree(session.scratch / peer.name)


@dataclass(frozen=True)
class Benchmark:
    """A benchmark as the runner lists it."""

    run: Callable[[Session], list[Case]]
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
    "add": Benchmark(add, ("relive", "rlinf", "floor")),
    "journal": Benchmark(journal, ("relive", "rlinf")),
    "fold": Benchmark(fold, ("relive",)),
}
"""Every benchmark by the name it has on the command line."""
