# SPDX-License-Identifier: Apache-2.0
"""`relive.texts`: text columns of a batch, whose rows come from trajectories with own tables."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from records import make_record
from relive.errors import CorruptFileError
from relive.gather import Wanted
from relive.texts import merge_texts, strings_of


def wanted_of(table: tuple[str, ...] | None, positions: list[int]) -> Wanted:
    """Rows of a trajectory with this table, or without the column."""
    record = make_record(0, texts={} if table is None else {"extras/task": (table, False)})
    places = np.array(positions, np.int64)
    return Wanted(record=record, rows=places, positions=places, start=0)


class TestMergeTexts:
    @given(
        rows=st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abcde")), min_size=1),
        shuffles=st.lists(st.permutations("abcde"), min_size=4, max_size=4),
    )
    def test_each_row_keeps_its_string(
        self, rows: list[tuple[int, str]], shuffles: list[list[str]]
    ) -> None:
        codes = np.array([shuffles[k].index(text) for k, text in rows], np.int32)
        wanted = []
        for k in range(4):
            positions = [i for i, (owner, _) in enumerate(rows) if owner == k]
            if positions:
                wanted.append(wanted_of(tuple(shuffles[k]), positions))
        table = merge_texts("extras/task", codes, wanted, None)
        assert strings_of(codes, table) == [text for _, text in rows]
        assert sorted(table) == sorted({text for _, text in rows})

    def test_the_default_stands_in_where_the_column_is_missing(self) -> None:
        codes = np.array([0, 1, 0], np.int32)
        wanted = [wanted_of(("pick", "place"), [0, 1]), wanted_of(None, [2])]
        table = merge_texts("extras/task", codes, wanted, "none")
        assert strings_of(codes, table) == ["pick", "place", "none"]

    @pytest.mark.parametrize("code", [-1, 2])
    def test_a_code_beside_the_table_is_damage(self, code: int) -> None:
        codes = np.array([code], np.int32)
        with pytest.raises(CorruptFileError, match="'extras/task' of trajectory 0"):
            merge_texts("extras/task", codes, [wanted_of(("a", "b"), [0])], None)
