"""The search for hyper-parameters: it proposes, cuts short, survives a kill, and ends with a config that trains."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from runs import KINDS, RUNS, in_child, kill_at_file_call
from test_cli import cli, refused, write

from rl_training import load_config, train
from rl_training.errors import ConfigError, RunError
from rl_training.settings.loading import YOUNGER, dump_config
from rl_training.tuning import study
from rl_training.tuning.space import Corner, read_space

BASE = """\
algo: ppo
env_id: CartPole-v1
total_timesteps: 1024
num_envs: 4
num_steps: 32
hidden_sizes: [8]
eval_interval: 256
eval_episodes: 2
checkpoint_interval: 256
"""
SPACE = """\
learning_rate: {low: 1e-4, high: 1e-1, log: true}
num_minibatches: [1, 2, 4]
clip_coef_schedule: {type: [linear, cosine], start: {low: 0.1, high: 0.4}, end: 0.05}
ent_coef_schedule: [null, {type: linear, start: {low: 0.001, high: 0.1, log: true}}]
"""
SEARCH = ("--space", "space.yaml", "--trials", 6, "--startup", 2)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(BASE)
    write(SPACE, "space.yaml")
    return tmp_path


def trials(search) -> list:
    """All that Optuna's storage knows of the trials, but the times."""
    import optuna

    study = optuna.load_study(study_name="tune", storage=f"sqlite:///{Path(search).resolve()}/study.db")
    return [(t.number, t.state.name, t.params, t.value, t.intermediate_values) for t in study.trials]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A search that nothing interrupted, and what it printed."""
    place = tmp_path_factory.mktemp("tune")
    (place / "config.yaml").write_text(BASE)
    (place / "space.yaml").write_text(SPACE)
    options = ("--space", place / "space.yaml", "--trials", 6, "--startup", 2, "--run-dir", place / "search")
    return place / "search", cli("tune", place / "config.yaml", *options)


def test_a_search_tries_cuts_short_and_says_what_it_found(whole):
    search, done = whole
    assert done.exit_code == 0 and done.stderr == "", done.output
    found = trials(search)
    assert len(found) == 6
    states = [state for _, state, *_ in found]
    assert states[:2] == ["COMPLETE", "COMPLETE"] and "PRUNED" in states, states
    for _, state, params, value, seen in found:
        assert 1e-4 <= params["learning_rate"] <= 1e-1 and params["num_minibatches"] in (1, 2, 4)
        assert list(seen) == sorted(seen) and (max(seen) < 1024) == (state == "PRUNED")
        assert value == seen[max(seen)]
    best = max(value for _, state, _, value, _ in found if state == "COMPLETE")
    assert f"return {best:.2f}" in done.stdout and "cut short at step" in done.stdout
    assert f"train it     rl-training train {search}/best.yaml" in done.stdout
    assert " %  learning_rate" in done.stdout
    assert (search / "importance.png").read_bytes().startswith(b"\x89PNG\r\n")


def test_schedules_are_a_part_of_the_space(whole):
    search, _ = whole
    configs = [load_config(path) for path in sorted(search.glob("trials/*/config.yaml"))]
    starts = {config.clip_coef_schedule["start"] for config in configs}
    assert len(starts) == 6 and all(0.1 <= start <= 0.4 for start in starts)
    assert {config.clip_coef_schedule["end"] for config in configs} == {0.05}
    entropy = [config.ent_coef_schedule for config in configs]
    assert None in entropy and any(one and 0.001 <= one["start"] <= 0.1 for one in entropy)


def test_the_final_yaml_trains_and_repeats_the_best_trial(whole):
    search, _ = whole
    text = (search / "best.yaml").read_text()
    assert text.startswith("# ppo on CartPole-v1, the best of 6 trials: trial ")
    done = cli("train", search / "best.yaml", "--run-dir", "again", "--json", "--quiet")
    best = max(value for _, state, _, value, _ in trials(search) if state == "COMPLETE")
    assert json.loads(done.stdout)["metrics"]["eval/mean_return"] == best


def killed_when(happened) -> None:
    """The search in a process of its own, killed with SIGKILL as soon as something has happened."""
    child = os.fork()
    if child == 0:
        try:
            cli("tune", "config.yaml", *SEARCH, "--run-dir", "search", "--quiet")
        finally:
            os._exit(0)
    while not happened():
        assert os.waitpid(child, os.WNOHANG) == (0, 0), "it ended before it could be killed"
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_a_search_killed_in_the_middle_goes_on_where_it_was(whole):
    """In the middle of the second trial; the first one is finished."""
    killed_when(lambda: len(list(Path("search/trials/0001/checkpoints").glob("step-*"))) > 1)
    left = trials("search")
    assert [state for _, state, *_ in left] == ["COMPLETE", "RUNNING"]
    early = {path: path.read_bytes() for path in Path("search/trials/0000").rglob("*") if path.is_file()}

    done = cli("tune", "search", "--quiet")
    assert done.exit_code == 0, done.output
    assert trials("search")[0] == left[0], "a finished trial is lost"
    assert all(path.read_bytes() == data for path, data in early.items()), "a finished trial was run again"
    assert trials("search") == trials(whole[0]), "it ended otherwise than without the kill"
    assert Path("search/best.yaml").read_bytes() == (whole[0] / "best.yaml").read_bytes()


def test_a_finished_search_stays_and_can_be_made_longer(whole, tmp_path):
    import shutil

    search = shutil.copytree(whole[0], tmp_path / "search")
    before = trials(search)
    assert cli("tune", "search", "--quiet").exit_code == 0
    assert trials(search) == before
    done = cli("tune", "search", "--trials", 7, "--json", "--quiet")
    told = json.loads(done.stdout)
    assert trials(search)[:6] == before and len(told["trials"]) == 7
    refused(cli("tune", "search", "--space", "space.yaml"), "its own config, space and place")
    refused(cli("tune", "search", "seed=3"), "its own config, space and place")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_says_how_to_go_on(number, code, monkeypatch):
    from rl_training.tuning import study

    class Pressed(study.Watch):
        def update(self, steps, metrics, timing):
            super().update(steps, metrics, timing)
            if self.trial.number == 1:
                os.kill(os.getpid(), number)

    with monkeypatch.context() as patched:
        patched.setattr(study, "Watch", Pressed)
        done = cli("tune", "config.yaml", "--space", "space.yaml", "--trials", 2)
    assert done.exit_code == code, done.output
    assert "resume it    rl-training tune runs/tune-ppo-CartPole-v1-s1" in done.stdout
    assert cli("tune", "runs/tune-ppo-CartPole-v1-s1").exit_code == 0
    assert [state for _, state, *_ in trials("runs/tune-ppo-CartPole-v1-s1")] == ["COMPLETE", "COMPLETE"]


@pytest.mark.parametrize("name", KINDS[1:])
def test_other_algorithms(name):
    short = {"total_timesteps": 400, "eval_episodes": 1, "eval_interval": 200, "checkpoint_interval": 200}
    write(dump_config(load_config(RUNS[name] | short)))
    write("gamma: [0.9, 0.99]\nlearning_rate: {low: 1e-4, high: 1e-3, log: true}\n", "space.yaml")
    done = cli("tune", "config.yaml", "--space", "space.yaml", "--trials", 2, "--run-dir", "search")
    assert done.exit_code == 0 and done.stdout.count("return ") == 3, done.output
    assert load_config("search/best.yaml").gamma in (0.9, 0.99)


def test_a_trial_that_diverges_is_told_and_the_search_goes_on():
    write("learning_rate: [1e30, 1e-3]\nmax_grad_norm: 1e30\n", "space.yaml")
    done = cli(
        "tune", "config.yaml", "--space", "space.yaml", "--trials", 4, "--startup", 4, "--run-dir", "search"
    )
    assert done.exit_code == 0, done.output
    assert "is not finite" in done.stdout and load_config("search/best.yaml").learning_rate == 1e-3


def test_a_search_without_a_good_trial_is_code_1():
    write("learning_rate: [1e30, 1e31]\nmax_grad_norm: 1e30\n", "space.yaml")
    done = cli("tune", "config.yaml", "--space", "space.yaml", "--trials", 2, "--run-dir", "search")
    assert done.exit_code == 1 and "no trial was trained to the end" in done.stdout
    assert not Path("search/best.yaml").exists()


BAD_SPACES = {
    "learning_rat: [1, 2]\n": (1, "did you mean learning_rate"),
    "gamma: {low: 0.9}\n": (1, "needs both low and high"),
    "gamma: {low: 0.99, high: 0.9}\n": (1, "low must be below high"),
    "seed: 3\ngamma: {low: 0.9, hihg: 0.99}\n": (2, "did you mean high"),
    "learning_rate: {low: 0, high: 1, log: true}\n": (1, "above 0"),
    "learning_rate: {low: 1e-4, high: lots}\n": (1, "must be a number"),
    "num_minibatches: {low: 1, high: 2.5}\n": (1, "must be a whole number"),
    "num_minibatches: []\n": (1, "empty"),
    "num_minibatches: [2, 2]\n": (1, "twice"),
    "gamma: 0.9\n": (1, "the search space is empty"),
    "- 1\n": (1, "mapping"),
    "gamma: {low: 0.9, high: 1.5}\n": (None, "gamma must be at most 1, not 1.5"),
    "hidden_sizes: [[8], [big]]\n": (None, "hidden_sizes"),
    "clip_coef_schedule: {type: [linear, linaer]}\n": (None, "did you mean linear"),
    "gamma: [0.9\n": (1, "broken YAML"),
}


@pytest.mark.parametrize("text", BAD_SPACES)
def test_a_bad_space_is_one_line_and_leaves_nothing(text, folder):
    write(text, "space.yaml")
    line, words = BAD_SPACES[text]
    place = "space.yaml: " if line is None else f"space.yaml:{line}: "
    refused(cli("tune", "config.yaml", *SEARCH), place, words)
    assert {path.name for path in folder.iterdir()} == {"config.yaml", "space.yaml"}


def test_bad_arguments_are_one_line(folder):
    refused(cli("tune", "config.yaml", "--trials", 3), "--space FILE")
    refused(cli("tune", "config.yaml", "--space", "space.yaml"), "--trials N")
    refused(cli("tune", "config.yaml", "--space", "absent.yaml", "--trials", 3), "absent.yaml: no such file")
    refused(cli("tune", "config.yaml", "--space", "space.yaml", "--trials", 0), "--trials")
    refused(cli("tune", "nothing.yaml", *SEARCH), "nothing.yaml: no such file")
    refused(cli("tune", "config.yaml", "gama=1", *SEARCH), "did you mean gamma")
    Path("search").mkdir()
    Path("search/tune.json").write_text("{}")
    refused(cli("tune", "search"), "tune.json: damaged")
    refused(cli("tune", "config.yaml", *SEARCH, "--run-dir", "search"), "is not empty")


def test_a_missing_extra_is_one_line_with_the_command_that_adds_it(monkeypatch, folder):
    monkeypatch.setitem(sys.modules, "optuna", None)
    refused(cli("tune", "config.yaml", *SEARCH), "tune needs optuna", "'.[tune]'")
    assert {path.name for path in folder.iterdir()} == {"config.yaml", "space.yaml"}


def test_a_study_of_others_imports_a_module_only_on_trust(whole, tmp_path):
    import shutil

    search = shutil.copytree(whole[0], tmp_path / "search")
    text = (search / "base.yaml").read_text().replace("CartPole-v1", '"planted:CartPole-v1"')
    (search / "base.yaml").write_text(text)
    refused(cli("tune", "search", "--trials", 9), "add --trust (trust=True)", "planted")


def test_a_study_of_a_version_without_the_younger_fields_goes_on_as_it_was_begun(monkeypatch):
    path = study.begin_study(load_config("config.yaml"), "space.yaml", study.Settings(1), "search")
    base = path / "base.yaml"
    lines = base.read_text().splitlines(keepends=True)
    base.write_text("".join(line for line in lines if line.split(":")[0] not in ("env_timeout", *YOUNGER)))
    monkeypatch.setattr(study.Study, "search", lambda self: signal.SIGTERM)
    monkeypatch.setattr(study.Study, "summed_up", lambda self, interrupted: self.base)
    found = study.run_study(path)
    assert {name: getattr(found, name) for name in YOUNGER} == YOUNGER
    assert found.env_timeout == 300


def test_whole_numbers_stay_whole_and_numbers_numbers():
    """A range of 0 to 1 is not two numbers where the field is a number."""
    config = load_config("config.yaml")
    write("vf_coef: {low: 0, high: 1}\nupdate_epochs: {low: 1, high: 8}\n", "space.yaml")
    space = read_space("space.yaml", config)

    class Kinds(Corner):
        def suggest_int(self, name, low, high, *, step, log):
            return f"whole {low} {high} {step}"

        def suggest_float(self, name, low, high, *, step, log):
            return f"number {low} {high}"

    assert space.ask(Kinds(True)) == {"vf_coef": "number 0.0 1.0", "update_epochs": "whole 1 8 1"}
    with pytest.raises(ConfigError, match="no such file"):
        read_space("absent.yaml", config)
    train(space.config(config, space.ask(Corner(True))), run_dir="run")


def test_halving_trains_few_trials_to_the_end_and_survives_kills(folder):
    base = load_config(folder / "config.yaml", {"vectorization": "sync"})
    for name in ("one", "two"):
        study.begin_study(base, "space.yaml", study.Settings(6, halving=2), name)
    done = study.run_study("one")

    def killed(number):
        kill_at_file_call(number)
        study.run_study("two")

    assert [in_child(killed, number) for number in (100, 150, 90)] == [None] * 3
    study.run_study("two")
    assert trials("one") == trials("two")
    assert Path("one/best.yaml").read_bytes() == Path("two/best.yaml").read_bytes()
    reached = [max(trial[4]) for trial in trials("one")]
    assert sorted(reached) == [256, 256, 256, 512, 512, 1024]  # rungs of 6, 3 and 1 trials
    best = next(trial for trial in trials("one") if trial[1] == "COMPLETE")
    assert done.best["number"] == best[0] and best[4].keys() == {256, 512, 1024}
    for rung in (256, 512):  # whoever went on was among the best there
        here = {trial[0]: trial[4][rung] for trial in trials("one") if rung in trial[4]}
        on = [number for number, trial in enumerate(trials("one")) if max(trial[4]) > rung]
        assert min(here[number] for number in on) >= max(
            score for number, score in here.items() if number not in on
        )


def test_a_winner_that_was_reported_and_not_told_is_told_by_the_next_process(folder, monkeypatch):
    import optuna

    base = load_config(folder / "config.yaml", {"vectorization": "sync"})
    study.begin_study(base, "space.yaml", study.Settings(2, halving=2), "search")
    tell = optuna.Study.tell

    def dying(self, trial, values=None, **options):
        if values is not None:
            raise KeyboardInterrupt
        return tell(self, trial, values, **options)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(optuna.Study, "tell", dying)
        study.run_study("search")
    assert any(1024 in trial[4] and trial[1] == "RUNNING" for trial in trials("search"))
    assert study.run_study("search").best is not None
    assert sorted(trial[1] for trial in trials("search")) == ["COMPLETE", "PRUNED"]


def test_halving_that_drops_no_trial_and_damaged_settings_are_refused(folder):
    base = load_config(folder / "config.yaml")
    with pytest.raises(ConfigError, match=r"halving 1: must be 0 \(off\) or at least 2"):
        study.tune(base, "space.yaml", trials=3, halving=1, run_dir="search")
    assert not Path("search").exists()
    study.begin_study(base, "space.yaml", study.Settings(3), "search")
    saved = json.loads(Path("search/tune.json").read_text())
    for damage in ({"halving": 1}, {"halving": "2"}, {"trials": -1}, {"pruning": "no"}):
        Path("search/tune.json").write_text(json.dumps(saved | damage))
        with pytest.raises(RunError, match=r"tune\.json: damaged"):
            study.run_study("search")
