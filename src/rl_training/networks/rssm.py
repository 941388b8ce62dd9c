"""The recurrent state-space model (RSSM): a block-diagonal GRU and categorical latents with prior and posterior.

A state is `deter` [N, D], what is remembered, and `stoch` [N, K · S], S one-hot choices among K classes. Per step:

    h' = GRU in blocks (h, z, a)        prior  z' ~ p(z' | h')        posterior  z' ~ q(z' | h', tokens)

Whatever does not depend on the state is computed for all steps of a sequence at once, before the first.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rl_training.kernels.exact import Shortcut, is_exact
from rl_training.kernels.fused import draw_latent, gated_step, norm_silu


class State(NamedTuple):
    deter: Tensor  # [N, D]
    stoch: Tensor  # [N, K · S]

    @property
    def features(self) -> Tensor:
        """What all heads see."""
        return torch.cat([self.deter, self.stoch], -1)


def truncated_normal(weight: Tensor, fan_in: int, scale: float = 1.0) -> None:
    """Normal of variance 1 / fan-in, cut at two deviations; the factor makes up for what is cut off."""
    std = 1 / 0.87962566 / math.sqrt(fan_in)
    nn.init.trunc_normal_(weight, 0.0, std, -2 * std, 2 * std)
    weight.data.mul_(scale)


def linear(inputs: int, outputs: int, scale: float = 1.0) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    truncated_normal(layer.weight, inputs, scale)
    nn.init.zeros_(layer.bias)
    return layer


class Dense(nn.Module):
    """SiLU(RMSNorm(W x + b)). Several inputs stand side by side in W; `part` gives one input's share of the sum."""

    def __init__(self, *inputs: int, units: int) -> None:
        super().__init__()
        self.linear = linear(sum(inputs), units)
        self.scale = nn.Parameter(torch.ones(units))
        self.ends = tuple(sum(inputs[: i + 1]) for i in range(len(inputs)))

    def forward(self, x: Tensor) -> Tensor:
        return norm_silu(self.linear(x), self.scale)

    def part(self, index: int, x: Tensor) -> Tensor:
        """W_i x_i, with the bias in the last one."""
        begin = self.ends[index - 1] if index else 0
        bias = self.linear.bias if index == len(self.ends) - 1 else None
        return F.linear(x, self.linear.weight[:, begin : self.ends[index]], bias)

    def finish(self, total: Tensor) -> Tensor:
        return norm_silu(total, self.scale)


def mlp(inputs: int, units: int, layers: int) -> nn.Sequential:
    return nn.Sequential(*(Dense(inputs if i == 0 else units, units=units) for i in range(layers)))


