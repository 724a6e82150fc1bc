# SPDX-License-Identifier: Apache-2.0
"""What every benchmark is given, and how peers take turns.

There are many rounds and each peer has a turn in each, so that all of them meet the same machine.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protocol import Peer, PeerError, Timing
from report import Measured
from workloads import WORKLOADS

__all__ = ["MEMMAP", "Session", "fill_stores", "map_all", "read_all"]

TURN_S = 0.3
"""How long one peer goes on in one round, unless a single call takes longer."""
MAX_CALLS = 200
"""And how many calls it makes at most."""
MEMMAP: Mapping[str, Any] = {
    "auto_save": True,
    "enable_cache": False,
    "trajectory_format": "memmap",
}
"""How relive is opened for rows out of segments."""


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
    trajectories: int = 1_000_000
    """How many the largest index has."""
    gigabytes: float | None = None
    """How large the stores are that must not fit somewhere; None: as each benchmark says."""

    def of(self, name: str) -> Peer | None:
        """Return a peer, or None when it was left out."""
        return next((peer for peer in self.peers if peer.name == name), None)

    def measured(
        self,
        peer: Peer,
        rounds: Sequence[Sequence[float]],
        written_bytes: float | None = None,
    ) -> Measured:
        """Put a peer's times together."""
        return self.labelled(peer.name, self.versions[peer.name], rounds, written_bytes)

    def labelled(
        self,
        label: str,
        version: str,
        rounds: Sequence[Sequence[float]],
        written_bytes: float | None = None,
    ) -> Measured:
        """Put the times of one way together that is no peer by itself."""
        return Measured(label, version, tuple(tuple(calls) for calls in rounds), written_bytes)

    def size_bytes(self, gigabytes: float) -> int:
        """Return how large a store is made, in bytes, if no other size was asked for."""
        return int((self.gigabytes or gigabytes) * 1e9)

    def folder(self, peer: Peer) -> Path:
        """Make an empty folder for a peer, which no earlier benchmark's files are in."""
        folder = self.scratch / peer.name
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        return folder

    def close_all(self) -> None:
        """Let every peer end its buffer; remove what it stored."""
        for peer in self.peers:
            peer.call("close")
            shutil.rmtree(self.scratch / peer.name)

    def turn(self, peer: Peer, method: str, arguments: Mapping[str, Any]) -> Timing:
        """Let a peer do the same for a while."""
        return peer.call(method, arguments, budget_s=TURN_S, max_calls=MAX_CALLS)

    def in_turns(self, method: str, arguments: Mapping[str, Any]) -> tuple[Measured, ...]:
        """Let all peers do the same, round after round.

        Raises:
            PeerError: One of them gave another number of rows than `num`.
        """
        for peer in self.peers:
            peer.call(method, arguments)  # the first call makes what later ones use again
        rounds: dict[str, list[Sequence[float]]] = {peer.name: [] for peer in self.peers}
        for _ in range(self.rounds):
            for peer in self.peers:
                timing = self.turn(peer, method, arguments)
                if timing.value != arguments["num"]:
                    raise PeerError(f"{peer.name} gave {timing.value} rows for {arguments}")
                rounds[peer.name].append(timing.seconds)
        return tuple(self.measured(peer, rounds[peer.name]) for peer in self.peers)


def fill_stores(
    session: Session, benchmark: str, workload: str, options: Callable[[Peer], Mapping[str, Any]]
) -> None:
    """Open a buffer of each peer, as `options` says, and fill it with a whole workload."""
    count = WORKLOADS[workload].trajectories
    for peer in session.peers:
        session.note(f"{benchmark}: {peer.name} stores {count} {workload} trajectories")
        folder = session.folder(peer)
        peer.call(
            "open",
            {"workload": workload, "folder": str(folder), "window": count, **options(peer)},
        )
        if peer.name != "floor":
            for _ in range(count):
                peer.call("prepare", {"count": 1})
                peer.call("add")
            peer.call("settle")
        read_all(folder)


def map_all(peer: Peer, size_bytes: int) -> None:
    """Let a peer sample until nearly all pages of its files are mapped, not only in memory.

    The kernel maps 64 KiB around a page at its first touch, once in the life of a mapping. The
    floor has no such first time: its memory was written by its own process.
    """
    num = 4096
    # at six draws a place one in 400 is left out
    calls = 6 * size_bytes // (64 << 10) // num + 2
    peer.call("sample", {"num": num}, budget_s=60.0, max_calls=calls)


def read_all(folder: Path) -> None:
    """Read every file once, so that the page cache holds it."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                while file.read(8 << 20):
                    pass
