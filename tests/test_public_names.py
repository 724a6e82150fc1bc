# SPDX-License-Identifier: Apache-2.0
"""What `relive` shows of itself: names, docstrings, errors that travel between processes."""

from __future__ import annotations

import ast
import importlib
import inspect
import pickle
import pkgutil
from types import ModuleType
from typing import Any

import pytest

import relive
from relive import errors

MODULES = sorted(
    found.name
    for found in pkgutil.walk_packages(relive.__path__, "relive.")
    if not any(part.startswith("_") for part in found.name.split("."))
)
"""Every public module below relive."""

ERRORS = sorted(errors.__all__)


def name_order(name: str) -> tuple[int, str]:
    """CONSTANTS, then Classes, then functions, each by name: the order that ruff keeps."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


def own_names(module: ModuleType) -> set[str]:
    """Public functions and classes that this module defines."""
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        if inspect.isfunction(value) or inspect.isclass(value)
        if value.__module__ == module.__name__
    }


def names_imported_by(module: ModuleType) -> set[tuple[str, str]]:
    """Each name that this module imports from another of ours, after that one's name."""
    return {
        (node.module, alias.name)
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.ImportFrom) and node.module in MODULES
        for alias in node.names
        if f"{node.module}.{alias.name}" not in MODULES
    }


class TestPublicNames:
    @pytest.mark.parametrize("name", ["relive", *MODULES])
    def test_all_is_sorted_complete_and_importable(self, name: str) -> None:
        module = importlib.import_module(name)
        public = list(module.__all__)
        assert public == sorted(public, key=name_order)
        assert [entry for entry in public if not hasattr(module, entry)] == []
        assert own_names(module) - set(public) == set()

    @pytest.mark.parametrize("name", ["relive", *MODULES])
    def test_what_a_module_imports_from_another_is_public_there(self, name: str) -> None:
        imported = names_imported_by(importlib.import_module(name))
        hidden = {
            (other, entry)
            for other, entry in imported
            if entry not in importlib.import_module(other).__all__
        }
        assert not hidden

    @pytest.mark.parametrize("name", ["relive", *MODULES])
    def test_every_public_name_says_what_it_is(self, name: str) -> None:
        module = importlib.import_module(name)
        assert module.__doc__
        bare = []
        for entry in own_names(module) & set(module.__all__):
            value = getattr(module, entry)
            bare += [entry] if not value.__doc__ else []
            if inspect.isclass(value):
                bare += [
                    f"{entry}.{method}"
                    for method, function in vars(value).items()
                    if not method.startswith(("_", "test_"))  # a test's name says it all
                    if inspect.isfunction(function) or isinstance(function, property)
                    if not inspect.getdoc(getattr(value, method))
                ]
        assert bare == []

    def test_dir_of_the_package_has_every_public_name(self) -> None:
        assert set(relive.__all__) <= set(dir(relive))

    def test_an_unknown_name_is_an_attribute_error(self) -> None:
        with pytest.raises(AttributeError, match="no_such_name"):
            relive.no_such_name  # type: ignore[attr-defined]  # noqa: B018  # that it raises is the point


class TestErrors:
    @pytest.mark.parametrize("name", ERRORS)
    def test_is_rooted_in_replay_error(self, name: str) -> None:
        assert issubclass(getattr(errors, name), errors.ReplayError)

    @pytest.mark.parametrize("name", sorted(set(ERRORS) - {"ReplayError", "StorageError"}))
    def test_is_a_built_in_error_too(self, name: str) -> None:
        bases = [base for base in getattr(errors, name).__mro__ if base.__module__ == "builtins"]
        assert set(bases) - {Exception, BaseException, object}

    @pytest.mark.parametrize("name", ERRORS)
    def test_survives_pickling_with_its_facts(self, name: str) -> None:
        kind = getattr(errors, name)
        facts = {fact: _example(fact) for fact in _facts(kind)}
        error = kind("a message, but another; do this", **facts)
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is kind
        assert str(again) == str(error) == "a message, but another; do this"
        assert {fact: getattr(again, fact) for fact in facts} == facts

    def test_the_tree_in_the_docstring_has_every_error(self) -> None:
        assert [name for name in ERRORS if name not in (errors.__doc__ or "")] == []


def _facts(kind: type[errors.ReplayError]) -> list[str]:
    parameters = inspect.signature(kind.__init__).parameters.values()
    return [one.name for one in parameters if one.kind is one.KEYWORD_ONLY]


def _example(fact: str) -> Any:
    """A value that no default has."""
    numbers = {"step": 3, "errno": 28, "trajectory_id": 7}
    return (1, 2) if fact == "ids" else numbers.get(fact, f"{fact}/of it")
