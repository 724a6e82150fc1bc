# SPDX-License-Identifier: Apache-2.0
"""The drawing half of a buffer: its sampler, its own generator, and their saved state."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from relive.buffer_state import STATE_VERSION, BufferState
from relive.randomness import (
    generator_to_json,
    new_generator,
)
from relive.record import Record
from relive.samplers import Draw, Sampler
from relive.warning import warn
from relive.window import Window

__all__ = ["Draws"]


class Draws:
    """Draws rows by a sampler from a stream of its own. The caller holds the store's lock."""

    def __init__(self, sampler: Sampler, seed: int, stream: Sequence[int]) -> None:
        """Begin a stream.

        Args:
            sampler: Decides which rows make a batch.
            seed: From `randomness.checked_seed`.
            stream: Integers of at least 0 mixed into the seed.
        """
        self.sampler = sampler
        """Decides which rows make a batch."""
        self.seed = seed
        """The seed in use."""
        self.num_drawn = 0
        """Rows drawn since the buffer began, over resumes."""
        self.stream = tuple(stream)
        """What is mixed into the seed."""
        self._rng = new_generator(seed, self.stream)

    def draw(self, window: Window, num: int) -> Draw:
        """Choose rows of a window that has some."""
        self.num_drawn += num
        return self.sampler.draw(window, num, self._rng)

    def on_add(self, record: Record) -> None:
        """Let the sampler hear of a trajectory that was added."""
        self.sampler.on_add(record)

    def on_remove(self, record: Record) -> None:
        """Let the sampler hear of a trajectory that was evicted or deleted."""
        self.sampler.on_remove(record)

    def begin_stream(self, stream: Sequence[int], *more: int) -> None:
        """Go on with another stream of the same seed.

        Args:
            stream: Takes the place of the present one.
            more: Mixed in now, so that beginning the same stream again gives other draws.
        """
        self.stream = tuple(stream)
        self._rng = new_generator(self.seed, (*self.stream, *more))

    def state_dict(self) -> dict[str, Any]:
        """Return generator, sampler state and count, as JSON values."""
        return {
            "version": STATE_VERSION,
            "seed": self.seed,
            "stream": list(self.stream),
            "generator": generator_to_json(self._rng),
            "sampler": {"name": self.sampler.name, "state": dict(self.sampler.state_dict())},
            "sampled_chunks": self.num_drawn,
        }

    def load(self, saved: BufferState) -> None:
        """Go on from a saved state; that of another kind of sampler is left out, with a warning."""
        name = saved.sampler_name
        if name == self.sampler.name:
            self.sampler.load_state_dict(saved.sampler_state)
        self.seed, self.stream, self._rng = saved.seed, saved.stream, saved.generator
        self.num_drawn = saved.num_drawn
        if name != self.sampler.name:
            warn(f"the saved state is of sampler {name!r}, so {self.sampler.name!r} starts anew")

    def go_on_from(self, saved: BufferState, counter: int) -> None:
        """Go on from a saved state, or begin the own stream when the state is of another one.

        So ranks that load one checkpoint whole do not draw alike.

        Args:
            saved: What was saved.
            counter: Mixed into the stream when it begins anew.
        """
        own = self.stream
        self.load(saved)
        if own and self.stream != own:
            self.begin_stream(own, counter)

    def after_fork(self) -> None:
        """Become a forked child's copy, on a stream of its own."""
        self._rng = new_generator(self.seed, (*self.stream, os.getpid()))
