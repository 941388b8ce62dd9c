"""Elo ratings of a run's checkpoints in its game of two, from matches between them and against chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.errors import RunError
from rl_training.runtime.matches import Game, named_player, play_matches, policy_player
from rl_training.runtime.workflows import load_agent, made_for, search_with
from rl_training.state import checkpoints
from rl_training.state.seeding import fold
from rl_training.trust import refuse_untrusted

RANDOM = "random"


def elo(scores: np.ndarray, games: np.ndarray) -> np.ndarray:
    """Ratings [N] by maximum likelihood (Bradley and Terry 1952), of which the first is 0.

    scores: [N, N], points of row against column, a draw is half a point; games: [N, N], how many they played

        P(i beats j) = γᵢ / (γᵢ + γⱼ)        Elo = 400 log₁₀ γ

    Each pair that met counts one draw more than it played: who has won all games is not infinitely good. The fixed
    point γᵢ = Σⱼ scoresᵢⱼ / Σⱼ gamesᵢⱼ / (γᵢ + γⱼ) is iterated (Hunter 2004).
    """
    met = games > 0
    points, games = scores + 0.5 * met, games + 1.0 * met
    strength = np.ones(len(games))
    for _ in range(10_000):
        before = strength
        strength = points.sum(1) / (games / (strength[:, None] + strength)).sum(1)
        strength /= strength[0]
        if np.abs(np.log(strength / before)).max() < 1e-9:
            break
    rating: np.ndarray = 400 * np.log10(strength)
    return rating


def rate_checkpoints(
    run: str | Path,
    *,
    games: int = 20,
    seed: int | None = None,
    sample: bool = False,
    trust: bool = False,
    settings: Sequence[str] | Mapping[str, object] = (),
    random_moves: int = 4,
) -> dict[str, float]:
    """Elo of every checkpoint that a run has kept, by its step; `random`, who moves at random, has 0.

    Each plays `games` against its neighbours in time and against chance, from random openings and from both sides.
    """
    paths = checkpoints.listed(Path(run) / "checkpoints")
    if not paths:
        raise RunError(f"{run}: no checkpoints of a run here")
    game, players = None, list[Any]()
    for path in paths:
        config, agent, saved = load_agent(path, "last", trust=trust)
        refuse_untrusted(config, trust, doing="playing")
        if settings:
            search_with(config, agent, settings, sample)
        if game is None:
            game, seed = Game(config, *made_for(saved)), config.seed if seed is None else seed
            players.append(named_player(RANDOM, game, fold(seed, "opponent")))
        players.append(policy_player(agent, sample))
    assert game is not None and seed is not None
    steps = sorted(range(1, len(players)), key=lambda i: checkpoints.step_of(paths[i - 1]))
    pairs = {*pairwise(steps), *zip(steps, steps[2:], strict=False), *((0, i) for i in steps)}
    scores, played = np.zeros((2, len(players), len(players)))
    for number, (one, other) in enumerate(sorted(pairs)):
        found = play_matches(
            game,
            players[one],
            players[other],
            games=games,
            seed=fold(seed, f"pair {number}"),
            random_moves=random_moves,
        )
        won = sum(found[f"won_as_{side}"] + found[f"drawn_as_{side}"] / 2 for side in ("first", "second"))
        scores[one, other], scores[other, one] = won, games - won
        played[one, other] = played[other, one] = games
    ratings = elo(scores, played)
    return {RANDOM: 0.0} | {str(checkpoints.step_of(paths[i - 1])): float(ratings[i]) for i in steps}
