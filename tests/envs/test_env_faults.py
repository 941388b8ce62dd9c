"""Environments that die, hang, raise, drift or break the interface: what is said, what is left, and how it goes on."""

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
import warnings
from functools import partial
from multiprocessing import active_children, forkserver, resource_tracker

import fault_envs
import numpy as np
import pytest
import torch
from runs import RUNS, assert_same_run, in_child, small_config, train_in_a_group
from test_cli import cli

from rl_training import load_config, load_policy, resume, train, tune
from rl_training.envs import making, trial, worker_lanes
from rl_training.envs.environments import Environments
from rl_training.envs.lanes import LocalLanes
from rl_training.envs.layers import Recipe
from rl_training.envs.making import make_env, make_environments, make_lanes, make_whole
from rl_training.errors import ConfigError, Elsewhere, EnvironmentFault, NonFiniteError, RunError
from rl_training.monitoring.display import QuietDisplay
from rl_training.processes import ensure_fork_server
from rl_training.runtime.workflows import train_until_stopped

TINY = dict(
    algo="ppo",
    total_timesteps=256,
    num_envs=2,
    num_steps=16,
    hidden_sizes=[8],
    update_epochs=1,
    eval_episodes=2,
) | dict(log_interval=32, eval_interval=128, checkpoint_interval=64)


def config_of(name, **changes):
    return load_config(TINY | {"env_id": f"fault_envs:fault/{name}-v0"} | changes)


def faulty(folder, kind, at, **changes):
    """CartPole that fails after `at` steps of an environment while there is a file in `folder`."""
    settings = dict(env_kwargs=dict(faults=str(folder), kind=kind, at=at), vectorization="async")
    return load_config(TINY | dict(env_id="fleet_envs:fleet/Faulty-v0") | settings | changes)


def lanes_of(name, kind="local", count=2, **kwargs):
    how = "sync" if kind == "local" else "async"
    return make_lanes(Recipe(f"fault_envs:fault/{name}-v0", kwargs), count, how, timeout=120.0)


# A worker that dies or hangs.


def test_a_worker_that_dies_ends_the_run_with_one_line_and_resume_is_exact(tmp_path):
    folder = tmp_path / "faults"
    folder.mkdir()
    config = faulty(folder, "die", 50)
    train(config, run_dir=tmp_path / "whole")
    (folder / "one").touch()
    with pytest.raises(EnvironmentFault) as caught:
        train(config, run_dir=tmp_path / "run")
    said = str(caught.value)
    assert "(fleet_envs:fleet/Faulty-v0) died: its process was ended by SIGKILL" in said and "\n" not in said
    assert said.startswith(f"environment {caught.value.env_index} ")
    assert said.endswith(f"`rl-training resume {tmp_path / 'run'} --trust` continues from step 64")
    assert not active_children()
    resume(tmp_path / "run", trust=True)
    assert_same_run(tmp_path / "whole", tmp_path / "run")


def test_a_silent_worker_counts_as_hung_and_is_ended():
    environments = make_environments(
        config_of("Walk", vectorization="async", env_timeout=77.0), 2, 1, "train"
    )
    lanes = environments.lanes
    assert lanes.timeout == 77
    os.kill(lanes.workers[1][0].pid, signal.SIGSTOP)
    lanes.timeout = 0.2
    said = r"environment 1 \(fault_envs:fault/Walk-v0\) hangs: no answer for 0.2 s \(env_timeout\) \(train, step 1 of"
    with pytest.raises(EnvironmentFault, match=said):
        environments.step(np.zeros(2, np.int64))
    assert not active_children()


@pytest.mark.parametrize("timeout", [0.2, None])
def test_a_death_is_seen_behind_a_silent_worker(timeout, monkeypatch):
    monkeypatch.setattr(worker_lanes, "SLICE", 0.1)
    lanes = lanes_of("Walk", "async")
    lanes.reset([0, 1], [1, 2])
    (silent, _), (dying, _) = lanes.workers
    os.kill(silent.pid, signal.SIGSTOP)
    os.kill(dying.pid, signal.SIGKILL)
    dying.join()
    lanes.timeout = timeout
    with pytest.raises(EnvironmentFault, match="environment 1 died: its process was ended by SIGKILL"):
        lanes.step(np.zeros(2, np.int64))
    assert not active_children()


