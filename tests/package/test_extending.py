"""An algorithm of one's own under a name: what is exported for it, and every command on its runs."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from runs import EXAMPLES, small_config
from test_cli import cli, refused

import rl_training
from rl_training import registry, train
from rl_training.errors import ConfigError

ROOT = Path(__file__).parents[2]
NAMES = (
    "Config",
    "field",
    "knob",
    "Trainer",
    "OnPolicyTrainer",
    "OffPolicyTrainer",
    "Adam",
    "register",
    "Policy",
)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed package that brings REINFORCE, and the working directory beside it."""
    site = tmp_path / "site"
    shutil.copytree(EXAMPLES, site, ignore=lambda _, names: set(names) - {"reinforce.py"})
    (site / "reinforce.py").rename(site / "brought_reinforce.py")
    text = (site / "brought_reinforce.py").read_text().replace('register("reinforce", ReinforceTrainer)', "")
    (site / "brought_reinforce.py").write_text(text)
    info = site / "brought-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: brought\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(
        f"[{registry.ENTRY_POINTS}]\nbrought = brought_reinforce:BroughtTrainer\n"
    )
    with (site / "brought_reinforce.py").open("a") as file:
        file.write("\n\nclass BroughtConfig(ReinforceConfig):\n    algo: Literal['brought'] = 'brought'\n")
        file.write("\n\nclass BroughtTrainer(ReinforceTrainer):\n    config_class = BroughtConfig\n")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.chdir(tmp_path)
    yield site
    sys.modules.pop("brought_reinforce", None)


def test_every_command_opens_the_runs_of_an_installed_algorithm(package):
    pytest.importorskip("imageio_ffmpeg")
    Path("own.yaml").write_text(
        "algo: brought\nenv_id: CartPole-v1\ntotal_timesteps: 512\nnum_steps: 32\neval_episodes: 1\n"
    )
    listed = cli("list").stdout
    assert "brought" in listed
    for words in (
        ["train", "own.yaml", "--run-dir", "run", "--quiet"],
        ["resume", "run", "--quiet"],
        ["evaluate", "run", "--episodes", "1"],
        ["report", "run", "--no-video"],
        ["compare", "run"],
        ["play", "run", "--video", "played.mp4", "--episodes", "1"],
        ["export", "run", "--to", "policy.pt2"],
        ["fork", "run", "total_timesteps=640", "--run-dir", "fork", "--quiet"],
        ["describe", "brought"],
    ):
        done = cli(*words)
        assert done.exit_code == 0, f"{words}: {done.output}"
    home = json.loads(Path("run/manifest.json").read_text())["algorithm"]
    assert home == {"trainer": "brought_reinforce:BroughtTrainer", "package": "brought 1.2"}
    shutil.rmtree(package / "brought-1.2.dist-info")
    for words in (
        ["resume"],
        ["evaluate"],
        ["fork"],
        ["play", "--video", "a.mp4"],
        ["export", "--to", "a.pt2"],
    ):
        refused(
            cli(words[0], "run", *words[1:]),
            "unknown algorithm 'brought'; this run's was brought_reinforce:BroughtTrainer",
            "of the package brought 1.2: install it",
        )
    assert cli("report", "run", "--no-video").exit_code == 0  # reads what was written, and needs no trainer


def test_a_registered_name_is_known_and_its_absence_says_what_to_import(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "ALGORITHMS", dict(registry.ALGORITHMS))
    config = small_config("own-algorithm", total_timesteps=128, eval_episodes=1)
    rl_training.register("mine", type(config.algo_name, (registry.trainer_class(config.algo),), {}))
    trainer = registry.ALGORITHMS["mine"]
    trainer.config_class = registry._named(trainer.config_class, "mine")
    train(
        trainer.config_class(env_id="CartPole-v1", total_timesteps=128, eval_episodes=1),
        run_dir=tmp_path / "run",
    )
    del registry.ALGORITHMS["mine"]
    refused(
        cli("resume", tmp_path / "run"),
        "unknown algorithm 'mine'; this run's was ",
        "; import the module that",
    )
    with pytest.raises(
        ConfigError, match=r"unknown algorithm 'mine'.*install the package or import the module"
    ):
        registry.trainer_class("mine")


@pytest.mark.parametrize(
    ("name", "said"), [("ppo", "is a shipped algorithm"), ("my:algo", "cannot be the name of an algorithm")]
)
def test_a_name_that_would_be_mistaken_is_refused(name, said):
    with pytest.raises(ConfigError, match=said):
        rl_training.register(name, object)


def test_the_surface_is_exported_lazily_and_listed_on_its_page():
    page = (ROOT / "docs" / "extending.md").read_text("utf-8")
    for name in NAMES:
        assert name in rl_training.__all__ and getattr(rl_training, name) is not None
    for name in set(rl_training._HOMES) - {"load_config", "train", "resume", "fork", "evaluate_checkpoint"}:
        assert (
            name in ("load_policy", "report", "compare", "tune", "train_seeds", "evolve")
            or f"`{name}`" in page
        ), name
    code = "import sys, rl_training; print(sorted({'torch', 'gymnasium', 'pydantic'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