class BlockLinear(nn.Module):
    """A linear layer whose inputs and outputs fall into blocks, each output seeing its own block only."""

    def __init__(self, inputs: int, outputs: int, blocks: int, fan_in: int | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(blocks, inputs // blocks, outputs // blocks))
        self.bias = nn.Parameter(torch.zeros(outputs))
        # The fan-in counts all blocks, as if each output saw them.
        truncated_normal(self.weight, fan_in or inputs)

    def blocks(self, x: Tensor) -> Tensor:
        """[N, inputs] → [G, N, outputs / G], without the bias."""
        return torch.bmm(x.unflatten(-1, (len(self.weight), -1)).transpose(0, 1), self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """[N, inputs] → [N, outputs]."""
        return self.blocks(x).transpose(0, 1).flatten(1) + self.bias


class RSSM(nn.Module):
    """The dynamics and the latent's two distributions."""

    transient = ("compiled", "plain")

    def __init__(
        self,
        tokens: int,
        actions: int,
        *,
        deter_size: int,
        rssm_hidden: int,
        num_latents: int,
        num_classes: int,
        blocks: int,
    ) -> None:
        super().__init__()
        self.deter_size, self.num_latents, self.num_classes = deter_size, num_latents, num_classes
        self.stoch_size = num_classes * num_latents
        self.from_deter = Dense(deter_size, units=rssm_hidden)
        self.from_stoch = Dense(self.stoch_size, units=rssm_hidden)
        self.from_action = Dense(actions, units=rssm_hidden)
        # A block sees its own part of the memory and all three inputs.
        fan_in = deter_size + 3 * rssm_hidden * blocks
        self.own = BlockLinear(deter_size, deter_size, blocks, fan_in)
        self.shared = nn.Parameter(torch.empty(3 * rssm_hidden, deter_size))
        truncated_normal(self.shared, fan_in)
        self.scale = nn.Parameter(torch.ones(deter_size))
        self.gates = BlockLinear(deter_size, 3 * deter_size, blocks)
        self.prior_layers = nn.Sequential(
            mlp(deter_size, rssm_hidden, 2), linear(rssm_hidden, self.stoch_size)
        )
        self.posterior_layer = Dense(deter_size, tokens, units=rssm_hidden)
        self.posterior_head = linear(rssm_hidden, self.stoch_size)
        self.compiled: tuple[Any, Any] | None = None
        self.plain = Shortcut(self, has_plain_layers)

    def compile(self) -> None:
        """From now on take steps through torch.compile: minutes at the start, for speed afterwards."""
        self.plain()
        self.compiled = torch.compile(self.see, dynamic=False), torch.compile(self.foresee, dynamic=False)

    @property
    def steps(self) -> tuple[Any, Any]:
        """`see` and `foresee`, compiled or as they are."""
        return self.compiled or (self.see, self.foresee)

    def initial(self, count: int) -> State:
        zeros = self.scale.new_zeros
        return State(zeros(count, self.deter_size), zeros(count, self.stoch_size))

    def action_inputs(self, action: Tensor) -> Tensor:
        """What actions [..., A] add to the memory's input [..., D]; large ones are scaled to ±1."""
        action = action / action.detach().abs().clamp_min(1.0)
        hidden = self.shared.shape[0] // 3
        # The bias is put in here: for sequences that is once for all steps.
        bias = self.own.bias if self.plain() else None
        return F.linear(self.from_action(action), self.shared[2 * hidden :].t(), bias)

    def remember(self, state: State, action_inputs: Tensor) -> Tensor:
        """h' [N, D] from the state before and what `action_inputs` made of the action."""
        hidden = torch.cat([self.from_deter(state.deter), self.from_stoch(state.stoch)], -1)
        total = torch.addmm(action_inputs, hidden, self.shared[: hidden.shape[-1]])
        if not self.plain():
            gates = self.gates(norm_silu(total + self.own(state.deter), self.scale))
            blocks = gates.unflatten(-1, (len(self.gates.weight), -1)).transpose(0, 1)
            return gated_step(blocks, torch.zeros_like(self.gates.bias), state.deter)
        own = self.own.blocks(state.deter).transpose(0, 1)
        total = (total.unflatten(-1, own.shape[1:]) + own).flatten(1)
        gates = self.gates.blocks(norm_silu(total, self.scale))
        return gated_step(gates, self.gates.bias, state.deter)

    def prior(self, deter: Tensor) -> Tensor:
        """Logits [..., K, S] of what follows."""
        return self._classes(self.prior_layers(deter))

    def token_inputs(self, tokens: Tensor) -> Tensor:
        return self.posterior_layer.part(1, tokens) if self.plain() else tokens

    def posterior(self, deter: Tensor, token_inputs: Tensor) -> Tensor:
        """Logits [..., K, S] of what is seen."""
        if self.plain():
            hidden = self.posterior_layer.finish(token_inputs + self.posterior_layer.part(0, deter))
        else:
            hidden = self.posterior_layer(torch.cat([deter, token_inputs], -1))
        return self._classes(self.posterior_head(hidden))

    def _classes(self, logits: Tensor) -> Tensor:
        return logits.unflatten(-1, (self.num_classes, self.num_latents))

    def see(
        self, state: State, action_inputs: Tensor, token_inputs: Tensor, noise: Tensor
    ) -> tuple[State, Tensor]:
        """One step with an observation: the state after it, and its probabilities [N, K, S]."""
        deter = self.remember(state, action_inputs)
        drawn, probs = draw_latent(self.posterior(deter, token_inputs), noise)
        return State(deter, drawn.flatten(-2)), probs

    def foresee(self, state: State, action: Tensor, noise: Tensor) -> State:
        """One step without an observation."""
        deter = self.remember(state, self.action_inputs(action))
        return State(deter, draw_latent(self.prior(deter), noise)[0].flatten(-2))

    def observe(self, state: State, tokens: Tensor, action: Tensor, first: Tensor) -> tuple[State, Tensor]:
        """Go through sequences: tokens [T, B, F], the actions before them [T, B, A], and where episodes begin [T, B].

        There the state and the action before are zeros. Gives the states [T, B, ...] and their probabilities.
        """
        keep = 1.0 - first.unsqueeze(-1)
        action_inputs, token_inputs = self.action_inputs(action * keep), self.token_inputs(tokens)
        noise = torch.rand(*first.shape, self.num_latents, device=first.device)
        states, probs = [], []
        see = self.steps[0]
        began = first.any(1).tolist()
        for t in range(len(tokens)):
            if began[t]:
                state = State(state.deter * keep[t], state.stoch * keep[t])
            state, seen = see(state, action_inputs[t], token_inputs[t], noise[t])
            states.append(state)
            probs.append(seen)
        deter, stoch = (torch.stack(column) for column in zip(*states, strict=True))
        return State(deter, stoch), torch.stack(probs)


def has_plain_layers(rssm: RSSM) -> bool | None:
    """Whether the layers that are computed in parts are exactly what their weights and biases say."""
    blocks = all(is_exact(layer, BlockLinear) for layer in (rssm.own, rssm.gates))
    posterior = is_exact(rssm.posterior_layer, Dense) and is_exact(rssm.posterior_layer.linear, nn.Linear)
    return True if blocks and posterior else None
