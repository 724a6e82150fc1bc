# SPDX-License-Identifier: Apache-2.0
"""`TrajectoryCollector`: parts in, trajectories out.

Axes and terms (T, B, E, part, group, epoch, chunk step) are those of docs/glossary.md.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any

from relive.collection.assembly import Assembly
from relive.collection.blocks import Block, build
from relive.collection.plan import RolloutPlan
from relive.errors import (
    ClosedError,
    InvalidArgumentError,
    ReplayError,
    TimeLimitError,
    UnsupportedValueError,
)
from relive.options import check_kind, checked_names, checked_time_limit, is_count
from relive.part import TrajectoryPart
from relive.trajectory import Trajectory

if TYPE_CHECKING:
    from relive.channel import Channel

__all__ = ["TrajectoryCollector"]

_MAX_NAMED = 5
"""How many stalled trajectories a message describes."""


class TrajectoryCollector:
    """Joins the parts that workers publish into trajectories `[T, B, ...]`.

    Parts with one key, from any number of publishers, make a chunk step; E epochs of
    `steps_per_epoch` chunk steps make a trajectory, which leaves at once. Parts may come in any
    order, also those of several trajectories of a group. Columns are copied when their part is
    added. Tensors stay tensors, on the CPU, and arrays stay arrays.

    **Rows.** A trajectory has T = E * `steps_per_epoch` chunk steps. Flags have T + E rows: the
    first of each epoch comes from the part of step -1, and is False without one. `prev_values`
    has T + E rows when `bootstrap_values` are awaited, T when not.

    **Columns.** All chunk steps of a trajectory have the same columns, types and row shapes.
    `versions` may be given as one number for all envs and is stamped on them. A trajectory's
    `model_weights_id` is the one that its parts name; one made from the versions
    (`relive.collection.blocks.weights_id`) when they name none or several; else "".

    **Twice, late, never.** A part that comes again with the same values is counted and ignored. So
    is one of a trajectory that has left, whatever its values, and one of an incarnation that a
    newer one has replaced. A part of an epoch or step that no trajectory has is an error whenever
    it comes: its publisher counts otherwise than the collector. Finished trajectories are
    remembered as one counter per group and at most `max_open` numbers above it; when more finish
    before a number of which nothing has come, that number is given up, which is logged as a
    warning. Groups are never forgotten: each costs about 1 kB.

    **Restarts.** The first part of a newer incarnation closes what the older one left, which is
    logged as a warning: whole epochs leave as a trajectory, and the complete chunk steps of the
    begun epoch as another one, of a single epoch, shorter, whose last step is marked in those of
    `truncations` and `dones` that it has. Chunk steps after the first missing part are dropped
    and counted.

    Any thread may call any method.

    Args:
        steps_per_epoch: Chunk steps in each epoch, at least 1.
        num_epochs: Rollout epochs in each trajectory, E, at least 1.
        columns: What makes a chunk step complete: names of columns ("rewards", "curr_obs/states")
            or of nested dicts ("curr_obs"), which any column inside satisfies. Parts may bring
            others too, up to the one that completes the step. None: one part is a chunk step.
            Flags that are named make an epoch's first flags complete, too.
        bootstrap_values: Wait for every epoch's part of step `steps_per_epoch`, which brings the
            bootstrap row of `prev_values`. False refuses such parts.
        initial_flags: Wait for every epoch's first flags, the parts of step -1. False takes those
            that come before the trajectory leaves.
        split: Cut each trajectory along B: into so many, sizes differing by at most one, or into
            these sizes, whose sum is B.
        join: Names of groups that are joined along B, in this order, before they are split: the
            first trajectory that each of them finishes, then the second, and so on. They share
            their columns. What is closed early leaves alone and uncut.
        max_open: How many trajectories may be open or waiting to be joined at a time; those of
            groups that are joined count as the one that they become.
        stall_timeout_s: How long an open trajectory may go without a new part, in seconds; finite,
            above 0.
        max_episode_length: Stamped on every trajectory; from 0, which means unknown, to 2**63 - 1.

    Raises:
        InvalidArgumentError: An argument is out of range or of another type, names what is no
            field of a trajectory, or names a group twice; `split` or `join` has no order.

    Example:
        >>> import numpy as np
        >>> collector = TrajectoryCollector(2, columns=("rewards", "actions"))
        >>> key = dict(group="env-0", incarnation=0, trajectory=0, epoch=0)
        >>> rewards, actions = np.ones(4, np.float32), np.zeros((4, 3), np.float32)
        >>> for step in (0, 1):
        ...     _ = collector.add(TrajectoryPart(**key, step=step, columns={"rewards": rewards}))
        >>> collector.add(TrajectoryPart(**key, step=1, columns={"actions": actions}))
        []
        >>> [whole] = collector.add(TrajectoryPart(**key, step=0, columns={"actions": actions}))
        >>> whole.actions.shape, whole.rewards.shape
        ((2, 4, 3), (2, 4))
    """

    def __init__(
        self,
        steps_per_epoch: int,
        *,
        num_epochs: int = 1,
        columns: Iterable[str] | None = None,
        bootstrap_values: bool = False,
        initial_flags: bool = False,
        split: int | Sequence[int] = 1,
        join: Sequence[str] = (),
        max_open: int = 256,
        stall_timeout_s: float = 600.0,
        max_episode_length: int = 0,
    ) -> None:
        self._stall_timeout_s = checked_time_limit("stall_timeout_s", stall_timeout_s)
        if not self._stall_timeout_s:
            raise InvalidArgumentError(
                f"stall_timeout_s is {stall_timeout_s!r}, but must be above 0, since no part comes "
                "at once; give the longest time between two parts"
            )
        self._max_episode_length = _checked_length(max_episode_length)
        check_kind("bootstrap_values", bootstrap_values, bool)
        check_kind("initial_flags", initial_flags, bool)
        plan = RolloutPlan(
            steps_per_epoch,
            num_epochs,
            None if columns is None else checked_names("columns", columns),
            bootstrap_values,
            initial_flags,
        )
        names = checked_names("join", join, ordered=True)
        self._assembly = Assembly(plan, split, names, max_open)
        self._held: list[Trajectory] = []  # what `run` could not hand over, in order
        self._stalls_at = monotonic() + self._stall_timeout_s  # at the earliest
        self._is_closed = False
        self._num_refused = 0
        self._lock = threading.Lock()

    def add(self, part: TrajectoryPart) -> list[Trajectory]:
        """Take one part; its columns are copied.

        Args:
            part: Any part of any group; its arrays may be read-only and may be reused afterwards.

        Returns:
            The trajectories that are whole with it, mostly none; and what a restart closed. Before
            these what a `run` could not hand over. The caller owns their memory.

        Raises:
            PartMismatchError: The part is past the last epoch or step, has no column, a column
                that is no field of a trajectory, another B than its group, a layout or values
                other than came before, or leaves its step with other columns than the
                trajectory's other steps. The collector is as it was before.
            UnsupportedValueError: It is no part, or one of its columns has values or a name that
                cannot be stored. The collector is as it was before.
            LimitExceededError: It would open a trajectory beyond `max_open`. The collector is as
                it was before.
            ClosedError: The collector is closed.
        """
        given: object = part
        if not isinstance(given, TrajectoryPart):
            raise UnsupportedValueError(
                f"part is a {type(given).__name__}, but only a TrajectoryPart can be added; make "
                "one with relive.TrajectoryPart(...)"
            )
        with self._lock:
            if self._is_closed:
                raise ClosedError(
                    "the collector is closed, but only an open one takes parts; make another"
                )
            try:
                blocks = self._assembly.add(part, monotonic())
            except ReplayError:
                self._num_refused += 1
                raise
            return self._leave(blocks)

    def flush(self, *, allow_missing: bool = False) -> list[Trajectory]:
        """Close every open trajectory as a restart of its group would.

        What waits to be joined leaves alone and uncut. Parts that come later for what was open are
        late.

        Args:
            allow_missing: Drop complete chunk steps after a missing part, logged as a warning.

        Returns:
            What a `run` could not hand over; then what was complete, by group in order of first
            appearance, then by number.

        Raises:
            PartMismatchError: A part is missing before a complete chunk step, unless
                `allow_missing`. The collector is as it was before.
        """
        with self._lock:
            return self._leave(self._assembly.flush(allow_missing))

    def close(self, *, allow_missing: bool = False) -> list[Trajectory]:
        """Flush, and take no more parts. Closing again returns what a `run` left since, if any.

        Args:
            allow_missing: See `flush`.

        Returns:
            See `flush`.

        Raises:
            PartMismatchError: See `flush`. The collector stays open.
        """
        with self._lock:
            blocks = self._assembly.flush(allow_missing)
            self._is_closed = True
            return self._leave(blocks)

    def check_stalled(self) -> None:
        """Do nothing as long as every open trajectory got a part within the time limit.

        Raises:
            TimeLimitError: One did not; the message says what it lacks. The collector is as it was:
                the parts may still come, or `flush` can close it.
        """
        now = monotonic()
        with self._lock:
            if now < self._stalls_at:
                return
            waiting = self._assembly.waiting()
        late = [lacks for since, lacks in waiting if now - since >= self._stall_timeout_s]
        if late:
            raise TimeLimitError(
                f"{len(late)} of {len(waiting)} open trajectories got no part for "
                f"{self._stall_timeout_s:g} s, but "
                "all parts of one must come within that time; see to their workers, or give a "
                f"longer stall_timeout_s: {'; '.join(late[:_MAX_NAMED])}"
                f"{'; ...' if len(late) > _MAX_NAMED else ''}"
            )
        self._stalls_at = min([now, *(since for since, _ in waiting)]) + self._stall_timeout_s

    def run(self, parts: Channel[TrajectoryPart], trajectories: Channel[Trajectory]) -> None:
        """Pump one channel into the other, in the caller's thread, until the first is closed.

        Then closes the collector, hands over what was left and closes the second channel. Both
        channels are closed in any case, so that an error leaves nobody waiting. After one, what
        was finished and not handed over is still here, in order, and so is what is open: the next
        `run` between other channels goes on with it, or `close` returns it.

        Args:
            parts: Where the workers put their parts. When none comes for the channel's own time
                limit, that is an error.
            trajectories: Where the trainer takes its trajectories. When it stays full for the
                channel's own time limit, that is an error.

        Raises:
            PartMismatchError: See `add`, and `flush` for a part that never came.
            UnsupportedValueError: See `add`.
            LimitExceededError: See `add`.
            TimeLimitError: See `check_stalled`; or a channel's time limit was reached.
            ClosedError: `trajectories` was closed by someone else while one was to be handed over.
        """
        leaving: deque[Trajectory] = deque()
        try:
            while (part := self._next_part(parts)) is not None:
                leaving.extend(self.add(part))
                _hand_over(leaving, trajectories)
            leaving.extend(self.close())
            _hand_over(leaving, trajectories)
        finally:
            with self._lock:
                self._held.extend(leaving)
            parts.close()
            trajectories.close()

    def get_stats(self) -> dict[str, float]:
        """Return what happened so far, as flat numbers.

        Returns:
            Parts: `num_parts` that were added, among them `num_duplicate_parts` that had come
            before, `num_late_parts` for trajectories that had left, `num_stale_parts` of replaced
            incarnations; and `num_refused_parts` that raised. Trajectories: `num_open`,
            `num_waiting_to_join`, `num_trajectories` that left, each before it was split, among
            them `num_truncated` that were closed early; `num_lost` of which nothing was complete,
            `num_given_up` of which nothing came; `num_dropped_steps` that came in vain. Also
            `num_groups` and `num_restarts`.
        """
        with self._lock:
            return {**self._assembly.get_stats(), "num_refused_parts": float(self._num_refused)}

    def _leave(self, blocks: Iterable[Block]) -> list[Trajectory]:
        """Return what leaves now; the caller holds the lock."""
        leaving = self._held + [build(block, self._max_episode_length) for block in blocks]
        self._held = []
        return leaving

    def _next_part(self, parts: Channel[TrajectoryPart]) -> TrajectoryPart | None:
        """Wait for a part; None when there will be none."""
        idle_at = monotonic() + parts.timeout_s
        while True:
            self.check_stalled()
            now = monotonic()
            try:
                return parts.get(timeout_s=max(0.0, min(idle_at, self._stalls_at) - now))
            except ClosedError:
                return None
            except TimeLimitError as error:
                if monotonic() >= idle_at:
                    raise TimeLimitError(
                        f"no part came through channel {parts.name!r} for {parts.timeout_s:g} s, "
                        "but the collector waits no longer; close the channel when the workers "
                        f"are done, or give it a longer timeout_s ({error})"
                    ) from error


def _hand_over(leaving: deque[Trajectory], trajectories: Channel[Trajectory]) -> None:
    """Put them all; what could not be put stays in `leaving`."""
    while leaving:
        trajectories.put(leaving[0])
        leaving.popleft()


def _checked_length(length: Any) -> int:
    if not is_count(length, 0) or length >= 1 << 63:
        raise InvalidArgumentError(
            f"max_episode_length is {length!r}, but must be an integer from 0 to 2**63 - 1; leave "
            "it at 0 when unknown"
        )
    return int(length)
