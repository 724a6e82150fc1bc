# SPDX-License-Identifier: Apache-2.0
"""Every error reads `<what> is <got>, but <what holds>; <what to do>`, wherever it is raised."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from relive import errors

SOURCE = Path(__file__).resolve().parent.parent / "src" / "relive"
KINDS = frozenset(errors.__all__)
BUILT_IN = frozenset(dir(builtins))

MAKERS = {"mismatch": 1}
"""Functions that make an error of what is wrong, and which argument says that."""

VALUE = "\0"
"""Stands for what is put into a message when it is made."""

REPEATED = ""
"""The kind of `type(error)(...)`, which puts a place before another message."""

COMPLETED = {"CorruptFileError", "UnsafePickleError", REPEATED}
"""Formats raise why a file cannot be read; `formats.checking.naming` adds file and remedy."""

DAMAGED = "told inside the error that its file is damaged, which says what to do"
NAMED = "`check_name` says what to do"
NO_REMEDY = {
    ("collection.incoming", "the part of group"): "`mismatch` is told what to do by its callers",
    ("collection.incoming", "has a column of no trajectory"): NAMED,
    ("collection.plan", "columns has a name of no trajectory"): NAMED,
    ("gym.policy", "the policy returned a column of no trajectory"): NAMED,
    ("numbering", f"a numbering is {VALUE}, but has no valid form"): DAMAGED,
    ("numbering", f"a numbering is {VALUE}, but its stride"): DAMAGED,
    ("journal_replay", f"{VALUE} does not fit what was before it"): DAMAGED,
    ("journal_replay", f"trajectory {VALUE} is added twice"): DAMAGED,
    ("record", "a layout is"): DAMAGED,
    ("record_json", "an index entry is"): DAMAGED,
    ("record_json", "two layouts have the number"): DAMAGED,
    ("snapshot", f"{VALUE} is stored, but is no field"): DAMAGED,
    ("spec", "a schema is"): DAMAGED,
}
"""Where the messages are that need no remedy of their own, how they begin, and why."""


@dataclass(frozen=True)
class Message:
    """What one place in the source says when it raises."""

    module: str
    line: int
    kind: str
    text: str
    """With `VALUE` for each value; only that when the message is made elsewhere."""

    def __str__(self) -> str:
        return f"{self.module}, line {self.line}: {self.text.replace(VALUE, '{}')}"

    @property
    def is_completed(self) -> bool:
        """Whether `naming` says what to do."""
        return self.kind in COMPLETED and self.module.startswith("formats.")

    @property
    def exception(self) -> tuple[str, str] | None:
        """Its entry in `NO_REMEDY`."""
        for module, start in NO_REMEDY:
            if module == self.module and self.text.startswith(start):
                return module, start
        return None


def text_of(node: ast.expr) -> str:
    """Return a message as far as it stands in the source."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return text_of(node.left) + text_of(node.right)
    return VALUE


def messages_in(module: str, source: str) -> Iterator[Message]:
    tree = ast.parse(source)
    raised = {id(node.exc) for node in ast.walk(tree) if isinstance(node, ast.Raise)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        name = node.func.id if isinstance(node.func, ast.Name) else REPEATED
        text = text_of(node.args[min(MAKERS.get(name, 0), len(node.args) - 1)])
        is_unnamed = id(node) in raised and name not in BUILT_IN and text != VALUE
        if name in KINDS or name in MAKERS or is_unnamed:
            yield Message(module, node.lineno, name, text)


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts)


MESSAGES = [
    message
    for path in sorted(SOURCE.rglob("*.py"))
    for message in messages_in(name_of(path), path.read_text("utf-8"))
]


def told(messages: list[Message]) -> str:
    return "\n".join(map(str, messages))


class TestMessages:
    def test_each_says_what_to_do(self) -> None:
        silent = [
            message
            for message in MESSAGES
            if "; " not in message.text and not message.is_completed and not message.exception
        ]
        assert not silent, told(silent)

    def test_each_says_what_holds_or_gives_the_cause(self) -> None:
        lacking = [
            message
            for message in MESSAGES
            if not re.search(f", but |: {VALUE}|^{VALUE}( \\({VALUE}\\))?; ", message.text)
            if not message.is_completed and not message.exception
        ]
        assert not lacking, told(lacking)

    def test_each_is_one_sentence_without_a_full_stop(self) -> None:
        stopped = [m for m in MESSAGES if re.search(r"[.!]$|[.!?] [A-Z]|\n", m.text)]
        assert not stopped, told(stopped)

    def test_each_starts_in_lower_case_or_with_a_value(self) -> None:
        shouting = [m for m in MESSAGES if not re.match(f"[a-z'{VALUE}]|--", m.text)]
        assert not shouting, told(shouting)

    def test_the_exceptions_are_all_needed(self) -> None:
        used = {message.exception for message in MESSAGES if "; " not in message.text}
        assert set(NO_REMEDY) == used - {None}


class TestTheSearch:
    @pytest.mark.parametrize(
        ("source", "kind", "text"),
        [
            ("raise ClosedError('it is shut')", "ClosedError", "it is shut"),
            ("raise ClosedError(f'{x!r} is ' 'shut')", "ClosedError", f"{VALUE} is shut"),
            ("raise ClosedError('it ' + x + ' shut')", "ClosedError", f"it {VALUE} shut"),
            ("raise ClosedError(x)", "ClosedError", VALUE),
            ("return ClosedError('it is shut')", "ClosedError", "it is shut"),
            ("raise mismatch(part, 'is late')", "mismatch", "is late"),
            ("raise kind(f'{x} is shut')", "kind", f"{VALUE} is shut"),
            ("raise type(error)(f'here: {error}')", REPEATED, f"here: {VALUE}"),
        ],
    )
    def test_it_finds_every_form(self, source: str, kind: str, text: str) -> None:
        source = f"def f(x, part, kind, error):\n    {source}"
        assert list(messages_in("m", source)) == [Message("m", 2, kind, text)]

    def test_it_passes_over_what_is_no_error_of_ours(self) -> None:
        source = "raise ValueError('is odd')\nraise Exit(1)\nprint('x is shut')"
        assert not list(messages_in("m", source))

    def test_it_finds_them_all(self) -> None:
        assert len(MESSAGES) > 250
        assert {message.kind for message in MESSAGES} >= KINDS - {"ReplayError"}
