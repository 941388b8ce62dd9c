"""An environment of one's own: walk to the end of a corridor. Use it as `env_id: corridor:Corridor-v0`."""

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Corridor(gym.Env):
    """Each step costs 1; the door at the right end ends the episode. Where one begins is left to chance."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(self, length: int = 10, render_mode: str | None = None) -> None:
        self.length, self.render_mode = length, render_mode
        self.observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)  # all chance comes from self.np_random
        self.place = int(self.np_random.integers(self.length))
        return self.look(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.place = max(0, self.place + (1 if action == 1 else -1))
        arrived = self.place >= self.length
        return self.look(), -1.0, arrived, False, {"is_success": arrived}

    def look(self) -> np.ndarray:
        return np.array([self.place / self.length], np.float32)

    def render(self) -> np.ndarray:
        picture = np.full((40, 20 * (self.length + 1), 3), 255, np.uint8)
        picture[:, 20 * self.place : 20 * (self.place + 1)] = (31, 111, 214)
        return picture


gym.register("Corridor-v0", Corridor, max_episode_steps=50)
