# SPDX-License-Identifier: Apache-2.0
"""A trajectory as records, frames and the rest, and back. Pure: no file.

Rows lie env after env, `b * T + t`: consecutive steps of one env are one stretch of the file,
and a frame's successor is the next frame.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from relive.dtypes import TEXT, items_dtype, storage_dtype
from relive.errors import CorruptFileError
from relive.fields import FLAG_FIELDS
from relive.formats.memmap.segment_spec import FrameGroup, SegmentSpec
from relive.record import Record
from relive.record_json import record_to_json
from relive.runs import drop_extra_rows, extra_rows, join_extra_rows
from relive.snapshot import Column, SideValue, Snapshot
from relive.texts import TextsOf

__all__ = ["Packed", "RecordScratch", "pack", "spec_of", "unpack", "unpack_side"]

_MOST_SCRATCH_BYTES = 64 << 20
_HEADER = np.dtype([("side_bytes", "<u4"), ("json_bytes", "<u4"), ("xxh3", "<u8")])


@dataclass(frozen=True, slots=True)
class Packed:
    """The bytes of one trajectory as a segment's files hold them."""

    records: NDArray[np.void]
    """`[R]`, env after env; positions of frames count from the trajectory's first."""
    frames: tuple[NDArray[np.uint8], ...]
    """Of each frame group, `[F, frame bytes]`."""
    side: bytes
    """What is neither: extra rows of flags and values, side values, gaps, facts."""
    tables: Mapping[str, Sequence[str]]
    """Of each text column the texts that its codes in the records stand for."""

    @property
    def size_bytes(self) -> int:
        """About how many bytes it takes on the disk; texts may be there already."""
        texts = sum(len(text) for table in self.tables.values() for text in table)
        frames = sum(one.nbytes for one in self.frames)
        return self.records.nbytes + frames + len(self.side) + texts


def spec_of(snapshot: Snapshot) -> SegmentSpec:
    """Return how segments that hold such trajectories are laid out."""
    columns = snapshot.columns.items()
    return _spec_of(tuple((name, one.dtype, one.values.shape[2:]) for name, one in columns))


@lru_cache(maxsize=64)
def _spec_of(columns: tuple[tuple[str, str, tuple[int, ...]], ...]) -> SegmentSpec:
    return SegmentSpec.of({name: (dtype, row_shape) for name, dtype, row_shape in columns})


class RecordScratch(threading.local):
    """Memory for the records of one trajectory at a time, each thread's own.

    Fresh memory would cost as much as filling it.
    """

    def __init__(self) -> None:
        self._kept: tuple[SegmentSpec, NDArray[np.void]] | None = None

    @contextmanager
    def lend(self, spec: SegmentSpec, num_rows: int) -> Iterator[NDArray[np.void]]:
        """Yield records whose fields hold anything, and zeros between them, `[num_rows]`."""
        # taken out meanwhile: a signal handler may save in the middle of this
        kept, self._kept = self._kept, None
        if kept is None or kept[0] != spec or len(kept[1]) < num_rows:
            kept = spec, spec.empty_records(num_rows)
        yield kept[1][:num_rows]
        if kept[1].nbytes <= _MOST_SCRATCH_BYTES:
            self._kept = kept


def pack(
    record: Record, snapshot: Snapshot, spec: SegmentSpec, records: NDArray[np.void]
) -> Packed:
    """Lay a trajectory out.

    Args:
        record: What is known of it; goes to the side file, so that a segment explains itself.
        snapshot: Its rows.
        spec: Of the segment; has the snapshot's columns and no others.
        records: Filled, zeros between their fields, `[R]`; those of the result.
    """
    num_steps, num_envs = snapshot.num_steps, snapshot.num_envs
    by_env = records.reshape(num_envs, num_steps)
    extras: list[tuple[str, NDArray[Any]]] = []
    rows = {}
    for name, column in snapshot.columns.items():
        leading = name in FLAG_FIELDS
        rows[name] = drop_extra_rows(column.values, num_steps, snapshot.num_epochs, leading=leading)
        if len(column.values) != num_steps:
            extra = extra_rows(column.values, snapshot.num_epochs, leading=leading)
            extras.append((name, extra))
    for one in spec.fields:
        if one.row_bytes:
            # [T, B, ...] -> [T, B] of items -> [B, T]
            by_env[one.name] = _items(rows[one.name]).T
    frames = []
    for group in spec.groups:
        positions, stored = _frames(group, rows)
        by_env[group.name] = positions
        frames.append(stored)
    tables = {name: snapshot.columns[name].table for name in spec.text_names}
    return Packed(records, tuple(frames), _pack_side(record, snapshot, extras), tables)


