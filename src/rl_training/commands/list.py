"""`rl-training list`: the algorithms, the shipped configs and the trained policies."""

import itertools
from pathlib import Path


def list_configs() -> None:
    """List the algorithms, the shipped configs and the trained policies."""
    from rl_training.registry import algorithms, shipped_config_path, shipped_configs, zoo_policies

    print("algorithms (rl-training describe ALGO)")
    for name in sorted(algorithms()):
        print(f"  {name}")
    print("configs (rl-training train CONFIG)")
    names = shipped_configs()
    width = max(map(len, names), default=0)
    for name in names:
        print(f"  {name:<{width}}  {opening_sentence(shipped_config_path(name))}".rstrip())
    print("trained policies (rl-training play zoo:NAME)")
    for name in zoo_policies():
        print(f"  zoo:{name}")


def opening_sentence(path: Path) -> str:
    """The first sentence of the comment that opens a config, which says what it is for."""
    comment = itertools.takewhile(lambda line: line.startswith("#"), path.read_text("utf-8").splitlines())
    return " ".join(line.strip("# ") for line in comment).partition(". ")[0].rstrip(".")
