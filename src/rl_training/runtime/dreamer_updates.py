"""Dreamer's updates in compiled code, without autograd: all losses, their slopes by hand, and LaProp's step.

Torch's cost per operation is gone, and blocks of rows stay in the cache. `dreamer_trainer.py` has the same update in
torch; both draw the same numbers in the same order and move the same vectors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.algorithms.distributions import Categorical, DiagonalGaussian
from rl_training.algorithms.dreamer import PERCENTILES, move_towards
from rl_training.data.batch import SequenceBatch
from rl_training.errors import NonFiniteError
from rl_training.kernels.exact import is_exact, is_ours
from rl_training.kernels.imagination import Heads, Imagination, Laid
from rl_training.kernels.layers import NONE, NOWHERE, OBSERVATION, SILU, Layer, Layers
from rl_training.kernels.products import PANEL
from rl_training.kernels.recurrence import Recurrence, Sequences
from rl_training.kernels.stacks import Stack
from rl_training.kernels.towers import Parameters, Tower
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
from rl_training.runtime.controls import Now
from rl_training.runtime.dreamer_senses import TorchSenses, VectorSenses
from rl_training.runtime.optim import LaProp, is_view
from rl_training.runtime.updates import COMPILED, STEPPED, Choice

TORCHS = (nn.Linear, nn.Sequential, nn.ModuleList, nn.Conv2d)
PARTS = (Vector, Choices, Picture, ChannelNorm, OneHot)
KNOWN = (*TORCHS, DreamerNetwork, Head, RSSM, BlockLinear, Dense, Reconstruction, *PARTS)
FLOOR = -1e30  # of logits that fill up a panel: their share is 0
# Each times its scale, they add up to what the optimizer descends.
WORLD_MODEL = ("reconstruction", "reward", "continue", "dynamics", "representation")
LOSSES = (*WORLD_MODEL, "policy", "value", "replay_value")
# A trainer's methods that may use these networks: another one may go past them, and gradients of both would be mixed.
METHODS = ("update", "descend", "world_model_losses", "imagination_losses", "replay_value_loss")


def compiled_update(trainer: Any) -> CompiledUpdate | None:
    """A trainer's update in compiled code, which has read the parameters as they are now; None where torch computes."""
    fast: CompiledUpdate | None = trainer.fast_networks.taken()
    if fast is not None:
        pictures = trainer.fast_pictures and trainer.fast_pictures.taken()
        fast.begin(pictures or trainer.agent.network.reconstruction.pictures)
    return fast


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


def compiled_networks(trainer: Any) -> CompiledUpdate | None:
    network, slow = trainer.agent.network, trainer.slow_critic
    if not (has_known_layers(network) and has_known_layers(slow) and fills_panels(network.rssm)):
        return None
    if not is_view(network, trainer.optimizer.parameters):  # a layer that was exchanged learns nothing
        return None
    return CompiledUpdate(network, slow, trainer.optimizer)


def has_known_layers(network: nn.Module) -> bool:
    return all(is_exact(part, *KNOWN) for part in network.modules())


