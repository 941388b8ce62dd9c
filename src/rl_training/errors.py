"""The errors this package raises on purpose, and what each one means to the person at the command line."""

from __future__ import annotations


class UserError(Exception):
    """Something the user can put right. The message is one line; the command line prints it and exits with 2."""


class ConfigError(UserError, ValueError):
    """A config that cannot be used: where it stands, what is wrong and, if there is one, the nearest right name."""


class CheckpointError(UserError):
    """A checkpoint that is missing, damaged, unsafe to read, or written by a newer version."""


class RunError(UserError):
    """A run directory that cannot be used: taken, locked by another process, or not a run at all."""


class NonFiniteError(RuntimeError):
    """A NaN or an infinity met during training, raised before weights or checkpoints are touched.

    tensor:    the name of what is not finite, for example "policy_loss"
    env_index: the environment it came from, if it came from one
    step:      the environment steps taken so far, if known
    """

    def __init__(self, tensor: str, env_index: int | None = None, step: int | None = None) -> None:
        self.tensor = tensor
        self.env_index = env_index
        self.step = step
        place = "" if env_index is None else f" in environment {env_index}"
        time = "" if step is None else f" at step {step}"
        super().__init__(f"{tensor} is not finite{place}{time}")

    def __reduce__(self) -> tuple[type[NonFiniteError], tuple[str, int | None, int | None]]:
        # Exceptions are rebuilt from their message by default; ours must survive the trip from a worker process.
        return type(self), (self.tensor, self.env_index, self.step)


class StorageError(RuntimeError):
    """A write that failed (disk full, no permission). The message says which last good checkpoint remains."""
