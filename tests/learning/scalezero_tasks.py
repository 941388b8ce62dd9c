"""One model on several tasks: what each scores before and after, and what the solved pool saved.

    python tests/learning/scalezero_tasks.py [SEED ...] [key=value ...]

Trains `scalezero/classic` as it is shipped, for each seed, and prints a row per task: greedy episodes of the untrained
and of the trained policy, the environment steps that the task took, and when it was solved.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

from rl_training import evaluate_checkpoint, load_config, train
from rl_training.registry import trainer_class
from rl_training.runtime.evaluation import evaluate
from rl_training.state.seeding import fold, seed_everything

EPISODES = 20


def main(arguments: list[str]) -> None:
    overrides = [word for word in arguments if "=" in word]
    print("| seed | task | untrained | trained | steps | solved at |")
    print("|---:|---|---:|---:|---:|---:|")
    for seed in [int(word) for word in arguments if "=" not in word] or [1]:
        config = load_config("scalezero/classic", [f"seed={seed}", *overrides])
        seed_everything(fold(seed, "init"))
        fresh = trainer_class(config.algo)(config)
        before = evaluate(fresh.agent, config, episodes=EPISODES, seed=fold(seed, "gate"))
        fresh.close()
        with tempfile.TemporaryDirectory() as folder:
            began = time.process_time()
            result = train(config, run_dir=Path(folder) / "run")
            seconds = time.process_time() - began
            after = evaluate_checkpoint(result.run_dir, episodes=EPISODES, seed=1000 + seed)
            lines = [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]
        for task in config.env_ids:
            solved = [line["step"] for line in lines if line.get(f"task/{task}/solved")]
            scores = (found[f"task/{task}/mean_return"] for found in (before, after))
            row = " | ".join(f"{score:.1f}" for score in scores)
            steps = int(result.metrics[f"task/{task}/steps"])
            print(f"| {seed} | {task} | {row} | {steps} | {solved[0] if solved else 'never'} |")
        saved = result.metrics["saved_share"]
        print(f"\nseed {seed}: {saved:.1%} of the steps saved, {seconds:.0f} CPU seconds\n", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
