"""A standard deviation that depends on the state: its first value, its bounds, and that it is learned."""

from __future__ import annotations

import pytest
import torch
from updates import warmed

from rl_training.algorithms.distributions import DiagonalGaussian
from rl_training.errors import ConfigError
from rl_training.networks.actor_critic import StateDependentHead
from rl_training.settings.ppo import PPOConfig

TINY = dict(env_id="Pendulum-v1", total_timesteps=1000, num_steps=16, hidden_sizes=[8], num_minibatches=1)


def test_it_begins_at_log_std_init_and_stays_between_its_bounds() -> None:
    torch.manual_seed(0)
    head = StateDependentHead(6, DiagonalGaussian(2), -1.5)
    features = torch.randn(5, 6)
    mean, log_std = head(features, features).chunk(2, -1)
    torch.testing.assert_close(mean, head.output(features))
    torch.testing.assert_close(log_std, torch.full((5, 2), -1.5), atol=0.2, rtol=0)
    assert log_std.std() > 0 and head.log_std is None
    far = head(1e6 * features, features)[:, 2:]
    assert far.min().item() == pytest.approx(-5.0) and far.max().item() == pytest.approx(2.0)


@pytest.mark.parametrize("algo", ["ppo", "trpo", "recurrent_ppo"])
def test_it_is_learned(algo: str) -> None:
    first, later = (warmed(algo, iterations, **TINY, state_dependent_std=True) for iterations in (0, 1))
    weights = [trainer.agent.network.actor_head.spread.weight for trainer in (first, later)]
    assert not torch.equal(*weights)
    for trainer in (first, later):
        trainer.close()


def test_compiled_updates_leave_it_to_torch() -> None:
    trainer = warmed("ppo", 0, **TINY, state_dependent_std=True)
    trainer.close()
    assert trainer.surrogate.explained == "torch (the policy is not of dense layers alone)"


def test_a_first_value_beyond_the_bounds_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"log_std_init must be between -5\.0 and 2\.0"):
        PPOConfig(env_id="Pendulum-v1", state_dependent_std=True, log_std_init=3.0)
