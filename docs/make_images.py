"""Regenerate the pictures of the documentation: `python docs/make_images.py [speed | proofs | PONG_RUN_DIR]`.

`speed` draws only the benchmark bars of README, from `benchmarks/results/*.json`, and writes their ratios into its
caption. `proofs` draws only the returns of `diagnose --prove`, from `tests/reporting/proofs.json`. The directory of a
run of `ppo/pong` draws only that run's curve. Without an argument the script trains
`ppo/cartpole` with seeds 1 to 5 (a few minutes), captures the terminal display halfway through the first run, and
draws the learning curves, every kind of schedule, the proofs and the benchmark bars. Needs the extra `plot`.
"""

from __future__ import annotations

import io
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from matplotlib.figure import Figure
from rich.console import Console

from rl_training import load_config, train
from rl_training.monitoring.display import LiveDisplay

DOCS = Path(__file__).resolve().parent
IMAGES = DOCS / "images"
CONFIG = "ppo/cartpole"
SEEDS = (1, 2, 3, 4, 5)
WIDTH = 100  # columns of the terminal in the picture
RESULTS = DOCS.parent / "benchmarks" / "results"
PROOFS = DOCS.parent / "tests" / "reporting" / "proofs.json"
# Row of the benchmarks -> its label in the picture, and the package of the peer.
SPEEDS = {
    "ppo-cartpole": ("PPO, CartPole", "stable-baselines3"),
    "a2c-cartpole": ("A2C, CartPole", "stable-baselines3"),
    "trpo-cartpole": ("TRPO, CartPole", "sb3-contrib"),
    "recurrent-ppo-cartpole": ("Recurrent PPO, CartPole", "sb3-contrib"),
    "dqn-cartpole": ("DQN, CartPole", "stable-baselines3"),
    "dreamer-cartpole": ("DreamerV3, CartPole", "sheeprl"),
    "ppo-atari": ("PPO, Pong", "stable-baselines3"),
    "sac-pendulum": ("SAC, Pendulum", "stable-baselines3"),
}
OURS, THEIRS = "#4051b5", "#b0b4c0"


class Photographer(LiveDisplay):
    """The live display of a real run, drawn to nowhere, that keeps one picture of its panel."""

    def __init__(self, moment: float) -> None:
        super().__init__(Console(file=io.StringIO(), width=WIDTH, force_terminal=True))
        self.moment = moment  # the share of the run after which the picture is taken
        self.svg = ""

    def update(self, steps: int, metrics: Mapping[str, float], timing: Mapping[str, float]) -> None:
        super().update(steps, metrics, timing)
        if not self.svg and steps >= self.moment * self.total and self.evaluations:
            paper = Console(file=io.StringIO(), width=WIDTH, force_terminal=True, record=True)
            paper.print(self.render())
            svg = paper.export_svg(title=f"rl-training train {CONFIG}")
            # Rich names fonts on the web; the picture shall need nothing but itself.
            self.svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


def read_curve(run_dir: Path, name: str) -> tuple[list[int], list[float]]:
    """Steps and values of one metric of a run."""
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    points = [(line["step"], line[name]) for line in lines if name in line]
    return [step for step, _ in points], [value for _, value in points]


def draw_curves(runs: list[Path], path: Path) -> None:
    """Training and evaluation returns over the run: every seed thin, the median of all thick."""
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2, sharex=True, sharey=True)
    panels = (
        (left, "episode_return", "training: mean of the last 100 episodes"),
        (right, "eval/mean_return", "evaluation: mean of 10 greedy episodes"),
    )
    for axis, name, title in panels:
        curves = [read_curve(run, name) for run in runs]
        for steps, values in curves:
            axis.plot(steps, values, color="tab:blue", alpha=0.35, linewidth=1)
        steps = curves[0][0]
        assert all(other == steps for other, _ in curves), "all seeds log at the same steps"
        middle = [statistics.median(column) for column in zip(*(values for _, values in curves), strict=True)]
        axis.plot(steps, middle, color="tab:blue", linewidth=2.5, label=f"median of {len(runs)} seeds")
        axis.set_title(title, fontsize=9, loc="left")
        axis.set_xlabel("environment steps")
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
        axis.xaxis.set_major_formatter(lambda step, _: f"{step / 1000:.0f}k")
    left.set_ylabel("return")
    left.legend(loc="lower right", frameon=False)
    figure.suptitle("PPO on CartPole-v1, the shipped config ppo/cartpole", fontsize=10)
    figure.savefig(path, dpi=110)


def draw_pong(run: Path, path: Path) -> None:
    """Points a game and the length of games over the run: means of the last 100."""
    figure = Figure(figsize=(8, 3), layout="constrained")
    panels = (("episode_return", "points a game"), ("episode_length", "steps a game"))
    for axis, (name, title) in zip(figure.subplots(1, 2, sharex=True), panels, strict=True):
        axis.plot(*read_curve(run, name), linewidth=2)
        axis.set_title(f"{title}: mean of the last 100", fontsize=9, loc="left")
        axis.set_xlabel("agent steps")
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
        axis.xaxis.set_major_formatter(lambda step, _: f"{step / 1000:.0f}k")
    figure.suptitle("PPO on Pong, the shipped config ppo/pong, seed 1", fontsize=10)
    figure.savefig(path, dpi=110)


