"""What the on-policy algorithms refuse, each in one line before a run begins."""

import pytest

from rl_training import load_config
from rl_training.errors import ConfigError


@pytest.mark.parametrize("algo", ["ppo", "trpo", "ppg"])
def test_more_minibatches_than_rows_are_refused(algo):
    settings = dict(algo=algo, env_id="CartPole-v1", num_envs=2, num_steps=4, auxiliary_minibatches=1)
    if algo != "ppg":
        del settings["auxiliary_minibatches"]
    assert load_config(settings | dict(num_minibatches=8)).num_minibatches == 8
    with pytest.raises(ConfigError, match=r"num_minibatches must be at most num_envs \* num_steps = 8"):
        load_config(settings | dict(num_minibatches=9))


@pytest.mark.parametrize("algo", ["trpo", "ppg", "recurrent_ppo"])
def test_single_precision_only(algo):
    """Their losses are computed outside of autocast, so acting in bf16 would be another policy than the one learned."""
    with pytest.raises(ConfigError, match="precision"):
        load_config(dict(algo=algo, env_id="CartPole-v1", precision="bf16"))


@pytest.mark.parametrize(
    ("algo", "key", "value"),
    [
        ("recurrent_ppo", "hidden_sizes", [-3]),
        ("recurrent_ppo", "recurrent_size", 65_537),
        ("recurrent_ppo", "recurrent_size", 0),
        ("ppg", "num_steps", 1_000_001),
        ("ppg", "policy_iterations", 1_000_001),
    ],
)
def test_sizes_have_bounds(algo, key, value):
    with pytest.raises(ConfigError, match=key):
        load_config(dict(algo=algo, env_id="CartPole-v1") | {key: value})
