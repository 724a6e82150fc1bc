# SPDX-License-Identifier: Apache-2.0
"""Memory for the columns of a batch, used again once nobody holds the batch."""

from __future__ import annotations

import ctypes
import gc
import io
import os
import pickle
import sys
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count, pairwise
from math import prod
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from torch.utils.dlpack import from_dlpack

from relive import output_pool
from relive.dtypes import DTYPE_NAMES, storage_dtype
from relive.output_pool import OutputPool, Outputs, Wants

PAGE = 4096
COLUMNS: Wants = {
    "image": ((32, 32), np.dtype(np.float32)),
    "state": ((4,), np.dtype(np.float32)),
    "done": ((), np.dtype(np.bool_)),
    "empty": ((0, 3), np.dtype(np.int64)),
}
NUM_ROWS = 6

Column = NDArray[Any]
Owner = weakref.ref[Column]
"""The array that owns a column's memory, held weakly; one array has one such reference."""


FEW: Wants = {"image": ((PAGE,), np.dtype(np.uint8)), "state": ((), np.dtype(np.uint8))}
"""One small and one large column."""


def take(pool: OutputPool, number: int, columns: Wants = COLUMNS) -> Outputs:
    """Take outputs and fill them with a number through their items."""
    outputs = pool.take(NUM_ROWS, columns)
    fill(outputs, number)
    return outputs


def fill(outputs: Outputs, number: int) -> None:
    for items in outputs.items.values():
        items.view(np.uint8)[...] = number


def is_filled(outputs: Outputs, number: int) -> bool:
    return all(one.tobytes() == bytes([number]) * one.nbytes for one in outputs.columns.values())


def bytes_of(column: Column) -> set[int]:
    return set(column.tobytes())


def owner_of(outputs: Outputs, name: str = "state") -> Owner:
    base = outputs.columns[name].base
    assert isinstance(base, np.ndarray)
    assert base.base is None
    return weakref.ref(base)


def num_alive(owners: dict[int, Owner]) -> int:
    return sum(owner() is not None for owner in owners.values())


def is_same(outputs: Outputs, owner: Owner, name: str = "state") -> bool:
    """Whether outputs are the memory of an earlier batch, which was kept all the time."""
    return outputs.columns[name].base is owner()


class Interface:
    """Memory offered by NumPy's interface for arrays of other libraries."""

    def __init__(self, column: Column) -> None:
        self.column = column
        self.__array_interface__ = column.__array_interface__


class Named(np.ndarray[Any, Any]):
    """A class of arrays of one's own."""


def in_circle(column: Column) -> list[Any]:
    holder: list[Any] = [column]
    holder.append(holder)
    return holder


def out_of_band(column: Column) -> Any:
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(column, protocol=5, buffer_callback=buffers.append)
    return pickle.loads(data, buffers=buffers)


