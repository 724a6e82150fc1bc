# SPDX-License-Identifier: Apache-2.0
"""What the tests of formats, samplers and programs can share; needs pytest and Hypothesis.

`FormatConformance`, `FileFormatConformance` and `SamplerConformance` are classes of tests that a
new format or sampler inherits; `trajectories` and `snapshots` are Hypothesis strategies. The
extra "dev" installs what they need.
"""

from __future__ import annotations

from relive.testing.comparing import addressed, differences, record_of
from relive.testing.file_formats import FileFormatConformance
from relive.testing.formats import FormatConformance
from relive.testing.samplers import SamplerConformance
from relive.testing.strategies import snapshots, trajectories

__all__ = [
    "FileFormatConformance",
    "FormatConformance",
    "SamplerConformance",
    "addressed",
    "differences",
    "record_of",
    "snapshots",
    "trajectories",
]
