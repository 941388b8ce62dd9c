"""How often a policy's move in Connect Four keeps what the position is worth under perfect play."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.algorithms.masking import MASK
from rl_training.errors import ConfigError
from rl_training.registry import trainer_class
from rl_training.runtime.matches import SOLVED, SOLVED_FROM, Game, Player, policy_player
from rl_training.runtime.trainer import as_seen
from rl_training.runtime.workflows import Which, load_agent, made_for, search_with
from rl_training.search.connect_four import Solver, from_planes
from rl_training.state.seeding import fold, seed_everything
from rl_training.trust import refuse_untrusted

MOST_STONES = 30  # a fuller board leaves little to choose
TOGETHER = 100  # positions searched at once: the states of all their nodes are in memory

Outcome = Callable[[int, int], int]  # of a position under perfect play: 1, 0 or -1 for who is to move


@cache
def solved() -> Outcome:
    """The solver's outcomes, each found once: searches of all lengths are judged in the same positions."""
    return cache(Solver().outcome)


def random_positions(game: Game, count: int, seed: int) -> np.ndarray:
    """States [count, S] after 8 to 30 random moves, each number as likely, of games that are not over."""
    chance = np.random.default_rng(fold(seed, "positions"))

    def games() -> Iterator[np.ndarray]:
        while True:
            state, over = game.begin(), False
            for _ in range(int(chance.integers(SOLVED_FROM, MOST_STONES + 1))):
                over = over or game.move(state, int(chance.choice(np.flatnonzero(mask_of(game, state)))))[1]
                if over:
                    break
            if not over:
                yield state

    found = games()
    return np.stack([next(found) for _ in range(count)])


def mask_of(game: Game, state: np.ndarray) -> np.ndarray:
    mask: np.ndarray = game.seen(state[None])[MASK][0]
    return mask


def keeps_value(game: Game, outcome: Outcome, state: np.ndarray, action: int) -> bool:
    """Whether perfect play after the move is worth as much to its mover as perfect play before it: 1, 0 or -1."""
    after = state.copy()
    reward, over = game.move(after, action)
    worth = int(reward) if over else -outcome(*from_planes(planes_of(game, after)))
    return worth == outcome(*from_planes(planes_of(game, state)))


def planes_of(game: Game, state: np.ndarray) -> np.ndarray:
    planes: np.ndarray = game.seen(state[None])["observation"][0]
    return planes


def share_kept(game: Game, player: Player, outcome: Outcome, states: np.ndarray) -> float:
    """The share of states [N, S] in which the player's move keeps the theoretical value."""
    moves = [
        player(part, game.seen(part))
        for part in np.array_split(states, range(TOGETHER, len(states), TOGETHER))
    ]
    kept = [
        keeps_value(game, outcome, state, int(move))
        for state, move in zip(states, np.concatenate(moves), strict=True)
    ]
    return float(np.mean(kept))


def judge_moves(
    path: str | Path,
    *,
    positions: int = 1000,
    seed: int | None = None,
    sample: bool = False,
    checkpoint: Which = "last",
    trust: bool = False,
    settings: Sequence[str] | Mapping[str, object] = (),
) -> dict[str, float]:
    """Share of a policy's moves that keep the theoretical value, over random positions of 8 to 30 stones.

    `untrained` is the share of the same policy before any update, in the same positions.
    settings: of its searches, as in `evaluate_checkpoint`
    """
    config, agent, saved = load_agent(path, checkpoint, trust=trust)
    refuse_untrusted(config, trust, doing="playing")
    if config.env_id != SOLVED:
        raise ConfigError(f"{config.env_id}: there is a solver of {SOLVED} alone")
    observation, action = made_for(saved)
    game, seed = Game(config, observation, action), config.seed if seed is None else seed
    states = random_positions(game, positions, seed)

    def share(player: Any) -> float:
        if settings:
            search_with(config, player, settings, sample)
        seed_everything(fold(seed, "moves"))
        return share_kept(game, policy_player(player, sample), solved(), states)

    kept = share(agent)
    seed_everything(fold(config.seed, "init"))
    untrained = trainer_class(config.algo).make_agent(config, as_seen(config, observation), action)
    return {"positions": positions, "kept": kept, "untrained": share(untrained)}
