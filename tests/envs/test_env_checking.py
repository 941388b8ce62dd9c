"""`check-env`: sound environments pass, and each planted fault is caught by the check meant for it."""

from collections.abc import Iterator
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.registration import WrapperSpec

from rl_training.envs.checking import CHECKS, Finding, check_env, parse_env_kwargs
from rl_training.errors import ConfigError


class Walk(gym.Env[np.ndarray, int]):
    """A random walk that ends at ±5: sound in every respect. Each fault below changes one thing."""

    observation_space: spaces.Space[Any] = spaces.Box(-10, 10, (2,), np.float32)
    action_space: spaces.Space[Any] = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.position = float(self.np_random.uniform(-1, 1))
        return self.observe(), {}

    def observe(self) -> Any:
        return np.array([self.position, 0.5], np.float32)

    def noise(self) -> float:
        return float(self.np_random.normal())

    def step(self, action: int) -> Any:
        self.position += (2 * int(action) - 1) * 0.5 + 0.2 * self.noise()
        return self.observe(), 1.0, abs(self.position) > 5, False, {}


class RaisesWhenMade(Walk):
    def __init__(self) -> None:
        raise RuntimeError("no screen")


class ListObservations(Walk):
    observation_space = spaces.Sequence(spaces.Discrete(2))


class TextActions(Walk):
    action_space = spaces.Text(5)


class ResetWithoutInfo(Walk):
    def reset(self, **options: Any) -> Any:
        return super().reset(**options)[0]


class ResetWithoutSeed(Walk):
    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()


class FourValues(Walk):
    def step(self, action: int) -> Any:
        return super().step(action)[:4]


class NanReward(Walk):
    def step(self, action: int) -> Any:
        obs, _, terminated, truncated, info = super().step(action)
        return obs, float("nan"), terminated, truncated, info


class RewardInAList(NanReward):
    def step(self, action: int) -> Any:
        obs, _, terminated, truncated, info = super().step(action)
        return obs, [1.0], terminated, truncated, info


class NumberTerminated(Walk):
    def step(self, action: int) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, int(terminated), truncated, info


class InfoNone(Walk):
    def step(self, action: int) -> Any:
        return *super().step(action)[:4], None


class RaisesInAStep(Walk):
    def step(self, action: int) -> Any:
        raise ZeroDivisionError("division\nby zero")


class OutOfBounds(Walk):
    def observe(self) -> Any:
        return np.array([self.position, 11], np.float32)


class NotFinite(Walk):
    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def observe(self) -> Any:
        return np.array([self.position, np.nan], np.float32)


class WrongShape(Walk):
    def observe(self) -> Any:
        return np.array([self.position], np.float32)


class WrongKeys(Walk):
    observation_space = spaces.Dict({"place": Walk.observation_space})

    def observe(self) -> Any:
        return {"spot": super().observe()}


class WrongType(Walk):
    def observe(self) -> Any:
        return np.array([self.position, 0.5], np.float64)


class Overwritten(Walk):
    buffer: np.ndarray

    def observe(self) -> Any:
        if not hasattr(self, "buffer"):
            self.buffer = np.zeros(2, np.float32)
        self.buffer[:] = self.position, 0.5
        return self.buffer


class IgnoresTheSeed(Walk):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=None)


class OtherGenerator(Walk):
    """Begins as it should and then takes its chance from elsewhere."""

    def noise(self) -> float:
        return float(np.random.normal())


class RemembersEpisodes(Walk):
    """Is slippery in some episodes and not in others: a resumed run knows nothing of the episodes before."""

    episodes = 0

    def reset(self, **options: Any) -> Any:
        self.episodes += 1
        return super().reset(**options)

    def noise(self) -> float:
        return super().noise() * (self.episodes % 3)


class HidesTruncation(gym.Wrapper[Any, Any, Any, Any]):
    def step(self, action: Any) -> Any:
        obs, reward, terminated, _, info = self.env.step(action)
        return obs, reward, terminated, False, info


class Endless(Walk):
    def step(self, action: int) -> Any:
        self.position = 0.9 * self.position
        return super().step(action)


class SharedBetweenCopies(Walk):
    """Its position belongs to the class: alone it is sound, two copies walk on each other's feet."""

    shared: ClassVar[list[float]] = [0.0]

    @property
    def position(self) -> float:
        return self.shared[0]

    @position.setter
    def position(self, value: float) -> None:
        self.shared[0] = value


