"""The exponential function for many numbers, in compiled functions: most of the cost of a softmax over many atoms.

It is a polynomial that the compiler turns into vector instructions, right to 7 digits.
"""

from __future__ import annotations

import math

import numpy as np

from rl_training.compiling import njit

# 2ˣ = 2ⁿ 2ᶠ, n whole and |f| ≤ ½: added to this number, x is rounded to n, which is then in the lowest bits.
ROUND = np.float32(1.5 * 2**23)
LOG2_E = np.float32(math.log2(math.e))
LEAST = np.float32(-126.0)  # 2 to this power is the smallest normal number
ONE_BITS = 127 << 23  # 1.0 as an integer
C1, C2, C3, C4, C5, C6 = (np.float32(math.log(2) ** i / math.factorial(i)) for i in range(1, 7))


# Sums may not be reordered here: the rounding is in their order.
@njit(nogil=True, fastmath={"contract", "nnan", "nsz"})
def exponentials(logits, top, out):  # type: ignore[no-untyped-def]
    for j in range(len(logits)):
        x = (logits[j] - top) * LOG2_E
        x = x if x > LEAST else LEAST
        rounded = x + ROUND
        f = x - (rounded - ROUND)
        power = np.float32(1.0) + f * (C1 + f * (C2 + f * (C3 + f * (C4 + f * (C5 + f * C6)))))
        out[j] = power * np.int32((np.float32(rounded).view(np.int32) << 23) + ONE_BITS).view(np.float32)
