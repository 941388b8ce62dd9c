"""One update of Dreamer, term by term: each loss as the paper writes it, their gradients, and all that moves.

Stored latents, rewards and the three flags of the sequences are invented: episodes begin, end and are cut off anywhere.
The slow critic is perturbed, and every knob has another value than in the config.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from runs import TINY_DREAMER
from torch import Tensor
from updates import ByHand, knobs_unlike, perturb, warmed

from rl_training.state.seeding import seed_everything

STEPS, LANES, HORIZON, CHOICES, CLASSES = 8, 4, 3, 4, 4
KNOBS: dict[str, Any] = dict(
    learning_rate=0.002,
    entropy_coef=0.2,
    gamma=0.9,
    return_lambda=0.7,
    train_ratio=1.0,
    imagination_horizon=HORIZON,
    slow_critic_rate=0.3,
    return_rate=0.2,
)
SCALES = dict(
    reconstruction=0.5,
    reward=1.5,
    **{"continue": 0.8},
    dynamics=0.7,
    representation=0.4,
    policy=1.3,
    value=0.6,
    replay_value=0.9,
)


def invented(batch: dict[str, Any]) -> dict[str, Any]:
    chance = torch.Generator().manual_seed(2)
    shape = (STEPS, LANES)
    draw = torch.rand(shape, generator=chance)
    batch["last"], batch["terminal"] = draw < 0.3, draw < 0.15  # half of the ends are terminations
    batch["first"] = torch.rand(shape, generator=chance) < 0.2
    batch["first"][0, 0], batch["first"][0, 1] = True, False
    batch["reward"] = 2 * torch.randn(shape, generator=chance)
    batch["deter"] = torch.randn(batch["deter"].shape, generator=chance)
    classes = torch.randint(CLASSES, (LANES, CHOICES), generator=chance)
    batch["stoch"] = torch.eye(CLASSES)[classes].transpose(1, 2).flatten(1)  # classes before choices
    return batch


def mixed(logits: Tensor, dim: int) -> Tensor:
    """1 % of the uniform distribution in every categorical."""
    return 0.99 * logits.softmax(dim) + 0.01 / logits.shape[dim]


def draw(probs: Tensor, noise: Tensor) -> Tensor:
    """One-hot [N, K, S]: the first class whose cumulative probability exceeds the noise; gradients go straight on."""
    chosen = (probs.cumsum(-2) <= noise.unsqueeze(-2)).sum(-2).clamp(max=CLASSES - 1)
    one_hot = torch.eye(CLASSES)[chosen].transpose(-1, -2)
    return one_hot + probs - probs.detach()


def bins_entropy(logits: Tensor, target: Tensor, bins: Tensor) -> Tensor:
    """The cross-entropy [...] of logits [..., bins] with numbers [...] that lie between two bins."""
    upper = torch.searchsorted(bins, target.contiguous()).clamp(1, len(bins) - 1)
    share = ((target - bins[upper - 1]) / (bins[upper] - bins[upper - 1])).clamp(0, 1)
    log_share = logits.log_softmax(-1)
    low, high = (log_share.gather(-1, (upper - i).unsqueeze(-1)).squeeze(-1) for i in (1, 0))
    return -(1 - share) * low - share * high


def mean_bin(logits: Tensor, bins: Tensor) -> Tensor:
    return (logits.detach().double().softmax(-1) * bins.double()).sum(-1).float()


def mixture(reward: Any, live: Any, bootstrap: Any, decay: Any, t: int, lane: int) -> float:
    """R_t = r_{t+1} + c_{t+1} ((1 - λ) b_{t+1} + λ R_{t+1}), called on itself until the last b."""
    if t == len(reward) - 1:
        return bootstrap[t, lane].item()
    after = mixture(reward, live, bootstrap, decay, t + 1, lane)
    share = decay[t + 1, lane].item()
    ahead = (1 - share) * bootstrap[t + 1, lane].item() + share * after
    return reward[t + 1, lane].item() + live[t + 1, lane].item() * ahead


def returns_of(reward: Tensor, live: Tensor, bootstrap: Tensor, decay: Tensor) -> Tensor:
    steps, lanes = reward.shape
    rows = [
        [mixture(reward, live, bootstrap, decay, t, lane) for lane in range(lanes)] for t in range(steps - 1)
    ]
    return torch.tensor(rows)


def divergence(p: Tensor, q: Tensor) -> Tensor:
    """Σ over choices of KL(p ‖ q), at least one nat: [T, B]."""
    return torch.clamp((p * (p.log() - q.log())).sum((-2, -1)), min=1.0)


@pytest.mark.parametrize(("refresh_latents", "spread"), [(False, 7.0), (True, 0.1)])
def test_dreamer(refresh_latents: bool, spread: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once with returns that are scaled down, and once with returns of a range below 1, which is not scaled up."""
    trainer = warmed(
        "dreamer",
        45,
        **TINY_DREAMER,
        env_id="CartPole-v1",
        total_timesteps=1000,
        num_envs=2,
        train_ratio=2.0,
        learning_starts=60,
        buffer_size=700,
        refresh_latents=refresh_latents,
        normalize_observations=True,
    )
    perturb(trainer.agent.network, scale=0.1)
    perturb(trainer.slow_critic, scale=0.3)
    with (
        torch.no_grad()
    ):  # bins reach 5e8: large ones are made unlikely, so that rewards and values are some units
        for head in (trainer.agent.network.reward, trainer.agent.network.critic, trainer.slow_critic):
            head.output.bias.sub_(torch.log(1 + trainer.agent.network.bins.abs()))
    trainer.return_low.fill_(-2.0)
    trainer.return_high.fill_(-2.0 + spread)
    real, seen, put = trainer.replay.sample, {}, []

    def sample(size: int) -> Any:
        batch = invented(real(size))
        seen.update(batch)
        return batch

    monkeypatch.setattr(trainer.replay, "sample", sample)
    monkeypatch.setattr(trainer.replay, "put_latents", lambda *args, **latents: put.append((args, latents)))
    network, slow = copy.deepcopy(trainer.agent.network), copy.deepcopy(trainer.slow_critic)
    hand, bins = ByHand(trainer.optimizer, network), network.bins
    knobs = knobs_unlike(
        trainer.config, **KNOBS, **{f"{name}_scale": value for name, value in SCALES.items()}
    )
    seed_everything(5)
    found = trainer.update(knobs.after(0))

    torch.manual_seed(5)
    rssm, losses = network.rssm, {}
    flags = {name: seen[name].float() for name in ("first", "last", "terminal")}
    obs = trainer.agent.inputs(seen["obs"])
    symlog = torch.sign(obs) * torch.log(1 + obs.abs())
    action = torch.eye(2)[seen["action"].long()]

    # The world model follows the sequences from the stored latents, and from zeros where episodes begin.
    noise = torch.rand(STEPS, LANES, CHOICES)
    tokens = network.reconstruction.encoder(symlog)
    deter, stoch = seen["deter"], seen["stoch"]
    columns: dict[str, list[Tensor]] = {name: [] for name in ("deter", "stoch", "posterior", "prior")}
    for t in range(STEPS):
        keep = 1 - flags["first"][t].unsqueeze(-1)
        state = type(rssm.initial(1))(deter * keep, stoch * keep)
        deter = rssm.remember(state, rssm.action_inputs(action[t] * keep))
        posterior = mixed(rssm.posterior(deter, rssm.token_inputs(tokens[t])), -2)
        stoch = draw(posterior, noise[t]).flatten(-2)
        prior = mixed(rssm.prior(deter), -2)
        for name, part in zip(columns, (deter, stoch, posterior, prior), strict=True):
            columns[name].append(part)
    follow = {name: torch.stack(column) for name, column in columns.items()}
    features = torch.cat([follow["deter"], follow["stoch"]], -1)
    told = network.reconstruction.outputs[0](network.reconstruction.decoder(features))
    losses["reconstruction"] = ((told - symlog) ** 2).sum(-1).mean()
    losses["reward"] = bins_entropy(network.reward(features), seen["reward"], bins).mean()
    live = (1 - flags["terminal"]) * 0.9
    chance = network.going_on(features).squeeze(-1)
    losses["continue"] = torch.nn.functional.binary_cross_entropy_with_logits(chance, live)
    posterior, prior = follow["posterior"], follow["prior"]
    losses["dynamics"] = divergence(posterior.detach(), prior).mean()
    losses["representation"] = divergence(posterior, prior.detach()).mean()
    assert losses["dynamics"] > 1.01  # beyond the free nats

    # Imagination, from each of the states.
    noise = torch.rand(HORIZON, STEPS * LANES, CHOICES)
    with torch.no_grad():
        state = type(state)(*(follow[name].flatten(0, 1) for name in ("deter", "stoch")))
        imagined, taken = [torch.cat(tuple(state), -1)], []
        for t in range(HORIZON):
            log_share = mixed(network.actor(imagined[-1]), -1).log()
            choice = (log_share - torch.empty_like(log_share).exponential_().log()).argmax(-1)
            deter = rssm.remember(state, rssm.action_inputs(torch.eye(2)[choice]))
            state = type(state)(deter, draw(mixed(rssm.prior(deter), -2), noise[t]).flatten(-2))
            taken.append(choice)
            imagined.append(torch.cat(tuple(state), -1))
        dreamt = torch.stack(imagined)
        going = network.going_on(dreamt).squeeze(-1).sigmoid()
        value = mean_bin(network.critic(dreamt), bins)
        earned = mean_bin(network.reward(dreamt), bins)
        returns = returns_of(earned, going, value, torch.full_like(going, 0.7))
        weight = torch.stack([going[: t + 1].prod(0) for t in range(HORIZON)])
        low, high = np.quantile(returns.numpy(), [0.05, 0.95])
        low, high = 0.8 * -2.0 + 0.2 * low, 0.8 * (-2.0 + spread) + 0.2 * high
        scale = max(1.0, high - low)
        assert (scale > 1.0) == (spread > 1.0) and scale < 20
        advantage = (returns - value[:-1]) / scale
        copied = mean_bin(slow(dreamt[:-1]), bins)
    policy = mixed(network.actor(dreamt[:-1]), -1)
    log_prob = policy.log().gather(-1, torch.stack(taken).unsqueeze(-1)).squeeze(-1)
    entropy = -(policy * policy.log()).sum(-1)
    losses["policy"] = -(weight * (log_prob * advantage + 0.2 * entropy)).mean()
    logits = network.critic(dreamt[:-1])
    losses["value"] = (
        weight * (bins_entropy(logits, returns, bins) + bins_entropy(logits, copied, bins))
    ).mean()

    # The critic on what was replayed: from an episode's last observation nothing follows, and no λ crosses it.
    start = returns[0].view(STEPS, LANES)
    target = returns_of(seen["reward"], live, start, 0.7 * (1 - flags["last"]))
    logits, copied = network.critic(features[:-1]), mean_bin(slow(features[:-1]), bins)
    errors = bins_entropy(logits, target, bins) + bins_entropy(logits, copied, bins)
    losses["replay_value"] = ((1 - flags["last"][:-1]) * errors).mean()

    for name, part in losses.items():
        assert found[f"{name}_loss"] == pytest.approx(part.item(), rel=2e-3, abs=1e-4), name
    loss = sum((SCALES[name] * part for name, part in losses.items()), torch.zeros(()))
    assert found["loss"] == pytest.approx(loss.item(), rel=1e-3)
    assert found["entropy"] == pytest.approx(entropy.mean().item(), rel=1e-3)
    assert found["imagined_return"] == pytest.approx(returns.mean().item(), rel=1e-2)
    assert found["return_scale"] == pytest.approx(scale, rel=1e-4)
    assert trainer.return_low.item() == pytest.approx(low, rel=1e-3)
    assert trainer.return_high.item() == pytest.approx(high, rel=1e-3)
    hand.laprop(loss, 0.002)
    hand.assert_same(0.002)
    online = trainer.agent.network.critic.parameters()
    for mine, followed, new in zip(trainer.slow_critic.parameters(), slow.parameters(), online, strict=True):
        torch.testing.assert_close(mine, followed + 0.3 * (new - followed))
    if not refresh_latents:
        assert put == []
        return
    (((lane, row), latents),) = put
    assert lane is seen["lane"] and row is seen["row"]
    torch.testing.assert_close(
        torch.from_numpy(latents["deter"]).float(), follow["deter"].detach(), atol=1e-3, rtol=1e-3
    )
    classes = follow["stoch"].detach().view(STEPS, LANES, CLASSES, CHOICES).argmax(-2)
    assert (torch.from_numpy(latents["stoch"]) == classes).all()
