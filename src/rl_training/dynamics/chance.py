"""Counter-based random numbers: the whole generator state is a key and a counter, so an episode can be saved directly.

The generator is SplitMix64 (Steele, Lea and Flood 2014): draw n of key k is a hash of k + (n + 1)·γ, with the odd
constant γ = ⌊2⁶⁴/φ⌋. Any draw is as cheap as the next one.
"""

from __future__ import annotations

import math

import numpy as np

from rl_training.compiling import njit

GAMMA = np.uint64(0x9E3779B97F4A7C15)
ONE = np.uint64(1)
KEY, COUNTER = 0, 1  # the two numbers


@njit(inline="always")
def bits(key, counter):  # type: ignore[no-untyped-def]
    """Draw number `counter` of `key`: 64 bits."""
    z = key + (counter + ONE) * GAMMA
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@njit(inline="always")
def episode_key(stream, lane, episode):  # type: ignore[no-untyped-def]
    """The key of a lane's episode: a draw of the lane's key, which is a draw of the stream's."""
    return bits(bits(stream, np.uint64(lane)), np.uint64(episode))


@njit(inline="always")
def unit(drawn):  # type: ignore[no-untyped-def]
    """64 bits as a number in [0, 1), a multiple of 2⁻⁵³."""
    return np.float64(drawn >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@njit(inline="always")
def uniform(chance):  # type: ignore[no-untyped-def]
    """A number in [0, 1) of the chance [key, counter], which moves on."""
    drawn = unit(bits(chance[KEY], chance[COUNTER]))
    chance[COUNTER] += ONE
    return drawn


@njit()
def below(chance, count):  # type: ignore[no-untyped-def]
    """A whole number in [0, count)."""
    return min(np.int64(uniform(chance) * count), count - 1)


@njit()
def normal(chance):  # type: ignore[no-untyped-def]
    """A draw of N(0, 1), by the transform of Box and Muller (1958) of two uniform numbers."""
    radius = math.sqrt(-2.0 * math.log(1.0 - uniform(chance)))
    return radius * math.cos(2.0 * math.pi * uniform(chance))
