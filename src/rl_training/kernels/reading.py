"""Modules of torch, read as tables of dense layers; None for all that are anything else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.kernels.exact import is_exact
from rl_training.kernels.layers import (
    ACTIVATIONS,
    NONE,
    NORM_EPSILON,
    NOWHERE,
    OBSERVATION,
    TANH,
    Layer,
    Layers,
)
from rl_training.networks.actor_critic import (
    ActionHead,
    ActorCritic,
    PhasicActorCritic,
    has_own_forward,
)
from rl_training.networks.discriminator import Discriminator
from rl_training.networks.encoders import Flat, Joined, OneHot
from rl_training.networks.q_network import Streams
from rl_training.networks.soft_actor_critic import GaussianActor, SeparateCritics, TwinCritics


def actor_critic_layers(network: Any, parameters: Tensor) -> Layers | None:
    """An `ActorCritic` of dense layers: its outputs are those of the actor's head, log σ where there is one, and V."""
    return acting_layers(network, [parameters]) if is_exact(network, ActorCritic) else None


def acting_layers(network: Any, vectors: Sequence[Tensor]) -> Layers | None:
    """The same for acting alone, of any actor-critic whose `forward` is our own."""
    if not has_own_forward(network) or not is_exact(network.actor_head, ActionHead):
        return None
    head, critic_encoder = network.actor_head, network.critic_encoder
    actor = encoder_layers(network.actor_encoder, 0)
    critic = (
        encoder_layers(critic_encoder, len(actor)) if actor is not None and critic_encoder is not None else []
    )
    if actor is None or critic is None or not (_is_dense(head.output) and _is_dense(network.critic_head)):
        return None
    valued = _last(actor, 0) if critic_encoder is None else _last(critic, len(actor))
    policy = _policy(head, _last(actor, 0))
    value = _layer(network.critic_head, valued, NONE, sum(part.shape[0] for part in policy))
    trunk = [*actor, *critic, *policy, value]
    return Layers(trunk, features_of(network.actor_encoder), vectors)


def phasic_layers(network: Any, parameters: Tensor) -> Layers | None:
    """The policy of a `PhasicActorCritic`: the same outputs, with V of its auxiliary head."""
    if not is_exact(network, PhasicActorCritic) or not is_exact(network.actor_head, ActionHead):
        return None
    hidden, head = encoder_layers(network.actor_encoder, 0), network.actor_head
    if hidden is None or not (_is_dense(head.output) and _is_dense(network.auxiliary_head)):
        return None
    policy = _policy(head, _last(hidden, 0))
    column = sum(part.shape[0] for part in policy)
    value = _layer(network.auxiliary_head, _last(hidden, 0), NONE, column)
    return Layers([*hidden, *policy, value], features_of(network.actor_encoder), parameters)


def critic_layers(network: Any, parameters: Tensor) -> Layers | None:
    """The critic of an actor-critic in which it has an encoder of its own: V is its one output."""
    if not has_own_forward(network) or network.critic_encoder is None:
        return None
    hidden = encoder_layers(network.critic_encoder, 0)
    if hidden is None or not _is_dense(network.critic_head):
        return None
    head = _layer(network.critic_head, _last(hidden, 0), NONE, 0)
    return Layers([*hidden, head], features_of(network.critic_encoder), parameters)


def head_layers(network: Any, kind: type[nn.Module], parameters: Tensor) -> Layers | None:
    """A network of this very kind that is an `encoder` and a `head`, linear or of dueling streams."""
    hidden = encoder_layers(network.encoder, 0) if is_exact(network, kind) else None
    if hidden is None:
        return None
    head = stream_layers(network.head, hidden) if is_exact(network.head, Streams) else None
    if _is_dense(network.head):
        head = [_layer(network.head, _last(hidden, 0), NONE, 0)]
    return Layers([*hidden, *head], features_of(network.encoder), parameters) if head is not None else None


def stream_layers(streams: Streams, hidden: list[Layer]) -> list[Layer] | None:
    """The value's layers and then the advantages', both behind the last hidden one."""
    layers: list[Layer] = []
    column, source = 0, _last(hidden, 0)
    for body, last in (
        (streams.value_hidden, streams.value),
        (streams.advantage_hidden, streams.advantage),
    ):
        first = len(hidden) + len(layers)
        own = body_layers(body, first, source)
        if own is None or not _is_dense(last):
            return None
        layers += [*own, _layer(last, first + len(own) - 1, NONE, column)]
        column += len(last.weight)
    return layers


def gaussian_layers(network: Any, parameters: Tensor) -> Layers | None:
    """A `GaussianActor`: its outputs are μ and log σ, before this is held between its bounds."""
    return head_layers(network, GaussianActor, parameters)


def twin_layers(network: Any, parameters: Tensor) -> tuple[Layers, Layers] | None:
    """Two critics of features and an action side by side, to which slopes are passed on; the output of each is Q.

    They are two networks, so that the weights of one stay in the cache while it is at work.
    """
    if is_exact(network, SeparateCritics):
        twins = separate_layers(network)
    else:
        twins = batched_layers(network) if is_exact(network, TwinCritics) else None
    if twins is None or not learns_nothing(network.inputs):
        return None
    first, second = (Layers(twin, twin[0].shape[1], parameters, passes=True) for twin in twins)
    return first, second


