"""A learning rate of the critic's own: which parameters have it, by torch and compiled; without it nothing changes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from updates import warmed

from rl_training.runtime.controls import Controls
from rl_training.runtime.optim import Adam, TwoRateAdam

TINY: dict[str, Any] = dict(
    env_id="CartPole-v1", total_timesteps=1000, num_envs=2, num_steps=16, hidden_sizes=[8], num_minibatches=1
)


class Net(nn.Module):
    """Parts of a critic before, between and after those of an actor."""

    def __init__(self) -> None:
        super().__init__()
        self.critic_first, self.actor = nn.Linear(3, 4), nn.Linear(4, 4)
        self.critic_encoder, self.critic_body = nn.Linear(4, 2), nn.Linear(2, 2)
        self.actor_head, self.critic_head = nn.Linear(4, 5), nn.Linear(2, 1)


def stepped(make: Any, rates: list[tuple[float, float | None]], compiled: bool) -> tuple[Any, Net]:
    torch.manual_seed(4)
    network = Net()
    optimizer = make(network)
    for number, (common, own) in enumerate(rates):
        if isinstance(optimizer, TwoRateAdam):
            optimizer.apart_rate = own
        optimizer.gradient.copy_(torch.randn(len(optimizer.gradient)) * 10.0**-number)
        if compiled:
            optimizer.descend(common, 0.5)
        else:
            optimizer.move(common, 0.5)
    return optimizer, network


def two(network: Net) -> TwoRateAdam:
    return TwoRateAdam(network, "critic_", epsilon=1e-5)


def one(network: Net) -> Adam:
    return Adam([network], epsilon=1e-5)


@pytest.mark.parametrize("compiled", [True, False])
def test_each_part_moves_at_its_own_rate(compiled: bool) -> None:
    _, ours = stepped(two, [(0.01, 0.03)] * 3, compiled)
    _, actor = stepped(one, [(0.01, None)] * 3, compiled)
    _, critic = stepped(one, [(0.03, None)] * 3, compiled)
    for name, parameter in ours.named_parameters():
        expected = (critic if name.startswith("critic_") else actor).get_parameter(name)
        torch.testing.assert_close(parameter, expected, rtol=1e-6, atol=1e-8)


def test_compiled_code_steps_as_torch_does() -> None:
    rates: list[tuple[float, float | None]] = [(0.01, 0.03), (0.0, 0.02), (0.02, 0.0), (0.01, None)]
    (ours, _), (theirs, _) = (stepped(two, rates, compiled) for compiled in (True, False))
    for name in ("parameters", "mean", "square", "count"):
        torch.testing.assert_close(getattr(ours, name), getattr(theirs, name), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("compiled", [True, False])
def test_without_a_rate_of_its_own_it_is_adam_to_the_bit(compiled: bool) -> None:
    (ours, _), (plain, _) = (stepped(make, [(0.01, None)] * 3, compiled) for make in (two, one))
    for name in ("parameters", "mean", "square", "count"):
        assert torch.equal(getattr(ours, name), getattr(plain, name))
    assert ours.state_dict().keys() == plain.state_dict().keys()


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(
    ("algo", "settings"),
    [
        ("ppo", {}),
        ("ppo", dict(shared_trunk=True)),
        ("recurrent_ppo", dict(recurrent_size=4)),
        ("gail", dict(demonstrations="gail/cartpole_expert.npz")),
        ("appo", dict(fleet="inline", num_actors=1)),
    ],
)
def test_a_critic_of_rate_nothing_stays(algo: str, settings: dict[str, Any], compiled: bool) -> None:
    trainer = warmed(
        algo, 1, **TINY | settings, critic_learning_rate=0.01, learning_rate=0.01, compiled_updates=compiled
    )
    network, config = trainer.agent.network, trainer.config.model_copy(update={"critic_learning_rate": 0.0})
    before = copy.deepcopy(dict(network.named_parameters()))
    trainer.iterate(Controls.of(config).at(100))
    trainer.close()
    moved = {name: not torch.equal(before[name], new) for name, new in network.named_parameters()}
    assert {name for name, has in moved.items() if has} == {
        name for name in moved if not name.startswith("critic_")
    }
