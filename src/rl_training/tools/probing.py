"""What no log holds of a run, measured by playing: some episodes of random actions, some of its newest policy.

`diagnose` asks for it, so training pays for none of it. Nothing of the run is changed. The same run gives the same
numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.data.collector import Carry, Policy, fresh_where_ended
from rl_training.data.normalization import CLIP
from rl_training.data.random_rollout import random_action
from rl_training.envs.making import make_environments
from rl_training.errors import CheckpointError, ConfigError
from rl_training.networks.encoders import ACTIVATIONS, Flat, Joined
from rl_training.networks.rssm import Dense
from rl_training.policies.dreamer import DreamerPolicy
from rl_training.reporting.diagnosis import PLAYED, Seen
from rl_training.reporting.imagination import predict_episode
from rl_training.runtime.evaluation import refuse_other_spaces
from rl_training.runtime.workflows import given, load_agent, made_for
from rl_training.settings.config import Config
from rl_training.state import checkpoints
from rl_training.state.run_directory import RunDirectory
from rl_training.state.seeding import fold, seed_everything
from rl_training.trees import tree_leaves, tree_map
from rl_training.trust import refuse_untrusted

LANES = 16  # episodes side by side
STEPS = 2_000  # of each, at most: nothing is said of what has not ended by then
ROWS = 256  # observations that networks are looked at with
SATURATED = 0.99  # of tanh, whose slope is 0.02 there
CONTEXT, AHEAD, IMAGINED = (
    5,
    5,
    4,
)  # steps that a world model is shown, then imagines, and in how many episodes


class End(NamedTuple):
    """An episode that was played to its end."""

    returned: float
    length: int
    terminated: bool
    last: bytes  # its last observation


class Chance:
    """The policy that acts at random, evenly among what is allowed."""

    def __init__(self, action_space: Any, seed: int) -> None:
        self.action_space, self.chance = action_space, np.random.default_rng(seed)

    def initial(self, count: int) -> Carry:
        return ()

    def act(self, obs: Any, carry: Carry, explore: bool) -> tuple[dict[str, np.ndarray], Carry]:
        count = len(next(tree_leaves(obs, ""))[1])
        rows = (tree_map(lambda part, i=i: part[i : i + 1], obs) for i in range(count))
        drawn = [random_action(self.action_space, row, self.chance) for row in rows]
        return {"action": np.concatenate(drawn)}, carry

    def value(self, obs: Any, carry: Carry) -> np.ndarray:
        raise NotImplementedError  # nobody learns from it


class Played(NamedTuple):
    """What was seen while playing."""

    ends: list[End]  # [] if an episode did not end within STEPS
    obs: Any  # observations [N, ...], one of every step, of the lanes in turn


def probed(seen: Seen, run_dir: str | Path, *, trust: bool = False, env: Any = None) -> Seen:
    """What a run logged, and what is measured of it at its newest checkpoint, under names that begin with `play/`.

    env: required if the run was trained with an `env` of Python.
    """
    with given(env):
        newest = checkpoints.newest_good_checkpoint(RunDirectory.open(run_dir).checkpoints, only="policy")
        if newest is None:
            raise CheckpointError(f"{run_dir} has no checkpoint yet")
        numbers, where = _measured(newest[0], trust)
    step = np.array([checkpoints.step_of(newest[0])])
    curves = {PLAYED + name: (step, np.array([value])) for name, value in numbers.items()}
    return Seen(seen.config, {**seen.curves, **curves}, {PLAYED + name: text for name, text in where.items()})


def _measured(checkpoint: Path, trust: bool) -> tuple[dict[str, float], dict[str, str]]:
    """Numbers by name, and of some of them where in the network or the observation they are."""
    config, agent, saved = load_agent(checkpoint, "last", trust=trust)
    if config.tasks:
        raise ConfigError("a policy of several tasks is not played")
    refuse_untrusted(config, trust, doing="playing")
    seed, made = fold(config.seed, "diagnose"), made_for(saved)
    randomly = _play(Chance(made[1], seed), config, 2, fold(seed, 1), made)
    policy = _play(agent, config, 1, fold(seed, 2), made)
    both = tree_map(lambda *parts: np.concatenate(parts), _some(randomly.obs), _some(policy.obs))
    numbers, where = _returns(randomly, policy) | _limits(policy), dict[str, str]()
    for name, (number, place) in (_units_and_inputs(agent, both) | _clipped(agent, policy.obs)).items():
        numbers[name], where[name] = number, place
    if isinstance(agent, DreamerPolicy):
        numbers |= _model_error(agent, config, both, made)
    return numbers, where


def _play(policy: Policy, config: Config, each: int, seed: int, made: tuple[Any, Any]) -> Played:
    """Play `each` episodes in every lane: those that end first alone would be the short ones."""
    seed_everything(fold(seed, "actions"))
    environments = make_environments(config, LANES, seed, "diagnose")
    ends, seen = list[End](), []
    try:
        refuse_other_spaces(environments.lanes, made, config.env_id)
        share, carry = np.full(environments.count, each), policy.initial(environments.count)
        for t in range(STEPS):
            seen.append(tree_map(lambda part, t=t: part[t % len(part)].copy(), environments.obs))
            acted, carry = policy.act(environments.obs, carry, explore=True)
            step = environments.step(acted["action"])
            carry = fresh_where_ended(policy, carry, step.ended)
            for lane, returned, length, *_ in environments.take_finished():
                if share[lane]:
                    share[lane] -= 1
                    last = b"".join(part[lane].tobytes() for _, part in tree_leaves(step.next_obs, ""))
                    ends.append(End(returned, length, bool(step.terminated[lane]), last))
            if not share.any():
                break
    finally:
        environments.close()
    return Played([] if share.any() else ends, tree_map(lambda *parts: np.stack(parts), *seen))


def _some(obs: Any) -> Any:
    """At most half of ROWS observations, evenly."""
    count = len(next(tree_leaves(obs, ""))[1])
    keep = np.unique(np.linspace(0, count - 1, min(ROWS // 2, count)).round().astype(int))
    return tree_map(lambda part: part[keep], obs)


def _returns(randomly: Played, policy: Played) -> dict[str, float]:
    if not (randomly.ends and policy.ends):
        return {}
    by_chance, own = ([end.returned for end in played.ends] for played in (randomly, policy))
    return {
        "return": float(np.mean(own)),
        "random_return": float(np.mean(by_chance)),
        "random_return_std": float(np.std(by_chance)),
        # of the difference between the two means
        "return_error": float(np.sqrt(np.var(own) / len(own) + np.var(by_chance) / len(by_chance))),
    }


def _limits(policy: Played) -> dict[str, float]:
    """The longest episode, and the share of episodes that terminated, rather than were truncated, at its very length.

    Ends that look alike are a goal, or a board that is full, and do not count.
    """
    if not policy.ends:
        return {}
    longest = max(end.length for end in policy.ends)
    there = {end.last for end in policy.ends if end.terminated and end.length == longest}
    return {"longest_episode": float(longest), "terminated_at_longest": len(there) / len(policy.ends)}


def _clipped(agent: Any, obs: Any) -> dict[str, tuple[float, str]]:
    """Of the dimension that is most often at the normaliser's clip: the share of observations that are."""
    normalizer = getattr(agent, "normalizer", None)
    if normalizer is None or not normalizer.does_something:
        return {}
    shares = {
        name: (np.abs(part.reshape(len(part), -1)) >= CLIP).mean(0)
        for name, part in tree_leaves(normalizer(obs), "observation")
    }
    name = max(shares, key=lambda name: shares[name].max())
    return {"at_the_clip": (float(shares[name].max()), f"dimension {int(shares[name].argmax())} of {name}")}


