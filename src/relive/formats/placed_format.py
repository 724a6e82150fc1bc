# SPDX-License-Identifier: Apache-2.0
"""Formats whose rows can be copied by where they are, many trajectories at once."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from relive.formats.base import Format
from relive.gather import Lacking
from relive.output_pool import Outputs
from relive.texts import TextGroup

__all__ = ["PlacedFormat"]


class PlacedFormat(Format):
    """A format whose records have a place (`Record.place`)."""

    @abstractmethod
    def gather_placed(self, folder: Path, places: NDArray[np.int64], outputs: Outputs) -> Lacking:
        """Fill a batch from trajectories whose records have a place, all at once.

        Args:
            folder: The store.
            places: Of each row its own, `[N]`: that of its trajectory (`Record.place`), plus
                `b * T + t`. They must be there: nothing is checked.
            outputs: Where to.

        Returns:
            Columns that rows lack: their full names, and the positions of those rows.

        Raises:
            StorageError: The disk cannot read it.
        """

    @abstractmethod
    def text_groups(
        self, folder: Path, places: NDArray[np.int64], positions: NDArray[np.int64]
    ) -> Iterable[TextGroup]:
        """Tell what the codes stand for that `gather_placed` gave for text columns.

        Args:
            folder: The store.
            places: As in `gather_placed`, `[N]`.
            positions: Which of these rows have the column.
        """
