"""One update of each algorithm with a replay, term by term: targets, losses, gradients and new weights by hand.

Target networks are perturbed first, so that whoever takes the online one instead is wrong, and every knob has another
value than in the config.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributions
from updates import ByHand, cross_entropy, knobs_unlike, number_of, perturb, warmed

from rl_training.policies.search import Plan
from rl_training.state.seeding import seed_everything

TINY: dict[str, Any] = dict(
    total_timesteps=1000, num_envs=2, hidden_sizes=[6], buffer_size=400, batch_size=8, learning_rate=0.01
)
REPLAY = TINY | dict(vectorization="sync", learning_starts=20, replay_ratio=0.5, normalize_observations=True)
TOLERANCE = dict(rel=2e-3, abs=1e-5)


def same(found: Any, **expected: Any) -> None:
    for name, value in expected.items():
        assert float(found[name]) == pytest.approx(float(torch.as_tensor(value).detach()), **TOLERANCE), name


def asked_for(patch: Any, owner: Any, method: str, change: Any) -> dict[str, Any]:
    """What a method of the replay is asked for, and the batch it then gives, changed."""
    real, seen = getattr(owner, method), {}

    def listening(*args: Any) -> Any:
        batch = change(real(*args))
        seen.update(args=args, batch=dict(batch))
        return batch

    patch.setattr(owner, method, listening)
    return seen


def some_end(batch: Any) -> Any:
    """Rewards that differ, and no value after every third step."""
    chance = torch.Generator().manual_seed(3)
    batch["reward"] = 2 * torch.randn(8, generator=chance)
    batch["discount"] = batch["discount"] * (torch.arange(8) % 3 > 0)
    return batch


@pytest.mark.parametrize("learned", [False, True])
def test_sac(learned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a fixed temperature that is scheduled, and with one that is learned."""
    trainer = warmed("sac", 30, **REPLAY, env_id="Pendulum-v1", ent_coef="auto" if learned else 0.1)
    perturb(trainer.agent.actor, trainer.critics)
    perturb(trainer.target_critics, scale=0.6)
    if learned:
        perturb(trainer.temperature, scale=1.0)
    seen = asked_for(monkeypatch, trainer.replay, "sample", some_end)
    actor, critics, slow = (
        copy.deepcopy(m) for m in (trainer.agent.actor, trainer.critics, trainer.target_critics)
    )
    hands = ByHand(trainer.actor_optimizer, actor), ByHand(trainer.critic_optimizer, critics)
    own = copy.deepcopy(trainer.temperature)
    heat = ByHand(trainer.temperature_optimizer, own) if learned else None
    more = {} if learned else {"ent_coef": 0.45}
    more |= dict(target_entropy=-0.7, learning_rate=0.02, gamma=0.8, tau=0.3, replay_ratio=1.0)
    more |= dict(actor_learning_rate=0.03, critic_learning_rate=0.04, ent_coef_learning_rate=0.05)
    now = knobs_unlike(trainer.config, **more)
    seed_everything(5)
    found = trainer.update(now.after(0))

    torch.manual_seed(5)
    assert seen["args"] == (8, 0.8)
    batch = seen["batch"]
    obs, next_obs = (trainer.agent.inputs(batch[name]) for name in ("obs", "next_obs"))
    alpha = own.log_ent_coef.exp().item() if learned else 0.45

    def drawn(inputs: Any) -> tuple[Any, Any]:
        mean, log_std = actor(inputs)
        raw = mean + log_std.exp() * torch.randn(8, 1)
        log_prob = distributions.Normal(mean, log_std.exp()).log_prob(raw) - torch.log(1 - raw.tanh() ** 2)
        return raw.tanh(), log_prob.sum(-1)

    with torch.no_grad():
        next_action, next_log_prob = drawn(next_obs)
        least = torch.minimum(*slow(next_obs, next_action))
        y = batch["reward"] + batch["discount"] * (least - alpha * next_log_prob)
    q = critics(obs, batch["action"])
    q_loss = 0.5 * ((q[0] - y) ** 2).mean() + 0.5 * ((q[1] - y) ** 2).mean()
    hands[1].adam(q_loss, 0.04, None)
    action, log_prob = drawn(obs)
    pi_loss = (alpha * log_prob - torch.minimum(*critics(obs, action))).mean()
    hands[0].adam(pi_loss, 0.03, None)
    same(found, critic_loss=q_loss, actor_loss=pi_loss, q_value=q.mean(), entropy=-log_prob.mean())
    for hand, rate in zip(hands, (0.03, 0.04), strict=True):
        hand.assert_same(rate)
    if learned:
        heat.adam(-own.log_ent_coef * (log_prob.detach().mean() - 0.7), 0.05, None)
        heat.assert_same(0.05)
    for mine, followed, online in zip(
        trainer.target_critics.parameters(), slow.parameters(), trainer.critics.parameters(), strict=True
    ):
        torch.testing.assert_close(mine, 0.3 * online + 0.7 * followed)


