"""Optimizers over one flat parameter vector, which reject non-finite gradients."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.compiling import address
from rl_training.errors import NonFiniteError
from rl_training.kernels.descent import SIGNATURE, Descent, adam, descend_at, laprop, rmsprop, two_rate_adam
from rl_training.runtime.controls import Now
from rl_training.settings.families import AdamSettings, OptimizerChoice
from rl_training.state.leaves import require
from rl_training.state.stateful import Stateful

ModuleT = TypeVar("ModuleT", bound=nn.Module)


class Optimizer(Stateful):
    """All parameters of some modules as one vector, and a step down a loss's gradient.

    The parameters are moved into one contiguous vector and become views of it, so that clipping and the
    update are a handful of operations whatever the number of layers. The learning rate comes with each
    step: there is no second clock.
    """

    transient: tuple[str, ...] = ("names", "parameters", "gradient", "laid")
    # Itself, as compiled code read it last, and where it lay then: to read it anew costs more than to look.
    laid: tuple[tuple[object, ...], Descent | None] = ((), None)
    compiled_step: ClassVar[Any]  # the same step in compiled code

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        named = [pair for module in modules for pair in module.named_parameters()]
        self.names = [(name, parameter.numel()) for name, parameter in named]
        self.parameters, self.gradient = flatten_parameters([parameter for _, parameter in named])

    def step(
        self,
        loss: Tensor,
        learning_rate: float,
        max_grad_norm: float | None,
        backward: Callable[[], None] | None = None,
    ) -> dict[str, float]:
        """One step down the gradient of `loss`, scaled to a norm of at most `max_grad_norm`.

        `backward` puts the gradient in place where that is known better than by differentiating `loss`.
        """
        self.differentiate(loss, backward)
        return self.move(learning_rate, max_grad_norm)

    def differentiate(self, loss: Tensor, backward: Callable[[], None] | None = None) -> None:
        """Put the gradient of `loss` in place."""
        if not math.isfinite(loss.item()):
            raise NonFiniteError("loss")
        self.gradient.zero_()
        (backward or loss.backward)()

    def move(self, learning_rate: float, max_grad_norm: float | None) -> dict[str, float]:
        """Move down the gradient that is in place, scaled to a norm of at most `max_grad_norm`."""
        norm = math.sqrt(torch.dot(self.gradient, self.gradient).item())
        if not math.isfinite(norm):
            raise NonFiniteError(self.first_not_finite())
        if max_grad_norm is not None and norm > max_grad_norm:
            self.gradient.mul_(max_grad_norm / (norm + 1e-6))
        self.update(learning_rate)
        return {"grad_norm": norm}

    def update(self, learning_rate: float) -> None:
        """Move the parameters by the gradient g as it stands."""
        raise NotImplementedError

    def descend(self, learning_rate: float, max_grad_norm: float) -> float:
        """The same step in compiled code, down the gradient that is in place already; its norm before scaling."""
        norm: float = descend_at(*self.descent(), learning_rate, max_grad_norm)
        if not math.isfinite(norm):
            raise NonFiniteError(self.first_not_finite())
        return norm

    def descent(self) -> Descent:
        """Itself, as compiled code reads it."""
        raise NotImplementedError

    def _compiled(self) -> Any:
        return type(self).compiled_step

    def _descent(self, mean: Tensor, square: Tensor, steps: Tensor, *settings: float) -> Descent:
        step, vectors = self._compiled(), (self.parameters, self.gradient, mean, square, steps)
        where = (step, settings, *map(Tensor.data_ptr, vectors))
        seen, descent = self.laid
        if descent is None or seen != where:
            arrays = [each.reshape(-1).numpy() for each in vectors]
            descent = Descent._make((address(step, SIGNATURE), *arrays, np.array(settings)))
            self.laid = (where, descent)
        return descent

    def first_not_finite(self) -> str:
        """What of the gradient is not finite."""
        pieces = self.gradient.split([size for _, size in self.names])
        for (name, _), piece in zip(self.names, pieces, strict=True):
            if not piece.isfinite().all():
                return f"gradient of {name}"
        return "norm of the gradient"


class Adam(Optimizer):
    """Adam (Kingma & Ba 2015).

    m ← β₁ m + (1 - β₁) g;  v ← β₂ v + (1 - β₂) g²
    θ ← θ - lr · m / (1 - β₁ᵗ) / (√(v / (1 - β₂ᵗ)) + ε)
    """

    transient: tuple[str, ...] = ("betas", "epsilon")
    compiled_step = adam

    def __init__(
        self,
        modules: Sequence[nn.Module],
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
    ) -> None:
        super().__init__(modules)
        self._begin(betas, epsilon)

    def beside(self) -> Adam:
        """A second Adam over the same parameters, with moments of its own: for another loss."""
        other = object.__new__(Adam)
        other.names, other.parameters, other.gradient = self.names, self.parameters, self.gradient
        other._begin(self.betas, self.epsilon)
        return other

    def _begin(self, betas: tuple[float, float], epsilon: float) -> None:
        self.betas, self.epsilon = betas, epsilon
        self.mean = torch.zeros_like(self.parameters)
        self.square = torch.zeros_like(self.parameters)
        self.count = torch.zeros((), device=self.parameters.device)

    def check_state(self) -> None:
        require((self.square >= 0).all() and self.count >= 0, "Adam: a negative second moment or count")

    def update(self, learning_rate: float) -> None:
        self.count += 1
        self._move([slice(None)], learning_rate)

    def _move(self, ranges: Sequence[slice], learning_rate: float) -> None:
        # torch's own kernel does in one pass what ten operations would do.
        torch._fused_adam_(
            [self.parameters[part] for part in ranges],
            [self.gradient[part] for part in ranges],
            [self.mean[part] for part in ranges],
            [self.square[part] for part in ranges],
            [],
            [self.count] * len(ranges),
            lr=learning_rate,
            beta1=self.betas[0],
            beta2=self.betas[1],
            weight_decay=0.0,
            eps=self.epsilon,
            amsgrad=False,
            maximize=False,
        )

    def descent(self) -> Descent:
        return self._descent(self.mean, self.square, self.count, *self.betas, self.epsilon)


class TwoRateAdam(Adam):
    """Adam with a learning rate of their own for the parameters whose names begin with `apart`.

    `apart_rate` is said before a step, for that step; without it all parameters have one rate.
    """

    transient = ("within", "apart", "apart_rate")

    def __init__(self, module: nn.Module, apart: str, **settings: Any) -> None:
        super().__init__([module], **settings)
        self.apart_rate: float | None = None
        self.within: list[slice] = []  # ranges of parameters with the common rate, and those of the others
        self.apart: list[slice] = []
        first = 0
        for name, size in self.names:
            ranges = self.apart if name.startswith(apart) else self.within
            begins = ranges.pop().start if ranges and ranges[-1].stop == first else first
            ranges.append(slice(begins, first + size))
            first += size

    def update(self, learning_rate: float) -> None:
        if self.apart_rate is None:
            super().update(learning_rate)
        else:
            self.count += 1
            self._move(self.within, learning_rate)
            self._move(self.apart, self.apart_rate)

    def _compiled(self) -> Any:
        return adam if self.apart_rate is None else two_rate_adam

    def descent(self) -> Descent:
        if self.apart_rate is None:
            return super().descent()
        ranges = [float(place) for part in self.apart for place in (part.start, part.stop)]
        settings = (*self.betas, self.epsilon, self.apart_rate, *ranges)
        return self._descent(self.mean, self.square, self.count, *settings)


def adam_of(config: AdamSettings, *modules: nn.Module) -> Adam:
    """Adam over all parameters of some modules, with the ε and the β of a config."""
    return Adam(modules, betas=config.optimizer_betas, epsilon=config.optimizer_epsilon)


def actor_critic_adam(config: AdamSettings, network: nn.Module) -> TwoRateAdam:
    """The same over an actor-critic whose critic may have a learning rate of its own; a shared trunk is the actor's."""
    return TwoRateAdam(network, "critic_", betas=config.optimizer_betas, epsilon=config.optimizer_epsilon)


