# SPDX-License-Identifier: Apache-2.0
"""The data that every peer is filled with: the same numbers for each of them.

NumPy only, since it is imported in the environments of all peers. Column names are paths;
`T`, `B` and the other terms are those of docs/glossary.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["WORKLOADS", "Column", "Workload"]

STATE_COLUMNS = {
    "actions": ("f4", (8,)),
    "intervene_flags": ("?", (8,)),
    "rewards": ("f4", (1,)),
    "prev_logprobs": ("f4", (1,)),
    "prev_values": ("f4", (1,)),
    "curr_obs/states": ("f4", (64,)),
    "next_obs/states": ("f4", (64,)),
    "terminations": ("?", (1,)),
    "truncations": ("?", (1,)),
    "dones": ("?", (1,)),
}
IMAGE_SHAPE = (128, 128, 3)


@dataclass(frozen=True)
class Column:
    """One column of a workload."""

    name: str
    """Its path, such as "curr_obs/states"."""
    dtype: str
    """NumPy's code of its element type."""
    shape: tuple[int, ...]
    """Of one row."""

    @property
    def row_bytes(self) -> int:
        """Return what one row of this column takes."""
        return int(np.dtype(self.dtype).itemsize * np.prod(self.shape, dtype=int))


@dataclass(frozen=True)
class Workload:
    """How many trajectories of which shape and columns."""

    name: str
    """What tables call it."""
    trajectories: int
    """How many of them are added before anything is sampled."""
    steps: int
    """T, chunk steps a trajectory."""
    envs: int
    """B, parallel environments a trajectory."""
    columns: tuple[Column, ...]
    """Every column, in order."""

    @property
    def num_rows(self) -> int:
        """Return how many rows all trajectories have."""
        return self.trajectories * self.steps * self.envs

    @property
    def row_bytes(self) -> int:
        """Return what one row takes over all columns."""
        return sum(column.row_bytes for column in self.columns)

    @property
    def trajectory_bytes(self) -> int:
        """Return what one trajectory takes."""
        return self.steps * self.envs * self.row_bytes

    @property
    def observation_bytes(self) -> int:
        """Return what the present and the next observations of one trajectory take."""
        rows = self.steps * self.envs
        named = [c for c in self.columns if c.name.startswith(("curr_obs/", "next_obs/"))]
        return rows * sum(column.row_bytes for column in named)

    @property
    def stored_bytes(self) -> int:
        """Return what one trajectory takes when no image is stored twice."""
        images = sum(c.row_bytes for c in self.columns if c.shape == IMAGE_SHAPE)
        twice = images // 2 * (self.steps - 1) * self.envs
        return self.trajectory_bytes - twice

    def arrays(self, trajectory: int) -> dict[str, NDArray[Any]]:
        """Make the columns `[T, B, ...]` of one trajectory, always the same for its number."""
        rng = np.random.default_rng(trajectory)
        arrays = {column.name: self._random(rng, column) for column in self.columns}
        for name, current in arrays.items():
            further = arrays.get(name.replace("curr_obs/", "next_obs/"), current)
            if further is not current:
                # as a simulator has it: what comes next is what the next step begins with
                further[:-1] = current[1:]
        return arrays

    def _random(self, rng: np.random.Generator, column: Column) -> NDArray[Any]:
        shape = (self.steps, self.envs, *column.shape)
        if column.dtype == "u1":
            count = int(np.prod(shape))
            return np.frombuffer(bytearray(rng.bytes(count)), np.uint8).reshape(shape)
        if column.dtype == "?":
            return np.zeros(shape, np.bool_)
        return rng.standard_normal(shape, np.float32)


def _columns(images: bool) -> tuple[Column, ...]:
    columns = [Column(name, dtype, shape) for name, (dtype, shape) in STATE_COLUMNS.items()]
    if images:
        columns += [
            Column(f"{side}/main_images", "u1", IMAGE_SHAPE) for side in ("curr_obs", "next_obs")
        ]
    return tuple(columns)


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("state", trajectories=100, steps=40, envs=64, columns=_columns(images=False)),
        Workload("image", trajectories=60, steps=40, envs=8, columns=_columns(images=True)),
        Workload("image20", trajectories=60, steps=20, envs=8, columns=_columns(images=True)),
        Workload("short", trajectories=1000, steps=10, envs=1, columns=_columns(images=False)),
        Workload("tiny", trajectories=3, steps=4, envs=2, columns=_columns(images=False)),
    )
}
"""By name: `state` has rows of 567 bytes, `image` of 98,871. `image20` is the shortest that what is
said of disk space holds for, `short` and `tiny` are for adds by the thousand."""
