# SPDX-License-Identifier: Apache-2.0
"""`relive.texts`: text columns of a batch, whose rows come from trajectories with own tables."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from records import make_record
from relive.errors import CorruptFileError
from relive.texts import TextGroup, merge_texts, strings_of, texts_in


def group_of(table: tuple[str, ...] | None, positions: list[int]) -> TextGroup:
    """Rows of a trajectory with this table, or without the column."""
    record = make_record(0, texts={} if table is None else {"extras/task": (table, False)})
    return np.array(positions, np.int64), texts_in(record, "extras/task", "none")


class TestMergeTexts:
    @given(
        rows=st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abcde")), min_size=1),
        shuffles=st.lists(st.permutations("abcde"), min_size=4, max_size=4),
    )
    def test_each_row_keeps_its_string(
        self, rows: list[tuple[int, str]], shuffles: list[list[str]]
    ) -> None:
        codes = np.array([shuffles[k].index(text) for k, text in rows], np.int32)
        groups = []
        for k in range(4):
            positions = [i for i, (owner, _) in enumerate(rows) if owner == k]
            if positions:
                groups.append(group_of(tuple(shuffles[k]), positions))
        table = merge_texts(codes, groups)
        assert strings_of(codes, table) == [text for _, text in rows]
        assert sorted(table) == sorted({text for _, text in rows})

    def test_the_default_stands_in_where_the_column_is_missing(self) -> None:
        codes = np.array([0, 1, 0], np.int32)
        groups = [group_of(("pick", "place"), [0, 1]), group_of(None, [2])]
        table = merge_texts(codes, groups)
        assert strings_of(codes, table) == ["pick", "place", "none"]

    @pytest.mark.parametrize("code", [-1, 2])
    def test_a_code_beside_the_table_is_damage(self, code: int) -> None:
        codes = np.array([code], np.int32)
        with pytest.raises(CorruptFileError, match="'extras/task' of trajectory 0"):
            merge_texts(codes, [group_of(("a", "b"), [0])])
