# SPDX-License-Identifier: Apache-2.0
"""Loads amid what goes wrong: a close that came first, a disk that cannot be read just then."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from buffers import ks_of, open_store
from relive import TrajectoryReplayBuffer, files
from relive.errors import ClosedError
from relive.store import Store
from trajectories import traj

KINDS = ["memory", "pt", "pkl", "memmap"]
LONG_S = 60.0


def open_kind(kind: str, folder: Path, **options: Any) -> TrajectoryReplayBuffer:
    options = {"framework": "numpy", "sample_window_size": 0, "enable_cache": False, **options}
    if kind == "memory":
        return TrajectoryReplayBuffer(**options)
    return open_store(folder, trajectory_format=kind, **options)


def save_some(kind: str, folder: Path, ks: range) -> Path:
    """Return a checkpoint of these trajectories."""
    with open_kind(kind, folder / "first") as first:
        first.add_trajectories([traj(k) for k in ks])
        first.save_checkpoint(folder / "saved")
    return folder / "saved"


@contextmanager
def no_reading(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let no index be read while a store takes over what was loaded."""
    replace, preadv = Store.replace, os.preadv
    is_replacing = False

    def watched(self: Store, *args: Any, **options: Any) -> None:
        nonlocal is_replacing
        is_replacing = True
        try:
            replace(self, *args, **options)
        finally:
            is_replacing = False

    def refuse(*args: Any) -> int:
        if is_replacing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return preadv(*args)

    with patch.context() as inner:
        inner.setattr(Store, "replace", watched)
        inner.setattr(os, "preadv", refuse)
        yield


class TestLoad:
    @pytest.mark.parametrize("kind", KINDS[1:])
    def test_nothing_is_read_once_the_journal_says_that_it_is_loaded(
        self, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        saved = save_some(kind, tmp_path, range(10, 14))
        with open_kind(kind, tmp_path / "store") as buffer:
            buffer.add_trajectories([traj(k) for k in range(4)])
        # opened again, its records are in the index file alone
        with open_kind(kind, tmp_path / "store", if_exists="resume") as buffer:
            with no_reading(monkeypatch), pytest.warns(UserWarning, match="aside"):
                buffer.load_checkpoint(saved)
            assert ks_of(buffer) == set(range(10, 14))
            assert buffer.add_trajectories([traj(14)]) == [4]
        with open_kind(kind, tmp_path / "store", if_exists="resume") as again:
            assert ks_of(again) == set(range(10, 15))

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_buffer_that_was_closed_meanwhile_takes_nothing(
        self, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        saved = save_some(kind, tmp_path, range(10, 14))
        buffer = open_kind(kind, tmp_path / "store")
        buffer.add_trajectories([traj(0)])
        buffer.flush()
        waits, raised = threading.Event(), list[BaseException]()
        adding = Store.adding

        def watched(self: Store) -> Any:
            waits.set()
            return adding(self)

        def load() -> None:
            try:
                buffer.load_checkpoint(saved)
            except BaseException as error:  # looked at in the test's own thread
                raised.append(error)

        with buffer._store.adding():
            monkeypatch.setattr(Store, "adding", watched)
            loading = threading.Thread(target=load)
            loading.start()
            assert waits.wait(LONG_S)
            buffer.close()
            before = sorted(tmp_path.rglob("*"))
            monkeypatch.setattr(files, "create_folder", _refuse)
        loading.join(LONG_S)
        (error,) = raised
        assert isinstance(error, ClosedError)
        assert sorted(tmp_path.rglob("*")) == before
        assert len(buffer) == 1


def _refuse(path: Path) -> None:
    raise AssertionError(f"{path} was to be made")
