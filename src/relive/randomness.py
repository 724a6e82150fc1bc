# SPDX-License-Identifier: Apache-2.0
"""The buffer's own random generator, and its state as JSON values."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relive.errors import CorruptFileError, InvalidArgumentError
from relive.options import is_count

__all__ = [
    "DEFAULT_SEED",
    "checked_seed",
    "generator_from_json",
    "generator_to_json",
    "new_generator",
]

DEFAULT_SEED = 1234
"""RLinf's."""

_LARGEST_SEED = (1 << 64) - 1


def checked_seed(seed: Any) -> int:
    """Return the seed, drawn from the system's entropy when it is None.

    A drawn seed has 32 bits, so that RLinf can use it too.

    Raises:
        InvalidArgumentError: It is negative, too large or no integer.
    """
    if seed is None:
        return secrets.randbits(32)
    if not is_count(seed, 0) or seed > _LARGEST_SEED:
        raise InvalidArgumentError(
            f"seed is {seed!r}, but must be None or an integer from 0 to 2**64 - 1; give "
            "one, or leave it out"
        )
    return int(seed)


def new_generator(seed: int, stream: Sequence[int]) -> np.random.Generator:
    """Return a Philox generator; different streams of one seed are independent.

    Args:
        seed: From `checked_seed`.
        stream: Integers of at least 0, such as rank and worker.

    Example:
        >>> new_generator(7, (0,)).random() == new_generator(7, (0,)).random()
        True
        >>> new_generator(7, (0,)).random() == new_generator(7, (1,)).random()
        False
    """
    entropy = np.random.SeedSequence(seed, spawn_key=tuple(stream))
    return np.random.Generator(np.random.Philox(entropy))


def generator_to_json(rng: np.random.Generator) -> dict[str, Any]:
    """Return the state of a Philox generator as JSON values."""
    state = rng.bit_generator.state
    inner = {name: np.asarray(value).tolist() for name, value in state["state"].items()}
    return {
        "bit_generator": state["bit_generator"],
        "state": inner,
        "buffer": np.asarray(state["buffer"]).tolist(),
        "buffer_pos": int(state["buffer_pos"]),
        "has_uint32": int(state["has_uint32"]),
        "uinteger": int(state["uinteger"]),
    }


def generator_from_json(entry: Mapping[str, Any]) -> np.random.Generator:
    """Return the generator with a saved state.

    Raises:
        CorruptFileError: It is no such state.
    """
    generator = np.random.Philox()
    try:
        inner = entry["state"]
        generator.state = {
            "bit_generator": entry["bit_generator"],
            "state": {"counter": _words(inner["counter"], 4), "key": _words(inner["key"], 2)},
            "buffer": _words(entry["buffer"], 4),
            # NumPy checks none of these, and would read beyond the buffer
            "buffer_pos": _number(entry["buffer_pos"], 4),
            "has_uint32": _number(entry["has_uint32"], 1),
            "uinteger": _number(entry["uinteger"], (1 << 32) - 1),
        }
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptFileError(
            f"a generator's state is {entry!r:.200}, but has no valid form; give one that "
            "state_dict() gave"
        ) from error
    return np.random.Generator(generator)


def _words(numbers: Any, length: int) -> NDArray[np.uint64]:
    if not isinstance(numbers, list) or len(numbers) != length:
        raise ValueError(f"{numbers!r:.40} is no list of {length} numbers")
    return np.array([_number(number, (1 << 64) - 1) for number in numbers], np.uint64)


def _number(number: Any, largest: int) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= largest:
        raise ValueError(f"{number!r:.40} is no number from 0 to {largest}")
    return number
