"""What the worker processes of async environments run; they import nothing heavier than Gymnasium."""

from __future__ import annotations

import signal
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec


def make_in_worker(spec: EnvSpec) -> gym.Env[Any, Any]:
    """One environment. Ctrl-C reaches every process of a terminal: only the trainer may act on it, and save."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return gym.make(spec)
