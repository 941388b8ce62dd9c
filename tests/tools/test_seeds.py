"""Several seeds as one experiment: each a normal run, and the same command goes on where it was."""

import gc
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from runs import TINY, Command, assert_same_run
from test_cli import cli, refused

from rl_training import load_config, train
from rl_training.dynamics.registry import KNOWN
from rl_training.envs.making import with_lanes
from rl_training.errors import RunError, UserError
from rl_training.monitoring.display import QuietDisplay
from rl_training.runtime.workflows import refuse_other_config
from rl_training.settings.loading import YOUNGER, as_begun
from rl_training.state.run_directory import directory_name
from rl_training.tools import experiments, warming
from rl_training.tools.experiment_display import LiveSeeds, PlainSeeds, QuietSeeds
from rl_training.tools.experiments import (
    SeedRun,
    _hear,
    _identity,
    go_on,
    open_experiment,
    parse_seeds,
    seeded,
)

LONG = dict(TINY, algo="ppo", total_timesteps=20_000, checkpoint_interval=500)


def yaml(settings: dict) -> str:
    return "".join(f"{name}: {value}\n" for name, value in settings.items())


@pytest.mark.parametrize(
    ("text", "seeds"),
    [("1-5", [1, 2, 3, 4, 5]), ("7", [7]), ("3,1", [3, 1]), ("1-3,2-4, 9", [1, 2, 3, 4, 9]), ("0-0", [0])],
)
def test_how_seeds_are_written(text, seeds):
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "1-", "-3", "a", "5-1", "1..5", "1-2000", "1,,2", "1.5"])
def test_seeds_that_make_no_sense(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="--seeds"):
        parse_seeds(text)


def test_bad_arguments_are_one_line_and_leave_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused(cli("train", "ppo/cartpole", "--seeds", "5-1"), "5-1 goes backwards")
    refused(cli("train", "ppo/cartpole", "--jobs", "2"), "--jobs", "--seeds")
    refused(cli("train", "ppo/cartpole", "--seeds", "1-2", "--jobs", "0"), "--jobs")
    refused(cli("train", "ppo/cartpole", "seed=3", "--seeds", "1-2"), "cannot be combined")
    refused(cli("train", "ppo/cartpole", "env_id=CartPol-v1", "--seeds", "1-2"), "did you mean CartPole-v1")
    refused(cli("train", "dqn/cartpole", "env_id=Pendulum-v1", "--seeds", "1-2"), "Discrete")
    assert list(tmp_path.iterdir()) == []


