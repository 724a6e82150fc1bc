# SPDX-License-Identifier: Apache-2.0
"""What a benchmark found: JSON lines for machines, tables for people.

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
from typing import Any

from rich.console import Console
from rich.table import Table

__all__ = [
    "Case",
    "Figure",
    "Finding",
    "Measured",
    "Ratio",
    "Target",
    "ratio",
    "show",
    "show_targets",
    "write_lines",
]


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
class Target:
    """What must be reached: a bound on a figure, or on how one peer's time compares."""

    at_most: float | None = None
    """The upper bound, if there is one."""
    at_least: float | None = None
    """The lower bound, if there is one."""
    longer: str = ""
    """Of a case, whose time is divided; of a figure nobody's."""
    shorter: str = ""
    """Of a case, by whose time."""

    def is_met_by(self, value: float) -> bool:
        """Tell whether a value is inside the bounds."""
        return (self.at_most is None or value <= self.at_most) and (
            self.at_least is None or value >= self.at_least
        )

    def __str__(self) -> str:
        bounds = [
            f"{sign} {_short(bound)}"
            for sign, bound in (("<=", self.at_most), (">=", self.at_least))
            if bound is not None
        ]
        return " and ".join(bounds)


@dataclass(frozen=True)
class Figure:
    """One line of a table: a single number that no peer is timed beside."""

    benchmark: str
    """The benchmark's name."""
    name: str
    """What it is a number of."""
    value: float
    """The number."""
    unit: str
    """In what."""
    target: Target | None = None
    """What it must reach, if anything."""


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
    targets: tuple[Target, ...] = ()
    """What ratios must reach; those of peers that were left out do not count."""

    def of(self, peer: str) -> Measured | None:
        """Return what this peer needed, or None when it did not take part."""
        return next((one for one in self.measured if one.peer == peer), None)


Finding = Case | Figure
"""What a benchmark returns many of."""


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


def write_lines(path: Path, found: Sequence[Finding]) -> None:
    """Append one JSON line for each figure, and for each case and peer."""
    path.parent.mkdir(parents=True, exist_ok=True)
    machine = f"{platform.machine()}, {cpu_count()} cores, Python {platform.python_version()}"
    here = {"time": time.strftime("%Y-%m-%dT%H:%M:%S"), "machine": machine}
    with path.open("a", encoding="utf-8") as file:
        for one in found:
            for line in _figure_lines(one) if isinstance(one, Figure) else _case_lines(one):
                file.write(json.dumps({**here, **line}) + "\n")


def _figure_lines(figure: Figure) -> list[dict[str, Any]]:
    target = figure.target
    return [
        {
            "benchmark": figure.benchmark,
            "case": figure.name,
            "value": figure.value,
            "unit": figure.unit,
            "target": None if target is None else str(target),
            "is_met": None if target is None else target.is_met_by(figure.value),
        }
    ]


def _case_lines(case: Case) -> list[dict[str, Any]]:
    return [
        {
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
        for one in case.measured
    ]


def show(console: Console, title: str, found: Sequence[Finding]) -> None:
    """Print a table of the cases and one of the figures."""
    cases = [one for one in found if isinstance(one, Case)]
    figures = [one for one in found if isinstance(one, Figure)]
    if cases:
        _show_cases(console, title, cases)
    if figures:
        table = _table("" if cases else title)
        for name in ("figure", "value"):
            table.add_column(name, justify="left" if name == "figure" else "right")
        for one in figures:
            table.add_row(one.name, f"{_short(one.value)} {one.unit}")
        console.print(table)


def show_targets(console: Console, found: Sequence[Finding]) -> None:
    """Print what must be reached, what was, and whether that is enough."""
    table = _table("targets")
    table.add_column("what")
    table.add_column("target")
    table.add_column("found", justify="right")
    table.add_column("")
    for one in found:
        for what, target, value, text in _reached(one):
            verdict = "met" if target.is_met_by(value) else "[bold]missed[/]"
            table.add_row(f"{one.benchmark}: {what}", str(target), text, verdict)
    if table.row_count:
        console.print(table)


def _reached(one: Finding) -> list[tuple[str, Target, float, str]]:
    """Return what each target is of, the target, the number it bounds, and that as a text."""
    if isinstance(one, Figure):
        text = f"{_short(one.value)} {one.unit}"
        return [] if one.target is None else [(one.name, one.target, one.value, text)]
    reached = []
    for target in one.targets:
        longer, shorter = one.of(target.longer), one.of(target.shorter)
        if longer is not None and shorter is not None:
            found = ratio(longer, shorter)
            what = f"{one.name}, {target.longer} / {target.shorter}"
            reached.append((what, target, found.median, str(found)))
    return reached


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", title_style="bold", pad_edge=False)


def _show_cases(console: Console, title: str, cases: Sequence[Case]) -> None:
    """Print each peer's median time and rate, then relive beside each of the others."""
    peers = list(dict.fromkeys(one.peer for case in cases for one in case.measured))
    versions = {one.peer: one.version for case in cases for one in case.measured}
    others = [peer for peer in peers if peer not in ("relive", "floor")]
    with_bytes = any(one.written_bytes is not None for case in cases for one in case.measured)
    table = _table(title)
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
