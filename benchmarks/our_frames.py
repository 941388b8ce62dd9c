"""What an update of EfficientZero on frames costs, beside the arithmetic in it: how much faster it could be at most.

python -m benchmarks.our_frames '{"config": "efficientzero/breakout", "settings": {}, "updates": 8, "steps": 48}'

The operations of products and convolutions are counted while torch computes an update, and where 3 × 3 filters need no
gradient those of Winograd's products, 25 for 81. At peak they have the speed of one large product, ours or torch's.
What is added, compared or moved counts nothing.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count

from benchmarks.meter import report
from rl_training import load_config
from rl_training.allocator import keep_freed_memory
from rl_training.kernels import winograd
from rl_training.kernels.exact import Shortcut
from rl_training.kernels.products import product
from rl_training.registry import trainer_class
from rl_training.runtime.controls import Controls
from rl_training.state.seeding import seed_everything

aten = torch.ops.aten
ROWS, DEPTH, COLUMNS, CALLS = 192, 576, 1024, 12


def convolution(x: Any, weight: Any, bias: Any, stride: Any, *_: Any, out_shape: Any) -> int:
    """Operations of a convolution, by Winograd's products where `kernels.winograd` computes it."""
    direct: int = conv_flop_count(list(x), list(weight), list(out_shape))
    ours = not torch.is_grad_enabled() and tuple(weight[2:]) == (3, 3) and tuple(stride) == (1, 1)
    return direct * 25 // 81 if ours else direct


def memory(x: Any, w_ih: Any, w_hh: Any, *_: Any, **__: Any) -> int:
    """Operations of an LSTM over a sequence."""
    return 2 * x[0] * x[1] * w_ih[0] * (w_ih[1] + w_hh[1])


def memory_backward(x: Any, w_ih: Any, w_hh: Any, *_: Any, **__: Any) -> int:
    return 2 * memory(x, w_ih, w_hh)


COUNTED = {
    aten.convolution: convolution,
    aten.mkldnn_rnn_layer: memory,
    aten.mkldnn_rnn_layer_backward: memory_backward,
}


@contextmanager
def by_torch() -> Iterator[None]:
    """All products are torch's, so that they can be counted."""
    with (
        mock.patch.object(winograd, "_is_for_us", return_value=False),
        mock.patch.object(Shortcut, "__call__", return_value=None),
    ):
        yield


def fastest(call: Callable[[], Any]) -> float:
    """CPU-seconds of the fastest of some calls."""
    taken = []
    for _ in range(CALLS):
        began = time.process_time()
        call()
        taken.append(time.process_time() - began)
    return min(taken)


def peaks() -> dict[str, float]:
    """Operations per CPU-second of one product, ours and torch's."""
    left, right = np.ones(ROWS * DEPTH, np.float32), np.ones(DEPTH * COLUMNS, np.float32)
    out, start = np.empty(ROWS * COLUMNS, np.float32), np.zeros(COLUMNS, np.float32)
    places = ((out, 0, COLUMNS), (start, 0, 0), (left, 0, DEPTH, 1), (right, 0, 16, 16 * DEPTH))
    one, other = torch.ones(ROWS, DEPTH), torch.ones(DEPTH, COLUMNS)
    operations = 2 * ROWS * DEPTH * COLUMNS
    return {
        "our_operations_per_second": operations / fastest(lambda: product(ROWS, COLUMNS, DEPTH, *places)),
        "torch_operations_per_second": operations / fastest(lambda: one @ other),
    }


def gathered(config: Any) -> tuple[Any, Any, int]:
    """A trainer that has made the steps before learning starts, its knobs and how many steps that were."""
    seed_everything(1)
    trainer: Any = trainer_class(config.algo)(config)
    knobs, steps = Controls.of(config), 0
    while steps < config.learning_starts:
        seed_everything(steps)
        trainer.iterate(knobs.at(steps))
        steps += config.num_envs
    return trainer, knobs, steps


def steps_per_second(config: Any, count: int) -> float:
    """Environment steps per CPU-second, with their updates, after the first two iterations that update."""
    trainer, knobs, steps = gathered(config)
    first, began = steps + 2 * config.num_envs, 0.0
    while steps < first + count:
        if steps == first:
            began = time.process_time()
        seed_everything(steps)
        trainer.iterate(knobs.at(steps))
        steps += config.num_envs
    trainer.close()
    return (steps - first) / (time.process_time() - began)


def main(settings: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    keep_freed_memory()  # as a run does
    config = load_config(settings["config"], {**settings["settings"], "torch_threads": 1})
    found = {"steps_per_cpu_second": steps_per_second(config, settings["steps"])}
    trainer, knobs, steps = gathered(config.model_copy(update={"replay_ratio": 1e-9}))
    now = knobs.at(steps).after(0)
    trainer.update(now)
    taken, counted = [], []
    for number in range(settings["updates"]):
        seed_everything(number)
        began = time.process_time()
        trainer.update(now)
        taken.append(time.process_time() - began)
        seed_everything(number)
        with by_torch(), FlopCounterMode(display=False, custom_mapping=COUNTED) as operations:
            trainer.update(now)
        counted.append(operations.get_total_flops())
    trainer.close()
    found |= {"update_seconds": statistics.median(taken), "operations": statistics.median(counted), **peaks()}
    for whose in ("our", "torch"):
        found[f"at_{whose}_peak_seconds"] = found["operations"] / found[f"{whose}_operations_per_second"]
    report(settings["updates"], {}, ("torch", "numba"), **found)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
