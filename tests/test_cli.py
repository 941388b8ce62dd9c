"""The command line: exit codes, what goes to stdout and what to stderr, and every kind of bad input."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from runs import Command
from typer.testing import CliRunner, Result

from rl_training import __version__
from rl_training.cli import app
from rl_training.runtime.engine import Engine

GOOD = """\
algo: ppo
env_id: CartPole-v1
total_timesteps: 256
num_envs: 2
num_steps: 32
num_minibatches: 2
update_epochs: 2
hidden_sizes: [16]
eval_episodes: 2
"""
VERBS = (
    "train",
    "resume",
    "evaluate",
    "record",
    "list",
    "describe",
    "schedule",
    "check-env",
    "fork",
    "report",
    "compare",
    "doctor",
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test works in an empty folder, so that a run directory left behind is seen."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def cli(*arguments: Any) -> Result:
    """The command in this process; an exception that would be a traceback is raised here."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


def command(*arguments: Any) -> "subprocess.CompletedProcess[str]":
    """The command in a process of its own, from the interpreter on."""
    return subprocess.run(
        [sys.executable, "-m", "rl_training", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )


def write(text: str, name: str = "config.yaml") -> Path:
    path = Path(name)
    path.write_text(text, encoding="utf-8")
    return path


def refused(result: Result, *expected: str) -> None:
    """Exit code 2, one line on stderr that says what is expected, nothing left behind."""
    assert result.exit_code == 2, result.output
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("error: ")
    for words in expected:
        assert words in lines[0], f"{words!r} is missing in {lines[0]!r}"
    assert result.stdout == ""
    assert not Path("runs").exists()


def without(key: str) -> str:
    return re.sub(rf"^{key}:.*\n", "", GOOD, flags=re.MULTILINE)


def changed(key: str, value: str) -> str:
    return re.sub(rf"^{key}:.*$", f"{key}: {value}", GOOD, flags=re.MULTILINE)


# What is written, the line it stands in (None: nowhere in particular), and what the message must say.
BAD_CONFIGS: dict[str, tuple[str, int | None, tuple[str, ...]]] = {
    "unknown key": (GOOD + "learning_rat: 1e-3\n", 10, ("learning_rat", "did you mean", "learning_rate")),
    "unknown schedule key": (GOOD + "clip_coeff_schedule: linear\n", 10, ("clip_coef_schedule",)),
    "key of another algorithm": (GOOD + "num_simulations: 50\n", 10, ("num_simulations",)),
    "wrong type": (changed("num_envs", "many"), 4, ("num_envs", "whole number")),
    "wrong type in a list": (changed("hidden_sizes", "[16, big]"), 8, ("hidden_sizes",)),
    "true is not a number": (changed("num_envs", "true"), 4, ("num_envs",)),
    "part of an environment": (changed("num_envs", "2.7"), 4, ("num_envs", "2.7")),
    "not a number": (GOOD + "learning_rate: .nan\n", 10, ("learning_rate", "nan")),
    "infinite": (GOOD + "ent_coef: .inf\n", 10, ("ent_coef", "inf")),
    "above its range": (GOOD + "gamma: 2.5\n", 10, ("gamma", "2.5", "at most 1")),
    "negative coefficient": (GOOD + "ent_coef: -0.1\n", 10, ("ent_coef", "-0.1", "at least 0")),
    "negative under an alias": (GOOD + "clip_range: -1\n", 10, ("clip_range", "at least 0")),
    "schedule out of range": (
        GOOD + "gamma_schedule: {type: linear, start: 0.9, end: 1.1}\n",
        10,
        ("gamma_schedule", "1.1"),
    ),
    "unknown algorithm": (changed("algo", "ppoo"), 1, ("ppoo", "did you mean", "ppo")),
    "unknown environment": (changed("env_id", "CartPol-v1"), None, ("CartPol-v1", "CartPole-v1")),
    "unknown version": (changed("env_id", "CartPole-v77"), None, ("CartPole-v77", "CartPole-v1")),
    "unknown module": (changed("env_id", "no_such_module:Env-v0"), None, ("no_such_module",)),
    "unknown env argument": (GOOD + "env_kwargs: {gravitty: 3}\n", None, ("gravitty",)),
    "unsupported actions": (changed("env_id", "TextActions-v0"), None, ("Text", "Discrete")),
    "unsupported observations": (changed("env_id", "SequenceObservations-v0"), None, ("Sequence", "Box")),
    "unknown schedule kind": (
        GOOD + "clip_coef_schedule: linaer\n",
        10,
        ("linaer", "did you mean", "linear"),
    ),
    "misspelt schedule key": (
        GOOD + "clip_coef_schedule:\n  type: linear\n  strat: 0.3\n",
        12,
        ("strat", "did you mean", "start"),
    ),
    "two spellings": (
        GOOD + "clip_coef: 0.2\nclip_range: 0.1\n",
        None,
        ("clip_coef", "clip_range", "two spellings"),
    ),
    "a key twice": (GOOD + "seed: 1\nseed: 2\n", 11, ("seed", "twice")),
    "missing algo": (without("algo"), None, ("algo", "missing")),
    "missing env_id": (without("env_id"), None, ("env_id",)),
    "broken YAML": (GOOD + "clip_coef: [0.1\n", None, ("broken YAML",)),
    "not a mapping": ("- ppo\n- CartPole-v1\n", 1, ("mapping",)),
    "empty": ("", 1, ("mapping",)),
    "a tag": (GOOD + "seed: !!python/object/apply:os.system ['touch hacked']\n", 10, ("tag",)),
    "too large": (GOOD + "# " + "x" * 2_000_000 + "\n", None, ("kB",)),
    "too deep": (GOOD + "env_kwargs: " + "[" * 200 + "]" * 200 + "\n", 10, ("deep",)),
    "extends itself": ("extends: config.yaml\n", 1, ("circle",)),
}


class TextActions(gym.Env[Any, Any]):
    observation_space: spaces.Space[Any] = spaces.Box(-1, 1, (2,), np.float32)
    action_space: spaces.Space[Any] = spaces.Text(3)

    def reset(self, **_: Any) -> Any:
        return self.observation_space.sample(), {}


class SequenceObservations(TextActions):
    observation_space = spaces.Sequence(spaces.Box(-1, 1, (3,)))
    action_space = spaces.Discrete(2)


ODD_ENVIRONMENTS: tuple[Any, ...] = (TextActions, SequenceObservations)


@pytest.fixture
def odd_environments() -> Iterator[None]:
    for env_class in ODD_ENVIRONMENTS:
        gym.register(f"{env_class.__name__}-v0", entry_point=env_class)
    yield
    for env_class in ODD_ENVIRONMENTS:
        del gym.registry[f"{env_class.__name__}-v0"]


@pytest.mark.usefixtures("odd_environments")
@pytest.mark.parametrize("case", BAD_CONFIGS)
def test_bad_config(case: str, folder: Path) -> None:
    text, line, expected = BAD_CONFIGS[case]
    write(text)
    place = "" if line is None else f"config.yaml:{line}: "
    refused(cli("train", "config.yaml"), place, *expected)
    assert [path.name for path in folder.iterdir()] == ["config.yaml"]


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("learning_rat=1", "did you mean"),
        ("gamma=2.5", "gamma=2.5: "),
        ("num_envs=2.7", "num_envs=2.7: "),
        ("seed", "key=value"),
        ("clip_coef=[0.1", "broken YAML"),
        ("clip_coef_schedule={type: linear, strat: 1}", "did you mean"),
        ("extends=ppo/acrobot", "file"),
    ],
)
def test_bad_override(override: str, expected: str) -> None:
    refused(cli("train", write(GOOD), override), expected)


