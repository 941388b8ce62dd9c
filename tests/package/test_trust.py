"""A config from elsewhere reaches no code and no other machine unless the user says so."""

import shutil
import socket
import sys
from pathlib import Path

import pytest
from runs import RUNS, TINY, small_config
from test_cli import cli, refused, write

from rl_training import evaluate_checkpoint, load_config, load_policy, resume, train
from rl_training.errors import ConfigError, RunError, UntrustedError, UserError
from rl_training.monitoring.display import QuietDisplay
from rl_training.registry import shipped_configs
from rl_training.reporting.imagination import imagine_open_loop
from rl_training.reporting.report import write_report
from rl_training.runtime.workflows import record_demonstrations, refuse_other_config
from rl_training.settings.loading import dump_config
from rl_training.settings.yaml import to_yaml
from rl_training.state import checkpoints
from rl_training.state.run_directory import RunDirectory
from rl_training.tools import experiments
from rl_training.tools.forking import fork
from rl_training.tools.playing import play_run
from rl_training.trust import foreign, refuse_untrusted

BASE = dict(TINY, algo="ppo", total_timesteps=256)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder with a module in it that says when it is imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    write("open('imported', 'w').close()\n", "planted.py")
    yield tmp_path
    assert not Path("imported").exists() and "planted" not in sys.modules


def forge(run, **changes):
    """Let the config of a run, in its manifest and in its newest checkpoint too, say something else."""
    config = load_config(load_config(run / "config.yaml").model_dump(mode="json") | changes)
    (run / "config.yaml").write_text(dump_config(config))
    manifest = RunDirectory(run).read_manifest()
    RunDirectory(run)._write_manifest(manifest | {"config": config.model_dump(mode="json")})
    forge_checkpoint(run, **changes)
    return run


def forge_checkpoint(run, **changes):
    tree = checkpoints.load_checkpoint(max((run / "checkpoints").glob("step-*")))
    tree["policy"]["config"] |= changes
    checkpoints.save_checkpoint(run / "checkpoints", tree["progress"]["steps"], tree, 2)


MODULE = "planted:CartPole-v1"
FOREIGN = {
    "env_id": (dict(algo="ppo", env_id=MODULE), "imports the module 'planted'"),
    "env_ids": (
        dict(algo="scalezero", env_ids=["CartPole-v1", MODULE]),
        "imports the module 'planted'",
    ),
    "network": (
        dict(algo="sac", env_id="Pendulum-v1", network={"planted:Net": {"width": 8}}),
        "imports the module 'planted'",
    ),
    "encoder": (
        dict(algo="muzero", env_id="CartPole-v1", encoder="planted:Encoder"),
        "imports the module 'planted'",
    ),
    "discriminator_network": (
        dict(algo="gail", env_id="CartPole-v1", demonstrations="a.npz", discriminator_network="planted:Net"),
        "imports the module 'planted'",
    ),
    "observers": (
        dict(algo="ppo", env_id="CartPole-v1", observers=["planted:Observer"]),
        "imports the module 'planted'",
    ),
    "env_kwargs": (dict(algo="ppo", env_id="A-v0", env_kwargs={"of": [{"id": MODULE}]}), "may import"),
    "env_kwargs' keys": (dict(algo="ppo", env_id="A-v0", env_kwargs={"of": {MODULE: 1}}), "may import"),
    "task_kwargs": (
        dict(algo="scalezero", env_id="A-v0+B-v0", task_kwargs={"B-v0": {"id": MODULE}}),
        "may import",
    ),
    "ray_address": (
        dict(algo="impala", env_id="CartPole-v1", fleet="ray", ray_address="10.0.0.1:6379"),
        "connects to a Ray cluster",
    ),
    "wandb": (
        dict(algo="ppo", env_id="CartPole-v1", wandb=True),
        "sends metrics to Weights & Biases, under the id in trackers.json",
    ),
    "mlflow": (
        dict(algo="ppo", env_id="CartPole-v1", mlflow=True),
        "sends metrics to an MLflow server, under the id in trackers.json",
    ),
}


