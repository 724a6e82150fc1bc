# SPDX-License-Identifier: Apache-2.0
"""`relive.snapshot`: a caller's trajectory becomes a checked copy, and comes out the same."""

from __future__ import annotations

import copy
import enum
import pickle
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from relive.dtypes import TEXT
from relive.errors import (
    ColumnMismatchError,
    CorruptFileError,
    InvalidArgumentError,
    UnsupportedValueError,
)
from relive.fields import EXTENDABLE_FIELDS
from relive.snapshot import Snapshot, restore, take_snapshot
from relive.testing import addressed, differences, trajectories
from relive.trajectory import Trajectory

T, B = 3, 2
ROWS = np.arange(T * B, dtype=np.float32).reshape(T, B)


class Robot(str, enum.Enum):
    ARM = "arm"


class Level(enum.IntEnum):
    HIGH = 3


class Celsius(float):
    pass


class Blob(bytes):
    pass


def taken(**values: Any) -> Snapshot:
    """A snapshot of T = 3, B = 2."""
    return take_snapshot(Trajectory(**{"rewards": ROWS, **values}))


class TestRoundTrip:
    @settings(max_examples=60)
    @given(trajectory=trajectories())
    @pytest.mark.filterwarnings("ignore:ComplexHalf support")
    def test_any_trajectory_comes_out_as_it_went_in(self, trajectory: Trajectory) -> None:
        first = take_snapshot(trajectory)
        assert differences(take_snapshot(restore(first)), first) == []

    def test_columns_keep_their_order_around_side_values(self) -> None:
        first = taken(extras={"a": ROWS, "b": {"c": ROWS, "rate": 30}})
        assert list(take_snapshot(restore(first)).columns) == list(first.columns)

    def test_what_comes_out_is_the_callers(self) -> None:
        snapshot = taken(gaps=np.zeros((T, B), np.bool_))
        out = restore(snapshot, "numpy")
        out.rewards += 1
        out.gaps[:] = True
        assert differences(snapshot, taken(gaps=np.zeros((T, B), np.bool_))) == []

    def test_it_is_made_of_what_was_asked_for(self) -> None:
        snapshot = taken(gaps=np.ones((T, B), np.bool_))
        assert isinstance(restore(snapshot).rewards, torch.Tensor)
        assert isinstance(restore(snapshot).gaps, torch.Tensor)
        assert isinstance(restore(snapshot, "numpy").rewards, np.ndarray)

    def test_numpy_has_no_bfloat16(self) -> None:
        snapshot = taken(actions=torch.zeros(T, B, dtype=torch.bfloat16))
        with pytest.raises(UnsupportedValueError, match="'actions' is bfloat16"):
            restore(snapshot, "numpy")

    @pytest.mark.parametrize("name", ["__class__", "__dict__/x", "no_field", "gaps"])
    def test_a_stored_name_cannot_take_the_place_of_another_attribute(self, name: str) -> None:
        snapshot = taken()
        foreign = Snapshot(T, B, 1, snapshot.shape, {}, {name: 1})
        with pytest.raises(CorruptFileError, match="no field of a trajectory"):
            restore(foreign)


class TestCopies:
    def test_later_changes_of_the_caller_do_not_show(self) -> None:
        rewards, state = ROWS.copy(), torch.zeros(T, B, 4)
        gaps = np.zeros((T, B), np.bool_)
        trajectory = Trajectory(rewards=rewards, curr_obs={"state": state}, gaps=gaps)
        snapshot = take_snapshot(trajectory)
        before = restore(snapshot, "numpy")
        rewards += 9
        state += 9
        gaps[:] = True
        trajectory.curr_obs["more"] = ROWS
        after = restore(snapshot, "numpy")
        assert (after.rewards == before.rewards).all()
        assert (after.curr_obs["state"] == 0).all()
        assert not after.gaps.any()
        assert list(after.curr_obs) == ["state"]

    def test_size_counts_the_bytes_of_all_columns(self) -> None:
        assert taken(actions=np.zeros((T, B, 3), np.int8)).size_bytes == T * B * (4 + 3)
        assert taken().num_rows == T * B


