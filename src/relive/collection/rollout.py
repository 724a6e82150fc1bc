# SPDX-License-Identifier: Apache-2.0
"""One trajectory while its parts come in.

Every column is one array from the start, in which each part's rows take their place, so that a
whole trajectory needs no further copy. A part is first staged, which checks everything and
changes nothing, then taken, which cannot fail.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from relive.collection.blocks import Block, BlockColumn, choose_weights_id, mark_truncated
from relive.collection.incoming import VERSIONS, Incoming, mismatch, shown
from relive.collection.plan import Moment, RolloutPlan
from relive.column_spec import ColumnSpec
from relive.dtypes import TEXT
from relive.part import TrajectoryPart
from relive.tensors import Framework

__all__ = ["Cut", "Rollout", "SharedColumns", "Staged"]


@dataclass(slots=True)
class SharedColumns:
    """What the columns of a trajectory, or of all that are to be joined, have in common."""

    specs: dict[str, ColumnSpec] = field(default_factory=dict)
    """Each column's spec, from the first part that brought it."""
    step_names: frozenset[str] | None = None
    """Which columns a chunk step has, from the first complete one."""
    extra_row_names: set[str] = field(default_factory=set)
    """Which columns brought first flags or bootstrap values, so that every chunk step has them."""


@dataclass(frozen=True, slots=True)
class Staged:
    """A part that fits, checked and copied."""

    moment: Moment
    """Its epoch and step."""
    new: Mapping[str, Incoming]
    """Its columns that had not come before."""
    num_envs: int
    """B."""
    model_weights_id: str
    """Names the weights that acted; "" when the part does not know."""
    is_new: bool
    """Whether any of it had not come before."""
    completes: bool
    """Whether its chunk step, flag row or bootstrap value is complete with it."""


@dataclass(frozen=True, slots=True)
class Cut:
    """What is left of a trajectory that is closed early."""

    blocks: tuple[Block, ...]
    """Its whole epochs, if any; then the complete steps of the next epoch, if any, truncated."""
    num_steps: int
    """Complete chunk steps in the blocks."""
    num_dropped: int
    """Chunk steps that had come, in whole or in part, and are in no block."""


