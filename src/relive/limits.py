# SPDX-License-Identifier: Apache-2.0
"""How much a buffer may hold, and which trajectories must go when it is more."""

from __future__ import annotations

from dataclasses import dataclass, fields

from relive.errors import LimitExceededError
from relive.options import checked_count

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a buffer; None means no bound.

    The first three are retention: after each add the oldest whole trajectories go until all
    three hold. The newest trajectory is always kept.

    Example:
        >>> Limits(max_samples=1_000_000).max_samples
        1000000
    """

    max_trajectories: int | None = None
    """Trajectories kept."""
    max_samples: int | None = None
    """Rows kept, T * B a trajectory."""
    max_bytes: int | None = None
    """Bytes of columns kept."""
    cache_bytes: int | None = None
    """Bytes of columns in the cache, beside its bound by count; without `auto_save` those of all
    trajectories that are remembered."""
    max_pending_bytes: int | None = 1 << 30
    """Bytes of columns that may wait to be written; an add that would exceed it waits."""

    def __post_init__(self) -> None:
        """Check the bounds.

        Raises:
            InvalidArgumentError: A bound is below 1 or no integer.
        """
        for spec in fields(self):
            bound = getattr(self, spec.name)
            if bound is not None:
                object.__setattr__(self, spec.name, checked_count(spec.name, bound))

    def check_one(self, num_samples: int, size_bytes: int) -> None:
        """Refuse a trajectory that alone is larger than a bound.

        Raises:
            LimitExceededError: It is.
        """
        for name, size in (("max_samples", num_samples), ("max_bytes", size_bytes)):
            bound = getattr(self, name)
            if bound is not None and size > bound:
                raise LimitExceededError(
                    f"the trajectory alone has {size} {name.removeprefix('max_')}, but {name} is "
                    f"{bound}; raise the limit or cut the trajectory"
                )

    def exceeded(self, num_trajectories: int, num_samples: int, size_bytes: int) -> bool:
        """Tell whether a buffer of this size holds too much."""
        return any(
            bound is not None and held > bound
            for bound, held in (
                (self.max_trajectories, num_trajectories),
                (self.max_samples, num_samples),
                (self.max_bytes, size_bytes),
            )
        )
