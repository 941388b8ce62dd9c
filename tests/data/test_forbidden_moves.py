"""Forbidden moves of board games: which targets they have, and that a model learns that they lose."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from runs import BOARD_GAME

from rl_training import load_config
from rl_training.algorithms.muzero import Targets
from rl_training.data.forbidden_moves import with_forbidden_moves
from rl_training.errors import ConfigError
from rl_training.registry import trainer_class
from rl_training.runtime.controls import Controls
from rl_training.state.seeding import fold, seed_everything

CONNECT = "rl_training/ConnectFour-v0"


def a_batch() -> tuple[Any, Targets, torch.Tensor]:
    """Two steps of three positions with three actions, of which the last one's game ends after the first step."""
    batch = {
        "action": torch.tensor([[0, 1, 2], [1, 1, 0]]),
        "acted": torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 0.0], [1.0, 1.0, 0.0]]),
    }
    value = torch.tensor([[0.5, 1.0, 1.0], [-0.5, -1.0, 0.0], [0.5, 1.0, 0.0]])
    reward = torch.tensor([[0.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    policy = torch.full((3, 3, 3), 1 / 3) * batch["acted"][..., None]
    allowed = torch.ones(2, 3, 3)
    return batch, Targets(policy, value, reward), allowed


def test_a_forbidden_move_loses_and_ends_the_game_by_hand() -> None:
    batch, targets, allowed = a_batch()
    allowed[0, 1, 2] = allowed[1, 0, 0] = 0  # of the second position's first move, and the first one's second
    allowed[1, 2] = 0  # beyond an end nothing is forbidden
    changed, learned = with_forbidden_moves(batch, targets, allowed, 1.0)
    assert changed["action"][:, 0].tolist() == [0, 0] and changed["action"][0, 1] == 2
    assert learned.reward.tolist() == [[0.0, -1.0, 1.0], [-1.0, 0.0, 0.0]]
    assert changed["acted"].tolist() == [[1.0, 0.0, 1.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    assert learned.value.tolist() == [[0.5, 1.0, 1.0], [-0.5, 0.0, 0.0], [0.0, 0.0, 0.0]]
    assert torch.equal(learned.policy, targets.policy * changed["acted"][..., None])
    assert torch.equal(batch["action"], a_batch()[0]["action"]), "what was drawn stays as it is"


def test_value_prefixes_are_of_forbidden_moves_too(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = BOARD_GAME | dict(forbidden_moves=1.0, value_prefix=True, prefix_horizon=5)
    trainer = trainer_class("efficientzero")(load_config(settings, algo="efficientzero", env_id=CONNECT))
    batch, targets, allowed = a_batch()
    allowed[0, 1, 2] = allowed[1, 0, 0] = 0
    monkeypatch.setattr(trainer, "masks", lambda batch: torch.cat([allowed, allowed[:1]]))
    monkeypatch.setattr(trainer, "symmetries", None)
    _, learned = trainer.varied(batch, targets)
    trainer.close()
    assert learned.reward.tolist() == [[0.0, -1.0, 1.0], [-1.0, -1.0, 1.0]]


def test_so_many_moves_are_replaced_and_none_where_all_are_allowed() -> None:
    torch.manual_seed(1)
    batch, targets, allowed = a_batch()
    same, learned = with_forbidden_moves(batch, targets, allowed, 1.0)
    assert torch.equal(same["action"], batch["action"]) and torch.equal(learned.value, targets.value)
    allowed[0, 0, 1:] = 0
    found = [
        with_forbidden_moves(batch, targets, allowed, 0.25)[0]["action"][0, 0].item() for _ in range(800)
    ]
    assert 0.2 < 1 - found.count(0) / 800 < 0.3 and found.count(1) > 50 < found.count(2)


def test_a_model_learns_that_full_columns_lose() -> None:
    """The reward of moves into full columns, one move ahead, beside that of moves into others."""
    sizes = dict(num_envs=8, unroll_steps=1, batch_size=64, latent_size=16, td_steps=42, gamma=1.0)
    how = dict(learning_rate=3e-3, replay_ratio=0.5, total_timesteps=2_000, value_transform=False)
    fuller_boards = dict(env_kwargs={"random_moves": 24})
    settings = BOARD_GAME | sizes | how | fuller_boards | dict(forbidden_moves=0.5, buffer_size=3_000)
    config = load_config(settings, algo="gumbel_muzero", env_id=CONNECT, seed=1)
    trainer = trainer_class("gumbel_muzero")(config)
    controls = Controls.of(config)
    while trainer.steps < config.total_timesteps:
        seed_everything(fold(config.seed, "iteration", trainer.steps))  # no other test decides what is drawn
        trainer.iterate(controls.at(trainer.steps))
    trainer.close()
    seen = trainer.replay.seen_at(torch.arange(1_500).numpy())
    full = torch.from_numpy(seen["action_mask"]) == 0
    rows = (full.any(1) & ~full.all(1)).nonzero().squeeze(1)
    assert len(rows) > 50
    network = trainer.agent.network
    with torch.inference_mode():
        states = network.represent({name: torch.from_numpy(part)[rows] for name, part in seen.items()})
        rewards = torch.stack(
            [network.recurrent(states, torch.full((len(rows),), a))[0] for a in range(7)], 1
        )
    assert rewards[full[rows]].mean() < -0.5 < -0.2 < rewards[~full[rows]].mean()


@pytest.mark.parametrize(("env_id", "two_players"), [(CONNECT, False), ("CartPole-v1", True)])
def test_forbidden_moves_need_a_game_of_two_with_masks(env_id: str, two_players: bool) -> None:
    settings = BOARD_GAME | dict(two_players=two_players, forbidden_moves=0.1)
    with pytest.raises(ConfigError, match="forbidden_moves: needs two_players and"):
        trainer_class("muzero")(load_config(settings, algo="muzero", env_id=env_id))
