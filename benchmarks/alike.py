# SPDX-License-Identifier: Apache-2.0
"""Filling a relive store with very many trajectories that are all alike.

A million additions take most of an hour, nearly all of it for looking at values and laying them
out. Here that is done once; each trajectory has its own entry in index, journal and segment all
the same, written by the library. For filling only: what an addition costs is measured without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import relive
from relive import disk
from relive.formats.memmap import format as memmap_format
from relive.formats.memmap import packing
from relive.snapshot import take_snapshot

__all__ = ["add_alike"]

_BLOCK = 500


def add_alike(
    buffer: relive.TrajectoryReplayBuffer, trajectory: relive.Trajectory, count: int
) -> None:
    """Add one trajectory many times, and wait until all are stored."""
    snapshot = take_snapshot(trajectory)
    # first as ever: it becomes as the store's columns want it
    buffer.add_trajectories([trajectory])
    buffer.flush()
    with _worked_out_once():
        for there in range(1, count, _BLOCK):
            buffer._store.put([snapshot] * min(_BLOCK, count - there))
        buffer.flush()


@contextmanager
def _worked_out_once() -> Iterator[None]:
    kept: list[packing.Packed] = []

    def pack_once(record: Any, snapshot: Any, spec: Any, records: Any) -> packing.Packed:
        if not kept:
            kept.append(packing.pack(record, snapshot, spec, records.copy()))
        return replace(kept[0], side=packing._pack_side(record, snapshot, ()))

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(memmap_format, "pack", pack_once))
        for module, name in (
            (memmap_format, "spec_of"),
            (memmap_format, "layout_of"),
            (disk, "checksums"),
        ):
            once = _once(getattr(module, name))
            stack.enter_context(mock.patch.object(module, name, once))
        yield


def _once(function: Callable[..., Any]) -> Callable[..., Any]:
    results: list[Any] = []

    def first(*arguments: Any) -> Any:
        if not results:
            results.append(function(*arguments))
        return results[0]

    return first
