"""Runs that earlier code wrote, kept in tests/golden/runs: today's code evaluates, reports, forks and resumes them.

Where versions, CPU and revisions are those they were made with, they end with the very numbers they would have ended
with then. A failure of that means: the code computes other numbers. Raise `Trainer.revision` of the algorithm,
`SHARED_REVISION` in state/formats.py or, of compiled code, a revision in kernels/compiled.py, and write the runs anew
(tests/golden/make_runs.py); see docs/formats.md.
"""

import json
import math
import shutil
from pathlib import Path

import pytest

from rl_training import evaluate_checkpoint, load_policy, resume
from rl_training.errors import RunError
from rl_training.monitoring.display import QuietDisplay
from rl_training.registry import SHIPPED
from rl_training.reporting.report import write_report
from rl_training.runtime.paths import other_kernels
from rl_training.runtime.workflows import check_manifest, revisions
from rl_training.settings.loading import load_run_config
from rl_training.state import chain, checkpoints
from rl_training.state.formats import FORMAT, FRAMES_REVISION
from rl_training.state.run_directory import RunDirectory, cpu, versions
from rl_training.tools.forking import fork

KEPT = Path(__file__).parents[1] / "golden" / "runs"
# Of the compiled code: updates of on-policy and replay-based algorithms, networks, rollouts and evaluations.
PARTS = ("surrogate", "soft_updates", "q_update", "fast_networks", "rollouts", "evaluations")
RUNS = [f"{path.parent.name}/{path.name}" for path in sorted(KEPT.glob("*/*")) if path.is_dir()]


class Told(QuietDisplay):
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warning(self, text: str) -> None:
        self.warnings.append(text)


def computes_the_same(name: str) -> bool:
    """Whether nothing that results depend on has changed since the run was made."""
    run = RunDirectory(KEPT / name)
    manifest, config = run.read_manifest(), load_run_config(run.config_path)
    ours = {"rl-training"}  # another version of ours computes the same, unless a revision says so
    same = all(
        manifest["versions"].get(each) == version for each, version in versions().items() if each not in ours
    )
    made_on = manifest.get("cpu") or json.loads((KEPT / name).parent.joinpath("ends.json").read_text())["cpu"]
    # Revision 2 of the shared code changed runs that normalise observations; those of format 1 do not.
    first = {"shared": 2, config.algo: 1}
    return same and made_on == cpu() and manifest.get("results", first) == revisions(config)


def test_every_algorithm_has_a_run_of_this_format():
    here = {path.name for path in (KEPT / str(FORMAT)).iterdir() if path.is_dir()}
    assert here >= SHIPPED.keys()
    ends = json.loads((KEPT / str(FORMAT) / "ends.json").read_text())["ends"]
    assert ends.keys() == here


@pytest.mark.parametrize("path", PARTS)
def test_every_compiled_part_has_a_run(path):
    kept = [RunDirectory(KEPT / name).read_manifest() for name in RUNS]
    compiled = [each for each in kept if each.get("paths", {}).get(path) == "compiled"]
    assert any(each["config"]["vectorization"] == "compiled" for each in compiled)


@pytest.mark.parametrize("name", RUNS)
def test_a_kept_run_evaluates_reports_forks_and_resumes(name, tmp_path):
    run = Path(shutil.copytree(KEPT / name, tmp_path / "run"))
    assert math.isfinite(evaluate_checkpoint(run, episodes=1)["mean_return"])
    if name != f"{FORMAT}/scalezero":  # plays several tasks; one would have to be named
        assert load_policy(run).observation_space is not None
    told: list[str] = []
    write_report(run, video=False, warn=told.append)
    assert told == []

    manifest = json.loads((run / "manifest.json").read_bytes())
    if other_kernels(manifest.get("paths", {})):  # of a processor that this one is not
        with pytest.raises(RunError, match="compiled_updates=false"):
            resume(run)
        assert fork(run, {"compiled_updates": False}, run_dir=tmp_path / "fork").interrupted is None
        return
    forked = fork(run, run_dir=tmp_path / "fork")
    display = Told()
    resumed = resume(run, display=display)
    assert resumed.interrupted is None and resumed.metrics == forked.metrics
    assert (run / "metrics.jsonl").read_bytes() == (tmp_path / "fork/metrics.jsonl").read_bytes()
    progress = checkpoints.newest_progress(run / "checkpoints")
    with chain.opened(run / "metrics.jsonl") as log:
        assert chain.verify(log, chain.mark_of(progress)) is None

    manifest = json.loads((run / "manifest.json").read_bytes())
    if computes_the_same(name):
        ends = json.loads((KEPT / name).parent.joinpath("ends.json").read_text())["ends"]
        then = ends[Path(name).name]
        # What is logged today and was not then, such as a knob that is younger, is no other number.
        assert {each: resumed.metrics[each] for each in then} == then
    if manifest.get("results") == revisions(load_run_config(run / "config.yaml")) and computes_the_same(name):
        assert "resumed_elsewhere" not in manifest and display.warnings == []
    else:  # then it says so, and the manifest does
        assert any("may differ from those of an uninterrupted run" in text for text in display.warnings)
        assert manifest["resumed_elsewhere"][0]["changed"]


