"""One update of MuZero, term by term, against loops over positions and steps."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from test_muzero_trainer_smoke import TINY

from rl_training.algorithms.value_transform import compress, expand
from rl_training.runtime.controls import Controls
from rl_training.runtime.muzero_trainer import MuZeroConfig, MuZeroTrainer
from rl_training.state.seeding import seed_everything

UNROLL, SIZE, BATCH = 3, 10, 8


def cross_entropy(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Of a distribution over -SIZE … SIZE with a number, whose two neighbours share it by how near they are."""
    y = compress(target).clamp(-SIZE, SIZE).item()
    shares = torch.tensor([max(0.0, 1.0 - abs(y - atom)) for atom in range(-SIZE, SIZE + 1)]).double()
    assert shares.sum().item() == pytest.approx(1)
    return -(shares * logits.log_softmax(0)).sum()


def trained_a_little() -> MuZeroTrainer:
    seed_everything(3)
    trainer = MuZeroTrainer(
        MuZeroConfig(**TINY | dict(unroll_steps=UNROLL, td_steps=2, reward_priority=4.0, state_coef=0.5))
    )
    knobs = Controls.of(trainer.config)
    for step in range(0, 120, 2):
        trainer.iterate(knobs.at(step))
    for network in (trainer.agent.network, trainer.target):  # outputs that differ, and more than a little
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
    return trainer


def test_an_update_is_the_papers_term_by_term(monkeypatch: Any) -> None:
    trainer = trained_a_little()
    now = Controls.of(trainer.config).at(120).after(0)
    batch = trainer.draw(now)
    # Ends and limits anywhere, weights that differ, rewards that are not all 1.
    chance = torch.Generator().manual_seed(1)
    for name in ("known", "acted"):
        batch[name] = (torch.rand(UNROLL + 1, BATCH, generator=chance) < 0.7).float()
    batch["weight"] = torch.rand(BATCH, generator=chance) + 0.2
    batch["reward"] = 3 * torch.randn(UNROLL, BATCH, generator=chance)
    batch["reward"][:, 1] = 0
    batch["reward"][1:, 2] = 0
    batch["returns"] = 5 * torch.randn(UNROLL + 1, BATCH, generator=chance)
    before, target = copy.deepcopy(trainer.agent.network), copy.deepcopy(trainer.target)
    seen: dict[str, Any] = {}
    real = trainer.optimizer.step
    monkeypatch.setattr(trainer, "draw", lambda now: dict(batch))
    monkeypatch.setattr(
        trainer.replay,
        "set_priorities",
        lambda index, error, exponent, factor: seen.update(
            index=index, error=error, exponent=exponent, factor=factor
        ),
    )

    def step(loss: torch.Tensor, *more: Any) -> Any:
        parameters = list(trainer.agent.network.parameters())
        seen["gradient"] = torch.autograd.grad(loss, parameters, retain_graph=True)
        return real(loss, *more)

    monkeypatch.setattr(trainer.optimizer, "step", step)
    metrics = trainer.update(now)

    def inputs(slot: int) -> torch.Tensor:
        return trainer.agent.inputs(trainer.replay.seen_at(np.array([slot])))

    sums = dict.fromkeys(
        ("policy_loss", "value_loss", "reward_loss", "state_loss"), torch.zeros((), dtype=torch.float64)
    )
    errors = []
    for b in range(BATCH):
        latent = before.represent(inputs(batch["places"][0, b]))
        for k in range(UNROLL + 1):
            if k > 0:
                entering = latent.clone()
                if k > 1:  # the root's own gradient is not halved
                    entering.register_hook(lambda gradient: gradient / 2)
                latent = before.transition(entering, batch["action"][k - 1, b : b + 1])
                if batch["acted"][k - 1, b]:  # otherwise nothing was seen there
                    seen_there = before.represent(inputs(batch["places"][k, b])).detach()
                    apart = (latent - seen_there).double().square().mean()
                    sums["state_loss"] = sums["state_loss"] + batch["weight"][b].double() * apart / (
                        UNROLL * BATCH
                    )
            policy, value, reward = (logits[0].double() for logits in before.predict(latent))
            with torch.no_grad():
                following = target.initial(inputs(batch["bootstrap"][k, b]))[1].item()
            z = batch["returns"][k, b].double() + batch["discount"][k, b].double() * following
            weight = batch["weight"][b].double() * (1 if k == 0 else 1 / UNROLL) / BATCH
            if batch["acted"][k, b]:
                sums["policy_loss"] = (
                    sums["policy_loss"]
                    - weight * (batch["policy"][k, b].double() * policy.log_softmax(0)).sum()
                )
            if batch["known"][k, b]:
                sums["value_loss"] = sums["value_loss"] + weight * cross_entropy(value, z)
            if k > 0 and batch["known"][k - 1, b]:
                sums["reward_loss"] = sums["reward_loss"] + weight * cross_entropy(
                    reward, batch["reward"][k - 1, b].double()
                )
            if k == 0:
                atoms = torch.arange(-SIZE, SIZE + 1).double()
                errors.append((expand((value.softmax(0) * atoms).sum()) - z).item())
    for name, expected in sums.items():
        assert metrics[name] == pytest.approx(expected.item(), rel=1e-4), name
    loss = sums["policy_loss"] + now.vf_coef * sums["value_loss"] + sums["reward_loss"]
    loss = loss + now.state_coef * sums["state_loss"]
    assert metrics["loss"] == pytest.approx(loss.item(), rel=1e-4)
    gradient = torch.autograd.grad(loss, list(before.parameters()))
    for one, other in zip(seen["gradient"], gradient, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(seen["error"], errors, rtol=1e-3, atol=1e-4)
    assert seen["index"] is batch["index"] and seen["exponent"] == now.priority_exponent
    assert seen["factor"].tolist() == [4, 1, *(4,) * (BATCH - 2)], "1 where no reward is unrolled"