@pytest.mark.parametrize("key", FOREIGN)
def test_one_function_says_what_is_foreign_and_names_the_key(key, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://10.0.0.1:5000")
    settings, deed = FOREIGN[key]
    key = key.removesuffix("' keys")
    config = load_config(settings)
    assert key in {entry.key for entry in foreign(config)}
    with pytest.raises(UntrustedError, match=rf"env_id|{key}") as error:
        refuse_untrusted(config, False)
    assert deed in str(error.value) and "add --trust (trust=True)" in str(error.value)
    refuse_untrusted(config, True)
    refuse_untrusted(config, False, own=[entry.key for entry in foreign(config)])


def test_one_module_among_several_tasks_is_found():
    config = load_config(FOREIGN["env_ids"][0])
    assert config.env_id == f"CartPole-v1+{MODULE}"
    assert {(entry.key, entry.value) for entry in foreign(config)} == {
        ("env_id", MODULE),
        ("env_ids", MODULE),
    }
    assert not foreign(config.of_task("CartPole-v1"))


def test_nothing_in_the_shipped_configs_is_foreign():
    for name in shipped_configs():
        assert foreign(load_config(name)) == [], name


@pytest.fixture
def listener():
    """An address at which somebody listens; nobody may have called when a test ends."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()


def test_no_verb_calls_the_cluster_that_a_run_names(listener, trained_run):
    run = shutil.copytree(trained_run("impala-cartpole"), Path("run"))
    forge(run, fleet="ray", ray_address=listener)
    for verb, *options in (
        ["resume"],
        ["evaluate"],
        ["record", "--episodes", "1", "--out", "played.npz"],
        ["play", "--video", "played.mp4"],
        ["fork", "total_timesteps=9000", "--run-dir", "fork"],
        ["report", "--video"],
    ):
        refused(
            cli(verb, run, *options), f"ray_address '{listener}' connects to a Ray cluster", "add --trust"
        )
    assert not any(map(Path.exists, map(Path, ("played.npz", "played.mp4", "fork"))))


def test_only_a_verb_that_trains_asks_about_trackers(trained_run):
    run = forge(shutil.copytree(trained_run("ppo-cartpole"), Path("run")), wandb=True)
    for verb, *options in (["resume"], ["fork", "total_timesteps=9000", "--run-dir", "fork"]):
        refused(cli(verb, run, *options), "this run's wandb 'true' sends metrics", "if it is yours or you")
    assert not Path("fork").exists()
    assert evaluate_checkpoint(run, episodes=1)["episodes"] == 1
    with pytest.raises(ConfigError, match="no world model"):
        imagine_open_loop(run)
    with pytest.raises(ConfigError, match="is at the end of its run"):
        fork(run, ["wandb=false"], run_dir="fork")


def test_matches_import_no_environment_that_a_run_names(trained_run):
    run = forge(shutil.copytree(trained_run("ppo-cartpole"), Path("run")), env_id=MODULE)
    refused(
        cli("evaluate", run, "--against", "random"), f"this run's env_id '{MODULE}' imports", "add --trust"
    )


@pytest.mark.parametrize(
    "store", [None, "", "sqlite:///mlflow.db", "file:///tmp/runs", "./runs", "/tmp/runs"]
)
def test_mlflow_in_a_local_file_is_not_foreign(store, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    if store is not None:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    assert not foreign(load_config(FOREIGN["mlflow"][0]))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "databricks")
    assert foreign(load_config(FOREIGN["mlflow"][0]))


PARTS = {
    "network": "planted:Net",
    "encoder": "planted:Encoder",
    "algo": "planted:Trainer",
    "observers": ["planted:Observer"],
}


@pytest.mark.parametrize("file", [False, True], ids=["module", "file"])
@pytest.mark.parametrize("key", PARTS)
def test_no_verb_imports_a_part_that_a_run_names(key, file, trained_run, folder):
    """What acts needs no observer; all else is refused by every verb, before anything is imported."""
    run = shutil.copytree(trained_run("ppo-cartpole"), Path("run"))
    name = PARTS[key] if isinstance(PARTS[key], str) else PARTS[key][0]
    name = f"{folder}/{name.replace(':', '.py:')}" if file else name
    deed = "runs the file" if file else "imports the module"
    change = {key: name if isinstance(PARTS[key], str) else [name]}
    forge_checkpoint(run, **change)
    manifest = RunDirectory(run).read_manifest()
    RunDirectory(run)._write_manifest(manifest | {"config": manifest["config"] | change})
    lines = [
        line for line in (run / "config.yaml").read_text().splitlines() if not line.startswith(f"{key}:")
    ]
    (run / "config.yaml").write_text("\n".join([*lines, f"{key}: {to_yaml(change[key])}"]) + "\n")
    verbs = [["resume"], ["fork", "total_timesteps=9000", "--run-dir", "fork"]]
    if key != "observers":
        verbs += [
            ["evaluate"],
            ["record", "--episodes", "1", "--out", "played.npz"],
            ["play", "--video", "played.mp4"],
            ["export", "--to", "policy.pt2"],
            ["report", "--video"],
        ]
    for verb, *options in verbs:
        refused(cli(verb, run, *options), f"this run's {key} '{name}' {deed}", "add --trust")
    if key != "observers":
        with pytest.raises(UntrustedError):
            load_policy(run)
    cli("report", run, "--no-video")  # a page without a policy, which needs nothing that the run names
    assert not any(map(Path.exists, map(Path, ("played.npz", "played.mp4", "fork", "policy.pt2"))))


def test_both_names_of_trust_are_understood_everywhere(trained_run, monkeypatch):
    """Each call gets past the question, to the module that is not there."""
    Path("planted.py").unlink()
    run = forge(shutil.copytree(trained_run("ppo-cartpole"), Path("run")), env_id=MODULE)
    calls = {
        resume: {},
        evaluate_checkpoint: {},
        record_demonstrations: dict(out="played.npz", episodes=1),
        play_run: dict(video="played.mp4"),
        fork: dict(overrides=["total_timesteps=9000"], run_dir="fork"),
        write_report: dict(video=True),
    }
    for call, settings in calls.items():
        with pytest.raises(UntrustedError):
            call(run, **settings)
        for name in ("trust", "trust_env"):
            with pytest.raises(UserError, match="No module named 'planted'"):
                call(run, **settings, **{name: True})
    for option in ("--trust", "--trust-env"):
        refused(cli("resume", run, option), "No module named 'planted'")
    assert "--trust-env" not in cli("resume", "--help").stdout
    with pytest.raises(ConfigError, match="no world model"):
        imagine_open_loop(run, trust_env=True)


def test_what_the_user_says_in_a_fork_is_the_users_own(listener, trained_run):
    """The address is nobody's cluster, and the checkpoint is refused before it would be called: nothing is foreign."""
    run = shutil.copytree(trained_run("impala-cartpole"), Path("run"))
    with pytest.raises(ConfigError, match="is at the end of its run"):
        fork(run, ["fleet=ray", f"ray_address={listener}"], run_dir="fork")


@pytest.fixture
def experiment():
    """The experiment of a config, with one seed that is done."""
    config = load_config(BASE, vectorization="sync")
    path = experiments.open_experiment(config, Path("experiment"))
    experiments.go_on(experiments.seeded(config, 1), path / "s1", QuietDisplay())
    write(dump_config(config))
    return path


def again():
    return cli("train", "config.yaml", "--seeds", "1-2", "--run-dir", "experiment")


def test_a_seed_with_another_config_is_refused_and_nothing_imported(experiment):
    forge(experiment / "s1", env_id=MODULE, gamma=0.5)
    refused(again(), "s1/config.yaml: env_id, gamma not as computed for this run")
    with pytest.raises(RunError, match="env_id, gamma not as computed"):
        seed = experiments.seeded(load_config(BASE, vectorization="sync"), 1)
        experiments.go_on(seed, experiment / "s1", QuietDisplay())
    shutil.rmtree(experiment / "s1" / "checkpoints")  # before its first checkpoint nothing else would notice
    refused(again(), "s1/config.yaml: env_id, gamma not as computed for this run")
    assert not (experiment / "s2").exists()


def test_a_seed_whose_checkpoint_has_another_config_is_refused(experiment):
    forge_checkpoint(experiment / "s1", env_id=MODULE)
    refused(again(), "s1/checkpoints/step-", "env_id not as computed for this run")
    with pytest.raises(ConfigError, match="env_id changed since the run was saved"):
        seed = experiments.seeded(load_config(BASE, vectorization="sync"), 1)
        experiments.go_on(seed, experiment / "s1", QuietDisplay())


@pytest.fixture
def search(trained_run):
    """A search of one trial, which was killed when its run had just begun."""
    pytest.importorskip("optuna")
    from rl_training.tuning.study import Settings, begin_study

    write("learning_rate: {low: 1e-4, high: 1e-2}\n", "space.yaml")
    return begin_study(load_config(BASE), "space.yaml", Settings(1), "search")


def test_a_space_does_not_choose_the_algorithm(search):
    write("algo: [planted:Trainer]\n", "space.yaml")
    (search / "space.yaml").write_text("algo: [planted:Trainer]\n")
    told = cli("tune", search)
    assert told.exit_code == 2 and "cannot change algo" in told.stderr and "planted" not in sys.modules


def test_a_trial_with_another_config_is_refused_and_nothing_imported(search):
    trial = search / "trials" / "0000"
    train(load_config(BASE | {"total_timesteps": 128}), run_dir=trial)
    shutil.rmtree(trial / "checkpoints")
    text = (trial / "config.yaml").read_text().replace("env_id: CartPole-v1", f'env_id: "{MODULE}"')
    (trial / "config.yaml").write_text(text)
    for options in ([], ["--trust"]):
        done = cli("tune", search, *options, "--quiet")
        assert done.exit_code == 2 and done.stderr.count("\n") == 1, done.output
        assert (
            "trials/0000/config.yaml: env_id, total_timesteps, learning_rate not as computed" in done.stderr
        )
    shutil.rmtree(trial)
    assert cli("tune", search, "--quiet").exit_code == 0  # the trial is still open, and trained now
    best = load_config(search / "best.yaml")
    assert best == load_config(trial / "config.yaml")


@pytest.mark.parametrize("part", ["base.yaml", "space.yaml"])
def test_a_search_from_elsewhere_passes_the_whole_question(part, search):
    if part == "base.yaml":
        (search / part).write_text(dump_config(load_config(BASE | {"env_kwargs": {"id": MODULE}})))
    else:
        (search / part).write_text(f'seed: [1, 2]\nenv_id: "{MODULE}"\n')
    key = "env_kwargs" if part == "base.yaml" else "env_id"
    done = cli("tune", search, "--quiet")
    assert done.exit_code == 2 and f"this run's {key} '{MODULE}'" in done.stderr, done.output
    assert not (search / "best.yaml").exists()
    from rl_training.tuning.study import run_study

    Path("planted.py").unlink()
    for trials, name in enumerate(
        ("trust", "trust_env"), start=1
    ):  # asked no more: each trial fails by itself
        found = run_study(search, trials=trials, **{name: True}).trials
        assert len(found) == trials and "planted" in found[-1]["why"]


def test_a_child_is_what_was_computed_for_it_whatever_the_algorithm():
    """The config that is written for a seed is read back equal: no honest child is refused."""
    for name in RUNS:
        config = experiments.seeded(small_config(name), 7)
        path = write(dump_config(config))
        refuse_other_config(path, load_config(path), config)
