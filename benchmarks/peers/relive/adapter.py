# SPDX-License-Identifier: Apache-2.0
"""relive itself behind the methods that the runner calls; runs in the project's environment."""

from __future__ import annotations

import threading
import time
from typing import Any

import torch

import relive
from protocol import serve
from relive import disk as relive_disk
from workloads import WORKLOADS


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
    ) -> None:
        """Make an empty buffer."""
        self.workload = WORKLOADS[workload]
        self.added = 0
        self.buffer = relive.TrajectoryReplayBuffer(
            enable_cache=enable_cache,
            sample_window_size=window,
            auto_save=auto_save,
            auto_save_path=folder if auto_save else "",
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

    def begin_folds(self) -> None:
        """Fold the journal again and again in the writer's thread, until `end_folds`."""
        self.must_stop = threading.Event()
        self.num_folds = 0

        def fold() -> None:
            disk = self.buffer._store.disk
            assert disk is not None
            while not self.must_stop.is_set():
                disk.run_now(
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


if __name__ == "__main__":
    serve(Adapter())
