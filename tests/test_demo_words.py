# SPDX-License-Identifier: Apache-2.0
"""What the demo is told and what it shows: settings, displays, the curve, the closing words."""

from __future__ import annotations

import dataclasses
import io
import math
import os
import sys
import types
from pathlib import Path

import pytest

from relive.demo.history import Evaluation, History
from relive.demo.plot import draw_curve
from relive.demo.progress import LineDisplay, Progress, TerminalDisplay, open_display
from relive.demo.report import closing_words
from relive.demo.run import Outcome
from relive.demo.saves import RunFolder
from relive.demo.settings import DemoSettings
from relive.errors import InvalidArgumentError, StorageWriteError
from small_demo import GIVEN

PROGRESS = Progress(
    steps=1_600,
    total_steps=8_000,
    evaluation_return=-1_234.5,
    training_return=None,
    samples_per_s=12_345.6,
    num_trajectories=8,
    seconds=12.3,
)


class TestSettings:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("steps", 0),
            ("num_envs", 0),
            ("seed", -1),
            ("steps_per_trajectory", 0),
            ("evaluate_every", 0),
            ("eval_episodes", 0),
            ("updates_per_step", -1.0),
        ],
    )
    def test_a_number_that_is_too_low_is_named(self, name: str, value: float) -> None:
        with pytest.raises(InvalidArgumentError, match=f"{name} is {value}, but must be at least"):
            DemoSettings(**{name: value})  # type: ignore[arg-type]  # one name at a time

    def test_a_goal_that_is_no_number_is_refused(self) -> None:
        with pytest.raises(InvalidArgumentError, match="goal is nan"):
            DemoSettings(goal=float("nan"))

    def test_they_survive_a_save(self) -> None:
        settings = DemoSettings(**GIVEN)
        assert DemoSettings.from_state(settings.to_state()) == settings

    def test_the_warm_up_takes_whole_trajectories(self) -> None:
        assert (
            DemoSettings(num_envs=3, steps_per_trajectory=5, warmup_steps=31).warmup_trajectories
            == 3
        )
        assert DemoSettings(warmup_steps=0).warmup_trajectories == 1


class TestDisplays:
    def test_a_log_gets_whole_lines_without_control_characters(self) -> None:
        out = io.StringIO()
        with open_display(out) as display:
            display.say("hello")
            assert display.is_due()
            display.show(PROGRESS)
            assert not display.is_due()
        assert out.getvalue() == (
            "hello\n"
            "  1,600 of 8,000 steps | return: evaluation -1,234, training - | 12,346 samples/s "
            "| buffer 8 trajectories | 12 s\n"
        )

    def test_one_trajectory_is_not_many(self) -> None:
        assert (
            "| buffer 1 trajectory |" in dataclasses.replace(PROGRESS, num_trajectories=1).to_text()
        )

    def test_a_log_stays_plain_when_colours_are_forced(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FORCE_COLOR", "1")
        with open_display() as display:
            display.show(PROGRESS)
        assert "\x1b" not in capsys.readouterr().out

    def test_the_interval_of_a_log_is_kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        now = 100.0
        clock = types.SimpleNamespace(monotonic=lambda: now)
        monkeypatch.setattr("relive.demo.progress.time", clock)
        display = LineDisplay(io.StringIO(), interval_s=5.0)
        display.show(PROGRESS)
        assert not display.is_due()
        now = 105.0
        assert display.is_due()

    def test_a_terminal_gets_a_bar_and_lines_above_it(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        with open_display() as display:
            assert isinstance(display, TerminalDisplay)
            display.say("[hello]")
            display.show(PROGRESS)
        out = capsys.readouterr().out
        assert "[hello]" in out
        assert "1,600 of 8,000 steps" in out


class TestCurve:
    @pytest.mark.parametrize("num_evaluations", [0, 1, 3])
    def test_it_is_a_picture_however_little_there_is(
        self, num_evaluations: int, tmp_path: Path
    ) -> None:
        history = History(
            evaluations=[Evaluation(at, (-1.0, 2.0)) for at in range(num_evaluations)],
            episodes=[(at, 0.5) for at in range(num_evaluations)],
        )
        draw_curve(tmp_path / "new" / "curve.png", history, env="X", goal=1.0)
        assert (tmp_path / "new" / "curve.png").read_bytes().startswith(b"\x89PNG")

    def test_a_disk_that_refuses_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(StorageWriteError, match=r"curve\.png' could not be written"):
            draw_curve(tmp_path / "file" / "curve.png", History(), env="X", goal=None)


class TestClosingWords:
    def words(
        self,
        *,
        steps: int,
        goal: float,
        was_interrupted: bool = False,
        num_trajectories: int = 20,
        programs: str = "",
    ) -> str:
        history = History(steps=steps, seconds=61.2, evaluations=[Evaluation(steps, (-3.0, -1.0))])
        return "\n".join(
            closing_words(
                Outcome(
                    settings=DemoSettings(steps=8_000, goal=goal),
                    folder=RunFolder(Path("a b")),
                    history=history,
                    was_interrupted=was_interrupted,
                    buffer_stats={
                        "num_trajectories": float(num_trajectories),
                        "total_samples": 200.0 * num_trajectories,
                    },
                ),
                programs=programs,
            )
        )

    def test_they_say_what_was_reached_and_where_it_lies(self) -> None:
        words = self.words(steps=4_000, goal=-2.0)
        assert (
            "the goal is reached; mean return -2.00 of 2 evaluation episodes after 4,000" in words
        )
        assert f"a b{os.sep}buffer  (20 trajectories, 4,000 transitions, pt)" in words
        assert f"a b{os.sep}learning_curve.png" in words
        assert "relive demo --resume --dir 'a b' --steps 8000" in words

    def test_they_do_not_claim_a_goal_that_was_missed(self) -> None:
        words = self.words(steps=8_000, goal=-1.0)
        assert "all steps are taken" in words
        assert "(the goal was -1.00)" in words
        assert "--steps 16000" in words

    def test_an_interrupted_run_says_how_to_go_on(self) -> None:
        words = self.words(steps=4_000, goal=math.inf, was_interrupted=True)
        assert "Stopped after 4,000 of 8,000 steps, and saved" in words
        assert words.endswith("relive demo --resume --dir 'a b'")

    def test_one_trajectory_is_not_many(self) -> None:
        assert "(1 trajectory, 200 transitions, pt)" in self.words(
            steps=200, goal=0.0, num_trajectories=1
        )

    def test_programs_are_called_where_they_lie(self) -> None:
        lines = self.words(steps=8_000, goal=0.0, programs=".venv/bin/").splitlines()
        assert "  .venv/bin/relive info 'a b/buffer'" in lines
        assert '  .venv/bin/pip install "gymnasium[mujoco]"' in lines
