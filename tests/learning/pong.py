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
    """t = (m₁ - m₂) / √(v₁ + v₂) with v = s²/n, and its one-sided p.

    The degrees of freedom are Welch's and Satterthwaite's: (v₁ + v₂)² / (v₁²/(n₁ - 1) + v₂²/(n₂ - 1)).
    """
    parts = [(games.var(ddof=1) / len(games), len(games) - 1) for games in (better, worse)]
    spread = sum(v for v, _ in parts)
    t = (better.mean() - worse.mean()) / math.sqrt(spread)
    return t, student_tail(t, spread**2 / sum(v**2 / free for v, free in parts))


def student_tail(t: float, dof: float) -> float:
    """P(T > t) of Student's t distribution.

    With T = √dof tan θ the density is c cosⁿ⁻¹ θ, n = dof, on (-π/2, π/2): integrated from θ to the end by
    Gauss and Legendre's rule, and divided by c⁻¹ = √π Γ(n/2) / Γ((n + 1)/2).
    """
    begin = math.atan2(t, math.sqrt(dof))
    width = math.pi / 2 - begin
    nodes, weights = np.polynomial.legendre.leggauss(200)
    angles = begin + width * (nodes + 1) / 2
    integral = width / 2 * float(weights @ np.cos(angles) ** (dof - 1))
    whole = math.log(math.pi) / 2 + math.lgamma(dof / 2) - math.lgamma((dof + 1) / 2)
    return integral / math.exp(whole)


def run(run_dir: Path, overrides: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """The scores of the untrained policy's games, and of the last games of training."""
    from rl_training import load_config, resume, train
    from rl_training.envs.making import make_environments
    from rl_training.monitoring.display import PlainDisplay
    from rl_training.registry import trainer_class
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