def test_a_changed_revision_is_a_warning_and_on_record(tmp_path, monkeypatch):
    run = Path(shutil.copytree(KEPT / str(FORMAT) / "ppo", tmp_path / "run"))
    from rl_training.runtime.ppo_trainer import PPOTrainer

    monkeypatch.setattr(PPOTrainer, "revision", PPOTrainer.revision + 1)
    display = Told()
    resume(run, display=display)
    said = f"results of ppo revision {PPOTrainer.revision - 1} (here revision {PPOTrainer.revision})"
    assert any(said in text for text in display.warnings)
    entry, *_ = json.loads((run / "manifest.json").read_bytes())["resumed_elsewhere"]
    assert said in entry["changed"] and entry["step"] > 0
    write_report(run, video=False)
    assert "results of ppo revision" in (run / "report.html").read_text("utf-8")


@pytest.mark.parametrize(("threads", "warned"), [(1, False), (2, True)])
def test_a_run_of_several_threads_from_before_the_convolutions_had_them_warns(threads, warned):
    run = RunDirectory(KEPT / str(FORMAT) / "ppo")
    manifest, config, display = run.read_manifest(), load_run_config(run.config_path), Told()
    check_manifest(manifest | {"threads": threads}, config, display)
    assert any("results of convolutions revision 1" in text for text in display.warnings) == warned
    display.warnings.clear()
    check_manifest(manifest | {"threads": threads, "results": revisions(config, threads)}, config, display)
    assert not any("results of" in text for text in display.warnings)


def test_a_planner_on_frames_from_before_searches_folded_their_normalisation_warns():
    """One on vectors does not: none of its numbers has changed."""
    run, display = RunDirectory(KEPT / str(FORMAT) / "muzero"), Told()
    manifest, config = run.read_manifest(), load_run_config(run.config_path, ["batch_norm=true"])
    check_manifest(manifest, config, display)
    assert "frames" not in revisions(config)
    assert not any("results of frames" in text for text in display.warnings)
    pytest.importorskip("ale_py")
    frames = ["env_id=ALE/Breakout-v5", "normalize_observations=false"]
    config = load_run_config(run.config_path, [*frames, "batch_norm=true"])
    check_manifest(manifest, config, display)
    said = f"results of frames revision 1 (here revision {FRAMES_REVISION})"
    assert any(said in text for text in display.warnings)
    assert "frames" not in revisions(load_run_config(run.config_path, [*frames, "batch_norm=false"]))


@pytest.mark.parametrize(("encoder", "warned"), [("nature", False), ("impala", True)])
def test_a_run_from_before_the_impala_encoder_began_as_the_identity_warns(encoder, warned):
    run, display = RunDirectory(KEPT / str(FORMAT) / "ppo"), Told()
    manifest, config = run.read_manifest(), load_run_config(run.config_path, [f"image_encoder={encoder}"])
    check_manifest(manifest, config, display)
    assert any("results of encoders revision 1" in text for text in display.warnings) == warned
    display.warnings.clear()
    check_manifest(manifest | {"results": revisions(config)}, config, display)
    assert not any("results of" in text for text in display.warnings)


@pytest.mark.parametrize(
    ("env_id", "lanes", "warned"),
    [
        ("MinAtar/Breakout-v1", "sync", True),
        ("MinAtar/Breakout-v1", "compiled", False),
        ("CartPole-v1", "sync", False),
    ],
)
def test_a_run_from_before_games_of_minatar_began_anew_warns(env_id, lanes, warned):
    run, display = RunDirectory(KEPT / str(FORMAT) / "ppo"), Told()
    manifest = run.read_manifest()
    config = load_run_config(run.config_path, [f"env_id={env_id}", f"vectorization={lanes}"])
    check_manifest(manifest, config, display)
    assert any("results of environments revision 1" in text for text in display.warnings) == warned
    display.warnings.clear()
    check_manifest(manifest | {"results": revisions(config)}, config, display)
    assert not any("results of" in text for text in display.warnings)


def test_a_resume_of_the_first_format_begins_its_chain_there(tmp_path):
    run = Path(shutil.copytree(KEPT / "1" / "ppo", tmp_path / "run"))
    before = (run / "metrics.jsonl").read_bytes()
    resume(run)
    log = (run / "metrics.jsonl").read_bytes()
    assert log.startswith(before) and b'"chain"' not in before
    assert all(chain.hash_of(line) for line in log[len(before) :].splitlines(keepends=True))
    assert checkpoints.newest_progress(run / "checkpoints")["chain_begins"] == len(before)
    assert resume(run).interrupted is None  # and it verifies
