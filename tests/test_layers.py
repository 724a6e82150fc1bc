# SPDX-License-Identifier: Apache-2.0
"""Who may import whom: down the layers only, never in a circle, and late where it costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src" / "relive"

LAYERS = (
    ("errors", "fields"),
    (
        "address_range",
        "announcing",
        "columns",
        "dtypes",
        "files",
        "libc",
        "linux_files",
        "locks",
        "mapped_files",
        "memory",
        "open_files",
        "warning",
    ),
    (
        "disk_errors",
        "importing",
        "lifetime",
        "limits",
        "listeners",
        "options",
        "randomness",
        "sharding",
        "channel_waiting",
    ),
    ("places", "row_bins", "runs", "tensors", "window"),
    ("interventions", "part", "trajectory"),
    ("snapshot",),
    ("id_table", "read_file", "record", "record_json"),
    ("record_lookup", "record_table", "record_texts"),
    ("column_spec", "gather", "index", "leases", "numbering", "output_pool", "spec", "texts"),
    ("batches", "buffer_state", "index_arrays", "index_file", "index_writer"),
    ("cache", "channel", "collection", "collector", "formats", "gym", "samplers"),
    ("describe", "draws", "format_set", "journal", "journal_lines", "journal_replay"),
    ("folder", "writer"),
    ("unsynced",),
    ("disk", "row_reading"),
    ("store", "store_reader"),
    (
        "checkpoint",
        "checkpoint_contents",
        "checkpoint_reading",
        "checkpoint_loading",
        "entry_reading",
        "rank_folders",
    ),
    ("buffer_reader", "forking"),
    ("buffer",),
    ("compat", "demo", "maintenance", "testing"),
    ("__main__", "cli"),
)
"""Modules and packages below relive, lowest first. One imports its own layer and those below."""

FACADE_USERS = ("cli", "compat", "demo", "testing")
"""These use relive as any program does, and may import its public names from the package."""

THREAD_OWNERS = ("demo", "testing", "writer")
"""Only these start threads."""

DISK_OWNERS = (
    "cli",
    "demo",
    "files",
    "linux_files",
    "locks",
    "mapped_files",
    "open_files",
    "testing",
)
"""Only these open, write, rename or remove by themselves; all others go through `files`.

