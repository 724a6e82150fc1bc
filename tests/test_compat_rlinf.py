# SPDX-License-Identifier: Apache-2.0
"""`relive.compat.rlinf`: RLinf's names, its checkpoints, and its faults that must not come back."""

from __future__ import annotations

import asyncio
import copy
import inspect
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import relive
from relive import files
from relive.compat.rlinf import (
    Trajectory,
    TrajectoryCache,
    TrajectoryReplayBuffer,
    convert_trajectories_to_batch,
    get_model_weights_id,
)
from relive.errors import (
    ClosedError,
    ColumnMismatchError,
    EmptyBufferError,
    InvalidArgumentError,
    MissingFileError,
    StorageWriteError,
    StoreExistsError,
    UnsupportedValueError,
)
from rlinf_program import expected_rows, flat, rollout

DATA = Path(__file__).parent / "data" / "rlinf"
CHECKPOINTS = sorted(path for path in DATA.glob("*/*_autosave_*") if path.is_dir())
NUM_STEPS, NUM_EPOCHS, NUM_ENVS = (4, 6, 4), (1, 1, 2), 2
WEIGHTS_IDS = (
    "87a64d8e-0f54-5c7c-a19d-0b3753cad97c",
    "87549d8d-b007-5b17-b1d3-5e3037e144cf",
    "3db5df6d-a5c9-59e4-913c-8aa0093702c2",
)

AnyBuffer = relive.TrajectoryReplayBuffer
BUFFERS: tuple[type[AnyBuffer], ...] = (AnyBuffer, TrajectoryReplayBuffer)

every_checkpoint = pytest.mark.parametrize(
    "path", CHECKPOINTS, ids=lambda path: f"{path.parent.name}/{path.name}"
)
every_buffer = pytest.mark.parametrize("kind", BUFFERS, ids=["relive", "compat"])
every_setting = pytest.mark.parametrize("auto_save", [False, True], ids=["memory", "disk"])


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)


def addressed(number: int, steps: int = 4, envs: int = 2, epochs: int = 0) -> Trajectory:
    """A trajectory whose rewards are 1000 * number + t * envs + b."""
    return Trajectory(**rollout(number, steps, envs, epochs))