def batched_layers(network: TwinCritics) -> list[list[Layer]] | None:
    """The layers of each of two critics whose weights are one."""
    activation = network.activation
    if not is_exact(activation, *ACTIVATIONS) or _has_settings(activation):
        return None
    pairs, twins = list(zip(network.weights, network.biases, strict=True)), []
    for twin in range(2):
        layers = []
        for depth, (weight, bias) in enumerate(pairs):
            last, source = depth == len(pairs) - 1, depth - 1 if depth else OBSERVATION
            kind, column = (NONE, 0) if last else (ACTIVATIONS[type(activation)], NOWHERE)
            # Without a hidden layer the only weight is [2, 1, inputs].
            layers.append(Layer(weight[twin], bias[twin].reshape(-1), source, kind, column, not last))
        twins.append(layers)
    return twins


def separate_layers(network: SeparateCritics) -> list[list[Layer]] | None:
    """The layers of each of two critics that are a body and a head each."""
    twins = []
    for body, head in zip(network.bodies, network.heads, strict=True):
        hidden = body_layers(body, 0, OBSERVATION)
        if hidden is None or not _is_dense(head):
            return None
        twins.append([*hidden, _layer(head, _last(hidden, 0), NONE, 0)])
    return twins


def discriminator_layers(network: Any, parameters: Tensor) -> Layers | None:
    """A `Discriminator` of plain layers, from its `inputs` on, to which slopes are passed on; output: the logit."""
    if not is_exact(network, Discriminator) or network.body is not None or network.learns_inputs:
        return None
    linear = [*network.hidden, network.output]
    if not all(_is_dense(layer) for layer in linear):
        return None
    last = len(linear) - 1
    layers = [
        _layer(layer, i - 1 if i else OBSERVATION, NONE if i == last else TANH, 0 if i == last else NOWHERE)
        for i, layer in enumerate(linear)
    ]
    return Layers(layers, network.size, parameters, passes=True)


def encoder_layers(encoder: Any, first: int) -> list[Layer] | None:
    """The hidden layers of what `make_encoder` makes for vectors, the first of them having the number `first`."""
    if not is_exact(encoder, nn.Sequential) or len(encoder) != 2 or not learns_nothing(encoder[0]):
        return None
    return body_layers(encoder[1], first, OBSERVATION)


def body_layers(body: Any, first: int, source: int) -> list[Layer] | None:
    """What `mlp` makes, behind the layer `source`; its own first one has the number `first`."""
    if not is_exact(body, nn.Sequential):
        return None
    layers: list[Layer] = []
    rest = iter(body)
    for linear in rest:
        norm, activation = None, next(rest, None)
        if is_exact(activation, nn.LayerNorm):
            norm, activation = activation, next(rest, None)
        plain = _is_dense(linear) and (norm is None or _is_plain_norm(norm, len(linear.weight)))
        if not plain or not is_exact(activation, *ACTIVATIONS) or _has_settings(activation):
            return None
        behind = first + len(layers) - 1 if layers else source
        layers.append(_layer(linear, behind, ACTIVATIONS[type(activation)], NOWHERE, norm))
    return layers


def learns_nothing(inputs: Any) -> bool:
    """Whether observations become features without any parameter: as they are, one-hot, or both side by side."""
    if is_exact(inputs, Joined):
        return all(learns_nothing(part) for part in inputs.parts)
    return is_exact(inputs, Flat, OneHot)


def features(inputs: nn.Module, obs: Any) -> np.ndarray:
    """What inputs that learn nothing make of observations, [N, features]; without torch where they stay as they are."""
    if type(inputs) is Flat and obs.dtype == torch.float32:
        return np.ascontiguousarray(obs.numpy().reshape(len(obs), -1))
    with torch.no_grad():
        return np.ascontiguousarray(inputs(obs).numpy())


def features_of(encoder: Any) -> int:
    return encoder[0].features


def _is_dense(layer: nn.Module) -> TypeGuard[nn.Linear]:
    return is_exact(layer, nn.Linear)


def _is_plain_norm(norm: nn.LayerNorm, width: int) -> bool:
    """Whether a LayerNorm is over all units, with γ and β, and with torch's ε."""
    affine = norm.elementwise_affine and norm.bias is not None
    return affine and norm.normalized_shape == (width,) and norm.eps == NORM_EPSILON


def _has_settings(activation: Any) -> bool:
    """Whether an activation is another function than its class is by default."""
    return getattr(activation, "alpha", 1.0) != 1.0 or getattr(activation, "approximate", "none") != "none"


def _policy(head: ActionHead, source: int) -> list[Layer]:
    """An actor's head, whose outputs come first, and log σ behind them where there is one."""
    width = len(head.output.weight)
    scales = [] if head.log_std is None else [Layer(None, head.log_std, OBSERVATION, NONE, width)]
    return [_layer(head.output, source, NONE, 0), *scales]


def _layer(
    linear: nn.Linear, source: int, activation: int, column: int, norm: nn.LayerNorm | None = None
) -> Layer:
    scale, shift = (None, None) if norm is None else (norm.weight, norm.bias)
    return Layer(linear.weight, linear.bias, source, activation, column, scale=scale, shift=shift)


def _last(layers: list[Layer], first: int) -> int:
    return first + len(layers) - 1 if layers else OBSERVATION
