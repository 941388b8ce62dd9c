"""Demonstrations: episodes of a policy, in a plain file format that runs no code.

    demos.npz    observations [Σ (T + 1), ...], actions [Σ T, ...] as the environment took them, rewards,
                 terminations and truncations [Σ T], episode_lengths [N]; of a Dict observation or a Dict or Tuple
                 action one array for each part, such as observations/camera or actions/0
    demos.json   the environment, the policy they come from, and the SHA-256 of the arrays

What is read is checked before it is used: a wrong shape, a value that is not finite or an episode without an end is
refused in one line. Datasets of Minari are read and written in minari_datasets.py.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import warnings
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from rl_training.errors import ConfigError, RunError
from rl_training.registry import shipped_file
from rl_training.state.files import replace_file
from rl_training.trees import Arrays, tree_leaves, tree_map

FORMAT = 1
COLUMNS = ("rewards", "terminations", "truncations")
TREES = ("observations", "actions")  # which may consist of parts
OUT_OF_BOUNDS = 1e-4  # how far rounding may take an action past its bounds


class Episode(NamedTuple):
    """T steps; the observations are one more, since the last action leads to one as well."""

    observations: Any  # [T + 1, ...], or a dict of such arrays
    actions: Any  # [T, ...], in the environment's own units; a dict of such arrays for Dict and Tuple actions
    rewards: np.ndarray  # [T]
    terminations: np.ndarray  # [T], true at most at the last step
    truncations: np.ndarray  # [T]

    @property
    def terminated(self) -> bool:
        return bool(self.terminations[-1])


@dataclass(frozen=True)
class Demonstrations:
    """Episodes in one environment, and whatever is known about their origin."""

    env_id: str
    episodes: Sequence[Episode]
    about: Mapping[str, Any] = field(default_factory=dict)

    def first(self, count: int | None, where: str) -> Demonstrations:
        """The first `count` episodes; none: all."""
        if count is not None and count > len(self.episodes):
            raise ConfigError(
                f"demonstrations: {where}: holds {len(self.episodes)} episodes, not {count}",
                ("demonstrations",),
            )
        return replace(self, episodes=self.episodes[:count])

    @property
    def returns(self) -> list[float]:
        return [float(episode.rewards.sum()) for episode in self.episodes]

    @property
    def lengths(self) -> list[int]:
        return [len(episode.rewards) for episode in self.episodes]


def save_demonstrations(demonstrations: Demonstrations, where: str) -> None:
    """Write a new `.npz` file, and its JSON beside it."""
    path = free_path(where)
    episodes = demonstrations.episodes
    arrays: dict[str, Any] = {}
    for name in COLUMNS:
        arrays[name] = np.concatenate([getattr(episode, name) for episode in episodes])
    for name in TREES:
        columns = tree_map(lambda *parts: np.concatenate(parts), *[getattr(each, name) for each in episodes])
        arrays |= dict(tree_leaves(columns, name))
    data = io.BytesIO()
    np.savez_compressed(data, episode_lengths=np.array(demonstrations.lengths), **arrays)
    about = {
        "format": FORMAT,
        "env_id": demonstrations.env_id,
        **demonstrations.about,
        "episodes": len(episodes),
        "returns": demonstrations.returns,
        "lengths": demonstrations.lengths,
        "sha256": hashlib.sha256(data.getvalue()).hexdigest(),
    }
    try:
        replace_file(path, data.getvalue())
        replace_file(path.with_suffix(".json"), (json.dumps(about, indent=1) + "\n").encode())
    except OSError as error:
        raise RunError(f"{path}: {error.strerror}") from error


def free_path(where: str) -> Path:
    """The path of a file that can be written; refuses one that is there, before anything is played for it."""
    path = _npz_path(where)
    for taken in (path, path.with_suffix(".json")):
        if taken.exists():
            raise RunError(f"{taken}: is there already; choose another name")
    if not path.parent.is_dir():
        raise RunError(f"{path.parent}: no such directory")
    return path


def load_demonstrations(where: str) -> Demonstrations:
    """Read a `.npz` file and its JSON; whole and finite, or refused.

    A file is looked for as it is written, then among the files that come with the configs.
    """
    try:
        found = _read_npz(where)
        check_episodes(found.episodes)
    except ConfigError as error:
        raise ConfigError(f"demonstrations: {where}: {error}", ("demonstrations",)) from error
    return found


def check_fit(
    demonstrations: Demonstrations,
    env_id: str,
    observation_space: spaces.Space,
    action_space: spaces.Space,
    where: str,
) -> None:
    """Refuse demonstrations of another environment, or that do not lie in an environment's spaces."""
    name, made_in = re.sub(r"-v\d+$", "", env_id), demonstrations.env_id
    try:
        if re.sub(r"-v\d+$", "", made_in) != name:
            raise ConfigError(f"they were made in {made_in}, not in {env_id}")
        if made_in != env_id:
            warnings.warn(f"{where} was recorded in {made_in}, but this is {env_id}", stacklevel=2)
        for number, episode in enumerate(demonstrations.episodes):
            _check_observations(episode.observations, observation_space, f"episode {number}: observations")
            _check_actions(episode.actions, action_space, f"episode {number}: actions")
    except ConfigError as error:
        raise ConfigError(f"demonstrations: {where}: {error}", ("demonstrations",)) from error


