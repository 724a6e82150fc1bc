# SPDX-License-Identifier: Apache-2.0
"""Hypothesis strategies for everything a trajectory may be.

Small in every axis, wide in kinds: all element types, rows of no and of zero width, any depth
of dicts, texts, side values, extra flag rows, gaps.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from relive.columns import unflatten
from relive.dtypes import DTYPE_NAMES, storage_dtype
from relive.fields import FLAG_FIELDS, SHAPE_FIELDS, TREE_FIELDS
from relive.snapshot import Snapshot, take_snapshot
from relive.tensors import wrap_out
from relive.trajectory import Trajectory

__all__ = ["column_values", "snapshots", "trajectories"]

_KEYS = st.text(
    st.characters(exclude_characters="/", exclude_categories=()), min_size=1, max_size=4
)
_ROW_SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)
_SEEDS = st.integers(0, 2**32)
_FLAG_DTYPES = ("bool", "uint8", "int64", "float32")
_OTHER_FIELDS = ("intervene_flags", "versions")


@functools.cache
def available_dtypes() -> tuple[str, ...]:
    """Return the element types that the PyTorch at hand has."""
    import torch

    return tuple(name for name in DTYPE_NAMES if hasattr(torch, name))


def column_values(shape: tuple[int, ...], dtype: str, seed: int) -> NDArray[Any]:
    """Return any bytes as a column, in the storage type of its element type.

    Args:
        shape: Of the whole column.
        dtype: Name of the element type.
        seed: Tells the bytes.
    """
    bits = 1 if dtype == "bool" else 8
    storage = storage_dtype(dtype)
    size = int(np.prod(shape)) * storage.itemsize
    drawn = np.random.default_rng(seed).integers(0, 1 << bits, size, np.uint8)
    return drawn.view(storage).reshape(shape)


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    """Draw trajectories of PyTorch tensors that a buffer takes.

    Among them are complex32 ones, at the first of which PyTorch warns that "ComplexHalf support"
    is experimental.
    """
    num_steps, num_envs = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    epochs = [count for count in range(1, num_steps + 1) if num_steps % count == 0]
    extended = num_steps + draw(st.sampled_from(epochs))

    def tensor(num_rows: int = num_steps) -> Any:
        dtype = draw(st.sampled_from(available_dtypes()))
        shape = (num_rows, num_envs, *draw(_ROW_SHAPES))
        values = column_values(shape, dtype, draw(_SEEDS))
        return wrap_out(values, dtype, "torch", "drawn")

    trajectory = Trajectory(
        max_episode_length=draw(st.integers(0, 2**40)),
        model_weights_id=draw(st.text(st.characters(exclude_categories=()), max_size=40)),
    )
    fields = draw(st.sets(st.sampled_from((*SHAPE_FIELDS, "curr_obs", "next_obs")), min_size=1))
    fields |= draw(st.sets(st.sampled_from((*_OTHER_FIELDS, "forward_inputs", "extras"))))
    for name in sorted(fields):
        if name in TREE_FIELDS:
            setattr(trajectory, name, draw(_trees(tensor, num_steps, num_envs)))
        else:
            setattr(trajectory, name, tensor())
    if not fields & set(SHAPE_FIELDS):
        trajectory.curr_obs["tells T and B"] = tensor()
    if draw(st.booleans()):
        trajectory.prev_values = tensor(draw(st.sampled_from((num_steps, extended))))
    for name in sorted(draw(st.sets(st.sampled_from(FLAG_FIELDS)))):
        shape = (draw(st.sampled_from((num_steps, extended))), num_envs, *draw(_ROW_SHAPES))
        dtype = draw(st.sampled_from(_FLAG_DTYPES))
        flags = column_values(shape, "bool", draw(_SEEDS)).astype(dtype)
        setattr(trajectory, name, wrap_out(flags, dtype, "torch", name))
    if draw(st.booleans()):
        gaps = column_values((num_steps, num_envs), "bool", draw(_SEEDS))
        trajectory.gaps = wrap_out(gaps, "bool", "torch", "gaps")
    return trajectory


@st.composite
def _trees(draw: st.DrawFn, tensor: Any, num_steps: int, num_envs: int) -> dict[str, Any]:
    """Draw a nested dict of tensors, texts and side values."""
    row = st.lists(st.text(max_size=3), min_size=num_envs, max_size=num_envs)
    leaves = st.one_of(
        st.builds(tensor),
        st.builds(tensor),
        row,
        st.lists(row, min_size=num_steps, max_size=num_steps),
        st.booleans(),
        st.integers(-(2**70), 2**70),
        st.floats(),
        st.text(max_size=5),
        st.binary(max_size=5),
        st.just({}),
    )
    paths = draw(st.lists(st.lists(_KEYS, min_size=1, max_size=3), max_size=5))
    flat: dict[str, Any] = {}
    for path in paths:
        name = "/".join(path)
        is_taken = any(
            f"{other}/".startswith(f"{name}/") or f"{name}/".startswith(f"{other}/")
            for other in flat
        )
        if not is_taken:
            flat[name] = draw(leaves)
    return unflatten(flat)


def snapshots() -> st.SearchStrategy[Snapshot]:
    """Draw checked copies of such trajectories."""
    return trajectories().map(take_snapshot)
