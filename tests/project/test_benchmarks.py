"""The benchmark's arithmetic, on made-up runs: no peer is installed and nothing is trained for long."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from runs import in_child

from benchmarks import (
    actors,
    checkpoints,
    compiling,
    digests,
    environments,
    peers,
    search,
    sections,
    seeds,
    siblings,
    threads,
)
from benchmarks.__main__ import main
from benchmarks.comparison import Comparison, Options, Peer, compare, no_worse, standard_error
from benchmarks.peers import PeerMissing
from benchmarks.report import Report, Spread, Verdict, digits, table, write
from benchmarks.rows import ROWS
from benchmarks.runs import RunFailed, run
from benchmarks.scaling import PATHS, Scaling, steps_for, summarize
from rl_training import load_config

ROW = Comparison("row", "What it is.", {"algo": "ppo"}, Peer("peer", {}), steps=1000, required=2.7)
SECTIONS = {"env": {"cpu_seconds": 1.0, "wall_seconds": 2.0, "calls": 4}}
SECTIONS["checkpoint"] = {"cpu_seconds": 3.0, "wall_seconds": 1.0, "calls": 2}
PROFILE = {"sections": SECTIONS}


def made_up(cpu_seconds: float, score: float | None = 100.0, peak_mb: float = 300.0) -> dict[str, Any]:
    versions = {"python": "3", "peer": "1.2"}
    cost = dict(start_cpu_seconds=1.0, cpu_seconds=cpu_seconds, wall_seconds=2 * cpu_seconds, peak_mb=peak_mb)
    return {"steps": 1000, **cost, "versions": versions, "score": score}


def test_ratios_are_taken_within_rounds_and_the_median_counts() -> None:
    ours = [made_up(1.0), made_up(2.0), made_up(1.0)]
    theirs = [made_up(3.0), made_up(8.0), made_up(2.0)]  # 3, 4 and 2 times as slow
    report = compare(ROW, {"ours": ours}, theirs, PROFILE)
    assert report.data["ratio_per_cpu_second"] == [3.0, 4.0, 2.0]
    assert report.verdicts[0].passed
    assert report.verdicts[0].text.endswith("of peer: 3.00")
    first = report.tables[0].splitlines()[2]
    assert "env steps per CPU-second" in first
    assert "1,000 (500–1,000)" in first
    assert "333 (125–500)" in first
    assert "3.00 (2.00–4.00)" in first


def test_a_required_ratio_that_is_not_reached_fails() -> None:
    report = compare(ROW, {"ours": [made_up(1.0)]}, [made_up(2.69)], PROFILE)
    assert report.verdicts[0].passed is False
    report = compare(ROW, {"ours": [made_up(1.0)]}, [made_up(2.7)], PROFILE)
    assert report.verdicts[0].passed is True


def test_memory_is_ours_to_theirs_and_variants_stand_beside() -> None:
    ours = {"ours": [made_up(1.0, peak_mb=100)], "bf16": [made_up(0.5, peak_mb=50)]}
    report = compare(ROW, ours, [made_up(1.0, peak_mb=200)], PROFILE)
    lines = report.tables[0].splitlines()
    assert "0.50 (0.50–0.50)" in next(line for line in lines if line.startswith("| peak memory"))
    assert "2.00 (2.00–2.00)" in next(line for line in lines if line.startswith("| bf16: env steps per CPU"))


def test_a_missing_peer_is_named_and_never_guessed() -> None:
    missing = PeerMissing("peer could not be installed: no such version")
    report = compare(ROW, {"ours": [made_up(1.0)]}, missing, PROFILE)
    assert [verdict.passed for verdict in report.verdicts] == [None]
    assert "no such version" in str(report.verdicts[0])
    assert report.data["ratio_per_cpu_second"] is None
    for line in report.tables[0].splitlines()[2:]:
        assert line.split("|")[3].strip() == "missing"
        assert "–" in line.split("|")[4]
    assert "Missing: peer could not be installed" in report.tables[1]


def test_scores_are_compared_over_seeds() -> None:
    assert no_worse([500, 500, 500], [500, 500, 500])
    assert no_worse([480, 500, 490], [500, 480, 500])  # 490 against 493.3, standard error 8.8
    assert standard_error([480, 500, 490], [500, 480, 500]) == pytest.approx(8.82, abs=0.01)
    assert not no_worse([400, 410, 405], [500, 480, 500])
    assert not no_worse([499], [500])
    report = compare(ROW, {"ours": [made_up(1.0, score=90.0)]}, [made_up(3.0, score=100.0)], PROFILE)
    assert report.verdicts[1].passed is False
    assert "90.0 against 100" in report.verdicts[1].text


def test_where_time_goes_adds_up_to_a_hundred_percent() -> None:
    report = compare(ROW, {"ours": [made_up(1.0)]}, [made_up(3.0)], PROFILE)
    assert "25.0 %" in report.tables[-1]
    assert "75.0 %" in report.tables[-1]


def test_environments_are_judged_case_by_case() -> None:
    cases = [environments.Case("A", 4, 1000), environments.Case("B", 8, 1000, required=1.5)]
    row = environments.Throughput("environments", "Steps.", cases)
    mine = {case.name: [made_up(1.0)] for case in cases}
    yours = {case.name: [made_up(1.2)] for case in cases}
    assert [v.passed for v in environments.judge(row, mine, yours, None).verdicts] == [True, False]
    assert [v.passed for v in environments.judge(row, mine, yours, "not there").verdicts] == [None, None]


def test_searches_are_judged_for_each_batch_and_a_missing_peer_is_named() -> None:
    cases = [
        search.Case("a", "muzero", "plain", {1: 2.0, 8: 3.0}),
        search.Case("b", "gumbel", "plain", {8: 1.0}),
    ]
    row = search.SearchSpeed("search", "Trees.", cases)
    mine = {
        case.name: [{"batches": {"1": made_up(1.0), "8": made_up(1.0)}, "versions": {}}] for case in cases
    }
    yours = {"muzero against a": [{"batches": {"1": made_up(2.0), "8": made_up(2.0)}, "versions": {}}]}
    report = search.judge(row, mine, yours | {"gumbel against b": PeerMissing("b could not be installed")})
    assert [verdict.passed for verdict in report.verdicts] == [True, False, None]
    assert "b could not be installed" in str(report.verdicts[2])
    assert "2.00 (2.00–2.00)" in report.tables[0]
    assert "missing" in report.tables[1]


def test_checkpoints_are_judged_by_their_share_of_the_seconds() -> None:
    row = checkpoints.Checkpoints("checkpoints", "Saves.", ["ppo/cartpole"])
    slow = made_up(10.0) | {"sections": SECTIONS}
    assert checkpoints.share(slow, "wall_seconds") == pytest.approx(100 / 3)  # 1 of 3 seconds
    assert checkpoints.share(slow, "cpu_seconds") == 75.0  # 3 of 4
    assert [v.passed for v in checkpoints.judge(row, {"ppo/cartpole": [slow]}).verdicts] == [False]
    long = {"cpu_seconds": 1000.0, "wall_seconds": 1000.0, "calls": 1}
    fast = made_up(1000.0) | {"sections": SECTIONS | {"env": long}}
    assert [v.passed for v in checkpoints.judge(row, {"ppo/cartpole": [fast]}).verdicts] == [True]


def test_digests_are_judged_by_the_median_share_of_the_cpu_seconds() -> None:
    row = digests.Digests("digests", "Lines.", ["ppo/cartpole"])
    runs = [made_up(2.0) | {"digests": {"lines": 200, "cpu_seconds": cost}} for cost in (0.004, 0.008, 0.5)]
    report = digests.judge(row, {"ppo/cartpole": runs})
    assert [verdict.passed for verdict in report.verdicts] == [True]
    assert "0.40 (0.20–25.0)" in report.tables[0] and "40.0 (20.0–2,500)" in report.tables[0]
    assert [v.passed for v in digests.judge(row, {"ppo/cartpole": runs[1:]}).verdicts] == [False]


def test_an_algorithm_is_judged_by_the_speed_it_keeps_of_its_sibling() -> None:
    row = siblings.Siblings("gail", "Both.", {"algo": "ppo"}, {"algo": "gail"}, steps=1000, at_least=0.75)
    plain = [made_up(3.0), made_up(3.0), made_up(3.0)]
    for seconds, passed in ((4.0, True), (4.1, False)):
        more = [made_up(seconds), made_up(9.0), made_up(3.0)]  # the median of the rounds counts
        report = siblings.judge(row, {"ppo": plain, "gail": more}, PROFILE)
        assert [verdict.passed for verdict in report.verdicts] == [passed]
    assert "gail / ppo" in report.tables[0] and "25.0 %" in report.tables[1]


def test_siblings_with_scores_are_judged_by_them_too() -> None:
    row = siblings.Siblings("games", "Both.", {}, {}, 1000, 1.0, episodes=50, labels=("package", "compiled"))
    theirs = [made_up(3.0) | {"score": score} for score in (2.0, 3.0, 4.0)]
    for scores, passed in (((2.5, 2.5, 2.5), True), ((2.0, 2.0, 2.0), False)):
        ours = [made_up(2.0) | {"score": score} for score in scores]
        report = siblings.judge(row, {"package": theirs, "compiled": ours}, PROFILE)
        assert [verdict.passed for verdict in report.verdicts] == [True, passed]
        assert "mean return of 50 greedy episodes" in report.tables[1]


def test_actors_are_judged_against_the_peer_and_against_fewer_of_them() -> None:
    case = {"algo": "impala", "env_id": "A-v1"}
    cases = [
        actors.Case(case, 1, 1000, {}, 1000),
        *(actors.Case(case | {"env_id": "B"}, n, 1000) for n in (1, 2)),
    ]
    row = actors.Actors("actors", "Both.", cases, required=3.0, speed_up=1.5)
    slow, quick = "impala on B, 1 actors", "impala on B, 2 actors"
    mine = {cases[0].name: [made_up(1.0)], slow: [made_up(3.0)], quick: [made_up(2.0)]}
    for seconds, passed in ((3.0, True), (2.9, False)):
        report = actors.judge(row, mine, {cases[0].name: [made_up(seconds)]}, None)
        assert [verdict.passed for verdict in report.verdicts] == [passed, True]
    assert report.cores == "all cores" and "2.90 (2.90–2.90)" in report.tables[0]
    report = actors.judge(row, mine | {quick: [made_up(2.1)]}, {}, "rllib could not be installed")
    assert [verdict.passed for verdict in report.verdicts] == [None, False]
    assert "missing" in report.tables[0] and "could not be installed" in report.tables[1]


def test_actors_of_both_sides_have_the_same_settings() -> None:
    same = {"lr": "learning_rate", "gamma": "gamma", "entropy_coeff": "ent_coef", "vf_loss_coeff": "vf_coef"}
    same |= {"grad_clip": "max_grad_norm", "clip_param": "clip_coef"}
    same |= {"circular_buffer_iterations_per_batch": "update_epochs"}
    compared = [case for case in ROWS["actors"].cases if case.theirs is not None]
    assert [case.num_actors for case in compared] == [1, 2, 1, 2]
    for case in compared:
        config, settings = load_config(dict(case.config)), case.theirs
        assert settings["algorithm"].lower() == config.algo and settings["env_id"] == config.env_id
        assert (settings["num_envs"], settings["num_steps"]) == (config.num_envs, config.num_steps)
        assert settings["model"]["fcnet_hiddens"] == list(config.hidden_sizes)
        assert settings["model"]["vf_share_layers"] == config.shared_trunk
        assert config.steps_per_iteration == config.num_envs * config.num_steps  # a fragment is a batch
        for theirs, ours in same.items():
            if theirs in settings["arguments"]:
                assert settings["arguments"][theirs] == getattr(config, ours), theirs


def test_scaling_goes_along_two_lines_on_both_paths_and_shortens_large_runs() -> None:
    config = {"update_epochs": 4}
    row = Scaling("scaling", "Sizes.", config, (1, 4), (64, 1024), 4, 64, inputs_and_outputs=11)
    assert row.sizes() == [(1, 64), (4, 64), (4, 1024)]
    assert steps_for(64, 512, quick=False) == 40_000
    assert steps_for(1024, 512, quick=False) < 10_000
    assert steps_for(1024, 128 * 256, quick=True) == 2 * 128 * 256
    assert row.operations(10) == 2 * (200 + 110) * 13  # one pass to act, and 4 × 3 to learn
    runs = {
        path: {size: [made_up(seconds)] for size in row.sizes()}
        for path, seconds in zip(PATHS, (1, 3), strict=True)
    }
    report = summarize(row, runs, peak=1e9)
    for text in report.tables[:2]:
        assert text.count("1,000 (1,000–1,000)") == 2 and text.count("3,000 (3,000–3,000)") == 2
    assert f" {row.operations(1024) / 1e3:,.0f} " in report.tables[1], "microseconds at 1 GFLOP/s"


def test_seeds_at_once_are_judged_by_their_share_of_the_cpu_seconds() -> None:
    row = seeds.Seeds("seeds", "Both.", ["ppo/cartpole"], count=16, steps=1000, share=0.5)
    for seconds, passed in ((5.0, True), (5.1, False)):
        runs = {seeds.TOGETHER: [made_up(seconds)], seeds.APART: [made_up(10.0)]}
        assert [verdict.passed for verdict in seeds.judge(row, runs).verdicts] == [passed]


COLD: dict[str, Any] = dict(most=10, command=("train", "ppo/cartpole"), steps=256, most_warm=4.5)


def test_cold_starts_are_judged_by_the_dearest_compilation() -> None:
    row = compiling.ColdStarts("cold", "Both.", ["dear", "free"], **COLD)
    made = [["rl_training.one", "int64", 2.0], ["rl_training.other", "int64", 3.0]]
    for seconds, passed in ((12.0, True), (12.1, False)):
        runs = {
            "dear": [(made_up(seconds) | {"compiled": made}, made_up(2.0) | {"compiled": []})],
            "free": [(made_up(2.0) | {"compiled": []},) * 2],
        }
        report = compiling.judge(row, runs, [made_up(4.0)])
        assert [verdict.passed for verdict in report.verdicts] == [passed, True]
        dear, free = (
            [cell.strip() for cell in line.split("|")] for line in report.tables[0].splitlines()[-2:]
        )
        assert dear[-3:-1] == ["2", "other"] and free[-3:-1] == ["0", ""]


def test_whole_commands_with_everything_cached_have_a_limit_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of two starts with one cache, the second one counts."""
    asked: list[tuple[str, Any, str]] = []

    def run(module: str, settings: Any) -> Any:
        asked.append((module, settings, os.environ["NUMBA_CACHE_DIR"]))
        first = len({cache for _, _, cache in asked}) * 2 > len(asked)
        whole = 12.0 if first else seconds
        return made_up(whole if "commands" in settings else 2.0) | {"compiled": []}

    monkeypatch.setattr(compiling, "run", run)
    row = compiling.ColdStarts("cold", "Both.", ["free"], **COLD)
    for seconds, passed in ((4.5, True), (4.6, False)):
        asked.clear()
        report = row.run(Options())
        assert [verdict.passed for verdict in report.verdicts] == [True, passed]
        assert "train ppo/cartpole, 256 steps" in report.tables[1] and f"{seconds:.2f}" in report.tables[1]
        assert [module for module, _, _ in asked] == ["benchmarks.our_compiling"] * 2 + [
            "benchmarks.our_commands"
        ] * 2
        assert asked[-1][1]["commands"] == [["train", "ppo/cartpole", "total_timesteps=256"]]
        assert asked[2][2] == asked[3][2] != asked[0][2]


