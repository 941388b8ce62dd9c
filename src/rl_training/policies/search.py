"""The policies of the MuZero family: every action is the outcome of a search with the learned model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from rl_training.algorithms.distributions import Categorical, SquashedGaussian
from rl_training.algorithms.gumbel_muzero import mixed_prior
from rl_training.algorithms.masking import MASK, mask_logits
from rl_training.algorithms.muzero import visit_policy
from rl_training.algorithms.sampled_muzero import gaussian
from rl_training.data.collector import Carry
from rl_training.envs.action_masks import refuse_empty_masks
from rl_training.kernels.exact import taken
from rl_training.kernels.small_model import SmallModel
from rl_training.networks.encoders import Own
from rl_training.networks.muzero import MuZeroNetwork
from rl_training.policies.base import NetworkPolicy, most_likely
from rl_training.policies.sampling import SAMPLES, SampledModel
from rl_training.runtime.controls import Controls, Now, compile_knobs
from rl_training.search import Root, Small, gumbel_muzero_search, muzero_search
from rl_training.settings.config import Config
from rl_training.state.leaves import are_finite, require
from rl_training.trees import Arrays, Tensors

SEARCH_KNOBS = ("num_simulations", "temperature", "root_exploration_fraction", "gamma")
# What searches of one kind or another have besides.
CONSTANTS = ("dirichlet_alpha", "pb_c_init", "pb_c_base", "max_considered_actions", "c_visit", "c_scale")
QUIET: dict[str, Any] = {"temperature": 0.0, "root_exploration_fraction": 0.0}


def search_settings(now: Now) -> dict[str, Any]:
    """What a search must know of the knobs: those that its algorithm has."""
    return {name: getattr(now, name) for name in (*SEARCH_KNOBS, *CONSTANTS) if name in vars(now)}


def most_simulations(config: Config) -> int:
    """The longest search that the config's knobs ask for."""
    return max(1, round(compile_knobs(config)["num_simulations"].highest))


def planner_settings(config: Any, *more: str) -> dict[str, Any]:
    """What the policies of all planners are built from, besides the spaces, and `more` fields of the config."""
    names = ("normalize_observations", "device", "latent_size", "hidden_sizes", "activation", "image_encoder")
    return {name: getattr(config, name) for name in (*names, "support_size", *more)} | {
        "settings": search_settings(Controls.of(config).at(0).after(0)),
        "most_simulations": most_simulations(config),
        "own": Own(config.network, config.encoder),
    }


def check_search_settings(settings: dict[str, float], first: Mapping[str, float], most: int) -> None:
    """Refuse what `search_settings` never gave; a search that was longer before a fork is as long as it may be here.

    first: the settings at the run's first step, which constants have that an older run did not save
    """
    settings |= {name: first[name] for name in CONSTANTS if name in first and name not in settings}
    require(
        settings.keys() == first.keys() and are_finite(settings.values()), "settings: not those of a search"
    )
    require(settings["num_simulations"] >= 1 and settings["temperature"] >= 0, "settings: no search")
    require(0 <= settings["root_exploration_fraction"] <= 1, "settings: no share of noise")
    least = {"dirichlet_alpha": 1e-9, "pb_c_base": 1, "max_considered_actions": 1}
    constants = [name for name in CONSTANTS if name in settings]
    require(all(settings[name] >= least.get(name, 0) for name in constants), "settings: no search")
    settings["num_simulations"] = min(settings["num_simulations"], most)


def dirichlet_noise(shape: tuple[int, ...], invalid: np.ndarray | None, alpha: float) -> np.ndarray:
    """Dirichlet(α) noise [B, A] over the actions that are allowed."""
    noise = np.random.standard_gamma(alpha, shape)
    allowed = np.ones(shape, np.bool_) if invalid is None else ~invalid
    noise *= allowed
    # For small α all draws of a row can be 0 in floating point: then nothing is favoured.
    total, even = noise.sum(-1, keepdims=True), allowed / allowed.sum(-1, keepdims=True)
    return np.divide(noise, total, out=even, where=total > 0)


