"""Fleets on Ray: the same fragments as anywhere, whatever befalls actors and nodes; one cluster of three nodes."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from runs import assert_same_run, go_on, in_child, small_config, train_in_a_group
from test_fleet import SMALL, faulty, nothing, watched

from rl_training import train
from rl_training.errors import ActorError, ConfigError
from rl_training.fleet.ray_fleet import own_cluster
from rl_training.fleet.ray_watch import MARK, processes_of
from rl_training.registry import trainer_class

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is an extra")
FLEETS = ("local", "ray")
ON_NODES = dict(fleet="ray", ray_resources={"slot": 1.0})


def config_of(**changes):
    return small_config("impala-cartpole", **SMALL | changes)


@pytest.fixture(scope="module")
def cluster():
    """A head without room for actors, and two nodes with room for two each."""
    import ray  # here and not above: it takes a second in every process that only collects
    from ray.cluster_utils import Cluster

    variables = {
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",
        "RAY_raylet_start_wait_time_s": "60",
        "RAY_agent_register_timeout_ms": "600000",
        "RAY_gcs_rpc_server_connect_timeout_s": "60",
    }  # the path, since actors must find the environments of the tests
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        cluster = Cluster()
        try:
            add_node(cluster, num_cpus=0, include_dashboard=False)
            cluster.workers = [add_node(cluster, **ROOM) for _ in range(2)]
            ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()


ROOM = dict(num_cpus=2, resources={"slot": 2.0})


def add_node(cluster, **settings):
    settings["object_store_memory"] = 80 << 20  # as little memory for objects as Ray allows
    for _ in range(4):
        with suppress(Exception):  # on a busy machine a node of Ray's gives up after half a minute, for good
            return cluster.add_node(**settings)
    return cluster.add_node(**settings)


def tend(fleet, until):
    """Look after a fleet until as many actors as that are up: each fills its place, so nobody else can take it."""
    while sum(slot.up for slot in fleet.slots) != until:
        fleet._tend()


def lose_a_node(cluster):
    cluster.remove_node(cluster.workers.pop(), allow_graceful=False)


def test_local_and_ray_fleets_give_the_same_run_whatever_the_speeds(cluster, tmp_path):
    for fleet, changes in zip(FLEETS, ({}, ON_NODES), strict=True):
        config = config_of(env_id="fleet_envs:fleet/Uneven-v0", total_timesteps=640, **changes)
        train(config, run_dir=tmp_path / fleet)
    metrics, weights = (
        [read(tmp_path / fleet) for fleet in FLEETS]
        for read in (
            lambda run: (run / "metrics.jsonl").read_bytes(),
            lambda run: (max((run / "checkpoints").glob("step-*")) / "weights.safetensors").read_bytes(),
        )
    )
    assert metrics[0] == metrics[1] and weights[0] == weights[1]


def test_a_killed_actor_and_a_lost_node_change_nothing(cluster):
    """In one run: an actor is killed; a node disappears, with the actor that fills it; a new node takes it in."""
    expected, weights, _ = watched(config_of(), nothing)
    restarts = []

    def disturb(trainer, number):
        fleet = trainer.fleet
        if number in (3, 6, 10):
            tend(fleet, until=2)
            restarts.append(fleet.restarts)
        if number == 3:
            os.kill(fleet.processes[0], signal.SIGKILL)
        if number == 6:
            lose_a_node(cluster)
        if (
            number == 9
        ):  # whatever the lost actor had delivered is used up: it has been asked, and cannot answer
            tend(fleet, until=1)
            cluster.workers.append(add_node(cluster, **ROOM))

    each_fills_a_node = dict(fleet="ray", ray_resources={"slot": 2.0})
    used, after, timing = watched(config_of(**each_fills_a_node, actor_timeout=60.0), disturb)
    assert restarts[0] < restarts[1] < restarts[2]
    assert used == expected and np.array_equal(weights, after)
    assert len({entry[:2] for entry in used}) == len(used) == 24  # none twice, none left out
    assert timing["fragments_redone"] >= 2


@pytest.mark.parametrize("kind", ["raise", pytest.param("stop", marks=pytest.mark.faults)])
def test_an_environment_that_fails_now_and_then_changes_nothing(kind, cluster, tmp_path):
    """One that raises is asked again at once; nothing here waits for a clock but what was stopped."""
    expected, weights, _ = watched(config_of(num_actors=1), nothing)
    patience = dict(actor_timeout=30.0) if kind == "stop" else {}
    used, after, timing = watched(
        faulty(tmp_path, 1, kind, 40, num_actors=1, **patience, **ON_NODES), nothing
    )
    assert not os.listdir(tmp_path / "faults")
    assert used == expected and np.array_equal(weights, after)
    assert timing["fragments_redone"] >= 1 and (kind == "raise" or timing["actor_restarts"] >= 1)


def test_an_environment_that_always_raises_ends_the_run_with_its_traceback(cluster, tmp_path):
    config = faulty(tmp_path, 50, "raise", 10, max_episode_steps=400, num_actors=1, **ON_NODES)
    with pytest.raises(ActorError, match="the pole has broken"):
        train(config, run_dir=tmp_path / "run")


@pytest.mark.faults
def test_fragments_larger_than_the_store_can_hold_at_once(cluster):
    """Each of these is some 20 MB in a store of 80: they come one after the other, and the run ends."""
    settings = dict(num_steps=128, num_envs=2, num_actors=4, env_id="ALE/Pong-v5", hidden_sizes=[])
    config = config_of(**settings, **ON_NODES, shared_trunk=True, normalize_observations=False)
    used, _, _ = watched(config, nothing, iterations=3)
    assert len(used) == 12


@pytest.mark.faults
def test_without_any_node_the_run_waits_for_one(cluster):
    expected, weights, _ = watched(config_of(), nothing)

    def disturb(trainer, number):
        if number == 4:
            while cluster.workers:
                lose_a_node(cluster)
            deadline = time.monotonic() + 5
            while time.monotonic() < deadline:
                trainer.fleet._tend()
            cluster.workers += [add_node(cluster, **ROOM), add_node(cluster, **ROOM)]

    used, after, timing = watched(config_of(**ON_NODES), disturb)
    assert used == expected and np.array_equal(weights, after) and timing["actor_restarts"] >= 2


@pytest.mark.faults
def test_arrival_order_goes_on_while_a_node_is_away(cluster):
    config = config_of(order="arrival", num_actors=4, batch_fragments=2, **ON_NODES)

    def disturb(trainer, number):
        if number == 5:
            tend(trainer.fleet, until=4)
            lose_a_node(cluster)
        if number == 10:
            tend(trainer.fleet, until=2)
        if number == 30:
            assert trainer.fleet.timing()["actors_alive"] == 2  # twenty batches without them
            cluster.workers.append(add_node(cluster, **ROOM))
            tend(trainer.fleet, until=4)

    used, _, timing = watched(config, disturb, iterations=60)
    assert len({entry[:2] for entry in used}) == len(used) == 120
    assert timing["fragments_redone"] >= 1


def trained_elsewhere(folder, *settings, **variables):
    """A run in a process of its own, since this one is connected."""
    command = [sys.executable, "-m", "rl_training", "train", "impala/cartpole", "--run-dir", str(folder)]
    return subprocess.run(
        [*command, "fleet=ray", *settings], capture_output=True, text=True, env=os.environ | variables
    )


@pytest.mark.faults
@pytest.mark.parametrize("address", ["HOST:PORT", "auto"])
def test_a_run_joins_a_cluster_that_is_there_and_leaves_it_there(address, cluster, tmp_path):
    """Only the cluster's nodes have slots, so that no other place would do for its actors."""
    settings = ["total_timesteps=256", "ray_resources={slot: 1}"]
    if address == "auto":
        done = trained_elsewhere(tmp_path / "run", *settings, "ray_address=auto", RAY_ADDRESS=cluster.address)
    else:
        done = trained_elsewhere(tmp_path / "run", *settings, f"ray_address={cluster.address}")
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "run" / "checkpoints").glob("step-*"))
    import ray

    assert sum(node["Alive"] for node in ray.nodes()) == 3


