# SPDX-License-Identifier: Apache-2.0
"""Trajectories whose rows carry their own address, and the proof that a batch's rows are sound.

Row (t, b) of trajectory number k has `curr_obs/id` = 1,000,000 k + 1,000 t + b, and so on in
every other column, so any row of any batch says where it came from, and whether all of its
columns came from the same place.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relive import SampleInfo, Trajectory, TrajectoryReplayBuffer

__all__ = [
    "address_of",
    "check_rows",
    "make_checkpoint",
    "same_trajectory",
    "side_entries",
    "traj",
    "trajectory_files",
]

WIDE = 1200
"""Numbers in a row of `curr_obs/wide`: with float32 more than the 4 KiB at which gathers differ."""


def traj(
    k: int,
    T: int = 4,
    B: int = 3,
    *,
    E: int = 0,
    wide: bool = False,
    weights_id: str = "",
    extra: Mapping[str, Any] | None = None,
) -> Trajectory:
    """Return trajectory number k.

    Args:
        k: Its number, below 1,000.
        T: Chunk steps, below 1,000.
        B: Envs, below 1,000.
        E: Rollout epochs whose flags and values have T + E rows; 0 for T rows.
        wide: Whether rows have a large column as well.
        weights_id: Its `model_weights_id`.
        extra: Its `extras`.
    """
    step, env = np.mgrid[:T, :B]
    address = 1_000_000 * k + 1_000 * step + env
    curr_obs: dict[str, Any] = {
        "id": address,
        "camera": {"pixels": np.repeat((address % 251).astype(np.uint8)[..., None], 5, 2)},
    }
    if wide:
        curr_obs["wide"] = np.repeat(address.astype(np.float32)[..., None], WIDE, 2)
    odd = address % 2 == 1
    return Trajectory(
        max_episode_length=T,
        model_weights_id=weights_id,
        actions=np.stack([address, -address], 2).astype(np.float64),
        rewards=step.astype(np.float32),
        dones=with_extra_rows(odd, E, leading=True),
        terminations=with_extra_rows(~odd, E, leading=True),
        truncations=with_extra_rows(odd, E, leading=True),
        prev_values=with_extra_rows(address.astype(np.float64), E, leading=False),
        curr_obs=curr_obs,
        next_obs={"id": address + 1_000},
        extras=dict(extra or {}),
    )


def with_extra_rows(column: NDArray[Any], E: int, *, leading: bool) -> NDArray[Any]:
    """Give each of E epochs a row more, whose values no sound row has: `[T + E, B]`."""
    if not E:
        return column
    T, B = column.shape
    by_epoch = column.reshape(E, T // E, B)
    edge = by_epoch[:, :1] if leading else by_epoch[:, -1:]
    stray = ~edge if column.dtype == np.bool_ else np.full_like(edge, -77)
    pair = (stray, by_epoch) if leading else (by_epoch, stray)
    return np.concatenate(pair, 1).reshape(T + E, B)


def address_of(batch: Mapping[str, Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return k, t and b of each row of a batch."""
    address = np.asarray(batch["curr_obs"]["id"])
    return address // 1_000_000, address // 1_000 % 1_000, address % 1_000


def check_rows(
    batch: Mapping[str, Any], info: SampleInfo | None = None, ks: Mapping[int, int] | None = None
) -> None:
    """Prove that all columns of each row of a batch come from one row of one trajectory.

    Args:
        batch: A batch with all columns of `traj`.
        info: What came with it.
        ks: Number of each trajectory that may have been drawn, by its id in the buffer.
    """
    address = np.asarray(batch["curr_obs"]["id"])
    k, t, b = address_of(batch)
    odd = address % 2 == 1
    expected: dict[str, NDArray[Any]] = {
        "next_obs": address + 1_000,
        "rewards": t.astype(np.float32),
        "actions": np.stack([address, -address], 1).astype(np.float64),
        "dones": odd,
        "terminations": ~odd,
        "truncations": odd,
        "prev_values": address.astype(np.float64),
        "pixels": np.repeat((address % 251).astype(np.uint8)[:, None], 5, 1),
    }
    found = {
        **{name: batch[name] for name in expected.keys() & batch.keys()},
        "next_obs": batch["next_obs"]["id"],
        "pixels": batch["curr_obs"]["camera"]["pixels"],
    }
    if "wide" in batch["curr_obs"]:
        expected["wide"] = np.repeat(address.astype(np.float32)[:, None], WIDE, 1)
        found["wide"] = batch["curr_obs"]["wide"]
    assert found.keys() == expected.keys()
    for name, column in expected.items():
        got = np.asarray(found[name])
        assert got.dtype == column.dtype, name
        np.testing.assert_array_equal(got, column, err_msg=name)
    if info is not None:
        np.testing.assert_array_equal(info.steps, t)
        np.testing.assert_array_equal(info.envs, b)
    if info is not None and ks is not None:
        assert [ks[trajectory_id] for trajectory_id in info.trajectory_ids.tolist()] == k.tolist()


def same_trajectory(found: Trajectory, expected: Trajectory) -> bool:
    """Tell whether two trajectories of `traj` have the same columns, extra rows included."""
    pairs = [
        (getattr(found, name), getattr(expected, name))
        for name in (
            *("actions", "rewards", "dones", "terminations", "truncations", "prev_values"),
            *("curr_obs", "next_obs", "extras"),
        )
    ]
    return (
        found.model_weights_id == expected.model_weights_id
        and found.max_episode_length == expected.max_episode_length
        and all(_same(*pair) for pair in pairs)
    )


def _same(found: Any, expected: Any) -> bool:
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(
            _same(found[name], expected[name]) for name in expected
        )
    if isinstance(expected, (str, list)):
        return bool(found == expected)
    one, other = np.asarray(found), np.asarray(expected)
    return one.dtype == other.dtype and np.array_equal(one, other)


def trajectory_files(folder: Path) -> list[int]:
    """Return the ids of the trajectories that files in a folder hold, sorted.

    Those of segments are what their side files say, whether the index still names them or not.
    """
    names = (path.name for path in folder.iterdir())
    found = [int(name.split("_")[1]) for name in names if name.endswith((".pt", ".pkl"))]
    for path in folder.glob("segments/*/side.bin"):
        found += [entry["trajectory_id"] for entry in side_entries(path)]
    return sorted(found)


def side_entries(path: Path) -> list[dict[str, Any]]:
    """Return what the side file of a segment says of each trajectory, in its order."""
    block, at, entries = path.read_bytes(), 0, []
    while at < len(block):
        size, json_bytes = np.frombuffer(block, "<u4", 2, at).tolist()
        entries.append(json.loads(block[at + 16 : at + 16 + json_bytes]))
        at += size
    return entries


def make_checkpoint(path: Path, trajectories: Iterable[Trajectory], **options: Any) -> None:
    """Write a checkpoint of a buffer that had these trajectories added, one by one."""
    with TrajectoryReplayBuffer(**{"sample_window_size": 0, **options}) as buffer:
        for trajectory in trajectories:
            buffer.add_trajectories([trajectory])
        buffer.save_checkpoint(path)
