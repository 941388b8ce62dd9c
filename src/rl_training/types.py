"""Types shared between subpackages; nothing is imported for them at run time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import gymnasium as gym

# Gymnasium's classes are generic in what they hold. A config names the environment, so nothing is known of it here.
Space: TypeAlias = "gym.Space[Any]"
Env: TypeAlias = "gym.Env[Any, Any]"
