"""Plot of a study: importance of each hyper-parameter, and the scores of the trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

COLOURS = {"complete": "tab:blue", "pruned": "tab:orange"}


def draw_importance(
    importance: Mapping[str, float], trials: Sequence[Mapping[str, object]], path: Path
) -> None:
    """Bars of importance on the left, the returns of the trials in their order on the right."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 1.6 + 0.4 * max(len(importance), 5)), layout="constrained")
    bars, dots = figure.subplots(1, 2)
    names = list(importance)[::-1]
    bars.barh(names, [importance[name] for name in names])
    bars.set_title("importance: share of the returns' differences", fontsize=9, loc="left")
    for state, colour in COLOURS.items():
        seen = [trial for trial in trials if trial["state"] == state and trial["return"] is not None]
        label = "trained to the end" if state == "complete" else "cut short"
        dots.scatter(
            [trial["number"] for trial in seen],
            [trial["return"] for trial in seen],
            color=colour,
            label=label,
        )
    dots.set_title("return of each trial", fontsize=9, loc="left")
    dots.set_xlabel("trial")
    dots.legend(fontsize=8)
    for axis in (bars, dots):
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, format="png", dpi=120)
