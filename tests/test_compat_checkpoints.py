# SPDX-License-Identifier: Apache-2.0
"""`relive.compat.rlinf`: checkpoints that RLinf wrote load with the values that it stored."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relive
from relive.compat.rlinf import TrajectoryReplayBuffer
from relive.errors import MissingFileError
from rlinf_rows import (
    CHECKPOINTS,
    DATA,
    NUM_ENVS,
    NUM_EPOCHS,
    NUM_STEPS,
    WEIGHTS_IDS,
    AnyBuffer,
    addressed,
    check_batch,
    check_stored_rows,
    code,
    every_buffer,
    every_checkpoint,
    every_setting,
)

pytestmark = pytest.mark.usefixtures("alone")


class TestRealCheckpoints:
    def test_all_twelve_are_here(self) -> None:
        assert len(CHECKPOINTS) == 12

    @every_checkpoint
    @every_buffer
    @every_setting
    def test_loads_with_the_values_of_the_readme(
        self, path: Path, kind: type[AnyBuffer], auto_save: bool, tmp_path: Path
    ) -> None:
        store = tmp_path / "store" if auto_save else ""
        with kind(auto_save=auto_save, auto_save_path=store, enable_cache=not auto_save) as buffer:
            buffer.load_checkpoint(path)
            assert (buffer.size, buffer.total_samples, buffer.trajectory_counter) == (3, 28, 3)
            for number in range(3):
                whole = buffer.trajectory(number)
                assert whole.model_weights_id == WEIGHTS_IDS[number]
                assert whole.max_episode_length == 50
                assert np.allclose(whole.actions, code(number, 3))
                rows = NUM_STEPS[number] + NUM_EPOCHS[number]
                assert whole.prev_values.shape == (rows, NUM_ENVS, 1)
                flag_rows = rows if "autosave_true" in path.name else NUM_STEPS[number]
                assert whole.dones.shape == (flag_rows, NUM_ENVS, 1)
            batch, info = buffer.sample(500, return_info=True)
            assert set(info.trajectory_ids.tolist()) == {0, 1, 2}
            check_stored_rows(batch, info)
            assert buffer.add_trajectories([buffer.trajectory(1)]) == [3]

    @every_checkpoint
    def test_is_saved_and_loaded_again_as_ours(self, path: Path, tmp_path: Path) -> None:
        buffer = TrajectoryReplayBuffer(trajectory_format="pkl")
        buffer.load_checkpoint(str(path))
        buffer.save_checkpoint(str(tmp_path / "ours"))
        again = TrajectoryReplayBuffer(seed=5)
        again.load_checkpoint(str(tmp_path / "ours"))
        check_stored_rows(*again.sample(300, return_info=True))

    @every_setting
    @pytest.mark.parametrize("name", ["pt_autosave_true_checkpoint", "pkl_autosave_false"])
    def test_ranks_share_it(self, name: str, auto_save: bool, tmp_path: Path) -> None:
        held, issued = [], []
        for rank in range(2):
            store = tmp_path / f"rank_{rank}"
            with TrajectoryReplayBuffer(auto_save=auto_save, auto_save_path=store) as buffer:
                buffer.load_checkpoint(str(DATA / "v0.3.0" / name), True, rank, 2)
                batch, info = buffer.sample(200, return_info=True)
                check_stored_rows(batch, info)
                held.append(set(info.trajectory_ids.tolist()))
                issued += buffer.add_trajectories([buffer.trajectory(min(held[-1]))] * 2)
        assert held == [{0, 1}, {2}]
        assert issued == [3, 5, 4, 6]

    def test_a_rank_with_nothing_says_so(self) -> None:
        buffer = TrajectoryReplayBuffer()
        with pytest.warns(UserWarning, match="rank 3 of 4 loaded no trajectory"):
            buffer.load_checkpoint(DATA / "v0.3.0" / "pt_autosave_false", True, 3, 4)
        assert buffer.size == 0

    def test_a_parent_of_rank_folders_loads_for_any_world(self, tmp_path: Path) -> None:
        for rank, name in enumerate(("pt_autosave_true", "pkl_autosave_true")):
            shutil.copytree(DATA / "v0.3.0" / name, tmp_path / f"rank_{rank}")
        held = []
        for rank in range(3):
            buffer = TrajectoryReplayBuffer()
            buffer.load_checkpoint(str(tmp_path), True, rank, 3)
            batch, _ = buffer.sample(200, return_info=True)
            held.append({(v // 1, buffer.size) for v in batch["versions"].flatten().tolist()})
        assert [len(kinds) for kinds in held] == [1, 1, 1]  # both ranks' 0, both 1, both 2
        assert {size for kinds in held for _, size in kinds} == {2}

    def test_an_index_that_lists_older_ones_never_saved(self, tmp_path: Path) -> None:
        path = tmp_path / "checkpoint"
        shutil.copytree(DATA / "v0.3.0" / "pt_autosave_true_checkpoint", path)
        (path / f"trajectory_0_{WEIGHTS_IDS[0]}.pt").unlink()
        buffer = TrajectoryReplayBuffer()
        with pytest.warns(UserWarning, match="lists 1 older trajectories that RLinf did not save"):
            buffer.load_checkpoint(path)
        assert (buffer.size, buffer.total_samples, buffer.trajectory_counter) == (2, 20, 3)
        check_stored_rows(*buffer.sample(200, return_info=True))

    @pytest.mark.parametrize("gone", [(0, 1, 2), (1,), (2,)])
    def test_a_missing_file_is_named_and_nothing_changes(
        self, gone: tuple[int, ...], tmp_path: Path
    ) -> None:
        path = tmp_path / "checkpoint"
        shutil.copytree(DATA / "v0.3.0" / "pkl_autosave_true_checkpoint", path)
        for number in gone:
            (path / f"trajectory_{number}_{WEIGHTS_IDS[number]}.pkl").unlink()
        buffer = TrajectoryReplayBuffer()
        buffer.add_trajectories([addressed(7)])
        with pytest.raises(MissingFileError, match=f"trajectory_{gone[0]}_.* is not there"):
            buffer.load_checkpoint(path)
        assert check_batch(buffer.sample(50)) == {7}

    @pytest.mark.parametrize(
        "entry",
        [
            None,
            [],
            {"trajectory_id": 0},
            3,
            {"trajectory_id": 2, "num_samples": 8, "model_weights_id": ""},
            {"trajectory_id": 1, "num_samples": 8, "model_weights_id": "../../up"},
        ],
    )
    def test_an_index_with_foreign_entries_is_refused(self, entry: Any, tmp_path: Path) -> None:
        path = tmp_path / "checkpoint"
        shutil.copytree(DATA / "v0.3.0" / "pt_autosave_false", path)
        index = json.loads((path / "trajectory_index.json").read_text("utf-8"))
        index["trajectory_index"]["1"] = entry
        (path / "trajectory_index.json").write_text(json.dumps(index), "utf-8")
        with pytest.raises(
            relive.errors.CorruptFileError, match=r"trajectory_index\.json' (has|names|lists)"
        ):
            TrajectoryReplayBuffer().load_checkpoint(path)