class TestShape:
    @pytest.mark.parametrize(
        ("fields", "shape"),
        [
            ({"actions": np.zeros((T, B, 7)), "rewards": ROWS}, (T, B, 7)),
            ({"rewards": ROWS, "curr_obs": {"s": np.zeros((T, B, 9))}}, (T, B)),
            ({"prev_logprobs": np.zeros((T, B, 4))}, (T, B, 4)),
            ({"next_obs": {"a": {"b": np.zeros((T, B, 5))}}}, (T, B, 5)),
            ({"curr_obs": {"fps": np.float32(30), "s": np.zeros((T, B, 9))}}, (T, B, 9)),
            ({"curr_obs": {"task": ["a", "b"], "s": np.zeros((T, B))}}, (T, B)),
            ({"curr_obs": {"task": np.array(["a", "b"]), "s": np.zeros((T, B))}}, (T, B)),
        ],
    )
    def test_actions_tell_it_else_rewards_logprobs_or_an_observation(
        self, fields: dict[str, Any], shape: tuple[int, ...]
    ) -> None:
        snapshot = take_snapshot(Trajectory(**fields))
        assert (snapshot.num_steps, snapshot.num_envs, snapshot.shape) == (T, B, shape)

    @pytest.mark.parametrize(
        "fields",
        [
            {},
            {"dones": np.zeros((T, B), np.bool_), "prev_values": ROWS},
            {"extras": {"x": ROWS}, "versions": ROWS},
            {"curr_obs": {"task": ["a", "b"]}},
        ],
    )
    def test_flags_values_and_extras_do_not_tell_it(self, fields: dict[str, Any]) -> None:
        with pytest.raises(ColumnMismatchError, match="must tell T and B"):
            take_snapshot(Trajectory(**fields))

    @pytest.mark.parametrize("shape", [(), (3,), (0, 2), (3, 0)])
    def test_a_shape_without_rows_is_refused(self, shape: tuple[int, ...]) -> None:
        with pytest.raises(ColumnMismatchError, match=r"'actions' is .* T and B at least 1"):
            take_snapshot(Trajectory(actions=np.zeros(shape)))

    def test_columns_of_other_lengths_are_refused_by_name_and_shape(self) -> None:
        told = r"'rewards' is \[4, 2\], but the trajectory is \[T, B\] = \[5, 2\]"
        with pytest.raises(ColumnMismatchError, match=told) as caught:
            take_snapshot(Trajectory(actions=np.zeros((5, 2, 2)), rewards=np.zeros((4, 2))))
        assert caught.value.column == "rewards"

    def test_extra_rows_tell_the_epochs(self) -> None:
        flags = np.zeros((6, 1), np.bool_)
        snapshot = take_snapshot(
            Trajectory(rewards=np.zeros((4, 1)), dones=flags, prev_values=np.zeros((4, 1)))
        )
        assert snapshot.num_epochs == 2
        with pytest.raises(ColumnMismatchError, match="'dones' has 7 rows"):
            take_snapshot(Trajectory(rewards=np.zeros((4, 1)), dones=np.zeros((7, 1), np.bool_)))


class TestText:
    @pytest.mark.parametrize(
        "texts",
        [["pick", "place"], ("pick", "place"), np.array(["pick", "place"])],
    )
    def test_one_string_an_env_holds_for_each_step(self, texts: Any) -> None:
        snapshot = taken(extras={"task": texts})
        column = snapshot.columns["extras/task"]
        assert (column.dtype, column.table, column.per_env) == (TEXT, ("pick", "place"), True)
        assert column.values.tolist() == [[0, 1]] * T
        assert restore(snapshot).extras == {"task": ["pick", "place"]}

    @pytest.mark.parametrize("kind", [list, lambda rows: np.array(rows, dtype=object)])
    def test_a_string_for_each_step_and_env(self, kind: Any) -> None:
        rows = [["a", "b"], ["b", "a"], ["c", ""]]
        snapshot = taken(curr_obs={"task": kind(rows)})
        assert snapshot.columns["curr_obs/task"].table == ("a", "b", "c", "")
        assert restore(snapshot).curr_obs == {"task": rows}

    def test_strings_of_any_class_become_plain_ones(self) -> None:
        snapshot = taken(extras={"task": [Robot.ARM, np.str_("leg")]})
        table = snapshot.columns["extras/task"].table
        assert table == ("arm", "leg")
        assert {type(text) for text in table} == {str}

    @pytest.mark.parametrize(
        "texts", [[], ["a"], ["a", "b", "c"], ["a", 1], [["a", "b"]] * 2, [["a"]] * 3, [1.0, 2.0]]
    )
    def test_other_lists_are_refused_by_name(self, texts: Any) -> None:
        with pytest.raises(UnsupportedValueError, match="'extras/task' is a list") as caught:
            taken(extras={"task": texts})
        assert caught.value.column == "extras/task"

    @pytest.mark.parametrize("name", EXTENDABLE_FIELDS)
    @pytest.mark.parametrize("value", [["a", "b"], [True, False], np.array(["a", "b"])])
    def test_flags_and_values_are_no_text(self, name: str, value: Any) -> None:
        with pytest.raises(UnsupportedValueError, match=f"'{name}' is a.*numbers; convert it"):
            taken(**{name: value})


