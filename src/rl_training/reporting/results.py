"""What kept results say: interquartile means, verdicts against references, and the tables of the documentation.

Text between `<!-- results: NAME -->` and `<!-- /results -->` is generated from `results/` and from nothing else. Scores
stand in such blocks only; `stray_scores` finds tables of scores that stand elsewhere.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rl_training.reporting.statistics import Interval, improvement_interval, iqm_interval

BLOCK = re.compile(r"<!-- results: (.+?) -->\n(.*?)<!-- /results -->", re.S)
# Blocks that are generated from other data: docs/diagnose.md, held by tests/reporting/test_diagnose.py.
DIAGNOSED = re.compile(r"<!-- (proofs|corpus) -->\n.*?<!-- /\1 -->", re.S)
MINUS = "−"


class Measured(NamedTuple):
    """A row with what came of it; `result` is None while it has not been run, `peer` where none was run beside it.

    `beside` is the row that it names.
    """

    row: Any
    result: Mapping[str, Any] | None
    peer: Mapping[str, Any] | None = None
    beside: Measured | None = None

    @property
    def scores(self) -> np.ndarray:
        assert self.result is not None
        return np.array([seed["score"] for seed in self.result["seeds"]])

    @property
    def iqm(self) -> Interval:
        return iqm_interval([self.scores])

    @property
    def seeds(self) -> list[Mapping[str, Any]]:
        return [] if self.result is None else list(self.result["seeds"])


FEWEST = 3  # seeds that a verdict needs, and an interval: a bootstrap of one or two is none


def ranged(interval: Interval, seeds: int) -> str:
    """A statistic with its interval, where there is one: 500.0 (498.2 to 500.0)."""
    value, low, high = (figure(float(part)) for part in interval)
    return f"{value} ({low} to {high})" if seeds >= FEWEST else value


def told(interval: Interval, seeds: int) -> str:
    """The same in words, with the number of seeds."""
    value, low, high = (figure(float(part)) for part in interval)
    if seeds == 1:
        return f"{value}, 1 seed"
    return f"IQM {value}" + f", 95 % interval {low} to {high}" * (seeds >= FEWEST) + f", {counted(seeds)}"


def standing(interval: Interval, score: float, seeds: int) -> str:
    """Where a reference lies, seen from our interval."""
    if seeds < FEWEST:
        return f"no verdict on {counted(seeds)}"
    if interval.low >= score:
        return "reached"
    return "below" if interval.high < score else "level"


def against(measured: Measured, reference: Any) -> str:
    """The same of one of a row's references, which may not be a goal."""
    if not reference.goal:
        return "orientation only"
    return standing(measured.iqm, reference.score, len(measured.seeds))


def verdict(measured: Measured) -> list[str]:
    """The verdict on a row, line by line."""
    count = len(measured.seeds)
    lines = [f"ours         {told(measured.iqm, count)} (untrained {figure(untrained(measured))})"]
    for reference in measured.row.references:
        lines.append(f"reference    {published(reference)}: {against(measured, reference)}")
        if reference.scores:
            lines.append(f"             {improvement(measured, reference.scores)}")
    if measured.peer is not None:
        scores = [seed["score"] for seed in measured.peer["seeds"]]
        theirs = told(iqm_interval([np.array(scores)]), len(scores))
        lines.append(f"peer         {measured.peer['library']}: {theirs}")
        lines.append(f"             {improvement(measured, scores)}")
    if measured.beside is not None:
        problem = incomparable(measured, measured.beside)
        theirs = problem or told(measured.beside.iqm, len(measured.beside.seeds))
        lines.append(f"beside       {measured.beside.row.name}: {theirs}")
        lines += [] if problem else [f"             {improvement(measured, measured.beside.scores)}"]
    return lines


def incomparable(measured: Measured, other: Measured) -> str:
    """Why a row cannot be compared with the one it stands beside, if so."""
    if other.result is None:
        return "not run"
    if measured.result is None:
        return ""
    mine, theirs = (_measured_at(each) for each in (measured.result, other.result))
    differing = [f"{theirs[what]} against {mine[what]}" for what in mine if mine[what] != theirs[what]]
    return f"not compared, {', '.join(differing)}" if differing else ""


def _measured_at(result: Mapping[str, Any]) -> dict[str, str]:
    """What two rows must have in common to be compared, in words."""
    settings, evaluation = result["settings"], result["evaluation"]
    return {
        "steps": f"{thousands(settings['total_timesteps'])} steps",
        "env_id": settings["env_id"],
        "actions": f"{evaluation['actions']} actions",
        "checkpoint": f"the {evaluation['checkpoint']} checkpoint",
    }


