"""The policies of the MuZero family: every action is the outcome of a search with the learned model."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from rl_training.algorithms.gumbel_muzero import mixed_prior
from rl_training.algorithms.masking import MASK, mask_logits
from rl_training.algorithms.muzero import visit_policy
from rl_training.data.collector import Carry
from rl_training.envs.masking import refuse_empty_masks
from rl_training.networks.muzero import MuZeroNetwork
from rl_training.runtime.controls import Now, compile_knobs
from rl_training.runtime.feed_forward_policy import FeedForwardPolicy
from rl_training.search import Root, gumbel_muzero_search, muzero_search
from rl_training.state.leaves import are_finite, require

PLANNING = ("num_simulations", "temperature", "root_exploration_fraction", "gamma")
QUIET = {"temperature": 0.0, "root_exploration_fraction": 0.0}


def planning(now: Now) -> dict[str, Any]:
    """What a search must know of the knobs."""
    return {name: getattr(now, name) for name in PLANNING}


def most_simulations(config: Any) -> int:
    """The longest search that the config's knobs ask for."""
    return max(1, round(compile_knobs(config)["num_simulations"].highest))


def check_planning(settings: dict[str, Any], most: int) -> None:
    """Refuse what `planning` never gave; a search that was longer before a fork is as long as it may be here."""
    require(
        settings.keys() == set(PLANNING) and are_finite(settings.values()), "settings: not those of a search"
    )
    require(settings["num_simulations"] >= 1 and settings["temperature"] >= 0, "settings: no search")
    require(0 <= settings["root_exploration_fraction"] <= 1, "settings: no share of noise")
    settings["num_simulations"] = min(settings["num_simulations"], most)


class Plan(NamedTuple):
    """What a search makes of B observations."""

    action: np.ndarray  # [B]
    policy: np.ndarray  # [B, A], what the network shall learn
    value: np.ndarray  # [B]


