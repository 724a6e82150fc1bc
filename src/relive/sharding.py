# SPDX-License-Identifier: Apache-2.0
"""Which trajectories of a list a rank loads.

Pure functions: the shards are contiguous, their sizes differ by at most one, and the earlier
ranks have the larger ones.
"""

from __future__ import annotations

from numbers import Integral

from relive.errors import InvalidArgumentError

__all__ = ["check_rank", "shard_bounds"]


def check_rank(local_rank: int, world_size: int) -> None:
    """Refuse a rank that is not in the world.

    Raises:
        InvalidArgumentError: `world_size` is below 1, `local_rank` is outside it, or one is no
            integer.
    """
    if not _is_integer(world_size) or world_size < 1:
        raise InvalidArgumentError(
            f"world_size is {world_size!r}, but must be an integer of at least 1"
        )
    if not _is_integer(local_rank) or not 0 <= local_rank < world_size:
        raise InvalidArgumentError(
            f"local_rank is {local_rank!r}, but must be an integer in [0, {world_size}), the "
            "world's size"
        )


def _is_integer(number: object) -> bool:
    return isinstance(number, Integral) and not isinstance(number, bool)


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
