"""Self-contained HTML pages with charts, tables and images, and charts as PNG.

A page is text made of blocks; its charts are plain data in it, which page.js draws as SVG. Nothing comes from the web,
and whatever a run says (a name, a path, a value) is text and never markup.
"""

from __future__ import annotations

import base64
import json
import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rl_training.errors import UserError, add_extra
from rl_training.state import files

HERE = Path(__file__).parent
MOST_POINTS = 400  # of a curve: more than a screen shows
PICTURE_CHARACTERS = 140  # of small text in a line of a picture


class Series(NamedTuple):
    """One line of a chart, and the band around it if it has one. NaN in `y` is a gap."""

    name: str
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None


class Chart(NamedTuple):
    """Lines over a common x."""

    title: str
    x: str
    series: Sequence[Series]
    note: str = ""


class Page:
    """Blocks in their order; the text of each is escaped when it is added."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.blocks: list[str] = []
        self.charts: list[Chart] = []

    def heading(self, text: str) -> None:
        self.blocks.append(f"<h2>{escape(text)}</h2>")

    def text(self, text: str) -> None:
        self.blocks.append(f"<p>{escape(text)}</p>")

    def code(self, text: str, summary: str) -> None:
        """Long text that is shown when it is asked for."""
        self.blocks.append(
            f"<details><summary>{escape(summary)}</summary><pre>{escape(text)}</pre></details>"
        )

    def facts(self, facts: Iterable[tuple[str, str]]) -> None:
        """Numbers worth a tile each, as (number, what it is)."""
        tiles = "".join(
            f'<div class="fact"><b>{escape(value)}</b><span>{escape(name)}</span></div>'
            for value, name in facts
        )
        self.blocks.append(f'<div class="facts">{tiles}</div>')

    def add_charts(self, charts: Sequence[Chart], wide: bool = False) -> None:
        first = len(self.charts)
        self.charts += charts
        figures = "".join(
            f'<figure class="chart" data-chart="{first + index}"></figure>' for index in range(len(charts))
        )
        kind = "charts wide" if wide else "charts"
        self.blocks.append(f'<div class="{kind}">{figures}</div>')

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]], marked: Iterable[int] = ()) -> None:
        """Cells that read as numbers stand to the right; `marked` rows are set off."""
        numeric = [
            all(_is_number(row[column]) for row in rows) and bool(rows) for column in range(len(header))
        ]
        marked = set(marked)

        def cells(tag: str, row: Sequence[str]) -> str:
            kinds = (' class="number"' if number else "" for number in numeric)
            return "".join(
                f"<{tag}{kind}>{escape(cell)}</{tag}>" for kind, cell in zip(kinds, row, strict=True)
            )

        opening = ("<tr>", '<tr class="marked">')
        body = "".join(f"{opening[index in marked]}{cells('td', row)}</tr>" for index, row in enumerate(rows))
        self.blocks.append(
            f'<div class="table"><table><thead><tr>{cells("th", header)}</tr></thead>'
            f"<tbody>{body}</tbody></table></div>"
        )

    def shares(self, parts: Mapping[str, tuple[float, str]]) -> None:
        """What a whole is made of: (size, how it is said) by name, as a bar."""
        total = sum(size for size, _ in parts.values()) or 1.0
        bar = "".join(
            f'<span style="width:{100 * size / total:.2f}%;background:var(--c{index % 8})"></span>'
            for index, (size, _) in enumerate(parts.values())
        )
        legend = "".join(
            f'<span><i class="swatch" style="background:var(--c{index % 8})"></i>'
            f"{escape(name)} {100 * size / total:.0f} % ({escape(words)})</span>"
            for index, (name, (size, words)) in enumerate(parts.items())
        )
        self.blocks.append(f'<div class="bar">{bar}</div><div class="legend bars">{legend}</div>')

    def picture(self, title: str, kind: str, data: bytes, caption: str, wide: bool = False) -> None:
        """A picture, moving or not, that lies inside the page; `kind` is such as image/png or video/mp4."""
        source = f"data:{kind};base64,{base64.b64encode(data).decode()}"
        tag = (
            f'<video src="{source}" controls autoplay muted loop playsinline></video>'
            if kind.startswith("video/")
            else f'<img src="{source}" alt="{escape(title)}">'
        )
        self.blocks.append(
            f'<figure class="picture{" wide" if wide else ""}"><h3>{escape(title)}</h3>{tag}'
            f"<figcaption>{escape(caption)}</figcaption></figure>"
        )

    def html(self) -> str:
        # Inside a script only "<" could begin anything else, and JSON may write it as it likes.
        data = json.dumps(
            [_plain_chart(chart) for chart in self.charts], allow_nan=False, separators=(",", ":")
        )
        data = data.replace("<", "\\u003c")
        return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{escape(self.title)}</title>
<style>
{(HERE / "page.css").read_text("utf-8")}</style>
</head>
<body>
<h1>{escape(self.title)}</h1>
{chr(10).join(self.blocks)}
<noscript><p>The charts are drawn by a script inside this file; allow it to see them.</p></noscript>
<script type="application/json" id="data">{data}</script>
<script>
{(HERE / "page.js").read_text("utf-8")}</script>
</body>
</html>
"""


