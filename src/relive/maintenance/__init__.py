# SPDX-License-Identifier: Apache-2.0
"""Looking after stores and checkpoints from outside."""

from __future__ import annotations

from relive.maintenance.summary import Summary, summarize

__all__ = ["Summary", "summarize"]
