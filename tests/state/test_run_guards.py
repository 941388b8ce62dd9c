"""What guards a run: its config and manifest are checked before it goes on, its directory while it is written to."""

import io
import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console
from runs import assert_same_run, small_config
from test_cli import cli, refused

from rl_training import fork, resume, train
from rl_training.errors import ConfigError, RunError, StorageError
from rl_training.monitoring.display import LiveDisplay, QuietDisplay
from rl_training.runtime.engine import Engine, rounded_up
from rl_training.settings.loading import dump_config, load_config
from rl_training.state.run_directory import RunDirectory, changed_keys


class Killed(QuietDisplay):
    """Ends a run before its first checkpoint."""

    def update(self, steps, metrics, timing):
        raise KeyboardInterrupt


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A run that was killed before its first checkpoint."""
    path = tmp_path_factory.mktemp("begun") / "run"
    with pytest.raises(KeyboardInterrupt):
        train(
            small_config("ppo-cartpole", env_kwargs={"sutton_barto_reward": False}),
            run_dir=path,
            display=Killed(),
        )
    assert not list((path / "checkpoints").glob("step-*"))
    return path


@pytest.fixture
def run(begun, tmp_path):
    return Path(shutil.copytree(begun, tmp_path / "run"))


def edit(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after, 1))


@pytest.mark.parametrize(
    ("before", "after", "key"),
    [
        ("seed: 3", "seed: 2", "seed"),
        ("total_timesteps: 3000", "total_timesteps: 7000", "total_timesteps"),
        ("start: 0.3", "start: 0.1", "clip_coef_schedule"),
        ("sutton_barto_reward: false", "sutton_barto_reward: true", "env_kwargs"),
        ("gamma: 0.99\n", "", None),  # a default: the config is still the same
    ],
)
def test_a_config_damaged_before_the_first_checkpoint_is_refused_by_its_key(
    before, after, key, run, tmp_path
):
    edit(run / "config.yaml", before, after)
    if key is None:
        assert resume(run).metrics["episodes"] > 0
        return
    with pytest.raises(
        ConfigError, match=rf"config.yaml: {key} changed.*manifest.json has {key}: .*new run$"
    ):
        resume(run)
    refused(cli("resume", run), f"config.yaml: {key} changed since the run was saved (manifest.json has")


def test_a_fork_and_the_pages_look_at_the_manifest_too(trained_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained_run("ppo-cartpole"), "run")
    edit(Path("run/config.yaml"), "seed: 3", "seed: 4")
    refused(cli("fork", "run", "total_timesteps=4000"), "config.yaml: seed changed since the run was saved")
    for command in (("compare", "run"), ("report", "run", "--no-video")):
        done = cli(*command)
        assert done.exit_code == 0
        assert "warning: run/config.yaml: seed differs from manifest.json" in done.stderr


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("seed: 3", "seed: 4", "and change it in a fork: rl-training fork 'my run' seed=4"),
        ("total_timesteps: 3000", "total_timesteps: 7000", "rl-training fork 'my run' total_timesteps=7000"),
        ("activation: tanh", "activation: relu", "put it back, or train a new run"),
    ],
)
def test_an_edited_config_of_a_run_with_checkpoints_names_fork(
    before, after, told, trained_run, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained_run("ppo-cartpole"), "my run")
    edit(Path("my run/config.yaml"), before, after)
    refused(cli("resume", "my run"), told)


@pytest.mark.parametrize("call", ["train", "resume", "fork"])
def test_a_panel_is_taken_down_when_a_run_ends_by_an_exception(call, run, trained_run, tmp_path, monkeypatch):
    def fail(engine):
        assert display.live.is_started
        raise RuntimeError("planted")

    monkeypatch.setattr(Engine, "_iterate", fail)
    display = LiveDisplay(Console(file=io.StringIO(), force_terminal=True, _environ={}))
    calls = {
        "train": lambda: train(small_config("ppo-cartpole"), run_dir=tmp_path / "new", display=display),
        "resume": lambda: resume(run, display=display),
        "fork": lambda: fork(
            trained_run("ppo-cartpole"), {"total_timesteps": 4000}, run_dir=tmp_path / "fork", display=display
        ),
    }
    with pytest.raises(RuntimeError, match="planted"):
        calls[call]()
    assert not display.live.is_started


class Messages(QuietDisplay):
    def __init__(self) -> None:
        self.told: list[str] = []

    def message(self, text):
        self.told.append(text)


def test_a_run_says_where_it_ends_when_its_steps_are_no_whole_iterations(monkeypatch, tmp_path):
    def all_at_once(engine):
        engine.progress.steps = 10**6

    monkeypatch.setattr(Engine, "_iterate", all_at_once)
    told = {}
    for total in (256, 300):
        display = Messages()
        train(
            small_config("ppo-cartpole", total_timesteps=total),
            run_dir=tmp_path / str(total),
            display=display,
        )
        told[total] = [text for text in display.told if text.startswith("total_timesteps")]
    assert told == {
        256: [],
        300: ["total_timesteps 300 is rounded up to 384: an iteration has 128 steps"],
    }
    config = small_config("ppo-cartpole", total_timesteps=300)
    assert rounded_up(config, 384) == []
    assert rounded_up(config, 200) == ["total_timesteps 300 is rounded up to 328: an iteration has 128 steps"]


def test_values_that_json_changes_are_no_difference(tmp_path):
    config = load_config(
        dict(algo="ppo", env_id="CartPole-v1", hidden_sizes=(8, 8), env_kwargs={"a": (1, 2), "b": {"c": 2.0}})
    )
    run = RunDirectory(tmp_path)
    run.write_manifest(config.model_dump(mode="json"), threads=1)
    made = run.read_manifest()["config"]
    assert changed_keys(config.model_dump(), made) == []
    read = load_config(write(tmp_path / "config.yaml", dump_config(config)))
    assert changed_keys(read.model_dump(mode="json"), load_config(made).model_dump(mode="json")) == []
    assert changed_keys({"a": 1}, {"a": 1, "b": None, "c": 0}) == []
    assert changed_keys({"a": 1, "d": 2}, {"a": 2}) == ["a", "d"]


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_any_change_of_a_manifest_is_found(begun, tmp_path):
    """Results depend on its number of threads, which stands nowhere else."""
    run = RunDirectory(tmp_path)
    good = json.loads((begun / "manifest.json").read_bytes())
    run.manifest_path.write_text(json.dumps(good))
    assert run.read_manifest()["threads"] == 1
    for change in ({"threads": 3}, {"versions": {}}, {"sha256": "0" * 64}, {"more": 1}):
        run.manifest_path.write_text(json.dumps(good | change))
        with pytest.raises(RunError, match=r"manifest.json: damaged .its checksum"):
            run.read_manifest()
    run.manifest_path.write_text(json.dumps({"format": 1, "threads": 2}))
    assert run.read_manifest() == {"format": 1, "threads": 2}  # the first format had no checksum


class Removing(QuietDisplay):
    """Does something to the run directory in the middle of a run."""

    def __init__(self, act, at: int = 1000) -> None:
        self.act, self.at, self.warnings = act, at, []

    def update(self, steps, metrics, timing):
        if steps >= self.at:
            self.at = 10**9
            self.act()

    def warning(self, text):
        self.warnings.append(text)


def test_a_run_directory_that_is_removed_ends_the_run(tmp_path):
    path = tmp_path / "run"
    with pytest.raises(StorageError, match="run: was removed during the run; lost: its checkpoints"):
        train(small_config("ppo-cartpole"), run_dir=path, display=Removing(lambda: shutil.rmtree(path)))
    assert not path.exists()


def test_a_run_directory_that_is_replaced_by_another_ends_the_run(tmp_path):
    path = tmp_path / "run"

    def replace() -> None:
        shutil.rmtree(path)
        path.mkdir()

    with pytest.raises(StorageError, match="was removed during the run"):
        train(small_config("ppo-cartpole"), run_dir=path, display=Removing(replace))
    assert list(path.iterdir()) == []


def test_a_run_directory_that_is_moved_ends_the_run_and_goes_on_there(tmp_path, trained_run):
    path, there = tmp_path / "run", tmp_path / "there"
    with pytest.raises(
        StorageError, match=rf"was moved to {there} .*not lost: all up to step-.* resume {there}"
    ):
        train(small_config("ppo-cartpole"), run_dir=path, display=Removing(lambda: path.rename(there)))
    assert not path.exists()
    resume(there)
    assert_same_run(there, trained_run("ppo-cartpole"))


def test_the_command_says_it_in_one_line_with_exit_code_1(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Engine, "_evaluate", lambda engine: shutil.rmtree(engine.run.path))
    small = (
        "total_timesteps=1500",
        "num_envs=4",
        "num_steps=32",
        "checkpoint_interval=400",
        "eval_interval=800",
    )
    done = cli("train", "ppo/cartpole", *small, "--run-dir", "run", "--quiet")
    assert done.exit_code == 1 and done.stdout == ""
    assert done.stderr.splitlines() == [
        "error: run: was removed during the run; lost: its checkpoints, metrics and config; "
        "nothing of it is left"
    ]


@pytest.mark.parametrize("name", ["dqn-cartpole", "muzero-cartpole", "dreamer-cartpole"])
def test_a_replay_that_is_removed_ends_the_run_with_a_checkpoint_that_is_whole(name, tmp_path, trained_run):
    path = tmp_path / "run"
    removing = Removing(lambda: shutil.rmtree(path / "replay"), at=600)
    with pytest.raises(
        StorageError, match=r"replay: \d+ segments were removed .* not lost: step-.*, saved whole"
    ):
        train(small_config(name), run_dir=path, display=removing)
    told = Removing(None, at=10**9)
    resume(path, display=told)
    assert not [text for text in told.warnings if "trying the previous one" in text]
    one, other = (max((run / "checkpoints").iterdir()) for run in (path, trained_run(name)))
    assert (one / "weights.safetensors").read_bytes() == (other / "weights.safetensors").read_bytes()
    assert (path / "metrics.jsonl").read_bytes() == (trained_run(name) / "metrics.jsonl").read_bytes()


@pytest.mark.parametrize(
    "part", ["metrics.jsonl", "timing.jsonl", "config.yaml", "manifest.json", "checkpoints"]
)
def test_other_parts_that_are_removed_are_written_again(part, tmp_path, trained_run):
    path = tmp_path / "run"

    def remove() -> None:
        shutil.rmtree(path / part) if part == "checkpoints" else (path / part).unlink()

    removing = Removing(remove)
    train(small_config("ppo-cartpole"), run_dir=path, display=removing)
    assert_same_run(path, trained_run("ppo-cartpole"))
    expected = [] if part == "checkpoints" else [f"{path / part}: was removed or replaced during the run"]
    assert [text.partition(";")[0] for text in removing.warnings] == expected
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    resume(path)
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before


def test_checkpoints_removed_after_the_last_one_are_not_printed_as_if_they_were_there(tmp_path):
    path = tmp_path / "run"
    config = small_config("ppo-cartpole", eval_interval=10**6, checkpoint_interval=400)
    saved = Engine._checkpoint

    def save_and_remove(engine):
        saved(engine)
        if engine.progress.steps >= config.total_timesteps and not hasattr(engine, "once"):
            engine.once = True
            shutil.rmtree(path / "checkpoints")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Engine, "_checkpoint", save_and_remove)
        result = train(config, run_dir=path)
    assert (result.checkpoint_path / "state.json").is_file()
