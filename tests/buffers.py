# SPDX-License-Identifier: Apache-2.0
"""Opening buffers and looking into them and their folders, the same way in many tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from relive import TrajectoryReplayBuffer
from trajectories import address_of, check_rows

__all__ = [
    "contents_of",
    "ks_of",
    "open_at",
    "open_buffer",
    "open_memmap",
    "open_store",
    "stats_of",
]


def open_store(folder: Path, **options: Any) -> TrajectoryReplayBuffer:
    """Open a buffer with a store in a folder."""
    return TrajectoryReplayBuffer(auto_save=True, auto_save_path=folder, **options)


def open_at(kind: str, folder: Path, **options: Any) -> TrajectoryReplayBuffer:
    """Open a buffer of a kind, "memory" or a format, with its store in a folder."""
    if kind == "memory":
        return TrajectoryReplayBuffer(**options)
    return open_store(folder, trajectory_format=kind, **options)


def open_buffer(kind: str, folder: Path, **options: Any) -> TrajectoryReplayBuffer:
    """Open a buffer of a kind, with its store in `store` inside a folder."""
    return open_at(kind, folder / "store", **options)


def open_memmap(folder: Path, **options: Any) -> TrajectoryReplayBuffer:
    """Open a store of segments whose window is all of it."""
    return open_store(folder, **{"trajectory_format": "memmap", "sample_window_size": 0, **options})


def ks_of(buffer: TrajectoryReplayBuffer) -> set[int]:
    """Return the numbers of the trajectories that are drawn."""
    batch = buffer.sample(200)
    check_rows(batch)
    return set(address_of(batch)[0].tolist())


def contents_of(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder but the lock, whose text may change at any opening."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "writer.lock"
    }


def stats_of(buffer: TrajectoryReplayBuffer) -> dict[str, float]:
    """Return the statistics but for those of the process."""
    return {k: v for k, v in buffer.get_stats().items() if k != "private_bytes"}
