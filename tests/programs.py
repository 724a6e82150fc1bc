# SPDX-License-Identifier: Apache-2.0
"""Small programs that tests run in a process of their own, or hide in a file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

__all__ = ["Marker", "run_program", "start_program"]


class Marker:
    """Pickles as a call that makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def start_program(source: str, *arguments: Path | str | int) -> subprocess.Popen[str]:
    """Start a program that can import what this process can; its output comes by a pipe."""
    return subprocess.Popen(
        [sys.executable, "-c", source, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_program(source: str, *arguments: Path | str | int) -> str:
    """Run a program to its end and return what it printed; it must not fail."""
    with start_program(source, *arguments) as process:
        printed, complaints = process.communicate()
    assert process.returncode == 0, complaints
    return printed
