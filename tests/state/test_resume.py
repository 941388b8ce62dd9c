"""Exact resume: a run killed at any instant ends byte for byte like one that never was."""

import json
import random
from importlib.util import find_spec

import pytest
from runs import (
    CADENCES,
    COMPILED,
    LANED,
    OWN,
    RUNS,
    STEPPED,
    TINY_DREAMER,
    assert_same_run,
    fresh,
    go_on,
    in_child,
    kill_and_resume,
    small_config,
)

from rl_training import load_config
from rl_training.extras import missing_packages
from rl_training.registry import SHIPPED, config_class_of
from rl_training.runtime import engine
from rl_training.runtime.optim import Adam


def compare_killed_with(whole, name, folder, kills, seed):
    """A run that is killed so often must end like `whole`, the same run in another process, left alone."""
    rng, hits = random.Random(seed), 0
    for _ in range(10):  # a kill after the run's end is none: then it is killed once more from its start
        hits += kill_and_resume(small_config(name), fresh(folder / "killed"), kills - hits, rng)
        assert_same_run(whole, folder / "killed")
        if hits >= kills:
            return
    raise RuntimeError(f"only {hits} of {kills} kills came before the run was over")


needs_minatar = pytest.mark.skipif(find_spec("minatar") is None, reason="the extra minatar is not installed")
KILLED = [
    pytest.param(name, marks=needs_minatar) if name == "ppo-minatar" else name
    for name in (*RUNS, *OWN, *COMPILED, *STEPPED)
]


@pytest.mark.parametrize("name", KILLED)
def test_killed_three_times(name, trained_run, tmp_path):
    compare_killed_with(trained_run(name), name, tmp_path, kills=3, seed=1)


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", KILLED)
def test_killed_twenty_times(name, seed, trained_run, tmp_path):
    compare_killed_with(trained_run(name), name, tmp_path, kills=20, seed=seed)


@pytest.mark.faults
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=needs_minatar) if run["env_id"].startswith("MinAtar/") else name
        for name, run in LANED.items()
    ],
)
def test_killed_twenty_times_in_every_compiled_environment(name, trained_run, tmp_path):
    compare_killed_with(trained_run(name), name, tmp_path, kills=20, seed=0)


@pytest.mark.faults
@pytest.mark.parametrize("preset", ["dreamer/cartpole_pixels", "dreamer/dm_cartpole_swingup"])
def test_world_models_of_pictures_and_of_dm_control_killed_ten_times(preset, tmp_path):
    """With compiled networks, episodes that end by a limit, and latents that are written back."""
    if "dm_" in preset and missing_packages("dm-control"):
        pytest.skip("the extra dm-control is not installed")
    sizes = TINY_DREAMER | dict(deter_size=32, blocks=2, rssm_hidden=16, imagination_horizon=4, cnn_depth=2)
    short = dict(total_timesteps=400, num_envs=2, learning_starts=100, train_ratio=1.5, refresh_latents=True)
    short |= dict(buffer_size=300, torch_threads=1, learning_rate_schedule="linear:1e-4")
    short |= {"max_episode_steps": 40} if preset == "dreamer/cartpole_pixels" else {"time_limit": 40}
    config = load_config(preset, CADENCES | sizes | short)
    assert in_child(go_on, config, tmp_path / "whole") == 0
    paths = json.loads((tmp_path / "whole" / "manifest.json").read_text())["paths"]
    assert paths["fast_networks"] == "compiled"
    assert paths.get("fast_pictures") == ("compiled" if preset == "dreamer/cartpole_pixels" else None)
    hits = kill_and_resume(config, tmp_path / "killed", 10, random.Random(1))
    assert hits >= 5
    assert_same_run(tmp_path / "whole", tmp_path / "killed")


@pytest.mark.faults
def test_the_preset_of_connect_four_killed_ten_times(tmp_path):
    """As it is shipped but for its sizes: games that begin at random, and three schedules with steps in them."""
    changes = dict(total_timesteps=800, learning_starts=100, buffer_size=520, td_steps=12, batch_size=8)
    changes |= dict(num_envs=4, latent_size=8, hidden_sizes=[8], torch_threads=1)
    for name, values in {"num_simulations": (2, 3, 4), "c_scale": (0.02, 0.3, 1.0)}.items():
        points = [[step, value] for step, value in zip((0, 200, 400), values, strict=True)]
        changes |= {f"{name}_schedule": {"type": "step", "points": points}}
    config = load_config("gumbel_muzero/connect_four", CADENCES | changes)
    assert in_child(go_on, config, tmp_path / "whole") == 0
    hits = kill_and_resume(config, tmp_path / "killed", 10, random.Random(1))
    assert hits >= 5
    assert_same_run(tmp_path / "whole", tmp_path / "killed")


@pytest.mark.parametrize(
    "name",
    [
        *sorted(COMPILED.keys() - {"ppo-minatar"}),
        "ppo-compiled",
        "dqn-compiled",
        "sac-compiled",
    ],
)
def test_compiled_runs_are_compiled_throughout(name, trained_run):
    paths = json.loads((trained_run(name) / "manifest.json").read_text())["paths"]
    ways = {way for part, way in paths.items() if part not in ("kernels", "cpu_features")}
    assert ways == {"compiled"}


@pytest.mark.parametrize("name", sorted(STEPPED))
def test_runs_whose_policies_python_steps_have_compiled_environments(name, trained_run):
    manifest = json.loads((trained_run(name) / "manifest.json").read_text())
    assert manifest["config"]["vectorization"] == "compiled"
    assert manifest["paths"].get("rollouts") != "compiled"


def test_a_compiled_dreamer_learns_in_compiled_code(trained_run):
    paths = json.loads((trained_run("dreamer-compiled") / "manifest.json").read_text())["paths"]
    assert paths["fast_networks"] == "compiled"


def test_every_algorithm_that_may_have_compiled_environments_is_killed_in_them():
    runs = (RUNS | OWN | COMPILED | STEPPED).values()
    killed = {run["algo"] for run in runs if run.get("vectorization") == "compiled"}
    free = {name for name in SHIPPED if config_class_of(name).model_fields["vectorization"].default == "auto"}
    assert free <= killed


def test_the_same_run_twice_is_the_same(trained_run, tmp_path):
    assert in_child(go_on, small_config("ppo-cartpole"), tmp_path / "two") == 0
    assert_same_run(trained_run("ppo-cartpole"), tmp_path / "two")


@pytest.mark.parametrize("fault", ["state not saved", "no seeding"])
def test_a_planted_fault_is_found(fault, tmp_path, monkeypatch):
    """The test above must be able to fail: an optimizer that forgets its moments, an iteration without a seed."""
    if fault == "state not saved":
        monkeypatch.setattr(Adam, "transient", (*Adam.transient, "mean", "square"))
    else:
        monkeypatch.setattr(engine, "seed_everything", lambda seed: None)
    assert in_child(go_on, small_config("ppo-cartpole"), tmp_path / "whole") == 0
    with pytest.raises(AssertionError, match="differs"):
        for seed in range(5):  # a kill before the first checkpoint restarts the run, and hides the fault
            compare_killed_with(tmp_path / "whole", "ppo-cartpole", tmp_path, kills=4, seed=seed)
