# SPDX-License-Identifier: Apache-2.0
"""Other projects' interfaces in front of relive, for programs that were written for them."""

from __future__ import annotations

__all__: list[str] = []
