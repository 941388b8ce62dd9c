"""The documentation, done: commands of every page in order, with the files they show, and all of its Python."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from test_cli import cli
from test_docs import DOCS, PAGES, ROOT, blocks

from rl_training.runtime import workflows

# Commands of others, and those that install or measure for hours: not ours to run here.
ELSEWHERE = ("pip", "pre-commit", "make", "cd", ".", "python3", "tensorboard", "wandb", "mlflow")
HOURS = ("python", "-m", "benchmarks")
# What a page takes for granted, as commands.
BEFORE = {
    "demonstrations": ["rl-training train ppo/cartpole"],
    "algorithms/dreamer": ["rl-training train dreamer/cartpole total_timesteps=400"],
}
# Pages whose trainings are done as they are written; all others are cut short.
AS_WRITTEN = {
    "diagnose",
    "doctor",
    "evolve",
    "export",
    "trackers",
    "fork",
    "play",
    "report",
    "seeds",
    "compare",
    "index",
    "results",
    "scaling",
    "tune",
}
SLOW = {"README", "first_steps", "seeds", "compare", "demonstrations", "own_algorithm", "results"}
SLOW |= {"algorithms/gail", "algorithms/dreamer"}
STEPS = 1500
WITHOUT_LEARNING = 300  # enough where learning would not begin within STEPS anyway


def commands(text: str) -> list[list[str]]:
    """The commands of a page's shell blocks, without comments."""
    lines = "\n".join(blocks(text, "sh")).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True) for line in lines if line.strip()]


def ours(words: list[str]) -> bool:
    return words[0] not in ELSEWHERE and tuple(words[:3]) != HOURS


def name_of(page: Path) -> str:
    return page.relative_to(DOCS if DOCS in page.parents else ROOT).with_suffix("").as_posix()


TEXTS = {name_of(page): page.read_text("utf-8") for page in PAGES}
DONE = [
    pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name
    for name, text in TEXTS.items()
    if any(map(ours, commands(text))) or blocks(text, "python")
]


def run(words: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    while re.match(r"[A-Z_]+=", words[0]):  # a variable of the shell
        monkeypatch.setenv(*words.pop(0).split("="))
    if words[0] == "rl-training":
        result = cli(*words[1:])
        assert result.exit_code == 0, f"{shlex.join(words)}: {result.output}"
    else:
        assert words[0] == "python" and words[1].startswith("examples/"), words
        command = [sys.executable, str(ROOT / words[1]), *words[2:]]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{shlex.join(words)}: {done.stdout}{done.stderr}"


def cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patch what the command, the Python function and seeds all train by."""
    whole = workflows.train_until_stopped

    def train(config: Any, **options: Any) -> Any:
        learns = getattr(config, "learning_starts", 0) < STEPS
        changes = dict(total_timesteps=min(config.total_timesteps, STEPS), eval_episodes=1)
        if not learns:
            changes |= dict(total_timesteps=WITHOUT_LEARNING, max_episode_steps=100)
        return whole(config.model_copy(update=changes), **options)

    monkeypatch.setattr(workflows, "train_until_stopped", train)


@pytest.mark.parametrize("page", DONE)
def test_every_command_and_every_block_of_the_page_works(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    shutil.copytree(ROOT / "examples", "examples")  # as in a clone, whose root is the working directory
    text = TEXTS[page]
    Path("my.yaml").write_text("extends: ppo/cartpole\n")
    for block in (*blocks(text, "yaml"), *blocks(text, "python")):
        if name := re.match(r"# (\w+\.(yaml|py))\n", block):
            Path(name[1]).write_text(block)
    if page not in AS_WRITTEN:
        cut_short(monkeypatch)
    for words in map(shlex.split, BEFORE.get(page, ())):
        run(words, tmp_path, monkeypatch)
    for words in filter(ours, commands(text)):
        if words[0] == "export":  # a path of the checkout
            name, _, value = words[1].partition("=")
            monkeypatch.setenv(name, str(ROOT / value))
            monkeypatch.syspath_prepend(str(ROOT / value))
        else:
            # Seeds train in processes of their own, where nothing is patched.
            seeds = "--seeds" in words and page not in AS_WRITTEN
            run([*words, f"total_timesteps={STEPS}"] if seeds else words, tmp_path, monkeypatch)
    for block in blocks(text, "python"):
        exec(compile(block, page, "exec"), {"__name__": page})


@pytest.mark.parametrize("verb", ["doctor", "export", "fork", "play", "report", "compare"])
def test_the_page_of_a_verb_shows_it(verb: str) -> None:
    assert any(words[:2] == ["rl-training", verb] for words in commands(TEXTS[verb]))
    assert any("--seeds" in words for words in commands(TEXTS["seeds"]))


@pytest.mark.parametrize(
    ("page", "example"),
    [
        ("own_algorithm", "reinforce"),
        ("own_environment", "corridor"),
        ("observers", "patience"),
        ("own_network", "residual"),
    ],
)
def test_the_examples_are_those_on_the_pages(page: str, example: str) -> None:
    shown = blocks(TEXTS[page], "python")[0]
    assert shown == (ROOT / "examples" / f"{example}.py").read_text("utf-8")


def test_the_site_is_built_without_warnings(tmp_path: Path) -> None:
    pytest.importorskip("zensical")  # which needs Python 3.11
    command = [sys.executable, str(DOCS / "build_site.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    ppo = (tmp_path / "site" / "algorithms" / "ppo.html").read_text("utf-8")
    assert 'href="../code/algorithms/ppo.py.html"' in ppo, "names of source files are links"
    assert "clip_coef" in (tmp_path / "site" / "code" / "algorithms" / "ppo.py.html").read_text("utf-8")


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    shown = re.findall(r'= "([\w/]+\.md)"', (ROOT / "zensical.toml").read_text("utf-8"))
    assert sorted(shown) == sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))
