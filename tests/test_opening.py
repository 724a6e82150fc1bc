# SPDX-License-Identifier: Apache-2.0
"""Opening a folder: what is refused, resumed, replaced and repaired, also after a kill."""

from __future__ import annotations

import json
import os
import shutil
import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from journals import Disk
from programs import run_program, start_program
from relive import Columns, TrajectoryReplayBuffer
from relive.errors import (
    ColumnMismatchError,
    CorruptFileError,
    ForkedError,
    MissingFileError,
    StorageError,
    StoreExistsError,
    StoreLockedError,
)
from trajectories import address_of, check_rows, same_trajectory, traj, trajectory_files

CHOICES = ["refuse", "resume", "overwrite"]
FORMATS = ["pt", "pkl"]

IfExists = Literal["refuse", "resume", "overwrite"]


def open_store(folder: Path, if_exists: IfExists = "resume", **options: Any) -> Any:
    return TrajectoryReplayBuffer(
        auto_save=True, auto_save_path=folder, if_exists=if_exists, **options
    )


def make_store(folder: Path, num: int = 3, **options: Any) -> Path:
    """Make a closed store with `traj(0)` to `traj(num - 1)`."""
    with open_store(folder, "refuse", **options) as buffer:
        buffer.add_trajectories([traj(k) for k in range(num)])
    return folder


def make_killed_store(folder: Path, num: int = 3, **options: Any) -> Path:
    """Make a store as a writer leaves it that is killed after it flushed: a copy of it alive."""
    alive = folder.with_name(f"{folder.name}-alive")
    with open_store(alive, "refuse", **options) as buffer:
        buffer.add_trajectories([traj(k) for k in range(num)])
        buffer.flush()
        shutil.copytree(alive, folder)
    return folder


