# SPDX-License-Identifier: Apache-2.0
"""The benchmark runner: what it computes, and that each benchmark runs on tiny data."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import page_cache
from protocol import Peer, PeerError
from report import Case, Figure, Measured, Target, ratio, show, show_targets, write_lines
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


class TestTargets:
    case = Case(
        "memmap",
        "state rows, n=256",
        256,
        (measured("relive", (0.003,)), measured("floor", (0.001,))),
        (
            Target(longer="relive", shorter="floor", at_most=2.0),
            Target(longer="cpprb", shorter="relive", at_least=1.8),
        ),
    )

    def shown(self, *found: Case | Figure) -> str:
        out = io.StringIO()
        show_targets(Console(file=out, width=200), found)
        return out.getvalue()

    def test_a_ratio_beyond_its_bound_is_missed(self) -> None:
        assert "missed" in self.shown(self.case)
        slower = measured("floor", (0.002,))
        fast_enough = replace(self.case, measured=(measured("relive", (0.003,)), slower))
        assert " met" in self.shown(fast_enough)

    def test_peers_that_took_no_part_have_none(self) -> None:
        assert "cpprb" not in self.shown(self.case)

    @pytest.mark.parametrize(("value", "verdict"), [(0.55, " met"), (0.56, "missed")])
    def test_a_figure_may_be_as_large_as_its_bound(self, value: float, verdict: str) -> None:
        figure = Figure("disk-bytes", "image", value, "of both", Target(at_most=0.55))
        assert verdict in self.shown(figure)

    def test_a_figure_has_a_line_of_its_own(self, tmp_path: Path) -> None:
        figure = Figure("size", "files", 100, "files", Target(at_most=99))
        write_lines(tmp_path / "lines.jsonl", [figure])
        (line,) = read_lines(tmp_path / "lines.jsonl")
        assert (line["value"], line["target"], line["is_met"]) == (100, "<= 99.0", False)


class TestWorkloads:
    @pytest.mark.parametrize(("name", "row_bytes"), [("state", 567), ("image", 567 + 2 * 49152)])
    def test_rows_have_the_size_that_is_told(self, name: str, row_bytes: int) -> None:
        assert WORKLOADS[name].row_bytes == row_bytes

    def test_a_trajectory_is_the_same_each_time(self) -> None:
        workload = WORKLOADS["tiny"]
        first, again, other = workload.arrays(1), workload.arrays(1), workload.arrays(2)
        assert all((first[name] == again[name]).all() for name in first)
        assert not (first["rewards"] == other["rewards"]).all()

    def test_what_comes_next_is_what_the_next_step_begins_with(self) -> None:
        arrays = WORKLOADS["tiny"].arrays(1)
        assert (arrays["next_obs/states"][:-1] == arrays["curr_obs/states"][1:]).all()
        assert not np.shares_memory(arrays["next_obs/states"], arrays["curr_obs/states"])

    def test_an_image_that_comes_next_is_stored_once(self) -> None:
        workload = WORKLOADS["image20"]
        images = 2 * 20 * 8 * 49152
        assert workload.trajectory_bytes - workload.stored_bytes == images // 2 * 19 // 20


class TestPageCache:
    @pytest.mark.slow  # and in need of a disk: what a tmpfs holds is always in memory
    @pytest.mark.skipif(sys.platform != "linux", reason="as the module says")
    def test_dropped_files_are_on_disk_only_though_they_are_mapped(self, tmp_path: Path) -> None:
        content = bytes(range(256)) * 4096
        (tmp_path / "file").write_bytes(content)
        mapped = np.memmap(tmp_path / "file", np.uint8, "r")
        assert mapped.sum() == sum(content)
        assert page_cache.resident_share(tmp_path) == 1.0
        page_cache.drop(tmp_path)
        assert page_cache.resident_share(tmp_path) == 0.0
        assert mapped.tobytes() == content


class TestRunner:
    def run(self, folder: Path, *arguments: str) -> tuple[str, list[Any]]:
        lines = folder / "lines.jsonl"
        places = ["--scratch", str(folder / "scratch"), "--results", str(lines)]
        options = ["--workload", "tiny", "--rounds", "1", "--gigabytes", "0.0001"]
        without = [f"--without={peer}" for peer in ("rlinf", "cpprb", "torchrl")]
        done = subprocess.run(
            [sys.executable, str(BENCHMARKS / "run.py"), *arguments, *options, *without, *places],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert not list((folder / "scratch").iterdir())
        return done.stdout, read_lines(lines)

    def test_samples_and_adds_tiny_data(self, tmp_path: Path) -> None:
        names = ("pt", "add", "memmap")
        printed, lines = self.run(tmp_path, *names)
        assert "relive / floor" in printed
        found = {(line["benchmark"], line["peer"]) for line in lines}
        assert found == {(name, peer) for name in names for peer in ("relive", "floor")}

    @pytest.mark.slow
    @pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and holes in files")
    def test_measures_what_is_on_disk(self, tmp_path: Path) -> None:
        names = ("cold", "cold-test", "size", "sustained", "checkpoint", "memory")
        printed, lines = self.run(tmp_path, *names, "--trajectories", "2000")
        assert "plain / relive" in printed
        assert {line["benchmark"] for line in lines} == set(names)
        values = {line["case"]: line["value"] for line in lines if "value" in line}
        assert values["files"] < 20
        assert values["opening 2,000"] > 0

    def test_a_peer_that_raises_ends_the_run(self) -> None:
        peer = Peer("floor", sys.executable)
        try:
            with pytest.raises(PeerError, match="floor"):
                peer.call("no_such_method")
        finally:
            peer.close()