def test_missing_config_file_with_the_nearest_shipped_name() -> None:
    refused(cli("train", "ppo/cartpol"), "ppo/cartpol", "ppo/cartpole")
    refused(cli("train", "nothing.yaml"), "nothing.yaml", "no such file")
    refused(cli("train", "."), "not a file")


def test_run_dir_that_is_not_empty(folder: Path) -> None:
    taken = folder / "taken"
    taken.mkdir()
    (taken / "thesis.tex").write_text("mine")
    refused(cli("train", write(GOOD), "--run-dir", taken), "taken", "not empty")
    assert [path.name for path in taken.iterdir()] == ["thesis.tex"]
    (folder / "file").write_text("")
    refused(cli("train", write(GOOD), "--run-dir", folder / "file"), "file")


@pytest.mark.parametrize("verb", ["resume", "evaluate"])
def test_not_a_run_directory(verb: str, folder: Path) -> None:
    refused(cli(verb, folder / "absent"), "absent")
    (folder / "empty").mkdir()
    refused(cli(verb, folder / "empty"), "empty")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("trian",), "train"),
        (("train",), "CONFIG"),
        (("train", "ppo/cartpole", "--rundir", "x"), "--rundir"),
        (("evaluate", "x", "--episodes", "0"), "--episodes"),
        (("evaluate", "x", "--episodes", "many"), "--episodes"),
        (("evaluate", "x", "--checkpoint", "worst"), "--checkpoint"),
        (("record", "x", "--episodes", "2"), "--out"),
        (("record", "x", "--out", "x.npz"), "--episodes"),
        (("record", "x", "--episodes", "2", "--out", "x.pkl"), ".npz"),
        (("describe", "ppoo"), "did you mean"),
        (("schedule", "ppo/cartpol"), "ppo/cartpole"),
        (("check-env", "CartPol-v1"), "CartPole-v1"),
        (("check-env", "CartPole-v1", "gravity"), "key=value"),
        (("check-env", "CartPole-v1", "gravitty=1"), "gravitty"),
    ],
)
def test_bad_arguments(arguments: tuple[str, ...], expected: str) -> None:
    refused(cli(*arguments), expected)


