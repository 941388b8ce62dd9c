"""Knobs of plain mappings, which have no config class: as declared by the first shipped algorithm that has them."""

from __future__ import annotations

from rl_training.registry import SHIPPED, config_class_of
from rl_training.runtime.controls import Control


def vocabulary() -> dict[str, Control]:
    """Name -> control of every knob of the shipped algorithms; no two share a spelling."""
    known: dict[str, Control] = {}
    taken: set[str] = set()
    for algorithm in SHIPPED:
        for name, control in config_class_of(algorithm).controls.items():
            if name not in taken:
                aliases = tuple(alias for alias in control.aliases if alias not in taken)
                known[name] = control._replace(aliases=aliases)
                taken |= {name, *aliases}
    return known
