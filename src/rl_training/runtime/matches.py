"""Matches of a policy in a game of two: against chance, minimax, a solver or another policy, from both sides."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.algorithms.masking import MASK
from rl_training.dynamics.interface import Dynamics
from rl_training.envs.compiled import row_size, shaped
from rl_training.envs.making import compiled_dynamics, make_env
from rl_training.envs.spaces import same_layout
from rl_training.errors import ConfigError, UserError
from rl_training.registry import policy_path
from rl_training.runtime.workflows import Which, load_agent, made_for, search_with
from rl_training.search.connect_four import Solver, from_planes
from rl_training.search.minimax import minimax_values
from rl_training.settings.config import Config
from rl_training.state.seeding import fold, seed_everything
from rl_training.trust import refuse_untrusted
from rl_training.types import Space

# Positions of several games, states [N, S] and what their movers see [N, ...] → the columns or squares they take, [N].
Player = Callable[[np.ndarray, Any], np.ndarray]
OUTCOMES = ("won", "drawn", "lost")
ME = "me"  # the person at the keyboard
SOLVED = "rl_training/ConnectFour-v0"  # the game that has a solver
SOLVED_FROM = 8  # stones: from fewer the solver may take hours


class Game:
    """A compiled game of two with action masks: who moves sees it from its own side, and rewards are the mover's."""

    def __init__(self, config: Config, observation: Space, action: Space) -> None:
        if not getattr(config, "two_players", False):
            raise ConfigError(f"{config.env_id}: matches need a game of two, trained with two_players: true")
        with closing(make_env(config.env_id, {}, config.max_episode_steps)) as env:
            found = compiled_dynamics(env, {})
        if isinstance(found, str) or not found.masked:
            raise ConfigError(f"{config.env_id}: matches need a compiled game with action masks")
        self.dynamics: Dynamics = found
        self.env_id, self.observation, self.actions = config.env_id, observation, int(action.n)  # type: ignore[attr-defined]
        self.numbers = row_size(found, observation, action)

    def begin(self) -> np.ndarray:
        state = np.zeros(len(self.dynamics.lowest))
        self.dynamics.reset(state, np.zeros(2, np.uint64))
        return state

    def move(self, state: np.ndarray, action: int) -> tuple[float, bool]:
        """Change the state; what the mover earns, and whether the game is over."""
        reward, over = self.dynamics.step(state, np.array([float(action)]), np.zeros(2, np.uint64))
        return float(reward), bool(over)

    def seen(self, states: np.ndarray) -> Any:
        rows = np.empty((len(states), self.numbers), np.float32)
        for state, row in zip(states, rows, strict=True):
            self.dynamics.observe(state, row)
        return shaped(self.observation, rows)


def policy_player(agent: Any, sample: bool) -> Player:
    if agent.initial(1):
        raise ConfigError("a policy with a memory cannot play matches")

    def choose(states: np.ndarray, obs: Any) -> np.ndarray:
        return agent.act(obs, (), explore=sample)[0]["action"]

    return choose


def is_named(against: str) -> bool:
    """Whether this is a player with a name, whatever directories there are."""
    return against in ("random", "solver", ME) or against.startswith("minimax:")


def named_player(name: str, game: Game, seed: int) -> Player:
    """`random`, `minimax:DEPTH`, `solver`, of whose equally good moves each is as likely, or `me`, at the keyboard."""
    chance = np.random.default_rng(seed)

    def among_best(values: Callable[[np.ndarray, Any], np.ndarray]) -> Player:
        def choose(states: np.ndarray, obs: Any) -> np.ndarray:
            planes = obs["observation"]
            found = [values(state, seen) for state, seen in zip(states, planes, strict=True)]
            return np.array([chance.choice(np.flatnonzero(each == each.max())) for each in found])

        return choose

    if name == "random":
        return lambda states, obs: np.array([chance.choice(np.flatnonzero(mask)) for mask in obs[MASK]])
    if name == ME:
        return lambda states, obs: np.array([*map(ask, obs["observation"], obs[MASK])])
    if name == "solver":
        if game.env_id != SOLVED:
            raise ConfigError(f"there is a solver of {SOLVED} alone; use minimax:DEPTH")
        solver = Solver()

        def exact(state: np.ndarray, planes: np.ndarray) -> np.ndarray:
            values = np.full(game.actions, -np.inf)
            for column, score in solver.scores(*from_planes(planes)).items():
                values[column] = score
            return values

        return among_best(exact)
    depth = name.removeprefix("minimax:")
    if not name.startswith("minimax:") or not depth.isdecimal() or int(depth) < 1:
        raise ConfigError(f"against {name!r}: must be random, minimax:DEPTH, solver, me, a run or zoo:NAME")
    return among_best(
        lambda state, _: minimax_values(game.dynamics, state, int(depth), game.numbers, game.actions)
    )


