"""Compiled gradients of a discriminator and of the penalty on its slopes, beside torch's autograd."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from updates import perturb, warmed

from rl_training.algorithms.gail import (
    discriminator_loss,
    discriminator_slopes,
    gradient_penalty,
    penalty_slopes,
    row_weights,
)
from rl_training.kernels.layers import HEIGHT
from rl_training.kernels.penalties import Penalty
from rl_training.kernels.reading import discriminator_layers
from rl_training.networks.discriminator import Discriminator
from rl_training.runtime import gail_trainer
from rl_training.runtime.controls import Controls
from rl_training.runtime.optim import flatten_parameters


def discriminator(inputs: int, hidden: tuple[int, ...]) -> Discriminator:
    box = spaces.Box(-1, 1, (inputs,))
    settings: dict[str, Any] = dict(hidden_sizes=hidden, image_encoder="nature", spectral_norm=False)
    network = Discriminator(box, spaces.Discrete(3), **settings)
    perturb(network, scale=0.4)
    return network


@pytest.mark.parametrize("target", [0.0, 1.0])
@pytest.mark.parametrize(
    ("inputs", "hidden", "rows"),
    [(1, (), 5), (3, (7,), 1), (5, (20, 9), 33), (21, (40, 33, 17), HEIGHT), (60, (16, 64), 77)],
)
def test_a_penalty_has_the_gradient_of_autograd(
    inputs: int, hidden: tuple[int, ...], rows: int, target: float
) -> None:
    torch.manual_seed(rows)
    network = discriminator(inputs, hidden)
    parameters, gradient = flatten_parameters(list(network.parameters()))
    x = torch.randn(2 * rows, network.size)
    chosen = torch.randperm(2 * rows)[:rows]
    at = x[chosen].clone().requires_grad_()
    slope = torch.autograd.grad(network(at).sum(), at, create_graph=True)[0]
    expected = gradient_penalty(slope, target)
    (0.7 * expected).backward()
    reference = gradient.clone()

    layers = discriminator_layers(network, parameters)
    assert layers is not None
    layers.pack()
    penalty, sums = Penalty(layers), np.zeros(2)
    found = penalty.slopes(x.numpy(), chosen.numpy())
    np.testing.assert_allclose(found, slope.detach(), rtol=1e-4, atol=1e-6)
    along = np.empty((rows, network.size), np.float32)
    penalty_slopes(found, target, 0.7, 1 / rows, along, sums)
    assert sums == pytest.approx([0.7 * expected.item(), expected.item()], rel=1e-4)
    penalty.add(along)
    gradient.zero_()
    layers.unpack(gradient.numpy())
    torch.testing.assert_close(gradient, reference, rtol=1e-3, atol=1e-5 * float(reference.abs().max()))


@pytest.mark.parametrize("shares", [(0.0, 0.0), (0.3, 0.6)])
def test_the_slopes_of_logits_are_those_of_autograd(shares: tuple[float, float]) -> None:
    torch.manual_seed(1)
    logits = (3 * torch.randn(13)).requires_grad_()
    expected = discriminator_loss(*logits.tensor_split([6, 12]), *shares)
    expected.backward()
    slopes, sums = np.empty((13, 1), np.float32), np.zeros(2)
    weights = row_weights(12, *shares).numpy()
    discriminator_slopes(logits.detach().numpy()[:, None], weights, slopes, sums)
    assert sums[0] == pytest.approx(expected.item(), rel=1e-5)
    assert logits.grad is not None
    np.testing.assert_allclose(slopes[:, 0], logits.grad, rtol=1e-4, atol=1e-6)


SMALL: dict[str, Any] = dict(
    env_id="CartPole-v1",
    demonstrations="gail/cartpole_expert.npz",
    total_timesteps=1000,
    num_envs=3,
    num_steps=32,
    num_minibatches=1,
    hidden_sizes=(8,),
    discriminator_hidden_sizes=(20, 9),
    discriminator_batch_size=HEIGHT + 30,
    discriminator_updates=3,
    vectorization="sync",
)


def drawn_shape(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    hidden = tuple(rng.integers(1, 50, rng.integers(0, 4)).tolist())
    return dict(discriminator_hidden_sizes=hidden, discriminator_batch_size=int(rng.integers(2, 2 * HEIGHT)))


INTERPOLATED: dict[str, Any] = {"gradient_penalty": "interpolated", "absorbing_states": False}


@pytest.mark.parametrize("settings", [{}, INTERPOLATED, *map(drawn_shape, range(3))])
@pytest.mark.parametrize("coefficient", [0.0, 2.0])
def test_gail_teaches_its_discriminator_as_torch_does(settings: dict[str, Any], coefficient: float) -> None:
    """From the same draws, for more than one block of rows."""
    more = SMALL | settings | dict(gradient_penalty_coef=coefficient)
    ours, theirs = (warmed("gail", 2, **more, compiled_updates=how) for how in (True, False))
    assert (ours.judgement.path, theirs.judgement.path) == ("compiled", "torch")
    pair = [trainer.discriminator_optimizer.parameters for trainer in (ours, theirs)]
    torch.testing.assert_close(*pair, rtol=1e-3, atol=3e-4)
    rows, now = torch.randn(60, ours.discriminator.size), Controls.of(ours.config).at(0).after(0)
    pair[0].copy_(pair[1])
    found = []
    for trainer in (ours, theirs):
        torch.manual_seed(2)
        logits, numbers = (trainer.judgement.taken() or trainer).judge(rows, 0.2, 0.3, now)
        found.append([*logits.tolist(), *map(float, numbers.values())])
        assert list(numbers) == (["gradient_penalty"] if coefficient else [])
    assert found[0] == pytest.approx(found[1], rel=1e-3, abs=1e-5)


def test_other_discriminators_and_losses_are_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert warmed("gail", 0, **SMALL, spectral_norm=True).judgement.path == "torch"
    trainer = warmed("gail", 0, **SMALL)
    assert trainer.judgement.path == "compiled"
    trainer.discriminator.hidden[0].register_forward_hook(lambda *_: None)
    assert trainer.judgement.path == "torch"
    monkeypatch.setattr(gail_trainer, "gradient_penalty", lambda *said: gradient_penalty(*said))
    assert warmed("gail", 0, **SMALL).judgement.explained == "torch (a loss of one's own)"
