# SPDX-License-Identifier: Apache-2.0
"""`relive.errors`: callers of other buffers keep catching, and facts travel between processes."""

from __future__ import annotations

import copy
import errno
import pickle
from typing import Any

import pytest

from relive import errors
from relive.errors import ReplayError, StorageError, StorageWriteError

KINDS = [getattr(errors, name) for name in errors.__all__]
FACTS: dict[str, Any] = {
    "path": "/data/store",
    "errno": errno.ENOSPC,
    "trajectory_id": 7,
    "ids": (3, 5),
    "column": "curr_obs/states",
    "group": "left arms",
    "step": 4,
}


def facts_of(kind: type[ReplayError]) -> dict[str, Any]:
    """A value other than the default for each fact that the error has."""
    names = getattr(kind.__init__, "__kwdefaults__", None) or {}
    return {name: FACTS[name] for name in names}


class TestEveryError:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("again", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
    def test_keeps_its_facts_when_pickled_or_copied(
        self, kind: type[ReplayError], again: Any
    ) -> None:
        error = kind("the message", **facts_of(kind))
        twin = again(error)
        assert type(twin) is kind
        assert str(twin) == "the message"
        assert {name: getattr(twin, name) for name in facts_of(kind)} == facts_of(kind)

    @pytest.mark.parametrize("kind", KINDS)
    def test_needs_no_facts(self, kind: type[ReplayError]) -> None:
        assert str(kind("the message")) == "the message"


class TestBuiltInRoots:
    @pytest.mark.parametrize(
        ("name", "built_in"),
        [
            ("InvalidArgumentError", ValueError),
            ("ColumnMismatchError", ValueError),
            ("UnsupportedValueError", TypeError),
            ("EmptyBufferError", RuntimeError),
            ("EvictedError", LookupError),
            ("ClosedError", RuntimeError),
            ("TimeLimitError", TimeoutError),
            ("MissingPackageError", ImportError),
            ("StorageWriteError", OSError),
            ("MissingFileError", FileNotFoundError),
            ("StoreExistsError", FileExistsError),
            ("CorruptFileError", ValueError),
        ],
    )
    def test_callers_catch_what_they_know(self, name: str, built_in: type[Exception]) -> None:
        with pytest.raises(built_in):
            raise getattr(errors, name)("the message")


class TestStorageErrors:
    def test_they_say_what_the_system_said(self) -> None:
        error = StorageWriteError("full", path="/data", errno=errno.ENOSPC, trajectory_id=7)
        assert (error.path, error.errno, error.trajectory_id) == ("/data", errno.ENOSPC, 7)
        assert isinstance(error, StorageError)

    def test_what_a_caller_adds_is_pickled_too(self) -> None:
        error = StorageError("full", errno=errno.EIO)
        error.attempt = 2  # type: ignore[attr-defined]  # any exception takes attributes
        twin = pickle.loads(pickle.dumps(error))
        assert (twin.attempt, twin.errno) == (2, errno.EIO)
