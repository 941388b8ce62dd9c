"""Matches of policies in games of two, from both sides."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from runs import BOARD_GAME
from typer.testing import CliRunner

from rl_training import load_config, train
from rl_training.cli import app
from rl_training.envs.making import make_compiled
from rl_training.errors import ConfigError
from rl_training.runtime import exactness, ratings
from rl_training.runtime.exactness import judge_moves, keeps_value, random_positions, share_kept
from rl_training.runtime.matches import Game, drawn, match_checkpoints, named_player, play_matches
from rl_training.runtime.ratings import elo, rate_checkpoints
from rl_training.search.connect_four import Solver, from_planes, is_won

CONNECT, TICTACTOE = "rl_training/ConnectFour-v0", "rl_training/TicTacToe-v0"
TINY: dict[str, Any] = BOARD_GAME | dict(algo="gumbel_muzero", eval_episodes=1)


def game_of(env_id: str) -> Game:
    config = load_config(TINY, env_id=env_id)
    lanes = make_compiled(config, 1, 1, "train").lanes
    return Game(config, lanes.observation_space, lanes.action_space)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("matches") / "run"
    train(load_config(TINY, env_id=CONNECT), run_dir=folder, quiet=True)
    return folder


def lost(found: dict[str, int]) -> int:
    return found["lost_as_first"] + found["lost_as_second"]


def test_perfect_players_of_tictactoe_draw_and_lose_to_nobody() -> None:
    game = game_of(TICTACTOE)

    def match(one: str, other: str, games: int) -> dict[str, int]:
        players = named_player(one, game, 1), named_player(other, game, 2)
        return play_matches(game, *players, games=games, seed=3)

    assert match("minimax:9", "minimax:9", 8) == {
        **dict.fromkeys(("won_as_first", "lost_as_first", "won_as_second", "lost_as_second"), 0),
        "drawn_as_first": 4,
        "drawn_as_second": 4,
    }
    found = match("minimax:9", "random", 40)
    assert lost(found) == 0 and found["won_as_first"] > 15 and sum(found.values()) == 40
    mirrored = match("random", "minimax:9", 40)
    assert mirrored["won_as_first"] == mirrored["won_as_second"] == 0 and lost(mirrored) > 25


def test_the_solver_of_connect_four_wins_what_is_won() -> None:
    """From openings of twelve moves that are won for who moves, it wins them all against minimax."""
    game = game_of(CONNECT)
    found = play_matches(
        game,
        named_player("solver", game, 1),
        named_player("minimax:2", game, 2),
        games=12,
        seed=4,
        random_moves=12,
    )
    # Of each pair one side begins in the better position: the solver keeps it, and can only gain from the other.
    assert found["won_as_first"] + found["won_as_second"] >= 6 and sum(found.values()) == 12


def test_openings_are_shared_by_pairs_and_differ_between_them() -> None:
    game, seen = game_of(CONNECT), []

    def watch(states: np.ndarray, obs: Any) -> np.ndarray:
        seen.append(states.copy())
        return named_player("random", game, 5)(states, obs)

    play_matches(game, watch, named_player("random", game, 6), games=6, seed=1, random_moves=4)
    first = seen[0]
    assert len(first) == 3 and (first[:, :-1] != 0).sum() == 12, "who begins has four stones before it"
    assert len(np.unique(first, axis=0)) > 1
    again: list[np.ndarray] = []
    play_matches(
        game,
        lambda states, obs: (again.append(states.copy()), named_player("random", game, 5)(states, obs))[1],
        named_player("random", game, 6),
        games=6,
        seed=1,
        random_moves=4,
    )
    assert all(np.array_equal(one, other) for one, other in zip(seen, again, strict=True))


def test_a_run_plays_named_players_and_other_runs(run: Path) -> None:
    for against in ("random", "minimax:2", str(run)):
        found = match_checkpoints(run, against, games=6, random_moves=2)
        assert sum(found.values()) == 6
        assert found["won_as_first"] + found["drawn_as_first"] + found["lost_as_first"] == 3
        assert match_checkpoints(run, against, games=6, random_moves=2) == found, "and again the same"
    itself = match_checkpoints(run, str(run), games=2)
    assert itself["won_as_first"] == itself["lost_as_second"], (
        "greedy on both sides: one game, seen from both"
    )


def cli(*words: Any) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def test_the_command_prints_both_sides(run: Path) -> None:
    told = cli("evaluate", run, "--against", "random", "--episodes", 4, "--set", "num_simulations=3")
    assert told.exit_code == 0, told.output
    assert "moving first" in told.stdout and "moving second" in told.stdout
    assert "4 games against random" in told.stdout
    answer = json.loads(cli("evaluate", run, "--against", "random", "--episodes", 4, "--json").stdout)
    assert sum(answer.values()) == 4


@pytest.mark.parametrize(
    ("env_id", "against", "says"),
    [
        (CONNECT, "minimax:0", "must be random, minimax:DEPTH, solver, me, a run or zoo:NAME"),
        (CONNECT, "nobody", "against 'nobody': must be"),
        (TICTACTOE, "solver", "use minimax:DEPTH"),
    ],
)
def test_who_cannot_play_is_refused(env_id: str, against: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        named_player(against, game_of(env_id), 1)


def test_the_solver_is_not_asked_about_boards_that_take_hours(run: Path) -> None:
    with pytest.raises(ConfigError, match="against solver: needs --random-moves 8"):
        match_checkpoints(run, "solver", games=2, random_moves=7)


def test_a_player_with_a_name_comes_before_a_directory_of_that_name(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("random", "minimax:1"):
        Path(name).mkdir()
        assert sum(match_checkpoints(run, name, games=2).values()) == 2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--random-moves", 4], "--random-moves needs --against"),
        (["--against", "random", "--task", CONNECT], "--task cannot be used with --against"),
        (["--solved", 5, "--task", CONNECT], "--task cannot be used with --solved"),
        (["--solved", 5, "--against", "random"], "--against and --solved cannot be used together"),
    ],
)
def test_options_that_would_do_nothing_are_refused(run: Path, options: list[Any], says: str) -> None:
    told = cli("evaluate", run, *options)
    assert told.exit_code == 2 and says in told.stderr and told.stderr.count("\n") == 1


def test_games_that_are_none_of_two_are_refused() -> None:
    config = load_config(TINY | dict(two_players=False), env_id=CONNECT)
    lanes = make_compiled(config, 1, 1, "train").lanes
    with pytest.raises(ConfigError, match="matches need a game of two"):
        Game(config, lanes.observation_space, lanes.action_space)
    config = load_config(TINY, env_id="CartPole-v1")
    lanes = make_compiled(config, 1, 1, "train").lanes
    with pytest.raises(ConfigError, match="a compiled game with action masks"):
        Game(config, lanes.observation_space, lanes.action_space)


def test_boards_are_drawn_from_the_movers_side() -> None:
    board = np.zeros((2, 6, 7))
    board[0, 5, 3] = board[1, 5, 4] = board[1, 4, 3] = 1
    assert drawn(board, 7).splitlines()[4:] == [". . . o . . .", ". . . x o . .", "0 1 2 3 4 5 6"]
    assert drawn(np.eye(18)[[0, 13]].sum(0), 9) == "x . .\n. o .\n. . ."
    assert drawn(np.eye(18)[[0, 13]].sum(0), 9, "ox") == "o . .\n. x .\n. . ."
    assert drawn(np.arange(3), 2) == "[0 1 2]", "what is no board is shown as it is"


def test_a_person_plays_in_the_terminal_one_game_after_the_other(run: Path) -> None:
    moves = "nine\n9\n" + "1" * 5000 + "\n" + "0\n1\n2\n3\n4\n5\n6\n" * 12
    told = CliRunner().invoke(app, ["evaluate", str(run), "--against", "me", "--json"], input=moves)
    assert told.exit_code == 0, told.output
    assert sum(json.loads(told.stdout).values()) == 2, "two games unless more are asked for, and nothing else"
    assert told.stderr.count("not a move that is allowed") >= 3
    first, second = told.stderr.split("game 1 of 2 is over: the policy has ")
    rows = re.findall(r"^[.xo](?: [.xo]){6}$", first, re.MULTILINE)
    stones = [42 - "".join(rows[at : at + 6]).count(".") for at in range(0, len(rows), 6)]
    assert stones == sorted(stones), "a board that only fills up is one game"
    assert stones[-1] > stones[-2], "and the board at its end is shown"
    assert "game 2 of 2 is over" in second
    left = CliRunner().invoke(app, ["evaluate", str(run), "--against", "me", "--episodes", "1"], input="")
    assert left.exit_code == 2 and "no move was typed" in left.output


def test_elo_of_known_chances() -> None:
    # Who wins three of four is log₁₀ 3 · 400 = 190.8 points better; the one draw more is lost among so many games.
    scores = np.array([[0.0, 2.5e8, 1e8], [7.5e8, 0.0, 0.0], [9e8, 0.0, 0.0]])
    games = np.array([[0.0, 1e9, 1e9], [1e9, 0.0, 0.0], [1e9, 0.0, 0.0]])
    assert elo(scores, games) == pytest.approx([0.0, 190.85, 381.70], abs=0.01)
    # Of ten games won all: 10.5 of 11 with the draw.
    assert elo(np.array([[0.0, 0.0], [10.0, 0.0]]), np.array([[0.0, 10.0], [10.0, 0.0]])) == pytest.approx(
        [0.0, 400 * np.log10(10.5 / 0.5)], abs=0.01
    )


def test_who_beats_chance_is_rated_above_it(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    game = game_of(CONNECT)
    monkeypatch.setattr(ratings, "policy_player", lambda agent, sample: named_player("minimax:3", game, 1))
    found = rate_checkpoints(run, games=6)
    assert found["random"] == 0 and found["64"] > 100


def test_checkpoints_of_a_run_are_rated(run: Path) -> None:
    found = rate_checkpoints(run, games=4)
    assert next(iter(found)) == "random" and found["random"] == 0 and list(found)[-1] == "64"
    assert rate_checkpoints(run, games=4) == found, "and again the same"
    told = cli("evaluate", run, "--elo", "--episodes", 2)
    assert told.exit_code == 0, told.output
    assert "random play is 0" in told.stdout
    refused = cli("evaluate", run, "--elo", "--against", "random")
    assert refused.exit_code != 0 and "cannot be used together" in refused.output
    refused = cli("evaluate", run, "--elo", "--checkpoint", "best")
    assert refused.exit_code != 0 and "--checkpoint cannot be used with --elo" in refused.output


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fuller boards, which are solved at once."""
    monkeypatch.setattr(exactness, "SOLVED_FROM", 22)


