# SPDX-License-Identifier: Apache-2.0
"""`relive.compat.rlinf`: faults of RLinf 0.3.0 that must not come back."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import relive
from relive import files
from relive.compat.rlinf import Trajectory, TrajectoryReplayBuffer
from relive.errors import ColumnMismatchError, StorageWriteError
from rlinf_program import flat
from rlinf_rows import DATA, addressed, check_batch, check_stored_rows, drawn, every_setting

pytestmark = pytest.mark.usefixtures("alone")


@pytest.fixture
def replay(tmp_path: Path) -> Iterator[TrajectoryReplayBuffer]:
    """A buffer on disk with a window of two."""
    with TrajectoryReplayBuffer(
        auto_save=True, auto_save_path=tmp_path / "live", sample_window_size=2
    ) as buffer:
        yield buffer


class TestFaultsThatStayAway:
    """What RLinf 0.3.0 gets wrong in each of these cases, done right."""

    def test_saving_before_any_sample(self, replay: TrajectoryReplayBuffer, tmp_path: Path) -> None:
        replay.add_trajectories([addressed(number) for number in range(3)])
        replay.save_checkpoint(tmp_path / "saved")
        again = TrajectoryReplayBuffer()
        again.load_checkpoint(tmp_path / "saved")
        assert check_batch(again.sample(99)) == {1, 2}

    def test_loading_one_checkpoint_and_saving_another(
        self, replay: TrajectoryReplayBuffer, tmp_path: Path
    ) -> None:
        replay.load_checkpoint(DATA / "v0.3.0" / "pt_autosave_true_checkpoint")
        replay.sample(8)
        replay.save_checkpoint(tmp_path / "saved")
        again = TrajectoryReplayBuffer()
        again.load_checkpoint(tmp_path / "saved")
        assert again.size == 2
        check_stored_rows(*again.sample(99, return_info=True))

    def test_a_larger_window_over_a_checkpoint_of_a_smaller(self, tmp_path: Path) -> None:
        buffer = TrajectoryReplayBuffer(sample_window_size=2)
        buffer.add_trajectories([addressed(number) for number in range(5)])
        buffer.save_checkpoint(tmp_path / "saved")
        index = json.loads((tmp_path / "saved" / "trajectory_index.json").read_text("utf-8"))
        assert index["trajectory_id_list"] == [3, 4]
        again = TrajectoryReplayBuffer(sample_window_size=100)
        again.load_checkpoint(tmp_path / "saved")
        assert check_batch(again.sample(99)) == {3, 4}
        assert again.trajectory_counter == 5

    def test_loading_does_not_bring_the_first_batch_again(self, tmp_path: Path) -> None:
        buffer = TrajectoryReplayBuffer()
        buffer.add_trajectories([addressed(0, 50, 4)])
        first = drawn(buffer)
        buffer.save_checkpoint(tmp_path / "saved")
        second = drawn(buffer)
        again = TrajectoryReplayBuffer()
        again.load_checkpoint(tmp_path / "saved")
        assert drawn(again) == second != first

    @every_setting
    def test_nested_observations_and_lists(self, auto_save: bool, tmp_path: Path) -> None:
        whole = addressed(0)
        whole.curr_obs |= {
            "arm": {"joint": {"q": torch.arange(8).reshape(4, 2)}},
            "task": ["a", "b"],
        }
        options: dict[str, Any] = {"auto_save": auto_save, "auto_save_path": tmp_path / "live"}
        with TrajectoryReplayBuffer(**options) as buffer:
            buffer.add_trajectories([whole])
            buffer.save_checkpoint(tmp_path / "saved")
        again = TrajectoryReplayBuffer()
        again.load_checkpoint(tmp_path / "saved")
        batch, info = again.sample(40, return_info=True)
        assert (
            batch["curr_obs"]["arm"]["joint"]["q"].tolist() == (2 * info.steps + info.envs).tolist()
        )
        assert batch["curr_obs"]["task"] == [["a", "b"][env] for env in info.envs]

    @every_setting
    @pytest.mark.parametrize("epochs", [1, 2, 4])
    def test_extra_rows_are_kept_and_epochs_pair_steps_with_their_own_values(
        self, auto_save: bool, epochs: int, tmp_path: Path
    ) -> None:
        whole = addressed(0, 4, 2, epochs)
        options: dict[str, Any] = {"auto_save": auto_save, "auto_save_path": tmp_path / "live"}
        with TrajectoryReplayBuffer(**options) as buffer:
            buffer.add_trajectories([copy.deepcopy(whole)])
            buffer.save_checkpoint(tmp_path / "saved")
        again = TrajectoryReplayBuffer()
        again.load_checkpoint(tmp_path / "saved")
        found = again.trajectory(0)
        for name in ("dones", "terminations", "truncations", "prev_values"):
            assert torch.equal(getattr(found, name), getattr(whole, name)), name
        assert check_batch(again.sample(99)) == {0}

    def test_flags_one_row_ahead_of_two_epochs(self, tmp_path: Path) -> None:
        stray = True
        dones = torch.tensor([stray, 0, 1, stray, 0, 1], dtype=torch.bool).reshape(6, 1, 1)
        whole = Trajectory(actions=torch.arange(4).reshape(4, 1, 1), dones=dones)
        for name, save in (("memory", False), ("disk", True)):
            with TrajectoryReplayBuffer(
                auto_save=save, auto_save_path=tmp_path / name, enable_cache=not save
            ) as buffer:
                buffer.add_trajectories([whole])
                buffer.flush()
                batch = buffer.sample(60)
                is_done = (batch["actions"] % 2 == 1).flatten()
                assert set(batch["actions"].flatten().tolist()) == {0, 1, 2, 3}
                assert torch.equal(batch["dones"].flatten(), is_done)
                whole.dones = torch.zeros(7, 1, 1, dtype=torch.bool)
                with pytest.raises(ColumnMismatchError, match="'dones' has 7 rows, but with T = 4"):
                    buffer.add_trajectories([whole])
                whole.dones = dones
                assert (len(buffer), buffer.total_samples, buffer.trajectory_counter) == (1, 4, 1)

    def test_a_long_run_leaves_no_files_behind(self, tmp_path: Path) -> None:
        with TrajectoryReplayBuffer(
            auto_save=True,
            auto_save_path=tmp_path / "live",
            sample_window_size=2,
            limits=relive.Limits(max_trajectories=2),
        ) as buffer:
            for number in range(30):
                buffer.add_trajectories([addressed(number)])
            buffer.flush()
            assert check_batch(buffer.sample(99)) == {28, 29}
        assert len(list((tmp_path / "live").glob("trajectory_*.pt"))) == 2

    def test_a_save_that_fails_leaves_the_one_before(
        self, replay: TrajectoryReplayBuffer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        replay.add_trajectories([addressed(0)])
        replay.save_checkpoint(tmp_path / "saved")
        replay.add_trajectories([addressed(1)])
        replay.flush()

        def full(*_: Any, **__: Any) -> None:
            raise OSError(28, "no space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(files, "copy", full)
            with pytest.raises(StorageWriteError, match="no space left"):
                replay.save_checkpoint(tmp_path / "saved")
        again = TrajectoryReplayBuffer()
        again.load_checkpoint(tmp_path / "saved")
        assert check_batch(again.sample(50)) == {0}

    @pytest.mark.parametrize("weights_id", ["a/b", "", "x" * 300, "../up", "ü .\0"])
    def test_any_weights_id_keeps_its_trajectory(self, weights_id: str, tmp_path: Path) -> None:
        whole = addressed(0)
        whole.model_weights_id = weights_id
        folder = tmp_path / "deep" / "live"
        with TrajectoryReplayBuffer(auto_save=True, auto_save_path=folder) as buffer:
            buffer.add_trajectories([whole])
            buffer.save_checkpoint(tmp_path / "deep" / "saved")
        assert sorted(path.name for path in tmp_path.rglob("*") if path.is_dir()) == [
            *("deep", "live", "saved"),
        ]
        with TrajectoryReplayBuffer(auto_save=True, auto_save_path=folder) as buffer:
            assert buffer.trajectory(0).model_weights_id == weights_id
        again = TrajectoryReplayBuffer()
        again.load_checkpoint(tmp_path / "deep" / "saved")
        assert again.trajectory(0).model_weights_id == weights_id
        assert check_batch(again.sample(20)) == {0}

    def test_a_batch_has_as_many_rows_as_asked(self) -> None:
        buffer = TrajectoryReplayBuffer()
        buffer.add_trajectories([addressed(0)])
        assert len(buffer.sample(100)["rewards"]) == 100

    def test_a_column_that_a_later_trajectory_lacks(self) -> None:
        buffer = TrajectoryReplayBuffer(sample_window_size=1)
        whole = addressed(0)
        whole.extras = {"extra": torch.full((4, 2), 7)}
        buffer.add_trajectories([whole])
        with pytest.raises(ColumnMismatchError, match="missing: extras/extra"):
            buffer.add_trajectories([addressed(1)])

    def test_a_bad_trajectory_after_a_good_one(self) -> None:
        buffer, bad = TrajectoryReplayBuffer(), addressed(2)
        buffer.add_trajectories([addressed(0)])
        bad.curr_obs["main_images"] = torch.zeros(4, 2, 5, 5, 3, dtype=torch.uint8)
        with pytest.raises(ColumnMismatchError, match="curr_obs/main_images"):
            buffer.add_trajectories([addressed(1), bad])
        assert (len(buffer), buffer.total_samples, buffer.trajectory_counter) == (1, 8, 1)
        assert check_batch(buffer.sample(50)) == {0}

    @every_setting
    def test_a_trajectory_without_rewards_is_stored(self, auto_save: bool, tmp_path: Path) -> None:
        options: dict[str, Any] = {"auto_save": auto_save, "auto_save_path": tmp_path / "live"}
        with TrajectoryReplayBuffer(**options) as buffer:
            buffer.add_trajectories([Trajectory(actions=torch.ones(3, 2, 1))])
            assert buffer.sample(5)["actions"].shape == (5, 1)

    def test_the_callers_tensors_are_his_again(self, replay: TrajectoryReplayBuffer) -> None:
        whole = addressed(0)
        replay.add_trajectories([whole])
        for column in flat(vars(whole)).values():
            column.zero_()
        replay.flush()
        replay.clear_cache()
        assert check_batch(replay.sample(50)) == {0}

    def test_a_window_of_nothing_is_everything(self) -> None:
        buffer = TrajectoryReplayBuffer(sample_window_size=0)
        buffer.add_trajectories([addressed(number) for number in range(4)])
        assert check_batch(buffer.sample(200)) == {0, 1, 2, 3}

    def test_no_global_generator_is_touched(self) -> None:
        np.random.seed(1)
        torch.manual_seed(1)
        before = np.random.get_state(legacy=False), torch.get_rng_state()
        buffer = TrajectoryReplayBuffer()
        buffer.add_trajectories([addressed(0)])
        buffer.sample(10)
        assert str(np.random.get_state(legacy=False)) == str(before[0])
        assert torch.equal(torch.get_rng_state(), before[1])

    def test_clearing_does_not_bring_ids_again(self) -> None:
        buffer = TrajectoryReplayBuffer()
        buffer.add_trajectories([addressed(0)])
        buffer.clear()
        assert buffer.add_trajectories([addressed(1)]) == [1]
