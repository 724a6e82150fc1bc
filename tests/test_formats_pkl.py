# SPDX-License-Identifier: Apache-2.0
"""The pkl format."""

from __future__ import annotations

from relive.formats import Format, PklFormat
from relive.testing import FormatConformance


class TestConformance(FormatConformance):
    def make_format(self) -> Format:
        return PklFormat()
