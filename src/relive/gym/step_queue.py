# SPDX-License-Identifier: Apache-2.0
"""A queue of steps for each env, from which one row of every env leaves at a time.

Under `AutoresetMode.NEXT_STEP` a reset takes a step of its env that is no transition, so envs
fall behind each other. The t-th valid step of each env forms the t-th part, whenever played.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relive.errors import LimitExceededError

__all__ = ["StepQueue"]


class StepQueue:
    """Steps that wait until every env has one.

    A step's columns stay in memory as long as a row of them waits, so the memory in use is at
    most `max_steps` steps of all B envs.

    Args:
        num_envs: B.
        max_steps: How many steps of one env may wait for another env.
    """

    def __init__(self, num_envs: int, max_steps: int) -> None:
        self._waiting: list[deque[Mapping[str, Any]]] = [deque() for _ in range(num_envs)]
        self._max_steps = max_steps

    def __len__(self) -> int:
        """Return how many steps of single envs wait."""
        return sum(map(len, self._waiting))

    def put(self, columns: Mapping[str, Any], valid: NDArray[np.bool_]) -> None:
        """Append one step.

        Args:
            columns: By name, `[B, ...]` arrays, tensors or lists of B texts; now owned here.
            valid: Which envs' rows are transitions, bool `[B]`; the others are left out.

        Raises:
            LimitExceededError: An env is too far ahead of the slowest one.
        """
        for env in valid.nonzero()[0].tolist():
            self._waiting[env].append(columns)
        lengths = list(map(len, self._waiting))
        if max(lengths) > self._max_steps and not min(lengths):
            ahead, behind = lengths.index(max(lengths)), lengths.index(0)
            raise LimitExceededError(
                f"env {ahead} is {max(lengths)} steps ahead of env {behind}, but at most "
                f"{self._max_steps} may wait: AutoresetMode.NEXT_STEP takes a step for each "
                "reset, and their episodes differ in length; use AutoresetMode.SAME_STEP or "
                "DISABLED, where no env falls behind, or raise max_queued_steps"
            )

    def get(self) -> dict[str, Any] | None:
        """Take the oldest waiting row of each env, or return None when an env has none.

        Returns:
            Columns `[B, ...]` that the caller owns.
        """
        if not all(self._waiting):
            return None
        rows = [steps.popleft() for steps in self._waiting]
        first = rows[0]
        if all(row is first for row in rows):
            return dict(first)
        return {name: _gather([row[name] for row in rows]) for name in first}

    def clear(self) -> int:
        """Drop every waiting step and return how many there were."""
        num_steps = len(self)
        for steps in self._waiting:
            steps.clear()
        return num_steps


def _gather(columns: list[Any]) -> Any:
    """Return row b of `columns[b]` for each b, as one column."""
    rows = [column[env] for env, column in enumerate(columns)]
    if isinstance(columns[0], np.ndarray):
        return np.stack(rows)
    if isinstance(columns[0], list):
        return rows
    import torch  # only a tensor that NumPy cannot hold, such as bfloat16, comes here

    return torch.stack(rows)