def improvement(measured: Measured, others: Sequence[float] | np.ndarray) -> str:
    value, low, high = improvement_interval([measured.scores], [np.array(others, float)])
    return f"probability of improvement (ties count half) {value:.2f}, 95 % interval {low:.2f} to {high:.2f}"


def untrained(measured: Measured) -> float:
    return float(np.mean([seed["untrained"] for seed in measured.seeds]))


def figure(value: float) -> str:
    """A score with as many digits as it deserves: 3353, 242.1, 0.964."""
    digits = next((digits for bound, digits in ((2, 3), (10, 2), (1000, 1)) if abs(value) < bound), 0)
    text = f"{value:.{digits}f}"
    return text.replace("-", MINUS)


def published(reference: Any) -> str:
    """A reference as it was published, or as our own expert scored, with its source."""
    spread = f" ± {reference.spread:g}" if reference.spread is not None else ""
    steps = f" at {thousands(reference.steps)} steps" if reference.steps else ""
    return f"{as_published(reference)}{spread}{steps} ({reference.source})"


def as_published(reference: Any) -> str:
    return f"{reference.score:g}".replace("-", MINUS)


def thousands(count: int) -> str:
    return f"{count:,}".replace(",", " ")


def table(header: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> str:
    """A Markdown table; columns in `right` are aligned to the right."""
    rule = ["---:" if index in right else "---" for index in range(len(header))]
    lines = [f"| {' | '.join(header)} |", f"|{'|'.join(rule)}|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def family_table(rows: Sequence[Measured]) -> str:
    """The rows of one family, those that were not run after them, and the notes on them."""
    done = [measured for measured in rows if measured.result is not None]
    text = ""
    if done:
        header = ["row", "steps", "untrained", "ours: IQM (95 % interval)", "each seed"]
        header += ["peer, other row or reference", "verdict", "CPU-seconds a seed", "command"]
        text = table(header, [_cells(measured) for measured in done], right=(1, 2, 7)) + "\n"
    missing = [measured for measured in rows if measured.result is None]
    if missing:
        cells = [(named(each.row), stands_beside(each), each.row.not_run) for each in missing]
        text += ("\n" if done else "") + table(("not run", "to stand beside", "why"), cells) + "\n"
    notes = [f"- `{each.row.name}`: {each.row.note}\n" for each in rows if each.row.note]
    return text + "".join(["\n", *notes] if notes else [])


def _cells(measured: Measured) -> list[str]:
    value, _, interval = ranged(measured.iqm, len(measured.seeds)).partition(" ")
    return [
        named(measured.row),
        thousands(measured.seeds[0]["steps"]),
        figure(untrained(measured)),
        " ".join(filter(None, [f"**{value}**", interval])) + f", {counted(len(measured.seeds))}",
        ", ".join(f"{seed['seed']}: {figure(seed['score'])}" for seed in measured.seeds),
        stands_beside(measured),
        "; ".join(_verdicts(measured)) or "none",
        seconds(measured),
        f"`rl-training reproduce {measured.row.name}`",
    ]


def named(row: Any) -> str:
    """A row with what its run changes of its config."""
    return ", ".join([f"`{row.name}`", *(f"`{override}`" for override in row.overrides)])


def stands_beside(measured: Measured) -> str:
    """What a row is compared with: a peer library, another row, its references."""
    beside = [*_others(measured), *(published(each) for each in measured.row.references)]
    return "; ".join(beside) or "none known"


def _others(measured: Measured) -> Iterator[str]:
    if measured.peer is not None:
        scores = [seed["score"] for seed in measured.peer["seeds"]]
        theirs = ranged(iqm_interval([np.array(scores)]), len(scores))
        yield f"{theirs}, {counted(len(scores))} ({measured.peer['library']}, run by us)"
    if (other := measured.beside) is not None:
        problem = incomparable(measured, other)
        theirs = problem or f"{ranged(other.iqm, len(other.seeds))}, {counted(len(other.seeds))}"
        yield f"`{other.row.name}`: {theirs}"


def _verdicts(measured: Measured) -> Iterator[str]:
    if measured.peer is not None:
        yield _probability(measured, np.array([seed["score"] for seed in measured.peer["seeds"]]))
    if measured.beside is not None and not incomparable(measured, measured.beside):
        yield _probability(measured, measured.beside.scores)
    yield from (against(measured, each) for each in measured.row.references)


def _probability(measured: Measured, others: np.ndarray) -> str:
    value, low, high = improvement_interval([measured.scores], [others])
    return f"P(improvement) {value:.2f} ({low:.2f} to {high:.2f})"


def counted(seeds: int) -> str:
    return f"{seeds} seed" + "s" * (seeds != 1)


def seconds(measured: Measured) -> str:
    """The mean CPU time of a seed."""
    assert measured.result is not None
    noted = [cost["cpu_seconds"] for cost in measured.result["cost"].values()]
    return "not noted" if None in noted or not noted else thousands(round(float(np.mean(noted))))


def extract_table(rows: Sequence[Measured]) -> str:
    """README's extract: one line per row that was run."""
    cells = []
    for measured in (each for each in rows if each.result is not None):
        beside = [
            f"{as_published(each)} ({each.source.partition(',')[0]})"
            for each in measured.row.references
            if each.goal
        ]
        cells.append(
            (
                named(measured.row),
                thousands(measured.seeds[0]["steps"]),
                ranged(measured.iqm, len(measured.seeds)),
                str(len(measured.seeds)),
                "; ".join(beside) or "none",
            )
        )
    return table(("row", "steps", "IQM (95 % interval)", "seeds", "reference"), cells, right=(1, 3)) + "\n"


def rewritten(text: str, blocks: Mapping[str, Callable[[], str]]) -> str:
    """A page with its generated blocks as `blocks` gives them; an unknown name is a KeyError."""

    def again(found: re.Match[str]) -> str:
        return f"<!-- results: {found[1]} -->\n{blocks[found[1]]()}<!-- /results -->"

    return BLOCK.sub(again, text)


# Of a header: what is counted in returns, or seed by seed, or is headed by environments; and what is counted in time.
SCORE_WORDS = re.compile(
    r"\b(un)?trained\b|\breturns?\b|\bscores?\b|\bIQM\b|\bgames\b|\bgate\b|\bseed \d|^\| seed \||\w-v\d", re.I
)
SPEED_WORDS = re.compile(r"\bper (CPU-)?(step|second)", re.I)
NUMBER = re.compile(rf"\**[-{MINUS}]?\d[\d ]*(\.\d+)?\**")


def stray_scores(text: str, configs: Collection[str]) -> list[str]:
    """The headers of tables with scores that stand outside of generated blocks.

    A table holds scores if its header says so, or if a row begins with a shipped config and has a bare number.
    """
    outside = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    outside = DIAGNOSED.sub("", BLOCK.sub("", outside))
    found = []
    for lines in (each.strip().split("\n") for each in re.findall(r"(?:^\|.*\|$\n?)+", outside, re.M)):
        header, rows = lines[0], [_split(line) for line in lines[2:]]
        headed = SCORE_WORDS.search(header) and any(
            re.search(r"\d", cell) for row in rows for cell in row[1:]
        )
        named = any(_config(row[0]) in configs and any(map(NUMBER.fullmatch, row[1:])) for row in rows)
        if (headed or named) and not SPEED_WORDS.search(header):
            found.append(header)
    return found


def _config(cell: str) -> str:
    """The name in backquotes that a cell begins with."""
    return "".join(re.findall(r"^`([^`]+)`", cell))


def _split(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def draw_family(rows: Sequence[Measured], path: Path, title: str, data_digest: str) -> None:
    """Learning curves of a family, a panel each: every seed thin, their mean thick, references dashed.

    The digest of the data is in the file, so that a test can tell whether the picture is of these results.
    """
    from matplotlib.figure import Figure
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    done = [measured for measured in rows if measured.result is not None]
    columns = min(3, len(done))
    lines = -(-len(done) // columns)
    picture = Figure(figsize=(3.4 * columns, 2.5 * lines), layout="constrained")
    panels = np.atleast_1d(picture.subplots(lines, columns, squeeze=False)).ravel()
    for panel, measured in zip(panels, done, strict=False):
        _draw_row(panel, measured)
    for panel in panels[len(done) :]:
        panel.set_visible(False)
    picture.suptitle(title, fontsize=10)
    drawn, described = io.BytesIO(), PngInfo()
    picture.savefig(drawn, dpi=110)
    described.add_text("Description", data_digest)
    # Lines in a few shades need no more colours, and a third of the bytes.
    Image.open(drawn).convert("RGB").quantize(64).save(path, pnginfo=described, optimize=True)


def _draw_row(panel: Any, measured: Measured) -> None:
    for seed in measured.seeds:
        steps, values = zip(*seed["curve"], strict=True)
        panel.plot(steps, values, color="#4051b5", alpha=0.35, linewidth=0.8)
    shortest = min(len(seed["curve"]) for seed in measured.seeds)
    points = np.array([seed["curve"][:shortest] for seed in measured.seeds])  # [seeds, points, 2]
    panel.plot(points[0, :, 0], points[:, :, 1].mean(0), color="#4051b5", linewidth=1.8)
    for reference in measured.row.references:
        panel.axhline(reference.score, color="#555", linestyle="--", linewidth=0.9)
    panel.set_title(measured.row.name, fontsize=8)
    panel.tick_params(labelsize=7)
    panel.ticklabel_format(axis="x", style="sci", scilimits=(0, 0))
    panel.xaxis.get_offset_text().set_fontsize(6)
