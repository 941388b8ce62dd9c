"""A network of one's own is used: whatever is overridden is called, in acting and in learning."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from runs import EXAMPLES, TINY_DREAMER, small_config
from torch import nn
from torch.nn.utils import parametrize

from rl_training import networks
from rl_training.kernels.exact import Shortcut, is_exact
from rl_training.networks.actor_critic import ActorCritic, PhasicActorCritic
from rl_training.policies.actor_critic import ActorCriticPolicy
from rl_training.registry import trainer_class
from rl_training.runtime.controls import Controls
from rl_training.runtime.ppo_trainer import PPOTrainer
from rl_training.runtime.workflows import make_trainer
from rl_training.state.seeding import seed_everything

# Trainers that learn in each of their iterations, and between them have every network.
SOON: dict[str, Any] = dict(learning_starts=1, replay_ratio=1.0, batch_size=4, train_frequency=2)
PLANS: dict[str, Any] = SOON | dict(
    replay_ratio=0.1,
    train_frequency=8,
    num_simulations=2,
    num_simulations_schedule=None,
    temperature_schedule=None,
)
PICTURES: dict[str, Any] = dict(
    env_id="probe/DictAndPicture-v0", num_envs=2, num_steps=4, num_minibatches=1, update_epochs=1
)
TRAINERS: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo": ("ppo-cartpole", dict(num_steps=4, update_epochs=1)),
    "ppo, shared": ("ppo-cartpole", dict(num_steps=4, update_epochs=1, shared_trunk=True)),
    "ppo, gaussian": ("ppo-pendulum", dict(num_steps=4, update_epochs=1, num_envs=4)),
    "ppo, nature": ("ppo-cartpole", PICTURES),
    "ppo, small": (
        "ppo-cartpole",
        PICTURES | dict(env_id="probe/Bright-v0", env_kwargs=dict(shape=[7, 7, 3], dtype="uint8")),
    ),
    "ppo, impala": ("ppo-cartpole", PICTURES | dict(image_encoder="impala")),
    "trpo": ("trpo-pendulum", dict(num_steps=4, num_minibatches=1, update_epochs=1)),
    "ppg": ("ppg-cartpole", dict(num_steps=4, policy_iterations=1, auxiliary_epochs=1)),
    "recurrent": ("recurrent-cartpole", dict(num_steps=4, update_epochs=1)),
    "gail": (
        "gail-cartpole",
        dict(num_steps=8, update_epochs=1, bc_epochs=0, discriminator_rollouts=1, discriminator_batch_size=4),
    ),
    "gail, spectral": (
        "gail-pendulum",
        dict(num_steps=8, update_epochs=1, discriminator_batch_size=4),
    ),
    "sac": ("sac-pendulum", SOON | dict(tau_schedule=None)),
    "sac, brought": (
        "sac-pendulum",
        SOON
        | dict(
            tau_schedule=None,
            network={f"{EXAMPLES}/residual.py:Residual": {"width": 8}},
            encoder=f"{EXAMPLES}/residual.py:Fourier",
        ),
    ),
    "dqn": ("dqn-cartpole", SOON | dict(dueling=False, n_step=1)),
    "dqn, dueling": ("dqn-cartpole", SOON | dict(n_step=1)),
    "muzero": ("muzero-cartpole", PLANS),
    "muzero, pictures": ("muzero-cartpole", PLANS | dict(env_id="probe/Bright-v0")),
    "efficientzero": ("efficientzero-cartpole", PLANS | dict(prefix_horizon=2)),
    "efficientzero, pictures": (  # in channels that compiled functions take
        "efficientzero-cartpole",
        PLANS | dict(env_id="probe/Bright-v0", prefix_horizon=2, latent_size=16, prefix_size=8),
    ),
    "scalezero": ("scalezero-classic", PLANS | dict(replay_ratio=0.04)),
    "scalezero, pictures": (  # which share an encoder
        "scalezero-classic",
        PLANS | dict(replay_ratio=0.04, env_ids=["probe/Bright-v0", "probe/Dark-v0"], solved_returns={}),
    ),
    "dreamer": (
        "dreamer-cartpole",
        TINY_DREAMER
        | dict(
            env_id="probe/DictAndPicture-v0",
            learning_starts=1,
            train_ratio=1.0,
            batch_size=2,
            train_frequency=16,
        ),
    ),
}
# Called when a network is built, reported on or exported, and for nothing that is acted or learned.
ELSEWHERE = {
    ("StateDependentHead", "forward"),
    ("NatureCNN", "layers"),
    ("ImpalaCNN", "layers"),
    ("SmallCNN", "layers"),
    ("ImageInputs", "layers"),
    ("RSSM", "compile"),
    ("Vector", "predict"),
    ("Choices", "predict"),
    ("Picture", "predict"),
    ("FoldedPicture", "enlarge"),  # tests/networks/test_network_layers.py
    ("Reconstruction", "predict"),
    ("Part", "encode"),
    ("BoardMoves", "forward"),  # of boards, as the next two: tests/networks/test_board_tower.py
    ("BoardDynamics", "forward"),
    ("BoardHeads", "forward"),
    ("ScaleZeroNetwork", "groups"),
    ("Transformer", "of_stage"),
    ("ScaleZeroNetwork", "begin"),
    ("StagedLinear", "of_stage"),
    ("StagedWeight", "of_stage"),
    ("StagedWeight", "begin"),
    ("Block", "frozen_after_stage_zero"),
}
# What the shortcuts themselves are made of: what an overridden layer is asked for is its `forward`.
PARTS_OF_SHORTCUTS = {
    ("Dense", "part"),
    ("Dense", "finish"),
    ("ActionHead", "complete"),
    ("BlockLinear", "blocks"),
    ("FrameNorm", "folded"),
    ("FrameNorm", "factor"),
}

Calls = set[tuple[type, str, str]]  # class, method, phase


@cache
def network_classes() -> list[type[nn.Module]]:
    """All modules that are defined in `rl_training.networks`."""
    found = []
    for module in pkgutil.iter_modules(networks.__path__, networks.__name__ + "."):
        for value in vars(importlib.import_module(module.name)).values():
            if inspect.isclass(value) and issubclass(value, nn.Module) and value.__module__ == module.name:
                found.append(value)
    return found


def methods(kind: type) -> list[str]:
    """What a class defines and its users call."""
    return [name for name, value in vars(kind).items() if inspect.isfunction(value) and name[0] != "_"]


class Phase:
    """Which of acting and learning is going on, so that calls can be told apart."""

    def __init__(self, name: str) -> None:
        run, changes = TRAINERS[name]
        self.config = small_config(run, **changes)
        self.trainer = make_trainer(self.config)
        self.phase = ""
        self.calls: Calls = set()
        for gathering in ("collect", "gather"):
            if hasattr(self.trainer, gathering):
                setattr(self.trainer, gathering, self.silenced(getattr(self.trainer, gathering)))

    def silenced(self, gather: Callable[..., Any]) -> Callable[..., Any]:
        def gathered(*args: Any) -> Any:
            phase, self.phase = self.phase, ""
            try:
                return gather(*args)
            finally:
                self.phase = phase

        return gathered

    def call(self, kind: type, name: str) -> None:
        if self.phase:
            self.calls.add((kind, name, self.phase))

    def go(self) -> Calls:
        """What is called in a few actions and in an iteration that learns."""
        trainer, agent = self.trainer, self.trainer.agent
        self.calls = set()
        seed_everything(1)
        several = bool(self.config.tasks)
        home = trainer.tasks[0] if several else getattr(trainer, "collector", trainer)
        acting, obs = agent.for_task(self.config.tasks[0]) if several else agent, home.environments.obs
        self.phase = "acting"
        carry = acting.initial(self.config.num_envs)
        acting.act(obs, carry, explore=True)
        with suppress(NotImplementedError):  # where critics stay with the trainer
            acting.value(obs, carry)
        self.phase = "learning"
        trainer.iterate(Controls.of(self.config).at(0))
        self.phase = ""
        return self.calls

    def modules(self) -> list[nn.Module]:
        """All modules of the trainer and of its agent."""
        homes = (vars(self.trainer), vars(self.trainer.agent))
        whole = [value for home in homes for value in home.values() if isinstance(value, nn.Module)]
        return list({id(part): part for module in whole for part in module.modules()}.values())

    @contextmanager
    def overridden(self, kind: type) -> Iterator[None]:
        """Every part of exactly this class becomes one of a subclass that counts the calls of all its methods."""
        homes = [home for home in kind.__mro__ if home in network_classes()]
        counted = {
            name: counting(self, home, name, vars(home)[name])
            for home in reversed(homes)
            for name in methods(home)
        }
        own = type(f"Own{kind.__name__}", (kind,), counted)
        parts = [part for part in self.modules() if type(part) is kind]
        for part in parts:
            part.__class__ = own
        try:
            yield
        finally:
            for part in parts:
                part.__class__ = kind


def without_shortcuts(phase: Phase) -> Calls:
    """What is called where no shortcut is taken."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Shortcut, "__call__", lambda self: None)
        for kind in network_classes():
            for name in methods(kind):
                patch.setattr(kind, name, counting(phase, kind, name, getattr(kind, name)))
        return phase.go()


