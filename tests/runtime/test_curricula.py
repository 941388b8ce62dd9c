"""Numbers in env_kwargs that move over a run, and schedules that metrics decide."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import wrapping  # noqa: F401  # which registers the environment

from rl_training import evaluate_checkpoint, fork, load_config, resume, train
from rl_training.envs.making import make_environments
from rl_training.errors import ConfigError
from rl_training.reporting.schedule_plot import Curve, braille, draw_text
from rl_training.runtime.controls import Controls
from rl_training.runtime.schedules import Standing, parse_schedule
from rl_training.state import checkpoints

PAGE = Path(__file__).parents[2] / "docs" / "curricula.md"
SMALL = dict(num_envs=2, num_steps=16, hidden_sizes=[8], eval_episodes=2, log_interval=32)


def config_of(level=9.0, schedule="linear:100", **changes):
    settings = dict(algo="ppo", env_id="curricula/Level-v0", env_kwargs={"level": level}, total_timesteps=320)
    return load_config(settings | SMALL | dict(env_kwargs_schedule={"level": schedule}) | changes)


def lines_of(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_an_episode_keeps_what_it_began_with_and_a_replay_has_it_too(vectorization):
    config = config_of(schedule=[[0, 1.0], [100, 2.0]], vectorization=vectorization)
    environments = make_environments(config, 2, 1, "train")
    try:
        assert environments.obs.tolist() == [[1.0], [1.0]]
        environments.begin_with(lambda steps: {"level": 5.0 + steps})
        for _ in range(3):
            assert environments.step(np.zeros(2, np.int64)).reward.tolist() == [1.0, 1.0]
        saved = environments.state_dict()
        assert saved["made_with"] == [{"level": 1.0}] * 2
        environments.step(np.zeros(2, np.int64))
        assert environments.obs.tolist() == [[13.0], [13.0]]  # 8 steps later
        environments.begin_with(lambda steps: {"level": 7.0 + steps})
        environments.load_state_dict(saved)
        assert environments.obs.tolist() == [[1.0], [1.0]] and environments.lengths.tolist() == [3, 3]
        environments.step(np.zeros(2, np.int64))
        assert environments.obs.tolist() == [[9.0], [9.0]]
    finally:
        environments.close()


def test_a_run_moves_its_environment_logs_it_and_is_evaluated_with_the_number_in_env_kwargs(tmp_path):
    run = train(config_of(schedule="linear:41"), run_dir=tmp_path / "run", quiet=True).run_dir
    lines = lines_of(run)
    levels = [line["env_kwargs/level"] for line in lines if "env_kwargs/level" in line]
    assert levels == pytest.approx([9.0 + 3.2 * n for n in range(1, 11)])
    # Episodes of four steps in two lanes have the value of the run's step at which they begin.
    last = [line["episode_return"] for line in lines if "episode_return" in line][-1]
    begun = [9.0 + 0.1 * step for step in range(0, 320, 8)]
    assert last == pytest.approx(np.mean([4 * level for level in begun]))
    assert {line["eval/mean_return"] for line in lines if "eval/mean_return" in line} == {36.0}
    assert evaluate_checkpoint(run)["mean_return"] == 36.0
    saved = checkpoints.newest_good_checkpoint(run / "checkpoints")[1]["trainer"]["collector"]["environments"]
    assert saved["made_with"] == [{"level": pytest.approx(9.0 + 0.1 * 320)}] * 2


@pytest.mark.parametrize("algo", ["dqn", "impala", "dreamer"])
def test_other_families_move_it_too(algo, tmp_path):
    own = {
        "dqn": dict(learning_starts=50, buffer_size=300, batch_size=8, num_steps=None),
        "impala": dict(num_actors=2),
        "dreamer": dict(learning_starts=1000, batch_size=2, batch_length=4, num_steps=None),
    }[algo]
    changes = {name: value for name, value in own.items() if value is not None}
    settings = {name: value for name, value in SMALL.items() if own.get(name, value) is not None}
    if algo == "dreamer":
        settings.pop("hidden_sizes")
    config = load_config(
        dict(algo=algo, env_id="curricula/Level-v0", env_kwargs={"level": 3}, total_timesteps=320)
        | settings
        | dict(env_kwargs_schedule={"level": {"type": "step", "points": [[0, 1], [100, 50]]}})
        | changes
    )
    lines = lines_of(train(config, run_dir=tmp_path / "run", quiet=True).run_dir)
    assert [line["env_kwargs/level"] for line in lines if "env_kwargs/level" in line][-1] == 50
    returns = [line["episode_return"] for line in lines if "episode_return" in line]
    assert returns[0] == 4.0 and returns[-1] > 20.0


def test_whole_numbers_stay_whole():
    controls = Controls.of(config_of(level=4, schedule="linear:9"))
    assert [controls.arguments(step)["level"] for step in (0, 32, 320)] == [4, 4, 9]
    assert all(type(controls.arguments(step)["level"]) is int for step in range(0, 320, 32))


@pytest.mark.parametrize("schedule", [{}, {"level": "linear:50"}])
def test_a_fork_may_change_or_drop_the_curriculum(schedule, tmp_path):
    config = config_of(
        schedule="linear:41", checkpoint_interval=64, env_id="curricula/Level-v0", num_steps=15
    )
    run = train(config, run_dir=tmp_path / "run", quiet=True).run_dir
    forked = fork(
        run, {"env_kwargs_schedule": schedule, "total_timesteps": 400}, run_dir=tmp_path / "fork", quiet=True
    )
    assert lines_of(forked.run_dir)[-1]["step"] >= 400


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(env_kwargs={}), "env_kwargs_schedule: level needs a number in env_kwargs"),
        (dict(env_kwargs={"level": "high"}), "env_kwargs_schedule: level needs a number in env_kwargs"),
        (dict(schedule={"type": "liner"}), "did you mean linear?"),
        (dict(schedule={"type": "plateau"}), "it needs a metric"),
        (dict(schedule={"type": "plateau", "metric": "m", "factor": 2.0}), "it needs a max"),
        (dict(schedule={"type": "plateau", "metric": "m", "min": 20.0}), "not between its min of 20"),
    ],
)
def test_what_cannot_be_used_is_refused_when_it_is_read(changes, words):
    with pytest.raises(ConfigError, match="env_kwargs_schedule") as refused:
        config_of(**changes)
    assert words in str(refused.value) and "\n" not in str(refused.value)


def test_tasks_and_games_refuse_it(tmp_path):
    with pytest.raises(
        ConfigError, match="env_kwargs_schedule: Atari's vector environment is compiled and keeps the"
    ):
        make_environments(config_of(env_id="ALE/Pong-v5", env_kwargs={"level": 1}), 1, 1, "train")
    tasks = dict(algo="scalezero", env_ids=["curricula/Level-v0", "curricula/Other-v0"], total_timesteps=64)
    moving = dict(env_kwargs={"level": 1}, env_kwargs_schedule={"level": "linear:9"})
    with pytest.raises(ConfigError, match="env_kwargs_schedule: scalezero does not support it"):
        train(load_config(tasks | moving), run_dir=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def decided(schedule, numbers, value=1.0):
    """The value after each number of the metric."""
    compiled = parse_schedule(schedule, value)
    standing, values = Standing(compiled.start), []
    for number in numbers:
        standing = compiled.decide(standing, number)
        values.append(standing.value)
    return values


def test_a_plateau_waits_for_its_patience():
    schedule = {"type": "plateau", "metric": "m", "factor": 0.5, "patience": 2, "min": 0.2}
    assert decided(schedule, [1, 1, 1, 1, 1, 2, 2, 2, 2, 2]) == [
        1,
        1,
        0.5,
        0.5,
        0.25,
        0.25,
        0.25,
        0.2,
        0.2,
        0.2,
    ]
    falling = {"type": "plateau", "metric": "m", "mode": "min", "patience": 1, "min_delta": 0.5}
    assert decided(falling, [5.0, 4.0, 3.6, 3.4, 3.4]) == [1.0, 1.0, 0.5, 0.5, 0.25]
    rising = {"type": "plateau", "metric": "m", "factor": 2.0, "patience": 1, "max": 3.0}
    assert decided(rising, [1, 1, 1]) == [1.0, 2.0, 3.0]


def test_the_divergence_is_kept_near_its_target():
    schedule = {"type": "kl_adaptive", "target": 0.01, "factor": 2.0, "min": 0.2, "max": 3.0}
    assert decided(schedule, [0.03, 0.021, 0.5, 0.02, 0.005, 0.004, 0.0]) == [
        0.5,
        0.25,
        0.2,
        0.2,
        0.2,
        0.4,
        0.8,
    ]
    assert decided(schedule, [0.0] * 3)[-1] == 3.0


def test_decisions_are_made_by_the_lines_of_the_log(tmp_path):
    schedule = {"type": "plateau", "metric": "eval/mean_return", "factor": 0.5, "patience": 2}
    config = config_of(learning_rate=0.001, learning_rate_schedule=schedule, eval_interval=64)
    lines = lines_of(train(config, run_dir=tmp_path / "run", quiet=True).run_dir)
    # Each evaluation earns 36; the second and the third do not beat the first.
    rates = {line["step"]: line["learning_rate"] for line in lines if "learning_rate" in line}
    assert rates[192] == 0.001 and rates[224] == 0.0005 and rates[320] == 0.0005


def test_a_metric_that_never_comes_is_said(tmp_path, capsys):
    schedule = {"type": "plateau", "metric": "epsiode_return"}
    train(config_of(learning_rate_schedule=schedule), run_dir=tmp_path / "run")
    assert (
        "learning_rate: no line of metrics.jsonl had epsiode_return, so it stayed" in capsys.readouterr().err
    )
    assert Controls.of(config_of()).unheard() == []


def test_a_forged_decision_is_refused():
    controls = Controls.of(config_of(learning_rate_schedule={"type": "plateau", "metric": "m"}))
    for forged in (
        dict(value=5.0),
        dict(value=float("nan")),
        dict(value=1e-4, waited=-1),
        dict(value=1e-4, best="x"),
    ):
        with pytest.raises(ValueError, match="learning_rate"):
            controls.restore({"learning_rate": forged})


def test_schedule_says_that_they_are_decided_in_the_run():
    changes = dict(learning_rate_schedule={"type": "kl_adaptive"}, ent_coef_schedule="linear", ent_coef=0.1)
    drawn = draw_text(config_of(**changes))
    assert "decided in the run\n  learning_rate  0.00025 at first, then by approx_kl\n" in drawn
    assert "env_kwargs/level  9 → 100" in drawn


@pytest.mark.parametrize("name", ["curriculum.yaml", "decided.yaml"])
def test_the_examples_of_the_page_train_and_resume(name, tmp_path):
    blocks = dict(re.findall(r"```yaml\n# (\w+\.yaml)\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL))
    (tmp_path / name).write_text(blocks[name])
    config = load_config(tmp_path / name, ["total_timesteps=2000", "eval_episodes=1"])
    run = train(config, run_dir=tmp_path / "run", quiet=True).run_dir
    assert resume(run, quiet=True).metrics == train(config, run_dir=tmp_path / "again", quiet=True).metrics


def test_a_knob_that_is_turned_off_is_drawn_up_to_there():
    drawn = draw_text(config_of(), [Curve("target_kl", [64, 128, 192], [0.02, 0.02, None])])
    assert "target_kl  0.02 → off" in drawn
    assert braille([0.0, 0.0, None, None], rows=1) == ["\u28c0\u2800"]
