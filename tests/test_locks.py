# SPDX-License-Identifier: Apache-2.0
"""`relive.locks`: one writer a folder, gone when its process is, whatever became of it."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from processes import num_open_below
from relive.errors import StoreLockedError
from relive.locks import LOCK_NAME, FolderLock

HOLDER = """
import sys, pathlib
from relive.locks import FolderLock
lock = FolderLock(pathlib.Path(sys.argv[1]))
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has the folder open for writing."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        yield process
        process.kill()


def leave(folder: Path, **owner: object) -> None:
    """Leave a lock file as a writer of another host would."""
    whole = {"process": 7, "host": "elsewhere", "time": 0.0, **owner}
    (folder / LOCK_NAME).write_text(json.dumps(whole))


def without_kernel_locks(patch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> NoReturn:
        raise OSError(errno.ENOLCK, "no locks here")

    patch.setattr(fcntl, "flock", refuse)


class TestOneProcess:
    def test_a_folder_opens_once(self, tmp_path: Path) -> None:
        lock = FolderLock(tmp_path)
        told = r"by this process, but .*; close that buffer first"
        with pytest.raises(StoreLockedError, match=told) as caught:
            FolderLock(tmp_path)
        assert caught.value.path == str(tmp_path)
        with pytest.raises(StoreLockedError, match="has one writer"):
            FolderLock(tmp_path, break_lock=True)
        lock.release()
        lock.release()
        FolderLock(tmp_path).release()

    def test_other_folders_are_free(self, tmp_path: Path) -> None:
        (tmp_path / "a").mkdir()
        locks = [FolderLock(tmp_path), FolderLock(tmp_path / "a")]
        for lock in locks:
            lock.release()

    def test_a_released_folder_names_nobody(self, tmp_path: Path) -> None:
        FolderLock(tmp_path).release()
        assert (tmp_path / LOCK_NAME).read_bytes() == b""

    def test_a_refused_open_leaves_no_descriptor(self, tmp_path: Path) -> None:
        lock = FolderLock(tmp_path)
        before = num_open_below(tmp_path)
        with pytest.raises(StoreLockedError):
            FolderLock(tmp_path)
        assert num_open_below(tmp_path) == before
        lock.release()

    def test_a_folder_that_is_gone_is_released_all_the_same(self, tmp_path: Path) -> None:
        folder = tmp_path / "a"
        folder.mkdir()
        lock = FolderLock(folder)
        (folder / LOCK_NAME).unlink()
        folder.rmdir()
        lock.release()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
class TestOtherProcesses:
    def test_a_killed_holder_leaves_the_folder_free(
        self, tmp_path: Path, holder: subprocess.Popen[str]
    ) -> None:
        told = f"by process {holder.pid} on .*; close it there"
        with pytest.raises(StoreLockedError, match=told):
            FolderLock(tmp_path)
        assert FolderLock.owner_of(tmp_path).startswith(f"process {holder.pid} on ")
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        assert json.loads((tmp_path / LOCK_NAME).read_bytes())["process"] == holder.pid
        assert FolderLock.owner_of(tmp_path) == ""
        FolderLock(tmp_path).release()

    def test_a_forked_child_does_not_hold_it(self, tmp_path: Path) -> None:
        lock = FolderLock(tmp_path)
        can_read, can_write = os.pipe()
        child = os.fork()
        if not child:  # lives until the parent closes the pipe
            os.close(can_write)
            os.read(can_read, 1)
            os._exit(0)
        os.close(can_read)
        try:
            lock.release()
            FolderLock(tmp_path).release()
        finally:
            os.close(can_write)
            os.waitpid(child, 0)

    def test_a_forked_child_cannot_give_it_back(self, tmp_path: Path) -> None:
        lock = FolderLock(tmp_path)
        child = os.fork()
        if not child:
            lock.release()
            os._exit(0)
        os.waitpid(child, 0)
        with pytest.raises(StoreLockedError, match="by this process"):
            FolderLock(tmp_path)
        lock.release()

    def test_a_child_that_runs_another_program_does_not_hold_it(self, tmp_path: Path) -> None:
        lock = FolderLock(tmp_path)
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
            lock.release()
            FolderLock(tmp_path).release()
            child.communicate(b"\n")


class TestOtherHosts:
    def test_their_lock_is_never_taken_over_by_itself(self, tmp_path: Path) -> None:
        leave(tmp_path)
        told = "by process 7 on elsewhere and not closed.*break_lock=True"
        with pytest.raises(StoreLockedError, match=told):
            FolderLock(tmp_path)
        assert json.loads((tmp_path / LOCK_NAME).read_bytes())["host"] == "elsewhere"
        lock = FolderLock(tmp_path, break_lock=True)
        assert FolderLock.owner_of(tmp_path) == f"process {os.getpid()} on {socket.gethostname()}"
        lock.release()

    @pytest.mark.parametrize("left", [b"{", b"[1]", b"\0\0", b"[" * 4096])
    def test_a_damaged_lock_file_is_a_lock_of_somebody(self, tmp_path: Path, left: bytes) -> None:
        (tmp_path / LOCK_NAME).write_bytes(left)
        with pytest.raises(StoreLockedError, match=r"another writer.*break_lock=True"):
            FolderLock(tmp_path)
        assert FolderLock.owner_of(tmp_path) == ""
        FolderLock(tmp_path, break_lock=True).release()


class TestFileSystemsWithoutLocks:
    def test_a_folder_opens_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        without_kernel_locks(monkeypatch)
        lock = FolderLock(tmp_path)
        with pytest.raises(StoreLockedError, match="break_lock=True"):
            FolderLock(tmp_path)
        lock.release()
        FolderLock(tmp_path).release()

    def test_what_a_killed_writer_left_is_broken_on_demand(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        without_kernel_locks(monkeypatch)
        FolderLock(tmp_path).drop()
        with pytest.raises(StoreLockedError, match="cannot tell whether that writer lives"):
            FolderLock(tmp_path)
        FolderLock(tmp_path, break_lock=True).release()

    def test_another_refusal_is_told(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object) -> NoReturn:
            raise OSError(errno.EIO, "broken")

        monkeypatch.setattr(fcntl, "flock", refuse)
        with pytest.raises(OSError, match="broken"):
            FolderLock(tmp_path)


class TestOwnerOf:
    def test_nobody_has_a_folder_without_a_lock_file(self, tmp_path: Path) -> None:
        assert FolderLock.owner_of(tmp_path) == ""

    def test_a_writer_of_another_host_counts(self, tmp_path: Path) -> None:
        leave(tmp_path)
        assert FolderLock.owner_of(tmp_path) == "process 7 on elsewhere"