@pytest.mark.parametrize(
    ("double", "dueling", "prioritized"), [(False, False, True), (True, False, True), (True, True, False)]
)
def test_dqn(double: bool, dueling: bool, prioritized: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = dict(double=double, dueling=dueling, prioritized=prioritized, n_step=2)
    trainer = warmed("dqn", 10, **REPLAY, **kind, env_id="CartPole-v1", target_update_interval=2)
    trainer.updates = 4
    perturb(trainer.agent.network)
    perturb(trainer.target, scale=0.8)
    weight = torch.linspace(0.2, 1.0, 8)

    def weighed(batch: Any) -> Any:
        return some_end(batch) | ({"weight": weight} if prioritized else {})

    method = "sample_by_priority" if prioritized else "sample"
    seen = asked_for(monkeypatch, trainer.replay, method, weighed)
    put: list[Any] = []
    monkeypatch.setattr(trainer.replay, "set_priorities", lambda *args: put.append(args))
    network, slow = copy.deepcopy(trainer.agent.network), copy.deepcopy(trainer.target)
    hand = ByHand(trainer.optimizer, network)
    now = knobs_unlike(
        trainer.config,
        learning_rate=0.02,
        gamma=0.8,
        tau=0.3,
        replay_ratio=1.0,
        epsilon=0.4,
        max_grad_norm=0.3,
        huber_delta=0.4,
        priority_exponent=0.9,
        importance_exponent=0.7,
    ).after(0)
    found = [trainer.update(now)]

    assert seen["args"] == ((8, 0.8, 0.7) if prioritized else (8, 0.8))
    batch = seen["batch"]
    with torch.no_grad():
        values = slow(trainer.agent.inputs(batch["next_obs"]))
        choice = network(trainer.agent.inputs(batch["next_obs"])) if double else values
    q = network(trainer.agent.inputs(batch["obs"]))
    losses, errors = [], []
    assert (choice.argmax(-1) != values.argmax(-1)).any() == double  # else nothing would be shown
    for i in range(8):
        y = batch["reward"][i] + batch["discount"][i] * values[i, choice[i].argmax()]
        error = q[i, batch["action"][i]] - y
        huber = 0.5 * error**2 if error.abs() <= 0.4 else 0.4 * (error.abs() - 0.2)
        losses.append(huber * (weight[i] if prioritized else 1.0))
        errors.append(error.item())
    assert {error > -0.4 for error in errors} == {error < 0.4 for error in errors} == {True, False}
    hand.adam(torch.stack(losses).mean(), 0.02, 0.3)
    same(found[0], loss=torch.stack(losses).mean(), q_value=q.mean())
    hand.assert_same(0.02)
    if prioritized:
        assert put[0][0] is batch["index"] and put[0][2] == 0.9
        np.testing.assert_allclose(put[0][1], errors, rtol=1e-3, atol=1e-4)
    # The fifth update leaves the target where it was, and the sixth moves it.
    for mine, followed in zip(trainer.target.parameters(), slow.parameters(), strict=True):
        torch.testing.assert_close(mine, followed, rtol=0, atol=0)
    trainer.update(now)
    online = trainer.agent.network.parameters()
    for mine, followed, new in zip(trainer.target.parameters(), slow.parameters(), online, strict=True):
        torch.testing.assert_close(mine, followed + 0.3 * (new - followed))


PLANNER = TINY | dict(
    env_id="CartPole-v1",
    learning_starts=40,
    replay_ratio=0.05,
    latent_size=5,
    support_size=6,
    unroll_steps=3,
    td_steps=2,
    num_simulations=2,
    normalize_observations=True,
)
PLANNER_KNOBS: dict[str, Any] = dict(
    learning_rate=0.02,
    gamma=0.8,
    num_simulations=3,
    temperature=0.5,
    root_exploration_fraction=0.1,
    vf_coef=0.7,
    priority_exponent=0.3,
    importance_exponent=0.2,
    max_grad_norm=0.9,
    replay_ratio=0.5,
)
PUCT = dict(dirichlet_alpha=0.2, pb_c_init=2.0, pb_c_base=100.0)
GUMBEL = dict(dirichlet_alpha=0.2, max_considered_actions=3, c_visit=20.0, c_scale=0.4)
BONUS = dict(ent_coef=0.4, reward_priority=3.0, state_coef=0.6)
CONSIDERED = dict(max_considered_actions=3)
EFFICIENT = CONSIDERED | dict(policy_coef=1.3, reward_coef=0.6, consistency_coef=1.7, horizon_tau=0.6)


def sharpened(obs: np.ndarray, now: Any) -> Plan:
    """What a search is said to find: something of the observation."""
    share = 1 / (1 + np.exp(-obs[:, 2]))
    return Plan(np.zeros(len(obs)), np.stack([share, 1 - share], -1).astype(np.float32), 3 * obs[:, 0])


@pytest.mark.parametrize(
    ("algo", "anew"),
    [("muzero", False), ("muzero", True), ("gumbel_muzero", False), ("efficientzero", True)],
)
def test_planners(algo: str, anew: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """MuZero's family: unrolled position by position; with `anew` targets are what new searches find."""
    own: dict[str, Any] = dict(prefix_size=4, projection_size=4, prefix_horizon=2, reanalyse_values=True)
    own = own if algo == "efficientzero" else {}
    trainer = warmed(algo, 40, **PLANNER, **own, reanalyse_ratio=0.5, target_update_interval=3)
    perturb(trainer.agent.network)
    perturb(trainer.target, scale=0.6)
    trainer.updates = 4

    def invented(batch: Any) -> Any:
        chance = torch.Generator().manual_seed(1)
        for name in ("known", "acted"):
            batch[name] = (torch.rand(4, 8, generator=chance) < 0.7).float()
        batch["policy"] = torch.rand(4, 8, 2, generator=chance).softmax(-1)
        batch["weight"] = torch.rand(8, generator=chance) + 0.2
        batch["reward"] = 2 * torch.randn(3, 8, generator=chance)
        batch["reward"][:, :2] = 0.0  # positions without a reward
        batch["returns"] = 3 * torch.randn(4, 8, generator=chance)
        batch["discount"] = 0.5 * (torch.rand(4, 8, generator=chance) < 0.7)
        return batch

    seen = asked_for(monkeypatch, trainer.replay, "sample_by_priority", invented)
    put: list[Any] = []
    monkeypatch.setattr(trainer.replay, "set_priorities", lambda *args: put.append(args))
    monkeypatch.setattr(trainer, "search_anew", sharpened)
    before, slow = copy.deepcopy(trainer.agent.network), copy.deepcopy(trainer.target)
    hand = ByHand(trainer.optimizer, before)
    values = PLANNER_KNOBS | BONUS | dict(reanalyse_ratio=float(anew)) | (EFFICIENT if own else {})
    values |= GUMBEL if algo == "gumbel_muzero" else PUCT
    now = knobs_unlike(trainer.config, **values).after(0)
    found = trainer.update(now)
    assert seen["args"] == (8, 0.8, 0.2)
    assert trainer.replay.steps_per_cut == (0.6 * 1000 if own else float("inf"))
    batch = seen["batch"]

    def raw(slot: int) -> np.ndarray:
        return trainer.replay.seen_at(np.array([slot]))

    parts = {
        name: torch.zeros(()) for name in ("policy_loss", "value_loss", "reward_loss", "consistency_loss")
    }
    errors, imagined, true, shares, entropies = [], [], [], [], []
    bonus = torch.zeros(())
    for b in range(8):
        latent, memory, prefix = before.represent(trainer.agent.inputs(raw(batch["places"][0, b]))), None, 0.0
        for k in range(4):
            if k > 0:
                state = latent.clone()
                if k > 1:  # halved behind each transition: the gradient of the root is not
                    state.register_hook(lambda gradient: gradient / 2)
                latent = before.transition(state, batch["action"][k - 1, b : b + 1])
            policy, value, reward = (logits[0] for logits in before.predict(latent))
            following = batch["bootstrap"][k, b]
            if anew:
                v = sharpened(raw(following), now).value.item()
            else:
                v = number_of(slow.predict(slow.represent(trainer.agent.inputs(raw(following)))).value[0])
            z = batch["returns"][k, b].item() + batch["discount"][k, b].item() * v
            share = batch["weight"][b] * (1 if k == 0 else 1 / 3) / 8
            if batch["acted"][k, b]:
                wanted = batch["policy"][k, b]
                if anew:
                    wanted = torch.from_numpy(sharpened(raw(batch["places"][k, b]), now).policy[0])
                distance = -(wanted * policy.log_softmax(0)).sum()
                if algo == "gumbel_muzero":  # a divergence, and not a cross-entropy
                    distance = distance + (wanted * wanted.log()).sum()
                parts["policy_loss"] = parts["policy_loss"] + share * distance
                entropies.append(-(policy.softmax(0) * policy.log_softmax(0)).sum())
                bonus = bonus + share * entropies[-1]
            if batch["known"][k, b]:
                parts["value_loss"] = parts["value_loss"] + share * cross_entropy(value, z)
            if k > 0:
                earned = batch["reward"][k - 1, b].item()
                if own:
                    if (k - 1) % 2 == 0:  # the memory and the sum begin anew
                        memory, prefix = None, 0.0
                    prefix = earned = prefix + earned
                    output, memory = before.prefix.cell(latent[None], memory)
                    reward = reward + before.prefix.head(output)[0, 0]
                if batch["acted"][k - 1, b]:
                    imagined.append(latent[0])
                    true.append(raw(batch["places"][k, b]))
                    shares.append(share)
                if batch["known"][k - 1, b]:
                    parts["reward_loss"] = parts["reward_loss"] + share * cross_entropy(reward, earned)
            else:
                errors.append(number_of(value) - z)
    with torch.no_grad():
        states = before.represent(trainer.agent.inputs(np.concatenate(true)))
    distances = (torch.stack(imagined) - states).square().mean(-1)
    parts["state_loss"] = (torch.stack(shares) * distances).sum()
    if own:
        # In the order of rows, which the statistics of a batch do not depend on.
        projected = before.projection.predictor(before.projection.projector(torch.stack(imagined)))
        with torch.no_grad():
            wanted = before.projection.projector(states)
        cosine = (projected * wanted).sum(-1) / (projected.norm(dim=-1) * wanted.norm(dim=-1))
        parts["consistency_loss"] = -(torch.stack(shares) * cosine).sum()
    weights = dict(policy_loss=1.0, value_loss=0.7, reward_loss=1.0, consistency_loss=0.0, state_loss=0.6)
    if own:
        weights |= dict(policy_loss=1.3, reward_loss=0.6, consistency_loss=1.7)
    else:
        parts.pop("consistency_loss")
    loss = sum((weights[name] * part for name, part in parts.items()), -0.4 * bonus)
    entropy = torch.stack(entropies).mean()
    same(found, **parts, loss=loss, entropy=entropy, value_error=np.abs(errors).mean())
    hand.adam(loss, 0.02, 0.9)
    hand.assert_same(0.02)
    assert put[0][0] is batch["index"] and put[0][2] == 0.3
    np.testing.assert_allclose(put[0][1], errors, rtol=1e-3, atol=1e-3)
    np.testing.assert_array_equal(put[0][3], [1, 1, 3, 3, 3, 3, 3, 3])
    for mine, followed in zip(trainer.target.parameters(), slow.parameters(), strict=True):
        torch.testing.assert_close(mine, followed, rtol=0, atol=0)
    trainer.update(now)  # the sixth: the target becomes the network
    for mine, new in zip(trainer.target.parameters(), trainer.agent.network.parameters(), strict=True):
        torch.testing.assert_close(mine, new, rtol=0, atol=0)


def test_what_is_searched_anew() -> None:
    """Both search with the target network: MuZero without noise, EfficientZero with that of acting."""
    for algo in ("muzero", "efficientzero"):
        trainer = warmed(algo, 1, **PLANNER, reanalyse_ratio=0.5)
        asked: list[Any] = []
        trainer.agent.plan = lambda obs, asked=asked, **settings: asked.append(settings)  # type: ignore[method-assign]
        more = BONUS | (EFFICIENT if algo == "efficientzero" else {})
        now = knobs_unlike(trainer.config, **PLANNER_KNOBS, **PUCT, **more, reanalyse_ratio=1.0).after(0)
        trainer.search_anew(None, now)
        as_it_acts = dict(
            num_simulations=3, temperature=0.5, root_exploration_fraction=0.1, gamma=0.8, **PUCT
        )
        quiet = dict(temperature=0.0, root_exploration_fraction=0.0)
        own = quiet if algo == "muzero" else CONSIDERED
        assert asked == [as_it_acts | own | dict(network=trainer.target)]


@pytest.mark.parametrize("stage", [0, 1])
def test_scalezero(stage: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tasks in one step, their losses position by position; what another stage learned stays where it is."""
    settings = {name: value for name, value in PLANNER.items() if name not in ("env_id", "td_steps")}
    settings |= dict(latent_size=6, layers=1, heads=2, experts=2, expert_size=4, stages=2, rank=2)
    tasks = ["CartPole-v1", "Acrobot-v1"]
    trainer = warmed("scalezero", 15, **settings | dict(batch_size=4), env_ids=tasks, context_steps=1)
    if stage:
        trainer.stage = 1
        for each in (trainer.agent.network, trainer.target):
            each.begin(1)
    perturb(trainer.agent.network)
    perturb(trainer.target, scale=0.5)

    def invented(batch: Any) -> Any:
        chance = torch.Generator().manual_seed(1)
        for name in ("known", "acted"):
            batch[name] = (torch.rand(4, 4, generator=chance) < 0.7).float()
        batch["policy"] = torch.rand(batch["policy"].shape, generator=chance).softmax(-1)
        batch["reward"] = 2 * torch.randn(3, 4, generator=chance)
        batch["returns"] = 3 * torch.randn(4, 4, generator=chance)
        batch["discount"] = 0.5 * (torch.rand(4, 4, generator=chance) < 0.7)
        return batch

    seen = [asked_for(monkeypatch, task.replay, "sample", invented) for task in trainer.tasks]
    network, slow = copy.deepcopy(trainer.agent.network), copy.deepcopy(trainer.target)
    groups = network.groups(2)
    hands = {
        name: ByHand(trainer.optimizer.groups[name], torch.nn.ParameterList(group))
        for name, group in groups.items()
    }
    shared = {k: v for k, v in PLANNER_KNOBS.items() if not k.endswith("_exponent")}
    shared |= GUMBEL | dict(noise_persistence=0.3)
    shared |= dict(root_exploration_fraction=0.1, latent_coef=3.0, policy_coef=1.3, reward_coef=0.6, tau=0.4)
    found = trainer.update(knobs_unlike(trainer.config, **shared).after(0))

    loss, columns = torch.zeros(()), {name: [] for name in ("policy", "value", "reward", "latent")}
    batches, latents = [], []
    for task, each in zip(trainer.tasks, seen, strict=True):
        assert each["args"] == (4, 0.8)
        batches.append(each["batch"])
        shown = task.seen(each["batch"]["places"].T, trainer.agent)
        latents.append(network.encode(task.number, shown, stage).view(4, 4, -1))
    actions = [batch["action"].T for batch in batches]
    windows, _ = network.windows([0, 1], latents, actions, stage)
    for task, batch, window in zip(trainer.tasks, batches, windows, strict=True):
        sums = {name: torch.zeros(()) for name in columns}
        counts = dict.fromkeys(columns, 0.0)

        def look(place: int, task: Any = task) -> torch.Tensor:
            return slow.encode(task.number, task.seen(np.array([place]), trainer.agent), stage)

        with torch.no_grad():
            for b in range(4):
                for k in range(4):
                    # With the one step before it that acting sees there, where there is one.
                    heads, place = slow.heads[task.number], batch["bootstrap"][k, b]
                    behind, action, past = task.replay.before(np.array([place]), 1)
                    tokens = [look(place)]
                    if past[0]:
                        tokens = [look(behind[0, 0]), heads.action(torch.from_numpy(action[0])), *tokens]
                    seen_there, _ = slow.transformer(torch.stack(tokens, 1), slow.weights(stage))
                    v = number_of(heads.policy_and_value(seen_there[:, -1])[1][0])
                    batch["returns"][k, b] += batch["discount"][k, b] * v
        for b in range(4):
            for k in range(4):
                if batch["acted"][k, b]:
                    wanted, log_share = batch["policy"][k, b], window.policy[b, k].log_softmax(0)
                    sums["policy"] = sums["policy"] + (wanted * (wanted.log() - log_share)).sum()
                    counts["policy"] += 1
                if not batch["known"][k, b]:
                    continue
                sums["value"] = sums["value"] + cross_entropy(
                    window.value[b, k], batch["returns"][k, b].item()
                )
                counts["value"] += 1
                if k < 3:
                    earned, where = batch["reward"][k, b].item(), look(batch["places"][k + 1, b])
                    sums["reward"] = sums["reward"] + cross_entropy(window.reward[b, k], earned)
                    sums["latent"] = sums["latent"] + ((window.latent[b, k] - where[0].detach()) ** 2).mean()
                    counts["reward"] += 1
                    counts["latent"] += 1
        means = {name: sums[name] / counts[name] for name in columns}
        loss = loss + 1.3 * means["policy"] + 0.7 * means["value"]
        loss = loss + 0.6 * means["reward"] + 3.0 * means["latent"]
        for name, column in columns.items():
            column.append(means[name].item())
            same(found, **{f"task/{task.name}/{name}_loss": means[name]})
    same(found, loss=loss, **{f"{name}_loss": np.mean(column) for name, column in columns.items()})
    learning = [f"stage {stage}", "task 0", "task 1"]
    slopes = {name: hands[name].slope(loss, None) for name in learning}
    norm = math.sqrt(sum((slope**2).sum() for slope in slopes.values()))
    assert norm > 0.9 and float(found["grad_norm"]) == pytest.approx(norm, rel=1e-3)
    for name in learning:
        hands[name].adam_along(slopes[name] * (0.9 / norm), 0.02)
        hands[name].assert_same(0.02)
    for name, group in trainer.agent.network.groups(2).items():
        if name not in learning:
            assert all(map(torch.equal, group, groups[name])), "what does not learn stays"
    for mine, followed, online in zip(
        trainer.target.parameters(), slow.parameters(), trainer.agent.network.parameters(), strict=True
    ):
        torch.testing.assert_close(mine, followed + 0.4 * (online - followed))