class TestSideValues:
    @pytest.mark.parametrize(
        ("value", "plain"),
        [
            (True, True),
            (np.bool_(True), True),
            (7, 7),
            (2**80, 2**80),
            (np.int16(7), 7),
            (Level.HIGH, 3),
            (1.5, 1.5),
            (np.float32(1.5), 1.5),
            (Celsius(1.5), 1.5),
            ("a", "a"),
            (np.str_("a"), "a"),
            (Robot.ARM, "arm"),
            (b"a\0", b"a\0"),
            (Blob(b"a"), b"a"),
            ({}, {}),
        ],
    )
    def test_they_stay_beside_the_columns_as_plain_values(self, value: Any, plain: Any) -> None:
        snapshot = taken(extras={"x": value})
        assert list(snapshot.columns) == ["rewards"]
        kept = snapshot.side_values["extras/x"]
        assert (type(kept), kept) == (type(plain), plain)
        assert restore(snapshot).extras == {"x": plain}

    @pytest.mark.parametrize("value", [object(), {1, 2}, 1j, range(3), np.datetime64(3, "s")])
    def test_anything_else_is_refused_by_name(self, value: Any) -> None:
        with pytest.raises(UnsupportedValueError, match=r"'extras/x' is a .*convert it") as caught:
            taken(extras={"x": value})
        assert caught.value.column == "extras/x"

    @pytest.mark.parametrize("name", ["actions", "dones", "intervene_flags", "versions"])
    @pytest.mark.parametrize("value", [1.0, "a", True, np.float32(1)])
    def test_a_field_is_no_side_value(self, name: str, value: Any) -> None:
        with pytest.raises(UnsupportedValueError, match=f"'{name}' is a "):
            taken(**{name: value})


