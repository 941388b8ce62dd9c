"""Hidden layers and encoders that a config names: they act, they learn, and other layers of ours do too."""

from pathlib import Path

import numpy as np
import pytest
import torch
from runs import EXAMPLES, small_config
from torch import nn

from rl_training import evaluate_checkpoint, load_config, load_policy, train
from rl_training.errors import ConfigError, UntrustedError
from rl_training.kernels.exact import taken
from rl_training.networks.soft_actor_critic import SeparateCritics, TwinCritics
from rl_training.parts import load
from rl_training.runtime.controls import Controls
from rl_training.runtime.workflows import make_trainer
from rl_training.tools.exporting import export_policy

RESIDUAL = f"{EXAMPLES}/residual.py:Residual"
FOURIER = f"{EXAMPLES}/residual.py:Fourier"
OWN = dict(network={RESIDUAL: {"width": 8}}, encoder={FOURIER: {"frequencies": 4}})
SOON = dict(learning_starts=1, batch_size=4, train_frequency=8, replay_ratio=0.25)
PLANS = SOON | dict(num_simulations=2, num_simulations_schedule=None, temperature_schedule=None)
# Every algorithm with the seam, so small that each iteration learns.
TRAINERS = {
    "ppo-cartpole": dict(num_steps=8, update_epochs=1),
    "a2c-cartpole": {},
    "trpo-pendulum": dict(num_steps=8, num_minibatches=1),
    "ppg-cartpole": dict(num_steps=8, policy_iterations=1, auxiliary_epochs=1),
    "recurrent-cartpole": dict(num_steps=8, update_epochs=1),
    "impala-cartpole": dict(fleet="inline"),
    "appo-cartpole": dict(fleet="inline"),
    "sac-pendulum": SOON | dict(tau_schedule=None),
    "dqn-cartpole": SOON | dict(n_step=1),
    "gail-cartpole": dict(
        discriminator_network={RESIDUAL: {"width": 6}}, discriminator_encoder={FOURIER: {"frequencies": 3}}
    ),
    "muzero-cartpole": PLANS,
    "gumbel-cartpole": PLANS,
    "efficientzero-cartpole": PLANS,
    "scalezero-classic": {},
}


def brought(trainer):
    """The modules of the user in a trainer and its agent, without copies that are targets."""
    kinds = load(RESIDUAL), load(FOURIER)
    held = [*vars(trainer.agent).values(), *vars(trainer).values()]
    modules = [part for one in held if isinstance(one, nn.Module) for part in one.modules()]
    return {id(part): part for part in modules if isinstance(part, kinds)}


@pytest.mark.parametrize("name", TRAINERS)
def test_an_own_network_acts_and_learns_in_every_algorithm(name, monkeypatch):
    config = small_config(name, **OWN, **TRAINERS[name])
    trainer, knobs = make_trainer(config), Controls.of(config)
    modules = brought(trainer)
    assert {type(module).__name__ for module in modules.values()} == {"Residual", "Fourier"}
    called = {True: set(), False: set()}  # whether with gradients -> which classes
    for kind in (load(RESIDUAL), load(FOURIER)):
        forward = kind.forward

        def noting(self, rows, forward=forward):
            called[torch.is_grad_enabled()].add(type(self).__name__)
            return forward(self, rows)

        monkeypatch.setattr(kind, "forward", noting)
    before = {id(p): p.detach().clone() for module in modules.values() for p in module.parameters()}
    step = 0
    while step < max(300, 3 * config.steps_per_iteration):
        trainer.iterate(knobs.at(step))
        step += config.steps_per_iteration
    trainer.close()
    assert called == {True: {"Residual", "Fourier"}, False: {"Residual", "Fourier"}}
    for module in modules.values():
        moved = [not torch.equal(before[id(p)], p) for p in module.parameters()]
        targets = "target" in " ".join(
            n
            for n, v in vars(trainer).items()
            if isinstance(v, nn.Module) and any(part is module for part in v.modules())
        )
        assert any(moved) or targets, f"{type(module).__name__} never moved"


@pytest.mark.parametrize("name", ["own-network-ppo", "own-network-sac"])
def test_a_run_with_an_own_network_is_opened_by_everyone_who_trusts_it(name, trained_run, tmp_path):
    run = Path(trained_run(name))
    with pytest.raises(UntrustedError, match="network"):
        load_policy(run)
    with pytest.raises(UntrustedError, match="network"):
        evaluate_checkpoint(run)
    assert evaluate_checkpoint(run, episodes=1, trust=True)["episodes"] == 1
    policy = load_policy(run, trust=True)
    assert np.isfinite(policy.act(policy.observation_space.sample())).all()
    assert export_policy(run, tmp_path / "policy.pt2", trust=True).difference < 1e-5


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            dict(network={RESIDUAL: {"wide": 3}}),
            "network '.*Residual' cannot be created with {'wide': 3}: TypeError",
        ),
        (
            dict(network=f"{__file__}:Flat"),
            r"network '.*:Flat' must map two rows to \[2, features\], not \[2\]",
        ),
        (
            dict(network=f"{__file__}:Raising"),
            "network '.*:Raising' fails on two rows of zeros: ValueError: no",
        ),
        (dict(network="builtins:int"), "network 'builtins:int' returns a int, not a torch.nn.Module"),
    ],
)
def test_what_is_no_network_is_refused_before_a_run_is_begun(settings, said, tmp_path):
    with pytest.raises(ConfigError, match=said) as refusal:
        train(small_config("ppo-cartpole", **settings), run_dir=tmp_path / "run", quiet=True)
    assert "\n" not in str(refusal.value) and not (tmp_path / "run").exists()


