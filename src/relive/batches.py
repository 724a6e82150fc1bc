# SPDX-License-Identifier: Apache-2.0
"""From gathered columns to the batch that the caller gets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from relive.columns import SEPARATOR, Tree, unflatten
from relive.dtypes import TEXT, has_numpy_type
from relive.errors import ColumnMismatchError, InvalidArgumentError, UnsupportedValueError
from relive.options import nearest
from relive.output_pool import Wants
from relive.spec import Schema
from relive.tensors import Framework, plain_wrapper, wrap_out
from relive.texts import strings_of

__all__ = ["BatchPlan", "SampleInfo", "TextForm", "build_batch"]

TextForm = Literal["strings", "codes"]
"""How text columns stand in a batch."""


@dataclass(frozen=True)
class SampleInfo:
    """Where the rows of a batch come from; NumPy arrays `[N]` in batch order."""

    row_ids: NDArray[np.int64]
    """Row ids, for `gather`."""
    trajectory_ids: NDArray[np.int64]
    """The trajectory of each row."""
    steps: NDArray[np.int64]
    """Its chunk step t."""
    envs: NDArray[np.int64]
    """Its env b."""
    weights: NDArray[np.float32]
    """Importance weights; ones when draws are uniform."""
    probabilities: NDArray[np.float64]
    """With what probability each was drawn."""
    texts: Mapping[str, Sequence[str]]
    """Of each text column the strings that codes stand for in this batch."""

    def __repr__(self) -> str:
        """Return how many rows it tells of; thousands of numbers help nobody."""
        num = len(np.unique(self.trajectory_ids))
        return f"<SampleInfo of {len(self.row_ids)} rows from {num} trajectories>"


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """What batches of the same columns are made of, worked out once for all of them."""

    schema: Schema
    """What there is."""
    wants: Wants
    """Row shape and storage type of each column to be read: those, and what the sampler needs."""
    texts: tuple[str, ...]
    """Those of them that are text."""
    only_read: frozenset[str]
    """Those of them that the caller does not get."""
    plain: frozenset[str]
    """Those of the others whose storage type is their own NumPy type."""
    framework: Framework
    """Whose arrays the caller gets."""
    wrap_plain: Callable[[NDArray[Any]], Any]
    """Makes what the caller gets of a column in `plain`."""

    @classmethod
    def of(
        cls,
        schema: Schema,
        columns: Sequence[str] | None,
        needs: Sequence[str],
        framework: Framework,
    ) -> BatchPlan:
        """Work out what batches are made of.

        Args:
            schema: What there is.
            columns: What the caller wants: full names, or names of whole dicts such as
                "curr_obs"; None for all.
            needs: What the sampler reads besides, likewise.
            framework: What batches are made of.

        Raises:
            InvalidArgumentError: `columns` is no list, or empty.
            ColumnMismatchError: There is no such column.
            UnsupportedValueError: NumPy has no type for a column.
        """
        names = _choose_columns(schema, columns, framework)
        needed = _choose_columns(schema, needs, framework) if needs else []
        specs = {name: schema.columns[name] for name in dict.fromkeys([*names, *needed])}
        return cls(
            schema=schema,
            wants={name: (spec.row_shape, spec.storage) for name, spec in specs.items()},
            texts=tuple(name for name, spec in specs.items() if spec.dtype == TEXT),
            only_read=frozenset(needed) - frozenset(names),
            plain=frozenset(name for name in names if has_numpy_type(specs[name].dtype)),
            framework=framework,
            wrap_plain=plain_wrapper(framework),
        )


def _choose_columns(
    schema: Schema, wanted: Sequence[str] | None, framework: Framework
) -> list[str]:
    """Return the full names of the columns wanted, in the order of the schema."""
    names = list(schema.columns)
    if wanted is not None:
        given: object = wanted
        if isinstance(given, str) or not isinstance(given, Sequence) or not given:
            raise InvalidArgumentError(
                f"columns is {wanted!r}, but must be a list of at least one column name, or None; "
                "put one name in brackets, or leave it out for all"
            )
        for name in wanted:
            if not any(_is_in(column, name) for column in names):
                close = nearest(name, names)
                cure = f"did you mean {close!r}?" if close else "choose one of these"
                raise ColumnMismatchError(
                    f"column {name!r} is not in this buffer, but must be one of its columns "
                    f"{', '.join(names)}; {cure}",
                    column=str(name),
                )
        names = [column for column in names if any(_is_in(column, name) for name in wanted)]
    if framework == "numpy":
        for name in names:
            dtype = schema.columns[name].dtype
            if dtype != TEXT and not has_numpy_type(dtype):
                raise UnsupportedValueError(
                    f"column {name!r} is {dtype}, but NumPy has no such type; use "
                    'framework="torch" or leave the column out with columns=',
                    column=name,
                )
    return names


def _is_in(column: str, name: str) -> bool:
    return column == name or column.startswith(f"{name}{SEPARATOR}")


def build_batch(
    columns: Mapping[str, NDArray[Any]],
    tables: Mapping[str, Sequence[str]],
    plan: BatchPlan,
    text: TextForm,
) -> Tree:
    """Return the nested dict of a batch; its arrays become the caller's.

    Args:
        columns: Flat names to arrays `[N, ...]` in storage types.
        tables: Of each text column its table.
        plan: Says which of them the caller gets, and what is made of them.
        text: What to make of text columns: lists of strings, or int64 codes.
    """
    flat: dict[str, Any] = {}
    plain, wrap_plain, framework = plan.plain, plan.wrap_plain, plan.framework
    for name, values in columns.items():
        if name in plain:
            flat[name] = wrap_plain(values)
        elif name in plan.only_read:
            continue
        elif name not in tables:
            flat[name] = wrap_out(values, plan.schema.columns[name].dtype, framework, name)
        elif text == "strings":
            flat[name] = strings_of(values, tables[name])
        else:
            flat[name] = wrap_out(values.astype(np.int64), "int64", framework, name)
    return unflatten(flat)
