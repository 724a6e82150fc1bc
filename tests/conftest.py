# SPDX-License-Identifier: Apache-2.0
"""What all tests share: how Hypothesis searches, and where peers live."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parent.parent

# A slow machine must not fail a test, so nothing has a deadline. Unattended runs always try the
# same examples: a change that breaks nothing stays green. At the desk each run tries new ones.
settings.register_profile("desk", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "desk")


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the rank that a launcher gave this process: compat would mix it into its draws."""
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)


@pytest.fixture(scope="session")
def rlinf_python() -> str:
    """The Python that can import rlinf 0.3.0, by benchmarks/peers/rlinf/stand_ins.py."""
    made = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "peer-env"), "rlinf"],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        pytest.fail(f"the peer's environment could not be made:\n{made.stdout}{made.stderr}")
    return made.stdout.strip()
