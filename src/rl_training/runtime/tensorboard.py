"""TensorBoard as a view of metrics.jsonl, which stays the truth."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Mapping

from rl_training.errors import ConfigError, add_extra
from rl_training.state.run_directory import RunDirectory


def require_tensorboard() -> None:
    """Refuse, in one line and before anything is written, a run whose view cannot be drawn."""
    if importlib.util.find_spec("tensorboard") is None:
        raise ConfigError(f"tensorboard: true needs {add_extra('tensorboard')}")


class TensorBoardView:
    """Event files in RUN/tensorboard, made anew from the metrics whenever a run starts or is resumed."""

    def __init__(self, run: RunDirectory) -> None:
        from torch.utils.tensorboard import SummaryWriter  # heavy, and an extra

        folder = run.path / "tensorboard"
        shutil.rmtree(folder, ignore_errors=True)
        self.writer = SummaryWriter(str(folder))
        for text in run.metrics_path.read_text().splitlines():
            line = json.loads(text)
            self.write(line.pop("step"), line)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()
