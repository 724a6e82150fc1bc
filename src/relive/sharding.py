# SPDX-License-Identifier: Apache-2.0
"""Which trajectories of a list a rank loads.

Pure functions: the shards are contiguous, their sizes differ by at most one, and the earlier
ranks have the larger ones.
"""

from __future__ import annotations

from relive.errors import InvalidArgumentError
from relive.options import checked_count, is_count

__all__ = ["check_rank", "shard_bounds"]


def check_rank(local_rank: int, world_size: int) -> None:
    """Refuse a rank that is not in the world.

    Raises:
        InvalidArgumentError: `world_size` is below 1, `local_rank` is outside it, or one is no
            integer.
    """
    world_size = checked_count("world_size", world_size)
    if not is_count(local_rank, 0) or local_rank >= world_size:
        raise InvalidArgumentError(
            f"local_rank is {local_rank!r}, but must be an integer in [0, {world_size}); ranks "
            "count from 0 to world_size - 1"
        )


def shard_bounds(num_trajectories: int, local_rank: int, world_size: int) -> tuple[int, int]:
    """Return where a rank's shard of the trajectory list begins, and one past its end.

    Args:
        num_trajectories: Length of the list, at least 0.
        local_rank: The rank, in `[0, world_size)`.
        world_size: Number of ranks, at least 1.

    Raises:
        InvalidArgumentError: The rank is not in the world.

    Example:
        >>> [shard_bounds(10, rank, 4) for rank in range(4)]
        [(0, 3), (3, 6), (6, 8), (8, 10)]
    """
    check_rank(local_rank, world_size)
    size, larger = divmod(num_trajectories, world_size)
    start = local_rank * size + min(local_rank, larger)
    return start, start + size + (local_rank < larger)
