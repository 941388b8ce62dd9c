"""Wrappers and environments of one's own, for tests: named as `wrapping:Scaled`, or by the path of this file.

Worker processes import it, so it imports nothing that is slow.
"""

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Scaled(gym.ObservationWrapper):
    def __init__(self, env, by=2.0):
        super().__init__(env)
        self.by = by
        low, high = (
            np.asarray(bound * by, np.float32)
            for bound in (env.observation_space.low, env.observation_space.high)
        )
        self.observation_space = spaces.Box(low, high, dtype=np.float32)

    def observation(self, obs):
        return np.asarray(obs * self.by, np.float32)


class Tired(gym.Wrapper):
    """Each step of an episode is worth less than the one before: a wrapper with a state."""

    def reset(self, **options):
        self.worth = 1.0
        return self.env.reset(**options)

    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.worth *= 0.99
        return obs, reward * self.worth, terminated, truncated, info


def nothing(env):
    return None


class Talking(gym.Wrapper):
    """Says something besides what is seen."""

    def __init__(self, env):
        super().__init__(env)
        self.observation_space = spaces.Dict({"seen": env.observation_space, "said": spaces.Text(40)})

    def reset(self, **options):
        obs, info = self.env.reset(**options)
        return {"seen": obs, "said": "balance the pole"}, info

    def step(self, action):
        obs, *rest = self.env.step(action)
        return ({"seen": obs, "said": "balance the Pole, the pole"}, *rest)


class Level(gym.Env):
    """Four steps; shows and pays the level it was made with."""

    observation_space = spaces.Box(0.0, 100.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, level=0.0):
        self.level = level

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.array([self.level], np.float32), {}

    def step(self, action):
        self.t += 1
        return np.array([self.level], np.float32), float(self.level), self.t == 4, False, {}


for name in ("Level", "Other"):
    gym.register(f"curricula/{name}-v0", "wrapping:Level", max_episode_steps=50)


class Bandit(gym.Env):
    """Three steps; the arm pays."""

    def __init__(self, arms=2, best=1):
        self.observation_space, self.action_space = spaces.Box(0.0, 1.0, (1,)), spaces.Discrete(arms)
        self.best = best

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.np_random.random(1).astype(np.float32), {}

    def step(self, action):
        self.t += 1
        return self.np_random.random(1).astype(np.float32), float(action == self.best), self.t == 3, False, {}


class Drawn(Bandit):
    """Draws its time."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(self, render_mode=None):
        super().__init__()
        self.render_mode = render_mode

    def render(self):
        return np.full((16, 16, 3), 50 * self.t, np.uint8)


def make_bandit(arms=2):
    return gym.wrappers.TransformReward(Bandit(arms), lambda reward: 2 * reward)


class Meeting:
    """PettingZoo's parallel API without the package: two agents on a line, paid for being close, for six steps."""

    metadata = {"name": "meeting"}  # noqa: RUF012
    possible_agents = ["left", "right"]  # noqa: RUF012

    def __init__(self, leaves_early=False, odd_one=False):
        self.leaves_early, self.odd_one = leaves_early, odd_one

    def observation_space(self, agent):
        return spaces.Box(-20.0, 20.0, (2,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(3 if self.odd_one and agent == "right" else 2)

    def reset(self, seed=None, options=None):
        chance = np.random.default_rng(seed)
        self.agents, self.t = list(self.possible_agents), 0
        self.places = {"left": -chance.uniform(1, 3), "right": chance.uniform(1, 3)}
        return self.seen(), {agent: {} for agent in self.agents}

    def seen(self):
        left, right = self.places["left"], self.places["right"]
        return {"left": np.float32([left, right]), "right": np.float32([right, left])}

    def step(self, actions):
        self.t += 1
        for agent, action in actions.items():
            self.places[agent] += 0.5 if action else -0.5
        distance = abs(self.places["left"] - self.places["right"])
        rewards = {"left": -distance, "right": -2 * distance}
        over = dict.fromkeys(self.possible_agents, self.t == 6)
        if self.leaves_early and self.t == 3:
            over["left"] = True
        flags = dict.fromkeys(self.possible_agents, False)
        self.agents = [agent for agent in self.agents if not over[agent]]
        return (
            self.seen(),
            rewards,
            flags,
            over,
            {agent: {"near": distance < 1} for agent in self.possible_agents},
        )

    def close(self):
        self.closed = True