class Extent:
    """The least and the greatest output of every unit of a layer."""

    def __init__(self) -> None:
        self.low = self.high = torch.empty(0)

    def add(self, output: Tensor) -> None:
        units = output.movedim(1, -1) if output.ndim == 4 else output  # of pictures the channels
        rows = units.detach().float().reshape(-1, units.shape[-1])
        low, high = rows.amin(0), rows.amax(0)
        fresh = not len(self.low)
        self.low = low if fresh else torch.minimum(self.low, low)
        self.high = high if fresh else torch.maximum(self.high, high)

    def dead(self, layer: nn.Module) -> int:
        """Units that are constant, as a ReLU that is never on, or always at the flat ends of tanh."""
        dead = self.high - self.low <= 1e-6 * self.high.abs().clamp_min(1.0)
        if isinstance(layer, nn.Tanh):
            dead |= (self.low > SATURATED) | (self.high < -SATURATED)
        return int(dead.sum())


def _units_and_inputs(agent: Any, obs: Any) -> dict[str, tuple[float, str]]:
    """The share of dead units in the layer with most of them, and the root mean square of the largest input.

    Vectors are looked at where they enter dense layers, normalised or not: pictures are scaled by their encoders.
    """
    units: dict[str, tuple[nn.Module, Extent]] = {}
    squares: list[tuple[str, Tensor]] = []
    carry = agent.initial(len(next(tree_leaves(obs, ""))[1]))
    with _watched(agent, units, squares):
        for explore in (True, False):  # the second time there is something to remember
            _, carry = agent.act(obs, carry, explore=explore)
        if isinstance(agent, DreamerPolicy):  # others' critics are asked when they act
            agent.value(obs, carry)
    found: dict[str, tuple[float, str]] = {}
    counts = {
        name: (extent.dead(layer), len(extent.low))
        for name, (layer, extent) in units.items()
        if len(extent.low)
    }
    varies = any((part != part[:1]).any() for _, part in tree_leaves(obs, ""))
    if counts and varies:  # else every unit is constant, and none is to blame
        name = max(counts, key=lambda name: counts[name][0] / counts[name][1])
        dead, of = counts[name]
        found["dead_units"] = dead / of, f"{dead} of {of} units of {name}"
    if squares:
        name, square = max(squares, key=lambda each: float(each[1].max()))
        found["observation_scale"] = float(square.max().sqrt()), f"dimension {int(square.argmax())} of {name}"
    return found


