# SPDX-License-Identifier: Apache-2.0
"""A reader of pickles that can run no code.

It knows the instructions that tensors and plain containers need and no others: nothing
imports a module, sets an attribute, or calls what the caller did not admit by name. Sizes in
the pickle are checked against the bytes there are before memory is taken. Python's own
unpickler offers no such limits: its memo, for one, grows to any index a pickle names.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from relive.errors import CorruptFileError, UnsafePickleError

__all__ = ["Unpickled", "checked_items", "unpickle"]

_HIGHEST_PROTOCOL = 5
_STOP, _PUT_SHORT, _PUT_NEXT, _GET_SHORT, _SHORT_NUMBER = b".q\x94hK"
_DAMAGE = (
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    struct.error,
)
_KEY_TYPES = frozenset({str, int, float, bool, bytes, type(None)})


@dataclass(frozen=True, slots=True)
class Unpickled:
    """What one pickle held."""

    value: Any
    """Built of None, bool, int, float, str, bytes, list, tuple, dict, and what was admitted."""
    end: int
    """Where the bytes after the pickle begin."""
    num_steps: int
    """How many instructions the pickle had, a bound for the number of objects it made."""


def unpickle(
    pickle: bytes,
    admitted: Mapping[str, object],
    load_persistent: Callable[[Any], Any] | None = None,
    *,
    start: int = 0,
) -> Unpickled:
    """Read one pickle of protocol 2 to 5.

    Args:
        pickle: Bytes that contain it.
        admitted: By "module name" what stands for a global of this name: a function when the
            pickle may call it, else any object.
        load_persistent: Called with the persistent ids of the pickle; None when it may have none.
        start: Where it begins.

    Raises:
        UnsafePickleError: It asks for a global that is not admitted, or for an instruction
            beyond those of plain containers.
        CorruptFileError: It is cut or damaged, or what it calls refused its arguments.
    """
    machine = _Machine(pickle, admitted, load_persistent, start)
    try:
        return machine.run()
    except CorruptFileError:
        raise
    except _DAMAGE as error:
        raise CorruptFileError(
            f"a pickle is damaged near byte {machine.position}: {error}"
        ) from error


def checked_items(items: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    """Build a dict whose keys are scalars.

    Keys are hashed; hashing deeply nested tuples would overflow the interpreter's own stack.

    Raises:
        CorruptFileError: A key is something else.
    """
    built = {}
    for key, value in items:
        if type(key) not in _KEY_TYPES:
            raise CorruptFileError(
                f"a pickle has a {type(key).__name__} as key, but keys are text or numbers"
            )
        built[key] = value
    return built


class _Machine:
    """The stack machine that a pickle is a program for."""

    __slots__ = (
        "_admitted",
        "_load_persistent",
        "_marks",
        "_memo",
        "_pickle",
        "_stack",
        "position",
    )

    def __init__(
        self,
        pickle: bytes,
        admitted: Mapping[str, object],
        load_persistent: Callable[[Any], Any] | None,
        start: int,
    ) -> None:
        self._pickle = pickle
        self._admitted = admitted
        self._load_persistent = load_persistent
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self.position = start

    def run(self) -> Unpickled:
        pickle, stack, memo = self._pickle, self._stack, self._memo
        num_steps = 0
        while True:
            num_steps += 1
            code = pickle[self.position]
            self.position += 1
            # These four are two thirds of what a trajectory's pickle has; done here, they cost a
            # third of what a call costs.
            if code == _PUT_SHORT:
                memo[pickle[self.position]] = stack[-1]
                self.position += 1
            elif code == _PUT_NEXT:
                memo[len(memo)] = stack[-1]
            elif code == _GET_SHORT:
                stack.append(memo[pickle[self.position]])
                self.position += 1
            elif code == _SHORT_NUMBER:
                stack.append(pickle[self.position])
                self.position += 1
            elif code == _STOP:
                return Unpickled(self._pop(), self.position, num_steps)
            elif code in _STEPS:
                _STEPS[code](self)
            else:
                raise UnsafePickleError(
                    f"a pickle has instruction {bytes((code,))!r}, but only those of tensors and "
                    "plain containers are admitted"
                )

    def _bytes(self, count: int) -> bytes:
        start, self.position = self.position, self.position + count
        if self.position > len(self._pickle):
            raise CorruptFileError(
                f"a pickle is cut: it needs {count} bytes at byte {start}, but has "
                f"{max(len(self._pickle) - start, 0)}"
            )
        return self._pickle[start : self.position]

    def _number(self, count: int) -> int:
        return int.from_bytes(self._bytes(count), "little")

    def _text(self, count: int) -> str:
        return str(self._bytes(count), "utf-8", "surrogatepass")

    def _line(self) -> str:
        start, end = self.position, self._pickle.index(b"\n", self.position)
        self.position = end + 1
        return str(self._pickle[start:end], "utf-8")

    def _pop(self) -> Any:
        if self._marks and len(self._stack) <= self._marks[-1]:
            raise CorruptFileError("a pickle is damaged: it takes a value that it never made")
        return self._stack.pop()

    def _pop_to_mark(self) -> list[Any]:
        mark = self._marks.pop()
        values = self._stack[mark:]
        del self._stack[mark:]
        return values

    def _top(self, kind: type) -> Any:
        top = self._stack[-1]
        if type(top) is not kind:
            raise CorruptFileError(
                f"a pickle fills a {type(top).__name__} as if it were a {kind.__name__}"
            )
        return top

    def _protocol(self) -> None:
        protocol = self._number(1)
        if not 2 <= protocol <= _HIGHEST_PROTOCOL:
            raise CorruptFileError(f"a pickle is of protocol {protocol}, but 2 to 5 can be read")

    def _frame(self) -> None:
        self._bytes(8)  # how far one read should go; everything is in memory here

    def _mark(self) -> None:
        self._marks.append(len(self._stack))

    def _append(self) -> None:
        value = self._pop()
        self._top(list).append(value)

    def _appends(self) -> None:
        values = self._pop_to_mark()
        self._top(list).extend(values)

    def _set_item(self) -> None:
        value, key = self._pop(), self._pop()
        self._top(dict).update(checked_items([(key, value)]))

    def _set_items(self) -> None:
        values = self._pop_to_mark()
        self._top(dict).update(checked_items(zip(values[::2], values[1::2], strict=True)))

    def _tuple_of(self, count: int) -> None:
        values = [self._pop() for _ in range(count)]
        self._stack.append(tuple(values[::-1]))

    def _global(self, module: str, name: str) -> None:
        full_name = f"{module} {name}"
        if full_name not in self._admitted:
            raise UnsafePickleError(
                f"a pickle asks for {module:.100}.{name:.100}, but only tensors and plain "
                "containers are admitted"
            )
        self._stack.append(self._admitted[full_name])

    def _stack_global(self) -> None:
        name, module = self._pop(), self._pop()
        if type(module) is not str or type(name) is not str:
            raise CorruptFileError("a pickle is damaged: the name of a global is no text")
        self._global(module, name)

    def _call(self) -> None:
        arguments, function = self._pop(), self._pop()
        if not callable(function) or type(arguments) is not tuple:
            raise UnsafePickleError(
                f"a pickle calls a {type(function).__name__}, but only what is admitted can be "
                "called"
            )
        self._stack.append(function(*arguments))

    def _persistent(self) -> None:
        if self._load_persistent is None:
            raise UnsafePickleError("a pickle has a persistent id, but none is expected here")
        self._stack.append(self._load_persistent(self._pop()))

    def _memoize(self) -> None:
        self._memo[self._number(4)] = self._stack[-1]


_Step = Callable[[_Machine], None]


def _steps() -> dict[int, _Step]:
    """Return what each instruction does, by its code."""
    m = _Machine

    def push(read: Callable[[_Machine], Any]) -> _Step:
        return lambda machine: machine._stack.append(read(machine))

    steps: dict[bytes, _Step] = {
        # framing
        b"\x80": m._protocol,
        b"\x95": m._frame,
        # constants and numbers
        b"N": push(lambda machine: None),
        b"\x88": push(lambda machine: True),
        b"\x89": push(lambda machine: False),
        b"M": push(lambda machine: machine._number(2)),
        b"J": push(lambda machine: _signed(machine._bytes(4))),
        b"\x8a": push(lambda machine: _signed(machine._bytes(machine._number(1)))),
        b"\x8b": push(lambda machine: _signed(machine._bytes(machine._number(4)))),
        b"G": push(lambda machine: struct.unpack(">d", machine._bytes(8))[0]),
        # text and bytes
        b"\x8c": push(lambda machine: machine._text(machine._number(1))),
        b"X": push(lambda machine: machine._text(machine._number(4))),
        b"\x8d": push(lambda machine: machine._text(machine._number(8))),
        b"C": push(lambda machine: machine._bytes(machine._number(1))),
        b"B": push(lambda machine: machine._bytes(machine._number(4))),
        b"\x8e": push(lambda machine: machine._bytes(machine._number(8))),
        # containers
        b"(": m._mark,
        b"]": push(lambda machine: []),
        b")": push(lambda machine: ()),
        b"}": push(lambda machine: {}),
        b"a": m._append,
        b"e": m._appends,
        b"s": m._set_item,
        b"u": m._set_items,
        b"t": push(lambda machine: tuple(machine._pop_to_mark())),
        b"\x85": lambda machine: machine._tuple_of(1),
        b"\x86": lambda machine: machine._tuple_of(2),
        b"\x87": lambda machine: machine._tuple_of(3),
        # what was made before
        b"r": m._memoize,
        b"j": push(lambda machine: machine._memo[machine._number(4)]),
        # globals, only those admitted
        b"c": lambda machine: machine._global(machine._line(), machine._line()),
        b"\x93": m._stack_global,
        b"R": m._call,
        b"Q": m._persistent,
    }
    return {code[0]: step for code, step in steps.items()}


def _signed(number: bytes) -> int:
    return int.from_bytes(number, "little", signed=True)


_STEPS = _steps()
