# SPDX-License-Identifier: Apache-2.0
"""The command `relive`."""

from __future__ import annotations

from relive.cli.commands import app, main

__all__ = ["app", "main"]