class Plan(NamedTuple):
    """What a search makes of B observations."""

    action: np.ndarray  # [B], or vectors [B, D]
    policy: np.ndarray  # [B, A], what the network shall learn
    value: np.ndarray  # [B]
    samples: np.ndarray | None = None  # [B, A, D], the vectors that `policy` is about


class Recurrent:
    """A model with the discount of its steps [B], as a search asks it."""

    def __init__(self, model: MuZeroNetwork | SampledModel, discount: Tensor) -> None:
        self.model, self.discount = model, discount
        self.step = model.searching() if isinstance(model, MuZeroNetwork) else model.recurrent

    def __call__(self, latent: Any, action: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Any]:
        reward, logits, value, latent = self.step(latent, action)
        return reward, self.discount, logits, value, latent

    @property
    def small(self) -> Small | None:
        """The model by itself, where a whole search can be one compiled call."""
        if not isinstance(self.model, MuZeroNetwork) or torch.compiler.is_compiling():
            return None
        model = taken(self.model.small)
        able = type(model) is SmallModel and model.fits and self.discount.dtype is torch.float32
        return Small(model, self.discount) if able else None  # type: ignore[arg-type]


class SearchPolicy(NetworkPolicy):
    """MuZero's: actions are drawn in proportion to N^(1/T), or are the most visited.

    Where actions are vectors, a search looks at `sampled_actions` of them at every node.

    It remembers how training searched last: evaluation searches as long, without noise and at temperature 0.
    """

    network_class: ClassVar[type[MuZeroNetwork]] = MuZeroNetwork
    transient: tuple[str, ...] = (
        "family",
        "num_samples",
        "discount_sign",
        "first_settings",
        "most_simulations",
    )
    greedy_leaves_out: ClassVar[str] = "a search with its networks"

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Discrete | spaces.Box,
        *,
        normalize_observations: bool,
        device: str,
        two_players: bool,
        settings: dict[str, float],
        most_simulations: int,
        sampled_actions: int,
        **network: Any,
    ) -> None:
        super().__init__(observation_space, normalize_observations, device)
        self.family: Categorical | SquashedGaussian
        self.num_samples: int | None = None
        if isinstance(action_space, spaces.Box):
            self.family = SquashedGaussian(math.prod(action_space.shape))
            self.num_samples = sampled_actions
            network["dimensions"] = self.family.num_dimensions
        else:
            self.family = Categorical(int(action_space.n))
        # In a game of two what is good for who moves next is bad for who moves now.
        self.discount_sign = -1.0 if two_players else 1.0
        self.settings: dict[str, Any] = settings
        self.first_settings, self.most_simulations = dict(settings), most_simulations
        outputs = self.family.num_parameters
        self.network = self.network_class(observation_space, outputs, **network).to(self.device)

    def check_state(self) -> None:
        check_search_settings(self.settings, self.first_settings, self.most_simulations)

    def act(self, obs: Arrays, carry: Carry, explore: bool) -> tuple[dict[str, np.ndarray], Carry]:
        settings = self.settings if explore else self.settings | QUIET
        return {"action": self.plan(obs, repeats=not explore, **settings).action}, carry

    def greedy(self, inputs: Tensors, carry: Carry) -> tuple[Tensor, dict[str, Tensor], Carry]:
        """The action that the network alone thinks most likely; nothing is searched."""
        outputs = self.network.predict(self.network.represent(inputs)).policy
        outputs = mask_logits(outputs, inputs) if self.num_samples is None else gaussian(outputs)
        return *most_likely(self.family, outputs), carry

    def value(self, obs: Arrays, carry: Carry) -> np.ndarray:
        """The network's own values of observations [N, ...] → [N]."""
        with torch.no_grad():
            return self.network.initial(self.inputs(obs))[1].cpu().numpy()

    def plan(
        self,
        obs: Arrays,
        *,
        network: MuZeroNetwork | None = None,
        latent: Tensor | None = None,
        greedy: np.ndarray | None = None,
        repeats: bool = False,
        **settings: float,
    ) -> Plan:
        """Search from raw observations [B, ...] with the network, or with another one.

        latent: the network's states of the observations, where they are known
        greedy: rows [B] that act at temperature 0, whatever the others do
        repeats: draw the same numbers for vectors in every search
        settings: what `search_settings` gives; where a name is left out, as training searched last
        """
        network, settings = network or self.network, self.settings | settings
        model: MuZeroNetwork | SampledModel = network
        if self.num_samples is None:
            refuse_empty_masks(obs, (self.family.num_parameters,))
        else:
            model = SampledModel(network, self.num_samples, repeats)
        with torch.inference_mode():
            # A network of one's own may know observations alone.
            seen = model.initial(self.inputs(obs)) if latent is None else model.initial(None, latent)
            root = Root(*seen)
            discount = torch.full_like(root.value, settings["gamma"] * self.discount_sign)
            recurrent = Recurrent(model, discount)
            invalid = np.asarray(obs[MASK]) == 0 if isinstance(obs, dict) and MASK in obs else None
            more = {} if greedy is None else {"greedy": greedy}
            plan = self.search(root, recurrent, invalid, settings, **more)
            if self.num_samples is None:
                return plan
            assert isinstance(root.latent, dict)
            samples = root.latent[SAMPLES].cpu().numpy()
            return plan._replace(action=samples[np.arange(len(samples)), plan.action], samples=samples)

    def search(
        self,
        root: Root,
        recurrent: Any,
        invalid: np.ndarray | None,
        settings: Mapping[str, float],
        greedy: np.ndarray | None = None,
    ) -> Plan:
        fraction, temperature = settings["root_exploration_fraction"], settings["temperature"]
        shape = root.prior_logits.shape
        noise = dirichlet_noise(shape, invalid, settings["dirichlet_alpha"]) if fraction else None
        result = muzero_search(
            root,
            recurrent,
            num_simulations=int(settings["num_simulations"]),
            root_noise=noise,
            root_exploration_fraction=fraction,
            pb_c_init=settings["pb_c_init"],
            pb_c_base=settings["pb_c_base"],
            invalid_actions=invalid,
        )
        chances = visit_policy(result.visit_counts, temperature)
        action = chances.multinomial(1).squeeze(-1) if temperature else chances.argmax(-1)
        if greedy is not None:
            rows = torch.from_numpy(greedy).to(action.device)
            action = torch.where(rows, result.visit_counts.argmax(-1), action)
        return Plan(action.cpu().numpy(), result.action_weights.cpu().numpy(), result.value.cpu().numpy())


