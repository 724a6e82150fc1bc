# SPDX-License-Identifier: Apache-2.0
"""The demo: whole runs in small, interrupted and resumed."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from relive import TrajectoryReplayBuffer
from relive.demo.interrupt import Interrupt, StopRequested
from relive.demo.progress import Progress
from relive.demo.run import run_demo
from relive.errors import (
    CorruptFileError,
    InvalidArgumentError,
    MissingFileError,
    StoreExistsError,
)
from small_demo import (
    FAILING,
    GIVEN,
    Recorder,
    assert_same_run,
    no_curve,
    no_thread_is_left,
    one_torch_thread,
    run,
)

__all__ = ["no_curve", "no_thread_is_left", "one_torch_thread"]  # fixtures


class TestRunDemo:
    def test_it_leaves_buffer_save_and_curve(self, tmp_path: Path) -> None:
        outcome, display = run(tmp_path / "run")
        assert not outcome.was_interrupted
        assert outcome.history.steps == outcome.buffer_stats["total_samples"] == 96
        assert outcome.history.updates == 24
        assert [each.steps for each in outcome.history.evaluations] == [0, 48, 96]
        assert outcome.folder.curve.read_bytes().startswith(b"\x89PNG")
        assert len(list(outcome.folder.saves.iterdir())) == 1
        assert display.shown[-1].total_steps == 96
        assert display.shown[-1].num_trajectories == 6

    @pytest.mark.usefixtures("no_curve")
    def test_a_run_too_short_to_learn_says_so(self, tmp_path: Path) -> None:
        outcome, display = run(tmp_path / "run", steps=16)
        assert outcome.history.updates == 0
        assert display.said[0].startswith("note: nothing is learned in so few steps")

    @pytest.mark.usefixtures("no_curve")
    def test_the_buffer_left_behind_holds_every_transition(self, tmp_path: Path) -> None:
        outcome, _ = run(tmp_path / "run")
        with TrajectoryReplayBuffer(
            auto_save=True, auto_save_path=str(outcome.folder.buffer), if_exists="resume"
        ) as buffer:
            assert len(buffer) == 6
            batch = buffer.sample(50)
        assert batch["curr_obs"]["states"].shape == (50, 2)
        assert set(batch) >= {"actions", "rewards", "terminations", "truncations", "next_obs"}

    @pytest.mark.usefixtures("no_curve")
    @pytest.mark.parametrize("trajectory_format", ["pt", "pkl", "memmap"])
    def test_the_same_seed_gives_the_same_run(self, trajectory_format: str, tmp_path: Path) -> None:
        first, _ = run(tmp_path / "a", trajectory_format=trajectory_format)
        second, _ = run(tmp_path / "b", trajectory_format=trajectory_format)
        assert_same_run(first, second)

    @pytest.mark.usefixtures("no_curve")
    def test_another_seed_gives_another_run(self, tmp_path: Path) -> None:
        first, _ = run(tmp_path / "a", seed=1)
        second, _ = run(tmp_path / "b", seed=2)
        assert first.history.episodes != second.history.episodes

    @pytest.mark.usefixtures("no_curve")
    def test_the_goal_ends_it_early(self, tmp_path: Path) -> None:
        outcome, _ = run(tmp_path / "run", goal=-1e9)
        assert outcome.history.steps == 0
        assert outcome.history.has_reached(outcome.settings.goal)

    @pytest.mark.usefixtures("no_curve")
    def test_a_run_in_the_folder_is_not_touched(self, tmp_path: Path) -> None:
        outcome, _ = run(tmp_path / "run")
        before = outcome.folder.newest_save()
        with pytest.raises(StoreExistsError, match=r"--resume .* --overwrite .* --dir"):
            run(tmp_path / "run")
        assert outcome.folder.newest_save() == before

    @pytest.mark.parametrize("overwrite", [False, True])
    def test_a_folder_of_other_things_is_refused_and_left_as_it_was(
        self, overwrite: bool, tmp_path: Path
    ) -> None:
        (tmp_path / "mine" / "saves" / "000001").mkdir(parents=True)
        (tmp_path / "mine" / "thesis.tex").write_text("mine")
        with pytest.raises(
            StoreExistsError, match=r"holds 'saves', 'thesis\.tex' and no run .*--dir"
        ):
            run(tmp_path / "mine", overwrite=overwrite)
        left = sorted(path.name for path in (tmp_path / "mine").rglob("*"))
        assert left == ["000001", "saves", "thesis.tex"]

    def test_a_file_in_the_place_of_the_folder_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "mine").write_text("mine")
        with pytest.raises(StoreExistsError, match=r"mine' is no folder, but .* --dir"):
            run(tmp_path / "mine")

    @pytest.mark.usefixtures("no_curve")
    def test_an_empty_folder_is_as_good_as_a_new_one(self, tmp_path: Path) -> None:
        outcome, _ = run(tmp_path, steps=16)
        assert outcome.history.steps == 16

    @pytest.mark.usefixtures("no_curve")
    def test_overwrite_keeps_what_else_lies_beside_a_run(self, tmp_path: Path) -> None:
        run(tmp_path / "run", steps=16)
        (tmp_path / "run" / "notes.txt").write_text("mine")
        run(tmp_path / "run", steps=16, overwrite=True)
        assert (tmp_path / "run" / "notes.txt").read_text() == "mine"

    @pytest.mark.usefixtures("no_curve")
    def test_overwrite_starts_again(self, tmp_path: Path) -> None:
        run(tmp_path / "run", seed=5)
        again, _ = run(tmp_path / "run", seed=1, overwrite=True)
        fresh, _ = run(tmp_path / "fresh", seed=1, overwrite=True)
        assert_same_run(again, fresh)
        assert again.buffer_stats["total_samples"] == 96

    @pytest.mark.usefixtures("no_curve")
    def test_torch_has_its_threads_back_afterwards(self, tmp_path: Path) -> None:
        torch.set_num_threads(2)
        run(tmp_path / "run", steps=16)
        assert torch.get_num_threads() == 2

    def test_an_error_in_a_thread_ends_it_and_the_last_save_goes_on(self, tmp_path: Path) -> None:
        with pytest.raises(OSError, match="the line broke"):
            run(tmp_path / "run", env=FAILING, steps=400)
        with pytest.raises(OSError, match="the line broke"):  # from its save, into the same wall
            run(tmp_path / "run", resume=True)

    def test_a_disk_that_refuses_the_save_ends_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def save(*args: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(torch, "save", save)
        with pytest.raises(OSError, match="No space left"):
            run(tmp_path / "run")


@pytest.mark.usefixtures("no_curve")
class TestResume:
    @pytest.mark.parametrize("stop_at", [0, 16, 48, 96])
    def test_an_interrupted_run_goes_on_to_its_end(self, stop_at: int, tmp_path: Path) -> None:
        stopped, _ = run(tmp_path / "run", stop_at=stop_at)
        assert stopped.was_interrupted
        steps, updates = stopped.history.steps, stopped.history.updates
        resumed, _ = run(tmp_path / "run", resume=True)
        assert not resumed.was_interrupted
        assert resumed.settings == stopped.settings
        assert resumed.history.steps == resumed.buffer_stats["total_samples"] == 96
        assert resumed.history.updates == 24
        assert updates < 24
        assert steps <= 96
        assert resumed.history.sessions == 2
        before = stopped.history.evaluations
        assert resumed.history.evaluations[: len(before)] == before

    def test_the_same_save_goes_on_in_the_same_way(self, tmp_path: Path) -> None:
        run(tmp_path / "a", stop_at=48)
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        first, _ = run(tmp_path / "a", resume=True)
        second, _ = run(tmp_path / "b", resume=True)
        assert_same_run(first, second)

    def test_what_a_run_had_left_to_learn_is_learned_as_if_never_interrupted(
        self, tmp_path: Path
    ) -> None:
        # All steps are collected at once, so that only learning is left when it is stopped.
        given: dict[str, Any] = {"steps": 16, "warmup_steps": 16, "updates_per_step": 4.0}
        whole, _ = run(tmp_path / "a", **given)
        stopped, _ = run(tmp_path / "b", stop_at=16, **given)
        assert stopped.history.steps == 16
        assert 0 < stopped.history.updates < whole.history.updates == 64
        resumed, _ = run(tmp_path / "b", resume=True)
        assert_same_run(whole, resumed)

    def test_a_finished_run_goes_on_with_more_steps(self, tmp_path: Path) -> None:
        run(tmp_path / "run")
        resumed, _ = run(tmp_path / "run", resume=True, steps=128)
        assert resumed.history.steps == 128
        assert resumed.buffer_stats["num_trajectories"] == 8

    def test_a_finished_run_without_more_steps_says_what_to_give(self, tmp_path: Path) -> None:
        run(tmp_path / "run")
        with pytest.raises(InvalidArgumentError, match="has 96 already; give a larger --steps"):
            run(tmp_path / "run", resume=True)

    def test_a_run_that_reached_its_goal_goes_on_without_it(self, tmp_path: Path) -> None:
        run(tmp_path / "run", goal=-1e9)
        resumed, display = run(tmp_path / "run", resume=True)
        assert resumed.history.steps == 96
        assert display.said[0] == (
            "note: the goal of -1,000,000,000 is reached already, so the run goes on without one, "
            "to 96 steps; --goal gives it another"
        )

    def test_another_goal_is_kept_by_a_run_that_reached_its_first(self, tmp_path: Path) -> None:
        run(tmp_path / "run", goal=-1e9)
        resumed, display = run(tmp_path / "run", resume=True, goal=-1e8)
        assert resumed.history.steps == 0
        assert resumed.settings.goal == -1e8
        assert not any("goal" in said for said in display.said)

    @pytest.mark.parametrize(
        "given", [{"env": "Pendulum-v1"}, {"seed": 9}, {"num_envs": 3}, {"trajectory_format": "x"}]
    )
    def test_what_belongs_to_the_run_cannot_change(
        self, given: dict[str, Any], tmp_path: Path
    ) -> None:
        run(tmp_path / "run", stop_at=0)
        with pytest.raises(InvalidArgumentError, match=f"{next(iter(given))} is .* to resume has"):
            run(tmp_path / "run", resume=True, **given)

    def test_a_folder_without_a_save_says_so(self, tmp_path: Path) -> None:
        with pytest.raises(MissingFileError, match="no complete save"):
            run(tmp_path / "nothing", resume=True)

    def test_a_killed_run_goes_on_from_its_newest_complete_save(self, tmp_path: Path) -> None:
        stopped, _ = run(tmp_path / "run", stop_at=48)
        saved = stopped.folder.newest_save()
        shutil.copytree(saved, tmp_path / "copy")
        first, _ = run(tmp_path / "run", resume=True)
        # As if it had been killed at its end, while it saved: the store has more than the save.
        shutil.rmtree(stopped.folder.saves)
        shutil.copytree(tmp_path / "copy", saved)
        cut = stopped.folder.saves / "000099" / "buffer"
        cut.mkdir(parents=True)
        second, display = run(tmp_path / "run", resume=True)
        assert_same_run(first, second)
        assert second.buffer_stats["total_samples"] == 96
        assert any("trajectories of the store that were not loaded" in x for x in display.said)
        assert not cut.exists()

    @pytest.mark.parametrize("content", [b"", b"not a save", b"PK\x03\x04 cut"])
    def test_a_damaged_save_is_named(self, content: bytes, tmp_path: Path) -> None:
        stopped, _ = run(tmp_path / "run", stop_at=0)
        (stopped.folder.newest_save() / "agent.pt").write_bytes(content)
        with pytest.raises(CorruptFileError, match=r"agent\.pt' is not a readable save"):
            run(tmp_path / "run", resume=True)


class TestInterrupt:
    def test_the_first_ctrl_c_is_remembered_and_the_second_raises(self) -> None:
        before = signal.getsignal(signal.SIGINT)
        with Interrupt() as interrupt:
            interrupt.check()
            signal.raise_signal(signal.SIGINT)
            with pytest.raises(StopRequested):
                interrupt.check()
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is before

    def test_a_polite_kill_is_remembered_too(self) -> None:
        with Interrupt() as interrupt:
            signal.raise_signal(signal.SIGTERM)
            with pytest.raises(StopRequested):
                interrupt.check()

    def test_outside_the_main_thread_it_can_be_requested(self) -> None:
        met: list[BaseException] = []

        def work() -> None:
            with Interrupt() as interrupt:
                interrupt.request()
                try:
                    interrupt.check()
                except StopRequested as stop:
                    met.append(stop)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert len(met) == 1

    def test_a_real_ctrl_c_saves_a_run(self, tmp_path: Path) -> None:
        def press(progress: Progress) -> None:
            if progress.steps >= 48 and not pressed:
                pressed.append(True)
                os.kill(os.getpid(), signal.SIGINT)

        pressed: list[bool] = []
        with Interrupt() as interrupt:
            outcome = run_demo(
                tmp_path / "run",
                given=GIVEN,
                resume=False,
                overwrite=False,
                display=Recorder(press),
                interrupt=interrupt,
            )
        assert outcome.was_interrupted
        assert outcome.folder.newest_save().exists()
