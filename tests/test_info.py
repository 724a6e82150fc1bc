# SPDX-License-Identifier: Apache-2.0
"""What `relive info` and `summarize` tell of stores and checkpoints."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from relive import Columns, Trajectory, TrajectoryReplayBuffer
from relive.cli import main
from relive.errors import MissingFileError
from relive.maintenance import find_stores, summarize

RLINF = Path(__file__).parent / "data" / "rlinf" / "v0.3.0"


def trajectory(num_steps: int, weights_id: str = "") -> Trajectory:
    column = np.zeros((num_steps, 2), np.float32)
    return Trajectory(
        actions=column, rewards=column, versions=column + num_steps, model_weights_id=weights_id
    )


def make_store(path: Path, kind: str = "pt") -> TrajectoryReplayBuffer:
    buffer = TrajectoryReplayBuffer(
        seed=5,
        sample_window_size=7,
        auto_save=True,
        auto_save_path=path,
        trajectory_format=kind,
        framework="numpy",
    )
    buffer.add_trajectories([trajectory(3, "a"), trajectory(4, "b"), trajectory(3, "a")])
    return buffer


class TestSummarize:
    def test_a_closed_store_tells_what_was_added(self, tmp_path: Path) -> None:
        make_store(tmp_path / "store").close()
        summary = summarize(tmp_path / "store")
        assert (summary.kind, summary.writer) == ("store", "")
        assert (summary.num_trajectories, summary.total_samples) == (3, 20)
        assert summary.shapes == {(3, 2): 2, (4, 2): 1}
        assert summary.formats == {"pt": 3}
        assert (summary.seed, summary.sample_window_size) == (5, 7)
        assert summary.next_trajectory_id == 3
        assert summary.num_weights_ids == 2
        assert summary.version_range == (3, 4)
        assert summary.column_bytes == {"actions": 80, "rewards": 80, "versions": 80}
        assert summary.columns["rewards"].row_shape == ()
        assert summary.file_bytes == sum(
            p.stat().st_size for p in (tmp_path / "store").glob("*.pt")
        )

    def test_a_segment_is_counted_once_however_many_it_holds(self, tmp_path: Path) -> None:
        make_store(tmp_path / "store", "memmap").close()
        summary = summarize(tmp_path / "store")
        assert summary.formats == {"memmap": 3}
        assert summary.column_bytes == {"actions": 80, "rewards": 80, "versions": 80}
        held = [p for p in (tmp_path / "store" / "segments").rglob("*") if p.is_file()]
        assert summary.file_bytes == sum(path.stat().st_size for path in held)

    def test_an_open_store_tells_its_writer(self, tmp_path: Path) -> None:
        with make_store(tmp_path / "store") as buffer:
            buffer.flush()
            summary = summarize(tmp_path / "store")
        assert str(os.getpid()) in summary.writer
        assert summary.num_trajectories == 3

    def test_a_checkpoint_counts_its_window_only(self, tmp_path: Path) -> None:
        with make_store(tmp_path / "store") as buffer:
            buffer.sample_window_size = 2
            buffer.save_checkpoint(tmp_path / "checkpoint")
        summary = summarize(tmp_path / "checkpoint")
        assert (summary.kind, summary.num_trajectories) == ("checkpoint", 2)
        assert summary.next_trajectory_id == 3

    def test_folders_of_ranks_are_told_as_one(self, tmp_path: Path) -> None:
        for rank in range(2):
            buffer = TrajectoryReplayBuffer(framework="numpy")
            buffer.add_trajectories([trajectory(3), trajectory(4)])
            buffer.save_checkpoint(tmp_path / f"rank_{rank}")
        summary = summarize(tmp_path)
        assert summary.kind == "checkpoint of 2 ranks"
        assert (summary.num_trajectories, summary.total_samples) == (4, 28)

    def test_optional_columns_are_told(self, tmp_path: Path) -> None:
        buffer = TrajectoryReplayBuffer(columns=Columns(optional={"dones": False}))
        buffer.add_trajectories([trajectory(3)])
        buffer.save_checkpoint(tmp_path / "checkpoint")
        assert summarize(tmp_path / "checkpoint").optional == ["dones"]

    @pytest.mark.parametrize("folder", ["pt_autosave_true", "pkl_autosave_false"])
    def test_a_checkpoint_of_rlinf_is_told_with_its_columns(self, folder: str) -> None:
        summary = summarize(RLINF / folder)
        assert summary.kind == "RLinf checkpoint"
        assert (summary.num_trajectories, summary.total_samples) == (3, 28)
        assert summary.columns["curr_obs/main_images"].row_shape == (8, 8, 3)

    def test_a_folder_without_an_index_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(MissingFileError, match=r"metadata\.json"):
            summarize(tmp_path)

    def test_a_killed_writer_is_not_told_as_open(self, tmp_path: Path) -> None:
        code = (
            "import os, sys, signal, numpy as np, relive\n"
            "b = relive.TrajectoryReplayBuffer(auto_save=True, auto_save_path=sys.argv[1])\n"
            "b.add_trajectories([relive.Trajectory(actions=np.zeros((3, 2)))])\n"
            "b.flush()\n"
            "os.kill(os.getpid(), signal.SIGKILL)\n"
        )
        path = tmp_path / "store"
        done = subprocess.run([sys.executable, "-c", code, str(path)], check=False)
        assert done.returncode == -signal.SIGKILL
        summary = summarize(path)
        assert (summary.num_trajectories, summary.writer) == (1, "")


class TestFindStores:
    def test_the_nearest_come_first_and_only_names_are_looked_at(self, tmp_path: Path) -> None:
        for name in ("z", "a/b/c", "a/b/c/d/e/f"):
            make_store(tmp_path / name).close()
        (tmp_path / "z" / "trajectory_index.json").write_bytes(b"")
        assert find_stores(tmp_path) == [tmp_path / "z", tmp_path / "a" / "b" / "c"]
        assert find_stores(tmp_path, at_most=1) == [tmp_path / "z"]

    def test_the_folder_itself_and_links_are_left_out(self, tmp_path: Path) -> None:
        store = tmp_path / "store"
        make_store(store).close()
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere" / "link").symlink_to(store)
        assert find_stores(store) == find_stores(tmp_path / "elsewhere") == []

    def test_a_wide_folder_is_left_after_a_while(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("relive.maintenance.finding._MAX_FOLDERS", 3)
        for name in ("a", "b", "c/store"):
            make_store(tmp_path / name).close()
        assert find_stores(tmp_path) == [tmp_path / "a", tmp_path / "b"]

    def test_what_cannot_be_listed_is_passed_by(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(folder: str | Path) -> list[str]:
            if Path(folder).name == "locked":
                raise PermissionError(13, "Permission denied")
            return listdir(folder)

        make_store(tmp_path / "store").close()
        (tmp_path / "locked").mkdir()
        listdir: Callable[[str | Path], list[str]] = os.listdir
        monkeypatch.setattr(os, "listdir", refuse)
        assert find_stores(tmp_path) == [tmp_path / "store"]


class TestInfo:
    def test_the_command_prints_counts_and_columns(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        make_store(tmp_path / "store").close()
        monkeypatch.setattr(sys, "argv", ["relive", "info", str(tmp_path / "store")])
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == 0
        words = capsys.readouterr().out.split()
        for word in ("store", "20", "versions", "float32", "5"):
            assert word in words

    def complaint(
        self, path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> str:
        """Return what `relive info` says of a folder that it refuses: one line."""
        monkeypatch.setattr(sys, "argv", ["relive", "info", str(path)])
        monkeypatch.setattr("shutil.which", lambda name: name)
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == 1
        captured = capsys.readouterr()
        assert (captured.out, captured.err.count("\n")) == ("", 1)
        return captured.err.rstrip("\n")

    def test_a_folder_around_stores_names_them_with_the_command(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.chdir(tmp_path)
        run = Path("a run")
        with make_store(run / "buffer") as buffer:
            buffer.save_checkpoint(run / "saves" / "000003" / "buffer")
        assert self.complaint(run, monkeypatch, capsys) == (
            "relive: 'a run' is neither a store nor a checkpoint, but holds some; "
            "run `relive info 'a run/buffer'` or `relive info 'a run/saves/000003/buffer'`"
        )
        for name in ("more", "and more"):
            make_store(run / name).close()
        assert self.complaint(run, monkeypatch, capsys).endswith("more'`, among others")

    def test_a_checkpoint_that_lacks_a_rank_says_so_and_names_no_other(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        make_store(tmp_path / "rank_1").close()
        assert "lacks rank_0" in self.complaint(tmp_path, monkeypatch, capsys)

    def test_a_wrong_folder_is_one_line(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(sys, "argv", ["relive", "info", str(tmp_path / "nothing")])
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == 1
        assert capsys.readouterr().err.startswith("relive: ")
