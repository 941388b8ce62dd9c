"""What observations and actions add to a world model, and what it tells of observations, with the way back by hand.

Plain vectors are compiled. Pictures, choices and several parts at once are torch's, whose graphs end where compiled
code begins.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.data.batch import SequenceBatch
from rl_training.kernels.dreaming import fit_squares
from rl_training.kernels.programs import Program
from rl_training.kernels.recurrence import Panels, room
from rl_training.kernels.towers import Parameters, States, Tower, whole
from rl_training.networks.dreamer import DreamerNetwork
from rl_training.networks.reconstruction import Vector
from rl_training.trees import tree_leaves

Told = tuple[float, np.ndarray]  # the loss of reconstruction, and its slopes in the features [T · B, F]


class TorchSenses:
    """By torch, of any observation."""

    def __init__(self, plain: DreamerNetwork, reconstruction: Any) -> None:
        self.rssm, self.reconstruction = plain.rssm, reconstruction

    def see(self, batch: SequenceBatch) -> tuple[np.ndarray, np.ndarray]:
        """What observations add to the posterior [T, B, hidden], and actions to the memory [T, B, D]."""
        keep = 1.0 - batch["first"].unsqueeze(-1)
        tokens = self.rssm.token_inputs(self.reconstruction.encode(batch["obs"]))
        self.given = (tokens, self.rssm.action_inputs(batch["action"] * keep))
        seen, acted = (part.detach().numpy() for part in self.given)
        return seen, acted

    def tell(self, deter: np.ndarray, stoch: np.ndarray, batch: SequenceBatch, scale: float) -> Told:
        """The loss of states [T, B, ...], and the slopes of `scale` times it."""
        features = torch.cat([torch.from_numpy(deter), torch.from_numpy(stoch)], -1).requires_grad_()
        loss = self.reconstruction.loss(features, batch["obs"]).mean()
        (scale * loss).backward()
        assert features.grad is not None
        return loss.item(), features.grad.flatten(0, 1).numpy()

    def go_back(self, to_tokens: np.ndarray, to_actions: np.ndarray) -> None:
        """Add up the slopes of weights from those of what `see` gave."""
        torch.autograd.backward(self.given, [torch.from_numpy(part) for part in (to_tokens, to_actions)])


class VectorSenses:
    """Compiled, of an observation that is one vector."""

    def __init__(self, plain: DreamerNetwork, panels: Panels) -> None:
        reconstruction: Any = plain.reconstruction
        rssm: Any = plain.rssm
        (self.vector,), (output,) = reconstruction.others, reconstruction.outputs
        size, hidden = rssm.deter_size, len(rssm.from_deter.scale)
        linear, shared, own = rssm.posterior_layer.linear, rssm.shared, rssm.own.bias

        def part(weight: Tensor, to_weight: Tensor, bias: Tensor) -> Parameters:
            assert bias.grad is not None
            return Parameters(weight, bias, None, (to_weight.numpy(), bias.grad.numpy()))

        token = part(linear.weight[:, size:], linear.weight.grad[:, size:], linear.bias)
        added = part(shared[2 * hidden :].t(), shared.grad[2 * hidden :].t(), own)
        encoder, decoder = (
            map(Parameters.of, each) for each in (reconstruction.encoder, reconstruction.decoder)
        )
        self.encoder = Tower(panels, [*encoder, token], self.vector.size)
        self.actor = Tower(panels, [Parameters.of(rssm.from_action), added], sum(plain.action_sizes))
        self.decoder = Tower(panels, [*decoder, Parameters.of(output)], size + rssm.stoch_size)
        self.actions = sum(plain.action_sizes)
        self.laid: Laid | None = None

    @staticmethod
    def fits(reconstruction: Any) -> bool:
        others = list(reconstruction.others)
        return not len(reconstruction.pictures) and len(others) == 1 and type(others[0]) is Vector

    def see(self, batch: SequenceBatch) -> tuple[np.ndarray, np.ndarray]:
        ((_, obs),) = tree_leaves(batch["obs"], "obs")
        count, lead = batch["first"].numel(), batch["first"].shape
        if self.laid is None or self.laid.count != count:
            self.laid = Laid(self, count)
        laid: Laid = self.laid
        laid.obs[:, : self.vector.size] = self.vector.encode(obs).flatten(0, 1).numpy()
        action = batch["action"] / batch["action"].abs().clamp_min(1.0) * (1.0 - batch["first"].unsqueeze(-1))
        laid.action[:, : self.actions] = action.flatten(0, 1).numpy()
        laid.forth.run(count, range(1))
        return laid.seen.out.reshape(*lead, -1), laid.acted.out.reshape(*lead, -1)

    def tell(self, deter: np.ndarray, stoch: np.ndarray, batch: SequenceBatch, scale: float) -> Told:
        laid = self.laid
        assert laid is not None
        size = deter.shape[-1]
        laid.features[:, :size], laid.features[:, size:] = (
            deter.reshape(laid.count, -1),
            stoch.reshape(laid.count, -1),
        )
        laid.slope[...], laid.to_features[...] = scale / laid.count, 0
        laid.told.run(laid.count, range(1))
        return float(laid.losses.mean()), laid.to_features

    def go_back(self, to_tokens: np.ndarray, to_actions: np.ndarray) -> None:
        laid = self.laid
        assert laid is not None
        laid.to_seen[...], laid.to_acted[...] = (
            to_tokens.reshape(laid.to_seen.shape),
            to_actions.reshape(laid.to_acted.shape),
        )
        laid.back.run(laid.count, range(1))
        for tower in (self.encoder, self.actor, self.decoder):
            tower.hand_over()


class Laid:
    """The memory of so many rows, and their programs."""

    def __init__(self, of: VectorSenses, count: int) -> None:
        self.count = count
        self.obs, self.action = room(count, whole(of.vector.size)), room(count, whole(of.actions))
        self.seen, self.acted, told = (tower.room(count) for tower in (of.encoder, of.actor, of.decoder))
        self.to_seen, self.to_acted = (np.zeros_like(kept.out) for kept in (self.seen, self.acted))
        self.features, self.to_features = (room(count, of.decoder.layers[0].width) for _ in range(2))
        self.slope, self.losses = room(1), room(count, 1)
        self.forth, self.told, self.back = Program(), Program(), Program()
        obs, action, features = States(self.obs), States(self.action), States(self.features)
        of.encoder.forward(self.forth, obs, self.seen)
        of.actor.forward(self.forth, action, self.acted)
        of.decoder.forward(self.told, features, told)
        slopes = np.zeros_like(told.out)
        self.told.add(
            fit_squares, told.out, self.obs, self.slope, slopes, self.losses, sizes=(of.vector.size,)
        )
        of.decoder.backward(self.told, features, told, slopes, self.to_features)
        of.encoder.backward(self.back, obs, self.seen, self.to_seen, None)
        of.actor.backward(self.back, action, self.acted, self.to_acted, None)
