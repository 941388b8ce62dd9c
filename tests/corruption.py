"""Random damage to the files of a run that was killed, and what `resume` makes of it."""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from forging import in_fork
from runs import assert_same_run, small_config

from rl_training import resume, train
from rl_training.monitoring.display import QuietDisplay

# Small runs whose logs have lines behind the newest checkpoint, as a kill leaves them: what is smaller than in
# tests/runs.py, and the step at which they are killed. The last one is killed before its first checkpoint.
SMALL = dict(eval_episodes=1, keep_checkpoints=2, hidden_sizes=[8])
REPLAYS = dict(log_interval=20, eval_interval=60, checkpoint_interval=60, buffer_size=300) | SMALL
ROLLOUTS = dict(log_interval=128, eval_interval=256, checkpoint_interval=256, total_timesteps=1024) | SMALL
KILLED: dict[str, tuple[str, dict[str, Any], int]] = {
    "ppo": ("ppo-cartpole", ROLLOUTS, 896),
    "dqn": ("dqn-cartpole", REPLAYS | dict(total_timesteps=400, learning_starts=100), 320),
    "muzero": ("muzero-cartpole", REPLAYS | dict(total_timesteps=360, learning_starts=40), 320),
    "ppo-early": ("ppo-cartpole", ROLLOUTS | dict(checkpoint_interval=640, total_timesteps=768), 512),
}


class Snapshot(QuietDisplay):
    """Copies a run directory at a step, as it would lie there after a kill."""

    def __init__(self, run_dir: Path, to: Path, step: int) -> None:
        self.run_dir, self.to, self.step = run_dir, to, step

    def update(self, steps: int, metrics: Mapping[str, float], timing: Mapping[str, float]) -> None:
        if steps >= self.step and not self.to.exists():
            shutil.copytree(self.run_dir, self.to)


def train_and_kill(name: str, folder: Path) -> tuple[Path, Path]:
    """The directory of a run as it ends, and as it was when it was killed."""
    whole, killed = folder / f"{name}-whole", folder / f"{name}-killed"
    if not killed.exists():
        small, changes, step = KILLED[name]
        train(small_config(small, **changes), run_dir=whole, display=Snapshot(whole, killed, step))
        (killed / "trackers.json").write_text('{"wandb": "0f3a9c1d"}\n')
        with (killed / "metrics.jsonl").open("ab") as log:
            log.write(b'{"step": 4')  # a torn line
        warm = folder / f"{name}-warm"
        shutil.copytree(killed, warm)
        resume(warm)  # forks find all loaded and compiled; and what is not damaged ends like the whole run
        assert_same_run(whole, warm)
        shutil.rmtree(warm)
    return whole, killed


def kind_of(path: str) -> str:
    """The name under which a file is counted."""
    folder, _, name = path.rpartition("/")
    return f"replay/{name.split('-')[0]}-*" if folder == "replay" else path


# A digit for another one and a line left out or doubled: text stays text, which is harder to notice.
HOWS = ("bit", "bits", "removed", "inserted", "cut", "zeros", "digit", "line", "deleted", "swapped")


class Damage(NamedTuple):
    """Which file was damaged, and how."""

    file: str
    how: str


def damage(run: Path, rng: random.Random) -> Damage:
    """Damage one file of a run at random, or swap two; every kind of file is as likely as any other."""
    files = sorted(str(path.relative_to(run)) for path in run.rglob("*") if path.is_file())
    kinds: dict[str, list[str]] = {}
    for file in files:
        kinds.setdefault(kind_of(file), []).append(file)
    while True:  # until something has changed
        file = rng.choice(kinds[rng.choice(sorted(kinds))])
        how = rng.choice(HOWS)
        before = (run / file).read_bytes()
        if how == "deleted":
            (run / file).unlink()
            return Damage(file, how)
        if how == "swapped":
            other = rng.choice(files)
            theirs = (run / other).read_bytes()
            if theirs != before:
                (run / file).write_bytes(theirs)
                (run / other).write_bytes(before)
                return Damage(file, f"swapped with {other}")
            continue
        after = damaged(before, how, rng)
        if after != before:
            (run / file).write_bytes(after)
            return Damage(file, how)


def damaged(data: bytes, how: str, rng: random.Random) -> bytes:
    place, length = rng.randrange(len(data) + 1), rng.randint(1, 16)
    if how == "inserted":
        return data[:place] + rng.randbytes(length) + data[place:]
    if how == "removed":
        return data[:place] + data[place + length :]
    if how == "cut":
        return data[:place]
    if how == "zeros":
        end = min(place + 4 * length, len(data))
        return data[:place] + bytes(end - place) + data[end:]
    if how == "line":
        lines = data.splitlines(keepends=True)
        line = rng.randrange(max(len(lines), 1))
        return b"".join(lines[:line] + lines[line : line + 1] * rng.choice([0, 2]) + lines[line + 1 :])
    if how == "digit":
        digits = [at for at, byte in enumerate(data) if 48 <= byte < 58]
        at = rng.choice(digits) if digits else 0
        return data[:at] + str(rng.randrange(10)).encode() + data[at + 1 :] if digits else data
    changed = bytearray(data)
    for _ in range(1 if how == "bit" else length):
        if changed:
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


class Trial(NamedTuple):
    """One damage, and what came of it: "recovered", "refused", or what must not be."""

    damage: Damage
    outcome: str
    text: str


def trial(name: str, seed: int, whole: Path, killed: Path, folder: Path) -> Trial:
    """Damage a copy of the killed run, resume it to the end in a fork, and compare it with the whole run."""
    rng, run = random.Random(f"{name} {seed}"), folder / f"damaged-{name}-{seed}-{os.getpid()}"
    shutil.copytree(killed, run)
    done = damage(run, rng)
    outcome = in_fork(lambda: resume(run), patience=120)
    kind, text = outcome
    if kind == "success":
        try:
            assert_same_run(whole, run)
            kind = "recovered"
        except (AssertionError, OSError, ValueError) as error:
            kind, text = "differs", str(error).splitlines()[0]
    shutil.rmtree(run)
    return Trial(done, kind, text)


def campaign(name: str, seeds: Iterable[int], folder: Path) -> tuple[Counter[tuple[str, str]], list[str]]:
    """Trials of a run: counts by file and outcome, and a line about each that was neither recovered nor refused."""
    whole, killed = train_and_kill(name, folder)
    counts: Counter[tuple[str, str]] = Counter()
    wrong = []
    for seed in seeds:
        found = trial(name, seed, whole, killed, folder)
        counts[kind_of(found.damage.file), found.outcome] += 1
        if found.outcome not in ("recovered", "refused"):
            wrong.append(f"{name} {seed}: {found.damage} {found.outcome}: {found.text[-2000:]}")
    return counts, wrong


def table(counts: Counter[tuple[str, str]]) -> str:
    """Counts by file."""
    outcomes = sorted({outcome for _, outcome in counts})
    width = max(len(file) for file, _ in counts)
    lines = [f"{'':{width}}" + "".join(f"{outcome:>12}" for outcome in outcomes)]
    for file in sorted({file for file, _ in counts}):
        lines.append(f"{file:{width}}" + "".join(f"{counts[file, outcome]:>12}" for outcome in outcomes))
    return "\n".join(lines)
