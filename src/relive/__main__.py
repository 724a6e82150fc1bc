# SPDX-License-Identifier: Apache-2.0
"""`python -m relive` is the command `relive`."""

from __future__ import annotations

from relive.cli import main

main()