class Everything(Walk):
    """Dict observations and continuous actions, sound."""

    observation_space = spaces.Dict(
        {"place": Walk.observation_space, "image": spaces.Box(0, 255, (4, 4, 3), np.uint8)}
    )
    action_space = spaces.Box(-2, 2, (3,), np.float32)

    def observe(self) -> Any:
        return {"place": super().observe(), "image": np.full((4, 4, 3), 7, np.uint8)}

    def step(self, action: Any) -> Any:
        return super().step(int(action[0] > 0))


@pytest.fixture(autouse=True)
def clean_registry() -> Iterator[None]:
    yield
    for name in [name for name in gym.registry if name.startswith("Checked")]:
        del gym.registry[name]


def check(env_class: Any, **registration: Any) -> list[Finding]:
    gym.register("Checked-v0", entry_point=env_class, **{"max_episode_steps": 40, **registration})
    return check_env("Checked-v0")


@pytest.mark.parametrize("env_class", [Walk, Everything])
def test_a_sound_environment_passes_every_check(env_class: type[Walk]) -> None:
    findings = check(env_class)
    assert [finding.name for finding in findings] == list(CHECKS)
    assert [finding for finding in findings if finding.outcome != "ok"] == []


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_shipped_environments_pass(env_id: str) -> None:
    assert [finding for finding in check_env(env_id) if finding.outcome != "ok"] == []


@pytest.mark.parametrize(
    ("env_class", "name", "words"),
    [
        (RaisesWhenMade, "make", "RuntimeError: no screen"),
        (ListObservations, "spaces", "Sequence"),
        (TextActions, "spaces", "Text"),
        (ResetWithoutInfo, "reset", "observation, info"),
        (ResetWithoutSeed, "reset", "seed"),
        (FourValues, "step", "not 4 values"),
        (NanReward, "step", "finite"),
        (RewardInAList, "step", "list"),
        (NumberTerminated, "step", "terminated must be True or False, not int"),
        (InfoNone, "step", "dict"),
        (RaisesInAStep, "step", "ZeroDivisionError: division by zero"),
        (OutOfBounds, "observations", "outside the bounds"),
        (NotFinite, "observations", "not finite"),
        (WrongShape, "observations", "(1,)"),
        (WrongKeys, "observations", "place"),
        (Overwritten, "observations", "overwritten"),
        (IgnoresTheSeed, "seeding", "two resets with the same seed"),
        (OtherGenerator, "replay", "exact resume is impossible"),
        (RemembersEpisodes, "replay", "exact resume is impossible"),
        (SharedBetweenCopies, "autoreset", "share state"),
    ],
)
def test_a_planted_fault_is_caught_by_its_check(env_class: type[Walk], name: str, words: str) -> None:
    failed = [finding for finding in check(env_class) if finding.outcome == "fail"]
    assert failed, "nothing was found"
    assert failed[0].name == name
    assert words in failed[0].sentence
    assert "\n" not in failed[0].sentence


def test_an_episode_longer_than_the_time_limit_fails() -> None:
    hide = WrapperSpec("hide", f"{__name__}:HidesTruncation", kwargs={})
    findings = {finding.name: finding for finding in check(Endless, additional_wrappers=(hide,))}
    assert findings["time limit"].outcome == "fail"
    assert "limit of 40 steps, but an episode of 41 did not end" in findings["time limit"].sentence


@pytest.mark.parametrize(
    ("env_class", "registration", "name", "words"),
    [
        (WrongType, {}, "observations", "float64"),
        (Walk, {"max_episode_steps": None}, "time limit", "max_episode_steps"),
    ],
)
def test_what_the_engine_can_live_with_is_a_warning(
    env_class: type[Walk], registration: dict[str, Any], name: str, words: str
) -> None:
    findings = check(env_class, **registration)
    [warned] = [finding for finding in findings if finding.outcome != "ok"]
    assert (warned.outcome, warned.name) == ("warn", name)
    assert words in warned.sentence


def test_an_unknown_id_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="CartPole-v1"):
        check_env("CartPol-v1")


def test_env_kwargs_are_read_as_yaml() -> None:
    assert parse_env_kwargs(["g=9.5", "mode=fast", "size=[1, 2]"]) == {
        "g": 9.5,
        "mode": "fast",
        "size": [1, 2],
    }
    assert [finding.outcome for finding in check_env("Pendulum-v1", {"g": 9.5})] == ["ok"] * len(CHECKS)
    for wrong in ("g", "=3", "g=[1", "a b=1"):
        with pytest.raises(ConfigError):
            parse_env_kwargs([wrong])
