"""Fleets: fragments come in order, once each, and are the same whoever plays them and whatever befalls them."""

import gc
import json
import os
import signal
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from runs import assert_same_run, in_child, small_config, stopped_after

from rl_training import resume, train
from rl_training.errors import ActorError, NonFiniteError
from rl_training.fleet.actor import Actor, Fragment, Request
from rl_training.fleet.fleet import Fleet, Ready
from rl_training.fleet.local import shared_array
from rl_training.fleet.weights import pack, unpack
from rl_training.processes import peak_memory
from rl_training.registry import trainer_class
from rl_training.runtime.controls import Controls
from rl_training.runtime.optim import flatten_parameters
from rl_training.state.run_directory import RunDirectory
from rl_training.state.seeding import seed_everything
from rl_training.tools.reproducing import cost_of

SMALL = dict(total_timesteps=960, log_interval=1, eval_interval=960, eval_episodes=1, checkpoint_interval=480)


def faulty(folder, number, kind, at, **changes):
    """A config whose environments will fail `number` times."""
    (folder / "faults").mkdir()
    for name in range(number):
        (folder / "faults" / str(name)).touch()
    kwargs = dict(faults=str(folder / "faults"), kind=kind, at=at, learner=os.getpid())
    return config_of(env_id="fleet_envs:fleet/Faulty-v0", env_kwargs=kwargs, **changes)


@pytest.fixture(autouse=True)
def no_delay(monkeypatch):
    """Lost actors are replaced at once: runs of a second would be over before."""
    monkeypatch.setattr("rl_training.fleet.fleet.FIRST_DELAY", 0.0)


def config_of(name="impala-cartpole", **changes):
    return small_config(name, **SMALL | changes)


def test_weights_and_statistics_go_out_as_one_array():
    config = config_of(env_id="probe/DictAndPicture-v0", normalize_observations=True)
    trainer = trainer_class(config.algo)(config)
    trainer.iterate(Controls.of(config).at(0))
    packed = pack(trainer.agent)
    assert packed.dtype == np.uint8
    other = trainer.make_agent(config, trainer.observation_space, trainer.action_space)
    parameters, _ = flatten_parameters(list(other.network.parameters()))
    assert not np.array_equal(pack(other), packed)
    unpack(packed, other, parameters)
    assert np.array_equal(pack(other), packed)
    mine, theirs = trainer.agent.state_dict(), other.state_dict()
    assert str(mine["normalizer"]) == str(theirs["normalizer"])
    trainer.close()


