# SPDX-License-Identifier: Apache-2.0
"""Whatever is wrong is refused by name, and nothing has changed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from buffers import open_buffer, stats_of
from relive import Columns, Limits, TrajectoryReplayBuffer
from relive.errors import (
    ClosedError,
    ColumnMismatchError,
    CorruptFileError,
    EmptyBufferError,
    EvictedError,
    FormatVersionError,
    InvalidArgumentError,
    MissingFileError,
    ReplayError,
    StorageError,
    StoreExistsError,
    UnsupportedValueError,
)
from trajectories import check_rows, make_checkpoint, same_trajectory, traj, trajectory_files

KINDS = ["memory", "pt", "pkl", "memmap"]

NO_INTEGERS = [0, -1, True, 1.0, 1.5, "1", None, [1], np.float32(1), float("nan")]


def with_three(kind: str, folder: Path, **options: Any) -> TrajectoryReplayBuffer:
    buffer = open_buffer(kind, folder, **options)
    buffer.add_trajectories([traj(k) for k in range(3)])
    buffer.flush()
    return buffer


class Unchanged:
    """What a buffer holds, to be compared after something was refused."""

    def __init__(self, buffer: TrajectoryReplayBuffer, folder: Path) -> None:
        self.buffer = buffer
        self.folder = folder / "store"
        self.before = self.look()

    def look(self) -> tuple[Any, ...]:
        files = trajectory_files(self.folder) if self.folder.exists() else []
        return len(self.buffer), self.buffer.state_dict(), stats_of(self.buffer), files

    def check(self) -> None:
        assert self.look() == self.before
        for trajectory_id in range(len(self.buffer)):
            found = self.buffer.trajectory(trajectory_id)
            assert same_trajectory(found, traj(trajectory_id))


class TestConstructor:
    @pytest.mark.parametrize(
        ("options", "told"),
        [
            ({"seed": -1}, "seed is -1"),
            ({"seed": 1 << 64}, "seed is"),
            ({"seed": True}, "seed is True"),
            ({"seed": 1.0}, "seed is 1.0"),
            ({"seed": "1"}, "seed is '1'"),
            ({"enable_cache": 1}, "enable_cache is 1"),
            ({"enable_cache": None}, "enable_cache is None"),
            ({"cache_size": -1}, "cache_size is -1"),
            ({"cache_size": None}, "cache_size is None"),
            ({"cache_size": True}, "cache_size is True"),
            ({"sample_window_size": -1}, "sample_window_size is -1"),
            ({"sample_window_size": 2.0}, "sample_window_size is 2.0"),
            ({"auto_save": "yes"}, "auto_save is 'yes'"),
            ({"auto_save_path": ""}, "auto_save_path is empty"),
            ({"auto_save_path": 3}, "auto_save_path is 3"),
            ({"auto_save_path": None}, "auto_save_path is None"),
            ({"auto_save_path": b"/x"}, "auto_save_path is b'/x'"),
            ({"auto_save": False}, "auto_save_path is 'store', but without auto_save nothing"),
            ({"trajectory_format": "npz"}, r"trajectory_format.*npz.*pt"),
            ({"trajectory_format": ""}, "trajectory_format"),
            ({"trajectory_format": None}, "trajectory_format is None"),
            ({"trajectory_format": int}, "trajectory_format is <class 'int'>"),
            ({"sampler": "uniform"}, "sampler is 'uniform'"),
            ({"columns": ["rewards"]}, "columns is"),
            ({"limits": {"max_bytes": 3}}, "limits is"),
            ({"durability": "always"}, "durability is 'always'"),
            ({"durability": ["power"]}, "durability is"),
            ({"if_exists": "maybe"}, "if_exists is 'maybe'"),
            ({"if_exists": True}, "if_exists is True"),
            ({"allow_pickle": "no"}, "allow_pickle is 'no'"),
            ({"framework": "jax"}, "framework is 'jax'"),
            ({"framework": None}, "framework is None"),
            ({"stream": 3}, "stream is 3"),
            ({"stream": "12"}, "stream is '12'"),
            ({"stream": (-1,)}, "stream is -1"),
            ({"stream": (1.0,)}, "stream is 1.0"),
            ({"break_lock": 1}, "break_lock is 1"),
        ],
        ids=str,
    )
    def test_each_argument_is_checked_before_anything_is_made(
        self, options: dict[str, Any], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        with pytest.raises(InvalidArgumentError, match=told):
            TrajectoryReplayBuffer(**{"auto_save": True, "auto_save_path": "store", **options})
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        "options",
        [
            {"max_trajectories": 0},
            {"max_samples": -1},
            {"max_bytes": 1.5},
            {"cache_bytes": True},
            {"max_pending_bytes": 0},
        ],
        ids=str,
    )
    def test_limits_are_checked_too(self, options: dict[str, Any]) -> None:
        with pytest.raises(InvalidArgumentError, match=next(iter(options))):
            Limits(**options)


def wrong_calls() -> list[Any]:
    """Return calls that no buffer with ids 0 to 2 may carry out, with the error and its words."""
    invalid, mismatch, evicted = InvalidArgumentError, ColumnMismatchError, EvictedError
    calls: list[tuple[str, Callable[[Any], Any], type[ReplayError], str]] = [
        *(
            (f"sample {num!r}", lambda b, n=num: b.sample(n), invalid, "num_chunks is")
            for num in NO_INTEGERS
        ),
        ("columns", lambda b: b.sample(1, columns="rewards"), invalid, "columns"),
        ("columns 1", lambda b: b.sample(1, columns=[1]), ReplayError, "1"),
        ("no columns", lambda b: b.sample(1, columns=[]), ReplayError, "columns"),
        ("column", lambda b: b.sample(1, columns=["x"]), mismatch, "'x'"),
        ("text", lambda b: b.sample(1, text="bytes"), invalid, "text is 'bytes'"),
        ("codes", lambda b: b.sample(1, text="codes"), invalid, "return_info"),
        ("info", lambda b: b.sample(1, return_info="yes"), invalid, "return_info is 'yes'"),
        ("gather one", lambda b: b.gather(3), invalid, "row_ids is 3"),
        ("gather none", lambda b: b.gather([]), invalid, "row_ids is"),
        ("gather floats", lambda b: b.gather([1.0]), invalid, "row_ids is"),
        ("gather bools", lambda b: b.gather([True]), invalid, "row_ids is"),
        ("gather 2-d", lambda b: b.gather([[1]]), invalid, "row_ids is"),
        ("gather ragged", lambda b: b.gather([[1], [1, 2]]), invalid, "row_ids is"),
        ("gather words", lambda b: b.gather(["1"]), invalid, "row_ids is"),
        ("gather nothing", lambda b: b.gather(None), invalid, "row_ids is None"),
        ("gather -1", lambda b: b.gather([-1]), evicted, "-1"),
        ("gather 36", lambda b: b.gather([0, 36]), evicted, "36"),
        ("gather large", lambda b: b.gather(np.array([1 << 63], np.uint64)), evicted, "922"),
        ("gather 2**63", lambda b: b.gather([0, 1 << 63]), evicted, r"\[9223372036854775808\] are"),
        ("gather 2**70", lambda b: b.gather([1 << 70, 0]), evicted, r"\[1180591\d+\] are"),
        ("gather -2**70", lambda b: b.gather([-1 << 70]), evicted, "-1180591620717411303424"),
        ("trajectory", lambda b: b.trajectory(3), evicted, "trajectory 3"),
        ("trajectory -1", lambda b: b.trajectory(-1), invalid, "trajectory_id is -1"),
        ("trajectory 0.0", lambda b: b.trajectory(0.0), invalid, "trajectory_id is 0.0"),
        ("delete", lambda b: b.delete([0, 3]), evicted, "trajectory 3"),
        ("delete one", lambda b: b.delete(0), invalid, "0, but must be a list of trajectory ids"),
        ("delete word", lambda b: b.delete("0"), invalid, "'0', but must be a list"),
        ("delete bool", lambda b: b.delete([True]), invalid, "True"),
        ("add one", lambda b: b.add_trajectories(traj(3)), invalid, "brackets"),
        ("add None", lambda b: b.add_trajectories(None), invalid, "None, but must be a list"),
        ("add dict", lambda b: b.add_trajectories([{}]), UnsupportedValueError, "dict"),
        ("add names", lambda b: b.add_trajectories("ab"), invalid, "'ab', but must be a list"),
        ("flush", lambda b: b.flush(-1), invalid, "timeout_s is -1"),
        ("flush word", lambda b: b.flush("1"), invalid, "timeout_s is '1'"),
        ("flush nan", lambda b: b.flush(float("nan")), invalid, "timeout_s is nan"),
        ("ready", lambda b: b.is_ready(-1), invalid, "min_size is -1"),
        ("ready 1.0", lambda b: b.is_ready(1.0), invalid, "min_size is 1.0"),
        ("save empty", lambda b: b.save_checkpoint(""), invalid, "save_path is empty"),
        ("save None", lambda b: b.save_checkpoint(None), invalid, "save_path is None"),
        ("load empty", lambda b: b.load_checkpoint(""), invalid, "load_path is empty"),
        ("load 3", lambda b: b.load_checkpoint(3), invalid, "load_path is 3"),
        ("load", lambda b: b.load_checkpoint("no-such-folder"), MissingFileError, "no-such"),
        ("load nul", lambda b: b.load_checkpoint("a\0b"), ReplayError, "load_path"),
        ("save nul", lambda b: b.save_checkpoint("a\0b"), ReplayError, "save_path"),
        ("window", lambda b: setattr(b, "sample_window_size", -1), invalid, "window_size is -1"),
        ("state", lambda b: b.load_state_dict({}), CorruptFileError, "state is"),
        ("state None", lambda b: b.load_state_dict(None), CorruptFileError, "state is None"),
        ("state list", lambda b: b.load_state_dict([1]), CorruptFileError, "state is"),
    ]
    return [pytest.param(*call[1:], id=call[0]) for call in calls]


def wrong_ranks() -> list[dict[str, Any]]:
    rank = {"is_distributed": True, "local_rank": 0, "world_size": 2}
    return [
        {"local_rank": 1},
        {"world_size": 2},
        {**rank, "local_rank": 2},
        {**rank, "local_rank": -1},
        {**rank, "world_size": 0},
        {**rank, "local_rank": 0.0},
        {**rank, "world_size": "2"},
        {**rank, "is_distributed": "yes"},
        {**rank, "world_size": True},
    ]


class TestCalls:
    @pytest.mark.parametrize("kind", ["memory", "pt"])
    @pytest.mark.parametrize(("call", "error", "told"), wrong_calls())
    def test_each_is_refused_and_the_buffer_is_as_before(
        self,
        kind: str,
        call: Callable[[TrajectoryReplayBuffer], Any],
        error: type[ReplayError],
        told: str,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.chdir(tmp_path)
        with with_three(kind, tmp_path) as buffer:
            unchanged = Unchanged(buffer, tmp_path)
            with pytest.raises(error, match=told):
                call(buffer)
            unchanged.check()
        assert [path.name for path in tmp_path.iterdir()] == ["store"] * (kind == "pt")

    @pytest.mark.parametrize("options", wrong_ranks(), ids=str)
    def test_ranks_that_cannot_be_are_refused(
        self, options: dict[str, Any], tmp_path: Path
    ) -> None:
        make_checkpoint(tmp_path / "saved", [traj(7)])
        buffer = with_three("memory", tmp_path)
        unchanged = Unchanged(buffer, tmp_path)
        with pytest.raises(InvalidArgumentError, match=r"rank|world_size|is_distributed"):
            buffer.load_checkpoint(tmp_path / "saved", **options)
        unchanged.check()

    @pytest.mark.parametrize("number", [np.int64(3), np.uint8(3), 3])
    def test_integers_of_numpy_are_integers(self, number: Any) -> None:
        buffer = with_three("memory", Path())
        check_rows(buffer.sample(number))
        assert buffer.is_ready(number)


class TestEmptyBuffer:
    @pytest.mark.parametrize("kind", KINDS)
    def test_there_is_no_row_to_draw(self, kind: str, tmp_path: Path) -> None:
        with open_buffer(kind, tmp_path) as buffer:
            before = buffer.state_dict()
            with pytest.raises(EmptyBufferError, match="add_trajectories"):
                buffer.sample(1)
            with pytest.raises(EvictedError):
                buffer.gather([0])
            with pytest.raises(EvictedError):
                buffer.trajectory(0)
            assert buffer.state_dict() == before
            assert not buffer.is_ready(1)
            assert buffer.is_ready(0)

    def test_it_can_be_saved_and_loaded(self, tmp_path: Path) -> None:
        make_checkpoint(tmp_path / "saved", [])
        buffer = with_three("memory", tmp_path)
        with pytest.warns(UserWarning, match="loaded no trajectory"):
            buffer.load_checkpoint(tmp_path / "saved")
        assert len(buffer) == 0
        assert buffer.add_trajectories([traj(3)]) == [3]


class TestClosedBuffer:
    def test_every_call_says_so(self, tmp_path: Path) -> None:
        buffer = with_three("pt", tmp_path)
        state = buffer.state_dict()
        buffer.close()
        buffer.close()
        calls: list[Callable[[], Any]] = [
            lambda: buffer.add_trajectories([traj(3)]),
            lambda: buffer.sample(1),
            lambda: buffer.gather([0]),
            lambda: buffer.trajectory(0),
            lambda: buffer.delete([0]),
            buffer.clear,
            buffer.flush,
            lambda: buffer.save_checkpoint(tmp_path / "saved"),
            lambda: buffer.load_checkpoint(tmp_path / "saved"),
            lambda: buffer.load_state_dict(state),
        ]
        for call in calls:
            with pytest.raises(ClosedError, match="closed"):
                call()
        assert not (tmp_path / "saved").exists()


def change_json(name: str, *path: str, to: Any) -> Callable[[Path], None]:
    """Return what changes one value of a JSON file of a checkpoint."""

    def change(folder: Path) -> None:
        whole = json.loads((folder / name).read_text())
        place = whole
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = to
        (folder / name).write_text(json.dumps(whole))

    return change


def write(name: str, block: bytes) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).write_bytes(block)

    return change


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: next(folder.glob(name)).unlink()


def cut(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (path,) = folder.glob(name)
        os.truncate(path, path.stat().st_size // 2)

    return change


INDEX, METADATA = "trajectory_index.json", "metadata.json"


def damages() -> list[Any]:
    """Return what may happen to a checkpoint, with the error and what it says."""
    missing, corrupt = MissingFileError, CorruptFileError
    found: list[tuple[str, Callable[[Path], None], type[ReplayError], str]] = [
        ("no index", remove(INDEX), missing, INDEX),
        ("no metadata", remove(METADATA), missing, METADATA),
        ("cut index", cut(INDEX), corrupt, INDEX),
        ("cut metadata", cut(METADATA), corrupt, METADATA),
        ("empty index", write(INDEX, b""), corrupt, INDEX),
        ("foreign index", write(INDEX, b'{"a": 1}'), corrupt, INDEX),
        ("foreign metadata", write(METADATA, b'{"a": 1}'), corrupt, METADATA),
        ("list", write(INDEX, b"[]"), corrupt, INDEX),
        ("bytes", write(METADATA, b"\xff\xfe"), corrupt, METADATA),
        ("deep", write(INDEX, b"[" * 100_000), corrupt, INDEX),
        ("one file gone", remove("trajectory_1_*"), missing, "trajectory_1_"),
        ("one file cut", cut("trajectory_1_*"), corrupt, "trajectory_1_"),
        (
            "another index",
            change_json(INDEX, "relive", "journal_bytes", to=7),
            corrupt,
            "is another index",
        ),
        (
            "a forged row shape",
            change_json(INDEX, "relive", "schema", "columns", "rewards", "row_shape", to=[10**9]),
            corrupt,
            r"the schema has float32 \[10+\] as 'rewards', but .*; restore it from a copy",
        ),
        (
            "a later version",
            change_json(METADATA, "relive", "version", to=99),
            FormatVersionError,
            "version 99",
        ),
        ("no version", change_json(METADATA, "relive", "version", to="x"), corrupt, METADATA),
        ("no state", change_json(METADATA, "relive", "state", to=3), corrupt, "state"),
        (
            "seed",
            change_json(METADATA, "relive", "state", "seed", to="x"),
            corrupt,
            "state",
        ),
        ("size", change_json(METADATA, "size", to="many"), corrupt, METADATA),
    ]
    return [pytest.param(*one[1:], id=one[0]) for one in found]


class TestDamagedCheckpoint:
    @pytest.mark.parametrize("kind", ["memory", "pt"])
    @pytest.mark.parametrize(("damage", "error", "told"), damages())
    def test_it_is_named_and_the_buffer_is_as_before(
        self,
        kind: str,
        damage: Callable[[Path], None],
        error: type[ReplayError],
        told: str,
        tmp_path: Path,
    ) -> None:
        make_checkpoint(tmp_path / "saved", [traj(10 + k) for k in range(3)])
        damage(tmp_path / "saved")
        with with_three(kind, tmp_path) as buffer:
            unchanged = Unchanged(buffer, tmp_path)
            with pytest.raises(error, match=told) as raised:
                buffer.load_checkpoint(tmp_path / "saved")
            assert type(raised.value) is error
            unchanged.check()
        if kind == "pt":
            assert not list((tmp_path / "store").glob("incoming-*"))
            assert not (tmp_path / "store" / "aside").exists()

    @pytest.mark.parametrize("kind", ["memory", "pt"])
    def test_changed_bytes_are_told_by_their_checksum_where_they_are_read(
        self, kind: str, tmp_path: Path
    ) -> None:
        make_checkpoint(tmp_path / "saved", [traj(10 + k) for k in range(3)])
        (path,) = (tmp_path / "saved").glob("trajectory_1_*")
        block = bytearray(path.read_bytes())
        block[block.find(np.array([11_000_000, 11_000_001]).tobytes())] ^= 1
        path.write_bytes(block)
        with with_three(kind, tmp_path) as buffer:
            unchanged = Unchanged(buffer, tmp_path)
            with pytest.raises(CorruptFileError, match=r"trajectory_1_.* checksum"):
                buffer.load_checkpoint(tmp_path / "saved")
            unchanged.check()

    @pytest.mark.parametrize("kind", ["memory", "pt"])
    def test_other_columns_than_declared_are_told(self, kind: str, tmp_path: Path) -> None:
        make_checkpoint(tmp_path / "saved", [traj(10, wide=True)])
        declared = Columns(required=("actions", "rewards", "dones", "curr_obs/id", "next_obs/id"))
        with open_buffer(kind, tmp_path, columns=declared) as buffer:
            with pytest.raises(ColumnMismatchError, match="prev_values"):
                buffer.load_checkpoint(tmp_path / "saved")
            assert len(buffer) == 0

    def test_a_link_to_itself_is_no_checkpoint(self, tmp_path: Path) -> None:
        (tmp_path / "saved").symlink_to(tmp_path / "saved")
        buffer = with_three("memory", tmp_path)
        with pytest.raises(StorageError, match="saved"):
            buffer.load_checkpoint(tmp_path / "saved")

    def test_a_file_is_no_checkpoint(self, tmp_path: Path) -> None:
        (tmp_path / "saved").write_text("mine")
        buffer = with_three("memory", tmp_path)
        unchanged = Unchanged(buffer, tmp_path)
        with pytest.raises(
            MissingFileError, match="is a file, but a store or checkpoint is a folder"
        ):
            buffer.load_checkpoint(tmp_path / "saved")
        with pytest.raises(StoreExistsError, match="is a file"):
            buffer.save_checkpoint(tmp_path / "saved")
        with pytest.raises(StorageError, match="below"):
            buffer.save_checkpoint(tmp_path / "saved" / "below")
        unchanged.check()
        assert (tmp_path / "saved").read_text() == "mine"