def counting(phase: Phase, kind: type, name: str, original: Any) -> Any:
    def counted(part: Any, *args: Any, **more: Any) -> Any:
        phase.call(kind, name)
        return original(part, *args, **more)

    return counted


@cache
def phase_and_reference(name: str) -> tuple[Phase, Calls]:
    phase = Phase(name)
    return phase, without_shortcuts(phase)


@pytest.mark.parametrize("name", TRAINERS)
def test_what_is_overridden_in_a_network_is_called(name: str) -> None:
    phase, expected = phase_and_reference(name)
    for own in {type(part) for part in phase.modules()} & set(network_classes()):
        with phase.overridden(own):
            seen = phase.go()
        wanted = {call for call in expected if issubclass(own, call[0]) and call[:2] in own_methods(own)}
        missed = {call for call in wanted - seen if (call[0].__name__, call[1]) not in PARTS_OF_SHORTCUTS}
        assert not missed


def own_methods(kind: type) -> set[tuple[type, str]]:
    """Its methods and those it inherits, each with the class that defines it."""
    found: dict[str, type] = {}
    for home in kind.__mro__:
        if home in network_classes():
            found = dict.fromkeys(methods(home), home) | found
    return {(home, name) for name, home in found.items()}


def test_no_method_of_a_network_is_left_out() -> None:
    every = {(kind.__name__, name) for kind in network_classes() for name in methods(kind)}
    called = {(kind.__name__, name) for each in TRAINERS for kind, name, _ in phase_and_reference(each)[1]}
    assert every - called - PARTS_OF_SHORTCUTS == ELSEWHERE


