# SPDX-License-Identifier: Apache-2.0
"""`relive.runs`: which rows flags belong to, and where runs begin and end."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from relive.errors import ColumnMismatchError
from relive.runs import (
    check_leading_axes,
    drop_extra_rows,
    extended_rows,
    num_epochs_of,
    run_bounds,
    run_breaks,
    run_lengths,
)

Flags = NDArray[np.bool_]


@st.composite
def break_flags(draw: st.DrawFn) -> Flags:
    shape = draw(st.tuples(st.integers(1, 9), st.integers(1, 4)))
    cells = draw(st.lists(st.booleans(), min_size=shape[0] * shape[1], max_size=99))
    return np.array(cells[: shape[0] * shape[1]], np.bool_).reshape(shape)


@st.composite
def epochs(draw: st.DrawFn) -> tuple[int, int, int]:
    """E, chunk steps of an epoch, B."""
    return draw(st.integers(1, 4)), draw(st.integers(1, 5)), draw(st.integers(1, 4))


def column(values: list[int]) -> Flags:
    return np.array(values, np.bool_)[:, None]


class TestNumEpochs:
    def test_all_of_length_t_tell_one_epoch(self) -> None:
        assert num_epochs_of({"dones": 4, "prev_values": 4}, 4) == num_epochs_of({}, 4) == 1

    def test_some_may_have_t_rows_and_others_t_plus_e(self) -> None:
        assert num_epochs_of({"dones": 6, "prev_values": 6, "truncations": 4}, 4) == 2

    @pytest.mark.parametrize("length", [3, 7, 9, 0])
    def test_any_other_length_is_refused(self, length: int) -> None:
        with pytest.raises(ColumnMismatchError, match=f"'dones' has {length} rows") as caught:
            num_epochs_of({"dones": length}, 4)
        assert caught.value.column == "dones"

    def test_columns_that_contradict_each_other_are_both_named(self) -> None:
        told = r"'prev_values' has T \+ 1 rows, but 'dones' has T \+ 2"
        with pytest.raises(ColumnMismatchError, match=told) as caught:
            num_epochs_of({"dones": 6, "prev_values": 5}, 4)
        assert caught.value.column == "prev_values"


class TestExtraRows:
    @given(epochs=epochs(), leading=st.booleans())
    def test_a_row_and_its_flag_tell_the_same_address(
        self, epochs: tuple[int, int, int], leading: bool
    ) -> None:
        num_epochs, steps, num_envs = epochs
        num_steps = num_epochs * steps
        rows = np.arange(num_steps * num_envs)
        # [E, steps, B] with one row of -1 more in each epoch
        extra = np.full((num_epochs, 1, num_envs), -1)
        own = rows.reshape(num_epochs, steps, num_envs)
        extended = np.concatenate([extra, own] if leading else [own, extra], axis=1)
        extended = extended.reshape(num_steps + num_epochs, num_envs)

        kept = drop_extra_rows(extended, num_steps, num_epochs, leading=leading)
        assert kept.tolist() == rows.reshape(num_steps, num_envs).tolist()
        places = extended_rows(rows, num_envs, steps, leading=leading)
        assert extended.reshape(-1)[places].tolist() == rows.tolist()

    def test_rows_of_trajectories_with_other_shapes_go_together(self) -> None:
        rows, num_envs, steps = np.array([3, 3]), np.array([1, 2]), np.array([2, 1])
        assert extended_rows(rows, num_envs, steps, leading=True).tolist() == [5, 7]
        assert extended_rows(rows, num_envs, steps, leading=False).tolist() == [4, 5]

    def test_a_column_of_t_rows_stays(self) -> None:
        values = np.arange(8).reshape(4, 2)
        assert drop_extra_rows(values, 4, 2, leading=True) is values


class TestRunBreaks:
    def test_dones_outrank_the_other_flags(self) -> None:
        flags = {"dones": column([0, 1, 0]), "terminations": column([1, 0, 0])}
        assert run_breaks(flags, 3, 1, 1)[:, 0].tolist() == [False, True, True]

    def test_without_dones_either_of_the_others_counts(self) -> None:
        flags = {"terminations": column([1, 0, 0, 0]), "truncations": column([0, 0, 1, 0])}
        assert run_breaks(flags, 4, 1, 1)[:, 0].tolist() == [True, False, True, True]

    def test_without_flags_a_run_ends_with_its_epoch(self) -> None:
        assert run_breaks({}, 6, 1, 2)[:, 0].tolist() == [False, False, True] * 2

    def test_the_flag_before_the_first_step_ends_nothing(self) -> None:
        flags = {"dones": column([1, 0, 0, 1, 1, 0])}  # E = 2 epochs of 2 steps
        assert run_breaks(flags, 4, 1, 2)[:, 0].tolist() == [False, True, True, True]

    def test_flags_of_chunks_count_when_any_is_set(self) -> None:
        flags = np.zeros((3, 2, 4), np.float32)  # [T, B, K]
        flags[1, 1, 2] = 1
        assert run_breaks({"dones": flags}, 3, 2, 1).tolist() == [
            [False, False],
            [False, True],
            [True, True],
        ]

    def test_flags_without_any_width_are_never_set(self) -> None:
        assert run_breaks({"dones": np.zeros((3, 1, 0))}, 3, 1, 1)[:, 0].tolist() == [0, 0, 1]

    def test_a_gap_breaks_where_no_flag_does(self) -> None:
        flags = {"dones": column([0, 0, 0, 1])}
        gaps = column([0, 1, 0, 0])
        assert run_breaks(flags, 4, 1, 1, gaps)[:, 0].tolist() == [False, True, False, True]


class TestRunBounds:
    @given(breaks=break_flags())
    def test_runs_hold_each_row_once_and_cross_no_break(self, breaks: Flags) -> None:
        hits = np.zeros(breaks.shape, np.int64)
        for env, start, stop in run_bounds(breaks).tolist():
            hits[start:stop, env] += 1
            assert not breaks[start : stop - 1, env].any()
        assert (hits == 1).all()

    @given(breaks=break_flags())
    def test_lengths_tell_the_same_runs(self, breaks: Flags) -> None:
        bounds, lengths = run_bounds(breaks), run_lengths(breaks)
        num_steps, num_envs = breaks.shape
        told = [num_steps] * num_envs if lengths is None else list(lengths)
        assert told == (bounds[:, 2] - bounds[:, 1]).tolist()
        assert (lengths is None) == (not breaks[:-1].any())

    @pytest.mark.parametrize("shape", [(3,), (3, 2, 1), (0, 2), (2, 0)])
    def test_a_wrong_shape_is_named(self, shape: tuple[int, ...]) -> None:
        with pytest.raises(ColumnMismatchError, match=r"breaks .* non-empty bool \[T, B\]"):
            run_bounds(np.zeros(shape, np.bool_))

    def test_a_wrong_type_is_named(self) -> None:
        with pytest.raises(ColumnMismatchError, match="breaks is int64"):
            run_bounds(np.zeros((3, 2), np.int64))


class TestLeadingAxes:
    def test_flags_may_be_longer_and_others_not(self) -> None:
        check_leading_axes("dones", (6, 3), 4, 3)
        check_leading_axes("rewards", (4, 3, 8), 4, 3)
        with pytest.raises(ColumnMismatchError, match=r"'rewards' is \[6, 3\].*\[T, B, \.\.\.\]"):
            check_leading_axes("rewards", (6, 3), 4, 3)

    @pytest.mark.parametrize("shape", [(), (4,), (4, 2), (4, 1, 3)])
    def test_another_b_is_refused_of_all(self, shape: tuple[int, ...]) -> None:
        for name in ("dones", "prev_values", "actions"):
            with pytest.raises(ColumnMismatchError) as caught:
                check_leading_axes(name, shape, 4, 3)
            assert caught.value.column == name
