"""Adam's ε and β reach every optimizer that a config sets them for; TRPO's advantages are normalised on request."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from updates import warmed

from rl_training.runtime.controls import Controls

TINY: dict[str, Any] = dict(env_id="CartPole-v1", total_timesteps=1000, hidden_sizes=[8])
ADAMS: dict[str, dict[str, Any]] = {
    "ppo": {},
    "recurrent_ppo": dict(recurrent_size=4),
    "gail": dict(demonstrations="gail/cartpole_expert.npz"),
    "bc": dict(demonstrations="gail/cartpole_expert.npz"),
    "appo": dict(fleet="inline"),
    "ppg": {},
    "trpo": {},
    "dqn": dict(buffer_size=400),
    "sac": dict(env_id="Pendulum-v1", buffer_size=400),
}
OTHERS = ("discriminator_optimizer",)  # that a learning rate of their own is for


@pytest.mark.parametrize("algo", ADAMS)
def test_epsilon_and_betas_are_those_of_the_config(algo: str) -> None:
    trainer = warmed(algo, 0, **TINY | ADAMS[algo], optimizer_epsilon=3e-4, optimizer_betas=[0.7, 0.98])
    found = {name: each for name, each in vars(trainer).items() if name.endswith("optimizer")}
    trainer.close()
    assert found
    for name, optimizer in found.items():
        if name not in OTHERS:
            assert (optimizer.epsilon, optimizer.betas) == (3e-4, (0.7, 0.98)), name


@pytest.mark.parametrize("normalize", [True, False])
def test_trpo_normalises_advantages_if_it_shall(normalize: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = warmed("trpo", 0, **TINY, num_steps=16, num_minibatches=1, normalize_advantages=normalize)
    seen: list[torch.Tensor] = []
    monkeypatch.setattr(trainer, "improve_policy", lambda batch, now: seen.append(batch["advantage"]) or {})
    trainer.iterate(Controls.of(trainer.config).at(0))
    trainer.close()
    mean, std = seen[0].mean().item(), seen[0].std().item()
    assert (abs(mean) < 1e-5 and abs(std - 1) < 1e-3) == normalize
