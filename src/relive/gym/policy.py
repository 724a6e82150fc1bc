# SPDX-License-Identifier: Apache-2.0
"""Asking the policy, and checking what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from numpy.typing import NDArray

from relive.collection.incoming import check_name
from relive.columns import flatten
from relive.dtypes import has_numpy_type
from relive.errors import ColumnMismatchError, UnsupportedValueError
from relive.fields import TREE_FIELDS
from relive.gym.part_columns import MASK
from relive.gym.spaces import ActionSpec, Flat, ObservationSpec
from relive.tensors import copy_in, is_array, wrap_out

__all__ = ["Policy", "PolicyReader"]

_FIELDS = (
    "prev_logprobs",
    "prev_values",
    "versions",
    "intervene_flags",
    "forward_inputs",
    "extras",
)


class Policy(Protocol):
    """Chooses actions for all envs: any function of this form."""

    def __call__(self, obs: Any, /) -> Any:
        """Act on what the envs show.

        Args:
            obs: `[B, ...]` NumPy arrays, in the structure of the observation space; the policy
                may keep and change them.

        Returns:
            Actions `[B, ...]`, or `[B, K, ...]` with action chunks: an array or a tensor on any
            device. Or a tuple of these and a dict of further columns, which may be nested:
            prev_logprobs, prev_values, versions, intervene_flags, forward_inputs, extras, each
            a `[B, ...]` array or tensor or a list of B texts. All are copied.
        """


class PolicyReader:
    """A policy, with what its answers must look like.

    Args:
        policy: Called once for each `act`.
        observations: The structure in which it gets them.
        actions: What its actions must be.
        num_envs: B.
    """

    def __init__(
        self, policy: Policy, observations: ObservationSpec, actions: ActionSpec, num_envs: int
    ) -> None:
        self._policy = policy
        self._observations = observations
        self._actions = actions
        self._num_envs = num_envs
        self._layout: dict[str, str] | None = None  # of the first answer's further columns

    def act(self, obs: Flat) -> tuple[NDArray[Any], dict[str, Any]]:
        """Ask the policy.

        Args:
            obs: Observation columns, which stay as they are.

        Returns:
            Its actions in the action space's element type, and its further columns by name:
            arrays, lists of text, and tensors where NumPy lacks the element type.

        Raises:
            ColumnMismatchError: A column has a wrong name, shape or number of rows, or is not
                as in the first answer.
            UnsupportedValueError: Something no column can hold.
        """
        answer = self._policy(self._observations.tree(obs))
        further: Any = {}
        if isinstance(answer, tuple):
            if len(answer) != 2 or not isinstance(answer[1], Mapping):
                raise UnsupportedValueError(
                    f"the policy returned a tuple of {[type(item).__name__ for item in answer]}, "
                    "but may return actions alone, or actions with a dict of columns; return "
                    "(actions, {'prev_logprobs': ...})"
                )
            answer, further = answer
        if answer is None:
            raise UnsupportedValueError(
                "the policy returned None, but must return the actions [B, ...]; end it with "
                "`return actions`",
                column="actions",
            )
        columns = {
            name: self._column(value, name)
            for name, value in flatten(further).items()
            # An empty tree field is what a trajectory has by default.
            if not (name in TREE_FIELDS and isinstance(value, Mapping))
        }
        actions = self._actions.read(answer)
        self._check_layout({name: _describe(column) for name, column in columns.items()})
        return actions, columns

    def _check_layout(self, layout: dict[str, str]) -> None:
        # Rows of different calls can share a part, where a difference would go unnoticed.
        self._layout = layout if self._layout is None else self._layout
        if layout != self._layout:
            raise ColumnMismatchError(
                f"the policy returned the columns {layout}, but before that {self._layout}; "
                "return the same at every call"
            )

    def _column(self, value: Any, name: str) -> Any:
        field = name.split("/")[0]
        if name == MASK:
            raise ColumnMismatchError(
                f"the policy returned a column {name!r}, but there the rollout says which actions "
                "were played; give it another name",
                column=name,
            )
        if field not in _FIELDS:
            raise ColumnMismatchError(
                f"the policy returned a column {name!r}, but may give {', '.join(_FIELDS)}; put it "
                f"under extras, as {{'extras': {{{name!r}: ...}}}}",
                column=name,
            )
        if fault := check_name(name):
            raise ColumnMismatchError(
                f"the policy returned a column of no trajectory: {fault}", column=name
            )
        column: Any
        if isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
            column = list(value)
        elif is_array(value):
            array, dtype = copy_in(value, name)
            column = wrap_out(array, dtype, "numpy" if has_numpy_type(dtype) else "torch", name)
        else:
            raise UnsupportedValueError(
                f"the policy returned a {type(value).__name__} as column {name!r}, but a column "
                "is an array, a tensor or a list of texts; convert it with np.asarray()",
                column=name,
            )
        shape = (len(column),) if isinstance(column, list) else tuple(column.shape)
        if shape[:1] != (self._num_envs,):
            raise ColumnMismatchError(
                f"the policy returned column {name!r} {shape}, but a row for each of "
                f"{self._num_envs} envs is needed; return it as [B, ...]",
                column=name,
            )
        return column


def _describe(column: Any) -> str:
    return "text" if isinstance(column, list) else f"{column.dtype} {tuple(column.shape)}"
