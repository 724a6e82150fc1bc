# SPDX-License-Identifier: Apache-2.0
"""RLinf's `TrajectoryReplayBuffer`: relive's, with RLinf's defaults and method names."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from numbers import Integral, Real
from typing import Any, Literal, overload

import numpy as np

import relive.buffer
from relive.batches import SampleInfo, TextForm
from relive.columns import Tree
from relive.compat.rlinf.trajectory import as_trajectory
from relive.disk import Durability
from relive.errors import InvalidArgumentError
from relive.folder import IfExists
from relive.formats import Format
from relive.limits import Limits
from relive.options import checked_list
from relive.samplers import Sampler
from relive.spec import Columns

__all__ = ["TrajectoryReplayBuffer"]


class TrajectoryReplayBuffer(relive.buffer.TrajectoryReplayBuffer):
    """Trajectories on disk or in memory, for programs that were written for RLinf's buffer.

    Differs from `relive.TrajectoryReplayBuffer` in what a program of RLinf's relies on: a store
    found in `auto_save_path` is gone on with, each rank draws a stream of its own without being
    told, and RLinf's own trajectories are taken.

    Example:
        >>> import torch
        >>> from relive.compat.rlinf import Trajectory
        >>> buffer = TrajectoryReplayBuffer(1234, True, 5, 100)
        >>> _ = buffer.add_trajectories([Trajectory(rewards=torch.ones(3, 2, 1))])
        >>> buffer.sample(num_chunks=8)["rewards"].shape
        torch.Size([8, 1])
    """

    def __init__(
        self,
        seed: int | None = 1234,
        enable_cache: bool = True,
        cache_size: int = 5,
        sample_window_size: int = 100,
        auto_save: bool = False,
        auto_save_path: str | os.PathLike[str] | None = "",
        trajectory_format: str | Format = "pt",
        *,
        sampler: Sampler | None = None,
        columns: Columns | None = None,
        limits: Limits | None = None,
        durability: Durability = "process",
        if_exists: IfExists = "resume",
        allow_pickle: bool = False,
        stream: Sequence[int] | None = None,
        break_lock: bool = False,
    ) -> None:
        """Open a buffer.

        Args:
            seed: As in relive, like all others but those below.
            enable_cache: As in relive; 0 and 1 are taken too.
            cache_size: As in relive; a whole float is taken too.
            sample_window_size: Likewise; below 0 it is as 0.
            auto_save: As in relive; 0 and 1 are taken too.
            auto_save_path: The folder; of no account without `auto_save`, None too.
            trajectory_format: As in relive.
            sampler: Likewise.
            columns: Likewise.
            limits: Likewise.
            durability: Likewise.
            if_exists: Here a store found in `auto_save_path` is gone on with by default.
            allow_pickle: As in relive.
            stream: None takes rank and world size of this process: of `torch.distributed` if it
                is initialised, else of the variables RANK and WORLD_SIZE, if they are set and not
                empty. A world of one has none.
            break_lock: As in relive.

        Raises:
            InvalidArgumentError: An argument is out of range or unknown, `auto_save` lacks a
                path, or RANK or WORLD_SIZE is no number, or RANK not below WORLD_SIZE.
            StoreExistsError: `auto_save_path` is a file, or holds what `if_exists` refuses.
            StoreLockedError: Another writer has the folder.
            StorageError: The folder cannot be made or written.
            CorruptFileError: The store found cannot be read.
            ColumnMismatchError: The store found does not fit `columns`.
        """
        enable_cache, auto_save = _switch(enable_cache), _switch(auto_save)
        window_size = _whole(sample_window_size)
        super().__init__(
            seed,
            enable_cache,
            _whole(cache_size),
            0 if isinstance(window_size, int) and window_size < 0 else window_size,
            auto_save,
            (auto_save_path or "") if auto_save else "",
            trajectory_format,
            sampler=sampler,
            columns=columns,
            limits=limits,
            durability=durability,
            if_exists=if_exists,
            allow_pickle=allow_pickle,
            stream=_process_stream() if stream is None else stream,
            break_lock=break_lock,
        )
        self.enable_cache = enable_cache or not auto_save
        """Whether the newest trajectories are in memory; they are without `auto_save`."""

    def add_trajectories(self, trajectories: Iterable[Any] | None) -> list[int]:
        """Add trajectories, RLinf's own among them: all of them or, when it raises, none.

        See `relive.TrajectoryReplayBuffer.add_trajectories`. None is nothing to add.
        """
        if trajectories is None:
            return []
        given = checked_list("trajectories", trajectories, "trajectories")
        return super().add_trajectories([as_trajectory(one) for one in given])

    @overload
    def sample(
        self,
        num_chunks: int = 0,
        *,
        return_info: Literal[False] = False,
        columns: Sequence[str] | None = None,
        text: TextForm = "strings",
    ) -> Tree: ...

    @overload
    def sample(
        self,
        num_chunks: int = 0,
        *,
        return_info: Literal[True],
        columns: Sequence[str] | None = None,
        text: TextForm = "strings",
    ) -> tuple[Tree, SampleInfo]: ...

    def sample(
        self,
        num_chunks: int = 0,
        *,
        return_info: bool = False,
        columns: Sequence[str] | None = None,
        text: TextForm = "strings",
    ) -> Tree | tuple[Tree, SampleInfo]:
        """Draw transitions from the window: exactly `num_chunks`, however few there are.

        See `relive.TrajectoryReplayBuffer.sample`. The default is RLinf's, and an error as there.
        """
        if return_info:
            return super().sample(num_chunks, return_info=True, columns=columns, text=text)
        return super().sample(num_chunks, columns=columns, text=text)

    def sample_chunks(self, num_chunks: int) -> Tree:
        """Draw transitions, as `sample` does."""
        return self.sample(num_chunks)

    def is_ready(self, min_size: float) -> bool:
        """Tell whether `size` is at least this; any number will do, also a fraction."""
        given: Any = min_size
        return bool(self.size >= given) if isinstance(given, Real) else super().is_ready(given)

    async def is_ready_async(self, min_size: float, timeout_s: float | None = None) -> bool:
        """Tell whether `size` is at least this, waiting for it if asked to.

        See `relive.TrajectoryReplayBuffer.is_ready_async`.
        """
        given: Any = min_size
        return await super().is_ready_async(given, timeout_s)

    def load_checkpoint(
        self,
        load_path: str | os.PathLike[str],
        is_distributed: bool = False,
        local_rank: int = 0,
        world_size: int = 1,
        *,
        progress: Callable[[int], object] | None = None,
    ) -> None:
        """Let the trajectories of a checkpoint take the place of what the buffer holds.

        See `relive.TrajectoryReplayBuffer.load_checkpoint`. As in RLinf, rank and world size are
        ignored unless `is_distributed`.
        """
        rank = (local_rank, world_size) if is_distributed else (0, 1)
        super().load_checkpoint(load_path, is_distributed, *rank, progress=progress)

    def close(self, wait: bool = True) -> None:
        """Store everything and let go of the folder; twice is fine.

        See `relive.TrajectoryReplayBuffer.close`.

        Args:
            wait: Either way this returns when all is stored: what is not written when a process
                ends is lost.
        """
        del wait
        super().close()


def _switch(value: Any) -> Any:
    """Return 0, 1 and NumPy's bools as bools, all else as it is, to be judged later."""
    return bool(value) if isinstance(value, (Integral, np.bool_)) and value in (0, 1) else value


