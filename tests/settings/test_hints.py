"""What a newcomer writes first, and where the package leads from there."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from runs import small_config

import rl_training
from rl_training import load_config, train
from rl_training.cli import app
from rl_training.envs.making import make_env
from rl_training.errors import ConfigError, UntrustedError
from rl_training.monitoring.display import QuietDisplay
from rl_training.registry import ALGORITHMS, trainer_class
from rl_training.runtime.workflows import evaluate_checkpoint, resume
from rl_training.settings.foreign_names import HINTS
from rl_training.settings.keys import accepted_keys
from rl_training.settings.loading import load_run_config
from rl_training.tools.forking import fork

# Arguments of stable-baselines3, its zoo and CleanRL, and what each is told.
TOLD = {
    "ppo batch_size=64": "here it is num_minibatches (a minibatch has num_envs * num_steps / num_minibatches",
    "ppo n_timesteps=1e6": "here it is total_timesteps",
    "ppo n_steps=2048": "here it is num_steps",
    "ppo n_envs=8": "here it is num_envs",
    "ppo policy=MlpPolicy": "here it is hidden_sizes (the network follows from the observation; see activation",
    "ppo policy_kwargs={}": "here it is hidden_sizes",
    "ppo activation_fn=relu": "here it is activation",
    "ppo frame_skip=4": "a setting of the environment: env_kwargs: {frame_skip: ...}",
    "ppo normalize=true": "here it is normalize_observations (and normalize_rewards)",
    "ppo normalize_advantage=true": "here it is normalize_advantages",
    "ppo use_sde=true": "state-dependent exploration is not here",
    "ppo tensorboard_log=logs": "here it is tensorboard",
    "ppo verbose=1": "--quiet shows warnings only",
    "ppo anneal_lr=true": "here it is learning_rate (learning_rate_schedule: linear lets it fall to 0)",
    "ppo clip_vloss=true": "here it is value_clip_coef",
    "ppo norm_adv=true": "here it is normalize_advantages",
    "ppo cuda=true": "here it is device (cpu, cuda or cuda:N)",
    "ppo track=true": "here it is wandb",
    "ppo capture_video=true": "rl-training play RUN --video FILE",
    "ppo exp_name=mine": "--run-dir names where a run is written",
    "ppo torch_deterministic=true": "every run is deterministic",
    "dqn exploration_fraction=0.5": "here it is epsilon (epsilon_schedule: {type: linear",
    "dqn start_e=1": "here it is epsilon",
    "dqn train_freq=4": "here it is train_frequency",
    "dqn gradient_steps=1": "here it is replay_ratio (updates per environment step)",
    "dqn target_network_frequency=500": "here it is target_update_interval (counted in updates)",
    "dqn n_steps=3": "here it is n_step",
    "sac q_lr=1e-3": "here it is critic_learning_rate",
    "sac autotune=true": "here it is ent_coef (auto learns it)",
    "ppo sde_sample_freq=4": "state-dependent exploration is not here",
    "sac use_sde_at_warmup=true": "state-dependent exploration is not here",
    "ppo stats_window_size=100": "here it is log_interval (episodes are averaged between two log lines)",
    "dqn replay_buffer_class=Mine": "here it is buffer_size (the replay is built in; DQN's is prioritised with",
    "sac replay_buffer_kwargs={}": "here it is buffer_size (the replay is built in",
    "dqn optimize_memory_usage=true": "the replay stores each observation once",
    "ppo rollout_buffer_class=Mine": "rollouts are built in; num_envs and num_steps set their size",
    "ppo optimizer_class=Adam": "every algorithm has its own optimizer; learning_rate and max_grad_norm are keys",
    "ppo optimizer_kwargs={}": "every algorithm has its own optimizer",
    "ppo ortho_init=false": "dense and convolutional layers start orthogonal",
    "ppo features_extractor_kwargs={}": "here it is image_encoder",
    "ppo share_features_extractor=true": "here it is shared_trunk",
    "ppo vec_env_wrapper=Mine": "here it is env_id (register an environment with the wrapper around it",
    "ppo callback=Mine": "there are no callbacks; eval_interval and checkpoint_interval",
    "ppo progress_bar=true": "progress is shown by default",
    "sac action_noise=Mine": "exploration is the algorithm's own: DQN has epsilon, SAC ent_coef",
    "a2c use_rms_prop=false": "here it is optimizer",
    "a2c rms_prop_eps=1e-5": "here it is optimizer_epsilon",
    "ppo wandb_entity=me": "here it is wandb (the entity is that of the variable WANDB_ENTITY)",
    "ppo hf_entity=me": "nothing is uploaded",
    "ppo upload_model=true": "nothing is uploaded; rl-training export",
    "dqn target_q_update_interval=500": "here it is target_update_interval",
    "sac policy_frequency=2": "here it is policy_delay (one actor update, not as many as were left out)",
    "ppo normalize_kwargs={}": "here it is normalize_observations (and normalize_rewards; both take true or false)",
    "ppo monitor_kwargs={}": "episodes are counted without a monitor",
    "sac qf_kwargs={}": "here it is hidden_sizes",
    "ppo num_timesteps=1e6": "here it is total_timesteps",
    "ppo gradient_steps=1": "algorithms that have it call it replay_ratio",
    "ppo policy_lr_schedule=linear": "here it is learning_rate_schedule",
}


def said(arguments: list[str], capsys: Any) -> tuple[int, str]:
    """A command's exit code and what it says on stderr."""
    with pytest.raises(SystemExit) as ended:
        app(arguments, prog_name="rl-training")
    return int(ended.value.code or 0), capsys.readouterr().err


