"""How cost grows with environments and the size of networks, on both paths, and what arithmetic allows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.comparison import Options, rates
from benchmarks.report import Report, Spread, digits, table
from benchmarks.runs import Run, run

# So many multiplications of the update's forward passes keep a run to some seconds whatever its size.
MULTIPLICATIONS = 1e10
MOST_STEPS, FEWEST_ITERATIONS, LARGEST_ROLLOUT = 40_000, 2, 16_384
PATHS: dict[str, dict[str, Any]] = {
    "compiled": dict(vectorization="compiled"),
    "torch and Gymnasium": dict(vectorization="sync", compiled_updates=False),
}
Size = tuple[int, int]  # environments, units


@dataclass(frozen=True)
class Scaling:
    """One config with other numbers of environments, and two layers of other sizes, on both paths."""

    name: str
    title: str
    config: Mapping[str, Any]
    num_envs: Sequence[int]
    units: Sequence[int]
    usual_envs: int
    usual_units: int
    inputs_and_outputs: int  # of the actor and the critic, together
    rounds: int = 1  # a table of how cost grows compares nothing, so one is enough

    def sizes(self) -> list[Size]:
        """All (environments, units) of the two lines through the usual size."""
        envs = [(count, self.usual_units) for count in self.num_envs]
        nets = [(self.usual_envs, size) for size in self.units if size != self.usual_units]
        return sorted({*envs, *nets})

    def run(self, options: Options) -> Report:
        rounds = options.rounds or (1 if options.quick else self.rounds)
        runs: dict[str, dict[Size, list[Run]]] = {path: {s: [] for s in self.sizes()} for path in PATHS}
        peak = run("benchmarks.our_peak", {"size": 1024, "calls": 12})["operations_per_second"]
        for number in range(1, rounds + 1):
            for size in self.sizes():
                for path, done in runs.items():
                    done[size].append(self._run(path, size, number, options))
            print(f"{self.name}: round {number} of {rounds}", flush=True)
        return summarize(self, runs, peak)

    def _run(self, path: str, size: Size, seed: int, options: Options) -> Run:
        envs, units = size
        length = min(self.config["num_steps"], LARGEST_ROLLOUT // envs)
        total = options.steps or steps_for(units, length * envs, quick=options.quick)
        config = {**self.config, **PATHS[path], "num_envs": envs, "num_steps": length, "seed": seed}
        config |= dict(
            hidden_sizes=[units, units], total_timesteps=total, eval_interval=total, eval_episodes=1
        )
        return run("benchmarks.ours", {"config": config, "warm_up": length * envs, "episodes": 0})

    def operations(self, units: int) -> int:
        """Floating-point operations of an environment step: a forward pass to act, and three an epoch to learn.

        A pass of the two nets has 2 (2 u² + u · (inputs and outputs)) of them, and the gradients are worth two passes.
        """
        one_pass = 2 * (2 * units**2 + units * self.inputs_and_outputs)
        return one_pass * (1 + 3 * self.config["update_epochs"])


def steps_for(units: int, rollout: int, quick: bool) -> int:
    """Steps of a run: few for large networks, and at least two rollouts."""
    steps = min(MOST_STEPS, int(MULTIPLICATIONS / (2 * units * (units + 6))))
    return max(steps // (10 if quick else 1), FEWEST_ITERATIONS * rollout)


def microseconds(runs: Sequence[Run]) -> Spread:
    """CPU-microseconds of an environment step."""
    return Spread([1e6 / rate for rate in rates(runs, "cpu_seconds")])


def summarize(row: Scaling, runs: Mapping[str, Mapping[Size, list[Run]]], peak: float) -> Report:
    def line(name: int, size: Size) -> list[Any]:
        costs = [microseconds(done[size]) for done in runs.values()]
        memory = [Spread([each["peak_mb"] for each in done[size]]) for done in runs.values()]
        return [name, *costs, digits(1e6 * row.operations(size[1]) / peak), *memory]

    head = [*runs, "arithmetic", *(f"MB, {path}" for path in runs)]
    envs = [line(count, (count, row.usual_units)) for count in row.num_envs]
    nets = [line(units, (row.usual_envs, units)) for units in row.units]
    tables = [
        f"CPU-µs an environment step, two hidden layers of {row.usual_units} units:\n\n"
        + table(["environments", *head], envs),
        f"CPU-µs an environment step, {row.usual_envs} environments:\n\n" + table(["units", *head], nets),
        f"`arithmetic` is the step's floating-point operations at the {digits(peak / 1e9)} GFLOP/s that a matrix "
        "product of 1024 × 1024 numbers reaches on this core, with environments and chance free of charge.",
    ]
    data = {
        "operations_per_second": peak,
        "runs": [
            {"path": path, "num_envs": envs, "units": units, "runs": each}
            for path, done in runs.items()
            for (envs, units), each in done.items()
        ],
    }
    versions = {"ours": next(iter(runs["compiled"].values()))[0]["versions"]}
    return Report(
        row.name, row.title, tables, [], data, lambda figure: draw(figure, row, runs, peak), versions
    )


def draw(figure: Any, row: Scaling, runs: Mapping[str, Mapping[Size, list[Run]]], peak: float) -> None:
    lines = {
        "environments": [(count, (count, row.usual_units)) for count in row.num_envs],
        "units per layer": [(units, (row.usual_envs, units)) for units in row.units],
    }
    for column, (name, cases) in enumerate(lines.items()):
        axes = figure.add_subplot(1, 2, column + 1)
        numbers = [number for number, _ in cases]
        for path, done in runs.items():
            axes.loglog(numbers, [microseconds(done[size]).median for _, size in cases], "o-", label=path)
        limit = [1e6 * row.operations(size[1]) / peak for _, size in cases]
        axes.loglog(numbers, limit, "k--", linewidth=1, label="arithmetic alone")
        axes.set_xticks(numbers, [str(number) for number in numbers], fontsize=8)
        axes.minorticks_off()
        axes.set_xlabel(name)
        axes.set_ylabel("CPU-µs an environment step")
        axes.legend(fontsize=8)