def set_critic_rate(optimizer: object, now: Now) -> None:
    """Let the critic learn at its own rate from now on, or at that of all; an optimizer of one's own is left alone."""
    if isinstance(optimizer, TwoRateAdam):
        optimizer.apart_rate = now.critic_learning_rate


def share_parameters(weight: Tensor, *optimizers: object) -> None:
    """Let optimizers of the same parameters, of which `weight` is one, move them where they are now.

    Whoever replaces one of them moves the parameters into a vector that the others do not know.
    """
    ours = [each for each in optimizers if isinstance(each, Optimizer)]
    where = weight.untyped_storage().data_ptr()
    for owner in (each for each in ours if each.parameters.untyped_storage().data_ptr() == where):
        for each in ours:
            each.parameters, each.gradient = owner.parameters, owner.gradient


def rate(now: Now, part: str) -> float:
    """The learning rate of a part of an agent: its own, or the one of all."""
    own: float | None = getattr(now, f"{part}_learning_rate")
    return now.learning_rate if own is None else own


class RMSprop(Optimizer):
    """RMSprop as TensorFlow 1 had it, with which A2C's published results were made.

        v ← α v + (1 - α) g²
        θ ← θ - lr · g / √(v + ε)

    ε stands inside the root, and v starts at 1: the first steps are small. With ε outside and v from 0, as
    torch has it, the first step for a gradient of 1e-4 is 5e4 times as long.
    """

    transient = ("decay", "epsilon")
    compiled_step = rmsprop

    def __init__(self, modules: Sequence[nn.Module], *, decay: float = 0.99, epsilon: float = 1e-5) -> None:
        super().__init__(modules)
        self.decay, self.epsilon = decay, epsilon
        self.square = torch.ones_like(self.parameters)

    def check_state(self) -> None:
        require((self.square >= 0).all(), "RMSprop: a negative second moment")

    def update(self, learning_rate: float) -> None:
        self.square.mul_(self.decay).addcmul_(self.gradient, self.gradient, value=1 - self.decay)
        self.parameters.addcdiv_(self.gradient, self._spread(), value=-learning_rate)

    def _spread(self) -> Tensor:
        return (self.square + self.epsilon).sqrt_()

    def descent(self) -> Descent:
        nothing = self.square[:0]
        return self._descent(nothing, self.square, nothing, self.decay, self.epsilon, 0.0)


