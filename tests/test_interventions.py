# SPDX-License-Identifier: Apache-2.0
"""Human-corrected steps, one trajectory for each contiguous stretch."""

from __future__ import annotations

import pickle
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from relive import Trajectory, TrajectoryReplayBuffer
from relive.errors import ColumnMismatchError, InvalidArgumentError, UnsupportedValueError
from relive.interventions import extract_interventions

Bools = NDArray[np.bool_]


def corrected_in(*envs: str) -> Bools:
    """bool `[T, B]` from one text an env: "x" a corrected step, "." another."""
    return np.asarray(
        [[sign == "x" for sign in step] for step in zip(*envs, strict=True)], np.bool_
    )


def addresses(num_steps: int, num_envs: int) -> NDArray[np.int64]:
    """100 * t + b, `[T, B]`."""
    step, env = np.mgrid[:num_steps, :num_envs]
    return np.asarray(100 * step + env, np.int64)


def rollout(corrected: Bools, **fields: Any) -> Trajectory:
    rows = addresses(*corrected.shape)
    return Trajectory(rewards=rows, intervene_flags=corrected, **fields)


def rows_of(parts: list[Trajectory]) -> list[list[int]]:
    return [part.rewards[:, 0].tolist() for part in parts]


class TestStretches:
    def test_are_ordered_by_env_then_time(self) -> None:
        parts = rollout(corrected_in("xx.x", "....", ".xx.")).extract_interventions()
        assert rows_of(parts) == [[0, 100], [300], [102, 202]]
        assert [part.rewards.shape for part in parts] == [(2, 1), (1, 1), (2, 1)]

    def test_nothing_corrected_is_an_empty_list(self) -> None:
        assert rollout(corrected_in("...")).extract_interventions() == []

    def test_end_at_a_done_and_the_next_episode_is_another(self) -> None:
        dones = corrected_in(".x..")[..., None]
        parts = rollout(corrected_in("xxxx"), dones=dones).extract_interventions()
        assert rows_of(parts) == [[0, 100], [200, 300]]
        assert [part.dones[:, 0, 0].tolist() for part in parts] == [[False, True], [False, False]]

    @pytest.mark.parametrize("name", ["terminations", "truncations"])
    def test_end_at_a_termination_or_truncation_without_dones(self, name: str) -> None:
        parts = rollout(corrected_in("xxx"), **{name: corrected_in("x..")}).extract_interventions()
        assert rows_of(parts) == [[0], [100, 200]]

    def test_end_at_a_recorded_gap(self) -> None:
        parts = rollout(corrected_in("xxxx"), gaps=corrected_in("..x.")).extract_interventions()
        assert rows_of(parts) == [[0, 100, 200], [300]]
        assert [part.gaps for part in parts] == [None, None]

    def test_end_with_the_rollout_epoch(self) -> None:
        parts = rollout(corrected_in("xxxx"), dones=np.zeros((6, 1), bool)).extract_interventions()
        assert rows_of(parts) == [[0, 100], [200, 300]]

    def test_count_any_or_all_flags_over_trailing_axes(self) -> None:
        flags = np.zeros((3, 1, 2, 2), bool)
        flags[1, 0, 0, 1] = True
        flags[2] = True
        whole = Trajectory(rewards=addresses(3, 1), intervene_flags=flags)
        assert rows_of(whole.extract_interventions()) == [[100, 200]]
        assert rows_of(whole.extract_interventions(mode="all")) == [[200]]


