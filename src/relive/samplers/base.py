# SPDX-License-Identifier: Apache-2.0
"""What a sampler must do.

A sampler decides which rows make a batch. It is pure: it knows windows, row ids and numbers,
and nothing of files. `relive.testing.SamplerConformance` checks any implementation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from relive.record import Record
from relive.window import Located, Window

__all__ = ["Draw", "Sampler"]


@dataclass(frozen=True, slots=True)
class Draw:
    """Which rows a batch has."""

    located: Located
    """The rows in batch order, `[N]`: `window.at(numbers)`, or `window.locate(row_ids)`."""
    probabilities: NDArray[np.float64] | float
    """With what probability each was drawn at its place in the batch, `[N]`, or one for all."""
    weights: NDArray[np.float32] | float = 1.0
    """Importance weight of each, `[N]`, or one for all."""

    @property
    def row_ids(self) -> NDArray[np.int64]:
        """Row ids in batch order, `[N]`."""
        return self.located.row_ids


class Sampler(ABC):
    """Draws rows from a window.

    A buffer calls `draw`, the two listeners and the two methods for states under a lock, one at
    a time. `finish` is called outside it, for several batches at once: it only computes. The
    listeners must not raise.
    """

    name: ClassVar[str]
    """Names the sampler in saved states."""

    @property
    def needs(self) -> Sequence[str]:
        """Columns that `finish` reads even if the caller does not want them."""
        return ()

    @abstractmethod
    def draw(self, window: Window, num: int, rng: np.random.Generator) -> Draw:
        """Choose rows.

        Args:
            window: What may be drawn; it has at least one row.
            num: How many, at least 1.
            rng: The only source of randomness.
        """

    def finish(self, batch: dict[str, Any], draw: Draw) -> dict[str, Any]:
        """Make the batch from the rows gathered, flat names to arrays `[N, ...]`."""
        return batch

    def on_add(self, record: Record) -> None:
        """Hear of a trajectory that was added; here nothing follows from it."""
        del record

    def on_remove(self, record: Record) -> None:
        """Hear of a trajectory that was evicted or deleted; here nothing follows from it."""
        del record

    def state_dict(self) -> Mapping[str, Any]:
        """Return what must be saved to go on exactly, as JSON values."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state; here there is none."""
        del state