def _npz_path(where: str) -> Path:
    path = Path(where)
    if path.suffix != ".npz":
        raise ConfigError(
            f"demonstrations must be a file ending in .npz, or minari:ID, not {where!r}", ("demonstrations",)
        )
    return path


def _read_npz(where: str) -> Demonstrations:
    path = _npz_path(where)
    if not path.is_file():
        path = shipped_file(where) if shipped_file(where).is_file() else path
    if not path.is_file():
        raise ConfigError("no such file")
    about = _read_about(path.with_suffix(".json"))
    try:
        data = path.read_bytes()
        if not zipfile.is_zipfile(io.BytesIO(data)):
            raise ValueError("it is not a zip archive")
        if about.pop("sha256", None) not in (None, hashlib.sha256(data).hexdigest()):
            raise ConfigError("does not match its JSON file: the SHA-256 differs")
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            columns = {name: arrays[name] for name in arrays.files}
        if not all(isinstance(column, np.ndarray) for column in columns.values()):
            raise ValueError("it holds something other than arrays")
    except OSError as error:
        raise ConfigError(error.strerror or str(error)) from error
    except ConfigError:
        raise
    except (ValueError, zipfile.BadZipFile, zlib.error, KeyError, EOFError, RuntimeError) as error:
        raise ConfigError(
            f"is not a .npz file of plain arrays ({' '.join(str(error).split())[:120]})"
        ) from error
    for name in ("format", "episodes", "returns", "lengths"):
        about.pop(name, None)
    return Demonstrations(about.pop("env_id"), _cut(columns), about)


def _read_about(path: Path) -> dict[str, Any]:
    try:
        about = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"{path.name}, which describes it, cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path.name} is not JSON") from error
    if not isinstance(about, dict) or not isinstance(about.get("env_id"), str):
        raise ConfigError(f"{path.name} does not name its env_id")
    if about.get("format") != FORMAT:
        raise ConfigError(
            f"{path.name}: format {about.get('format')!r} is unknown; only {FORMAT} is supported"
        )
    return about


def _cut(columns: Mapping[str, np.ndarray]) -> list[Episode]:
    """Columns of all episodes, one after the other, as episodes."""
    parts = {
        tree: {name for name in columns if name == tree or name.startswith(f"{tree}/")} for tree in TREES
    }
    for name in ("episode_lengths", *COLUMNS, *(tree for tree in TREES if not parts[tree])):
        if name not in columns:
            raise ConfigError(f"has no array {name}")
    if unknown := sorted(columns.keys() - set().union(*parts.values()) - {"episode_lengths", *COLUMNS}):
        raise ConfigError(f"has an unknown array {unknown[0]}")
    lengths = columns["episode_lengths"]
    if lengths.ndim != 1 or lengths.dtype.kind not in "iu" or (lengths < 1).any():
        raise ConfigError("episode_lengths must be whole numbers of at least 1")
    steps = int(lengths.sum())
    for name in (*parts["observations"], *parts["actions"], *COLUMNS):
        rows = steps + len(lengths) if name in parts["observations"] else steps
        if columns[name].shape[:1] != (rows,):
            raise ConfigError(f"{name} has shape {columns[name].shape}, episode_lengths ask for {rows} rows")
    observations, actions = (_grow({name: columns[name] for name in parts[tree]}, tree) for tree in TREES)
    episodes, start = [], 0
    for number, length in enumerate(lengths.tolist()):
        taken, seen = slice(start, start + length), slice(start + number, start + number + length + 1)
        obs = tree_map(lambda part, seen=seen: part[seen], observations)
        acted = tree_map(lambda part, taken=taken: part[taken], actions)
        episodes.append(Episode(obs, acted, *(columns[name][taken] for name in COLUMNS)))
        start += length
    return episodes


