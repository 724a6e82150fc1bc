# SPDX-License-Identifier: Apache-2.0
"""`relive.compat.rlinf`: its trajectories, those of RLinf itself, and what they are named by."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

import relive
from relive.compat.rlinf import (
    Trajectory,
    TrajectoryReplayBuffer,
    convert_trajectories_to_batch,
    get_model_weights_id,
)
from relive.errors import ColumnMismatchError, InvalidArgumentError, UnsupportedValueError
from rlinf_program import expected_rows, flat, rollout
from rlinf_rows import NUM_ENVS, NUM_STEPS, WEIGHTS_IDS, addressed, check_batch

pytestmark = pytest.mark.usefixtures("alone")


@dataclass
class Foreign:
    """The fields of RLinf's own Trajectory, and one that a later RLinf might add."""

    max_episode_length: int = 0
    model_weights_id: str = ""
    actions: Any = None
    intervene_flags: Any = None
    rewards: Any = None
    terminations: Any = None
    truncations: Any = None
    dones: Any = None
    prev_logprobs: Any = None
    prev_values: Any = None
    versions: Any = None
    forward_inputs: dict[str, Any] = field(default_factory=dict)
    curr_obs: dict[str, Any] = field(default_factory=dict)
    next_obs: dict[str, Any] = field(default_factory=dict)
    loss_mask: Any = None


class TestForeignTrajectories:
    """A program whose workers still make RLinf's own trajectories."""

    def test_are_added_as_ours(self) -> None:
        buffer = TrajectoryReplayBuffer()
        foreign = Foreign(**rollout(2, 4, 2, 1))
        buffer.add_trajectories([foreign, addressed(3, 4, 2, 1)])
        assert check_batch(buffer.sample(99)) == {2, 3}
        found = buffer.trajectory(0)
        assert (found.model_weights_id, found.max_episode_length) == ("weights-2", 50)
        assert torch.equal(found.dones, foreign.dones)

    def test_fields_that_ours_lacks_are_extras(self) -> None:
        buffer = TrajectoryReplayBuffer()
        mask = torch.ones(4, 2, 1)
        buffer.add_trajectories([Foreign(**rollout(2, 4, 2), loss_mask=mask)])
        assert torch.equal(buffer.trajectory(0).extras["loss_mask"], mask)
        assert convert_trajectories_to_batch([Foreign(rewards=mask, loss_mask=mask)]).keys() == {
            "rewards",
            "extras",
        }

    @pytest.mark.parametrize("value", [None, {"rewards": 1}, Foreign, object()])
    def test_what_is_none_is_refused_and_named(self, value: Any) -> None:
        buffer = TrajectoryReplayBuffer()
        with pytest.raises(UnsupportedValueError, match=type(value).__name__):
            buffer.add_trajectories([addressed(0), value])
        assert len(buffer) == 0

    @pytest.mark.parametrize("kind", [Foreign, Trajectory, relive.Trajectory])
    def test_a_weights_id_of_none_is_unknown(self, kind: Any) -> None:
        given = kind(rewards=torch.ones(3, 2, 1), model_weights_id=None)
        buffer = TrajectoryReplayBuffer()
        buffer.add_trajectories([given])
        assert buffer.trajectory(0).model_weights_id == ""
        assert given.model_weights_id is None
        for other in (0, b"w"):
            with pytest.raises(UnsupportedValueError, match="model_weights_id is a"):
                buffer.add_trajectories([kind(rewards=torch.ones(3, 2), model_weights_id=other)])

    @pytest.mark.parametrize("value", [Foreign(**rollout(2, 4, 2)), Trajectory(), "ab", 0])
    def test_one_alone_is_no_list(self, value: Any) -> None:
        with pytest.raises(InvalidArgumentError, match="must be a list of trajectories; put one"):
            TrajectoryReplayBuffer().add_trajectories(value)

    def test_a_field_that_extras_has_too_is_refused(self) -> None:
        @dataclass
        class Twice(Foreign):
            extras: dict[str, Any] = field(default_factory=dict)

        mask = torch.ones(4, 2, 1)
        twice = Twice(**rollout(2, 4, 2), loss_mask=mask, extras={"loss_mask": mask})
        with pytest.raises(ColumnMismatchError, match=r"\['loss_mask'\] among its fields"):
            TrajectoryReplayBuffer().add_trajectories([twice])


class TestFieldNames:
    def test_a_misspelt_one_is_refused_here_too(self) -> None:
        trajectory = Trajectory()
        trajectory.rewards = torch.zeros(4, 2)
        with pytest.raises(InvalidArgumentError, match="did you mean 'prev_values'"):
            trajectory.prev_value = torch.zeros(4, 2)  # type: ignore[attr-defined]
        assert not hasattr(trajectory, "prev_value")


def with_flags(*envs: str, **fields: Any) -> Trajectory:
    """Two flags a row: "x" both set, "/" one of them; rewards are 100 t + b."""
    flags = [[[[sign != ".", sign == "x"]] for sign in env] for env in envs]
    marks = torch.tensor(flags).squeeze(2).transpose(0, 1)  # [B, T, 2] -> [T, B, 2]
    t, b = torch.arange(len(envs[0]))[:, None], torch.arange(len(envs))[None]
    return Trajectory(rewards=(100 * t + b)[..., None], intervene_flags=marks, **fields)


