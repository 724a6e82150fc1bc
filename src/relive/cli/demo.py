# SPDX-License-Identifier: Apache-2.0
"""`relive demo`: train an agent from a replay buffer."""

from __future__ import annotations

import importlib.util
import shlex
import traceback
from pathlib import Path
from typing import Annotated

import typer

from relive.cli.output import is_output_gone
from relive.cli.programs import programs_folder
from relive.errors import InvalidArgumentError, MissingPackageError, ReplayError

__all__ = ["demo"]

_PACKAGES = ("gymnasium", "matplotlib")
_INTERRUPTED = 130  # what shells report for Ctrl+C


def demo(
    env: Annotated[
        str | None,
        typer.Option(help="Gymnasium id with continuous actions.", show_default="Pendulum-v1"),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            min=1, help="Environment steps at most, all envs together.", show_default="8000"
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Of agent, buffer and envs.", show_default="1")
    ] = None,
    folder: Annotated[
        Path,
        typer.Option(
            "--dir", help="Where buffer, saves and learning curve go: new, empty, or a run's."
        ),
    ] = Path("relive-demo"),
    num_envs: Annotated[
        int | None, typer.Option(min=1, help="Parallel environments.", show_default="8")
    ] = None,
    trajectory_format: Annotated[
        str | None,
        typer.Option(
            "--format", help="How the buffer stores: pt, pkl or memmap.", show_default="pt"
        ),
    ] = None,
    goal: Annotated[
        float | None,
        typer.Option(
            help="End early once the evaluation's mean return is this high; inf: never.",
            show_default="-150 for Pendulum-v1, else where Gymnasium calls it solved",
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on with the run in --dir; one that reached its goal goes on without.",
        ),
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the run in --dir.")
    ] = False,
) -> None:
    """Train soft actor-critic on a Gymnasium environment, from a replay buffer on disk.

    Takes a minute or two on Pendulum. Ctrl+C saves; --resume goes on from there.
    """
    if resume and overwrite:
        raise InvalidArgumentError(
            "--resume and --overwrite are both given, but a run either goes on or starts again; "
            "leave one of them out"
        )
    _check_packages()

    from relive.demo.interrupt import Interrupt
    from relive.demo.progress import open_display
    from relive.demo.report import closing_words
    from relive.demo.run import run_demo

    given = {
        "env": env,
        "steps": steps,
        "seed": seed,
        "num_envs": num_envs,
        "trajectory_format": trajectory_format,
        "goal": goal,
    }
    try:
        with Interrupt() as interrupt, open_display() as display:
            outcome = run_demo(
                folder,
                given={name: value for name, value in given.items() if value is not None},
                resume=resume,
                overwrite=overwrite,
                display=display,
                interrupt=interrupt,
            )
    except ReplayError:
        raise
    except KeyboardInterrupt:
        typer.echo(f"relive: stopped at once, without saving; {_way_back(folder)}", err=True)
        raise typer.Exit(_INTERRUPTED) from None
    except Exception as error:  # an environment may raise anything, in any thread
        if isinstance(error, BrokenPipeError) and is_output_gone():
            raise  # and Typer ends quietly, as programs before a `head` do
        traceback.print_exc()
        what = f"{type(error).__name__}: {error}"
        typer.echo(f"relive: the demo was ended by {what}; {_way_back(folder)}", err=True)
        raise typer.Exit(1) from error
    typer.echo("\n".join(closing_words(outcome, programs=programs_folder())))
    if outcome.was_interrupted:
        raise typer.Exit(_INTERRUPTED)


def _way_back(folder: Path) -> str:
    command = f"{programs_folder()}relive demo --resume --dir {shlex.quote(str(folder))}"
    return f"`{command}` goes on from the newest save, if there is one"


def _check_packages() -> None:
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingPackageError(
            f"{' and '.join(missing)} cannot be imported, but the demo needs "
            f'{" and ".join(_PACKAGES)}; run `pip install "relive[demo]"`'
        )
