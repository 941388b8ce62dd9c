"""The path of a run's updates: recorded, kept to by resume, and refused where it cannot be taken."""

from __future__ import annotations

import json
import random
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from runs import assert_same_run, go_on, in_child, kill_and_resume, killed_in_an_iteration, small_config
from test_cli import cli

from rl_training import fork, load_config, resume, train
from rl_training.dynamics.registry import KNOWN
from rl_training.envs.making import with_lanes
from rl_training.errors import RunError
from rl_training.kernels import compiled
from rl_training.monitoring.display import QuietDisplay
from rl_training.policies.gathering import WholeSteps
from rl_training.policies.in_lanes import WholeRollouts
from rl_training.runtime import paths, updates, workflows
from rl_training.runtime.paths import other_kernels, path_lines
from rl_training.runtime.trainer import Trainer
from rl_training.state import checkpoints
from rl_training.tools import forking

RUN = "ppo-cartpole"


class Told(QuietDisplay):
    def __init__(self) -> None:
        self.messages: list[str] = []

    def message(self, text: str) -> None:
        self.messages.append(text)


def another_processor(monkeypatch: Any) -> None:
    """One that does not multiply and add at once: there nothing is compiled."""
    monkeypatch.setattr(updates, "has_fused_multiplication", lambda: False)


def begun(run_dir: Path) -> Path:
    """A compiled run that was killed halfway."""
    assert killed_in_an_iteration(0.5, 0.5, small_config(RUN), run_dir) is None
    return run_dir


def test_the_path_is_in_the_manifest_and_in_checkpoints(trained_run: Any) -> None:
    run = trained_run(RUN)
    made = {"kernels": {"shared": compiled.REVISION}, "cpu_features": compiled.cpu_features()}
    expected = {"surrogate": "compiled", "rollouts": "python", "evaluations": "python"} | made
    assert json.loads((run / "manifest.json").read_text())["paths"] == expected
    assert checkpoint_paths(run) == expected


@pytest.mark.parametrize("setting", [True, False])
def test_the_first_lines_say_how_updates_are_computed(setting: bool, tmp_path: Path) -> None:
    config, display = load_config(small_config(RUN), compiled_updates=setting, total_timesteps=128), Told()
    train(config, run_dir=tmp_path / "run", display=display)
    assert (
        "updates: compiled" if setting else "updates: torch (compiled_updates is false)"
    ) in display.messages
    assert "rollouts: python (the environments are not compiled)" in display.messages


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (RUN, "python (the environments are not compiled)"),
        ("a2c-compiled", "compiled"),
        ("dqn-compiled", "compiled"),
        ("recurrent-compiled", "python (compiled code cannot act with this policy)"),
        ("muzero-compiled", "python (compiled code cannot act with this policy)"),
    ],
)
def test_the_first_lines_say_how_experience_is_gathered(name: str, told: str) -> None:
    trainer = workflows.make_trainer(small_config(name))
    assert path_lines(trainer)[-1] == f"rollouts: {told}"
    trainer.keep_to({})
    began = "python (as this run began)" if told == "compiled" else told
    assert path_lines(trainer)[-1] == f"rollouts: {began}"
    trainer.close()


def test_a_run_that_gathers_no_experience_of_its_own_says_nothing_about_it() -> None:
    trainer = workflows.make_trainer(small_config("bc-cartpole"))
    assert path_lines(trainer) == ["updates: compiled"]