def test_bad_input_in_a_process_of_its_own_prints_one_line(folder: Path) -> None:
    write(GOOD + "gama: 0.9\n")
    done = command("train", "config.yaml")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: config.yaml:10: ")
    assert "gamma" in done.stderr
    assert done.stderr.count("\n") == 1
    assert [path.name for path in folder.iterdir()] == ["config.yaml"]


def test_help_is_fast_and_imports_nothing_heavy() -> None:
    heavy = "{'torch', 'numpy', 'gymnasium', 'pydantic', 'ruamel', 'rich', 'matplotlib', 'numba'}"
    code = f"import sys, rl_training.cli; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    seconds = []
    for _ in range(3):  # the best of three, in CPU-seconds: the machine may be busy
        began = os.times()
        done = command("--help")
        ended = os.times()
        seconds.append(
            ended.children_user + ended.children_system - began.children_user - began.children_system
        )
    assert all(verb in done.stdout for verb in VERBS)
    assert min(seconds) < 0.5


def test_help_of_every_verb_and_version() -> None:
    for verb in VERBS:
        result = cli(verb, "--help")
        assert result.exit_code == 0
        assert result.stdout.startswith(f"Usage: root {verb}") or verb in result.stdout.splitlines()[0]
    assert cli("--version").stdout == f"{__version__}\n"
    assert "Commands" in cli().stdout


def test_list_shows_algorithms_and_configs_that_describe_and_load_know() -> None:
    lines = cli("list").stdout.splitlines()
    assert "  ppo" in lines
    names = [line.split()[0] for line in lines if re.match(r"  \w+/\w+", line)]
    assert {"ppo/cartpole", "ppo/acrobot", "ppo/pendulum", "ppo/halfcheetah"} <= set(names)
    for name in names:
        result = cli("schedule", name)
        assert result.exit_code == 0, result.output
        assert "learning_rate" in result.stdout


def test_describe_prints_every_field_with_default_range_and_aliases() -> None:
    from rl_training.registry import trainer_class

    text = cli("describe", "ppo").stdout
    for field in trainer_class("ppo").config_class.model_fields:
        if not field.endswith(("_schedule", "_warmup_steps")):
            assert re.search(rf"^{field}\b", text, re.MULTILINE), field
    assert re.search(
        r"^clip_coef or clip_range .*\[knob\]\n    \S.*\n    number.*at least 0.*default 0.2", text, re.M
    )