`locks` opens the lock file, whose descriptor is the lock.
"""

HEAVY = ("gymnasium", "matplotlib", "torch")
"""Packages that a program must not pay for by `import relive`."""


@dataclass(frozen=True)
class Import:
    """One imported module of relive, and how."""

    importer: str
    target: str
    line: int
    only_typing: bool
    in_function: bool

    def __str__(self) -> str:
        return f"{self.importer}, line {self.line}: imports {self.target}"


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def module_paths() -> dict[str, Path]:
    return {module_name(path): path for path in sorted(SOURCE.rglob("*.py"))}


def tree_of(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text("utf-8"))


def imports_of(module: str) -> Iterator[Import]:
    yield from _walk(module, tree_of(module), only_typing=False, in_function=False)


def _walk(module: str, node: ast.AST, only_typing: bool, in_function: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        for target in _targets(child):
            yield Import(module, target, child.lineno, only_typing, in_function)  # type: ignore[attr-defined]  # statements have a line
        is_function = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            for statement in child.body:
                yield from _walk(module, ast.Module([statement], []), True, in_function)
            for statement in child.orelse:
                yield from _walk(module, ast.Module([statement], []), only_typing, in_function)
        else:
            yield from _walk(module, child, only_typing, in_function or is_function)


def _targets(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports inside relive are written in full"
        for alias in node.names:
            below = f"{node.module}.{alias.name}"
            yield below if below in MODULES else str(node.module)


MODULES = module_paths()
RANKS = {name: rank for rank, names in enumerate(LAYERS) for name in names}
IMPORTS = [found for module in MODULES for found in imports_of(module)]
OURS = [found for found in IMPORTS if found.target.split(".")[0] == "relive"]


def part_of(module: str) -> str:
    """The module or package right below relive; "" for relive itself."""
    return ".".join(module.split(".")[1:2])


class TestLayers:
    def test_every_module_has_its_layer(self) -> None:
        parts = {part_of(module) for module in MODULES} - {""}
        without = sorted(part for part in parts if part not in RANKS)
        assert not without, f"give them a place in LAYERS: {without}"

    def test_imports_go_down(self) -> None:
        up = [
            str(found)
            for found in OURS
            if part_of(found.importer) and part_of(found.target)
            if RANKS[part_of(found.target)] > RANKS[part_of(found.importer)]
        ]
        assert not up

    def test_only_users_of_the_library_import_its_facade(self) -> None:
        wrong = [
            str(found)
            for found in OURS
            if found.target == "relive" and part_of(found.importer) not in ("", *FACADE_USERS)
        ]
        assert not wrong

    def test_no_circle_even_through_functions(self) -> None:
        graph: dict[str, set[str]] = {module: set() for module in MODULES}
        for found in OURS:
            if not found.only_typing and found.importer != "relive" != found.target:
                graph[found.importer].add(found.target)
        # A package's __init__ that lists its submodules is no circle; the submodules are looked at.
        for module, targets in graph.items():
            targets -= {t for t in targets if t == module or module.startswith(f"{t}.")}
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            pytest.fail(" -> ".join(error.args[1]))


class TestOwners:
    def test_threads_start_only_where_threads_live(self) -> None:
        starters = {"Thread", "Timer", "ThreadPoolExecutor", "ProcessPoolExecutor", "Process"}
        assert not _calls(starters, THREAD_OWNERS)

    def test_nothing_has_a_lock_that_no_fork_waits_for(self) -> None:
        """Before Python 3.12 `cached_property` does, and a child would wait for it for ever."""
        users = [m for m in MODULES if "import cached_property" in MODULES[m].read_text("utf-8")]
        assert not users

    def test_only_files_touches_the_disk(self) -> None:
        modules = {"shutil", "tempfile", "fcntl"}
        wrong = [
            str(found)
            for found in IMPORTS
            if found.target in modules and part_of(found.importer) not in DISK_OWNERS
        ]
        calls = {"open", "unlink", "rename", "fsync", "rmtree", "makedirs", "mkdir"}
        calls |= {"write_text", "write_bytes", "touch", "symlink_to", "hardlink_to", "rmdir"}
        wrong += _calls(calls, DISK_OWNERS, but_of=("files",))
        # names that methods of other things have too
        calls = {"ftruncate", "link", "pwrite", "pwritev", "replace", "truncate", "write"}
        assert not wrong + _calls(calls, DISK_OWNERS, only_of=("os",))


def _calls(
    names: set[str],
    owners: tuple[str, ...],
    *,
    but_of: tuple[str, ...] = (),
    only_of: tuple[str, ...] = (),
) -> list[str]:
    """Calls of these functions or methods outside of the owners.

    Those of `but_of` are passed over, and when there is `only_of`, those of all others.
    """
    wrong = []
    for module in MODULES:
        if part_of(module) in owners:
            continue
        for node in ast.walk(tree_of(module)):
            if not isinstance(node, ast.Call):
                continue
            name, of = "", ""
            if isinstance(node.func, ast.Name):
                name = node.func.id
            elif isinstance(node.func, ast.Attribute):
                name = node.func.attr
                of = node.func.value.id if isinstance(node.func.value, ast.Name) else ""
            if name in names and of not in but_of and (not only_of or of in only_of):
                wrong.append(f"{module}, line {node.lineno}: calls {name}")
    return wrong


class TestImportCost:
    @pytest.mark.parametrize("module", ["relive", "relive.cli"])
    def test_importing_loads_no_heavy_package(self, module: str) -> None:
        program = f"import sys, {module}; print(*sorted(set({HEAVY}) & set(sys.modules)))"
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        )
        assert done.stdout.split() == []

    def test_torch_is_imported_inside_functions_below_the_demo(self) -> None:
        late = [
            str(found)
            for found in IMPORTS
            if found.target.split(".")[0] in HEAVY
            if not (found.in_function or found.only_typing)
            if part_of(found.importer) not in ("compat", "demo", "gym", "testing")
        ]
        assert not late
