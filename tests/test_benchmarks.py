# SPDX-License-Identifier: Apache-2.0
"""The benchmark runner: what it computes, and that each benchmark runs on tiny data."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from protocol import Peer, PeerError
from report import Case, Measured, ratio, show, write_lines
from workloads import WORKLOADS

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


def measured(peer: str, *rounds: tuple[float, ...]) -> Measured:
    return Measured(peer, f"{peer} 1.0", rounds)


def read_lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


class TestRatio:
    def test_is_formed_inside_rounds(self) -> None:
        # The machine is ten times slower in the second round, for both alike.
        slow, fast = measured("a", (4.0, 4.0), (40.0,)), measured("b", (2.0,), (20.0, 20.0, 21.0))
        found = ratio(slow, fast)
        assert (found.median, found.low, found.high) == (2.0, 2.0, 2.0)

    def test_peers_of_a_case_need_the_same_rounds(self) -> None:
        with pytest.raises(ValueError, match="zip"):
            ratio(measured("a", (1.0,)), measured("b", (1.0,), (1.0,)))


class TestReport:
    case = Case(
        "pt",
        "state rows, n=256",
        256,
        (measured("relive", (0.001,)), measured("rlinf", (0.5,)), measured("floor", (0.0005,))),
    )

    def test_the_table_shows_times_rates_and_both_ratios(self) -> None:
        out = io.StringIO()
        show(Console(file=out, width=200), "pt", [self.case])
        for text in ("1.00 (256 k)", "500 (512)", "500 (500 to 500)", "2.00 (2.00 to 2.00)"):
            assert text in out.getvalue()

    def test_a_line_has_what_a_later_comparison_needs(self, tmp_path: Path) -> None:
        write_lines(tmp_path / "deep" / "lines.jsonl", [self.case])
        lines = read_lines(tmp_path / "deep" / "lines.jsonl")
        assert [line["peer"] for line in lines] == ["relive", "rlinf", "floor"]
        assert lines[1]["median_s"] == 0.5
        assert lines[1]["version"] == "rlinf 1.0"


class TestWorkloads:
    @pytest.mark.parametrize(("name", "row_bytes"), [("state", 567), ("image", 567 + 2 * 49152)])
    def test_rows_have_the_size_that_is_told(self, name: str, row_bytes: int) -> None:
        assert WORKLOADS[name].row_bytes == row_bytes

    def test_a_trajectory_is_the_same_each_time(self) -> None:
        workload = WORKLOADS["tiny"]
        first, again, other = workload.arrays(1), workload.arrays(1), workload.arrays(2)
        assert all((first[name] == again[name]).all() for name in first)
        assert not (first["rewards"] == other["rewards"]).all()


class TestRunner:
    def test_samples_and_adds_tiny_data(self, tmp_path: Path) -> None:
        options = ["--workload", "tiny", "--rounds", "1", "--without", "rlinf"]
        places = [
            "--scratch",
            str(tmp_path / "scratch"),
            "--results",
            str(tmp_path / "lines.jsonl"),
        ]
        done = subprocess.run(
            [sys.executable, str(BENCHMARKS / "run.py"), "pt", "add", *options, *places],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "relive / floor" in done.stdout
        found = {(line["benchmark"], line["peer"]) for line in read_lines(tmp_path / "lines.jsonl")}
        assert found == {(name, peer) for name in ("pt", "add") for peer in ("relive", "floor")}
        assert not list((tmp_path / "scratch").iterdir())

    def test_a_peer_that_raises_ends_the_run(self) -> None:
        peer = Peer("floor", sys.executable)
        try:
            with pytest.raises(PeerError, match="floor"):
                peer.call("no_such_method")
        finally:
            peer.close()
