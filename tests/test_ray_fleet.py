"""Fleets on Ray: the same fragments as anywhere, whatever befalls actors and nodes; one cluster of three nodes."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from runs import small_config
from test_fleet import SMALL, faulty, nothing, watched

from rl_training import train
from rl_training.errors import ActorError, ConfigError

ray = pytest.importorskip("ray")
FLEETS = ("local", "ray")
ON_NODES = dict(fleet="ray", ray_resources={"slot": 1.0})


def config_of(**changes):
    return small_config("impala-cartpole", **SMALL | changes)


@pytest.fixture(scope="module")
def cluster():
    """A head without room for actors, and two nodes with room for two each."""
    from ray.cluster_utils import Cluster

    # Actors must find the environments of the tests.
    before = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join([os.path.dirname(__file__), before])
    patient = {"RAY_raylet_start_wait_time_s": "120", "RAY_gcs_rpc_server_connect_timeout_s": "60"}
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"} | patient
    head = dict(num_cpus=0, include_dashboard=False, object_store_memory=80 << 20)
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        cluster.workers = [add_node(cluster) for _ in range(2)]
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        yield cluster
    finally:
        os.environ["PYTHONPATH"] = before
        ray.shutdown()
        cluster.shutdown()


def add_node(cluster):
    # As little memory for objects as Ray allows.
    return cluster.add_node(num_cpus=2, resources={"slot": 2.0}, object_store_memory=80 << 20)


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
    """In one run: an actor is killed; a node with an actor disappears; it comes back."""
    expected, weights, _ = watched(config_of(), nothing)
    used_nodes = []

    def disturb(trainer, number):
        fleet = trainer.fleet
        if number == 3:
            os.kill(fleet.processes[0], signal.SIGKILL)
        if number == 6:
            cluster.remove_node(cluster.workers.pop(), allow_graceful=False)
        if number == 9:
            cluster.workers.append(add_node(cluster))
        used_nodes.append(fleet.timing()["actors_alive"])

    used, after, timing = watched(config_of(**ON_NODES, actor_timeout=60.0), disturb)
    assert used == expected and np.array_equal(weights, after)
    assert len({entry[:2] for entry in used}) == len(used) == 24  # none twice, none left out
    assert timing["actor_restarts"] >= 1 and timing["fragments_redone"] >= 1


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
                cluster.remove_node(cluster.workers.pop(), allow_graceful=False)
            deadline = time.monotonic() + 5
            while time.monotonic() < deadline:
                trainer.fleet._tend()
            cluster.workers += [add_node(cluster), add_node(cluster)]

    used, after, timing = watched(config_of(**ON_NODES), disturb)
    assert used == expected and np.array_equal(weights, after) and timing["actor_restarts"] >= 2


@pytest.mark.faults
def test_arrival_order_goes_on_while_a_node_is_away(cluster):
    config = config_of(order="arrival", num_actors=4, batch_fragments=2, **ON_NODES)

    def disturb(trainer, number):
        if number == 5:
            cluster.remove_node(cluster.workers.pop(), allow_graceful=False)
        if number == 30:
            cluster.workers.append(add_node(cluster))

    used, _, timing = watched(config, disturb, iterations=60)
    assert len({entry[:2] for entry in used}) == len(used) == 120
    assert timing["fragments_redone"] >= 1


def test_an_address_where_no_cluster_is_refused_in_one_line(tmp_path):
    """In a process of its own, since this one is connected; and nothing is left behind."""
    command = [
        sys.executable,
        "-m",
        "rl_training",
        "train",
        "impala/cartpole",
        "--run-dir",
        str(tmp_path / "run"),
    ]
    done = subprocess.run([*command, "fleet=ray", "ray_address=127.0.0.1:1"], capture_output=True, text=True)
    assert done.returncode == 2 and not (tmp_path / "run").exists()
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("error: ") and "ray_address" in last and "no cluster answers there" in last


@pytest.mark.faults
def test_the_embedded_cluster_listens_on_the_loopback_device_alone_and_goes_away(tmp_path):
    code = f"""
import json, subprocess
from rl_training import load_config, train
from rl_training.fleet import ray_fleet
def listening():
    out = subprocess.run(["ss", "-ltnpH"], capture_output=True, text=True).stdout
    names = ("raylet", "gcs_server", "ray::")
    return {{line.split()[3] for line in out.splitlines() if any(name in line for name in names)}}
before, launch = listening(), ray_fleet.RayFleet._launch  # the cluster of the other tests may be there
def launching(fleet, index):
    launch(fleet, index)
    print(json.dumps(sorted(listening() - before)))
ray_fleet.RayFleet._launch = launching
train(load_config("impala/cartpole", ["total_timesteps=256", "fleet=ray"]), run_dir={str(tmp_path / "run")!r})
print(json.dumps(sorted(listening() - before)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *_, rows, left = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert rows and all("127.0.0.1" in row for row in rows) and not left


@pytest.mark.parametrize(
    "changes", [dict(ray_address="auto"), dict(fleet="inline", ray_resources={"slot": 1.0})]
)
def test_settings_of_ray_need_ray(changes):
    with pytest.raises(ConfigError, match="needs fleet: ray"):
        config_of(**changes)
