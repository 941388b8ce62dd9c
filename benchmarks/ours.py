"""One training run of this package, through its public functions.

python -m benchmarks.ours '{"config": {"algo": "ppo", ...}, "episodes": 50, "profile": false}'
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.meter import measured, report
from benchmarks.sections import CLOSED, PLACES, Sections
from rl_training import evaluate_checkpoint, load_config, train
from rl_training.registry import trainer_class

PACKAGES = ("rl-training", "torch", "numpy", "gymnasium", "numba")


def main(settings: dict[str, Any]) -> None:
    # Peers in Python step Gymnasium's own environments, so do we unless a row says otherwise.
    settings["config"] = {"vectorization": "sync"} | settings["config"]
    config = load_config(settings["config"])
    with tempfile.TemporaryDirectory() as folder:
        train(
            load_config(settings["config"] | {"total_timesteps": settings["warm_up"]}),
            run_dir=Path(folder) / "warm_up",
        )
        sections = Sections()
        sections.install(CLOSED)
        if settings.get("profile"):
            sections.install(PLACES)
            sections.install_trainer(trainer_class(config.algo))
        result, cost = measured(lambda: train(config, run_dir=Path(folder) / "run"))
        where = sections.table(cost)
        # A run always evaluates at its end, and peers never do.
        for clock in ("cpu_seconds", "wall_seconds"):
            cost[clock] -= where["evaluation"][clock]
        steps = json.loads((result.run_dir / "metrics.jsonl").read_text().splitlines()[-1])["step"]
        score = None
        if settings["episodes"]:
            seed = 1000 + config.seed
            score = evaluate_checkpoint(result.run_dir, episodes=settings["episodes"], seed=seed)[
                "mean_return"
            ]
    more = {"sections": where} if settings.get("profile") else {}
    report(steps, cost, PACKAGES, score=score, **more)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
