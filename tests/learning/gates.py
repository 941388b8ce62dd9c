"""Learning gates: the shipped configs, trained as they are shipped, must reach a known score.

    python tests/learning/gates.py ppo/cartpole ppo/pendulum     prints the tables of these gates
    python tests/learning/gates.py --keep ppo/cartpole           also writes results/gates.json, for the documentation

All seeds are run and all are shown, each with the score of its untrained policy beside the trained one: a greedy
policy with random weights can be good by luck.
"""

from __future__ import annotations

import datetime
import json
import multiprocessing
import statistics
import sys
import tempfile
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

SEEDS = (1, 2, 3, 4, 5)
HOW = ("results", "paths")  # of a manifest: revisions, and what was compiled
KEPT = Path(__file__).resolve().parents[2] / "results" / "gates.json"


@dataclass(frozen=True)
class Gate:
    """With every seed the mean return of `episodes` greedy episodes must reach `score`; `may_fail` seeds need not.

    A control must stay below it with every seed: what an algorithm cannot do without the thing that a gate beside it
    tests.
    """

    config: str
    score: float
    episodes: int = 50
    control: bool = False
    overrides: tuple[str, ...] = ()  # of the config, `key=value` each
    seeds: tuple[int, ...] = SEEDS
    label: str = ""  # what it is called, where the name of its config is another gate's
    may_fail: int = 0  # seeds, and
    why: str = ""  # they may

    @property
    def name(self) -> str:
        return self.label or self.config


@dataclass(frozen=True)
class Outcome:
    seed: int
    untrained: float
    trained: float
    steps: int
    steps_per_second: float
    how: dict[str, Any] = field(default_factory=dict)  # it was computed, from the run's manifest


# A discriminator that answers 1/2 to everything: as shipped the reward is then 0, in the other form log 2 a step.
CONSTANT = ("discriminator_updates=0",)
POSITIVE = (*CONSTANT, "reward_form=positive", "absorbing_states=false")
ON_RAY = ("fleet=ray",)

# Why single seeds may miss a gate: each has been seen to, and the page of the algorithm says more.
STILL_LEARNING = "the steps of the config end before every seed has learned the task"

GATES = {
    gate.name: gate
    for gate in (
        Gate("ppo/cartpole", 475),
        Gate("ppo/acrobot", -95),
        Gate("ppo/pendulum", -250, may_fail=1, why=STILL_LEARNING),
        Gate("a2c/cartpole", 475),
        Gate("trpo/cartpole", 475),
        Gate("ppg/cartpole", 475),
        Gate("recurrent_ppo/cartpole_no_velocity", 450, may_fail=1, why=STILL_LEARNING),
        Gate("ppo/cartpole_no_velocity", 200, control=True),
        Gate("trpo/pendulum", -250),
        Gate("sac/pendulum", -180, episodes=100),
        Gate("sac/halfcheetah", 3000, overrides=("total_timesteps=100_000",), seeds=(1, 2, 3)),
        Gate("dqn/cartpole", 475),
        Gate("muzero/cartpole", 450, episodes=20, seeds=(1, 2, 3)),
        Gate("gumbel_muzero/cartpole", 450, episodes=20, seeds=(1, 2, 3)),
        Gate("efficientzero/cartpole", 450, episodes=20, seeds=(1, 2, 3)),
        Gate("scalezero/cartpole", 450, episodes=20, seeds=(1, 2, 3)),
        Gate("impala/cartpole", 475),
        Gate("appo/cartpole", 475),
        Gate("impala/cartpole", 475, overrides=ON_RAY, seeds=(1, 2, 3), label="impala/cartpole on Ray"),
        Gate("appo/cartpole", 475, overrides=ON_RAY, seeds=(1, 2, 3), label="appo/cartpole on Ray"),
        Gate("impala/cartpole_no_velocity", 400),
        Gate("dreamer/cartpole", 450, episodes=20, seeds=(1, 2, 3)),
        Gate("dreamer/pendulum", -300, episodes=20, seeds=(1, 2, 3)),
        Gate("gail/cartpole", 475),
        Gate("gail/cartpole", 475, control=True, overrides=CONSTANT, label="gail/cartpole, constant D"),
        # No control: that this passes is why CartPole alone says nothing about imitation.
        Gate("gail/cartpole", 475, overrides=POSITIVE, label="gail/cartpole, constant reward"),
        Gate("gail/pendulum", -300),
        Gate("gail/acrobot", -110),
        Gate("gail/acrobot", -110, control=True, overrides=CONSTANT, label="gail/acrobot, constant D"),
        Gate("gail/acrobot", -110, control=True, overrides=POSITIVE, label="gail/acrobot, constant reward"),
    )
}