def leaves(phase: Phase) -> list[nn.Module]:
    """Of each kind of torch's layers the first and the last of a trainer's agent."""
    networks = [value for value in vars(phase.trainer.agent).values() if isinstance(value, nn.Module)]
    by_kind: dict[type, list[nn.Module]] = {}
    for part in (part for network in networks for part in network.modules()):
        if type(part).__module__.startswith("torch.nn"):
            by_kind.setdefault(type(part), []).append(part)
    return [part for parts in by_kind.values() for part in {id(p): p for p in (parts[0], parts[-1])}.values()]


@pytest.mark.parametrize(
    "name", ["ppo", "ppo, nature", "sac", "dqn", "efficientzero", "efficientzero, pictures"]
)
def test_a_hook_of_any_layer_is_called(name: str) -> None:
    phase = Phase(name)
    for part in leaves(phase):
        handle = part.register_forward_hook(lambda part, *_: phase.call(type(part), "hook"))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Shortcut, "__call__", lambda self: None)
            wanted = phase.go()
        seen = phase.go()
        handle.remove()
        assert wanted <= seen


class Doubled(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return 2 * weight


def test_what_is_put_on_an_instance_ends_its_exactness() -> None:
    for change in (
        lambda layer: setattr(layer, "forward", lambda x: x),
        lambda layer: layer.register_forward_hook(lambda *_: None),
        lambda layer: layer.register_forward_pre_hook(lambda *_: None),
        lambda layer: layer.register_full_backward_hook(lambda *_: None),
        lambda layer: parametrize.register_parametrization(layer, "weight", Doubled()),
    ):
        layer = nn.Linear(2, 2)
        assert is_exact(layer, nn.Linear) and not is_exact(layer, nn.Conv2d)
        change(layer)
        assert not is_exact(layer, nn.Linear)


class OwnActorCritic(ActorCritic):
    """What a user writes: the first thing one overrides."""

    calls = 0

    def forward(self, obs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        type(self).calls += 1
        parameters, value = super().forward(obs)
        return parameters, 2 * value


def test_a_network_class_of_ones_own_acts_values_and_learns() -> None:
    class OwnPolicy(ActorCriticPolicy):
        network_class = OwnActorCritic

    class OwnTrainer(PPOTrainer):
        policy_class = OwnPolicy

    config = small_config("ppo-cartpole", num_steps=4, update_epochs=1)
    trainer = OwnTrainer(config)
    obs, agent = trainer.collector.environments.obs, trainer.agent
    acted, _ = agent.act(obs, (), explore=True)
    assert OwnActorCritic.calls == 1
    # The values that are bootstrapped from are those of the overridden `forward` too.
    np.testing.assert_allclose(agent.value(obs, ()), acted["value"], rtol=1e-6)
    OwnActorCritic.calls = 0
    trainer.iterate(Controls.of(config).at(0))
    assert OwnActorCritic.calls == 4 + 1 + 4  # steps, the bootstrap, minibatches


def test_the_value_of_a_phasic_network_of_ones_own_is_its_forwards() -> None:
    class Doubled(PhasicActorCritic):
        def forward(self, obs: Any) -> tuple[torch.Tensor, torch.Tensor]:
            parameters, value = super().forward(obs)
            return parameters, 2 * value

    network = trainer_class("ppg")(small_config("ppg-cartpole")).agent.network
    network.__class__ = Doubled
    obs = torch.ones(3, 4)
    assert torch.equal(network.value(obs), network(obs)[1])


def test_a_part_that_is_exchanged_is_the_one_that_acts_and_learns() -> None:
    """Also where the new part is of a class for which there is a shortcut."""
    trainer = trainer_class("ppo")(small_config("ppo-cartpole"))
    agent, obs = trainer.agent, np.ones((4, 4), np.float32)
    agent.act(obs, (), explore=False)
    agent.network.critic_head = nn.Linear(64, 1)
    nn.init.zeros_(agent.network.critic_head.weight)
    nn.init.constant_(agent.network.critic_head.bias, 7.0)
    assert agent.small is not None and agent.small() is not None
    assert agent.act(obs, (), explore=False)[0]["value"].tolist() == [7.0] * 4
    assert agent.network.for_loss(torch.from_numpy(obs))[1].tolist() == [7.0] * 4


def test_convolutions_with_other_layers_between_them_are_computed_as_they_are() -> None:
    from rl_training.networks.encoders import NatureCNN

    class Smooth(NatureCNN):
        def layers(self, channels: int, side: int) -> list[nn.Module]:
            return [
                layer if isinstance(layer, nn.Conv2d) else nn.GELU()
                for layer in super().layers(channels, side)
            ]

    encoder = Smooth(spaces.Box(0, 255, (12, 12, 3), np.uint8))
    picture = torch.randint(0, 256, (2, 12, 12, 3), dtype=torch.uint8)
    expected = encoder.convolutions(picture.permute(0, 3, 1, 2) / 255)
    torch.testing.assert_close(encoder.convolved(picture.permute(0, 3, 1, 2)), expected)
    assert expected.min() < 0
