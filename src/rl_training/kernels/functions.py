"""Functions of single numbers which the compiler can compute for a vector of them at once."""

from __future__ import annotations

import numpy as np

from rl_training.compiling import njit

# What lets the compiler sum in vector registers; NaN and infinity keep their meaning.
FAST = {"reassoc", "contract", "arcp", "nsz"}
ZERO = np.float32(0)
RMS_EPSILON = 1e-4  # of RMSNorm, in compiled code and in torch alike


@njit(fastmath=FAST, inline="always")
def fast_tanh(x):  # type: ignore[no-untyped-def]
    """tanh in float32 by the quotient of two polynomials that Eigen uses, right to 4e-7.

    The library's tanh is called for one number at a time; these few products are done for eight at once.
    """
    x = min(max(x, np.float32(-7.9053111)), np.float32(7.9053111))
    square = x * x
    above = np.float32(-2.76076847742355e-16)
    for factor in (
        2.00018790482477e-13,
        -8.60467152213735e-11,
        5.12229709037114e-08,
        1.48572235717979e-05,
        6.37261928875436e-04,
        4.89352455891786e-03,
    ):
        above = above * square + np.float32(factor)
    below = np.float32(1.19825839466702e-06)
    for factor in (1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03):
        below = below * square + np.float32(factor)
    return x * above / below


@njit(fastmath=FAST, inline="always")
def tanh(x):  # type: ignore[no-untyped-def]
    """`fast_tanh`; the last term is 0, and NaN where x is: the quotient would make a number of it."""
    return fast_tanh(x) + ZERO * x
