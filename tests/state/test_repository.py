"""The commit in a manifest: right about what differs, and found without running anything of the repository's."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from rl_training.state.run_directory import git_state

USER = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
HOOKS = ("post-index-change", "reference-transaction", "post-checkout", "pre-auto-gc", "fsmonitor-watchman")

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


def git(*arguments, folder="."):
    done = subprocess.run(["git", *USER, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def make_repository(path):
    path.mkdir()
    git("init", "--quiet", folder=path)
    (path / "inner").mkdir()
    (path / "code.py").write_text("one\n")
    (path / "inner" / "data.txt").write_text("two\n")
    (path / "link").symlink_to("code.py")
    git("add", ".", folder=path)
    git("commit", "--quiet", "--message", "first", folder=path)
    return path


@pytest.fixture
def repository(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    path = make_repository(tmp_path / "repository")
    monkeypatch.chdir(path)
    return path


def in_another_time(path):
    os.utime(path, ns=(1, 10**18 + 1))


CHANGES = {
    "nothing": (lambda path: None, False),
    "an untracked file": (lambda path: (path / "new").write_text("new\n"), False),
    "another time": (lambda path: in_another_time(path / "code.py"), False),
    "another size": (lambda path: (path / "code.py").write_text("three\n"), True),
    "other bytes of the same size": (
        lambda path: ((path / "code.py").write_text("uno\n"), in_another_time(path / "code.py")),
        True,
    ),
    "a file that is gone": (lambda path: (path / "inner" / "data.txt").unlink(), True),
    "a file in the place of a link": (
        lambda path: ((path / "link").unlink(), (path / "link").write_text("code.py")),
        True,
    ),
    "another link": (
        lambda path: ((path / "link").unlink(), (path / "link").symlink_to("xxxx.py")),
        True,
    ),
    "a staged file": (lambda path: ((path / "code.py").write_text("uno\n"), git("add", ".")), True),
    "a staged and deleted file": (lambda path: git("rm", "--quiet", "code.py"), True),
    "a file that git was told to leave alone": (
        lambda path: (git("update-index", "--skip-worktree", "code.py"), (path / "code.py").unlink()),
        False,
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_state_says_the_commit_and_what_differs(change, repository, monkeypatch):
    act, dirty = CHANGES[change]
    act(repository)
    expected = {"commit": git("rev-parse", "HEAD"), "dirty": dirty}
    assert git_state() == expected
    monkeypatch.chdir(repository / "inner")
    assert git_state() == expected  # whichever folder of the repository a run is started from


def test_other_forms_of_a_repository(repository, tmp_path, monkeypatch):
    git("pack-refs", "--all")
    git("gc", "--quiet")
    commit = git("rev-parse", "HEAD")
    assert git_state() == {"commit": commit, "dirty": False}
    git("worktree", "add", "--quiet", str(tmp_path / "second"), "-b", "other")
    monkeypatch.chdir(tmp_path / "second")
    assert git_state() == {"commit": commit, "dirty": False}
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    assert git_state() is None
    git("init", "--quiet")
    assert git_state() is None  # no commit yet


def set_traps(path, trap):
    """Name in a repository every program that git might start; each says that it was, in the folder `trap`."""

    def program(name):
        script = trap.parent / f"{name}.sh"
        script.write_text(f'#!/bin/sh\ntouch "{trap}/{name}"\n')
        script.chmod(0o755)
        return str(script)

    hooks = trap.parent / "hooks"
    hooks.mkdir(exist_ok=True)
    for name in HOOKS:
        shutil.copy(program(name), hooks / name)
        shutil.copy(program(name), path / ".git" / "hooks" / name)
    settings = {
        "core.hooksPath": str(hooks),
        "core.fsmonitor": program("fsmonitor"),
        "core.sshCommand": program("ssh"),
        "core.gitProxy": program("proxy"),
        "core.pager": program("pager"),
        "core.editor": program("editor"),
        "core.alternateRefsCommand": program("alternates"),
        "credential.helper": program("credential"),
        "gpg.program": program("gpg"),
        "diff.external": program("external-diff"),
        "diff.trap.command": program("diff-driver"),
        "diff.trap.textconv": program("textconv"),
        "filter.trap.clean": program("clean"),
        "filter.trap.smudge": program("smudge"),
        "include.path": str(trap.parent / "included"),
        "protocol.ext.allow": "always",
        "remote.origin.url": f"ext::{program('remote')}",
        "remote.origin.promisor": "true",
        "remote.origin.partialclonefilter": "blob:none",
        "extensions.partialClone": "origin",
        "core.repositoryformatversion": "1",
    }
    aliases = ("rev-parse", "status", "ls-files", "diff-index")
    settings |= {f"alias.{name}": "!" + program(f"alias-{name}") for name in aliases}
    (trap.parent / "included").write_text(f'[core]\n\tfsmonitor = "{program("included")}"\n')
    for name, value in settings.items():
        subprocess.run(["git", "config", "--file", str(path / ".git" / "config"), name, value], check=True)
    (path / ".git" / "info").mkdir(exist_ok=True)
    (path / ".git" / "info" / "attributes").write_text("* filter=trap diff=trap\n")


def objects(path):
    return {file: file.read_bytes() for file in (path / ".git" / "objects").rglob("*") if file.is_file()}


def test_nothing_that_a_repository_names_is_run(repository, tmp_path):
    inner = make_repository(repository / "submodule")
    git("add", "submodule")
    git("commit", "--quiet", "--message", "a submodule")
    commit, trap = git("rev-parse", "HEAD"), tmp_path / "trap"
    trap.mkdir()
    for path in (repository, inner):
        set_traps(path, trap)
        in_another_time(path / "code.py")  # so that whoever compares must read it
    (repository / ".gitattributes").write_text("* filter=trap diff=trap\n")
    found = git_state()
    assert os.listdir(trap) == []
    assert found == {"commit": commit, "dirty": False}
    (repository / "code.py").write_text("uno\n")  # the size that git noted, and another time
    assert git_state() == {"commit": commit, "dirty": True}
    assert os.listdir(trap) == []
    for file in objects(repository):  # and should objects be missing, the remote is not asked
        file.unlink()
    assert git_state() in (None, {"commit": commit, "dirty": True})
    assert os.listdir(trap) == []


def test_the_traps_do_catch_what_runs_them(repository, tmp_path):
    trap = tmp_path / "trap"
    trap.mkdir()
    set_traps(repository, trap)
    in_another_time(repository / "code.py")
    subprocess.run(["git", "-c", "core.fsmonitor=false", "status"], capture_output=True, check=True)
    assert {"clean", "post-index-change"} <= set(os.listdir(trap))
    for file in objects(repository):
        file.unlink()
    subprocess.run(["git", "diff-index", "--cached", "HEAD"], capture_output=True, check=False)
    assert "remote" in os.listdir(trap)


def test_a_pipe_in_the_place_of_a_file_stops_nothing(repository):
    Path("code.py").unlink()
    os.mkfifo("code.py")
    assert git_state()["dirty"] is True


def test_where_git_notes_whole_seconds_only_those_are_compared(repository, monkeypatch):
    """A file too large to be hashed is changed if its time is another."""
    monkeypatch.setattr("rl_training.state.repository.LARGEST", 1)
    second = 10**9
    os.utime(repository / "code.py", ns=(7 * second, 7 * second))
    git("add", "code.py", folder=repository)
    for time, dirty in ((7 * second + 5, False), (8 * second, True), (7 * second, False)):
        os.utime(repository / "code.py", ns=(time, time))
        assert git_state()["dirty"] is dirty, time
