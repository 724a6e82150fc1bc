# SPDX-License-Identifier: Apache-2.0
"""What the person at the terminal, or reading a log, sees of a run."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    from rich.table import Table

__all__ = [
    "Display",
    "LineDisplay",
    "Progress",
    "TerminalDisplay",
    "count_text",
    "open_display",
    "return_text",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a run stands."""

    steps: int
    """Environment steps in the buffer so far."""
    total_steps: int
    """Environment steps at which the run ends."""
    evaluation_return: float | None
    """Mean return of the newest evaluation; None before the first."""
    training_return: float | None
    """Mean return of the newest training episodes; None before the first has ended."""
    samples_per_s: float
    """Transitions drawn from the buffer in each second, lately."""
    num_trajectories: int
    """Trajectories in the buffer."""
    seconds: float
    """How long the run has taken, in all its sessions."""

    def to_text(self) -> str:
        """Say it in one line of plain text."""
        return (
            f"{self.steps:>7,} of {self.total_steps:,} steps | "
            f"return: evaluation {return_text(self.evaluation_return)}, "
            f"training {return_text(self.training_return)} | "
            f"{self.samples_per_s:,.0f} samples/s | "
            f"buffer {_held_text(self)} | {self.seconds:.0f} s"
        )


class Display(Protocol):
    """Shows a run while it goes on."""

    def say(self, text: str) -> None:
        """Print a line that stays."""

    def is_due(self) -> bool:
        """Tell whether it is time to show progress; cheap, for a busy loop to ask."""

    def show(self, progress: Progress) -> None:
        """Show where the run stands."""


class LineDisplay:
    """Plain lines, one every few seconds: for logs and pipes."""

    def __init__(self, out: TextIO, *, interval_s: float = 5.0) -> None:
        self._out = out
        self._interval_s = interval_s
        self._next = time.monotonic()

    def say(self, text: str) -> None:
        """Print a line."""
        print(text, file=self._out, flush=True)

    def is_due(self) -> bool:
        """Tell whether the interval is over."""
        return time.monotonic() >= self._next

    def show(self, progress: Progress) -> None:
        """Print one line."""
        self._next = time.monotonic() + self._interval_s
        self.say(progress.to_text())


class TerminalDisplay:
    """A few lines that are redrawn in place, for a person who watches; `open` it to use it."""

    def __init__(self, *, interval_s: float = 0.25) -> None:
        from rich.console import Console
        from rich.live import Live

        self._interval_s = interval_s
        self._next = time.monotonic()
        # No thread of its own: the loop redraws, so nothing is left when the loop ends.
        self._live = Live(console=Console(highlight=False), auto_refresh=False, transient=True)

    @contextmanager
    def open(self) -> Iterator[TerminalDisplay]:
        """Own the last lines of the terminal inside the block."""
        with self._live:
            yield self

    def say(self, text: str) -> None:
        """Print a line above the others."""
        self._live.console.print(text, markup=False)

    def is_due(self) -> bool:
        """Tell whether the interval is over."""
        return time.monotonic() >= self._next

    def show(self, progress: Progress) -> None:
        """Redraw the lines."""
        self._next = time.monotonic() + self._interval_s
        self._live.update(_lines_of(progress), refresh=True)


def _lines_of(progress: Progress) -> Table:
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    lines = Table.grid(padding=(0, 1))
    bar = ProgressBar(total=progress.total_steps, completed=progress.steps, width=24)
    steps = Table.grid(padding=(0, 1))
    steps.add_row(
        bar, f"{progress.steps:,} of {progress.total_steps:,} steps, {progress.seconds:.0f} s"
    )
    lines.add_row("", steps)
    lines.add_row(
        "return",
        f"evaluation {return_text(progress.evaluation_return)}, "
        f"training {return_text(progress.training_return)}",
    )
    lines.add_row(
        "buffer",
        f"{_held_text(progress)}, {progress.samples_per_s:,.0f} samples/s",
    )
    return lines


@contextmanager
def open_display(out: TextIO | None = None) -> Iterator[Display]:
    """Open what suits the output: a bar on a terminal, plain lines elsewhere.

    Args:
        out: Where plain lines go; None for standard output, which may be a terminal.
    """
    from rich.console import Console

    # Not Console.is_terminal, which FORCE_COLOR makes true in many a log.
    if out is None and sys.stdout.isatty() and not Console().is_dumb_terminal:
        with TerminalDisplay().open() as display:
            yield display
    else:
        yield LineDisplay(out or sys.stdout)


def _held_text(progress: Progress) -> str:
    return count_text(progress.num_trajectories, "trajectory", "trajectories")


def count_text(number: int, one: str, many: str) -> str:
    """Write how many there are of something.

    Example:
        >>> count_text(1, "trajectory", "trajectories"), count_text(1200, "step", "steps")
        ('1 trajectory', '1,200 steps')
    """
    return f"{number:,} {one if number == 1 else many}"


def return_text(value: float | None) -> str:
    """Write a return with as many digits as say something; None is "-".

    Example:
        >>> return_text(-1234.5), return_text(-0.016), return_text(None)
        ('-1,234', '-0.02', '-')
    """
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"
