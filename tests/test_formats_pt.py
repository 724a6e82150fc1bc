# SPDX-License-Identifier: Apache-2.0
"""The pt format."""

from __future__ import annotations

from relive.formats import Format, PtFormat
from relive.testing import FormatConformance


class TestConformance(FormatConformance):
    def make_format(self) -> Format:
        return PtFormat()
