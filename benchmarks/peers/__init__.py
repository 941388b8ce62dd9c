"""The libraries we measure against, each in an environment of its own under `.bench/`, or where `--peers` says.

`<peer>.txt` pins everything that is installed for a peer, and what a package says it needs is not looked at:
LightZero asks for much that its search never imports. An environment is made once and used again until that file
changes.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
ENVIRONMENTS = FOLDER.parents[1] / ".bench"


class PeerMissing(Exception):
    """A peer cannot be measured here; the message says why."""


def interpreter(peer: str) -> Path:
    """The Python that has `peer` installed, after installing it if need be; PeerMissing when that fails."""
    requirements = FOLDER / f"{peer}.txt"
    home = ENVIRONMENTS / peer
    python, stamp = home / "bin" / "python", home / "installed.txt"
    if stamp.exists() and stamp.read_text() == requirements.read_text():
        return python
    print(f"installing {peer} into {home} (some minutes the first time)", flush=True)
    _call(peer, [sys.executable, "-m", "venv", str(home)])
    _call(peer, [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "-r", str(requirements)])
    stamp.write_text(requirements.read_text())
    return python


def _call(peer: str, command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
        raise PeerMissing(f"{peer} could not be installed: {said[-1]}")