def test_answers_taken_behind_a_silent_worker_are_kept(monkeypatch):
    monkeypatch.setattr(worker_lanes, "SLICE", 0.01)
    lanes, local = lanes_of("Walk", "async"), lanes_of("Walk")
    for each in (lanes, local):
        each.reset([0, 1], [1, 2])
    silent = lanes.workers[0][0].pid
    take = lanes._take

    def taken(lane, seconds, answers):
        found = take(lane, seconds, answers)
        if found and lane == 1:
            os.kill(silent, signal.SIGCONT)
        return found

    monkeypatch.setattr(lanes, "_take", taken)
    os.kill(silent, signal.SIGSTOP)
    for _ in range(2):
        mine, theirs = (each.step(np.zeros(2, np.int64)) for each in (local, lanes))
        assert mine.obs.tobytes() == theirs.obs.tobytes()
    lanes.close()


def test_env_timeout_may_be_never_but_not_nothing():
    assert config_of("Walk", env_timeout=None).env_timeout is None
    assert config_of("Walk").env_timeout == 300
    with pytest.raises(ConfigError, match="env_timeout"):
        config_of("Walk", env_timeout=0)


def test_closing_waits_for_nobody(monkeypatch):
    monkeypatch.setattr(worker_lanes, "CLOSING", 0.1)
    lanes = lanes_of("Walk", "async")
    os.kill(lanes.workers[1][0].pid, signal.SIGSTOP)
    lanes.close()
    lanes.close()
    assert not active_children()


def orphans(path):
    lanes = lanes_of("Walk", "async")
    for process, _ in lanes.workers:
        os.kill(process.pid, signal.SIGTERM)  # which they ignore
    lanes.reset([0, 1], [1, 2])
    path.with_suffix(".writing").write_text(" ".join(str(process.pid) for process, _ in lanes.workers))
    path.with_suffix(".writing").rename(path)
    os.kill(os.getpid(), signal.SIGKILL)


def test_workers_ignore_sigterm_and_end_with_a_killed_trainer(tmp_path):
    assert in_child(orphans, tmp_path / "pids", start="forkserver") is None
    for number in (tmp_path / "pids").read_text().split():
        while is_alive(int(number)):
            time.sleep(0.05)