def test_an_address_where_no_cluster_is_refused_in_one_line(tmp_path):
    """Nothing is left behind."""
    done = trained_elsewhere(tmp_path / "run", "ray_address=127.0.0.1:1")
    assert done.returncode == 2 and not (tmp_path / "run").exists()
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("error: ") and "ray_address" in last and "no cluster answers there" in last


@pytest.mark.faults
def test_the_embedded_cluster_listens_on_the_loopback_device_alone_and_goes_away(tmp_path):
    code = f"""
import json, os, re, subprocess
from pathlib import Path
from rl_training import load_config, train
from rl_training.fleet import ray_fleet
ours = {{}}  # processes that descend from this one: the cluster of the other tests may be there too
def parent_of(pid):
    stat = Path(f"/proc/{{pid}}/stat")
    return int(stat.read_text().rpartition(")")[2].split()[1]) if stat.exists() else 0
def is_ours(pid):
    if pid not in ours:
        parent = parent_of(pid)
        ours[pid] = parent == os.getpid() or parent > 1 and is_ours(parent)
    return ours[pid]
def listening():
    lines = subprocess.run(["ss", "-ltnpH"], capture_output=True, text=True, check=True).stdout.splitlines()
    pids_of = lambda line: map(int, re.findall("pid=([0-9]+)", line))
    return sorted({{line.split()[3] for line in lines if any(map(is_ours, pids_of(line)))}})
launch = ray_fleet.RayFleet._launch
def launching(fleet, index):
    launch(fleet, index)
    print(json.dumps(listening()))
ray_fleet.RayFleet._launch = launching
settings = ["total_timesteps=256", "fleet=ray", "ray_resources={{slot: 0.4}}"]
train(load_config("impala/cartpole", settings), run_dir={str(tmp_path / "run")!r})
print(json.dumps(listening()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *_, rows, left = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert rows and all("127.0.0.1" in row for row in rows) and not left


def test_an_embedded_cluster_has_what_actors_ask_for_or_says_why_it_did_not_start():
    config, asked = config_of(fleet="ray", num_actors=3, ray_resources={"slot": 0.5}), {}
    trainer = trainer_class(config.algo)(config)

    def init(**settings):
        asked.update(settings)
        raise RuntimeError("no room")

    trainer.fleet.ray = SimpleNamespace(is_initialized=lambda: False, init=init)
    with pytest.raises(ConfigError, match=r"Ray could not be started on this machine .*no room"):
        trainer.fleet._connect()
    assert asked["num_cpus"] == 3 and asked["resources"] == {"slot": 2}  # Ray knows whole numbers only
    trainer.close()


def test_an_embedded_cluster_gets_a_fresh_token_and_leaves_no_trace_of_it(monkeypatch):
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    seen = []
    for mode in (None, None, "disabled"):
        if mode is not None:
            monkeypatch.setenv("RAY_AUTH_MODE", mode)
        with own_cluster() as watcher:
            seen.append((os.environ.get("RAY_AUTH_MODE"), os.environ.get("RAY_AUTH_TOKEN"), os.environ[MARK]))
        watcher.stdin.close()
        assert watcher.wait() == 0
        assert "RAY_AUTH_TOKEN" not in os.environ and MARK not in os.environ
    (first, one, a), (second, other, b), third = seen
    assert first == second == "token" and one != other and len(one) == len(other) == 64 and a != b
    assert third[:2] == ("disabled", None)  # the user has decided


LEARNER = """
import os, subprocess, sys
from rl_training.fleet.ray_watch import MARK, start_watcher
watcher = start_watcher("{mark}")
def sleep(mark):
    variables = os.environ | {{MARK: mark}}
    return subprocess.Popen(["sleep", "1000"], stdout=subprocess.DEVNULL, env=variables, start_new_session=True)
