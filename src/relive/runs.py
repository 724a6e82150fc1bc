# SPDX-License-Identifier: Apache-2.0
"""Which rows flags belong to, and where runs begin and end inside a trajectory.

Pure functions over flags and shapes: no file, no thread, no state. Samplers that need more
than one row call them so that no sample ever crosses an episode's end.

Axes and terms (T, B, E, row, run) are those of docs/glossary.md.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from relive.errors import ColumnMismatchError
from relive.fields import EXTENDABLE_FIELDS

__all__ = [
    "check_leading_axes",
    "drop_extra_rows",
    "extended_rows",
    "extra_rows",
    "join_extra_rows",
    "num_epochs_of",
    "run_bounds",
    "run_breaks",
    "run_lengths",
]


def check_leading_axes(
    name: str, shape: tuple[int, ...], num_steps: int, num_envs: int, *, told_by: str = ""
) -> None:
    """Refuse a column whose first two axes are not those of its trajectory.

    Args:
        name: Of the column.
        shape: Of the column.
        num_steps: T of the trajectory.
        num_envs: B of the trajectory.
        told_by: The column that T and B are known from, for the error; "" when no single one.

    Raises:
        ColumnMismatchError: They are not `[T, B]`, nor `[any, B]` of a column that may have
            T + E rows.
    """
    may_extend = name in EXTENDABLE_FIELDS
    fits = len(shape) >= 2 and shape[1] == num_envs and (may_extend or shape[0] == num_steps)
    if not fits:
        rows = "T or T + E" if may_extend else "T"
        source = f", as {told_by!r} says" if told_by else ""
        raise ColumnMismatchError(
            f"column {name!r} is {list(shape)}, but the trajectory is [T, B] = "
            f"[{num_steps}, {num_envs}]{source}; make each column [{rows}, B, ...]",
            column=name,
        )


def num_epochs_of(lengths: Mapping[str, int], num_steps: int) -> int:
    """Find the number of rollout epochs E from the columns that may have T + E rows.

    Args:
        lengths: Length of the first axis by column name, for flags and `prev_values` present.
        num_steps: T of the trajectory.

    Returns:
        E of those that have T + E rows; 1 when all have T.

    Raises:
        ColumnMismatchError: A length is neither T nor T + E with T divisible by E, or two
            columns imply different E.

    Example:
        >>> num_epochs_of({"dones": 6, "terminations": 4}, 4)
        2
    """
    epochs, told_by = 1, ""
    for name, length in lengths.items():
        extra = length - num_steps
        if extra == 0:
            continue
        if extra < 0 or num_steps % extra:
            raise ColumnMismatchError(
                f"column {name!r} has {length} rows, but with T = {num_steps} it must have T, or "
                "T + E where E divides T; check that each epoch has one extra row",
                column=name,
            )
        if told_by and extra != epochs:
            raise ColumnMismatchError(
                f"column {name!r} has T + {extra} rows, but {told_by!r} has T + {epochs}; "
                "give all of them the same number of rollout epochs",
                column=name,
            )
        epochs, told_by = extra, name
    return epochs


def extended_rows(
    rows: NDArray[np.int64],
    num_envs: NDArray[np.int64] | int,
    steps_per_epoch: NDArray[np.int64] | int,
    *,
    leading: bool,
) -> NDArray[np.int64]:
    """Map row numbers to their places in a column of T + E rows.

    Args:
        rows: Row numbers `t * B + b`, int64 `[N]`.
        num_envs: B, one for all rows or one a row.
        steps_per_epoch: T / E, likewise.
        leading: Whether the extra row of each epoch is its first (flags), not its last.

    Returns:
        Positions in the column flattened to `[(T + E) * B, ...]`, int64 `[N]`.

    Example:
        >>> extended_rows(np.arange(4), 1, 2, leading=True).tolist()
        [1, 2, 4, 5]
    """
    epoch = rows // num_envs // steps_per_epoch
    return rows + (epoch + int(leading)) * num_envs


def drop_extra_rows(
    column: NDArray[np.generic], num_steps: int, num_epochs: int, *, leading: bool
) -> NDArray[np.generic]:
    """Return a column of T or T + E rows with T rows: `[T, B, ...]`."""
    if column.shape[0] == num_steps:
        return column
    # [T + E, B, ...] -> [E, T / E + 1, B, ...] -> [T, B, ...]
    by_epoch = column.reshape(num_epochs, column.shape[0] // num_epochs, *column.shape[1:])
    kept = by_epoch[:, 1:] if leading else by_epoch[:, :-1]
    return kept.reshape(num_steps, *column.shape[1:])


def extra_rows(
    column: NDArray[np.generic], num_epochs: int, *, leading: bool
) -> NDArray[np.generic]:
    """Return what `drop_extra_rows` leaves out of a column of T + E rows: `[E, B, ...]`."""
    # [T + E, B, ...] -> [E, T / E + 1, B, ...] -> [E, B, ...]
    by_epoch = column.reshape(num_epochs, column.shape[0] // num_epochs, *column.shape[1:])
    return by_epoch[:, 0 if leading else -1]


def join_extra_rows(
    rows: NDArray[np.generic], extra: NDArray[np.generic], *, leading: bool
) -> NDArray[np.generic]:
    """Put rows `[T, B, ...]` and the extra ones `[E, B, ...]` together: `[T + E, B, ...]`."""
    by_epoch = rows.reshape(len(extra), rows.shape[0] // len(extra), *rows.shape[1:])
    parts = [extra[:, None], by_epoch] if leading else [by_epoch, extra[:, None]]
    joined = np.concatenate(parts, axis=1)
    return joined.reshape(len(rows) + len(extra), *rows.shape[1:])


def run_breaks(
    flags: Mapping[str, NDArray[np.generic]],
    num_steps: int,
    num_envs: int,
    num_epochs: int,
    gaps: NDArray[np.bool_] | None = None,
) -> NDArray[np.bool_]:
    """Tell after which chunk steps a run ends.

    A run ends at a done (`dones`, else terminations or truncations, else never), at the end
    of each rollout epoch and at each recorded gap. Flags with trailing axes count when any
    is set.

    Args:
        flags: The flag columns present, `[T, B, ...]` or `[T + E, B, ...]`.
        num_steps: T.
        num_envs: B.
        num_epochs: E.
        gaps: Recorded gaps, bool `[T, B]`.

    Returns:
        bool `[T, B]`.

    Example:
        >>> run_breaks({"dones": np.array([[0], [0], [1], [0], [0], [1]])}, 4, 1, 2).T.tolist()
        [[False, True, False, True]]
    """
    breaks = np.zeros((num_steps, num_envs), np.bool_)
    told_by = ["dones"] if "dones" in flags else ["terminations", "truncations"]
    for name in told_by:
        if name in flags:
            rows = drop_extra_rows(flags[name], num_steps, num_epochs, leading=True)
            breaks |= (rows != 0).any(axis=tuple(range(2, rows.ndim)))
    breaks[num_steps // num_epochs - 1 :: num_steps // num_epochs] = True
    if gaps is not None:
        breaks |= gaps
    return breaks


def run_bounds(breaks: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Cut each env's chunk steps into runs.

    Args:
        breaks: Whether a run ends after this chunk step, bool `[T, B]` with T and B >= 1.

    Returns:
        One line per run, int64 `[S, 3]`: env, first chunk step, one past the last. Ordered by
        env, then time; every (chunk step, env) lies in exactly one run.

    Raises:
        ColumnMismatchError: `breaks` is not bool `[T, B]`, or is empty.

    Example:
        >>> run_bounds(np.array([[False], [True], [False]])).tolist()
        [[0, 0, 2], [0, 2, 3]]
    """
    if breaks.dtype != np.bool_ or breaks.ndim != 2 or not breaks.size:
        raise ColumnMismatchError(
            f"breaks is {breaks.dtype} {breaks.shape}, but runs need non-empty bool [T, B]; "
            "convert it",
            column="dones",
        )
    is_last = breaks.copy()
    is_last[-1] = True  # the trajectory's end closes whatever is still running
    env, last = is_last.T.nonzero()
    stop = last + 1
    is_first_of_env = np.diff(env, prepend=-1) != 0
    start = np.where(is_first_of_env, 0, np.roll(stop, 1))
    return np.stack([env, start, stop], axis=1)


def run_lengths(breaks: NDArray[np.bool_]) -> tuple[int, ...] | None:
    """Return the lengths of all runs, env after env; None when each env is one whole run.

    The lengths of one env add up to T, so the list needs no separators.

    Example:
        >>> run_lengths(np.array([[False, False], [True, False], [False, False]]))
        (2, 1, 3)
    """
    bounds = run_bounds(breaks)
    if len(bounds) == breaks.shape[1]:
        return None
    return tuple((bounds[:, 2] - bounds[:, 1]).tolist())
