"""The zoo: for each row the policy of its median seed, small enough to ship, with a card that says what it is."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl_training.errors import UserError
from rl_training.registry import config_class_of
from rl_training.reporting.results import Measured, counted, figure, published, thousands, told, untrained
from rl_training.state import checkpoints
from rl_training.tools.reproducing import weights_of, write
from rl_training.tools.rows import Row

CARD = "card.md"
LARGEST = 500_000  # bytes of a policy
LARGEST_ZOO = 5_000_000


def median_seed(result: Mapping[str, Any]) -> Mapping[str, Any]:
    """The seed whose score is in the middle; of an even number the lower one."""
    ranked = sorted(result["seeds"], key=lambda seed: (seed["score"], seed["seed"]))
    chosen: Mapping[str, Any] = ranked[(len(ranked) - 1) // 2]
    return chosen


def ship(row: Row, result: Mapping[str, Any], runs: Path, zoo: Path) -> Path:
    """Write the median seed's policy and its card to `zoo/<row>`; refused where it is too large."""
    seed = median_seed(result)
    source = weights_of(row, runs / row.runs / f"s{seed['seed']}").parent
    tree = checkpoints.load_checkpoint(source, only="policy")
    step = checkpoints.checkpoint_step(source)
    size = size_of(step, tree)
    if size > LARGEST:
        raise UserError(
            f"{row.name}: its policy has {thousands(size)} bytes, the zoo takes {thousands(LARGEST)}; "
            "write `zoo: false` in the row"
        )
    target = checkpoints.save_policy(zoo / row.name, step, tree)
    write(target / CARD, card(Measured(row, result)))
    return target


def size_of(step: int, tree: Mapping[str, object]) -> int:
    """The bytes of a policy on the disk, measured aside: what the zoo has stays until its successor is accepted."""
    with tempfile.TemporaryDirectory(prefix="rl_training-") as folder:
        written = checkpoints.save_policy(Path(folder, "policy"), step, tree)
        return sum(path.stat().st_size for path in written.iterdir())


def card(measured: Measured) -> str:
    """What a user should know of a policy: the row, its score, the config and the versions that made it."""
    row, result = measured.row, measured.result
    assert result is not None
    seed, algo = median_seed(result), result["settings"]["algo"]
    how, repeat = result["evaluation"], result["settings"].get("action_repeat", 1)
    counts = config_class_of(algo).counts if repeat == 1 else f"actions of {repeat} environment steps each"
    steps = f"{thousands(seed['steps'])} {counts}"
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items() if version)
    lines = [
        f"# zoo:{row.name}",
        "",
        f"`{algo}` on `{result['settings']['env_id']}`, the policy of the median seed of the row "
        f"`{row.name}`.",
        "",
        f"- Score of this policy: {figure(seed['score'])}, the mean return of {how['episodes']} {how['actions']} "
        f"episodes; untrained {figure(seed['untrained'])}",
        f"- Seed {seed['seed']}, {steps}, {how['checkpoint']} checkpoint",
        f"- {all_seeds(measured)}; untrained {figure(untrained(measured))}",
        *(f"- Reference: {published(each)}" for each in row.references),
        f"- Config: `{row.config}`" + "".join(f" `{override}`" for override in row.overrides),
        f"- Made with {versions}",
        f"- SHA-256 of {checkpoints.WEIGHTS}: `{seed['weights_sha256']}`",
        "",
        f"    rl-training play zoo:{row.name}",
        f"    rl-training evaluate zoo:{row.name} --episodes {how['episodes']}",
        f"    rl-training reproduce {row.name}",
        "",
    ]
    return "\n".join(lines)


def all_seeds(measured: Measured) -> str:
    """The score of a row."""
    count = len(measured.seeds)
    if count == 1:
        return f"The only seed of the row: {figure(float(measured.iqm.value))}"
    return f"All {count} seeds of the row: {told(measured.iqm, count).removesuffix(f', {counted(count)}')}"