class TorchRMSprop(RMSprop):
    """RMSprop as torch and stable-baselines3 have it: v starts at 0, and ε stands outside the root.

        θ ← θ - lr · g / (√v + ε)

    Small gradients move as far as large ones: the policy's, where the clipped norm is the critic's.
    """

    def __init__(self, modules: Sequence[nn.Module], *, decay: float = 0.99, epsilon: float = 1e-5) -> None:
        super().__init__(modules, decay=decay, epsilon=epsilon)
        self.square.zero_()

    def _spread(self) -> Tensor:
        return self.square.sqrt().add_(self.epsilon)

    def descent(self) -> Descent:
        nothing = self.square[:0]
        return self._descent(nothing, self.square, nothing, self.decay, 0.0, self.epsilon)


OPTIMIZERS = {"rmsprop": RMSprop, "torch_rmsprop": TorchRMSprop, "adam": Adam}


def optimizer_of(config: OptimizerChoice, *modules: nn.Module) -> RMSprop | Adam:
    """The optimizer that a config names, with its ε."""
    kind: type[RMSprop | Adam] = OPTIMIZERS[config.optimizer]
    return kind(modules, epsilon=config.optimizer_epsilon)


class LaProp(Optimizer):
    """LaProp (Ziyin et al. 2020) after adaptive gradient clipping (Brock et al. 2021), as DreamerV3 has them.

        g ← g · min(1, c max(ε_p, ‖θ‖) / ‖g‖)        for the θ and the g of each tensor by itself
        v ← β₂ v + (1 - β₂) g²
        m ← β₁ m + (1 - β₁) g / (√(v / (1 - β₂ᵗ)) + ε)
        θ ← θ - lr · m / (1 - β₁ᵗ)

    Unlike in Adam, the momentum is of what is normalised already: a sudden large gradient moves no more than others.
    """

    transient = ("betas", "epsilon", "clip", "pieces", "slopes")

    def __init__(
        self,
        modules: Sequence[nn.Module],
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-20,
        clip: float = 0.3,
    ) -> None:
        super().__init__(modules)
        self.betas, self.epsilon, self.clip = betas, epsilon, clip
        sizes = [size for _, size in self.names]
        self.pieces, self.slopes = self.parameters.split(sizes), self.gradient.split(sizes)
        self.mean = torch.zeros_like(self.parameters)
        self.square = torch.zeros_like(self.parameters)
        self.count = 0

    def check_state(self) -> None:
        require((self.square >= 0).all() and self.count >= 0, "LaProp: a negative second moment or count")

    def update(self, learning_rate: float) -> None:
        self.count += 1
        lengths, norms = (torch.stack(torch._foreach_norm(parts)) for parts in (self.pieces, self.slopes))
        # A tensor that starts as zeros counts as one of length 1e-3: it must be able to grow.
        limits = self.clip * lengths.clamp_min(1e-3) / norms.clamp_min(1e-30)
        torch._foreach_mul_(self.slopes, limits.clamp_max(1.0).unbind())
        first, second = self.betas
        self.square.mul_(second).addcmul_(self.gradient, self.gradient, value=1 - second)
        scale = (self.square / (1 - second**self.count)).sqrt_().add_(self.epsilon)
        self.mean.mul_(first).addcdiv_(self.gradient, scale, value=1 - first)
        self.parameters.add_(self.mean, alpha=-learning_rate / (1 - first**self.count))

    def descend(self, learning_rate: float, max_grad_norm: float) -> float:
        vectors = (self.parameters, self.gradient, self.mean, self.square)
        ends, settings = np.cumsum([size for _, size in self.names]), (*self.betas, self.epsilon, self.clip)
        arrays = tuple(vector.numpy() for vector in vectors)
        norm: float = laprop(arrays, ends, settings, self.count + 1, learning_rate)
        if not math.isfinite(norm):
            raise NonFiniteError(self.first_not_finite())
        self.count += 1
        return norm


