# SPDX-License-Identifier: Apache-2.0
"""What a benchmark found: JSON lines for machines, a table for people.

Ratios are formed inside a round, where all peers ran one after the other, and the median over
rounds is given: the machine's moods, which last longer than a round, fall out.
"""

from __future__ import annotations

import json
import platform
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from os import cpu_count
from pathlib import Path

from rich.console import Console
from rich.table import Table

__all__ = ["Case", "Measured", "Ratio", "ratio", "show", "write_lines"]


@dataclass(frozen=True)
class Measured:
    """What one peer needed for one case."""

    peer: str
    """Its folder's name."""
    version: str
    """What it calls itself."""
    rounds: tuple[tuple[float, ...], ...]
    """Seconds of each call, round by round; every peer of a case has the same rounds."""
    written_bytes: float | None = None
    """Written for one call, where that is of interest."""

    @property
    def median_s(self) -> float:
        """Return the median over all calls."""
        return statistics.median([call for calls in self.rounds for call in calls])


@dataclass(frozen=True)
class Case:
    """One line of a table: the same job given to several peers."""

    benchmark: str
    """The benchmark's name."""
    name: str
    """What the job is."""
    rows: int
    """How many rows one call draws or stores."""
    measured: tuple[Measured, ...]
    """By peer."""

    def of(self, peer: str) -> Measured | None:
        """Return what this peer needed, or None when it did not take part."""
        return next((one for one in self.measured if one.peer == peer), None)


@dataclass(frozen=True)
class Ratio:
    """How many times as long one peer takes as another."""

    median: float
    """Over the rounds."""
    low: float
    """The smallest of a round."""
    high: float
    """The largest of a round."""

    def __str__(self) -> str:
        return f"{_short(self.median)} ({_short(self.low)} to {_short(self.high)})"


def ratio(longer: Measured, shorter: Measured) -> Ratio:
    """Return how many times as long the first takes as the second, round by round."""
    each = [
        statistics.median(a) / statistics.median(b)
        for a, b in zip(longer.rounds, shorter.rounds, strict=True)
    ]
    return Ratio(statistics.median(each), min(each), max(each))


def write_lines(path: Path, cases: Sequence[Case]) -> None:
    """Append one JSON line for each case and peer."""
    path.parent.mkdir(parents=True, exist_ok=True)
    machine = f"{platform.machine()}, {cpu_count()} cores, Python {platform.python_version()}"
    with path.open("a", encoding="utf-8") as file:
        for case in cases:
            for one in case.measured:
                line = {
                    "time": time.strftime("%Y-%m-%dT%H:%M:%S"),
                    "machine": machine,
                    "benchmark": case.benchmark,
                    "case": case.name,
                    "rows": case.rows,
                    "peer": one.peer,
                    "version": one.version,
                    "median_s": one.median_s,
                    "rounds_s": [statistics.median(calls) for calls in one.rounds],
                    "calls": sum(len(calls) for calls in one.rounds),
                    "written_bytes": one.written_bytes,
                }
                file.write(json.dumps(line) + "\n")


def show(console: Console, title: str, cases: Sequence[Case]) -> None:
    """Print a table: each peer's median time and rate, then relive beside each of the others."""
    peers = list(dict.fromkeys(one.peer for case in cases for one in case.measured))
    versions = {one.peer: one.version for case in cases for one in case.measured}
    others = [peer for peer in peers if peer not in ("relive", "floor")]
    with_bytes = any(one.written_bytes is not None for case in cases for one in case.measured)
    table = Table(title=title, title_justify="left", title_style="bold", pad_edge=False)
    table.add_column("case")
    for peer in peers:
        table.add_column(f"{versions[peer]}\nms (rows/s)", justify="right")
        if with_bytes:
            table.add_column("bytes\nwritten", justify="right")
    for peer in others:
        table.add_column(f"{peer} / relive\ntimes (range)", justify="right")
    if "floor" in peers:
        table.add_column("relive / floor\ntimes (range)", justify="right")
    for case in cases:
        line = [case.name]
        for peer in peers:
            one = case.of(peer)
            line.append("" if one is None else _time_and_rate(one, case.rows))
            if with_bytes:
                known = one is not None and one.written_bytes is not None
                line.append(f"{one.written_bytes:,.0f}" if one is not None and known else "")
        ours = case.of("relive")
        line += [_ratio_cell(case.of(peer), ours) for peer in others]
        if "floor" in peers:
            line.append(_ratio_cell(ours, case.of("floor")))
        table.add_row(*line)
    console.print(table)


def _ratio_cell(longer: Measured | None, shorter: Measured | None) -> str:
    return "" if longer is None or shorter is None else str(ratio(longer, shorter))


def _time_and_rate(one: Measured, rows: int) -> str:
    return f"{_short(one.median_s * 1e3)} ({_rate(rows / one.median_s)})"


def _rate(per_second: float) -> str:
    for limit, unit in ((1e6, "M"), (1e3, "k")):
        if per_second >= limit:
            return f"{_short(per_second / limit)} {unit}"
    return _short(per_second)


def _short(number: float) -> str:
    if number >= 100:
        return f"{number:,.0f}"
    return f"{number:.1f}" if number >= 10 else f"{number:.2f}"