helper, other = sleep("{mark}"), sleep("not {mark}")
print(watcher.pid, helper.pid, other.pid, flush=True)
sys.stdin.read()
"""


def test_helpers_end_with_a_learner_that_is_killed_and_no_others():
    mark = os.urandom(8).hex()
    code = LEARNER.format(mark=mark)
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    learner = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, **pipes)
    watcher, helper, other = map(int, learner.stdout.readline().split())
    assert processes_of(mark) == [helper]
    ends = os.pidfd_open(watcher)
    os.killpg(learner.pid, signal.SIGKILL)
    learner.communicate()
    select.select([ends], [], [])  # the watcher's own end, which comes after that of all it watches over
    assert processes_of(mark) == [] and processes_of(f"not {mark}") == [other]
    os.kill(other, signal.SIGKILL)


KILLED = """
import sys
from rl_training import load_config, train
from rl_training.fleet import ray_fleet
start, launch = ray_fleet.start_watcher, ray_fleet.RayFleet._launch
def starting(mark):
    watcher = start(mark)
    print(mark, watcher.pid, flush=True)
    return watcher
def launching(fleet, index):
    launch(fleet, index)
    if index == 1:
        fleet.ray.get(fleet.handles[index].ready.remote())
        node = fleet.ray._private.worker._global_node
        print(node.gcs_address, node.get_session_dir_path(), flush=True)
        sys.stdin.read()