class Flat(nn.Module):
    def __init__(self, inputs):
        super().__init__()

    def forward(self, rows):
        return rows.sum(-1)


class Raising(Flat):
    def forward(self, rows):
        raise ValueError("no")


@pytest.mark.parametrize("name", ["ppo-cartpole", "ppo-pendulum", "sac-pendulum"])
def test_actor_and_critic_may_have_other_sizes_and_act_alike_on_every_path(name):
    config = small_config(name, actor_sizes=[5], critic_sizes=[7, 3], normalize_observations=False)
    trainer = make_trainer(config)
    critic = (
        trainer.critics.weights
        if name.startswith("sac")
        else list(trainer.agent.network.critic_encoder[1])[::2]
    )
    shapes = [part.shape[-1] if name.startswith("sac") else part.out_features for part in critic]
    assert shapes[:2] == [7, 3]
    agent = trainer.agent
    network = agent.actor if name.startswith("sac") else agent.network
    assert (network.encoder if name.startswith("sac") else network.actor_encoder)[1][0].out_features == 5
    obs = trainer.observation_space.sample()[None]
    assert taken(agent.small) is not None
    ours, _ = agent.act(obs, agent.initial(1), explore=False)
    with torch.no_grad():
        theirs = agent.greedy(agent.inputs(obs), agent.initial(1))[0]
    np.testing.assert_allclose(ours["action"], theirs.numpy(), atol=1e-5)
    trainer.iterate(Controls.of(config).at(0))
    trainer.close()


@pytest.mark.parametrize("name", ["ppo-cartpole", "dqn-cartpole", "sac-pendulum", "recurrent-cartpole"])
def test_layer_normalisation_stands_before_every_activation(name):
    trainer = make_trainer(small_config(name, layer_norm=True, hidden_sizes=[6, 4]))
    held = [
        value
        for value in (*vars(trainer.agent).values(), *vars(trainer).values())
        if isinstance(value, nn.Module)
    ]
    stacks = [
        part for one in held for part in one.modules() if isinstance(part, nn.Sequential) and len(part) == 6
    ]
    assert len(stacks) >= 2 if name != "dqn-cartpole" else stacks
    for stack in stacks:
        assert [type(part) for part in list(stack)[:2]] == [nn.Linear, nn.LayerNorm]
        assert [part.normalized_shape for part in stack if isinstance(part, nn.LayerNorm)] == [(6,), (4,)]
    assert getattr(trainer.agent, "small", None) is None  # compiled acting knows no normalisation
    trainer.close()


def test_plain_critics_stay_one_product_and_frozen_ones_pass_gradients_to_the_action_alone():
    plain, normed = (make_trainer(small_config("sac-pendulum", layer_norm=on)) for on in (False, True))
    assert type(plain.critics) is TwinCritics and type(normed.critics) is SeparateCritics
    obs, action = torch.rand(3, 3), torch.zeros(3, 1, requires_grad=True)
    q = normed.critics(obs, action, frozen=True)
    assert q.shape == (2, 3)
    q.sum().backward()
    assert action.grad.abs().sum() > 0
    assert all(not p.grad.any() for p in normed.critics.parameters() if p.grad is not None)
    assert all(p.requires_grad for p in normed.critics.parameters())
    torch.testing.assert_close(q, normed.critics(obs, action))
    for trainer in (plain, normed):
        trainer.close()


GAIL = dict(algo="gail", demonstrations="a.npz", discriminator_network=RESIDUAL)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            dict(algo="ppo", actor_sizes=[8], shared_trunk=True),
            "actor_sizes must be none with shared_trunk",
        ),
        (GAIL | dict(spectral_norm=True), "spectral_norm must be false"),
        (dict(algo="dreamer", network=RESIDUAL), "network belongs to .*, not to dreamer"),
        (dict(algo="muzero", layer_norm=True), "layer_norm belongs to .*, not to muzero"),
    ],
)
def test_settings_without_an_effect_are_refused(settings, said):
    with pytest.raises(ConfigError, match=said):
        load_config(settings | dict(env_id="CartPole-v1"))
