"""Observers, early stopping, and metrics from an environment's info."""

import json
import shutil
from pathlib import Path

import gymnasium as gym
import numpy as np
import observing
import pytest
from gymnasium import spaces
from runs import CADENCES, EXAMPLES, TINY, assert_same_run, metrics_in, small_config
from test_cli import cli

from rl_training import compare, evaluate_checkpoint, fork, load_config, report, resume, train
from rl_training.errors import ConfigError, EnvironmentFault, ObserverError, UntrustedError
from rl_training.monitoring.display import QuietDisplay
from rl_training.runtime import workflows
from rl_training.runtime.observers import Watch
from rl_training.state import checkpoints
from rl_training.tools import experiments, forking

NOTES = f"{observing.__file__}:Notes"
SMALL = CADENCES | TINY | dict(algo="ppo", num_steps=32, total_timesteps=2000)


def saved_watch(run):
    return checkpoints.load_checkpoint(max((run / "checkpoints").glob("step-*")))["watch"]


def last_line(run):
    return json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])


def test_a_run_stops_at_a_metric_with_all_that_an_end_has(tmp_path):
    config = load_config(SMALL, stop_at={"metric": "episodes", "at_least": 20}, log_interval=128)
    result = train(config, run_dir=tmp_path / "run", quiet=True)
    lines = metrics_in(tmp_path / "run")
    first = next(line for line in lines if line.get("episodes", 0) >= 20)
    end = first["step"]
    assert end < 2000 and {line["step"] for line in lines[-2:]} == {end}
    assert [line for line in lines if line["step"] == end and "eval/mean_return" in line]
    assert lines[-1]["stopped"] == 1 and last_line(tmp_path / "run")["stopped_by"] == result.stopped
    assert result.stopped == f"episodes is {first['episodes']:.6g}" and result.interrupted is None
    assert result.checkpoint_path.name == f"step-{end:012d}"
    again = resume(tmp_path / "run", quiet=True)
    assert metrics_in(tmp_path / "run") == lines and again.stopped == result.stopped


def test_a_stopped_run_is_a_finished_one_for_everyone(tmp_path):
    stop = {"metric": "eval/mean_return", "at_least": 1}
    config = load_config(SMALL, stop_at=stop, eval_interval=512, vectorization="sync")
    runs = experiments.open_experiment(config, tmp_path / "seeds")
    done = experiments.go_on(experiments.seeded(config, 1), runs / "s1", QuietDisplay())
    assert done.stopped == f"eval/mean_return is {done.metrics['eval/mean_return']:.6g}"
    run = experiments.SeedRun(1, runs / "s1")
    experiments._look(run, experiments.seeded(config, 1))
    assert run.status == "done"
    assert "not finished" not in cli("compare", runs / "s1").stderr
    page = report(runs / "s1", tmp_path / "page.html", video=False).read_text()
    assert "Stopped as asked, after 512 of 2,000 environment steps" in page
    with pytest.raises(ConfigError, match=r"where its run stopped, at step 512; change stop_at or observers"):
        fork(runs / "s1", ["gamma=0.9"], run_dir=tmp_path / "fork")
    forked = fork(runs / "s1", ["stop_at=null"], run_dir=tmp_path / "fork", quiet=True)
    assert forked.stopped == "" and metrics_in(forked.run_dir)[-1]["step"] >= 2000


@pytest.mark.parametrize(
    ("stop", "said"),
    [
        (
            {"metric": "eval/mean_retrun", "at_least": 1},
            "logs eval/mean_retrun; did you mean eval/mean_return",
        ),
        ({"metric": "eval/info/won", "at_least": 1}, "no evaluation logs eval/info/won"),
        ({"metric": "episodes"}, "stop_at needs a metric and a number at_least or at_most"),
        ({"at_least": 1}, "stop_at needs a metric"),
        ({"metric": "episodes", "at_least": "3"}, "stop_at needs a metric and a number"),
        ({"metric": "episodes", "atleast": 3}, "stop_at has no 'atleast'; did you mean at_least"),
    ],
)
def test_a_condition_that_cannot_come_true_is_refused(stop, said):
    with pytest.raises(ConfigError, match=said):
        load_config(SMALL, stop_at=stop)


def test_an_observer_hears_of_everything_in_order_and_its_memory_is_saved(tmp_path):
    train(load_config(SMALL, observers=[NOTES]), run_dir=tmp_path / "run", quiet=True)
    lines = metrics_in(tmp_path / "run")
    (state,) = saved_watch(tmp_path / "run")["observers"]
    heard = [(what, step) for what, step, _ in state["heard"] if what != "checkpoint"]
    assert heard == [("evaluation" if "eval/mean_return" in line else "log", line["step"]) for line in lines]
    steps = [step for what, step, _ in state["heard"] if what == "checkpoint"]
    # Of the last checkpoint it heard after that was saved.
    assert steps[0] == 448 and len(steps) == 4 and saved_watch(tmp_path / "run")["owed"][0][0] == "checkpoint"


