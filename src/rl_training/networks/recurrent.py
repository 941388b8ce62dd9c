"""Actor-critics with a memory: an encoder, an LSTM or GRU over time, and heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from gymnasium import spaces
from torch import Tensor, nn

from rl_training.algorithms.distributions import Family
from rl_training.networks.actor_critic import make_head
from rl_training.networks.encoders import OURS, Own, make_encoder, orthogonal
from rl_training.trees import Tensors

Carry = tuple[Tensor, ...]  # [B, layers · H] each
CELLS: dict[str, Any] = {"lstm": nn.LSTM, "gru": nn.GRU}
NUM_STATES = {"lstm": 2, "gru": 1}  # (h, c) and (h)


class Sequences(NamedTuple):
    """How N rows of a batch lie in S sequences of at most L steps, each without an episode's end inside."""

    rows: Tensor  # [L, S] the row at each step of each sequence, 0 where the sequence is over
    places: Tensor  # [N] the place of each row in [L · S]
    lanes: Tensor  # [S] the lane whose carry a sequence begins with
    fresh: Tensor  # [S] whether it begins with an episode, and so with a state of zeros


class Memory(nn.Module):
    """Observations through an encoder and a recurrent cell, or several on top of each other, to features [N, H]."""

    def __init__(
        self,
        observation_space: spaces.Space,
        hidden_sizes: Sequence[int],
        activation: str,
        image_encoder: str,
        cell: str,
        size: int,
        layers: int = 1,
        own: Own = OURS,
    ) -> None:
        super().__init__()
        self.encoder, features = make_encoder(observation_space, hidden_sizes, activation, image_encoder, own)
        self.cell = CELLS[cell](features, size, layers)
        for name, parameter in self.cell.named_parameters():
            # Orthogonal weights of gain 1 and zero biases (Huang et al. 2022, LSTM details 1 and 2).
            nn.init.zeros_(parameter) if "bias" in name else nn.init.orthogonal_(parameter)
        # But for the gate that keeps the state, second in both cells: from 0 it would forget half of it each
        # step, and a cue of 20 steps ago would have no gradient (Gers et al. 2000, Jozefowicz et al. 2015).
        for layer in range(layers):
            nn.init.ones_(getattr(self.cell, f"bias_ih_l{layer}").data[size : 2 * size])

    def step(self, obs: Tensors, state: Carry) -> tuple[Tensor, Carry]:
        """One step of B lanes: features [B, H] and the next state."""
        output, state = self._run(self.encoder(obs).unsqueeze(0), state)
        return output.squeeze(0), state

    def forward(self, obs: Tensors, sequences: Sequences, state: Carry) -> Tensor:
        """The features [N, H] of rows that lie in sequences, from the states [B, layers · H] of their lanes.

        All sequences go through the cell in one call, padded to the longest; what is computed past a
        sequence's end is never read.
        """
        padded = self.encoder(obs)[sequences.rows]
        begins = tuple(
            torch.where(sequences.fresh.unsqueeze(1), 0.0, part[sequences.lanes]) for part in state
        )
        output, _ = self._run(padded, begins)
        return output.flatten(0, 1)[sequences.places]

    def _run(self, inputs: Tensor, state: Carry) -> tuple[Tensor, Carry]:
        """[L, S, F] → [L, S, H]; torch wants states [layers, S, H], and a GRU's without a tuple."""
        layers = self.cell.num_layers
        if layers == 1:  # views alone: a step of few lanes takes less time than the copies below
            deep = tuple(part.unsqueeze(0) for part in state)
        else:
            deep = tuple(part.unflatten(1, (layers, -1)).transpose(0, 1).contiguous() for part in state)
        output, after = self.cell(inputs, deep if len(deep) > 1 else deep[0])
        after = after if len(deep) > 1 else (after,)
        if layers == 1:
            return output, tuple(part.squeeze(0) for part in after)
        return output, tuple(part.transpose(0, 1).flatten(1) for part in after)


class RecurrentActorCritic(nn.Module):
    """Sequences of observations → action parameters [N, P] and state values [N].

    Actor and critic remember apart, or together (`shared_trunk`), or the critic does not (`critic_memory`). What is
    carried from step to step are the actor's states and then the critic's.
    """

    def __init__(
        self,
        observation_space: spaces.Space,
        family: Family,
        *,
        cell: str,
        recurrent_size: int,
        recurrent_layers: int = 1,
        critic_memory: bool = True,
        hidden_sizes: Sequence[int],
        activation: str,
        image_encoder: str,
        shared_trunk: bool,
        log_std_init: float,
        state_dependent_std: bool = False,
        critic_sizes: Sequence[int] | None = None,
        own: Own = OURS,
    ) -> None:
        super().__init__()
        settings = (activation, image_encoder, cell, recurrent_size, recurrent_layers, own)
        seen = hidden_sizes if critic_sizes is None else critic_sizes
        self.actor_memory = Memory(observation_space, hidden_sizes, *settings)
        remembers = critic_memory and not shared_trunk
        self.critic_memory = Memory(observation_space, seen, *settings) if remembers else None
        features = recurrent_size
        self.register_module("critic_encoder", None)  # of a critic without a memory
        if not critic_memory:
            self.critic_encoder, features = make_encoder(
                observation_space, seen, activation, image_encoder, own
            )
        self.actor_head = make_head(recurrent_size, family, log_std_init, state_dependent_std)
        self.critic_head = orthogonal(nn.Linear(features, 1), 1.0)
        self.size = recurrent_layers * recurrent_size
        self.num_states = NUM_STATES[cell]

    def initial(self, count: int) -> Carry:
        memories = 1 if self.critic_memory is None else 2
        device = next(self.parameters()).device
        return tuple(torch.zeros(count, self.size, device=device) for _ in range(memories * self.num_states))

    def step(self, obs: Tensors, carry: Carry) -> tuple[Tensor, Tensor, Carry]:
        """One step of B lanes: action parameters [B, P], values [B], and the next carry."""
        features, state = self.actor_memory.step(obs, carry[: self.num_states])
        seen: Tensor = features
        if self.critic_memory is not None:
            seen, critic_state = self.critic_memory.step(obs, carry[self.num_states :])
            state = (*state, *critic_state)
        elif self.critic_encoder is not None:
            seen = self.critic_encoder(obs)
        return self.actor_head(features, obs), self.critic_head(seen).squeeze(-1), state

    def forward(self, obs: Tensors, sequences: Sequences, carry: Carry) -> tuple[Tensor, Tensor]:
        features = self.actor_memory(obs, sequences, carry[: self.num_states])
        seen = features
        if self.critic_memory is not None:
            seen = self.critic_memory(obs, sequences, carry[self.num_states :])
        elif self.critic_encoder is not None:
            seen = self.critic_encoder(obs)
        return self.actor_head(features, obs), self.critic_head(seen).squeeze(-1)
