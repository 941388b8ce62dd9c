"""Peers: another library trained beside a row, with its steps and its seeds, by a script of `benchmarks/peers`.

The script runs in the peer's own environment, gets its settings as JSON and prints a JSON object as its last line. What
it printed for a seed is kept beside our runs as soon as the seed has ended, with a digest of its requirements, so that
the same command goes on after a kill; `results/peers/<row>.json` is written when all seeds have.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rl_training.errors import RunError, UserError, one_line
from rl_training.fleet.local import die_with
from rl_training.state.run_directory import changed_keys
from rl_training.tools.experiments import parse_seeds
from rl_training.tools.reproducing import FORMAT, config_of, file_digest, write, write_result
from rl_training.tools.rows import Peer, Row

FOLDER = Path("benchmarks/peers")  # of a clone, which is where peers can be run
SAID = {"score", "returns", "steps", "versions", "cpu_seconds", "peak_mb"}  # by a script, of a seed


def peer_of(row: Row) -> Peer:
    """The peer of a row; refused where there is none, or where it cannot be run."""
    if row.peer is None:
        raise UserError(f"{row.name}: has no peer; a row names one under `peer`")
    if not requirements(row.peer).is_file():
        raise UserError(
            f"{row.name}: {requirements(row.peer)} is not here; peers run in a clone of the repository"
        )
    return row.peer


def requirements(peer: Peer) -> Path:
    """The file that pins all that is installed for a peer."""
    return FOLDER / f"{peer.library}.txt"


def run_peer(row: Row, *, results: Path, runs: Path, tell: Callable[[str], None]) -> Path:
    """Train and score the row's peer with every seed, and write what came of it."""
    peer = peer_of(row)
    tell(f"{peer.library}, in an environment of its own: installed on first use, which takes minutes")
    python = interpreter(peer.library)
    installed = file_digest(requirements(peer))
    said = {}
    for seed in parse_seeds(row.seeds):
        asked = asked_of(row, seed)
        kept = runs / row.name / f"peer-s{seed}.json"
        said[seed] = _kept(kept, asked, installed)
        if said[seed] is None:
            tell(f"{peer.library}, seed {seed}")
            said[seed] = _run(python, peer, asked, f"{row.name}: {peer.library}, seed {seed}")
            write(kept, json.dumps({"asked": asked, "requirements_sha256": installed, "said": said[seed]}))
    path = results / "peers" / f"{row.name}.json"
    write_result(path, result_of(row, said))
    return path


def asked_of(row: Row, seed: int) -> dict[str, Any]:
    """The settings of a script for one seed: the row's own, with our steps and our way to score."""
    assert row.peer is not None
    config, how = config_of(row), row.evaluation
    return {
        "env_id": config.env_id,
        **row.peer.settings,
        "steps": config.total_timesteps,
        "seed": seed,
        "warm_up": 0,
        "episodes": how.episodes,
        "deterministic": how.actions == "greedy",
    }


def settings_of(row: Row) -> dict[str, Any]:
    """The settings of a script for all seeds, as JSON holds them."""
    asked: dict[str, Any] = json.loads(json.dumps(asked_of(row, 0)))
    return {name: value for name, value in asked.items() if name != "seed"}


def stale(row: Row, result: Mapping[str, Any]) -> list[str]:
    """Why a peer's result may no longer be what its row gives, in words."""
    if row.peer is None:
        return ["peer: the row has none"]
    reasons = []
    if result["library"].rpartition(" ")[0] != row.peer.library:
        reasons.append("peer: library")
    if changed := changed_keys(settings_of(row), result["settings"]):
        reasons.append(f"peer: {', '.join(changed)}")
    if [each["seed"] for each in result["seeds"]] != parse_seeds(row.seeds):
        reasons.append("peer: seeds")
    return reasons


def result_of(row: Row, said: Mapping[int, Any]) -> dict[str, Any]:
    """All that is kept of a peer."""
    assert row.peer is not None
    versions = next(iter(said.values()))["versions"]
    return {
        "format": FORMAT,
        "row": row.name,
        "library": f"{row.peer.library} {versions[row.peer.library]}",
        "settings": settings_of(row),
        "versions": versions,
        "seeds": [
            {"seed": seed, **{name: each[name] for name in ("steps", "score", "returns")}}
            for seed, each in said.items()
        ],
        "cost": {
            str(seed): {"cpu_seconds": each["cpu_seconds"], "peak_memory_mb": each["peak_mb"]}
            for seed, each in said.items()
        },
    }


def interpreter(library: str) -> str:
    """The Python of a peer's environment, which is made where it is missing."""
    return _called([sys.executable, "-m", "benchmarks.peers", library], f"{library} cannot be installed")


def _run(python: str, peer: Peer, asked: Mapping[str, Any], what: str) -> dict[str, Any]:
    line = _called([python, "-m", peer.script, json.dumps(asked)], what)
    try:
        said = json.loads(line)
        if not said.keys() >= SAID:
            raise ValueError(f"no {', '.join(sorted(SAID - said.keys()))}")
        if peer.library not in said["versions"]:  # told after the first seed, not after the last
            raise ValueError(f"no version of {peer.library}")
    except (ValueError, AttributeError, TypeError) as error:
        raise RunError(f"{what}: {peer.script} printed no result ({one_line(error)})") from error
    return {name: said[name] for name in SAID}


def _called(command: list[str], what: str) -> str:
    """The last line that a command prints."""
    environment = os.environ | {
        "PYTHONPATH": os.getcwd()
    }  # of the clone alone: the package's own path is not theirs
    done = subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        preexec_fn=partial(die_with, os.getpid()),
    )
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        told = [*lines, *done.stderr.strip().splitlines()] or [f"exit code {done.returncode}"]
        raise RunError(f"{what}: {told[-1]}; seeds that have ended are kept")
    return lines[-1]


def _kept(path: Path, asked: Mapping[str, Any], installed: str) -> dict[str, Any] | None:
    """What a script printed for these very settings and packages; None where it has not been run with them."""
    try:
        kept = json.loads(path.read_bytes())
        same = kept["asked"] == asked and kept["requirements_sha256"] == installed
        return dict(kept["said"]) if same and kept["said"].keys() == SAID else None
    except (FileNotFoundError, ValueError, LookupError, TypeError, AttributeError):
        return None
