"""Checks of the properties of an environment that training and exact resume rely on.

Every check is one function that raises `Broken` (or anything else: an environment may fail in any way),
returns a warning, or returns what it saw. What matters most is replay: a run is resumed by resetting each
environment with its episode's seed and taking the same actions again, which must end on the same
observation, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rl_training.envs.interface import (
    Broken,
    check_has_spaces,
    check_in_space,
    check_reset_result,
    check_step_result,
    copied,
    same,
    short,
)
from rl_training.envs.lanes import Lanes, LocalLanes, VectorLanes, without_wrappers
from rl_training.envs.making import make_env
from rl_training.envs.spaces import JOINT, check_action_space, check_observation_space
from rl_training.errors import ConfigError
from rl_training.settings.yaml import parse_yaml
from rl_training.trees import put_rows, tree_map
from rl_training.types import Env

STEPS = 300  # taken in each check: several episodes of most small environments
LANES = 2
SEED = 20_000


class Finding(NamedTuple):
    name: str
    outcome: str  # ok, warn or fail
    sentence: str


class Warn(str):
    """What a check returns when the engine can live with what it saw."""


class Step(NamedTuple):
    obs: Any
    reward: Any
    terminated: Any
    truncated: Any


class Episode(NamedTuple):
    """One episode as it was played: steps[i] is what actions[i] led to."""

    seed: int
    first_obs: Any
    actions: list[Any]
    steps: list[Step]


MakeEnv = Callable[[], Env]


def check_env(env_id: str, env_kwargs: Mapping[str, object] | None = None) -> list[Finding]:
    """Every check in turn; an unknown id or a missing package is a ConfigError with the nearest name."""
    make: MakeEnv = partial(make_env, env_id, dict(env_kwargs or {}), None)
    findings = []
    for name, check in CHECKS.items():
        try:
            seen = check(make)
            outcome = "warn" if isinstance(seen, Warn) else "ok"
        except ConfigError as error:
            if isinstance(error.__cause__, gym.error.Error | ImportError | TypeError):
                raise  # it cannot be made from what the user wrote
            outcome, seen = "fail", str(error)
        except Broken as error:
            outcome, seen = "fail", str(error)
        except Exception as error:  # an environment may raise anything, and that is a finding
            outcome, seen = "fail", f"raised {type(error).__name__}: {' '.join(str(error).split())}"
        findings.append(Finding(name, outcome, seen))
        if outcome == "fail" and name in FOUNDATIONS:
            break
    return findings


def parse_env_kwargs(pairs: Sequence[str]) -> dict[str, Any]:
    """`key=value` with the value in YAML, as on the command line of `train`."""
    kwargs = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.isidentifier():
            raise ConfigError(f"{pair}: write an environment's arguments as key=value")
        kwargs[key] = parse_yaml(value, pair).data
    return kwargs


def check_make(make: MakeEnv) -> str:
    env = make()
    env.close()
    return f"created: {type(env.unwrapped).__name__}"


def check_spaces(make: MakeEnv) -> str:
    env = make()
    check_has_spaces(env)
    try:
        check_observation_space(env.observation_space, "the observation space")
        check_action_space(env.action_space, "the action space")
    except ConfigError as error:
        raise Broken(str(error)) from None
    finally:
        env.close()
    return f"observations {short(env.observation_space)}, actions {short(env.action_space)}"


def check_reset(make: MakeEnv) -> str:
    env = make()
    check_reset_result(env.reset(seed=SEED, options={}))
    env.close()
    return "takes a seed and options, returns (observation, info)"


def check_step(make: MakeEnv) -> str:
    """Shapes and types of what a step returns; episodes are played to their end and begun again."""
    # Without Gymnasium's wrappers, which would fail at a result of four values before we can look at it.
    env = without_wrappers(make())[0]
    env.reset(seed=SEED)
    for action in sample_actions(env, STEPS):
        result = env.step(action)
        check_step_result(result)
        reward: Any
        _, reward, terminated, truncated, _ = result
        if not np.isfinite(reward):
            raise Broken(f"the reward must be finite, not {reward}")
        if terminated or truncated:
            env.reset()
    env.close()
    return "returns (observation, reward, terminated, truncated, info) of the right types"


def check_observations(make: MakeEnv) -> str:
    """Every observation lies in the space, is finite, and is not written over by the next step."""
    env = make()
    kept: list[tuple[Any, Any]] = []
    loose = ""
    for episode in play(env, STEPS):
        for obs in (episode.first_obs, *(step.obs for step in episode.steps)):
            loose = check_in_space(env.observation_space, obs) or loose
    obs, _ = env.reset(seed=SEED)
    for action in sample_actions(env, 20):
        kept.append((obs, copied(obs)))
        obs, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            obs, _ = env.reset()
    env.close()
    if not all(same(obs, copy) for obs, copy in kept):
        raise Broken("an observation is overwritten by the next step; return a copy")
    return Warn(loose) if loose else "inside the space and finite"


def check_seeding(make: MakeEnv) -> str:
    env = make()
    first = copied(env.reset(seed=SEED)[0])
    for action in sample_actions(env, 5):
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            break
    if not same(first, env.reset(seed=SEED)[0]):
        raise Broken("two resets with the same seed differ; use only self.np_random for randomness")
    fresh = make()
    if not same(first, fresh.reset(seed=SEED)[0]):
        raise Broken("a reset with the same seed differs in a second copy of the environment")
    fresh.close()
    varied = any(not same(first, env.reset(seed=SEED + offset)[0]) for offset in range(1, 6))
    env.close()
    return "the same seed gives the same first observation" + ("" if varied else "; so does every other seed")


def check_replay(make: MakeEnv) -> str:
    """Episodes played again from seed and actions, in a fresh copy and in the reverse order.

    The order tells state that survives a reset: a resumed run has only the open episode, not those before it.
    """
    env = make()
    episodes = play(env, STEPS)
    env.close()
    fresh = make()
    for episode in reversed(episodes):
        where = f"the episode with seed {episode.seed}, replayed,"
        if not same(episode.first_obs, fresh.reset(seed=episode.seed)[0]):
            raise Broken(f"{where} begins with a different observation; exact resume is impossible")
        for index, (action, before) in enumerate(zip(episode.actions, episode.steps, strict=True)):
            again = Step(*fresh.step(action)[:4])
            differing = [
                name for name in Step._fields if not same(getattr(before, name), getattr(again, name))
            ]
            if differing:
                what = " and ".join(differing)
                raise Broken(f"{where} differs at step {index + 1} in {what}; exact resume is impossible")
    fresh.close()
    return f"{STEPS} steps in {len(episodes)} episodes were reproduced bit for bit from seeds and actions"


def check_time_limit(make: MakeEnv) -> str:
    env = make()
    limit = env.spec.max_episode_steps if env.spec else None
    if limit is None:
        env.close()
        return Warn("has no time limit, so an episode may never end; set max_episode_steps in the config")
    longest = max(play(env, min(limit, 20 * STEPS) + 1), key=lambda episode: len(episode.steps))
    env.close()
    if len(longest.steps) > limit:
        raise Broken(f"has a time limit of {limit} steps, but an episode of {len(longest.steps)} did not end")
    return f"episodes are truncated after {limit:,} steps"


def check_autoreset(make: MakeEnv) -> str:
    """Our own lanes and Gymnasium's vector environment in each mode give what lone environments give."""
    env = make()
    rows = [sample_actions(env, STEPS // LANES) for _ in range(LANES)]
    env.close()
    if isinstance(env.action_space, JOINT):
        return Warn(
            "not checked: Gymnasium's vector environments take Tuple and Dict actions in another form"
        )
    actions = [np.stack(column) for column in zip(*rows, strict=True)]
    alone = [
        transitions(LocalLanes([make()]), [row[lane : lane + 1] for row in actions], lane)
        for lane in range(LANES)
    ]
    together = {"side by side": transitions(LocalLanes([make() for _ in range(LANES)]), actions)}
    for mode in AutoresetMode:
        vector = SyncVectorEnv([make] * LANES, autoreset_mode=mode)
        together[mode.name] = transitions(VectorLanes(vector), actions)
    for way, steps in together.items():
        for lane in range(LANES):
            for index, (row, expected) in enumerate(zip(steps, alone[lane], strict=True)):
                if not same(lane_of(row, lane), expected):
                    raise Broken(
                        f"copies run {way} give a different transition than a single one, at step {index + 1} "
                        f"of copy {lane + 1}; do the copies share state?"
                    )
    return "NEXT_STEP, SAME_STEP and DISABLED vector environments give the same transitions"


CHECKS: dict[str, Callable[[MakeEnv], str]] = {
    "make": check_make,
    "spaces": check_spaces,
    "reset": check_reset,
    "step": check_step,
    "observations": check_observations,
    "seeding": check_seeding,
    "replay": check_replay,
    "time limit": check_time_limit,
    "autoreset": check_autoreset,
}
# Where one of these fails, the others would only repeat it.
FOUNDATIONS = ("make", "spaces", "reset", "step")


def sample_actions(env: Env, count: int) -> list[Any]:
    env.action_space.seed(SEED)
    return [env.action_space.sample() for _ in range(count)]


def play(env: Env, count: int) -> list[Episode]:
    """`count` random steps, each episode with a seed of its own; the last one may be open."""
    episodes: list[Episode] = []
    over = True
    for action in sample_actions(env, count):
        if over:
            seed = SEED + len(episodes)
            episodes.append(Episode(seed, copied(env.reset(seed=seed)[0]), [], []))
        obs, reward, terminated, truncated, _ = env.step(action)
        episodes[-1].actions.append(action)
        episodes[-1].steps.append(Step(copied(obs), reward, terminated, truncated))
        over = terminated or truncated
    return episodes


def transitions(lanes: Lanes, actions: Sequence[np.ndarray], first_lane: int = 0) -> list[dict[str, Any]]:
    """What each row of actions [B, ...] meets and leads to; every episode has a seed of its own."""
    episode = np.zeros(lanes.count, int)

    def begin(which: Sequence[int]) -> Any:
        return lanes.reset(which, [SEED + 1000 * (first_lane + lane) + int(episode[lane]) for lane in which])

    obs = copied(begin(range(lanes.count)))
    rows = []
    for row in actions:
        stepped = lanes.step(row)
        next_obs = copied(stepped.obs)
        flags = {"terminated": stepped.terminated.copy(), "truncated": stepped.truncated.copy()}
        rows.append({"obs": obs, "reward": stepped.reward.copy(), "next_obs": next_obs, **flags})
        over = np.flatnonzero(stepped.over).tolist()
        obs = copied(next_obs)
        if over:
            episode[over] += 1
            put_rows(obs, begin(over), over)
    lanes.close()
    return rows


def lane_of(row: dict[str, object], lane: int) -> dict[str, Any]:
    return tree_map(lambda column: column[lane : lane + 1], row)
