# SPDX-License-Identifier: Apache-2.0
"""What RLinf itself does: run by the Python of its environment, which cannot import relive.

    python rlinf_program.py ORDERS.pt RESULTS.pt

The orders are a list of (name of a function below, keyword arguments); the results are what the
functions return, in the same order. test_peer_rlinf.py imports `rollout` and `expected_rows` from
here too, so that both sides agree what every row holds.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

__all__ = ["LEADING", "expected_rows", "flat", "rollout"]

LEADING = ("dones", "terminations", "truncations")


def rollout(number: int, steps: int, envs: int, epochs: int = 0) -> dict[str, Any]:
    """Fields of a trajectory whose row (t, b) is told by its reward: 1000 * number + t * envs + b.

    Flags and values have T + E rows when there are epochs, else T.
    """
    t, b = torch.arange(steps)[:, None], torch.arange(envs)[None, :]
    fields: dict[str, Any] = {"max_episode_length": 50, "model_weights_id": f"weights-{number}"}
    for name, column in expected_rows(number * 1000 + t * envs + b).items():
        head, _, key = name.partition("/")
        if key:
            fields.setdefault(head, {})[key] = column
        else:
            fields[head] = column
    if epochs:
        for name in LEADING:
            fields[name] = _with_extra_rows(fields[name], epochs, leading=True)
        fields["prev_values"] = _with_extra_rows(fields["prev_values"], epochs, leading=False)
    return fields


def expected_rows(address: torch.Tensor) -> dict[str, torch.Tensor]:
    """Every column of the rows with these addresses, `[..., row shape]` for addresses `[...]`."""
    at = address[..., None]
    number = at.float()
    pixels = at[..., None, None] * 7 + torch.arange(48).reshape(4, 4, 3)
    return {
        "actions": number + torch.arange(3) / 8,
        "intervene_flags": (at + torch.arange(3)) % 3 == 0,
        "rewards": number.clone(),
        "terminations": at % 4 == 3,
        "truncations": at % 5 == 4,
        "dones": (at % 4 == 3) | (at % 5 == 4),
        "prev_logprobs": -number - torch.arange(3) / 8,
        "prev_values": number + 0.5,
        "versions": (at // 1000).float(),
        "forward_inputs/chains": number[..., None] + torch.arange(6).reshape(2, 3),
        "curr_obs/states": number + torch.arange(4) / 16,
        "curr_obs/main_images": (pixels % 256).to(torch.uint8),
        "next_obs/states": number + 10 + torch.arange(4) / 16,
        "next_obs/main_images": ((pixels + 7) % 256).to(torch.uint8),
    }


def _with_extra_rows(column: torch.Tensor, epochs: int, *, leading: bool) -> torch.Tensor:
    """Add a row that no sample may show to each epoch: `[T, B, ...]` to `[T + E, B, ...]`."""
    stray = torch.ones_like(column[:1]) if leading else torch.full_like(column[:1], -1)
    parts = []
    for block in column.chunk(epochs):
        parts += [stray, block] if leading else [block, stray]
    return torch.cat(parts)


def flat(tree: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Every tensor of a batch by its full name."""
    found = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            found.update({f"{name}/{key}": inner for key, inner in flat(value).items()})
        elif isinstance(value, torch.Tensor):
            found[name] = value
    return found


# What follows runs in RLinf's environment only.


def write(
    shapes: Sequence[tuple[int, int, int]],
    auto_save: bool,
    trajectory_format: str,
    window: int,
    live: str,
    checkpoint: str,
) -> dict[str, Any]:
    """Add rollouts to RLinf's buffer and save a checkpoint."""
    buffer = replay_buffer.TrajectoryReplayBuffer(
        auto_save=auto_save,
        auto_save_path=live,
        trajectory_format=trajectory_format,
        sample_window_size=window,
    )
    for number, shape in enumerate(shapes):
        buffer.add_trajectories([structs.Trajectory(**rollout(number, *shape))])
    buffer._save_executor.shutdown(wait=True)  # what it saves first must be written
    buffer.sample(4)  # or it would save no trajectory at all
    buffer.save_checkpoint(checkpoint)
    return {"size": buffer.size, "total_samples": buffer.total_samples, "stats": buffer.get_stats()}


def read(path: str, window: int, num: int, enable_cache: bool, **rank: Any) -> dict[str, Any]:
    """Load a checkpoint into RLinf's buffer and sample it."""
    buffer = replay_buffer.TrajectoryReplayBuffer(
        enable_cache=enable_cache,
        cache_size=2,
        sample_window_size=window,
        auto_save=not enable_cache,
        auto_save_path=f"{path}-live",
    )
    buffer.load_checkpoint(path, **rank)
    ids = list(buffer._trajectory_id_list)
    index = buffer._trajectory_index
    whole = {i: vars(buffer._load_trajectory(i, index[i]["model_weights_id"])) for i in ids}
    return {
        "size": buffer.size,
        "total_samples": buffer.total_samples,
        "counter": buffer._trajectory_counter,
        "batch": buffer.sample(num),
        "trajectories": whole,
    }


def call(calls: Sequence[tuple[str, Any]]) -> list[Any]:
    """What RLinf's functions give for these fields or tensors."""
    functions: dict[str, Callable[[Any], Any]] = {
        "get_model_weights_id": structs.get_model_weights_id,
        "extract_any": lambda fields: _extract(fields, "any"),
        "extract_all": lambda fields: _extract(fields, "all"),
        "convert": lambda many: structs.convert_trajectories_to_batch(
            [structs.Trajectory(**fields) for fields in many]
        ),
    }
    return [functions[name](argument) for name, argument in calls]


def _extract(fields: Mapping[str, Any], mode: str) -> list[dict[str, Any]] | None:
    extracted = structs.Trajectory(**fields).extract_intervene_traj(mode)
    return None if extracted is None else [vars(one) for one in extracted]


def main(orders: str, results: str) -> None:
    """Do what the file says."""
    functions: dict[str, Callable[..., Any]] = {"write": write, "read": read, "call": call}
    done = [
        functions[name](**arguments) for name, arguments in torch.load(orders, weights_only=False)
    ]
    torch.save(done, results)


if __name__ == "__main__":
    import stand_ins

    logging.disable(logging.WARNING)
    replay_buffer, structs = stand_ins.load()
    main(*sys.argv[1:])
