# SPDX-License-Identifier: Apache-2.0
"""What an add costs does not grow with what is there, on disk or in memory."""

from __future__ import annotations