def target_of(network: ModuleT) -> tuple[ModuleT, Tensor]:
    """A target network, a copy that no gradient reaches, and its weights as one vector, laid out as an optimizer's."""
    target = copy.deepcopy(network).requires_grad_(False)
    return target, flatten_parameters(list(target.parameters()))[0]


def is_view(module: nn.Module, vector: Tensor) -> bool:
    """Whether all weights of a module lie in this vector."""
    where = vector.untyped_storage().data_ptr()
    return all(part.untyped_storage().data_ptr() == where for part in module.parameters())


@torch.no_grad()
def renew(target: nn.Module, network: nn.Module) -> None:
    """Make a target network a copy of its network again, statistics of normalisation included."""
    for mine, its in zip(target.state_dict().values(), network.state_dict().values(), strict=True):
        mine.copy_(its)


def flatten_parameters(parameters: Sequence[nn.Parameter]) -> tuple[Tensor, Tensor]:
    """One vector of all parameters and one of their gradients, of which each parameter becomes a view."""
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
    gradient = torch.zeros_like(flat)
    sizes = [parameter.numel() for parameter in parameters]
    for parameter, piece, slope in zip(parameters, flat.split(sizes), gradient.split(sizes), strict=True):
        parameter.data = piece.view(parameter.shape)
        parameter.grad = slope.view(parameter.shape)
    return flat, gradient
