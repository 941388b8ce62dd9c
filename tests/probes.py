"""Tiny environments whose right values and actions are known, registered as probe/<Name>-v0."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Probe(gym.Env):
    """A one-dimensional observation and a fixed number of steps."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space: spaces.Space = spaces.Discrete(2)
    length = 1
    seed_to_use: int | None = None

    def reset(self, *, seed=None, options=None):
        self.seed_to_use = self.seed_to_use if seed is None else seed
        self.t = 0
        return self.observe(), {}

    @property
    def np_random(self):
        """Seeded when it is first asked for: where episodes are a step long, a generator for each is half the time."""
        if self.seed_to_use is not None:
            gym.Env.reset(self, seed=self.seed_to_use)
            self.seed_to_use = None
        return super().np_random

    def step(self, action):
        reward = self.reward(action)
        self.t += 1
        return self.observe(), reward, self.t >= self.length, False, {}

    def observe(self):
        return np.zeros(1, np.float32)

    def reward(self, action):
        return 1.0


class ConstantReward(Probe):
    """One step, reward 1: V = 1."""


class RewardByObservation(Probe):
    """One step; the reward is the observation, -1 or +1: V(o) = o."""

    def observe(self):
        self.sign = float(self.np_random.integers(2) * 2 - 1)
        return np.array([self.sign], np.float32)

    def reward(self, action):
        return self.sign


class DelayedReward(Probe):
    """Two steps, reward 1 at the second: V = γ, then 1."""

    length = 2

    def observe(self):
        return np.array([self.t], np.float32)

    def reward(self, action):
        return float(self.t == 1)


class RewardByAction(Probe):
    """One step; action 1 earns 1, action 0 nothing."""

    def reward(self, action):
        return float(action == 1)


class RewardByBoth(RewardByObservation):
    """One step; the action that matches the observation's sign earns 1, the other -1."""

    def reward(self, action):
        return 1.0 if (action == 1) == (self.sign > 0) else -1.0


class Target(Probe):
    """One step; a continuous action in asymmetric bounds [-1, 3], best at 2: reward -(a - 2)²."""

    action_space = spaces.Box(np.array([-1.0], np.float32), np.array([3.0], np.float32))

    def reward(self, action):
        assert self.action_space.contains(action)
        return -float((action[0] - 2.0) ** 2)


class Unbounded(Probe):
    """A continuous action without bounds."""

    action_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)


class Ending(Probe):
    """Five steps with a continuous action that changes nothing, reward 1 each: Q = 1 at the last."""

    length = 5
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def observe(self):
        # Where a time limit cuts, the observation must be one that is acted on too, or nobody can learn its value.
        return np.array([self.t % self.length], np.float32)


class CutOff(Ending):
    """The same, cut by a time limit: Q = 1 / (1 - γ) everywhere."""

    def step(self, action):
        obs, reward, ended, _, info = super().step(action)
        return obs, reward, False, ended, info


class DiscreteEnding(Ending):
    action_space = spaces.Discrete(2)


class DiscreteCutOff(CutOff):
    action_space = spaces.Discrete(2)


class TwoChoices(Probe):
    """One step; MultiDiscrete (2, 3): earns 1 for each of (1, 2)."""

    action_space = spaces.MultiDiscrete([2, 3])

    def reward(self, action):
        return float(action[0] == 1) + float(action[1] == 2)


class Coins(Probe):
    """One step; MultiBinary 3: earns 1 for each bit of (1, 0, 1)."""

    action_space = spaces.MultiBinary(3)

    def reward(self, action):
        return float(np.sum(action == np.array([1, 0, 1])))


class DictAndPicture(Probe):
    """One step; a Dict of a picture, all dark or all bright, and a useless vector; the action must name which."""

    observation_space = spaces.Dict(
        {
            "camera": spaces.Box(0, 255, (12, 12, 1), np.uint8),
            "vector": spaces.Box(-1, 1, (2,), np.float32),
            "digit": spaces.Discrete(3),
        }
    )

    def observe(self):
        self.bright = int(self.np_random.integers(2))
        return {
            "camera": np.full((12, 12, 1), 255 * self.bright, np.uint8),
            "vector": self.np_random.uniform(-1, 1, 2).astype(np.float32),
            "digit": int(self.np_random.integers(3)),
        }

    def reward(self, action):
        return float(action == self.bright)


