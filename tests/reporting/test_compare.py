"""Comparing runs: what is taken together, what is said about it, and what is refused in one line."""

import json
import re
import shutil
from pathlib import Path

import pytest
from runs import KINDS
from test_cli import cli, refused

from rl_training.reporting.comparison import charts, compare, draw_text
from rl_training.reporting.page import figure_of
from rl_training.reporting.records import Log, find_runs, read_run


def write_run(path: Path, returns: list[float], **config) -> Path:
    """A run as its files show it, without training one: an evaluation for each return."""
    config = dict(algo="ppo", env_id="CartPole-v1", seed=1, total_timesteps=100 * len(returns)) | config
    path.mkdir(parents=True)
    (path / "config.yaml").write_text(
        "".join(f"{name}: {json.dumps(value)}\n" for name, value in config.items())
    )
    (path / "manifest.json").write_text(json.dumps({"format": 1, "config": config}))
    lines = []
    for index, value in enumerate(returns, start=1):
        lines.append({"step": 100 * index, "episode_return": value / 2, "policy_loss": 0.1})
        lines.append({"step": 100 * index, "eval/mean_return": value})
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """PPO with five seeds and two learning rates, and A2C with five, on a task; half of it on another."""
    monkeypatch.chdir(tmp_path)
    for seed in range(1, 6):
        write_run(Path(f"runs/a/s{seed}"), [1.0, 10.0 * seed], seed=seed, learning_rate=0.1)
        write_run(Path(f"runs/b/s{seed}"), [1.0, 10.0 * seed + 5], seed=seed, learning_rate=0.2)
        write_run(Path(f"runs/c/s{seed}"), [1.0, float(seed)], seed=seed, algo="a2c")
    return tmp_path


def test_runs_are_grouped_by_config_and_called_by_what_differs(folder):
    compared = compare(find_runs([Path("runs")], warn=pytest.fail))
    assert list(compared.tasks) == ["CartPole-v1"]
    groups = {group.method: group for group in compared.tasks["CartPole-v1"]}
    assert set(groups) == {"ppo learning_rate=0.1", "ppo learning_rate=0.2", "a2c"}
    assert groups["ppo learning_rate=0.1"].scores.tolist() == [10, 20, 30, 40, 50]
    assert float(groups["ppo learning_rate=0.1"].iqm.value) == 30  # of 20, 30, 40
    best, *_ = compared.improvements()
    assert (best.method, best.other) == ("ppo learning_rate=0.2", "ppo learning_rate=0.1")
    assert float(best.probability.value) == 15 / 25  # pairs 10i + 5 > 10j: i >= j


def test_the_table_says_it_best_first(folder):
    lines = cli("compare", "runs").stdout.splitlines()
    assert lines[0] == "CartPole-v1: eval/mean_return"
    words = [re.split(r"  +", line.strip()) for line in lines[2:5]]
    assert [row[:3] for row in words] == [
        ["ppo learning_rate=0.2", "5", "35"],
        ["ppo learning_rate=0.1", "5", "30"],
        ["a2c", "5", "3"],
    ]
    assert re.fullmatch(r"\d+(\.\d+)? to \d+(\.\d+)?", words[0][3])
    assert "1.00  (1.00 to 1.00)  ppo learning_rate=0.2 over a2c" in "\n".join(lines)


def test_several_tasks_are_also_taken_together_on_one_scale(folder):
    for seed in range(1, 4):
        write_run(Path(f"other/p{seed}"), [-500.0, -100.0], seed=seed, env_id="Acrobot-v1")
        write_run(Path(f"other/a{seed}"), [-500.0, -300.0], seed=seed, env_id="Acrobot-v1", algo="a2c")
    compared = compare(find_runs([Path("runs/b"), Path("runs/c"), Path("other")], warn=pytest.fail))
    across = compared.across()
    assert set(across) == {"ppo", "a2c"}
    assert across["ppo"][1].tolist() == [1, 1, 1] and across["a2c"][1].tolist() == [0, 0, 0]
    assert across["ppo"][0].max() == 1 and across["a2c"][0].min() == 0
    assert "all tasks" in draw_text(compared)
    assert [float(each.probability.value) for each in compared.improvements()] == [1, 1, 1]