def draw_proofs(path: Path) -> None:
    """The return of every run with and without the change, and the median of each arm."""
    proofs = json.loads(PROOFS.read_text())
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    axis = figure.subplots()
    for place, proof in enumerate(proofs.values()):
        for arm, color, shift in (("without", "#80848f", 0.15), ("with", OURS, -0.15)):
            label = f"{arm} the change" if place == 0 else None
            axis.plot(proof[arm], [place + shift] * len(proof[arm]), "o", color=color, alpha=0.6, label=label)
            axis.plot(statistics.median(proof[arm]), place + shift, "|", color=color, markersize=14)
    axis.invert_yaxis()
    axis.set_yticks(range(len(proofs)), proofs, fontsize=8)
    axis.set_xlabel("return after 7,500 steps, mean of 20 episodes; bars are medians")
    axis.grid(axis="x", alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper right", ncols=2, frameon=False, fontsize=8)
    figure.savefig(path, dpi=110)


def speed_of(row: str) -> tuple[float, list[float]]:
    """Our median steps per CPU-second, and our speed as a multiple of the peer's for each round."""
    data = json.loads((RESULTS / f"{row}.json").read_text())["data"]
    ours = [run["steps"] / run["cpu_seconds"] for run in data["ours"]["ours"]]
    theirs = [run["steps"] / run["cpu_seconds"] for run in data["theirs"]]
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    return statistics.median(ours), ratios


def draw_speed(path: Path) -> None:
    """Our steps per CPU-second as multiples of the peer's: medians as bars, lowest and highest as whiskers."""
    figure = Figure(figsize=(8, 3.5), layout="constrained")
    axis = figure.subplots()
    for place, (row, (label, peer)) in enumerate(SPEEDS.items()):
        steps, ratios = speed_of(row)
        middle = statistics.median(ratios)
        axis.barh(place - 0.2, middle, height=0.4, color=OURS, label="rl-training" if place == 0 else None)
        axis.barh(place + 0.2, 1, height=0.4, color=THEIRS, label="peer" if place == 0 else None)
        axis.plot([min(ratios), max(ratios)], [place - 0.2] * 2, color="black", linewidth=1)
        right = axis.text(max(ratios) + 0.06, place - 0.2, f"{middle:.1f}×", va="center", fontsize=9)
        axis.annotate(
            f"{steps:,.0f} steps/CPU-s", (1.15, 0.5), xycoords=right, va="center", fontsize=7, color="#555555"
        )
        axis.text(1.06, place + 0.22, peer, va="center", fontsize=7, color="#555555")
        axis.text(-0.06, place, label, va="center", ha="right", fontsize=9)
    axis.invert_yaxis()
    axis.set(xlim=(0, 1.2 * axis.get_xlim()[1]), yticks=[])
    axis.set(xlabel="environment steps per CPU-second, peer = 1")
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.legend(loc="lower right", frameon=False, fontsize=9)
    figure.savefig(path, dpi=150)


def with_measured_ratios(readme: str) -> str:
    """README with the medians of all rows, in their order, in the words that stand for the picture."""
    medians = iter(f"{statistics.median(speed_of(row)[1]):.1f}×" for row in SPEEDS)
    caption = re.compile(r"!\[[^]]*\]\(docs/images/speed\.png\)")
    return caption.sub(lambda found: re.sub(r"[\d.]+×", lambda _: next(medians), found[0]), readme)


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    if sys.argv[1:] == ["proofs"]:
        draw_proofs(IMAGES / "proofs.png")
        return
    draw_speed(IMAGES / "speed.png")
    readme = DOCS.parent / "README.md"
    readme.write_text(with_measured_ratios(readme.read_text("utf-8")), "utf-8")
    if sys.argv[1:] == ["speed"]:
        return
    if len(sys.argv) > 1:
        draw_pong(Path(sys.argv[1]), IMAGES / "pong.png")
        return
    command = [sys.executable, "-m", "rl_training", "schedule", str(DOCS / "kinds.yaml")]
    subprocess.run([*command, "--png", str(IMAGES / "schedules.png")], check=True)
    draw_proofs(IMAGES / "proofs.png")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # run directories get their default names, runs/ppo-CartPole-v1-s1 and so on
        runs = []
        for seed in SEEDS:
            photographer = Photographer(moment=0.45)
            runs.append(train(load_config(CONFIG, [f"seed={seed}"]), display=photographer).run_dir)
            print(f"seed {seed}: trained", flush=True)
            if seed == SEEDS[0]:
                (IMAGES / "display.svg").write_text(photographer.svg, "utf-8")
        draw_curves(runs, IMAGES / "learning_curve.png")


if __name__ == "__main__":
    main()
