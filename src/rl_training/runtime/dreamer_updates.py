"""Dreamer's networks in compiled code: the same parameters, in modules whose passes are compiled.

The trainer computes its losses by them as by the plain ones. A stack of dense layers is one call, and so is the
recurrent model over all steps of a batch: torch's cost per operation is gone, and blocks of rows stay in the cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rl_training.algorithms.distributions import Categorical, DiagonalGaussian
from rl_training.kernels.exact import is_exact, is_ours
from rl_training.kernels.imagination import Imagination
from rl_training.kernels.layers import NONE, NOWHERE, OBSERVATION, SILU, Layer, Layers
from rl_training.kernels.products import PANEL
from rl_training.kernels.recurrence import Recurrence, observe
from rl_training.kernels.stacks import Stack
from rl_training.networks.dreamer import DreamerNetwork, Head
from rl_training.networks.encoders import OneHot
from rl_training.networks.reconstruction import (
    ChannelNorm,
    Choices,
    FoldedPicture,
    Picture,
    Reconstruction,
    Vector,
)
from rl_training.networks.rssm import RSSM, BlockLinear, Dense, State
from rl_training.runtime.optim import LaProp, Optimizer
from rl_training.runtime.updates import COMPILED, STEPPED, Choice

TORCHS = (nn.Linear, nn.Sequential, nn.ModuleList, nn.Conv2d)
PARTS = (Vector, Choices, Picture, ChannelNorm, OneHot)
KNOWN = (*TORCHS, DreamerNetwork, Head, RSSM, BlockLinear, Dense, Reconstruction, *PARTS)
# A trainer's methods that may use these networks: another one may go past them, and gradients of both would be mixed.
METHODS = ("update", "world_model_losses", "imagination_losses", "replay_value_loss")


class Learned(NamedTuple):
    """What losses are computed by, and what descends them."""

    network: DreamerNetwork
    slow_critic: nn.Module
    step: Callable[[Tensor, float, None], dict[str, float]]


def begin(trainer: Any) -> Learned:
    """A trainer's networks for one update: where they are compiled, they read the parameters as they are now."""
    fast = trainer.fast_networks.taken()
    if fast is None:
        return Learned(trainer.agent.network, trainer.slow_critic, trainer.optimizer.step)
    pictures = trainer.fast_pictures and trainer.fast_pictures.taken()
    fast.begin(pictures or trainer.agent.network.reconstruction.pictures)
    return Learned(fast, fast.slow_critic, fast.step)


def fastest_networks(trainer: Any) -> Choice:
    """A trainer's network and slow critic, compiled where they can be."""
    network, slow = trainer.agent.network, ("slow_critic", "slow_weights")
    obstacles = {
        "compile is true": trainer.config.compile,
        f"sizes are no multiples of {PANEL}": has_known_layers(network) and not fills_panels(network.rssm),
    }
    hindered = next((why for why, stands in obstacles.items() if stands), "")
    return Choice(
        hindered,
        trainer,
        ("optimizer",),
        network,
        lambda _: compiled_networks(trainer),
        slow,
        known=STEPPED | {LaProp},
        replaced=lambda: not is_ours(trainer, "rl_training.runtime.dreamer_trainer", *METHODS),
    )


def fastest_pictures(trainer: Any) -> Choice | None:
    """The decoder of a trainer's pictures with fewer products, if there are any."""
    pictures = trainer.agent.network.reconstruction.pictures
    if not len(pictures):
        return None
    hindered = "" if trainer.fast_networks.path == COMPILED else "the other networks are not compiled"
    known = STEPPED | {LaProp}
    return Choice(hindered, trainer, ("optimizer",), pictures, folded_pictures, known=known)


def folded_pictures(pictures: nn.ModuleList) -> nn.ModuleList | None:
    if not has_known_layers(pictures):
        return None
    return nn.ModuleList(with_parts(picture, FoldedPicture) for picture in pictures)


