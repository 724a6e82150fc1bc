# SPDX-License-Identifier: Apache-2.0
"""RLinf's `Trajectory`: relive's, with the method by which RLinf takes human corrections out."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

import relive.trajectory
from relive.collection.blocks import weights_id
from relive.columns import unflatten
from relive.errors import ColumnMismatchError, UnsupportedValueError
from relive.interventions import CorrectedSteps, Mode, corrected_steps, named_columns
from relive.tensors import copy_in, is_array, is_tensor

__all__ = ["Trajectory", "as_trajectory", "get_model_weights_id"]


class Trajectory(relive.trajectory.Trajectory):
    """One rollout `[T, B, ...]`, as relive's buffers and compat's take it alike."""

    def extract_intervene_traj(self, mode: Mode = "any") -> list[Trajectory] | None:
        """Return the steps that a human corrected, one trajectory for each env that has some.

        The steps of an env are put one after the other, `[n, 1, ...]`, and `gaps` is set where
        two of them do not follow each other, so that no sample crosses such a place.
        `extract_interventions` gives one trajectory for each contiguous stretch instead.

        Args:
            mode: Whether any or all flags over the trailing axes make a step a corrected one.

        Returns:
            None when there are no `intervene_flags` or nothing was corrected. As in RLinf
            without `versions`, and flags of T + 1 rows keep their first row: `[n + 1, 1, ...]`.
            With E > 1 epochs and T + E rows they get n, since n steps need not be E equal
            epochs; `prev_values` always gets n.

        Raises:
            InvalidArgumentError: `mode` is neither "any" nor "all".
            ColumnMismatchError: `intervene_flags` is not bool or not `[T, B, ...]`, or another
                column disagrees about T, B or E.
            UnsupportedValueError: A list is no text column.

        Example:
            >>> import torch
            >>> corrected = torch.tensor([1, 0, 1, 1], dtype=torch.bool)[:, None, None]
            >>> rollout = Trajectory(rewards=torch.arange(4.0)[:, None], intervene_flags=corrected)
            >>> [part] = rollout.extract_intervene_traj()
            >>> part.rewards.flatten().tolist(), part.gaps.flatten().tolist()
            ([0.0, 2.0, 3.0], [True, False, False])
        """
        if self.intervene_flags is None:
            return None
        named = named_columns(self)
        steps = corrected_steps(named, self.gaps, mode)
        named.pop("versions", None)
        extracted = [
            self._kept(named, steps, env, np.flatnonzero(steps.corrected[:, env]))
            for env in range(steps.num_envs)
            if steps.corrected[:, env].any()
        ]
        return extracted or None

    def _kept(
        self, named: dict[str, Any], steps: CorrectedSteps, env: int, kept: NDArray[np.int64]
    ) -> Trajectory:
        """Return these steps of one env, in memory of their own."""
        first = 0 if steps.num_epochs == 1 else None
        cut = {n: steps.take(n, value, env, kept, before=first) for n, value in named.items()}
        return Trajectory(
            max_episode_length=self.max_episode_length,
            model_weights_id=self.model_weights_id,
            gaps=self._gaps_between(steps, env, kept),
            **unflatten(cut),
        )

    def _gaps_between(self, steps: CorrectedSteps, env: int, kept: NDArray[np.int64]) -> Any:
        """Tell which of the kept steps is not followed by its successor; None when all are."""
        ends_epoch = (kept + 1) % steps.steps_per_epoch == 0
        gaps = steps.gaps[kept, env] | ends_epoch | (np.diff(kept, append=kept[-1]) != 1)
        gaps[-1] = False
        if not gaps.any():
            return None
        if is_tensor(self.intervene_flags):
            import torch

            return torch.from_numpy(gaps[:, None])
        return gaps[:, None]


def as_trajectory(value: Any) -> relive.trajectory.Trajectory:
    """Return RLinf's own trajectory, or any of ours, as one of ours, which shares its tensors.

    Args:
        value: A trajectory of ours, or a dataclass with the fields of RLinf's. Fields that ours
            lacks are found in `extras`, as those of RLinf's files are. A `model_weights_id` of
            None means as in RLinf that it is unknown.

    Raises:
        UnsupportedValueError: It is neither.
        ColumnMismatchError: A name stands both among its fields and in its `extras`.
    """
    ours = value if isinstance(value, relive.trajectory.Trajectory) else _converted(value)
    weights_id: object = ours.model_weights_id
    return replace(ours, model_weights_id="") if weights_id is None else ours


def _converted(value: Any) -> Trajectory:
    names = {spec.name for spec in fields(value)} if is_dataclass(value) else set()
    if isinstance(value, type) or not names >= {"actions", "rewards", "curr_obs", "next_obs"}:
        raise UnsupportedValueError(
            f"a trajectory is a {type(value).__name__}, but must be a Trajectory, of relive or of "
            "RLinf; build one"
        )
    ours = {spec.name for spec in fields(Trajectory)}
    trajectory = Trajectory(**{name: getattr(value, name) for name in names & ours})
    others = {n: getattr(value, n) for n in sorted(names - ours) if getattr(value, n) is not None}
    twice = sorted(others.keys() & trajectory.extras.keys())
    if twice:
        raise ColumnMismatchError(
            f"the trajectory has {twice} among its fields, but in its extras too; rename one",
            column=f"extras/{twice[0]}",
        )
    trajectory.extras = {**trajectory.extras, **others}
    return trajectory


def get_model_weights_id(versions: Any) -> str:
    """Return the id that RLinf gives to model weights: a uuid5 of the versions' bytes.

    Args:
        versions: A tensor or array of any shape.

    Raises:
        UnsupportedValueError: It is neither, or of an element type that no column has.

    Example:
        >>> get_model_weights_id(np.zeros(1, np.float32))
        'e58eb380-d5b9-5265-a382-0fc33930cf3e'
    """
    if not is_array(versions):
        raise UnsupportedValueError(
            f"versions is a {type(versions).__name__}, but must be a tensor or an array; convert it"
        )
    copied, _ = copy_in(versions, "versions")
    return weights_id(copied)
