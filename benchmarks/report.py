"""Reports: what a row measured, as Markdown, as JSON and as a picture, and the index of all of them."""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.runs import ROOT

RESULTS = ROOT / "benchmarks" / "results"
SCRATCH = ROOT / ".bench" / "results"  # of short runs, which say nothing about the speed


@dataclass(frozen=True)
class Verdict:
    """One thing that must hold; `passed` is None where it could not be measured."""

    text: str
    passed: bool | None

    def __str__(self) -> str:
        return f"{ {True: 'passed', False: 'FAILED', None: 'not measured'}[self.passed] }: {self.text}"


@dataclass(frozen=True)
class Report:
    """What a row measured: what it is about, tables, verdicts, all numbers, and how they are drawn."""

    name: str
    title: str
    tables: Sequence[str]
    verdicts: Sequence[Verdict]
    data: dict[str, Any]
    draw: Callable[[Any], None] | None = None  # draws on a matplotlib figure
    versions: dict[str, dict[str, str]] = field(default_factory=dict)  # of each side
    cores: str = "one core"  # that it ran on


class Spread:
    """A number measured several times: its median, and how far apart the lowest and the highest are."""

    def __init__(self, values: Sequence[float]) -> None:
        self.values = list(values)
        self.median = statistics.median(values)

    def __str__(self) -> str:
        return f"{digits(self.median)} ({digits(min(self.values))}–{digits(max(self.values))})"


def digits(value: float) -> str:
    """Three digits and more, without an exponent: 15,231; 377; 37.5; 3.51; 0.02."""
    size = abs(value)
    return f"{value:,.{0 if size >= 100 else 1 if size >= 10 else 2}f}"


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table: words to the left, numbers to the right, padded to be read as text too."""
    cells = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        padded = [
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        return f"| {' | '.join(padded)} |"

    rule = ["-" * width if not i else "-" * (width - 1) + ":" for i, width in enumerate(widths)]
    return "\n".join([line(cells[0]), line(rule), *map(line, cells[1:])])


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    system = (
        platform.freedesktop_os_release().get("PRETTY_NAME", "")
        if hasattr(platform, "freedesktop_os_release")
        else ""
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "memory_gb": round(memory, 1),
        "os": f"{system}, {platform.system()} {platform.release()}".strip(", "),
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 2),
        "date": datetime.date.today().isoformat(),
    }


def to_markdown(report: Report, machine: dict[str, Any], picture: bool) -> str:
    parts = [f"# {report.name}", report.title, *report.tables]
    if picture:
        parts.append(f"![{report.name}]({report.name}.png)")
    if report.verdicts:
        parts.append("\n".join(f"- {verdict}" for verdict in report.verdicts))
    where = (
        f"Measured on {machine['date']} on {report.cores} of {machine['cpu']} ({machine['cores']} cores, "
        f"{machine['memory_gb']} GB), {machine['os']}, Python {machine['python']}; "
        f"load average when it ended {machine['load']}."
    )
    made_with = [
        f"- {side}: " + ", ".join(f"{name} {version}" for name, version in versions.items())
        for side, versions in report.versions.items()
    ]
    return "\n\n".join([*parts, where, *(["\n".join(made_with)] if made_with else [])]) + "\n"


def write(report: Report, folder: Path = RESULTS) -> str:
    """Write a report's three files and the index; the report as text."""
    folder.mkdir(parents=True, exist_ok=True)
    here = machine()
    picture = report.draw is not None and _draw(report, folder / f"{report.name}.png")
    text = to_markdown(report, here, picture)
    (folder / f"{report.name}.md").write_text(text)
    document = {
        "name": report.name,
        "title": report.title,
        "verdicts": [{"text": verdict.text, "passed": verdict.passed} for verdict in report.verdicts],
        "machine": here,
        "versions": report.versions,
        "data": report.data,
    }
    (folder / f"{report.name}.json").write_text(json.dumps(document, indent=1) + "\n")
    (folder / "README.md").write_text(index(folder))
    return text


def index(folder: Path) -> str:
    """Every row that has been measured, with its verdicts."""
    lines = [
        "# Results",
        "",
        "Written by `python -m benchmarks`; what is measured and how is in "
        "[docs/benchmarks.md](../../docs/benchmarks.md).",
        "",
    ]
    for path in sorted(folder.glob("*.json")):
        row = json.loads(path.read_text())
        lines.append(f"- [{row['name']}]({row['name']}.md), {row['machine']['date']}: {row['title']}")
        lines += [f"  - {Verdict(**verdict)}" for verdict in row["verdicts"]]
    return "\n".join(lines) + "\n"


def _draw(report: Report, path: Path) -> bool:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no picture: matplotlib is not installed")
        return False
    figure = Figure(figsize=(9, 4), layout="constrained")
    assert report.draw is not None
    report.draw(figure)
    figure.savefig(path, dpi=110)
    return True
