"""What the checkpoints of a run will take on disk, told before it begins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from rl_training.runtime.trainer import Trainer
from rl_training.settings.config import Config
from rl_training.state.ladder import Keep
from rl_training.state.stateful import Stateful, fields


def keep_of(config: Config) -> Keep:
    """Which checkpoints of a run stay."""
    return Keep(config.keep or config.keep_checkpoints, config.checkpoint_every, config.keep_bytes)


def disk_line(trainer: Trainer, config: Config) -> str:
    """What the checkpoints that `keep` asks for will take at the end; empty where it asks for nothing.

    Segments of a replay are shared between checkpoints until its ring has turned, so that together they hold no more
    than all that the run saw.
    """
    if config.keep is None:
        return ""
    count = keep_of(config).count(config.total_timesteps)
    parts = fields(trainer).values()
    ring = sum(sum(_sizes(vars(part))) for part in parts if hasattr(part, "store"))
    each = sum(_sizes([trainer.agent, *(part for part in parts if not hasattr(part, "store"))]))
    turns = config.total_timesteps / max(1, getattr(config, "buffer_size", config.total_timesteps))
    whole = count * each + ring * min(count, max(turns, 1))
    limit = f", at most {written_size(config.keep_bytes)}" if config.keep_bytes else ""
    about = f"{written_size(each)} each" + (f", the replay {written_size(ring)}" if ring else "")
    return f"checkpoints: {count} at the end ({config.keep}), about {written_size(whole)}{limit} ({about})"


def _sizes(value: Any) -> Iterator[int]:
    """The bytes of all arrays in a state."""
    if isinstance(value, np.ndarray):
        yield value.nbytes
    elif isinstance(value, torch.Tensor):
        yield value.numel() * value.element_size()
    elif isinstance(value, nn.Module):
        yield from _sizes([*value.parameters(), *value.buffers()])
    elif isinstance(value, Stateful):
        yield from _sizes(fields(value))
    elif isinstance(value, Mapping):
        yield from _sizes(list(value.values()))
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _sizes(part)


def written_size(size: float) -> str:
    """Bytes in MB, or in GB."""
    return f"{size / 2**20:,.1f} MB" if size < 2**30 else f"{size / 2**30:,.1f} GB"