def is_alive(number):
    try:
        with open(f"/proc/{number}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_fork_of_a_process_with_workers_can_have_its_own():
    lanes = lanes_of("Walk", "async")
    assert in_child(lambda: lanes_of("Walk", "async").close()) == 0
    lanes.reset([0, 1], [1, 2])
    lanes.close()


def test_a_dead_fork_server_is_no_dead_worker():
    lanes = lanes_of("Walk", "async")
    lanes.reset([0, 1], [1, 2])
    os.kill(forkserver._forkserver._forkserver_pid, signal.SIGKILL)
    for _ in range(20):
        lanes.step(np.zeros(2, np.int64))
    numbers = [process.pid for process, _ in lanes.workers]
    lanes.close()
    while any(map(is_alive, numbers)):
        time.sleep(0.05)


def test_the_fork_server_imports_nothing_from_the_working_directory(tmp_path):
    """A folder from elsewhere may hold a module by the name of one that a new interpreter imports."""
    for name in (
        "selectors",
        "threading",
    ):  # of the server, and of the process that looks after shared memory
        (tmp_path / f"{name}.py").write_text(f"open('{tmp_path}/owned', 'w').close()")

    def start() -> None:
        sys.path[:] = [path for path in sys.path if path not in ("", os.getcwd())]
        resource_tracker._resource_tracker.__init__()  # a new one, as in a process that has none
        ensure_fork_server()
        unset = "import os; assert 'PYTHONSAFEPATH' not in os.environ"
        forked = multiprocessing.get_context("forkserver").Process(target=exec, args=(unset,))
        forked.start()
        forked.join()
        assert forked.exitcode == 0 and "PYTHONSAFEPATH" not in os.environ

    code = in_child(start)
    assert not (tmp_path / "owned").exists()
    assert code == 0


@pytest.mark.parametrize("code", [None, 7])
def test_a_fork_server_has_an_exit_code_once_it_has_ended(code):
    assert in_child(assert_code_of_the_fork_server, code) == 0


def assert_code_of_the_fork_server(code):
    signal.alarm(60)  # what waits for a server that lives ends by it
    number = forkserver._forkserver._forkserver_pid = os.fork()
    if number == 0:
        signal.alarm(60)
        signal.pause() if code is None else os._exit(code)
    worker_lanes.DYING = 0.0 if code is None else 60.0
    assert worker_lanes.exit_code_of_the_fork_server() == code
    os.kill(number, signal.SIGKILL)


@pytest.mark.parametrize("steps", [0, 1, 100])
def test_workers_do_what_lanes_of_this_process_do(steps):
    rng = np.random.default_rng(0)
    here, there = (Environments(lanes_of("Walk", kind, length=30), 5, "train") for kind in ("local", "async"))
    for _ in range(steps):
        actions = rng.integers(2, size=2)
        for mine, theirs in zip(here.step(actions), there.step(actions), strict=True):
            assert np.asarray(mine).tobytes() == np.asarray(theirs).tobytes()
    assert here.take_finished() == there.take_finished()
    state = here.state_dict()
    assert state["scores"] == there.state_dict()["scores"]
    again = Environments(lanes_of("Walk", "async", length=30), 5, "train")
    again.load_state_dict(state)
    assert again.state_dict()["scores"] == state["scores"]
    for _ in range(60):
        actions = rng.integers(2, size=2)
        assert here.step(actions).next_obs.tobytes() == again.step(actions).next_obs.tobytes()
    assert here.take_finished() == again.take_finished()
    there.close(), again.close()


# Signals to every process of a command.


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("name", ["async", "impala-cartpole"])
def test_a_signal_to_the_whole_group_saves_and_the_resumed_run_is_the_same(name, number, tmp_path):
    if name == "async":
        config, start = config_of("Walk", vectorization="async"), "forkserver"
    else:
        config, start = small_config(name, total_timesteps=600, checkpoint_interval=600), "fork"
    assert in_child(train_in_a_group, config, tmp_path / "run", number, start=start) == 0
    resume(tmp_path / "run", trust=True)
    train(config, run_dir=tmp_path / "whole")
    assert_same_run(tmp_path / "whole", tmp_path / "run")


# An environment that raises.


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_what_an_environment_raises_is_kept_and_one_line_says_what_is_left(vectorization, tmp_path):
    config = config_of("Raises", env_kwargs={"at": 40}, vectorization=vectorization, eval_interval=256)
    with pytest.raises(EnvironmentFault) as caught:
        train(config, run_dir=tmp_path / "run")
    fault = caught.value
    said = "environment 0 (fault_envs:fault/Raises-v0) raised KeyError: 'no such piece' (train, step 40 of an episode"
    assert str(fault).startswith(said) and "after step 64" in str(fault) and "\n" not in str(fault)
    assert str(fault).endswith("--trust` continues from step 64")
    assert (fault.env_index, fault.step) == (0, 64)
    if vectorization == "sync":
        assert isinstance(fault.__cause__, KeyError)
    else:
        assert isinstance(fault.__cause__, Elsewhere) and "in reward" in str(fault.__cause__)


def test_an_os_error_while_a_worker_makes_its_environment_is_told():
    with pytest.raises(EnvironmentFault, match=r"raised OSError: .*Address already in use") as caught:
        lanes_of("BusyPort", "async", count=1)
    assert isinstance(caught.value.__cause__, Elsewhere) and "fault_envs.py" in str(caught.value.__cause__)
    assert not active_children()


def test_an_environment_that_raises_in_an_evaluation_says_so(tmp_path):
    config = config_of("Raises", env_kwargs={"at": 25}, eval_interval=32)
    with pytest.raises(
        EnvironmentFault, match=r"evaluate, step 25 of an episode.*after step 32.*starts again"
    ):
        train(config, run_dir=tmp_path / "run")


def test_the_command_shows_the_traceback_of_the_environment_and_then_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "my config.yaml"
    settings = TINY | dict(env_id="fault_envs:fault/Raises-v0", env_kwargs={"at": 40})
    config.write_text("".join(f"{name}: {value}\n" for name, value in settings.items()))
    result = cli("train", config, "--run-dir", "my run", "--quiet")
    lines = result.stderr.splitlines()
    assert result.exit_code == 1
    assert (
        lines[0] == "Traceback (most recent call last):"
        and "rl_training" not in result.stderr.split("error: ")[0]
    )
    assert lines[-2] == "KeyError: 'no such piece'"
    assert lines[-1].startswith("error: environment 0 (fault_envs:fault/Raises-v0) raised KeyError")
    assert lines[-1].endswith("`rl-training resume 'my run' --trust` continues from step 64")


# An environment that does not come back.


@pytest.mark.parametrize("kind", ["local", "async"])
@pytest.mark.parametrize(
    ("name", "steps", "what"),
    [
        # Each into the third episode, 10 or 12 steps: a new environment that is restored has begun two.
        ("Counter", 70, "rewards"),
        ("OwnGenerator", 70, "rewards"),
        ("OtherOrder", 72, "rewards"),
        ("EndsEarlier", 28, "end of"),
    ],
)
def test_a_replay_compares_rewards_and_ends(name, steps, what, kind):
    envs = Environments(lanes_of(name, kind, length=30), 1, "train", "Mine-v0")
    for _ in range(steps):
        envs.step(np.zeros(2, np.int64))
    state = envs.state_dict()
    other = Environments(
        lanes_of(name, kind, length=30 if name != "EndsEarlier" else 16), 1, "train", "Mine-v0"
    )
    with pytest.raises(RunError, match=f"saved {what}.*not deterministic.*check-env Mine-v0"):
        other.load_state_dict(state)
    envs.close(), other.close()


def test_returns_are_compared_where_a_state_has_no_digest():
    state = {}
    for name in ("Walk", "Counter"):
        envs = Environments(lanes_of(name, length=30), 1, "train")
        for _ in range(70):
            envs.step(np.zeros(2, np.int64))
        state[name] = envs.state_dict()
        del state[name]["scores"]  # as it was saved before
    Environments(lanes_of("Walk", length=30), 1, "train").load_state_dict(state["Walk"])
    with pytest.raises(RunError, match="saved rewards"):
        Environments(lanes_of("Counter", length=30), 1, "train").load_state_dict(state["Counter"])


def test_resume_refuses_a_run_whose_rewards_have_a_hidden_state(tmp_path):
    """Killed and resumed it would drift; the message is that of other observations."""
    config = config_of("Counter", env_kwargs={"length": 5}, total_timesteps=128)

    class Stops(QuietDisplay):
        def update(self, steps, metrics, timing):
            os.kill(os.getpid(), signal.SIGTERM)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train_until_stopped(config, run_dir=tmp_path / "run", display=Stops())
        with pytest.raises(RunError, match=r"saved rewards.*not deterministic"):
            resume(tmp_path / "run", trust=True)


# What is known before a run begins.


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Counter", "differs at step 1 in reward: this run could not be resumed exactly"),
        ("OwnGenerator", "in reward"),
        ("FarOutside", r"observation of 255 lies far outside the bounds of its Box \[0, 1\]"),
        ("OtherType", "observations are float64, their space says float32"),
    ],
)
def test_a_run_warns_once_before_it_begins(name, words):
    with pytest.warns(UserWarning, match=f"{words}.*check-env fault_envs:fault/{name}-v0") as caught:
        make_environments(config_of(name), 2, 1, "train").close()
    assert len(caught) == 1


