"""The ε-greedy policy of DQN."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from rl_training.algorithms.dqn import dueling
from rl_training.algorithms.masking import BLOCKED, mask_logits, mask_of, pick_allowed
from rl_training.data.collector import Carry
from rl_training.envs.action_masks import refuse_empty_masks
from rl_training.envs.compiled import AnyEnvironments
from rl_training.kernels.acting import InMemory, SmallNetwork
from rl_training.kernels.gathering import choose_greedily
from rl_training.networks.q_network import QNetwork
from rl_training.policies.base import NetworkPolicy
from rl_training.policies.gathering import GreedySteps, WholeSteps, q_layers
from rl_training.state.leaves import require
from rl_training.trees import Arrays, Tensors


class QPolicy(NetworkPolicy):
    """ε-greedy when it explores, with the ε that training used last; greedy otherwise. Both among allowed actions."""

    transient = ("num_actions", "small")

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Discrete,
        *,
        normalize_observations: bool,
        device: str,
        **network: Any,
    ) -> None:
        super().__init__(observation_space, normalize_observations, device)
        self.num_actions = int(action_space.n)
        self.epsilon = 1.0
        self.network = QNetwork(observation_space, self.num_actions, **network).to(self.device)
        self.small = InMemory.of(self.network, partial(SmallNetwork.of, kind=QNetwork))

    def check_state(self) -> None:
        require(0 <= self.epsilon <= 1, "epsilon: no probability")

    def act(self, obs: Arrays, carry: Carry, explore: bool) -> tuple[dict[str, np.ndarray], Carry]:
        refuse_empty_masks(obs, (self.num_actions,))
        q, mask = self.value(obs, carry), mask_of(obs)
        action = (q if mask is None else np.where(mask, q, BLOCKED)).argmax(-1)
        if explore:
            draw = np.random.random(len(action))
            if min(draw.tolist()) < self.epsilon:
                at_random = draw < self.epsilon
                # Given that a draw is below ε, it is uniform in [0, ε): it can choose the action as well.
                if mask is None:
                    chosen = (draw * (self.num_actions / self.epsilon)).astype(np.int64)
                    chosen = np.minimum(chosen, self.num_actions - 1)
                else:
                    chosen = pick_allowed(draw / self.epsilon, mask)
                action = np.where(at_random, chosen, action)
        return {"action": action}, carry

    def whole_steps(self, environments: AnyEnvironments) -> WholeSteps | None:
        ours = type(self) is QPolicy  # a subclass may act otherwise
        return WholeSteps.of(self, self.network, choose_greedily, q_layers, environments) if ours else None

    def whole_rollouts(self, environments: AnyEnvironments, greedy: bool = False) -> GreedySteps | None:
        if type(self) is not QPolicy or not greedy:
            return None
        return GreedySteps.of(self, self.network, choose_greedily, q_layers, environments)

    def greedy(self, inputs: Tensors, carry: Carry) -> tuple[Tensor, dict[str, Tensor], Carry]:
        q = mask_logits(self.network(inputs), inputs)
        return q.argmax(-1), {"q": q}, carry

    def value(self, obs: Arrays, carry: Carry) -> np.ndarray:
        """Q [B, actions], without gradients."""
        output = self.outputs_of(self.small, obs)
        if output is not None:
            return dueling(torch.from_numpy(output)).numpy() if self.network.dueling else output
        with torch.no_grad():
            return self.network(self.inputs(obs)).cpu().numpy()
