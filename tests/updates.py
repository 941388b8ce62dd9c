"""For tests of whole updates: equations written out plainly, and what they are compared with."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributions, nn

from rl_training.registry import trainer_class
from rl_training.runtime.controls import Controls, Knobs
from rl_training.state.seeding import fold, seed_everything

Batch = dict[str, Any]


def warmed(algo: str, iterations: int, **settings: Any) -> Any:
    """A trainer after some iterations: optimizers have moments, replays have something in them."""
    seed_everything(1)
    kind = trainer_class(algo)
    trainer = kind(kind.config_class(**settings))
    controls = Controls.of(trainer.config)
    for number in range(iterations):
        seed_everything(fold(1, number))
        trainer.iterate(controls.at(number * trainer.config.steps_per_iteration))
    return trainer


def knobs_unlike(config: Any, **values: Any) -> Knobs:
    """Knobs that have other values than the config, all of them given here."""
    own = Controls.of(config).values(0)
    assert values.keys() == own.keys(), values.keys() ^ own.keys()
    assert all(values[name] != own[name] for name in own), "each unlike the config's"
    return Controls.of(config.model_copy(update=values)).at(0)


def perturb(*modules: nn.Module, scale: float = 0.3) -> None:
    """Move all weights, in place: networks that were alike differ, and what began at 0 does not stay there."""
    with torch.no_grad():
        for module in modules:
            for parameter in module.parameters():
                parameter.add_(scale * torch.randn_like(parameter))


class ByHand:
    """Parameters of copied modules, moved by an optimizer's equations in double precision.

    It begins with the moments of a real optimizer and is compared with it afterwards.
    """

    def __init__(self, optimizer: Any, *modules: nn.Module) -> None:
        self.real = optimizer
        self.parameters = [parameter for module in modules for parameter in module.parameters()]
        names = ("mean", "square", "count")
        self.moments = {
            name: copy.deepcopy(getattr(optimizer, name)) for name in names if hasattr(optimizer, name)
        }
        self.moments = {name: np.asarray(value, np.float64).copy() for name, value in self.moments.items()}
        self.gradient = np.zeros(0)

    def slope(self, loss: Tensor, max_grad_norm: float | None) -> np.ndarray:
        """The gradient as one vector, scaled to a norm of at most `max_grad_norm`."""
        found = torch.autograd.grad(
            loss, self.parameters, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        vector = torch.cat([part.flatten() for part in found]).double().numpy()
        norm = math.sqrt((vector**2).sum())
        if max_grad_norm is not None and norm > max_grad_norm:
            vector = vector * (max_grad_norm / norm)
        self.gradient = vector
        return vector

    def move(self, step: np.ndarray) -> None:
        pieces = torch.from_numpy(step).split([parameter.numel() for parameter in self.parameters])
        with torch.no_grad():
            for parameter, piece in zip(self.parameters, pieces, strict=True):
                parameter.copy_((parameter.double() + piece.view(parameter.shape)).float())

    def adam(
        self, loss: Tensor, learning_rate: float, max_grad_norm: float | None, epsilon: float = 1e-8
    ) -> None:
        self.adam_along(self.slope(loss, max_grad_norm), learning_rate, epsilon)

    def adam_along(self, g: np.ndarray, learning_rate: float, epsilon: float = 1e-8) -> None:
        m, self.gradient = self.moments, g
        m["count"] = m["count"] + 1
        m["mean"] = 0.9 * m["mean"] + 0.1 * g
        m["square"] = 0.999 * m["square"] + 0.001 * g**2
        mean, square = m["mean"] / (1 - 0.9 ** m["count"]), m["square"] / (1 - 0.999 ** m["count"])
        self.move(-learning_rate * mean / (np.sqrt(square) + epsilon))

    def rmsprop(self, loss: Tensor, learning_rate: float, max_grad_norm: float | None) -> None:
        g, m = self.slope(loss, max_grad_norm), self.moments
        m["square"] = 0.99 * m["square"] + 0.01 * g**2
        self.move(-learning_rate * g / np.sqrt(m["square"] + 1e-5))

    def laprop(self, loss: Tensor, learning_rate: float) -> None:
        """After clipping the gradient of each tensor to 0.3 of the tensor's own norm."""
        g, m = self.slope(loss, None), self.moments
        begin = 0
        for parameter in self.parameters:
            piece = g[begin : begin + parameter.numel()]
            length, norm = max(1e-3, parameter.detach().double().norm().item()), math.sqrt((piece**2).sum())
            piece *= min(1.0, 0.3 * length / max(norm, 1e-30))
            begin += parameter.numel()
        m["count"] = m["count"] + 1
        m["square"] = 0.999 * m["square"] + 0.001 * g**2
        scale = np.sqrt(m["square"] / (1 - 0.999 ** m["count"])) + 1e-20
        m["mean"] = 0.9 * m["mean"] + 0.1 * g / scale
        self.move(-learning_rate * m["mean"] / (1 - 0.9 ** m["count"]))

    def assert_same(self, learning_rate: float) -> None:
        """The last gradient and the weights of the real optimizer are these."""
        gradient, weights = self.real.gradient.double().numpy(), self.real.parameters.double().numpy()
        expected = torch.cat([parameter.detach().flatten() for parameter in self.parameters]).double().numpy()
        largest = np.abs(self.gradient).max()
        np.testing.assert_allclose(gradient, self.gradient, rtol=2e-3, atol=1e-4 * largest)
        # Where a slope is 0 but for rounding, such as that of a bias before a batch normalisation, its sign is chance,
        # and on some processors one of the two sums is exactly 0.
        usual = np.sqrt(np.maximum(self.moments["square"], self.real.square.double().numpy()))
        real = (usual == 0) | (usual > 1e-6 * usual.max())
        assert real.mean() > 0.8
        np.testing.assert_allclose(weights[real], expected[real], rtol=1e-5, atol=5e-3 * learning_rate)


