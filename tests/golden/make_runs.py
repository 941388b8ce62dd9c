"""Write the run directories in tests/golden/runs/<format>: a small run of every algorithm, stopped at about half.

    python tests/golden/make_runs.py             all of them
    python tests/golden/make_runs.py ppo dqn     some

They are what a version wrote, kept so that later versions are tested on it: tests/state/test_kept_runs.py evaluates,
reports, forks and resumes each. `ends.json` holds the metrics with which the same run ends when it is left alone. A
directory is written anew only when its format or its arithmetic has changed; see docs/formats.md.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))

import torch  # noqa: E402
from runs import small_config  # noqa: E402

from rl_training import train  # noqa: E402
from rl_training.monitoring.display import QuietDisplay  # noqa: E402
from rl_training.runtime.workflows import train_until_stopped  # noqa: E402
from rl_training.state.formats import FORMAT  # noqa: E402
from rl_training.state.run_directory import cpu  # noqa: E402

FOLDER = Path(__file__).parent / "runs" / str(FORMAT)
ENDS = FOLDER / "ends.json"

# The kept run, its algorithm and perhaps its kind -> the small run of tests/runs.py it is made of, and what is smaller.
ROLLOUT = dict(hidden_sizes=[8], total_timesteps=1200)
SEARCH = dict(total_timesteps=400, buffer_size=1000, latent_size=4, support_size=4, eval_interval=400)
REPLAYED = dict(hidden_sizes=[8], total_timesteps=800, buffer_size=1500)
WORLD = dict(deter_size=8, rssm_hidden=4, num_latents=2, num_classes=2, units=4, blocks=2, eval_interval=480)
KEPT: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo": ("ppo-cartpole", ROLLOUT),
    "a2c": ("a2c-cartpole", ROLLOUT),
    "trpo": ("trpo-pendulum", ROLLOUT),
    "ppg": ("ppg-cartpole", ROLLOUT | dict(num_steps=16, policy_iterations=4)),
    "recurrent_ppo": ("recurrent-cartpole", ROLLOUT | dict(recurrent_size=8)),
    "gail": ("gail-cartpole", ROLLOUT | dict(discriminator_rollouts=2, discriminator_hidden_sizes=[8])),
    "bc": ("bc-cartpole", ROLLOUT),
    "impala": ("impala-cartpole", ROLLOUT),
    "appo": ("appo-cartpole", ROLLOUT),
    "sac": ("sac-pendulum", REPLAYED),
    "dqn": ("dqn-cartpole", REPLAYED),
    "muzero": ("muzero-cartpole", SEARCH),
    "gumbel_muzero": ("gumbel-cartpole", SEARCH),
    "efficientzero": ("efficientzero-cartpole", SEARCH | dict(prefix_size=4, projection_size=4)),
    "scalezero": ("scalezero-classic", SEARCH | dict(hidden_sizes=[4], expert_size=4, stages=2)),
    "dreamer": ("dreamer-cartpole", dict(total_timesteps=480, buffer_size=1000, **WORLD)),
    # Environments, rollouts, updates and networks in compiled code.
    "ppo_compiled": ("ppo-compiled", ROLLOUT),
    "sac_compiled": ("sac-layer-norm", REPLAYED),
    "dqn_compiled": ("dqn-layer-norm", REPLAYED),
    "dreamer_compiled": ("dreamer-compiled", dict(total_timesteps=480, buffer_size=8000, eval_interval=480)),
}
CADENCES = dict(
    log_interval=80, eval_interval=240, eval_episodes=1, checkpoint_interval=120, keep_checkpoints=2
)


class Stopping(QuietDisplay):
    """Ends a run at half of its steps, as SIGTERM from outside would."""

    def __init__(self, half: int) -> None:
        self.half, self.asked = half, False

    def update(self, steps: int, metrics: Mapping[str, float], timing: Mapping[str, float]) -> None:
        if steps >= self.half and not self.asked:
            self.asked = True  # a second signal would end it unsaved
            os.kill(os.getpid(), signal.SIGTERM)


def make(name: str, run_dir: Path) -> dict[str, float]:
    """Write the run `name`, stopped at half, to `run_dir`; the metrics with which it would end."""
    small, changes = KEPT[name]
    config = small_config(small, **CADENCES | changes)
    with tempfile.TemporaryDirectory() as whole:
        ends = train(config, run_dir=Path(whole) / "run").metrics
    train_until_stopped(config, run_dir=run_dir, display=Stopping(config.total_timesteps // 2))
    older = sorted((run_dir / "checkpoints").iterdir())[
        :-1
    ]  # and of DQN and its like, segments that only these list
    for path in (run_dir / ".lock", run_dir / "timing.jsonl", *older):  # nothing of it is needed to go on
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return ends


def main() -> None:
    torch.set_num_threads(1)
    kept = json.loads(ENDS.read_text()) if ENDS.exists() else {"cpu": cpu(), "ends": {}}
    # Of the runs whose manifests do not say it.
    made_on, ends = kept["cpu"], kept["ends"]
    names, folder = sys.argv[1:] or list(KEPT), FOLDER
    os.chdir(tempfile.mkdtemp())  # outside of any repository, whose state would be written into the manifest
    for name in names:
        shutil.rmtree(folder / name, ignore_errors=True)
        ends[name] = make(name, folder / name)
        size = sum(path.stat().st_size for path in (folder / name).rglob("*") if path.is_file())
        print(f"{name:<16}{size / 1000:8.1f} kB")
    ENDS.write_text(json.dumps({"cpu": made_on, "ends": dict(sorted(ends.items()))}, indent=1) + "\n")


if __name__ == "__main__":
    main()
