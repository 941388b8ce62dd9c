"""Train, evaluate, load and resume, as a user does them with checkpoints."""

import json
import platform
import shutil

import gymnasium as gym
import numpy as np
import pytest
from runs import small_config

from rl_training import evaluate_checkpoint, load_config, load_policy, resume, train
from rl_training.errors import CheckpointError, ConfigError, RunError
from rl_training.runtime import workflows
from rl_training.state import checkpoints

KEYS = {"mean_return", "std_return", "min_return", "max_return", "mean_length", "episodes"}


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "cartpole"
    train(small_config("ppo-cartpole"), run_dir=path)
    return path


@pytest.fixture(scope="module")
def pendulum(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "pendulum"
    train(small_config("ppo-pendulum"), run_dir=path)
    return path


def newest(run_dir):
    return max((run_dir / "checkpoints").glob("step-*"))


def test_evaluation_returns_numbers_and_is_a_function_of_its_seed(cartpole):
    first = evaluate_checkpoint(cartpole, episodes=7, seed=1)
    assert first.keys() == KEYS and first["episodes"] == 7
    assert first["min_return"] <= first["mean_return"] <= first["max_return"]
    assert first["mean_return"] == first["mean_length"]  # CartPole pays 1 a step
    assert evaluate_checkpoint(cartpole, episodes=7, seed=1) == first
    assert evaluate_checkpoint(cartpole, episodes=7, seed=2) != first
    assert evaluate_checkpoint(cartpole, episodes=7, seed=1, sample=True) != first


def test_a_run_a_checkpoint_and_the_best_can_each_be_evaluated(cartpole):
    last = evaluate_checkpoint(cartpole, seed=1)
    assert evaluate_checkpoint(newest(cartpole), seed=1) == last
    assert evaluate_checkpoint(str(newest(cartpole)), seed=1) == last
    best = evaluate_checkpoint(cartpole, seed=1, checkpoint="best")
    assert evaluate_checkpoint(cartpole / "best", seed=1) == best


def test_the_best_is_the_one_with_the_highest_evaluation(cartpole):
    lines = [json.loads(line) for line in (cartpole / "metrics.jsonl").read_text().splitlines()]
    evaluations = [(line["eval/mean_return"], -line["step"]) for line in lines if "eval/mean_return" in line]
    assert checkpoints.checkpoint_step(cartpole / "best") == -max(evaluations)[1]


def test_a_checkpoint_alone_is_enough(cartpole, tmp_path):
    """The directory of one checkpoint, copied away from its run, can be evaluated and acted with."""
    copied = shutil.copytree(newest(cartpole), tmp_path / "elsewhere")
    assert evaluate_checkpoint(copied, seed=1) == evaluate_checkpoint(cartpole, seed=1)
    assert load_policy(copied).act(np.zeros(4, np.float32)) in (0, 1)


def play(policy, env_id, seed, episodes=3):
    """Episodes with a loaded policy and a plain environment; the mean return."""
    env = gym.make(env_id)
    total = 0.0
    for episode in range(episodes):
        obs, _ = env.reset(seed=seed + episode)
        over = False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(policy.act(obs))
            total += reward
            over = terminated or truncated
    return total / episodes


def test_a_loaded_policy_acts_in_the_environments_own_actions(pendulum):
    policy = load_policy(pendulum)
    action = policy.act(np.array([1.0, 0.0, 0.5], np.float32))
    assert action.shape == (1,) and policy.action_space.contains(action)
    batch = policy.act(np.zeros((5, 3), np.float32))
    assert batch.shape == (5, 1)
    assert -2000 < play(policy, "Pendulum-v1", 0) < 0


def test_an_observation_of_another_shape_is_refused(pendulum):
    policy = load_policy(pendulum)
    for wrong in (np.zeros(2), np.zeros(7), np.zeros((2, 7))):
        with pytest.raises(ValueError, match="shape"):
            policy.act(wrong.astype(np.float32))


def test_a_loaded_policy_sees_through_the_frozen_normaliser(pendulum):
    policy = load_policy(pendulum)
    before = policy.agent.normalizer.state_dict()
    count = before["moments"]["count"]
    assert count > 1000 and not np.allclose(before["moments"]["mean"], 0)
    evaluate_checkpoint(pendulum, episodes=3)
    play(policy, "Pendulum-v1", 0, episodes=1)
    assert policy.agent.normalizer.moments.count == count
    raw = np.array([[0.3, -0.4, 2.0]], np.float32)
    expected = (raw - before["moments"]["mean"]) / np.sqrt(before["moments"]["variance"] + 1e-8)
    np.testing.assert_allclose(policy.agent.inputs(raw).numpy(), expected, rtol=1e-5)


def test_resuming_a_finished_run_changes_nothing(cartpole):
    before = {path: path.read_bytes() for path in cartpole.rglob("*") if path.is_file()}
    result = resume(cartpole)
    assert result.metrics["eval/mean_return"] == pytest.approx(
        [json.loads(x) for x in (cartpole / "metrics.jsonl").read_text().splitlines()][-1]["eval/mean_return"]
    )
    assert {path: path.read_bytes() for path in cartpole.rglob("*") if path.is_file()} == before


def test_a_run_killed_before_its_first_checkpoint_starts_over(cartpole, tmp_path):
    run = shutil.copytree(cartpole, tmp_path / "run")
    shutil.rmtree(run / "checkpoints")
    shutil.rmtree(run / "best")
    resume(run)
    assert (run / "metrics.jsonl").read_bytes() == (cartpole / "metrics.jsonl").read_bytes()
    assert (newest(run) / "weights.safetensors").read_bytes() == (
        newest(cartpole) / "weights.safetensors"
    ).read_bytes()


@pytest.mark.parametrize("damage", ["torn", "flipped", "missing file", "empty"])
def test_a_damaged_checkpoint_is_replaced_by_the_one_before_it(damage, cartpole, tmp_path):
    run = shutil.copytree(cartpole, tmp_path / "run")
    victim = newest(run) / "state.safetensors"
    data = bytearray(victim.read_bytes())
    if damage == "torn":
        victim.write_bytes(data[: len(data) // 2])
    elif damage == "flipped":
        data[-1] ^= 1
        victim.write_bytes(data)
    elif damage == "missing file":
        victim.unlink()
    else:
        victim.write_bytes(b"")
    warnings = []

    class Listening(workflows.QuietDisplay):
        def warning(self, text):
            warnings.append(text)

    resume(run, display=Listening())
    assert len(warnings) == 1 and newest(run).name in warnings[0]
    assert (run / "metrics.jsonl").read_bytes() == (cartpole / "metrics.jsonl").read_bytes()
    for name in ("weights.safetensors", "state.safetensors", "state.json"):
        assert (newest(run) / name).read_bytes() == (newest(cartpole) / name).read_bytes()


def test_evaluating_an_older_checkpoint_than_the_newest_is_told(cartpole, tmp_path):
    run = shutil.copytree(cartpole, tmp_path / "run")
    victim = newest(run) / "weights.safetensors"
    victim.write_bytes(victim.read_bytes()[:-1])
    with pytest.warns(UserWarning, match=f"{newest(run).name}.*trying the previous one"):
        evaluate_checkpoint(run, episodes=1)


def test_a_run_of_a_newer_format_is_refused(cartpole, tmp_path):
    run = shutil.copytree(cartpole, tmp_path / "run")
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps(manifest | {"format": 99}))
    with pytest.raises(RunError, match="newer"):
        resume(run)


def test_what_is_not_a_run_is_refused_in_one_line(tmp_path):
    for call in (resume, evaluate_checkpoint, load_policy):
        with pytest.raises((RunError, CheckpointError)) as error:
            call(tmp_path / "nothing")
        assert "\n" not in str(error.value)


def test_a_module_is_imported_from_a_run_only_on_trust(tmp_path, monkeypatch):
    module = tmp_path / "own_env.py"
    module.write_text(
        "import gymnasium as gym\n"
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        "gym.register('Own-v0', entry_point=CartPoleEnv, max_episode_steps=50)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    config = small_config("ppo-cartpole", env_id="own_env:Own-v0", total_timesteps=256)
    train(config, run_dir=tmp_path / "run")
    for call in (resume, evaluate_checkpoint):
        with pytest.raises(ConfigError, match="trust"):
            call(tmp_path / "run")
        call(tmp_path / "run", trust_env=True)
    assert load_policy(tmp_path / "run").act(np.zeros(4, np.float32)) in (0, 1)


def test_the_stored_config_is_the_config(cartpole):
    assert load_config(cartpole / "config.yaml") == small_config("ppo-cartpole")


def test_the_manifest_says_what_made_the_run(cartpole):
    manifest = json.loads((cartpole / "manifest.json").read_text())
    assert manifest["format"] == 2 and manifest["threads"] == 1
    assert manifest["keeps_freed_memory"] is (platform.libc_ver()[0] == "glibc")
    assert {"python", "torch", "numpy", "gymnasium"} <= manifest["versions"].keys()
    assert manifest["config"]["env_id"] == "CartPole-v1"


REPLAY_RUNS = ["sac-pendulum", "dqn-cartpole"]


@pytest.fixture(scope="module", params=REPLAY_RUNS)
def with_replay(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / request.param
    train(small_config(request.param), run_dir=path)
    return path


def test_the_agent_is_rebuilt_from_the_checkpoint_alone(with_replay, tmp_path):
    """No replay, no run directory: evaluation, acting and `best` need none of them."""
    score = evaluate_checkpoint(with_replay, seed=1)
    copied = shutil.copytree(newest(with_replay), tmp_path / "elsewhere")
    assert evaluate_checkpoint(copied, seed=1) == score and score.keys() == KEYS
    greedy, sampled = (evaluate_checkpoint(copied, episodes=20, sample=sample) for sample in (False, True))
    assert greedy != sampled
    policy = load_policy(copied)
    assert policy.action_space.contains(np.asarray(policy.act(policy.observation_space.sample())))
    assert "segments" not in json.loads((with_replay / "best" / "state.json").read_text())
    assert evaluate_checkpoint(with_replay, seed=1, checkpoint="best").keys() == KEYS


def test_a_checkpoint_lists_the_segments_there_and_no_others_are_kept(with_replay):
    listed = set()
    for path in (with_replay / "checkpoints").glob("step-*"):
        listed |= json.loads((path / "state.json").read_text())["segments"].keys()
    assert listed == {path.name for path in (with_replay / "replay").iterdir()}
    assert len(listed) > 10


@pytest.mark.parametrize("damage", ["flipped", "missing"])
def test_a_damaged_segment_costs_its_checkpoint_and_not_the_run(damage, with_replay, tmp_path):
    run = shutil.copytree(with_replay, tmp_path / "run")
    names = [
        set(json.loads((path / "state.json").read_text())["segments"])
        for path in sorted((run / "checkpoints").glob("step-*"))
    ]
    victim = run / "replay" / min(names[1] - names[0])  # listed by the newest alone
    data = bytearray(victim.read_bytes())
    data[-1] ^= 1
    victim.unlink() if damage == "missing" else victim.write_bytes(data)
    warnings = []

    class Listening(workflows.QuietDisplay):
        def warning(self, text):
            warnings.append(text)

    resume(run, display=Listening())
    assert len(warnings) == 1 and victim.name in warnings[0]
    assert (run / "metrics.jsonl").read_bytes() == (with_replay / "metrics.jsonl").read_bytes()
    for path in newest(with_replay).iterdir():
        assert (newest(run) / path.name).read_bytes() == path.read_bytes()
    assert victim.exists()


def test_a_run_whose_replay_is_gone_says_so(with_replay, tmp_path):
    run = shutil.copytree(with_replay, tmp_path / "run")
    shutil.rmtree(run / "replay")
    with pytest.raises(CheckpointError, match="none of the 2 checkpoints can be read"):
        resume(run)


@pytest.mark.parametrize("name", ["checkpoints", "best", "replay", "tensorboard", "wandb"])
def test_a_run_whose_parts_are_links_is_refused(name, cartpole, tmp_path):
    """What is written and removed in them would be outside of the run."""
    run = shutil.copytree(cartpole, tmp_path / "run")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine").write_text("mine")
    shutil.rmtree(run / name, ignore_errors=True)
    (run / name).symlink_to(elsewhere)
    for call in (resume, evaluate_checkpoint, load_policy):
        with pytest.raises(RunError, match="link"):
            call(run)
    assert [path.name for path in elsewhere.iterdir()] == ["mine"]


FORGERIES = {
    "no config": lambda policy: policy.pop("config"),
    "config is a list": lambda policy: policy.update(config=[1]),
    "unknown space": lambda policy: policy["action_space"].update(type="os.system"),
    "no agent": lambda policy: policy.pop("agent"),
    "negative actions": lambda policy: policy["action_space"].update(n=-3),
    "endless actions": lambda policy: policy["action_space"].update(n=10**12),
    "other layers": lambda policy: policy["config"].update(hidden_sizes=[9]),
    "huge layers": lambda policy: policy["config"].update(hidden_sizes=[10**12]),
    "reads another file": lambda policy: policy["config"].update(extends="/etc/passwd"),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_checkpoint_is_refused_in_one_line(forgery, cartpole, tmp_path):
    """Whole byte for byte, with right checksums, and nonsense inside."""
    tree = checkpoints.load_checkpoint(newest(cartpole))
    FORGERIES[forgery](tree["policy"])
    path = checkpoints.save_checkpoint(tmp_path, 1, tree, 2)
    for call in (evaluate_checkpoint, load_policy):
        with pytest.raises((CheckpointError, ConfigError)) as error:
            call(path)
        assert "\n" not in str(error.value) and "passwd:" not in str(error.value)


def test_an_edited_config_is_refused_on_resume(cartpole, tmp_path):
    run = shutil.copytree(cartpole, tmp_path / "run")
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(text.replace("num_envs: 4", "num_envs: 3"))
    with pytest.raises(ConfigError, match="num_envs"):
        resume(run)