@pytest.mark.parametrize("written", TOLD)
def test_an_argument_of_another_library_leads_to_ours(written: str, capsys: Any) -> None:
    algo, override = written.split(" ", 1)
    shipped = "sac/pendulum" if algo == "sac" else f"{algo}/cartpole"
    code, err = said(["train", shipped, override], capsys)
    key = override.partition("=")[0]
    assert code == 2 and err.startswith(f"error: {override}: {key} is no key of {algo}; {TOLD[written]}")
    assert err.count("\n") == 1


def test_hints_name_keys_that_are_there_and_hide_none_that_is() -> None:
    every = {name: accepted_keys(trainer_class(name).config_class) for name in ALGORITHMS}
    for key, hint in HINTS.items():
        for ours in hint.keys:
            assert any(ours in keys for keys in every.values()), ours
        if key != "batch_size":
            assert not any(key in keys for keys in every.values()), key
    assert load_config("dqn/cartpole", batch_size=8).batch_size == 8


@pytest.mark.parametrize("part", ["_schedule", "_warmup_steps"])
def test_a_schedule_of_another_librarys_name_says_what_is_fixed(part: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config("ppo/cartpole", [f"n_steps{part}=1"])
    told = f"n_steps{part}: here n_steps is num_steps, which is fixed for the whole run; what can move are "
    assert told in str(refused.value) and "n_epochs" not in str(refused.value)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("ppo/cartpole env_id=cartpole", "did you mean CartPole-v1?"),
        ("ppo/cartpole env_id=lunarlander-v2", "did you mean LunarLander-v3?"),
        ("ppo/cartpole algo=PPO", "did you mean ppo?"),
        ("PPO", "ppo is an algorithm, and its shipped configs are ppo/"),
        ("dqn", "dqn is an algorithm, and its shipped configs are dqn/acrobot, dqn/cartpole"),
        ("PPO/CartPole", "did you mean ppo/cartpole?"),
        ("mine.yml", "did you mean mine.yaml?"),
        ("nothere.yaml", "no such file; `rl-training list` shows the shipped configs"),
    ],
)
def test_what_is_not_there_gets_a_hint(
    words: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("algo: ppo\nenv_id: CartPole-v1\n")
    code, err = said(["train", *words.split()], capsys)
    assert code == 2 and told in err and err.count("\n") == 1


def test_check_env_takes_a_class_of_a_file_and_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(folder)
    for arguments, told in ((["--help"], "FILE.py:Class"), (["corridor.py:Corridor"], "ok    step")):
        with pytest.raises(SystemExit):
            app(["check-env", *arguments], prog_name="rl-training")
        assert told in capsys.readouterr().out


def test_a_field_of_a_config_cannot_be_deleted() -> None:
    config = load_config("ppo/cartpole")
    with pytest.raises(ConfigError, match="seed: a config cannot be changed; load_config makes another"):
        del config.seed


def test_resume_with_changes_names_fork(capsys: Any) -> None:
    code, err = said(["resume", "runs/my run", "total_timesteps=200_000"], capsys)
    told = "fork it: rl-training fork 'runs/my run' total_timesteps=200_000"
    assert code == 2 and told in err


def test_what_is_printed_after_a_run_can_be_pasted_and_plays_it(tmp_path: Path, capsys: Any) -> None:
    run = tmp_path / "my run"
    settings = ["total_timesteps=256", "num_envs=2", "eval_episodes=1", f"--run-dir={run}", "--quiet"]
    with pytest.raises(SystemExit) as ended:
        app(["train", "ppo/cartpole", *settings], prog_name="rl-training")
    assert not ended.value.code
    lines = capsys.readouterr().out.splitlines()
    assert f"play it      rl-training play '{run}'" in lines
    assert f"evaluate it  rl-training evaluate '{run}'" in lines


def test_merge_keys_are_refused_by_name(tmp_path: Path) -> None:
    config = tmp_path / "a.yaml"
    config.write_text("base: &base {seed: 2}\n<<: *base\nalgo: ppo\nenv_id: CartPole-v1\n")
    with pytest.raises(
        ConfigError, match=r"a.yaml:2: merge keys \(<<\) are not supported; use `extends: CONFIG`$"
    ):
        load_config(config)


def test_a_refused_fork_says_in_one_short_line_what_changed(tmp_path: Path) -> None:
    train(small_config("ppo-cartpole", total_timesteps=256), run_dir=tmp_path / "run", quiet=True)
    with pytest.raises(
        ConfigError, match=r"^normalize_rewards, hidden_sizes: the state of step-000000000256 does not fit"
    ) as refused:
        fork(
            tmp_path / "run",
            {"hidden_sizes": [8], "total_timesteps": 512, "normalize_rewards": True, "gamma": 0.9},
            run_dir=tmp_path / "fork",
            quiet=True,
        )
    assert len(str(refused.value)) < 160


ENVIRONMENT = """
import gymnasium as gym
import numpy as np
from gymnasium import spaces

class Corridor(gym.Env):
    observation_space = spaces.Box(0, 9, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, length=5):
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.place = max(0, self.place + (1 if action else -1))
        done = self.place >= self.length
        return np.full(1, self.place, np.float32), float(done), done, False, {}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a config, an environment beside it, and a trap: a numpy of its own."""
    tmp_path = tmp_path / "downloaded"
    tmp_path.mkdir()
    (tmp_path / "corridor.py").write_text(ENVIRONMENT)
    (tmp_path / "numpy.py").write_text("raise SystemExit('shadowed')")
    (tmp_path / "mine.yaml").write_text(
        "algo: ppo\nenv_id: corridor.py:Corridor\nenv_kwargs: {length: 3}\nmax_episode_steps: 20\n"
        "total_timesteps: 64\nnum_envs: 2\nnum_steps: 16\neval_episodes: 1\n"
    )
    return tmp_path


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_an_environment_of_a_file_beside_the_config_trains(folder: Path, vectorization: str) -> None:
    before = list(sys.path)
    config = load_config(folder / "mine.yaml", vectorization=vectorization)
    assert config.env_id == f"{folder / 'corridor.py'}:Corridor" and config.env_name == "corridor-Corridor"
    result = train(config, run_dir=folder / "run", quiet=True)
    assert sys.path == before and result.metrics["episodes"] > 0


def test_a_run_counts_its_file_as_foreign_code(folder: Path) -> None:
    train(load_config(folder / "mine.yaml"), run_dir=folder / "run", quiet=True)
    for call in (resume, evaluate_checkpoint):
        with pytest.raises(UntrustedError, match=r"corridor\.py"):
            call(folder / "run")
    assert evaluate_checkpoint(folder / "run", trust=True, episodes=1)["episodes"] == 1
    written = (folder / "run/config.yaml").read_text()
    (folder / "run/config.yaml").write_text(written.replace("seed: 1", "seed: 2"))
    with pytest.raises(ConfigError, match=r"rl-training fork .* seed=2 --trust$"):
        resume(folder / "run", trust=True)


def test_a_file_inside_of_a_run_is_never_found_by_a_short_name(folder: Path) -> None:
    """Someone else's run directory, with code in it: not even `train RUN/config.yaml` runs that."""
    train(load_config(folder / "mine.yaml"), run_dir=folder / "run", quiet=True)
    path = folder / "run/config.yaml"
    text = path.read_text()
    (folder / "run/trap.py").write_text("raise SystemExit('trapped')")
    lines = [line for line in text.splitlines() if not line.startswith("env_id")]
    path.write_text("\n".join([*lines, "env_id: trap.py:Trap"]))
    with pytest.raises(ConfigError, match="a run names such a file by its full path"):
        load_config(path)


def test_a_file_that_no_config_names_is_looked_for_in_the_working_directory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    full = f"{folder / 'corridor.py'}:Corridor"
    name = {"env_id": "corridor.py:Corridor"}
    assert load_config("ppo/cartpole", ["env_id=corridor.py:Corridor"]).env_id == full
    assert load_config("ppo/cartpole", name).env_id == full
    assert load_config({"algo": "ppo"} | name).env_id == full
    with pytest.raises(ConfigError, match="a run names such a file by its full path"):
        load_run_config({"algo": "ppo"} | name)


def test_a_missing_module_or_file_says_how_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a class of a file beside the config is named FILE\.py:Class$"):
        make_env("my_env_that_is_not:Mine-v0", {}, None)
    with pytest.raises(ConfigError, match="no file"):
        make_env(f"{tmp_path}/nothing.py:Mine", {}, None)


def test_the_package_has_what_the_command_line_has() -> None:
    for name in ("train", "resume", "fork", "compare", "report", "tune", "load_config"):
        assert callable(getattr(rl_training, name)) and name in rl_training.__all__


def test_compare_and_report_from_python(tmp_path: Path) -> None:
    for seed in (1, 2):
        config = small_config("ppo-cartpole", total_timesteps=256, eval_interval=128, seed=seed)
        train(config, run_dir=tmp_path / f"runs/s{seed}", display=QuietDisplay())
    compared = rl_training.compare(tmp_path / "runs")
    assert [len(group.scores) for groups in compared.tasks.values() for group in groups] == [2]
    assert rl_training.report(tmp_path / "runs/s1", tmp_path / "page.html", video=False).is_file()
