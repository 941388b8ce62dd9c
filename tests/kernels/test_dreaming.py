"""Operations on what Dreamer's heads put out: losses and slopes are torch's, in drawn shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rl_training.algorithms.distributions import Categorical, DiagonalGaussian
from rl_training.algorithms.dreamer import (
    actor_loss,
    bounded_normal,
    continue_loss,
    lambda_returns,
    latent_losses,
)
from rl_training.algorithms.one_hot import draw_one_hot, unimix
from rl_training.algorithms.symexp_bins import decode, make_bins, two_hot_loss
from rl_training.kernels.dreaming import (
    chance,
    decode_number,
    fit_bins,
    fit_chance,
    fit_choice,
    fit_latents,
    fit_normal,
    fit_squares,
)
from rl_training.kernels.fused import room_to_draw
from rl_training.kernels.imagination import draw_picks
from rl_training.kernels.programs import Program, perform
from rl_training.kernels.recurrence import Panels, room
from rl_training.kernels.towers import Parameters, States, Tower, whole
from rl_training.networks.rssm import linear, mlp
from rl_training.runtime.dreamer_updates import FLOOR, look_ahead, quantiles
from rl_training.runtime.optim import LaProp


def close(ours: Any, theirs: Tensor, most: float = 1e-5) -> None:
    """Within a share of the length of the whole tensor."""
    ours = torch.as_tensor(ours)
    assert ours.shape == theirs.shape and theirs.norm() > 0
    assert (ours - theirs).norm() <= most * theirs.norm(), ((ours - theirs).norm() / theirs.norm()).item()


def padded(rows: Tensor, value: float = 0.0) -> np.ndarray:
    """With columns up to whole panels, of numbers that must not count."""
    filled: np.ndarray = F.pad(rows, (0, whole(rows.shape[-1]) - rows.shape[-1]), value=value).numpy()
    return filled


def column(count: int) -> np.ndarray:
    return np.full((count, 1), np.nan, np.float32)


@pytest.mark.parametrize(("count", "size"), [(1, 255), (40, 255), (9, 17), (5, 32 + 1), (3, 31)])
def test_numbers_on_bins_and_the_slopes_of_their_losses(count: int, size: int) -> None:
    torch.manual_seed(size)
    bins, logits = make_bins(size), 3 * torch.randn(count, size)
    filled, width, given = padded(logits, FLOOR), whole(size), bins.numpy()
    said = column(count)
    perform(decode_number, count, filled, given, room(width), said, sizes=(width, size))
    close(said[:, 0], decode(logits.double(), bins.double()).float(), 1e-4)
    targets = [torch.randn(count, 1) * 10.0 ** torch.randint(-3, 4, (count, 1)) for _ in range(2)]
    targets[0][0], targets[1][0] = 1e12, bins[size // 2 + 1]  # beyond the last one, and one of them
    for several in (1, 2):
        slope, slopes, loss = torch.randn(count, 1), room(count, width), column(count)
        arrays = (filled, given, *(target.numpy() for target in targets), slope.numpy(), slopes, loss)
        perform(fit_bins, count, *arrays, sizes=(width, size, several))
        learned = logits.clone().requires_grad_()
        theirs = two_hot_loss(learned, [target[:, 0] for target in targets[:several]], bins)
        (theirs * slope[:, 0]).sum().backward()
        assert learned.grad is not None
        close(loss[:, 0], theirs.detach())
        close(slopes[:, :size], learned.grad)


def test_equal_shares_of_all_bins_say_0_and_nan_stays_nan() -> None:
    bins, logits = make_bins(255).numpy(), torch.zeros(3, 255)
    logits[1, 7] = float("nan")
    said = column(3)
    perform(decode_number, 3, padded(logits, FLOOR), bins, room(256), said, sizes=(256, 255))
    assert said[[0, 2], 0].tolist() == [0, 0] and np.isnan(said[1, 0])
    target, loss = np.ones((3, 1), np.float32), column(3)
    rest = (target, room(3, 256), loss)
    perform(fit_bins, 3, padded(logits, FLOOR), bins, target, target, *rest, sizes=(256, 255, 1))
    assert np.isnan(loss[:, 0]).tolist() == [False, True, False]


def test_the_chance_that_an_episode_goes_on() -> None:
    torch.manual_seed(1)
    logits, live = 20 * torch.randn(50, 1), torch.rand(50, 1)
    said, slopes, loss = column(50), column(50), column(50)
    perform(chance, 50, padded(logits), said, sizes=())
    close(said, logits.sigmoid())
    slope = np.array([0.7], np.float32)
    perform(fit_chance, 50, padded(logits), live.numpy(), slope, slopes, loss, sizes=())
    learned = logits.clone().requires_grad_()
    theirs = continue_loss(learned, live)
    (0.7 * theirs).sum().backward()
    assert learned.grad is not None
    close(loss, theirs.detach())
    close(slopes, learned.grad)


@pytest.mark.parametrize(("classes", "choices"), [(4, 8), (8, 8), (16, 1), (5, 32)])
@pytest.mark.parametrize("free", [0.0, 3.0, 1e3])
def test_divergences_of_latents(classes: int, choices: int, free: float) -> None:
    torch.manual_seed(classes)
    count, size = 60, classes * choices
    shape = (count, classes, choices)
    probs = unimix(torch.randn(shape)).requires_grad_()
    logits = torch.randn(shape).requires_grad_()
    dynamics, representation = latent_losses(probs, unimix(logits), free)
    (0.8 * dynamics + 0.3 * representation).sum().backward()
    to_probs, to_logits, loss = room(count, size), room(count, size), column(count)
    settings = np.array([free, 0.8, 0.3], np.float32)
    given = (part.detach().flatten(1).numpy() for part in (probs, logits))
    arrays = (*given, to_probs, to_logits, loss, settings, room(size + 3 * choices))
    perform(fit_latents, count, *arrays, sizes=(classes, choices))
    close(loss[:, 0], dynamics.detach())
    assert torch.equal(dynamics, representation)
    for ours, theirs in ((to_probs, probs.grad), (to_logits, logits.grad)):
        assert theirs is not None
        if theirs.any():
            close(ours, theirs.flatten(1))
        else:
            assert not ours.any() and free > 0


@pytest.mark.parametrize("width", [1, 2, 3, 18])
@pytest.mark.parametrize("chooses", [True, False])
def test_actors(width: int, chooses: bool) -> None:
    torch.manual_seed(width)
    count, family = 70, Categorical(width) if chooses else DiagonalGaussian(width)
    outputs = torch.randn(count, family.num_parameters)
    action = torch.randint(width, (count,)) if chooses else torch.randn(count, width)
    advantage, weight = torch.randn(count), torch.rand(count)
    learned = outputs.clone().requires_grad_()
    parameters = unimix(learned, -1).log() if chooses else bounded_normal(learned)
    log_prob, entropy = family.log_prob_and_entropy(parameters, action)
    loss = actor_loss(log_prob, entropy, advantage, weight, 0.3)
    (2.0 * loss).backward()
    slopes, told = room(*padded(outputs).shape), np.empty((count, 2), np.float32)
    given = (action.float().reshape(count, -1), advantage.unsqueeze(1), weight.unsqueeze(1))
    settings = np.array([0.3, 2.0 / count], np.float32)
    arrays = (padded(outputs), *(part.numpy() for part in given), settings, slopes, told)
    perform(fit_choice if chooses else fit_normal, count, *arrays, sizes=(width,))
    assert learned.grad is not None
    if width > 1 or not chooses:
        close(slopes[:, : outputs.shape[1]], learned.grad)
        close(told[:, 1], entropy.detach(), 1e-5)
    else:
        assert not slopes.any()
    assert told[:, 0].mean() == pytest.approx(loss.item(), rel=1e-4, abs=1e-6)


def test_squares() -> None:
    torch.manual_seed(1)
    outputs, targets = torch.randn(30, 5), torch.randn(30, 5)
    learned = outputs.clone().requires_grad_()
    theirs = (learned - targets).square().sum(-1)
    (0.4 * theirs).sum().backward()
    slopes, loss = room(30, 16), column(30)
    slope = np.array([0.4], np.float32)
    perform(fit_squares, 30, padded(outputs), padded(targets), slope, slopes, loss, sizes=(5,))
    assert learned.grad is not None
    close(slopes[:, :5], learned.grad)
    close(loss[:, 0], theirs.detach())


@pytest.mark.parametrize(("steps", "count"), [(1, 1), (1, 7), (2, 5), (15, 33)])
def test_returns(steps: int, count: int) -> None:
    torch.manual_seed(steps)
    reward, live, value = (
        torch.randn(steps + 1, count),
        torch.rand(steps + 1, count),
        torch.randn(steps + 1, count),
    )
    returns = np.empty((steps, count), np.float32)
    look_ahead(*(part.numpy() for part in (reward, live, value)), np.float32(0.9), returns)
    close(returns, lambda_returns(reward, live, value, 0.9))
    last = (torch.rand(steps + 1, count) < 0.3).float()
    decay = np.float32(0.9) * (1 - last.numpy())
    look_ahead(*(part.numpy() for part in (reward, live, value)), decay, returns)
    close(returns, lambda_returns(reward, live, value, 0.9, last))


@pytest.mark.parametrize("count", [1, 2, 20, 21, 150, 3840])
def test_percentiles_are_torchs_bit_for_bit(count: int) -> None:
    chance, shares = np.random.default_rng(count), torch.tensor([0.05, 0.5, 0.95])
    for numbers in (chance.normal(size=count), chance.normal(size=count).round(), np.full(count, -np.inf)):
        x = numbers.astype(np.float32)
        theirs = torch.quantile(torch.from_numpy(x), shares)
        assert torch.equal(quantiles(x, shares).nan_to_num(5), theirs.nan_to_num(5))
    x[0] = np.nan
    assert quantiles(x, shares).isnan().all()


@pytest.mark.parametrize(("classes", "choices"), [(4, 8), (8, 8), (16, 1), (3, 32)])
def test_picks_are_the_places_of_what_is_drawn(classes: int, choices: int) -> None:
    torch.manual_seed(classes)
    count, size = 200, classes * choices
    logits, noise = 2 * torch.randn(count, classes, choices), torch.rand(count, choices)
    noise[0], noise[1] = 0, 1 - 2**-24
    drawn = draw_one_hot(unimix(logits), noise).flatten(1)
    ours, theirs = room(count, choices), drawn.view(count, classes, choices).argmax(1) * choices
    theirs += torch.arange(choices)
    given = (logits.flatten(1).numpy(), noise.numpy(), ours, room_to_draw(choices), room(2 * size))
    perform(draw_picks, count, *given, sizes=(classes, choices))
    assert (ours == theirs.numpy()).mean() > 0.999  # where noise falls between two classes, rounding decides


@pytest.mark.parametrize(
    ("width", "choices", "units", "layers", "outputs"),
    [(16, 4, 16, 1, 1), (32, 8, 48, 2, 255), (32, 5, 12, 3, 7), (5, 0, 32, 2, 16), (64, 0, 16, 1, 33)],
)
def test_towers_are_torchs_both_ways(width: int, choices: int, units: int, layers: int, outputs: int) -> None:
    """On numbers and one-hot choices among three classes; what is added up is added to what is there."""
    torch.manual_seed(units)
    count, hot = 37, 3 * choices
    plain = nn.Sequential(*mlp(width + hot, units, layers), linear(units, outputs))
    optimizer = LaProp([plain])
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    numbers, classes = torch.randn(count, width), torch.randint(3, (count, choices))
    picks = classes * choices + torch.arange(choices)
    stoch = torch.zeros(count, hot)
    stoch.scatter_(1, picks, 1.0)
    weight = torch.randn(count, outputs)
    x = torch.cat([numbers, stoch], 1).requires_grad_()
    out = plain(x)
    (2 * (out * weight)).sum().backward()
    theirs = optimizer.gradient.clone()
    optimizer.gradient.zero_()

    panels, program = Panels(), Program()
    tower = Tower(panels, [Parameters.of(part) for part in plain], width, 5.0)
    panels.read()
    states = States(padded(numbers), picks.float().numpy() if choices else None)
    kept, to_states = tower.room(count), room(count, whole(width + hot))
    tower.forward(program, states, kept)
    tower.backward(program, states, kept, padded(weight), to_states if width % 16 == 0 else None)
    for _ in range(2):
        program.run(count, range(1))
        tower.hand_over()
    close(kept.out[:, :outputs], out.detach())
    assert (kept.out[:, outputs:] == 5.0).all()
    close(optimizer.gradient, theirs)
    if width % 16 == 0:
        assert x.grad is not None
        close(to_states[:, : width + hot], x.grad)
