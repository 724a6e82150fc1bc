# SPDX-License-Identifier: Apache-2.0
"""`relive.convert` and `relive convert`: any format into any other, losing nothing."""

from __future__ import annotations

import itertools
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import relive
from buffers import ks_of
from programs import run_program
from relive import Trajectory, TrajectoryReplayBuffer
from relive.cli.commands import main
from relive.errors import (
    CorruptFileError,
    InvalidArgumentError,
    MissingFileError,
    StorageWriteError,
    StoreExistsError,
    UnsafePickleError,
)
from relive.formats import FORMATS, MemmapFormat
from relive.snapshot import Snapshot, restore, take_snapshot
from relive.testing import differences, snapshots
from trajectories import check_rows, same_trajectory, traj

DATA = Path(__file__).parent / "data" / "rlinf"


def fill(folder: Path, kind: str, num: int = 4) -> Path:
    with relive.TrajectoryReplayBuffer(
        seed=5, auto_save=True, auto_save_path=folder, trajectory_format=kind, framework="numpy"
    ) as buffer:
        buffer.add_trajectories([traj(k, T=3 + k, B=2, weights_id=f"w/{k}") for k in range(num)])
        buffer.sample(10)
        buffer.save_checkpoint(folder.with_name("saved"))
        buffer.sample(7)
    return folder


def load(folder: Path, **options: Any) -> relive.TrajectoryReplayBuffer:
    buffer = relive.TrajectoryReplayBuffer(framework="numpy", **options)
    buffer.load_checkpoint(folder)
    return buffer


class TestConvert:
    @pytest.mark.parametrize(("kind", "into"), list(itertools.product(FORMATS, FORMATS)))
    def test_a_buffer_goes_on_with_the_target_as_with_the_source(
        self, kind: str, into: str, tmp_path: Path
    ) -> None:
        fill(tmp_path / "store", kind)
        assert relive.convert(tmp_path / "saved", tmp_path / "target", into) == 4
        before, after = load(tmp_path / "saved"), load(tmp_path / "target")
        assert after.state_dict() == before.state_dict()
        expected, info = before.sample(50, return_info=True)
        batch, told = after.sample(50, return_info=True)
        assert told.row_ids.tolist() == info.row_ids.tolist()
        assert np.array_equal(batch["curr_obs"]["id"], expected["curr_obs"]["id"])
        for k in range(4):
            assert same_trajectory(after.trajectory(k), traj(k, T=3 + k, B=2, weights_id=f"w/{k}"))
        assert after.add_trajectories([traj(9)]) == [4]

    @pytest.mark.parametrize("kind", list(FORMATS))
    def test_a_store_is_converted_and_stays_as_it_was(self, kind: str, tmp_path: Path) -> None:
        fill(tmp_path / "store", kind)
        contents = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
        told: list[tuple[int, int]] = []
        relive.convert(
            tmp_path / "store",
            tmp_path / "target",
            "memmap",
            progress=lambda done, of: told.append((done, of)),
        )
        assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]
        assert all(path.read_bytes() == block for path, block in contents.items())
        check_rows(load(tmp_path / "target").sample(200))

    @given(snapshot=snapshots())
    @settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @pytest.mark.filterwarnings("ignore:ComplexHalf support")
    def test_any_trajectory_comes_through_all_formats(
        self, tmp_path_factory: pytest.TempPathFactory, snapshot: Snapshot
    ) -> None:
        folder = tmp_path_factory.mktemp("convert")
        buffer = relive.TrajectoryReplayBuffer()
        buffer.add_trajectories([restore(snapshot)])
        buffer.save_checkpoint(folder / "0")
        for number, kind in enumerate(["memmap", "pkl", "memmap", "pt"]):
            relive.convert(folder / f"{number}", folder / f"{number + 1}", kind)
        again = relive.TrajectoryReplayBuffer()
        again.load_checkpoint(folder / "4")
        assert differences(take_snapshot(again.trajectory(0)), snapshot) == []

    @pytest.mark.parametrize("folder", sorted(DATA.glob("v0.3.0/*_autosave_*")), ids=str)
    @pytest.mark.parametrize("into", list(FORMATS))
    def test_checkpoints_of_rlinf_are_converted(
        self, folder: Path, into: str, tmp_path: Path
    ) -> None:
        relive.convert(folder, tmp_path / "target", into)
        before, after = load(folder), load(tmp_path / "target")
        assert len(after) == len(before)
        for k in range(len(before)):
            one, other = take_snapshot(after.trajectory(k)), take_snapshot(before.trajectory(k))
            assert differences(one, other) == []

    def test_ranks_become_one_checkpoint(self, tmp_path: Path) -> None:
        for rank in range(2):
            with relive.TrajectoryReplayBuffer(framework="numpy") as buffer:
                buffer.add_trajectories([traj(10 * rank + k) for k in range(2)])
                buffer.save_checkpoint(tmp_path / "ranks" / f"rank_{rank}")
        assert relive.convert(tmp_path / "ranks", tmp_path / "target") == 4
        assert ks_of(load(tmp_path / "target")) == {0, 1, 10, 11}

    def test_options_of_a_format_object_hold(self, tmp_path: Path) -> None:
        fill(tmp_path / "store", "pt")
        relive.convert(tmp_path / "store", tmp_path / "target", MemmapFormat(segment_bytes=1))
        assert len(list((tmp_path / "target" / "segments").iterdir())) == 4


