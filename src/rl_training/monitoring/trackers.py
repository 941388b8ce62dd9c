"""Experiment trackers, which mirror metrics.jsonl. The file stays the source of truth; no tracker affects a run.

Each is a switch in the config and an extra. Where a tracker keeps its data, and under which name, is said by the
library's own environment variables (WANDB_PROJECT, MLFLOW_TRACKING_URI, ...).
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Protocol

from rl_training.errors import UserError, one_line
from rl_training.extras import require_extra
from rl_training.settings.config import Config
from rl_training.settings.yaml import to_yaml
from rl_training.state import chain, files
from rl_training.state.run_directory import RunDirectory

PROJECT = "rl-training"


class Tracker(Protocol):
    """One place that metrics are shown in. Made with `(config, run)` when a run starts or is resumed."""

    begins_at: int  # what comes before this step is there already

    def write(self, step: int, values: Mapping[str, float]) -> None: ...

    def close(self, finished: bool) -> None: ...


class TensorBoard:
    """Event files in RUN/tensorboard, made anew from the metrics every time."""

    hint = "is the disk full?"
    begins_at = 0

    def __init__(self, config: Config, run: RunDirectory) -> None:
        from torch.utils.tensorboard import SummaryWriter

        shutil.rmtree(run.path / "tensorboard", ignore_errors=True)
        self.writer = SummaryWriter(str(run.path / "tensorboard"))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def close(self, finished: bool) -> None:
        self.writer.close()


class WandB:
    """A Weights & Biases run, with its files in RUN/wandb. A resumed run goes on under the same id."""

    hint = "log in with `wandb login`, or set WANDB_MODE=offline"

    def __init__(self, config: Config, run: RunDirectory) -> None:
        import wandb

        _load_settings_of_the_user(wandb)
        identity = _remembered(run, "wandb") or _remember(run, "wandb", secrets.token_hex(4))
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=run.path.name,
            id=identity,
            resume="allow",
            dir=str(run.path.resolve()),  # its service writes, from the directory in which it was started
            config=config.model_dump(mode="json"),
            settings=wandb.Settings(silent=True, console="off"),
        )
        self.begins_at = int(self.run.step)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self.run.log(dict(values), step=step)

    def close(self, finished: bool) -> None:
        self.run.finish(exit_code=0 if finished else 1)


def _load_settings_of_the_user(wandb: Any) -> None:
    """Keep `wandb/settings` of the working directory out: it may be anybody's, and names the server that gets the key.

    W&B reads its files once, when it is set up, and this one where it is set up: in `/` there can only be root's.
    """
    if ignored := [path for path in ("wandb/settings", ".wandb/settings") if os.path.exists(path)]:
        instead = "`wandb login`, WANDB_BASE_URL and WANDB_ENTITY say where metrics go"
        warnings.warn(f"{ignored[0]} in the working directory is not read: {instead}", stacklevel=2)
    here = os.open(".", os.O_RDONLY)
    try:
        os.chdir("/")
        wandb.setup()
    finally:
        os.fchdir(here)
        os.close(here)


class MLflow:
    """An MLflow run in the store that MLFLOW_TRACKING_URI names; unless set, mlflow.db in the working directory."""

    hint = "is MLFLOW_TRACKING_URI right, and its server running?"

    def __init__(self, config: Config, run: RunDirectory) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Metric

        for name in ("mlflow", "alembic"):  # after the import, which sets its own level
            logging.getLogger(name).setLevel(logging.WARNING)
        self.metric = Metric
        with warnings.catch_warnings():  # about its own database
            warnings.simplefilter("ignore")
            self.client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db"))
        self.id = _remembered(run, "mlflow") or self._begin(config, run)
        self.client.update_run(self.id, status="RUNNING")
        known = self.client.get_run(self.id).data.metrics
        steps = (entry.step for name in known for entry in self.client.get_metric_history(self.id, name))
        self.begins_at = max(steps, default=0)

    def _begin(self, config: Config, run: RunDirectory) -> str:
        from mlflow.entities import Param

        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        experiment = self.client.get_experiment_by_name(name)
        number = self.client.create_experiment(name) if experiment is None else experiment.experiment_id
        begun = self.client.create_run(number, run_name=run.path.name)
        settings = config.model_dump(mode="json").items()
        self.client.log_batch(
            begun.info.run_id, params=[Param(key, to_yaml(value)[:500]) for key, value in settings]
        )
        return _remember(run, "mlflow", begun.info.run_id)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        now = int(1000 * time.time())
        metrics = [self.metric(name, float(value), now, step) for name, value in values.items()]
        self.client.log_batch(self.id, metrics=metrics)

    def close(self, finished: bool) -> None:
        self.client.set_terminated(self.id, "FINISHED" if finished else "KILLED")


# The switch in the config, which is also the name of the extra -> what it switches on; `hint` is what to do when
# that cannot start.
TRACKERS: dict[str, Any] = {
    "tensorboard": TensorBoard,
    "wandb": WandB,
    "mlflow": MLflow,
}


def switched_on(config: Config) -> list[str]:
    return [name for name in TRACKERS if getattr(config, name)]


def require_trackers(config: Config) -> None:
    """Refuse, in one line and before anything is written, a run whose metrics cannot be shown as it asks."""
    for name in switched_on(config):
        require_extra(name, f"{name}: true")


class Trackers:
    """All trackers of a run. One that fails is dropped with a warning; the run goes on."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self.warn = warn
        self.open: dict[str, Tracker] = {}

    def start(self, config: Config, run: RunDirectory) -> None:
        """Start what the config switches on, and show it what it has not seen of the metrics so far."""
        for name in switched_on(config):
            make = TRACKERS[name]
            try:
                self.open[name] = make(config, run)
            except (
                Exception
            ) as error:  # whatever the library raises; nothing was trained since the last checkpoint
                raise UserError(f"{name}: true cannot start ({one_line(error)}); {make.hint}") from error
        for step, values in _lines(run) if self.open else ():
            self.write(step, values)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        for name, tracker in list(self.open.items()):
            if step >= tracker.begins_at:
                try:
                    tracker.write(step, values)
                except Exception as error:
                    del self.open[name]
                    self.warn(f"{name} failed and is disabled for the rest of the run ({one_line(error)})")

    def close(self, finished: bool) -> None:
        for name, tracker in self.open.items():
            try:
                tracker.close(finished)
            except Exception as error:
                self.warn(f"{name} could not be closed ({one_line(error)})")


def _lines(run: RunDirectory) -> Iterator[tuple[int, dict[str, float]]]:
    """What the log says so far; lines that damage made unreadable are left out."""
    with chain.opened(run.metrics_path) as log:
        for text in chain.lines(log):
            line = chain.numbers(text)
            if line is not None:
                yield int(line.pop("step")), line


def _identities(run: RunDirectory) -> dict[str, str]:
    with suppress(OSError, ValueError):
        ids = json.loads((run.path / "trackers.json").read_bytes())
        if isinstance(ids, dict):
            return {str(name): value for name, value in ids.items() if isinstance(value, str)}
    return {}


def _remembered(run: RunDirectory, name: str) -> str | None:
    """Under which id a tracker knows this run, if it does."""
    return _identities(run).get(name)


def _remember(run: RunDirectory, name: str, identity: str) -> str:
    text = json.dumps(_identities(run) | {name: identity})
    files.replace_file(run.path / "trackers.json", text.encode() + b"\n")
    return identity
