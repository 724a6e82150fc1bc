# SPDX-License-Identifier: Apache-2.0
"""Every error that relive raises.

Each is rooted in `ReplayError` and in the built-in that fits, so that callers written for
other buffers keep catching what they caught::

    ReplayError
    ├── InvalidArgumentError (ValueError)         an argument is out of range or conflicts
    ├── ColumnMismatchError (ValueError)          a column is absent, extra, or different
    ├── UnsupportedValueError (TypeError)         a value that no column and no side value can hold
    ├── PartMismatchError (ValueError)            a part does not fit the trajectory it belongs to
    ├── LimitExceededError (ValueError)           more was to be held than a limit allows
    ├── EmptyBufferError (RuntimeError)           there is no row to draw
    ├── EvictedError (LookupError)                the rows or trajectories asked for are gone
    ├── ClosedError (RuntimeError)                the buffer or channel is closed
    ├── ForkedError (RuntimeError)                a forked copy was asked for what it cannot do
    ├── TimeLimitError (TimeoutError)             a wait reached its time limit
    ├── MissingPackageError (ImportError)         an optional package is not installed
    ├── StorageError (OSError)                    the disk did not do what was asked
    │   ├── StorageWriteError                     something could not be written
    │   ├── MissingFileError (FileNotFoundError)  a file that should be there is not
    │   ├── StoreExistsError (FileExistsError)    the folder already holds something
    │   └── StoreLockedError                      another writer holds the folder
    └── CorruptFileError (ValueError)             a file is cut, damaged, or not ours
        ├── FormatVersionError                    a file of a later format version
        └── UnsafePickleError                     a pickle that wants more than tensors

The message is always the only positional argument and facts are keyword arguments kept as
attributes, so every error survives pickling between processes.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "ClosedError",
    "ColumnMismatchError",
    "CorruptFileError",
    "EmptyBufferError",
    "EvictedError",
    "ForkedError",
    "FormatVersionError",
    "InvalidArgumentError",
    "LimitExceededError",
    "MissingFileError",
    "MissingPackageError",
    "PartMismatchError",
    "ReplayError",
    "StorageError",
    "StorageWriteError",
    "StoreExistsError",
    "StoreLockedError",
    "TimeLimitError",
    "UnsafePickleError",
    "UnsupportedValueError",
]


class ReplayError(Exception):
    """The root of every error of relive."""


class InvalidArgumentError(ReplayError, ValueError):
    """An argument is out of range, unknown, or conflicts with another."""


class ColumnMismatchError(ReplayError, ValueError):
    """A column is absent, extra, or has another shape or dtype than holds here.

    Attributes:
        column: Its full name, such as "curr_obs/states"; empty when several are concerned.
    """

    def __init__(self, message: str, *, column: str = "") -> None:
        super().__init__(message)
        self.column = column


class UnsupportedValueError(ReplayError, TypeError):
    """A value that no column and no side value can hold.

    Attributes:
        column: Its full name, such as "extras/boxes"; empty for the trajectory itself.
    """

    def __init__(self, message: str, *, column: str = "") -> None:
        super().__init__(message)
        self.column = column


class PartMismatchError(ReplayError, ValueError):
    """A part does not fit the trajectory it belongs to.

    Attributes:
        group: The env group of the part.
        step: The chunk step of the part.
        column: The column concerned, or "".
    """

    def __init__(self, message: str, *, group: str = "", step: int = -1, column: str = "") -> None:
        super().__init__(message)
        self.group = group
        self.step = step
        self.column = column


class LimitExceededError(ReplayError, ValueError):
    """More was to be held than a limit allows: one trajectory alone, open ones, queued steps."""


class EmptyBufferError(ReplayError, RuntimeError):
    """There is no row to draw."""


class EvictedError(ReplayError, LookupError):
    """The rows or trajectories asked for are not in the buffer.

    Attributes:
        ids: Row ids or trajectory ids that are gone or never were, at most the first ten.
    """

    def __init__(self, message: str, *, ids: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.ids = ids


class ClosedError(ReplayError, RuntimeError):
    """The buffer or channel is closed."""


class ForkedError(ReplayError, RuntimeError):
    """A forked copy of a buffer was asked for what it cannot do.

    Only the process that opened the buffer may write; and a copy that was made amid a change, or
    while a load moved files, gives no rows.
    """


class TimeLimitError(ReplayError, TimeoutError):
    """A wait reached its time limit; the message says what it waited for."""


class MissingPackageError(ReplayError, ImportError):
    """An optional package is not installed; the message has the pip line."""


class StorageError(ReplayError, OSError):
    """The disk did not do what was asked.

    Attributes:
        path: The file or folder concerned.
        errno: The operating system's number of the cause, or None.
    """

    def __init__(self, message: str, *, path: str = "", errno: int | None = None) -> None:
        super().__init__(message)
        self.path = path
        self.errno = errno

    def __reduce__(self) -> tuple[Any, ...]:
        # OSError keeps errno outside __dict__, where pickle would lose it.
        return _restore, (type(self), self.args, {**self.__dict__, "errno": self.errno})


class StorageWriteError(StorageError):
    """A trajectory, the index or a checkpoint could not be written.

    Attributes:
        trajectory_id: The trajectory that is not stored yet, or None when none is concerned.
    """

    def __init__(
        self,
        message: str,
        *,
        path: str = "",
        errno: int | None = None,
        trajectory_id: int | None = None,
    ) -> None:
        super().__init__(message, path=path, errno=errno)
        self.trajectory_id = trajectory_id


class MissingFileError(StorageError, FileNotFoundError):
    """A file that the index names, or a folder to load, is not there."""


class StoreExistsError(StorageError, FileExistsError):
    """The folder already holds a store, or other things."""


class StoreLockedError(StorageError):
    """Another writer holds the folder."""


class CorruptFileError(ReplayError, ValueError):
    """A file is cut, damaged, or was not written by a program we can read.

    Attributes:
        path: The file concerned.
    """

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class FormatVersionError(CorruptFileError):
    """A file of a format version that this release does not know."""


class UnsafePickleError(CorruptFileError):
    """A pickle that asks for more than tensors and plain containers."""


def _restore(
    kind: type[StorageError], args: tuple[Any, ...], facts: dict[str, Any]
) -> StorageError:
    """Rebuild a pickled `StorageError`, errno included."""
    error = kind(*args)
    for name, fact in facts.items():
        setattr(error, name, fact)
    return error