@contextmanager
def _watched(
    agent: Any, units: dict[str, tuple[nn.Module, Extent]], squares: list[tuple[str, Tensor]]
) -> Iterator[None]:
    """Look on at activations and at what enters dense layers. With hooks, modules are computed without shortcuts."""
    networks = {name: part for name, part in vars(agent).items() if isinstance(part, nn.Module)}
    handles = []
    observed = dict[nn.Module, str]()  # by what encodes it: parts of Dict observations
    for prefix, network in networks.items():
        for name, module in network.named_modules():
            if type(module) in ACTIVATIONS.values() or isinstance(module, Dense):
                extent = Extent()
                units[f"{prefix}.{name}"] = module, extent

                def watch(module: Any, inputs: Any, output: Tensor, extent: Extent = extent) -> None:
                    if not isinstance(module, Dense) or (inputs[0] != inputs[0][:1]).any():
                        extent.add(output)

                handles.append(module.register_forward_hook(watch))
            elif isinstance(module, Joined):
                whole = observed.get(module, "observation")
                parts = zip(module.keys, module.parts, strict=True)
                observed.update((part, f"{whole}/{key}") for key, part in parts)
            elif isinstance(module, Flat):

                def note(module: Any, inputs: Any, output: Tensor) -> None:
                    place = observed.get(module, "observation")
                    squares.append((place, output.detach().double().square().mean(0)))

                handles.append(module.register_forward_hook(note))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _model_error(agent: DreamerPolicy, config: Config, obs: Any, made: tuple[Any, Any]) -> dict[str, float]:
    """Mean squared error of imagined observations in proportion to their variance: at 1 a constant is as good.

    Of the part of an observation that is worst; the variance is that of all play, of the policy and by chance. Nothing
    where every episode ended before there was anything to imagine.
    """
    spread = {name: part.double() for name, part in tree_leaves(agent.inputs(obs), "obs")}
    errors: Mapping[str, list[float]] = {name: [] for name in spread}
    for seed in range(IMAGINED):
        told = predict_episode(agent, config, AHEAD + CONTEXT, CONTEXT, fold(seed, "imagination"), made)
        for name, truth in told.truth.items():
            apart = told.predicted[name][CONTEXT:].astype(np.float64) - truth[CONTEXT:]
            errors[name] += (apart**2).sum(tuple(range(1, apart.ndim))).tolist()
    shares = [
        float(np.mean(errors[name])) / max(float(part.flatten(1).var(0).sum()), 1e-12)
        for name, part in spread.items()
        if errors[name]
    ]
    return {"model_error": max(shares)} if shares else {}