@pytest.mark.parametrize("env_id", ["fault_envs:fault/Walk-v0", "CartPole-v1", "Pendulum-v1"])
def test_a_sound_environment_is_warned_of_by_nobody(env_id, recwarn):
    make_environments(config_of("Walk", env_id=env_id), 2, 1, "train").close()
    assert not [str(warning.message) for warning in recwarn]


def test_known_environments_are_not_looked_at_closer(monkeypatch):
    monkeypatch.setattr(trial, "look_closer", pytest.fail)
    for env_id in ("CartPole-v1", "rl_training/CartPolePixels-v1"):
        assert trial.is_known(make_env(env_id, {}, None).spec)
    assert not trial.is_known(make_env("fault_envs:fault/Walk-v0", {}, None).spec)


def test_the_closer_look_leaves_the_generators_alone_and_ends_in_time(monkeypatch):
    def states():
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()

    before = states()
    make = partial(make_env, "fault_envs:fault/Slow-v0", {}, None)
    fault_envs.Slow.steps[0] = 0
    assert trial.look_closer(make(), make, making=0.0) == []
    assert fault_envs.Slow.steps[0] == 2 * len(trial.SEEDS) * trial.STEPS
    fault_envs.Slow.steps[0], clock = 0, iter(np.arange(0, 100, 0.02))  # each look at the clock takes so long
    monkeypatch.setattr(trial.time, "process_time", lambda: next(clock))
    assert trial.look_closer(make(), make, making=0.0) == []
    assert 0 < fault_envs.Slow.steps[0] < 16 and next(clock) < trial.SECONDS + 0.1
    assert states() == before


