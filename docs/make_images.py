"""Draws the pictures of the documentation again: `python docs/make_images.py [PONG_RUN_DIR]`.

Given the directory of a run of `ppo/pong`, it draws that run's curve and nothing else. Otherwise it trains
`ppo/cartpole` with seeds 1 to 5 (some minutes), photographs the terminal display in the middle of the first run, draws
the learning curves of all five, and draws every kind of schedule with the command line itself. Needs the extra `plot`.
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


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    if len(sys.argv) > 1:
        draw_pong(Path(sys.argv[1]), IMAGES / "pong.png")
        return
    command = [sys.executable, "-m", "rl_training", "schedule", str(DOCS / "kinds.yaml")]
    subprocess.run([*command, "--png", str(IMAGES / "schedules.png")], check=True)
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