class TestColumns:
    def test_extra_rows_are_those_around_the_stretch(self) -> None:
        # two epochs of three steps; rows of each column are numbered from 0
        corrected = corrected_in(".xxx.x")
        flags = np.zeros((8, 1), bool)
        values = np.arange(8.0)[:, None]
        whole = rollout(corrected, truncations=flags, prev_values=values)
        parts = whole.extract_interventions()
        assert rows_of(parts) == [[100, 200], [300], [500]]
        # V(1), V(2) and the bootstrap value of the first epoch; V(3) and V(4); ...
        assert [p.prev_values[:, 0].tolist() for p in parts] == [[1, 2, 3], [4, 5], [6, 7]]
        assert [p.truncations.shape for p in parts] == [(3, 1), (2, 1), (2, 1)]

    def test_the_flag_row_before_the_stretch_comes_along(self) -> None:
        dones = corrected_in("x.x.x")  # the state before the first step, then four steps
        parts = rollout(corrected_in(".xxx"), dones=dones).extract_interventions()
        assert rows_of(parts) == [[100], [200, 300]]
        assert [p.dones[:, 0].tolist() for p in parts] == [[False, True], [True, False, True]]

    def test_a_row_beyond_a_recorded_gap_does_not(self) -> None:
        whole = rollout(
            corrected_in("xxxx"),
            gaps=corrected_in(".x.."),
            dones=np.zeros((5, 1), bool),
            prev_values=np.arange(5.0)[:, None],
        )
        first, second = whole.extract_interventions()
        assert first.prev_values[:, 0].tolist() == [0, 1]
        assert second.prev_values[:, 0].tolist() == [2, 3, 4]
        assert (len(first.dones), len(second.dones)) == (3, 2)

    def test_all_of_any_depth_and_kind_are_kept(self) -> None:
        rows = torch.as_tensor(addresses(4, 2))
        whole = Trajectory(
            max_episode_length=7,
            model_weights_id="m",
            intervene_flags=torch.as_tensor(corrected_in("....", ".xx.")),
            actions=rows[..., None].bfloat16(),
            versions=rows.numpy(),
            curr_obs={"arm": {"joint": {"q": rows}}, "task": ["pick", "place"]},
            extras={"said": [[f"{t}{b}" for b in "ab"] for t in range(4)], "n": 3, "e": {}},
        )
        whole.extras["name"] = np.array(["left", "right"])
        (part,) = whole.extract_interventions()
        assert (part.max_episode_length, part.model_weights_id) == (7, "m")
        assert torch.equal(part.actions, torch.tensor([[[101]], [[201]]]).bfloat16())
        assert isinstance(part.versions, np.ndarray)
        assert (
            part.versions.tolist() == part.curr_obs["arm"]["joint"]["q"].tolist() == [[101], [201]]
        )
        assert part.curr_obs["task"] == ["place"]
        assert part.extras == {"said": [["1b"], ["2b"]], "n": 3, "e": {}, "name": ["right"]}
        assert part.next_obs == {}
        assert part.next_obs is not whole.next_obs

    def test_memory_is_their_own(self) -> None:
        for rewards in (np.zeros((2, 1)), torch.zeros(2, 1)):
            whole = Trajectory(rewards=rewards, intervene_flags=np.ones((2, 1), bool))
            (part,) = whole.extract_interventions()
            rewards[:] = 9
            assert float(part.rewards.max()) == 0

    def test_subclasses_stay_themselves(self) -> None:
        class Own(Trajectory):
            pass

        (part,) = Own(intervene_flags=np.ones((1, 1), bool)).extract_interventions()
        assert type(part) is Own

    def test_a_buffer_takes_them(self) -> None:
        values = np.arange(5.0)[:, None]
        whole = rollout(corrected_in("xx.x"), prev_values=values, dones=np.zeros((5, 1), bool))
        buffer = TrajectoryReplayBuffer(framework="numpy")
        assert buffer.add_trajectories(whole.extract_interventions()) == [0, 1]
        batch = buffer.sample(50)
        assert set(batch["rewards"].tolist()) == {0, 100, 300}
        assert (batch["prev_values"] * 100 == batch["rewards"]).all()


@st.composite
def rollouts(draw: st.DrawFn) -> Trajectory:
    """Rewards carry their address; flags and values have T + E rows or T."""
    epochs = draw(st.integers(1, 3))
    steps, envs = epochs * draw(st.integers(1, 4)), draw(st.integers(1, 3))

    def bools(rows: int, *more: int) -> Any:
        shape = (rows, envs, *more)
        size = int(np.prod(shape))
        drawn = draw(st.lists(st.booleans(), min_size=size, max_size=size))
        array = np.array(drawn).reshape(shape)
        return torch.as_tensor(array) if draw(st.booleans()) else array

    extra = epochs if draw(st.booleans()) else 0
    fields: dict[str, Any] = {"dones": bools(steps + extra, 2)} if draw(st.booleans()) else {}
    fields |= {"gaps": bools(steps)} if draw(st.booleans()) else {}
    values = np.repeat(np.arange(steps + epochs)[:, None], envs, 1)
    return Trajectory(
        rewards=torch.as_tensor(addresses(steps, envs)),
        intervene_flags=bools(steps, 3),
        truncations=np.repeat(np.arange(steps + epochs)[:, None] % 2 == 1, envs, 1)
        if extra
        else None,
        prev_values=values if extra else None,
        **fields,
    )


