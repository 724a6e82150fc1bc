# SPDX-License-Identifier: Apache-2.0
"""Memory of the whole process: bounded as the limits say, and the system's again afterwards."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from programs import run_program
from relive.memory import own_copy
from relive.tensors import copy_in

LARGE = 4 << 20
"""Bytes from which on a copy has pages of its own."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


def arrays() -> dict[str, NDArray[Any]]:
    """Return arrays of at least `LARGE` bytes, and one that is a little smaller."""
    plain = np.arange(LARGE // 8 + 12.0).reshape(4, -1)
    read_only = plain.copy()
    read_only.flags.writeable = False
    return {
        "plain": plain,
        "smaller": plain[:1],
        "read-only": read_only,
        "transposed": plain.T,
        "strided": np.repeat(plain, 2, 1)[:, ::2],
        "backwards": plain[::-1, ::-1],
        "broadcast": np.broadcast_to(plain[0], (4, 5, plain.shape[1])),
        "flags": plain % 3 == 0,
        "images": np.resize(plain.view(np.uint8), (7, 3, 500, 500)),
    }


class TestOwnCopy:
    @pytest.mark.parametrize("name", arrays())
    @pytest.mark.parametrize("is_refused", [False, True])
    def test_any_array_is_copied_whole(
        self, name: str, is_refused: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if is_refused:

            def refuse(*_: Any) -> NoReturn:
                raise OSError(12, "too many mappings")

            monkeypatch.setattr(mmap, "mmap", refuse)
        array = arrays()[name]
        copied = own_copy(array, array.dtype)
        assert copied.flags.c_contiguous
        assert copied.flags.writeable
        assert not np.shares_memory(copied, array)
        assert (copied.dtype, copied.shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(copied, array)
        copied[...] = 1
        np.testing.assert_array_equal(array, arrays()[name])

    def test_the_byte_order_is_changed_on_the_way(self) -> None:
        array = arrays()["plain"]
        copied, dtype = copy_in(array.astype(">f8"), "rewards")
        assert (dtype, copied.dtype) == ("float64", np.dtype("=f8"))
        np.testing.assert_array_equal(copied, array)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.bool])
    def test_tensors_are_copied_whole(self, dtype: torch.dtype) -> None:
        tensor = (torch.arange(LARGE) % 7).to(dtype).reshape(4, -1).T
        copied, name = copy_in(tensor, "rewards")
        assert name == str(dtype).removeprefix("torch.")
        assert copied.shape == tensor.shape
        assert torch.equal(
            torch.from_numpy(copied.view(np.uint8)), tensor.contiguous().view(torch.uint8)
        )

    @given(shape=st.lists(st.integers(0, 5), max_size=4), dtype=st.sampled_from(["?", "u1", "<f8"]))
    def test_small_and_empty_ones_are_plain(self, shape: list[int], dtype: str) -> None:
        array = np.ones(shape, dtype)
        copied = own_copy(array, array.dtype)
        np.testing.assert_array_equal(copied, array)
        assert copied.shape == array.shape


BEGINNING = """
import sys, threading
from pathlib import Path
import numpy as np
import torch
from relive import Limits, Trajectory, TrajectoryReplayBuffer, files
from relive.writer import Writer

MB = 1 << 20
folder, form, num = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
options = dict(
    sample_window_size=0, auto_save=True, auto_save_path=folder / "store",
    trajectory_format=form, framework="numpy",
)

def resident_mb():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / MB

def add(buffer, k, num_rows):
    states = np.full((num_rows, 1, MB), k % 256, np.uint8)
    buffer.add_trajectories([Trajectory(curr_obs={"states": states})])

def check_all(buffer, num_rows):
    for k in range(num):
        row = buffer.gather([num_rows * k + num_rows - 1])["curr_obs"]["states"]
        assert (row == k % 256).all(), k
"""

STORE = """
with TrajectoryReplayBuffer(cache_size=2, **options) as buffer:
    held = []
    for k in range(num):
        add(buffer, k, 8)
        if k + 1 in (num // 4, num):
            buffer.flush()
            held.append(resident_mb())
    check_all(buffer, 8)
print(held[1] - held[0])
"""

QUEUE = """
turns = threading.Semaphore(0)
write_atomic, wait_for_room = files.write_atomic, Writer.wait_for_room

def write_in_turn(path, write, *, sync):
    if path.suffix == f".{form}":
        turns.acquire()
    return write_atomic(path, write, sync=sync)

def give_a_turn(self, size, most):
    if self.pending_bytes + size > most:  # only now the disk writes one more
        turns.release()
    wait_for_room(self, size, most)

files.write_atomic, Writer.wait_for_room = write_in_turn, give_a_turn
limits = Limits(max_pending_bytes=64 * MB)
with TrajectoryReplayBuffer(cache_size=0, limits=limits, **options) as buffer:
    turns.release()
    add(buffer, 0, 4)
    buffer.flush()
    before, most, most_pending = resident_mb(), 0.0, 0.0
    for k in range(1, num):
        add(buffer, k, 4)
        most = max(most, resident_mb() - before)
        most_pending = max(most_pending, buffer.get_stats()["pending_bytes"] / MB)
    turns.release(num)
    buffer.flush()
    assert len(buffer) == num
    assert most_pending == 64, most_pending
    check_all(buffer, 4)
print(most)
"""


class TestProcess:
    """Stores on disk grew with each episode, and queues with each one that the disk was late."""

    @pytest.mark.parametrize(
        ("form", "num"),
        [
            ("pt", 24),
            pytest.param("pt", 200, marks=pytest.mark.slow),
            pytest.param("pkl", 200, marks=pytest.mark.slow),
        ],
    )
    def test_four_times_as_many_on_disk_take_no_more_memory(
        self, form: str, num: int, tmp_path: Path
    ) -> None:
        """Each has 8 MB, and the disk is behind; measured when it has caught up."""
        assert float(run_program(BEGINNING + STORE, tmp_path, form, num)) < 10

    @pytest.mark.parametrize(
        ("form", "num"),
        [
            ("pt", 40),
            pytest.param("pt", 500, marks=pytest.mark.slow),
            pytest.param("pkl", 500, marks=pytest.mark.slow),
        ],
    )
    def test_a_slow_disk_makes_producers_wait_and_memory_stays(
        self, form: str, num: int, tmp_path: Path
    ) -> None:
        """64 MB may wait, in trajectories of 4; beside them are those at hand in both threads."""
        assert float(run_program(BEGINNING + QUEUE, tmp_path, form, num)) < 64 + 6 * 4
