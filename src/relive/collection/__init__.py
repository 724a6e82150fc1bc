# SPDX-License-Identifier: Apache-2.0
"""How parts become trajectories, for `relive.collector`: no channel, no thread, no clock.

`incoming` checks and copies the columns of one part, `rollout` gathers the parts of one
trajectory, `blocks` joins and splits finished ones, `groups` remembers what each group is at.
"""

from __future__ import annotations

__all__: list[str] = []
