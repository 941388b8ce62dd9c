"""Reanalysis (Schrittwieser et al. 2021): targets of planners, from the replay or from searches made anew."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.muzero import Targets
from rl_training.data.batch import PositionBatch
from rl_training.networks.muzero import MuZeroNetwork
from rl_training.policies.search import QUIET, Plan, search_settings
from rl_training.runtime.controls import Now
from rl_training.runtime.positions import MuZeroT, PositionTrainer
from rl_training.trees import Arrays


class ReanalysingTrainer(PositionTrainer[MuZeroT]):
    """A planner whose stored positions are searched again, as `reanalyse_ratio` says, with its target network."""

    target: MuZeroNetwork

    def targets(self, batch: PositionBatch, now: Now) -> Targets:
        """What is learned: what was stored, or where positions are searched anew what is found there now."""
        policy, samples = batch["policy"], batch.get("samples")
        value = torch.zeros(batch["returns"].shape)
        found: Tensor | None = None
        acted, bootstraps = (batch["acted"] > 0).cpu(), (batch["discount"] != 0).cpu()
        policies_anew, values_anew, outright = self.searched_anew(batch, now)
        predicted = bootstraps & ~values_anew
        learned, valued = acted & policies_anew, bootstraps & values_anew
        # Both kinds of positions in one search: those whose policy is learned, and those bootstrapped from.
        # What one row bootstraps from another one learns, or the same row a few steps on: each is searched once.
        wanted = np.concatenate([batch["places"][learned.numpy()], batch["bootstrap"][valued.numpy()]])
        places, index = np.unique(wanted, return_inverse=True)
        ends = batch["bootstrap"][predicted.numpy()]
        states, end_states = self.states_at(places, ends)
        if len(ends):
            value[predicted] = self.values_at(ends, end_states)
        if len(places):
            of_policies, of_values = np.split(index, [int(learned.sum())])
            known: dict[str, Any] = {} if states is None else {"latent": states}
            plan = self.search_anew(self.replay.seen_at(places), now, **known)
            policy = policy.clone()
            policy[learned] = torch.from_numpy(plan.policy[of_policies]).to(self.agent.device)
            if plan.samples is not None:
                samples = batch["samples"].clone()
                samples[learned] = torch.from_numpy(plan.samples[of_policies]).to(self.agent.device)
            value[valued] = torch.from_numpy(plan.value[of_values])
            found = torch.from_numpy(plan.value[of_policies])[outright.expand_as(learned)[learned]]
        value = batch["returns"] + batch["discount"] * value.to(self.agent.device)
        if found is not None:
            value[learned & outright] = found.to(self.agent.device)
        return Targets(policy, value, batch["reward"], samples)

    def states_at(self, *places: np.ndarray) -> list[Tensor] | list[None]:
        """The target network's states of what was seen at places of the replay.

        Frames that several of them name are represented once. For vectors that would save nothing: None for each.
        """
        if not self.target.sees_frames:
            return [None] * len(places)
        every, index = np.unique(np.concatenate(places), return_inverse=True)
        with torch.inference_mode():
            states = self.target.represent(self.agent.inputs(self.replay.seen_at(every)))
        ends = np.cumsum([len(some) for some in places])[:-1]
        return [states[some] for some in np.split(index, ends)]

    def values_at(self, places: np.ndarray, states: Tensor | None) -> Tensor:
        """The target network's values [N] at places of the replay."""
        with torch.inference_mode():
            if states is not None:
                return self.target.initial(None, states)[1].cpu()
            # A network of one's own may know observations alone.
            return self.target.initial(self.agent.inputs(self.replay.seen_at(places)))[1].cpu()

    def search_anew(self, obs: Arrays, now: Now, **known: Any) -> Plan:
        """Search with the target network; `known` may be the `latent` states of the observations."""
        return self.agent.plan(obs, **search_settings(now) | QUIET, **known, network=self.target)

    def searched_anew(self, batch: PositionBatch, now: Now) -> tuple[Tensor, Tensor, Tensor]:
        """Of which rows [B] of a batch the policies are searched anew, of which the values bootstrapped from, and which
        have the value that the policy's search finds as their target, in place of rewards and a bootstrap.
        """
        anew = torch.rand(self.config.batch_size) < now.reanalyse_ratio
        return anew, anew, torch.zeros_like(anew)
