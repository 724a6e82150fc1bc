# SPDX-License-Identifier: Apache-2.0
"""Rows of RLinf's own checkpoints, and of rollouts like RLinf's, that tell where they came from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import relive
from relive.compat.rlinf import Trajectory, TrajectoryReplayBuffer
from rlinf_program import expected_rows, flat, rollout

DATA = Path(__file__).parent / "data" / "rlinf"
CHECKPOINTS = sorted(path for path in DATA.glob("*/*_autosave_*") if path.is_dir())
NUM_STEPS, NUM_EPOCHS, NUM_ENVS = (4, 6, 4), (1, 1, 2), 2
WEIGHTS_IDS = (
    "87a64d8e-0f54-5c7c-a19d-0b3753cad97c",
    "87549d8d-b007-5b17-b1d3-5e3037e144cf",
    "3db5df6d-a5c9-59e4-913c-8aa0093702c2",
)

AnyBuffer = relive.TrajectoryReplayBuffer
BUFFERS: tuple[type[AnyBuffer], ...] = (AnyBuffer, TrajectoryReplayBuffer)

every_checkpoint = pytest.mark.parametrize(
    "path", CHECKPOINTS, ids=lambda path: f"{path.parent.name}/{path.name}"
)
every_buffer = pytest.mark.parametrize("kind", BUFFERS, ids=["relive", "compat"])
every_setting = pytest.mark.parametrize("auto_save", [False, True], ids=["memory", "disk"])


def addressed(number: int, steps: int = 4, envs: int = 2, epochs: int = 0) -> Trajectory:
    """A trajectory whose rewards are 1000 * number + t * envs + b."""
    return Trajectory(**rollout(number, steps, envs, epochs))


def check_batch(batch: Mapping[str, Any], *, but: tuple[str, ...] = ()) -> set[int]:
    """Prove that every column of every row is that of its address; return the numbers drawn."""
    columns = flat(batch)
    address = columns["rewards"][:, 0].long()
    for name, expected in expected_rows(address).items():
        if name not in but:
            assert columns[name].dtype == expected.dtype, name
            assert torch.equal(columns[name], expected), name
    return set((address // 1000).tolist())


def drawn(buffer: AnyBuffer, num: int = 8) -> list[float]:
    rewards: list[float] = buffer.sample(num)["rewards"].flatten().tolist()
    return rewards


def code(number: int, width: int) -> NDArray[np.float32]:
    """100 k + 10 t + b + j / 10, `[T, B, width]`, as data/rlinf/README.md says."""
    t, b, j = np.ogrid[: NUM_STEPS[number], :NUM_ENVS, :width]
    return np.asarray(100 * number + 10 * t + b + j / 10, np.float32)


def check_stored_rows(batch: Mapping[str, Any], info: relive.SampleInfo) -> None:
    """Prove that every row of a batch is that of its trajectory, step and env."""
    k, t, b = (array[:, None] for array in (info.trajectory_ids, info.steps, info.envs))
    per_epoch = np.array(NUM_STEPS)[k] // np.array(NUM_EPOCHS)[k]
    epoch, is_last = t // per_epoch, t % per_epoch == per_epoch - 1
    codes = 100 * k + 10 * t + b + np.arange(4) / 10
    pixels = np.arange(192) + 50 * k + 7 * t + 3 * b
    expected = {
        "actions": codes[:, :3],
        "rewards": k + 0.1 * t + 0.01 * b,
        "prev_logprobs": -codes[:, :3] / 1000,
        "versions": k,
        # the values of an epoch lie one row later for each epoch before
        "prev_values": 1000 * k + 2 * (t + epoch) + b,
        "intervene_flags": (((t * NUM_ENVS + b) * 3 + np.arange(3)) % 5) == 0,
        "dones": is_last,
        "terminations": is_last & (b == 0),
        "truncations": is_last & (b == 1),
        "forward_inputs/action": codes[:, :3],
        "curr_obs/states": codes,
        "next_obs/states": codes + 10,
        "curr_obs/main_images": (pixels % 256).reshape(-1, 8, 8, 3),
        "next_obs/main_images": ((pixels + 7) % 256).reshape(-1, 8, 8, 3),
    }
    columns = flat(batch)
    assert columns.keys() == expected.keys() | {"forward_inputs/chains"}
    for name, column in expected.items():
        found = columns[name].numpy()
        assert np.allclose(found, column.astype(found.dtype), rtol=1e-6, atol=1e-6), name
