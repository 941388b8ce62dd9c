"""A run of `gumbel_muzero/connect_four`, measured: games, moves judged by the solver, and Elo of its checkpoints.

    rl-training train gumbel_muzero/connect_four seed=11
    python tests/learning/connect_four.py RUN_DIR [--keep] [--quick]

No game may be lost against random play and minimax of depth 4, and with 400 simulations at least 90 % of moves must
keep the theoretical value, at least 20 points above the untrained network. `--keep` writes all figures to
results/connect_four.json under the run's seed; `--quick` measures a tenth, to try the script.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

KEPT = Path(__file__).parents[2] / "results" / "connect_four.json"
SIMULATIONS = (1, 4, 16, 64, 400)


def measure(run: Path, share: float) -> dict[str, Any]:
    from rl_training.runtime.exactness import judge_moves
    from rl_training.runtime.matches import match_checkpoints
    from rl_training.runtime.ratings import rate_checkpoints
    from rl_training.settings.loading import load_config

    games, searched = max(2, round(100 * share)), {"num_simulations": 400}
    kept = {
        str(simulations): judge_moves(
            run, positions=round(1000 * share), seed=1000, settings={"num_simulations": simulations}
        )
        for simulations in SIMULATIONS
    }
    ours: dict[str, Any] = dict(games=games, seed=1000, settings=searched)
    timing = json.loads((run / "timing.jsonl").read_text("utf-8").splitlines()[-1])
    return {
        "seed": load_config(run / "config.yaml").seed,
        "steps": timing["step"],
        "cpu_seconds": timing["cpu_seconds"],
        "random": match_checkpoints(run, "random", **ours),
        "minimax:4": match_checkpoints(run, "minimax:4", **ours),
        "solver": match_checkpoints(run, "solver", **ours, random_moves=8),
        "kept": kept,
        "elo": rate_checkpoints(run, games=max(2, round(20 * share)), seed=1000),
    }


def passed(found: dict[str, Any]) -> bool:
    lost = sum(
        found[name][f"lost_as_{side}"] for name in ("random", "minimax:4") for side in ("first", "second")
    )
    best = found["kept"][str(SIMULATIONS[-1])]
    return lost == 0 and best["kept"] >= 0.9 and best["kept"] - best["untrained"] >= 0.2


def keep(found: dict[str, Any]) -> None:
    runs = json.loads(KEPT.read_text("utf-8")) if KEPT.exists() else {}
    runs[str(found["seed"])] = found
    KEPT.write_text(json.dumps(dict(sorted(runs.items())), indent=1) + "\n", "utf-8")


def main(arguments: list[str]) -> int:
    runs = [Path(word) for word in arguments if not word.startswith("--")]
    failed = 0
    for run in runs:
        found = measure(run, 0.1 if "--quick" in arguments else 1.0)
        print(json.dumps(found, indent=1), flush=True)
        if "--keep" in arguments:
            keep(found)
        failed += not passed(found)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
