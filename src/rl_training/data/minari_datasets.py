"""Demonstrations as Minari datasets (an extra): `minari:ID` instead of a file."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np

from rl_training.data.demonstrations import (
    COLUMNS,
    Demonstrations,
    Episode,
    check_episodes,
    free_path,
    load_demonstrations,
    save_demonstrations,
)
from rl_training.envs.making import make_env
from rl_training.errors import ConfigError, RunError, UserError, add_extra, one_line

PREFIX = "minari:"


def read(where: str) -> Demonstrations:
    """The demonstrations of a file or, for `minari:ID`, of a local dataset."""
    if not where.startswith(PREFIX):
        return load_demonstrations(where)
    try:
        found = _read_dataset(where.removeprefix(PREFIX))
        check_episodes(found.episodes)
    except ConfigError as error:
        raise ConfigError(f"demonstrations: {where}: {error}", ("demonstrations",)) from error
    return found


def write(demonstrations: Demonstrations, where: str) -> None:
    """Write a new file or, for `minari:ID`, a new local dataset."""
    if not where.startswith(PREFIX):
        return save_demonstrations(demonstrations, where)
    try:
        return _write_dataset(demonstrations, where.removeprefix(PREFIX))
    except UserError:
        raise
    except Exception as error:  # whatever Minari raises about names and files
        raise RunError(f"{where}: Minari cannot write it ({one_line(error)})") from error


def refuse_taken(where: str) -> None:
    """Refuse a place that cannot be written to, before episodes are played for it."""
    if not where.startswith(PREFIX):
        free_path(where)
        return
    require_minari()
    from minari.dataset.minari_dataset import parse_dataset_id
    from minari.storage import get_dataset_path

    try:
        parse_dataset_id(where.removeprefix(PREFIX))
        taken = Path(get_dataset_path(where.removeprefix(PREFIX))).exists()
    except Exception as error:
        raise RunError(f"{where}: is not the name of a dataset ({one_line(error)})") from error
    if taken:
        raise RunError(f"{where}: is there already; choose another name")


def refuse_parts(where: str) -> None:
    """Refuse Tuple and Dict actions in a dataset, before episodes are played for it."""
    if where.startswith(PREFIX):
        raise RunError(f"{where}: Tuple and Dict actions are recorded to .npz files only")


def _read_dataset(dataset_id: str) -> Demonstrations:
    require_minari()
    from minari import MinariDataset
    from minari.dataset.minari_storage import MinariStorage
    from minari.storage import get_dataset_path

    try:
        data = Path(get_dataset_path(dataset_id)) / "data"
        if not data.is_dir():
            raise ConfigError(f"no such local dataset; `minari download {dataset_id}` may fetch it")
        # Without its spaces Minari would import and make the environment that the file names.
        if not {"observation_space", "action_space"} <= MinariStorage.read_raw_metadata(data).keys():
            raise ConfigError("does not store its spaces, so reading it would run code that it names")
        dataset = MinariDataset(data)
        episodes = [
            Episode(each.observations, *(np.asarray(getattr(each, name)) for name in ("actions", *COLUMNS)))
            for each in dataset.iterate_episodes()
        ]
    except ConfigError:
        raise
    except Exception as error:  # whatever Minari and h5py raise about files that are damaged or too new
        raise ConfigError(f"Minari cannot read it ({one_line(error)})") from error
    if dataset.env_spec is None:
        raise ConfigError("does not name its environment")
    return Demonstrations(dataset.env_spec.id, episodes, {"minari": dataset_id})


def _write_dataset(demonstrations: Demonstrations, dataset_id: str) -> None:
    require_minari()
    import minari
    from minari.data_collector import EpisodeBuffer

    buffers = [
        EpisodeBuffer(id=number, **episode._asdict())
        for number, episode in enumerate(demonstrations.episodes)
    ]
    about = dict(demonstrations.about)
    env = make_env(demonstrations.env_id, about.get("env_kwargs", {}), about.get("max_episode_steps"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it misses an author and a link to the code
        minari.create_dataset_from_buffers(
            dataset_id,
            buffers,
            env=env,
            algorithm_name=about.get("algo"),
            description=f"Recorded by rl-training: {json.dumps(about)}",
            jpeg_encoding=False,  # pictures stay what they were, bit for bit
        )
    env.close()


def require_minari() -> None:
    try:
        import h5py  # noqa: F401
        import minari  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"Minari is not installed; {add_extra('minari')} adds it") from error
