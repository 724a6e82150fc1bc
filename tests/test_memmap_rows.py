# SPDX-License-Identifier: Apache-2.0
"""Rows through a memmap store: what comes back, whichever way it is read, and how it lies there."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from buffers import open_memmap
from relive import Columns, Trajectory, TrajectoryReplayBuffer, open_files
from relive.columns import flatten
from relive.errors import MissingFileError, StorageWriteError
from relive.formats import MemmapFormat
from relive.formats.memmap import segment_spec
from relive.snapshot import take_snapshot
from relive.testing import differences, trajectories
from segments import Segment, segments_of
from trajectories import check_rows, same_trajectory, traj

READ_MODES: tuple[Literal["mmap", "pread"], ...] = ("mmap", "pread")
FRAME = 512  # int64 numbers in a frame: 4,096 bytes

many = settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


def same_batch(found: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    """Tell whether two batches are the same bit for bit."""
    one, other = dict(flatten(found)), dict(flatten(expected))
    return list(one) == list(other) and all(_bits(one[name]) == _bits(other[name]) for name in one)


def _bits(column: Any) -> object:
    if isinstance(column, torch.Tensor):
        flat = column.contiguous().flatten().view(torch.uint8)
        return column.dtype, column.shape, flat.numpy().tobytes()
    return column


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
class TestAnyTrajectory:
    @given(
        added=trajectories(),
        large=st.sampled_from([5, 4096]),
        segment_bytes=st.sampled_from([1, 1 << 30]),
        read_mode=st.sampled_from(READ_MODES),
        is_flushed=st.booleans(),
        seed=st.integers(0, 2**32),
    )
    @many
    def test_each_way_of_reading_it_gives_what_was_added(
        self,
        tmp_path_factory: pytest.TempPathFactory,
        added: Trajectory,
        large: int,
        segment_bytes: int,
        read_mode: Literal["mmap", "pread"],
        is_flushed: bool,
        seed: int,
    ) -> None:
        """With rows of 5 bytes called large, those of any shape become frames, but no texts."""
        form = MemmapFormat(segment_bytes=segment_bytes, read_mode=read_mode)
        snapshot = take_snapshot(added)
        with mock.patch.object(segment_spec, "LARGE_ROW_BYTES", large):
            folder = tmp_path_factory.mktemp("store") / "store"
            with (
                open_memmap(folder, trajectory_format=form, seed=seed) as buffer,
                TrajectoryReplayBuffer(sample_window_size=0, seed=seed) as model,
            ):
                for one in (buffer, model):
                    one.add_trajectories([added, added])
                    one.add_trajectories([added])
                if is_flushed:
                    buffer.flush()
                for num in (1, 7, 40):
                    assert same_batch(buffer.sample(num), model.sample(num))
                rows = np.random.default_rng(seed).permutation(3 * snapshot.num_rows)
                expected = model.gather(rows)
                assert same_batch(buffer.gather(rows), expected)
                for k in range(3):
                    assert differences(take_snapshot(buffer.trajectory(k)), snapshot) == []
            with open_memmap(folder, if_exists="resume") as again:
                assert same_batch(again.gather(rows), expected)
                assert differences(take_snapshot(again.trajectory(1)), snapshot) == []


def frames_at(address: NDArray[np.int64]) -> NDArray[np.int64]:
    """Frames filled with their address, `[..., FRAME]`."""
    return np.repeat(address[..., None], FRAME, -1)


def episodes(k: int, T: int, B: int, own: NDArray[np.bool_]) -> Trajectory:
    """Return a trajectory whose frames are addresses; where `own`, `[T, B]`, is set a successor
    is not the next step's observation but minus its address."""
    step, env = np.mgrid[: T + 1, :B]
    address = 1_000_000 * k + 1_000 * step + env
    after = np.where(own, -address[:-1] - 1, address[1:])
    return Trajectory(
        dones=own,
        curr_obs={"frame": frames_at(address[:-1]), "id": address[:-1]},
        next_obs={"frame": frames_at(after), "id": after},
    )


def only_segment(folder: Path) -> Segment:
    (segment,) = segments_of(folder)
    return segment