class TestFields:
    def test_its_text_has_shapes_in_place_of_values(self) -> None:
        trajectory = Trajectory(
            model_weights_id="w", actions=ROWS, curr_obs={"arm": {"q": ROWS}}, extras={"seed": 3}
        )
        shape = f"{ROWS.dtype} {list(ROWS.shape)}"
        assert repr(trajectory) == (
            f"Trajectory(model_weights_id='w', actions={shape}, "
            f"curr_obs={{'arm': {{'q': {shape}}}}}, extras={{'seed': 3}})"
        )

    @pytest.mark.parametrize(
        ("fields", "told"),
        [
            ({"actions": np.zeros((0, 2, 3))}, r"leave a trajectory without rows out"),
            ({"actions": np.zeros((2, 4)), "rewards": np.zeros((4, 2))}, "as 'actions' says"),
            ({"rewards": ROWS, "extras": {"x": np.full((2, 2), None)}}, "is an array of object"),
        ],
    )
    def test_what_does_not_fit_is_told_with_what_it_does_not_fit(
        self, fields: dict[str, Any], told: str
    ) -> None:
        with pytest.raises((ColumnMismatchError, UnsupportedValueError), match=told):
            take_snapshot(Trajectory(**fields))

    @pytest.mark.parametrize("value", [None, {"rewards": ROWS}, [Trajectory()], ROWS])
    def test_only_a_trajectory_is_taken(self, value: Any) -> None:
        with pytest.raises(UnsupportedValueError, match=r"only relive\.Trajectory can be added"):
            take_snapshot(value)

    def test_a_dict_in_the_place_of_a_tensor_is_refused(self) -> None:
        told = r"'actions' is a dict, .* a tensor or array; give extras=\{\.\.\.\}$"
        with pytest.raises(UnsupportedValueError, match=told):
            taken(actions={"x": ROWS})

    def test_a_tensor_in_the_place_of_a_dict_is_refused(self) -> None:
        told = r"'curr_obs' is a ndarray, but it holds a dict; give curr_obs={'states': \.\.\.}"
        with pytest.raises(UnsupportedValueError, match=told):
            taken(curr_obs=ROWS)

    def test_a_misspelt_one_is_refused_and_the_nearest_named(self) -> None:
        trajectory: Any = Trajectory()
        with pytest.raises(InvalidArgumentError, match=r"^reward is no .* did you mean 'rewards'"):
            trajectory.reward = ROWS
        with pytest.raises(InvalidArgumentError, match=r"loss_mask is .* put further .* extras$"):
            trajectory.loss_mask = ROWS
        assert vars(trajectory).keys() == {spec.name for spec in fields(Trajectory)}

    def test_each_may_be_assigned_copied_and_pickled(self) -> None:
        trajectory = Trajectory()
        for spec in fields(Trajectory):
            setattr(trajectory, spec.name, spec.name)
        for again in (copy.deepcopy(trajectory), pickle.loads(pickle.dumps(trajectory))):
            assert again == trajectory
        assert replace(trajectory, rewards=3).rewards == 3

    def test_a_subclass_may_have_more(self) -> None:
        @dataclass
        class Longer(Trajectory):
            loss_mask: Any = None

            @property
            def length(self) -> int:
                return int(self.max_episode_length)

            @length.setter
            def length(self, length: int) -> None:
                self.max_episode_length = length

        longer: Any = Longer(loss_mask=ROWS)
        longer.loss_mask, longer.length, longer._note = None, 5, "mine"
        assert (longer.loss_mask, longer.max_episode_length, longer._note) == (None, 5, "mine")
        with pytest.raises(InvalidArgumentError, match=r"no field of Longer, .*'loss_mask'"):
            longer.loss_masks = ROWS

    @pytest.mark.parametrize("length", [-1, 1.0, True, None, "3"])
    def test_a_length_that_is_no_count_is_refused(self, length: Any) -> None:
        with pytest.raises(UnsupportedValueError, match="max_episode_length is"):
            taken(max_episode_length=length)

    def test_the_weights_id_is_any_text(self) -> None:
        assert taken(model_weights_id="a/b\0").model_weights_id == "a/b\0"
        assert type(taken(model_weights_id=Robot.ARM).model_weights_id) is str
        with pytest.raises(UnsupportedValueError, match="model_weights_id is a int"):
            taken(model_weights_id=3)

    @pytest.mark.parametrize(
        ("gaps", "error"),
        [
            ([True] * T, UnsupportedValueError),
            (np.zeros((T, B)), ColumnMismatchError),
            (np.zeros((T + 1, B), np.bool_), ColumnMismatchError),
            (np.zeros((T, B, 1), np.bool_), ColumnMismatchError),
        ],
    )
    def test_gaps_are_flags_of_t_by_b(self, gaps: Any, error: type[Exception]) -> None:
        with pytest.raises(error, match="gaps is"):
            taken(gaps=gaps)


class TestFacts:
    def test_runs_end_at_flags_gaps_and_epochs(self) -> None:
        assert addressed(1).run_lengths() == (3, 3) * 3  # T = 6, B = 3, E = 2
        gaps = np.array([[True, False], [False, False], [False, False]])
        assert taken(gaps=gaps).run_lengths() == (1, 2, 3)
        assert taken().run_lengths() is None

    @pytest.mark.parametrize(
        ("versions", "expected"),
        [
            (np.array([[5, 3], [4, 9], [4, 4]]), (3, 9)),
            (np.array([[5.9, 3], [4, 9], [4, 4]], np.float32), (3, 9)),
            (np.full((T, B), 2**64 - 1, np.uint64), (2**64 - 1,) * 2),
            (np.full((T, B), np.nan), None),
            (np.zeros((T, B, 0)), None),
            (np.zeros((T, B), np.bool_), None),
            (torch.zeros(T, B, dtype=torch.bfloat16), None),
            (["v1", "v2"], None),
            (None, None),
        ],
    )
    def test_the_range_of_versions_is_known_of_numbers_only(
        self, versions: Any, expected: tuple[int, int] | None
    ) -> None:
        assert taken(versions=versions).version_range() == expected
