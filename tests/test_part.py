# SPDX-License-Identifier: Apache-2.0
"""`relive.part`: a part's key is checked, its columns travel as they are."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relive.errors import InvalidArgumentError, UnsupportedValueError
from relive.part import TrajectoryPart


def make_part(**changes: Any) -> TrajectoryPart:
    key: dict[str, Any] = {
        "group": "g",
        "incarnation": 1,
        "trajectory": 2,
        "epoch": 3,
        "step": 4,
        "columns": {"rewards": np.arange(5)},
        "model_weights_id": "w",
    }
    return TrajectoryPart(**{**key, **changes})


class TestTrajectoryPart:
    def test_it_holds_the_very_columns_it_was_given(self) -> None:
        columns = {"curr_obs": {"states": np.arange(3)}, "actions": np.ones((3, 2))}
        part = make_part(columns=columns)
        assert part.columns is columns

    def test_it_cannot_be_changed(self) -> None:
        part = make_part()
        for name in (field.name for field in fields(part)):
            with pytest.raises(FrozenInstanceError):
                setattr(part, name, getattr(part, name))

    @settings(max_examples=30)
    @given(
        group=st.text(min_size=1),
        numbers=st.tuples(*[st.integers(0, 2**70)] * 3),
        step=st.integers(-1, 2**70),
        model_weights_id=st.text(),
    )
    def test_it_survives_pickle(
        self, group: str, numbers: tuple[int, int, int], step: int, model_weights_id: str
    ) -> None:
        incarnation, trajectory, epoch = numbers
        part = make_part(
            group=group,
            incarnation=incarnation,
            trajectory=trajectory,
            epoch=epoch,
            step=step,
            columns={"task": ["a", "b"]},
            model_weights_id=model_weights_id,
        )
        assert pickle.loads(pickle.dumps(part)) == part

    def test_integers_of_numpy_become_plain_ones(self) -> None:
        part = make_part(incarnation=np.int64(1), step=np.int8(-1))
        assert (part.incarnation, part.step) == (1, -1)
        assert (type(part.incarnation), type(part.step)) == (int, int)

    @pytest.mark.parametrize("group", ["", None, 3, b"g"])
    def test_a_group_without_a_name_is_refused(self, group: Any) -> None:
        with pytest.raises(InvalidArgumentError, match=r"group is .* non-empty text"):
            make_part(group=group)

    @pytest.mark.parametrize(
        ("name", "number", "lowest"),
        [
            ("incarnation", -1, 0),
            ("trajectory", -1, 0),
            ("epoch", -1, 0),
            ("step", -2, -1),
            ("step", 1.0, -1),
            ("epoch", True, 0),
            ("trajectory", None, 0),
            ("incarnation", "1", 0),
        ],
    )
    def test_a_wrong_number_is_named(self, name: str, number: Any, lowest: int) -> None:
        with pytest.raises(
            InvalidArgumentError, match=rf"^{name} of .*'g' is .* at least {lowest}; "
        ):
            make_part(**{name: number})

    def test_step_minus_one_is_the_state_before_the_first(self) -> None:
        assert make_part(step=-1).step == -1

    def test_weights_that_are_no_text_are_refused(self) -> None:
        with pytest.raises(InvalidArgumentError, match=r"model_weights_id is None .* text"):
            make_part(model_weights_id=None)

    @pytest.mark.parametrize("columns", [None, [("rewards", 1)], np.zeros(3)])
    def test_columns_without_names_are_refused(self, columns: Any) -> None:
        with pytest.raises(UnsupportedValueError, match=r"columns is a .* mapping"):
            make_part(columns=columns)
