"""Trackers, offline and with the real libraries: they hold what metrics.jsonl holds, and disturb nothing."""

import json
import os
import signal
import struct
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from runs import KINDS, in_child, metrics_in, read_lines, small_config
from test_cli import GOOD, cli, refused, write

from rl_training import resume, train
from rl_training.monitoring import trackers
from rl_training.monitoring.display import QuietDisplay
from rl_training.state.run_directory import RunDirectory

ALL = dict(tensorboard=True, wandb=True, mlflow=True)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """One MLflow store for all tests: making its tables takes seconds."""
    return f"sqlite:///{tmp_path_factory.mktemp('store')}/mlflow.db"


@pytest.fixture(autouse=True)
def offline(store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_X_DISABLE_STATS", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)


def identity(run_dir, name):
    return json.loads((run_dir / "trackers.json").read_text())[name]


def in_tensorboard(run_dir):
    """{(name, step): value} of the event files."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run_dir / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    return {(tag, e.step): e.value for tag in events.Tags()["scalars"] for e in events.Scalars(tag)}


def in_mlflow(run_dir, store):
    from mlflow import MlflowClient

    client, number = MlflowClient(store), identity(run_dir, "mlflow")
    run = client.get_run(number)
    found = [entry for name in run.data.metrics for entry in client.get_metric_history(number, name)]
    return run, [(entry.key, entry.step, entry.value) for entry in found]


def in_wandb(folder):
    """(id, config, {(name, step): value}) of the file that W&B keeps offline, a log of protocol buffers."""
    from wandb.proto.wandb_internal_pb2 import Record

    (path,) = folder.glob("run-*.wandb")
    data, at, part = path.read_bytes(), 7, b""
    number, config, values = "", {}, {}
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:  # a block has no room for another header
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        part, at = part + data[at + 7 : at + 7 + length], at + 7 + length
        if kind not in (1, 4):  # whole, or the last piece
            continue
        record, part = Record.FromString(part), b""
        if record.WhichOneof("record_type") == "run":
            number = record.run.run_id
            config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
        for item in record.history.item:
            name = item.key or ".".join(item.nested_key)
            if not name.startswith("_"):
                values[name, record.history.step.num] = json.loads(item.value_json)
    return number, config, values


def in_metrics(run_dir):
    return {
        (name, line["step"]): value
        for line in metrics_in(run_dir)
        for name, value in line.items()
        if name != "step"
    }


class Stopping(QuietDisplay):
    """Presses Ctrl-C at a step."""

    def update(self, steps, metrics, timing):
        if steps >= 1500:
            os.kill(os.getpid(), signal.SIGINT)


def test_all_three_hold_the_metrics_of_a_run_that_was_interrupted_and_change_none(trained_run, store, capfd):
    run = Path("run")
    with pytest.raises(KeyboardInterrupt):
        train(small_config("ppo-cartpole", **ALL), run_dir=run, display=Stopping())
    assert capfd.readouterr().err == "", "what libraries say about themselves is not for our user"
    assert in_mlflow(run, store)[0].info.status == "KILLED"
    resume(run, trust=True)
    wanted = in_metrics(run)
    assert (run / "metrics.jsonl").read_bytes() == (
        trained_run("ppo-cartpole") / "metrics.jsonl"
    ).read_bytes()

    shown = in_tensorboard(run)
    assert shown.keys() == wanted.keys()
    assert all(shown[key] == pytest.approx(value, rel=1e-6) for key, value in wanted.items())

    tracked, entries = in_mlflow(run, store)
    assert {(name, step): value for name, step, value in entries} == wanted
    assert len(entries) <= len(wanted) + 40, "only the step at which it stopped may be there twice"
    assert tracked.info.status == "FINISHED" and tracked.info.run_name == "run"
    assert tracked.data.params["env_id"] == "CartPole-v1" and tracked.data.params["num_envs"] == "4"

    first, second = sorted((run / "wandb").glob("offline-run-*"))
    before, config, early = in_wandb(first)
    after, _, whole = in_wandb(second)
    assert before == after == identity(run, "wandb"), "a resumed run goes on under the same id"
    assert whole == wanted and early.items() <= wanted.items() and early
    assert config["env_id"] == "CartPole-v1" and config["clip_coef_schedule"]["type"] == "linear"


def test_settings_of_the_working_directory_do_not_redirect_wandb(monkeypatch, tmp_path):
    """A folder from elsewhere may hold `wandb/settings`; what the user has in the home directory counts."""
    mine = tmp_path / "home/.config/wandb/settings"
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for path, user in ((mine, "me"), (Path("wandb/settings"), "them"), (Path(".wandb/settings"), "them")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"[default]\nbase_url = http://{user}.invalid\nentity = {user}\n")

    def start() -> None:
        import wandb

        seen = []
        monkeypatch.setattr(
            wandb, "init", lambda **_: seen.append(wandb.setup().settings) or SimpleNamespace(step=0)
        )
        with pytest.warns(UserWarning, match="wandb/settings in the working directory is not read"):
            trackers.WandB(small_config("ppo-cartpole"), RunDirectory(tmp_path / "run"))
        assert [(each.base_url, each.entity) for each in seen] == [("http://me.invalid", "me")]
        assert Path.cwd() == tmp_path

    (tmp_path / "run").mkdir()
    assert in_child(start) == 0


@pytest.mark.parametrize("name", KINDS[1:])
def test_other_algorithms_in_mlflow_and_tensorboard(name, store):
    result = train(small_config(name, tensorboard=True, mlflow=True), run_dir="run")
    wanted = in_metrics(result.run_dir)
    assert in_tensorboard(result.run_dir).keys() == wanted.keys()
    entries = in_mlflow(result.run_dir, store)[1]
    assert {(name, step): value for name, step, value in entries} == wanted and len(entries) == len(wanted)


class Broken:
    begins_at, hint = 0, "try harder"

    def __init__(self, config, run):
        self.left = 3

    def write(self, step, values):
        self.left -= 1
        if not self.left:
            raise ConnectionError("the server has gone\naway")

    def close(self, finished):
        raise AssertionError("it was dropped")


def test_a_tracker_that_fails_is_dropped_with_one_warning_and_the_run_goes_on(
    monkeypatch, capsys, trained_run
):
    monkeypatch.setitem(trackers.TRACKERS, "wandb", Broken)
    result = train(small_config("ppo-cartpole", wandb=True), run_dir="run")
    assert capsys.readouterr().err == (
        "warning: wandb failed and is disabled for the rest of the run (ConnectionError: the server has gone away)\n"
    )
    assert read_lines(result)[-1]["step"] == 3072
    assert in_metrics(result.run_dir) == in_metrics(trained_run("ppo-cartpole"))


@pytest.mark.parametrize(
    ("name", "hint"), [("wandb", "WANDB_MODE=offline"), ("mlflow", "MLFLOW_TRACKING_URI")]
)
def test_a_tracker_that_cannot_start_is_one_line(name, hint, monkeypatch):
    import wandb

    def not_logged_in(**settings):
        raise wandb.errors.UsageError("No API key configured.\nUse `wandb login` to log in.")

    monkeypatch.setattr(wandb, "init", not_logged_in)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nonsense://x")
    done = cli("train", write(GOOD), f"{name}=true", "--run-dir", "run", "--quiet")
    assert done.exit_code == 2 and done.stderr.count("\n") == 1, done.output
    assert done.stderr.startswith(f"error: {name}: true cannot start (") and hint in done.stderr
    assert not Path("run/checkpoints").exists()


@pytest.mark.parametrize("name", trackers.TRACKERS)
def test_a_missing_extra_is_one_line_with_the_command_that_adds_it(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    refused(cli("train", write(GOOD), f"{name}=true"), f"{name}: true needs {name}", f"'.[{name}]'")


def test_bad_input_is_one_line():
    refused(cli("train", write(GOOD), "wandb=yes"), "wandb", "true or false")
    refused(cli("train", write(GOOD), "wandbb=true"), "did you mean wandb")
