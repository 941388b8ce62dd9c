"""How cost grows with the number of environments and the size of networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.comparison import Options, rates
from benchmarks.report import Report, Spread, digits, table
from benchmarks.runs import Run, run

# So many multiplications of the update's forward passes keep a run to some seconds whatever its size.
MULTIPLICATIONS = 2e10
MOST_STEPS, FEWEST_ITERATIONS = 100_000, 2


@dataclass(frozen=True)
class Scaling:
    """One config with other numbers of environments, and two layers of other sizes."""

    name: str
    title: str
    config: Mapping[str, Any]
    num_envs: Sequence[int]
    units: Sequence[int]
    usual_envs: int
    usual_units: int
    rounds: int = 1  # a table of how cost grows compares nothing, so one is enough

    def cases(self) -> list[tuple[int, int]]:
        """All (environments, units) of the two lines through the usual size."""
        envs = [(count, self.usual_units) for count in self.num_envs]
        nets = [(self.usual_envs, size) for size in self.units if size != self.usual_units]
        return sorted({*envs, *nets})

    def run(self, options: Options) -> Report:
        rounds = options.rounds or (1 if options.quick else self.rounds)
        runs: dict[tuple[int, int], list[Run]] = {case: [] for case in self.cases()}
        for number in range(1, rounds + 1):
            for envs, units in runs:
                config = {**self.config, "num_envs": envs, "hidden_sizes": [units, units], "seed": number}
                rollout = config["num_steps"] * envs
                total = options.steps or steps_for(units, rollout, quick=options.quick)
                config |= dict(total_timesteps=total, eval_interval=total, eval_episodes=1)
                settings = {"config": config, "warm_up": rollout, "episodes": 0}
                runs[envs, units].append(run("benchmarks.ours", settings))
            print(f"{self.name}: round {number} of {rounds}", flush=True)
        return summarize(self, runs)


def steps_for(units: int, rollout: int, quick: bool) -> int:
    """Steps of a run: few for large networks, and at least two rollouts."""
    steps = min(MOST_STEPS, int(MULTIPLICATIONS / (2 * units * (units + 6))))
    return max(steps // (10 if quick else 1), FEWEST_ITERATIONS * rollout)


def summarize(row: Scaling, runs: dict[tuple[int, int], list[Run]]) -> Report:
    def line(name: int, case: tuple[int, int]) -> list[Any]:
        speed = Spread(rates(runs[case], "cpu_seconds"))
        return [name, speed, digits(1e6 / speed.median), Spread([each["peak_mb"] for each in runs[case]])]

    head = ["env steps per CPU-second", "CPU-µs a step", "peak memory, MB"]
    envs = [line(count, (count, row.usual_units)) for count in row.num_envs]
    nets = [line(size, (row.usual_envs, size)) for size in row.units]
    tables = [
        f"Two hidden layers of {row.usual_units} units:\n\n" + table(["environments", *head], envs),
        f"{row.usual_envs} environments:\n\n" + table(["units per layer", *head], nets),
    ]
    data = {"runs": [{"num_envs": e, "units": u, "runs": done} for (e, u), done in runs.items()]}
    versions = {"ours": next(iter(runs.values()))[0]["versions"]}
    return Report(row.name, row.title, tables, [], data, lambda figure: draw(figure, row, runs), versions)


def draw(figure: Any, row: Scaling, runs: dict[tuple[int, int], list[Run]]) -> None:
    lines = {
        "environments": [(count, (count, row.usual_units)) for count in row.num_envs],
        "units per layer": [(size, (row.usual_envs, size)) for size in row.units],
    }
    for column, (name, cases) in enumerate(lines.items()):
        axes = figure.add_subplot(1, 2, column + 1)
        sizes = [size for size, _ in cases]
        axes.loglog(sizes, [Spread(rates(runs[case], "cpu_seconds")).median for _, case in cases], "o-")
        axes.set_xticks(sizes, [str(size) for size in sizes], fontsize=8)
        axes.minorticks_off()
        axes.set_xlabel(name)
        axes.set_ylabel("env steps per CPU-second")
        memory = axes.twinx()
        memory.plot(
            sizes, [Spread([each["peak_mb"] for each in runs[case]]).median for _, case in cases], "C1s--"
        )
        memory.set_ylim(bottom=0)
        memory.set_ylabel("peak memory, MB", color="C1")
