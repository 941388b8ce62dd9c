"""The engine's promises: what it does now and then changes nothing, what is wrong stops it, and it can be stopped."""

import io
import json
import os
import signal
import sys
import types
from types import SimpleNamespace

import numpy as np
import pytest
from runs import RUNS, in_child, metrics_in, small_config

from rl_training import load_config, resume, train
from rl_training.errors import NonFiniteError, RunError, StorageError
from rl_training.monitoring.display import LiveDisplay, PlainDisplay, QuietDisplay, script_display
from rl_training.policies.actor_critic import ActorCriticPolicy
from rl_training.registry import ALGORITHMS, trainer_class
from rl_training.runtime import engine
from rl_training.runtime.controls import Controls
from rl_training.runtime.engine import Engine, Progress
from rl_training.runtime.observers import Watch
from rl_training.runtime.ppo_trainer import PPOConfig, PPOTrainer, train_ppo
from rl_training.runtime.trainer import Trainer
from rl_training.runtime.workflows import train_until_stopped
from rl_training.settings.loading import dump_config, load_run_config
from rl_training.state import checkpoints
from rl_training.state.run_directory import RunDirectory
from rl_training.state.seeding import fold, seed_everything
from rl_training.tools.forking import fork


def training_lines(run_dir):
    return [line for line in metrics_in(run_dir) if "policy_loss" in line]


def weights(run_dir):
    return (max((run_dir / "checkpoints").glob("step-*")) / "weights.safetensors").read_bytes()


def test_every_registered_trainer_can_be_imported():
    for name in ALGORITHMS:
        kind = trainer_class(name)
        assert issubclass(kind, Trainer) and kind.config_class.model_fields["algo"].default == name


def test_sampled_evaluations_change_nothing_in_training(tmp_path):
    for name, sample in (("greedy", False), ("sampled", True)):
        config = small_config("ppo-cartpole", total_timesteps=1200, eval_sample=sample)
        assert train(config, run_dir=tmp_path / name).sampled is sample
    assert training_lines(tmp_path / "greedy") == training_lines(tmp_path / "sampled")
    assert weights(tmp_path / "greedy") == weights(tmp_path / "sampled")
    greedy, sampled = (
        [line for line in metrics_in(tmp_path / name) if "eval/mean_return" in line]
        for name in ("greedy", "sampled")
    )
    assert len(greedy) == len(sampled) and greedy != sampled


@pytest.mark.parametrize(
    ("name", "sampled"),
    [
        ("ppo/pong", True),
        ("a2c/pong", True),
        ("ppg/breakout", True),
        ("recurrent_ppo/pong", True),
        ("impala/pong", True),
        ("appo/pong", True),
        ("dreamer/breakout", True),
        ("dqn/pong", False),
        ("muzero/breakout", False),
        ("scalezero/atari", False),
        ("ppo/cartpole", False),
        ("ppo/halfcheetah", False),
        ("dreamer/cartpole", False),
    ],
)
def test_evaluations_sample_where_the_field_does(name, sampled):
    assert load_config(name).samples_evaluations is sampled
    for chosen in (False, True):
        assert load_config(name, [f"eval_sample={str(chosen).lower()}"]).samples_evaluations is chosen


def test_a_run_that_began_without_eval_sample_stays_greedy(tmp_path):
    config = load_config("ppo/pong")
    path = tmp_path / "config.yaml"
    path.write_text(dump_config(config))
    assert load_run_config(path) == load_run_config(config.model_dump(mode="json")) == config
    path.write_text("".join(line for line in path.open() if not line.startswith("eval_sample:")))
    assert load_run_config(path).samples_evaluations is False
    assert load_run_config(path, ["eval_sample=true"]).samples_evaluations is True
    old = {name: value for name, value in config.model_dump(mode="json").items() if name != "eval_sample"}
    assert load_run_config(old) == load_run_config(path)
    assert load_config(path).samples_evaluations is True  # for a new run it is a config like any other