def _grow(parts: Mapping[str, np.ndarray], root: str) -> Any:
    """{"root/a": x} → {"a": x}: the tree that `tree_leaves` took apart."""
    tree: dict[str, Any] = {}
    for path, array in parts.items():
        *inner, last = path.split("/")
        place = tree
        for key in inner:
            place = place.setdefault(key, {})
            if not isinstance(place, dict):
                raise ConfigError(f"{path} and {'/'.join(inner)} cannot both be arrays")
        place[last] = array
    return tree[root]


def check_episodes(episodes: Sequence[Episode]) -> None:
    """Refuse what is not made of whole episodes of finite numbers."""
    if not episodes:
        raise ConfigError("holds no episodes")
    for number, episode in enumerate(episodes):
        _check_episode(episode, f"episode {number}")


def _check_episode(episode: Episode, where: str) -> None:
    length = len(episode.rewards)
    if length == 0:
        raise ConfigError(f"{where} has no steps")
    seen = [*tree_leaves(episode.observations, "observations")]
    for name, part in [*seen, *tree_leaves(episode.actions, "actions")]:
        rows = length + name.startswith("observations")
        if len(part) != rows:
            raise ConfigError(f"{where}: {name} are {len(part)} for {length} steps, not {rows}")
        if part.dtype.kind not in "fiub":
            raise ConfigError(f"{where}: {name} are {part.dtype}, which is no number")
        _check_finite(part, f"{where}: {name}")
    for name in COLUMNS:
        column = getattr(episode, name)
        if column.shape != (length,) or column.dtype.kind not in ("fiub" if name == "rewards" else "b"):
            raise ConfigError(
                f"{where}: {name} are {column.dtype} of shape {column.shape}, for {length} steps"
            )
    _check_finite(episode.rewards, f"{where}: rewards")
    ended = np.flatnonzero(episode.terminations | episode.truncations)
    if not len(ended):
        raise ConfigError(f"{where} has no end: neither terminated nor truncated at its last step")
    if ended[0] != length - 1:
        raise ConfigError(f"{where} ends at step {ended[0]} but has {length} steps")


def _check_finite(array: np.ndarray, where: str) -> None:
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        row = int(np.argwhere(~np.isfinite(array))[0][0])
        raise ConfigError(f"{where} are not finite at step {row}")


def _check_observations(obs: Arrays, space: spaces.Space, where: str) -> None:
    if isinstance(space, spaces.Dict) and isinstance(obs, dict):
        if obs.keys() != space.spaces.keys():
            raise ConfigError(f"{where} have the parts {sorted(obs)}, not {sorted(space.spaces)}")
        for key, part in obs.items():
            _check_observations(part, space.spaces[key], f"{where}[{key!r}]")
        return
    if isinstance(space, spaces.Dict) or isinstance(obs, dict):
        raise ConfigError(f"{where} and those of the environment are not of the same kind: {space}")
    if obs.shape[1:] != space.shape:
        raise ConfigError(f"{where} have shape {obs.shape[1:]}, the environment's have {space.shape}")
    if space.dtype is None or not np.can_cast(obs.dtype, space.dtype, "same_kind"):
        raise ConfigError(f"{where} are {obs.dtype}, the environment's are {space.dtype}")
    _check_choices(obs, space, where)


def _check_actions(actions: Any, space: spaces.Space, where: str) -> None:
    if isinstance(actions, dict):
        raise ConfigError(f"{where} have the parts {sorted(actions)}, the environment's are {space}")
    if actions.shape[1:] != space.shape:
        raise ConfigError(f"{where} have shape {actions.shape[1:]}, the environment's have {space.shape}")
    if not isinstance(space, spaces.Box) and actions.dtype.kind not in "iub":
        raise ConfigError(f"{where} are {actions.dtype}, the environment's are {space.dtype}")
    _check_choices(actions, space, where)
    if isinstance(space, spaces.Box):
        margin = OUT_OF_BOUNDS * np.maximum(1.0, np.abs(np.where(np.isfinite(space.high), space.high, 0.0)))
        outside = (actions < space.low - margin) | (actions > space.high + margin)
        _refuse_outside(outside, actions, where)


def _check_choices(array: np.ndarray, space: spaces.Space, where: str) -> None:
    """Choices are looked up in tables: one too many would be an error deep inside a network."""
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        first = np.asarray(space.start)
        last = first + np.asarray(space.n if isinstance(space, spaces.Discrete) else space.nvec) - 1
        _refuse_outside((array < first) | (array > last), array, where)
    elif isinstance(space, spaces.MultiBinary):
        _refuse_outside((array != 0) & (array != 1), array, where)


def _refuse_outside(outside: np.ndarray, array: np.ndarray, where: str) -> None:
    if outside.any():
        place = tuple(np.argwhere(outside)[0].tolist())
        raise ConfigError(f"{where} are outside the environment's space: {array[place]} at step {place[0]}")