def test_a_step_to_compare_at_and_another_metric(folder):
    at = json.loads(cli("compare", "runs/a", "runs/b", "--at", 150, "--json").stdout)
    assert {group["iqm"] for group in at["tasks"]["CartPole-v1"]} == {1.0}
    train = json.loads(cli("compare", "runs/a", "--metric", "episode_return", "--json").stdout)
    assert train["tasks"]["CartPole-v1"][0]["iqm"] == 15
    assert [run["seed"] for run in train["tasks"]["CartPole-v1"][0]["runs"]] == [1, 2, 3, 4, 5]


def test_a_seed_counts_once_and_unfinished_or_unreadable_runs_are_said(folder):
    shutil.copytree("runs/a/s1", "runs/a/again")
    write_run(Path("runs/a/s6"), [9.0], seed=6, learning_rate=0.1, total_timesteps=200)
    write_run(Path("runs/a/s7"), [9.0, 9.0], seed=7, learning_rate=0.1)
    Path("runs/a/s7/metrics.jsonl").write_text("")
    done = cli("compare", "runs/a")
    assert done.exit_code == 0
    warnings = done.stderr.splitlines()
    assert len(warnings) == 3 and all(line.startswith("warning: ") for line in warnings)
    assert any("same config and seed as" in line for line in warnings)
    assert any("s6: not finished (100 of 200 steps)" in line for line in warnings)
    assert any("s7: has no metrics yet" in line and "left out" in line for line in warnings)
    assert re.search(r"ppo +6 ", done.stdout)


def test_a_picture_and_a_page_are_written(folder):
    done = cli("compare", "runs", "--html", "c.html", "--png", "c.png")
    assert done.exit_code == 0 and "written: c.html" in done.stdout
    assert Path("c.png").read_bytes().startswith(b"\x89PNG")
    page = Path("c.html").read_text("utf-8")
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.S)[1])
    assert [chart["title"].partition(": ")[2] for chart in data] == [
        "eval/mean_return",
        "episode_return",
        "share of runs above a score",
    ]
    assert all(len(chart["series"]) == 3 for chart in data)
    curve = data[0]["series"][0]
    assert (
        curve["x"] == [100, 200]
        and curve["y"][0] == 1
        and curve["low"][1] <= curve["y"][1] <= curve["high"][1]
    )


LONG = dict(type="piecewise", points=[[1000 * index, 0.1 + 0.01 * index] for index in range(30)])


def test_charts_stay_wide_and_the_legend_is_below_however_long_the_names_are(folder):
    for seed in (1, 2):
        for index in range(4):
            changes = {
                "ent_coef_schedule": LONG | {"delay": index},
                "hidden_sizes": [64] * 40,
                "gamma": index / 10,
            }
            write_run(Path(f"long/{index}/s{seed}"), [1.0, 5.0 + index], seed=seed, **changes)
    compared = compare(find_runs([Path("long"), Path("runs")], warn=pytest.fail))
    figure = figure_of(charts(compared), "$ a title $")
    figure.draw_without_rendering()
    boxes = [axis.get_window_extent() for axis in figure.axes]
    assert min(box.width for box in boxes) > 0.35 * figure.bbox.width
    assert min(box.height for box in boxes) > 150
    (legend,) = figure.legends
    below = legend.get_window_extent()
    assert below.y1 <= min(axis.get_tightbbox().y0 for axis in figure.axes if axis.lines)
    assert below.x0 >= 0 and below.x1 <= figure.bbox.width
    assert len(legend.get_texts()) == len(compared.tasks["CartPole-v1"]) == 7


def test_a_method_has_one_colour_in_every_chart(folder):
    for path in Path("runs/a").glob("s*/metrics.jsonl"):  # one chart has no line of this method
        path.write_text("".join(line for line in path.open() if "episode_return" not in line))
    figure = figure_of(charts(compare(find_runs([Path("runs")], warn=pytest.fail))), "")
    colours = {(line.get_label(), line.get_color()) for axis in figure.axes for line in axis.lines}
    assert len(colours) == 3
    assert {len(axis.lines) for axis in figure.axes if axis.lines} == {2, 3}