class TestExtractInterveneTraj:
    def test_joins_the_steps_of_an_env_and_marks_the_gaps(self) -> None:
        whole = with_flags("x.xx/.", "......", ".xxx..", max_episode_length=9, model_weights_id="w")
        found = whole.extract_intervene_traj()
        assert found is not None
        assert [part.rewards[:, 0, 0].tolist() for part in found] == [
            [0, 200, 300, 400],
            [102, 202, 302],
        ]
        assert found[0].gaps[:, 0].tolist() == [True, False, False, False]
        assert found[1].gaps is None
        assert {(type(p), p.max_episode_length, p.model_weights_id) for p in found} == {
            (Trajectory, 9, "w")
        }

    def test_mode_all_wants_every_flag(self) -> None:
        found = with_flags("x/x", "//.").extract_intervene_traj(mode="all")
        assert found is not None
        assert [part.rewards[:, 0, 0].tolist() for part in found] == [[0, 200]]
        assert with_flags("//").extract_intervene_traj("all") is None

    def test_nothing_corrected_or_no_flags_is_none(self) -> None:
        assert with_flags("..", "..").extract_intervene_traj() is None
        assert Trajectory(rewards=torch.zeros(2, 1)).extract_intervene_traj() is None

    def test_flags_of_one_epoch_keep_their_first_row(self) -> None:
        dones = torch.tensor([True, False, False, True])[:, None, None]
        found = with_flags(".xx", terminations=dones, dones=dones).extract_intervene_traj()
        assert found is not None
        assert found[0].terminations.flatten().tolist() == [True, False, True]
        assert found[0].dones.shape == (3, 1, 1)
        assert found[0].truncations is None  # where RLinf fails

    def test_dones_without_terminations_are_kept(self) -> None:
        dones = torch.tensor([False, True])[:, None, None]
        found = with_flags("xx", dones=dones).extract_intervene_traj()
        assert found is not None
        assert torch.equal(found[0].dones, dones)

    def test_flags_of_more_epochs_get_a_row_a_step_and_a_gap_between_epochs(self) -> None:
        dones = torch.arange(6).reshape(6, 1, 1) % 3 == 2  # two epochs of two steps
        values = torch.arange(6.0).reshape(6, 1, 1)
        whole = with_flags(".xxx", truncations=dones, prev_values=values)
        found = whole.extract_intervene_traj()
        assert found is not None
        assert found[0].truncations.flatten().tolist() == [True, False, True]
        assert found[0].prev_values.flatten().tolist() == [1, 3, 4]
        assert found[0].gaps.flatten().tolist() == [True, False, False]

    def test_recorded_gaps_stay(self) -> None:
        gaps = torch.tensor([[True], [False], [True]])
        found = with_flags("xxx", gaps=gaps).extract_intervene_traj()
        assert found is not None
        assert found[0].gaps.flatten().tolist() == [True, False, False]

    def test_arrays_stay_arrays(self) -> None:
        flags = np.array([[True], [False], [True]])
        whole = Trajectory(rewards=np.arange(3.0)[:, None], intervene_flags=flags)
        found = whole.extract_intervene_traj()
        assert found is not None
        assert isinstance(found[0].rewards, np.ndarray)
        assert isinstance(found[0].gaps, np.ndarray)
        assert found[0].rewards[:, 0].tolist() == [0, 2]

    def test_all_but_versions_is_kept(self) -> None:
        rows = torch.arange(3)[:, None]
        whole = with_flags(
            "x.x",
            versions=rows,
            curr_obs={"arm": {"joint": {"q": rows}}, "task": ["pick"]},
            extras={"n": 1, "said": [["a"], ["b"], ["c"]]},
        )
        found = whole.extract_intervene_traj()
        assert found is not None
        assert found[0].versions is None
        assert found[0].curr_obs["arm"]["joint"]["q"].tolist() == [[0], [2]]
        assert found[0].curr_obs["task"] == ["pick"]
        assert found[0].extras == {"n": 1, "said": [["a"], ["c"]]}

    @pytest.mark.parametrize("epochs", [0, 1, 2, 3])
    def test_a_buffer_takes_them_and_no_run_crosses_a_gap(self, epochs: int) -> None:
        whole = addressed(1, 6, 3, epochs)
        found = whole.extract_intervene_traj("any")
        assert found is not None
        buffer = TrajectoryReplayBuffer()
        for trajectory_id in buffer.add_trajectories(found):
            part = buffer.trajectory(trajectory_id)
            rows = (part.rewards.flatten().long() - 1000) // 3
            follows = rows[1:] == rows[:-1] + 1
            if part.gaps is not None:
                assert part.gaps.flatten()[:-1][~follows].all()
        batch = flat(buffer.sample(100))
        address = batch["rewards"][:, 0].long()
        for name, column in expected_rows(address).items():
            if name != "versions":
                assert torch.equal(batch[name], column), name

    def test_an_unknown_mode_is_refused(self) -> None:
        with pytest.raises(InvalidArgumentError, match="mode is 'most'"):
            with_flags("x").extract_intervene_traj("most")  # type: ignore[arg-type]  # on purpose


class TestModelWeightsId:
    @pytest.mark.parametrize("number", range(3))
    def test_is_that_of_the_real_checkpoints(self, number: int) -> None:
        versions = torch.full((NUM_STEPS[number], NUM_ENVS, 1), float(number))
        assert get_model_weights_id(versions) == WEIGHTS_IDS[number]
        assert get_model_weights_id(versions.numpy()) == WEIGHTS_IDS[number]

    def test_takes_what_rlinf_cannot(self) -> None:
        versions = torch.ones(2, requires_grad=True)
        assert get_model_weights_id(versions) == get_model_weights_id(versions.detach())
        assert get_model_weights_id(versions.bfloat16()) != get_model_weights_id(versions)
        with pytest.raises(
            UnsupportedValueError, match="versions is a float, but must be a tensor"
        ):
            get_model_weights_id(1.0)