def same(one, other):
    """Whether two trees of arrays are equal, byte for byte."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return np.asarray(one).tobytes() == np.asarray(other).tobytes()


@pytest.mark.parametrize("name", ["impala-cartpole", "impala-memory"])
def test_a_fragment_is_a_function_of_its_request(name):
    """An actor that has been elsewhere, and one that is new, play the same fragment as the one that was there."""
    config = config_of(name)
    trainer = trainer_class(config.algo)(config)
    weights = pack(trainer.agent)
    steady, new = (Actor(config, trainer.observation_space, trainer.action_space) for _ in range(2))
    copy = lambda fragment: fragment._replace(columns={k: v.copy() for k, v in fragment.columns.items()})  # noqa: E731
    states, fragments = [None], []
    for number in range(4):
        fragments.append(copy(steady.play(Request(1, number, 0, states[-1]), weights)))
        states.append(fragments[-1].state)
    assert fragments[3].episodes or fragments[2].episodes or name == "impala-memory"
    again = new.play(Request(1, 3, 0, states[3]), weights)
    assert same(tuple(fragments[3]), tuple(again))
    other = copy(steady.play(Request(0, 0, 0, None), weights))
    assert not same(other.columns, fragments[0].columns)
    assert same(tuple(fragments[2]), tuple(steady.play(Request(1, 2, 0, states[2]), weights)))
    steady.close(), new.close(), trainer.close()


def test_shared_memory_is_shared_with_forks():
    array = shared_array((3, 2), np.dtype(np.float32))

    def write():
        array[1, 1] = 7.0

    assert in_child(write) == 0 and array[1, 1] == 7.0 and array.sum() == 7.0


@pytest.mark.parametrize("name", ["impala-cartpole", "impala-memory"])
def test_inline_and_local_fleets_give_the_same_run_whatever_the_speeds(name, tmp_path):
    changes = dict(env_id="fleet_envs:fleet/Uneven-v0")
    for fleet in ("inline", "local"):
        train(config_of(name, fleet=fleet, **changes), run_dir=tmp_path / fleet)
    metrics = [(tmp_path / fleet / "metrics.jsonl").read_bytes() for fleet in ("inline", "local")]
    weights = [
        (max((tmp_path / fleet / "checkpoints").glob("step-*")) / "weights.safetensors").read_bytes()
        for fleet in ("inline", "local")
    ]
    assert metrics[0] == metrics[1]
    # The config is part of state.json, and the fleet's name of the config: the tensors must be the same.
    assert weights[0] == weights[1]


def watched(config, hook, iterations=12):
    """Iterate by hand, calling `hook(trainer, number)` before each iteration; all fragments used, and the weights."""
    seed_everything(1)
    trainer = trainer_class(config.algo)(config)
    used, take = [], trainer.fleet.take

    def taking():
        fragment = take()
        used.append((fragment.stream, fragment.number, fragment.columns["obs"].tobytes()))
        return fragment

    trainer.fleet.take = taking
    knobs = Controls.of(config).at(0)
    try:
        for number in range(iterations):
            seed_everything(number)
            hook(trainer, number)
            trainer.iterate(knobs)
        return used, pack(trainer.agent), trainer.fleet.timing()
    finally:
        trainer.close()


def nothing(trainer, number):
    pass


def test_a_killed_actor_changes_nothing():
    config = config_of()
    expected, weights, calm = watched(config, nothing)

    def kill(trainer, number):
        if number in (3, 4, 8):
            os.kill(trainer.fleet.processes[number % 2], signal.SIGKILL)

    used, after, timing = watched(config, kill)
    assert used == expected and np.array_equal(weights, after)
    assert len({entry[:2] for entry in used}) == len(used) == 24  # none twice, none left out
    assert calm["actor_restarts"] == 0 and timing["actor_restarts"] >= 2 and timing["fragments_redone"] >= 2


class Clock:
    """The time that a fleet goes by, which passes only while an actor is stopped, however busy the machine is."""

    perf_counter = staticmethod(time.perf_counter)

    def __init__(self, monkeypatch):
        self.now, self.processes = 0.0, {}
        monkeypatch.setattr("rl_training.fleet.fleet.time", self)

    def watch(self, trainer, number):
        self.processes = trainer.fleet.processes

    def monotonic(self):
        self.now += 100.0 * any(is_stopped(pid) for pid in self.processes.values())
        return self.now


def is_stopped(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False


def test_a_stopped_actor_is_replaced_and_changes_nothing(monkeypatch):
    expected, weights, _ = watched(config_of(), nothing)
    clock = Clock(monkeypatch)

    def stop(trainer, number):
        clock.watch(trainer, number)
        if number == 5:
            os.kill(trainer.fleet.processes[1], signal.SIGSTOP)

    used, after, timing = watched(config_of(), stop)
    assert used == expected and np.array_equal(weights, after) and timing["actor_restarts"] >= 1


@pytest.mark.parametrize("kind", ["raise", "die", "stop"])
def test_an_environment_that_fails_now_and_then_changes_nothing(kind, tmp_path, monkeypatch):
    expected, weights, _ = watched(config_of(), nothing)
    used, after, timing = watched(faulty(tmp_path, 2, kind, 40), Clock(monkeypatch).watch)
    assert not os.listdir(tmp_path / "faults")
    assert used == expected and np.array_equal(weights, after)
    done = timing["fragments_redone"], timing["actor_restarts"]
    if kind == "stop":  # one that plays while another is stopped may be replaced too
        assert min(done) >= 2
    else:
        assert done == (2, 0 if kind == "raise" else 2)


@pytest.mark.parametrize("order", ["fixed", "arrival"])
def test_an_environment_that_raises_three_times_in_a_row_ends_the_run_with_its_traceback(order, tmp_path):
    config = faulty(tmp_path, 100, "raise", 10, order=order, max_episode_steps=400)
    with pytest.raises(ActorError, match="the pole has broken") as caught:
        train(config, run_dir=tmp_path / "run")
    assert "in step" in str(caught.value.__cause__) and "3 times in a row" in str(caught.value)
    assert f"`rl-training resume {tmp_path / 'run'} --trust` starts again" in str(caught.value)


class Scripted(Fleet):
    """A fleet of one actor, which says what the test lets it say."""

    def __init__(self, monkeypatch):
        self.now, self.says, self.ended = 0.0, [], 0
        clock = SimpleNamespace(monotonic=lambda: self.now, perf_counter=lambda: self.now)
        monkeypatch.setattr("rl_training.fleet.fleet.time", clock)
        config = SimpleNamespace(num_actors=1, order="fixed", actor_timeout=300.0)
        super().__init__(config, lambda: np.zeros(1, np.uint8), (None, None), None)
        self.requests = [self._request(0, 0, None)]
        self._ask(0)
        self._tend(), self._tend()
        assert self.slots[0].busy

    def _launch(self, index):
        self.says.append((index, Ready()))

    def _submit(self, index, request, weights):
        pass

    def _poll(self, timeout):
        said, self.says = self.says, []
        return said

    def _end(self, index):
        self.ended += 1

    def later(self, seconds):
        self.now += seconds
        self._tend()


def test_the_absence_of_the_learner_is_not_held_against_its_actors(monkeypatch):
    fleet = Scripted(monkeypatch)
    fleet.later(400.0)  # an evaluation, say; the fragment is there but not yet fetched
    fleet.says = [(0, Fragment(0, 0, 0, {}, (), [], [], {}))]
    fleet.later(0.1)
    assert (fleet.ended, fleet.restarts) == (0, 0) and fleet.take().number == 0


@pytest.mark.parametrize("busy", [0.4, 2.0])
def test_a_silent_actor_is_ended_however_seldom_the_learner_listens(busy, monkeypatch):
    fleet = Scripted(monkeypatch)
    while not fleet.ended:
        assert fleet.now < 305
        fleet.later(busy)
    assert fleet.now > 300


def test_an_actor_that_always_dies_ends_the_run(tmp_path):
    config = faulty(tmp_path, 1000, "die", 10)
    with pytest.raises(ActorError, match="10 actors in a row were lost"):
        train(config, run_dir=tmp_path / "run")


def test_a_nan_from_an_actor_names_its_place(tmp_path):
    config = config_of(env_id="probe/NotANumber-v0", env_kwargs=dict(where="reward", bad_step=40))
    with pytest.raises(NonFiniteError) as caught:
        train(config, run_dir=tmp_path / "run")
    assert (caught.value.tensor, caught.value.env_index) == ("reward", 0)


@pytest.mark.parametrize("name", ["impala-cartpole"])
def test_arrival_order_trains_to_the_end_and_uses_no_fragment_twice(name, monkeypatch):
    for delay in ("FIRST_DELAY", "LONGEST_DELAY"):
        monkeypatch.setattr(f"rl_training.fleet.fleet.{delay}", 10.0**9)  # who is lost stays away
    config = config_of(
        name, order="arrival", num_actors=3, batch_fragments=2, env_id="fleet_envs:fleet/Uneven-v0"
    )
    pauses = []

    def kill(trainer, number):
        if number == 4:
            os.kill(trainer.fleet.processes[0], signal.SIGKILL)
        pauses.append(trainer.fleet.timing()["actors_alive"])

    used, _, _ = watched(config, kill, iterations=30)
    assert len({entry[:2] for entry in used}) == len(used) == 60
    for stream in range(3):
        numbers = [number for which, number, _ in used if which == stream]
        assert numbers == list(range(len(numbers)))
    assert 2 in pauses[4:]  # it went on while one was missing


@pytest.mark.parametrize(("order", "exactly"), [("fixed", True), ("arrival", False)])
def test_the_manifest_says_whether_the_run_resumes_exactly(order, exactly, tmp_path):
    train(config_of(order=order, total_timesteps=64), run_dir=tmp_path / "run")
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["resumes_exactly"] is exactly


def test_arrival_order_waits_for_enough_actors(monkeypatch):
    """The actor that is left plays on while the other is away, but nothing it plays is taken."""
    monkeypatch.setattr("rl_training.fleet.fleet.FIRST_DELAY", 0.5)
    config, alive, restarts = config_of(order="arrival", min_actors=2), [], []

    def kill(trainer, number):
        fleet = trainer.fleet
        if number == 0:
            take = fleet.take

            def taking():
                fragment = take()
                alive.append(sum(slot.up for slot in fleet.slots))
                return fragment

            fleet.take = taking
        if number == 4:
            os.kill(fleet.processes[0], signal.SIGKILL)
        restarts.append(fleet.timing()["actor_restarts"])

    watched(config, kill, iterations=30)
    assert restarts[4] == 0 and restarts[-1] == 1
    assert len(alive) == 60 and set(alive) == {2}


def test_old_fragments_are_dropped_in_arrival_order():
    config = config_of(order="arrival", max_lag=0, num_actors=2, batch_fragments=1)
    _, _, timing = watched(config, nothing, iterations=6)
    assert timing["fragments_dropped"] > 0


def test_actors_die_with_their_learner_and_let_go_of_its_lock(tmp_path):
    """Killed in the middle: no process is left, and the run can be locked again."""
    config = config_of(total_timesteps=10**6, env_id="fleet_envs:fleet/Uneven-v0", log_interval=64)
    pids = tmp_path / "pids"

    def learner():
        from rl_training.fleet import local

        launch, take, taken = local.LocalFleet._launch, local.LocalFleet.take, []

        def launching(fleet, index):
            launch(fleet, index)
            with open(pids, "a") as file:
                file.write(f"{fleet.processes[index]}\n")

        def taking(fleet):
            taken.append(take(fleet))
            if len(taken) == 20:  # both actors play, or are about to
                os.kill(os.getpid(), signal.SIGKILL)
            return taken[-1]

        local.LocalFleet._launch, local.LocalFleet.take = launching, taking
        train(config, run_dir=tmp_path / "run")

    assert in_child(learner) is None
    with RunDirectory.open(tmp_path / "run").lock():
        pass
    processes = [int(line) for line in pids.read_text().split()]
    assert len(processes) == 2
    while any(os.path.exists(f"/proc/{pid}/fd/0") for pid in processes):  # they end with their learner
        time.sleep(0.05)


def children():
    return {pid for pid in os.listdir("/proc") if pid.isdigit() and parent_of(pid) == os.getpid()}


def parent_of(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except OSError:
        return None


def test_processes_and_files_are_gone_when_a_run_ends(tmp_path):
    train(config_of(total_timesteps=128), run_dir=tmp_path / "first")
    gc.collect()  # files of earlier tests would be closed at any moment
    before = len(os.listdir("/proc/self/fd")), threading.active_count(), children()
    for number in range(2):
        train(config_of(total_timesteps=128), run_dir=tmp_path / str(number))
    gc.collect()
    assert (len(os.listdir("/proc/self/fd")), threading.active_count(), children()) == before


def test_the_cost_of_a_run_holds_what_its_actors_took(tmp_path, monkeypatch):
    """They live when the last line is written; of a run in two parts, those of both count."""
    config, steps = config_of(env_id="rl_training/BusyCartPole-v1", env_kwargs={"milliseconds": 2}), 960
    alone = peak_memory()
    with stopped_after(2, monkeypatch):
        train(config, run_dir=tmp_path / "run")
    resume(tmp_path / "run")
    cost = cost_of(tmp_path / "run")
    assert cost["processes"] == 2 and cost["cpu_seconds"] > steps * 2 / 1000
    assert cost["peak_memory_mb"] > alone + config.num_actors * 50


def test_two_fleets_of_one_config_are_the_same_run(tmp_path):
    for place in ("one", "two"):
        train(config_of(), run_dir=tmp_path / place)
    assert_same_run(tmp_path / "one", tmp_path / "two")