def _items(rows: NDArray[Any]) -> NDArray[Any]:
    """View `[T, B, ...]` as items `[T, B]`."""
    flat = np.ascontiguousarray(rows).reshape(*rows.shape[:2], -1)
    return flat.view(items_dtype(flat.shape[2] * flat.itemsize))[:, :, 0]


def _bytes(rows: NDArray[Any]) -> NDArray[np.uint8]:
    """View `[T, B, ...]` as bytes `[T, B, row bytes]`."""
    return np.ascontiguousarray(rows).reshape(*rows.shape[:2], -1).view(np.uint8)


def _frames(
    group: FrameGroup, rows: Mapping[str, NDArray[Any]]
) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Return the position of each row's frame, `[B, T]`, and the frames `[F, frame bytes]`."""
    now = _bytes(rows[group.name])
    num_steps, num_envs, frame_bytes = now.shape
    if not group.is_pair:
        positions = np.arange(num_steps * num_envs).reshape(num_envs, num_steps)
        return positions, now.swapaxes(0, 1).reshape(-1, frame_bytes)
    after = _bytes(rows[group.columns[1].name])
    is_own = np.ones((num_envs, num_steps), np.bool_)
    for step in range(num_steps - 1):
        is_own[:, step] = _differ(after[step], now[step + 1])
    # each row's frame, then the successor's own if it has one
    ends = np.cumsum(1 + is_own.ravel()).reshape(num_envs, num_steps)
    positions = ends - 1 - is_own
    frames = np.empty((int(ends[-1, -1]), frame_bytes), np.uint8)
    for env in range(num_envs):
        frames[positions[env]] = now[:, env]
        own = np.flatnonzero(is_own[env])
        frames[positions[env, own] + 1] = after[own, env]
    return positions, frames