class TestFrames:
    """Observations of a run lie on the disk once: T and the one after the last."""

    @given(
        T=st.integers(1, 9),
        B=st.integers(1, 9),
        share=st.sampled_from([0.0, 0.2, 1.0]),
        seed=st.integers(0, 2**32),
    )
    @settings(many, max_examples=20)
    def test_there_are_as_many_as_differ_and_each_comes_back(
        self,
        tmp_path_factory: pytest.TempPathFactory,
        T: int,
        B: int,
        share: float,
        seed: int,
    ) -> None:
        rng = np.random.default_rng(seed)
        folder = tmp_path_factory.mktemp("store") / "store"
        owns = [rng.random((T, B)) < share for _ in range(3)]
        with open_memmap(folder) as buffer:
            made = [episodes(k, T, B, own) for k, own in enumerate(owns)]
            buffer.add_trajectories(made)
            buffer.flush()
            num_own = sum(int(own[:-1].sum()) + B for own in owns)
            assert only_segment(folder).num_frames("curr_obs.frame.bin") == 3 * T * B + num_own
            batch = buffer.gather(rng.permutation(3 * T * B))
            for side in ("curr_obs", "next_obs"):
                found = np.asarray(batch[side]["frame"])
                np.testing.assert_array_equal(found, frames_at(np.asarray(batch[side]["id"])))
            for k, one in enumerate(made):
                assert differences(take_snapshot(buffer.trajectory(k)), take_snapshot(one)) == []

    def test_a_run_of_t_steps_takes_one_more(self, tmp_path: Path) -> None:
        for T, B in [(1, 1), (1, 4), (6, 1), (6, 4)]:
            folder = tmp_path / f"{T} {B}"
            with open_memmap(folder) as buffer:
                buffer.add_trajectories([episodes(0, T, B, np.zeros((T, B), np.bool_))])
                buffer.flush()
                assert only_segment(folder).num_frames("curr_obs.frame.bin") == (T + 1) * B

    def test_a_truncated_step_keeps_its_own_final_observation(self, tmp_path: Path) -> None:
        """Elsewhere the successor was taken from the next step: the next episode's first."""
        own = np.zeros((6, 2), np.bool_)
        own[2, 1] = own[4, 0] = True
        with open_memmap(tmp_path / "store") as buffer:
            buffer.add_trajectories([episodes(0, 6, 2, own)])
            buffer.flush()
            batch = buffer.gather([2 * 2 + 1, 3 * 2 + 1, 4 * 2 + 0])
            assert np.asarray(batch["next_obs"]["frame"])[:, 0].tolist() == [-2002, 4001, -4001]
            assert np.asarray(batch["curr_obs"]["frame"])[:, 0].tolist() == [2001, 3001, 4000]
        assert only_segment(tmp_path / "store").num_frames("curr_obs.frame.bin") == 7 * 2 + 2

    def test_epochs_and_gaps_take_what_differs(self, tmp_path: Path) -> None:
        """Three epochs of two steps, and a gap after the first step of env 0."""
        own = np.zeros((6, 2), np.bool_)
        own[[1, 3]] = True
        own[0, 0] = True
        made = episodes(0, 6, 2, own)
        flags = np.zeros((9, 2), np.bool_)
        flags[[2, 5, 8]] = True
        made.dones, made.prev_values = flags, np.arange(18.0).reshape(9, 2)
        made.gaps = own & (np.arange(6) == 0)[:, None]
        with open_memmap(tmp_path / "store") as buffer:
            buffer.add_trajectories([made])
            buffer.flush()
            stored = take_snapshot(buffer.trajectory(0))
            assert differences(stored, take_snapshot(made)) == []
            assert (stored.num_epochs, stored.gaps is None) == (3, False)
        assert only_segment(tmp_path / "store").num_frames("curr_obs.frame.bin") == 7 * 2 + 5

    @pytest.mark.parametrize(
        ("change", "num_own"),
        [
            (lambda bits: bits, 0),
            (lambda bits: bits ^ 1, 1),
            (lambda bits: bits ^ (1 << 31), 1),  # 0.0 and -0.0, which are equal as numbers
        ],
    )
    @pytest.mark.parametrize("value", [0.0, float("nan")])
    def test_bits_decide_and_not_numbers(
        self, value: float, change: Callable[[int], int], num_own: int, tmp_path: Path
    ) -> None:
        curr = np.full((3, 1, 1024), value, np.float32)
        after = curr.copy()
        bits = after.view(np.uint32)
        bits[0, 0, 1023] = change(int(bits[0, 0, 1023]))
        made = Trajectory(curr_obs={"x": curr}, next_obs={"x": after})
        with open_memmap(tmp_path / "store") as buffer:
            buffer.add_trajectories([made])
            buffer.flush()
            batch = buffer.gather([0, 1, 2])
            assert np.asarray(batch["next_obs"]["x"]).tobytes() == after.tobytes()
            assert np.asarray(batch["curr_obs"]["x"]).tobytes() == curr.tobytes()
            assert differences(take_snapshot(buffer.trajectory(0)), take_snapshot(made)) == []
        assert only_segment(tmp_path / "store").num_frames("curr_obs.x.bin") == 4 + num_own

    def test_a_frame_of_odd_size_is_compared_to_its_last_byte(self, tmp_path: Path) -> None:
        curr = np.zeros((3, 2, 4099), np.uint8)
        after = curr.copy()
        after[1, 1, 4098] = 1
        with open_memmap(tmp_path / "store") as buffer:
            buffer.add_trajectories([Trajectory(curr_obs={"x": curr}, next_obs={"x": after})])
            buffer.flush()
            found = np.asarray(buffer.gather(np.arange(6))["next_obs"]["x"])
            assert found.tobytes() == after.tobytes()
        assert only_segment(tmp_path / "store").num_frames("curr_obs.x.bin") == 2 * 4 + 1

    @pytest.mark.parametrize(
        "columns",
        [
            {"curr_obs/x": np.uint8},
            {"next_obs/x": np.uint8},
            {"curr_obs/x": np.uint8, "next_obs/x": np.int8},
            {"curr_obs/x": np.uint8, "next_obs/y": np.uint8},
            {"forward_inputs/x": np.uint8, "extras/x": np.uint8},
        ],
        ids=str,
    )
    def test_what_has_no_partner_takes_a_frame_a_row(
        self, columns: dict[str, Any], tmp_path: Path
    ) -> None:
        made, expected = Trajectory(), {}
        for number, (name, dtype) in enumerate(columns.items()):
            field, key = name.split("/")
            expected[name] = np.arange(5 * 2 * 4096).reshape(5, 2, 4096).astype(dtype) + number
            getattr(made, field)[key] = expected[name]
        made.rewards = np.zeros((5, 2))
        with open_memmap(tmp_path / "store") as buffer:
            buffer.add_trajectories([made])
            buffer.flush()
            batch = dict(flatten(buffer.gather(np.arange(10))))
            for name, column in expected.items():
                assert np.asarray(batch[name]).tobytes() == column.tobytes()
        segment = only_segment(tmp_path / "store")
        for name in columns:
            assert segment.num_frames(f"{name.replace('/', '.')}.bin") == 10

    def test_names_with_dots_have_files_of_their_own(self, tmp_path: Path) -> None:
        made = Trajectory(
            curr_obs={
                "a": {"b": frames_at(np.full((3, 2), 1))},
                "a.b": frames_at(np.full((3, 2), 2)),
            }
        )
        with open_memmap(tmp_path / "store") as buffer:
            buffer.add_trajectories([made])
            buffer.flush()
            batch = buffer.gather([0, 5])["curr_obs"]
            assert np.asarray(batch["a"]["b"]).tolist() == [[1] * FRAME] * 2
            assert np.asarray(batch["a.b"]).tolist() == [[2] * FRAME] * 2

    @pytest.mark.parametrize("B", [1, 4])
    def test_images_take_half_of_what_both_observations_have(self, B: int, tmp_path: Path) -> None:
        images = np.random.default_rng(1).integers(0, 256, (21, B, 64, 64, 3), np.uint8)
        with open_memmap(tmp_path / "store") as buffer:
            buffer.add_trajectories(
                [Trajectory(curr_obs={"image": images[:-1]}, next_obs={"image": images[1:]})]
            )
            logical = buffer.get_stats()["size_bytes"]
            assert logical == 2 * 20 * B * 64 * 64 * 3
        stored = sum(p.stat().st_size for p in (tmp_path / "store").rglob("*") if p.is_file())
        assert stored <= 0.55 * logical


