# SPDX-License-Identifier: Apache-2.0
"""`relive.dtypes` and `relive.tensors`: every element type in and out, bit for bit."""

from __future__ import annotations

import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from relive.dtypes import DTYPE_NAMES, TEXT, has_numpy_type, storage_dtype
from relive.errors import UnsupportedValueError
from relive.tensors import copy_in, is_array, is_tensor, shape_of, wrap_out

HERE = [name for name in DTYPE_NAMES if hasattr(torch, name)]
NATIVE = [name for name in DTYPE_NAMES if has_numpy_type(name)]
MOVED = sorted(set(DTYPE_NAMES) - set(NATIVE))

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support")


def some_bits(dtype: str, shape: tuple[int, ...], seed: int = 3) -> NDArray[Any]:
    storage = storage_dtype(dtype)
    size = int(np.prod(shape)) * storage.itemsize
    drawn = np.random.default_rng(seed).integers(0, 2 if dtype == "bool" else 256, size, np.uint8)
    return drawn.view(storage).reshape(shape)


class TestDtypes:
    @pytest.mark.parametrize("name", DTYPE_NAMES)
    def test_bytes_of_a_row_are_those_that_torch_has(self, name: str) -> None:
        if name in HERE:
            assert storage_dtype(name).itemsize == getattr(torch, name).itemsize

    @pytest.mark.parametrize("name", NATIVE)
    def test_numpy_types_are_stored_as_themselves(self, name: str) -> None:
        assert storage_dtype(name).name == name

    def test_the_others_are_moved_as_unsigned_integers(self) -> None:
        assert {storage_dtype(name).kind for name in MOVED} == {"u"}
        assert "bfloat16" in MOVED

    @pytest.mark.parametrize("name", ["object", "float128", "str", "datetime64", ""])
    def test_nothing_else_is_a_type(self, name: str) -> None:
        assert not has_numpy_type(name)
        with pytest.raises(KeyError):
            storage_dtype(name)

    def test_text_is_held_as_codes_and_is_no_type_of_numbers(self) -> None:
        assert storage_dtype(TEXT) == np.dtype(np.int32)
        assert TEXT not in DTYPE_NAMES
        assert not has_numpy_type(TEXT)


class TestRoundTrip:
    @settings(max_examples=200)
    @given(
        dtype=st.sampled_from(HERE),
        shape=st.lists(st.integers(0, 3), max_size=4).map(lambda tail: (2, 3, *tail)),
        seed=st.integers(0, 99),
    )
    def test_through_torch(self, dtype: str, shape: tuple[int, ...], seed: int) -> None:
        values = some_bits(dtype, shape, seed)
        tensor = wrap_out(values.copy(), dtype, "torch", "c")
        assert (str(tensor.dtype), tuple(tensor.shape)) == (f"torch.{dtype}", shape)
        again, name = copy_in(tensor, "c")
        assert (name, again.dtype, again.shape) == (dtype, values.dtype, shape)
        assert again.tobytes() == values.tobytes()

    @pytest.mark.parametrize("dtype", NATIVE)
    def test_through_numpy(self, dtype: str) -> None:
        values = some_bits(dtype, (2, 3))
        assert wrap_out(values, dtype, "numpy", "c") is values
        again, name = copy_in(values, "c")
        assert (name, again.dtype, again.tobytes()) == (dtype, values.dtype, values.tobytes())

    def test_bfloat16_keeps_its_values(self) -> None:
        tensor = torch.tensor([[1.5, -0.0, float("inf")]], dtype=torch.bfloat16)
        values, dtype = copy_in(tensor, "c")
        assert (values.dtype, dtype) == (np.dtype(np.uint16), "bfloat16")
        assert torch.equal(wrap_out(values, dtype, "torch", "c"), tensor)


