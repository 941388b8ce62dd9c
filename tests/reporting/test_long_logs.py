"""Logs of any length: report and compare read them line by line, and thin what a chart cannot show."""

import json
import math
import resource
from pathlib import Path

import numpy as np
import pytest
from runs import in_child
from test_compare import write_run

from rl_training.reporting import columns, comparison, report
from rl_training.reporting.columns import Column
from rl_training.reporting.records import find_runs, read_run
from rl_training.settings.yaml import parse_yaml
from rl_training.state import chain
from rl_training.state.run_directory import RunDirectory

METRICS = [f"metric_{number}" for number in range(24)]


def write_long_run(path: Path, size: int) -> int:
    """A run with a log of so many bytes, all its lines in their chain; how many lines of training it has."""
    write_run(path, [1.0], total_timesteps=10**12)
    written = parse_yaml((path / "config.yaml").read_text(), "config.yaml").data
    RunDirectory(path).write_manifest(written, threads=1)
    written, value, lines = 0, chain.START, 0
    timing = {"wall_seconds": 1.5, "steps_per_second": 5012.5, "collect_seconds": 1.25, "learn_seconds": 0.1}
    with (path / "metrics.jsonl").open("wb") as log, (path / "timing.jsonl").open("w") as clock:
        while written < size:
            lines += 1
            wave = math.sin(lines / 1000)
            values = {name: wave + number for number, name in enumerate(METRICS)}
            said = {"step": 8 * lines, "episode_return": wave * 100, "episode_return_std": 1.0, **values}
            line, value = chain.linked(value, said)
            if lines % 100 == 0:
                evaluated, value = chain.linked(
                    value, {"step": 8 * lines, "eval/mean_return": wave, "eval/std_return": 0.5}
                )
                line += evaluated
            written += log.write(line)
            clock.write(json.dumps({"step": 8 * lines, **timing, "wall_seconds": lines / 100}) + "\n")
    return lines


def peak_growth(function) -> int:
    """Bytes by which the most memory of this process grows while `function` runs."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    function()
    return 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)


def look(path: Path, size: int) -> None:
    def fail(text: str) -> None:
        raise AssertionError(text)

    def compare() -> None:
        records = find_runs([path], fail, only=comparison.compared_metrics("eval/mean_return"))
        assert "eval/mean_return" in comparison.draw_text(comparison.compare(records))

    grown = {"compare": peak_growth(compare)}
    grown["report"] = peak_growth(lambda: report.write_report(path, video=False, warn=fail))
    (path / "grown.json").write_text(json.dumps(grown))


def test_report_and_compare_need_less_memory_than_the_log_has_bytes(tmp_path):
    """Every line read into a dict took eleven times its size."""
    size = 30_000_000
    lines = write_long_run(tmp_path / "run", size)
    assert in_child(look, tmp_path / "run", size) == 0
    grown = json.loads((tmp_path / "run" / "grown.json").read_text())
    assert grown["compare"] < size / 2 and grown["report"] < size, grown
    page = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert f"{8 * lines:,}" in page and len(page) < 2_000_000


def test_a_short_column_is_kept_as_it_is():
    column = Column()
    for step in range(1000):
        column.add(step, step % 7)
    curve = column.curve()
    assert curve.low is None and curve.steps.tolist() == list(range(1000))
    assert curve.values.tolist() == [step % 7 for step in range(1000)]


@pytest.mark.parametrize("count", [999, 12_345, 40_000])
def test_a_long_column_keeps_its_means_its_extremes_and_its_last_value(count, monkeypatch):
    monkeypatch.setattr(columns, "MOST_POINTS", 256)
    monkeypatch.setattr(columns, "MOST_STRETCHES", 64)
    values = np.random.default_rng(1).normal(size=count)
    column = Column()
    for step, value in enumerate(values):
        column.add(step, value)
    steps, means, low, high = column.curve()
    assert len(steps) <= 64 + 256 and (np.diff(steps) > 0).all()
    assert low.min() == values.min() and high.max() == values.max()
    assert (steps[-1], means[-1]) == (count - 1, values[-1])
    assert (low <= means).all() and (means <= high).all()
    weights = np.concatenate([column.stretches[:, 1], np.ones(len(column.values))])
    assert weights.sum() == count and (means * weights).sum() == pytest.approx(values.sum())


def test_gaps_of_a_long_column_stay_gaps(monkeypatch):
    monkeypatch.setattr(columns, "MOST_POINTS", 64)
    monkeypatch.setattr(columns, "MOST_STRETCHES", 16)
    column = Column()
    for step in range(1000):
        column.add(step, math.nan if 300 <= step < 700 else 1.0)
    curve = column.curve()
    off = np.isnan(curve.values)
    assert off.any() and ((curve.steps[off] >= 300) & (curve.steps[off] < 700)).all()
    assert set(curve.values[~off]) == {1.0}


def test_a_comparison_keeps_every_point_of_what_it_compares(tmp_path, monkeypatch):
    monkeypatch.setattr(columns, "MOST_POINTS", 64)
    write_run(tmp_path / "run", [float(value) for value in range(500)])
    record = read_run(tmp_path / "run", only=("eval/mean_return",))
    assert record.curve("eval/mean_return").values.tolist() == list(range(500))
    assert not len(record.curve("policy_loss").values) and "policy_loss" in record.metrics.names
