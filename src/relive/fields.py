# SPDX-License-Identifier: Apache-2.0
"""The names of a trajectory's fields, by what they have in common."""

from __future__ import annotations

__all__ = [
    "EXTENDABLE_FIELDS",
    "FACT_FIELDS",
    "FLAG_FIELDS",
    "SHAPE_FIELDS",
    "TREE_FIELDS",
    "VALUE_FIELDS",
]

FLAG_FIELDS = ("dones", "terminations", "truncations")
"""Columns whose extra row, with T + E rows, is the first of each epoch: the state before it."""

VALUE_FIELDS = ("prev_values",)
"""Columns whose extra row, with T + E rows, is the last of each epoch: its bootstrap value."""

EXTENDABLE_FIELDS = (*FLAG_FIELDS, *VALUE_FIELDS)
"""Columns that may have T + E rows."""

SHAPE_FIELDS = ("actions", "rewards", "prev_logprobs")
"""Columns that tell T and B, in this order; after them any observation does."""

TREE_FIELDS = ("forward_inputs", "curr_obs", "next_obs", "extras")
"""Fields that hold a nested dict of columns."""

FACT_FIELDS = ("max_episode_length", "model_weights_id", "gaps")
"""Fields about the whole trajectory, which become no columns."""