class TestPlacement:
    """Env after env, so that a sequence of one env is one stretch of the file."""

    @pytest.mark.parametrize(("T", "B"), [(5, 3), (4, 4), (1, 6), (6, 1)])
    def test_a_record_lies_at_b_times_t_plus_t(self, T: int, B: int, tmp_path: Path) -> None:
        with open_memmap(tmp_path / "store") as buffer:
            buffer.add_trajectories([traj(k, T=T, B=B, wide=True) for k in range(3)])
            buffer.flush()
            segment = only_segment(tmp_path / "store")
            address = [
                1_000_000 * k + 1_000 * t + b for k in range(3) for b in range(B) for t in range(T)
            ]
            assert segment.column("curr_obs/id").tolist() == address
            wide = segment.column("curr_obs/wide")[:, 1199]
            assert wide.tolist() == [float(np.float32(one)) for one in address]
            assert segment.column("actions")[:, 1].tolist() == [-one for one in address]
            check_rows(buffer.gather(np.random.default_rng(1).permutation(3 * T * B)))

    @pytest.mark.parametrize(("T", "B"), [(5, 3), (4, 4)])
    def test_frames_lie_in_the_order_of_time(self, T: int, B: int, tmp_path: Path) -> None:
        own = np.zeros((T, B), np.bool_)
        own[2, 1] = True
        with open_memmap(tmp_path / "store") as buffer:
            buffer.add_trajectories([episodes(0, T, B, own), episodes(1, T, B, own)])
        segment = only_segment(tmp_path / "store")
        positions = segment.positions("curr_obs/frame").reshape(2, B, T)
        steps = 1 + (own.T & (np.arange(T) < T - 1))  # [B, T]
        assert np.diff(positions, axis=2).tolist() == [steps[:, :-1].tolist()] * 2
        first = segment.column("curr_obs/frame")[:, 0].reshape(2, B, T)
        assert first[1, 1].tolist() == [1_000_001 + 1_000 * t for t in range(T)]
        after = segment.column("next_obs/frame")[:, 0].reshape(2, B, T)
        assert after[1, 1, 2] == -1_002_002
        assert positions[0, 0, 0] == 0
        assert positions[-1, -1, -1] == segment.num_frames("curr_obs.frame.bin") - 2