def contents_of(folder: Path) -> dict[str, bytes]:
    """Return every file of a folder but the lock, whose text may change at any opening."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "writer.lock"
    }


def file_of(folder: Path, trajectory_id: int) -> Path:
    (path,) = folder.glob(f"trajectory_{trajectory_id}_*")
    return path


def cut(path: Path) -> None:
    """Leave the first half of a file."""
    os.truncate(path, path.stat().st_size // 2)


def check_holds(buffer: TrajectoryReplayBuffer, ks: list[int]) -> None:
    """Prove that the buffer has these trajectories, each under its number as id, and no other."""
    assert len(buffer) == len(ks)
    for k in ks:
        assert same_trajectory(buffer.trajectory(k), traj(k))
    batch, info = buffer.sample(64, return_info=True)
    check_rows(batch, info, {k: k for k in ks})


class TestNewFolder:
    @pytest.mark.parametrize("if_exists", CHOICES)
    @pytest.mark.parametrize("is_there", [True, False])
    def test_any_choice_opens_an_empty_or_missing_one(
        self, if_exists: IfExists, is_there: bool, tmp_path: Path
    ) -> None:
        folder = tmp_path / "a" / "b"
        if is_there:
            folder.mkdir(parents=True)
        with open_store(folder, if_exists) as buffer:
            assert buffer.add_trajectories([traj(0)]) == [0]
        assert trajectory_files(folder) == [0]

    def test_a_relative_path_is_that_of_the_moment_of_opening(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path)
        with open_store(Path("store")) as buffer:
            monkeypatch.chdir(tmp_path / "elsewhere")
            buffer.add_trajectories([traj(0)])
        assert trajectory_files(tmp_path / "store") == [0]
        assert list((tmp_path / "elsewhere").iterdir()) == []


class TestStoreFound:
    """B55."""

    def test_it_is_refused_unless_told_otherwise(self, tmp_path: Path) -> None:
        folder = make_store(tmp_path / "store")
        before = contents_of(folder)
        with pytest.raises(StoreExistsError, match=r"resume.*overwrite") as raised:
            TrajectoryReplayBuffer(auto_save=True, auto_save_path=folder)
        assert raised.value.path == str(folder)
        assert contents_of(folder) == before

    @pytest.mark.parametrize("trajectory_format", FORMATS)
    def test_resumed_it_goes_on(self, trajectory_format: str, tmp_path: Path) -> None:
        folder = make_store(tmp_path / "store", trajectory_format=trajectory_format)
        with open_store(folder, trajectory_format=trajectory_format) as buffer:
            check_holds(buffer, [0, 1, 2])
            assert buffer.add_trajectories([traj(3)]) == [3]
            check_holds(buffer, [0, 1, 2, 3])

    def test_it_may_be_resumed_in_another_format(self, tmp_path: Path) -> None:
        folder = make_store(tmp_path / "store", trajectory_format="pkl")
        with open_store(folder, trajectory_format="pt") as buffer:
            buffer.add_trajectories([traj(3)])
        with open_store(folder, trajectory_format="pkl", cache_size=0) as buffer:
            check_holds(buffer, [0, 1, 2, 3])

    def test_many_resumes_double_nothing(self, tmp_path: Path) -> None:
        """B32."""
        folder = make_store(tmp_path / "store")
        for _ in range(3):
            with open_store(folder) as buffer:
                check_holds(buffer, [0, 1, 2])

    def test_ids_of_what_was_deleted_are_not_given_again(self, tmp_path: Path) -> None:
        folder = make_store(tmp_path / "store")
        with open_store(folder) as buffer:
            buffer.delete([2])
            rows_before = buffer.state_dict()["next_row_id"]
        with open_store(folder) as buffer:
            check_holds(buffer, [0, 1])
            assert buffer.state_dict()["next_row_id"] == rows_before
            assert buffer.add_trajectories([traj(3)]) == [3]

    def test_overwritten_it_is_a_new_one(self, tmp_path: Path) -> None:
        folder = make_store(tmp_path / "store")
        with open_store(folder, "overwrite") as buffer:
            assert len(buffer) == 0
            assert trajectory_files(folder) == []
            assert buffer.add_trajectories([traj(7)]) == [0]
        with open_store(folder) as buffer:
            assert same_trajectory(buffer.trajectory(0), traj(7))

    @pytest.mark.parametrize("if_exists", ["resume", "overwrite"])
    def test_values_of_an_earlier_run_never_show(self, if_exists: IfExists, tmp_path: Path) -> None:
        folder = tmp_path / "store"
        with open_store(folder) as buffer:
            buffer.add_trajectories([traj(0, extra={"d": np.ones((4, 3))})])
        with open_store(folder, if_exists) as buffer:
            if if_exists == "resume":
                with pytest.raises(ColumnMismatchError, match="missing: extras/d"):
                    buffer.add_trajectories([traj(1)])
                buffer.delete([0])
                buffer.add_trajectories([traj(2, extra={"d": np.full((4, 3), 2.0)})])
                assert set(buffer.sample(60)["extras"]["d"].tolist()) == {2.0}
            else:
                buffer.add_trajectories([traj(1)])
                assert "extras" not in buffer.sample(60)

    def test_one_that_does_not_fit_the_declaration_is_refused_and_left(
        self, tmp_path: Path
    ) -> None:
        folder = make_store(tmp_path / "store")
        before = contents_of(folder)
        with pytest.raises(ColumnMismatchError, match="versions"):
            open_store(folder, columns=Columns(required=("versions",)))
        assert contents_of(folder) == before
        open_store(folder).close()


class TestOtherThings:
    @pytest.mark.parametrize("if_exists", CHOICES)
    @pytest.mark.parametrize(
        "name", ["notes.txt", "metadata.json", "trajectory_0_.pt", ".draft.tmp", "notes.tmp"]
    )
    def test_a_folder_with_anything_of_others_is_refused_and_left(
        self, if_exists: IfExists, name: str, tmp_path: Path
    ) -> None:
        (tmp_path / name).write_text("mine")
        with pytest.raises(StoreExistsError, match="a folder of its own"):
            open_store(tmp_path, if_exists)
        assert contents_of(tmp_path) == {name: b"mine"}

    @pytest.mark.parametrize("name", ["notes.txt", ".draft.tmp", "trajectory_7_.pt"])
    def test_a_store_with_something_of_others_is_not_overwritten(
        self, name: str, tmp_path: Path
    ) -> None:
        folder = make_store(tmp_path / "store")
        (folder / name).write_text("mine")
        before = contents_of(folder)
        with pytest.raises(StoreExistsError, match=name):
            open_store(folder, "overwrite")
        assert contents_of(folder) == before

    @pytest.mark.parametrize("if_exists", CHOICES)
    def test_a_file_is_no_folder(self, if_exists: IfExists, tmp_path: Path) -> None:
        path = tmp_path / "file"
        path.write_text("mine")
        with pytest.raises(StoreExistsError, match="is a file"):
            open_store(path, if_exists)
        with pytest.raises(StorageError, match="cannot be opened for writing"):
            open_store(path / "below", if_exists)
        assert path.read_text() == "mine"


class TestRefusingDisk:
    @pytest.mark.parametrize("if_exists", ["resume", "overwrite"])
    @pytest.mark.parametrize("make", [make_store, make_killed_store, None])
    def test_whatever_it_refuses_is_named_and_the_next_opening_succeeds(
        self, if_exists: IfExists, make: Callable[[Path], Path] | None, tmp_path: Path
    ) -> None:
        model = None if make is None else make(tmp_path / "model")
        num_descriptors = len(os.listdir("/proc/self/fd"))
        for break_at in range(100):
            folder = tmp_path / str(break_at)
            if model is not None:
                shutil.copytree(model, folder)
            disk, refused, buffer = Disk(break_at), False, None
            with disk.breaking(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of an index that was rebuilt
                try:
                    buffer = open_store(folder, if_exists)
                except StorageError as error:
                    assert str(folder) in str(error)
                    assert error.errno == 28
                    refused = True
            if buffer is not None:
                if model is not None and if_exists == "resume":
                    check_holds(buffer, [0, 1, 2])
                buffer.close()
            if disk.num_done <= break_at:
                break
            assert refused or buffer is not None
            assert len(os.listdir("/proc/self/fd")) <= num_descriptors
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                reopened = open_store(folder, "resume")
            with reopened as buffer:
                if model is not None and if_exists == "resume":
                    check_holds(buffer, [0, 1, 2])
                assert len(buffer.add_trajectories([traj(7)])) == 1
        assert 3 < break_at < 99


class TestOneWriter:
    @pytest.mark.parametrize("if_exists", ["resume", "overwrite"])
    def test_a_folder_open_elsewhere_is_refused_and_left(
        self, if_exists: IfExists, tmp_path: Path
    ) -> None:
        with open_store(tmp_path / "store") as buffer:
            buffer.add_trajectories([traj(0)])
            buffer.flush()
            before = contents_of(tmp_path / "store")
            with pytest.raises(StoreLockedError, match=f"by process {os.getpid()} on"):
                open_store(tmp_path / "store", if_exists)
            assert contents_of(tmp_path / "store") == before
            check_holds(buffer, [0])
        open_store(tmp_path / "store", if_exists).close()

    def test_an_opening_that_warns_leaves_no_lock_when_warnings_are_errors(
        self, tmp_path: Path
    ) -> None:
        folder = make_killed_store(tmp_path / "store")
        cut(file_of(folder, 1))
        with warnings.catch_warnings(), pytest.raises(UserWarning, match="set aside"):
            warnings.simplefilter("error")
            open_store(folder)
        with pytest.warns(UserWarning, match="set aside"):
            open_store(folder).close()


FLUSHING_WRITER = """
import sys
from relive import TrajectoryReplayBuffer
from trajectories import traj

