# SPDX-License-Identifier: Apache-2.0
"""How a shell calls the programs of the environment that runs this one."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

__all__ = ["programs_folder"]


def programs_folder() -> str:
    """Return what stands before the name of a program, such as ".venv/bin/".

    Empty when the shell finds `relive` by its name alone.
    """
    folder = Path(sys.executable).parent
    if shutil.which("relive") is not None or not (folder / "relive").exists():
        return ""
    return shlex.quote(os.path.relpath(folder)) + os.sep