def check_batch(batch: Mapping[str, Any]) -> set[int]:
    """Prove that every column of every row is that of its address; return the numbers drawn."""
    columns = flat(batch)
    address = columns["rewards"][:, 0].long()
    for name, expected in expected_rows(address).items():
        assert torch.equal(columns[name], expected), name
    return set((address // 1000).tolist())


def drawn(buffer: AnyBuffer, num: int = 8) -> list[float]:
    rewards: list[float] = buffer.sample(num)["rewards"].flatten().tolist()
    return rewards


class TestSignatures:
    """Names, order and defaults of parameters are RLinf's."""

    @pytest.mark.parametrize(
        ("function", "expected"),
        [
            (
                TrajectoryReplayBuffer.__init__,
                {
                    "seed": 1234,
                    "enable_cache": True,
                    "cache_size": 5,
                    "sample_window_size": 100,
                    "auto_save": False,
                    "auto_save_path": "",
                    "trajectory_format": "pt",
                },
            ),
            (TrajectoryReplayBuffer.sample, {"num_chunks": 0}),
            (TrajectoryReplayBuffer.sample_chunks, {"num_chunks": inspect.Parameter.empty}),
            (TrajectoryReplayBuffer.close, {"wait": True}),
            (
                TrajectoryReplayBuffer.load_checkpoint,
                {
                    "load_path": inspect.Parameter.empty,
                    "is_distributed": False,
                    "local_rank": 0,
                    "world_size": 1,
                },
            ),
            (TrajectoryReplayBuffer.save_checkpoint, {"save_path": inspect.Parameter.empty}),
            (TrajectoryReplayBuffer.add_trajectories, {"trajectories": inspect.Parameter.empty}),
            (TrajectoryReplayBuffer.is_ready, {"min_size": inspect.Parameter.empty}),
            (Trajectory.extract_intervene_traj, {"mode": "any"}),
            (
                TrajectoryCache.put,
                dict.fromkeys(("trajectory_id", "trajectory"), inspect.Parameter.empty),
            ),
            (TrajectoryCache.get, {"trajectory_id": inspect.Parameter.empty}),
            (convert_trajectories_to_batch, {"trajectories": inspect.Parameter.empty}),
            (get_model_weights_id, {"versions": inspect.Parameter.empty}),
        ],
        ids=lambda value: getattr(value, "__qualname__", ""),
    )
    def test_of(self, function: Callable[..., Any], expected: dict[str, Any]) -> None:
        parameters = [
            p for p in inspect.signature(function).parameters.values() if p.name != "self"
        ]
        given = {p.name: p.default for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD}
        assert list(given.items()) == list(expected.items())

    def test_trajectory_fields_come_in_their_order(self) -> None:
        names = [spec.name for spec in fields(Trajectory)]
        assert names[:7] == [
            *("max_episode_length", "model_weights_id", "actions", "intervene_flags"),
            *("rewards", "terminations", "truncations"),
        ]
        assert names[7:14] == [
            *("dones", "prev_logprobs", "prev_values", "versions"),
            *("forward_inputs", "curr_obs", "next_obs"),
        ]
        whole = Trajectory(9, "w", torch.zeros(2, 1))
        assert (whole.max_episode_length, whole.model_weights_id) == (9, "w")
        assert whole.actions.shape == (2, 1)


def code(number: int, width: int) -> NDArray[np.float32]:
    """100 k + 10 t + b + j / 10, `[T, B, width]`, as data/rlinf/README.md says."""
    t, b, j = np.ogrid[: NUM_STEPS[number], :NUM_ENVS, :width]
    return np.asarray(100 * number + 10 * t + b + j / 10, np.float32)


def check_fixture_rows(batch: Mapping[str, Any], info: relive.SampleInfo) -> None:
    """Prove that every row of a batch is that of its trajectory, step and env."""
    k, t, b = (array[:, None] for array in (info.trajectory_ids, info.steps, info.envs))
    per_epoch = np.array(NUM_STEPS)[k] // np.array(NUM_EPOCHS)[k]
    epoch, is_last = t // per_epoch, t % per_epoch == per_epoch - 1
    codes = 100 * k + 10 * t + b + np.arange(4) / 10
    pixels = np.arange(192) + 50 * k + 7 * t + 3 * b
    expected = {
        "actions": codes[:, :3],
        "rewards": k + 0.1 * t + 0.01 * b,
        "prev_logprobs": -codes[:, :3] / 1000,
        "versions": k,
        # the values of an epoch lie one row later for each epoch before
        "prev_values": 1000 * k + 2 * (t + epoch) + b,
        "intervene_flags": (((t * NUM_ENVS + b) * 3 + np.arange(3)) % 5) == 0,
        "dones": is_last,
        "terminations": is_last & (b == 0),
        "truncations": is_last & (b == 1),
        "forward_inputs/action": codes[:, :3],
        "curr_obs/states": codes,
        "next_obs/states": codes + 10,
        "curr_obs/main_images": (pixels % 256).reshape(-1, 8, 8, 3),
        "next_obs/main_images": ((pixels + 7) % 256).reshape(-1, 8, 8, 3),
    }
    columns = flat(batch)
    assert columns.keys() == expected.keys() | {"forward_inputs/chains"}
    for name, column in expected.items():
        found = columns[name].numpy()
        assert np.allclose(found, column.astype(found.dtype), rtol=1e-6, atol=1e-6), name


class TestRealCheckpoints:
    def test_all_twelve_are_here(self) -> None:
        assert len(CHECKPOINTS) == 12

    @every_checkpoint
    @every_buffer
    @every_setting
    def test_loads_with_the_values_of_the_readme(
        self, path: Path, kind: type[AnyBuffer], auto_save: bool, tmp_path: Path
    ) -> None:
        with kind(
            auto_save=auto_save, auto_save_path=tmp_path / "store", enable_cache=not auto_save
        ) as buffer:
            buffer.load_checkpoint(path)
            assert (buffer.size, buffer.total_samples, buffer.trajectory_counter) == (3, 28, 3)
            for number in range(3):
                whole = buffer.trajectory(number)
                assert whole.model_weights_id == WEIGHTS_IDS[number]
                assert whole.max_episode_length == 50
                assert np.allclose(whole.actions, code(number, 3))
                rows = NUM_STEPS[number] + NUM_EPOCHS[number]
                assert whole.prev_values.shape == (rows, NUM_ENVS, 1)
                flag_rows = rows if "autosave_true" in path.name else NUM_STEPS[number]
                assert whole.dones.shape == (flag_rows, NUM_ENVS, 1)
            batch, info = buffer.sample(500, return_info=True)
            assert set(info.trajectory_ids.tolist()) == {0, 1, 2}
            check_fixture_rows(batch, info)
            assert buffer.add_trajectories([buffer.trajectory(1)]) == [3]

    @every_checkpoint
    def test_is_saved_and_loaded_again_as_ours(self, path: Path, tmp_path: Path) -> None:
        buffer = TrajectoryReplayBuffer(trajectory_format="pkl")
        buffer.load_checkpoint(str(path))
        buffer.save_checkpoint(str(tmp_path / "ours"))
        again = TrajectoryReplayBuffer(seed=5)
        again.load_checkpoint(str(tmp_path / "ours"))
        check_fixture_rows(*again.sample(300, return_info=True))

    @every_setting
    @pytest.mark.parametrize("name", ["pt_autosave_true_checkpoint", "pkl_autosave_false"])
    def test_ranks_share_it(self, name: str, auto_save: bool, tmp_path: Path) -> None:
        held, issued = [], []
        for rank in range(2):
            store = tmp_path / f"rank_{rank}"
            with TrajectoryReplayBuffer(auto_save=auto_save, auto_save_path=store) as buffer:
                buffer.load_checkpoint(str(DATA / "v0.3.0" / name), True, rank, 2)
                batch, info = buffer.sample(200, return_info=True)
                check_fixture_rows(batch, info)
                held.append(set(info.trajectory_ids.tolist()))
                issued += buffer.add_trajectories([buffer.trajectory(min(held[-1]))] * 2)
        assert held == [{0, 1}, {2}]
        assert issued == [3, 5, 4, 6]

    def test_a_rank_with_nothing_says_so(self) -> None:
        buffer = TrajectoryReplayBuffer()
        with pytest.warns(UserWarning, match="rank 3 of 4 loaded no trajectory"):
            buffer.load_checkpoint(DATA / "v0.3.0" / "pt_autosave_false", True, 3, 4)
        assert buffer.size == 0

    def test_a_parent_of_rank_folders_loads_for_any_world(self, tmp_path: Path) -> None:
        for rank, name in enumerate(("pt_autosave_true", "pkl_autosave_true")):
            shutil.copytree(DATA / "v0.3.0" / name, tmp_path / f"rank_{rank}")
        held = []
        for rank in range(3):
            buffer = TrajectoryReplayBuffer()
            buffer.load_checkpoint(str(tmp_path), True, rank, 3)
            batch, _ = buffer.sample(200, return_info=True)
            held.append({(v // 1, buffer.size) for v in batch["versions"].flatten().tolist()})
        assert [len(kinds) for kinds in held] == [1, 1, 1]  # both ranks' 0, both 1, both 2
        assert {size for kinds in held for _, size in kinds} == {2}

    def test_an_index_that_lists_older_ones_never_saved(self, tmp_path: Path) -> None:
        path = tmp_path / "checkpoint"
        shutil.copytree(DATA / "v0.3.0" / "pt_autosave_true_checkpoint", path)
        (path / f"trajectory_0_{WEIGHTS_IDS[0]}.pt").unlink()
        buffer = TrajectoryReplayBuffer()
        with pytest.warns(UserWarning, match="lists 1 older trajectories that RLinf did not save"):
            buffer.load_checkpoint(path)
        assert (buffer.size, buffer.total_samples, buffer.trajectory_counter) == (2, 20, 3)
        check_fixture_rows(*buffer.sample(200, return_info=True))

    @pytest.mark.parametrize("gone", [(0, 1, 2), (1,), (2,)])
    def test_a_missing_file_is_named_and_nothing_changes(
        self, gone: tuple[int, ...], tmp_path: Path
    ) -> None:
        path = tmp_path / "checkpoint"
        shutil.copytree(DATA / "v0.3.0" / "pkl_autosave_true_checkpoint", path)
        for number in gone:
            (path / f"trajectory_{number}_{WEIGHTS_IDS[number]}.pkl").unlink()
        buffer = TrajectoryReplayBuffer()
        buffer.add_trajectories([addressed(7)])
        with pytest.raises(MissingFileError, match=f"trajectory_{gone[0]}_.* is not there"):
            buffer.load_checkpoint(path)
        assert check_batch(buffer.sample(50)) == {7}

    @pytest.mark.parametrize(
        "entry",
        [
            None,
            [],
            {"trajectory_id": 0},
            3,
            {"trajectory_id": 2, "num_samples": 8, "model_weights_id": ""},
            {"trajectory_id": 1, "num_samples": 8, "model_weights_id": "../../up"},
        ],
    )
    def test_an_index_with_foreign_entries_is_refused(self, entry: Any, tmp_path: Path) -> None:
        path = tmp_path / "checkpoint"
        shutil.copytree(DATA / "v0.3.0" / "pt_autosave_false", path)
        index = json.loads((path / "trajectory_index.json").read_text("utf-8"))
        index["trajectory_index"]["1"] = entry
        (path / "trajectory_index.json").write_text(json.dumps(index), "utf-8")
        with pytest.raises(
            relive.errors.CorruptFileError, match=r"trajectory_index\.json' (has|names|lists)"
        ):
            TrajectoryReplayBuffer().load_checkpoint(path)


@dataclass
class Config(dict[str, Any]):
    """As much of RLinf's configuration as its worker asks: attributes and `get`."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


class Worker:
    """Calls the buffer as RLinf's SAC worker does, arguments and all."""

    def __init__(self, root: Path, rank: int, world_size: int, **options: Any) -> None:
        settings = {"enable_cache": True, "cache_size": 3, "sample_window_size": 4}
        replay, demo = {**settings, **options}, {**settings, **options}
        self.rank, self.world_size = rank, world_size
        self.replay_buffer = TrajectoryReplayBuffer(
            seed=1234,
            auto_save_path=os.path.join(str(root), f"replay_buffer/rank_{rank}"),
            trajectory_format="pt",
            **replay,
        )
        self.demo_buffer = TrajectoryReplayBuffer(
            seed=1234,
            auto_save_path=os.path.join(str(root), f"demo_buffer/rank_{rank}"),
            trajectory_format="pt",
            **demo,
        )

    def load_demos(self, path: str) -> None:
        self.demo_buffer.load_checkpoint(
            path, is_distributed=True, local_rank=self.rank, world_size=self.world_size
        )

    def receive(self, trajectories: list[Any]) -> None:
        self.replay_buffer.add_trajectories(trajectories)
        corrected = []
        for one in trajectories:
            assert isinstance(one, Trajectory)
            extracted = one.extract_intervene_traj()
            if extracted is not None:
                corrected.extend(extracted)
        if len(corrected) > 0:
            self.demo_buffer.add_trajectories(corrected)

    def train(self, min_size: int, num: int) -> list[dict[str, Any]] | None:
        if not self.replay_buffer.is_ready(min_size):
            return None
        return [self.replay_buffer.sample(num // 2), self.demo_buffer.sample(num // 2)]

    def metrics(self) -> dict[str, float]:
        stats = self.replay_buffer.get_stats()
        return {f"replay_buffer/{key}": float(np.mean([stats[key]])) for key in stats}

    def checkpoint(self, base: Path) -> str:
        return os.path.join(str(base), f"sac_components/replay_buffer/rank_{self.rank}")


class TestWorker:
    @every_setting
    def test_trains_saves_and_resumes(self, auto_save: bool, tmp_path: Path) -> None:
        demos = tmp_path / "demos"
        with_demos = TrajectoryReplayBuffer()
        parts = addressed(50, 8, 3).extract_intervene_traj()
        assert parts is not None
        with_demos.add_trajectories(parts)
        with_demos.save_checkpoint(str(demos))

        first = Worker(tmp_path / "first", 0, 2, auto_save=auto_save)
        first.load_demos(str(demos))
        assert len(first.demo_buffer) == 2
        assert first.train(3, 16) is None
        assert not asyncio.run(first.replay_buffer.is_ready_async(1))
        for number in range(6):
            first.receive([addressed(number)])
        assert asyncio.run(first.replay_buffer.is_ready_async(3))
        batches = first.train(3, 64)
        assert batches is not None
        assert check_batch(batches[0]) <= {2, 3, 4, 5}
        assert batches[1]["intervene_flags"].any(-1).all()
        assert all(len(batch["rewards"]) == 32 for batch in batches)
        metrics = first.metrics()
        assert metrics["replay_buffer/num_trajectories"] == 6
        assert metrics["replay_buffer/total_samples"] == 48
        assert metrics["replay_buffer/cache_size"] == (3 if auto_save else 4)
        first.replay_buffer.save_checkpoint(first.checkpoint(tmp_path / "saved"))
        expected = first.replay_buffer.sample(32)
        first.replay_buffer.close()
        first.demo_buffer.close(wait=True)

        again = Worker(tmp_path / "again", 0, 2, auto_save=auto_save)
        again.replay_buffer.load_checkpoint(again.checkpoint(tmp_path / "saved"))
        resumed = again.replay_buffer.sample(32)
        assert torch.equal(resumed["rewards"], expected["rewards"])
        again.receive([addressed(6)])
        assert check_batch(again.replay_buffer.sample(200)) == {3, 4, 5, 6}
        again.replay_buffer.close()
        again.demo_buffer.close(wait=False)


class TestBuffer:
    def test_goes_on_with_the_store_that_it_finds(self, tmp_path: Path) -> None:
        for number in range(2):
            with TrajectoryReplayBuffer(1234, True, 5, 100, True, str(tmp_path / "s")) as buffer:
                assert buffer.add_trajectories([addressed(number)]) == [number]
        with pytest.raises(StoreExistsError, match="holds a store already"):
            relive.TrajectoryReplayBuffer(auto_save=True, auto_save_path=tmp_path / "s")

    def test_does_not_write_into_a_folder_of_rlinf(self, tmp_path: Path) -> None:
        shutil.copytree(DATA / "v0.3.0" / "pt_autosave_true", tmp_path / "live")
        before = sorted(path.name for path in (tmp_path / "live").iterdir())
        with pytest.raises(StoreExistsError, match="holds a folder of RLinf"):
            TrajectoryReplayBuffer(auto_save=True, auto_save_path=str(tmp_path / "live"))
        assert sorted(path.name for path in (tmp_path / "live").iterdir()) == before

    def test_the_path_may_be_none_in_memory_and_the_cache_is_on(self) -> None:
        buffer = TrajectoryReplayBuffer(enable_cache=False, auto_save=False, auto_save_path=None)
        assert buffer.enable_cache
        with pytest.raises(InvalidArgumentError, match="auto_save_path is empty"):
            TrajectoryReplayBuffer(auto_save=True, auto_save_path=None)

    def test_rank_and_world_are_ignored_unless_distributed(self, tmp_path: Path) -> None:
        path = DATA / "v0.3.0" / "pt_autosave_false"
        buffer = TrajectoryReplayBuffer()
        buffer.load_checkpoint(str(path), False, 3, 8)
        assert buffer.size == 3
        with pytest.raises(InvalidArgumentError, match="without is_distributed=True"):
            relive.TrajectoryReplayBuffer().load_checkpoint(path, False, 3, 8)

    def test_sample_chunks_draws_as_sample_does(self) -> None:
        one, other = TrajectoryReplayBuffer(), TrajectoryReplayBuffer()
        for buffer in (one, other):
            buffer.add_trajectories([addressed(0)])
        assert torch.equal(one.sample(9)["rewards"], other.sample_chunks(9)["rewards"])
        batch, info = one.sample(3, return_info=True, columns=["rewards"])
        assert (list(batch), len(info.row_ids)) == (["rewards"], 3)

    @pytest.mark.parametrize("numbers", [(), (0,), (-1,)])
    def test_sampling_nothing_is_an_error(self, numbers: tuple[int, ...]) -> None:
        buffer = TrajectoryReplayBuffer()
        with pytest.raises(EmptyBufferError):
            buffer.sample(1)
        buffer.add_trajectories([addressed(0)])
        with pytest.raises(InvalidArgumentError, match=r"num_chunks is .*, but must be"):
            buffer.sample(*numbers)

    @pytest.mark.parametrize("wait", [True, False])
    def test_close_stores_everything(self, wait: bool, tmp_path: Path) -> None:
        buffer = TrajectoryReplayBuffer(auto_save=True, auto_save_path=tmp_path / "store")
        buffer.add_trajectories([addressed(0)])
        buffer.close(wait=wait)
        buffer.close()
        assert list((tmp_path / "store").glob("trajectory_0_*.pt"))
        with pytest.raises(ClosedError):
            buffer.sample(1)

    def test_one_trajectory_instead_of_a_list_is_refused(self) -> None:
        with pytest.raises(InvalidArgumentError, match="must be a list"):
            TrajectoryReplayBuffer().add_trajectories(addressed(0))  # type: ignore[arg-type]  # on purpose

    def test_takes_trajectories_of_relive_and_the_other_way_round(self) -> None:
        plain = relive.Trajectory(**rollout(3, 4, 2))
        ours, theirs = relive.TrajectoryReplayBuffer(), TrajectoryReplayBuffer()
        assert ours.add_trajectories([addressed(3)]) == theirs.add_trajectories([plain]) == [0]
        assert check_batch(ours.sample(9)) == check_batch(theirs.sample(9)) == {3}


@dataclass
class Foreign:
    """The fields of RLinf's own Trajectory, and one that a later RLinf might add."""

    max_episode_length: int = 0
    model_weights_id: str = ""
    actions: Any = None
    intervene_flags: Any = None
    rewards: Any = None
    terminations: Any = None
    truncations: Any = None
    dones: Any = None
    prev_logprobs: Any = None
    prev_values: Any = None
    versions: Any = None
    forward_inputs: dict[str, Any] = field(default_factory=dict)
    curr_obs: dict[str, Any] = field(default_factory=dict)
    next_obs: dict[str, Any] = field(default_factory=dict)
    loss_mask: Any = None


class TestForeignTrajectories:
    """A program whose workers still make RLinf's own trajectories."""

    def test_are_added_as_ours(self) -> None:
        buffer = TrajectoryReplayBuffer()
        foreign = Foreign(**rollout(2, 4, 2, 1))
        buffer.add_trajectories([foreign, addressed(3, 4, 2, 1)])
        assert check_batch(buffer.sample(99)) == {2, 3}
        found = buffer.trajectory(0)
        assert (found.model_weights_id, found.max_episode_length) == ("weights-2", 50)
        assert torch.equal(found.dones, foreign.dones)

    def test_fields_that_ours_lacks_are_extras(self) -> None:
        buffer = TrajectoryReplayBuffer()
        mask = torch.ones(4, 2, 1)
        buffer.add_trajectories([Foreign(**rollout(2, 4, 2), loss_mask=mask)])
        assert torch.equal(buffer.trajectory(0).extras["loss_mask"], mask)
        assert convert_trajectories_to_batch([Foreign(rewards=mask, loss_mask=mask)]).keys() == {
            "rewards",
            "extras",
        }

    @pytest.mark.parametrize("value", [None, {"rewards": 1}, Foreign, object()])
    def test_what_is_none_is_refused_and_named(self, value: Any) -> None:
        buffer = TrajectoryReplayBuffer()
        with pytest.raises(UnsupportedValueError, match=type(value).__name__):
            buffer.add_trajectories([addressed(0), value])
        assert len(buffer) == 0

    def test_a_field_that_extras_has_too_is_refused(self) -> None:
        @dataclass
        class Twice(Foreign):
            extras: dict[str, Any] = field(default_factory=dict)

        mask = torch.ones(4, 2, 1)
        twice = Twice(**rollout(2, 4, 2), loss_mask=mask, extras={"loss_mask": mask})
        with pytest.raises(ColumnMismatchError, match=r"\['loss_mask'\] both among its fields"):
            TrajectoryReplayBuffer().add_trajectories([twice])


class TestStreams:
    """Each rank draws otherwise, without being told."""

    def draws_of(self, **options: Any) -> list[float]:
        buffer = TrajectoryReplayBuffer(**options)
        buffer.add_trajectories([addressed(0, 50, 4)])
        return drawn(buffer)

    def test_come_from_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        alone = self.draws_of()
        seen = [alone]
        for rank in ("0", "1"):
            monkeypatch.setenv("RANK", rank)
            monkeypatch.setenv("WORLD_SIZE", "2")
            seen.append(self.draws_of())
            assert self.draws_of(stream=(int(rank), 2)) == seen[-1]
            assert self.draws_of(stream=()) == alone
        assert len({tuple(numbers) for numbers in seen}) == 3
        monkeypatch.setenv("RANK", "0")
        monkeypatch.setenv("WORLD_SIZE", "1")
        assert self.draws_of() == alone

    def test_come_from_an_initialised_torch_distributed(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("RANK", "7")  # what torch says is newer
        monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
        monkeypatch.setattr("torch.distributed.get_rank", lambda: 1)
        monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)
        assert self.draws_of() == self.draws_of(stream=(1, 2))

    @pytest.mark.parametrize(
        ("name", "text"), [("RANK", "-1"), ("RANK", "one"), ("WORLD_SIZE", "0")]
    )
    def test_a_variable_that_is_no_number_is_named(
        self, name: str, text: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(name, text)
        with pytest.raises(InvalidArgumentError, match=f"variable {name} is {text!r}, but must"):
            TrajectoryReplayBuffer()
        TrajectoryReplayBuffer(stream=())

    def test_ranks_that_load_one_checkpoint_whole_do_not_draw_alike(self, tmp_path: Path) -> None:
        saved = TrajectoryReplayBuffer(stream=(0, 2))
        saved.add_trajectories([addressed(0, 50, 4)])
        saved.save_checkpoint(tmp_path / "saved")
        goes_on = drawn(saved)
        seen = []
        for rank in range(2):
            buffer = TrajectoryReplayBuffer(stream=(rank, 2))
            buffer.load_checkpoint(tmp_path / "saved")
            seen.append(drawn(buffer))
        assert seen[0] == goes_on
        assert seen[1] != goes_on

    def test_ranks_that_load_shards_draw_otherwise(self) -> None:
        seen = []
        for rank in range(2):
            buffer = TrajectoryReplayBuffer(sample_window_size=1)
            buffer.load_checkpoint(DATA / "v0.3.0" / "pt_autosave_false", True, rank, 2)
            _, info = buffer.sample(20, return_info=True)
            seen.append((info.steps * 2 + info.envs).tolist())
        assert seen[0] != seen[1]


def with_flags(*envs: str, **fields: Any) -> Trajectory:
    """Two flags a row: "x" both set, "/" one of them; rewards are 100 t + b."""
    flags = [[[[sign != ".", sign == "x"]] for sign in env] for env in envs]
    marks = torch.tensor(flags).squeeze(2).transpose(0, 1)  # [B, T, 2] -> [T, B, 2]
    t, b = torch.arange(len(envs[0]))[:, None], torch.arange(len(envs))[None]
    return Trajectory(rewards=(100 * t + b)[..., None], intervene_flags=marks, **fields)


class TestExtractInterveneTraj:
    def test_joins_the_steps_of_an_env_and_marks_the_gaps(self) -> None:
        whole = with_flags("x.xx/.", "......", ".xxx..", max_episode_length=9, model_weights_id="w")
        found = whole.extract_intervene_traj()
        assert found is not None
        assert [part.rewards[:, 0, 0].tolist() for part in found] == [
            [0, 200, 300, 400],
            [102, 202, 302],
        ]
        assert found[0].gaps[:, 0].tolist() == [True, False, False, False]
        assert found[1].gaps is None
        assert {(type(p), p.max_episode_length, p.model_weights_id) for p in found} == {
            (Trajectory, 9, "w")
        }

    def test_mode_all_wants_every_flag(self) -> None:
        found = with_flags("x/x", "//.").extract_intervene_traj(mode="all")
        assert found is not None
        assert [part.rewards[:, 0, 0].tolist() for part in found] == [[0, 200]]
        assert with_flags("//").extract_intervene_traj("all") is None

    def test_nothing_corrected_or_no_flags_is_none(self) -> None:
        assert with_flags("..", "..").extract_intervene_traj() is None
        assert Trajectory(rewards=torch.zeros(2, 1)).extract_intervene_traj() is None

    def test_flags_of_one_epoch_keep_their_first_row(self) -> None:
        dones = torch.tensor([True, False, False, True])[:, None, None]
        found = with_flags(".xx", terminations=dones, dones=dones).extract_intervene_traj()
        assert found is not None
        assert found[0].terminations.flatten().tolist() == [True, False, True]
        assert found[0].dones.shape == (3, 1, 1)
        assert found[0].truncations is None  # where RLinf fails

    def test_dones_without_terminations_are_kept(self) -> None:
        dones = torch.tensor([False, True])[:, None, None]
        found = with_flags("xx", dones=dones).extract_intervene_traj()
        assert found is not None
        assert torch.equal(found[0].dones, dones)

    def test_flags_of_more_epochs_get_a_row_a_step_and_a_gap_between_epochs(self) -> None:
        dones = torch.arange(6).reshape(6, 1, 1) % 3 == 2  # two epochs of two steps
        values = torch.arange(6.0).reshape(6, 1, 1)
        whole = with_flags(".xxx", truncations=dones, prev_values=values)
        found = whole.extract_intervene_traj()
        assert found is not None
        assert found[0].truncations.flatten().tolist() == [True, False, True]
        assert found[0].prev_values.flatten().tolist() == [1, 3, 4]
        assert found[0].gaps.flatten().tolist() == [True, False, False]

    def test_recorded_gaps_stay(self) -> None:
        gaps = torch.tensor([[True], [False], [True]])
        found = with_flags("xxx", gaps=gaps).extract_intervene_traj()
        assert found is not None
        assert found[0].gaps.flatten().tolist() == [True, False, False]

    def test_arrays_stay_arrays(self) -> None:
        flags = np.array([[True], [False], [True]])
        whole = Trajectory(rewards=np.arange(3.0)[:, None], intervene_flags=flags)
        found = whole.extract_intervene_traj()
        assert found is not None
        assert isinstance(found[0].rewards, np.ndarray)
        assert isinstance(found[0].gaps, np.ndarray)
        assert found[0].rewards[:, 0].tolist() == [0, 2]

    def test_all_but_versions_is_kept(self) -> None:
        rows = torch.arange(3)[:, None]
        whole = with_flags(
            "x.x",
            versions=rows,
            curr_obs={"arm": {"joint": {"q": rows}}, "task": ["pick"]},
            extras={"n": 1, "said": [["a"], ["b"], ["c"]]},
        )
        found = whole.extract_intervene_traj()
        assert found is not None
        assert found[0].versions is None
        assert found[0].curr_obs["arm"]["joint"]["q"].tolist() == [[0], [2]]
        assert found[0].curr_obs["task"] == ["pick"]
        assert found[0].extras == {"n": 1, "said": [["a"], ["c"]]}

    @pytest.mark.parametrize("epochs", [0, 1, 2, 3])
    def test_a_buffer_takes_them_and_no_run_crosses_a_gap(self, epochs: int) -> None:
        whole = addressed(1, 6, 3, epochs)
        found = whole.extract_intervene_traj("any")
        assert found is not None
        buffer = TrajectoryReplayBuffer()
        for trajectory_id in buffer.add_trajectories(found):
            part = buffer.trajectory(trajectory_id)
            rows = (part.rewards.flatten().long() - 1000) // 3
            follows = rows[1:] == rows[:-1] + 1
            if part.gaps is not None:
                assert part.gaps.flatten()[:-1][~follows].all()
        batch = flat(buffer.sample(100))
        address = batch["rewards"][:, 0].long()
        for name, column in expected_rows(address).items():
            if name != "versions":
                assert torch.equal(batch[name], column), name

    def test_an_unknown_mode_is_refused(self) -> None:
        with pytest.raises(InvalidArgumentError, match="mode is 'most'"):
            with_flags("x").extract_intervene_traj("most")  # type: ignore[arg-type]  # on purpose


class TestConvertTrajectoriesToBatch:
    def test_puts_envs_side_by_side(self) -> None:
        one, other = addressed(1, 4, 2, 2), relive.Trajectory(**rollout(2, 4, 3, 2))
        batch = convert_trajectories_to_batch([one, other])
        assert batch["rewards"].shape == (4, 5, 1)
        assert batch["dones"].shape == (6, 5, 1)
        assert torch.equal(batch["curr_obs"]["states"][:, :2], one.curr_obs["states"])
        assert torch.equal(batch["curr_obs"]["states"][:, 2:], other.curr_obs["states"])
        assert "extras" not in batch
        assert convert_trajectories_to_batch([]) == {}

    def test_nested_dicts_arrays_texts_and_side_values(self) -> None:
        def one(width: int, word: str) -> Trajectory:
            return Trajectory(
                rewards=np.full((2, width), width, np.float32),
                curr_obs={"a": {"b": torch.zeros(2, width)}, "task": [word] * width},
                extras={"said": [[word] * width] * 2, "rate": 30},
            )

        batch = convert_trajectories_to_batch([one(1, "x"), one(2, "y")])
        assert torch.equal(batch["rewards"], torch.tensor([[1.0, 2, 2], [1, 2, 2]]))
        assert batch["curr_obs"]["a"]["b"].shape == (2, 3)
        assert batch["curr_obs"]["task"] == ["x", "y", "y"]
        assert batch["extras"] == {"said": [["x", "y", "y"]] * 2, "rate": 30}

    @pytest.mark.parametrize(
        ("name", "change"),
        [
            ("versions", {"versions": None}),
            ("curr_obs/states", {"curr_obs": {}}),
            ("gaps", {"gaps": torch.zeros(4, 2, dtype=torch.bool)}),
        ],
    )
    def test_a_column_that_some_lack_is_named(self, name: str, change: dict[str, Any]) -> None:
        whole, changed = addressed(0), addressed(1)
        for key, value in change.items():
            setattr(changed, key, value)
        for many in ([whole, changed], [changed, whole]):
            with pytest.raises(ColumnMismatchError, match=f"'{name}' is missing in 1 of 2") as err:
                convert_trajectories_to_batch(many)
            assert err.value.column == name

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ({"rewards": torch.zeros(4, 2)}, {"rewards": torch.zeros(5, 2)}),
            ({"rewards": torch.zeros(4, 2)}, {"rewards": torch.zeros(4, 2, 1)}),
            ({"rewards": torch.zeros(4, 2)}, {"rewards": torch.zeros(4, 2).double()}),
            ({"extras": {"rate": 1}}, {"extras": {"rate": 2}}),
            ({"extras": {"rate": 1}}, {"extras": {"rate": True}}),
            ({"extras": {"said": ["a"]}}, {"extras": {"said": [["a"], ["b"]]}}),
            ({"extras": {"said": [["a"]]}}, {"extras": {"said": [["a"], ["b"]]}}),
        ],
    )
    def test_columns_that_do_not_fit_are_named(
        self, one: dict[str, Any], other: dict[str, Any]
    ) -> None:
        with pytest.raises(ColumnMismatchError, match=r"(rewards|extras/\w+)' is .* / .*, but"):
            convert_trajectories_to_batch([Trajectory(**one), Trajectory(**other)])


class TestModelWeightsId:
    @pytest.mark.parametrize("number", range(3))
    def test_is_that_of_the_real_checkpoints(self, number: int) -> None:
        versions = torch.full((NUM_STEPS[number], NUM_ENVS, 1), float(number))
        assert get_model_weights_id(versions) == WEIGHTS_IDS[number]
        assert get_model_weights_id(versions.numpy()) == WEIGHTS_IDS[number]

    def test_takes_what_rlinf_cannot(self) -> None:
        versions = torch.ones(2, requires_grad=True)
        assert get_model_weights_id(versions) == get_model_weights_id(versions.detach())
        assert get_model_weights_id(versions.bfloat16()) != get_model_weights_id(versions)
        with pytest.raises(
            UnsupportedValueError, match="versions is a float, but must be a tensor"
        ):
            get_model_weights_id(1.0)


class TestCache:
    def columns(self, number: int, rows: int = 3) -> dict[str, Any]:
        return {
            "rewards": torch.full((rows, 1), float(number)),
            "curr_obs": {"arm": {"q": torch.full((rows, 2), number).bfloat16()}},
        }

    def test_keeps_the_newest_first_in_first_out(self) -> None:
        cache = TrajectoryCache(max_size=2)
        for number in range(3):
            cache.put(number, self.columns(number))
        assert (len(cache.cache), list(cache.cache), cache.max_size) == (2, [1, 2], 2)
        assert cache.get(0) is None
        cache.put(1, self.columns(7))  # replaced in its place
        assert list(cache.cache) == [1, 2]
        found = cache.get(1)
        assert found is not None
        assert torch.equal(found["curr_obs"]["arm"]["q"], torch.full((3, 2), 7).bfloat16())
        cache.clear()
        assert (cache.cache, cache.get(1), len(cache)) == ({}, None, 0)

    def test_copies_what_it_is_given(self) -> None:
        cache, columns = TrajectoryCache(), self.columns(1)
        cache.put(0, columns)
        columns["rewards"][:] = 9
        found = cache.get(0)
        assert found is not None
        assert found["rewards"].max() == 1

    def test_other_columns_and_lengths_do_not_mix(self) -> None:
        cache = TrajectoryCache(max_size=1)
        cache.put(0, {**self.columns(0, rows=5), "extra": torch.full((5,), 7)})
        cache.put(1, self.columns(1))
        found = cache.get(1)
        assert found is not None
        assert found.keys() == {"rewards", "curr_obs"}
        assert len(found["rewards"]) == 3

    def test_what_is_no_tensor_is_refused(self) -> None:
        with pytest.raises(UnsupportedValueError, match="trajectory 4 has no tensor"):
            TrajectoryCache().put(4, {})
        with pytest.raises(UnsupportedValueError, match="'curr_obs/task' is a list, but") as err:
            TrajectoryCache().put(4, {"curr_obs": {"task": ["a"]}})
        assert err.value.column == "curr_obs/task"


@pytest.fixture
def replay(tmp_path: Path) -> Iterator[TrajectoryReplayBuffer]:
    """A buffer on disk with a window of two."""
    with TrajectoryReplayBuffer(
        auto_save=True, auto_save_path=tmp_path / "live", sample_window_size=2
    ) as buffer:
        yield buffer


class TestFaultsThatStayAway:
    """What RLinf 0.3.0 gets wrong in each of these cases, done right."""

    def test_saving_before_any_sample(self, replay: TrajectoryReplayBuffer, tmp_path: Path) -> None:
        replay.add_trajectories([addressed(number) for number in range(3)])
        replay.save_checkpoint(tmp_path / "saved")
        again = TrajectoryReplayBuffer()
        again.load_checkpoint(tmp_path / "saved")
        assert check_batch(again.sample(99)) == {1, 2}

    def test_loading_one_checkpoint_and_saving_another(
        self, replay: TrajectoryReplayBuffer, tmp_path: Path
    ) -> None:
        replay.load_checkpoint(DATA / "v0.3.0" / "pt_autosave_true_checkpoint")
        replay.sample(8)
        replay.save_checkpoint(tmp_path / "saved")
        again = TrajectoryReplayBuffer()
        again.load_checkpoint(tmp_path / "saved")
        assert again.size == 2
        check_fixture_rows(*again.sample(99, return_info=True))

    def test_a_larger_window_over_a_checkpoint_of_a_smaller(self, tmp_path: Path) -> None:
        buffer = TrajectoryReplayBuffer(sample_window_size=2)
        buffer.add_trajectories([addressed(number) for number in range(5)])
        buffer.save_checkpoint(tmp_path / "saved")
        index = json.loads((tmp_path / "saved" / "trajectory_index.json").read_text("utf-8"))
        assert index["trajectory_id_list"] == [3, 4]
        again = TrajectoryReplayBuffer(sample_window_size=100)
        again.load_checkpoint(tmp_path / "saved")
        assert check_batch(again.sample(99)) == {3, 4}
        assert again.trajectory_counter == 5

    def test_loading_does_not_bring_the_first_batch_again(self, tmp_path: Path) -> None:
        buffer = TrajectoryReplayBuffer()
        buffer.add_trajectories([addressed(0, 50, 4)])
        first = drawn(buffer)
        buffer.save_checkpoint(tmp_path / "saved")
        second = drawn(buffer)
        again = TrajectoryReplayBuffer()
        again.load_checkpoint(tmp_path / "saved")
        assert drawn(again) == second != first

    @every_setting
    def test_nested_observations_and_lists(self, auto_save: bool, tmp_path: Path) -> None:
        whole = addressed(0)
        whole.curr_obs |= {
            "arm": {"joint": {"q": torch.arange(8).reshape(4, 2)}},
            "task": ["a", "b"],
        }
        options: dict[str, Any] = {"auto_save": auto_save, "auto_save_path": tmp_path / "live"}
        with TrajectoryReplayBuffer(**options) as buffer:
            buffer.add_trajectories([whole])
            buffer.save_checkpoint(tmp_path / "saved")
        again = TrajectoryReplayBuffer()
        again.load_checkpoint(tmp_path / "saved")
        batch, info = again.sample(40, return_info=True)
        assert (
            batch["curr_obs"]["arm"]["joint"]["q"].tolist() == (2 * info.steps + info.envs).tolist()
        )
        assert batch["curr_obs"]["task"] == [["a", "b"][env] for env in info.envs]

    @every_setting
    @pytest.mark.parametrize("epochs", [1, 2, 4])
    def test_extra_rows_are_kept_and_epochs_pair_steps_with_their_own_values(
        self, auto_save: bool, epochs: int, tmp_path: Path
    ) -> None:
        whole = addressed(0, 4, 2, epochs)
        options: dict[str, Any] = {"auto_save": auto_save, "auto_save_path": tmp_path / "live"}
        with TrajectoryReplayBuffer(**options) as buffer:
            buffer.add_trajectories([copy.deepcopy(whole)])
            buffer.save_checkpoint(tmp_path / "saved")
        again = TrajectoryReplayBuffer()
        again.load_checkpoint(tmp_path / "saved")
        found = again.trajectory(0)
        for name in ("dones", "terminations", "truncations", "prev_values"):
            assert torch.equal(getattr(found, name), getattr(whole, name)), name
        assert check_batch(again.sample(99)) == {0}

    def test_flags_one_row_ahead_of_two_epochs(self, tmp_path: Path) -> None:
        stray = True
        dones = torch.tensor([stray, 0, 1, stray, 0, 1], dtype=torch.bool).reshape(6, 1, 1)
        whole = Trajectory(actions=torch.arange(4).reshape(4, 1, 1), dones=dones)
        for name, save in (("memory", False), ("disk", True)):
            with TrajectoryReplayBuffer(
                auto_save=save, auto_save_path=tmp_path / name, enable_cache=not save
            ) as buffer:
                buffer.add_trajectories([whole])
                buffer.flush()
                batch = buffer.sample(60)
                is_done = (batch["actions"] % 2 == 1).flatten()
                assert set(batch["actions"].flatten().tolist()) == {0, 1, 2, 3}
                assert torch.equal(batch["dones"].flatten(), is_done)
                whole.dones = torch.zeros(7, 1, 1, dtype=torch.bool)
                with pytest.raises(ColumnMismatchError, match="'dones' has 7 rows, but with T = 4"):
                    buffer.add_trajectories([whole])
                whole.dones = dones
                assert (len(buffer), buffer.total_samples, buffer.trajectory_counter) == (1, 4, 1)

    def test_a_long_run_leaves_no_files_behind(self, tmp_path: Path) -> None:
        with TrajectoryReplayBuffer(
            auto_save=True,
            auto_save_path=tmp_path / "live",
            sample_window_size=2,
            limits=relive.Limits(max_trajectories=2),
        ) as buffer:
            for number in range(30):
                buffer.add_trajectories([addressed(number)])
            buffer.flush()
            assert check_batch(buffer.sample(99)) == {28, 29}
        assert len(list((tmp_path / "live").glob("trajectory_*.pt"))) == 2

    def test_a_save_that_fails_leaves_the_one_before(
        self, replay: TrajectoryReplayBuffer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        replay.add_trajectories([addressed(0)])
        replay.save_checkpoint(tmp_path / "saved")
        replay.add_trajectories([addressed(1)])
        replay.flush()

        def full(*_: Any, **__: Any) -> None:
            raise OSError(28, "no space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(files, "copy", full)
            with pytest.raises(StorageWriteError, match="no space left"):
                replay.save_checkpoint(tmp_path / "saved")
        again = TrajectoryReplayBuffer()
        again.load_checkpoint(tmp_path / "saved")
        assert check_batch(again.sample(50)) == {0}

    @pytest.mark.parametrize("weights_id", ["a/b", "", "x" * 300, "../up", "ü .\0"])
    def test_any_weights_id_keeps_its_trajectory(self, weights_id: str, tmp_path: Path) -> None:
        whole = addressed(0)
        whole.model_weights_id = weights_id
        folder = tmp_path / "deep" / "live"
        with TrajectoryReplayBuffer(auto_save=True, auto_save_path=folder) as buffer:
            buffer.add_trajectories([whole])
            buffer.save_checkpoint(tmp_path / "deep" / "saved")
        assert sorted(path.name for path in tmp_path.rglob("*") if path.is_dir()) == [
            *("deep", "live", "saved"),
        ]
        with TrajectoryReplayBuffer(auto_save=True, auto_save_path=folder) as buffer:
            assert buffer.trajectory(0).model_weights_id == weights_id
        again = TrajectoryReplayBuffer()
        again.load_checkpoint(tmp_path / "deep" / "saved")
        assert again.trajectory(0).model_weights_id == weights_id
        assert check_batch(again.sample(20)) == {0}

    def test_a_batch_has_as_many_rows_as_asked(self) -> None:
        buffer = TrajectoryReplayBuffer()
        buffer.add_trajectories([addressed(0)])
        assert len(buffer.sample(100)["rewards"]) == 100

    def test_a_column_that_a_later_trajectory_lacks(self) -> None:
        buffer = TrajectoryReplayBuffer(sample_window_size=1)
        whole = addressed(0)
        whole.extras = {"extra": torch.full((4, 2), 7)}
        buffer.add_trajectories([whole])
        with pytest.raises(ColumnMismatchError, match="missing: extras/extra"):
            buffer.add_trajectories([addressed(1)])

    def test_a_bad_trajectory_after_a_good_one(self) -> None:
        buffer, bad = TrajectoryReplayBuffer(), addressed(2)
        buffer.add_trajectories([addressed(0)])
        bad.curr_obs["main_images"] = torch.zeros(4, 2, 5, 5, 3, dtype=torch.uint8)
        with pytest.raises(ColumnMismatchError, match="curr_obs/main_images"):
            buffer.add_trajectories([addressed(1), bad])
        assert (len(buffer), buffer.total_samples, buffer.trajectory_counter) == (1, 8, 1)
        assert check_batch(buffer.sample(50)) == {0}

    @every_setting
    def test_a_trajectory_without_rewards_is_stored(self, auto_save: bool, tmp_path: Path) -> None:
        options: dict[str, Any] = {"auto_save": auto_save, "auto_save_path": tmp_path / "live"}
        with TrajectoryReplayBuffer(**options) as buffer:
            buffer.add_trajectories([Trajectory(actions=torch.ones(3, 2, 1))])
            assert buffer.sample(5)["actions"].shape == (5, 1)

    def test_the_callers_tensors_are_his_again(self, replay: TrajectoryReplayBuffer) -> None:
        whole = addressed(0)
        replay.add_trajectories([whole])
        for column in flat(vars(whole)).values():
            column.zero_()
        replay.flush()
        replay.clear_cache()
        assert check_batch(replay.sample(50)) == {0}

    def test_a_window_of_nothing_is_everything(self) -> None:
        buffer = TrajectoryReplayBuffer(sample_window_size=0)
        buffer.add_trajectories([addressed(number) for number in range(4)])
        assert check_batch(buffer.sample(200)) == {0, 1, 2, 3}

    def test_no_global_generator_is_touched(self) -> None:
        np.random.seed(1)
        torch.manual_seed(1)
        before = np.random.get_state(legacy=False), torch.get_rng_state()
        buffer = TrajectoryReplayBuffer()
        buffer.add_trajectories([addressed(0)])
        buffer.sample(10)
        assert str(np.random.get_state(legacy=False)) == str(before[0])
        assert torch.equal(torch.get_rng_state(), before[1])

    def test_clearing_does_not_bring_ids_again(self) -> None:
        buffer = TrajectoryReplayBuffer()
        buffer.add_trajectories([addressed(0)])
        buffer.clear()
        assert buffer.add_trajectories([addressed(1)]) == [1]
