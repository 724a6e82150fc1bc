# SPDX-License-Identifier: Apache-2.0
"""Measures relive beside its peers and prints the ratios; see benchmarks/README.md."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from cases import BENCHMARKS
from protocol import Peer
from report import Finding, show, show_targets, write_lines
from session import Session

ROOT = Path(__file__).resolve().parent.parent
BENCH = ROOT / ".bench"


def main(
    benchmarks: Annotated[
        list[str] | None, typer.Argument(help=f"Some of {', '.join(BENCHMARKS)}; all if none.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each peer in each case.")] = 9,
    workload: Annotated[
        list[str] | None, typer.Option(help="state, image, tiny; more than once for several.")
    ] = None,
    without: Annotated[list[str] | None, typer.Option(help="Peers to leave out.")] = None,
    scratch: Annotated[
        Path | None, typer.Option(help="Where stores are made; 25 GB free. Default: .bench.")
    ] = None,
    results: Annotated[Path | None, typer.Option(help="JSON lines are appended to it.")] = None,
    trajectories: Annotated[
        int, typer.Option(min=1_000, help="How many the largest index of `size` has.")
    ] = 1_000_000,
    gigabytes: Annotated[
        float | None,
        typer.Option(help="Size of each store of cold, sustained, checkpoint and memory."),
    ] = None,
) -> None:
    """Measure, print a table for each benchmark, append JSON lines to .bench/results."""
    console = Console(width=None if sys.stdout.isatty() else 160)
    names = benchmarks or list(BENCHMARKS)
    if unknown := [name for name in names if name not in BENCHMARKS]:
        raise typer.BadParameter(f"{unknown} is unknown; there are {', '.join(BENCHMARKS)}")
    lines = results or BENCH / "results" / time.strftime("%Y%m%d-%H%M%S.jsonl")
    place = (scratch or BENCH / "scratch") / f"run-{time.time_ns()}"
    place.mkdir(parents=True)
    left_out = set(without or ())
    found: list[Finding] = []
    try:
        for name in names:
            benchmark = BENCHMARKS[name]
            peers = tuple(
                Peer(peer, _python(peer)) for peer in benchmark.peers if peer not in left_out
            )
            try:
                session = Session(
                    peers=peers,
                    versions={peer.name: str(peer.call("version").value) for peer in peers},
                    scratch=place,
                    rounds=rounds,
                    workloads=tuple(workload or ("state", "image")),
                    note=lambda text: console.print(f"[dim]{text}[/]"),
                    trajectories=trajectories,
                    gigabytes=gigabytes,
                )
                here = benchmark.run(session)
            finally:
                for peer in peers:
                    peer.close()
            show(console, f"{name}: {benchmark.title}", here)
            write_lines(lines, here)
            found += here
    finally:
        shutil.rmtree(place)
    show_targets(console, found)
    console.print(f"[dim]results: {lines}[/]")


def _python(peer: str) -> str:
    """Return the interpreter of a peer: its own environment's if it has requirements."""
    if not (ROOT / "benchmarks" / "peers" / peer / "requirements.txt").exists():
        return sys.executable
    made = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "peer-env"), peer],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if made.returncode:
        raise typer.Exit(made.returncode)
    return made.stdout.strip()


if __name__ == "__main__":
    typer.run(main)
