# SPDX-License-Identifier: Apache-2.0
"""What a run says in the end: what it reached, where it lies, what to try next."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

from relive.demo.progress import return_text
from relive.demo.run import Outcome
from relive.demo.settings import DEFAULT_ENV

__all__ = ["closing_words"]


def closing_words(outcome: Outcome) -> list[str]:
    """Return the last lines of a run."""
    settings, folder, history = outcome.settings, outcome.folder, outcome.history
    stats = outcome.buffer_stats
    where, programs = shlex.quote(str(folder.path)), _programs()
    lines = [
        "",
        _result(outcome),
        "",
        f"  buffer          {folder.buffer}  "
        f"({stats['num_trajectories']:,.0f} trajectories, {stats['total_samples']:,.0f} "
        f"transitions, {settings.trajectory_format})",
        f"  learning curve  {folder.curve}",
        f"  saved run       {folder.saves}",
        "",
    ]
    if outcome.was_interrupted:
        return [*lines, "To go on:", f"  {programs}relive demo --resume --dir {where}"]
    more = max(settings.steps, 2 * history.steps)
    other = [f"  {programs}relive demo --env {DEFAULT_ENV} --dir {where}-2"]
    if settings.env == DEFAULT_ENV:
        other = [
            f'  {programs}pip install "gymnasium[mujoco]"',
            f"  {programs}relive demo --env InvertedPendulum-v5 --steps 30000 --dir {where}-2",
        ]
    return [
        *lines,
        "To try next:",
        f"  {programs}relive info {shlex.quote(str(folder.buffer))}",
        f"  {programs}relive demo --resume --dir {where} --steps {more}",
        *other,
        "The code of the demo, to copy from: the package relive.demo, which says where to start.",
    ]


def _programs() -> str:
    """Return the folder of this environment's programs, or "" when the shell finds them."""
    folder = Path(sys.executable).parent
    if shutil.which("relive") is not None or not (folder / "relive").exists():
        return ""
    return shlex.quote(os.path.relpath(folder)) + os.sep


def _result(outcome: Outcome) -> str:
    settings, history = outcome.settings, outcome.history
    reached = "no evaluation yet"
    if history.evaluations:
        newest = history.evaluations[-1]
        reached = (
            f"mean return {return_text(newest.mean)} of {len(newest.returns)} evaluation episodes "
            f"after {newest.steps:,} steps"
        )
    if outcome.was_interrupted:
        what = f"Stopped after {history.steps:,} of {settings.steps:,} steps, and saved"
    elif history.has_reached(settings.goal):
        what = "Done: the goal is reached"
    else:
        what = "Done: all steps are taken"
        if settings.goal is not None:
            reached += f" (the goal was {return_text(settings.goal)})"
    return f"{what}; {reached}, in {history.seconds:.0f} s."