def test_evaluating_more_often_changes_nothing_in_training(tmp_path):
    """Also not the weights, which are compared through the last training line and the agent's tensors."""
    train(
        small_config("ppo-cartpole", total_timesteps=1200, eval_interval=1200, eval_episodes=1),
        run_dir=tmp_path / "seldom",
    )
    train(
        small_config("ppo-cartpole", total_timesteps=1200, eval_interval=1, eval_episodes=3),
        run_dir=tmp_path / "often",
    )
    assert training_lines(tmp_path / "seldom") == training_lines(tmp_path / "often")
    assert weights(tmp_path / "seldom") == weights(tmp_path / "often")


def test_saving_more_often_changes_nothing_in_training(tmp_path):
    train(
        small_config("ppo-pendulum", total_timesteps=1200, checkpoint_interval=1200),
        run_dir=tmp_path / "seldom",
    )
    train(
        small_config("ppo-pendulum", total_timesteps=1200, checkpoint_interval=1), run_dir=tmp_path / "often"
    )
    one, other = ((tmp_path / name / "metrics.jsonl").read_bytes() for name in ("seldom", "often"))
    assert one == other
    assert weights(tmp_path / "seldom") == weights(tmp_path / "often")
    assert len(list((tmp_path / "often" / "checkpoints").iterdir())) == 2


def flat(tree, path=""):
    """Every leaf of a state tree with its path."""
    if isinstance(tree, dict):
        return [leaf for key, value in tree.items() for leaf in flat(value, f"{path}/{key}")]
    if isinstance(tree, list | tuple):
        return [leaf for i, value in enumerate(tree) for leaf in flat(value, f"{path}/{i}")]
    return [(path, np.asarray(tree).tobytes())]


@pytest.mark.parametrize("name", RUNS)
def test_everything_that_training_changes_is_restored(name):
    """Two more iterations, then back: every leaf of the state must be what it was, and the future the same."""
    config = small_config(name)
    seed_everything(1)
    trainer = trainer_class(config.algo)(config)
    knobs = Controls.of(config).at(0)

    def iterate(number):
        seed_everything(fold(7, number))
        return trainer.iterate(knobs).means()

    iterate(0)
    before = {"agent": trainer.agent.state_dict(), "trainer": trainer.state_dict()}
    future = [iterate(1), iterate(2)]
    changed = dict(flat({"agent": trainer.agent.state_dict(), "trainer": trainer.state_dict()}))
    # Else there would be little to restore. BC on CartPole changes the fewest: 10 leaves.
    assert sum(changed[path] != leaf for path, leaf in flat(before) if path in changed) >= 10
    trainer.agent.load_state_dict(before["agent"])
    trainer.load_state_dict(before["trainer"])
    assert flat({"agent": trainer.agent.state_dict(), "trainer": trainer.state_dict()}) == flat(before)
    assert [iterate(1), iterate(2)] == future


def test_cadences_count_steps():
    progress = Progress()
    due = []
    for steps in range(130, 1300, 130):
        progress.steps = steps
        if progress.due("log", 500, 1170):
            due.append(steps)
    assert due == [520, 1040, 1170]  # the first iterations past 500 and 1000, and the end


@pytest.mark.parametrize(
    ("kwargs", "tensor", "step"),
    [
        # Step 40 of the episode in both environments; the first of them is named.
        (dict(where="reward", bad_step=40), "reward", 80),
        (dict(where="obs", bad_step=40), "obs", 80),
        (dict(where="reward", bad_step=70), "reward", 140),
        # The observation after a rollout's last step is bootstrapped from before it is ever a row.
        (dict(where="obs", bad_step=32), "obs", 64),
    ],
)
def test_a_nan_from_an_environment_stops_the_run_and_names_its_place(kwargs, tensor, step, tmp_path):
    config = PPOConfig(
        env_id="probe/NotANumber-v0",
        env_kwargs=kwargs,
        num_envs=2,
        num_steps=32,
        total_timesteps=2000,
        checkpoint_interval=1,
        eval_interval=2000,
    )
    with pytest.raises(NonFiniteError) as caught:
        train_ppo(config, run_dir=tmp_path / "run")
    error = caught.value
    assert (error.tensor, error.env_index, error.step) == (tensor, 0, step)
    saved = checkpoints.newest_good_checkpoint(tmp_path / "run" / "checkpoints")
    whole_rollouts = (step - 1) // 64 * 64
    assert (saved[1]["progress"]["steps"] if saved else 0) == whole_rollouts