def train_and_evaluate(gate: Gate, seed: int) -> Outcome:
    """Train one seed to the end of its config, and play 50 episodes before and after."""
    from rl_training import evaluate_checkpoint, load_config, train
    from rl_training.registry import trainer_class
    from rl_training.runtime.evaluation import evaluate
    from rl_training.state.seeding import fold, seed_everything

    config = load_config(gate.config, [f"seed={seed}", *gate.overrides])
    seed_everything(fold(seed, "init"))
    fresh = trainer_class(config.algo)(config)
    untrained = evaluate(fresh.agent, config, episodes=gate.episodes, seed=fold(seed, "gate"))["mean_return"]
    fresh.close()
    with tempfile.TemporaryDirectory() as folder:
        result = train(config, run_dir=Path(folder) / "run")
        trained = evaluate_checkpoint(result.run_dir, episodes=gate.episodes, seed=1000 + seed)["mean_return"]
        timing = json.loads((result.run_dir / "timing.jsonl").read_text().splitlines()[-1])
        manifest = json.loads((result.run_dir / "manifest.json").read_text())
    how = {part: manifest[part] for part in HOW} | {"vectorization": manifest["config"]["vectorization"]}
    return Outcome(seed, untrained, trained, timing["step"], timing["steps_per_second"], how)


def run_gate(gate: Gate, processes: int = 2) -> list[Outcome]:
    """All seeds, two at a time."""
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        return pool.starmap(train_and_evaluate, [(gate, seed) for seed in gate.seeds], chunksize=1)


def median(outcomes: list[Outcome]) -> float:
    return statistics.median(outcome.trained for outcome in outcomes)


def failures(gate: Gate, outcomes: list[Outcome]) -> list[Outcome]:
    """The seeds that did not do what the gate asks of each."""
    return [outcome for outcome in outcomes if (outcome.trained >= gate.score) == gate.control]


def passed(gate: Gate, outcomes: list[Outcome]) -> bool:
    return len(failures(gate, outcomes)) <= gate.may_fail


def table(gate: Gate, outcomes: list[Outcome]) -> str:
    """A Markdown table of every seed, and how many miss the gate."""
    lines = [
        f"{gate.name}: mean return of {gate.episodes} greedy episodes",
        "",
        "| seed | untrained | trained | steps | steps/s |",
        "|---:|---:|---:|---:|---:|",
    ]
    for o in outcomes:
        lines.append(
            f"| {o.seed} | {o.untrained:.1f} | {o.trained:.1f} | {o.steps} | {o.steps_per_second:.0f} |"
        )
    verdict = "passed" if passed(gate, outcomes) else "failed"
    bound = f"must stay below {gate.score:g}" if gate.control else f"gate {gate.score:g}"
    missed = ", ".join(f"{o.seed} ({o.trained:.1f})" for o in failures(gate, outcomes)) or "none"
    allowed = f"{gate.may_fail} may: {gate.why}" if gate.may_fail else "none may"
    summary = f"median {median(outcomes):.1f}, {bound}: {verdict}; seeds that miss it: {missed}; {allowed}"
    return "\n".join([*lines, "", summary, ""])


def keep(gate: Gate, outcomes: list[Outcome]) -> None:
    """Put what was measured into the raw data of the documentation, in the order of the gates."""
    from rl_training import load_config
    from rl_training.tools.reproducing import digest, settings_of

    kept = json.loads(KEPT.read_text("utf-8")) if KEPT.is_file() else {}
    kept[gate.name] = {
        "config": gate.config,
        "overrides": list(gate.overrides),
        "config_sha256": digest(settings_of(load_config(gate.config, gate.overrides))),
        "score": gate.score,
        "control": gate.control,
        "may_fail": gate.may_fail,
        "episodes": gate.episodes,
        "date": datetime.date.today().isoformat(),
        "versions": {name: version(name) for name in ("torch", "numpy", "gymnasium", "numba")},
        "seeds": [asdict(outcome) for outcome in outcomes],
    }
    ordered = {name: kept[name] for name in GATES if name in kept}
    KEPT.write_text(json.dumps(ordered, indent=1) + "\n", "utf-8")


def main(names: list[str]) -> int:
    failed, keeping = 0, "--keep" in names
    names = [name for name in names if name != "--keep"]
    for name in names or list(GATES):
        gate = GATES[name.split("@")[0]]
        if "@" in name:  # a config of one's own against this gate's score: ppo/pendulum@my.yaml
            gate = replace(gate, config=name.split("@")[1])
        outcomes = run_gate(gate)
        print(table(gate, outcomes), flush=True)
        if keeping and "@" not in name:
            keep(gate, outcomes)
        failed += not passed(gate, outcomes)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
