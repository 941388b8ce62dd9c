"""One iteration of each on-policy algorithm, term by term: advantages, losses, gradients and new weights by hand.

Rollouts are real but for their numbers: ends and time limits lie anywhere, and what was stored while acting is not
what the network says now. Every knob has another value than in the config.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from updates import (
    ByHand,
    actions_of,
    advantages,
    clipped_objective,
    clipped_value_loss,
    invent,
    k3,
    knobs_unlike,
    perturb,
    rows_of,
    standardised,
    vtrace_sums,
    warmed,
)

from rl_training.data.random_rollout import STEPS
from rl_training.runtime import gail_trainer
from rl_training.runtime.controls import Controls
from rl_training.runtime.updates import Far

TINY: dict[str, Any] = dict(
    total_timesteps=1000, num_envs=3, num_steps=8, hidden_sizes=[4], learning_rate=0.01, ent_coef=0.01
)
SCALED = dict(normalize_observations=True, normalize_rewards=True)
ROLLOUT_KNOBS: dict[str, Any] = dict(
    learning_rate=0.02, gamma=0.8, gae_lambda=0.6, ent_coef=0.3, vf_coef=0.7, max_grad_norm=0.9
)
SURROGATE_KNOBS = ROLLOUT_KNOBS | dict(update_epochs=2, clip_coef=0.1, value_clip_coef=0.25)
SURROGATE_KNOBS |= dict(critic_learning_rate=0.02)  # that of all: tests/runtime/test_two_rates.py has two
TOLERANCE = dict(rel=1e-3, abs=1e-6)


def staged(trainer: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Any], Any]:
    """The invented rollout that the next iteration learns from, and the reward scaler as it was before."""
    perturb(trainer.agent.network)
    rollout, metrics = trainer.collect()
    rollout = invent(dict(rollout), 2)
    scaler = copy.deepcopy(getattr(trainer, "reward_scaler", None))
    monkeypatch.setattr(trainer, "collect", lambda: (dict(rollout), metrics))
    return rollout, scaler


def estimated(rollout: dict[str, Any], scaler: Any, gamma: float, decay: float) -> tuple[Any, Any]:
    """Rows of advantages and returns; rewards scaled as they come."""
    reward = rollout["reward"]
    if scaler is not None:
        done = (rollout["terminated"] | rollout["truncated"]).numpy()
        reward = torch.from_numpy(scaler(reward.numpy(), done, gamma))
    found = advantages(rollout, reward, gamma, decay)
    return found.flatten(), (found + rollout["value"]).flatten()


def assert_metrics(metrics: Any, **expected: list[Any]) -> None:
    means = metrics.means()
    for name, values in expected.items():
        assert means[name] == pytest.approx(
            np.mean([float(torch.as_tensor(value).detach()) for value in values]), **TOLERANCE
        ), name


@pytest.mark.parametrize(("target_kl", "epochs"), [(100.0, 2), (1e-9, 0)])
def test_ppo(target_kl: float, epochs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = warmed(
        "ppo", 2, **TINY, **SCALED, env_id="CartPole-v1", num_minibatches=1, update_epochs=1, target_kl=1.0
    )
    rollout, scaler = staged(trainer, monkeypatch)
    network = copy.deepcopy(trainer.agent.network)
    hand, inputs = ByHand(trainer.optimizer, network), rows_of(trainer.agent.inputs(rollout["obs"]))
    knobs = knobs_unlike(trainer.config, **SURROGATE_KNOBS, target_kl=target_kl)
    metrics = trainer.iterate(knobs)

    advantage, target = estimated(rollout, scaler, 0.8, 0.6)
    parts: dict[str, list[Any]] = {name: [] for name in ("policy_loss", "value_loss", "entropy", "approx_kl")}
    for _ in range(max(epochs, 1)):
        parameters, value = network(inputs)
        actions = actions_of(parameters, discrete=True)
        log_prob, old = actions.log_prob(rows_of(rollout["action"])), rows_of(rollout["log_prob"])
        objective = clipped_objective(log_prob, old, standardised(advantage), 0.1)
        error = clipped_value_loss(value, rows_of(rollout["value"]), target, 0.25)
        loss = -objective + 0.7 * error - 0.3 * actions.entropy().mean()
        for name, part in zip(
            parts, (-objective, error, actions.entropy().mean(), k3(log_prob, old)), strict=True
        ):
            parts[name].append(part)
        if epochs:
            hand.adam(loss, 0.02, 0.9, epsilon=1e-5)
    assert_metrics(metrics, **parts)
    if epochs:
        hand.assert_same(0.02)
        assert trainer.agent.normalizer.moments.count == pytest.approx(
            STEPS + 72, abs=1
        )  # of this rollout too
    else:
        assert all(map(torch.equal, network.parameters(), trainer.agent.network.parameters()))


@pytest.mark.parametrize("normalize_advantages", [False, True])
def test_a2c(normalize_advantages: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = warmed(
        "a2c", 2, **TINY, **SCALED, env_id="Pendulum-v1", normalize_advantages=normalize_advantages
    )
    rollout, scaler = staged(trainer, monkeypatch)
    network = copy.deepcopy(trainer.agent.network)
    hand, inputs = ByHand(trainer.optimizer, network), rows_of(trainer.agent.inputs(rollout["obs"]))
    metrics = trainer.iterate(knobs_unlike(trainer.config, **ROLLOUT_KNOBS))

    advantage, target = estimated(rollout, scaler, 0.8, 0.6)
    parameters, value = network(inputs)
    actions = actions_of(parameters, discrete=False)
    weight = standardised(advantage) if normalize_advantages else advantage
    policy = -(actions.log_prob(rows_of(rollout["action"])) * weight).mean()
    error = 0.5 * ((value - target) ** 2).mean()
    hand.rmsprop(policy + 0.7 * error - 0.3 * actions.entropy().mean(), 0.02, 0.9)
    assert_metrics(
        metrics, policy_loss=[policy], value_loss=[error], entropy=[actions.entropy().mean().detach()]
    )
    hand.assert_same(0.02)


def test_trpo(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Fisher matrix as a matrix, its system solved, and the line search step by step."""
    settings = TINY | dict(hidden_sizes=[3], num_minibatches=1, update_epochs=1)
    trainer = warmed(
        "trpo",
        2,
        **settings,
        **SCALED,
        env_id="CartPole-v1",
        cg_iterations=80,
        cg_damping=0.01,
        max_grad_norm=5.0,
    )
    rollout, scaler = staged(trainer, monkeypatch)
    network = copy.deepcopy(trainer.agent.network)
    hand = ByHand(trainer.optimizer, network.critic_encoder, network.critic_head)
    inputs = rows_of(trainer.agent.inputs(rollout["obs"]))
    metrics = trainer.iterate(
        knobs_unlike(trainer.config, **ROLLOUT_KNOBS, update_epochs=2, target_kl=0.05)
    ).means()

    advantage, target = estimated(rollout, scaler, 0.8, 0.6)
    weight, old_log_prob = standardised(advantage), rows_of(rollout["log_prob"])
    policy = [*network.actor_encoder.parameters(), *network.actor_head.parameters()]
    with torch.no_grad():
        old = actions_of(network.policy(inputs), discrete=True)

    def surrogate(actions: Any) -> torch.Tensor:
        ratio = (actions.log_prob(rows_of(rollout["action"])) - old_log_prob).exp()
        return (ratio * weight).mean() + 0.3 * actions.entropy().mean()

    def flat(parts: Any) -> torch.Tensor:
        return torch.cat([part.flatten() for part in parts])

    now = actions_of(network.policy(inputs), discrete=True)
    before = surrogate(now)
    gradient = flat(torch.autograd.grad(before, policy, retain_graph=True)).double()
    divergence = torch.distributions.kl_divergence(old, now).mean()
    slope = flat(torch.autograd.grad(divergence, policy, create_graph=True))
    rows = [flat(torch.autograd.grad(part, policy, retain_graph=True)) for part in slope]
    fisher = torch.stack(rows).double() + 0.01 * torch.eye(len(slope)).double()
    direction = torch.linalg.solve(fisher, gradient)
    full = direction * torch.sqrt(2 * 0.05 / (direction @ fisher @ direction))
    start = flat(policy).detach().double()
    sizes = [part.numel() for part in policy]
    with torch.no_grad():
        for i in range(10):
            for part, piece in zip(policy, (start + 0.8**i * full).float().split(sizes), strict=True):
                part.copy_(piece.view(part.shape))
            moved = actions_of(network.policy(inputs), discrete=True)
            kl = torch.distributions.kl_divergence(old, moved).mean().item()
            improvement = (surrogate(moved) - before).item()
            if improvement > 0 and kl <= 0.05:
                break
    assert metrics["step_fraction"] == pytest.approx(0.8**i)
    assert metrics["policy_loss"] == pytest.approx(-before.item(), **TOLERANCE)
    assert metrics["kl"] == pytest.approx(kl, rel=1e-2)
    assert metrics["surrogate_improvement"] == pytest.approx(improvement, rel=1e-2)
    assert metrics["entropy"] == pytest.approx(old.entropy().mean().item(), **TOLERANCE)
    assert metrics["policy_grad_norm"] == pytest.approx(gradient.norm().item(), **TOLERANCE)
    torch.testing.assert_close(trainer.theta, flat(policy).detach(), rtol=1e-3, atol=1e-4)
    errors = []
    for _ in range(2):
        error = 0.5 * ((network.value(inputs) - target) ** 2).mean()
        errors.append(error.item())
        hand.adam(0.7 * error, 0.02, 0.9)
    assert metrics["value_loss"] == pytest.approx(np.mean(errors), **TOLERANCE)
    hand.assert_same(0.02)