@pytest.mark.parametrize("poison", ["loss", "gradient"])
def test_a_nan_in_the_update_stops_before_the_weights_are_touched(poison, tmp_path, monkeypatch):
    config = small_config("ppo-cartpole")
    trainer = PPOTrainer(config)
    real = ActorCriticPolicy.evaluate

    def poisoned(agent, inputs, action):
        log_prob, entropy, value = real(agent, inputs, action)
        if poison == "loss":
            return log_prob, entropy, value * float("nan")
        # sqrt has an infinite slope at 0: the loss stays finite, its gradient does not.
        return log_prob + (value - value.detach()).abs().sqrt(), entropy, value

    monkeypatch.setattr(ActorCriticPolicy, "evaluate", poisoned)
    before = trainer.agent.state_dict()
    with pytest.raises(NonFiniteError, match=poison):
        trainer.iterate(Controls.of(config).at(0))
    assert flat(before) == flat(trainer.agent.state_dict())


def test_a_full_disk_at_any_write_leaves_the_last_good_checkpoint(tmp_path, monkeypatch):
    """ENOSPC at the n-th call that writes, for every n until a run needs no more: each time the run says so,
    and resumes to the same end."""
    tiny = dict(
        total_timesteps=96, num_envs=2, num_steps=16, update_epochs=1, hidden_sizes=[4], eval_episodes=1
    )
    config = small_config("ppo-cartpole", **tiny, log_interval=32, checkpoint_interval=32, eval_interval=64)
    train(config, run_dir=tmp_path / "whole")
    expected = (tmp_path / "whole" / "metrics.jsonl").read_bytes(), weights(tmp_path / "whole")
    real = {name: getattr(os, name) for name in ("write", "fsync", "rename", "replace", "mkdir")}
    number, failures = 0, 0
    while True:
        number += 1
        count = 0

        def failing(name, at=number):
            def call(*args, **kwargs):
                nonlocal count
                count += 1
                if count == at:
                    raise OSError(28, "No space left on device")
                return real[name](*args, **kwargs)

            return call

        for name in real:
            monkeypatch.setattr(os, name, failing(name))
        run_dir = tmp_path / str(number)
        try:
            train(config, run_dir=run_dir)
        except (StorageError, RunError) as error:
            failures += 1
            assert "No space left" in str(error)
        finally:
            for name in real:
                monkeypatch.setattr(os, name, real[name])
        if count < number:
            break
        if (run_dir / "config.yaml").exists():
            resume(run_dir)
        else:
            train(config, run_dir=run_dir)  # what a failed start leaves behind is in nobody's way
        assert ((run_dir / "metrics.jsonl").read_bytes(), weights(run_dir)) == expected
    assert failures > 20


@pytest.mark.parametrize(("number", "name"), [(signal.SIGINT, "SIGINT"), (signal.SIGTERM, "SIGTERM")])
def test_a_signal_saves_and_the_resumed_run_is_the_same(number, name, tmp_path):
    config = small_config("ppo-cartpole", checkpoint_interval=3000)
    train(config, run_dir=tmp_path / "whole")

    def interrupted():
        def once_it_trains(*_):
            if metrics.exists() and metrics.stat().st_size:
                signal.setitimer(signal.ITIMER_REAL, 0)
                os.kill(os.getpid(), number)

        metrics = tmp_path / "stopped" / "metrics.jsonl"
        signal.signal(signal.SIGALRM, once_it_trains)
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
        result = train_until_stopped(config, run_dir=tmp_path / "stopped")
        assert result.interrupted == number and result.checkpoint_path.exists()

    assert in_child(interrupted) == 0
    assert resume(tmp_path / "stopped").interrupted is None
    assert (tmp_path / "stopped/metrics.jsonl").read_bytes() == (
        tmp_path / "whole/metrics.jsonl"
    ).read_bytes()
    assert weights(tmp_path / "stopped") == weights(tmp_path / "whole")


