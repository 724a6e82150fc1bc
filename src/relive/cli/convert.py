# SPDX-License-Identifier: Apache-2.0
"""`relive convert`: what a store or checkpoint holds, in another format."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from relive.cli.inside import naming_what_is_inside
from relive.cli.programs import programs_folder

__all__ = ["convert"]


def convert(
    source: Annotated[
        Path, typer.Argument(help="A store, a checkpoint of ours or RLinf's, or rank folders.")
    ],
    target: Annotated[Path, typer.Argument(help="The checkpoint to write; not there yet.")],
    to: Annotated[str, typer.Option(help="Its format: memmap, pt or pkl.")] = "memmap",
    allow_pickle: Annotated[
        bool, typer.Option(help="Let pkl files hold more than tensors and plain containers.")
    ] = False,
) -> None:
    """Write a checkpoint of all that a folder holds, in another format. Nothing is lost."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    import relive

    console = Console()
    columns = ("[progress.description]{task.description}", BarColumn(), MofNCompleteColumn())
    again = (str(target), "--to", to)
    with (
        naming_what_is_inside(source, "convert", *again),
        Progress(
            *columns,
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        ) as bar,
    ):
        task = bar.add_task("trajectories", total=None)
        num = relive.convert(
            source,
            target,
            to,
            allow_pickle=allow_pickle,
            progress=lambda done, of: bar.update(task, completed=done, total=of),
        )
    noun = "trajectory" if num == 1 else "trajectories"
    console.print(f"{num:,} {noun} written to {target} as {to}", soft_wrap=True, markup=False)
    shown = shlex.quote(str(target))
    console.print(
        f"look inside with `{programs_folder()}relive info {shown}`, go on with "
        f"buffer.load_checkpoint({str(target)!r})",
        soft_wrap=True,
        markup=False,
    )
