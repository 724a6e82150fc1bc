# SPDX-License-Identifier: Apache-2.0
"""A Gymnasium vector environment and a policy function become trajectory parts.

`rollout()` steps the environments, asks the policy, and gives one `TrajectoryPart` after the
other, whichever of Gymnasium's three autoreset modes the environments use. Put the parts into
a channel; a `TrajectoryCollector` makes trajectories of them::

    envs = gymnasium.make_vec("Pendulum-v1", num_envs=8)
    for part in relive.gym.rollout(envs, policy, steps_per_epoch=64, seed=1):
        channel.put(part)

Needs `pip install "relive[gym]"`; PyTorch is not imported.
"""

from __future__ import annotations

from relive.errors import MissingPackageError

try:
    from gymnasium.vector import AutoresetMode as _AutoresetMode  # noqa: F401 (a test of presence)
except ImportError as error:
    raise MissingPackageError(
        "gymnasium is not installed or older than 1.1, but relive.gym steps its vector "
        'environments; run: pip install "relive[gym]"'
    ) from error

from relive.gym.episodes import Episode
from relive.gym.options import RolloutOptions
from relive.gym.policy import Policy
from relive.gym.vector_rollout import VectorRollout, rollout

__all__ = ["Episode", "Policy", "RolloutOptions", "VectorRollout", "rollout"]
