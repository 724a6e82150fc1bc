# SPDX-License-Identifier: Apache-2.0
"""Whatever is wrong is refused by name, and nothing has changed."""

from __future__ import annotations
