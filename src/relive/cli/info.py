# SPDX-License-Identifier: Apache-2.0
"""`relive info`: what a store or checkpoint holds."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from relive.cli.inside import naming_what_is_inside

if TYPE_CHECKING:
    from rich.table import Table

    from relive.maintenance import Summary

__all__ = ["info"]

_MOST_SHAPES = 5


def info(
    folder: Annotated[
        Path, typer.Argument(help="A store, a checkpoint of ours or RLinf's, or rank folders.")
    ],
) -> None:
    """Print what a store or checkpoint holds. Nothing in it is changed."""
    from rich.console import Console

    from relive.maintenance import summarize

    with naming_what_is_inside(folder, "info"):
        summary = summarize(folder)
    console = Console()
    console.print(_facts(summary))
    if summary.columns:
        console.print()
        console.print(_columns(summary))
    for problem in summary.problems:
        console.print(f"note: {problem}", style="yellow", markup=False)


def _facts(summary: Summary) -> Table:
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(overflow="fold")
    for name, value in (
        ("folder", str(summary.path)),
        ("kind", summary.kind),
        ("open for writing by", summary.writer or "nobody"),
        ("trajectories", f"{summary.num_trajectories:,}"),
        ("samples", f"{summary.total_samples:,}"),
        ("next trajectory id", str(summary.next_trajectory_id)),
        ("formats", _counts(summary.formats)),
        ("files", _size(summary.file_bytes)),
        ("[T, B]", _counts({f"[{t}, {b}]": n for (t, b), n in summary.shapes.items()})),
        ("window", _window(summary)),
        ("seed", "" if summary.seed is None else str(summary.seed)),
        ("model weights", f"{summary.num_weights_ids:,} different"),
        ("model versions", _range(summary.version_range)),
        ("added", _when(summary)),
    ):
        if value:
            table.add_row(name, value)
    return table


def _columns(summary: Summary) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("column", overflow="fold")
    table.add_column("dtype")
    table.add_column("row shape")
    table.add_column("bytes", justify="right")
    for name, spec in summary.columns.items():
        size = summary.column_bytes.get(name)
        dtype = f"{spec.dtype} (optional)" if name in summary.optional else spec.dtype
        shown = "" if size is None else _size(size)
        table.add_row(name, dtype, str(list(spec.row_shape)), shown)
    return table


def _counts(counts: Mapping[str, int]) -> str:
    shown = sorted(counts.items(), key=lambda item: -item[1])
    told = [f"{name} x {number:,}" for name, number in shown[:_MOST_SHAPES]]
    return ", ".join(told) + (", …" if len(shown) > _MOST_SHAPES else "")


def _window(summary: Summary) -> str:
    if summary.sample_window_size is None:
        return ""
    return f"the newest {summary.sample_window_size:,}" if summary.sample_window_size else "all"


def _range(bounds: tuple[int, int] | None) -> str:
    return "" if bounds is None else f"{bounds[0]} to {bounds[1]}"


def _when(summary: Summary) -> str:
    if summary.added_between is None:
        return ""
    first, last = (
        datetime.datetime.fromtimestamp(second, datetime.timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
        for second in summary.added_between
    )
    return f"{first} to {last} UTC"


def _size(size: int) -> str:
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} B"
