"""Every knob of every algorithm is used: another value leads elsewhere, and no iteration looks into its config for one.

One trainer per algorithm, put back to the same state for each of its knobs. What decides is the state that an
iteration leaves: weights, moments, targets, priorities, what was done. What is logged does not count, nor does
a place that only holds the knob's own value.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from runs import TINY_DREAMER

from rl_training import load_config
from rl_training.registry import ALGORITHMS, trainer_class
from rl_training.runtime.controls import PARTS, Controls, Knobs, compile_knobs
from rl_training.state.seeding import fold, seed_everything

ROLLOUTS: dict[str, Any] = dict(num_envs=2, num_steps=16, learning_rate=1e-2, ent_coef=0.1, vf_coef=0.5)
SURROGATE = ROLLOUTS | dict(
    num_minibatches=2,
    update_epochs=2,
    clip_coef=0.2,
    value_clip_coef=0.2,
    target_kl=0.01,
    critic_learning_rate=1e-2,
)
ACTORS: dict[str, Any] = dict(
    num_actors=2, fleet="inline", rho_bar=1.0, policy_rho_bar=1.0, c_bar=1.0, gae_lambda=0.9
)
REPLAY: dict[str, Any] = dict(
    num_envs=2, train_frequency=8, learning_starts=16, buffer_size=400, batch_size=8, learning_rate=1e-2
)
SEARCH = REPLAY | dict(
    replay_ratio=0.125,
    num_simulations=4,
    temperature=5.0,
    root_exploration_fraction=0.5,
    latent_size=8,
    support_size=10,
    unroll_steps=2,
    td_steps=3,
    gamma=0.9,
    pb_c_init=3.0,
    pb_c_base=1000.0,
    max_considered_actions=1,
)
PUCT = ("pb_c_init", "pb_c_base", "root_exploration_fraction", "dirichlet_alpha")
PLANNER = SEARCH | dict(
    target_update_interval=1,
    reanalyse_ratio=0.5,
    priority_exponent=0.6,
    ent_coef=0.1,
    state_coef=0.5,
    reward_priority=2.0,
)

# Settings under which each knob of an algorithm has something to do.
SCENES: dict[str, dict[str, Any]] = {
    "ppo": SURROGATE,
    "a2c": ROLLOUTS,
    "trpo": ROLLOUTS | dict(update_epochs=2, num_minibatches=2, max_grad_norm=0.5),
    "ppg": ROLLOUTS
    | dict(policy_epochs=2, num_minibatches=2, target_kl=0.01)
    | dict(policy_iterations=1, auxiliary_epochs=2, auxiliary_minibatches=2)
    | dict(auxiliary_learning_rate=1e-2),
    "recurrent_ppo": SURROGATE | dict(recurrent_size=4),
    "impala": ROLLOUTS | ACTORS,
    "appo": SURROGATE | ACTORS | dict(kl_coef=0.5, tau=0.5, kl_coef_target=0.01, batch_uses=2),
    "gail": SURROGATE
    | dict(demonstrations="gail/cartpole_expert.npz")
    | dict(discriminator_updates=2, discriminator_batch_size=16, discriminator_hidden_sizes=[8]),
    "bc": dict(demonstrations="gail/cartpole_expert.npz", learning_rate=1e-2, ent_coef=0.1, batch_size=16),
    "sac": REPLAY
    | dict(env_id="Pendulum-v1", replay_ratio=0.125, tau=0.5, ent_coef=0.2, actor_learning_rate=1e-2),
    "sac, learned": REPLAY
    | dict(algo="sac", env_id="Pendulum-v1", replay_ratio=0.125, tau=0.5, target_entropy=-2.0)
    | dict(critic_learning_rate=1e-2, ent_coef_learning_rate=1e-2),
    "dqn": REPLAY
    | dict(replay_ratio=0.125, prioritized=True, n_step=2, epsilon=0.5)
    | dict(target_update_interval=1, tau=0.5, max_grad_norm=0.1),
    "muzero": PLANNER,
    "gumbel_muzero": PLANNER,
    "efficientzero": PLANNER | dict(prefix_size=4, projection_size=4),
    "efficientzero, Gumbel": {name: value for name, value in PLANNER.items() if name not in PUCT}
    | dict(algo="efficientzero", prefix_size=4, projection_size=4, gumbel_search=True),
    "scalezero": SEARCH
    | dict(context_steps=1, layers=1, heads=2, experts=2, expert_size=8, stages=2, rank=2, tau=0.5)
    | dict(noise_persistence=0.9),
    "dreamer": REPLAY | TINY_DREAMER | dict(hidden_sizes=(64, 64), train_ratio=4.0, imagination_horizon=3),
}
WARM_UP = 5  # iterations: old weights that differ from new ones, moments, unequal priorities

Leaves = dict[tuple[Any, ...], bytes]


@functools.cache
def scene(name: str) -> Any:
    assert name in SCENES, f"{name}: say in SCENES under which settings all of its knobs do something"
    algo = SCENES[name].get("algo", name)
    settings = dict(env_id="CartPole-v1", total_timesteps=10_000, seed=3, hidden_sizes=[8], max_grad_norm=0.5)
    known = trainer_class(algo).config_class.model_fields
    return load_config({"algo": algo} | {k: v for k, v in (settings | SCENES[name]).items() if k in known})


def other(knob: Any, value: Any) -> Any:
    """A value that does something else: a few more, or next to nothing."""
    assert value, "a scene must give each knob a value that is not 0"
    return value + 3 if knob.control.integer else max(value / 1000, knob.control.low)


def leaves(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], bytes]]:
    if isinstance(tree, dict):
        for key, part in tree.items():
            yield from leaves(part, (*path, key))
    elif isinstance(tree, list | tuple) or type(tree).__name__ == "deque":
        for number, part in enumerate(tree):
            yield from leaves(part, (*path, number))
    elif isinstance(tree, torch.Tensor):
        yield path, tree.numpy().tobytes()
    else:
        yield path, np.asarray(tree).tobytes()


class Scene:
    """A trainer in the midst of learning, from where one iteration is taken again and again."""

    def __init__(self, algo: str) -> None:
        self.config = scene(algo)
        self.knobs = compile_knobs(self.config)
        seed_everything(1)
        self.trainer = trainer_class(self.config.algo)(self.config)
        controls = Controls(self.knobs)
        for number in range(WARM_UP):
            seed_everything(fold(1, number))
            self.trainer.iterate(controls.at(number * self.config.steps_per_iteration))
        self.saved = self.trainer.agent.state_dict(), self.trainer.state_dict()
        self.plain = self.after()

    def after(self, **changes: Any) -> Leaves:
        """The state after one more iteration with some knobs changed: the knobs, and not the config."""
        knobs = compile_knobs(self.config.model_copy(update=changes))
        self.trainer.agent.load_state_dict(self.saved[0])
        self.trainer.load_state_dict(self.saved[1])
        seed_everything(7)
        self.trainer.iterate(Controls(knobs).at(WARM_UP * self.config.steps_per_iteration))
        states = self.trainer.agent.state_dict(), self.trainer.state_dict()
        return dict(leaves(states))


known_scene = functools.cache(Scene)


def on(each: str, name: str) -> bool:
    config = scene(each)
    switch = config.switched_by.get(name)
    if getattr(config, "gumbel_search", False) and name in PUCT:
        return False
    return getattr(config, name) is not None and (switch is None or getattr(config, switch))


# A knob that is off under some settings, since another one says so, is on under others of its algorithm.
CASES = [(each, name) for each in SCENES for name in compile_knobs(scene(each)) if on(each, name)]


def differences(one: Leaves, another: Leaves) -> set[tuple[Any, ...]]:
    return {path for path in one.keys() | another.keys() if one.get(path) != another.get(path)}


def test_every_knob_of_every_algorithm_is_on_in_a_scene() -> None:
    for algo in ALGORITHMS:
        covered = {name for each, name in CASES if scene(each).algo == algo}
        assert covered == trainer_class(algo).config_class.controls.keys()


@pytest.mark.parametrize(("algo", "name"), CASES, ids=["-".join(case) for case in CASES])
def test_another_value_of_a_knob_leads_elsewhere(algo: str, name: str) -> None:
    found = known_scene(algo)
    value = getattr(found.config, name)
    changed = differences(found.plain, found.after(**{name: other(found.knobs[name], value)}))
    # Where the knob itself is remembered, and the share of an update that is still owed, show nothing.
    assert {path for path in changed if path[-1] not in (name, "updates_owed")}, f"nothing came of {name}"


@pytest.mark.parametrize("algo", SCENES)
def test_an_iteration_takes_every_knob_from_its_schedule(algo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The config is never asked for a knob, and the knobs are asked as of the steps at which they are used."""
    found = known_scene(algo)
    assert not differences(found.plain, found.after()), "the same iteration twice is the same"
    entries = {name + part for name in found.knobs for part in PARTS}
    read, asked = set(), []
    kind, attribute, after = type(found.config), type(found.config).__getattribute__, Knobs.after

    def watched_attribute(config: Any, name: str) -> Any:
        read.add(name)
        return attribute(config, name)

    def watched_after(knobs: Knobs, steps: int) -> Any:
        asked.append(steps)
        return after(knobs, steps)

    controls = Controls(found.knobs)
    monkeypatch.setattr(kind, "__getattribute__", watched_attribute)
    monkeypatch.setattr(Knobs, "after", watched_after)
    found.trainer.iterate(controls.at(100))
    monkeypatch.undo()
    assert not read & entries, "read from the config"
    whole = found.config.steps_per_iteration
    steps_in_turn = range(0, whole, whole // getattr(found.config, "train_frequency", 1))
    assert asked[-1] == whole and asked[:-1] in ([], list(steps_in_turn))