def test_an_environment_that_is_slow_to_make_is_made_once_and_looked_at_all_the_same(monkeypatch):
    clock = [0.0]

    def make(*arguments):
        clock[0] += 10 * trial.SECONDS
        return make_whole(*arguments)

    monkeypatch.setattr(making, "make_whole", make)
    monkeypatch.setattr(trial.time, "process_time", lambda: clock[0])
    with pytest.warns(UserWarning, match="far outside"):
        making.try_out(config_of("FarOutside"))
    assert clock[0] == 10 * trial.SECONDS


def test_a_command_in_an_error_can_be_pasted():
    fault = EnvironmentFault("broke", broken=True)
    fault.env_id = "my dir/env.py:Env"
    assert "`rl-training check-env 'my dir/env.py:Env'` gives details" in str(fault)


def test_environments_that_are_tried_out_are_closed_whatever_is_found(monkeypatch):
    made, closed = [], []

    def make(*arguments):
        env = make_whole(*arguments)
        env.close = lambda: closed.append(env)
        made.append(env)
        return env

    monkeypatch.setattr(making, "make_whole", make)
    with pytest.warns(UserWarning, match="could not be resumed"):
        making.try_out(config_of("Counter"))
    assert len(made) == 2 and sorted(map(id, closed)) == sorted(map(id, made))


# An environment that breaks the interface.


@pytest.mark.parametrize("vectorization", ["sync", "async"])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("FourValues", "step must return .*, not 4 values"),
        ("OldReset", r"reset must return \(observation, info\)"),
        ("ArrayReward", r"the reward must be a number, not ndarray of shape \(1,\)"),
        ("WrongShape", r"shape \(3,\), its space says \(2,\)"),
        ("NoSpaces", "no observation_space"),
    ],
)
def test_an_environment_that_breaks_the_interface_is_refused_in_one_line(
    name, words, vectorization, tmp_path
):
    with pytest.raises(ConfigError, match=words) as caught:
        train(config_of(name, vectorization=vectorization), run_dir=tmp_path / "run")
    assert f"`rl-training check-env fault_envs:fault/{name}-v0`" in str(caught.value)
    assert "\n" not in str(caught.value) and not (tmp_path / "run").exists()


@pytest.mark.parametrize("vectorization", ["sync", "async"])
@pytest.mark.parametrize(
    ("name", "words"),
    [("LateShape", r"shape \(1,\), its space says \(2,\)"), ("LateReward", r"shape \(2,\)")],
)
def test_one_that_breaks_it_later_ends_the_run_with_one_line(name, words, vectorization, tmp_path):
    with pytest.raises(EnvironmentFault, match=words) as caught:
        train(config_of(name, vectorization=vectorization, eval_interval=256), run_dir=tmp_path / "run")
    said = str(caught.value)
    assert f"environment 0 (fault_envs:fault/{name}-v0) cannot be used: " in said and "\n" not in said
    assert f"`rl-training check-env fault_envs:fault/{name}-v0`" in said and "rl-training resume" in said
    assert caught.value.__cause__ is None  # nothing of ours is shown