def test_a_stop_that_a_checkpoint_asks_for_comes_with_the_next_iteration(tmp_path):
    config = load_config(SMALL, observers=[{NOTES: {"checkpoints": 2}}])
    result = train(config, run_dir=tmp_path / "run", quiet=True)
    assert result.stopped == "2 checkpoints"
    (state,) = saved_watch(tmp_path / "run")["observers"]
    (second,) = [step for what, step, _ in state["heard"] if what == "checkpoint"][1:]
    assert metrics_in(tmp_path / "run")[-1]["step"] == second + config.steps_per_iteration


def test_an_observer_that_raises_ends_the_run_in_one_line_with_everything_saved(tmp_path, monkeypatch):
    monkeypatch.setattr(observing.Failing, "mended", False)
    config = load_config(SMALL, observers=[observing.Failing, NOTES], log_interval=128)
    with pytest.raises(ObserverError) as failure:
        train(config, run_dir=tmp_path / "run", quiet=True)
    said = str(failure.value)
    assert "\n" not in said and "observer observing:Failing raised ValueError: no more (observing.py:" in said
    assert "on_log of step 384); `rl-training resume" in said and "--trust` continues from step 384" in said
    lines = metrics_in(tmp_path / "run")
    assert lines[-1]["step"] == 384 and (tmp_path / "run/checkpoints/step-000000000384").is_dir()
    monkeypatch.setattr(observing.Failing, "mended", True)
    resume(tmp_path / "run", quiet=True, trust=True)
    whole = tmp_path / "whole"
    train(config, run_dir=whole, quiet=True)
    ours, theirs = (saved_watch(run)["observers"] for run in (tmp_path / "run", whole))
    assert ours[0] == theirs[0] == {"lines": 16}
    assert ours[1] == theirs[1] and metrics_in(tmp_path / "run") == metrics_in(whole)


def test_an_observer_that_raises_where_a_checkpoint_is_due_hears_of_it_after_the_fix(tmp_path, monkeypatch):
    config = load_config(
        SMALL, observers=[observing.Failing, NOTES], log_interval=128, checkpoint_interval=384
    )
    monkeypatch.setattr(observing.Failing, "mended", False)
    with pytest.raises(ObserverError, match="on_log of step 384"):
        train(config, run_dir=tmp_path / "run", quiet=True)
    monkeypatch.setattr(observing.Failing, "mended", True)
    resume(tmp_path / "run", quiet=True, trust=True)
    train(config, run_dir=tmp_path / "whole", quiet=True)
    ours, theirs = (
        [
            step
            for what, step, _ in saved_watch(tmp_path / name)["observers"][1]["heard"]
            if what == "checkpoint"
        ]
        for name in ("run", "whole")
    )
    assert ours == theirs and ours[0] == 384


@pytest.mark.parametrize("again", [resume, fork])
def test_observers_are_made_before_the_trainer(again, tmp_path, monkeypatch):
    """So that one that cannot be made leaves no environments and processes behind, and sees all of a start."""
    run = train(
        load_config(SMALL, observers=[NOTES], total_timesteps=640), run_dir=tmp_path / "run", quiet=True
    )
    order = []
    monkeypatch.setattr(workflows, "Watch", lambda config: order.append("observers") or Watch(config))
    monkeypatch.setattr(forking, "Watch", workflows.Watch)
    make = workflows.make_trainer
    monkeypatch.setattr(workflows, "make_trainer", lambda config: order.append("trainer") or make(config))
    monkeypatch.setattr(forking, "make_trainer", workflows.make_trainer)
    more = {"run_dir": tmp_path / "fork", "overrides": ["total_timesteps=700"]} if again is fork else {}
    again(run.run_dir, quiet=True, trust=True, **more)
    assert order == ["observers", "trainer"]


def test_on_the_command_line_that_is_exit_code_1(tmp_path):
    settings = ("total_timesteps=2048", "log_interval=256", "eval_episodes=1")
    observer = f"observers=[{observing.__file__}:Failing]"
    done = cli("train", "ppo/cartpole", *settings, observer, "--run-dir", tmp_path / "run", "--quiet")
    assert done.exit_code == 1 and done.stderr.count("\n") == 1
    assert "error: observer observing-Failing raised ValueError" in done.stderr


def test_objects_of_python_are_asked_for_again(tmp_path):
    notes = observing.Notes(checkpoints=2)
    result = train(SMALL, run_dir=tmp_path / "run", quiet=True, observers=[notes])
    assert result.stopped == "2 checkpoints" and notes.heard
    assert load_config(tmp_path / "run/config.yaml").observers == ["given:Notes"]
    shutil.copytree(tmp_path / "run", tmp_path / "whole")
    shutil.rmtree(max((tmp_path / "run/checkpoints").glob("step-*")))
    with pytest.raises(
        ConfigError, match="Notes was given to this run as an object in Python; give it again"
    ):
        resume(tmp_path / "run", quiet=True)
    resume(tmp_path / "run", quiet=True, observers=[observing.Notes(checkpoints=2)])
    assert_same_run(tmp_path / "run", tmp_path / "whole")
    earlier = min((tmp_path / "whole/checkpoints").glob("step-*"))
    with pytest.raises(ConfigError, match="Notes was given to this run"):
        fork(earlier, run_dir=tmp_path / "no", quiet=True)
    forked = fork(earlier, run_dir=tmp_path / "fork", quiet=True, observers=[observing.Notes(checkpoints=2)])
    assert forked.stopped == "2 checkpoints"


