# SPDX-License-Identifier: Apache-2.0
"""What a buffer costs does not grow with what it holds: bytes written, memory, held interpreter."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import textwrap
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest

from relive import Trajectory, TrajectoryReplayBuffer, files, index_file
from trajectories import check_rows, traj


def open_store(folder: Path, **options: Any) -> TrajectoryReplayBuffer:
    return TrajectoryReplayBuffer(
        auto_save=True, auto_save_path=folder, trajectory_format="pkl", **options
    )


class Written:
    """Counts the bytes that are written, by the kind of file."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bytes: Counter[str] = Counter()
        self.times: Counter[str] = Counter()
        write_atomic, append = files.write_atomic, files.AppendFile.append

        def count_file(path: Path, write: Callable[[BinaryIO], None], *, sync: bool) -> int:
            size = write_atomic(path, write, sync=sync)
            self.note(path.suffix if path.name.startswith("trajectory_0") else path.name, size)
            return size

        def count_line(file: files.AppendFile, block: bytes) -> None:
            append(file, block)
            self.note("lines", len(block))

        monkeypatch.setattr(files, "write_atomic", count_file)
        monkeypatch.setattr(files.AppendFile, "append", count_line)

    def note(self, kind: str, size: int) -> None:
        kind = "trajectories" if kind.endswith((".pt", ".pkl")) else kind
        self.bytes[kind] += size
        self.times[kind] += 1


class TestBytesWritten:
    """B74, counted at `relive.files` instead of timed."""

    def test_an_add_writes_the_same_however_many_there_are(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("relive.disk._EXPORT_SHARE", 1_000_000)  # one export, then none
        one = Trajectory(rewards=np.zeros((1, 1), np.float32))
        with open_store(tmp_path / "store", sample_window_size=0) as buffer:
            written = Written(monkeypatch)
            costs = []
            for _ in range(12):
                before = sum(written.bytes.values())
                for _ in range(100):
                    buffer.add_trajectories([one])
                buffer.flush()
                costs.append(sum(written.bytes.values()) - before)
            assert written.bytes["metadata.json"] < 10_000
            assert max(costs[2:]) < 1.05 * min(costs[2:])

    def test_the_index_is_folded_when_it_has_doubled(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("relive.journal._SMALLEST_FOLD_BYTES", 10_000)
        monkeypatch.setattr("relive.disk._EXPORT_SHARE", 1)  # an export whenever it is asked for
        folder = tmp_path / "store"
        one = Trajectory(rewards=np.zeros((1, 1), np.float32))
        with open_store(folder, sample_window_size=0) as buffer:
            for _ in range(30):
                buffer.add_trajectories([one] * 10)
                buffer.flush()
            assert (folder / "trajectory_index.journal").stat().st_size < 400_000
            lines = (folder / "trajectory_index.journal").read_bytes().splitlines()
            generation = json.loads(lines[0])["generation"]
            assert 3 <= generation <= 8  # of 300 entries of some 500 bytes
        with open_store(folder, if_exists="resume") as buffer:
            assert len(buffer) == 300

    def test_writing_the_index_lets_other_threads_run_every_few_records(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """50 records take about a millisecond; a sample may be stalled for 5."""
        most, since = 0, 0
        record_to_json, sleep = index_file.record_to_json, time.sleep

        def count(*arguments: Any) -> dict[str, Any]:
            nonlocal since
            since += 1
            return record_to_json(*arguments)

        def note(seconds: float) -> None:
            nonlocal most, since
            most, since = max(most, since), 0
            sleep(seconds)

        monkeypatch.setattr(index_file, "record_to_json", count)
        monkeypatch.setattr(time, "sleep", note)
        with open_store(tmp_path / "store", sample_window_size=0) as buffer:
            buffer.add_trajectories([traj(0, T=1, B=1)] * 230)
            buffer.flush()
            assert 0 < most <= 50


class TestMemory:
    def test_the_index_takes_less_than_1_kb_a_trajectory(self, tmp_path: Path) -> None:
        """B68."""
        num = 300
        with open_store(tmp_path / "store", cache_size=0, sample_window_size=0) as buffer:
            buffer.add_trajectories([traj(0, T=1, B=1)] * 50)  # what is made once only
            buffer.flush()
            tracemalloc.start()
            try:
                before = self.held()
                weights_ids = [f"3db5df6d-a5c9-59e4-913c-8aa0093702c{n % 10}" for n in range(num)]
                buffer.add_trajectories(
                    [traj(n, T=1, B=1, weights_id=one) for n, one in enumerate(weights_ids)]
                )
                buffer.flush()
                del weights_ids
                assert self.held() - before < 1000 * num
            finally:
                tracemalloc.stop()
        tracemalloc.start()
        try:
            before = self.held()
            with open_store(tmp_path / "store", if_exists="resume", cache_size=0) as buffer:
                assert self.held() - before < 1000 * (num + 50) + 100_000
        finally:
            tracemalloc.stop()

    @staticmethod
    def held() -> int:
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    @pytest.mark.skipif(sys.platform != "linux", reason="address space is read from /proc")
    @pytest.mark.parametrize("kind", ["pt", "pkl"])
    def test_a_checkpoint_is_streamed(self, kind: str, tmp_path: Path) -> None:
        """B41: 160 MB are saved and loaded with 60 MB of address space more."""
        script = """
            import os, resource, sys
            import torch
            from relive import Trajectory, TrajectoryReplayBuffer
            store, kind = os.path.join(sys.argv[1], "store"), sys.argv[2]
            options = dict(auto_save=True, trajectory_format=kind, cache_size=2)
            buffer = TrajectoryReplayBuffer(auto_save_path=store, **options)
            for k in range(20):
                column = torch.full((1000, 1000), k, dtype=torch.float64)
                buffer.add_trajectories([Trajectory(rewards=column)])
                buffer.flush()
            buffer.clear_cache()
            other = TrajectoryReplayBuffer(
                auto_save_path=os.path.join(sys.argv[1], "other"), **options | {"cache_size": 0}
            )
            with open("/proc/self/statm") as file:
                size = int(file.read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (size + (60 << 20),) * 2)
            buffer.save_checkpoint(os.path.join(sys.argv[1], "checkpoint"))
            other.load_checkpoint(os.path.join(sys.argv[1], "checkpoint"))
            assert len(other) == 20
            buffer.close()
            other.close()
        """
        ran = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script), str(tmp_path), kind],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert ran.returncode == 0, ran.stderr
        size = sum(path.stat().st_size for path in (tmp_path / "checkpoint").iterdir())
        assert size > 160_000_000

    def test_a_window_that_moves_keeps_no_memory(self) -> None:
        buffer = TrajectoryReplayBuffer(sample_window_size=2, framework="numpy")
        one = Trajectory(rewards=np.zeros((100, 1000)))  # 0.8 MB
        tracemalloc.start()
        try:
            buffer.add_trajectories([one] * 3)
            before = self.held()
            for _ in range(30):
                buffer.add_trajectories([one])
                buffer.sample(10)
            assert self.held() - before < 100_000
        finally:
            tracemalloc.stop()
        assert len(buffer) == 33


class TestManyTrajectories:
    def test_rows_are_found_among_thousands(self) -> None:
        buffer = TrajectoryReplayBuffer(sample_window_size=0, framework="numpy")
        made = [traj(k, T=1 + k % 3, B=1 + k % 2) for k in range(999)]
        for _ in range(3):
            buffer.add_trajectories(made)
        buffer.delete(range(1, 2997, 3))
        assert len(buffer) == 2997 - 999
        check_rows(buffer.sample(4000))
