# SPDX-License-Identifier: Apache-2.0
"""`relive.randomness`: streams of one seed, and states that go on exactly."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relive.errors import CorruptFileError, InvalidArgumentError
from relive.randomness import (
    checked_seed,
    generator_from_json,
    generator_to_json,
    new_generator,
)


def draws(rng: np.random.Generator) -> list[int]:
    return [int(number) for number in rng.integers(1 << 62, size=8)]


class TestSeeds:
    @pytest.mark.parametrize("seed", [0, 1234, (1 << 64) - 1, np.int64(7), np.uint8(7)])
    def test_integers_of_64_bits_are_seeds(self, seed: Any) -> None:
        assert checked_seed(seed) == int(seed)
        assert type(checked_seed(seed)) is int

    @pytest.mark.parametrize("seed", [-1, 1 << 64, 1.0, "1", True, [1], np.float32(1)])
    def test_anything_else_is_refused(self, seed: Any) -> None:
        with pytest.raises(InvalidArgumentError, match="seed is"):
            checked_seed(seed)

    def test_none_draws_one_that_rlinf_can_use(self) -> None:
        seeds = {checked_seed(None) for _ in range(20)}
        assert len(seeds) > 15
        assert all(0 <= seed < 1 << 32 for seed in seeds)


class TestStreams:
    def test_one_seed_and_stream_give_the_same_draws(self) -> None:
        assert draws(new_generator(7, (1, 2))) == draws(new_generator(7, (1, 2)))

    def test_other_seeds_and_streams_give_others(self) -> None:
        cases = [(7, ()), (8, ()), (7, (0,)), (7, (1,)), (7, (0, 0)), (7, (1, 0)), (7, (0, 1))]
        assert len({tuple(draws(new_generator(*case))) for case in cases}) == len(cases)

    def test_no_global_generator_is_touched(self) -> None:
        before = np.random.get_state(legacy=True)  # the global one is the point
        draws(new_generator(7, ()))
        after = np.random.get_state(legacy=True)
        assert str(before) == str(after)


class TestStates:
    @given(num=st.integers(0, 30), kind=st.sampled_from(["integers", "random", "normal"]))
    def test_a_saved_state_goes_on_exactly(self, num: int, kind: str) -> None:
        rng = new_generator(7, ())
        for _ in range(num):
            rng.integers(10, dtype=np.uint32)  # takes half a word
        getattr(rng, kind)(3, size=num) if kind == "integers" else getattr(rng, kind)(size=num)
        state = json.loads(json.dumps(generator_to_json(rng)))
        again = generator_from_json(state)
        assert again.integers(100, dtype=np.uint32) == rng.integers(100, dtype=np.uint32)
        assert draws(again) == draws(rng)
        assert generator_to_json(again) == generator_to_json(rng)

    @pytest.mark.parametrize(
        "changes",
        [
            {"bit_generator": "MT19937"},
            {"bit_generator": None},
            {"state": None},
            {"state": {"counter": [0, 0, 0], "key": [0, 0]}},
            {"state": {"counter": [0, 0, 0, -1], "key": [0, 0]}},
            {"state": {"counter": [0, 0, 0, 0], "key": [0, 1 << 64]}},
            {"state": {"counter": [0, 0, 0, 0.5], "key": [0, 0]}},
            {"state": {"counter": [0, 0, 0, 0]}},
            {"buffer": [0] * 5},
            {"buffer": 3},
            {"buffer_pos": 5},
            {"buffer_pos": -1},
            {"buffer_pos": "1"},
            {"has_uint32": 2},
            {"uinteger": 1 << 32},
            {"uinteger": None},
        ],
    )
    def test_a_state_that_is_none_is_a_corrupt_file(self, changes: dict[str, Any]) -> None:
        state = generator_to_json(new_generator(7, ()))
        with pytest.raises(CorruptFileError, match="a generator's state is"):
            generator_from_json({**state, **changes})

    @pytest.mark.parametrize("missing", sorted(generator_to_json(new_generator(7, ()))))
    def test_a_state_that_lacks_something_is_too(self, missing: str) -> None:
        state = generator_to_json(new_generator(7, ()))
        del state[missing]
        with pytest.raises(CorruptFileError, match="a generator's state is"):
            generator_from_json(state)

    @pytest.mark.parametrize("entry", [None, 3, [], "Philox"])
    def test_something_else_is_too(self, entry: Any) -> None:
        with pytest.raises(CorruptFileError, match="a generator's state is"):
            generator_from_json(entry)
