# SPDX-License-Identifier: Apache-2.0
"""Ways to draw rows from a window."""

from __future__ import annotations

from relive.samplers.base import Draw, Sampler
from relive.samplers.uniform import Uniform

__all__ = ["Draw", "Sampler", "Uniform"]