def test_schedule_draws_moving_knobs_and_lists_the_others(folder: Path) -> None:
    picture = folder / "knobs.png"
    knob = "clip_range_schedule={type: linear, start: 0.3, end: 0.1}"
    result = cli("schedule", write(GOOD), knob, "lr_warmup_steps=100", "--png", picture)
    assert result.exit_code == 0, result.output
    assert "clip_coef  0.3 → 0.1" in result.stdout
    assert "warm-up over 100 steps" in result.stdout
    assert re.search(r"^  gamma +0.99$", result.stdout, re.MULTILINE)
    assert re.search(r"^  target_kl +off$", result.stdout, re.MULTILINE)
    assert "⠉" in result.stdout
    assert picture.read_bytes().startswith(b"\x89PNG\r\n")
    refused_png = cli("schedule", "config.yaml", "--png", folder / "absent" / "knobs.png")
    assert refused_png.exit_code == 2
    assert refused_png.stderr.count("\n") == 1


def test_schedule_without_matplotlib_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = cli("schedule", write(GOOD), "--png", "knobs.png")
    assert result.exit_code == 2
    assert result.stderr == "error: --png needs matplotlib: `pip install -c constraints.txt -e '.[plot]'`\n"


@pytest.mark.usefixtures("odd_environments")
def test_check_env_passes_and_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    result = cli("check-env", "CartPole-v1", "--json")
    assert result.exit_code == 0
    answer = json.loads(result.stdout)
    assert answer["ok"] is True
    assert {finding["name"] for finding in answer["findings"]} >= {"seeding", "replay", "autoreset"}

    failing = cli("check-env", "SequenceObservations-v0")
    assert failing.exit_code == 1
    assert re.search(r"^fail  spaces  .*Sequence", failing.stdout, re.MULTILINE)
    assert failing.stderr == ""


