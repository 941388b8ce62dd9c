"""Debug: go to the iteration that reaches a step, and look at it from inside."""

from __future__ import annotations

import code
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.errors import RunError
from rl_training.monitoring.display import Display
from rl_training.runtime.engine import Engine
from rl_training.runtime.workflows import given
from rl_training.tools.playing import play_run, refuse_video
from rl_training.tools.recording import Record, recorded_at


def debug(
    run_dir: str | Path,
    step: int,
    *,
    dump: str | Path | None = None,
    episode: str | Path | None = None,
    trust: bool = False,
    env: Any = None,
    display: Display | None = None,
) -> Record:
    """Go to the iteration that reaches `step` and record it; a prompt, unless something is to be written.

    dump: a new .npz file for the record.
    episode: a new .mp4 or .gif file for an episode of the policy as it stood before the iteration.
    """
    if dump is not None and (Path(dump).suffix != ".npz" or Path(dump).exists()):
        raise RunError(f"{dump}: must be a new file whose name ends in .npz")
    if dump is not None and not Path(dump).parent.is_dir():
        raise RunError(f"{dump}: no such directory: {Path(dump).parent}")
    if episode is not None:
        refuse_video(Path(episode))

    def film(engine: Engine) -> None:
        if episode is not None:
            play_run(engine.save_here(), video=episode, sample=True, trust=trust)

    options: dict[str, Any] = {"trust": trust, "display": display, "accept_damaged_log": True}
    with given(env), recorded_at(run_dir, step, before=film, **options) as (engine, record):
        if dump is not None:
            record.dump(Path(dump))
        if dump is None and episode is None:
            _prompt(engine, record)
        return record


def told(record: Record) -> list[str]:
    """The record in lines: knobs, what was learned from, losses, and the norms of gradients by layer."""
    lines = [f"iteration from step {record.begins:,} to {record.ends:,}"]
    lines.append("knobs      " + ", ".join(f"{name} {value:.6g}" for name, value in record.knobs.items()))
    for number, batch in enumerate(record.batches):
        for name, values in batch.items():
            lines.append(f"batch {number:<4} {name}: {', '.join(_shapes(values))}")
    for name, values in record.losses.items():
        lines.append(f"loss       {name}: {values.mean():.6g} over {len(values)}" if len(values) else name)
    for name, layers in record.gradients.items():
        only = " (of the last minibatch: it ran in compiled code)" if name in record.compiled else ""
        norms = ", ".join(f"{layer} {np.linalg.norm(part):.3g}" for layer, part in layers.items())
        lines.append(f"gradient   {name}{only}: {norms}")
    return lines


def _shapes(values: Mapping[str, Any], name: str = "") -> list[str]:
    shapes = []
    for key, part in values.items():
        inner = f"{name}/{key}".strip("/")
        shapes += _shapes(part, inner) if isinstance(part, Mapping) else [f"{inner}{list(part.shape)}"]
    return shapes


def _prompt(engine: Engine, record: Record) -> None:
    names = {
        "engine": engine,
        "trainer": engine.trainer,
        "agent": engine.trainer.agent,
        "record": record,
        "knobs": record.knobs,
        "batches": record.batches,
        "batch": record.batches[-1] if record.batches else {},
        "losses": record.losses,
        "gradients": record.gradients,
        "parameters": record.parameters,
    }
    banner = "\n".join([*told(record), "", f"here: {', '.join(names)}"])
    try:
        from IPython import start_ipython
    except ImportError:
        code.interact(banner=banner, local=names, exitmsg="")
        return
    print(banner)
    start_ipython(argv=["--no-banner"], user_ns=names)
