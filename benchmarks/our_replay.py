"""The replay alone: memory of a full one, cost of a sample, and of the SAC update that it feeds."""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.meter import measured, peak_memory, report
from rl_training import load_config
from rl_training.data.batch import TransitionBatch
from rl_training.data.replay import Replay
from rl_training.runtime.controls import Controls
from rl_training.runtime.sac_trainer import SACTrainer

PACKAGES = ("rl-training", "numpy", "torch")
BATCH = 256


def atari(transitions: int) -> dict[str, float]:
    """Fill a prioritised replay with stacks of four 84 × 84 frames; the memory that it took, in MB."""
    lanes = 8
    frames = np.random.default_rng(0).integers(256, size=(64, lanes, 84, 84), dtype=np.uint8)
    before = peak_memory()
    obs = np.stack([frames[0]] * 4, axis=1)
    replay: Replay[TransitionBatch] = Replay(transitions + 1000 * lanes, obs, stack=4, prioritized=True)
    never = np.zeros(lanes, bool)
    for step in range(transitions // lanes):
        obs = np.concatenate([obs[:, 1:], frames[step % len(frames)][:, None]], axis=1)
        replay.add(np.zeros(lanes, np.int64), np.zeros(lanes), never, never, obs, obs)
    replay.sample_by_priority(32, 0.99, 0.4)
    return {"transitions": len(replay), "atari_mb": peak_memory() - before}


def update(transitions: int, repeats: int) -> dict[str, float]:
    """Seconds of a SAC update on Pendulum's sizes, of the sample in it, and of its matrix products alone."""
    trainer = SACTrainer(load_config("sac/pendulum", [f"buffer_size={transitions + 1000}"]))
    now, replay, chance = Controls.of(trainer.config).at(0).after(0), trainer.replay, np.random.default_rng(0)
    while len(replay) < transitions:
        obs, reward = chance.standard_normal((1, 3), np.float32), chance.random(1)
        never = np.zeros(1, bool)
        replay.add(chance.random((1, 1), np.float32), reward, never, never, obs, obs)
    seconds = {
        "sample": each(lambda: replay.sample(BATCH, 0.99), 20 * repeats),
        "update": each(lambda: trainer.update(now), repeats),
        "products": each(products(256, [3, 256, 256, 2], [4, 256, 256, 1]), repeats),
    }
    trainer.close()
    return seconds


def products(batch: int, actor: list[int], critic: list[int]) -> Callable[[], None]:
    """Every matrix product that an update of SAC cannot do without, on memory that is there already.

    Twice forward through the actor and, for both critics at once, twice through the critics and once through their
    targets; backward into the weights of the actor and the critics, and through the critics to the action.
    """
    passes = [(actor, 1, "f"), (critic, 2, "f"), (critic, 2, "fwi"), (actor, 1, "fwi"), (critic, 2, "fI")]
    wanted: list[tuple[torch.Tensor, ...]] = []
    for sizes, copies, kinds in passes:
        for layer, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
            x, w, y = (
                torch.randn(copies, *shape)
                for shape in ((batch, inputs), (inputs, outputs), (batch, outputs))
            )
            if "f" in kinds:
                wanted.append((x, w, torch.empty_like(y)))
            if "w" in kinds:
                wanted.append((x.transpose(1, 2), y, torch.empty_like(w)))
            if "I" in kinds or ("i" in kinds and layer):  # the first layer's input has no gradient
                wanted.append((y, w.transpose(1, 2), torch.empty_like(x)))

    def multiply() -> None:
        for left, right, out in wanted:
            torch.bmm(left, right, out=out)

    return multiply


def each(function: Callable[[], Any], repeats: int) -> float:
    """CPU-seconds of a call, once it is warm."""
    for _ in range(5):
        function()
    began = time.process_time()
    for _ in range(repeats):
        function()
    return (time.process_time() - began) / repeats


def main(settings: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    transitions = settings["transitions"]
    seconds, cost = measured(lambda: update(transitions, settings["repeats"]))
    report(transitions, cost, PACKAGES, seconds=seconds, **atari(transitions))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
