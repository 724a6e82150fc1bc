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
from relive.fields import EXTENDABLE_FIELDS, FACT_FIELDS, FLAG_FIELDS, VALUE_FIELDS
from relive.runs import (
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
    values = {spec.name: getattr(trajectory, spec.name) for spec in fields(trajectory)}
    trees = [name for name, value in values.items() if isinstance(value, Mapping)]
    extracted = []
    for env, start, stop in steps.stretches():
        before, after = steps.rows_around(env, start, stop)
        kept = np.arange(start, stop)
        cut = {
            name: steps.take(name, value, env, kept, before=before, after=after)
            for name, value in named.items()
        }
        tree = {**{name: {} for name in trees}, **unflatten(cut)}
        extracted.append(replace(trajectory, gaps=None, **tree))
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

    def rows_around(self, env: int, start: int, stop: int) -> tuple[int | None, int | None]:
        """Return where columns of T + E rows have what lies just outside a stretch.

        Returns:
            The row of flags before its first step, and the row of values after its last; None
            where a recorded gap lies between.
        """
        epoch = start // self.steps_per_epoch
        follows_gap = start % self.steps_per_epoch and self.gaps[start - 1, env]
        precedes_gap = stop % self.steps_per_epoch and self.gaps[stop - 1, env]
        return (
            None if follows_gap else start + epoch,
            None if precedes_gap else stop + epoch,
        )

    def take(
        self,
        name: str,
        value: Any,
        env: int,
        kept: NDArray[np.int64],
        *,
        before: int | None = None,
        after: int | None = None,
    ) -> Any:
        """Return chosen steps of one env of one column, `[n, 1, ...]`, in memory of its own.

        Args:
            name: The column's full name.
            value: The column; a side value is returned as it is.
            env: Which env.
            kept: Which steps, rising.
            before: Row to put in front when it is a flag column of T + E rows.
            after: Row to put behind when it is a column of values with T + E rows.

        Raises:
            UnsupportedValueError: A list is no text column.
        """
        if _is_side_value(value):
            return dict(value) if isinstance(value, Mapping) else value
        if isinstance(value, (list, tuple)) or _is_text_array(value):
            return self._take_text(name, value, env, kept)
        rows = kept
        if len(value) != self.num_steps:
            rows = kept + kept // self.steps_per_epoch + (name in FLAG_FIELDS)
            if name in FLAG_FIELDS and before is not None:
                rows = np.insert(rows, 0, before)
            if name in VALUE_FIELDS and after is not None:
                rows = np.append(rows, after)
        if not is_tensor(value):
            return value[rows, env : env + 1]
        import torch

        chosen = torch.from_numpy(rows).to(value.device)
        return value[:, env : env + 1].index_select(0, chosen)

    def _take_text(self, name: str, value: Any, env: int, kept: NDArray[np.int64]) -> list[Any]:
        rows = value.tolist() if isinstance(value, np.ndarray) else value
        if len(rows) == self.num_envs and all(isinstance(entry, str) for entry in rows):
            return [rows[env]]
        if len(rows) != self.num_steps or not all(
            isinstance(row, (list, tuple)) and len(row) == self.num_envs for row in rows
        ):
            raise UnsupportedValueError(
                f"column {name!r} is a list, but lists hold text: B = {self.num_envs} strings, or "
                f"T = {self.num_steps} lists of B strings; make anything else a tensor [T, B, ...]",
                column=name,
            )
        return [[rows[step][env]] for step in kept.tolist()]


def named_columns(trajectory: Trajectory) -> dict[str, Any]:
    """Return every column and side value of a trajectory by its full name.

    Raises:
        UnsupportedValueError: A key is no column name.
    """
    names = [spec.name for spec in fields(trajectory) if spec.name not in FACT_FIELDS]
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
        raise InvalidArgumentError(
            f"mode is {mode!r}, but must be 'any' or 'all'; choose whether any or all of a step's "
            "flags make it a corrected one"
        )
    flags = _bool_array(_FLAGS, named.get(_FLAGS))
    num_steps, num_envs = flags.shape[:2]
    arrays = {n: v for n, v in named.items() if is_array(v) and not _is_side_value(v)}
    for name, value in arrays.items():
        if not _is_text_array(value):
            check_leading_axes(name, tuple(value.shape), num_steps, num_envs)
    lengths = {name: len(arrays[name]) for name in sorted(arrays.keys() & EXTENDABLE_FIELDS)}
    num_epochs = num_epochs_of(lengths, num_steps)
    recorded = np.zeros((num_steps, num_envs), np.bool_)
    if gaps is not None:
        recorded |= _bool_array("gaps", gaps, (num_steps, num_envs))
    dones = {name: copy_in(arrays[name], name)[0] for name in FLAG_FIELDS if name in arrays}
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
    cure = "set it" if value is None else "convert it"
    raise ColumnMismatchError(f"{name} is {found}, but must be bool {wanted}; {cure}", column=name)


def _is_side_value(value: object) -> bool:
    return isinstance(value, (bool, int, float, str, bytes, np.generic, Mapping))


def _is_text_array(value: object) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind in "UO"