def test_a_policy_refuses_an_observation_that_is_not_finite_or_no_number(trained_run):
    policy = load_policy(trained_run("ppo-cartpole"))
    for bad in (np.nan, np.inf):
        with pytest.raises(ValueError, match="observation is not finite"):
            policy.act(np.array([0.0, bad, 0.0, 0.0], np.float32))
    for words, kind in (([0.0, None, 0.0, 0.0], "object"), (["0", "0", "0", "0"], "<U1")):
        with pytest.raises(
            ValueError, match=f"^observation is an array of {kind}, the policy expects numbers$"
        ):
            policy.act(np.array(words))
    policy.act(np.zeros(4, np.float32))


# Rewards that nothing can be learned from.


@pytest.mark.parametrize(
    "name", ["ppo-cartpole", "dqn-cartpole", "sac-pendulum", "dreamer-cartpole", "impala-cartpole"]
)
@pytest.mark.parametrize("reward", [1e30, -1e30])
def test_an_absurd_reward_is_named_with_its_environment_and_step(name, reward, tmp_path):
    kwargs = dict(reward=reward, continuous=RUNS[name]["algo"] == "sac")
    config = small_config(name, env_id="fault_envs:fault/Huge-v0", env_kwargs=kwargs, normalize_rewards=False)
    with pytest.raises(NonFiniteError) as caught:
        train(config, run_dir=tmp_path / "run")
    said = str(caught.value)
    assert said.startswith(f"reward of {reward:.4g} in environment 0 (fault_envs:fault/Huge-v0) at step 0: ")
    assert (caught.value.tensor, caught.value.env_index, caught.value.step) == ("reward", 0, 0)


def test_a_loss_that_is_not_finite_names_the_largest_reward(tmp_path):
    config = config_of("Huge", env_kwargs={"reward": -1e19}, max_grad_norm=None)
    with pytest.raises(
        NonFiniteError, match=r"the largest reward of late was 1e\+19 \(fault_envs:fault/Huge-v0\)"
    ):
        train(config, run_dir=tmp_path / "run")


# A script without a guard.


SCRIPT = """
import gymnasium as gym
from rl_training.envs.worker import refuse_to_train_in_an_import
from rl_training.envs.worker_lanes import WorkerLanes

{guard}refuse_to_train_in_an_import()  # as train, resume, evaluate and load do
{indent}WorkerLanes(gym.make("CartPole-v1"), 2, None).close()
{indent}print("trained")
"""


@pytest.mark.parametrize("guarded", [True, False])
def test_a_script_without_a_guard_is_refused_in_one_line(guarded, tmp_path):
    guard, indent = ('if __name__ == "__main__":\n    ', "    ") if guarded else ("", "")
    (tmp_path / "script.py").write_text(SCRIPT.format(guard=guard, indent=indent))
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True)
    if guarded:
        assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
        return
    assert done.returncode == 1 and done.stdout == ""
    last = done.stderr.splitlines()[-1]
    assert last.startswith(
        "rl_training.errors.ConfigError: this script trains while a worker process imports it: put"
    )
    assert done.stderr.count("Traceback") == 1


def test_whatever_trains_or_loads_refuses_to_in_an_import(tmp_path, monkeypatch):
    process = multiprocessing.current_process()
    monkeypatch.setattr(process, "name", "SpawnProcess-1")  # a worker of somebody else's
    monkeypatch.setattr(process, "_inheriting", True, raising=False)
    space = tmp_path / "space.yaml"
    space.write_text("gamma: {low: 0.9, high: 0.99}\n")
    study = partial(tune, config_of("Walk"), space, trials=1, run_dir=tmp_path / "study")
    for call in (partial(train, config_of("Walk")), partial(load_policy, tmp_path), study):
        with pytest.raises(ConfigError, match="trains while a worker process imports it"):
            call()
    assert not (tmp_path / "study").exists()


def test_local_lanes_name_the_environment_that_raised():
    lanes = LocalLanes(
        [make_env(f"fault_envs:fault/{name}-v0", {}, None) for name in ("Walk", "Raises", "Walk")]
    )
    lanes.reset(range(3), range(3))
    with pytest.raises(EnvironmentFault) as caught:
        for _ in range(20):
            lanes.step(np.zeros(3, np.int64))
    assert caught.value.env_index == 1 and isinstance(caught.value.__cause__, KeyError)
