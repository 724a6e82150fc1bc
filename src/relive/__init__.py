# SPDX-License-Identifier: Apache-2.0
"""Replay buffers for reinforcement learning: trajectories on disk, rows at the speed of memory."""

from __future__ import annotations

from relive import errors, samplers
from relive.batches import SampleInfo
from relive.buffer import TrajectoryReplayBuffer
from relive.cache import TrajectoryCache
from relive.channel import Channel
from relive.collector import TrajectoryCollector
from relive.limits import Limits
from relive.maintenance import convert
from relive.part import TrajectoryPart
from relive.spec import Columns, ColumnSpec
from relive.trajectory import Trajectory

__all__ = [
    "Channel",
    "ColumnSpec",
    "Columns",
    "Limits",
    "SampleInfo",
    "Trajectory",
    "TrajectoryCache",
    "TrajectoryCollector",
    "TrajectoryPart",
    "TrajectoryReplayBuffer",
    "__version__",
    "convert",
    "errors",
    "samplers",
]

__version__ = "0.1.0"
