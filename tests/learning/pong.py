"""PPO on Pong: the last 50 games of training against 50 games of the untrained policy.

    python tests/learning/pong.py [RUN_DIR [key=value ...]]

A one-sided Welch test must give p < 0.01. Both play as they train: actions are sampled.
"""

from __future__ import annotations

import math
import sys
import tempfile
from pathlib import Path

import numpy as np

GAMES = 50


def welch(better: np.ndarray, worse: np.ndarray) -> tuple[float, float]:
    """t = (m₁ - m₂) / √(s₁²/n₁ + s₂²/n₂), and the one-sided p by the normal tail, which for 50 games each is the
    t distribution's to within a few per cent."""
    spread = better.var(ddof=1) / len(better) + worse.var(ddof=1) / len(worse)
    t = (better.mean() - worse.mean()) / math.sqrt(spread)
    return t, 0.5 * math.erfc(t / math.sqrt(2))


def run(run_dir: Path, overrides: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """The scores of the untrained policy's games, and of the last games of training."""
    from rl_training import load_config, resume, train
    from rl_training.envs.making import make_environments
    from rl_training.registry import trainer_class
    from rl_training.runtime.display import PlainDisplay
    from rl_training.state.checkpoints import load_checkpoint
    from rl_training.state.seeding import fold, seed_everything

    config = load_config("ppo/pong", overrides)
    if (run_dir / "config.yaml").exists():
        result = resume(run_dir, display=PlainDisplay(lines=100))
    else:
        result = train(config, run_dir=run_dir, display=PlainDisplay(lines=100))
    progress = load_checkpoint(result.checkpoint_path, only="progress")["progress"]
    trained = np.array([score for score, _ in progress["window"]["recent"]][-GAMES:])

    seed_everything(fold(config.seed, "init"))
    fresh = trainer_class(config.algo)(config)
    environments = make_environments(config, 10, fold(config.seed, "untrained"), "evaluate")
    untrained: list[float] = []
    while len(untrained) < GAMES:  # Pong's first games all last about as long: no bias towards short ones
        environments.step(fresh.agent.act(environments.obs, (), explore=True)[0]["action"])
        untrained += [score for _, score, _ in environments.take_finished()]
    fresh.close()
    environments.close()
    return np.array(untrained[:GAMES]), trained


def main(arguments: list[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(arguments[0]) if arguments else Path(folder) / "run"
        untrained, trained = run(run_dir, arguments[1:])
    t, p = welch(trained, untrained)
    print(f"untrained: {untrained.mean():.2f} ± {untrained.std(ddof=1):.2f} over {len(untrained)} games")
    print(f"trained:   {trained.mean():.2f} ± {trained.std(ddof=1):.2f} over the last {len(trained)} games")
    print(f"Welch's t = {t:.2f}, one-sided p = {p:.2g}: {'passed' if p < 0.01 else 'failed'}")
    return int(p >= 0.01 or len(trained) < GAMES)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
