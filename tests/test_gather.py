# SPDX-License-Identifier: Apache-2.0
"""Rows of many trajectories into one batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from relive.dtypes import storage_dtype
from relive.fields import EXTENDABLE_FIELDS, FLAG_FIELDS
from relive.gather import KeptRows, RowBatch, RowSource, Wanted, row_source
from relive.output_pool import OutputPool
from relive.record import Record
from relive.runs import drop_extra_rows
from relive.snapshot import Snapshot
from relive.testing import addressed, record_of, snapshots

NAMES = ("curr_obs/id", "next_obs/arm/id", "versions", "dones", "prev_values", "curr_obs/task")


def empties_of(record: Record) -> Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    return {
        column.name: (
            column.row_shape,
            storage_dtype(column.dtype),
        )
        for column in record.layout.columns
    }


def batch_of(
    num_rows: int, columns: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]
) -> RowBatch:
    return RowBatch(OutputPool().take(num_rows, columns), num_rows)


def wanted_of(
    snapshots: list[Snapshot], drawn: NDArray[np.int64], rng: np.random.Generator
) -> list[Wanted]:
    """Spread the rows drawn of each trajectory over the batch in any order."""
    positions = rng.permutation(drawn.size).reshape(drawn.shape)
    return [
        Wanted(record_of(one, i), drawn[i], positions[i], start=i * drawn.shape[1])
        for i, one in enumerate(snapshots)
    ]


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
class TestRowBatch:
    def test_rows_come_in_the_order_drawn(self) -> None:
        trajectories = [addressed(number) for number in range(5)]
        rng = np.random.default_rng(3)
        wanted = wanted_of(trajectories, rng.integers(0, 18, (5, 40)), rng)
        batch = batch_of(200, empties_of(wanted[0].record))
        for one, snapshot in zip(wanted, trajectories, strict=True):
            batch.fill(one, row_source(snapshot))
        out = batch.finish()
        assert set(out) == set(trajectories[0].columns)
        for number, one in enumerate(wanted):
            for row, position in zip(one.rows.tolist(), one.positions.tolist(), strict=True):
                step, env = divmod(row, 3)
                assert out["curr_obs/id"][position] == 1_000_000 * number + row
                assert out["next_obs/arm/id"][position] == -1_000_000 * number - row
                assert out["versions"][position].tolist() == [row, row]
                assert out["curr_obs/task"][position] == env
                assert out["dones"][position] == (step % 3 == 2)
                # [T + E] rows, T / E = 3 and then the bootstrap value of the epoch
                assert out["prev_values"][position] == (step + step // 3) * 3 + env

    @given(snapshot=snapshots(), seed=st.integers(0, 2**32))
    @settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
    def test_any_rows_of_any_trajectory_are_its_own(self, snapshot: Snapshot, seed: int) -> None:
        rng = np.random.default_rng(seed)
        rows = rng.integers(0, snapshot.num_rows, (1, 7))
        (wanted,) = wanted_of([snapshot], rows, rng)
        batch = batch_of(7, empties_of(wanted.record))
        batch.fill(wanted, row_source(snapshot))
        out = batch.finish()
        for name, column in snapshot.columns.items():
            values = column.values
            if name in EXTENDABLE_FIELDS:
                values = drop_extra_rows(
                    values, snapshot.num_steps, snapshot.num_epochs, leading=name in FLAG_FIELDS
                )
            flat = values.reshape(snapshot.num_rows, *values.shape[2:])
            expected = flat[wanted.rows[np.argsort(wanted.positions)]]
            assert out[name].dtype == expected.dtype
            assert out[name].shape == expected.shape
            assert out[name].tobytes() == expected.tobytes()

    def test_large_rows_are_like_small_ones(self) -> None:
        rng = np.random.default_rng(5)
        images = rng.integers(0, 256, (18, 64, 64, 3), np.uint8)
        (wanted,) = wanted_of([addressed(0)], rng.integers(0, 18, (1, 30)), rng)
        batch = batch_of(30, {"image": ((64, 64, 3), np.dtype(np.uint8))})
        batch.fill(wanted, {"image": images})
        order = np.argsort(wanted.positions)
        assert np.array_equal(batch.finish()["image"], images[wanted.rows[order]])

    def test_kept_rows_are_filled_from_again_and_again(self) -> None:
        snapshot, rng = addressed(1), np.random.default_rng(6)
        source: RowSource = KeptRows(row_source(snapshot))
        for names in (NAMES[:2], NAMES[2:], NAMES):
            (wanted,) = wanted_of([snapshot], rng.integers(0, 18, (1, 9)), rng)
            empties = empties_of(wanted.record)
            batch = batch_of(9, {name: empties[name] for name in names})
            batch.fill(wanted, source)
            out = batch.finish()
            assert tuple(out) == batch.names == names
            if "curr_obs/id" in out:
                ids = out["curr_obs/id"][wanted.positions] - 1_000_000
                assert ids.tolist() == wanted.rows.tolist()

    def test_a_default_stands_in_for_what_a_trajectory_lacks(self) -> None:
        trajectories = [addressed(0), addressed(1)]
        rng = np.random.default_rng(7)
        wanted = wanted_of(trajectories, rng.integers(0, 18, (2, 10)), rng)
        small, large = ((2,), np.dtype(np.float32)), ((5000,), np.dtype(np.uint8))
        batch = batch_of(20, {"small": small, "large": large})
        sources: list[RowSource] = [
            {"small": np.ones((18, 2), np.float32), "large": np.ones((18, 5000), np.uint8)},
            {},
        ]
        for one, source in zip(wanted, sources, strict=True):
            batch.fill(one, source)
        batch.fill_default(wanted[1], "small", np.array([7, 8], np.float32))
        batch.fill_default(wanted[1], "large", np.array(9, np.uint8))
        out = batch.finish()
        assert (out["small"][wanted[0].positions] == 1).all()
        assert (out["large"][wanted[0].positions] == 1).all()
        assert (out["small"][wanted[1].positions] == [7, 8]).all()
        assert (out["large"][wanted[1].positions] == 9).all()

    def test_the_caller_owns_the_batch(self) -> None:
        snapshot, rng = addressed(1), np.random.default_rng(6)
        (wanted,) = wanted_of([snapshot], rng.integers(0, 18, (1, 9)), rng)
        batch = batch_of(9, empties_of(wanted.record))
        batch.fill(wanted, row_source(snapshot))
        for column in batch.finish().values():
            assert column.flags.writeable
            column[...] = 0
        assert snapshot.columns["curr_obs/id"].values[0, 0] == 1_000_000
