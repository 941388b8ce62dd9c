"""Config keys that run code or reach other machines, and their refusal in foreign configs.

The config of a run directory, of a checkpoint or of a study may have been written by someone else. Whoever makes an
environment, a fleet or a tracker from such a config calls `refuse_untrusted` first; `--trust` (in Python `trust=True`)
is the user's answer. A config that the user names to `train` is the user's own, and is not asked about.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

from rl_training.errors import UntrustedError
from rl_training.parts import GIVEN, Doing, deed, is_name, names_in
from rl_training.settings.config import Config

Deeds = Iterator[tuple[str, str]]  # (the part of a value that is foreign, what it does)


class Foreign(NamedTuple):
    """One entry of a config that reaches beyond this package: its key, its value, and what that does."""

    key: str
    value: str
    deed: str


def _environments(names: object) -> Deeds:
    """`module:EnvId` imports the module; several ids may be joined by `+`."""
    for name in (part for text in _texts(names) for part in text.split("+")):
        if ":" in name and not name.startswith(GIVEN) and name not in OWN_ENVIRONMENTS:
            yield name, deed(name)


def _arguments(values: object) -> Deeds:
    """Some environments make another one from what they are given, and import its module; others open addresses."""
    for text in _texts(values):
        if ":" in text:
            yield text, "is handed to the environment, which may import a module or call a machine by it"


def _cluster(address: object) -> Deeds:
    """A Ray driver unpickles what its cluster sends, so a cluster can run any code here."""
    for text in _texts(address):
        yield text, "connects to a Ray cluster, which can run code on this machine"


def _wandb(on: object) -> Deeds:
    """The account is the user's own, but the directory says which of its runs is written to."""
    if on:
        yield "true", "sends metrics to Weights & Biases, under the id in trackers.json if there is one"


def _mlflow(on: object) -> Deeds:
    """Unless the user's own variable names a server, the store is a local file."""
    store = os.environ.get("MLFLOW_TRACKING_URI") or "sqlite:"
    if on and not store.startswith(LOCAL_STORES):
        yield "true", "sends metrics to an MLflow server, under the id in trackers.json if there is one"


LOCAL_STORES = ("sqlite:", "file:", "/", ".")


class Reach(NamedTuple):
    """What in the value of a key is foreign, and from which kind of deed on."""

    find: Callable[[Any], Deeds]
    when: Doing = "playing"


# A key that reaches code, a file that is run, or another machine belongs here.
#
# Not here, because they do none of that: `tensorboard`, which writes into the run directory; `demonstrations`, a file
# or local dataset that is read without running anything; `ray_resources`, which only chooses among the nodes of a
# cluster. Fields that hold parts are found by their mark (`parts.Brought`), and the name of an algorithm's own class is
# asked about where a config is read (`settings/loading.py`), since the class says what a config is.
REACHES: Mapping[str, Reach] = {
    "env_id": Reach(_environments),
    "env_ids": Reach(_environments),
    "env_kwargs": Reach(_arguments),
    "task_kwargs": Reach(_arguments),
    "ray_address": Reach(_cluster),
    "wandb": Reach(_wandb, "training"),
    "mlflow": Reach(_mlflow, "training"),
}


# Environments of an extra that a shipped config names, and parts that come with the package: a run from elsewhere may
# name them too.
OWN_ENVIRONMENTS = frozenset({"mpe2.simple_spread_v3:parallel_env"})
OWN_PARTS = frozenset(
    f"rl_training.envs.{name}"
    for name in (
        "wrappers:DropText",
        "wrappers:EncodeText",
        "wrappers:PreviousActionAndReward",
        "wrappers:ActionRepeat",
        "wrappers:Pixels",
        "partial:OnlyEntries",
    )
)

# Whoever plays also acts, and whoever trains also plays.
INCLUDED: Mapping[Doing, tuple[Doing, ...]] = {
    "acting": ("acting",),
    "playing": ("acting", "playing"),
    "training": ("acting", "playing", "training"),
}


def foreign(config: Any, doing: Doing = "training") -> list[Foreign]:
    """All that a config reaches beyond this package when a run is trained, or its policy only plays or only acts."""
    found = [
        Foreign(key, value, done)
        for key, reach in REACHES.items()
        if reach.when in INCLUDED[doing]
        for value, done in reach.find(getattr(config, key, None))
    ]
    algo: Any = getattr(config, "algo", None)
    if is_name(algo):
        found.append(Foreign("algo", algo, deed(algo)))
    return found + [
        Foreign(key, name, deed(name))
        for key, brought, name in names_in(config)
        if brought.when in INCLUDED[doing] and not name.startswith(GIVEN) and name not in OWN_PARTS
    ]


def refuse_untrusted(
    config: Config, trust: bool, own: Collection[str] = (), doing: Doing = "training"
) -> None:
    """Raise for the first foreign entry of a config, unless the user trusts it; `own` are keys that the user gave."""
    for entry in [] if trust else foreign(config, doing):
        if entry.key not in own:
            raise refusal(entry)


def refusal(entry: Foreign) -> UntrustedError:
    return UntrustedError(
        f"this run's {entry.key} {entry.value!r} {entry.deed}; "
        "add --trust (trust=True) if it is yours or you trust it"
    )


def _texts(value: object) -> Iterator[str]:
    """Every text in a value, however deep."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _texts(key)
            yield from _texts(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _texts(part)
