# SPDX-License-Identifier: Apache-2.0
"""What a run says in the end: what it reached, where it lies, what to try next."""

from __future__ import annotations

import shlex

from relive.demo.progress import count_text, return_text
from relive.demo.run import Outcome
from relive.demo.settings import DEFAULT_ENV

__all__ = ["closing_words"]


def closing_words(outcome: Outcome, *, programs: str = "") -> list[str]:
    """Return the last lines of a run.

    Args:
        outcome: How it ended.
        programs: What a shell needs before the name of a program, such as ".venv/bin/".
    """
    settings, folder, history = outcome.settings, outcome.folder, outcome.history
    stats = outcome.buffer_stats
    where = shlex.quote(str(folder.path))
    held = count_text(int(stats["num_trajectories"]), "trajectory", "trajectories")
    lines = [
        "",
        _result(outcome),
        "",
        f"  buffer          {folder.buffer}  "
        f"({held}, {stats['total_samples']:,.0f} transitions, {settings.trajectory_format})",
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
