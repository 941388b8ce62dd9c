"""An environment as a class, a function or an instance in Python; a callable of a module; packages of extras."""

import re
from pathlib import Path

import numpy as np
import pytest
from runs import assert_same_run, stopped_after
from wrapping import Bandit, Drawn, make_bandit

from rl_training import evaluate_checkpoint, fork, load_config, report, resume, train
from rl_training.envs import packages
from rl_training.envs.making import make_environments
from rl_training.errors import ConfigError
from rl_training.runtime.workflows import record_demonstrations
from rl_training.tools.playing import play_run

PAGE = Path(__file__).parents[2] / "docs" / "own_environment.md"
SMALL = dict(algo="ppo", num_envs=2, num_steps=16, hidden_sizes=[8], eval_episodes=2, checkpoint_interval=64)


def settings(**changes):
    return SMALL | dict(total_timesteps=200, max_episode_steps=20) | changes


@pytest.mark.parametrize(
    ("env", "name"),
    [(Bandit, "given:Bandit"), (make_bandit, "given:make_bandit"), (Bandit(arms=3), "given:Bandit")],
    ids=["class", "function", "instance"],
)
def test_it_is_trained_on_resumed_and_evaluated(env, name, tmp_path):
    result = train(settings(), env=env, run_dir=tmp_path / "run", quiet=True)
    assert load_config(tmp_path / "run" / "config.yaml").env_id == name
    assert evaluate_checkpoint(tmp_path / "run", env=env)["mean_length"] == 3
    assert resume(tmp_path / "run", env=env, quiet=True).metrics == result.metrics


def test_a_stopped_run_asks_for_it_again_in_one_line_and_ends_the_same(tmp_path, monkeypatch):
    train(settings(), env=Bandit, run_dir=tmp_path / "whole", quiet=True)

    with stopped_after(5, monkeypatch):
        train(settings(), env=Bandit, run_dir=tmp_path / "run", quiet=True)
    for again in (
        lambda: resume(tmp_path / "run", quiet=True),
        lambda: evaluate_checkpoint(tmp_path / "run"),
    ):
        with pytest.raises(
            ConfigError, match=r"given:Bandit.*give it again in Python, as in resume\(run_dir, env=\.\.\.\)"
        ) as asked:
            again()
        assert "\n" not in str(asked.value)
    resume(tmp_path / "run", env=Bandit, quiet=True)
    assert_same_run(tmp_path / "whole", tmp_path / "run")


def test_it_takes_env_kwargs_and_runs_in_processes_of_their_own(tmp_path):
    changes = dict(env_kwargs={"arms": 4}, vectorization="async")
    result = train(settings(**changes), env=make_bandit, run_dir=tmp_path / "run", quiet=True)
    assert 0 <= result.metrics["episode_return"] <= 6


def test_what_cannot_be_made_is_one_line(tmp_path):
    class Uncopied(Bandit):
        def __deepcopy__(self, memo):
            raise RuntimeError("holds a socket")

    for env, changes, words in (
        (Bandit(), dict(env_kwargs={"arms": 3}), "an instance takes no env_kwargs, but arms were given"),
        (Uncopied(), {}, "this instance cannot be copied (holds a socket); pass its class"),
        (lambda: 7, {}, "returned 7, which is not an environment"),
        (Bandit, dict(env_kwargs={"legs": 3}), "legs"),
    ):
        with pytest.raises(ConfigError) as refused:
            train(settings(**changes), env=env, run_dir=tmp_path / "run", quiet=True)
        assert words in str(refused.value) and "\n" not in str(refused.value)
        assert not (tmp_path / "run").exists()


def test_it_is_forked_played_recorded_and_reported(tmp_path):
    run = train(settings(), env=Drawn, run_dir=tmp_path / "run", quiet=True).run_dir
    with pytest.raises(ConfigError, match="give it again in Python"):
        fork(run, ["total_timesteps=300"], run_dir=tmp_path / "no", quiet=True)
    forked = fork(run, ["total_timesteps=300"], env=Drawn, run_dir=tmp_path / "fork", quiet=True)
    assert forked.checkpoint_path.name == "step-000000000320"
    recorded = record_demonstrations(run, tmp_path / "demos.npz", episodes=2, env=Drawn)
    assert recorded.lengths == [3, 3]
    for env in (Drawn, Drawn(render_mode="rgb_array")):
        (tmp_path / "film.gif").unlink(missing_ok=True)
        assert play_run(run, video=tmp_path / "film.gif", env=env).frames == 4
    page = report(run, tmp_path / "page.html", video=True, env=Drawn).read_text()
    assert "data:video/mp4" in page
    assert "No video: " in report(run, tmp_path / "page.html").read_text()


def test_forked_actors_have_it_and_those_of_ray_refuse_it_in_one_line(tmp_path):
    pytest.importorskip("ray")
    fleet = settings(algo="impala", num_actors=2)
    result = train(fleet, env=Bandit, run_dir=tmp_path / "run", quiet=True)
    assert result.metrics["episodes"] > 0
    with pytest.raises(ConfigError, match="fleet: ray starts its actors from the config alone") as refused:
        train(fleet | {"fleet": "ray"}, env=Bandit, run_dir=tmp_path / "no", quiet=True)
    assert "\n" not in str(refused.value) and not (tmp_path / "no").exists()


def test_without_a_time_limit_there_is_a_warning(tmp_path):
    with pytest.warns(UserWarning, match="given:Bandit has no time limit"):
        train(settings(max_episode_steps=None), env=Bandit, run_dir=tmp_path / "run", quiet=True)


def test_a_callable_of_a_module_needs_no_registration():
    config = load_config(settings(env_id="wrapping:make_bandit", env_kwargs={"arms": 3}))
    environments = make_environments(config, 2, 1, "train")
    assert environments.lanes.action_space.n == 3
    assert environments.step(np.array([1, 0])).reward.tolist() == [2.0, 0.0]


@pytest.mark.parametrize(
    "env_id", ["MiniGrid-Empty-5x5-v0", "dm_control/cartpole-swingup-v0", "LunarLander-v3"]
)
def test_a_missing_extra_is_named(env_id, monkeypatch):
    monkeypatch.setattr(packages, "missing_packages", lambda extra: [f"package of {extra}"])
    with pytest.raises(ConfigError, match=r"needs package of [\w-]+: `pip install .*\[[\w-]+\]"):
        make_environments(load_config(settings(env_id=env_id)), 1, 1, "train")


def test_the_example_of_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (code,) = (
        block
        for block in re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
        if "env=" in block
    )
    names = {}
    exec(code.replace("total_timesteps=5_000", "total_timesteps=600"), names)
    assert names["result"].run_dir.name == "ppo-given-make_env-s1"
    assert names["scores"]["episodes"] == 5