def test_a_second_signal_stops_at_once(tmp_path, monkeypatch):
    """The first one is noticed between iterations; here both come in the middle of the first iteration."""

    def iterate(trainer, knobs):
        for place in ("once", "twice"):
            os.kill(os.getpid(), signal.SIGTERM)
            (tmp_path / place).touch()

    monkeypatch.setattr(PPOTrainer, "iterate", iterate)
    monkeypatch.setattr(engine, "SAME_REQUEST", -1.0)  # here they count as two however soon they come
    assert in_child(lambda: train(small_config("ppo-cartpole"), run_dir=tmp_path / "run")) is None
    assert (tmp_path / "once").exists() and not (tmp_path / "twice").exists()


def test_a_signal_that_comes_twice_at_once_is_one(tmp_path, monkeypatch):
    """As from `timeout`, which signals the process and then its group."""
    monkeypatch.setattr(engine, "SAME_REQUEST", 1e9)  # however busy the machine is
    config = small_config("ppo-cartpole", num_steps=100)

    class Twice(QuietDisplay):
        def start(self, *about):
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGTERM)
                sum(range(1000))  # Python looks for signals between its instructions

    result = train_until_stopped(config, run_dir=tmp_path / "run", display=Twice())
    assert result.interrupted == signal.SIGTERM and result.checkpoint_path.exists()


def test_a_nan_in_the_final_observation_of_a_cut_episode_is_named(tmp_path):
    kwargs = dict(where="obs", bad_step=20)
    config = PPOConfig(
        env_id="probe/NotANumber-v0",
        env_kwargs=kwargs,
        max_episode_steps=20,
        num_envs=2,
        num_steps=32,
        total_timesteps=200,
    )
    with pytest.raises(NonFiniteError) as caught:
        train_ppo(config, run_dir=tmp_path / "run")
    assert (caught.value.tensor, caught.value.env_index, caught.value.step) == ("obs", 0, 38)


