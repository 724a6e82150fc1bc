# SPDX-License-Identifier: Apache-2.0
"""Nested dicts to flat names: the only walk over column trees.

A column's name is its path: `{"curr_obs": {"states": x}}` is the one column
"curr_obs/states". Everything between the edges of the library works on such flat dicts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, TypeVar

from relive.errors import UnsupportedValueError

__all__ = ["DEEPEST", "SEPARATOR", "Tree", "flatten", "unflatten"]

SEPARATOR = "/"
"""Stands between the keys of a path."""

DEEPEST = 100
"""How many keys a path may have; a dict that contains itself has no end."""

Tree = dict[str, Any]
"""A nested dict: text keys, and leaves or further such dicts as values."""

Leaf = TypeVar("Leaf")


def flatten(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return every leaf of a nested dict by its path, in the order of the dict.

    An empty dict below the root is a leaf too, so that `unflatten` gives the same tree back.

    Args:
        tree: Dicts in dicts; a None leaf counts as absent.

    Raises:
        UnsupportedValueError: A key is not text, is empty, or has a "/" in it, or a path has
            more than `DEEPEST` keys.

    Example:
        >>> flatten({"obs": {"arm": {"q": 1}, "cam": 2}, "act": 3, "gone": None})
        {'obs/arm/q': 1, 'obs/cam': 2, 'act': 3}
    """
    return dict(_leaves(tree, "", 1))


def _leaves(tree: Mapping[str, Any], prefix: str, depth: int) -> Iterator[tuple[str, Any]]:
    if depth > DEEPEST:
        raise UnsupportedValueError(
            f"a dict under {prefix[:40]!r} has keys {depth} deep, but at most {DEEPEST} are "
            "stored; flatten it, or look whether it contains itself",
            column=prefix.rstrip(SEPARATOR),
        )
    for key, value in tree.items():
        if not _is_name(key):
            raise UnsupportedValueError(
                f"key {key!r} under {prefix or 'the root'!r} is not a column name, but names are "
                f"non-empty text without {SEPARATOR!r}; rename it",
                column=prefix.rstrip(SEPARATOR),
            )
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, prefix + key + SEPARATOR, depth + 1)
        elif value is not None:
            yield prefix + key, value


def _is_name(key: object) -> bool:
    return isinstance(key, str) and bool(key) and SEPARATOR not in key


def unflatten(flat: Mapping[str, Leaf]) -> Tree:
    """Return the nested dict whose leaves have these paths: the reverse of `flatten`.

    Example:
        >>> unflatten({"obs/arm/q": 1, "obs/cam": 2, "act": 3})
        {'obs': {'arm': {'q': 1}, 'cam': 2}, 'act': 3}
    """
    tree: Tree = {}
    for path, leaf in flat.items():
        parents, key = _split(path)
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[key] = leaf
    return tree


@lru_cache(maxsize=4096)
def _split(path: str) -> tuple[tuple[str, ...], str]:
    """Return the dicts that a path leads through, and its last key; each batch asks again."""
    *parents, key = path.split(SEPARATOR)
    return tuple(parents), key
