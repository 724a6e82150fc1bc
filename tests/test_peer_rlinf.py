# SPDX-License-Identifier: Apache-2.0
"""Checkpoints go both ways between relive and RLinf 0.3.0 itself, and compat does as it does."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import relive
from relive.columns import flatten
from relive.compat import rlinf
from relive.trajectory import COLUMN_FIELDS
from rlinf_program import LEADING, flat, rollout
from rlinf_rows import check_batch

ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.peer

SHAPES = ((4, 2, 1), (6, 3, 2), (4, 1, 0), (6, 2, 3))
"""T, B and E of the trajectories in most checkpoints; E = 0 for flags of T rows."""

WEIGHTS_IDS = ("a/b", "", "x" * 300, "../up")
"""Their model_weights_id in checkpoints of ours; RLinf would lose the first and the last."""

FORMATS = ("pt", "pkl")
WINDOWS = (2, 3, 100)


class Peer:
    """Runs RLinf in its own environment."""

    def __init__(self, python: str, folder: Path) -> None:
        self._python = python
        self._folder = folder

    def run(self, orders: list[tuple[str, dict[str, Any]]]) -> list[Any]:
        """Do all of this in one process of RLinf's."""
        written, results = self._folder / "orders.pt", self._folder / "results.pt"
        torch.save(orders, written)
        program = Path(__file__).with_name("rlinf_program.py")
        done = subprocess.run(
            [self._python, str(program), str(written), str(results)],
            env={**os.environ, "PYTHONPATH": str(ROOT / "benchmarks" / "peers" / "rlinf")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found: list[Any] = torch.load(results, weights_only=False)
        assert len(found) == len(orders)
        return found


@pytest.fixture(scope="module")
def peer(rlinf_python: str, tmp_path_factory: pytest.TempPathFactory) -> Peer:
    return Peer(rlinf_python, tmp_path_factory.mktemp("peer"))


def check_whole(
    found: relive.Trajectory, number: int, shape: tuple[int, int, int], *, but: tuple[str, ...] = ()
) -> None:
    """Prove that a whole trajectory is the rollout of this number, extra rows included."""
    expected = rollout(number, *shape)
    assert found.max_episode_length == expected["max_episode_length"]
    assert found.model_weights_id == expected["model_weights_id"]
    names = {name: getattr(found, name) for name in COLUMN_FIELDS}
    columns, wanted = flatten(names), flatten({n: expected[n] for n in names if n in expected})
    assert {name for name, value in columns.items() if value != {}} == wanted.keys()
    for name, column in wanted.items():
        if name not in but:
            assert torch.equal(columns[name], column), name


@dataclass(frozen=True)
class Written:
    """A checkpoint that RLinf wrote."""

    auto_save: bool
    trajectory_format: str
    window: int

    def __str__(self) -> str:
        where = "disk" if self.auto_save else "memory"
        return f"{where}-{self.trajectory_format}-{self.window}"

    @property
    def saved(self) -> list[int]:
        """The trajectories that it saves: those of the window."""
        return list(range(len(SHAPES)))[-self.window :]

    def order(self, folder: Path) -> tuple[str, dict[str, Any]]:
        return "write", {
            "shapes": SHAPES,
            "auto_save": self.auto_save,
            "trajectory_format": self.trajectory_format,
            "window": self.window,
            "live": str(folder / f"{self}-live"),
            "checkpoint": str(folder / str(self)),
        }


WRITTEN = [Written(save, form, n) for save in (False, True) for form in FORMATS for n in WINDOWS]


@pytest.fixture(scope="module")
def written(peer: Peer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written")
    peer.run([one.order(folder) for one in WRITTEN])
    return folder


@pytest.mark.filterwarnings("ignore:.*older trajectories that RLinf did not save:UserWarning")
@pytest.mark.parametrize("one", WRITTEN, ids=str)
class TestFromRLinf:
    def load(self, path: Path, **options: Any) -> relive.TrajectoryReplayBuffer:
        buffer = relive.TrajectoryReplayBuffer(**options)
        buffer.load_checkpoint(path)
        return buffer

    def check_all(self, buffer: relive.TrajectoryReplayBuffer, one: Written) -> None:
        # what RLinf holds in memory has lost the extra rows of flags, and values their shape
        lost = () if one.auto_save else LEADING
        for number in one.saved:
            check_whole(buffer.trajectory(number), number, SHAPES[number], but=lost)
        assert buffer.size == len(one.saved)
        assert buffer.total_samples == sum(SHAPES[n][0] * SHAPES[n][1] for n in one.saved)
        assert buffer.trajectory_counter == len(SHAPES)
        assert check_batch(buffer.sample(400)) == set(one.saved)

    def test_loads_into_memory_with_the_same_rows(self, written: Path, one: Written) -> None:
        self.check_all(self.load(written / str(one)), one)

    def test_loads_into_a_folder_with_the_same_rows(
        self, written: Path, one: Written, tmp_path: Path
    ) -> None:
        store = str(tmp_path / "store")
        with self.load(written / str(one), auto_save=True, auto_save_path=store) as buffer:
            self.check_all(buffer, one)
        with relive.TrajectoryReplayBuffer(
            auto_save=True, auto_save_path=store, enable_cache=False, if_exists="resume"
        ) as buffer:
            self.check_all(buffer, one)

    def test_flags_keep_their_rows(self, written: Path, one: Written) -> None:
        buffer = self.load(written / str(one))
        for number in one.saved:
            steps, envs, epochs = SHAPES[number]
            rows = steps + epochs if one.auto_save else steps
            found = buffer.trajectory(number)
            assert found.dones.shape == (rows, envs, 1)
            assert found.prev_values.shape == (steps + epochs, envs, 1)

    def test_the_live_folder_loads_too(self, written: Path, one: Written) -> None:
        if not one.auto_save:
            return
        buffer = self.load(written / f"{one}-live")
        for number, shape in enumerate(SHAPES):
            check_whole(buffer.trajectory(number), number, shape)


@dataclass(frozen=True)
class Ours:
    """A checkpoint or closed store of ours for RLinf to read."""

    auto_save: bool
    trajectory_format: str
    window: int = 100
    max_trajectories: int | None = None
    is_store: bool = False

    def __str__(self) -> str:
        words = ["disk" if self.auto_save else "memory", self.trajectory_format, str(self.window)]
        words += [f"limit{self.max_trajectories}"] if self.max_trajectories else []
        return "-".join([*words, *(["store"] if self.is_store else [])])

    @property
    def saved(self) -> list[int]:
        """The trajectories in it."""
        held = self.window if self.window and not self.is_store else len(SHAPES)
        return list(range(len(SHAPES)))[-min(held, self.max_trajectories or held) :]

    def write(self, folder: Path) -> Path:
        """Write it, with columns in it that RLinf has no place for."""
        store = folder / f"{self}-live"
        with relive.TrajectoryReplayBuffer(
            auto_save=self.auto_save,
            auto_save_path=str(store) if self.auto_save else "",
            trajectory_format=self.trajectory_format,
            sample_window_size=self.window,
            limits=relive.Limits(max_trajectories=self.max_trajectories),
        ) as buffer:
            for number, shape in enumerate(SHAPES):
                fields = rollout(number, *shape) | {"model_weights_id": WEIGHTS_IDS[number]}
                buffer.add_trajectories([with_more(fields, *shape[:2])])
            if not self.is_store:
                buffer.save_checkpoint(folder / str(self))
        return store if self.is_store else folder / str(self)


def with_more(fields: dict[str, Any], steps: int, envs: int) -> relive.Trajectory:
    """A trajectory with texts, nested columns, side values, extras and gaps besides."""
    fields["curr_obs"]["task"] = ["pick", "place", "push"][:envs]
    fields["curr_obs"]["arm"] = {"joints": {"q": torch.zeros(steps, envs, 7, dtype=torch.bfloat16)}}
    fields["next_obs"]["said"] = [["é"] * envs] * steps
    extras = {"weight": torch.ones(steps, envs), "site": "lab", "blob": b"\0", "none": {}}
    return relive.Trajectory(
        **fields, extras=extras, gaps=torch.zeros(steps, envs, dtype=torch.bool)
    )


OURS = [
    *(Ours(save, form, n) for save in (False, True) for form in FORMATS for n in (2, 100)),
    *(Ours(save, "pt", 0, max_trajectories=3) for save in (False, True)),
    *(Ours(True, form, 2, is_store=True) for form in FORMATS),
]


@pytest.fixture(scope="module")
def read(peer: Peer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What RLinf reads of each: all with a large window, all without a cache, and by rank."""
    folder = tmp_path_factory.mktemp("ours")
    orders: dict[str, tuple[str, dict[str, Any]]] = {}
    for one in OURS:
        path = str(one.write(folder))
        many = {"path": path, "num": 400, "window": 100, "enable_cache": True}
        orders[f"{one}"] = ("read", many)
        orders[f"{one} cached"] = ("read", many | {"window": 1})
        orders[f"{one} uncached"] = ("read", many | {"enable_cache": False})
        for rank in range(2):
            place = {"is_distributed": True, "local_rank": rank, "world_size": 2}
            orders[f"{one} rank {rank}"] = ("read", many | place)
    return dict(zip(orders, peer.run(list(orders.values())), strict=True))


@pytest.mark.parametrize("one", OURS, ids=str)
class TestToRLinf:
    # RLinf pairs steps with values of other steps when there are several epochs
    wrong_there = ("prev_values",)

    def test_loads_with_the_same_counts(self, read: dict[str, Any], one: Ours) -> None:
        found = read[f"{one}"]
        assert found["size"] == len(one.saved)
        assert found["total_samples"] == sum(SHAPES[n][0] * SHAPES[n][1] for n in one.saved)
        assert found["counter"] == len(SHAPES)

    @pytest.mark.parametrize("how", ["", " uncached"])
    def test_samples_the_right_rows(self, read: dict[str, Any], one: Ours, how: str) -> None:
        batch = read[f"{one}{how}"]["batch"]
        assert check_batch(batch, but=self.wrong_there) == set(one.saved)

    def test_samples_the_newest_of_a_small_window(self, read: dict[str, Any], one: Ours) -> None:
        assert check_batch(read[f"{one} cached"]["batch"], but=self.wrong_there) == {one.saved[-1]}

    def test_whole_trajectories_have_every_row(self, read: dict[str, Any], one: Ours) -> None:
        found = read[f"{one}"]["trajectories"]
        assert list(found) == one.saved
        for number, fields in found.items():
            columns, shape = flat(fields), SHAPES[number]
            for name, column in flat(rollout(number, *shape)).items():
                assert torch.equal(columns[name], column), name
            assert fields["model_weights_id"] == WEIGHTS_IDS[number]
            assert fields["max_episode_length"] == 50

    def test_ranks_share_it(self, read: dict[str, Any], one: Ours) -> None:
        drawn = [set(read[f"{one} rank {rank}"]["trajectories"]) for rank in range(2)]
        first = -(-len(one.saved) // 2)
        assert drawn == [set(one.saved[:first]), set(one.saved[first:])]


def flags_of(*rows: list[int]) -> torch.Tensor:
    """bool `[T, B, 1]` from rows of B numbers."""
    return torch.tensor(rows, dtype=torch.bool)[..., None]


VERSIONS = (
    torch.zeros(1),
    torch.full((4, 2, 1), 2.0),
    torch.arange(6).reshape(2, 3),
    torch.arange(6.0).reshape(2, 3).T,
)
CORRECTED = (
    rollout(1, 6, 2),
    rollout(2, 6, 3, 1) | {"prev_values": rollout(2, 6, 3)["prev_values"]},
    rollout(3, 4, 1) | {"intervene_flags": flags_of([0], [0], [0], [0])},
    rollout(4, 4, 2) | {"intervene_flags": flags_of([0, 1], [0, 0], [0, 1], [0, 1])},
    rollout(5, 4, 1) | {"intervene_flags": None},
    rollout(6, 4, 2) | {"versions": None, "forward_inputs": {}, "rewards": None},
)
JOINED: tuple[list[dict[str, Any]], ...] = (
    [rollout(0, 4, 2), rollout(1, 4, 3)],
    [rollout(0, 6, 1, 2), rollout(1, 6, 2, 2), rollout(2, 6, 1, 2)],
    [rollout(0, 4, 2) | {"curr_obs": {}, "next_obs": {}, "forward_inputs": {}}],
    [],
)


@pytest.fixture(scope="module")
def theirs(peer: Peer) -> dict[str, list[Any]]:
    """What RLinf's functions answer."""
    asked: dict[str, tuple[Any, ...]] = {
        "get_model_weights_id": VERSIONS,
        "extract_any": CORRECTED,
        "extract_all": CORRECTED,
        "convert": JOINED,
    }
    calls = [(name, argument) for name, many in asked.items() for argument in many]
    answers = iter(peer.run([("call", {"calls": calls})])[0])
    return {name: [next(answers) for _ in many] for name, many in asked.items()}


class TestSameAnswers:
    """Where RLinf's answers are right, compat's are the same."""

    def test_model_weights_id(self, theirs: dict[str, list[Any]]) -> None:
        ours = [rlinf.get_model_weights_id(versions) for versions in VERSIONS]
        assert ours == theirs["get_model_weights_id"]

    @pytest.mark.parametrize("mode", ["any", "all"])
    def test_extract_intervene_traj(self, theirs: dict[str, list[Any]], mode: Any) -> None:
        for fields, wanted in zip(CORRECTED, theirs[f"extract_{mode}"], strict=True):
            found = rlinf.Trajectory(**fields).extract_intervene_traj(mode)
            assert (found is None) == (wanted is None)
            for ours, their in zip(found or [], wanted or [], strict=True):
                same = flatten({name: getattr(ours, name) for name in their})
                assert same.keys() == flatten(their).keys()
                for name, column in flat(their).items():
                    assert torch.equal(same[name], column), name

    def test_convert_trajectories_to_batch(self, theirs: dict[str, list[Any]]) -> None:
        for many, wanted in zip(JOINED, theirs["convert"], strict=True):
            found = rlinf.convert_trajectories_to_batch([rlinf.Trajectory(**one) for one in many])
            assert flatten(found).keys() == flatten(wanted).keys()
            for name, column in flat(wanted).items():
                assert torch.equal(flatten(found)[name], column), name
