"""Peers: another library trained beside a row, with its steps and its seeds, by a script of `benchmarks/peers`.

The script runs in the peer's own environment, gets its settings as JSON and prints a JSON object as its last line. What
it printed for a seed is kept beside our runs as soon as the seed has ended, so that the same command goes on after a
kill; `results/peers/<row>.json` is written when all seeds have.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rl_training.errors import RunError, UserError, one_line
from rl_training.tools.experiments import parse_seeds
from rl_training.tools.reproducing import FORMAT, config_of, write, write_result
from rl_training.tools.rows import Peer, Row

FOLDER = Path("benchmarks/peers")  # of a clone, which is where peers can be run
SAID = {"score", "returns", "steps", "versions", "cpu_seconds", "peak_mb"}  # by a script, of a seed


def peer_of(row: Row) -> Peer:
    """The peer of a row; refused where there is none, or where it cannot be run."""
    if row.peer is None:
        raise UserError(f"{row.name}: has no peer; a row names one under `peer`")
    if not (FOLDER / f"{row.peer.library}.txt").is_file():
        raise UserError(
            f"{row.name}: {FOLDER}/{row.peer.library}.txt is not here; peers run in a clone of the repository"
        )
    return row.peer


def run_peer(row: Row, *, results: Path, runs: Path, tell: Callable[[str], None]) -> Path:
    """Train and score the row's peer with every seed, and write what came of it."""
    peer = peer_of(row)
    python = interpreter(peer.library)
    said = {}
    for seed in parse_seeds(row.seeds):
        asked = asked_of(row, seed)
        kept = runs / row.name / f"peer-s{seed}.json"
        said[seed] = _kept(kept, asked)
        if said[seed] is None:
            tell(f"{peer.library}, seed {seed}")
            said[seed] = _run(python, peer.script, asked, f"{row.name}: {peer.library}, seed {seed}")
            write(kept, json.dumps({"asked": asked, "said": said[seed]}))
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


def result_of(row: Row, said: Mapping[int, Any]) -> dict[str, Any]:
    """All that is kept of a peer."""
    assert row.peer is not None
    versions = next(iter(said.values()))["versions"]
    return {
        "format": FORMAT,
        "row": row.name,
        "library": f"{row.peer.library} {versions[row.peer.library]}",
        "settings": {name: value for name, value in asked_of(row, 0).items() if name != "seed"},
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


def _run(python: str, script: str, asked: Mapping[str, Any], what: str) -> dict[str, Any]:
    line = _called([python, "-m", script, json.dumps(asked)], what)
    try:
        said = json.loads(line)
        if not said.keys() >= SAID:
            raise ValueError(f"no {', '.join(sorted(SAID - said.keys()))}")
    except (ValueError, AttributeError) as error:
        raise RunError(f"{what}: {script} printed no result ({one_line(error)})") from error
    return {name: said[name] for name in SAID}


def _called(command: list[str], what: str) -> str:
    """The last line that a command prints."""
    environment = os.environ | {
        "PYTHONPATH": os.getcwd()
    }  # of the clone alone: the package's own path is not theirs
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        told = [*lines, *done.stderr.strip().splitlines()] or [f"exit code {done.returncode}"]
        raise RunError(f"{what}: {told[-1]}; seeds that have ended are kept")
    return lines[-1]


def _kept(path: Path, asked: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a script printed for these very settings; None where it has not been run with them."""
    try:
        kept = json.loads(path.read_bytes())
        return dict(kept["said"]) if kept["asked"] == asked and kept["said"].keys() == SAID else None
    except (FileNotFoundError, ValueError, LookupError, TypeError, AttributeError):
        return None
