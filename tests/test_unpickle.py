# SPDX-License-Identifier: Apache-2.0
"""The unpickler that runs no code, and the tensors it finds."""

from __future__ import annotations

import collections
import io
import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from relive.errors import CorruptFileError, UnsafePickleError
from relive.formats.tensorpickle import StoredTensor, TensorGlobals
from relive.formats.unpickle import unpickle

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=()), max_size=8),
)
PLAIN = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=5).map(tuple),
        st.dictionaries(SCALARS, inner, max_size=4),
    ),
    max_leaves=20,
)


class Hostile:
    """Pickles as a call of any function."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call


class WithState:
    """Pickles as an object whose attributes are set."""

    def __init__(self) -> None:
        self.clear = "overwritten"


def tensors_of(content: bytes) -> Any:
    return unpickle(content, TensorGlobals(len(content)).in_pickle()).value


class TestPlainContainers:
    @given(value=PLAIN, protocol=st.integers(2, 5))
    def test_come_back_as_they_were(self, value: Any, protocol: int) -> None:
        pickled = pickle.dumps(value, protocol)
        read = unpickle(b"before" + pickled + b"after", {}, start=6)
        assert read.value == value
        assert read.end == 6 + len(pickled)
        assert repr(read.value) == repr(value)  # True is no 1, a tuple no list

    @given(value=st.binary(max_size=300), protocol=st.integers(3, 5))
    def test_bytes_come_back(self, value: bytes, protocol: int) -> None:
        assert unpickle(pickle.dumps([value], protocol), {}).value == [value]

    def test_what_is_shared_stays_shared(self) -> None:
        part = [1]
        first, second = unpickle(pickle.dumps((part, part), 4), {}).value
        assert first is second

    def test_more_than_256_and_65536_values_are_remembered(self) -> None:
        texts = [f"text {number}" for number in range(70_000)]
        assert unpickle(pickle.dumps([texts, texts], 2), {}).value == [texts, texts]
        assert unpickle(pickle.dumps([texts, texts], 4), {}).value == [texts, texts]


class TestHostilePickles:
    @pytest.mark.parametrize("protocol", [2, 3, 4, 5])
    @pytest.mark.parametrize(
        ("function", "name"),
        [
            (os.system, "system"),
            (os.open, "open"),
            (eval, "eval"),
            (exec, "exec"),
            (getattr, "getattr"),
            (__import__, "__import__"),
            (open, "open"),
            (subprocess.call, "call"),
            (torch.load, "load"),
            (torch.hub.load, "load"),
            (pickle.loads, "loads"),
            (collections.deque, "deque"),
            (set, "set"),
        ],
    )
    def test_no_function_is_called(
        self, function: Callable[..., Any], name: str, protocol: int
    ) -> None:
        content = pickle.dumps({"rewards": Hostile(function, "argument")}, protocol)
        with pytest.raises(UnsafePickleError, match=rf"asks for \S*\.{name},"):
            tensors_of(content)

    @pytest.mark.parametrize("protocol", [0, 1])
    def test_old_protocols_are_refused(self, protocol: int, tmp_path: Path) -> None:
        marker = tmp_path / "marker"
        content = pickle.dumps(Hostile(os.mkdir, str(marker)), protocol)
        with pytest.raises(CorruptFileError):
            tensors_of(content)
        assert not marker.exists()

    def test_no_attribute_is_set(self) -> None:
        with pytest.raises(UnsafePickleError):
            tensors_of(pickle.dumps(WithState(), 4))
        # BUILD on what is admitted: the dict of a function would be changed for all
        build = b"\x80\x04\x8c\x0ctorch._utils\x8c\x12_rebuild_tensor_v2\x93}\x8c\x04nameK\x01sb."
        with pytest.raises(UnsafePickleError, match="instruction b'b'"):
            tensors_of(build)

    @pytest.mark.parametrize(
        "code", [b"i", b"o", b"\x81", b"\x92", b"\x82", b"\x83", b"\x84", b"P"]
    )
    def test_instructions_that_make_objects_are_refused(self, code: bytes) -> None:
        with pytest.raises(UnsafePickleError, match="instruction"):
            tensors_of(b"\x80\x04)" + code + b".")

    def test_what_is_admitted_can_be_called_only_as_meant(self) -> None:
        wrong: list[tuple[Any, ...]] = [(), (1,), (1, 2, 3, 4, 5, 6), ("a", (), (), (), 0, {})]
        for arguments in wrong:
            call = pickle.dumps(arguments, 4)[:-1].removeprefix(b"\x80\x04")
            content = b"\x80\x04ctorch._utils\n_rebuild_tensor_v2\n" + call + b"R."
            with pytest.raises(CorruptFileError):
                tensors_of(content)

    def test_a_storage_with_a_hostile_pickle_inside_is_refused(self, tmp_path: Path) -> None:
        marker = tmp_path / "marker"
        payload = io.BytesIO()
        torch.save(Hostile(os.mkdir, str(marker)), payload, _use_new_zipfile_serialization=False)
        for inner in (
            payload.getvalue(),
            pickle.dumps(Hostile(os.mkdir, str(marker))),
            b"",
            b"PK\x03\x04",
        ):
            content = pickle.dumps(Hostile(torch.storage._load_from_bytes, inner), 4)
            with pytest.raises(CorruptFileError):
                tensors_of(content)
        assert not marker.exists()


class TestForgedSizes:
    """None of these may take memory or time worth speaking of."""

    @pytest.mark.parametrize(
        "content",
        [
            b"\x80\x04Nr\xff\xff\xff\xff.",  # a memo of 2^32 entries, which Python's would make
            b"\x80\x04\x8e" + struct.pack("<Q", 1 << 60) + b"short.",
            b"\x80\x04B\xff\xff\xff\x7fshort.",
            b"\x80\x04X\xff\xff\xff\x7fshort.",
            b"\x80\x04\x8b\xff\xff\xff\xff.",
        ],
    )
    def test_a_length_beyond_the_pickle_is_noticed(self, content: bytes) -> None:
        try:
            value = unpickle(content, {}).value
        except CorruptFileError as error:
            assert "cut" in str(error)  # noqa: PT017 - the first may be read as well
        else:
            assert value is None

    def test_a_tensor_cannot_be_expanded_without_end(self) -> None:
        content = pickle.dumps(torch.zeros(1).expand(1 << 20, 1 << 20), 4)
        with pytest.raises(CorruptFileError, match="over 64 times"):
            tensors_of(content)

    def test_a_function_cannot_be_called_on_the_same_text_without_end(self) -> None:
        text = b"X" + struct.pack("<I", 1 << 20) + b"a" * (1 << 20)
        first = b"\x80\x02c_codecs\nencode\nq\x00(" + text + b"X\x06\x00\x00\x00latin1tq\x01R"
        with pytest.raises(CorruptFileError, match="over 64 times"):
            tensors_of(first + b"h\x00h\x01R" * 1000 + b".")

    @pytest.mark.parametrize(
        ("first", "shape", "strides"),
        [
            (0, (5,), (1,)),
            (1, (4,), (1,)),
            (-1, (4,), (1,)),
            (0, (-1,), (1,)),
            (0, (2, 2), (3, 1)),
            (0, (2,), (-1,)),
            (0, (2, 2), (1,)),
            (0, (1 << 62, 1 << 62), (0, 0)),
            (0, (0, 1 << 62), (1, 1)),
            (0, (1,) * 40, (1,) * 40),
            (0, (2.0,), (1,)),
            (True, (2,), (1,)),
            (0, 4, 1),
        ],
    )
    def test_a_tensor_outside_its_storage_is_noticed(
        self, first: Any, shape: Any, strides: Any
    ) -> None:
        tensor: Any = torch.zeros(4)
        storage = tensor.__reduce_ex__(2)[1][0]
        function = torch._utils._rebuild_tensor_v2
        hostile = Hostile(function, storage, first, shape, strides, False, {})
        with pytest.raises(CorruptFileError):
            tensors_of(pickle.dumps(hostile, 4))

    def test_deep_nesting_overflows_no_stack(self) -> None:
        depth = 200_000
        assert unpickle(b"\x80\x02" + b")" + b"\x85" * depth + b".", {}).num_steps > depth
        as_key = b"\x80\x02}" + b")" + b"\x85" * depth + b"Ns."
        with pytest.raises(CorruptFileError, match="tuple as key"):
            unpickle(as_key, {})


class TestTensors:
    @pytest.mark.parametrize(
        "tensor",
        [
            torch.arange(24).reshape(2, 3, 4),
            torch.arange(24).reshape(4, 6).T,
            torch.arange(24)[5:20:3],
            torch.tensor(5.0),
            torch.zeros(3, 0, 2),
            torch.ones(2, 1).expand(2, 3),
            torch.tensor([1, 2, 65_535], dtype=torch.uint16),
            torch.tensor([True, False]),
            torch.zeros(2, requires_grad=True),
        ],
        ids=str,
    )
    @pytest.mark.parametrize("protocol", [2, 4, 5])
    def test_are_found_where_they_lie(self, tensor: torch.Tensor, protocol: int) -> None:
        found = tensors_of(pickle.dumps({"a": tensor}, protocol))["a"]
        assert isinstance(found, StoredTensor)
        column = found.column()
        assert column.values.flags.c_contiguous
        assert column.values.flags.aligned
        assert column.values.tolist() == tensor.tolist()
        assert f"torch.{column.dtype}" == str(tensor.dtype)

    def test_ordered_dicts_and_sizes_are_plain(self) -> None:
        value = collections.OrderedDict(a=torch.zeros(2, 3).shape)
        assert tensors_of(pickle.dumps(value, 4)) == {"a": (2, 3)}
        assert tensors_of(pickle.dumps(value, 2)) == {"a": (2, 3)}


class TestDamage:
    WHOLE = pickle.dumps({"a": torch.arange(5), "b": [1, ("c", 2.5)], "d": {"e": b"f"}}, 4)

    def test_a_pickle_cut_anywhere_is_noticed(self) -> None:
        for length in range(len(self.WHOLE)):
            with pytest.raises(CorruptFileError):
                tensors_of(self.WHOLE[:length])

    @given(
        position=st.integers(0, len(WHOLE) - 1),
        replacement=st.binary(max_size=3),
        length=st.integers(0, 3),
    )
    def test_a_changed_pickle_raises_only_our_errors(
        self, position: int, replacement: bytes, length: int
    ) -> None:
        changed = self.WHOLE[:position] + replacement + self.WHOLE[position + length :]
        try:
            tensors_of(changed)
        except CorruptFileError as error:
            assert str(error)  # noqa: PT017 - what was changed may be of no consequence

    @given(content=st.binary(max_size=60))
    def test_any_bytes_raise_only_our_errors(self, content: bytes) -> None:
        try:
            tensors_of(b"\x80\x04" + content)
        except CorruptFileError as error:
            assert str(error)  # noqa: PT017 - some are pickles


def test_reading_imports_nothing() -> None:
    code = "import sys, relive.formats.tensorpickle; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