def test_files_are_closed_when_a_run_ends(tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    for number in range(3):
        train(small_config("ppo-cartpole", total_timesteps=128), run_dir=tmp_path / str(number))
    assert len(os.listdir("/proc/self/fd")) == before


def test_two_processes_cannot_train_in_one_directory(tmp_path):
    train(small_config("ppo-cartpole", total_timesteps=128), run_dir=tmp_path / "run")
    with RunDirectory.open(tmp_path / "run").lock():

        def second():
            with pytest.raises(RunError, match="another process"):
                resume(tmp_path / "run")

        assert in_child(second) == 0


def test_timing_is_apart_from_the_metrics(tmp_path):
    train(small_config("ppo-cartpole"), run_dir=tmp_path / "run")
    timing = [json.loads(line) for line in (tmp_path / "run" / "timing.jsonl").read_text().splitlines()]
    assert all(line.keys() >= {"step", "wall_seconds", "steps_per_second"} for line in timing)
    assert "wall_seconds" not in (tmp_path / "run" / "metrics.jsonl").read_text()
    spent = [line["cpu_seconds"] for line in timing]
    assert spent[0] >= 0 and spent[-1] > 0 and spent == sorted(spent)
    assert all(line["peak_memory_mb"] > 50 for line in timing)  # torch alone takes more


def test_cpu_time_that_is_seen_no_more_stays_counted(tmp_path, monkeypatch):
    seen = iter([10.0, 17.0, 14.0])
    monkeypatch.setattr(engine, "LOOK_EVERY", 0.0)
    monkeypatch.setattr(engine, "cpu_seconds", lambda: next(seen, 18.0))
    train(small_config("ppo-cartpole"), run_dir=tmp_path / "run")
    timing = [json.loads(line) for line in (tmp_path / "run" / "timing.jsonl").read_text().splitlines()]
    assert [line["cpu_seconds"] for line in timing[:3]] == [7.0, 7.0, 8.0]


def test_compiling_in_the_first_iteration_does_not_count_as_speed(tmp_path, monkeypatch):
    """A clock on which the first iteration takes 100 seconds, and every later one 1."""
    config = small_config("ppo-cartpole", total_timesteps=1280, log_interval=128)
    clock = SimpleNamespace(now=0.0, perf_counter=lambda: clock.now)
    out, iterate = io.StringIO(), PPOTrainer.iterate

    def slow_at_first(trainer, knobs):
        clock.now += 1.0 if clock.now else 100.0
        return iterate(trainer, knobs)

    monkeypatch.setattr(engine, "time", clock)
    monkeypatch.setattr(PPOTrainer, "iterate", slow_at_first)
    train(config, run_dir=tmp_path / "run", display=PlainDisplay(out))
    first, second, *_ = [line for line in out.getvalue().splitlines() if line.startswith("step")]
    assert "steps/s" not in first and "left" not in first
    assert second.endswith("128 steps/s  8 s left")
    timing = [json.loads(line) for line in (tmp_path / "run" / "timing.jsonl").read_text().splitlines()]
    assert (timing[0]["wall_seconds"], timing[0]["steps_per_second"]) == (100.0, 1.3)
    assert "pace" not in timing[-1]


def test_the_learning_rate_moves_the_weights(tmp_path):
    """A knob that is resolved and logged but never used would pass the other tests."""
    config = small_config("ppo-cartpole", learning_rate=0.0, learning_rate_schedule=None)
    run = RunDirectory.create(tmp_path / "run", "run")
    trainer = PPOTrainer(config)
    before = flat(trainer.agent.state_dict())
    Engine(trainer, config, run, QuietDisplay(), Watch(config)).train()
    assert flat(trainer.agent.state_dict()) == before


class Pressing(QuietDisplay):
    """Sends this process a signal at its first line, as a user's Ctrl-C would."""

    def __init__(self, number):
        self.number = number

    def update(self, steps, metrics, timing):
        os.kill(os.getpid(), self.number)


@pytest.mark.parametrize(
    ("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_a_signal_ends_a_loop_over_seeds_in_python_after_the_run_is_saved(number, raised, tmp_path):
    begun = []
    with pytest.raises(raised) as stopped:
        for seed in (1, 2):
            begun.append(seed)
            train(
                small_config("ppo-cartpole", seed=seed),
                run_dir=tmp_path / str(seed),
                display=Pressing(number),
            )
    assert begun == [1]
    assert stopped.value.args == ((143,) if number == signal.SIGTERM else ())
    with pytest.raises(raised):
        resume(tmp_path / "1", display=Pressing(number))
    with pytest.raises(raised):
        fork(tmp_path / "1", {"learning_rate": 1e-4}, run_dir=tmp_path / "fork", display=Pressing(number))
    assert resume(tmp_path / "1", quiet=True).interrupted is None


def test_a_signal_at_the_last_step_ends_a_loop_over_seeds_too(tmp_path):
    """The run is over and whole; the caller is stopped all the same."""
    config = small_config("ppo-cartpole", total_timesteps=256)

    class AtTheEnd(Pressing):
        def update(self, steps, metrics, timing):
            if "eval/mean_return" in metrics and steps >= config.total_timesteps:
                super().update(steps, metrics, timing)

    with pytest.raises(KeyboardInterrupt):
        train(config, run_dir=tmp_path / "run", display=AtTheEnd(signal.SIGINT))
    assert resume(tmp_path / "run", quiet=True).metrics["eval/mean_return"] > 0


def test_python_shows_progress_in_lines_unless_it_is_asked_to_be_quiet(tmp_path, capsys, monkeypatch):
    config = small_config("ppo-cartpole", total_timesteps=256, eval_interval=256)
    train(config, run_dir=tmp_path / "shown")
    shown = capsys.readouterr().out
    assert shown.startswith("ppo on CartPole-v1, seed 3\n") and "step 256 (100 %)" in shown
    train(config, run_dir=tmp_path / "quiet", quiet=True)
    assert capsys.readouterr().out == ""
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    for widgets, kind in ((None, PlainDisplay), ("ipywidgets", LiveDisplay)):
        monkeypatch.setattr("importlib.util.find_spec", lambda name, found=widgets: found)
        assert type(script_display(quiet=False)) is kind