def write_page(page: Page, path: Path) -> None:
    """Put the page at `path` at one instant, in place of what was there."""
    try:
        files.replace_file(path, page.html().encode())
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}") from error


def thinned(series: Series, most: int = MOST_POINTS) -> Series:
    """A series of at most so many points, each the mean of as many neighbours; bands keep their outermost values."""
    count = len(series.x)
    if count <= most:
        return series
    edges = np.linspace(0, count, most + 1).astype(int)[:-1]
    sizes = np.diff(np.append(edges, count))

    def mean(values: np.ndarray) -> np.ndarray:
        return np.add.reduceat(values, edges) / sizes

    low = None if series.low is None else np.minimum.reduceat(series.low, edges)
    high = None if series.high is None else np.maximum.reduceat(series.high, edges)
    return Series(series.name, np.round(mean(series.x)), mean(series.y), low, high)


def _plain_chart(chart: Chart) -> dict[str, Any]:
    plain: dict[str, Any] = {"title": chart.title, "x": chart.x, "series": []}
    for series in map(thinned, chart.series):
        arrays = {"x": series.x, "y": series.y, "low": series.low, "high": series.high}
        numbers = {name: _rounded(values) for name, values in arrays.items() if values is not None}
        plain["series"].append({"name": series.name} | numbers)
    return plain | ({"note": chart.note} if chart.note else {})


def _rounded(values: np.ndarray) -> list[float | None]:
    """Six digits are more than a screen shows; whole numbers stay whole."""
    return [
        None
        if not math.isfinite(value)
        else int(value)
        if value == int(value) and abs(value) < 1e15
        else float(f"{value:.6g}")
        for value in values.tolist()
    ]


def _is_number(text: str) -> bool:
    try:
        float(text.replace(",", "").replace("−", "-"))
    except ValueError:
        return text in ("", "–")
    return True


def draw_png(charts: Sequence[Chart], title: str, path: Path) -> None:
    """The charts as one picture. Needs the extra `plot`."""
    try:
        figure_of(charts, title).savefig(path, format="png", dpi=110)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None


def figure_of(charts: Sequence[Chart], title: str) -> Any:
    """The charts two in a row, with one legend below them all."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError(f"--png needs matplotlib: {add_extra('plot')}") from None

    names = list(dict.fromkeys(series.name for chart in charts for series in chart.series))
    colors = {name: f"C{index}" for index, name in enumerate(names)}
    labels = {name: _wrapped(name) for name in names}
    lines = sum(label.count("\n") + 1 for label in labels.values())
    rows = -(-len(charts) // 2)
    figure = Figure(figsize=(11, 0.6 + 3.3 * rows + 0.2 * lines), layout="constrained")
    figure.suptitle(_wrapped(title))
    axes = figure.subplots(rows, 2, squeeze=False).ravel()
    for axis, chart in zip(axes, charts, strict=False):
        for series in chart.series:
            color = colors[series.name]
            axis.plot(series.x, series.y, color=color, linewidth=2, label=labels[series.name])
            if series.low is not None and series.high is not None:
                axis.fill_between(series.x, series.low, series.high, color=color, alpha=0.2, linewidth=0)
        axis.set_title(_wrapped(chart.title, PICTURE_CHARACTERS // 2), fontsize=9, loc="left")
        axis.set_xlabel(chart.x, fontsize=8)
        axis.tick_params(labelsize=8)
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
        if any(len(series.x) and series.x[-1] >= 10_000 for series in chart.series):
            axis.xaxis.set_major_formatter(lambda step, _: f"{step / 1000:,.0f}k")
    for axis in axes[len(charts) :]:
        axis.set_axis_off()
    drawn = {line.get_label(): line for axis in axes for line in axis.get_lines()}
    figure.legend(drawn.values(), drawn, loc="outside lower left", fontsize=8, frameon=False)
    return figure


def _wrapped(text: str, width: int = PICTURE_CHARACTERS) -> str:
    """Text in lines that fit a picture, in which a dollar is a dollar and begins no formula."""
    return textwrap.fill(text, width).replace("$", r"\$")
