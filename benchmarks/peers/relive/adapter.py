# SPDX-License-Identifier: Apache-2.0
"""relive itself behind the methods that the runner calls; runs in the project's environment."""

from __future__ import annotations

import ctypes
import gc
import resource
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import page_cache
import relive
from alike import add_alike
from protocol import serve
from relive import disk as relive_disk
from relive.folder import IfExists
from relive.formats.memmap.mapped_table import MappedTable
from workloads import WORKLOADS

KEPT_FILES = ("segment.json", "side.bin")
"""Of a segment, what is no rows."""
COPY = MappedTable._copy
"""What `test_for_cold` puts back."""


class Adapter:
    """One buffer at a time."""

    def version(self) -> str:
        """Return what is measured."""
        return f"relive {relive.__version__}"

    def open(
        self,
        workload: str,
        folder: str,
        auto_save: bool,
        enable_cache: bool,
        window: int,
        max_pending_bytes: int = 1 << 30,
        trajectory_format: str = "pt",
        if_exists: IfExists = "refuse",
    ) -> None:
        """Make an empty buffer, or go on with one that was stored."""
        self.workload = WORKLOADS[workload]
        self.folder = Path(folder)
        self.added = 0
        self.buffer = relive.TrajectoryReplayBuffer(
            enable_cache=enable_cache,
            sample_window_size=window,
            auto_save=auto_save,
            auto_save_path=folder if auto_save else "",
            trajectory_format=trajectory_format,
            if_exists=if_exists,
            limits=relive.Limits(max_pending_bytes=max_pending_bytes),
        )
        self.ready: list[Any] = []

    def prepare(self, count: int) -> None:
        """Make the next trajectories outside of what is timed."""
        self.ready = [self._trajectory(self.added + k) for k in reversed(range(count))]

    def add(self) -> None:
        """Add one that was prepared."""
        self.buffer.add_trajectories([self.ready.pop()])
        self.added += 1

    def settle(self) -> None:
        """Wait until all that was added is stored."""
        self.buffer.flush()

    def sample(self, num: int) -> int:
        """Draw one batch."""
        return len(self.buffer.sample(num)["rewards"])

    def fill(self, count: int) -> None:
        """Add those that were prepared again and again, so many in all."""
        for k in range(count):
            self.buffer.add_trajectories([self.ready[k % len(self.ready)]])

    def fill_alike(self, count: int) -> None:
        """Add so many that are all alike, as fast as can be, until they are stored."""
        add_alike(self.buffer, self.ready[0], count)

    def sync_files(self) -> None:
        """Have all that was stored on the disk."""
        page_cache.sync(self.folder)

    def drop_pages(self, num: int) -> None:
        """Have nothing of the files in memory."""
        page_cache.drop(self.folder)

    def punch(self) -> None:
        """Free the disk space of all rows, which are zeros from now on; files keep their sizes."""
        for path in page_cache.files_in(self.folder):
            if path.parent.parent.name == "segments" and path.name not in KEPT_FILES:
                page_cache.punch(path)

    def test_for_cold(self, is_on: bool) -> None:
        """Have rows taken as ever, or without finding out whether they were cold."""
        MappedTable._copy = COPY if is_on else _copy_untested  # type: ignore[assignment, method-assign]  # what it costs is measured

    def checkpoint(self, path: str) -> None:
        """Save a checkpoint."""
        self.buffer.save_checkpoint(path)

    def limit_memory(self, size_bytes: int) -> None:
        """Have this process refused more private memory than this, from now on."""
        resource.setrlimit(resource.RLIMIT_DATA, (size_bytes, size_bytes))

    def memory(self) -> dict[str, int]:
        """Return what memory this process has, in bytes, once all that is free was given back."""
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        with open("/proc/self/smaps_rollup") as file:
            lines = [line.split() for line in file if line.endswith(" kB\n")]
        return {name.rstrip(":"): int(size) << 10 for name, size, _ in lines}

    def begin_folds(self) -> None:
        """Fold the journal again and again in the writer's thread, until `end_folds`."""
        self.must_stop = threading.Event()
        self.num_folds = 0

        def fold() -> None:
            disk = self.buffer._store.disk
            assert disk is not None
            while not self.must_stop.is_set():
                disk.writer.run(
                    "a fold", lambda: disk._journal._fold(lambda: time.sleep(relive_disk._YIELD_S))
                )
                self.num_folds += 1

        self.folding = threading.Thread(target=fold)
        self.folding.start()

    def end_folds(self) -> int:
        """Stop folding; return how many folds there were."""
        self.must_stop.set()
        self.folding.join()
        return self.num_folds

    def close(self) -> None:
        """End the buffer."""
        self.buffer.close()
        self.ready = []
        del self.buffer

    def _trajectory(self, number: int) -> relive.Trajectory:
        fields: dict[str, Any] = {}
        for path, array in self.workload.arrays(number).items():
            head, _, tail = path.partition("/")
            tensor = torch.from_numpy(array)
            if tail:
                fields.setdefault(head, {})[tail] = tensor
            else:
                fields[head] = tensor
        return relive.Trajectory(model_weights_id="weights", **fields)


def _copy_untested(
    table: MappedTable,
    number: int,
    rows: NDArray[np.int64],
    outputs: Mapping[int, NDArray[Any]],
) -> int:
    """Stand in for `MappedTable._copy`, of which this is the copying alone."""
    source = table._rows[number]
    for further, out in outputs.items():
        source.take(rows + further if further else rows, 0, out, "clip")
    return 0


if __name__ == "__main__":
    serve(Adapter())
