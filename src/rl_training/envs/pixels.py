"""CartPole from pixels, rendered here in place of the four state variables.

Gymnasium's own renderer needs a package with a window system; two strokes need none, and a picture of 64 × 64 takes
less time than a step.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from rl_training.types import Env

SIZE = 64  # pixels per side, as it is drawn
WIDTH = 4.8  # what the picture shows of the track, in metres
GROUND = 48.0  # row of the cart's axle
CART = (3.0, 2.0)  # half width and half height, in pixels
POLE = 28.0  # length in pixels, longer than true: an angle must show
SKY, RAIL, CART_COLOUR, POLE_COLOUR = (
    np.array(colour, np.float32) for colour in ((230, 236, 242), (120, 120, 120), (40, 60, 90), (200, 90, 30))
)
ROWS, COLUMNS = np.mgrid[0:SIZE, 0:SIZE].astype(np.float32)


def draw(position: float, angle: float) -> np.ndarray:
    """The picture [64, 64, 3] of a cart at `position` (m) with its pole at `angle` (rad), with soft edges."""
    picture = np.broadcast_to(SKY, (SIZE, SIZE, 3)).copy()
    picture[int(GROUND + CART[1]) + 1] = RAIL
    centre = (position / WIDTH + 0.5) * (SIZE - 1)
    across, up = COLUMNS - np.float32(centre), np.float32(GROUND) - ROWS
    # Distance of each pixel from the pole: from the nearest point of the stroke.
    sine, cosine = np.float32(np.sin(angle)), np.float32(np.cos(angle))
    along = np.clip(across * sine + up * cosine, 0, POLE)
    distance = np.hypot(across - along * sine, up - along * cosine)
    cart = np.minimum(CART[0] + 0.5 - np.abs(across), CART[1] + 0.5 - np.abs(up))
    for cover, colour in ((cart, CART_COLOUR), (1.7 - distance, POLE_COLOUR)):
        share = np.clip(cover, 0, 1)[..., None]
        picture += share * (colour - picture)
    return picture.astype(np.uint8)


class Camera(gym.ObservationWrapper[Any, Any, Any]):
    """Shows where cart and pole are; how fast they move shows in two pictures only.

    A smaller picture has the mean of a square of pixels in each of its own.
    """

    def __init__(self, env: Env, size: int = SIZE) -> None:
        super().__init__(env)
        if size < 1 or SIZE % size:
            raise ValueError(f"size: must divide {SIZE}, got {size}")
        self.size, self.each = size, SIZE // size
        self.observation_space = gym.spaces.Box(0, 255, (size, size, 3), np.uint8)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        picture = draw(float(observation[0]), float(observation[2]))
        if self.each == 1:
            return picture
        squares = picture.reshape(self.size, self.each, self.size, self.each, 3)
        return np.rint(squares.mean((1, 3), np.float32)).astype(np.uint8)


def cartpole_pixels(size: int = SIZE, **kwargs: Any) -> Env:
    from gymnasium.envs.classic_control import CartPoleEnv

    return Camera(CartPoleEnv(**kwargs), size)