def drawn(planes: np.ndarray, actions: int, stones: str = "xo") -> str:
    """A board as text: two planes [2, H, W], or two square ones in a vector, of who moves and of the other side.

    Its columns are numbered where there are as many actions.
    """
    side = math.isqrt(planes.size // 2)
    if planes.ndim == 1 and planes.size == 2 * side * side:
        planes = planes.reshape(2, side, side)
    if planes.ndim != 3 or len(planes) != 2:
        return str(planes)
    signs = np.where(planes[0] > 0, stones[0], np.where(planes[1] > 0, stones[1], "."))
    board = [" ".join(row) for row in signs]
    if actions == planes.shape[2]:  # a move is a column
        board.append(" ".join(str(column % 10) for column in range(actions)))
    return "\n".join(board)


def ask(planes: np.ndarray, mask: np.ndarray) -> int:
    """A move of the person at the keyboard; asked again until it is allowed."""
    allowed = [str(action) for action in np.flatnonzero(mask)]
    print(f"\n{drawn(planes, len(mask))}\nyou are x; moves: {' '.join(allowed)}", file=sys.stderr)
    while True:
        print("move: ", end="", file=sys.stderr, flush=True)
        typed = sys.stdin.readline()
        if not typed:
            raise UserError("no move was typed; the game was left")
        if typed.strip() in allowed:
            return int(typed)
        print("not a move that is allowed", file=sys.stderr)


def play_matches(
    game: Game,
    player: Player,
    opponent: Player,
    *,
    games: int,
    seed: int,
    random_moves: int = 0,
    one_by_one: bool = False,
) -> dict[str, int]:
    """Games in pairs of one opening, each side beginning one of the two: how many a player won, drew and lost as which.

    random_moves: moves at random before a pair begins, fewer where one of them would end the game
    one_by_one: each game to its end before the next, and say how it ended, instead of all side by side
    """
    seed_everything(fold(seed, "matches"))
    chance = np.random.default_rng(fold(seed, "openings"))
    states, moved = [], []
    for _ in range((games + 1) // 2):
        state, made = game.begin(), 0
        for _ in range(random_moves):
            after = state.copy()
            mask = game.seen(state[None])[MASK][0]
            if game.move(after, int(chance.choice(np.flatnonzero(mask))))[1]:
                break
            state, made = after, made + 1
        states += [state, state.copy()]
        moved += [made, made]
    found = {f"{outcome}_as_{side}": 0 for side in ("first", "second") for outcome in OUTCOMES}
    waiting = [[g] for g in range(games)] if one_by_one else [list(range(games))]
    running: list[int] = []
    while running or waiting:
        running = running or waiting.pop(0)
        for ours, mover in ((True, player), (False, opponent)):
            mine = [g for g in running if ((moved[g] % 2) == (g % 2)) == ours]
            if not mine:
                continue
            before = np.stack([states[g] for g in mine])
            for g, action in zip(mine, mover(before, game.seen(before)).tolist(), strict=True):
                reward, over = game.move(states[g], int(action))
                moved[g] += 1
                if over:
                    sign = np.sign(reward) * (1 if ours else -1)
                    outcome = OUTCOMES[1 - int(sign)]
                    found[f"{outcome}_as_{('first', 'second')[g % 2]}"] += 1
                    running.remove(g)
                    if one_by_one:
                        board = game.seen(states[g][None])["observation"][0]
                        last = drawn(board, game.actions, "xo" if ours else "ox")
                        print(
                            f"\n{last}\ngame {g + 1} of {games} is over: the policy has {outcome}",
                            file=sys.stderr,
                        )
    return found


def match_checkpoints(
    path: str | Path,
    against: str,
    *,
    games: int = 100,
    seed: int | None = None,
    sample: bool = False,
    checkpoint: Which = "last",
    trust: bool = False,
    settings: Sequence[str] | Mapping[str, object] = (),
    random_moves: int = 0,
) -> dict[str, int]:
    """Play the policy of a run, a checkpoint or the zoo in its game of two: how many games it won, drew and lost.

    against: `random`, `minimax:DEPTH`, `solver`, `me` (a person at the keyboard), or another run, checkpoint or
        zoo:NAME, with the same options
    settings: of the searches of both policies, as in `evaluate_checkpoint`
    """
    config, agent, saved = load_agent(path, checkpoint, trust=trust)
    refuse_untrusted(config, trust, doing="playing")
    spaces = made_for(saved)
    game, seed = Game(config, *spaces), config.seed if seed is None else seed
    if settings:
        search_with(config, agent, settings, sample)
    if not is_named(against) and (against.startswith("zoo:") or policy_path(against).exists()):
        config, other, saved = load_agent(against, checkpoint, trust=trust)
        if not all(same_layout(*pair) for pair in zip(spaces, made_for(saved), strict=True)):
            raise ConfigError(f"{against}: plays another game, {config.env_id}")
        if settings:
            search_with(config, other, settings, sample)
        opponent = policy_player(other, sample)
    else:
        opponent = named_player(against, game, fold(seed, "opponent"))
        if against == "solver" and random_moves < SOLVED_FROM:
            raise ConfigError(
                f"against solver: needs --random-moves {SOLVED_FROM} (random_moves) or more;"
                " emptier boards take too long to solve"
            )
    how: dict[str, Any] = {"games": games, "seed": seed, "random_moves": random_moves}
    return play_matches(game, policy_player(agent, sample), opponent, **how, one_by_one=against == ME)