def test_names_hold_what_differs_and_no_more(folder):
    cosine = {"type": "cosine", "start": 0.02, "end": 0.0}
    for seed in (1, 2):
        write_run(Path(f"x/a/s{seed}"), [1.0], seed=seed, ent_coef_schedule=None)
        write_run(Path(f"x/b/s{seed}"), [2.0], seed=seed, ent_coef_schedule=cosine)
        linear = {"type": "linear", "start": 0.3}
        write_run(Path(f"y/a/s{seed}"), [1.0], seed=seed, clip_coef_schedule=linear | {"end": 0.1})
        write_run(Path(f"y/b/s{seed}"), [2.0], seed=seed, clip_coef_schedule=linear | {"end": 0.2})
        write_run(Path(f"z/a/s{seed}"), [1.0], seed=seed, note="x" * 50 + "1")
        write_run(Path(f"z/b/s{seed}"), [2.0], seed=seed, note="x" * 50 + "2")
    assert names("x") == ["ppo", "ppo ent_coef_schedule=cosine 0.02→0"]
    assert names("y") == ["ppo clip_coef_schedule.end=0.1", "ppo clip_coef_schedule.end=0.2"]
    # Cut short both would be called the same.
    assert names("z") == ["ppo note=" + "x" * 50 + "1", "ppo note=" + "x" * 50 + "2"]


def names(folder: str) -> list[str]:
    compared = compare(find_runs([Path(folder)], warn=pytest.fail))
    return [group.method for group in compared.tasks["CartPole-v1"]]


def test_labels_name_the_runs_of_each_argument(folder):
    done = cli("compare", "runs/a", "runs/b", "--label", "baseline", "--label", "mine", "--png", "c.png")
    assert done.exit_code == 0, done.output
    rows = [re.split(r"  +", line.strip())[0] for line in done.stdout.splitlines()[2:4]]
    assert rows == ["mine", "baseline"]
    # What differs inside of a label is still told apart, and the same config under two labels is two methods.
    done = cli("compare", "runs", "runs/c", "--label", "both", "--label", "a2c alone", "--json")
    methods = {group["method"] for group in json.loads(done.stdout)["tasks"]["CartPole-v1"]}
    assert methods == {"both learning_rate=0.1", "both learning_rate=0.2", "a2c alone"}
    done = cli("compare", "runs/a", "runs/c", "runs/b", *("--label", "same") * 3, "--json")
    methods = {group["method"] for group in json.loads(done.stdout)["tasks"]["CartPole-v1"]}
    assert methods == {
        "same algo=ppo learning_rate=0.1",
        "same algo=ppo learning_rate=0.2",
        "same algo=a2c",
    }
    done = cli("compare", "runs/a", "runs/b", "--label", "one")
    assert done.exit_code == 2
    assert done.stderr == "error: 1 --label for 2 RUN_DIR; give one for each\n"


def bad_runs() -> dict[str, tuple[list, str]]:
    """What is wrong -> (arguments, what the line must say); paths are made by the test."""
    return {
        "missing": (["absent"], "absent: no run directory here"),
        "no runs inside": (["empty"], "empty: no run directory, and none inside it"),
        "half written": (["half"], "half: has no metrics yet"),
        "newer": (["newer"], "written by a newer version"),
        "no manifest": (["bare"], "manifest.json"),
        "broken config": (["broken"], "config.yaml:1: broken YAML"),
        "no config of a run": (["odd"], "not the config of a run"),
        "no such metric": (["good", "--metric", "eval/mean_retrun"], "did you mean eval/mean_return"),
        "no such step": (["good", "--at", "50"], "has no eval/mean_return at step 50"),
        "no such folder": (["good", "--html", "no/such/c.html"], "no/such/c.html"),
        "no such folder for a picture": (["good", "--png", "no/such/c.png"], "no/such/c.png"),
    }


def make_bad_runs() -> None:
    Path("empty").mkdir()
    for name in ("half", "newer", "bare", "broken", "odd", "good"):
        write_run(Path(name), [1.0, 2.0])
    Path("half/metrics.jsonl").unlink()
    Path("newer/manifest.json").write_text('{"format": 99}')
    Path("bare/manifest.json").unlink()
    Path("broken/config.yaml").write_text("algo: [")
    Path("odd/config.yaml").write_text("algo: ppo\n")