@pytest.mark.parametrize("observer", [f"{EXAMPLES}/corridor.py:Corridor", "rl_training.nothing:Here"])
def test_what_is_no_observer_is_refused_before_a_run_is_begun(observer, tmp_path):
    with pytest.raises(
        ConfigError, match=r"observers '.*' (is not an rl_training.Observer|cannot be loaded)"
    ):
        train(load_config(SMALL, observers=[observer]), run_dir=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_a_foreign_observer_is_not_imported(tmp_path):
    train(load_config(SMALL, observers=[NOTES], total_timesteps=64), run_dir=tmp_path / "run", quiet=True)
    with pytest.raises(UntrustedError, match=r"observers '.*observing.py:Notes' runs the file"):
        resume(tmp_path / "run")
    assert evaluate_checkpoint(tmp_path / "run", episodes=1)["episodes"] == 1  # which needs no observer


class Reporting(gym.Env):
    """Reports how many of its steps were to the right, and sometimes that it was won."""

    def __init__(self, value=None):
        self.observation_space, self.action_space = spaces.Box(0, 1, (1,), np.float32), spaces.Discrete(2)
        self.value = value

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = self.right = 0
        return np.zeros(1, np.float32), {"right": -1}

    def step(self, action):
        self.steps, self.right = self.steps + 1, self.right + int(action)
        info = {"right": np.int64(self.right) if self.value is None else self.value, "long": [1, 2]}
        info |= {"won": True} if self.right > 2 else {}
        return np.full(1, self.right / 5, np.float32), float(action), self.steps == 5, False, info


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_what_the_environment_reports_at_the_end_is_a_metric_everywhere(vectorization, tmp_path):
    settings = dict(
        env_id=f"{__file__}:Reporting", info_metrics=["right", "won"], vectorization=vectorization
    )
    train(load_config(SMALL | settings, max_episode_steps=9), run_dir=tmp_path / "run", quiet=True)
    for line in metrics_in(tmp_path / "run"):
        prefix = "eval/" if "eval/mean_return" in line else ""
        score = line["eval/mean_return"] if prefix else line["episode_return"]
        assert line[f"{prefix}info/right"] == pytest.approx(score)
        assert line.get(f"{prefix}info/won", 1.0) == 1.0  # only of episodes that say so
    done = cli("evaluate", tmp_path / "run", "--trust", "--json", "--episodes", "3")
    scores = json.loads(done.stdout.splitlines()[-1])
    assert scores["info/right"] == scores["mean_return"]
    assert "right  " in cli("evaluate", tmp_path / "run", "--trust", "--episodes", "3").stdout
    assert "eval/info/right" in report(tmp_path / "run", tmp_path / "page.html", video=False).read_text()
    compared = compare(tmp_path / "run", metric="eval/info/right")
    (group,) = next(iter(compared.tasks.values()))
    assert list(group.scores) == [metrics_in(tmp_path / "run")[-1]["eval/info/right"]]


@pytest.mark.parametrize("value", ["high", float("nan")])
def test_a_report_of_which_there_is_no_mean_is_a_fault_of_the_environment(value, tmp_path):
    settings = dict(env_id=f"{__file__}:Reporting", info_metrics=["right"], max_episode_steps=9)
    config = load_config(SMALL | settings).model_copy(update={"env_kwargs": {"value": value}})
    with pytest.raises(EnvironmentFault, match=r"reported right = .*; info_metrics needs a finite number"):
        train(config, run_dir=tmp_path / "run", quiet=True)


def test_a_report_that_never_comes_is_a_warning_and_other_environments_refuse_it(tmp_path):
    config = load_config(SMALL, info_metrics=["is_succes"], total_timesteps=64)
    with pytest.warns(UserWarning, match="no episode of the evaluation reported is_succes in the info"):
        train(config, run_dir=tmp_path / "run", quiet=True)
    with pytest.raises(ConfigError, match="vectorization: compiled cannot be used"):
        train(load_config(SMALL, info_metrics=["a"], vectorization="compiled"), run_dir=tmp_path / "no")


def test_the_kill_test_of_an_observer_stops_in_the_middle(trained_run):
    lines = metrics_in(Path(trained_run("own-observer")))
    assert last_line(trained_run("own-observer"))["stopped_by"] == "3 checkpoints"
    assert lines[-1]["step"] < small_config("own-observer").total_timesteps
    assert any("eval/info/is_success" in line for line in lines)