def values_of(game: Game, solver: Solver, state: np.ndarray) -> dict[int, int]:
    """The sign of what each move is worth to who makes it, from exact scores."""
    scores = solver.scores(*from_planes(game.seen(state[None])["observation"][0]))
    return {column: int(np.sign(score)) for column, score in scores.items()}


def test_random_positions_have_8_to_30_stones_and_are_not_over() -> None:
    game = game_of(CONNECT)
    states = random_positions(game, 200, seed=1)
    stones = (states[:, :42] != 0).sum(1)
    assert (stones.min(), stones.max()) == (8, 30) and np.array_equal(states, random_positions(game, 200, 1))
    for planes in game.seen(states)["observation"]:
        mine, taken = from_planes(planes)
        assert not any(is_won(np.uint64(side), 6) for side in (mine, mine ^ taken))


def test_a_move_keeps_the_value_where_its_exact_score_has_the_best_sign(late: None) -> None:
    game, solver = game_of(CONNECT), Solver()
    states = random_positions(game, 12, seed=2)
    found = [values_of(game, solver, state) for state in states]
    for state, values in zip(states, found, strict=True):
        for column, value in values.items():
            assert keeps_value(game, solver.outcome, state, column) == (value == max(values.values()))

    def player(choose: Any) -> Any:
        moves = iter(choose(values, key=values.__getitem__) for values in found)
        return lambda states, obs: np.array([next(moves) for _ in states])

    assert share_kept(game, player(max), solver.outcome, states) == 1.0
    alike = np.mean([len({*values.values()}) == 1 for values in found])
    assert share_kept(game, player(min), solver.outcome, states) == pytest.approx(alike) and alike < 1


def test_moves_of_a_run_are_judged(run: Path, late: None) -> None:
    found = judge_moves(run, positions=10)
    assert found.keys() == {"positions", "kept", "untrained"} and 0 < found["kept"] <= 1
    assert judge_moves(run, positions=10) == found, "and again the same"
    told = cli("evaluate", run, "--solved", 4, "--set", "num_simulations=3")
    assert told.exit_code == 0 and "judged     4 random positions" in told.stdout, told.output
    assert json.loads(cli("evaluate", run, "--solved", 4, "--json").stdout)["positions"] == 4


def test_a_game_without_a_solver_is_not_judged(tmp_path: Path) -> None:
    train(load_config(TINY, env_id=TICTACTOE), run_dir=tmp_path / "run", quiet=True)
    with pytest.raises(ConfigError, match="there is a solver of rl_training/ConnectFour-v0 alone"):
        judge_moves(tmp_path / "run", positions=2)