def _differ(first: NDArray[np.uint8], second: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Tell which rows of two `[B, bytes]` differ in any bit."""
    if not first.shape[1] % 8:
        first, second = first.view(np.uint64), second.view(np.uint64)
    differs: NDArray[np.bool_] = (first != second).any(axis=1)
    return differs


def _pack_side(
    record: Record, snapshot: Snapshot, extras: Sequence[tuple[str, NDArray[Any]]]
) -> bytes:
    raw = [extra.tobytes() for _, extra in extras]
    if snapshot.gaps is not None:
        raw.append(snapshot.gaps.tobytes())
    side_bytes: dict[str, int] = {}
    values: dict[str, SideValue] = {}
    for name, value in snapshot.side_values.items():
        if isinstance(value, bytes):
            side_bytes[name] = len(value)
            raw.append(value)
        else:
            values[name] = value
    entry = record_to_json(record, 0)
    for known in ("layout", "location", "num_samples"):
        del entry[known]
    entry |= {
        "extra_rows": [name for name, _ in extras],
        "has_gaps": snapshot.gaps is not None,
        "side_values": values,
        "side_bytes": side_bytes,
        "order": list(snapshot.side_values),
    }
    text = json.dumps(entry, separators=(",", ":")).encode("ascii")
    body = text + b"".join(raw)
    header = np.zeros((), _HEADER)
    header["side_bytes"], header["json_bytes"] = _HEADER.itemsize + len(body), len(text)
    header["xxh3"] = xxhash.xxh3_64_intdigest(body)
    return header.tobytes() + body


def unpack_side(blob: bytes) -> tuple[dict[str, Any], memoryview]:
    """Read the facts that `pack` put into the side file.

    Returns:
        The JSON values, and the raw bytes after them.

    Raises:
        CorruptFileError: It is cut or damaged.
    """
    if len(blob) >= _HEADER.itemsize:
        header = np.frombuffer(blob, _HEADER, 1)[0]
        size, json_bytes = int(header["side_bytes"]), int(header["json_bytes"])
        body = memoryview(blob)[_HEADER.itemsize : size]
        if len(blob) == size and xxhash.xxh3_64_intdigest(body) == header["xxh3"]:
            entry = json.loads(bytes(body[:json_bytes]))
            return entry, body[json_bytes:]
    raise CorruptFileError("what stands in the side file is cut or damaged")


def unpack(
    record: Record,
    spec: SegmentSpec,
    records: NDArray[np.void],
    frames: Mapping[str, NDArray[np.uint8]],
    side: bytes,
    texts_of: TextsOf,
) -> Snapshot:
    """Put a trajectory together again.

    Args:
        record: The trajectory.
        spec: Of its segment.
        records: Its records.
        frames: Of each frame group, by its name, the trajectory's frames.
        side: Its part of the side file.
        texts_of: Gives texts of the segment by their codes.

    Raises:
        CorruptFileError: They do not fit each other.
    """
    entry, raw = unpack_side(side)
    reader = _Reader(raw)
    shape = (record.num_envs, record.num_steps)
    by_env = records.reshape(shape)
    columns: dict[str, NDArray[Any]] = {}
    for one in spec.fields:
        stored = storage_dtype(one.dtype)
        rows = np.empty((*shape[::-1], *one.row_shape), stored)
        if one.row_bytes:
            _items(rows)[:] = by_env[one.name].T
        if one.dtype == TEXT:
            rows = _own_codes(one.name, rows, record, texts_of)
        columns[one.name] = rows
    for group in spec.groups:
        positions = by_env[group.name].astype(np.int64)
        last = len(frames[group.name]) - len(group.columns)
        if positions.max() > last:
            raise CorruptFileError(f"a position of column {group.name!r} is beyond its frames")
        for further, one in enumerate(group.columns):
            rows = np.empty((*shape[::-1], *one.row_shape), storage_dtype(one.dtype))
            # [T, B, ...] -> [T, B, frame bytes]
            frames[group.name].take(positions.T + further, 0, _bytes(rows), "clip")
            columns[one.name] = rows
    for name in entry["extra_rows"]:
        rows = columns[name]
        extra = reader.take((record.num_epochs, *rows.shape[1:]), rows.dtype)
        columns[name] = join_extra_rows(rows, extra, leading=name in FLAG_FIELDS)
    gaps = reader.take(shape[::-1], np.dtype(np.bool_)) if entry["has_gaps"] else None
    side_values = dict(entry["side_values"])
    for name, size in entry["side_bytes"].items():
        side_values[name] = reader.take((size,), np.dtype(np.uint8)).tobytes()
    return Snapshot(
        num_steps=record.num_steps,
        num_envs=record.num_envs,
        num_epochs=record.num_epochs,
        shape=record.shape,
        columns={
            one.name: Column(columns[one.name], one.dtype, *record.texts.get(one.name, ()))
            for one in record.layout.columns
        },
        side_values={name: side_values[name] for name in entry["order"]},
        gaps=gaps,
        max_episode_length=record.max_episode_length,
        model_weights_id=record.model_weights_id,
    )


def _own_codes(
    name: str, codes: NDArray[Any], record: Record, texts_of: TextsOf
) -> NDArray[np.int32]:
    """Turn codes of the segment into those of the trajectory's own table."""
    table = {text: code for code, text in enumerate(record.texts[name][0])}
    used, places = np.unique(codes, return_inverse=True)
    try:
        own = [table[text] for text in texts_of(used.tolist())]
    except KeyError as error:
        raise CorruptFileError(f"column {name!r} holds a text that its table lacks") from error
    return np.array(own, np.int32)[places].reshape(codes.shape)


class _Reader:
    """Takes arrays from the front of raw bytes."""

    def __init__(self, raw: memoryview) -> None:
        self._raw = raw

    def take(self, shape: Iterable[int], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return the next array, a copy.

        Raises:
            CorruptFileError: Not so many bytes are left.
        """
        out = np.empty(tuple(shape), dtype)
        if out.nbytes > len(self._raw):
            raise CorruptFileError("what stands in the side file is too short for its columns")
        out.reshape(-1).view(np.uint8)[:] = np.frombuffer(self._raw[: out.nbytes], np.uint8)
        self._raw = self._raw[out.nbytes :]
        return out
