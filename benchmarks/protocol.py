# SPDX-License-Identifier: Apache-2.0
"""How the runner talks to a peer, which lives in a process and an environment of its own.

The runner writes one JSON line a request, the peer answers one: requests name a method of the
peer's adapter, its arguments, and how long to repeat it; answers hold the seconds of each call,
measured beside the call, so that no pipe is in them. Standard library only, for all Pythons.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

__all__ = ["Peer", "PeerError", "Timing", "serve"]


class PeerError(RuntimeError):
    """A peer's process ended or raised; its own words are on standard error."""


@dataclass(frozen=True)
class Timing:
    """What repeated calls of one method cost."""

    seconds: tuple[float, ...]
    """Wall time of each call."""
    written_bytes: int | None
    """What the peer's process gave to `write` meanwhile, all threads; None where unknown."""
    value: Any
    """What the last call returned."""


class Peer:
    """The runner's end: starts the process, asks it, ends it.

    Args:
        name: The folder of the adapter below benchmarks/peers.
        python: The interpreter of the peer's environment.
    """

    def __init__(self, name: str, python: str | Path) -> None:
        self.name = name
        self.python = python
        """The interpreter it runs in."""
        here = Path(__file__).parent
        paths = [here]  # this module and the workloads
        if name == "relive":
            paths.append(here.parent / "src")  # of this clone, whatever is installed
        self._process = subprocess.Popen(
            [str(python), str(here / "peers" / name / "adapter.py")],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def call(
        self,
        method: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        budget_s: float = 0.0,
        max_calls: int = 1,
    ) -> Timing:
        """Call a method of the adapter again and again; at least once.

        Args:
            method: Its name.
            arguments: By keyword, JSON values only.
            budget_s: No further call begins once they have taken this long together.
            max_calls: Nor after so many.

        Raises:
            PeerError: The process ended or the method raised.
        """
        request = {
            "method": method,
            "arguments": dict(arguments or {}),
            "budget_s": budget_s,
            "max_calls": max_calls,
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # the missing answer says it, and better
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise PeerError(f"peer {self.name!r} ended in {method!r}; see its error above")
        answer = json.loads(line)
        return Timing(tuple(answer["seconds"]), answer["written_bytes"], answer["value"])

    def close(self) -> None:
        """Let the process end by itself; end it when it does not."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


def serve(adapter: object) -> None:
    """Answer the runner's requests until it closes the pipe: the end of every adapter script."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever the peer prints goes to standard error, not between the answers
    with answers:
        for line in sys.stdin:
            _answer(adapter, json.loads(line), answers)


def _answer(adapter: object, request: dict[str, Any], answers: TextIO) -> None:
    method = getattr(adapter, request["method"])
    arguments = request["arguments"]
    seconds: list[float] = []
    before = _written_bytes()
    spent = 0.0
    value = None
    while not seconds or (spent < request["budget_s"] and len(seconds) < request["max_calls"]):
        start = time.perf_counter()
        value = method(**arguments)
        seconds.append(time.perf_counter() - start)
        spent += seconds[-1]
    after = _written_bytes()
    written = None if before is None or after is None else after - before
    json.dump({"seconds": seconds, "written_bytes": written, "value": value}, answers)
    answers.write("\n")
    answers.flush()


def _written_bytes() -> int | None:
    try:
        with open("/proc/self/io") as file:
            counts = dict(line.split(": ") for line in file)
    except OSError:
        return None
    return int(counts["wchar"])
