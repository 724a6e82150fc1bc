# SPDX-License-Identifier: Apache-2.0
"""Looking after stores and checkpoints from outside."""

from __future__ import annotations

from relive.maintenance.converting import convert
from relive.maintenance.finding import find_stores
from relive.maintenance.summary import Summary, summarize

__all__ = ["Summary", "convert", "find_stores", "summarize"]
