# SPDX-License-Identifier: Apache-2.0
"""The command `relive`: what it prints, how it ends, what it imports."""

from __future__ import annotations

import errno
import importlib.util
import io
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

import relive
from relive.cli import main
from relive.cli.output import is_output_gone
from relive.errors import InvalidArgumentError

WAIT_S = 120.0  # a bound for a hang; nothing here takes as long on a slow machine


def call(*arguments: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run the command in this process, and return its exit status."""
    monkeypatch.setattr(sys, "argv", ["relive", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    code = end.value.code
    assert isinstance(code, int)
    return code


def python(*arguments: str) -> list[str]:
    return [sys.executable, "-W", "error::ResourceWarning", *arguments]


class TestMain:
    def test_help_names_the_commands(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert call("--help", monkeypatch=monkeypatch) == 0
        assert "demo" in capsys.readouterr().out

    def test_the_version_is_printed(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert call("--version", monkeypatch=monkeypatch) == 0
        assert capsys.readouterr().out == f"relive {relive.__version__}\n"

    def test_python_m_is_the_same_command(self) -> None:
        done = subprocess.run(
            python("-m", "relive", "--version"), capture_output=True, text=True, check=True
        )
        assert done.stdout.startswith("relive")

    def test_nothing_heavy_is_imported_before_a_command_runs(self) -> None:
        code = (
            "import sys, relive.cli; "
            "print({'torch', 'gymnasium', 'matplotlib'} & set(sys.modules) or 'light')"
        )
        done = subprocess.run(python("-c", code), capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "light"

    def test_an_error_of_relive_is_one_line_without_a_traceback(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert call("demo", "--resume", "--overwrite", monkeypatch=monkeypatch) == 1
        captured = capsys.readouterr()
        assert captured.err.startswith("relive: --resume and --overwrite are both given")
        assert captured.err.count("\n") == 1
        assert not captured.out

    def test_an_unknown_option_is_a_usage_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert call("demo", "--no-such-option", monkeypatch=monkeypatch) == 2


class TestDemo:
    def test_without_its_packages_the_pip_line_is_named(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        assert call("demo", monkeypatch=monkeypatch) == 1
        assert 'pip install "relive[demo]"' in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("env", "message"),
        [
            ("CartPole-v1", "relive: env 'CartPole-v1' has actions Discrete(2), but"),
            ("NoSuchEnv-v0", "relive: env is 'NoSuchEnv-v0', but Gymnasium cannot make it"),
        ],
    )
    def test_an_env_that_cannot_be_used_is_named_and_nothing_is_written(
        self,
        env: str,
        message: str,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        folder = tmp_path / "run"
        assert call("demo", "--env", env, "--dir", str(folder), monkeypatch=monkeypatch) == 1
        assert capsys.readouterr().err.startswith(message)
        assert not folder.exists()

    def test_a_run_says_where_everything_lies_and_what_to_try(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        folder = tmp_path / "run"
        arguments = ["demo", "--steps", "50", "--num-envs", "2", "--dir", str(folder)]
        monkeypatch.setattr(sys, "argv", ["relive", *arguments, "--seed", "3", "--goal", "inf"])
        with pytest.raises(SystemExit) as end:
            main()
        assert not end.value.code
        out = capsys.readouterr().out
        for place in ("buffer", "saves", "learning_curve.png"):
            assert str(folder / place) in out
            assert (folder / place).exists()
        assert f"relive demo --resume --dir {folder} --steps 100" in out
        assert "\x1b" not in out
        assert "\r" not in out

        assert call("demo", "--resume", "--dir", str(folder), monkeypatch=monkeypatch) == 1
        assert "has 50 already; give a larger --steps" in capsys.readouterr().err

    def test_what_an_environment_raises_ends_it_with_a_clear_last_line(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def fail(*args: object, **kwargs: object) -> None:
            raise ZeroDivisionError("it broke")

        monkeypatch.setattr("relive.demo.run.run_demo", fail)
        assert call("demo", "--dir", str(tmp_path / "run"), monkeypatch=monkeypatch) == 1
        last = capsys.readouterr().err.splitlines()[-1]
        assert last.startswith("relive: the demo was ended by ZeroDivisionError: it broke;")
        assert "relive demo --resume --dir" in last

    @pytest.mark.parametrize("is_gone", [False, True])
    def test_it_ends_quietly_when_nobody_reads_its_output_any_more(
        self,
        is_gone: bool,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        def fail(*args: object, **kwargs: object) -> None:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")  # as that of an env's process may be

        monkeypatch.setattr("relive.demo.run.run_demo", fail)
        monkeypatch.setattr("relive.cli.demo.is_output_gone", lambda: is_gone)
        assert call("demo", "--dir", str(tmp_path / "run"), monkeypatch=monkeypatch) == 1
        assert bool(capsys.readouterr().err) != is_gone

    def test_a_second_ctrl_c_ends_it_without_a_traceback(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def stop(*args: object, **kwargs: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("relive.demo.run.run_demo", stop)
        assert call("demo", "--dir", str(tmp_path / "run"), monkeypatch=monkeypatch) == 130
        assert "without saving" in capsys.readouterr().err

    @pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT for one process")
    def test_ctrl_c_saves_the_run(self, tmp_path: Path) -> None:
        folder = tmp_path / "run"
        arguments = ["demo", "--dir", str(folder), "--steps", "100000", "--goal", "inf"]
        with subprocess.Popen(
            python("-m", "relive", *arguments), stdout=subprocess.PIPE, text=True
        ) as running:
            assert running.stdout is not None
            try:
                _wait_for_line(running.stdout, "steps: mean return")
                running.send_signal(signal.SIGINT)
                out, _ = running.communicate(timeout=WAIT_S)
            finally:
                running.kill()  # does nothing to one that has ended
        assert running.returncode == 130
        assert "Stopped after" in out
        assert f"relive demo --resume --dir {folder}" in out
        newest = sorted((folder / "saves").iterdir())[-1]
        assert (newest / "agent.pt").exists()


def _wait_for_line(out: IO[str], text: str) -> None:
    for line in out:
        if text in line:
            return
    pytest.fail(f"the output ended without {text!r}")


class TestOutput:
    def test_is_gone_when_the_reader_of_its_pipe_has_left(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        reader, writer = os.pipe()
        with os.fdopen(writer, "w") as out:
            monkeypatch.setattr(sys, "stdout", out)
            assert not is_output_gone()
            os.close(reader)
            assert is_output_gone()
            monkeypatch.undo()

    def test_that_is_no_file_is_not_gone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "stdout", io.StringIO())
        assert not is_output_gone()


class TestErrors:
    def test_an_error_keeps_its_message(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def fail() -> None:
            raise InvalidArgumentError("x is 1, but must be 2")

        monkeypatch.setattr("relive.cli.commands.app", fail)
        assert call(monkeypatch=monkeypatch) == 1
        assert capsys.readouterr().err == "relive: x is 1, but must be 2\n"
