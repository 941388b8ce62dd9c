"""What an algorithm of ours adds to another of ours that it is built on, at equal settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.comparison import Options, judge_scores, rates, ratios, scores, where_time_goes
from benchmarks.report import Report, Spread, Verdict, digits, table
from benchmarks.runs import Run, run


@dataclass(frozen=True)
class Siblings:
    """`config` is `base` and what it takes to be the other algorithm; `at_least` is the share of its speed to keep.

    Scores, mean returns of greedy episodes after training, are compared where there are `episodes` for them.
    """

    name: str
    title: str
    base: Mapping[str, Any]
    config: Mapping[str, Any]
    steps: int
    at_least: float
    rounds: int = 5
    warm_up: int = 1024
    episodes: int = 0
    labels: tuple[str, str] | None = None  # of the base and the other; else their algorithms

    def names(self) -> tuple[str, str]:
        return self.labels or (str(self.base["algo"]), str(self.config["algo"]))

    def run(self, options: Options) -> Report:
        rounds = options.rounds or (1 if options.quick else self.rounds)
        steps = options.steps or (self.steps // 10 if options.quick else self.steps)
        runs: dict[str, list[Run]] = {name: [] for name in self.names()}
        for number in range(1, rounds + 1):
            for config, done in zip((self.base, self.config), runs.values(), strict=True):
                done.append(self._run(config, steps, number, self.episodes))
            print(f"{self.name}: round {number} of {rounds}", flush=True)
        return judge(self, runs, self._run(self.config, steps, 1, episodes=0, profile=True))

    def _run(
        self, config: Mapping[str, Any], steps: int, seed: int, episodes: int, profile: bool = False
    ) -> Run:
        fixed = dict(total_timesteps=steps, eval_interval=steps, eval_episodes=1, seed=seed, torch_threads=1)
        how = {"warm_up": self.warm_up, "episodes": episodes, "profile": profile}
        return run("benchmarks.ours", {"config": {**config, **fixed}, **how})


def judge(row: Siblings, runs: Mapping[str, Sequence[Run]], profile: Run) -> Report:
    (base, plain), (name, more) = runs.items()
    share = Spread(ratios(rates(more, "cpu_seconds"), rates(plain, "cpu_seconds")))
    lines = [
        [
            text,
            Spread(rates(more, per)),
            Spread(rates(plain, per)),
            Spread(ratios(rates(more, per), rates(plain, per))),
        ]
        for text, per in (
            ("env steps per CPU-second", "cpu_seconds"),
            ("env steps per second", "wall_seconds"),
        )
    ]
    tables = [
        table(["median of rounds (lowest–highest)", name, base, f"{name} / {base}"], lines),
        f"Where {name}'s time goes, in a run of its own:\n\n" + where_time_goes(profile["sections"]),
    ]
    mine, yours = scores(more), scores(plain)
    if row.episodes:
        header = [
            f"score: mean return of {row.episodes} greedy episodes",
            *[f"seed {i + 1}" for i in range(len(mine))],
        ]
        tables.insert(1, table(header, [[name, *map(digits, mine)], [base, *map(digits, yours)]]))
    text = f"{name} keeps at least {row.at_least:g} of the steps per CPU-second of {base}: {share.median:.2f}"
    data = {"base": dict(row.base), "config": dict(row.config), "runs": dict(runs), "profile": profile}
    versions = {"ours": plain[0]["versions"]}
    verdicts = [Verdict(text, share.median >= row.at_least)]
    verdicts += [judge_scores(mine, yours, base)] if row.episodes else []
    return Report(row.name, row.title, tables, verdicts, data, lambda figure: draw(figure, runs), versions)


def draw(figure: Any, runs: Mapping[str, Sequence[Run]]) -> None:
    axes = figure.add_subplot()
    for i, done in enumerate(runs.values()):
        values = rates(done, "cpu_seconds")
        axes.barh(i, Spread(values).median, color=f"C{i}", alpha=0.6)
        axes.plot(values, [i] * len(values), "k.", markersize=4)
    axes.set_yticks(range(len(runs)), list(runs))
    axes.set_xlabel("env steps per CPU-second")
