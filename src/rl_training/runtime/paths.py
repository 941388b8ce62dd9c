"""How a run computes, in compiled code or not: what it records of that, and what it keeps to when it goes on."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rl_training.errors import RunError
from rl_training.kernels.compiled import PART_REVISIONS, REVISION, cpu_features
from rl_training.runtime.trainer import ROLLOUTS, Trainer
from rl_training.runtime.updates import COMPILED
from rl_training.trust import foreign

KERNELS, FEATURES = "kernels", "cpu_features"  # in the record, beside the paths
SHARED = "shared"  # among the revisions: that of the code that all parts use
# The last shared revision that was recorded as one number; a 3 was of Dreamer's networks alone.
LAST_ALONE = 2


def record_of(trainer: Trainer) -> dict[str, Any]:
    """The paths of a trainer, and of this version and machine what the results of compiled code depend on."""
    paths = trainer.paths()
    return {**paths, KERNELS: kernel_revisions(paths), FEATURES: cpu_features()}


def kernel_revisions(paths: Mapping[str, Any]) -> dict[str, int]:
    """The revisions here of the compiled code that a run on these paths uses: the shared one, and parts' own."""
    own = {part: number for part, number in PART_REVISIONS.items() if paths.get(part) == COMPILED}
    return {SHARED: REVISION, **own}


def path_lines(trainer: Trainer) -> list[str]:
    """How a run computes, and why not in compiled code: among what it says first."""
    updates = dict.fromkeys(update.explained for update in trainer.choices().values())
    rollouts = [] if ROLLOUTS not in trainer.paths() else [trainer.explained_rollouts()]
    told = {"updates": updates, ROLLOUTS: rollouts}
    return [f"{what}: {', '.join(ways)}" for what, ways in told.items() if ways]


def recorded_paths(manifest: Mapping[str, Any], tree: Mapping[str, Any]) -> dict[str, Any]:
    """How a run computed so far, from its manifest and the checkpoint."""
    records = (manifest.get("paths"), tree.get("paths"))
    return {name: path for record in records if isinstance(record, dict) for name, path in record.items()}


def other_kernels(made: Mapping[str, Any]) -> list[str]:
    """How the compiled code that a run used differs from that of this version and machine: it gives other numbers."""
    if COMPILED not in made.values():
        return []
    here, there = kernel_revisions(made), made.get(KERNELS)
    if type(there) is int:
        there = {**dict.fromkeys(here, there), SHARED: min(there, LAST_ALONE)}
    there = there if isinstance(there, dict) else {}
    other = [
        f"revision {there.get(part)} of compiled {'code' if part == SHARED else part} (here {number})"
        for part, number in here.items()
        if there.get(part) != number
    ]
    if made.get(FEATURES) not in (None, cpu_features()):
        other.append(f"the CPU features {made[FEATURES]} (here {cpu_features()})")
    return other


def keep_to_paths(
    trainer: Trainer,
    made: Mapping[str, Any],
    source: Path,
    changes: Sequence[str] = (),
    *,
    anyway: bool = False,
) -> None:
    """Compute as a run did so far: by torch and in Python where its record says nothing. Refused where that cannot be.

    changes: step and settings of a fork of `source`, for the command that the refusal names
    anyway: also in compiled code that gives other numbers
    """
    lost = [
        update.explained
        for name, update in trainer.choices().items()
        if made.get(name) == COMPILED != update.path
    ]
    if made.get(ROLLOUTS) == COMPILED != trainer.paths().get(ROLLOUTS):
        lost.append("rollouts step by step, of a network that is not of dense layers alone")
    lost = [f"in compiled code, here that would be: {path}" for path in lost]
    if not anyway:
        lost += [f"with {other}" for other in other_kernels(made)]
    if lost:
        trainer.close()
        trust = ["--trust"] if foreign(trainer.config) else []
        command = shlex.join(["rl-training", "fork", str(source), *changes, "compiled_updates=false", *trust])
        raise RunError(f"{source}: it ran {lost[0]}; resume it where it began, or fork it: {command}")
    trainer.keep_to(made)
