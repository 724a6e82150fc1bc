# SPDX-License-Identifier: Apache-2.0
"""All open trajectories of a collector: which one a part belongs to, and when one leaves.

Time comes in as an argument; one caller at a time.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Iterable, Sequence, Set

from relive.collection.blocks import Block, even_sizes, join, split
from relive.collection.groups import FinishedNumbers, Group, OpenRollout
from relive.collection.incoming import flat_columns, mismatch, read_part
from relive.collection.plan import INITIAL_STEP, RolloutPlan
from relive.collection.rollout import Rollout, SharedColumns
from relive.errors import InvalidArgumentError, LimitExceededError, PartMismatchError
from relive.options import checked_count, is_count
from relive.part import TrajectoryPart
from relive.tensors import is_array

__all__ = ["Assembly"]

_log = logging.getLogger("relive.collector")

_COUNTS = (
    "num_parts",
    "num_duplicate_parts",
    "num_late_parts",
    "num_stale_parts",
    "num_trajectories",
    "num_truncated",
    "num_lost",
    "num_given_up",
    "num_dropped_steps",
    "num_restarts",
)


class Assembly:
    """Groups, their open trajectories, and finished ones that wait to be joined.

    Args:
        plan: What every trajectory is made of.
        split: How many pieces to cut along B, or their sizes.
        join: Groups to put side by side along B, in this order.
        max_open: How many trajectories may be open or waiting to be joined, those that become one
            counted as one.

    Raises:
        InvalidArgumentError: `split`, `join` or `max_open` is out of range.
    """

    def __init__(
        self, plan: RolloutPlan, split: int | Sequence[int], join: Sequence[str], max_open: int
    ) -> None:
        _check_join(join)
        self._plan = plan
        self._split = _checked_split(split)
        self._max_open = checked_count("max_open", max_open)
        self._groups: dict[str, Group] = {}
        self._num_open_alone = 0  # in groups that are not joined
        self._joint_columns = SharedColumns()
        self._to_join: dict[str, deque[tuple[Block, float]]] = {name: deque() for name in join}
        self._counts: Counter[str] = Counter()

    def add(self, part: TrajectoryPart, now: float) -> list[Block]:
        """Take one part.

        Args:
            part: Any part.
            now: The time, in seconds.

        Returns:
            What leaves with it.

        Raises:
            PartMismatchError: It does not fit; nothing has changed.
            UnsupportedValueError: It cannot be stored; nothing has changed.
            LimitExceededError: It would open one trajectory too many; nothing has changed.
        """
        self._plan.check_moment(part)  # late ones too: no trajectory has such a part
        group = self._groups.get(part.group)
        if group is not None and self._is_past(part, group):
            return []
        incoming, num_envs = read_part(part)
        self._check_num_envs(part, num_envs)
        is_restart = group is not None and part.incarnation > group.incarnation
        opened = None if group is None or is_restart else group.open.get(part.trajectory)
        if opened is None:
            self._check_room(part, num_freed=len(group.open) if group and is_restart else 0)
            rollout = Rollout(self._plan, self._shared_columns(part.group))
        else:
            rollout = opened.rollout
        staged = rollout.stage(part, incoming, num_envs)

        # Everything is checked: from here on nothing may fail.
        self._counts["num_parts"] += 1
        leaving: list[Block] = []
        if group is None:
            group = Group(num_envs, part.incarnation, FinishedNumbers(self._max_open))
            self._groups[part.group] = group
        elif is_restart:
            leaving += self._restart(part, group)
        if not staged.is_new:
            self._counts["num_duplicate_parts"] += 1
            return leaving
        rollout.take(staged)
        self._num_open_alone += opened is None and part.group not in self._to_join
        group.open[part.trajectory] = OpenRollout(rollout, now)
        if rollout.is_whole:
            leaving += self._finish(part, group, now)
        return leaving

    def flush(self, allow_missing: bool) -> list[Block]:
        """Close everything that is open; what waits to be joined leaves alone.

        Raises:
            PartMismatchError: A part is missing before a complete chunk step, unless
                `allow_missing`; nothing has changed.
        """
        if not allow_missing:
            self._check_holes()
        leaving: list[Block] = []
        for name, group in self._groups.items():
            while self._to_join.get(name):
                leaving.append(self._to_join[name].popleft()[0])
                self._counts["num_trajectories"] += 1
            for number in sorted(group.open):
                rollout = self._pop(name, group, number)
                leaving += self._cut(name, group, number, rollout, "the collector is flushed")
                self._remember(name, group, number, rollout)
        return leaving

    def waiting(self) -> list[tuple[float, str]]:
        """Say since when, and for what, each trajectory waits that has not left."""
        waits = [
            (opened.since, f"{_key(name, group, number)} {opened.rollout.lacks()}")
            for name, group in self._groups.items()
            for number, opened in group.open.items()
        ]
        idle = [name for name, blocks in self._to_join.items() if not blocks]
        waits += [
            (since, f"a whole trajectory of group {name!r} lacks those of groups {idle} to join")
            for name, blocks in self._to_join.items()
            for _, since in blocks
        ]
        return sorted(waits)

    def get_stats(self) -> dict[str, float]:
        """Return the counts so far; `TrajectoryCollector.get_stats` says what they mean."""
        return {
            "num_groups": float(len(self._groups)),
            "num_open": float(sum(len(group.open) for group in self._groups.values())),
            "num_waiting_to_join": float(sum(map(len, self._to_join.values()))),
            **{name: float(self._counts[name]) for name in _COUNTS},
        }

    # Checks, which change nothing but counts.

    def _is_past(self, part: TrajectoryPart, group: Group) -> bool:
        """Tell whether a part is of what is over, and count it."""
        if part.incarnation < group.incarnation:
            self._counts["num_parts"] += 1
            self._counts["num_stale_parts"] += 1
            return True
        is_over = part.trajectory not in group.open and part.trajectory in group.finished
        if part.incarnation > group.incarnation or not is_over:
            return False
        unknown = flat_columns(part).keys() - group.finished_names
        if unknown and group.finished_names:
            raise mismatch(
                part,
                f"brings {sorted(unknown)}, but its trajectory has left without; name them in "
                "columns= so that steps wait for them",
                column=min(unknown),
            )
        self._counts["num_parts"] += 1
        self._counts["num_late_parts"] += 1
        self._warn_of_lost_flags(part)
        return True

    def _warn_of_lost_flags(self, part: TrajectoryPart) -> None:
        if part.step != INITIAL_STEP or self._plan.awaits_first_flags(part.columns):
            return
        if any(bool(flags.any()) for flags in part.columns.values() if is_array(flags)):
            _log.warning(
                "first flags of group %r, trajectory %d, epoch %d came when it had left, which is "
                "harmless only if they came before, too; initial_flags=True waits for them, or for "
                "those of them that columns= names",
                part.group,
                part.trajectory,
                part.epoch,
            )

    def _check_num_envs(self, part: TrajectoryPart, num_envs: int) -> None:
        group = self._groups.get(part.group)
        if group is not None:
            if num_envs != group.num_envs:
                raise mismatch(
                    part,
                    f"has {num_envs} envs, but its group has {group.num_envs} for all time; give "
                    "other envs a group of their own",
                )
            return
        others = [name for name in self._to_join if name != part.group]
        if part.group in self._to_join and not self._groups.keys() >= set(others):
            return  # the sum is known when the last of them comes
        if part.group in self._to_join:
            num_envs += sum(self._groups[name].num_envs for name in others)
        if isinstance(self._split, int):
            if self._split > num_envs:
                raise mismatch(
                    part,
                    f"makes {num_envs} envs, but they are to be cut into {self._split} pieces; "
                    "give a smaller split=",
                )
        elif sum(self._split) != num_envs:
            raise mismatch(
                part,
                f"makes {num_envs} envs, but they are to be cut into sizes {self._split}; give a "
                f"split= whose sum is {num_envs}",
            )

    def _check_room(self, part: TrajectoryPart, num_freed: int) -> None:
        """Refuse one more open trajectory of a group when there would be more than `max_open`.

        The n-th trajectories of the groups that are joined become one and so count as one: the
        group that lags behind finds its place taken for it.
        """
        added = 1 - num_freed
        if part.group in self._to_join:
            lead = max(map(self._num_to_join, self._to_join))
            added = max(0, self._num_to_join(part.group) + added - lead)
        if self._num_held() + added <= self._max_open:
            return
        raise LimitExceededError(
            f"{self._num_held()} trajectories are open or waiting to be joined, and the part "
            f"of group {part.group!r}, trajectory {part.trajectory} would open one more, but "
            f"max_open is {self._max_open}; see to the oldest, or raise it: {self.waiting()[0][1]}"
        )

    def _num_held(self) -> int:
        return self._num_open_alone + max(map(self._num_to_join, self._to_join), default=0)

    def _num_to_join(self, name: str) -> int:
        """Return how many trajectories of a group are open or wait for those of other groups."""
        group = self._groups.get(name)
        return len(self._to_join[name]) + (len(group.open) if group else 0)

    def _check_holes(self) -> None:
        for name, group in self._groups.items():
            for number, opened in group.open.items():
                hole = opened.rollout.hole()
                if hole is not None:
                    raise PartMismatchError(
                        f"{_key(name, group, number)} {opened.rollout.lacks()}, but complete chunk "
                        "steps come after it; add what is missing, or flush with "
                        "allow_missing=True to drop what comes after",
                        group=name,
                        step=hole[1],
                    )

    # Changes, which cannot fail.

    def _shared_columns(self, name: str) -> SharedColumns:
        return self._joint_columns if name in self._to_join else SharedColumns()

    def _restart(self, part: TrajectoryPart, group: Group) -> list[Block]:
        leaving: list[Block] = []
        reason = f"incarnation {part.incarnation} has begun"
        for number in sorted(group.open):
            rollout = self._pop(part.group, group, number)
            leaving += self._cut(part.group, group, number, rollout, reason)
        group.incarnation = part.incarnation
        group.finished = FinishedNumbers(self._max_open)
        self._counts["num_restarts"] += 1
        return leaving

    def _pop(self, name: str, group: Group, number: int) -> Rollout:
        self._num_open_alone -= name not in self._to_join
        return group.open.pop(number).rollout

    def _cut(
        self, name: str, group: Group, number: int, rollout: Rollout, reason: str
    ) -> list[Block]:
        lacks = rollout.lacks()
        cut = rollout.cut()
        self._counts["num_truncated" if cut.blocks else "num_lost"] += 1
        self._counts["num_trajectories"] += bool(cut.blocks)
        self._counts["num_dropped_steps"] += cut.num_dropped
        _log.warning(
            "%s which %s, is closed early, since %s: %d chunk steps leave as truncated, %d dropped",
            _key(name, group, number),
            lacks,
            reason,
            cut.num_steps,
            cut.num_dropped,
        )
        if name in self._to_join:
            return list(cut.blocks)
        return [piece for block in cut.blocks for piece in self._pieces(block)]

    def _finish(self, part: TrajectoryPart, group: Group, now: float) -> list[Block]:
        name, number = part.group, part.trajectory
        rollout = self._pop(name, group, number)
        block = rollout.finish()
        self._remember(name, group, number, rollout)
        if name not in self._to_join:
            self._counts["num_trajectories"] += 1
            return self._pieces(block)
        self._to_join[name].append((block, now))
        if not all(self._to_join.values()):
            return []
        self._counts["num_trajectories"] += 1
        return self._pieces(join([blocks.popleft()[0] for blocks in self._to_join.values()]))

    def _remember(self, name: str, group: Group, number: int, rollout: Rollout) -> None:
        group.finished_names = rollout.names
        num_given_up = group.finished.add(number, group.open.keys())
        if num_given_up:
            self._counts["num_given_up"] += num_given_up
            _log.warning(
                "%d trajectories of group %r below %d never came, and parts that still come are "
                "ignored, since more than max_open=%d after them are finished",
                num_given_up,
                name,
                group.finished.below,
                self._max_open,
            )

    def _pieces(self, block: Block) -> list[Block]:
        if isinstance(self._split, int):
            return split(block, even_sizes(block.num_envs, self._split))
        return split(block, self._split)


def _key(name: str, group: Group, number: int) -> str:
    return f"trajectory {number} of group {name!r}, incarnation {group.incarnation},"


def _checked_split(split: int | Iterable[int]) -> int | tuple[int, ...]:
    numbers = tuple(split) if isinstance(split, Iterable) else (split,)
    if not numbers or not all(map(is_count, numbers)) or isinstance(split, Set):
        raise InvalidArgumentError(
            f"split is {split!r}, but must be a number of pieces or a list of their sizes, each at "
            "least 1; leave it at 1 to cut nothing"
        )
    sizes = tuple(map(int, numbers))
    return sizes if isinstance(split, Iterable) else sizes[0]


def _check_join(join: Sequence[str]) -> None:
    if len(join) == 1 or len(set(join)) < len(join):
        raise InvalidArgumentError(
            f"join is {join!r}, but must name at least two different groups, or none; name each "
            "group once"
        )