class FullDisk:
    """Nothing is written into a segment until there is room."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._is_full = True
        write_at = open_files.GrowingFile.write_at

        def refuse(file: open_files.GrowingFile, *args: Any, **options: Any) -> None:
            if self._is_full:
                raise OSError(28, "no room")
            write_at(file, *args, **options)

        monkeypatch.setattr(open_files.GrowingFile, "write_at", refuse)

    def make_room(self, buffer: TrajectoryReplayBuffer) -> None:
        """Store what waits."""
        with pytest.raises(StorageWriteError, match="no room"):
            buffer.flush()
        self._is_full = False
        buffer.flush()


class TestBatches:
    """Rows of a batch may lie in memory, in segments of several layouts, and in files."""

    @pytest.mark.parametrize("read_mode", READ_MODES)
    def test_what_waits_to_be_written_and_what_is_stored_mix(
        self, read_mode: Literal["mmap", "pread"], tmp_path: Path
    ) -> None:
        form = MemmapFormat(read_mode=read_mode, segment_bytes=20_000)
        with open_memmap(tmp_path / "store", trajectory_format=form) as buffer:
            for k in range(0, 40, 4):
                buffer.add_trajectories([traj(n, T=n % 5 + 1, wide=True) for n in range(k, k + 4)])
                for num in (1, 50):
                    batch, info = buffer.sample(num, return_info=True)
                    check_rows(batch, info, {n: n for n in range(k + 4)})
        assert len(segments_of(tmp_path / "store")) > 5

    def test_a_few_stored_rows_among_many_in_memory(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with open_memmap(tmp_path / "store") as buffer:
            buffer.add_trajectories([traj(k, wide=True) for k in range(3)])
            buffer.flush()
            full = FullDisk(monkeypatch)
            buffer.add_trajectories([traj(k, wide=True) for k in range(3, 6)])
            rows = np.random.default_rng(3).permutation(6 * 12)
            for some in (rows, [40, 3, 70], [3], [70], [0, 71], [71, 0, 71, 0]):
                check_rows(buffer.gather(some))
            assert buffer.get_stats()["pending_trajectories"] == 3
            for k in (2, 4):
                assert same_trajectory(buffer.trajectory(k), traj(k, wide=True))
            full.make_room(buffer)
            assert buffer.get_stats()["pending_trajectories"] == 0
            check_rows(buffer.gather(rows))

    @pytest.mark.parametrize("read_mode", READ_MODES)
    def test_a_column_that_some_lack_has_its_default_there(
        self,
        read_mode: Literal["mmap", "pread"],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        optional = {"intervene_flags": False, "extras/wide": 7.5, "extras/text": "none"}
        form = MemmapFormat(read_mode=read_mode)
        columns = Columns(optional=optional)

        def made(k: int) -> Trajectory:
            one = traj(k, T=4, B=2)
            if k % 2:
                one.intervene_flags = np.ones((4, 2), np.bool_)
            if k % 3 == 1:
                wide = np.asarray(one.curr_obs["id"])[..., None].astype(np.float64)
                one.extras["wide"] = np.repeat(wide, 600, 2)
            if k % 3 == 2:
                one.extras["text"] = [[f"{k} {t} {b}" for b in range(2)] for t in range(4)]
            return one

        with open_memmap(tmp_path / "store", trajectory_format=form, columns=columns) as buffer:
            buffer.add_trajectories([made(k) for k in (1, 5, 0)])
            buffer.flush()
            full = FullDisk(monkeypatch)
            buffer.add_trajectories([made(k) for k in (2, 3, 4)])
            for is_stored in (False, True):
                if is_stored:
                    full.make_room(buffer)
                batch = buffer.gather(np.random.default_rng(2).permutation(6 * 8))
                ids = np.asarray(batch["curr_obs"]["id"])
                k, t, b = ids // 1_000_000, ids // 1_000 % 1_000, ids % 1_000
                flags = np.asarray(batch["intervene_flags"])
                assert flags.tolist() == (k % 2 == 1).tolist()
                wide = np.asarray(batch["extras"]["wide"])
                assert wide[:, [0, 599]].tolist() == [
                    [float(i) if n % 3 == 1 else 7.5] * 2
                    for i, n in zip(ids.tolist(), k.tolist(), strict=True)
                ]
                assert batch["extras"]["text"] == [
                    f"{n} {i} {j}" if n % 3 == 2 else "none"
                    for n, i, j in zip(k.tolist(), t.tolist(), b.tolist(), strict=True)
                ]

    @pytest.mark.parametrize("first", ["pt", "pkl"])
    def test_files_of_another_format_and_segments_mix(self, first: str, tmp_path: Path) -> None:
        with open_memmap(tmp_path / "files", trajectory_format=first) as buffer:
            buffer.add_trajectories([traj(k, wide=True) for k in range(3)])
            buffer.save_checkpoint(tmp_path / "of files")
        with open_memmap(tmp_path / "segments") as buffer:
            buffer.load_checkpoint(tmp_path / "of files")
            buffer.add_trajectories([traj(k, wide=True) for k in range(3, 6)])
            for _ in range(2):
                check_rows(buffer.gather(np.random.default_rng(3).permutation(6 * 12)))
                check_rows(buffer.gather([3, 70]))
                buffer.flush()
            buffer.save_checkpoint(tmp_path / "of both")
        with open_memmap(tmp_path / "segments", if_exists="resume") as buffer:
            check_rows(buffer.gather(np.arange(6 * 12)))
        with open_memmap(tmp_path / "again", trajectory_format=first) as buffer:
            buffer.load_checkpoint(tmp_path / "of both")
            buffer.add_trajectories([traj(6, wide=True)])
            check_rows(buffer.gather(np.random.default_rng(3).permutation(7 * 12)))
            for k in range(7):
                assert same_trajectory(buffer.trajectory(k), traj(k, wide=True))

    def test_a_column_that_is_not_asked_for_is_not_touched(self, tmp_path: Path) -> None:
        form = MemmapFormat(read_mode="pread")
        with open_memmap(tmp_path / "store", trajectory_format=form) as buffer:
            buffer.add_trajectories([traj(k, wide=True) for k in range(3)])
            buffer.flush()
            wide = tmp_path / "store" / "segments" / "00000000" / "curr_obs.wide.bin"
            wide.rename(tmp_path / "away")
            batch = buffer.sample(30, columns=["curr_obs/id", "rewards"])
            assert set(batch) == {"curr_obs", "rewards"}
            with pytest.raises(MissingFileError, match=r"curr_obs\.wide\.bin"):
                buffer.sample(30)
            (tmp_path / "away").rename(wide)
            check_rows(buffer.sample(30))

    def test_outputs_are_the_callers_own(self, tmp_path: Path) -> None:
        with open_memmap(tmp_path / "store", framework="numpy") as buffer:
            buffer.add_trajectories([traj(k, wide=True) for k in range(3)])
            buffer.flush()
            held = [buffer.gather([k * 12 + 5] * 9)["curr_obs"]["wide"][3] for k in range(3)]
            for _ in range(9):
                buffer.sample(9)["curr_obs"]["wide"][:] = -1
            check_rows(buffer.sample(40))
            assert [one[7] for one in held] == [1_000_000 * k + 1_002 for k in range(3)]

    def test_nothing_warns(self, tmp_path: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with open_memmap(tmp_path / "store") as buffer:
                buffer.add_trajectories([traj(0)])
                buffer.flush()
                buffer.sample(3)
