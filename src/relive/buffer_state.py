# SPDX-License-Identifier: Apache-2.0
"""The saved state of a buffer, as `state_dict` gives it and checkpoints hold it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from relive.errors import CorruptFileError, FormatVersionError, InvalidArgumentError
from relive.randomness import checked_seed, generator_from_json
from relive.record import natural

__all__ = ["STATE_VERSION", "BufferState"]

STATE_VERSION = 1
"""Version of what `state_dict` gives."""


@dataclass(frozen=True, slots=True)
class BufferState:
    """Everything needed to draw the batch that would have come."""

    seed: int
    """The seed in use."""
    stream: tuple[int, ...]
    """What is mixed into it."""
    generator: np.random.Generator
    """Where the draws were."""
    sampler_name: str
    """Name of the sampler."""
    sampler_state: Mapping[str, Any]
    """What it saved."""
    num_drawn: int
    """Rows drawn so far."""
    next_trajectory_id: int
    """The id that the next trajectory gets, at least."""
    next_row_id: int
    """The row id that its first row gets, at least."""

    @classmethod
    def from_json(cls, state: Any) -> BufferState:
        """Read a saved state.

        Raises:
            CorruptFileError: It is none.
            FormatVersionError: A later release saved it.
        """
        try:
            version = natural(state["version"])
            if version > STATE_VERSION:
                raise FormatVersionError(
                    f"the saved state has version {version}, but this release of relive reads up "
                    f"to {STATE_VERSION}; upgrade relive"
                )
            return cls(
                seed=checked_seed(state["seed"]),
                stream=tuple(natural(number) for number in state["stream"]),
                generator=generator_from_json(state["generator"]),
                sampler_name=str(state["sampler"]["name"]),
                sampler_state=dict(state["sampler"]["state"]),
                num_drawn=natural(state["sampled_chunks"]),
                next_trajectory_id=natural(state["trajectory_counter"]),
                next_row_id=natural(state["next_row_id"]),
            )
        except CorruptFileError:
            raise
        except (KeyError, TypeError, ValueError, InvalidArgumentError) as error:
            raise CorruptFileError(
                f"the saved state is {state!r:.200}, but a state is what state_dict() gave; save "
                "it again"
            ) from error
