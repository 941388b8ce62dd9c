"""Ids that have a compiled environment, and the registered environment that each one replaces."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

from rl_training.dynamics.interface import Dynamics


class Known(NamedTuple):
    """What an id must be registered as, and where its dynamics are."""

    entry_point: str
    where: str  # module of this room and name in it
    kwargs: Mapping[str, Any] = {}

    def load(self) -> Dynamics:
        module, name = self.where.split(":")
        dynamics: Dynamics = getattr(import_module(f"rl_training.dynamics.{module}"), name)
        return dynamics


def _minatar(game: str) -> Known:
    settings = {"game": game, "use_minimal_action_set": True}
    return Known("rl_training.envs.minatar_games:Game", f"minatar_{game}:{game.upper()}", settings)


CLASSIC, TOY = "gymnasium.envs.classic_control", "gymnasium.envs.toy_text"
KNOWN: dict[str, Known] = {
    "CartPole-v0": Known(f"{CLASSIC}.cartpole:CartPoleEnv", "cartpole:CARTPOLE"),
    "CartPole-v1": Known(f"{CLASSIC}.cartpole:CartPoleEnv", "cartpole:CARTPOLE"),
    "MountainCar-v0": Known(f"{CLASSIC}.mountain_car:MountainCarEnv", "mountain_car:MOUNTAIN_CAR"),
    "MountainCarContinuous-v0": Known(
        f"{CLASSIC}.continuous_mountain_car:Continuous_MountainCarEnv", "mountain_car:CONTINUOUS_MOUNTAIN_CAR"
    ),
    "Pendulum-v1": Known(f"{CLASSIC}.pendulum:PendulumEnv", "pendulum:PENDULUM"),
    "Acrobot-v1": Known(f"{CLASSIC}.acrobot:AcrobotEnv", "acrobot:ACROBOT"),
    "FrozenLake-v1": Known(f"{TOY}.frozen_lake:FrozenLakeEnv", "toy_text:FROZEN_LAKE", {"map_name": "4x4"}),
    "FrozenLake8x8-v1": Known(
        f"{TOY}.frozen_lake:FrozenLakeEnv", "toy_text:LARGE_FROZEN_LAKE", {"map_name": "8x8"}
    ),
    "CliffWalking-v1": Known(f"{TOY}.cliffwalking:CliffWalkingEnv", "toy_text:CLIFF_WALKING"),
    "CliffWalkingSlippery-v1": Known(
        f"{TOY}.cliffwalking:CliffWalkingEnv", "toy_text:SLIPPERY_CLIFF_WALKING", {"is_slippery": True}
    ),
    "Taxi-v4": Known(f"{TOY}.taxi:TaxiEnv", "toy_text:TAXI"),
    "MinAtar/Asterix-v1": _minatar("asterix"),
    "MinAtar/Breakout-v1": _minatar("breakout"),
    "MinAtar/Freeway-v1": _minatar("freeway"),
    "MinAtar/Seaquest-v1": _minatar("seaquest"),
    "MinAtar/SpaceInvaders-v1": _minatar("space_invaders"),
    "rl_training/TicTacToe-v0": Known("rl_training.envs.tictactoe:TicTacToe", "tictactoe:TICTACTOE"),
    "rl_training/ConnectFour-v0": Known(
        "rl_training.envs.connect_four:ConnectFour", "connect_four:CONNECT_FOUR"
    ),
}
