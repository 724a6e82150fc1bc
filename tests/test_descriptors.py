# SPDX-License-Identifier: Apache-2.0
"""Few open files, however many trajectories and columns there are."""

from __future__ import annotations
