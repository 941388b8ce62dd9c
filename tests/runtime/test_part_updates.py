"""Compiled updates of a policy or a critic by itself, and of policies held by another, beside torch's."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from updates import perturb, warmed

from rl_training.algorithms.appo import appo_loss
from rl_training.algorithms.distributions import (
    Bernoulli,
    Categorical,
    DiagonalGaussian,
    Family,
    Joint,
    MultiCategorical,
    SquashedGaussian,
)
from rl_training.algorithms.impala import impala_loss
from rl_training.algorithms.masking import BLOCKED
from rl_training.algorithms.ppg import joint_loss
from rl_training.algorithms.ppo import fit_loss, surrogate_loss
from rl_training.algorithms.slopes import DIVERGENCE
from rl_training.data.batch import flatten_time
from rl_training.data.collector import in_tensors
from rl_training.kernels.divergences import divergence_slopes, measure_divergence, normalize_anchors
from rl_training.kernels.families import UNMASKED, evaluate_actions, family_table
from rl_training.policies.actor_critic import ActorCriticPolicy
from rl_training.runtime import appo_trainer, impala_trainer, ppg_trainer, trpo_trainer
from rl_training.runtime.controls import Controls
from rl_training.runtime.on_policy import policy_settings
from rl_training.runtime.optim import RMSprop, adam_of
from rl_training.settings.impala import IMPALAConfig


def several(sizes: np.ndarray) -> MultiCategorical:
    return MultiCategorical(tuple(sizes.tolist()))


def joint(parts: np.ndarray) -> Joint:
    first, choices, coins, last = parts.tolist()
    families = (
        DiagonalGaussian(first),
        several(parts[: 1 + choices % 3] + 1),
        Bernoulli(coins),
        SquashedGaussian(last),
    )
    return Joint(families, (first, 1 + choices % 3, coins, last))


# Of sizes that are drawn.
FAMILIES: dict[str, Callable[[np.random.Generator], Family]] = {
    "categorical": lambda rng: Categorical(int(rng.integers(2, 12))),
    "multi-categorical": lambda rng: several(rng.integers(2, 6, rng.integers(1, 5))),
    "Bernoulli": lambda rng: Bernoulli(int(rng.integers(1, 7))),
    "Gaussian": lambda rng: DiagonalGaussian(int(rng.integers(1, 7))),
    "squashed": lambda rng: SquashedGaussian(int(rng.integers(1, 7))),
    "joint": lambda rng: joint(rng.integers(1, 5, 4)),
}


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("masked", [False, True])
def test_a_divergence_and_its_slopes_are_those_of_autograd(name: str, seed: int, masked: bool) -> None:
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(2, 200)) if seed else 1
    family, count = FAMILIES[name](rng), 2 * rows
    table, chosen = family_table(family), torch.randperm(count)[:rows]
    old, raw = torch.randn(count, family.num_parameters), torch.randn(rows, family.num_parameters)
    blocked = torch.zeros(count, family.num_parameters, dtype=torch.bool)
    if masked and family.logits:
        second = family.logits[1]  # of the first choice; others stay
        blocked[:, second] = torch.rand(count) < 0.5
    parameters = raw.requires_grad_().masked_fill(blocked[chosen], BLOCKED)
    old = old.masked_fill(blocked, BLOCKED)
    weight = torch.randn(rows)
    expected = family.kl(old[chosen], parameters)
    (weight * expected).sum().backward()

    anchors = old.numpy().copy()
    normalize_anchors(table, anchors)
    outputs = np.concatenate([raw.detach().numpy(), np.zeros((rows, 1), np.float32)], 1)
    masks = (~blocked).numpy() if masked and family.logits else UNMASKED
    said, slopes = np.zeros((rows, 4), np.float32), np.zeros((rows, family.num_parameters + 1), np.float32)
    evaluate_actions(table, outputs, np.zeros((count, 20), np.float32), masks, chosen.numpy(), said)
    measure_divergence(table, outputs, anchors, chosen.numpy(), said)
    np.testing.assert_allclose(said[:, DIVERGENCE], expected.detach(), rtol=1e-4, atol=1e-5)
    said[:, DIVERGENCE] = weight
    slopes[:] = 0.5  # they are added
    divergence_slopes(table, outputs, anchors, chosen.numpy(), said, slopes)
    assert raw.grad is not None
    np.testing.assert_allclose(slopes[:, :-1] - 0.5, raw.grad, rtol=1e-4, atol=1e-5)
    assert (slopes[:, -1] == 0.5).all()


class Noise(gym.Env):  # type: ignore[type-arg]
    """Observations and rewards of noise, for actions of any space."""

    observation_space = spaces.Box(-1, 1, (3,))

    def __init__(self, action_space: spaces.Space[Any]) -> None:
        self.action_space = action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        return self._seen(), float(np.sum(action)), bool(self.np_random.random() < 0.1), False, {}

    def _seen(self) -> np.ndarray:
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)


SPACES: dict[str, spaces.Space[Any]] = {
    "Box": spaces.Box(-1, 1, (2,)),
    "MultiDiscrete": spaces.MultiDiscrete([2, 3]),
    "MultiBinary": spaces.MultiBinary(2),
}
for name, space in SPACES.items():
    gym.register(f"parts/{name}-v0", entry_point=Noise, kwargs={"action_space": space})
ENVS = ["CartPole-v1", "probe/Masked-v0", "probe/JointTask-v0", *(f"parts/{name}-v0" for name in SPACES)]
SMALL: dict[str, Any] = dict(
    total_timesteps=1000,
    num_envs=3,
    num_steps=60,  # 180 rows: more than a block
    hidden_sizes=(20, 9),
    learning_rate=0.003,
    vectorization="sync",
    normalize_observations=True,
)


def both(algo: str, iterations: int, **settings: Any) -> tuple[Any, Any]:
    """A trainer whose updates are compiled and one that learns by torch, from the same draws."""
    ours, theirs = (
        warmed(algo, iterations, **SMALL | settings, compiled_updates=how) for how in (True, False)
    )
    assert {update.path for update in ours.choices().values()} == {"compiled"}
    assert {update.path for update in theirs.choices().values()} == {"torch"}
    return ours, theirs


def assert_same(ours: Any, theirs: Any, *optimizers: str) -> None:
    for name in optimizers:
        pair = [getattr(trainer, name) for trainer in (ours, theirs)]
        torch.testing.assert_close(*(each.parameters for each in pair), rtol=1e-3, atol=2e-4)
        means = [each.mean for each in pair]
        torch.testing.assert_close(*means, rtol=1e-2, atol=1e-3 * float(means[1].abs().max()))


@pytest.mark.parametrize("env_id", ["CartPole-v1", "parts/Box-v0"])
@pytest.mark.parametrize("max_grad_norm", [None, 0.5])
def test_trpo_fits_values_as_torch_does(env_id: str, max_grad_norm: float | None) -> None:
    settings = dict(num_minibatches=4, update_epochs=3, vf_coef=0.7, max_grad_norm=max_grad_norm)
    assert_same(*both("trpo", 2, env_id=env_id, **settings), "optimizer")


@pytest.mark.parametrize("env_id", ENVS)
def test_the_policy_phase_of_ppg_is_torchs(env_id: str) -> None:
    settings = dict(num_minibatches=1, policy_epochs=2, value_epochs=2, vf_coef=0.7, ent_coef=0.02)
    assert_same(*both("ppg", 3, env_id=env_id, **settings), "policy_optimizer", "critic_optimizer")


def drawn_shape(seed: int) -> dict[str, Any]:
    """An environment and sizes of networks and rollouts."""
    rng = np.random.default_rng(seed)
    hidden = tuple(rng.integers(1, 50, rng.integers(0, 4)).tolist())
    steps, lanes = int(rng.integers(2, 90)), int(rng.integers(1, 5))
    return dict(env_id=ENVS[-1 - seed], hidden_sizes=hidden, num_steps=steps, num_envs=lanes)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("algo", "optimizers"), [("trpo", ["optimizer"]), ("ppg", ["policy_optimizer", "critic_optimizer"])]
)
def test_parts_of_any_shape_are_torchs(algo: str, optimizers: list[str], seed: int) -> None:
    assert_same(*both(algo, 3, num_minibatches=1, **drawn_shape(seed)), *optimizers)


@pytest.mark.parametrize("shape", [*(dict(env_id=name) for name in ENVS), *map(drawn_shape, range(3))])
def test_the_auxiliary_phase_of_ppg_is_torchs(shape: dict[str, Any]) -> None:
    """Held to another policy than it is: of a divergence of 0 the slopes are rounding, whose steps are as long."""
    found, trainers = [], both("ppg", 1, **shape, num_minibatches=1, beta_clone=0.8, vf_coef=0.7)
    rollout = in_tensors(trainers[0].collector.columns)
    for trainer in trainers:
        update, now = trainer.distillation.taken() or trainer, Controls.of(trainer.config).at(0).after(0)
        inputs = trainer.agent.inputs(flatten_time(rollout["obs"]))
        minibatch = {
            "obs": inputs,
            "return": rollout["value"].flatten() + 1,
            "parameters": update.anchors(inputs),
        }
        torch.manual_seed(4)
        perturb(trainer.agent.network)
        found.append([{k: float(v) for k, v in update.distil(minibatch, now).items()} for _ in range(3)])
    assert found[0][0].keys() == {"auxiliary_value_loss", "clone_kl", "value_loss"}
    for mine, other in zip(*found, strict=True):
        assert mine == pytest.approx(other, rel=1e-3, abs=1e-6)
    assert_same(*trainers, "policy_optimizer", "auxiliary_optimizer", "critic_optimizer")


def test_a_policy_that_is_held_to_itself_stays_exactly() -> None:
    trainer = warmed("ppg", 1, env_id="parts/Box-v0", **SMALL, num_minibatches=1)
    head, update = trainer.agent.network.actor_head.output, trainer.distillation.taken()
    obs, before = torch.randn(150, 3), head.weight.clone()
    minibatch = {"obs": obs, "return": torch.randn(150), "parameters": update.anchors(obs)}
    numbers = update.distil(minibatch, Controls.of(trainer.config).at(0).after(0))
    assert numbers["clone_kl"] == 0
    assert torch.equal(head.weight, before)


def test_a_shared_trunk_is_distilled_by_torch_and_its_policy_compiled() -> None:
    trainer = warmed("ppg", 0, env_id="CartPole-v1", **SMALL, shared_trunk=True)
    assert trainer.paths() == {
        "surrogate": "compiled",
        "value_fit": "torch",
        "distillation": "torch",
        "rollouts": "python",
        "evaluations": "python",
    }


@pytest.mark.parametrize(
    ("algo", "module", "loss", "update"),
    [
        ("trpo", trpo_trainer, fit_loss, "value_fit"),
        ("ppg", ppg_trainer, fit_loss, "value_fit"),
        ("ppg", ppg_trainer, surrogate_loss, "surrogate"),
        ("ppg", ppg_trainer, joint_loss, "distillation"),
    ],
)
def test_a_loss_of_ones_own_is_torchs(
    algo: str, module: Any, loss: Any, update: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, loss.__name__, lambda *said, **knobs: loss(*said, **knobs))
    trainer = warmed(algo, 0, env_id="CartPole-v1", **SMALL)
    assert getattr(trainer, update).explained == "torch (a loss of one's own)"


def test_layers_that_compiled_code_does_not_know_are_torchs() -> None:
    trainer = warmed("ppg", 0, env_id="CartPole-v1", **SMALL)
    assert {update.path for update in trainer.choices().values()} == {"compiled"}
    trainer.agent.network.critic_encoder[1][1] = torch.nn.Softplus()
    assert trainer.value_fit.path == trainer.distillation.path == "torch"
    assert trainer.surrogate.path == "compiled"


def actors(**settings: Any) -> dict[str, Any]:
    return (
        SMALL | dict(num_actors=2, num_envs=2, fleet="inline", num_minibatches=2, update_epochs=2) | settings
    )


@pytest.mark.parametrize("shape", [*(dict(env_id=name) for name in ENVS), *map(drawn_shape, range(3))])
@pytest.mark.parametrize(
    "switches", [dict(), dict(kl_coef=0.4), dict(kl_coef=0.4, kl_coef_target=1e-4, batch_uses=2)]
)
def test_appo_is_torchs(shape: dict[str, Any], switches: dict[str, Any]) -> None:
    more = dict(value_clip_coef=0.2, target_update_interval=2, ent_coef=0.02) | switches
    ours, theirs = (
        warmed("appo", 3, **actors(**shape, **more), compiled_updates=how) for how in (True, False)
    )
    assert (ours.surrogate.path, theirs.surrogate.path) == ("compiled", "torch")
    assert_same(ours, theirs, "optimizer")
    torch.testing.assert_close(ours.target_parameters, theirs.target_parameters, rtol=1e-3, atol=2e-4)


def fragments(**settings: Any) -> dict[str, Any]:
    """For IMPALA, which takes one step on a batch."""
    return SMALL | dict(num_actors=2, num_envs=2, fleet="inline") | settings


@pytest.mark.parametrize("env_id", ENVS)
@pytest.mark.parametrize("optimizer", ["rmsprop", "adam"])
def test_impala_is_torchs(env_id: str, optimizer: str) -> None:
    """From actors that are an update behind: its targets follow from ratios that are not 1."""
    more = dict(gae_lambda=0.9, vf_coef=0.7, ent_coef=0.02, max_episode_steps=25, optimizer=optimizer)
    settings = fragments(env_id=env_id, shared_trunk=optimizer == "adam", **more)
    ours, theirs = (warmed("impala", 4, **settings, compiled_updates=how) for how in (True, False))
    assert (ours.update.path, theirs.update.path) == ("compiled", "torch")
    pair = ours.optimizer, theirs.optimizer
    torch.testing.assert_close(*(each.parameters for each in pair), rtol=1e-3, atol=2e-4)
    torch.testing.assert_close(*(each.square for each in pair), rtol=1e-2, atol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_impala_of_any_shape_is_torchs(seed: int) -> None:
    settings = fragments(**drawn_shape(seed))
    ours, theirs = (warmed("impala", 3, **settings, compiled_updates=how) for how in (True, False))
    assert (ours.update.path, theirs.update.path) == ("compiled", "torch")
    pair = ours.optimizer.parameters, theirs.optimizer.parameters
    torch.testing.assert_close(*pair, rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize("env_id", ENVS)
def test_a_compiled_step_of_impala_logs_what_torchs_does(env_id: str) -> None:
    trainer = warmed("impala", 3, **fragments(env_id=env_id, max_episode_steps=4))
    now = Controls.of(trainer.config).at(0).after(0)
    batch, _ = trainer.collect(now)
    before, logged = trainer.optimizer.parameters.clone(), []
    for learner in (trainer.update.taken(), trainer.learners):
        trainer.optimizer.parameters.copy_(before)
        numbers, moved = learner.step(trainer.shares(batch), now)
        logged.append({name: float(value) for name, value in numbers.items()})
        assert moved
    assert logged[0]["rho_mean"] != 1
    assert batch["cut"] or env_id == "probe/Masked-v0"  # whose episodes last for a step
    assert logged[0] == pytest.approx(logged[1], rel=1e-3, abs=1e-5)


@pytest.mark.parametrize(
    ("algo", "choice", "module", "loss", "settings"),
    [
        ("appo", "surrogate", appo_trainer, appo_loss, actors()),
        ("impala", "update", impala_trainer, impala_loss, fragments()),
    ],
)
def test_several_learners_a_memory_or_another_loss_are_torchs(
    algo: str, choice: str, module: Any, loss: Any, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings |= dict(env_id="CartPole-v1")
    two = warmed(algo, 0, **settings, num_learners=2)
    assert getattr(two, choice).explained == "torch (2 learners)"
    assert getattr(warmed(algo, 0, **settings, cell="lstm"), choice).path == "torch"
    monkeypatch.setattr(module, loss.__name__, lambda *said, **knobs: loss(*said, **knobs))
    own = warmed(algo, 0, **settings)
    assert getattr(own, choice).explained == "torch (a loss of one's own)"


class OwnView(impala_trainer.IMPALATrainer):
    """Which sees its batches in its own way."""

    def view(self, agent: Any, batch: Any) -> Any:
        return super().view(agent, batch)


def test_a_trainer_that_sees_its_batches_in_its_own_way_is_asked() -> None:
    trainer = OwnView(IMPALAConfig(**fragments(env_id="CartPole-v1")))
    assert trainer.update.explained == "torch (a loss of one's own)"


class OwnOutputs(ActorCriticPolicy):
    """Which asks its network in its own way."""

    @wraps(ActorCriticPolicy.outputs_for_loss)
    def outputs_for_loss(self, inputs: Any) -> Any:
        return super().outputs_for_loss(inputs)


@pytest.mark.parametrize(
    ("kind", "choice", "settings"),
    [
        (impala_trainer.IMPALATrainer, "update", fragments()),
        (appo_trainer.APPOTrainer, "surrogate", actors()),
    ],
)
def test_a_policy_that_asks_its_network_in_its_own_way_is_asked(
    kind: Any, choice: str, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(cls: Any, config: Any, *spaces: Any) -> Any:
        return OwnOutputs(*spaces, **policy_settings(config))

    monkeypatch.setattr(kind, "make_agent", classmethod(made))
    trainer = kind(kind.config_class(**settings | dict(env_id="CartPole-v1")))
    assert getattr(trainer, choice).explained == "torch (a loss of one's own)"


class Own(RMSprop):
    """An optimizer that compiled code does not know."""


def critic_of(trainer: Any) -> list[torch.nn.Module]:
    return [trainer.agent.network.critic_encoder, trainer.agent.network.critic_head]


REPLAY: dict[str, Any] = dict(total_timesteps=1000, learning_starts=40, train_frequency=60, batch_size=20)
EXPERT: dict[str, Any] = dict(demonstrations="gail/cartpole_expert.npz", update_epochs=1)
CRITIC = {"critic_optimizer": critic_of}
SAC = {
    "critic_optimizer": lambda trainer: [trainer.critics],
    "actor_optimizer": lambda trainer: [trainer.agent.actor],
    "temperature_optimizer": lambda trainer: [trainer.temperature],
}
PPG_OPTIMIZERS = ("policy_optimizer", "auxiliary_optimizer")
REPLACED: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "trpo": ("value_fit", {"optimizer": critic_of}, SMALL),
    "ppg": ("value_fit", CRITIC, SMALL),
    "ppg, auxiliary": ("distillation", CRITIC, SMALL | dict(policy_iterations=1, auxiliary_minibatches=3)),
    "appo": ("surrogate", {"optimizer": lambda trainer: [trainer.agent.network]}, actors()),
    "impala": ("update", {"optimizer": lambda trainer: [trainer.agent.network]}, fragments()),
    "ppo": ("surrogate", {"optimizer": lambda trainer: [trainer.agent.network]}, SMALL),
    "gail": (
        "judgement",
        {"discriminator_optimizer": lambda trainer: [trainer.discriminator]},
        SMALL | EXPERT,
    ),
    "dqn": ("q_update", {"optimizer": lambda trainer: [trainer.agent.network]}, REPLAY),
    "sac": ("soft_updates", SAC, REPLAY | dict(env_id="Pendulum-v1")),
    "sac, temperature": (
        "soft_updates",
        {"temperature_optimizer": SAC["temperature_optimizer"]},
        REPLAY | dict(env_id="Pendulum-v1"),
    ),
}


@pytest.mark.parametrize(("kind", "path"), [(RMSprop, "compiled"), (Own, "torch")])
@pytest.mark.parametrize("case", REPLACED)
def test_an_optimizer_that_is_replaced_moves_the_network(case: str, kind: type[RMSprop], path: str) -> None:
    update, replaced, settings = REPLACED[case]
    trainer = warmed(case.split(",")[0], 0, **dict(env_id="CartPole-v1") | settings)
    assert getattr(trainer, update).path == "compiled"
    for name, modules in replaced.items():
        setattr(trainer, name, kind(modules(trainer)))
    before = {name: moved_by(trainer, modules).clone() for name, modules in replaced.items()}
    trainer.iterate(Controls.of(trainer.config).at(0))
    assert getattr(trainer, update).path == path
    for name, modules in replaced.items():
        assert not torch.equal(moved_by(trainer, modules), before[name]), name
        assert torch.equal(moved_by(trainer, modules), getattr(trainer, name).parameters)


@pytest.mark.parametrize(
    ("case", "method"),
    [
        ("ppo", "agent.evaluate"),
        ("ppo", "agent.outputs_for_loss"),
        ("appo", "agent.outputs_for_loss"),
        ("appo", "evaluate"),
        ("impala", "view"),
        ("ppg, auxiliary", "anchors"),
        ("ppg, auxiliary", "distil"),
        ("gail", "judge"),
        ("dqn", "improve"),
        ("sac", "improve_actor"),
        ("sac", "agent.sample"),
    ],
)
def test_a_method_that_is_put_on_an_instance_is_called(case: str, method: str) -> None:
    update, _, settings = REPLACED[case]
    trainer = warmed(case.split(",")[0], 0, **dict(env_id="CartPole-v1") | settings)
    assert getattr(trainer, update).path == "compiled"
    *owners, name = method.split(".")
    owner, called = (trainer.agent if owners else trainer), []
    theirs = getattr(owner, name)
    setattr(owner, name, lambda *args: called.append(name) or theirs(*args))
    assert getattr(trainer, update).explained == "torch (a loss of one's own)"
    trainer.iterate(Controls.of(trainer.config).at(0))
    assert called
    delattr(owner, name)
    assert getattr(trainer, update).path == "compiled"


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("replaced", [("policy_optimizer",), ("auxiliary_optimizer",), PPG_OPTIMIZERS])
def test_optimizers_of_the_same_parameters_move_them_when_one_is_replaced(
    replaced: tuple[str, ...], compiled: bool
) -> None:
    """By another of its kind before anything has moved: that changes nothing."""
    settings = SMALL | dict(env_id="CartPole-v1", policy_iterations=1, auxiliary_minibatches=3)
    ends = []
    for names in ((), replaced):
        trainer = warmed("ppg", 0, **settings, compiled_updates=compiled)
        network = trainer.agent.network
        for name in names:
            modules = (network.actor_encoder, network.actor_head, network.auxiliary_head)
            setattr(trainer, name, adam_of(trainer.config, *modules))
        for number in range(2):
            torch.manual_seed(number)
            np.random.seed(number)
            trainer.iterate(Controls.of(trainer.config).at(0))
        ends.append([each.detach().clone() for each in network.parameters()])
        assert {update.path for update in trainer.choices().values()} == {"compiled" if compiled else "torch"}
    assert all(map(torch.equal, *ends))


def moved_by(trainer: Any, modules: Any) -> torch.Tensor:
    parameters = [each for module in modules(trainer) for each in module.parameters()]
    return torch.cat([each.detach().flatten() for each in parameters])


def test_a_run_that_began_with_torch_keeps_to_it_when_the_optimizer_is_replaced() -> None:
    trainer = warmed("trpo", 0, env_id="CartPole-v1", **SMALL)
    trainer.keep_to({})
    trainer.optimizer = RMSprop(critic_of(trainer))
    assert trainer.value_fit.explained == "torch (as this run began)"


def test_an_optimizer_that_is_replaced_moves_a_network_with_a_memory() -> None:
    trainer = warmed("recurrent_ppo", 0, env_id="CartPole-v1", num_minibatches=1, **SMALL)
    trainer.optimizer = RMSprop([trainer.agent.network])
    before = trainer.optimizer.parameters.clone()
    trainer.iterate(Controls.of(trainer.config).at(0))
    assert not torch.equal(before, trainer.optimizer.parameters)
