# SPDX-License-Identifier: Apache-2.0
"""The names of RLinf's replay buffer: a program written for it runs after a change of import.

`rlinf.data.replay_buffer` and `rlinf.data.embodied_io_struct` become `relive.compat.rlinf`.
docs/differences.md has the table of what behaves differently on purpose.
"""

from __future__ import annotations

from relive.compat.rlinf.batch import convert_trajectories_to_batch
from relive.compat.rlinf.buffer import TrajectoryReplayBuffer
from relive.compat.rlinf.cache import TrajectoryCache
from relive.compat.rlinf.trajectory import Trajectory, get_model_weights_id

__all__ = [
    "Trajectory",
    "TrajectoryCache",
    "TrajectoryReplayBuffer",
    "convert_trajectories_to_batch",
    "get_model_weights_id",
]
