"""MuZero on tic-tac-toe: trained against itself, then played against a random and a perfect player.

    python tests/learning/tictactoe.py [SEED ...] [key=value ...]

No game may be lost to the random player, and 95 % must be won or drawn against the perfect one.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from pathlib import Path
from typing import Any

GAMES = 200
EXAMPLE = Path(__file__).parents[2] / "examples" / "tictactoe_players.py"


def load_example() -> Any:
    spec = importlib.util.spec_from_file_location("tictactoe_players", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(seed: int, overrides: list[str]) -> bool:
    """Train one seed, play, print, and say whether it passes."""
    from rl_training import load_config, load_policy, train

    players = load_example()
    config = load_config("muzero/tictactoe", [f"seed={seed}", *overrides])
    with tempfile.TemporaryDirectory() as folder:
        policy = load_policy(train(config, run_dir=Path(folder) / "run").run_dir)
    found = {
        name: players.play(lambda obs: int(policy.act(obs)), opponent, GAMES, seed=1000 + seed)
        for name, opponent in (("random", players.random_player), ("perfect", players.perfect_player))
    }
    for name, outcomes in found.items():
        shares = ", ".join(f"{outcomes[kind]} {kind}" for kind in ("won", "drawn", "lost"))
        print(f"seed {seed}, {GAMES} games against the {name} player: {shares}", flush=True)
    return found["random"]["lost"] == 0 and found["perfect"]["lost"] <= 0.05 * GAMES


def main(arguments: list[str]) -> int:
    seeds = [int(word) for word in arguments if word.isdigit()] or [1, 2, 3]
    overrides = [word for word in arguments if "=" in word]
    return sum(not run(seed, overrides) for seed in seeds)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
