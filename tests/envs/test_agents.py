"""Several agents in one environment, by PettingZoo's parallel API: lanes of one policy."""

import json

import numpy as np
import pytest
from runs import assert_same_run, stopped_after

from rl_training import evaluate_checkpoint, load_config, resume, train
from rl_training.envs.making import make_environments
from rl_training.errors import ConfigError, EnvironmentFault, UserError
from rl_training.runtime.metrics import returns_by_agent
from rl_training.tools.playing import play_run

SMALL = dict(algo="ppo", num_envs=4, num_steps=16, hidden_sizes=[16], eval_episodes=3, total_timesteps=256)


def config_of(**changes):
    return load_config(SMALL | dict(env_id="wrapping:Meeting", max_episode_steps=6) | changes)


def test_agents_are_lanes_and_a_world_is_replayed_whole():
    one, two = (make_environments(config_of(), 4, 1, "train") for _ in range(2))
    assert one.agents == ["left", "right"] and one.obs.shape == (4, 2)
    assert one.obs[0].tolist() == one.obs[1][::-1].tolist()  # each sees itself first
    for t in range(8):
        step = one.step(np.array([1, 0, 1, t % 2]))
        assert step.reward[1] == pytest.approx(2 * step.reward[0])
    finished = one.take_finished()
    assert [episode[0] for episode in finished] == [0, 1, 2, 3] and {episode[2] for episode in finished} == {
        6
    }
    two.load_state_dict(one.state_dict() | {"finished": []})
    assert two.lengths.tolist() == [2] * 4
    for _ in range(9):
        steps = [each.step(np.array([1, 0, 0, 1])) for each in (one, two)]
        assert np.array_equal(steps[0].next_obs, steps[1].next_obs)
        assert np.array_equal(steps[0].reward, steps[1].reward)


def test_returns_are_logged_by_agent_and_stopped_runs_end_the_same(tmp_path, monkeypatch):
    train(config_of(checkpoint_interval=64), run_dir=tmp_path / "whole", quiet=True)
    lines = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    left, right = (lines[0][f"episode_return/{agent}"] for agent in ("left", "right"))
    assert right == pytest.approx(2 * left) and left < 0

    with stopped_after(2, monkeypatch):
        train(config_of(checkpoint_interval=64), run_dir=tmp_path / "run", quiet=True)
    resume(tmp_path / "run", trust=True, quiet=True)
    assert_same_run(tmp_path / "whole", tmp_path / "run")
    assert evaluate_checkpoint(tmp_path / "run", trust=True, episodes=5)["episodes"] == 5
    with pytest.raises(UserError, match="wrapping:Meeting cannot be shown: it has several agents"):
        play_run(tmp_path / "run", trust=True)


def test_it_learns_to_meet(tmp_path):
    settings = dict(num_envs=16, num_steps=30, total_timesteps=9600, learning_rate=3e-3, eval_episodes=20)
    result = train(config_of(**settings), run_dir=tmp_path / "run", quiet=True)
    assert result.metrics["eval/mean_return"] > -16 > -27 > first_return(tmp_path / "run")


def first_return(run):
    return json.loads((run / "metrics.jsonl").read_text().splitlines()[0])["episode_return"]


def test_means_of_the_episodes_of_each_agent():
    episodes = [(0, 1.0, 5), (1, 2.0, 5), (2, 3.0, 5), (3, 6.0, 5)]
    assert returns_by_agent(["a", "b"], episodes) == {"episode_return/a": 2.0, "episode_return/b": 4.0}
    assert returns_by_agent((), episodes) == {}


@pytest.mark.parametrize("algo", ["impala", "dqn"])
def test_fleets_and_replays_take_agents_too(algo, tmp_path):
    own = dict(num_actors=2) if algo == "impala" else dict(learning_starts=64, buffer_size=200, batch_size=8)
    settings = {name: value for name, value in SMALL.items() if algo == "impala" or name != "num_steps"}
    config = load_config(settings | dict(algo=algo, env_id="wrapping:Meeting", max_episode_steps=6) | own)
    result = train(config, run_dir=tmp_path / "run", quiet=True)
    assert {"episode_return/left", "episode_return/right"} <= result.metrics.keys()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(num_envs=3), "num_envs: 3 is not a multiple of the 2 agents"),
        (dict(env_kwargs={"odd_one": True}), "agents share one policy, but right has another action_space"),
        (dict(frame_stack=2), "are for environments of one agent; wrapping:Meeting has several"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(changes, words, tmp_path):
    with pytest.raises(ConfigError) as refused:
        train(config_of(**changes), run_dir=tmp_path / "run", quiet=True)
    assert words in str(refused.value) and "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_agents_that_end_apart_stop_the_run(tmp_path):
    with pytest.raises(EnvironmentFault, match="the episodes of its agents must end together"):
        train(config_of(env_kwargs={"leaves_early": True}), run_dir=tmp_path / "run", quiet=True)