def compiled_networks(trainer: Any) -> CompiledNetwork | None:
    network, slow, optimizer = trainer.agent.network, trainer.slow_critic, trainer.optimizer
    if not (has_known_layers(network) and has_known_layers(slow) and fills_panels(network.rssm)):
        return None
    return CompiledNetwork(network, slow, optimizer, trainer.slow_weights)


def has_known_layers(network: nn.Module) -> bool:
    return all(is_exact(part, *KNOWN) for part in network.modules())


def fills_panels(rssm: RSSM) -> bool:
    sizes = (rssm.deter_size // len(rssm.own.weight), len(rssm.from_deter.scale), rssm.stoch_size)
    return not any(size % PANEL for size in sizes)


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

        reconstruction: Any = plain.reconstruction
        hidden: Any = plain.rssm.prior_layers[0]
        parts: dict[str, nn.Module | None] = {
            "reward": head(plain.reward),
            "going_on": head(plain.going_on),
            "actor": head(plain.actor, False),
            "critic": head(plain.critic),
            "slow_critic": Stack(dense_layers([*slow.layers, slow.output], slow_weights, False), None),
            "rssm": CompiledRSSM(plain.rssm, stack([*hidden, plain.rssm.prior_layers[1]])),
        }
        stacks: dict[str, Any] = {}
        if reconstruction.encoder is not None:
            stacks = {
                "encoder": stack(reconstruction.encoder, False),
                "decoder": stack(reconstruction.decoder),
            }
        parts["reconstruction"] = with_parts(reconstruction, **stacks)
        self._modules = plain._modules | parts
        self.imagination: Imagination | None = None
        if isinstance(self.family, Categorical | DiagonalGaussian):
            actor, prior = [*plain.actor.layers, plain.actor.output], [*hidden, plain.rssm.prior_layers[1]]
            dimensions = self.action_sizes[0] if isinstance(self.family, DiagonalGaussian) else 0
            self.imagination = Imagination(self.rssm.recurrence, actor, prior, dimensions)
        self.begins = [part.begin for part in self.modules() if isinstance(part, Stack | CompiledRSSM)]
        self.begin(reconstruction.pictures)

    def step(self, loss: Tensor, learning_rate: float, _: None) -> dict[str, float]:
        """`Optimizer.step` in compiled code."""
        self.optimizer.differentiate(loss)
        return {"grad_norm": self.optimizer.descend(learning_rate, math.inf)}

    def says(self, head: Any, features: Tensor) -> Tensor:
        return head.decoded(features, self.bins)

    @torch.no_grad()
    def imagine(self, state: State, horizon: int) -> tuple[Tensor, Tensor]:
        """One call for all steps of a choice or a vector; it draws the same numbers in the same order.

        What it returns is overwritten by the next call.
        """
        if self.imagination is None:
            return super().imagine(state, horizon)
        rssm, count = self.rssm, len(state.deter)
        noise = torch.rand(horizon, count, rssm.num_latents)
        if isinstance(self.family, Categorical):
            choices = self.family.num_choices
            chance = torch.stack([torch.empty(count, choices).exponential_() for _ in range(horizon)])
            features, actions = self.imagination.run(
                state.features, noise, chance, rssm.action_inputs(torch.eye(choices))
            )
            return features, actions.squeeze(-1).long()
        chance = torch.stack([torch.randn(count, self.action_sizes[0]) for _ in range(horizon)])
        return self.imagination.run(state.features, noise, chance, None)

    def begin(self, pictures: nn.Module) -> None:
        """Read the parameters as they are now; gradients begin anew. Pictures are seen and painted by these modules."""
        self.reconstruction._modules["pictures"] = pictures
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


def with_parts(module: Any, kind: type[nn.Module] | None = None, **parts: nn.Module) -> Any:
    """A module that has these parts in place of its own, and else everything in common with it but perhaps its kind."""
    twin = object.__new__(kind or type(module))
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