def ends_of(whole: Trajectory) -> tuple[Bools, Bools, int]:
    """Whether a stretch must end after the step, whether a gap follows it, and T / E."""
    steps, envs = whole.rewards.shape
    epochs = len(whole.prev_values) - steps if whole.prev_values is not None else 1
    dones = np.zeros((steps, envs), bool)
    told = whole.dones if whole.dones is not None else whole.truncations
    if told is not None:
        rows = [t + t // (steps // epochs) + 1 if len(told) > steps else t for t in range(steps)]
        dones |= np.asarray(told)[rows].reshape(steps, envs, -1).any(2)
    gaps = np.zeros_like(dones) if whole.gaps is None else np.asarray(whole.gaps)
    dones[steps // epochs - 1 :: steps // epochs] = True
    return dones | gaps, gaps, steps // epochs


class TestAnyRollout:
    @given(whole=rollouts(), mode=st.sampled_from(["any", "all"]))
    def test_each_corrected_row_comes_once_and_no_stretch_could_be_longer(
        self, whole: Trajectory, mode: Literal["any", "all"]
    ) -> None:
        flags = np.asarray(whole.intervene_flags)
        corrected = np.asarray(flags.any(2) if mode == "any" else flags.all(2))
        ends, _, _ = ends_of(whole)
        rows = rows_of(extract_interventions(whole, mode))
        found = [row for part in rows for row in part]
        assert sorted(found) == sorted(addresses(*corrected.shape)[corrected].tolist())
        for part in rows:
            (env,) = {row % 100 for row in part}
            steps = [row // 100 for row in part]
            assert steps == list(range(steps[0], steps[-1] + 1))
            assert not ends[steps[:-1], env].any()
            first, last = steps[0], steps[-1]
            assert first == 0 or ends[first - 1, env] or not corrected[first - 1, env]
            assert last == len(ends) - 1 or ends[last, env] or not corrected[last + 1, env]

    @given(whole=rollouts())
    def test_extra_rows_are_the_neighbours_in_the_epoch(self, whole: Trajectory) -> None:
        if whole.prev_values is None:
            return
        _, gaps, per_epoch = ends_of(whole)
        for part in extract_interventions(whole):
            first, last = (int(part.rewards[i, 0]) // 100 for i in (0, -1))
            env, epoch = int(part.rewards[0, 0]) % 100, first // per_epoch
            at_edge = (last + 1) % per_epoch == 0
            after = [last + 1 + epoch] if at_edge or not gaps[last, env] else []
            values = [t + epoch for t in range(first, last + 1)] + after
            assert part.prev_values[:, 0].tolist() == values
            before = [first + epoch] if first % per_epoch == 0 or not gaps[first - 1, env] else []
            flags = before + [t + epoch + 1 for t in range(first, last + 1)]
            assert part.truncations[:, 0].tolist() == [row % 2 == 1 for row in flags]


class TestRefusals:
    def test_an_unknown_mode(self) -> None:
        with pytest.raises(InvalidArgumentError, match="mode is 'some', but must be 'any' or"):
            rollout(corrected_in("x")).extract_interventions("some")  # type: ignore[arg-type]  # on purpose

    @pytest.mark.parametrize(
        ("flags", "found"),
        [
            (None, "missing"),
            ([[True]], "a list"),
            (np.ones((2, 1)), r"float64 \[2, 1\]"),
            (torch.ones(2, dtype=torch.bool), r"bool \[2\]"),
            (np.ones((2, 0), bool), r"bool \[2, 0\]"),
        ],
    )
    def test_flags_that_are_none(self, flags: Any, found: str) -> None:
        whole = Trajectory(rewards=np.zeros((2, 1)), intervene_flags=flags)
        with pytest.raises(
            ColumnMismatchError, match=f"intervene_flags is {found}, .* bool"
        ) as err:
            whole.extract_interventions()
        assert pickle.loads(pickle.dumps(err.value)).column == "intervene_flags"

    @pytest.mark.parametrize(
        ("name", "column"),
        [
            ("actions", np.zeros((3, 1))),
            ("curr_obs/states", torch.zeros(2, 2)),
            ("dones", np.zeros((5, 1), bool)),
            ("extras/none", torch.tensor(1.0)),
        ],
    )
    def test_a_column_of_another_length(self, name: str, column: Any) -> None:
        head, _, key = name.partition("/")
        whole = rollout(corrected_in("xx"), **{head: {key: column} if key else column})
        with pytest.raises(ColumnMismatchError, match=name) as err:
            whole.extract_interventions()
        assert err.value.column == name

    @pytest.mark.parametrize("gaps", [np.zeros((2, 1)), np.zeros((3, 1), bool), [[True]]])
    def test_gaps_of_another_kind(self, gaps: Any) -> None:
        with pytest.raises(ColumnMismatchError, match=r"gaps is .*, but must be bool \[T, B\]"):
            rollout(corrected_in("xx"), gaps=gaps).extract_interventions()

    def test_a_list_that_is_no_text_column(self) -> None:
        whole = rollout(corrected_in("xx"), extras={"words": ["a", "b", "c"]})
        with pytest.raises(UnsupportedValueError, match="'extras/words' is a list, but lists hold"):
            whole.extract_interventions()
