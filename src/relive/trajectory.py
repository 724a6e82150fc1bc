# SPDX-License-Identifier: Apache-2.0
"""`Trajectory`: what rollouts produce and what a buffer stores, `[T, B, ...]`.

Axes and terms (T, B, E, row, run) are those of docs/glossary.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeVar

from relive.errors import InvalidArgumentError
from relive.fields import FACT_FIELDS
from relive.interventions import Mode, extract_interventions
from relive.options import nearest

__all__ = ["COLUMN_FIELDS", "Trajectory"]

_Self = TypeVar("_Self", bound="Trajectory")


@dataclass(repr=False)  # which would be all values of all tensors
class Trajectory:
    """One rollout of T chunk steps in B parallel envs, possibly over E rollout epochs.

    Every field is optional and may be assigned; nothing is checked or copied before the
    trajectory is added to a buffer. Wherever a tensor may stand, a NumPy array may too.
    Columns are `[T, B, ...]`, T first.
    """

    max_episode_length: int = 0
    """The longest an episode may last, in chunk steps; 0 when unknown."""
    model_weights_id: str = ""
    """Names the model weights that acted; any text."""
    actions: Any = None
    """What was played, `[T, B, ...]`."""
    intervene_flags: Any = None
    """Whether a human took over, bool `[T, B, ...]`."""
    rewards: Any = None
    """Reward of each chunk step, `[T, B, ...]`."""
    terminations: Any = None
    """Whether the step ended its episode for good, bool `[T, B, ...]` or `[T + E, B, ...]`."""
    truncations: Any = None
    """Whether the step was cut off by a limit, bool `[T, B, ...]` or `[T + E, B, ...]`."""
    dones: Any = None
    """Whether the step ended its episode in any way, bool `[T, B, ...]` or `[T + E, B, ...]`."""
    prev_logprobs: Any = None
    """Log-probability of the action under the acting policy, `[T, B, ...]`."""
    prev_values: Any = None
    """Value estimates; with T + E rows the last of each epoch is its bootstrap value."""
    versions: Any = None
    """Version of the model that acted, `[T, B, ...]`."""
    forward_inputs: dict[str, Any] = field(default_factory=dict)
    """What the policy needs to repeat its forward pass: a nested dict of `[T, B, ...]`."""
    curr_obs: dict[str, Any] = field(default_factory=dict)
    """Observations before the step: a nested dict of `[T, B, ...]`."""
    next_obs: dict[str, Any] = field(default_factory=dict)
    """Observations after the step, before any reset: a nested dict of `[T, B, ...]`."""
    extras: dict[str, Any] = field(default_factory=dict)
    """Further columns and side values: a nested dict."""
    gaps: Any = None
    """Whether the next chunk step does not follow this one, bool `[T, B]`; no run crosses one."""

    if not TYPE_CHECKING:  # with it, type checkers would no longer see a misspelt field

        def __setattr__(self, name: str, value: Any) -> None:
            """Set a field, also one that a subclass has; a misspelt one would be lost silently.

            Raises:
                InvalidArgumentError: There is none of this name.
            """
            names = self.__dataclass_fields__
            if name not in names and not name.startswith("_") and not hasattr(type(self), name):
                close = nearest(name, names)
                cure = f"did you mean {close!r}?" if close else "put further columns into extras"
                raise InvalidArgumentError(
                    f"{name} is no field of {type(self).__name__}, but only its fields are stored; "
                    f"{cure}"
                )
            super().__setattr__(name, value)

    def __repr__(self) -> str:
        """Return what each field that is set is, with the shapes of columns in place of values."""
        named = {spec.name: getattr(self, spec.name) for spec in fields(self)}
        told = [
            f"{name}={_shown(value)}"
            for name, value in named.items()
            if not (value is None or (isinstance(value, (int, str, Mapping)) and not value))
        ]
        return f"{type(self).__name__}({', '.join(told)})"

    def extract_interventions(self: _Self, mode: Mode = "any") -> list[_Self]:
        """Return the steps that a human corrected, one trajectory for each contiguous stretch.

        See `relive.interventions.extract_interventions`.
        """
        return extract_interventions(self, mode)


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name!r}: {_shown(inner)}' for name, inner in value.items())}}}"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype} {list(value.shape)}"
    return repr(value) if isinstance(value, (int, float, str)) else type(value).__name__


COLUMN_FIELDS = tuple(spec.name for spec in fields(Trajectory) if spec.name not in FACT_FIELDS)
"""Fields whose values become columns or side values, in the order of the dataclass."""
