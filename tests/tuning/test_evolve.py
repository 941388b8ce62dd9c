"""Populations on exact forks: killed and continued is not killed, and the winner is one config."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runs import in_child, kill_at_file_call

from rl_training import load_config, train
from rl_training.errors import ConfigError, RunError
from rl_training.settings.loading import load_run_config
from rl_training.tuning.evolution import Evolution, Settings, begin_evolution, read_knobs, run_evolution
from rl_training.tuning.space import Range, Space

TINY = dict(
    algo="ppo",
    env_id="CartPole-v1",
    vectorization="sync",
    total_timesteps=1024,
    num_envs=4,
    num_steps=32,
    update_epochs=2,
    hidden_sizes=[8],
    eval_episodes=2,
    log_interval=128,
    checkpoint_interval=512,
)
SPACE = """
lr: {low: 1e-4, high: 1e-2, log: true}
ent_coef: [0.0, 0.01, 0.03]
update_epochs: {low: 1, high: 6}
"""


@pytest.fixture
def space(tmp_path: Path) -> Path:
    path = tmp_path / "space.yaml"
    path.write_text(SPACE)
    return path


def weights(run_dir: Path) -> bytes:
    return (max((run_dir / "checkpoints").glob("step-*")) / "weights.safetensors").read_bytes()


def test_killed_and_continued_is_not_killed_and_the_winner_is_one_config(space: Path, tmp_path: Path) -> None:
    config = load_config(TINY)
    for name in ("one", "two"):
        begin_evolution(config, space, Settings(8, 256), tmp_path / name)
    done = run_evolution(tmp_path / "one")

    def killed(number: int) -> None:
        kill_at_file_call(number)
        run_evolution(tmp_path / "two")

    # In the first members, in the middle of a generation, while forks are made, and where a generation ends.
    assert [in_child(killed, number) for number in (23, 700, 640, 77)] == [None] * 4
    again = run_evolution(tmp_path / "two")
    for name in ("generations.json", "winner.yaml"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    assert done.winner is not None and again.winner is not None
    assert weights(done.winner) == weights(again.winner)
    assert len(done.generations) == 4 and all(len(members) == 8 for members in done.generations)
    parents = [[member.parent for member in members] for members in done.generations]
    assert parents[0] == [None] * 8 and any(given != list(range(8)) for given in parents[1:])

    train(load_config(tmp_path / "one" / "winner.yaml"), run_dir=tmp_path / "retrained", quiet=True)
    assert weights(tmp_path / "retrained") == weights(done.winner)
    logs = [(path / "metrics.jsonl").read_bytes() for path in (tmp_path / "retrained", done.winner)]
    assert logs[0] == logs[1]
    # One whose ancestors had other values is told so by its schedules, and is the run of them too.
    changed = next(i for i, member in enumerate(done.generations[-1]) if len(member.history) > 1)
    stepped = done.winner.parent / f"member-{changed:02d}"
    retold = load_run_config(stepped / "config.yaml")
    assert any(
        "points" in (getattr(retold, f"{name}_schedule") or {}) for name in ("learning_rate", "update_epochs")
    )
    train(retold, run_dir=tmp_path / "stepped", quiet=True)
    assert weights(tmp_path / "stepped") == weights(stepped)
    assert (tmp_path / "stepped" / "metrics.jsonl").read_bytes() == (stepped / "metrics.jsonl").read_bytes()


def test_generations_that_are_no_multiple_of_an_iteration_end_with_the_run(
    space: Path, tmp_path: Path
) -> None:
    config = load_config(TINY, {"total_timesteps": 300})  # iterations of 128 steps
    begin_evolution(config, space, Settings(2, 100), tmp_path / "run")
    done = run_evolution(tmp_path / "run")
    assert len(done.generations) == 3 and done.winner is not None
    assert max((done.winner / "checkpoints").iterdir()).name == "step-000000000384"
    assert run_evolution(tmp_path / "run").generations == done.generations  # a finished one is left as it is


@pytest.mark.parametrize(
    ("text", "changes", "words"),
    [
        ("num_steps: [16, 32]", {}, "num_steps is no knob"),
        ("activation: [tanh, relu]", {}, "activation is no knob"),
        ("lr: {low: 1e-4, high: 1e-2}", {"learning_rate_schedule": "linear"}, "has a schedule or a warm-up"),
        ("lr: {low: 1e-4, high: 1e-2}", {"learning_rate_warmup_steps": 100}, "has a schedule or a warm-up"),
        ("learning_rate_schedule: [linear, cosine]", {}, "is no knob"),
        ("lr: {low: 1e-2, high: 1e-4}", {}, "low must be below high"),
        ("gamma: 0.9\nlr: [0.1]", {}, "gamma must be a range or a list of numbers"),
        ("target_kl: [null, 0.01]", {}, "target_kl must be a range or a list of numbers"),
    ],
)
def test_what_cannot_evolve_is_refused(
    text: str, changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    path = tmp_path / "space.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        read_knobs(path, load_config(TINY, changes))
    config = load_config(json.loads(json.dumps({"algo": "muzero", "env_id": "CartPole-v1"})))
    path.write_text("num_simulations: [8, 16]")
    with pytest.raises(ConfigError, match="sizes memory"):
        read_knobs(path, config)


def test_a_parent_that_someone_else_wrote_is_not_forked(space: Path, tmp_path: Path) -> None:
    begin_evolution(load_config(TINY, {"total_timesteps": 512}), space, Settings(2, 256), tmp_path / "run")
    run_evolution(tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "generation-001")
    known = tmp_path / "run" / "generations.json"
    known.write_text(json.dumps(json.loads(known.read_text())[:1]))
    for config in (tmp_path / "run").rglob("config.yaml"):
        config.write_text(config.read_text().replace("CartPole-v1", '"planted:CartPole-v1"'))
    with pytest.raises(RunError, match="env_id not as computed for this run"):
        run_evolution(tmp_path / "run", trust=True)
    assert not (tmp_path / "run" / "generation-001" / "member-00").exists()


@pytest.mark.parametrize(
    ("node", "value", "next_ones"),
    [
        (Range(1, 6, False, None, True), 1, {1, 2}),
        (Range(1, 6, False, None, True), 2, {1, 3}),
        (Range(1, 6, False, None, True), 6, {5, 6}),
        (Range(1, 10, False, 4, True), 9, {5, 9}),  # 1, 5 and 9
        (Range(0.0, 1.0, False, 0.3, False), 0.9, {0.6, 0.9}),
        (Range(1e-4, 1e-2, True, None, False), 1e-3, {8e-4, 1.2e-3}),
    ],
)
def test_a_value_moves_by_a_unit_at_least_and_stays_on_its_grid(
    node: Range, value: float, next_ones: set[float]
) -> None:
    search = Evolution.__new__(Evolution)
    search.space = Space({"knob": node})
    found = {round(search.explored("knob", value, np.random.default_rng(seed)), 9) for seed in range(20)}
    assert found == next_ones


@pytest.mark.parametrize(
    "changes", [{"stop_at": {"metric": "eval/mean_return", "at_least": 9}}, {"observers": ["mine.py:Mine"]}]
)
def test_what_ends_a_member_early_is_refused(changes: dict[str, Any], space: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(changes))}: a member that stops early"):
        begin_evolution(load_config(TINY, changes), space, Settings(2, 256), tmp_path / "run")
    assert not (tmp_path / "run").exists()