def test_train_evaluate_resume_through_the_real_command(folder: Path) -> None:
    write(GOOD)
    done = command("train", "config.yaml", "seed=3", "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    *progress, last = done.stdout.splitlines()
    assert any(line.startswith("step") for line in progress)
    result = json.loads(last)
    assert result["run_dir"] == "runs/ppo-CartPole-v1-s3"
    assert result["interrupted"] is None
    assert result["metrics"]["clip_coef"] == 0.2
    assert 0 < result["metrics"]["eval/mean_return"] <= 500
    run = folder / result["run_dir"]
    assert Path(result["checkpoint_path"]).is_dir()
    assert {"config.yaml", "manifest.json", "metrics.jsonl", "timing.jsonl"} <= {
        p.name for p in run.iterdir()
    }

    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    again = cli("resume", run)
    assert again.exit_code == 0, again.stderr
    assert "finished" in again.stdout
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run that the tests below only read."""
    run = tmp_path_factory.mktemp("cli") / "run"
    config = run.parent / "config.yaml"
    config.write_text(GOOD)
    result = cli("train", config, "--run-dir", run, "--quiet")
    assert result.exit_code == 0, result.output
    return run


SHORT_REPLAY = [
    "buffer_size=1000",
    "total_timesteps=300",
    "learning_starts=100",
    "batch_size=16",
    "hidden_sizes=[8]",
    "eval_episodes=1",
]


@pytest.mark.parametrize("name", ["sac/pendulum", "dqn/cartpole", "dqn/acrobot"])
def test_shipped_configs_with_a_replay_train_evaluate_and_resume(name: str, folder: Path) -> None:
    done = cli("train", name, *SHORT_REPLAY, "train_frequency=4", "--run-dir", "run", "--quiet")
    assert done.exit_code == 0, done.stderr
    assert cli("evaluate", "run", "--episodes", 2).exit_code == 0
    assert cli("evaluate", "run", "--episodes", 2, "--checkpoint", "best").exit_code == 0
    assert cli("resume", "run").exit_code == 0
    assert list((folder / "run" / "replay").glob("replay-*.safetensors"))


def test_a_schedule_beside_a_learned_temperature_is_refused() -> None:
    done = cli("train", "sac/pendulum", "ent_coef_schedule=linear")
    assert done.exit_code == 2
    assert "ent_coef is auto" in done.stderr and done.stderr.count("\n") == 1


def test_quiet_train_prints_the_result_only(folder: Path) -> None:
    result = cli("train", write(GOOD), "--quiet")
    assert result.exit_code == 0
    assert "step " not in result.stdout
    assert "runs/ppo-CartPole-v1-s1/metrics.jsonl" in result.stdout
    second = cli("train", "config.yaml", "--quiet", "--json")
    assert json.loads(second.stdout)["run_dir"] == "runs/ppo-CartPole-v1-s1-2"


def test_record_writes_a_new_file_and_says_what_is_in_it(trained: Path, folder: Path) -> None:
    result = cli("record", trained, "--episodes", 2, "--out", "demos.npz")
    assert result.exit_code == 0 and result.stderr == ""
    assert "2 episodes" in result.stdout and "demos.npz" in result.stdout
    assert {path.name for path in folder.iterdir()} == {"demos.npz", "demos.json"}
    refused(cli("record", trained, "--episodes", 2, "--out", "demos.npz"), "demos.npz", "is there already")
    refused(cli("record", "nowhere", "--episodes", 2, "--out", "new.npz"), "nowhere")
    report = json.loads(cli("record", trained, "--episodes", 2, "--out", "b.npz", "--json").stdout)
    assert report["episodes"] == 2 and report["steps"] > 2 and report["mean_return"] == report["steps"] / 2


def test_evaluate_prints_numbers_and_repeats_itself(trained: Path) -> None:
    def scores(*options: Any) -> dict[str, float]:
        result = cli("evaluate", trained, "--json", *options)
        assert result.exit_code == 0, result.output
        answer: dict[str, float] = json.loads(result.stdout.splitlines()[-1])
        return answer

    first = scores("--episodes", 3, "--seed", 7)
    assert {"mean_return", "std_return", "min_return", "max_return", "mean_length", "episodes"} <= set(first)
    assert first["episodes"] == 3
    assert first["min_return"] <= first["mean_return"] <= first["max_return"]
    assert scores("--episodes", 3, "--seed", 7) == first
    assert scores("--episodes", 3, "--seed", 8) != first
    assert scores("--episodes", 3, "--seed", 7, "--sample") != first
    assert scores("--checkpoint", "best")["episodes"] == 2, "the run's own eval_episodes"
    checkpoint = max((trained / "checkpoints").iterdir())
    by_path = cli("evaluate", checkpoint, "--episodes", 3, "--seed", 7)
    assert f"return  {first['mean_return']:.2f} ± {first['std_return']:.2f}" in by_path.stdout


def test_a_choice_that_is_none_names_the_choices():
    refused(
        cli("evaluate", "absent", "--checkpoint", "wrst"),
        "'--checkpoint': 'wrst' is not one of 'last', 'best'",
    )


def test_a_damaged_checkpoint_is_one_line(trained: Path, folder: Path) -> None:
    checkpoint = max((trained / "checkpoints").iterdir())
    copy = folder / "copy"
    copy.mkdir()
    for file in checkpoint.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    weights = bytearray((copy / "weights.safetensors").read_bytes())
    weights[-1] ^= 1
    (copy / "weights.safetensors").write_bytes(weights)
    refused(cli("evaluate", copy), "copy")


def test_resume_refuses_a_newer_format(trained: Path, folder: Path) -> None:
    run = copied(trained, folder / "newer")
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["format"] += 1
    (run / "manifest.json").write_text(json.dumps(manifest))
    refused(cli("resume", run), "newer")


def test_resume_of_a_run_killed_before_its_first_checkpoint(trained: Path, folder: Path) -> None:
    run = copied(trained, folder / "early", leave_out=("checkpoints", "best"))
    result = cli("resume", run)
    assert result.exit_code == 0, result.output
    assert "starting from step 0" in result.stdout
    assert (run / "metrics.jsonl").read_bytes() == (trained / "metrics.jsonl").read_bytes()


def test_an_environment_named_by_a_run_is_imported_only_if_trusted(trained: Path, folder: Path) -> None:
    run = copied(trained, folder / "untrusted", leave_out=("checkpoints", "best"))
    write("open('imported', 'w').close()\n", "planted.py")
    text = (run / "config.yaml").read_text().replace("CartPole-v1", "planted:CartPole-v1")
    (run / "config.yaml").write_text(text)
    refused(cli("resume", run), "add --trust (trust=True)", "planted")
    assert not Path("imported").exists()


def copied(run: Path, to: Path, leave_out: tuple[str, ...] = ()) -> Path:
    for path in run.rglob("*"):
        name = path.relative_to(run)
        if path.is_file() and name.parts[0] not in leave_out:
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            (to / name).write_bytes(path.read_bytes())
    return to


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_says_how_to_go_on_and_sets_the_exit_code(number: int, code: int) -> None:
    write(GOOD)
    process = Command("train", "config.yaml", "total_timesteps=1e8", "log_interval=64")
    metrics = Path("runs/ppo-CartPole-v1-s1/metrics.jsonl")
    wait_until(lambda: metrics.is_file() and metrics.stat().st_size > 0, process)
    process.send_signal(number)
    out, err = process.communicate()
    assert process.returncode == code, err
    assert err == ""
    assert "rl-training resume runs/ppo-CartPole-v1-s1" in out
    assert len(list(Path("runs/ppo-CartPole-v1-s1/checkpoints").iterdir())) == 1


OFTEN = "checkpoint_interval=640", "eval_interval=30000", "log_interval=64"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_reaches_the_workers_of_async_environments_and_the_run_still_saves(
    number: int, code: int
) -> None:
    """A terminal sends SIGINT to every process of the command, not to the trainer alone; Slurm and systemd SIGTERM."""
    write(GOOD)
    arguments = [
        "train",
        "config.yaml",
        "vectorization=async",
        "total_timesteps=1e8",
        *OFTEN,
        "--run-dir",
        "run",
    ]
    process = Command(*arguments, own_session=True)
    log = Path("run/metrics.jsonl")
    wait_until(lambda: log.exists() and log.stat().st_size > 0, process)
    os.killpg(process.pid, number)
    out, err = process.communicate()
    assert (process.returncode, err) == (code, "")
    assert "rl-training resume" in out and list(Path("run/checkpoints").glob("step-*"))


def test_the_real_command_killed_and_resumed_ends_as_if_it_never_was(monkeypatch: pytest.MonkeyPatch) -> None:
    write(GOOD)
    settings, checkpoint = [*OFTEN, "total_timesteps=6400"], Engine._checkpoint

    def last(engine: Engine) -> None:
        checkpoint(engine)
        os.kill(os.getpid(), signal.SIGKILL)

    assert Command("train", "config.yaml", *settings, "--run-dir", "whole").wait() == 0
    with monkeypatch.context() as patch:
        patch.setattr(Engine, "_checkpoint", last)
        assert Command("train", "config.yaml", *settings, "--run-dir", "killed").wait() == -signal.SIGKILL
    assert [path.name for path in Path("killed/checkpoints").iterdir()] == ["step-000000000640"]
    assert Command("resume", "killed").wait() == 0
    for name in ("metrics.jsonl", "checkpoints/step-000000006400/weights.safetensors", "best/state.json"):
        assert Path("whole", name).read_bytes() == Path("killed", name).read_bytes(), name


def test_a_reader_that_goes_away_does_not_end_the_run() -> None:
    write(GOOD)
    process = Command("train", "config.yaml", "--run-dir", "run")
    process.stdout.close()
    assert process.wait() == 0
    assert list(Path("run/checkpoints").glob("step-*"))


def wait_until(happened: Callable[[], bool], process: Command) -> None:
    """However long it takes, as long as the process is there that must do it."""
    while not happened():
        assert process.running(), process.communicate()
        time.sleep(0.02)


def test_numbers_that_are_not_finite_end_with_one_line_and_code_1() -> None:
    write(GOOD + "learning_rate: 1e30\nmax_grad_norm: 1e30\n")
    result = cli("train", "config.yaml", "--quiet")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert "finite" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_full_disk_ends_with_one_line_and_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    from rl_training.state import checkpoints

    def full(*arguments: Any, **options: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints, "save_checkpoint", full)
    result = cli("train", write(GOOD), "--quiet")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert "No space left on device" in result.stderr
    assert result.stderr.count("\n") == 1


def test_the_result_says_how_evaluations_acted() -> None:
    for sample, word in (("true", "sampled"), ("false", "greedy")):
        done = cli("train", write(GOOD), f"eval_sample={sample}", "--quiet", "--run-dir", word)
        assert f"(evaluation at the end, {word} actions)" in done.stdout
