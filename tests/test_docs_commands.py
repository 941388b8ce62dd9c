"""The pages of the verbs, done: their commands are run in order, with the files they show."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from test_cli import cli
from test_docs import DOCS, blocks

PAGES = ("doctor", "export", "fork", "play", "trackers", "tune")
ELSEWHERE = ("pip", "tensorboard", "wandb", "mlflow")  # commands of others, which are not ours to run


def commands(text: str) -> list[list[str]]:
    """The commands of a page's shell blocks, without comments."""
    lines = "\n".join(blocks(text, "sh")).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True) for line in lines if line.strip()]


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_the_page_works(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (DOCS / f"{page}.md").read_text("utf-8")
    for block in blocks(text, "yaml"):
        name = re.match(r"# (\w+\.yaml)\n", block)
        assert name, f"the first line of a file on {page}.md says its name"
        Path(name[1]).write_text(block)
    done = [words for words in commands(text) if words[0] not in ELSEWHERE]
    assert any(page in words or page == "trackers" for words in done), (
        f"{page}.md shows no command of its own"
    )
    for words in done:
        while re.match(r"[A-Z_]+=", words[0]):  # a variable of the shell
            monkeypatch.setenv(*words.pop(0).split("="))
        assert words[0] == "rl-training", words
        result = cli(*words[1:])
        assert result.exit_code == 0, f"{shlex.join(words)}: {result.output}"
    for block in blocks(text, "python"):
        exec(compile(block, page, "exec"), {})
