"""Dreamer's networks in compiled code: the same parameters, in modules whose passes are compiled.

The trainer computes its losses by them as by the plain ones. Torch's cost per operation is most of an update of small
networks; here a stack of dense layers is one call, and so is the recurrent model over all steps of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rl_training.algorithms.distributions import Categorical
from rl_training.kernels.exact import is_exact
from rl_training.kernels.layers import NONE, NOWHERE, OBSERVATION, SILU, Layer, Layers
from rl_training.kernels.products import PANEL
from rl_training.kernels.recurrence import Recurrence, observe
from rl_training.kernels.stacks import Stack
from rl_training.networks.dreamer import DreamerNetwork, Head
from rl_training.networks.encoders import OneHot
from rl_training.networks.reconstruction import ChannelNorm, Choices, Picture, Reconstruction, Vector
from rl_training.networks.rssm import RSSM, BlockLinear, Dense, State
from rl_training.runtime.optim import Optimizer
from rl_training.runtime.updates import Choice

TORCHS = (nn.Linear, nn.Sequential, nn.ModuleList, nn.Conv2d)
PARTS = (Vector, Choices, Picture, ChannelNorm, OneHot)
KNOWN = (*TORCHS, DreamerNetwork, Head, RSSM, BlockLinear, Dense, Reconstruction, *PARTS)


def fastest_networks(trainer: Any) -> Choice:
    """A trainer's network and slow critic, compiled where they can be."""
    rssm = trainer.agent.network.rssm
    sizes = (rssm.deter_size // len(rssm.own.weight), len(rssm.from_deter.scale), rssm.stoch_size)
    hindered = f"sizes are no multiples of {PANEL}" if any(size % PANEL for size in sizes) else ""
    hindered = "compile is true" if trainer.config.compile else hindered
    modules = nn.ModuleList([trainer.agent.network, trainer.slow_critic])
    return Choice(hindered, trainer, ("optimizer",), modules, lambda _: compiled_networks(trainer))


def compiled_networks(trainer: Any) -> CompiledNetwork | None:
    network, slow, optimizer = trainer.agent.network, trainer.slow_critic, trainer.optimizer
    parts = [*network.modules(), *slow.modules()]
    if not all(is_exact(part, *KNOWN) for part in parts):
        return None
    return CompiledNetwork(network, slow, optimizer, trainer.slow_weights)


class CompiledNetwork(DreamerNetwork):
    """A `DreamerNetwork` with the parameters of another, and its slow critic."""

    rssm: CompiledRSSM
    actor: Any

    def __init__(self, plain: DreamerNetwork, slow: Head, optimizer: Optimizer, slow_weights: Tensor) -> None:
        self.__dict__.update(plain.__dict__)
        self.optimizer = optimizer

        def stack(layers: Any, inputs_learn: bool = True) -> Stack:
            return Stack(dense_layers(layers, optimizer.parameters, inputs_learn), optimizer.gradient)

        def head(of: Head, inputs_learn: bool = True) -> Stack:
            return stack([*of.layers, of.output], inputs_learn)

        told: Any = plain.reconstruction
        hidden: Any = plain.rssm.prior_layers[0]
        parts: dict[str, nn.Module | None] = {
            "reward": head(plain.reward),
            "going_on": head(plain.going_on),
            "actor": head(plain.actor, False),
            "critic": head(plain.critic),
            "slow_critic": Stack(dense_layers([*slow.layers, slow.output], slow_weights, False), None),
            "rssm": CompiledRSSM(plain.rssm, stack([*hidden, plain.rssm.prior_layers[1]])),
        }
        if told.encoder is not None:
            parts["reconstruction"] = with_parts(
                told, encoder=stack(told.encoder, False), decoder=stack(told.decoder)
            )
        self._modules = plain._modules | parts
        self.begins = [part.begin for part in self.modules() if isinstance(part, Stack | CompiledRSSM)]
        self.begin()

    def step(self, loss: Tensor, learning_rate: float, _: None) -> dict[str, float]:
        """`Optimizer.step` in compiled code."""
        self.optimizer.differentiate(loss)
        return {"grad_norm": self.optimizer.descend(learning_rate, math.inf)}

    @torch.no_grad()
    def imagine(self, state: State, horizon: int) -> tuple[Tensor, Tensor]:
        """One call for all steps where an action is one choice; it draws the same numbers in the same order."""
        if not isinstance(self.family, Categorical):
            return super().imagine(state, horizon)
        rssm, count, choices = self.rssm, len(state.deter), self.family.num_choices
        noise = torch.rand(horizon, count, rssm.num_latents)
        chance = torch.stack([torch.empty(count, choices).exponential_() for _ in range(horizon)])
        features = torch.empty(horizon + 1, count, rssm.deter_size + rssm.stoch_size)
        features[0], actions = state.features, torch.empty(horizon, count, dtype=torch.int64)
        inputs = rssm.action_inputs(torch.eye(choices))
        rssm.recurrence.imagine_choices(
            self.actor.network, rssm.prior_layers.network, inputs, noise, chance, features, actions
        )
        return features, actions

    def begin(self) -> None:
        """Read the parameters as they are now; gradients begin anew."""
        for begin in self.begins:
            begin()


class CompiledRSSM(RSSM):
    """An `RSSM` with the parameters of another."""

    prior_layers: Any

    def __init__(self, plain: RSSM, prior: Stack) -> None:
        self.__dict__.update(plain.__dict__)
        self._modules = plain._modules | {"prior_layers": prior}
        self.recurrence = Recurrence(plain)

    def begin(self) -> None:
        self.recurrence.begin()

    def remember(self, state: State, action_inputs: Tensor) -> Tensor:
        """Without gradients: what sequences need of them `observe` has."""
        return self.recurrence.remember(*state, action_inputs)

    def observe(self, state: State, tokens: Tensor, action: Tensor, first: Tensor) -> tuple[State, Tensor]:
        keep = 1.0 - first.unsqueeze(-1)
        inputs = self.action_inputs(action * keep), self.token_inputs(tokens)
        noise = torch.rand(*first.shape, self.num_latents)
        deter, stoch, probs = observe(self.recurrence, state, inputs, noise, first)
        return State(deter, stoch), probs


def with_parts(module: Any, **parts: nn.Module) -> Any:
    """A module that has these parts in place of its own, and else everything in common with it."""
    twin = object.__new__(type(module))
    twin.__dict__.update(module.__dict__)
    twin._modules = module._modules | parts
    return twin


def dense_layers(modules: Sequence[nn.Module], parameters: Tensor, passes: bool) -> Layers:
    """`Dense` layers one behind the other, of which the last may be plain; the last one's outputs are given."""
    layers = []
    for i, module in enumerate(modules):
        source, column = i - 1 if i else OBSERVATION, 0 if i == len(modules) - 1 else NOWHERE
        if isinstance(module, Dense):
            linear = module.linear
            layers.append(Layer(linear.weight, linear.bias, source, SILU, column, scale=module.scale))
        else:
            assert isinstance(module, nn.Linear)
            layers.append(Layer(module.weight, module.bias, source, NONE, column))
    return Layers(layers, layers[0].shape[1], parameters, passes)
