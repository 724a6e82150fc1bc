# SPDX-License-Identifier: Apache-2.0
"""Finished chunk steps: joined and split along B, and built into a `Trajectory`.

Pure functions over flat columns, T first.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relive.collection.incoming import VERSIONS
from relive.columns import unflatten
from relive.fields import FLAG_FIELDS
from relive.tensors import Framework, wrap_out
from relive.trajectory import Trajectory

__all__ = [
    "Block",
    "BlockColumn",
    "build",
    "choose_weights_id",
    "even_sizes",
    "join",
    "mark_truncated",
    "split",
    "weights_id",
]


@dataclass(frozen=True, slots=True)
class BlockColumn:
    """All rows of one column, `[rows, B, ...]`."""

    rows: NDArray[Any] | list[list[str]]
    """In the storage type; or a list of B texts for each row."""
    dtype: str
    """Name of the element type."""
    framework: Framework
    """What to make of it when it leaves."""


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive chunk steps of one group, or of several joined along B."""

    columns: Mapping[str, BlockColumn]
    """By full name, in order of names."""
    num_envs: int
    """B."""
    model_weights_id: str
    """Names the model weights that acted; "" when unknown."""


def weights_id(versions: NDArray[Any]) -> str:
    """Name model weights by the versions of all chunk steps, as RLinf does.

    Args:
        versions: Of any shape and element type; their bytes count.

    Returns:
        The version 5 UUID (RFC 9562) of the bytes in hexadecimal, in the DNS namespace.

    Example:
        >>> weights_id(np.zeros((4, 2, 1), np.float32))
        '87a64d8e-0f54-5c7c-a19d-0b3753cad97c'
    """
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, versions.tobytes().hex()))


def choose_weights_id(ids: Sequence[str], versions: BlockColumn | None) -> str:
    """Return the one name of the weights that acted in a trajectory.

    Args:
        ids: Every name that its parts gave, in order of time.
        versions: Its versions, if there are any.

    Returns:
        The name, when all parts agree; else one made from the versions, by `weights_id`; else,
        without versions, one made from all names; "" when nothing is known.
    """
    names = list(dict.fromkeys(filter(None, ids)))
    if len(names) == 1:
        return names[0]
    if versions is not None and isinstance(versions.rows, np.ndarray):
        return weights_id(versions.rows)
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, "\n".join(names))) if names else ""


def join(blocks: Sequence[Block]) -> Block:
    """Put blocks of the same chunk steps side by side along B.

    Args:
        blocks: One or more with the same columns, specs and number of rows.

    Returns:
        Their envs in the order given. Its weights are those of all of them: the one name, or one
        made from the joined versions.
    """
    columns = {
        name: _join_column([block.columns[name] for block in blocks]) for name in blocks[0].columns
    }
    ids = [block.model_weights_id for block in blocks]
    return Block(
        columns,
        sum(block.num_envs for block in blocks),
        choose_weights_id(ids, columns.get(VERSIONS)),
    )


def _join_column(columns: Sequence[BlockColumn]) -> BlockColumn:
    rows: NDArray[Any] | list[list[str]]
    if isinstance(columns[0].rows, list):
        rows = [
            [text for texts in row for text in texts]
            for row in zip(*(column.rows for column in columns), strict=True)
        ]
    else:
        rows = np.concatenate([column.rows for column in columns], axis=1)
    is_torch = any(column.framework == "torch" for column in columns)
    return BlockColumn(rows, columns[0].dtype, "torch" if is_torch else "numpy")


def split(block: Block, sizes: Sequence[int]) -> list[Block]:
    """Cut a block along B.

    Args:
        block: What to cut; afterwards the pieces may share its memory, each its own part.
        sizes: B of each piece, at least 1 each, in sum that of the block.

    Returns:
        The pieces in order of envs, each named by the weights of the whole.
    """
    if len(sizes) == 1:
        return [block]
    bounds = pairwise(accumulate(sizes, initial=0))
    return [
        Block(
            {name: _cut_column(column, start, stop) for name, column in block.columns.items()},
            stop - start,
            block.model_weights_id,
        )
        for start, stop in bounds
    ]


def _cut_column(column: BlockColumn, start: int, stop: int) -> BlockColumn:
    rows: NDArray[Any] | list[list[str]]
    if isinstance(column.rows, list):
        rows = [texts[start:stop] for texts in column.rows]
    else:
        rows = np.ascontiguousarray(column.rows[:, start:stop])
    return BlockColumn(rows, column.dtype, column.framework)


def even_sizes(num_envs: int, num_pieces: int) -> list[int]:
    """Share envs out evenly: sizes differ by at most one, the larger ones first.

    Example:
        >>> even_sizes(8, 3)
        [3, 3, 2]
    """
    least, rest = divmod(num_envs, num_pieces)
    return [least + (index < rest) for index in range(num_pieces)]


def mark_truncated(columns: Mapping[str, BlockColumn]) -> None:
    """Mark, in place, that every env whose episode goes on was cut off after the last row.

    Truncations are set where the last row has no flag at all, dones where it is not done; of
    flags with trailing axes the last one. A flag column that is absent stays absent: the
    trajectory's end ends its runs anyway.
    """
    last = {name: _last_row(columns[name]) for name in FLAG_FIELDS if name in columns}
    is_set = {name: flags.any(axis=1) for name, flags in last.items()}
    goes_on = ~np.logical_or.reduce(list(is_set.values()))
    if "truncations" in last:
        last["truncations"][goes_on, -1] = 1
    if "dones" in last:
        last["dones"][~is_set["dones"], -1] = 1


def _last_row(column: BlockColumn) -> NDArray[Any]:
    assert isinstance(column.rows, np.ndarray)  # text flags were refused when they came
    last: NDArray[Any] = column.rows[-1]
    return last.reshape(len(last), -1)  # [B, ...] -> [B, flags of an env], a view


def build(block: Block, max_episode_length: int) -> Trajectory:
    """Hand a block to the caller as a trajectory; he owns its memory afterwards."""
    columns = {
        name: column.rows
        if isinstance(column.rows, list)
        else wrap_out(column.rows, column.dtype, column.framework, name)
        for name, column in block.columns.items()
    }
    return Trajectory(
        max_episode_length=max_episode_length,
        model_weights_id=block.model_weights_id,
        **unflatten(columns),
    )