ray_fleet.start_watcher, ray_fleet.RayFleet._launch = starting, launching
train(load_config("impala/cartpole", ["fleet=ray"]), run_dir="run")
"""


@pytest.mark.faults
def test_an_embedded_cluster_ends_with_its_learner_and_answers_nobody_else(tmp_path):
    """Ray's own helpers, of which some outlived their learner by half a minute; and a caller without the token."""
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    learner = subprocess.Popen([sys.executable, "-c", KILLED], **pipes)
    mark, watcher = learner.stdout.readline().split()
    address, session = learner.stdout.readline().split()
    wanted = {"gcs_server", "raylet", "ray::DashboardAgent", "ray::RuntimeEnvAgent", "ray::RayActor"}
    while wanted:  # agents are started beside the actors, and name themselves when they are up
        found = processes_of(mark, session)
        names = [Path(f"/proc/{process}/cmdline").read_bytes().decode() for process in found]
        wanted -= {name for name in wanted if any(name in each for each in names)}
    code = f"from ray._raylet import GcsClient; print(GcsClient({address!r}).internal_kv_keys(b'', None, timeout=20))"
    called = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert called.returncode != 0 and called.stdout == "" and "authentication" in called.stderr.lower(), (
        called
    )
    ends = os.pidfd_open(int(watcher))
    learner.kill()
    learner.communicate()
    select.select([ends], [], [])
    assert processes_of(mark, session) == []


@pytest.mark.parametrize(
    "changes", [dict(ray_address="auto"), dict(fleet="inline", ray_resources={"slot": 1.0})]
)
def test_settings_of_ray_need_ray(changes):
    with pytest.raises(ConfigError, match="needs fleet: ray"):
        config_of(**changes)


@pytest.mark.faults
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_whole_group_saves_and_the_resumed_run_is_the_same(number, tmp_path):
    """Ray acts on SIGTERM by itself, in the learner and in its cluster, unless it is kept from it."""
    config = small_config("impala-cartpole", total_timesteps=600, checkpoint_interval=600, fleet="ray")
    assert in_child(train_in_a_group, config, tmp_path / "run", number, start="forkserver") == 0
    for place in ("run", "whole"):
        assert in_child(go_on, config, tmp_path / place, start="forkserver") == 0
    assert_same_run(tmp_path / "whole", tmp_path / "run")
