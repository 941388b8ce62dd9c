"""Actions that are vectors, for searches that know edges by their numbers: at every node K of them are drawn."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rl_training.algorithms.distributions import LARGEST
from rl_training.algorithms.sampled_muzero import gaussian
from rl_training.networks.muzero import MuZeroNetwork
from rl_training.trees import Tensors

SAMPLES = "samples"  # the part of a latent that holds a node's actions [N, K, D]


class SampledModel:
    """A network whose actions are vectors as a model whose edges are 0 … K - 1.

    The actions of a node travel with its latent. All have the same prior: see algorithms/sampled_muzero.py.

    repeats: draw the same numbers in every search and for every row, the first of a node's actions being the mode: what
    is found is a function of the observation
    """

    def __init__(self, network: MuZeroNetwork, num_samples: int, repeats: bool) -> None:
        self.network, self.num_samples = network, num_samples
        self.generator = torch.Generator().manual_seed(0) if repeats else None

    def initial(
        self, obs: Tensors | None, latent: Tensor | None = None
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """As `MuZeroNetwork.initial`, with logits [N, K] of the actions that were drawn."""
        # A network of one's own may know observations alone.
        outputs, value, known = self.network.initial(obs, *([] if latent is None else [latent]))
        return self._prior(outputs), value, self._with_samples(known, outputs)

    def recurrent(
        self, latent: dict[str, Tensor], edge: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
        """As `MuZeroNetwork.recurrent`, for edges [N]."""
        state: Any = {name: part for name, part in latent.items() if name != SAMPLES}
        state = state["latent"] if len(state) == 1 else state
        action = latent[SAMPLES][torch.arange(len(edge), device=edge.device), edge]
        reward, outputs, value, following = self.network.recurrent(state, action)
        return reward, self._prior(outputs), value, self._with_samples(following, outputs)

    def _prior(self, outputs: Tensor) -> Tensor:
        return outputs.new_zeros(len(outputs), self.num_samples)

    def _with_samples(self, latent: Any, outputs: Tensor) -> dict[str, Tensor]:
        """tanh(μ + σ z), K times for each row."""
        mean, log_std = gaussian(outputs).unsqueeze(-2).chunk(2, -1)
        rows = len(outputs) if self.generator is None else 1
        noise = torch.randn(rows, self.num_samples, mean.shape[-1], generator=self.generator)
        if self.generator is not None:
            noise[:, 0] = 0.0
        samples = (mean + log_std.exp() * noise.to(mean.device)).tanh().clamp(-LARGEST, LARGEST)
        return {**(latent if isinstance(latent, dict) else {"latent": latent}), SAMPLES: samples}