class GumbelSearchPolicy(SearchPolicy):
    """Gumbel MuZero's: the root's noise decides what is considered, and the temperature how loud it is."""

    transient = ("rescale_by",)

    def __init__(self, *spaces: Any, rescale_by: str, **more: Any) -> None:
        super().__init__(*spaces, **more)
        self.rescale_by = rescale_by

    def search(
        self,
        root: Root,
        recurrent: Any,
        invalid: np.ndarray | None,
        settings: Mapping[str, float],
        greedy: np.ndarray | None = None,
    ) -> Plan:
        shape, temperature = root.prior_logits.shape, settings["temperature"]
        gumbel = np.random.gumbel(size=shape) * temperature if temperature else np.zeros(shape)
        if greedy is not None:
            gumbel[greedy] = 0.0
        fraction = settings["root_exploration_fraction"]
        if fraction:
            drawn = dirichlet_noise(shape, invalid, settings["dirichlet_alpha"])
            noise = torch.from_numpy(drawn).to(root.prior_logits)
            mask = None if invalid is None else torch.from_numpy(invalid).to(noise.device)
            root = root._replace(prior_logits=mixed_prior(root.prior_logits, noise, fraction, mask))
        result = gumbel_muzero_search(
            root,
            recurrent,
            num_simulations=int(settings["num_simulations"]),
            gumbel=gumbel,
            max_considered_actions=int(settings["max_considered_actions"]),
            c_visit=settings["c_visit"],
            c_scale=settings["c_scale"],
            rescale_by=self.rescale_by,
            invalid_actions=invalid,
        )
        return Plan(
            *(column.cpu().numpy() for column in (result.action, result.action_weights, result.value))
        )