def test_one_experiment_for_one_config_and_another_for_another(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = load_config(LONG)
    first = open_experiment(config, None)
    assert first == Path("runs/ppo-CartPole-v1-seeds")
    assert open_experiment(load_config(LONG | {"seed": 9}), None) == first, "the seed makes no difference"
    other = open_experiment(load_config(LONG | {"gamma": 0.9}), None)
    assert other == Path("runs/ppo-CartPole-v1-seeds-2")
    assert open_experiment(config, None) == first
    assert open_experiment(config, Path("mine")) == Path("mine") == open_experiment(config, Path("mine"))
    with pytest.raises(RunError, match=r"another config \(gamma differ"):
        open_experiment(load_config(LONG | {"gamma": 0.9}), Path("mine"))
    Path("thesis").mkdir()
    Path("thesis/thesis.tex").write_text("mine")
    with pytest.raises(RunError, match="not empty"):
        open_experiment(config, Path("thesis"))
    Path("mine/experiment.json").write_text('{"format": 7, "config": {}}')
    with pytest.raises(RunError, match="newer version"):
        _identity(Path("mine"))
    Path("mine/experiment.json").write_text('{"format": 1, "con')
    with pytest.raises(RunError, match="damaged"):
        open_experiment(config, Path("mine"))


def test_an_experiment_of_a_version_without_the_younger_fields_goes_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = dict(TINY, algo="ppo")
    Path("my.yaml").write_text(yaml(settings))
    old = load_config(settings | YOUNGER)
    folder = open_experiment(old, None)
    go_on(seeded(old, 1), folder / "s1", QuietDisplay())
    identity = json.loads((folder / "experiment.json").read_bytes())
    for name in ("env_timeout", *YOUNGER):
        del identity["config"][name]
    (folder / "experiment.json").write_text(json.dumps(identity))
    run_config = folder / "s1" / "config.yaml"
    run_config.write_text(yaml({k: json.dumps(v) for k, v in identity["config"].items() if v is not None}))

    for place in ((), ("--run-dir", str(folder))):
        done = cli("train", "my.yaml", "--seeds", "1", *place)
        assert done.exit_code == 0 and "1 done before, 0 go on" in done.stdout, done.output
    assert os.listdir("runs") == [folder.name]
    config = load_config(settings)
    assert as_begun(config, identity["config"]).eval_sample is False, (
        "seeds to come are evaluated like those before"
    )
    with pytest.raises(RunError, match=r"another config \(eval_sample differ"):
        open_experiment(load_config(settings, eval_sample=True), folder)
    with pytest.raises(RunError) as refusal:
        refuse_other_config(folder / "s1" / "checkpoints", config, load_config(settings, gamma=0.5))
    assert "remove" not in str(refusal.value)


def wait_for_checkpoints(folder: Path, command: Command, step: int) -> None:
    while not all(newest_step(folder / name) >= step for name in ("s1", "s2")):
        assert command.running(), command.communicate()
        time.sleep(0.01)


def newest_step(run: Path) -> int:
    return max((int(path.name[5:]) for path in run.glob("checkpoints/step-*")), default=-1)


def is_locked(run: Path) -> bool:
    from rl_training.state.run_directory import RunDirectory

    try:
        RunDirectory(run).lock().release()
    except RunError:
        return True
    return False


def test_stopped_and_killed_the_same_command_goes_on_where_it_was(tmp_path, monkeypatch):
    """Each time the seeds stand still until they were hit, so that none can have ended before."""
    monkeypatch.chdir(tmp_path)
    held = tmp_path / "held"
    kwargs = dict(held=str(held), at=700)  # 1400 steps of both environments
    settings = LONG | dict(env_id="fault_envs:fault/Held-v0", env_kwargs=kwargs, total_timesteps=4000)
    Path("my.yaml").write_text(yaml(settings))
    arguments = ("my.yaml", "--seeds", "1-2", "--jobs", "2")
    folder = Path("runs") / directory_name(f"ppo-{load_config(settings).env_name}-seeds")

    held.touch()
    command = Command("train", *arguments, "--json", own_session=True)
    wait_for_checkpoints(folder, command, 1000)
    os.killpg(command.pid, signal.SIGTERM)  # to its seeds too, as Slurm does; and it passes it on
    held.unlink()
    out, err = command.communicate()
    said = json.loads(out.splitlines()[-1])
    assert (command.returncode, said["interrupted"]) == (143, signal.SIGTERM), err
    assert {run["status"] for run in said["runs"]} == {"stopped"}

    held.touch()
    command = Command("train", *arguments, "--json", own_session=True)
    wait_for_checkpoints(folder, command, 2000)
    command.send_signal(signal.SIGKILL)
    command.communicate()
    while any(is_locked(run) for run in folder.glob("s*")):  # its seeds end with it
        time.sleep(0.01)
    held.unlink()

    done = cli("train", *arguments, "--json", "--quiet")
    said = json.loads(done.stdout.splitlines()[-1])
    assert done.exit_code == 0, done.output
    assert [(run["seed"], run["status"]) for run in said["runs"]] == [(1, "done"), (2, "done")]
    assert all(run["metrics"]["eval/mean_return"] > 0 for run in said["runs"])
    for seed in (1, 2):
        train(load_config(settings | {"seed": seed}), run_dir=tmp_path / f"whole{seed}")
        assert_same_run(tmp_path / f"whole{seed}", folder / f"s{seed}")

    # All are done: nothing is trained again.
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    again = cli("train", *arguments)
    assert again.exit_code == 0, again.output
    assert "2 done before, 0 go on" in again.stdout and "of 2 runs" in again.stdout
    assert f"compare it   rl-training compare {folder}" in again.stdout
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_a_seed_that_fails_is_said_and_does_not_stop_the_others(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = dict(TINY, algo="ppo")
    Path("my.yaml").write_text(yaml(settings))
    folder = open_experiment(load_config(settings), None)
    go_on(load_config(settings | {"seed": 1}), folder / "s1", QuietDisplay())
    (folder / "s2").mkdir()
    (folder / "s2" / "thesis.tex").write_text("mine")
    done = cli("train", "my.yaml", "--seeds", "1,2")
    assert done.exit_code == 1, done.output
    assert "seed 1 " in done.stdout and "1 done before" in done.stdout
    assert "failed  runs/ppo-CartPole-v1-seeds/s2  runs/ppo-CartPole-v1-seeds/s2: is not empty" in done.stdout
    assert "of 1 runs" in done.stdout
    assert os.listdir(folder / "s2") == ["thesis.tex"]


def test_the_first_lines_say_what_a_single_run_says(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(experiments, "_run_all", lambda *_: None)
    picture = dict(env_id="probe/Bright-v0", env_kwargs={"shape": [12, 12, 3], "dtype": "uint8"})
    config = load_config(dict(algo="ppo", total_timesteps=100, num_envs=2, num_steps=8, **picture))
    for display in (PlainSeeds(), LiveSeeds(), QuietSeeds()):
        experiments.train_seeds(config, [1], run_dir=tmp_path / "all", display=display)
        said = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
        first = [
            "defaults for pictures: hidden_sizes: [], shared_trunk: true, ent_coef: 0.01",
            "environments: sync (the config has env_kwargs)",
            "encoder: NatureCNN for observation 12×12×3 uint8",
            "updates: torch (the policy is not of dense layers alone)",
            "rollouts: python (the environments are not compiled)",
            "total_timesteps 100 is rounded up to 112: an iteration has 16 steps",
        ]
        assert [line for line in said if line in first] == ([] if type(display) is QuietSeeds else first)


def test_the_first_lines_are_of_the_environments_that_the_experiment_began_with(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(experiments, "_run_all", lambda *_: None)
    config = load_config(COMPILED)
    with monkeypatch.context() as there:
        there.delitem(KNOWN, "CartPole-v1")
        experiments.train_seeds(config, [1], run_dir=tmp_path / "all", display=PlainSeeds())
    first = capsys.readouterr().out
    assert "environments: sync (CartPole-v1 is not compiled" in first
    experiments.train_seeds(config, [1, 2], run_dir=tmp_path / "all", display=PlainSeeds())
    then = capsys.readouterr().out
    assert "environments: sync (as this run began)" in then
    assert "rollouts: python (the environments are not compiled)" in then


COMPILED = dict(algo="ppo", env_id="CartPole-v1", total_timesteps=4096, num_envs=4, num_steps=64)


def test_seeds_of_a_compiled_config_are_forked_warm_and_equal_single_runs(tmp_path):
    """In a process of its own: this one may have a fork server already, which stays as it is."""
    code = f"""
import sys
from rl_training import train_seeds
train_seeds({COMPILED!r}, [1, 2, 3], jobs=2, run_dir={str(tmp_path / "all")!r}, quiet=True)
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
    for seed in (1, 2, 3):
        train(load_config(COMPILED | {"seed": seed}), run_dir=tmp_path / f"s{seed}", quiet=True)
        assert_same_run(tmp_path / f"s{seed}", tmp_path / "all" / f"s{seed}")
        one, other = (
            json.loads((tmp_path / p / f"s{seed}" / "manifest.json").read_text()) for p in ("", "all")
        )
        assert one["config"]["vectorization"] == "compiled"
        assert without(one, "started_at", "sha256") == without(other, "started_at", "sha256")


def without(mapping: dict, *names: str) -> dict:
    return {name: value for name, value in mapping.items() if name not in names}


SMALL = {
    "muzero": {"num_simulations": 4, "hidden_sizes": [16], "latent_size": 16, "batch_size": 8},
    "dreamer": {"extends": "dreamer/debug"},
}


@pytest.mark.parametrize("algo", ["ppo", "a2c", "dqn", "sac", "trpo", "ppg", "muzero", "dreamer"])
def test_a_warm_up_trains_and_starts_no_thread(algo, tmp_path, monkeypatch):
    """Threads do not survive a fork, and what they hold stays held."""
    env_id = "Pendulum-v1" if algo == "sac" else "CartPole-v1"
    config = with_lanes(
        load_config(
            SMALL.get(algo, {})
            | {"algo": algo, "env_id": env_id, "stop_at": {"metric": "episode_return", "at_least": 0}}
        )
    )
    assert warming.can_warm_up(config)
    done = []
    run = warming.workflows.train_until_stopped
    monkeypatch.setattr(
        warming.workflows, "train_until_stopped", lambda *a, **k: done.append(run(*a, **k)) or done[-1]
    )
    warming.warm_up({"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 64, "num_steps": 8})
    before = os.listdir("/proc/self/task")
    warming.warm_up(config.model_dump(mode="json"))
    assert os.listdir("/proc/self/task") == before
    gc.unfreeze()
    assert done[-1].metrics["eval/episodes"] == 1 and done[-1].stopped == "it has learned"
    loss = "auxiliary_value_loss" if algo == "ppg" else "loss"
    assert any(loss in name for name in done[-1].metrics), "it has learned"
    assert not done[-1].run_dir.exists()


@pytest.mark.parametrize(
    ("seeds", "vectorization", "warm"),
    [([1, 2], "auto", True), ([1], "auto", False), ([1, 2], "sync", False)],
)
def test_the_fork_server_warms_up_for_two_seeds_of_a_compiled_config(
    seeds, vectorization, warm, tmp_path, monkeypatch
):
    asked = []

    class Asked(Exception):
        pass

    def ensure(*preload, warm_up):
        asked.append(warm_up)
        raise Asked

    monkeypatch.setattr(experiments, "ensure_fork_server", ensure)
    config, said = load_config(COMPILED, vectorization=vectorization), []
    display = QuietSeeds()
    display.message = said.append
    with pytest.raises(Asked):
        experiments.train_seeds(config, seeds, run_dir=tmp_path / "all", display=display)
    assert any("compiling (once)" in line for line in said) == warm
    assert [settings is not None and settings["vectorization"] == "compiled" for settings in asked] == [warm]


def test_what_is_not_warmed_up():
    compiled = load_config(COMPILED, vectorization="compiled")
    assert warming.can_warm_up(compiled)
    assert not warming.can_warm_up(load_config(COMPILED, vectorization="sync"))
    assert not warming.can_warm_up(compiled.model_copy(update={"algo": "mine.py:Mine"}))
    assert not warming.can_warm_up(compiled.model_copy(update={"device": "cuda"}))
    assert not warming.can_warm_up(compiled.model_copy(update={"network": "mine.py:Net"}))
    for fleet, learners, warm in (("inline", 1, True), ("local", 1, False), ("inline", 2, False)):
        asked = {"algo": "impala", "env_id": "CartPole-v1", "fleet": fleet, "num_learners": learners}
        config = load_config(asked).model_copy(update={"vectorization": "compiled"})
        assert warming.can_warm_up(config) == warm, asked


def test_a_warm_up_that_fails_is_silent_for_the_seeds_say_it(capfd):
    warming.warm_up({"algo": "ppo", "env_id": "CartPol-v1"})
    gc.unfreeze()
    assert capfd.readouterr() == ("", "")


def test_seeds_forked_warm_end_with_a_killed_command_and_go_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = COMPILED | dict(total_timesteps=10_000_000, checkpoint_interval=5000)
    Path("my.yaml").write_text(yaml(settings))
    arguments = ("my.yaml", "--seeds", "1-2", "--jobs", "2", "--run-dir", "all")
    command = Command("train", *arguments)
    wait_for_checkpoints(Path("all"), command, 5000)
    command.send_signal(signal.SIGKILL)
    _, err = command.communicate()
    assert "Traceback" not in err
    while any(is_locked(run) for run in Path("all").glob("s*")):
        time.sleep(0.01)
    reached = [newest_step(Path("all") / name) for name in ("s1", "s2")]
    assert all(5000 <= step < 10_000_000 for step in reached)
    command = Command("train", *arguments, own_session=True)
    wait_for_checkpoints(Path("all"), command, max(reached) + 5000)
    os.killpg(command.pid, signal.SIGTERM)
    out, err = command.communicate()
    assert command.returncode == 143 and "0 done before, 2 go on" in out, err


def test_a_seed_whose_command_is_gone_ends_without_a_word(tmp_path, capfd):
    settings = load_config(LONG).model_dump(mode="json") | {"seed": 1}
    ours, theirs = multiprocessing.Pipe(duplex=False)
    ours.close()
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=experiments._train_one, args=(settings, tmp_path / "s1", theirs))
    process.start()
    process.join()
    assert process.exitcode == 0 and "Traceback" not in capfd.readouterr().err


def test_a_seed_that_a_broken_pipe_of_its_own_ends_fails(tmp_path, monkeypatch, capfd):
    def broken(*_):
        raise BrokenPipeError("of a tracker")

    monkeypatch.setattr(experiments, "go_on", broken)
    settings = load_config(LONG).model_dump(mode="json") | {"seed": 1}
    _, theirs = multiprocessing.Pipe(duplex=False)
    context = multiprocessing.get_context("fork")
    process = context.Process(target=experiments._train_one, args=(settings, tmp_path / "s1", theirs))
    process.start()
    process.join()
    assert process.exitcode == 1 and "BrokenPipeError: of a tracker" in capfd.readouterr().err


def test_what_every_seed_warns_of_is_said_once(capsys):
    said = set()
    for seed in (1, 2):
        ours, theirs = multiprocessing.Pipe(duplex=False)
        theirs.send(("warning", "clip_coef_warmup_steps: longer than the run"))
        run = SeedRun(seed, Path(f"s{seed}"))
        _hear(ours, {ours: (run, None)}, QuietSeeds(), said)
    assert capsys.readouterr().err.count("longer than the run") == 1