buffer = TrajectoryReplayBuffer(
    auto_save=True, auto_save_path=sys.argv[1], trajectory_format=sys.argv[2], sample_window_size=0
)
for k in range(900):
    buffer.add_trajectories([traj(k)])
    buffer.flush()
    print(k, flush=True)
"""


class TestKilledWriter:
    @pytest.mark.parametrize(("trajectory_format", "num"), [("pt", 3), ("pkl", 20)])
    def test_all_that_was_flushed_is_there(
        self, trajectory_format: str, num: int, tmp_path: Path
    ) -> None:
        """B45."""
        folder = tmp_path / "store"
        with start_program(FLUSHING_WRITER, folder, trajectory_format) as process:
            assert process.stdout is not None
            flushed = [int(process.stdout.readline()) for _ in range(num)]
            process.send_signal(signal.SIGKILL)
            flushed += [int(line) for line in process.stdout if line.endswith("\n")]
        with warnings.catch_warnings():  # a file may be there whose line is not
            warnings.filterwarnings("ignore", message=".* not in the index", category=UserWarning)
            buffer = open_store(folder, sample_window_size=0)
        with buffer:
            assert flushed == list(range(len(flushed)))
            assert len(buffer) - len(flushed) in (0, 1)
            check_holds(buffer, list(range(len(buffer))))
            (new,) = buffer.add_trajectories([traj(950)])
            assert new not in flushed

    @pytest.mark.parametrize("trajectory_format", FORMATS)
    def test_what_a_power_loss_tore_is_set_aside(
        self, trajectory_format: str, tmp_path: Path
    ) -> None:
        folder = make_killed_store(tmp_path / "store", trajectory_format=trajectory_format)
        path = file_of(folder, 1)
        cut(path)
        left = path.read_bytes()
        with pytest.warns(UserWarning, match=r"trajectory 1 was set aside: .*trajectory_1_"):
            buffer = open_store(folder, trajectory_format=trajectory_format)
        with buffer:
            check_holds(buffer, [0, 2])
            assert buffer.add_trajectories([traj(3)]) == [3]
        (aside,) = (folder / "aside").rglob(path.name)
        assert aside.read_bytes() == left
        with open_store(folder, trajectory_format=trajectory_format) as buffer:
            check_holds(buffer, [0, 2, 3])

    def test_bytes_that_changed_are_told_by_their_checksum(self, tmp_path: Path) -> None:
        folder = make_killed_store(tmp_path / "store")
        path = file_of(folder, 2)
        block = bytearray(path.read_bytes())
        place = block.find(np.array([2_000_000, 2_000_001]).tobytes())
        block[place] ^= 1
        path.write_bytes(block)
        with pytest.warns(UserWarning, match="trajectory 2 was set aside: .*checksum"):
            buffer = open_store(folder)
        with buffer:
            check_holds(buffer, [0, 1])

    def test_files_without_a_line_are_reported_and_their_ids_not_given(
        self, tmp_path: Path
    ) -> None:
        folder = make_killed_store(tmp_path / "store")
        orphan = folder / "trajectory_8_.pt"
        shutil.copy(file_of(folder, 0), orphan)
        with pytest.warns(UserWarning, match=r"1 trajectory files .*trajectory_8_"):
            buffer = open_store(folder)
        with buffer:
            check_holds(buffer, [0, 1, 2])
            assert buffer.add_trajectories([traj(9)]) == [9]
        assert orphan.exists()

    def test_what_was_half_written_goes(self, tmp_path: Path) -> None:
        folder = make_killed_store(tmp_path / "store")
        (folder / ".trajectory_3_.pt.0123abcd.tmp").write_bytes(b"half")
        (folder / "incoming-0123abcd").mkdir()
        (folder / "incoming-0123abcd" / "trajectory_0_.pt").write_bytes(b"half")
        with open_store(folder) as buffer:
            check_holds(buffer, [0, 1, 2])
        assert not list(folder.glob(".*"))
        assert not list(folder.glob("incoming-*"))


class TestDamagedIndex:
    @pytest.mark.parametrize("make", [make_store, make_killed_store])
    @pytest.mark.parametrize(
        "damage",
        [
            cut,
            lambda path: path.write_text('{"another": "program"}'),
            lambda path: path.write_text("[1, 2]"),
            lambda path: path.write_bytes(b"\xff\x00"),
        ],
        ids=["cut", "foreign", "list", "bytes"],
    )
    def test_it_is_rebuilt_from_the_journal(
        self, make: Callable[[Path], Path], damage: Callable[[Path], None], tmp_path: Path
    ) -> None:
        """B48."""
        folder = make(tmp_path / "store")
        damage(folder / "trajectory_index.json")
        with pytest.warns(UserWarning, match=r"trajectory_index\.json.* rebuilt"):
            buffer = open_store(folder)
        with buffer:
            check_holds(buffer, [0, 1, 2])
        with open_store(folder) as buffer:
            check_holds(buffer, [0, 1, 2])

    def test_metadata_of_others_cost_only_the_draws(self, tmp_path: Path) -> None:
        folder = make_store(tmp_path / "store")
        for text in ("{", "[]", "{}", '{"relive": {"version": 1}}'):
            (folder / "metadata.json").write_text(text)
            with pytest.warns(UserWarning, match="draws do not go on"):
                buffer = open_store(folder)
            with buffer:
                check_holds(buffer, [0, 1, 2])

    def test_without_index_and_journal_nothing_is_made_up(self, tmp_path: Path) -> None:
        folder = make_store(tmp_path / "store")
        (folder / "trajectory_index.json").write_bytes(b"{")
        (folder / "trajectory_index.journal").write_bytes(b"{")
        before = contents_of(folder)
        for if_exists in ("resume", "overwrite"):
            with pytest.raises(CorruptFileError, match=r"trajectory_index\.json"):
                open_store(folder, if_exists)
        assert contents_of(folder) == before


class TestDamagedTrajectory:
    @pytest.mark.parametrize("trajectory_format", FORMATS)
    @pytest.mark.parametrize(
        ("damage", "error"),
        [(Path.unlink, MissingFileError), (cut, CorruptFileError)],
        ids=["gone", "cut"],
    )
    def test_its_file_is_named_and_the_others_stay_usable(
        self,
        trajectory_format: str,
        damage: Callable[[Path], None],
        error: type[Exception],
        tmp_path: Path,
    ) -> None:
        folder = make_store(tmp_path / "store", trajectory_format=trajectory_format)
        path = file_of(folder, 1)
        damage(path)
        with open_store(folder, trajectory_format=trajectory_format, cache_size=0) as buffer:
            with pytest.raises(error, match=path.name):
                buffer.trajectory(1)
            with pytest.raises(error, match=path.name):
                buffer.sample(200)
            check_rows(buffer.gather([0, 11, 24, 35]))
            buffer.delete([1])
            check_holds(buffer, [0, 2])

    def test_a_cache_that_cannot_be_filled_is_told(self, tmp_path: Path) -> None:
        folder = make_store(tmp_path / "store")
        file_of(folder, 1).unlink()
        with pytest.warns(UserWarning, match=r"cache could not be filled: .*trajectory_1_"):
            buffer = open_store(folder)
        with buffer:
            assert same_trajectory(buffer.trajectory(2), traj(2))


def in_fork(action: Callable[[], Any]) -> Any:
    """Return what an action returns in a forked child, by way of JSON."""
    can_read, can_write = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(can_write, json.dumps(action()).encode())
        except BaseException as error:
            os.write(can_write, json.dumps(repr(error)).encode())
        os._exit(0)
    os.close(can_write)
    with os.fdopen(can_read, "rb") as file:
        result = json.loads(file.read())
    os.waitpid(child, 0)
    return result


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
class TestFork:
    @pytest.mark.parametrize("trajectory_format", FORMATS)
    @pytest.mark.parametrize("cache_size", [0, 5])
    def test_the_child_samples_on_a_stream_of_its_own(
        self, trajectory_format: str, cache_size: int, tmp_path: Path
    ) -> None:
        """B65."""
        with open_store(
            tmp_path / "store", trajectory_format=trajectory_format, cache_size=cache_size
        ) as buffer:
            buffer.add_trajectories([traj(k) for k in range(3)])
            buffer.flush()

            def draw() -> Any:
                batch, info = buffer.sample(64, return_info=True)
                check_rows(batch, info, {0: 0, 1: 1, 2: 2})
                return info.row_ids.tolist()

            draws = [in_fork(draw), in_fork(draw), draw()]
            assert all(isinstance(drawn, list) for drawn in draws), draws
            assert len(set(map(tuple, draws))) == 3
            check_holds(buffer, [0, 1, 2])

    def test_the_child_does_not_write(self, tmp_path: Path) -> None:
        make_store(tmp_path / "other").rename(tmp_path / "checkpoint")
        with open_store(tmp_path / "store") as buffer:
            buffer.add_trajectories([traj(0)])
            buffer.flush()
            before = contents_of(tmp_path / "store")

            def try_all() -> list[str]:
                refused = []
                for write in (
                    lambda: buffer.add_trajectories([traj(1)]),
                    lambda: buffer.delete([0]),
                    buffer.clear,
                    buffer.flush,
                    lambda: buffer.save_checkpoint(tmp_path / "saved"),
                    lambda: buffer.load_checkpoint(tmp_path / "checkpoint"),
                ):
                    try:
                        write()
                    except ForkedError as error:
                        refused.append(str(error))
                buffer.close()
                return refused

            refused = in_fork(try_all)
            assert len(refused) == 6, refused
            assert f"process {os.getpid()}" in refused[0]
            assert contents_of(tmp_path / "store") == before
            assert not (tmp_path / "saved").exists()
            assert buffer.add_trajectories([traj(1)]) == [1]
            check_holds(buffer, [0, 1])

    def test_what_is_not_written_yet_can_be_sampled_in_the_child(self, tmp_path: Path) -> None:
        with open_store(tmp_path / "store", cache_size=0) as buffer:
            buffer.add_trajectories([traj(k, T=40, B=8, wide=True) for k in range(8)])

            def draw() -> bool:
                check_rows(buffer.sample(64))
                return True

            assert in_fork(draw) is True


FORGETFUL = """
import sys
from relive import TrajectoryReplayBuffer
from trajectories import traj

