# SPDX-License-Identifier: Apache-2.0
"""The command line: its commands, and how errors are shown.

Nothing heavy is imported here, so that `relive --help` answers at once; each command imports
what it needs when it runs.
"""

from __future__ import annotations

import sys
import warnings
from typing import Annotated

import typer

from relive import __version__
from relive.cli.convert import convert
from relive.cli.demo import demo
from relive.cli.info import info
from relive.errors import ReplayError

__all__ = ["app", "main"]

app = typer.Typer(
    name="relive",
    help="Trajectories on disk for reinforcement learning, sampled one transition at a time.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command()(demo)
app.command()(info)
app.command()(convert)


def main() -> None:
    """Run the command line; errors and warnings become one line, without a traceback."""
    warnings.showwarning = _show_warning  # type: ignore[assignment]  # its other arguments are not shown
    try:
        app()
    except ReplayError as error:
        print(f"relive: {error}", file=sys.stderr)
        sys.exit(1)


def _show_warning(message: Warning | str, *_: object) -> None:
    print(f"note: {message}", file=sys.stderr)


def _show_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"relive {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version and exit.",
            callback=_show_version,
            is_eager=True,
        ),
    ] = False,
) -> None:
    """Options that stand before any command."""