def fills_panels(rssm: RSSM) -> bool:
    sizes = (rssm.deter_size // len(rssm.own.weight), len(rssm.from_deter.scale), rssm.stoch_size)
    return not any(size % PANEL for size in sizes)


class CompiledUpdate:
    """An update of a `DreamerNetwork` in compiled code, but for what it sees and paints and for actions of other kinds.

    Those are torch's, between which slopes go on by hand.
    """

    def __init__(self, plain: DreamerNetwork, slow: Head, optimizer: Any) -> None:
        self.plain, self.optimizer = plain, optimizer
        rssm: Any = plain.rssm
        reconstruction: Any = plain.reconstruction

        def stack(layers: Any, inputs_learn: bool = True) -> Stack:
            return Stack(dense_layers(layers, optimizer.parameters, inputs_learn), optimizer.gradient)

        self.recurrence = Recurrence(rssm)
        panels, size, bins = self.recurrence.panels, rssm.deter_size, plain.bins.numpy()
        self.begins = [self.recurrence.begin]
        self.senses: TorchSenses | VectorSenses
        if VectorSenses.fits(reconstruction):
            self.senses = VectorSenses(plain, panels)
        else:
            stacks: dict[str, Any] = {}
            if reconstruction.encoder is not None:
                stacks = {
                    "encoder": stack(reconstruction.encoder, False),
                    "decoder": stack(reconstruction.decoder),
                }
            self.senses = TorchSenses(plain, with_parts(reconstruction, **stacks))
            self.begins += [part.begin for part in stacks.values()]

        def tower(head: Any, floor: float = 0.0) -> Tower:
            return Tower(panels, [*map(Parameters.of, [*head.layers, head.output])], size, floor)

        prior = Tower(panels, [*map(Parameters.of, [*rssm.prior_layers[0], rssm.prior_layers[1]])], size)
        heads = Heads(
            reward=tower(plain.reward, FLOOR),
            going_on=tower(plain.going_on),
            actor=tower(plain.actor),
            critic=tower(plain.critic, FLOOR),
            slow_critic=tower(slow, FLOOR),
            prior=prior,
        )
        dimensions = {Categorical: 0, DiagonalGaussian: plain.action_sizes[0]}.get(type(plain.family))
        self.imagination = Imagination(self.recurrence, heads, bins, dimensions)
        self.network = plain
        if dimensions is None:
            actor = stack([*plain.actor.layers, plain.actor.output], False)
            foresee = stack([*rssm.prior_layers[0], rssm.prior_layers[1]])
            self.network = with_parts(plain, actor=actor, rssm=CompiledRSSM(rssm, foresee, self.recurrence))
            self.begins += [actor.begin, foresee.begin]
        self.begin(reconstruction.pictures)

    def begin(self, pictures: nn.Module) -> None:
        """Read the parameters as they are now; gradients begin anew. Pictures are seen and painted by these modules."""
        if isinstance(self.senses, TorchSenses):
            self.senses.reconstruction._modules["pictures"] = pictures
        for begin in self.begins:
            begin()

    def descend(self, trainer: Any, batch: SequenceBatch, now: Now) -> tuple[State, dict[str, float]]:
        """One gradient step: the posterior states [T, B, ...], and what is worth logging."""
        self.optimizer.gradient.zero_()
        sequences = self.follow(batch, *self.senses.see(batch))
        laid = self.dream(sequences, int(now.imagination_horizon))
        losses = self.look_back(trainer, laid, batch, now)
        laid.go_back()
        states = sequences.states[1:], sequences.stochs[1:]
        losses["reconstruction_loss"], to_states = self.senses.tell(*states, batch, now.reconstruction_scale)
        laid.to_states += to_states
        to_actions, to_tokens = sequences.go_back(laid.to_states, laid.to_probs)
        self.senses.go_back(to_tokens, to_actions)
        self.imagination.hand_over()
        losses |= self.losses_of(laid, now)
        loss = sum(getattr(now, f"{of}_scale") * losses[f"{of}_loss"] for of in LOSSES)
        if not math.isfinite(loss):
            raise NonFiniteError("loss")
        norm = self.optimizer.descend(now.learning_rate, math.inf)
        return State(*map(torch.from_numpy, states)), {"grad_norm": norm, **losses, "loss": loss}

    def follow(self, batch: SequenceBatch, tokens: np.ndarray, actions: np.ndarray) -> Sequences:
        first = batch["first"]
        sequences = self.recurrence.sequences(*first.shape)
        noise = torch.rand(*first.shape, self.plain.rssm.num_latents)
        given = (batch["deter"], batch["stoch"], noise, first)
        sequences.follow(actions, tokens, *(part.numpy() for part in given))
        return sequences

    @torch.no_grad()
    def dream(self, sequences: Sequences, horizon: int) -> Laid:
        """Imagine, drawing the same numbers in the same order as torch; what heads say of all states."""
        plain, rssm, (steps, lanes) = self.plain, self.plain.rssm, sequences.shape
        deter, stoch = (part[1:].reshape(steps * lanes, -1) for part in (sequences.states, sequences.stochs))
        count, dimensions = steps * lanes, self.imagination.dimensions
        laid = self.imagination.lay(horizon, count, dimensions or sum(plain.action_sizes))
        laid.probs[...] = sequences.probs.reshape(laid.probs.shape)
        if dimensions is None:
            start = State(torch.from_numpy(deter), torch.from_numpy(stoch))
            features, self.acted = self.network.imagine(start, horizon)
            deters, stochs = features.numpy()[..., : rssm.deter_size], features[..., rssm.deter_size :]
            self.outputs = laid.look(deters, self.picks(stochs.numpy()))
            return laid
        torch.rand(laid.noise.shape, out=torch.from_numpy(laid.noise))
        for each in torch.from_numpy(laid.chance).unbind():
            each.normal_() if dimensions else each.exponential_()
        laid.run(deter, self.picks(stoch))
        return laid

    def picks(self, stoch: np.ndarray) -> np.ndarray:
        """One-hot latents [..., K · S] as the places [..., S] of the ones."""
        classes, choices = self.plain.rssm.num_classes, self.plain.rssm.num_latents
        latents = stoch.reshape(*stoch.shape[:-1], classes, choices)
        chosen = np.arange(classes, dtype=np.float32) @ latents  # as there is one 1 for each choice
        return chosen * np.float32(choices) + np.arange(choices, dtype=np.float32)

    @np.errstate(all="ignore")  # what is no number shows in the loss
    def look_back(self, trainer: Any, laid: Laid, batch: SequenceBatch, now: Now) -> dict[str, float]:
        """Returns, advantages, and what each loss weighs; what is worth logging of them."""
        columns, seen, (horizon, count, _) = laid.columns, laid.seen, laid.shape
        decay, returns = np.float32(now.return_lambda), columns.returns
        look_ahead(columns.reward, columns.live, columns.value, decay, returns)
        np.cumprod(columns.live[:-1], 0, out=columns.weight)
        low, high = trainer.return_low, trainer.return_high
        move_towards(low, high, quantiles(returns, torch.tensor(PERCENTILES)), now.return_rate)
        scale = np.maximum(1.0, (high - low).item())  # what is no number stays none
        columns.advantage[...] = (returns - columns.value[:-1]) / np.float32(scale)
        columns.slope[...] = columns.weight * np.float32(now.value_scale / (horizon * count))
        # The critic on what was replayed, but not on the last of each sequence, nor where an episode ends.
        reward, terminal, last = (batch[name].float().numpy() for name in ("reward", "terminal", "last"))
        target = seen.target.reshape(reward.shape)
        start = returns[0].reshape(reward.shape)
        live = (1 - terminal) * np.float32(now.gamma)
        look_ahead(reward, live, start, decay * (1 - last), target[:-1])
        seen.weight.reshape(reward.shape)[:-1] = (1 - last[:-1]) / last[:-1].size
        seen.slope[...] = np.float32(now.replay_value_scale) * seen.weight
        seen.reward[...], seen.live[...] = reward.ravel(), live.ravel()
        seen.slopes[...] = now.reward_scale / count
        settings = self.imagination.settings
        free = trainer.config.free_nats
        settings.latents[...] = free, now.dynamics_scale / count, now.representation_scale / count
        settings.going_on[...] = now.continue_scale / count
        settings.policy[...] = now.entropy_coef, now.policy_scale / (horizon * count)
        if self.imagination.dimensions is None:
            self.learn_actor(laid, now)
        return {"imagined_return": float(returns.mean()), "return_scale": scale}

    def learn_actor(self, laid: Laid, now: Now) -> None:
        """The loss of an actor whose distribution torch knows, and the slopes of its outputs."""
        outputs = torch.from_numpy(self.outputs).requires_grad_()
        parameters = with_parts(self.plain, actor=nn.Identity()).policy(outputs)
        log_prob, entropy = self.plain.family.log_prob_and_entropy(parameters, self.acted)
        advantage, weight = (torch.from_numpy(part) for part in (laid.columns.advantage, laid.columns.weight))
        loss = -weight * (log_prob * advantage + now.entropy_coef * entropy)
        (slopes,) = torch.autograd.grad(loss.mean() * now.policy_scale, outputs)
        laid.put_slopes(slopes.numpy())
        laid.columns.policy[..., 0], laid.columns.policy[..., 1] = loss.detach(), entropy.detach()

    def losses_of(self, laid: Laid, now: Now) -> dict[str, float]:
        columns, seen = laid.columns, laid.seen
        divergence, policy = float(seen.divergence.mean()), columns.policy.mean((0, 1))
        return {
            "reward_loss": float(seen.reward_loss.mean()),
            "continue_loss": float(seen.continue_loss.mean()),
            "dynamics_loss": divergence,
            "representation_loss": divergence,
            "policy_loss": float(policy[0]),
            "value_loss": float((columns.weight * columns.value_loss).mean()),
            "replay_value_loss": float(seen.weight @ seen.value_loss),
            "entropy": float(policy[1]),
        }


class CompiledRSSM(RSSM):
    """An `RSSM` with the parameters of another that takes steps without observations, and without gradients."""

    prior_layers: Any

    def __init__(self, plain: RSSM, prior: Stack, recurrence: Recurrence) -> None:
        self.__dict__.update(plain.__dict__)
        self._modules = plain._modules | {"prior_layers": prior}
        self.recurrence = recurrence

    def remember(self, state: State, action_inputs: Tensor) -> Tensor:
        return self.recurrence.remember(*state, action_inputs)


def look_ahead(
    reward: np.ndarray, live: np.ndarray, bootstrap: np.ndarray, decay: Any, returns: np.ndarray
) -> None:
    """`algorithms.dreamer.lambda_returns` in place, of a discount `live` and a λ or several [T, N]."""
    kept, after = live * decay, bootstrap[-1]
    earned = reward + (live - kept) * bootstrap
    for t in range(len(returns) - 1, -1, -1):
        np.multiply(kept[t + 1], after, out=returns[t])
        returns[t] += earned[t + 1]
        after = returns[t]


def quantiles(x: np.ndarray, shares: Tensor) -> Tensor:
    """`torch.quantile` of all numbers, bit for bit, without sorting them."""
    ranks = shares * (x.size - 1)
    below = ranks.long()
    places = torch.stack([below, ranks.ceil().long()]).numpy()
    parted = np.partition(x.ravel(), np.unique(places))
    low, high = torch.from_numpy(parted[places])
    if np.isnan(x).any():
        return torch.full_like(shares, math.nan)
    return low.lerp_(high, ranks - below)


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
