# SPDX-License-Identifier: Apache-2.0
"""`relive.columns`: nested dicts to flat names and back."""

from __future__ import annotations

import enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relive.columns import DEEPEST, flatten, unflatten
from relive.errors import UnsupportedValueError

keys = st.text(st.characters(exclude_characters="/"), min_size=1, max_size=3)
trees: st.SearchStrategy[dict[str, Any]] = st.recursive(
    st.dictionaries(keys, st.integers(), max_size=3),
    lambda inner: st.dictionaries(keys, inner | st.integers(), max_size=3),
)


class Camera(str, enum.Enum):
    LEFT = "left"


def nested(depth: int) -> dict[str, Any]:
    """A leaf below this many keys."""
    tree: Any = 7
    for _ in range(depth):
        tree = {"k": tree}
    assert isinstance(tree, dict)
    return tree


class TestFlatten:
    @given(tree=trees)
    def test_unflatten_gives_the_same_tree_back(self, tree: dict[str, Any]) -> None:
        flat = flatten(tree)
        assert unflatten(flat) == tree
        assert list(unflatten(flat)) == list(tree)

    def test_names_are_paths_in_the_order_of_the_dict(self) -> None:
        tree = {"curr_obs": {"b": {"c": 1}, "a": 2}, "actions": 3}
        assert list(flatten(tree).items()) == [
            ("curr_obs/b/c", 1),
            ("curr_obs/a", 2),
            ("actions", 3),
        ]

    def test_none_is_absent_and_an_empty_dict_is_a_leaf(self) -> None:
        assert flatten({"a": None, "b": {"c": None}, "d": {}}) == {"d": {}}

    def test_dicts_may_be_very_deep(self) -> None:
        flat = flatten(nested(DEEPEST))
        assert flat == {"/".join(["k"] * DEEPEST): 7}
        assert unflatten(flat) == nested(DEEPEST)

    def test_names_are_plain_text_whatever_the_keys_are(self) -> None:
        name = next(iter(flatten({Camera.LEFT: {Camera.LEFT: 1}})))
        assert (type(name), name) == (str, "left/left")
        assert type(next(iter(flatten({Camera.LEFT: 1})))) is str

    @pytest.mark.parametrize("key", ["", "a/b", "/", 3, None, ("a",), b"a"])
    def test_a_key_that_is_no_name_is_refused_with_its_place(self, key: Any) -> None:
        with pytest.raises(UnsupportedValueError, match="'extras/' is not a column name") as caught:
            flatten({"extras": {key: 1}})
        assert caught.value.column == "extras"
        with pytest.raises(UnsupportedValueError, match="the root"):
            flatten({key: 1})

    def test_a_dict_that_has_no_end_is_refused(self) -> None:
        endless: dict[str, Any] = {}
        endless["again"] = endless
        with pytest.raises(UnsupportedValueError, match="at most 100") as caught:
            flatten({"extras": endless})
        assert caught.value.column.startswith("extras/again/again")
