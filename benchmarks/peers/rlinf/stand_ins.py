# SPDX-License-Identifier: Apache-2.0
"""Imports RLinf's replay buffer without what RLinf's other parts need.

The buffer's own modules need NumPy and PyTorch only. Two modules on the way to them need more and
are stood in for: the package's `__init__`, which registers resolvers with omegaconf, and
`rlinf.utils.logging`, which pulls in the Ray scheduler. All else is RLinf's, as installed.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
from types import ModuleType
from typing import Any

__all__ = ["load"]


def load() -> tuple[Any, Any]:
    """Import the two modules of RLinf that replay is made of.

    Returns:
        `rlinf.data.replay_buffer` (TrajectoryReplayBuffer, TrajectoryCache) and
        `rlinf.data.embodied_io_struct` (Trajectory).

    Raises:
        ModuleNotFoundError: rlinf is not installed in this environment; see scripts/peer-env.
    """
    if "rlinf" not in sys.modules:
        spec = importlib.util.find_spec("rlinf")  # finds the package, does not run it
        if spec is None or spec.submodule_search_locations is None:
            raise ModuleNotFoundError(
                "rlinf is not installed here; run this with the Python that "
                "`scripts/peer-env rlinf` prints"
            )
        package = ModuleType("rlinf")
        package.__path__ = list(spec.submodule_search_locations)
        sys.modules["rlinf"] = package
        log = ModuleType("rlinf.utils.logging")
        log.get_logger = logging.getLogger  # type: ignore[attr-defined]  # a module made by hand
        sys.modules["rlinf.utils.logging"] = log
    return (
        importlib.import_module("rlinf.data.replay_buffer"),
        importlib.import_module("rlinf.data.embodied_io_struct"),
    )