class TestCopyIn:
    @pytest.mark.parametrize(
        "given_array",
        [
            np.arange(12).reshape(3, 4).T,
            np.arange(24).reshape(4, 6)[:, ::2],
            np.broadcast_to(np.arange(3), (4, 3)),
            np.arange(12, dtype=">i8").reshape(4, 3),
            np.arange(12).reshape(4, 3)[::-1],
        ],
    )
    def test_numpy_arrays_of_any_build_become_plain_copies(
        self, given_array: NDArray[np.int64]
    ) -> None:
        given_array.flags.writeable = False
        values, dtype = copy_in(given_array, "c")
        assert (values.tolist(), dtype) == (given_array.tolist(), "int64")
        assert values.flags.c_contiguous
        assert values.flags.writeable
        assert not np.shares_memory(values, given_array)

    @pytest.mark.parametrize(
        "tensor",
        [
            torch.arange(12.0).reshape(3, 4).T,
            torch.arange(3.0).expand(4, 3),
            torch.arange(24.0).reshape(4, 6)[:, ::2],
            torch.arange(12.0, requires_grad=True).reshape(4, 3) * 2,
            torch.nn.Parameter(torch.arange(12.0).reshape(4, 3)),
            torch.complex(torch.zeros(4, 3), torch.arange(12.0).reshape(4, 3)).conj().imag,
        ],
    )
    def test_tensors_of_any_build_become_plain_copies(self, tensor: torch.Tensor) -> None:
        values, dtype = copy_in(tensor, "c")
        assert (values.tolist(), dtype) == (tensor.tolist(), "float32")
        assert values.flags.c_contiguous
        assert values.flags.writeable
        assert not np.shares_memory(values, tensor.detach().resolve_neg().numpy())

    def test_later_changes_of_the_caller_do_not_show(self) -> None:
        array, tensor = np.zeros((2, 1)), torch.zeros(2, 1)
        copies = [copy_in(array, "c")[0], copy_in(tensor, "c")[0]]
        array += 1
        tensor += 1
        assert [copy.tolist() for copy in copies] == [[[0.0], [0.0]]] * 2

    @pytest.mark.parametrize(
        "value",
        [
            np.array([["a"]]),
            np.array([[object()]]),
            np.zeros((2, 1), "M8[s]"),
            np.zeros((2, 1), "f4,i4"),
            np.zeros((2, 1), np.bytes_),
            torch.zeros(2, 1).to_sparse(),
            torch.zeros(2, 1, device="meta"),
        ],
    )
    def test_what_no_column_can_hold_is_refused_by_name(self, value: Any) -> None:
        with pytest.raises(
            UnsupportedValueError, match=r"'extras/x' is a .*; convert it"
        ) as caught:
            copy_in(value, "extras/x")
        assert caught.value.column == "extras/x"

    @pytest.mark.parametrize("mask", [False, [[True], [False]]])
    def test_a_masked_array_is_refused_by_name(self, mask: Any) -> None:
        masked = np.ma.MaskedArray(np.zeros((2, 1), np.float32), mask)
        told = r"'extras/x' is a masked array, but .*; give its filled\(\)"
        with pytest.raises(UnsupportedValueError, match=told) as caught:
            copy_in(masked, "extras/x")
        assert caught.value.column == "extras/x"

    def test_a_nested_tensor_is_refused_by_name(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that nested tensors are a prototype
            nested = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])
        with pytest.raises(UnsupportedValueError, match="'actions' is a nested tensor"):
            shape_of(nested, "actions")


class TestWrapOut:
    def test_memory_is_handed_over_and_not_copied(self) -> None:
        values = np.zeros((2, 3), np.float32)
        wrap_out(values, "float32", "torch", "c").fill_(7)
        assert values.min() == 7

    @pytest.mark.parametrize("dtype", MOVED)
    def test_numpy_refuses_what_it_has_no_type_for(self, dtype: str) -> None:
        with pytest.raises(UnsupportedValueError, match=f"'c' is {dtype}.*framework=") as caught:
            wrap_out(np.zeros((2, 3), storage_dtype(dtype)), dtype, "numpy", "c")
        assert caught.value.column == "c"


class TestRecognition:
    def test_arrays_and_scalars_of_numpy_and_tensors_are_arrays(self) -> None:
        assert all(map(is_array, [np.zeros(2), np.float32(1), torch.zeros(2)]))
        assert not any(map(is_array, [1.0, [1.0], "a", None, {}]))
        assert is_tensor(torch.zeros(2))
        assert not is_tensor(np.zeros(2))

    def test_nothing_imports_torch_for_it(self) -> None:
        program = (
            "import sys, numpy; from relive.tensors import copy_in, is_tensor, wrap_out;"
            "wrap_out(copy_in(numpy.zeros(2), 'c')[0], 'float64', 'numpy', 'c');"
            "print(is_tensor(1), 'torch' in sys.modules)"
        )
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        )
        assert done.stdout.split() == ["False", "False"]
