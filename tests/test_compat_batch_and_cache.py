# SPDX-License-Identifier: Apache-2.0
"""`relive.compat.rlinf`: trajectories side by side in one batch, and its cache of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import relive
from relive.compat.rlinf import Trajectory, TrajectoryCache, convert_trajectories_to_batch
from relive.errors import ColumnMismatchError, InvalidArgumentError, UnsupportedValueError
from rlinf_program import rollout
from rlinf_rows import addressed


class TestConvertTrajectoriesToBatch:
    def test_puts_envs_side_by_side(self) -> None:
        one, other = addressed(1, 4, 2, 2), relive.Trajectory(**rollout(2, 4, 3, 2))
        batch = convert_trajectories_to_batch([one, other])
        assert batch["rewards"].shape == (4, 5, 1)
        assert batch["dones"].shape == (6, 5, 1)
        assert torch.equal(batch["curr_obs"]["states"][:, :2], one.curr_obs["states"])
        assert torch.equal(batch["curr_obs"]["states"][:, 2:], other.curr_obs["states"])
        assert "extras" not in batch
        assert convert_trajectories_to_batch([]) == {}

    def test_nested_dicts_arrays_texts_and_side_values(self) -> None:
        def one(width: int, word: str) -> Trajectory:
            return Trajectory(
                rewards=np.full((2, width), width, np.float32),
                curr_obs={"a": {"b": torch.zeros(2, width)}, "task": [word] * width},
                extras={"said": [[word] * width] * 2, "rate": 30},
            )

        batch = convert_trajectories_to_batch([one(1, "x"), one(2, "y")])
        assert torch.equal(batch["rewards"], torch.tensor([[1.0, 2, 2], [1, 2, 2]]))
        assert batch["curr_obs"]["a"]["b"].shape == (2, 3)
        assert batch["curr_obs"]["task"] == ["x", "y", "y"]
        assert batch["extras"] == {"said": [["x", "y", "y"]] * 2, "rate": 30}

    @pytest.mark.parametrize(
        ("name", "change"),
        [
            ("versions", {"versions": None}),
            ("curr_obs/states", {"curr_obs": {}}),
            ("gaps", {"gaps": torch.zeros(4, 2, dtype=torch.bool)}),
        ],
    )
    def test_a_column_that_some_lack_is_named(self, name: str, change: dict[str, Any]) -> None:
        whole, changed = addressed(0), addressed(1)
        for key, value in change.items():
            setattr(changed, key, value)
        for many in ([whole, changed], [changed, whole]):
            with pytest.raises(ColumnMismatchError, match=f"'{name}' is missing in 1 of 2") as err:
                convert_trajectories_to_batch(many)
            assert err.value.column == name

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ({"rewards": torch.zeros(4, 2)}, {"rewards": torch.zeros(5, 2)}),
            ({"rewards": torch.zeros(4, 2)}, {"rewards": torch.zeros(4, 2, 1)}),
            ({"rewards": torch.zeros(4, 2)}, {"rewards": torch.zeros(4, 2).double()}),
            ({"extras": {"rate": 1}}, {"extras": {"rate": 2}}),
            ({"extras": {"rate": 1}}, {"extras": {"rate": True}}),
            ({"extras": {"said": ["a"]}}, {"extras": {"said": [["a"], ["b"]]}}),
            ({"extras": {"said": [["a"]]}}, {"extras": {"said": [["a"], ["b"]]}}),
        ],
    )
    def test_columns_that_do_not_fit_are_named(
        self, one: dict[str, Any], other: dict[str, Any]
    ) -> None:
        with pytest.raises(ColumnMismatchError, match=r"(rewards|extras/\w+)' is .* / .*, but"):
            convert_trajectories_to_batch([Trajectory(**one), Trajectory(**other)])

    @pytest.mark.parametrize("value", [None, Trajectory(), "ab"])
    def test_what_is_no_list_is_named(self, value: Any) -> None:
        with pytest.raises(InvalidArgumentError, match=r"trajectories is .* must be a list"):
            convert_trajectories_to_batch(value)


class TestCache:
    def columns(self, number: int, rows: int = 3) -> dict[str, Any]:
        return {
            "rewards": torch.full((rows, 1), float(number)),
            "curr_obs": {"arm": {"q": torch.full((rows, 2), number).bfloat16()}},
        }

    def test_keeps_the_newest_first_in_first_out(self) -> None:
        cache = TrajectoryCache(max_size=2)
        for number in range(3):
            cache.put(number, self.columns(number))
        assert (len(cache.cache), list(cache.cache), cache.max_size) == (2, [1, 2], 2)
        assert cache.get(0) is None
        cache.put(1, self.columns(7))  # replaced in its place
        assert list(cache.cache) == [1, 2]
        found = cache.get(1)
        assert found is not None
        assert torch.equal(found["curr_obs"]["arm"]["q"], torch.full((3, 2), 7).bfloat16())
        cache.clear()
        assert (cache.cache, cache.get(1), len(cache)) == ({}, None, 0)

    def test_copies_what_it_is_given(self) -> None:
        cache, columns = TrajectoryCache(), self.columns(1)
        cache.put(0, columns)
        columns["rewards"][:] = 9
        found = cache.get(0)
        assert found is not None
        assert found["rewards"].max() == 1

    def test_other_columns_and_lengths_do_not_mix(self) -> None:
        cache = TrajectoryCache(max_size=1)
        cache.put(0, {**self.columns(0, rows=5), "extra": torch.full((5,), 7)})
        cache.put(1, self.columns(1))
        found = cache.get(1)
        assert found is not None
        assert found.keys() == {"rewards", "curr_obs"}
        assert len(found["rewards"]) == 3

    def test_what_is_no_tensor_is_refused(self) -> None:
        nothing: Any = None
        with pytest.raises(UnsupportedValueError, match="trajectory 4 is a NoneType"):
            TrajectoryCache().put(4, nothing)
        with pytest.raises(UnsupportedValueError, match="trajectory 4 has no tensor"):
            TrajectoryCache().put(4, {})
        with pytest.raises(UnsupportedValueError, match="'curr_obs/task' is a list, but") as err:
            TrajectoryCache().put(4, {"curr_obs": {"task": ["a"]}})
        assert err.value.column == "curr_obs/task"