def actions_of(parameters: Tensor, discrete: bool) -> Any:
    """The distribution of actions that a network's outputs stand for."""
    if discrete:
        return distributions.Categorical(logits=parameters)
    mean, log_std = parameters.chunk(2, -1)
    return distributions.Independent(distributions.Normal(mean, log_std.exp()), 1)


def invent(rollout: Batch, seed: int) -> Batch:
    """A rollout [T, B] with ends and time limits anywhere, and old numbers that are not those of the network."""
    chance = torch.Generator().manual_seed(seed)
    shape = rollout["reward"].shape

    def noise(scale: float) -> Tensor:
        return scale * torch.randn(shape, generator=chance)

    draw = torch.rand(shape, generator=chance)
    rollout["terminated"], rollout["truncated"] = draw < 0.15, (draw >= 0.15) & (draw < 0.3)
    rollout["reward"] = 1 + noise(2.0)
    for name, scale in (("log_prob", 0.3), ("value", 0.5), ("next_value", 1.0)):
        if name in rollout:
            rollout[name] = rollout[name] + noise(scale)
    return rollout


def advantages(rollout: Batch, reward: Tensor, gamma: float, decay: float) -> Tensor:
    """Â_t = Σ_k (γλ)ᵏ δ_{t+k}, up to and with the step that ends the episode; after a termination nothing follows."""
    steps, lanes = reward.shape
    found = torch.zeros(steps, lanes, dtype=torch.float64)
    for lane in range(lanes):
        for t in range(steps):
            for k in range(t, steps):
                following = 0.0 if rollout["terminated"][k, lane] else rollout["next_value"][k, lane].item()
                error = reward[k, lane].item() + gamma * following - rollout["value"][k, lane].item()
                found[t, lane] += (gamma * decay) ** (k - t) * error
                if rollout["terminated"][k, lane] or rollout["truncated"][k, lane]:
                    break
    return found.float()


def standardised(rows: Tensor) -> Tensor:
    return (rows - rows.mean()) / rows.std()