@pytest.mark.parametrize("what", bad_runs())
def test_bad_input_is_one_line(what, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_bad_runs()
    arguments, expected = bad_runs()[what]
    refused(cli("compare", *arguments), expected)


@pytest.mark.parametrize(
    "line",
    ['{"step": NaN}', '{"step": 1, "x": [2]}', "[1]", "{}", '{"step": 1, "x": true}', "[" * 100_000],
)
def test_a_line_that_is_no_line_of_metrics_is_left_out_with_its_place(line, tmp_path):
    write_run(tmp_path / "run", [1.0])
    path = tmp_path / "run/metrics.jsonl"
    path.write_text(
        f"{path.read_text()}{line}\n" + '{"step": 101, "eval/mean_return": 7.0, "mark": "text"}\n'
    )
    told: list[str] = []
    record = read_run(tmp_path / "run", warn=told.append)
    assert record.steps == 101 and record.curve("eval/mean_return").values.tolist() == [1.0, 7.0]
    assert "mark" not in record.metrics.names
    (warning,) = told
    assert "metrics.jsonl: line 3 is damaged" in warning and "1 that cannot be read left out" in warning


def test_report_and_compare_say_which_line_is_damaged_and_work(trained_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained_run("ppo-cartpole"), "run")
    log = Path("run/metrics.jsonl")
    lines = log.read_bytes().splitlines(keepends=True)
    changed = lines[3].replace(b"1", b"2", 1)
    for damage, text in {
        "line 4 is damaged (its hash does not match)": b"".join([*lines[:3], changed, *lines[4:]]),
        "line 4 is damaged (its hash": b"".join([*lines[:3], *lines[4:]]),
        f"line {len(lines)} is damaged (the log has been cut": b"".join(lines[:-1]),
        "line 1 is damaged (it carries no hash": b"".join(
            line.partition(b', "chain"')[0] + b"}\n" for line in lines
        ),
    }.items():
        log.write_bytes(text)
        for command in (("compare", "run"), ("report", "run", "--no-video")):
            done = cli(*command)
            assert done.exit_code == 0, done.output
            (line,) = done.stderr.splitlines()
            assert line.startswith("warning: run/metrics.jsonl: ") and damage in line
        assert "Damaged: run/metrics.jsonl: line" in Path("run/report.html").read_text("utf-8")
    log.write_bytes(b"".join(lines))
    assert cli("compare", "run").stderr == cli("report", "run", "--no-video").stderr == ""


def test_runs_with_accepted_damage_are_said(folder):
    path = Path("runs/a/s1/manifest.json")
    damage = {"step": 100, "line": 5, "what": "its hash does not match"}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"accepted_damage": [damage]}))
    done = cli("compare", "runs/a")
    assert done.exit_code == 0
    assert done.stderr == (
        "warning: runs/a/s1: resumed at step 100 although line 5 of metrics.jsonl was damaged "
        "(its hash does not match)\n"
    )


def test_a_last_line_that_a_kill_cut_off_is_left_out(tmp_path):
    write_run(tmp_path / "run", [1.0, 2.0])
    path = tmp_path / "run/metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-5])
    assert len(list(Log(path))) == 3 and read_run(tmp_path / "run", warn=pytest.fail).steps == 200


def test_runs_of_every_kind_of_algorithm_compare(trained_run, tmp_path):
    runs = [trained_run(name) for name in KINDS]
    compared = compare(find_runs(runs, warn=pytest.fail))
    assert {group.method for groups in compared.tasks.values() for group in groups} == {
        read_run(run).config["algo"] for run in runs
    }
    done = cli("compare", *runs, "--html", tmp_path / "c.html", "--png", tmp_path / "c.png")
    assert done.exit_code == 0, done.output


def test_what_stands_around_an_environment_makes_another_task(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_run(Path("runs/plain"), [10.0])  # of before there were layers
    write_run(Path("runs/same"), [10.0], seed=2, frame_stack=1, wrappers=[], action_repeat=1, time_limit=None)
    write_run(Path("runs/stacked"), [10.0], frame_stack=4)
    compared = compare(find_runs([Path("runs")], warn=pytest.fail))
    assert sorted(sum(len(group.runs) for group in groups) for groups in compared.tasks.values()) == [1, 2]
    assert any("frame_stack" in task for task in compared.tasks)
