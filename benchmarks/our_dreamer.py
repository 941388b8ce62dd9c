"""What an update of Dreamer costs, beside the matrix products in it: how much faster it could be at most.

python -m benchmarks.our_dreamer '{"config": "dreamer/cartpole", "settings": {}, "updates": 12}'

Products are noted while torch computes an update. Each is then timed alone, over and over on the same numbers, the
fastest of some calls; and all of them are counted at the speed of one large product. Updates are medians. Those in
compiled code are then made again with a clock around each part. Pictures are refused: convolutions are not noted.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.meter import report
from rl_training import load_config
from rl_training.allocator import keep_freed_memory
from rl_training.data.streams import StreamReplay
from rl_training.kernels.imagination import Block, Laid
from rl_training.kernels.recurrence import Panels, Sequences
from rl_training.registry import trainer_class
from rl_training.runtime.controls import Controls
from rl_training.runtime.dreamer_senses import VectorSenses
from rl_training.runtime.dreamer_trainer import DreamerTrainer
from rl_training.runtime.optim import LaProp
from rl_training.state.seeding import seed_everything

aten = torch.ops.aten
PRODUCTS = {aten.mm.default: 0, aten.addmm.default: 1, aten.bmm.default: 0}  # where the factors begin
LARGE, CALLS = 1024, 12
# Parts of a compiled update: where they are called, and by which name.
PARTS = {
    "imagination": ((Block, "imagine"),),
    "heads_forward": ((Block, "look"),),
    "heads_backward": ((Laid, "go_back"),),
    "sequences": ((Sequences, "follow"), (Sequences, "go_back")),
    "observations": tuple((VectorSenses, name) for name in ("see", "tell", "go_back")),
    "packing": ((Panels, "read"),),
    "optimizer": ((LaProp, "descend"),),
    "batches": ((DreamerTrainer, "draw"), (StreamReplay, "put_latents")),
}


class Products(TorchDispatchMode):
    """Notes the sizes of all matrix products: (batch, rows, depth, columns) → how many."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: Counter[tuple[int, ...]] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in PRODUCTS:
            left, right = args[PRODUCTS[function] :][:2]
            batch = left.shape[0] if left.ndim == 3 else 1
            self.sizes[(batch, *left.shape[-2:], right.shape[-1])] += 1
        return function(*args, **(kwargs or {}))


def seconds(call: Callable[[], Any], calls: int) -> list[float]:
    """CPU-seconds of some calls, after one that warms up."""
    call()
    taken = []
    for _ in range(calls):
        began = time.process_time()
        call()
        taken.append(time.process_time() - began)
    return taken


def product_seconds(batch: int, rows: int, depth: int, columns: int) -> float:
    """The least CPU-seconds that torch takes for products of these sizes."""
    left, right = torch.randn(batch, rows, depth), torch.randn(batch, depth, columns)
    out, repeats = torch.empty(batch, rows, columns), max(1, 2**24 // (batch * rows * depth * columns))
    if batch == 1:
        left, right, out = left[0], right[0], out[0]
    multiply = torch.bmm if batch > 1 else torch.mm

    def call() -> None:
        for _ in range(repeats):
            multiply(left, right, out=out)

    return min(seconds(call, CALLS)) / repeats


def ready(settings: dict[str, Any], compiled: bool) -> Callable[[], Any]:
    """What updates a trainer whose replay buffer has begun to fill."""
    config = load_config(
        settings["config"], {**settings["settings"], "compiled_updates": compiled, "torch_threads": 1}
    )
    seed_everything(1)
    trainer: Any = trainer_class("dreamer")(config.model_copy(update={"train_ratio": 1e-9}))
    if len(trainer.agent.network.reconstruction.pictures):
        trainer.close()
        raise SystemExit(f"{settings['config']}: it sees pictures; this benchmark is for vectors")
    knobs = Controls.of(trainer.config)
    for number in range(400 // config.num_envs):
        trainer.iterate(knobs.at(number * config.num_envs))
    now = knobs.at(0).after(0)
    return lambda: trainer.update(now)


def parts_of(update: Callable[[], Any], updates: int) -> dict[str, float]:
    """CPU-seconds of each part of an update, medians, and of the rest: torch's operations and Python."""
    spent: dict[str, float] = {}

    def timed(function: Any, part: str) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            began = time.process_time()
            result = function(*given, **named)
            spent[part] += time.process_time() - began
            return result

        return call

    for part, places in PARTS.items():
        for owner, name in places:
            setattr(owner, name, timed(getattr(owner, name), part))
    seen: list[dict[str, float]] = []
    for _ in range(updates + 1):
        spent |= dict.fromkeys(PARTS, 0.0)
        began = time.process_time()
        update()
        whole = time.process_time() - began
        seen.append({**spent, "rest": whole - sum(spent.values())})
    return {f"{part}_seconds": statistics.median(each[part] for each in seen[1:]) for part in seen[0]}


def main(settings: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    keep_freed_memory()  # as a run does
    by_torch, products = ready(settings, False), Products()
    with products:
        by_torch()
    operations = sum(
        2 * batch * rows * depth * columns * count
        for (batch, rows, depth, columns), count in products.sizes.items()
    )
    alone = sum(count * product_seconds(*size) for size, count in products.sizes.items())
    large = product_seconds(1, LARGE, LARGE, LARGE)
    updates, compiled = settings["updates"], ready(settings, True)
    cost = {
        "torch_seconds": statistics.median(seconds(by_torch, updates)),
        "compiled_seconds": statistics.median(seconds(compiled, updates)),
        "products_alone_seconds": alone,
        "products_at_peak_seconds": operations * large / (2 * LARGE**3),
    }
    cost |= parts_of(compiled, updates)
    report(updates, cost, ("torch",), operations=operations, sizes=len(products.sizes))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
