# SPDX-License-Identifier: Apache-2.0
"""The steps of a trajectory that a human corrected, as trajectories of their own.

Pure functions of a trajectory's fields: nothing is stored, drawn or imported.

Axes and terms (T, B, E, run) are those of docs/glossary.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from relive.columns import flatten, unflatten
from relive.errors import ColumnMismatchError, InvalidArgumentError, UnsupportedValueError
from relive.runs import (
    LEADING,
    TRAILING,
    check_leading_axes,
    num_epochs_of,
    run_bounds,
    run_breaks,
)
from relive.tensors import copy_in, is_array, is_tensor

if TYPE_CHECKING:
    from relive.trajectory import Trajectory

__all__ = ["CorrectedSteps", "Mode", "corrected_steps", "extract_interventions", "named_columns"]

Mode = Literal["any", "all"]
"""Whether a step counts as corrected when any of its flags is set, or only when all are."""

_Trajectory = TypeVar("_Trajectory", bound="Trajectory")

_FLAGS = "intervene_flags"
_NO_COLUMNS = frozenset({"max_episode_length", "model_weights_id", "gaps"})


def extract_interventions(trajectory: _Trajectory, mode: Mode = "any") -> list[_Trajectory]:
    """Return the steps that a human corrected, one trajectory for each contiguous stretch.

    A stretch lies within one run: it crosses no done, no end of a rollout epoch and no recorded
    gap, so that every sample a sampler may take of it is of consecutive steps.

    Args:
        trajectory: `intervene_flags` is bool `[T, B, ...]`; the other columns are those of a
            trajectory that could be added.
        mode: Whether any or all flags over the trailing axes make a step a corrected one.

    Returns:
        Trajectories `[n, 1, ...]`, ordered by env, then time; none when nothing was corrected.
        Each has all columns, texts and side values, in memory of its own: tensors where tensors
        were, on the same device, arrays where arrays were, lists for text. Columns with T + E
        rows get n + 1: flags with the row before the first step, `prev_values` with the row after
        the last. Where a recorded gap lies there, that row is of another moment, and they get n.

    Raises:
        InvalidArgumentError: `mode` is neither "any" nor "all".
        ColumnMismatchError: `intervene_flags` is missing, not bool or not `[T, B, ...]`, or
            another column disagrees about T, B or E.
        UnsupportedValueError: A list is no text column.

    Example:
        >>> from relive import Trajectory
        >>> corrected = np.array([[False], [True], [True], [False], [True]])  # [T, B]
        >>> rollout = Trajectory(rewards=np.arange(5.0)[:, None], intervene_flags=corrected)
        >>> [part.rewards.tolist() for part in extract_interventions(rollout)]
        [[[1.0], [2.0]], [[4.0]]]
    """
    named = named_columns(trajectory)
    steps = corrected_steps(named, trajectory.gaps, mode)
    trees: dict[str, Any] = {
        spec.name: {}
        for spec in fields(trajectory)
        if isinstance(getattr(trajectory, spec.name), Mapping)
    }
    extracted = []
    for env, start, stop in steps.stretches():
        cut = {name: _cut(name, value, steps, env, start, stop) for name, value in named.items()}
        extracted.append(replace(trajectory, gaps=None, **{**trees, **unflatten(cut)}))
    return extracted


@dataclass(frozen=True, slots=True)
class CorrectedSteps:
    """Which steps of a trajectory a human corrected, and where its runs end."""

    corrected: NDArray[np.bool_]
    """Whether the step was corrected, `[T, B]`."""
    breaks: NDArray[np.bool_]
    """Whether a run ends after the step, `[T, B]`."""
    gaps: NDArray[np.bool_]
    """Whether a recorded gap follows the step, `[T, B]`."""
    num_epochs: int
    """E, as far as flags or values tell; else 1."""

    @property
    def num_steps(self) -> int:
        """T."""
        return len(self.corrected)

    @property
    def num_envs(self) -> int:
        """B."""
        return int(self.corrected.shape[1])

    @property
    def steps_per_epoch(self) -> int:
        """T / E."""
        return self.num_steps // self.num_epochs

    def stretches(self) -> list[tuple[int, int, int]]:
        """Return env, first step and one past the last step of each contiguous stretch."""
        ends = self.breaks.copy()
        ends[:-1] |= self.corrected[:-1] != self.corrected[1:]
        bounds = run_bounds(ends).tolist()
        return [(env, start, stop) for env, start, stop in bounds if self.corrected[start, env]]


def named_columns(trajectory: Trajectory) -> dict[str, Any]:
    """Return every column and side value of a trajectory by its full name.

    Raises:
        UnsupportedValueError: A key is no column name.
    """
    names = [spec.name for spec in fields(trajectory) if spec.name not in _NO_COLUMNS]
    return flatten({name: getattr(trajectory, name) for name in names})


def corrected_steps(named: Mapping[str, Any], gaps: Any, mode: Mode) -> CorrectedSteps:
    """Find the steps that a human corrected.

    Args:
        named: The columns by full name.
        gaps: As in `Trajectory`.
        mode: As in `extract_interventions`.

    Raises:
        InvalidArgumentError: `mode` is neither "any" nor "all".
        ColumnMismatchError: `intervene_flags` is missing, not bool or not `[T, B, ...]`, or
            another column disagrees about T, B or E.
    """
    if mode not in ("any", "all"):
        raise InvalidArgumentError(f"mode is {mode!r}, but must be 'any' or 'all'")
    flags = _bool_array(_FLAGS, named.get(_FLAGS))
    num_steps, num_envs = flags.shape[:2]
    arrays = {n: v for n, v in named.items() if is_array(v) and not _is_side_value(v)}
    for name, value in arrays.items():
        if not _is_text_array(value):
            check_leading_axes(name, tuple(value.shape), num_steps, num_envs)
    lengths = {name: len(arrays[name]) for name in sorted((LEADING | TRAILING) & arrays.keys())}
    num_epochs = num_epochs_of(lengths, num_steps)
    recorded = np.zeros((num_steps, num_envs), np.bool_)
    if gaps is not None:
        recorded |= _bool_array("gaps", gaps, (num_steps, num_envs))
    dones = {name: copy_in(arrays[name], name)[0] for name in LEADING & arrays.keys()}
    # [T, B, ...] -> [T, B]
    over = tuple(range(2, flags.ndim))
    return CorrectedSteps(
        corrected=np.asarray(flags.any(axis=over) if mode == "any" else flags.all(axis=over)),
        breaks=run_breaks(dones, num_steps, num_envs, num_epochs, recorded),
        gaps=recorded,
        num_epochs=num_epochs,
    )


def _bool_array(name: str, value: Any, shape: tuple[int, int] | None = None) -> NDArray[np.bool_]:
    """Copy a bool tensor or array `[T, B, ...]`, of exactly this shape if one is given."""
    wanted = "[T, B, ...] with T and B at least 1" if shape is None else f"[T, B] = {list(shape)}"
    if not is_array(value):
        found = "missing" if value is None else f"a {type(value).__name__}"
    else:
        array, dtype = copy_in(value, name)
        fits = array.ndim >= 2 and array.size if shape is None else array.shape == shape
        if dtype == "bool" and fits:
            return array
        found = f"{dtype} {list(array.shape)}"
    raise ColumnMismatchError(f"{name} is {found}, but must be bool {wanted}", column=name)


def _cut(name: str, value: Any, steps: CorrectedSteps, env: int, start: int, stop: int) -> Any:
    """Return what a stretch has of one column or side value, `[n, 1, ...]`."""
    if _is_side_value(value):
        return value
    if _is_text_array(value):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return _cut_text(name, value, steps, env, start, stop)
    rows = _rows_of(name, len(value), steps, env, start, stop)
    cut = value[rows, env : env + 1]
    return cut.clone() if is_tensor(cut) else cut.copy()


def _rows_of(
    name: str, length: int, steps: CorrectedSteps, env: int, start: int, stop: int
) -> slice:
    """Return the rows of a column of T or T + E rows that belong to a stretch."""
    if length == steps.num_steps:
        return slice(start, stop)
    epoch = start // steps.steps_per_epoch
    if name in LEADING:
        follows_gap = start % steps.steps_per_epoch and steps.gaps[start - 1, env]
        return slice(start + epoch + bool(follows_gap), stop + epoch + 1)
    precedes_gap = stop % steps.steps_per_epoch and steps.gaps[stop - 1, env]
    return slice(start + epoch, stop + epoch + 1 - bool(precedes_gap))


def _cut_text(
    name: str, value: list[Any] | tuple[Any, ...], steps: CorrectedSteps, *stretch: int
) -> list[Any]:
    env, start, stop = stretch
    if all(isinstance(entry, str) for entry in value) and len(value) == steps.num_envs:
        return [value[env]]
    if len(value) != steps.num_steps or not all(
        isinstance(row, (list, tuple)) and len(row) == steps.num_envs for row in value
    ):
        raise UnsupportedValueError(
            f"column {name!r} is a list, but lists hold text: B = {steps.num_envs} strings, or "
            f"T = {steps.num_steps} lists of B strings; make anything else a tensor [T, B, ...]",
            column=name,
        )
    return [[row[env]] for row in value[start:stop]]


def _is_side_value(value: object) -> bool:
    return isinstance(value, (bool, int, float, str, bytes, np.generic, Mapping))


def _is_text_array(value: object) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind in "UO"