def clipped_objective(log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """E[min(ρ A, clip(ρ, 1 ± ε) A)], row by row."""
    rows = []
    for new, old, a in zip(log_prob, old_log_prob, advantage, strict=True):
        ratio = (new - old).exp()
        if a > 0:
            rows.append(a * ratio if ratio < 1 + clip else a * ratio.detach().new_tensor(1 + clip))
        else:
            rows.append(a * ratio if ratio > 1 - clip else a * ratio.detach().new_tensor(1 - clip))
    return torch.stack(rows).mean()


def clipped_value_loss(value: Tensor, old: Tensor, target: Tensor, clip: float) -> Tensor:
    """½ E[max((V - R)², (V_old + clip(V - V_old) - R)²)]."""
    held = torch.minimum(torch.maximum(value, old - clip), old + clip)
    return 0.5 * torch.maximum((value - target) ** 2, (held - target) ** 2).mean()


def k3(log_prob: Tensor, old_log_prob: Tensor) -> float:
    """E[ρ - 1 - log ρ], an estimate of KL(old ‖ new)."""
    ratio = (log_prob - old_log_prob).exp()
    return (ratio - 1 - ratio.log()).mean().item()


def rows_of(tree: Any) -> Any:
    return (
        {key: rows_of(part) for key, part in tree.items()} if isinstance(tree, dict) else tree.flatten(0, 1)
    )


def vtrace_sums(
    ratio: np.ndarray,
    reward: np.ndarray,
    value: np.ndarray,
    next_value: np.ndarray,
    batch: Batch,
    now: dict[str, float],
) -> tuple[np.ndarray, np.ndarray]:
    """Equation 1 of the paper as the sum it is, and the advantages of section 4.2; all [T, L]."""
    steps, lanes = reward.shape
    target, advantage = np.zeros((steps, lanes)), np.zeros((steps, lanes))
    terminated, truncated = batch["terminated"].numpy(), batch["truncated"].numpy()
    for lane in range(lanes):
        for s in range(steps - 1, -1, -1):
            total, factor = value[s, lane], 1.0
            for t in range(s, steps):
                ahead = 0.0 if terminated[t, lane] else now["gamma"] * next_value[t, lane]
                rho = min(now["rho_bar"], ratio[t, lane])
                total += factor * rho * (reward[t, lane] + ahead - value[t, lane])
                if terminated[t, lane] or truncated[t, lane]:
                    break
                factor *= now["gamma"] * now["gae_lambda"] * min(now["c_bar"], ratio[t, lane])
            target[s, lane] = total
            last = s == steps - 1 or terminated[s, lane] or truncated[s, lane]
            ahead = next_value[s, lane]
            if not last:
                ahead += now["gae_lambda"] * (target[s + 1, lane] - value[s + 1, lane])
            ahead = 0.0 if terminated[s, lane] else now["gamma"] * ahead
            advantage[s, lane] = min(now["policy_rho_bar"], ratio[s, lane]) * (
                reward[s, lane] + ahead - value[s, lane]
            )
    return target, advantage


def two_hot(y: float, size: int) -> Tensor:
    """The shares of -size … size that a number has, clipped and split between its two neighbours."""
    y = min(max(y, -size), size)
    return torch.tensor([max(0.0, 1.0 - abs(y - atom)) for atom in range(-size, size + 1)])


def compressed(x: float) -> float:
    """h(x) = sign(x) (√(|x| + 1) - 1) + 0.001 x."""
    return math.copysign(math.sqrt(abs(x) + 1) - 1, x) + 0.001 * x


def expanded(y: float) -> float:
    """The x with h(x) = y, found by halving."""
    low, high = -1e6, 1e6
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if compressed(middle) < y else (low, middle)
    return low


def cross_entropy(logits: Tensor, target: float) -> Tensor:
    """Of logits over -S … S with a number that is compressed first."""
    size = (len(logits) - 1) // 2
    return -(two_hot(compressed(target), size) * logits.log_softmax(0)).sum()


def number_of(logits: Tensor) -> float:
    """What logits over -S … S stand for: the mean of the atoms, expanded."""
    size = (len(logits) - 1) // 2
    atoms = torch.arange(-size, size + 1.0).double()
    return expanded((logits.detach().double().softmax(0) * atoms).sum().item())
