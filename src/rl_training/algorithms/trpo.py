"""Trust Region Policy Optimization (Schulman et al. 2015, arXiv 1502.05477), appendix C."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def surrogate(
    log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, entropy: Tensor, ent_coef: float
) -> Tensor:
    """L(θ) = E[π_θ(a|s) / π_old(a|s) · A] + c_e E[H], equation 14 with an entropy bonus; a number to maximise.

    All tensors are [N].
    """
    return ((log_prob - old_log_prob).exp() * advantage).mean() + ent_coef * entropy.mean()


def flat_gradient(output: Tensor, parameters: Sequence[Tensor], *, differentiable: bool = False) -> Tensor:
    """The gradient of a number by all parameters as one vector [P]; 0 where a parameter plays no part.

    The graph of `output` stays; `differentiable` gives the gradient a graph of its own.
    """
    slopes = torch.autograd.grad(
        output, parameters, retain_graph=True, create_graph=differentiable, materialize_grads=True
    )
    return torch.cat([slope.reshape(-1) for slope in slopes])


def fisher_vector_product(
    kl_gradient: Tensor, parameters: Sequence[Tensor], vector: Tensor, damping: float
) -> Tensor:
    """F v + damping · v, with F v = ∇((∇KL)ᵀ v).

    `kl_gradient` [P] is that of the mean KL(π_old ‖ π_θ) at θ = θ_old, with its graph. There the KL and its
    gradient are 0 and its Hessian is the Fisher information matrix F.
    """
    product = flat_gradient(torch.dot(kl_gradient, vector), parameters)
    return product.add_(vector, alpha=damping)


def conjugate_gradient(
    product: Callable[[Tensor], Tensor], target: Tensor, iterations: int, tolerance: float = 1e-10
) -> Tensor:
    """The x with A x = b, for a positive definite A known by its products, beginning at x = 0.

        α = rᵀr / pᵀAp;  x ← x + α p;  r ← r - α A p;  p ← r + (r'ᵀr' / rᵀr) p

    The dot products are summed in float64: in float32 the directions soon are not conjugate any more. Ends
    early when rᵀr < `tolerance` · bᵀb, or where pᵀAp is not above 0: rounding, or a p that A does not see.
    """
    x, residual = torch.zeros_like(target), target.clone()
    direction = target.clone()
    square = first = _dot(residual, residual)
    for _ in range(iterations):
        if square <= tolerance * first:
            break
        ahead = product(direction)
        curvature = _dot(direction, ahead)
        if not curvature > 0:
            break
        length = square / curvature
        x.add_(direction, alpha=length)
        residual.sub_(ahead, alpha=length)
        square, before = _dot(residual, residual), square
        direction = residual + (square / before) * direction
    return x


def step_length(direction: Tensor, product: Tensor, max_kl: float) -> float:
    """β = √(2 δ / xᵀF x): as far along x as the quadratic model of the KL allows; 0 where F gives no scale."""
    curvature = _dot(direction, product)
    return (2 * max_kl / curvature) ** 0.5 if 0 < curvature < float("inf") else 0.0


def line_search(
    measure: Callable[[float], tuple[float, float]], max_kl: float, shrink: float, tries: int
) -> tuple[float, float, float]:
    """The first of the fractions 1, d, d², ... of the full step that improves L within the trust region.

    `measure` gives (improvement of L, KL) at a fraction. Returns the fraction with its improvement and KL,
    or zeros when no try is accepted.
    """
    for i in range(tries):
        fraction = shrink**i
        improvement, kl = measure(fraction)
        if improvement > 0 and kl <= max_kl:
            return fraction, improvement, kl
    return 0.0, 0.0, 0.0


def _dot(one: Tensor, other: Tensor) -> float:
    return torch.dot(one.double(), other.double()).item()
