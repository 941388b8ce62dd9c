"""Trainer: an algorithm, one iteration at a time. The engine does everything else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, ClassVar, Generic, TypeVar

import torch
from gymnasium import spaces
from torch import nn

from rl_training.data.random_rollout import random_observations
from rl_training.envs.environments import Arguments
from rl_training.envs.spaces import ACTIONS, check_action_space
from rl_training.errors import ConfigError, about
from rl_training.networks.encoders import encoder_lines, is_image, is_small_image, without_small_pictures
from rl_training.runtime.controls import ARGUMENTS, Knobs
from rl_training.runtime.metrics import Metrics
from rl_training.runtime.updates import COMPILED, Choice
from rl_training.settings.config import Config
from rl_training.state.modules import Checksum, held_modules
from rl_training.state.segments import SegmentStore
from rl_training.state.stateful import Stateful

# What torch found on this machine, read before anything changes it.
PHYSICAL_CORES = torch.get_num_threads()

ROLLOUTS = "rollouts"  # what the record of paths calls the gathering of experience
EVALUATIONS = "evaluations"  # those during training
AS_BEGUN = "as this run began"  # why something is not compiled that could be
PYTHON = "python"  # the path of both where it is not compiled

ConfigT = TypeVar("ConfigT", bound=Config)


class Trainer(Stateful, Generic[ConfigT]):
    """What an algorithm must say: how its agent is made, and what an iteration is.

    All attributes are state unless named in `transient`. The agent is saved apart from the rest, so that a
    checkpoint's policy can be loaded without the training machinery.
    """

    transient: tuple[str, ...] = (
        "config",
        "agent",
        "observation_space",
        "action_space",
        "checksum",
        "as_begun",
    )
    config_class: ClassVar[type[Config]]
    action_spaces: ClassVar[tuple[type, ...]] = ACTIONS
    # Raised when the algorithm computes other numbers than before: docs/formats.md.
    revision: ClassVar[int] = 1
    # The methods that give it experience, and what is learned from: `debug` and `diff` show what they return.
    experience: ClassVar[tuple[str, ...]] = ()

    config: ConfigT
    agent: Any  # a Stateful that acts (data.collector.Policy)
    as_begun: frozenset[str] = frozenset()  # what stays in Python because its run began so

    def __init__(self, config: ConfigT, observation_space: spaces.Space, action_space: spaces.Space) -> None:
        with about("env_id"):
            check_action_space(action_space, f"env_id {config.env_id!r}: its action", self.action_spaces)
        self._refuse_curriculum(config)
        self.config = config
        observation_space = as_seen(config, observation_space)
        self.observation_space, self.action_space = observation_space, action_space
        self.agent = self.make_agent(config, observation_space, action_space)
        if config.normalize_observations:
            self.seed_normalizer()

    @property
    def threads(self) -> int:
        """Number of torch threads that its config asks for."""
        return self.config.torch_threads or default_threads(self.observation_space)

    @classmethod
    def make_agent(cls, config: ConfigT, observation_space: spaces.Space, action_space: spaces.Space) -> Any:
        """The acting part with fresh weights: all that evaluation and `load_policy` need."""
        raise NotImplementedError

    def seed_normalizer(self) -> None:
        """Take in the observations of a short random roll-out, so that the first rollout is normalised too."""
        if self.agent.normalizer.does_something:
            self.agent.observe(random_observations(self.config))

    def iterate(self, knobs: Knobs) -> Metrics:
        """One iteration: gather experience, learn from it, report."""
        raise NotImplementedError

    def begin_with(self, arguments: Arguments) -> None:
        """Let episodes that begin from now on have these arguments of the environment (`env_kwargs_schedule`)."""
        raise NotImplementedError

    def _refuse_curriculum(self, config: ConfigT) -> None:
        if config.env_kwargs_schedule and type(self).begin_with is Trainer.begin_with:
            raise ConfigError(f"env_kwargs_schedule: {config.algo_name} does not support it", (ARGUMENTS,))

    def keep_segments_in(self, store: SegmentStore) -> None:
        """Where to keep what only grows, such as a replay; most algorithms have nothing of the kind."""

    def encoders(self) -> list[str]:
        """Which encoder sees what, in words: what a run says first."""
        return encoder_lines(part for part in vars(self.agent).values() if isinstance(part, nn.Module))

    def paths(self) -> dict[str, str]:
        """How each of its updates is computed: `compiled` or `torch`. A run keeps to that."""
        return {name: part.path for name, part in self.choices().items()}

    def choices(self) -> dict[str, Choice]:
        """Its updates that have more than one path."""
        return {name: part for name, part in vars(self).items() if isinstance(part, Choice)}

    def keep_to(self, paths: Mapping[str, str]) -> None:
        """Compute as a run has done so far: by torch and in Python where `paths` does not say `compiled`."""
        here, steps = self.paths(), (ROLLOUTS, EVALUATIONS)
        self.as_begun = frozenset(name for name in steps if here.get(name) == COMPILED != paths.get(name))
        for name, part in self.choices().items():
            if paths.get(name) != COMPILED:
                part.use_torch(AS_BEGUN)

    def explained_rollouts(self) -> str:
        """How experience is gathered, and why not in compiled code."""
        if self.paths()[ROLLOUTS] == COMPILED:
            return COMPILED
        why = "compiled code cannot act with this policy"
        if self.config.vectorization != COMPILED:
            why = "the environments are not compiled"
        return f"{PYTHON} ({AS_BEGUN if ROLLOUTS in self.as_begun else why})"

    def networks(self) -> list[tuple[str, nn.Module]]:
        """All its networks by name, those of the agent first."""
        return held_modules(self.agent, self)

    def parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """All parameters of its networks by name, in the same order."""
        for name, part in self.networks():
            yield from ((f"{name}.{inner}", each) for inner, each in part.named_parameters())

    def digest(self) -> str:
        """CRC-32 over all parameters, in their order: what every log line carries, so that `verify` can compare.

        It finds flipped bits and other numbers in a fraction of the time of a cryptographic hash; it finds no forgery,
        and need not, because `verify` computes the parameters again.
        """
        return f"{self.checksum(self.agent, self):08x}"

    @cached_property
    def checksum(self) -> Checksum:
        return Checksum()

    def timing(self) -> dict[str, float]:
        """What a line of timing.jsonl shall hold besides the speed: all that depends on the clock."""
        return {}

    def largest_reward(self) -> float | None:
        """The largest reward of late, without its sign, for the message about a loss that is not finite."""
        return None

    def close(self) -> None:
        """Let go of processes and emulators."""


def as_seen(config: Config, observation_space: spaces.Space) -> spaces.Space:
    """An environment's observation space as the networks of a config see it."""
    return observation_space if config.small_pictures else without_small_pictures(observation_space)


def default_threads(observation_space: spaces.Space) -> int:
    """One thread for vectors and small grids, whose layers are too small to share; else all physical cores."""
    parts = (
        observation_space.spaces.values()
        if isinstance(observation_space, spaces.Dict)
        else [observation_space]
    )
    return PHYSICAL_CORES if any(is_image(part) and not is_small_image(part) for part in parts) else 1
