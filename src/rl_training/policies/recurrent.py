"""The policy of recurrent PPO: it carries the state of its memory from step to step."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rl_training.envs.action_masks import refuse_empty_masks
from rl_training.networks.recurrent import Carry, RecurrentActorCritic, Sequences
from rl_training.policies.actor_critic import ActorCriticPolicy
from rl_training.policies.base import most_likely
from rl_training.trees import Arrays, Tensors


class RecurrentPolicy(ActorCriticPolicy):
    """An actor-critic whose memory is the carry; an episode begins with a memory of zeros."""

    network_class = RecurrentActorCritic
    network: RecurrentActorCritic

    def initial(self, count: int) -> Carry:
        return self.network.initial(count)

    @torch.no_grad()
    def act(self, obs: Arrays, carry: Carry, explore: bool) -> tuple[dict[str, np.ndarray], Carry]:
        refuse_empty_masks(obs, self.choices)
        parameters, value, carry = self.network.step(self.inputs(obs), carry)
        return self.choose(parameters, value, explore), carry

    def acting_carry(self, carry: Carry) -> Carry:
        """The actor's own memory, without the critic's."""
        return carry[: self.network.num_states]

    def greedy(self, inputs: Tensors, carry: Carry) -> tuple[Tensor, dict[str, Tensor], Carry]:
        features, carry = self.network.actor_memory.step(inputs, carry)
        return *most_likely(self.family, self.network.actor_head(features, inputs)), carry

    @torch.no_grad()
    def value(self, obs: Arrays, carry: Carry) -> np.ndarray:
        return self.network.step(self.inputs(obs), carry)[1].cpu().numpy()

    def evaluate_sequences(
        self, inputs: Tensors, action: Tensor, sequences: Sequences, carry: Carry
    ) -> tuple[Tensor, Tensor, Tensor]:
        """log π(a|s), entropy and value [N], with gradients through time, for inputs normalised already."""
        parameters, value = self.network(inputs, sequences, carry)
        return *self.family.log_prob_and_entropy(parameters, action), value
