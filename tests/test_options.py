# SPDX-License-Identifier: Apache-2.0
"""`relive.options`: plain arguments mean the same wherever they are given."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relive import Limits, TrajectoryCollector, TrajectoryReplayBuffer
from relive.errors import InvalidArgumentError
from relive.options import (
    check_choice,
    check_kind,
    checked_count,
    checked_list,
    checked_names,
    checked_time_limit,
    is_count,
)

NO_TIME_LIMITS = [-1, -0.5, float("nan"), float("inf"), 10**400, True, np.True_, "x", None, [1]]


class TestNames:
    def test_a_set_is_a_list_only_where_no_order_matters(self) -> None:
        assert checked_names("columns", {"a"}) == ("a",)
        assert checked_names("join", ["b", "a"], ordered=True) == ("b", "a")
        with pytest.raises(InvalidArgumentError, match=r"join is \{'a'\}, but must be a list"):
            checked_names("join", {"a"}, ordered=True)


class TestCounts:
    @pytest.mark.parametrize("number", [3, np.int64(3), np.uint8(3)])
    def test_integers_of_python_and_numpy_become_plain_ones(self, number: Any) -> None:
        assert is_count(number, 3)
        assert checked_count("num_epochs", number) == 3
        assert type(checked_count("num_epochs", number)) is int

    @pytest.mark.parametrize("number", [0, -1, np.int64(0), 1.0, np.float32(2), True, "1", None])
    def test_what_is_no_count_is_named(self, number: Any) -> None:
        assert not is_count(number)
        with pytest.raises(InvalidArgumentError) as error:
            checked_count("num_epochs", number)
        assert str(error.value).startswith(
            f"num_epochs is {number!r}, but must be an integer of at least 1; "
        )

    def test_what_to_do_is_told_by_what_is_wrong(self) -> None:
        with pytest.raises(InvalidArgumentError, match=r"; give 3 or more$"):
            checked_count("num_epochs", 2, 3)
        with pytest.raises(InvalidArgumentError, match=r"; give a whole number, as int\(\)"):
            checked_count("num_epochs", 3.5)


class TestChoices:
    def test_the_nearest_is_asked_for(self) -> None:
        with pytest.raises(InvalidArgumentError, match=r"'b', but .*; choose one of these$"):
            check_choice("if_exists", "b", ("refuse", "resume"))
        with pytest.raises(InvalidArgumentError, match=r"'resum', .*; did you mean 'resume'\?$"):
            check_choice("if_exists", "resum", ("refuse", "resume"))

    def test_a_kind_says_how_to_come_by_it(self) -> None:
        with pytest.raises(InvalidArgumentError, match="is 'no', but must be bool; give True or F"):
            check_kind("auto_save", "no", bool)
        with pytest.raises(InvalidArgumentError, match=r"must be Limits or None; build one"):
            check_kind("limits", 5, Limits, type(None))


class TestCheckedLists:
    def test_any_number_of_things_become_a_list(self) -> None:
        assert checked_list("ids", iter([3, 4]), "ids") == [3, 4]

    @pytest.mark.parametrize(
        ("given", "told"),
        [(None, "None"), (0, "0"), ("ab", "'ab'"), (b"a", "b'a'"), (Limits(), "one Limits")],
    )
    def test_one_thing_is_told_to_go_into_brackets(self, given: object, told: str) -> None:
        with pytest.raises(InvalidArgumentError) as error:
            checked_list("ids", given, "trajectory ids")
        assert str(error.value) == (
            f"ids is {told}, but must be a list of trajectory ids; put one in brackets"
        )


class TestTimeLimits:
    @pytest.mark.parametrize("seconds", [0, 2, 0.5, np.float32(0.5), np.int64(9)])
    def test_numbers_become_floats(self, seconds: Any) -> None:
        assert checked_time_limit("timeout_s", seconds) == seconds
        assert type(checked_time_limit("timeout_s", seconds)) is float

    def test_the_longest_is_what_python_can_wait(self) -> None:
        longest = threading.TIMEOUT_MAX
        assert checked_time_limit("timeout_s", longest) == longest
        with pytest.raises(InvalidArgumentError):
            checked_time_limit("timeout_s", 2 * longest)

    @pytest.mark.parametrize("seconds", NO_TIME_LIMITS)
    def test_what_is_no_time_limit_is_named(self, seconds: Any) -> None:
        with pytest.raises(InvalidArgumentError, match=r"^stall_s is .*number of seconds from 0"):
            checked_time_limit("stall_s", seconds)

    @pytest.mark.parametrize("seconds", [limit for limit in NO_TIME_LIMITS if limit is not None])
    def test_a_buffer_refuses_it_before_it_waits(self, seconds: Any, tmp_path: Path) -> None:
        with TrajectoryReplayBuffer(auto_save=True, auto_save_path=tmp_path) as buffer:
            with pytest.raises(InvalidArgumentError, match=r"^timeout_s is "):
                buffer.flush(timeout_s=seconds)
            waiting = buffer.is_ready_async(1, timeout_s=seconds)
            with pytest.raises(InvalidArgumentError, match=r"^timeout_s is "):
                waiting.send(None)


class TestCheckedNames:
    def test_any_list_becomes_a_tuple(self) -> None:
        assert checked_names("join", iter(["a", "b"])) == ("a", "b")

    @pytest.mark.parametrize("names", ["rewards", 5, None, [1, 2]])
    def test_what_is_no_list_of_names_is_refused(self, names: object) -> None:
        with pytest.raises(InvalidArgumentError, match=r"join is .* a list of names"):
            checked_names("join", names)

    @pytest.mark.parametrize(
        "given", [{"columns": 5}, {"columns": "rewards"}, {"join": None}, {"join": [1, 2]}]
    )
    def test_the_collector_refuses_it_too(self, given: dict[str, Any]) -> None:
        with pytest.raises(InvalidArgumentError, match="a list of names"):
            TrajectoryCollector(2, **given)

    def test_the_collector_takes_no_word_for_a_switch(self) -> None:
        with pytest.raises(InvalidArgumentError, match="bootstrap_values is 'no'"):
            TrajectoryCollector(2, bootstrap_values="no")  # type: ignore[arg-type]