class SearchPolicy(FeedForwardPolicy):
    """MuZero's: actions are drawn in proportion to N^(1/T), or are the most visited.

    It remembers how training searched last: evaluation searches as long, without noise and at temperature 0.
    """

    network_class: ClassVar[type[MuZeroNetwork]] = MuZeroNetwork
    transient: tuple[str, ...] = ("num_actions", "discount_sign", "dirichlet_alpha", "most_simulations")
    greedy_leaves_out: ClassVar[str] = "a search with its networks"

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Discrete,
        *,
        normalize_observations: bool,
        device: str,
        two_players: bool,
        dirichlet_alpha: float,
        settings: dict[str, Any],
        most_simulations: int,
        **network: Any,
    ) -> None:
        super().__init__(observation_space, normalize_observations, device)
        self.num_actions = int(action_space.n)
        # In a game of two what is good for who moves next is bad for who moves now.
        self.discount_sign = -1.0 if two_players else 1.0
        self.dirichlet_alpha = dirichlet_alpha
        self.settings, self.most_simulations = settings, most_simulations
        self.network = self.network_class(observation_space, self.num_actions, **network).to(self.device)
        self.small = None

    def check_state(self) -> None:
        check_planning(self.settings, self.most_simulations)

    def act(self, obs: Any, carry: Carry, explore: bool) -> tuple[dict[str, np.ndarray], Carry]:
        return {"action": self.plan(obs, **self.settings | ({} if explore else QUIET)).action}, carry

    def greedy(self, inputs: Any, carry: Carry) -> tuple[Tensor, dict[str, Tensor], Carry]:
        """The action that the network alone thinks most likely; nothing is searched."""
        logits = mask_logits(self.network.predict(self.network.represent(inputs)).policy, inputs)
        return logits.argmax(-1), {"logits": logits}, carry

    def value(self, obs: Any, carry: Carry) -> np.ndarray:
        """The network's own values of observations [N, ...] → [N]."""
        with torch.no_grad():
            return self.network.initial(self.inputs(obs))[1].cpu().numpy()

    def plan(
        self,
        obs: Any,
        *,
        num_simulations: int,
        temperature: float,
        root_exploration_fraction: float,
        gamma: float,
        network: MuZeroNetwork | None = None,
    ) -> Plan:
        """Search from raw observations [B, ...] with the network, or with another one."""
        network = network or self.network
        refuse_empty_masks(obs, (self.num_actions,))
        with torch.inference_mode():
            root = Root(*network.initial(self.inputs(obs)))
            discount = torch.full_like(root.value, gamma * self.discount_sign)

            def recurrent(latent: Any, action: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Any]:
                reward, logits, value, latent = network.recurrent(latent, action)
                return reward, discount, logits, value, latent

            invalid = np.asarray(obs[MASK]) == 0 if isinstance(obs, dict) and MASK in obs else None
            return self.search(
                root, recurrent, invalid, int(num_simulations), temperature, root_exploration_fraction
            )

    def search(
        self,
        root: Root,
        recurrent: Any,
        invalid: np.ndarray | None,
        num_simulations: int,
        temperature: float,
        root_exploration_fraction: float,
    ) -> Plan:
        result = muzero_search(
            root,
            recurrent,
            num_simulations=num_simulations,
            root_noise=self.dirichlet(len(root.value), invalid) if root_exploration_fraction else None,
            root_exploration_fraction=root_exploration_fraction,
            invalid_actions=invalid,
        )
        chances = visit_policy(result.visit_counts, temperature)
        action = chances.multinomial(1).squeeze(-1) if temperature else chances.argmax(-1)
        return Plan(action.cpu().numpy(), result.action_weights.cpu().numpy(), result.value.cpu().numpy())

    def dirichlet(self, count: int, invalid: np.ndarray | None) -> np.ndarray:
        """Noise [B, A] that sums to 1 over the actions that are allowed."""
        noise = np.random.standard_gamma(self.dirichlet_alpha, (count, self.num_actions))
        if invalid is not None:
            noise *= ~invalid
        # For small α all draws of a row can be 0 in floating point: then nothing is favoured.
        total = noise.sum(-1, keepdims=True)
        return np.divide(noise, total, out=np.full_like(noise, 1 / self.num_actions), where=total > 0)


class GumbelSearchPolicy(SearchPolicy):
    """Gumbel MuZero's: the root's noise decides what is considered, and the temperature how loud it is."""

    transient = ("max_considered_actions", "c_visit", "c_scale")

    def __init__(
        self, *spaces: Any, max_considered_actions: int, c_visit: float, c_scale: float, **settings: Any
    ) -> None:
        super().__init__(*spaces, **settings)
        self.max_considered_actions, self.c_visit, self.c_scale = max_considered_actions, c_visit, c_scale

    def search(
        self,
        root: Root,
        recurrent: Any,
        invalid: np.ndarray | None,
        num_simulations: int,
        temperature: float,
        root_exploration_fraction: float,
    ) -> Plan:
        shape = root.prior_logits.shape
        gumbel = np.random.gumbel(size=shape) * temperature if temperature else np.zeros(shape)
        if root_exploration_fraction:
            noise = torch.from_numpy(self.dirichlet(shape[0], invalid)).to(root.prior_logits)
            mask = None if invalid is None else torch.from_numpy(invalid).to(noise.device)
            root = root._replace(
                prior_logits=mixed_prior(root.prior_logits, noise, root_exploration_fraction, mask)
            )
        result = gumbel_muzero_search(
            root,
            recurrent,
            num_simulations=num_simulations,
            gumbel=gumbel,
            max_considered_actions=self.max_considered_actions,
            c_visit=self.c_visit,
            c_scale=self.c_scale,
            invalid_actions=invalid,
        )
        found = (result.action, result.action_weights, result.value)
        return Plan(*(part.cpu().numpy() for part in found))