class Rollout:
    """The parts of one trajectory that have come so far.

    Args:
        plan: What makes the trajectory whole.
        shared: What its columns must look like; filled by the parts that come first. Shared
            between trajectories that are to be joined.
    """

    def __init__(self, plan: RolloutPlan, shared: SharedColumns) -> None:
        self._plan = plan
        self._shared = shared
        self._num_envs = 0
        self._columns: dict[str, Any] = {}  # [rows, B, ...], or a list of B texts a row
        self._tensor_names: set[str] = set()
        self._names: dict[Moment, set[str]] = {}
        self._ids: dict[Moment, str] = {}
        self._complete: set[Moment] = set()
        self._missing = dict.fromkeys(plan.awaited())  # a set in order of time

    # Taking parts.

    def stage(
        self, part: TrajectoryPart, incoming: Mapping[str, Incoming], num_envs: int
    ) -> Staged:
        """Check that a part fits the plan and what has come; change nothing.

        Args:
            part: The part, for its key.
            incoming: Its columns.
            num_envs: Its B.

        Returns:
            What `take` needs.

        Raises:
            PartMismatchError: The part is past the plan's bounds; its step takes no such column; a
                column has another type, row shape or values than before; it brings a new column to
                a step that is complete; or it completes a step that then has other columns than
                the first complete one.
        """
        moment = (part.epoch, part.step)
        self._plan.check_columns(part, incoming)
        new = {
            name: column for name, column in incoming.items() if self._is_new(part, name, column)
        }
        known_id = self._ids.get(moment, "")
        if known_id and part.model_weights_id not in {"", known_id}:
            raise mismatch(
                part,
                f"has model_weights_id {part.model_weights_id!r}, but {known_id!r} came before; "
                "let all parts of a step name the same weights, or one alone",
                column="model_weights_id",
            )
        completes = self._is_complete_with(part, new) and moment not in self._complete
        is_new = bool(new) or part.model_weights_id not in {"", known_id}
        return Staged(moment, new, num_envs, part.model_weights_id, is_new, completes)

    def _is_new(self, part: TrajectoryPart, name: str, column: Incoming) -> bool:
        moment = (part.epoch, part.step)
        known = self._shared.specs.get(name, column.spec)
        if known != column.spec:
            raise mismatch(
                part,
                f"has {shown(column.spec)} as {name!r}, but {shown(known)} came before; convert "
                "it, since a column keeps its type and row shape",
                column=name,
            )
        if name in self._names.get(moment, ()):
            if column.has_same_values(self._columns[name][self._plan.row(name, moment)]):
                return False
            raise mismatch(
                part,
                f"brings {name!r} again with other values, but each column of a step comes once; "
                "see to the key of the part, or give a restarted worker a higher incarnation",
                column=name,
            )
        if moment in self._complete and self._plan.is_chunk_step(part.step):
            raise mismatch(
                part,
                f"brings {name!r}, but its step is complete already; name it in columns= so that "
                "steps wait for it",
                column=name,
            )
        return True

    def _is_complete_with(self, part: TrajectoryPart, new: Mapping[str, Incoming]) -> bool:
        names = frozenset(new).union(self._names.get((part.epoch, part.step), ()))
        known = self._shared.step_names
        is_complete = not self._plan.lacking(part.step, names)
        missing: frozenset[str] = frozenset()
        if not self._plan.is_chunk_step(part.step):
            extra = names - (known or names)
        elif not is_complete:
            return False
        else:
            expected = known or names | self._shared.extra_row_names
            missing, extra = expected - names, names - expected
        if missing or extra:
            raise mismatch(
                part,
                f"leaves its step without {sorted(missing)} and with {sorted(extra)} beyond what "
                "the other steps have, but all steps have the same columns; send them alike",
                column=min(missing | extra),
            )
        return is_complete

    def take(self, staged: Staged) -> None:
        """Put a staged part in its place."""
        self._num_envs = staged.num_envs
        for name, column in staged.new.items():
            self._shared.specs.setdefault(name, column.spec)
            self._array(name)[self._plan.row(name, staged.moment)] = column.rows
            if column.is_tensor:
                self._tensor_names.add(name)
        names = self._names.setdefault(staged.moment, set())
        names.update(staged.new)
        if staged.model_weights_id:
            self._ids[staged.moment] = staged.model_weights_id
        is_step = self._plan.is_chunk_step(staged.moment[1])
        if not is_step:
            self._shared.extra_row_names |= names
        if staged.completes:
            self._complete.add(staged.moment)
            self._missing.pop(staged.moment, None)
            if is_step and self._shared.step_names is None:
                self._shared.step_names = frozenset(names)

    def _array(self, name: str) -> Any:
        if name not in self._columns:
            spec = self._shared.specs[name]
            num_rows = self._plan.num_epochs * self._plan.rows_per_epoch(name)
            self._columns[name] = (
                [[] for _ in range(num_rows)]
                if spec.dtype == TEXT
                # Zeros, for flag rows that never come; untouched pages cost no memory.
                else np.zeros((num_rows, self._num_envs, *spec.row_shape), spec.storage)
            )
        return self._columns[name]

    # What is there and what is not.

    @property
    def is_whole(self) -> bool:
        """Whether everything that is awaited has come."""
        return not self._missing

    @property
    def names(self) -> frozenset[str]:
        """The columns of its chunk steps, as far as they are known."""
        return self._shared.step_names or frozenset()

    def lacks(self) -> str:
        """Say what it waits for first, and how much is there."""
        epoch, step = next(iter(self._missing))
        names = self._names.get((epoch, step), set())
        columns = self._plan.lacking(step, names)
        what = f"columns {columns}" if names and columns else "every part"
        num_steps = sum(self._plan.is_chunk_step(step) for _, step in self._complete)
        return (
            f"lacks {what} of epoch {epoch}, step {step} "
            f"({num_steps} of {self._plan.num_steps} chunk steps are complete)"
        )

    def hole(self) -> Moment | None:
        """Return the first missing moment, if a complete chunk step comes after it."""
        first = next(iter(self._missing), None)
        if first is None or not any(moment > first for moment in self._complete_steps()):
            return None
        return first

    def _complete_steps(self) -> list[Moment]:
        return [moment for moment in self._complete if self._plan.is_chunk_step(moment[1])]

    # Handing over: the arrays go out with the blocks, so nothing may be taken afterwards.

    def finish(self) -> Block:
        """Return all of a whole trajectory."""
        return self._block({name: slice(None) for name in self.names}, sorted(self._ids))

    def cut(self) -> Cut:
        """Return what is complete before the first missing part.

        Whole epochs and the begun one come apart, since flags of T + E rows have their place only
        in trajectories of whole epochs, or of a single one.
        """
        plan = self._plan
        epoch, step = next(iter(self._missing))
        blocks = []
        if epoch:
            rows = {name: slice(epoch * plan.rows_per_epoch(name)) for name in self.names}
            blocks.append(self._block(rows, (at for at in sorted(self._ids) if at[0] < epoch)))
        if step > 0:
            rows = {
                name: slice(epoch * plan.rows_per_epoch(name), plan.row(name, (epoch, step)))
                for name in self.names
            }
            blocks.append(self._block(rows, (at for at in sorted(self._ids) if at[0] == epoch)))
            mark_truncated(blocks[-1].columns)
        return Cut(
            tuple(blocks),
            num_steps=epoch * plan.steps_per_epoch + max(step, 0),
            num_dropped=sum(at >= (epoch, step) for at in self._names if plan.is_chunk_step(at[1])),
        )

    def _block(self, rows: Mapping[str, slice], moments: Iterable[Moment]) -> Block:
        columns = {name: self._column(name, rows[name]) for name in sorted(rows)}
        ids = [self._ids[moment] for moment in moments]
        return Block(columns, self._num_envs, choose_weights_id(ids, columns.get(VERSIONS)))

    def _column(self, name: str, rows: slice) -> BlockColumn:
        every = self._columns[name]
        some = every[rows]
        if isinstance(some, np.ndarray) and len(some) < len(every):
            some = some.copy()  # so that the rest can be freed
        framework: Framework = "torch" if name in self._tensor_names else "numpy"
        return BlockColumn(some, self._shared.specs[name].dtype, framework)
