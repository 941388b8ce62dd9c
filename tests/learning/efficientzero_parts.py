"""What each part of EfficientZero is worth on CartPole: steps and CPU seconds until it first plays well.

    python tests/learning/efficientzero_parts.py [NAME ...] [SEED ...] [key=value ...]

MuZero and EfficientZero as they are shipped, and EfficientZero without each of its parts. Every 1000 steps 10 greedy
episodes are played, until their mean return is 400 or the config's run is over. CPU seconds are those of training
alone. All seeds are shown; nothing must be reached.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

SEEDS = (1, 2, 3, 4, 5)
SCORE, EPISODES, INTERVAL = 400, 10, 1000

PARTS = {
    "value prefix": "value_prefix=false",
    "consistency": "consistency=false",
    "off-policy correction": "off_policy_correction=false",
    "reanalysed policies": "reanalyse_ratio=0",
    "reanalysed values": "reanalyse_values=false",
    "priorities": "priority_exponent=0",
}
VARIANTS: dict[str, tuple[str, ...]] = {
    "MuZero": ("muzero/cartpole",),
    "EfficientZero": ("efficientzero/cartpole",),
    **{f"without {name}": ("efficientzero/cartpole", override) for name, override in PARTS.items()},
    "without all of them": ("efficientzero/cartpole", *PARTS.values()),
}


def curve(name: str, overrides: list[str], seed: int) -> Iterator[tuple[int, float, float]]:
    """(step, mean return, CPU seconds of training so far) of every evaluation of the run that `train` would make."""
    from rl_training import load_config
    from rl_training.registry import trainer_class
    from rl_training.runtime.controls import Controls
    from rl_training.runtime.evaluation import evaluate
    from rl_training.state.seeding import fold, seed_everything

    config = load_config(name, [f"seed={seed}", *overrides])
    seed_everything(fold(seed, "init"))
    trainer, knobs = trainer_class(config.algo)(config), Controls.of(config)
    per_iteration, spent = config.steps_per_iteration, 0.0
    for iteration in range(-(-config.total_timesteps // per_iteration)):
        began = time.process_time()
        seed_everything(fold(seed, "iteration", iteration))
        trainer.iterate(knobs.at(iteration * per_iteration))
        spent += time.process_time() - began
        step = (iteration + 1) * per_iteration
        if step // INTERVAL > iteration * per_iteration // INTERVAL:
            found = evaluate(trainer.agent, config, episodes=EPISODES, seed=fold(seed, "evaluate", step))
            yield step, found["mean_return"], spent
    trainer.close()


def first_good(name: str, overrides: list[str], seed: int) -> str:
    """The first evaluation that is good enough, as "steps (CPU seconds)", or what the best was if none is."""
    best, step, spent = 0.0, 0, 0.0
    for step, score, spent in curve(name, overrides, seed):
        print(f"  seed {seed}, step {step}: {score:.1f} after {spent:.0f} CPU seconds", flush=True)
        if score >= SCORE:
            return f"{step} ({spent:.0f})"
        best = max(best, score)
    return f"not in {step} ({spent:.0f}): {best:.0f}"


def main(arguments: list[str]) -> int:
    import torch

    torch.set_num_threads(1)
    seeds = [int(word) for word in arguments if word.isdigit()] or list(SEEDS)
    changes = [word for word in arguments if "=" in word]
    names = [word for word in arguments if word in VARIANTS] or list(VARIANTS)
    print(f"| variant | {' | '.join(f'seed {seed}' for seed in seeds)} |", flush=True)
    print("|---" * (1 + len(seeds)) + "|")
    for variant in names:
        config, *overrides = VARIANTS[variant]
        cells = [first_good(config, [*overrides, *changes], seed) for seed in seeds]
        print(f"| {variant} | {' | '.join(cells)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
