# SPDX-License-Identifier: Apache-2.0
"""Soft actor-critic: two networks and one update.

Haarnoja et al., "Soft Actor-Critic Algorithms and Applications", arXiv:1812.05905, with the
temperature tuned towards an entropy of minus one nat for each action dimension (section 5).
Actions are in [-1, 1]; the environment is wrapped to match.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from relive.demo.settings import SacOptions

__all__ = ["Actor", "Sac", "TwinCritic"]

LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0


class Actor(nn.Module):
    """A Gaussian policy, squashed into [-1, 1]."""

    def __init__(self, observation_size: int, action_size: int, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(observation_size, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )
        self.head = nn.Linear(width, 2 * action_size)

    def forward(self, observations: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Draw actions by the given standard normal noise.

        Args:
            observations: `[N, observation_size]`.
            noise: `[N, action_size]`; one draw of it is one action, so the caller decides
                which generator pays for it.

        Returns:
            Actions `[N, action_size]` and their log-probabilities `[N]`.
        """
        mean, raw = self.head(self.body(observations)).chunk(2, dim=-1)
        log_std = LOG_STD_MIN + 0.5 * (LOG_STD_MAX - LOG_STD_MIN) * (torch.tanh(raw) + 1.0)
        unsquashed = mean + log_std.exp() * noise
        log_normal = -0.5 * noise.square() - log_std - 0.5 * math.log(2.0 * math.pi)
        # log(1 - tanh(u)^2), written so that it stays finite for large u (appendix C).
        log_slope = 2.0 * (math.log(2.0) - unsquashed - functional.softplus(-2.0 * unsquashed))
        return torch.tanh(unsquashed), (log_normal - log_slope).sum(dim=-1)

    def best_actions(self, observations: Tensor) -> Tensor:
        """Give the middle of the policy, without noise: `[N, action_size]`."""
        mean, _ = self.head(self.body(observations)).chunk(2, dim=-1)
        return torch.tanh(mean)


class TwinCritic(nn.Module):
    """Two value networks over (observation, action), evaluated together.

    Both are held in stacked weights `[2, in, out]`: half as many small operations, which are
    what an update of this size is made of.
    """

    def __init__(self, observation_size: int, action_size: int, width: int) -> None:
        super().__init__()
        sizes = [observation_size + action_size, width, width, 1]
        pairs = list(pairwise(sizes))
        bounds = [1.0 / math.sqrt(inputs) for inputs, _ in pairs]  # as nn.Linear starts
        self.weights = nn.ParameterList(
            torch.empty(2, *pair).uniform_(-bound, bound)
            for pair, bound in zip(pairs, bounds, strict=True)
        )
        self.biases = nn.ParameterList(
            torch.empty(2, 1, outputs).uniform_(-bound, bound)
            for (_, outputs), bound in zip(pairs, bounds, strict=True)
        )

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Estimate the soft value of each pair, twice: `[2, N]`."""
        hidden = torch.cat([observations, actions], dim=-1).expand(2, -1, -1)
        last = len(self.weights) - 1
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            hidden = torch.baddbmm(bias, hidden, weight)
            if layer < last:
                hidden = functional.relu(hidden)
        return hidden.squeeze(-1)


class Sac:
    """An actor, two critics, their targets, a temperature, and what trains them.

    Everything random comes from one generator of its own, which `state_dict` holds too.
    """

    def __init__(
        self, observation_size: int, action_size: int, options: SacOptions, *, seed: int
    ) -> None:
        self.options = options
        self.action_size = action_size
        self._generator = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng(devices=[]):  # the networks start from the global generator
            torch.manual_seed(seed)
            self.actor = Actor(observation_size, action_size, options.width)
            self.critic = TwinCritic(observation_size, action_size, options.width)
        self.target = copy.deepcopy(self.critic).requires_grad_(False)
        self.log_temperature = torch.tensor(math.log(options.start_temperature), requires_grad=True)
        self._optimisers = {
            name: torch.optim.Adam(parameters, lr=options.learning_rate, fused=True)
            for name, parameters in (
                ("actor", [*self.actor.parameters(), self.log_temperature]),
                ("critic", list(self.critic.parameters())),
            )
        }

    def update(self, batch: Mapping[str, Any]) -> None:
        """Take one step on a batch as a buffer gives it.

        Args:
            batch: `curr_obs/states` and `next_obs/states` `[N, observation_size]`, `actions`
                `[N, action_size]`, `rewards` and `terminations` `[N]`.
        """
        observations = batch["curr_obs"]["states"].float()
        temperature = self.log_temperature.detach().exp()

        wanted = self.targets(batch)
        values = self.critic(observations, batch["actions"].float())
        self._step("critic", (values - wanted).square().mean(dim=1).sum())

        actions, log_probs = self._draw(observations)
        self.critic.requires_grad_(False)
        score = self.critic(observations, actions).amin(dim=0)
        actor_loss = (temperature * log_probs - score).mean()
        # In one step with the actor, which costs less; neither gradient reaches the other.
        surprise = (log_probs.detach() - self.action_size).mean()
        self._step("actor", actor_loss - self.log_temperature * surprise)
        self.critic.requires_grad_(True)

        with torch.no_grad():
            torch._foreach_lerp_(
                list(self.target.parameters()),
                list(self.critic.parameters()),
                self.options.target_rate,
            )

    def targets(self, batch: Mapping[str, Any]) -> Tensor:
        """Return what the critics should say about each transition: `[N]`.

        A terminated episode has no value after its end. A truncated one has: only the clock
        stopped it, and `next_obs` is the state it was in, from before the reset.
        """
        next_observations = batch["next_obs"]["states"].float()
        goes_on = 1.0 - batch["terminations"].float()
        with torch.no_grad():
            actions, log_probs = self._draw(next_observations)
            values = self.target(next_observations, actions).amin(dim=0)
            values -= self.log_temperature.exp() * log_probs
            wanted: Tensor = batch["rewards"].float() + self.options.discount * goes_on * values
            return wanted

    def state_dict(self) -> dict[str, Any]:
        """Give everything that the next update depends on, as tensors and plain containers."""
        return {
            "actor": self.actor.state_dict(),
            "critic": self.critic.state_dict(),
            "target": self.target.state_dict(),
            "log_temperature": self.log_temperature.detach(),
            "optimisers": {name: each.state_dict() for name, each in self._optimisers.items()},
            "generator": self._generator.get_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to a state that `state_dict` gave."""
        self.actor.load_state_dict(state["actor"])
        self.critic.load_state_dict(state["critic"])
        self.target.load_state_dict(state["target"])
        with torch.no_grad():
            self.log_temperature.copy_(state["log_temperature"])
        for name, optimiser in self._optimisers.items():
            optimiser.load_state_dict(state["optimisers"][name])
        self._generator.set_state(state["generator"])

    def _draw(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        noise = torch.randn(len(observations), self.action_size, generator=self._generator)
        drawn: tuple[Tensor, Tensor] = self.actor(observations, noise)
        return drawn

    def _step(self, name: str, loss: Tensor) -> None:
        optimiser = self._optimisers[name]
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves backward untyped
        optimiser.step()
