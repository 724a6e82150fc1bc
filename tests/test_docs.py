# SPDX-License-Identifier: Apache-2.0
"""Every Python block of README.md and docs/ runs and prints what the page says it prints.

The blocks of a page run in order, in one namespace and an empty folder of their own. What a
block prints stands in the ```text block right after it; `...` there stands for anything.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
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


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
class TestPages:
    def test_blocks_run_and_print_what_the_page_shows(
        self, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
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