@pytest.mark.parametrize("name", [RUN, "impala-cartpole"])
def test_a_run_that_began_with_torch_goes_on_with_it_where_it_could_be_compiled(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config(name)
    with monkeypatch.context() as there:
        another_processor(there)
        train(config, run_dir=tmp_path / "whole", quiet=True)
        assert killed_in_an_iteration(0.3, 0.5, config, tmp_path / "killed") is None
    kill_and_resume(config, tmp_path / "killed", 3, random.Random(1))
    assert_same_run(tmp_path / "whole", tmp_path / "killed")


def in_python(monkeypatch: Any) -> None:
    """As where nothing steps compiled environments but Python."""
    for kind in (WholeSteps, WholeRollouts):
        monkeypatch.setattr(kind, "of", classmethod(lambda cls, *parts: None))


@pytest.mark.parametrize("name", ["dqn-compiled", "sac-compiled", "trpo-compiled"])
def test_a_run_that_began_step_by_step_goes_on_so_where_steps_could_be_compiled(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config(name)
    with monkeypatch.context() as there:
        in_python(there)
        assert in_child(go_on, config, tmp_path / "whole") == 0
        assert killed_in_an_iteration(0.3, 0.5, config, tmp_path / "killed") is None
    record = json.loads((tmp_path / "killed" / "manifest.json").read_text())["paths"]
    assert record["rollouts"] == "python"
    kill_and_resume(config, tmp_path / "killed", 2, random.Random(1))
    assert_same_run(tmp_path / "whole", tmp_path / "killed")


def test_a_run_for_which_auto_chose_sync_goes_on_so_where_it_would_choose_compiled_environments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config("ppo-compiled", vectorization="auto")
    with monkeypatch.context() as there:
        there.delitem(KNOWN, config.env_id)  # as in a version that does not know it yet
        assert in_child(go_on, config, tmp_path / "whole") == 0
        assert killed_in_an_iteration(0.3, 0.5, config, tmp_path / "killed") is None
    assert with_lanes(config).vectorization == "compiled"
    kill_and_resume(config, tmp_path / "killed", 3, random.Random(1))
    assert_same_run(tmp_path / "whole", tmp_path / "killed")
    manifest = json.loads((tmp_path / "killed" / "manifest.json").read_text())
    assert (manifest["config"]["vectorization"], manifest["paths"]["rollouts"]) == ("sync", "python")


def by_gymnasium(monkeypatch: Any) -> None:
    """As before there were evaluations in compiled environments."""
    monkeypatch.setattr(Trainer, "as_begun", frozenset({"evaluations"}))


def test_a_run_that_began_with_evaluations_by_gymnasium_goes_on_with_them(
    trained_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config("ppo-compiled")
    with monkeypatch.context() as there:
        by_gymnasium(there)
        assert in_child(go_on, config, tmp_path / "whole") == 0
        assert killed_in_an_iteration(0.3, 0.5, config, tmp_path / "killed") is None
    kill_and_resume(config, tmp_path / "killed", 2, random.Random(1))
    assert_same_run(tmp_path / "whole", tmp_path / "killed")
    with pytest.raises(AssertionError, match="differs"):  # so that this could fail
        assert_same_run(tmp_path / "whole", trained_run("ppo-compiled"))


def test_a_record_that_says_nothing_of_evaluations_means_gymnasiums() -> None:
    trainer = workflows.make_trainer(small_config("ppo-compiled"))
    assert trainer.paths() == dict.fromkeys(("surrogate", "rollouts", "evaluations"), "compiled")
    trainer.keep_to({"surrogate": "compiled", "rollouts": "compiled"})
    paths = {"surrogate": "compiled", "rollouts": "compiled", "evaluations": "python"}
    assert trainer.paths() == paths


def test_a_run_of_compiled_steps_is_refused_where_they_cannot_be_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert killed_in_an_iteration(0.5, 0.5, small_config("dqn-compiled"), tmp_path / "run") is None
    in_python(monkeypatch)
    with pytest.raises(RunError, match=r"rollouts step by step.*rl-training fork"):
        resume(tmp_path / "run", quiet=True)


def test_a_compiled_run_ends_in_other_bytes_than_torchs(
    trained_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the test above could fail."""
    another_processor(monkeypatch)
    assert in_child(go_on, small_config(RUN), tmp_path / "torch") == 0
    with pytest.raises(AssertionError, match="differs"):
        assert_same_run(trained_run(RUN), tmp_path / "torch")


def test_a_compiled_run_is_refused_where_it_cannot_be_compiled_and_can_be_forked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begun(tmp_path / "run")
    another_processor(monkeypatch)
    with pytest.raises(RunError) as refusal:
        resume(run, quiet=True)
    words = str(refusal.value)
    assert "torch (no fused multiply-add on this processor)" in words
    assert f"rl-training fork {run} compiled_updates=false" in words
    assert "\n" not in words
    result = fork(run, {"compiled_updates": False}, run_dir=tmp_path / "fork", quiet=True)
    assert json.loads((result.run_dir / "manifest.json").read_text())["paths"]["surrogate"] == "torch"


def test_other_compiled_code_refuses_a_run_and_names_the_fork(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begun(tmp_path / "run")
    monkeypatch.setattr(paths, "REVISION", compiled.REVISION + 1)
    wrong = rf"revision {compiled.REVISION} of compiled code \(here {compiled.REVISION + 1}\); .* rl-training fork"
    with pytest.raises(RunError, match=wrong):
        resume(run, quiet=True)


def test_the_fork_that_a_refusal_names_is_made_where_torch_computed_the_updates_already(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config("a2c-compiled", compiled_updates=False)
    assert killed_in_an_iteration(0.5, 0.5, config, tmp_path / "run") is None
    monkeypatch.setattr(paths, "REVISION", compiled.REVISION + 1)
    with pytest.raises(RunError) as refusal:
        resume(tmp_path / "run", quiet=True)
    words = shlex.split(str(refusal.value).rpartition("fork it: ")[2])
    result = fork(words[2], words[3:], run_dir=tmp_path / "fork", quiet=True)
    record = json.loads((result.run_dir / "manifest.json").read_text())["paths"]
    assert (record["update"], record["rollouts"]) == ("torch", "compiled")
    assert record["kernels"] == {"shared": compiled.REVISION + 1}


def test_a_compiled_run_is_refused_where_the_processor_has_other_features_and_can_be_forked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begun(tmp_path / "run")
    monkeypatch.setattr(paths, "cpu_features", lambda: "fma")
    with pytest.raises(RunError) as refusal:
        resume(run, quiet=True)
    words = str(refusal.value)
    assert f"the CPU features {compiled.cpu_features()} (here fma)" in words and "\n" not in words
    command = shlex.split(words.rpartition("fork it: ")[2])
    result = fork(command[2], command[3:], run_dir=tmp_path / "fork", quiet=True)
    assert checkpoint_paths(result.run_dir)["cpu_features"] == "fma"


def test_a_run_by_torch_goes_on_where_the_processor_has_other_features() -> None:
    record = {"surrogate": "torch", "rollouts": "python", "kernels": {"shared": 1}, "cpu_features": "none"}
    assert other_kernels(record) == []
    assert len(other_kernels(record | {"rollouts": "compiled"})) == 2


def test_a_compiled_run_whose_checkpoints_and_manifest_are_of_an_earlier_form_goes_on(tmp_path: Path) -> None:
    """One number for all compiled code, in the manifest alone, and once no features of the processor."""
    run = begun(tmp_path / "run")
    newest, tree = checkpoints.newest_good_checkpoint(run / "checkpoints") or (None, {})
    assert newest is not None
    tree["paths"] = {"surrogate": "compiled", "rollouts": "python"}
    checkpoints.save_checkpoint(run / "checkpoints", tree["progress"]["steps"], tree, 5)
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["paths"] = tree["paths"] | {"kernels": compiled.REVISION}
    workflows.RunDirectory(run)._write_manifest({k: v for k, v in manifest.items() if k != "sha256"})
    display = Told()
    resume(run, display=display)
    assert "updates: compiled" in display.messages
    assert checkpoint_paths(run)["kernels"] == {"shared": compiled.REVISION}


def test_the_revision_of_a_part_is_not_taken_for_that_of_all_compiled_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    features = compiled.cpu_features()
    monkeypatch.setitem(paths.PART_REVISIONS, "fast_networks", 3)
    record = {
        "fast_networks": "compiled",
        "kernels": {"shared": 2, "fast_networks": 3},
        "cpu_features": features,
    }
    earlier = record | {"kernels": 3}
    assert other_kernels(record) == other_kernels(earlier) == []
    assert other_kernels(earlier | {"kernels": 2}) == ["revision 2 of compiled fast_networks (here 3)"]
    monkeypatch.setattr(paths, "REVISION", 3)
    for each in (record, earlier):
        assert other_kernels(each) == ["revision 2 of compiled code (here 3)"]


def test_a_run_without_the_record_goes_on_with_torch(tmp_path: Path) -> None:
    """As runs do that are older than the record: they have no field `compiled` either."""
    run = begun(tmp_path / "run")
    manifest = json.loads((run / "manifest.json").read_text())
    del manifest["paths"]
    workflows.RunDirectory(run)._write_manifest({k: v for k, v in manifest.items() if k != "sha256"})
    without_paths(run)
    display = Told()
    resume(run, display=display)
    assert "updates: torch (as this run began)" in display.messages


def without_paths(run: Path) -> None:
    """Take the record out of the newest checkpoint."""
    newest, tree = checkpoints.newest_good_checkpoint(run / "checkpoints") or (None, {})
    assert newest is not None
    del tree["paths"]
    checkpoints.save_checkpoint(run / "checkpoints", tree["progress"]["steps"], tree, 5)


def test_a_checkpoint_says_it_where_the_manifest_does_not(tmp_path: Path) -> None:
    run = begun(tmp_path / "run")
    manifest = json.loads((run / "manifest.json").read_text())
    del manifest["paths"]["surrogate"]
    workflows.RunDirectory(run)._write_manifest({k: v for k, v in manifest.items() if k != "sha256"})
    display = Told()
    resume(run, display=display)
    assert "updates: compiled" in display.messages


def test_a_refused_fork_names_a_command_with_all_of_its_changes(tmp_path: Path) -> None:
    run = begun(tmp_path / "run")
    with pytest.raises(RunError) as refusal:
        fork(run, ["torch_threads=2", "gamma=0.9"], run_dir=tmp_path / "fork", quiet=True)
    command = str(refusal.value).rpartition("fork it: ")[2]
    words = shlex.split(command)
    assert words[:3] == ["rl-training", "fork", str(run)]
    assert set(words[3:]) == {"torch_threads=2", "gamma=0.9", "compiled_updates=false"}
    result = fork(run, words[3:], run_dir=tmp_path / "fork", quiet=True)
    assert checkpoint_paths(result.run_dir)["surrogate"] == "torch"
    assert checkpoint_paths(result.run_dir, newest=False)["surrogate"] == "torch"


def checkpoint_paths(run: Path, newest: bool = True) -> Any:
    folders = sorted((run / "checkpoints").glob("step-*"))
    return checkpoints.load_checkpoint(folders[-1 if newest else 0])["paths"]


def test_a_fork_keeps_the_path_of_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as there:
        another_processor(there)
        parent = begun(tmp_path / "run")
    result = fork(parent, run_dir=tmp_path / "fork", quiet=True)
    assert json.loads((result.run_dir / "manifest.json").read_text())["paths"]["surrogate"] == "torch"


def test_a_finished_run_is_left_unchanged_where_the_processor_has_other_features(
    trained_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Path(shutil.copytree(trained_run(RUN), tmp_path / "run"))
    monkeypatch.setattr(paths, "cpu_features", lambda: "fma")
    another_processor(monkeypatch)
    assert resume(run, quiet=True).interrupted is None
    assert_same_run(run, trained_run(RUN))


def test_a_past_that_cannot_be_computed_again_is_refused_and_can_be_forked(
    trained_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trained_run(RUN)
    saved = checkpoints.step_of(checkpoints.listed(run / "checkpoints")[0])
    monkeypatch.setattr(paths, "cpu_features", lambda: "fma")
    for changes in ([], ["compiled_updates=false"]):
        with pytest.raises(RunError) as refusal:
            fork(run, changes, at=saved + 1, run_dir=tmp_path / "none", quiet=True)
        words = str(refusal.value)
        assert words.startswith(f"{run}: it ran with the CPU features")
        command = f"rl-training fork {run} --at {saved} compiled_updates=false"
        assert words.endswith(f"fork it: {command}")
    forked = tmp_path / "fork"
    assert cli(*shlex.split(command)[1:], "--run-dir", str(forked), "--quiet").exit_code == 0
    (lineage,) = json.loads((forked / "manifest.json").read_text())["lineage"]
    assert (lineage["parent"], lineage["step"]) == (str(run), saved)


def test_a_fork_of_a_past_step_whose_changes_cannot_be_compiled_names_the_run(
    trained_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trained_run(RUN)
    saved = checkpoints.step_of(checkpoints.listed(run / "checkpoints")[0])
    reached = saved + load_config(run / "config.yaml").steps_per_iteration
    monkeypatch.setattr(forking, "saved_at", saved_then_moved_to(monkeypatch, forking.saved_at))
    with pytest.raises(RunError) as refusal:
        fork(run, ["ent_coef=0.25"], at=reached, run_dir=tmp_path / "none", quiet=True)
    words = str(refusal.value)
    command = f"rl-training fork {run} --at {reached} ent_coef=0.25 compiled_updates=false"
    assert words.startswith(f"{run}: it ran in compiled code") and words.endswith(f"fork it: {command}")


def saved_then_moved_to(monkeypatch: Any, saved_at: Any) -> Any:
    """As if the changes of the fork were what keeps it from being compiled: its past is computed before."""

    @contextmanager
    def there(*args: Any, **options: Any) -> Iterator[Path]:
        with saved_at(*args, **options) as path:
            another_processor(monkeypatch)
            yield path

    return there