def weighed(column: Column) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what is no view: a sum whose gradient needs the column again."""
    weight = torch.ones((), requires_grad=True)
    return weight, (weight * tensor(column)).sum()


def gradient(holder: tuple[torch.Tensor, torch.Tensor]) -> bytes:
    weight, total = holder
    (found,) = torch.autograd.grad(total, weight, retain_graph=True)
    return found.numpy().tobytes()


def storage_bytes(storage: torch.UntypedStorage) -> bytes:
    return torch.empty(0, dtype=torch.uint8).set_(storage).numpy().tobytes()


def c_numbers(column: Any) -> Any:
    return (ctypes.c_uint8 * column.nbytes).from_buffer(column)


tensor: Callable[[Column], torch.Tensor] = torch.from_numpy

Hold = Callable[[Any], Any]
Read = Callable[[Any], bytes]

WAYS: dict[str, tuple[Hold, Read]] = {
    "itself": (lambda column: column, lambda held: held.tobytes()),
    "a slice": (lambda column: column[2:4], lambda held: held.tobytes()),
    "a slice with steps": (lambda column: column[::-2], lambda held: held.tobytes()),
    "a row of a row": (lambda column: column[3][1:], lambda held: held.tobytes()),
    "an iterator": (iter, lambda held: held.__reduce__()[1][0].tobytes()),
    "a flat iterator": (lambda column: column.flat, lambda held: held.base.tobytes()),
    "another shape": (lambda column: column.reshape(-1), lambda held: held.tobytes()),
    "transposed": (lambda column: column.T, lambda held: held.tobytes()),
    "another type": (lambda column: column.view("V4"), lambda held: held.tobytes()),
    "a class of one's own": (lambda column: column.view(Named)[1:], lambda held: held.tobytes()),
    "broadcast": (lambda column: np.broadcast_to(column, (2, *column.shape)), bytes),
    "windows": (lambda column: sliding_window_view(column, 2, 0), lambda held: held.tobytes()),
    "the owner": (lambda column: column.base, lambda held: held.tobytes()),
    "a memoryview": (memoryview, bytes),
    "a slice of a memoryview": (lambda column: memoryview(column)[1:], bytes),
    "a buffer read": (np.frombuffer, lambda held: held.tobytes()),
    "a pickle buffer": (pickle.PickleBuffer, bytes),
    "pickled beside its bytes": (out_of_band, lambda held: held.tobytes()),
    "a dict": (lambda column: {"a": [{"b": column}]}, lambda held: held["a"][0]["b"].tobytes()),
    "a circle": (in_circle, lambda held: held[0].tobytes()),
    "a closure": (lambda column: lambda: column.tobytes(), lambda held: held()),
    "an interface": (lambda column: np.asarray(Interface(column)), lambda held: held.tobytes()),
    "c numbers": (c_numbers, bytes),
    "c numbers of numpy": (np.ctypeslib.as_ctypes, bytes),
    "numpy from numpy's dlpack": (np.from_dlpack, lambda held: held.tobytes()),
    "a tensor": (tensor, lambda held: held.numpy().tobytes()),
    "a tensor's slice": (lambda column: tensor(column)[2:4], lambda held: held.numpy().tobytes()),
    "a tensor of another type": (
        lambda column: tensor(column).view(torch.bfloat16),
        lambda held: held.view(torch.uint8).numpy().tobytes(),
    ),
    "a detached tensor": (
        lambda column: tensor(column).requires_grad_().detach(),
        lambda held: held.numpy().tobytes(),
    ),
    "a tensor as numpy": (lambda column: tensor(column).numpy(), lambda held: held.tobytes()),
    "a tensor of an interface": (torch.as_tensor, lambda held: held.numpy().tobytes()),
    "a tensor of a buffer": (
        lambda column: torch.frombuffer(memoryview(column), dtype=torch.uint8),
        lambda held: held.numpy().tobytes(),
    ),
    "a tensor from dlpack": (from_dlpack, lambda held: held.numpy().tobytes()),
    "numpy from a tensor's dlpack": (
        lambda column: np.from_dlpack(tensor(column)),
        lambda held: held.tobytes(),
    ),
    "a dlpack capsule": (
        lambda column: [tensor(column).__dlpack__()],
        lambda held: b"",  # reading uses it up
    ),
    "a storage": (lambda column: tensor(column).untyped_storage(), storage_bytes),
    "a gradient to come": (weighed, gradient),
}

CIRCLES = ("a circle",)
"""Ways that hold on until the garbage collector comes."""


class TestHolders:
    @pytest.mark.parametrize("name", ["state", "image"])
    @pytest.mark.parametrize("way", WAYS)
    def test_what_is_held_is_never_written_and_then_used_again(self, way: str, name: str) -> None:
        hold, read = WAYS[way]
        pool = OutputPool()
        first = take(pool, 1)
        owner = owner_of(first, name)
        holder = hold(first.columns.pop(name))
        del first
        before = read(holder)
        at_once = [take(pool, number) for number in range(2, 7)]
        assert not any(is_same(other, owner, name) for other in at_once)
        del at_once
        for number in range(7, 20):
            assert not is_same(take(pool, number), owner, name)
        assert read(holder) == before
        del holder
        if way in CIRCLES:
            gc.collect()
        assert is_same(take(pool, 20), owner, name)

    def test_a_capsule_gives_what_was_held(self) -> None:
        pool = OutputPool()
        capsule = tensor(take(pool, 1).columns["state"]).__dlpack__()
        for number in range(2, 9):
            take(pool, number)
        assert bytes_of(from_dlpack(capsule).numpy()) == {1}

    @pytest.mark.parametrize("name", ["done", "empty"])
    def test_any_column_holds_all_small_ones(self, name: str) -> None:
        pool = OutputPool()
        first = take(pool, 1)
        owner, held = owner_of(first), first.columns[name]
        del first
        assert not is_same(take(pool, 2), owner)
        del held
        assert is_same(take(pool, 3), owner)

    @pytest.mark.parametrize(
        "copy",
        [
            np.array,
            lambda column: pickle.loads(pickle.dumps(column)),
            lambda column: tensor(column).clone().numpy(),
            lambda column: np.load(io.BytesIO(saved(column))),
        ],
    )
    def test_a_copy_holds_nothing(self, copy: Callable[[Column], Column]) -> None:
        pool = OutputPool()
        first = take(pool, 1)
        owner, copied = owner_of(first), copy(first.columns["state"])
        del first
        again = take(pool, 2)
        assert is_same(again, owner)
        assert bytes_of(copied) == {1}

    def test_a_batch_made_read_only_leaves_its_memory_to_be_written(self) -> None:
        pool = OutputPool()
        first = take(pool, 1)
        owner = owner_of(first)
        for column in first.columns.values():
            column.flags.writeable = False
            column.base.flags.writeable = False  # type: ignore[union-attr]  # the owner
        del first, column
        again = take(pool, 2)
        assert is_same(again, owner)
        assert is_filled(again, 2)
        assert all(column.flags.writeable for column in again.columns.values())

    def test_a_small_column_does_not_keep_large_ones_alive(self) -> None:
        outputs = OutputPool(max_bytes=0).take(NUM_ROWS, COLUMNS)
        image, state = owner_of(outputs, "image"), outputs.columns["state"]
        del outputs
        assert image() is None
        state[...] = 3
        assert (state == 3).all()


def saved(column: Column) -> bytes:
    file = io.BytesIO()
    np.save(file, column)
    return file.getvalue()


dtypes = st.sampled_from([storage_dtype(name) for name in DTYPE_NAMES])
small_shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)
large_shapes = st.sampled_from([(PAGE,), (64, 64, 3), (1, 5000), (PAGE - 1,), (3, 1365)])
specs = st.dictionaries(
    st.text("ab/", min_size=1, max_size=5), st.tuples(small_shapes | large_shapes, dtypes)
)


class TestLayout:
    @given(columns=specs, num_rows=st.integers(0, 40), again=st.booleans())
    @settings(max_examples=80, deadline=None)
    def test_columns_are_what_was_asked_for_and_lie_apart(
        self, columns: dict[str, Any], num_rows: int, again: bool
    ) -> None:
        pool = OutputPool()
        if again:
            pool.take(num_rows, columns)
        outputs = pool.take(num_rows, dict(columns))
        assert list(outputs.columns) == list(columns)
        for number, (name, (row_shape, dtype)) in enumerate(columns.items()):
            column, row_bytes = outputs.columns[name], prod(row_shape) * dtype.itemsize
            assert column.dtype == dtype
            assert column.shape == (num_rows, *row_shape)
            assert column.flags.c_contiguous
            assert column.flags.aligned
            assert column.flags.writeable
            assert column.ctypes.data % (PAGE if row_bytes >= PAGE else 64) == 0 or not column.size
            assert (name in outputs.items) == (row_bytes > 0)
            if row_bytes:
                items = outputs.items[name]
                assert items.shape == (num_rows,)
                assert items.dtype.itemsize == row_bytes
                assert items.dtype.kind == ("u" if row_bytes in (1, 2, 4, 8) else "V")
                assert items.ctypes.data == column.ctypes.data
                items.view(np.uint8)[...] = number % 2  # a bool may be nothing else
        for number, column in enumerate(outputs.columns.values()):
            assert bytes_of(column) <= {number % 2}
        places = sorted((one.ctypes.data, one.nbytes) for one in outputs.columns.values())
        for (start, size), (following, _) in pairwise(places):
            assert start + size <= following

    def test_small_columns_follow_each_other(self) -> None:
        columns = {f"c{i}": ((i,), np.dtype(np.float64)) for i in range(1, 30)}
        placed = list(OutputPool().take(7, columns).columns.values())
        for one, following in pairwise(placed):
            assert 0 <= following.ctypes.data - one.ctypes.data - one.nbytes < 64

    @pytest.mark.parametrize(
        "other",
        [
            (NUM_ROWS + 1, COLUMNS),
            (NUM_ROWS, {**COLUMNS, "more": ((), np.dtype(np.int8))}),
            (NUM_ROWS, {**COLUMNS, "state": ((4,), np.dtype(np.int32))}),
            (NUM_ROWS, {**COLUMNS, "state": ((2, 2), np.dtype(np.float32))}),
            (NUM_ROWS, {"State" if name == "state" else name: COLUMNS[name] for name in COLUMNS}),
            (NUM_ROWS, {name: COLUMNS[name] for name in list(COLUMNS)[::-1]}),
        ],
    )
    def test_another_shape_has_memory_of_its_own(self, other: tuple[int, Wants]) -> None:
        pool = OutputPool()
        owner = owner_of(take(pool, 1))
        columns = pool.take(*other).columns
        assert list(columns) == list(other[1])
        assert all(column.base is not owner() for column in columns.values())
        assert is_same(take(pool, 2), owner)


class TestBounds:
    def test_no_more_blocks_of_a_shape_are_kept_than_told(self) -> None:
        pool = OutputPool(blocks_per_shape=2)
        held = [take(pool, number) for number in range(5)]
        owners = [owner_of(one) for one in held]
        assert all(is_filled(one, number) for number, one in enumerate(held))
        del held
        assert [owner() is not None for owner in owners] == [True, True, False, False, False]

    def test_the_shape_not_asked_for_the_longest_loses_its_block(self) -> None:
        columns: Wants = {"state": ((100,), np.dtype(np.uint8))}
        pool = OutputPool(max_bytes=2 * (1000 * 100 + 2 * PAGE))
        owners = [owner_of(pool.take(num_rows, columns)) for num_rows in (1000, 999)]
        assert is_same(pool.take(1000, columns), owners[0])
        owners.append(owner_of(pool.take(998, columns)))
        assert [owner() is not None for owner in owners] == [True, False, True]

    def test_a_shape_that_needs_all_the_room_keeps_its_first_blocks(self) -> None:
        columns: Wants = {"state": ((100,), np.dtype(np.uint8))}
        pool = OutputPool(max_bytes=2 * (1000 * 100 + 2 * PAGE))
        held = [pool.take(1000, columns) for _ in range(3)]
        owners = [owner_of(one) for one in held]
        del held
        assert [owner() is not None for owner in owners] == [True, True, False]

    @given(asked=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=40))
    @settings(max_examples=50, deadline=None)
    def test_never_more_bytes_are_kept_than_told(self, asked: list[tuple[int, int]]) -> None:
        columns: Wants = {
            "state": ((100,), np.dtype(np.uint8)),
            "image": ((2 * PAGE,), np.dtype(np.uint8)),
        }
        pool = OutputPool(max_bytes=200_000)
        owners: dict[int, Owner] = {}
        held: deque[Outputs] = deque()
        for num_held, num_rows in asked:
            outputs = pool.take(num_rows, columns)
            fill(outputs, num_rows)
            owners |= {id(one): one for one in (owner_of(outputs, name) for name in columns)}
            held.append(outputs)
            del outputs
            while len(held) > num_held:
                held.popleft()
            assert all(is_filled(one, len(one.columns["state"])) for one in held)
        held.clear()
        kept = [owner() for owner in owners.values()]
        assert sum(one.nbytes for one in kept if one is not None) <= 200_000

    def test_a_block_larger_than_all_may_be_is_not_kept(self) -> None:
        columns: Wants = {"state": ((100,), np.dtype(np.uint8))}
        pool = OutputPool(max_bytes=50_000)
        small = owner_of(pool.take(10, columns))
        large = owner_of(pool.take(1000, columns))
        assert large() is None
        assert is_same(pool.take(10, columns), small)

    def test_of_many_shapes_the_latest_are_kept(self) -> None:
        pool = OutputPool()
        columns: Wants = {"state": ((), np.dtype(np.uint8))}
        owners = [owner_of(pool.take(num_rows, columns)) for num_rows in range(300)]
        kept = [num_rows for num_rows, owner in enumerate(owners) if owner() is not None]
        assert kept == list(range(300 - 64, 300))

    def test_batches_held_for_ever_make_room_for_others(self) -> None:
        pool = OutputPool()
        held = [take(pool, number) for number in range(4)]
        owners = [owner_of(take(pool, 9)) for _ in range(100)]
        assert num_alive({id(owner): owner for owner in owners}) == 1
        assert all(is_filled(one, number) for number, one in enumerate(held))

    def test_blocks_let_go_now_and_then_keep_their_place(self) -> None:
        pool = OutputPool()
        first = [owner_of(one) for one in [take(pool, number) for number in range(4)]]
        for _ in range(100):
            held = [take(pool, number) for number in range(4)]
            assert all(map(is_same, held[:3], first[:3]))
            del held

    def test_some_of_a_long_queue_of_batches_are_used_again(self) -> None:
        pool = OutputPool()
        queue: deque[Outputs] = deque()
        num_again, seen = 0, dict[int, Owner]()
        for number in range(200):
            outputs = take(pool, number)
            owner = owner_of(outputs)
            num_again += id(owner) in seen
            seen[id(owner)] = owner
            queue.append(outputs)
            if len(queue) == 10:
                assert is_filled(queue.popleft(), number - 9)
        assert num_again > 40

    def test_nothing_is_used_again_where_counts_are_not_exact(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(output_pool, "_COUNTS_ARE_EXACT", False)
        pool = OutputPool()
        owner = owner_of(take(pool, 1))
        assert owner() is None


@contextmanager
def tracing(trace: Callable[[FrameType, str], None], *, opcodes: bool = False) -> Iterator[None]:
    """Call a function at each step that the pool's own code makes in this thread."""

    def follow(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename != output_pool.__file__:
            return None
        frame.f_trace_opcodes = opcodes
        trace(frame, event)
        return follow

    before = sys.gettrace()
    sys.settrace(follow)
    try:
        yield
    finally:
        sys.settrace(before)


class TestInterruption:
    """Another thread, a signal handler or a finalizer comes in between at any instruction."""

    @staticmethod
    def interrupted(pool: OutputPool, step: int, act: Callable[[], None]) -> tuple[Outputs, bool]:
        """Take outputs, and act before one instruction; return whether it came to that.

        While a block is built nobody else can know it, so those instructions do not count.
        """
        steps = count()

        def look(frame: FrameType, event: str) -> None:
            builds = frame.f_code.co_name in ("__init__", "_add_owner")
            if not builds and next(steps) == step:
                act()

        with tracing(look, opcodes=True):
            outputs = pool.take(NUM_ROWS, FEW)
        return outputs, next(steps) > step

    @pytest.mark.parametrize("num_free", [0, 1, 2, 3])
    @pytest.mark.parametrize("max_bytes", [10 << 20, 70_000])
    def test_whoever_comes_in_between_gets_other_memory(
        self, num_free: int, max_bytes: int
    ) -> None:
        for step in count():
            pool = OutputPool(max_bytes=max_bytes)
            held = {number: take(pool, number, FEW) for number in range(3)}
            for number in range(num_free):
                del held[number]

            def act(pool: OutputPool = pool, held: dict[int, Outputs] = held) -> None:
                held[10] = take(pool, 10, FEW)
                take(pool, 11, FEW)
                held[12] = take(pool, 12, FEW)

            held[20], was_there = self.interrupted(pool, step, act)
            fill(held[20], 20)
            held |= {number: take(pool, number, FEW) for number in range(30, 33)}
            assert all(is_filled(one, number) for number, one in held.items())
            if not was_there:
                break
        assert step > 50

    def test_a_block_let_go_in_between_is_used_now_or_then(self) -> None:
        for step in count():
            pool = OutputPool(blocks_per_shape=1)
            held = [take(pool, 1, FEW)]
            owner = owner_of(held[0])
            outputs, was_there = self.interrupted(pool, step, held.clear)
            held.clear()
            assert is_same(outputs, owner) != is_same(take(pool, 3, FEW), owner)
            if not was_there:
                break
        assert step > 50

    def test_a_debugger_that_held_a_new_block_hides_no_holder_later(self) -> None:
        seen: list[object] = []

        def look(frame: FrameType, event: str) -> None:
            seen.append((frame, dict(frame.f_locals)))

        pool = OutputPool(blocks_per_shape=1)
        with tracing(look):
            first = take(pool, 1)
        assert seen
        owner, column = owner_of(first), first.columns["state"]
        seen.clear()
        del first
        held = [column]
        for number in range(20):
            assert not is_same(take(pool, 2), owner), number
            held.append(column[:])
        assert bytes_of(column) == {1}
        del held, column
        assert is_same(take(pool, 3), owner)


class TestThreads:
    def test_no_block_has_two_owners(self) -> None:
        pool = OutputPool(blocks_per_shape=6)
        seen: dict[int, Owner] = {}
        num_rounds, num_threads = 600, 4
        start = threading.Barrier(num_threads)

        def work(thread: int) -> None:
            held: deque[tuple[Outputs, int]] = deque()
            start.wait()
            for number in range(num_rounds):
                mark = 1 + thread * 60 + number % 60
                outputs = take(pool, mark, FEW)
                held.append((outputs, mark))
                owner = owner_of(outputs)
                seen[id(owner)] = owner
                assert is_filled(outputs, mark)
                while len(held) > number % 3:
                    assert is_filled(*held.popleft())

        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            with ThreadPoolExecutor(num_threads) as threads:
                for done in [threads.submit(work, thread) for thread in range(num_threads)]:
                    done.result()
        finally:
            sys.setswitchinterval(before)
        assert len(seen) < num_rounds * num_threads / 2  # most were used again
        assert num_alive(seen) <= 6


class TestFork:
    @pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
    def test_a_child_starts_anew_whatever_the_pool_was_doing(self) -> None:
        child = -1

        def fork(frame: FrameType, event: str) -> None:
            nonlocal child
            if frame.f_code.co_name == "_keep" and event == "return" and child < 0:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads
                    child = os.fork()
                if not child:
                    self.in_child(pool, held)

        pool = OutputPool()
        held = [take(pool, number) for number in range(2)]
        owner = owner_of(held[0])
        with tracing(fork):
            held.append(take(pool, 2))
        assert child > 0
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert all(is_filled(one, number) for number, one in enumerate(held))
        held.clear()
        assert is_same(take(pool, 3), owner)

    @staticmethod
    def in_child(pool: OutputPool, held: list[Outputs]) -> None:
        sys.settrace(None)
        told = 1
        try:
            owners = [owner_of(one) for one in held]
            pool.after_fork()
            held.clear()
            new = owner_of(take(pool, 8))
            is_new = not any(new is owner for owner in owners)
            if is_new and is_same(take(pool, 9), new):
                told = 0
        finally:
            os._exit(told)
