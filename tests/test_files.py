# SPDX-License-Identifier: Apache-2.0
"""`relive.files`: whole or not at all, and what is left when the disk refuses."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import pytest

from relive import files, linux_files, open_files


def refuse(*_: Any, **__: Any) -> NoReturn:
    raise OSError(errno.ENOSPC, "no space")


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


class Refusing:
    """Stands for an os function that refuses some of its calls."""

    def __init__(self, name: str, refused: Iterator[bool], number: int = errno.ENOSPC) -> None:
        self._function = getattr(os, name)
        self._refused = refused
        self._number = number

    def __call__(self, *arguments: Any) -> Any:
        if next(self._refused, False):
            raise OSError(self._number, "refused")
        return self._function(*arguments)


class TestWriteAtomic:
    @pytest.mark.parametrize("sync", [False, True])
    def test_a_file_appears_whole(self, tmp_path: Path, sync: bool) -> None:
        path = tmp_path / "a"
        size = files.write_atomic(path, lambda file: _write(file, b"first"), sync=sync)
        assert (path.read_bytes(), size) == (b"first", 5)
        files.write_atomic(path, lambda file: _write(file, b"second"), sync=sync)
        assert path.read_bytes() == b"second"
        assert names_in(tmp_path) == ["a"]

    @pytest.mark.parametrize("function", ["replace", "fsync"])
    def test_a_refusal_leaves_the_old_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str
    ) -> None:
        path = tmp_path / "a"
        path.write_bytes(b"old")
        monkeypatch.setattr(os, function, refuse)
        with pytest.raises(OSError, match="no space"):
            files.write_atomic(path, lambda file: _write(file, b"new"), sync=True)
        assert path.read_bytes() == b"old"
        assert names_in(tmp_path) == ["a"]

    def test_a_write_that_fails_half_way_leaves_the_old_file(self, tmp_path: Path) -> None:
        path = tmp_path / "a"
        path.write_bytes(b"old")

        def write(file: BinaryIO) -> None:
            file.write(b"ne")
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            files.write_atomic(path, write, sync=False)
        assert path.read_bytes() == b"old"
        assert names_in(tmp_path) == ["a"]

    def test_the_file_is_synced_before_its_name_and_the_folder_after(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        order: list[str] = []
        for name in ("fsync", "replace"):
            function = getattr(os, name)

            def noted(*arguments: Any, name: str = name, function: Any = function) -> Any:
                order.append(name)
                return function(*arguments)

            monkeypatch.setattr(os, name, noted)
        files.write_atomic(tmp_path / "a", lambda file: _write(file, b"x"), sync=True)
        assert order == ["fsync", "replace", "fsync"]

    @pytest.mark.parametrize("name", ["a" * 255, "日" * 85, "\udcff" * 200])
    def test_the_longest_names_have_room_for_a_temporary_beside(
        self, tmp_path: Path, name: str
    ) -> None:
        files.write_atomic(tmp_path / name, lambda file: _write(file, b"x"), sync=False)
        assert names_in(tmp_path) == [name]


def _write(file: BinaryIO, block: bytes) -> None:
    file.write(block)


class TestCopy:
    def test_a_copy_is_whole_and_its_own(self, tmp_path: Path) -> None:
        source, target = tmp_path / "a", tmp_path / "b"
        source.write_bytes(bytes(range(256)) * 9000)
        files.copy(source, target, sync=True)
        assert target.read_bytes() == source.read_bytes()
        with source.open("r+b") as file:
            file.write(b"changed")
        assert target.read_bytes()[:7] == bytes(range(7))

    def test_a_copy_that_is_refused_leaves_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "a").write_bytes(b"x")
        monkeypatch.setattr(os, "replace", refuse)
        with pytest.raises(OSError, match="no space"):
            files.copy(tmp_path / "a", tmp_path / "b", sync=False)
        assert names_in(tmp_path) == ["a"]


class TestKeepPrevious:
    @pytest.mark.parametrize("has_links", [True, False])
    def test_the_second_name_keeps_what_was_there(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool
    ) -> None:
        if not has_links:
            monkeypatch.setattr(os, "link", Refusing("link", iter([True] * 9), errno.EPERM))
        path = tmp_path / "a"
        for block in (b"first", b"second", b"third"):
            path.write_bytes(b"")
            path.unlink()
            path.write_bytes(block)
            files.keep_previous(path, ".previous")
        files.write_atomic(path, lambda file: _write(file, b"fourth"), sync=False)
        assert names_in(tmp_path) == ["a", "a.previous"]
        assert (tmp_path / "a.previous").read_bytes() == b"third"

    def test_keeping_twice_leaves_no_third_name(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(b"x")
        files.keep_previous(tmp_path / "a", ".previous")
        files.keep_previous(tmp_path / "a", ".previous")
        assert names_in(tmp_path) == ["a", "a.previous"]

    def test_nothing_to_keep_is_fine_and_a_refusal_is_told(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        files.keep_previous(tmp_path / "a", ".previous")
        assert names_in(tmp_path) == []
        (tmp_path / "a").write_bytes(b"x")
        monkeypatch.setattr(os, "link", refuse)
        with pytest.raises(OSError, match="no space"):
            files.keep_previous(tmp_path / "a", ".previous")


class TestExchange:
    def test_two_folders_swap_names(self, tmp_path: Path) -> None:
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            (tmp_path / name / f"of {name}").touch()
        if not linux_files.exchange(tmp_path / "a", tmp_path / "b"):
            pytest.skip("this system cannot exchange")
        assert (names_in(tmp_path / "a"), names_in(tmp_path / "b")) == (["of b"], ["of a"])

    def test_a_missing_folder_is_told(self, tmp_path: Path) -> None:
        (tmp_path / "a").mkdir()
        with pytest.raises(FileNotFoundError):
            linux_files.exchange(tmp_path / "a", tmp_path / "b")


class TestAppendFile:
    @pytest.fixture
    def file(self, tmp_path: Path) -> Iterator[open_files.AppendFile]:
        (tmp_path / "a").write_bytes(b"old\n")
        file = open_files.AppendFile(tmp_path / "a")
        yield file
        file.close()

    def test_blocks_follow_each_other(self, tmp_path: Path, file: open_files.AppendFile) -> None:
        file.append(b"one\n")
        file.append(b"two\n")
        file.sync()
        assert (tmp_path / "a").read_bytes() == b"old\none\ntwo\n"
        assert file.size_bytes == 12

    def test_a_block_that_is_refused_half_way_is_undone(
        self, tmp_path: Path, file: open_files.AppendFile, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write = os.write
        calls = iter([True, False])

        def half(descriptor: int, block: bytes) -> int:
            if not next(calls):
                refuse()
            return write(descriptor, block[: len(block) // 2])

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", half)
            with pytest.raises(OSError, match="no space"):
                file.append(b"lost\n")
        file.append(b"two\n")
        assert (tmp_path / "a").read_bytes() == b"old\ntwo\n"

    def test_what_could_not_be_undone_is_undone_later(
        self, tmp_path: Path, file: open_files.AppendFile, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write = os.write
        calls = iter([True, False])

        def half(descriptor: int, block: bytes) -> int:
            if not next(calls):
                refuse()
            return write(descriptor, block[: len(block) // 2])

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", half)
            patch.setattr(os, "ftruncate", refuse)
            with pytest.raises(OSError, match="no space"):
                file.append(b"lost\n")
            with pytest.raises(OSError, match="no space"):
                file.append(b"two\n")
        assert file.size_bytes == 4
        file.append(b"three\n")
        assert (tmp_path / "a").read_bytes() == b"old\nthree\n"

    def test_it_can_be_cut_and_closed_twice(
        self, tmp_path: Path, file: open_files.AppendFile
    ) -> None:
        file.append(b"one\n")
        file.truncate(4)
        file.append(b"two\n")
        file.close()
        file.close()
        assert file.is_closed
        assert (tmp_path / "a").read_bytes() == b"old\ntwo\n"

    def test_it_makes_no_file(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            open_files.AppendFile(tmp_path / "b")


class TestFolders:
    def test_a_folder_in_building_goes_when_building_fails(self, tmp_path: Path) -> None:
        def build(fails: bool) -> Path:
            with files.building_folder(tmp_path / "deep" / "checkpoint") as folder:
                (folder / "a").touch()
                if fails:
                    raise KeyboardInterrupt
                return folder

        with pytest.raises(KeyboardInterrupt):
            build(fails=True)
        assert names_in(tmp_path / "deep") == []
        built = build(fails=False)
        assert built.parent == tmp_path / "deep"
        assert built.name.endswith(files.TEMPORARY_SUFFIX)
        assert names_in(built) == ["a"]

    def test_removing_what_is_gone_is_fine(self, tmp_path: Path) -> None:
        files.remove(tmp_path / "a")
        files.remove_folder(tmp_path / "a")
        files.remove_any(tmp_path / "a")

    def test_removing_a_link_leaves_what_it_names(self, tmp_path: Path) -> None:
        (tmp_path / "folder").mkdir()
        (tmp_path / "folder" / "a").touch()
        (tmp_path / "link").symlink_to(tmp_path / "folder")
        files.remove_any(tmp_path / "link")
        assert names_in(tmp_path) == ["folder"]
        files.remove_any(tmp_path / "folder")
        assert names_in(tmp_path) == []

    def test_a_dangling_link_is_there(self, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(tmp_path / "gone")
        assert files.exists(tmp_path / "link")
        assert not files.exists(tmp_path / "gone")

    def test_names_are_listed_in_order(self, tmp_path: Path) -> None:
        for name in ("b", "a", ".c"):
            (tmp_path / name).touch()
        assert files.list_names(tmp_path) == [".c", "a", "b"]