def run():
    buffer = TrajectoryReplayBuffer(auto_save=True, auto_save_path=sys.argv[1])
    buffer.add_trajectories([traj(k, T=40, wide=True) for k in range(20)])
    buffer.sample(10)

run()
raise KeyError("forgotten")
"""


class TestExit:
    def test_a_buffer_that_nobody_closed_stores_everything(self, tmp_path: Path) -> None:
        with start_program(FORGETFUL, tmp_path / "store") as process:
            _, complaints = process.communicate()
        assert process.returncode == 1
        assert complaints.splitlines()[-1] == "KeyError: 'forgotten'"
        with open_store(tmp_path / "store") as buffer:
            assert len(buffer) == 20
            assert same_trajectory(buffer.trajectory(19), traj(19, T=40, wide=True))


CONTINUATION = """
import sys
from relive import TrajectoryReplayBuffer

with TrajectoryReplayBuffer(
    auto_save=True, auto_save_path=sys.argv[1], if_exists="resume", seed=99
) as buffer:
    print(*buffer.sample(50, return_info=True)[1].row_ids)
"""


class TestDraws:
    def rows(self, buffer: TrajectoryReplayBuffer) -> list[int]:
        _, info = buffer.sample(50, return_info=True)
        return [int(row_id) for row_id in info.row_ids]

    def test_a_closed_store_goes_on_exactly_in_another_process(self, tmp_path: Path) -> None:
        """B31."""
        with open_store(tmp_path / "a", seed=7) as buffer:
            buffer.add_trajectories([traj(k) for k in range(3)])
            first = self.rows(buffer)
            buffer.save_checkpoint(tmp_path / "b")
        with TrajectoryReplayBuffer(seed=8) as going_on:
            going_on.load_checkpoint(tmp_path / "b")
            expected = self.rows(going_on)
        printed = run_program(CONTINUATION, tmp_path / "a")
        assert [int(row_id) for row_id in printed.split()] == expected
        assert expected != first

    def test_a_killed_store_repeats_no_draw(self, tmp_path: Path) -> None:
        folder = make_killed_store(tmp_path / "store")
        drawn = []
        for attempt in range(3):
            copy = tmp_path / f"copy-{attempt}"
            shutil.copytree(folder, copy)
            with open_store(folder) as buffer:
                drawn.append(tuple(self.rows(buffer)))
                drawn.append(tuple(self.rows(buffer)))
            shutil.rmtree(folder)
            with open_store(copy):
                shutil.copytree(copy, folder)  # killed once more
        assert len(set(drawn)) == len(drawn)

    def test_copies_of_a_store_opened_on_different_streams_differ(self, tmp_path: Path) -> None:
        make_store(tmp_path / "0")
        shutil.copytree(tmp_path / "0", tmp_path / "1")
        drawn = []
        for rank in (0, 1):
            with open_store(tmp_path / str(rank), stream=(rank,)) as buffer:
                drawn.append(self.rows(buffer))
                expected = self.rows_after(buffer)
            with open_store(tmp_path / str(rank), stream=(rank,)) as buffer:
                assert self.rows(buffer) == expected
        assert drawn[0] != drawn[1]

    def rows_after(self, buffer: TrajectoryReplayBuffer) -> list[int]:
        """Return what will be drawn next, without drawing it."""
        state = buffer.state_dict()
        rows = self.rows(buffer)
        buffer.load_state_dict(state)
        return rows

    def test_drawn_rows_are_counted_over_resumes(self, tmp_path: Path) -> None:
        folder = make_store(tmp_path / "store")
        for num in (1, 2):
            with open_store(folder) as buffer:
                k, _, _ = address_of(buffer.sample(50))
                assert set(k) == {0, 1, 2}
                assert buffer.get_stats()["sampled_chunks"] == 50 * num
