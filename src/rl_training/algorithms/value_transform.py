"""An invertible transform that compresses returns (Pohlen et al. 2018, arXiv 1805.11593)."""

from __future__ import annotations

from torch import Tensor

EPSILON = 0.001  # of the transform: what keeps its inverse Lipschitz


def compress(x: Tensor) -> Tensor:
    """h(x) = sign(x) (√(|x| + 1) - 1) + ε x."""
    return x.sign() * ((x.abs() + 1).sqrt() - 1) + EPSILON * x


def expand(y: Tensor) -> Tensor:
    """h⁻¹(y) = sign(y) (q² - 1) with q = (√(1 + 4 ε c) - 1) / 2ε and c = |y| + 1 + ε.

    q is computed as 2 c / (√(1 + 4 ε c) + 1): the difference of two numbers near 1 would lose four digits.
    """
    c = y.abs() + (1 + EPSILON)
    q = 2 * c / ((1 + 4 * EPSILON * c).sqrt() + 1)
    return y.sign() * (q * q - 1)
