"""A run of `gumbel_muzero/connect_four`, measured: games, moves judged by the solver, and Elo of its checkpoints.

    rl-training train gumbel_muzero/connect_four seed=11
    python tests/learning/connect_four.py RUN_DIR [--keep] [--share=0.1]

No game may be lost against random play and minimax of depth 4, at least 90 % of moves must keep the theoretical value,
and at least 20 points above the untrained network, all with 400 simulations for a move. `--keep` writes all figures to
results/connect_four.json under the run's seed, and the policy to the zoo if no kept seed of the same settings keeps
fewer moves; `--share` measures so much of it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
KEPT, ZOO = ROOT / "results" / "connect_four.json", ROOT / "zoo" / "gumbel_muzero" / "connect_four"
SIMULATIONS = (1, 4, 16, 64, 400)  # for the moves that are judged; games are played with the last


def measure(run: Path, share: float) -> dict[str, Any]:
    from rl_training.runtime.exactness import judge_moves
    from rl_training.runtime.matches import match_checkpoints
    from rl_training.runtime.ratings import rate_checkpoints
    from rl_training.runtime.workflows import revisions
    from rl_training.settings.loading import load_config
    from rl_training.state import checkpoints
    from rl_training.tools.checkup import versions
    from rl_training.tools.reproducing import digest, file_digest, settings_of

    games, step = max(2, round(100 * share)), checkpoints.step_of(newest(run))
    timing = [json.loads(line) for line in (run / "timing.jsonl").read_text("utf-8").splitlines()]
    longest = SIMULATIONS[-1]

    def match(against: str, games: int = games, **more: Any) -> dict[str, int]:
        settings = {"num_simulations": longest}
        return match_checkpoints(run, against, games=games, seed=1000, settings=settings, **more)

    parts: dict[str, Callable[[], Any]] = {
        "minimax:4": lambda: match("minimax:4"),
        "random": lambda: match("random"),
        "kept": lambda: {
            str(simulations): judge_moves(
                run, positions=round(1000 * share), seed=1000, settings={"num_simulations": simulations}
            )
            for simulations in SIMULATIONS
        },
        "elo": lambda: rate_checkpoints(run, games=max(2, round(20 * share)), seed=1000),
        # From positions of eight stones a move takes the solver seconds: fewer games.
        "solver": lambda: match("solver", max(2, round(20 * share)), random_moves=8),
    }
    config = load_config(run / "config.yaml")
    found: dict[str, Any] = {
        "seed": config.seed,
        "steps": step,
        "total_timesteps": config.total_timesteps,
        "cpu_seconds": max(line["cpu_seconds"] for line in timing if line["step"] <= step),
        "settings": settings_of(config),
        "config_sha256": digest(settings_of(config)),
        "revisions": revisions(config),
        "weights_sha256": file_digest(newest(run) / checkpoints.WEIGHTS),
        "versions": versions(),
        "game_simulations": longest,
    }
    for name, part in parts.items():
        found[name] = part()
        print(f"{name}: {found[name]}", file=sys.stderr, flush=True)
    return found | {"share": share, "passed": share == 1 and passed(found)}


def newest(run: Path) -> Path:
    from rl_training.state import checkpoints

    return checkpoints.listed(run / "checkpoints")[-1]


def ship(run: Path) -> None:
    """Write the policy of a run to the zoo; `make results` writes its card."""
    from rl_training.state import checkpoints

    tree = checkpoints.load_checkpoint(newest(run), only="policy")
    checkpoints.save_policy(ZOO, checkpoints.checkpoint_step(newest(run)), tree)


def passed(found: dict[str, Any]) -> bool:
    lost = sum(
        found[name][f"lost_as_{side}"] for name in ("random", "minimax:4") for side in ("first", "second")
    )
    best = found["kept"][str(SIMULATIONS[-1])]
    return lost == 0 and best["kept"] >= 0.9 and best["kept"] - best["untrained"] >= 0.2


def keep(found: dict[str, Any]) -> bool:
    """Add a run to those that are kept; whether it is the weakest of its settings with the longest search."""
    runs = json.loads(KEPT.read_text("utf-8")) if KEPT.exists() else {}
    runs[str(found["seed"])] = found
    KEPT.write_text(json.dumps(dict(sorted(runs.items())), indent=1) + "\n", "utf-8")
    alike = [run for run in runs.values() if run["config_sha256"] == found["config_sha256"]]
    return found is min(alike, key=lambda run: run["kept"][str(SIMULATIONS[-1])]["kept"])


def main(arguments: list[str]) -> int:
    runs = [Path(word) for word in arguments if not word.startswith("--")]
    failed = 0
    share = next((float(word[8:]) for word in arguments if word.startswith("--share=")), 1.0)
    for run in runs:
        found = measure(run, share)
        print(json.dumps(found, indent=1), flush=True)
        if "--keep" in arguments and keep(found):
            ship(run)
        failed += not found["passed"]
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