def test_threads_are_judged_by_the_seconds_of_the_clock() -> None:
    row = threads.Threads("threads", "Both.", speed_up=1.7)
    for two, passed in ((1.0, True), (1.01, False)):
        runs = [made_up(1.0) | {"best": {"1": 1.7, "2": two}}]
        assert [verdict.passed for verdict in threads.judge(row, runs).verdicts] == [passed]


def test_a_row_that_cannot_run_here_is_said_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Broken:
        def run(self, options: Any) -> Report:
            raise RunFailed("benchmarks.ours failed: pip install mujoco")

    class Fine:
        def run(self, options: Any) -> Report:
            assert str(peers.ENVIRONMENTS) == f"{tmp_path}/peers"
            return Report("fine", "Fine.", [], [Verdict("it is", True)], {})

    monkeypatch.setattr("benchmarks.__main__.ROWS", {"broken": Broken(), "fine": Fine()})
    monkeypatch.setattr("benchmarks.__main__.RESULTS", tmp_path / "a" / "b")
    monkeypatch.setattr("benchmarks.__main__.pin_to_one_core", lambda: 0)
    monkeypatch.setattr(peers, "ENVIRONMENTS", Path())
    assert main(["--peers", str(tmp_path / "peers"), "--only", "broken,fine"]) == 1
    said = capsys.readouterr().out
    assert "broken: not measured" in said and (tmp_path / "a" / "b" / "fine.md").exists()
    assert main(["--peers", str(tmp_path / "peers"), "--only", "fine", "--rounds", "1", "--keep"]) == 0