@pytest.mark.parametrize("shared_trunk", [False, True])
def test_ppg(shared_trunk: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy phase of one rollout, and the auxiliary phase that follows it."""
    trainer = warmed(
        "ppg",
        2,
        **TINY | SCALED,
        env_id="CartPole-v1",
        shared_trunk=shared_trunk,
        num_minibatches=1,
        policy_epochs=2,
        value_epochs=2,
        policy_iterations=1,
        auxiliary_minibatches=1,
        auxiliary_epochs=2,
        target_kl=1.0,
    )
    rollout, scaler = staged(trainer, monkeypatch)
    network = copy.deepcopy(trainer.agent.network)
    policy = (network.actor_encoder, network.actor_head, network.auxiliary_head)
    critic = (network.critic_head,) if shared_trunk else (network.critic_head, network.critic_encoder)
    hand, apart, values = (
        ByHand(trainer.policy_optimizer, *policy),
        ByHand(trainer.auxiliary_optimizer, *policy),
        ByHand(trainer.critic_optimizer, *critic),
    )
    inputs = rows_of(trainer.agent.inputs(rollout["obs"]))
    knobs = knobs_unlike(
        trainer.config,
        **ROLLOUT_KNOBS | dict(clip_coef=0.1, beta_clone=1.7, target_kl=100.0, auxiliary_learning_rate=0.05),
    )
    metrics = trainer.iterate(knobs)
    later = rows_of(trainer.agent.inputs(rollout["obs"]))  # through statistics that have this rollout in them

    advantage, target = estimated(rollout, scaler, 0.8, 0.6)
    parts: dict[str, list[Any]] = {}

    def note(**more: torch.Tensor) -> None:
        for name, part in more.items():
            parts.setdefault(name, []).append(part)

    for _ in range(2):
        actions = actions_of(network.policy(inputs), discrete=True)
        log_prob = actions.log_prob(rows_of(rollout["action"]))
        objective = clipped_objective(log_prob, rows_of(rollout["log_prob"]), standardised(advantage), 0.1)
        note(policy_loss=-objective, entropy=actions.entropy().mean())
        hand.adam(-objective - 0.3 * actions.entropy().mean(), 0.02, 0.9)

    def improve_critic(seen: torch.Tensor) -> None:
        features = network.actor_encoder(seen).detach() if shared_trunk else network.critic_encoder(seen)
        error = 0.5 * ((network.critic_head(features).squeeze(-1) - target) ** 2).mean()
        note(value_loss=error)
        values.adam(0.7 * error, 0.02, 0.9)

    for _ in range(2):
        improve_critic(inputs)
    with torch.no_grad():
        old = actions_of(network.policy(later), discrete=True)
    for _ in range(2):
        features = network.actor_encoder(later)
        guess = network.auxiliary_head(features).squeeze(-1)
        distillation = 0.5 * ((guess - target) ** 2).mean()
        now = actions_of(network.actor_head(features, later), discrete=True)
        clone = torch.distributions.kl_divergence(old, now).mean()
        note(auxiliary_value_loss=distillation, clone_kl=clone)
        seen = features.detach() if shared_trunk else network.critic_encoder(later)
        error = 0.5 * ((network.critic_head(seen).squeeze(-1) - target) ** 2).mean()
        note(value_loss=error)
        apart.adam(distillation + 1.7 * clone, 0.05, 0.9)
        values.adam(0.7 * error, 0.05, 0.9)
    assert_metrics(metrics, **{name: [part.detach() for part in column] for name, column in parts.items()})
    apart.assert_same(0.05)
    values.assert_same(0.05)
    assert trainer.kept == []


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_recurrent_ppo(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps one after the other, lane by lane, with a memory of zeros after each end."""
    trainer = warmed(
        "recurrent_ppo",
        2,
        **TINY | SCALED,
        env_id="CartPole-v1",
        cell=cell,
        recurrent_size=3,
        num_minibatches=1,
        update_epochs=1,
        target_kl=1.0,
    )
    begins: dict[str, Any] = {}
    real = trainer.collect

    def collect() -> Any:
        begins["carry"] = tuple(part.clone() for part in trainer.collector.carry)
        return real()

    monkeypatch.setattr(trainer, "collect", collect)
    rollout, scaler = staged(trainer, monkeypatch)
    trainer.collector.carry = begins["carry"]  # as it is before a rollout, when the iteration takes it
    network = copy.deepcopy(trainer.agent.network)
    hand, inputs = ByHand(trainer.optimizer, network), trainer.agent.inputs(rollout["obs"])
    metrics = trainer.iterate(knobs_unlike(trainer.config, **SURROGATE_KNOBS, target_kl=100.0))

    advantage, target = estimated(rollout, scaler, 0.8, 0.6)
    ended = rollout["terminated"] | rollout["truncated"]
    parts: dict[str, list[Any]] = {name: [] for name in ("policy_loss", "value_loss", "entropy")}
    for _ in range(2):
        carry, outputs = begins["carry"], []
        for t in range(len(ended)):
            if t:
                carry = tuple(part * (~ended[t - 1]).float()[:, None] for part in carry)
            parameters, value, carry = network.step(inputs[t], carry)
            outputs.append((parameters, value))
        parameters, value = (torch.cat(column) for column in zip(*outputs, strict=True))
        actions = actions_of(parameters, discrete=True)
        log_prob = actions.log_prob(rows_of(rollout["action"]))
        objective = clipped_objective(log_prob, rows_of(rollout["log_prob"]), standardised(advantage), 0.1)
        error = clipped_value_loss(value, rows_of(rollout["value"]), target, 0.25)
        for name, part in zip(parts, (-objective, error, actions.entropy().mean()), strict=True):
            parts[name].append(part.detach())
        hand.adam(-objective + 0.7 * error - 0.3 * actions.entropy().mean(), 0.02, 0.9, epsilon=1e-5)
    assert_metrics(metrics, **parts)
    hand.assert_same(0.02)


ACTORS: dict[str, Any] = dict(num_actors=2, fleet="inline", normalize_observations=True)
ACTOR_KNOBS = dict(ROLLOUT_KNOBS, rho_bar=0.9, policy_rho_bar=1.1, c_bar=0.7)


def staged_fragments(trainer: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The batch that the next iteration learns from, with ends anywhere and something seen at each time limit."""
    perturb(trainer.agent.network)
    real = trainer.collect
    kept: dict[str, Any] = {}

    def collect(now: Any) -> Any:
        batch, metrics = real(now)
        batch = invent({name: part for name, part in batch.items() if name != "cut"}, 3)
        places = batch["truncated"].nonzero().tolist()
        chance = np.random.default_rng(4)
        batch["cut"] = [(t, lane, chance.normal(size=4).astype(np.float32)) for t, lane in places]
        assert batch["cut"] and batch["terminated"].any()
        kept.update(batch)
        return batch, metrics

    monkeypatch.setattr(trainer, "collect", collect)
    return kept


def seen_by(network: Any, normalizer: Any, batch: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Rows of action parameters and values, and the values [T, L] of where actions led."""
    steps, lanes = batch["reward"].shape
    normal = torch.from_numpy(normalizer(batch["obs"].numpy()))
    parameters, value = network(normal[:-1].flatten(0, 1))
    with torch.no_grad():
        following = network.value(normal.flatten(0, 1)).view(steps + 1, lanes)[1:].clone()
        for t, lane, obs in batch["cut"]:
            following[t, lane] = network.value(torch.from_numpy(normalizer(obs[None])))[0]
    return parameters, value, following


def targets_of(batch: dict[str, Any], actions: Any, value: Any, following: Any) -> tuple[Any, Any]:
    log_prob = actions.log_prob(rows_of(batch["action"])).detach()
    ratio = (log_prob.double().view(batch["reward"].shape) - batch["log_prob"].double()).exp().numpy()
    now = dict(gamma=0.8, gae_lambda=0.6, rho_bar=0.9, policy_rho_bar=1.1, c_bar=0.7)
    columns = (batch["reward"].numpy(), value.detach().view(batch["reward"].shape).numpy(), following.numpy())
    target, advantage = vtrace_sums(ratio, *columns, batch, now)
    return torch.from_numpy(target).float().flatten(), torch.from_numpy(advantage).float().flatten()


@pytest.mark.parametrize("scaled", [False, True])
def test_fragments_stand_side_by_side_with_rewards_scaled_by_whose_they_are(
    scaled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = TINY | ACTORS | dict(normalize_rewards=scaled, batch_fragments=1)
    trainer = warmed("impala", 3, **settings, env_id="CartPole-v1")
    scaler, taken, take = copy.deepcopy(trainer.reward_scaler), [], trainer.fleet.take
    monkeypatch.setattr(trainer.fleet, "take", lambda: taken.append(copy.deepcopy(take())) or taken[-1])
    monkeypatch.setattr(trainer.fleet, "send", lambda fragment: None)
    now = knobs_unlike(trainer.config, **ACTOR_KNOBS).after(0)
    batch, _ = trainer.collect(now)
    (fragment,) = taken
    reward, own = fragment.columns["reward"], 3 * fragment.stream
    assert fragment.stream == 1  # the fourth fragment is the second actor's
    if scaled:
        done = fragment.columns["terminated"] | fragment.columns["truncated"]
        reward = scaler(reward, done, 0.8, slice(own, own + 3))
        np.testing.assert_array_equal(trainer.reward_scaler.discounted, scaler.discounted)
        assert (reward != fragment.columns["reward"]).any()
    np.testing.assert_array_equal(batch["reward"].numpy(), reward)
    np.testing.assert_array_equal(batch["action"].numpy(), fragment.columns["action"])


@pytest.mark.parametrize("optimizer", ["rmsprop", "adam"])
def test_impala(optimizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = TINY | ACTORS
    trainer = warmed("impala", 2, **settings, env_id="CartPole-v1", optimizer=optimizer)
    batch = staged_fragments(trainer, monkeypatch)
    network, normalizer = copy.deepcopy(trainer.agent.network), copy.deepcopy(trainer.agent.normalizer)
    hand = ByHand(trainer.optimizer, network)
    metrics = trainer.iterate(knobs_unlike(trainer.config, **ACTOR_KNOBS))

    parameters, value, following = seen_by(network, normalizer, batch)
    actions = actions_of(parameters, discrete=True)
    target, advantage = targets_of(batch, actions, value, following)
    policy = -(actions.log_prob(rows_of(batch["action"])) * advantage).mean()
    error, entropy = 0.5 * ((value - target) ** 2).mean(), actions.entropy().mean()
    loss = policy + 0.7 * error - 0.3 * entropy
    hand.rmsprop(loss, 0.02, 0.9) if optimizer == "rmsprop" else hand.adam(loss, 0.02, 0.9, epsilon=1e-5)
    assert_metrics(
        metrics, policy_loss=[policy.detach()], value_loss=[error.detach()], entropy=[entropy.detach()]
    )
    hand.assert_same(0.02)


def test_appo(monkeypatch: pytest.MonkeyPatch) -> None:
    """The target network, perturbed, is what advantages, the anchor and the divergence come from."""
    settings = TINY | ACTORS | dict(num_minibatches=1, update_epochs=1, target_kl=1.0, kl_coef=0.1)
    settings |= dict(target_update_interval=2, kl_coef_target=1e-9)
    trainer = warmed("appo", 3, **settings, env_id="CartPole-v1")
    trainer.kl_scale = 1.0
    batch = staged_fragments(trainer, monkeypatch)
    perturb(trainer.target.network, scale=0.5)
    network, normalizer = copy.deepcopy(trainer.agent.network), copy.deepcopy(trainer.agent.normalizer)
    slow = copy.deepcopy(trainer.target.network)
    hand = ByHand(trainer.optimizer, network)
    more = dict(kl_coef=0.4, kl_coef_target=100.0, tau=0.25, target_kl=100.0)
    metrics = trainer.iterate(knobs_unlike(trainer.config, **ACTOR_KNOBS | SURROGATE_KNOBS | more))
    assert trainer.kl_scale == 0.5

    with torch.no_grad():
        parameters, old_value, following = seen_by(slow, normalizer, batch)
    old = actions_of(parameters, discrete=True)
    target, advantage = targets_of(batch, old, old_value, following)
    taken, behaviour = rows_of(batch["action"]), rows_of(batch["log_prob"])
    anchor = torch.maximum(old.log_prob(taken).exp(), behaviour.exp() / 2).log()
    assert (anchor != old.log_prob(taken)).any() and (anchor == old.log_prob(taken)).any()
    parts: dict[str, list[Any]] = {name: [] for name in ("policy_loss", "value_loss", "entropy", "kl")}
    for _ in range(2):
        parameters, value, _ = seen_by(network, normalizer, batch)
        actions = actions_of(parameters, discrete=True)
        objective = clipped_objective(actions.log_prob(taken), anchor, standardised(advantage), 0.1)
        error = clipped_value_loss(value, old_value, target, 0.25)
        kl, entropy = torch.distributions.kl_divergence(old, actions).mean(), actions.entropy().mean()
        for name, part in zip(parts, (-objective, error, entropy, kl), strict=True):
            parts[name].append(part.detach())
        hand.adam(-objective + 0.7 * error - 0.3 * entropy + 0.4 * kl, 0.02, 0.9, epsilon=1e-5)
    assert_metrics(metrics, **parts)
    hand.assert_same(0.02)
    for mine, followed, online in zip(
        trainer.target.network.parameters(),
        slow.parameters(),
        trainer.agent.network.parameters(),
        strict=True,
    ):
        torch.testing.assert_close(mine, followed + 0.25 * (online - followed))


@pytest.mark.parametrize("penalty", ["zero_centred", "interpolated"])
def test_gail(penalty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps of the discriminator, its reward with what an end is worth, then PPO's step with it."""
    trainer = warmed(
        "gail",
        2,
        **TINY | SCALED,
        env_id="CartPole-v1",
        demonstrations="gail/cartpole_expert.npz",
        num_minibatches=1,
        update_epochs=1,
        discriminator_updates=2,
        discriminator_batch_size=10,
        discriminator_hidden_sizes=[5],
        gradient_penalty=penalty,
        target_kl=1.0,
    )
    rollout, scaler = staged(trainer, monkeypatch)
    perturb(trainer.discriminator)
    network, judge = copy.deepcopy(trainer.agent.network), copy.deepcopy(trainer.discriminator)
    hand, other = ByHand(trainer.optimizer, network), ByHand(trainer.discriminator_optimizer, judge)
    inputs = trainer.agent.inputs(rollout["obs"])
    normalizer, drawn, between = copy.deepcopy(trainer.agent.normalizer), [], []
    draw, interpolate = gail_trainer.draw, gail_trainer.interpolate
    monkeypatch.setattr(
        gail_trainer, "draw", lambda side, count: drawn.append(draw(side, count)) or drawn[-1]
    )
    monkeypatch.setattr(
        gail_trainer, "interpolate", lambda *sides: between.append(interpolate(*sides)) or between[-1]
    )
    knobs = knobs_unlike(
        trainer.config,
        **SURROGATE_KNOBS,
        target_kl=100.0,
        discriminator_learning_rate=0.03,
        gradient_penalty_coef=0.6,
    )
    metrics = trainer.iterate(knobs)

    def rows(obs: torch.Tensor, action: torch.Tensor, absorbing: float = 0.0) -> torch.Tensor:
        one_hot = torch.eye(2)[action]
        return torch.cat([obs, one_hot, torch.full((len(obs), 1), absorbing)], -1)

    def pairs(side: Any) -> torch.Tensor:
        return rows(torch.from_numpy(normalizer(side["obs"])), torch.as_tensor(side["action"]))

    nowhere = torch.tensor([[0.0] * 6 + [1.0]])
    horizon = 1 / (1 - 0.8)
    shares = []
    for ends, count in (
        (trainer.expert.pairs["ends"], len(trainer.expert.pairs["action"])),
        (rollout["terminated"].sum().item(), rollout["reward"].numel()),
    ):
        shares.append(ends * horizon / (count + ends * horizon))
    penalties = []
    for number in range(2):
        expert, agent = (pairs(side) for side in drawn[2 * number : 2 * number + 2])
        log_is = torch.nn.functional.logsigmoid(judge(expert))
        scale = 2 / (2 - sum(shares))
        loss = -scale * (1 - shares[0]) * log_is.mean()
        loss = loss - scale * (1 - shares[1]) * torch.nn.functional.logsigmoid(-judge(agent)).mean()
        end = judge(nowhere)[0]
        loss = loss - shares[0] * torch.nn.functional.logsigmoid(end)
        loss = loss - shares[1] * torch.nn.functional.logsigmoid(-end)
        at = between[number].detach() if penalty == "interpolated" else expert
        at = at.clone().requires_grad_()
        (slope,) = torch.autograd.grad(judge(at).sum(), at, create_graph=True)
        wanted = 1.0 if penalty == "interpolated" else 0.0
        steepness = ((slope.square().sum(-1) + 1e-12).sqrt() - wanted).square().mean()
        penalties.append(steepness.detach())
        other.adam(loss + 0.6 * steepness, 0.03, None)
    assert_metrics(metrics, gradient_penalty=penalties)
    other.assert_same(0.03)

    with torch.no_grad():
        reward = judge(rows(rows_of(inputs), rows_of(rollout["action"]))).view(rollout["reward"].shape)
        # What follows a termination is earned for ever, from the next step on: γ / (1 - γ) of it.
        worth = 0.8 / (1 - 0.8) * judge(nowhere).item()
    imitation = dict(rollout, reward=reward + worth * rollout["terminated"])
    assert_metrics(metrics, imitation_reward=[imitation["reward"].mean()])
    advantage, target = estimated(imitation, scaler, 0.8, 0.6)
    for _ in range(2):
        parameters, value = network(rows_of(inputs))
        actions = actions_of(parameters, discrete=True)
        log_prob = actions.log_prob(rows_of(rollout["action"]))
        objective = clipped_objective(log_prob, rows_of(rollout["log_prob"]), standardised(advantage), 0.1)
        error = clipped_value_loss(value, rows_of(rollout["value"]), target, 0.25)
        hand.adam(-objective + 0.7 * error - 0.3 * actions.entropy().mean(), 0.02, 0.9, epsilon=1e-5)
    hand.assert_same(0.02)


def test_gail_clones_with_its_own_moments_and_the_configs_learning_rate() -> None:
    trainer = warmed(
        "gail",
        0,
        **TINY | SCALED,
        env_id="CartPole-v1",
        demonstrations="gail/cartpole_expert.npz",
        num_minibatches=1,
        expert_episodes=1,
        bc_epochs=2,
        discriminator_batch_size=1000,
    )
    network, before = copy.deepcopy(trainer.agent.network), copy.deepcopy(trainer.optimizer.square)
    hand, pairs = ByHand(trainer.optimizer.beside(), network), trainer.expert.pairs
    values = SURROGATE_KNOBS | dict(
        discriminator_learning_rate=0.03, gradient_penalty_coef=0.6, target_kl=100.0
    )
    numbers = trainer.clone(knobs_unlike(trainer.config, **values).after(0))
    for _ in range(2):
        actions = actions_of(network.policy(trainer.agent.inputs(pairs["obs"])), discrete=True)
        loss = -actions.log_prob(torch.as_tensor(pairs["action"])).mean()
        hand.adam(loss, 0.01, 0.9, epsilon=1e-5)
    assert numbers["cloning_loss"].item() == pytest.approx(loss.item(), **TOLERANCE)
    hand.assert_same(0.01)
    assert torch.equal(trainer.optimizer.square, before) and trainer.cloned


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(("algo", "epochs"), [("ppo", "update_epochs"), ("ppg", "policy_epochs")])
def test_epochs_end_above_one_and_a_half_times_the_target(
    algo: str, epochs: str, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not at it: what `Far` stands for is in the tests of the updates."""
    settings = {epochs: 2, "num_minibatches": 1, "target_kl": 0.5, "compiled_updates": compiled}
    trainer = warmed(algo, 1, **TINY, **settings, env_id="CartPole-v1")
    update, limits = trainer.surrogate(), []
    descend = update.descend
    monkeypatch.setattr(update, "descend", lambda *given: limits.append(given[-1]) or descend(*given))
    trainer.iterate(Controls.of(trainer.config).at(0))
    assert limits == [Far("approx_kl", 0.75)]