class DictTarget(DictAndPicture):
    """The same observations, with a continuous action that should be near 0 or 1."""

    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reward(self, action):
        return -abs(float(action[0]) - self.bright)


class Bright(Probe):
    """Some steps; a picture, all dark or all bright, which the action must name. `shape` and `dtype` are the user's."""

    length = 4

    def __init__(self, shape=(12, 12, 3), dtype="uint8"):
        self.dtype = np.dtype(dtype)
        self.top = 255 if self.dtype == np.uint8 else 1
        self.observation_space = spaces.Box(0, self.top, tuple(shape), self.dtype.type)

    def observe(self):
        self.bright = int(self.np_random.integers(2))
        return np.full(self.observation_space.shape, self.top * self.bright, self.dtype)

    def reward(self, action):
        return float(action == self.bright)


class Dark(Bright):
    """The same observations, with the actions the other way round."""

    def reward(self, action):
        return float(action != self.bright)


class BrightTarget(Bright):
    """The same observations, with a continuous action that should be near 0 or 1."""

    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reward(self, action):
        return -abs(float(action[0]) - self.bright)


class Counting(Probe):
    """Random length; the observation is 100 · (a number drawn at reset) + t, and truncates or terminates by turns.

    It shows every mix-up of episodes: no two episodes share an observation.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        self.t = 0
        _, info = super().reset(seed=seed)
        self.name = int(self.np_random.integers(10_000))
        self.length = int(self.np_random.integers(1, 9))
        self.total = 0
        return self.observe(), info

    def observe(self):
        return np.array([getattr(self, "name", 0), self.t], np.float32)

    def step(self, action):
        self.t += 1
        self.total += int(action) + 1
        ended = self.t >= self.length
        noise = float(self.np_random.random())
        return (
            self.observe(),
            noise + self.total,
            ended and self.name % 2 == 0,
            ended and self.name % 2 == 1,
            {},
        )


class NotANumber(Probe):
    """Its reward (or observation) turns into NaN at a chosen step of a long episode."""

    length = 1000

    def __init__(self, bad_step: int = 40, where: str = "reward") -> None:
        self.bad_step, self.where = bad_step, where

    def observe(self):
        return np.array([np.nan if self.where == "obs" and self.t == self.bad_step else 0.0], np.float32)

    def reward(self, action):
        return float("nan") if self.where == "reward" and self.t == self.bad_step else 1.0


class Undetermined(Probe):
    """Breaks the rules: its observations do not follow from seed and actions."""

    length = 50

    def observe(self):
        return np.random.default_rng().random(1).astype(np.float32)


class TupleActions(Probe):
    """An action space that no algorithm handles."""

    action_space = spaces.Tuple([spaces.Discrete(2), spaces.Discrete(2)])


class Recall(Probe):
    """A cue of -1 or +1 in the first observation, then zeros; the last of 21 actions must name it, for a reward of 1.

    Nothing but memory helps: without one, the best possible is 0.5. `length` is how many actions there are.
    """

    length = 21

    def __init__(self, length: int | None = None) -> None:
        self.length = length or self.length

    def reset(self, *, seed=None, options=None):
        gym.Env.reset(self, seed=seed)
        self.t = 0
        self.cue = int(self.np_random.integers(2))
        return self.observe(), {}

    def observe(self):
        return np.array([2.0 * self.cue - 1 if self.t == 0 else 0.0, self.t == self.length - 1], np.float32)

    observation_space = spaces.Box(-1, 1, (2,), np.float32)

    def reward(self, action):
        return float(self.t == self.length - 1 and action == self.cue)


class ShortRecall(Recall):
    """The same with three actions: for policies that remember a few steps."""

    length = 3


class Echo(Probe):
    """Nine steps; the observation is the action before, or -1 at the start: it shows any shift between the two."""

    length = 9

    def reset(self, *, seed=None, options=None):
        self.action = -1
        return super().reset(seed=seed)

    def step(self, action):
        self.action = int(action)
        return super().step(action)

    def observe(self):
        return np.array([self.action], np.float32)

    def reward(self, action):
        return float(action) + 10


class Masked(Probe):
    """Three steps of five actions, of which a random few are allowed; the highest allowed one earns 1.

    Taking a forbidden action is an error. `where` says how the mask is given: in the info, or in a Dict observation.
    """

    length = 3
    action_space: spaces.Space = spaces.Discrete(5)

    def __init__(self, where: str = "info") -> None:
        self.where = where
        if where == "obs":
            parts = {"vector": Probe.observation_space, "action_mask": spaces.Box(0, 1, (5,), np.int8)}
            self.observation_space = spaces.Dict(parts)

    def reset(self, *, seed=None, options=None):
        obs, _ = super().reset(seed=seed)
        return obs, self.info()

    def step(self, action):
        *stepped, _ = super().step(action)
        return (*stepped, self.info())

    def info(self):
        return {"action_mask": self.mask.copy()} if self.where == "info" else {}

    def draw(self, count):
        mask = (self.np_random.random(count) < 0.4).astype(np.int8)
        mask[self.np_random.integers(count)] = 1
        return mask

    def observe(self):
        self.mask = self.draw(5)
        if self.where == "obs":
            return {"vector": np.ones(1, np.float32), "action_mask": self.mask.copy()}
        return self.mask[:1].astype(np.float32)

    def reward(self, action):
        assert self.mask[action], "a forbidden action was taken"
        return float(action == np.flatnonzero(self.mask)[-1])


class MaskedTwice(Masked):
    """MultiDiscrete (2, 3) with a mask for each choice; the highest allowed ones earn 1."""

    action_space = spaces.MultiDiscrete([2, 3])

    def observe(self):
        self.masks = (self.draw(2), self.draw(3))
        return np.zeros(1, np.float32)

    def info(self):
        return {"action_mask": tuple(mask.copy() for mask in self.masks)}

    def reward(self, action):
        for mask, choice in zip(self.masks, action, strict=True):
            assert mask[choice], "a forbidden action was taken"
        return float(all(c == np.flatnonzero(m)[-1] for m, c in zip(self.masks, action, strict=True)))


class JointTask(Masked):
    """A Dict of all kinds of actions, one of them a Tuple, seen as a Tuple; masks for the choices alone.

    The highest allowed choices, both coins up and a move to the target shown earn 1 each.
    """

    length = 4
    observation_space = spaces.Tuple((spaces.Box(-1.0, 1.0, (2,), np.float32), spaces.Discrete(3)))
    action_space = spaces.Dict(
        {
            "coins": spaces.MultiBinary(2),
            "kind": spaces.Discrete(3, start=5),
            "move": spaces.Tuple((spaces.Box(-2.0, 2.0, (2,), np.float32), spaces.MultiDiscrete([2, 3]))),
        }
    )

    def __init__(self, masked=True):
        self.masked = masked

    def observe(self):
        self.masks = [self.draw(count) if self.masked else np.ones(count, np.int8) for count in (3, 2, 3)]
        self.target = self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32)
        return self.target.copy(), int(self.masks[0].argmax())

    def info(self):
        first, *others = (mask.copy() for mask in self.masks)
        return {"action_mask": {"kind": first, "move": (tuple(others),)}} if self.masked else {}

    def reward(self, action):
        assert self.action_space.contains(action), action
        move, pair = action["move"]
        for mask, choice in zip(self.masks, (action["kind"] - 5, *pair), strict=True):
            assert mask[choice], "a forbidden action was taken"
        best = action["kind"] - 5 == np.flatnonzero(self.masks[0])[-1]
        near = 1.0 - float(np.abs(move - self.target).mean())
        return float(best) + float(action["coins"].mean()) + near


for probe in (
    JointTask,
    Masked,
    MaskedTwice,
    Recall,
    ShortRecall,
    Echo,
    ConstantReward,
    RewardByObservation,
    DelayedReward,
    RewardByAction,
    RewardByBoth,
    Target,
    Unbounded,
    Ending,
    CutOff,
    DiscreteEnding,
    DiscreteCutOff,
    TwoChoices,
    Coins,
    DictAndPicture,
    DictTarget,
    Bright,
    Dark,
    BrightTarget,
    Counting,
    NotANumber,
    Undetermined,
    TupleActions,
):
    gym.register(f"probe/{probe.__name__}-v0", entry_point=probe, max_episode_steps=1000)
