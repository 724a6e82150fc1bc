# SPDX-License-Identifier: Apache-2.0
"""The learning curve as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from relive import files
from relive.demo.history import History
from relive.errors import StorageWriteError

__all__ = ["draw_curve"]


def draw_curve(path: Path, history: History, *, env: str, goal: float | None) -> None:
    """Draw the returns of training and evaluation over environment steps, as a PNG.

    Args:
        path: The file to create or replace.
        history: What to draw.
        env: Names the environment in the title.
        goal: Drawn as a line; None draws none.

    Raises:
        StorageWriteError: The disk refused.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # A figure of its own, without pyplot: no window, no global state.
    figure = Figure(figsize=(8, 5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    if history.episodes:
        steps, returns = zip(*history.episodes, strict=True)
        axes.plot(steps, returns, ".", color="0.65", label="training episodes")
    if history.evaluations:
        at = [each.steps for each in history.evaluations]
        axes.plot(at, [each.mean for each in history.evaluations], "o-", label="evaluation, mean")
        low, high = _range([each.returns for each in history.evaluations])
        axes.fill_between(at, low, high, alpha=0.2, label="evaluation, lowest to highest")
    if goal is not None:
        axes.axhline(goal, linestyle="--", linewidth=1, color="0.3", label=f"goal {goal:g}")
    axes.set(title=f"SAC on {env}", xlabel="environment steps", ylabel="return of an episode")
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        figure.legend(loc="outside lower center", ncols=4)
    try:
        files.create_folder(path.parent)
        files.write_atomic(path, lambda file: figure.savefig(file, format="png"), sync=False)
    except OSError as error:
        raise StorageWriteError(
            f"the learning curve {str(path)!r} could not be written: {error.strerror}; "
            "free space or choose another folder",
            path=str(path),
            errno=error.errno,
        ) from error


def _range(groups: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:
    return [float(np.min(each)) for each in groups], [float(np.max(each)) for each in groups]
