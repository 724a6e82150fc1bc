# SPDX-License-Identifier: Apache-2.0
"""Every Python block of the pages runs and prints what the page says it prints.

The blocks of a page run in order, in one namespace; the pages run in one folder, as somebody
reads them one after the other. What a block prints stands in the ```text block right after it;
`...` there stands for anything.
"""

from __future__ import annotations

import codeop
import contextlib
import doctest
import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relive

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)(#[^)]*)?\)")


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    language: str
    text: str
    line: int
    start: int
    end: int

    @classmethod
    def of(cls, page: str) -> list[Block]:
        return [
            cls(found[1], found[2], page.count("\n", 0, found.start()) + 1, *found.span())
            for found in FENCE.finditer(page)
        ]


def examples(page: str) -> list[tuple[Block, str]]:
    """Each Python block with what it is to print."""
    blocks = Block.of(page)
    found = []
    for place, block in enumerate(blocks):
        after = blocks[place + 1] if place + 1 < len(blocks) else None
        if block.language == "python":
            shows = (
                after is not None
                and after.language == "text"
                and not page[block.end : after.start].strip()
            )
            found.append((block, after.text if after is not None and shows else ""))
    return found


def typed_in(text: str, name: str = "the prompt") -> Iterator[str]:
    """Each statement that Python's prompt takes when the lines of a text are pasted into it.

    Raises:
        SyntaxError: The prompt refuses one: what is indented must end with a blank line.
    """
    typed: list[str] = []
    for line in [*text.splitlines(), ""]:
        typed.append(line)
        if codeop.compile_command("\n".join(typed), name, "single") is not None:
            if any(typed):
                yield "\n".join(typed)
            typed.clear()
    assert not typed, f"{name} still waits after {typed}"


@pytest.fixture(scope="module")
def readers_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The one folder in which somebody pastes the blocks of all pages."""
    return tmp_path_factory.mktemp("reader")


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
class TestPages:
    def test_blocks_run_and_print_what_the_page_shows(
        self, path: Path, readers_folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(readers_folder)
        names: dict[str, object] = {"__name__": path.stem}
        for block, wanted in examples(path.read_text("utf-8")):
            printed = io.StringIO()
            # Blank lines in front, so that a traceback names the line of the page.
            code = compile("\n" * block.line + block.text, str(path), "exec")
            with contextlib.redirect_stdout(printed):
                exec(code, names)
            flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
            same = doctest.OutputChecker().check_output(wanted, printed.getvalue(), flags)
            where = f"{path.name}, line {block.line}"
            assert same, f"{where} prints:\n{printed.getvalue()}\nbut shows:\n{wanted}"

    def test_blocks_can_be_pasted_at_the_prompt(self, path: Path) -> None:
        for block, _ in examples(path.read_text("utf-8")):
            assert list(typed_in(block.text, f"the block in line {block.line} of {path.name}"))

    def test_links_lead_somewhere(self, path: Path) -> None:
        targets = [found[1] for found in LINK.finditer(path.read_text("utf-8"))]
        assert [target for target in targets if not (path.parent / target).exists()] == []


class TestExamples:
    def test_output_belongs_to_the_block_right_before_it(self) -> None:
        page = "```python\na\n```\n\n```text\n1\n```\n```python\nb\n```\nwords\n```text\n2\n```\n"
        assert [(block.text, wanted) for block, wanted in examples(page)] == [
            ("a\n", "1\n"),
            ("b\n", ""),
        ]

    def test_a_block_that_the_prompt_refuses_is_seen(self) -> None:
        loop = "for x in (\n    1,\n):\n    x\n"
        assert len(list(typed_in(f"{loop}\nprint(x)\n"))) == 2
        with pytest.raises(SyntaxError):
            list(typed_in(f"{loop}print(x)\n"))


class TestContributing:
    def test_the_table_says_what_each_module_is_for(self) -> None:
        page = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
        _, table = page.split("| to change |")
        rows = table.split("\n\n")[0].splitlines()[2:]
        named = [name for row in rows for name in re.findall(r"`(\w+)/?`", row.split("|")[2])]
        places = (ROOT / "src" / "relive").iterdir()
        modules = {place.stem for place in places if place.suffix == ".py" or _is_package(place)}
        modules.remove("__init__")
        assert not modules.difference(named), "give them a row in the table of CONTRIBUTING.md"
        assert not set(named) - modules, "the table of CONTRIBUTING.md has what is not there"
        assert len(named) == len(set(named)), "the table of CONTRIBUTING.md has a module twice"


def _is_package(place: Path) -> bool:
    return place.is_dir() and any(place.rglob("__init__.py"))


class TestFormatPage:
    def test_names_every_key_that_files_hold(self, tmp_path: Path) -> None:
        page = (ROOT / "docs" / "format.md").read_text("utf-8")
        known = set(re.findall(r"[a-z_0-9]+", " ".join(re.findall(r"`([^`]*)`", page))))
        with relive.TrajectoryReplayBuffer(
            auto_save=True,
            auto_save_path=tmp_path / "store",
            columns=relive.Columns(optional={"intervene_flags": False}),
        ) as buffer:
            buffer.add_trajectories([_full_trajectory(number) for number in range(3)])
            buffer.delete([0])
            buffer.save_checkpoint(tmp_path / "checkpoint")
            buffer.load_checkpoint(tmp_path / "checkpoint")
            buffer.add_trajectories([_full_trajectory(3)])
            lock = (tmp_path / "store" / "writer.lock").read_text("utf-8")
        files = [*tmp_path.glob("*/*.json"), *tmp_path.glob("*/*.journal")]
        lines = [line for path in files for line in _objects(path)]
        found = set().union(*map(_keys, [*lines, json.loads(lock)]))
        column_names = {name for line in lines for name in _keys(line) if "/" in name}
        column_names |= {"rewards", "dones", "prev_values", "versions", "intervene_flags"}
        assert len(files) == 5
        assert sorted(found - known - column_names) == []


def _full_trajectory(number: int) -> relive.Trajectory:
    """Two epochs, a text column, a side value, and weights whose name must be quoted."""
    return relive.Trajectory(
        model_weights_id="a/b",
        rewards=np.full((4, 2), number, np.float32),
        dones=np.ones((6, 2), np.bool_),
        prev_values=np.zeros((6, 2), np.float32),
        versions=np.full((4, 2), number),
        curr_obs={"states": np.zeros((4, 2, 3), np.float32)},
        extras={"task": ["open", "close"], "fps": 30},
    )


def _objects(path: Path) -> list[Any]:
    text = path.read_text("utf-8")
    return (
        [json.loads(text)] if path.suffix == ".json" else list(map(json.loads, text.splitlines()))
    )


def _keys(value: Any) -> set[str]:
    """Every key of nested objects, but those that are trajectory ids."""
    if isinstance(value, list):
        return set().union(*map(_keys, value))
    if not isinstance(value, dict):
        return set()
    own = {key for key in value if not key.isdecimal()}
    return own.union(*map(_keys, value.values()))
