# SPDX-License-Identifier: Apache-2.0
"""Full disks, cut and foreign segments, few addresses and few descriptors: told, and survived."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from buffers import open_memmap
from processes import num_open_below
from programs import run_program
from relive import Trajectory, TrajectoryReplayBuffer
from relive.errors import (
    CorruptFileError,
    FormatVersionError,
    MissingFileError,
    StorageWriteError,
)
from relive.formats import MemmapFormat
from relive.formats.memmap.mapped_table import MappedTable
from relive.formats.memmap.segment_reading import SegmentReader
from segments import segments_of
from trajectories import address_of, check_rows, same_trajectory, traj, trajectory_files


def told(k: int) -> Trajectory:
    """Trajectory number k with frames, and a text of its own for each env."""
    return traj(k, wide=True, extra={"task": [f"task {k} of {b}" for b in range(3)]})


class TestFullDisk:
    @pytest.mark.parametrize("number", [errno.ENOSPC, errno.EFBIG, errno.EDQUOT])
    @pytest.mark.parametrize("segment_bytes", [1, 1 << 30])
    def test_each_write_refused_is_told_and_costs_nothing(
        self,
        segment_bytes: int,
        number: int,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """After a part of the block was written, as a disk that fills up leaves it."""
        form = MemmapFormat(segment_bytes=segment_bytes)
        with open_memmap(tmp_path / "store", trajectory_format=form) as buffer:
            buffer.add_trajectories([told(0)])
            buffer.flush()
            refusing = Refusing(monkeypatch, number)
            break_at = 0
            while True:
                k = len(buffer)
                refusing.from_now_on(break_at)
                buffer.add_trajectories([told(k), told(k + 1)])
                if not self.is_told(buffer, refusing, k, number):
                    break
                check_rows(buffer.gather(np.arange(12 * (k + 2))))
                refusing.stop()
                buffer.flush()
                for n in range(k + 2):
                    assert same_trajectory(buffer.trajectory(n), told(n))
                batch = buffer.gather(np.random.default_rng(k).permutation(12 * (k + 2)))
                check_rows(batch)
                ids = np.asarray(batch["curr_obs"]["id"])
                assert batch["extras"]["task"] == [
                    f"task {n // 1_000_000} of {n % 1_000}" for n in ids.tolist()
                ]
                break_at += 1
            num = len(buffer)
            assert num >= 2 * 10  # rows, frames, texts, where they end, and the rest, each twice
        assert trajectory_files(tmp_path / "store") == list(range(num))
        with open_memmap(tmp_path / "store", if_exists="resume") as buffer:
            check_rows(buffer.gather(np.arange(12 * num)))

    @staticmethod
    def is_told(buffer: TrajectoryReplayBuffer, refusing: Refusing, k: int, number: int) -> bool:
        told: StorageWriteError | None = None
        try:
            buffer.flush()
        except StorageWriteError as error:
            told = error
        assert refusing.has_refused == (told is not None)
        if told is not None:
            assert told.trajectory_id in (k, k + 1)
            assert f"trajectory {told.trajectory_id} could not be written" in str(told)
            assert told.errno == number
        return told is not None

    def test_what_cannot_be_written_can_be_deleted(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with open_memmap(tmp_path / "store") as buffer:
            buffer.add_trajectories([traj(0, wide=True)])
            buffer.flush()
            refusing = Refusing(monkeypatch, errno.ENOSPC)
            refusing.from_now_on(1)
            buffer.add_trajectories([traj(1, wide=True)])
            with pytest.raises(StorageWriteError):
                buffer.flush()
            buffer.delete([1])
            buffer.flush()
            refusing.stop()
            buffer.add_trajectories([traj(2, wide=True)])
            check_rows(buffer.gather([*range(12), *range(24, 36)]))
        assert trajectory_files(tmp_path / "store") == [0, 2]

    def test_a_segment_that_cannot_be_begun_leaves_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with open_memmap(tmp_path / "store") as buffer:
            num_open = num_open_below(tmp_path)
            opened = os.open

            def refuse(path: Any, flags: int, *more: Any, **options: Any) -> int:
                if str(path).endswith("side.bin"):
                    raise OSError(errno.ENOSPC, "no room", str(path))
                return opened(path, flags, *more, **options)

            with monkeypatch.context() as patch:
                patch.setattr(os, "open", refuse)
                buffer.add_trajectories([traj(0)])
                for _ in range(3):
                    with pytest.raises(StorageWriteError, match=r"trajectory 0 .*no room"):
                        buffer.flush()
                assert segments_of(tmp_path / "store") == []
                assert num_open_below(tmp_path) == num_open
            buffer.flush()
            check_rows(buffer.sample(30))

    def test_a_file_that_may_not_grow_is_an_error_and_no_end_of_the_process(
        self, tmp_path: Path
    ) -> None:
        """RLIMIT_FSIZE; stored into a mapping, the same would be a bus error."""
        program = (
            "import errno, resource, sys\n"
            "from pathlib import Path\n"
            "import numpy as np\n"
            "from buffers import open_store\n"
            "from relive.errors import StorageWriteError\n"
            "from trajectories import check_rows, traj\n"
            "options = dict(trajectory_format='memmap', sample_window_size=0)\n"
            "buffer = open_store(Path(sys.argv[1]), **options)\n"
            "limits = resource.getrlimit(resource.RLIMIT_FSIZE)\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limits[1]))\n"
            "try:\n"
            "    for k in range(9):\n"
            "        buffer.add_trajectories([traj(k, wide=True)])\n"
            "        buffer.flush()\n"
            "except StorageWriteError as error:\n"
            "    print(k, error.errno == errno.EFBIG, error.trajectory_id)\n"
            "check_rows(buffer.gather(np.arange(12 * (k + 1))))\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, limits)\n"
            "buffer.flush()\n"
            "buffer.add_trajectories([traj(k + 1, wide=True)])\n"
            "buffer.close()\n"
        )
        assert run_program(program, tmp_path / "store").split() == ["3", "True", "3"]
        with open_memmap(tmp_path / "store", if_exists="resume") as buffer:
            check_rows(buffer.gather(np.arange(12 * 5)))


class Refusing:
    """Lets writes into segments be refused from one of them on, half of its block written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
        self.has_refused = self._is_torn = False
        self._left = -1
        write = os.pwrite

        def pwrite(descriptor: int, block: Any, start: int) -> int:
            if self._left == 0:
                self.has_refused = True
                if len(block) > 1 and not self._is_torn:
                    self._is_torn = True
                    return write(descriptor, block[: len(block) // 2], start)
                raise OSError(number, os.strerror(number))
            self._left -= 1
            return write(descriptor, block, start)

        monkeypatch.setattr(os, "pwrite", pwrite)

    def from_now_on(self, left: int) -> None:
        """Refuse writes after this many."""
        self._left, self._is_torn, self.has_refused = left, False, False

    def stop(self) -> None:
        """Let all writes be done."""
        self._left = -1


Damage = Callable[[Path], object]


def _json(change: Callable[[dict[str, Any]], object]) -> Damage:
    def damage(path: Path) -> None:
        head = json.loads(path.read_text())
        change(head)
        path.write_text(json.dumps(head))

    return damage


class TestHeads:
    """`segment.json` says how bytes lie: a wrong one must not make wrong rows."""

    @pytest.mark.parametrize(
        "damage",
        [
            lambda path: path.write_bytes(b""),
            lambda path: path.write_bytes(path.read_bytes()[:-20]),
            lambda path: path.write_bytes(b"\xff\xfe"),
            lambda path: path.write_text("[" * 100_000),
            lambda path: path.write_text("[1]"),
            lambda path: path.write_text('{"some": "other file"}'),
            _json(lambda head: head.pop("uuid")),
            _json(lambda head: head.update(uuid="mine")),
            _json(lambda head: head.update(uuid=3)),
            _json(lambda head: head.update(num_rows=-1)),
            _json(lambda head: head.update(num_rows="12")),
            _json(lambda head: head["layout"].update(stride=4)),
            _json(lambda head: head["layout"].pop("columns")),
            _json(lambda head: head["layout"]["columns"][0].update(dtype="object")),
        ],
    )
    def test_what_is_none_is_refused_by_name_at_opening(
        self, damage: Damage, tmp_path: Path
    ) -> None:
        path = self.make(tmp_path / "store")
        damage(path)
        with pytest.raises(CorruptFileError) as raised:
            open_memmap(tmp_path / "store", if_exists="resume")
        assert str(path) in str(raised.value)
        assert raised.value.path == str(path)

    def test_one_of_a_later_release_asks_for_it(self, tmp_path: Path) -> None:
        path = self.make(tmp_path / "store")
        _json(lambda head: head["layout"].update(version=99))(path)
        with pytest.raises(FormatVersionError, match=r"segment\.json.* version 99.*upgrade relive"):
            open_memmap(tmp_path / "store", if_exists="resume")

    def test_fields_of_others_do_not_matter(self, tmp_path: Path) -> None:
        path = self.make(tmp_path / "store")
        _json(lambda head: head.update(further={"a": 1}))(path)
        with open_memmap(tmp_path / "store", if_exists="resume") as buffer:
            check_rows(buffer.gather(np.arange(24)))

    def test_one_of_a_checkpoint_is_refused_and_the_buffer_stays(self, tmp_path: Path) -> None:
        path = self.make(tmp_path / "store")
        with open_memmap(tmp_path / "store", if_exists="resume") as buffer:
            buffer.save_checkpoint(tmp_path / "checkpoint")
        path = tmp_path / "checkpoint" / path.relative_to(tmp_path / "store")
        path.unlink()
        path.write_text("{}")
        with open_memmap(tmp_path / "other") as buffer:
            buffer.add_trajectories([traj(7)])
            with pytest.raises(CorruptFileError, match=r"segment\.json"):
                buffer.load_checkpoint(tmp_path / "checkpoint")
            path.unlink()
            with pytest.raises(MissingFileError, match=r"segment"):
                buffer.load_checkpoint(tmp_path / "checkpoint")
            check_rows(buffer.sample(20))
            assert len(buffer) == 1
            assert not list((tmp_path / "other").glob("incoming-*"))

    @staticmethod
    def make(folder: Path) -> Path:
        """Make a store with one segment; return its head."""
        with open_memmap(folder) as buffer:
            buffer.add_trajectories([traj(0), traj(1)])
        return folder / "segments" / "00000000" / "segment.json"


class TestKilled:
    def test_half_a_trajectory_behind_the_last_is_written_over(self, tmp_path: Path) -> None:
        with open_memmap(tmp_path / "alive") as buffer:
            buffer.add_trajectories([traj(0, wide=True), traj(1, wide=True)])
            buffer.flush()
            shutil.copytree(tmp_path / "alive", tmp_path / "store")
        for path in (tmp_path / "store" / "segments").rglob("*.bin"):
            with path.open("ab") as file:
                file.write(b"\x55" * 1001)
        for k in (2, 3):
            with open_memmap(tmp_path / "store", if_exists="resume") as buffer:
                buffer.add_trajectories([traj(k, wide=True)])
                buffer.flush()
                check_rows(buffer.gather(np.arange(12 * (k + 1))))
                for n in range(k + 1):
                    assert same_trajectory(buffer.trajectory(n), traj(n, wide=True))

    def test_what_a_power_loss_tore_is_set_aside(self, tmp_path: Path) -> None:
        with open_memmap(tmp_path / "alive") as buffer:
            buffer.add_trajectories([traj(k) for k in range(3)])
            buffer.flush()
            shutil.copytree(tmp_path / "alive", tmp_path / "store")
        rows = tmp_path / "store" / "segments" / "00000000" / "rows.bin"
        os.truncate(rows, rows.stat().st_size - 100)
        with pytest.warns(UserWarning, match="trajectory 2 was set aside"):
            buffer = open_memmap(tmp_path / "store", if_exists="resume")
        with buffer:
            check_rows(buffer.gather(np.arange(24)))
            assert len(buffer) == 2
            buffer.add_trajectories([traj(5)])
            check_rows(buffer.sample(100))

    def test_pages_of_the_middle_that_were_lost_are_told(self, tmp_path: Path) -> None:
        with open_memmap(tmp_path / "alive") as buffer:
            buffer.add_trajectories([traj(k) for k in range(3)])
            buffer.flush()
            shutil.copytree(tmp_path / "alive", tmp_path / "store")
        rows = tmp_path / "store" / "segments" / "00000000" / "rows.bin"
        with rows.open("r+b") as file:
            file.seek(rows.stat().st_size // 2)
            file.write(bytes(40))
        with pytest.warns(UserWarning, match=r"trajectory 1 was set aside: .*checksum"):
            buffer = open_memmap(tmp_path / "store", if_exists="resume")
        with buffer:
            check_rows(buffer.gather([*range(12), *range(24, 36)]))


LIMITED = """
import os, resource, sys, warnings
from pathlib import Path
import numpy as np
from buffers import open_store
from relive.formats import MemmapFormat
from trajectories import check_rows, same_trajectory, traj

segment_bytes, allowed = int(sys.argv[2]), int(sys.argv[3])
form = MemmapFormat(segment_bytes=segment_bytes)
options = dict(trajectory_format=form, sample_window_size=0, framework="numpy")
buffer = open_store(Path(sys.argv[1]), **options)
buffer.add_trajectories([traj(99, wide=True)])
buffer.flush()
with open("/proc/self/statm") as file:
    now = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + allowed, now + allowed))
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    buffer.sample(5)
    for k in range(12):
        buffer.add_trajectories([traj(k, wide=True)])
        buffer.flush()
        check_rows(buffer.sample(60))
    check_rows(buffer.gather(np.arange(13 * 12)))
    assert same_trajectory(buffer.trajectory(5), traj(4, wide=True))
    buffer.delete([3])
    check_rows(buffer.sample(60))
assert len(np.ones(10_000_000)) == 10_000_000  # there are addresses for others too
print(len({str(one.message) for one in told if "cannot be mapped" in str(one.message)}))
buffer.close()
"""


class TestFewAddresses:
    @pytest.mark.parametrize(
        ("segment_bytes", "allowed", "num_warnings"),
        [
            (1 << 20, 3 << 30, 0),  # for segment after segment
            (1 << 30, 500 << 20, 1),  # for records, but not for frames
            (1 << 40, 500 << 20, 1),  # not even for records
        ],
    )
    def test_rows_are_sampled_all_the_same(
        self, segment_bytes: int, allowed: int, num_warnings: int, tmp_path: Path
    ) -> None:
        """`ulimit -v`; what cannot be mapped is read, with a warning, once."""
        printed = run_program(LIMITED, tmp_path / "store", segment_bytes, allowed)
        assert int(printed) == num_warnings

    @pytest.mark.parametrize("mapped", [0, 1, 2])
    def test_a_batch_that_meets_the_end_of_addresses_is_whole(
        self, mapped: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Segments that were mapped before the one that could not be are read again too."""
        form = MemmapFormat(segment_bytes=1)
        with open_memmap(tmp_path / "store", trajectory_format=form) as buffer:
            for k in range(4):
                buffer.add_trajectories([traj(k)])
            buffer.flush()
            add, num_added = MappedTable.add, 0

            def refuse(table: MappedTable, segment: int, path: Path, num_rows: int) -> None:
                nonlocal num_added
                num_added += 1
                if num_added > mapped:
                    raise MemoryError("no addresses")
                add(table, segment, path, num_rows)

            monkeypatch.setattr(MappedTable, "add", refuse)
            with pytest.warns(UserWarning, match="cannot be mapped"):
                batch = buffer.sample(200)
            check_rows(batch)
            assert set(address_of(batch)[0].tolist()) == set(range(4))
            assert buffer.get_stats()["mapped_bytes"] == 0
            check_rows(buffer.sample(200))

    def test_a_batch_is_whole_though_another_thread_meets_that_end_meanwhile(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with open_memmap(tmp_path / "store") as buffer:
            buffer.add_trajectories([traj(0)])
            buffer.flush()
            get_to_know, num_calls = SegmentReader._get_to_know, 0

            def give_up_after(reader: SegmentReader, segments: Sequence[int]) -> None:
                nonlocal num_calls
                num_calls += 1
                get_to_know(reader, segments)
                if num_calls == 1:  # as that thread does
                    reader._read_instead_of_mapping(MemoryError("no addresses"))

            monkeypatch.setattr(SegmentReader, "_get_to_know", give_up_after)
            with pytest.warns(UserWarning, match="cannot be mapped"):
                check_rows(buffer.sample(50))
            assert num_calls == 2


FEW_DESCRIPTORS = """
import os, resource, sys
from pathlib import Path
import numpy as np
from buffers import open_store
from relive.formats import MemmapFormat
from trajectories import check_rows, traj

resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
form = MemmapFormat(segment_bytes=1, read_mode=sys.argv[2])
options = dict(trajectory_format=form, sample_window_size=0, framework="numpy")
most = 0
with open_store(Path(sys.argv[1]), **options) as buffer:
    for k in range(80):
        buffer.add_trajectories([traj(k, wide=True)])
        if k % 10 == 9:
            check_rows(buffer.sample(256))
            most = max(most, len(os.listdir("/proc/self/fd")))
    check_rows(buffer.gather(np.random.default_rng(1).permutation(80 * 12)))
    most = max(most, len(os.listdir("/proc/self/fd")))
    buffer.save_checkpoint(Path(sys.argv[1] + "-saved"))
    buffer.delete(range(0, 80, 2))
    check_rows(buffer.sample(256))
    buffer.load_checkpoint(Path(sys.argv[1] + "-saved"))
    check_rows(buffer.gather(np.arange(80 * 12)))
    most = max(most, len(os.listdir("/proc/self/fd")))
print(most)
"""


class TestFewDescriptors:
    @pytest.mark.parametrize("read_mode", ["mmap", "pread"])
    def test_many_segments_need_few(
        self, read_mode: Literal["mmap", "pread"], tmp_path: Path
    ) -> None:
        assert int(run_program(FEW_DESCRIPTORS, tmp_path / "store", read_mode)) <= 50


class TestDamagedRecords:
    """A record says in which frame its image is, and a disk may say anything."""

    @pytest.mark.parametrize("read_mode", ["mmap", "pread"])
    @pytest.mark.parametrize("position", [10_000, 2**31, 2**32 - 1])
    def test_a_frame_that_is_not_there_is_told(
        self, position: int, read_mode: Literal["mmap", "pread"], tmp_path: Path
    ) -> None:
        form = MemmapFormat(read_mode=read_mode)
        with open_memmap(tmp_path / "store", trajectory_format=form) as buffer:
            buffer.add_trajectories([told(0)])
            buffer.flush()
            check_rows(buffer.sample(64))
            (folder,) = (tmp_path / "store" / "segments").iterdir()
            layout = json.loads((folder / "segment.json").read_text())["layout"]
            block = bytearray((folder / "rows.bin").read_bytes())
            offset = layout["frames"][0]["columns"][0]["offset"]
            for start in range(0, len(block), layout["stride"]):
                place = start + offset
                block[place : place + 4] = position.to_bytes(4, "little")
            with (folder / "rows.bin").open("r+b") as file:  # in place: the file is mapped
                file.write(block)
            with pytest.raises(CorruptFileError, match=r"frame \d+, but its file has \d+"):
                buffer.sample(64)
            with pytest.raises(CorruptFileError, match="trajectory 0"):
                buffer.trajectory(0)