def test_cpu_seconds_of_commands_are_those_of_all_they_start(tmp_path: Path) -> None:
    """A process that outlives the command that started it is waited for, and its time counts."""
    work = "import time\nwhile time.process_time() < 0.3: pass"
    start = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {work!r}])"
    (tmp_path / "rl_training").mkdir()
    (tmp_path / "rl_training" / "__init__.py").touch()
    (tmp_path / "rl_training" / "__main__.py").write_text(start)
    code = f"""
from unittest import mock
from benchmarks import our_commands
kept = {{}}
with mock.patch.object(our_commands, "report", lambda steps, cost, packages: kept.update(cost)):
    with mock.patch.dict("os.environ", PYTHONPATH={str(tmp_path)!r}):
        our_commands.main({{"commands": [["train"]], "steps": 1}})
assert kept["cpu_seconds"] >= 0.3, kept
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=peers.FOLDER.parents[1])


def test_numbers_and_tables_read_well() -> None:
    assert [digits(value) for value in (15231.4, 377.2, 37.46, 3.514, -0.021)] == [
        "15,231",
        "377",
        "37.5",
        "3.51",
        "-0.02",
    ]
    assert str(Spread([3.0, 1.0, 2.0])) == "2.00 (1.00–3.00)"
    assert table(["a", "number"], [["word", 1]]).splitlines() == [
        "| a    | number |",
        "| ---- | -----: |",
        "| word |      1 |",
    ]


def test_a_report_is_written_with_its_picture_and_an_index(tmp_path: Path) -> None:
    ours = {"ours": [made_up(1.0), made_up(1.1)]}
    write(compare(ROW, ours, [made_up(3.0), made_up(3.0)], PROFILE), tmp_path)
    write(Report("other", "Another.", [], [Verdict("is there", None)], {}), tmp_path)
    text = (tmp_path / "row.md").read_text()
    assert "cores" in text
    assert "peer: python 3, peer 1.2" in text
    assert (tmp_path / "row.png").read_bytes().startswith(b"\x89PNG")
    document = json.loads((tmp_path / "row.json").read_text())
    assert document["machine"]["cpu"]
    assert document["data"]["ours"]["ours"][0]["steps"] == 1000
    index = (tmp_path / "README.md").read_text()
    assert "- [row](row.md), " in index
    assert "  - passed: at least 2.7" in index
    assert "  - not measured: is there" in index


def test_a_peer_is_installed_once_and_a_failure_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def fake(command: list[str], **_: Any) -> Any:
        commands.append(command)
        return SimpleNamespace(
            returncode=int("broken" in command[-1]), stderr="first\nno such version\n", stdout=""
        )

    monkeypatch.setattr(subprocess, "run", fake)
    monkeypatch.setattr(peers, "ENVIRONMENTS", tmp_path / "venvs")
    monkeypatch.setattr(peers, "FOLDER", tmp_path)
    for name in ("good", "broken"):
        (tmp_path / f"{name}.txt").write_text("package==1\n")
        (tmp_path / "venvs" / name).mkdir(parents=True)
    python = peers.interpreter("good")
    assert python == tmp_path / "venvs" / "good" / "bin" / "python"
    assert len(commands) == 2
    assert peers.interpreter("good") == python
    assert len(commands) == 2, "an environment that is there is used again"
    (tmp_path / "good.txt").write_text("package==2\n")
    peers.interpreter("good")
    assert len(commands) == 4, "other versions are installed"
    with pytest.raises(PeerMissing, match="broken could not be installed: no such version"):
        peers.interpreter("broken")


def test_a_run_that_fails_says_its_last_line() -> None:
    with pytest.raises(RunFailed, match="No module named"):
        run("no_such_module_anywhere", {})


def test_an_unknown_row_is_refused_with_the_names_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--only", "ppo-cartpoel"])
    assert "ppo-cartpole" in capsys.readouterr().err


@pytest.mark.parametrize("path", sorted(peers.FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_peers_are_pinned_and_have_our_torch(path: Path) -> None:
    pins = path.read_text().split()
    assert all("==" in pin for pin in pins)
    torch = [pin for pin in pins if pin.startswith("torch==")]
    constraints = (peers.FOLDER.parents[1] / "constraints.txt").read_text().split()
    assert not torch or torch[0] in constraints


COMPARISONS = [row for row in ROWS.values() if isinstance(row, Comparison)]
SAME_THING = {"gamma": "gamma", "gae_lambda": "gae_lambda", "ent_coef": "ent_coef"}
SAME_THING |= {"learning_rate": "learning_rate", "max_grad_norm": "max_grad_norm"}
SAME_THING |= {"clip_range": "clip_coef", "n_steps": "num_steps", "n_epochs": "update_epochs"}
SAME_THING |= {"clip_eps": "clip_coef", "num_steps": "num_steps", "num_epochs": "update_epochs"}
SAME_THING |= {"num_minibatches": "num_minibatches"}
SAME_THING |= {"batch_size": "batch_size", "buffer_size": "buffer_size", "learning_starts": "learning_starts"}
SAME_THING |= {"fill_buffer": "learning_starts", "tau": "tau"}
HALVED = ("rejax",)  # peers whose squared error is halved, as ours is


@pytest.mark.parametrize("row", COMPARISONS, ids=lambda row: row.name)
def test_both_sides_have_the_same_settings(row: Comparison) -> None:
    config, settings = load_config(dict(row.config)), row.peer.settings
    assert (peers.FOLDER / f"{row.peer.name}.txt").exists()
    if "overrides" in settings:  # of a peer that is configured by a list of key=value
        assert {f"env.id={config.env_id}", f"env.num_envs={config.num_envs}"} <= set(settings["overrides"])
        assert row.rounds >= 3
        return
    assert config.env_id == settings["env_id"]
    assert config.num_envs == settings["num_envs"]
    for theirs, ours in SAME_THING.items():
        if theirs in settings["arguments"] and hasattr(config, ours):
            assert settings["arguments"][theirs] == getattr(config, ours), theirs
    if "vf_coef" in settings["arguments"]:
        share = 1 if row.peer.name in HALVED else 2
        assert settings["arguments"]["vf_coef"] == config.vf_coef / share, "their squared error is not halved"
    if hasattr(config, "num_minibatches") and "num_minibatches" not in settings["arguments"]:
        assert settings["arguments"]["batch_size"] * config.num_minibatches == config.steps_per_iteration
    assert row.rounds >= 3


def test_sections_take_off_what_is_inside_them(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(
        sections, "time", SimpleNamespace(process_time=lambda: clock.now, perf_counter=lambda: 2 * clock.now)
    )
    times = sections.Sections()

    def take(seconds: float) -> None:
        clock.now += seconds

    inner = times.timed("env", lambda: take(3))
    outer = times.timed("update", lambda: (take(1), inner(), inner(), take(2)))
    closed = times.timed("evaluation", lambda: (take(1), inner()), closed=True)
    outer()
    closed()
    inner()
    assert times.cpu == {"env": 9, "update": 3, "evaluation": 4}
    assert times.wall["update"] == 6
    assert times.calls == {"env": 3, "update": 1, "evaluation": 1}
    assert times.table({"cpu_seconds": 20.0, "wall_seconds": 40.0})["other"]["cpu_seconds"] == 4


PROFILED: dict[str, dict[str, Any]] = {
    "ppo": dict(num_envs=2, num_steps=16),
    "ppo, compiled": dict(num_envs=2, num_steps=16, vectorization="compiled"),
    "dqn": dict(num_envs=2, learning_starts=16, train_frequency=8, buffer_size=200, prioritized=True),
}


@pytest.mark.parametrize("name", PROFILED)
def test_a_profiled_run_finds_its_sections(name: str, tmp_path: Path) -> None:
    """In a child, because profiling replaces functions of the package."""
    path = tmp_path / "sections.json"

    def child() -> None:
        from benchmarks import ours

        def keep(steps: int, cost: Any, packages: Any, **more: Any) -> None:
            path.write_text(json.dumps({"steps": steps, **cost, **more}))

        ours.report = keep  # type: ignore[assignment]
        config = (
            dict(env_id="CartPole-v1", vectorization="sync", total_timesteps=64, eval_episodes=1)
            | dict(algo=name.split(",")[0])
            | PROFILED[name]
        )
        ours.main({"config": config, "warm_up": 32, "episodes": 0, "profile": True})

    assert in_child(child) == 0
    done = json.loads(path.read_text())
    calls = {name: section["calls"] for name, section in done["sections"].items()}
    if "compiled" in name:  # where nothing that is timed keeps rollouts from being one call
        assert (calls["env"], calls["acting"], calls["storing"], calls["update"]) == (0, 0, 2, 2)
        return
    assert calls["env"] == 32
    if name == "ppo":
        assert calls["acting"] >= 32 and calls["update"] == 2 and calls["returns"] >= 2
    else:
        assert calls["acting"] == 2 * 24  # `act`, and `value` inside it, after the random steps
        assert calls["update"] == 4 and calls["returns"] == 0
        assert calls["storing"] == 32
        assert (
            calls["sampling"] == 2 * 16
        )  # 0.25 updates a step: each draws, and sets the priorities of, a batch
    assert min(calls[name] for name in ("checkpoint", "logging", "evaluation", "storing")) >= 1
    total = sum(section["cpu_seconds"] for name, section in done["sections"].items() if name != "evaluation")
    assert total == pytest.approx(done["cpu_seconds"])
    assert all(section["cpu_seconds"] >= 0 for section in done["sections"].values())


def test_a_row_is_enough_to_add_an_algorithm() -> None:
    report = compare(
        replace(ROW, name="new", required=None), {"ours": [made_up(1.0, None)]}, [made_up(3.0, None)], PROFILE
    )
    assert report.verdicts == []
    assert "score" not in report.tables[0]
