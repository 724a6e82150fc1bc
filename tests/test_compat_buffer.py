# SPDX-License-Identifier: Apache-2.0
"""`relive.compat.rlinf`: its buffer, called as RLinf's workers call it."""

from __future__ import annotations

import asyncio
import inspect
import os
import shutil
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import relive
from relive.compat.rlinf import (
    Trajectory,
    TrajectoryCache,
    TrajectoryReplayBuffer,
    convert_trajectories_to_batch,
    get_model_weights_id,
)
from relive.errors import ClosedError, EmptyBufferError, InvalidArgumentError, StoreExistsError
from rlinf_program import rollout
from rlinf_rows import DATA, addressed, check_batch, drawn, every_setting

pytestmark = pytest.mark.usefixtures("alone")


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
        with pytest.raises(StoreExistsError, match=r"holds a checkpoint .*load_checkpoint"):
            TrajectoryReplayBuffer(auto_save=True, auto_save_path=str(tmp_path / "live"))
        assert sorted(path.name for path in (tmp_path / "live").iterdir()) == before

    def test_the_path_may_be_none_in_memory_and_the_cache_is_on(self) -> None:
        buffer = TrajectoryReplayBuffer(enable_cache=False, auto_save=False, auto_save_path=None)
        assert buffer.enable_cache
        with pytest.raises(InvalidArgumentError, match="auto_save_path is empty"):
            TrajectoryReplayBuffer(auto_save=True, auto_save_path=None)

    def test_the_path_is_of_no_account_in_memory(self, tmp_path: Path) -> None:
        with TrajectoryReplayBuffer(auto_save_path=str(tmp_path / "live")) as buffer:
            assert buffer.auto_save_path is None
        assert not (tmp_path / "live").exists()
        with pytest.raises(InvalidArgumentError, match="give auto_save=True"):
            relive.TrajectoryReplayBuffer(auto_save_path=str(tmp_path / "live"))

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

    def test_none_is_nothing_to_add(self) -> None:
        buffer = TrajectoryReplayBuffer()
        assert buffer.add_trajectories(None) == buffer.add_trajectories([]) == []
        assert len(buffer) == 0

    @pytest.mark.parametrize(
        ("min_size", "expected"),
        [(-1, True), (0.5, True), (1, True), (1.5, False), (np.float32(2), False), (1e400, False)],
    )
    def test_is_ready_takes_any_number(self, min_size: float, expected: bool) -> None:
        buffer = TrajectoryReplayBuffer()
        buffer.add_trajectories([addressed(0)])
        assert buffer.is_ready(min_size) is expected
        assert asyncio.run(buffer.is_ready_async(min_size)) is expected
        assert asyncio.run(buffer.is_ready_async(min_size, timeout_s=0)) is expected
        for wrong in ("1", None):
            with pytest.raises(InvalidArgumentError, match="min_size is"):
                buffer.is_ready(wrong)  # type: ignore[arg-type]  # on purpose

    def test_numbers_that_stand_for_switches_and_counts_are_taken(self, tmp_path: Path) -> None:
        options: dict[str, Any] = {"cache_size": 2.0, "sample_window_size": 3.0, "enable_cache": 0}
        for auto_save in (0, 1, np.True_):
            path = tmp_path / str(auto_save)
            options |= {"auto_save": auto_save, "auto_save_path": path}
            with TrajectoryReplayBuffer(**options) as buffer:
                buffer.add_trajectories([addressed(k) for k in range(5)])
                assert buffer.get_stats()["sampleable_trajectories"] == 3
                assert type(buffer.sample_window_size) is int
            assert path.exists() == bool(auto_save)

    @pytest.mark.parametrize("window", [-1, -100, -2.0])
    def test_a_window_below_0_is_everything(self, window: Any, tmp_path: Path) -> None:
        with TrajectoryReplayBuffer(
            sample_window_size=window, auto_save=True, auto_save_path=tmp_path / "store"
        ) as buffer:
            buffer.add_trajectories([addressed(k) for k in range(5)])
            assert buffer.get_stats()["sampleable_trajectories"] == 5

    @pytest.mark.parametrize(
        "options",
        [
            {"sample_window_size": 2.5},
            {"cache_size": float("nan")},
            {"cache_size": -1},
            {"enable_cache": "no"},
            {"enable_cache": 2},
            {"auto_save": None},
        ],
        ids=str,
    )
    def test_others_are_refused(self, options: dict[str, Any]) -> None:
        with pytest.raises(InvalidArgumentError, match=next(iter(options))):
            TrajectoryReplayBuffer(**options)

    def test_one_trajectory_instead_of_a_list_is_refused(self) -> None:
        with pytest.raises(InvalidArgumentError, match="must be a list"):
            TrajectoryReplayBuffer().add_trajectories(addressed(0))  # type: ignore[arg-type]  # on purpose

    def test_takes_trajectories_of_relive_and_the_other_way_round(self) -> None:
        plain = relive.Trajectory(**rollout(3, 4, 2))
        ours, theirs = relive.TrajectoryReplayBuffer(), TrajectoryReplayBuffer()
        assert ours.add_trajectories([addressed(3)]) == theirs.add_trajectories([plain]) == [0]
        assert check_batch(ours.sample(9)) == check_batch(theirs.sample(9)) == {3}


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

    @pytest.mark.parametrize("rank", ["", "0", "7"])
    def test_an_empty_variable_is_as_none(self, rank: str, monkeypatch: pytest.MonkeyPatch) -> None:
        alone = self.draws_of()
        monkeypatch.setenv("RANK", rank)
        assert self.draws_of() == alone
        monkeypatch.setenv("WORLD_SIZE", "")
        assert self.draws_of() == alone

    @pytest.mark.parametrize(("rank", "world_size"), [("5", "2"), ("2", "2"), ("1", "1")])
    def test_a_rank_outside_its_world_is_named(
        self, rank: str, world_size: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("WORLD_SIZE", world_size)
        with pytest.raises(
            InvalidArgumentError, match=f"RANK is {rank} and WORLD_SIZE {world_size}, but"
        ):
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