class TestRefusals:
    @pytest.fixture
    def store(self, tmp_path: Path) -> Path:
        return fill(tmp_path / "store", "pt")

    def test_a_target_that_holds_something(self, store: Path) -> None:
        for target in (store.with_name("saved"), Path(__file__)):
            with pytest.raises(StoreExistsError, match="holds something already"):
                relive.convert(store, target)

    @pytest.mark.parametrize("target", ["store", "store/inside"])
    def test_a_target_inside_the_source(self, store: Path, target: str) -> None:
        with pytest.raises(InvalidArgumentError, match="lie in one another"):
            relive.convert(store, store.parent / target)

    def test_an_unknown_format(self, store: Path, tmp_path: Path) -> None:
        with pytest.raises(InvalidArgumentError, match="'npz'"):
            relive.convert(store, tmp_path / "target", "npz")

    def test_a_source_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(MissingFileError, match="nothing"):
            relive.convert(tmp_path / "nothing", tmp_path / "target")
        assert not (tmp_path / "target").exists()

    def test_a_damaged_source_leaves_nothing_of_the_target(
        self, store: Path, tmp_path: Path
    ) -> None:
        path = next(store.glob("trajectory_2_*"))
        path.write_bytes(path.read_bytes()[:-50])
        with pytest.raises(CorruptFileError, match="trajectory 2"):
            relive.convert(store, tmp_path / "target")
        assert sorted(p.name for p in tmp_path.iterdir()) == ["saved", "store"]

    @pytest.mark.parametrize("kind", ["pt", "memmap"])
    def test_a_checkpoint_that_is_replaced_meanwhile_is_read_again(
        self, kind: str, tmp_path: Path
    ) -> None:
        def save(columns: tuple[str, ...]) -> None:
            with TrajectoryReplayBuffer(trajectory_format=kind) as buffer:
                for k in range(4):
                    one = traj(k)
                    fields = {name: getattr(one, name) for name in columns}
                    buffer.add_trajectories([Trajectory(**fields)])
                buffer.save_checkpoint(tmp_path / "replaced")

        def replace_once(done: int, of: int) -> None:
            told.append(done)
            if told == [1, 2]:
                save(("rewards",))

        told: list[int] = []
        save(("rewards", "actions"))
        num = relive.convert(tmp_path / "replaced", tmp_path / "new", progress=replace_once)
        assert (num, told[-4:]) == (4, [1, 2, 3, 4])
        with TrajectoryReplayBuffer(sample_window_size=0) as loaded:
            loaded.load_checkpoint(tmp_path / "new")
            assert len(loaded) == 4

    def test_a_store_whose_segments_go_meanwhile_is_read_again(self, tmp_path: Path) -> None:
        def compact_once(done: int, of: int) -> None:
            told.append((done, of))
            if len(told) == 1:
                buffer.delete([1])
                buffer.compact()

        told: list[tuple[int, int]] = []
        form = MemmapFormat(segment_bytes=1)  # a segment for each
        with TrajectoryReplayBuffer(
            auto_save=True, auto_save_path=str(tmp_path / "open"), trajectory_format=form
        ) as buffer:
            buffer.add_trajectories([traj(k) for k in range(4)])
            buffer.flush()
            with pytest.warns(UserWarning, match="is open for writing by"):
                relive.convert(tmp_path / "open", tmp_path / "new", progress=compact_once)
        assert told == [(1, 4), (1, 3), (2, 3), (3, 3)]
        assert ks_of(load(tmp_path / "new")) == {0, 2, 3}

    def test_a_full_disk_leaves_nothing_of_the_target(
        self, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: object, **__: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(relive.open_files.GrowingFile, "write_at", refuse)
        with pytest.raises(StorageWriteError, match="No space left"):
            relive.convert(store, tmp_path / "target", "memmap")
        assert sorted(p.name for p in tmp_path.iterdir()) == ["saved", "store"]

    def test_pickles_that_ask_for_more(self, tmp_path: Path) -> None:
        shutil.copytree(DATA / "v0.3.0" / "pkl_autosave_false", tmp_path / "source")
        path = sorted((tmp_path / "source").glob("trajectory_*.pkl"))[0]
        path.write_bytes(b"cdatetime\ndate\n(I2026\nI1\nI1\ntR.")
        with pytest.raises(UnsafePickleError, match="allow_pickle"):
            relive.convert(tmp_path / "source", tmp_path / "target")


class TestCommand:
    def test_a_folder_around_a_store_and_an_open_one_are_told_in_a_line(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with TrajectoryReplayBuffer(
            auto_save=True, auto_save_path=str(tmp_path / "run" / "buffer")
        ) as buffer:
            buffer.add_trajectories([traj(0)])
            buffer.flush()
            call = ["relive", "convert", str(tmp_path / "run"), str(tmp_path / "to"), "--to", "pkl"]
            monkeypatch.setattr(sys, "argv", call)
            with pytest.raises(SystemExit) as left:
                main()
            inside = f"relive convert {tmp_path / 'run' / 'buffer'} {tmp_path / 'to'} --to pkl`"
            assert left.value.code == 1
            assert inside in capsys.readouterr().err
            call[2] = str(tmp_path / "run" / "buffer")
            monkeypatch.setattr(warnings, "showwarning", None)  # put back at the end
            warnings.simplefilter("always")
            with pytest.raises(SystemExit) as left:
                main()
            told = capsys.readouterr()
            assert left.value.code == 0
            assert told.err.startswith("note: ")
            assert told.err.count("\n") == 1
            assert "is open for writing" in told.err
            assert "1 trajectory written" in told.out

    def test_it_says_what_it_wrote_and_what_to_do_next(self, tmp_path: Path) -> None:
        fill(tmp_path / "store", "pt")
        told = run_program(
            "from relive.cli.commands import main; main()",
            "convert",
            str(tmp_path / "store"),
            str(tmp_path / "target"),
        )
        assert "4 trajectories written to" in told
        assert f"relive info {tmp_path / 'target'}" in told
        check_rows(load(tmp_path / "target").sample(50))
