# SPDX-License-Identifier: Apache-2.0
"""Uniform draws over the rows of the window, with replacement."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from relive.samplers.base import Draw, Sampler
from relive.window import Window

__all__ = ["Uniform"]


class Uniform(Sampler):
    """Each row of the window is drawn with the same probability, at each place of the batch.

    A trajectory's chance is therefore its share of rows. Draws are independent: a row may come
    several times in a batch.
    """

    name: ClassVar[str] = "uniform"

    def draw(self, window: Window, num: int, rng: np.random.Generator) -> Draw:
        """Choose rows, as `Sampler.draw` says."""
        num_rows = window.num_rows
        # a third of the time of rng.integers; a row's chance is off by less than num_rows / 2**53
        numbers = (rng.random(num) * num_rows).astype(np.int64)
        return Draw(window.at(numbers), probabilities=1.0 / num_rows)