def _whole(number: Any) -> Any:
    """Return whole floats as integers, all else as it is, to be judged later."""
    is_float = isinstance(number, Real) and not isinstance(number, Integral)
    return int(number) if is_float and float(number).is_integer() else number


def _process_stream() -> tuple[int, ...]:
    """Return rank and world size of this process; () when it is alone."""
    rank, world_size = _distributed_rank() or _environment_rank()
    return (rank, world_size) if world_size > 1 else ()


def _distributed_rank() -> tuple[int, int] | None:
    if "torch" not in sys.modules:  # who has initialised it has imported it
        return None
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        return None
    return dist.get_rank(), dist.get_world_size()


def _environment_rank() -> tuple[int, int]:
    numbers = {}
    for name, least in (("RANK", 0), ("WORLD_SIZE", 1)):
        text = os.environ.get(name) or str(least)
        if not text.isascii() or not text.isdigit() or int(text) < least:
            raise InvalidArgumentError(
                f"the variable {name} is {text!r}, but must be an integer of at least {least}; set "
                "it right, or give stream=()"
            )
        numbers[name] = int(text)
    rank, world_size = numbers["RANK"], numbers["WORLD_SIZE"]
    if os.environ.get("WORLD_SIZE") and rank >= world_size:
        raise InvalidArgumentError(
            f"the variable RANK is {rank} and WORLD_SIZE {world_size}, but ranks count from 0 and "
            "are below it; set them right, or give stream=()"
        )
    return rank, world_size
