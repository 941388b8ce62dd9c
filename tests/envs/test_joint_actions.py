"""Tuple and Dict actions, with masks; Tuple observations."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import distributions as reference

from rl_training import evaluate_checkpoint, load_config, load_policy, train
from rl_training.algorithms.distributions import Bernoulli, DiagonalGaussian, Joint, MultiCategorical
from rl_training.data.demonstrations import check_fit, load_demonstrations
from rl_training.envs.action_masks import MaskInObservation, num_choices
from rl_training.envs.environments import Environments
from rl_training.envs.lanes import LocalLanes
from rl_training.envs.making import make_environments
from rl_training.envs.spaces import JointCodec, action_codec, same_layout, space_from_json, space_to_json
from rl_training.envs.wrappers import TupleAsDict
from rl_training.errors import ConfigError, RunError
from rl_training.networks.actor_critic import ActionHead, action_family
from rl_training.runtime.workflows import record_demonstrations
from rl_training.tools.exporting import export_policy
from rl_training.trees import tree_leaves

SPACE = gym.make("probe/JointTask-v0").unwrapped.action_space
SMALL = dict(num_envs=3, num_steps=16, total_timesteps=400, hidden_sizes=[8], eval_episodes=4)
ON_POLICY = {
    "ppo": {},
    "a2c": {},
    "trpo": dict(num_minibatches=2),
    "ppg": dict(policy_iterations=2, auxiliary_minibatches=2, num_minibatches=2, auxiliary_epochs=1),
    "recurrent_ppo": dict(num_minibatches=1, recurrent_size=8),
    "impala": dict(num_actors=2, num_envs=2),
    "appo": dict(num_actors=2, num_envs=2, num_minibatches=2, update_epochs=2),
}


def test_the_parts_are_independent_and_each_is_of_its_own_family():
    torch.manual_seed(0)
    family = Joint((Bernoulli(2), MultiCategorical((3,)), DiagonalGaussian(2)), (2, 1, 2))
    parameters = torch.randn(5, family.num_parameters)
    assert (family.num_parameters, family.num_scales, family.logits) == (2 + 3 + 4, 2, (2, 3, 4))
    coins, choice, mean, log_std = parameters.split([2, 3, 2, 2], -1)
    parts = [
        reference.Independent(reference.Bernoulli(logits=coins), 1),
        reference.Categorical(logits=choice),
        reference.Independent(reference.Normal(mean, log_std.exp()), 1),
    ]
    action = family.sample(parameters)
    assert action.shape == (5, 5) and action.dtype == torch.float32
    taken = [action[:, :2], action[:, 2], action[:, 3:]]
    expected = sum(part.log_prob(one) for part, one in zip(parts, taken, strict=True))
    torch.testing.assert_close(family.log_prob(parameters, action), expected)
    torch.testing.assert_close(family.entropy(parameters), sum(part.entropy() for part in parts))
    assert family.kl(parameters, parameters).abs().max() < 1e-6
    other = torch.randn(5, family.num_parameters)
    assert (family.kl(parameters, other) > 0).all()
    mode = family.mode(parameters)
    assert torch.equal(mode[:, 2], choice.argmax(-1).float()) and torch.equal(mode[:, 3:], mean)


def test_a_mask_blocks_the_choices_and_nothing_else():
    head = ActionHead(4, action_family(SPACE), 0.0)
    mask = torch.tensor([[1, 0, 1, 0, 1, 1, 1, 0]])  # kind (3), then the pair (2 + 3)
    features = torch.randn(1, 4)
    free, blocked = (head(features, obs) for obs in (torch.zeros(1), {"action_mask": mask, "x": 0}))
    moved = (free != blocked)[0].nonzero().flatten().tolist()
    # coins (2), kind (3), move (2), pair (5), then two log standard deviations
    assert free.shape == (1, 14) and moved == [3, 7, 11]


def test_model_space_and_the_environments_actions():
    codec = action_codec(SPACE)
    assert isinstance(codec, JointCodec)
    rows = np.array([[1, 0, 2, 0.5, -3.0, 1, 2], [0, 1, 0, -0.25, 0.0, 0, 0]], np.float32)
    first, second = codec.to_env(rows)
    assert SPACE.contains(first) and SPACE.contains(second)
    assert first["kind"] == 7 and first["coins"].tolist() == [1, 0]
    assert first["move"][0].tolist() == [1.0, -2.0] and first["move"][1].tolist() == [1, 2]
    assert codec.holds(rows) and not codec.holds(rows.astype(np.float64)) and not codec.holds(rows[:, 1:])
    for column, wrong in ((0, 2.0), (2, 3.0), (2, 0.5), (3, np.nan), (6, -1.0)):
        forged = rows.copy()
        forged[0, column] = wrong
        assert not codec.holds(forged), (column, wrong)


def test_spaces_survive_a_checkpoint():
    again = space_from_json(space_to_json(SPACE))
    assert again == SPACE and same_layout(again, SPACE)
    assert not same_layout(spaces.Tuple((spaces.Discrete(2),)), spaces.Tuple((spaces.Discrete(3),)))
    assert not same_layout(
        spaces.Tuple((spaces.Discrete(2),)), spaces.Tuple((spaces.Discrete(2), spaces.Discrete(2)))
    )
    assert num_choices(SPACE) == (3, 2, 3)


def test_a_tuple_is_seen_as_a_dict_and_masks_of_all_parts_as_one():
    env = MaskInObservation(TupleAsDict(gym.make("probe/JointTask-v0")))
    obs, info = env.reset(seed=3)
    assert list(obs) == ["0", "1", "action_mask"]
    given = info["action_mask"]
    assert obs["action_mask"].tolist() == [*given["kind"], *given["move"][0][0], *given["move"][0][1]]


@pytest.mark.parametrize("algo", ON_POLICY)
def test_every_actor_critic_takes_them_and_obeys_masks(algo, tmp_path):
    config = load_config(
        dict(algo=algo, env_id="probe/JointTask-v0", normalize_observations=True) | SMALL | ON_POLICY[algo]
    )
    result = train(config, run_dir=tmp_path / "run", quiet=True)
    assert evaluate_checkpoint(result.run_dir, sample=True)["episodes"] == 4
    policy = load_policy(result.run_dir)
    seen = (np.zeros(2, np.float32), 1)
    action = policy.act({"0": seen[0], "1": seen[1], "action_mask": np.array([0, 1, 0, 1, 0, 0, 0, 1])})
    assert SPACE.contains(action) and action["kind"] == 6 and action["move"][1].tolist() == [0, 2]
    exported = export_policy(result.run_dir, tmp_path / "policy.pt2")
    assert exported.outputs["action/kind"] == "int64 [batch]" and exported.difference < 1e-5
    assert exported.outputs["action/move/0"] == "float32 [batch, 2]"


def test_episodes_are_recorded_part_by_part_and_read_again(tmp_path):
    config = load_config(dict(algo="ppo", env_id="probe/JointTask-v0") | SMALL)
    run = train(config, run_dir=tmp_path / "run", quiet=True).run_dir
    made = record_demonstrations(run, tmp_path / "demos.npz", episodes=3)
    again = load_demonstrations(str(tmp_path / "demos.npz"))
    for one, other in zip(made.episodes, again.episodes, strict=True):
        parts, same = (dict(tree_leaves(each.actions, "")) for each in (one, other))
        assert list(parts) == ["/coins", "/kind", "/move/0", "/move/1"]
        assert all(np.array_equal(parts[name], same[name]) for name in parts)
        actions = one.actions
        assert all(
            SPACE.contains({"coins": coins, "kind": kind, "move": (where, pair)})
            for coins, kind, where, pair in zip(
                actions["coins"], actions["kind"], actions["move"]["0"], actions["move"]["1"], strict=True
            )
        )
    with pytest.raises(RunError, match="Tuple and Dict actions are recorded to"):
        record_demonstrations(run, "minari:joint/task-v0", episodes=1)
    with pytest.raises(ConfigError, match=r"actions have the parts \['coins', 'kind', 'move'\]"):
        check_fit(again, config.env_id, again_space(run), spaces.Discrete(2), "demos.npz")


def again_space(run):
    return load_policy(run).observation_space


def test_it_learns(tmp_path):
    settings = dict(num_envs=8, num_steps=64, total_timesteps=8_000, learning_rate=5e-3, hidden_sizes=[32])
    config = load_config(dict(algo="ppo", env_id="probe/JointTask-v0", eval_episodes=100) | settings)
    trained = train(config, run_dir=tmp_path / "run", quiet=True).metrics["eval/mean_return"]
    short = load_config(
        config, total_timesteps=1, num_steps=1, num_envs=1, num_minibatches=1, learning_rate=0.0
    )
    untrained = train(short, run_dir=tmp_path / "none", quiet=True).metrics["eval/mean_return"]
    # Of 12 in four steps a random policy earns about 5.
    assert untrained < 7.0 < 10.0 < trained


def test_in_processes_of_their_own_they_do_the_same():
    seen = {}
    for vectorization in ("sync", "async"):
        settings = dict(algo="ppo", vectorization=vectorization, env_kwargs={"masked": False})
        environments = make_environments(load_config(settings, env_id="probe/JointTask-v0"), 2, 1, "train")
        try:
            for t in range(6):
                rows = np.tile(np.array([1, t % 2, t % 3, 0.1 * t, -0.2, t % 2, t % 3], np.float32), (2, 1))
                environments.step(rows)
            saved = environments.state_dict()
            environments.load_state_dict(saved)  # which plays the open episodes again
            seen[vectorization] = environments.returns.tolist(), environments.take_finished()
        finally:
            environments.close()
    assert seen["sync"] == seen["async"] and len(seen["sync"][1]) == 2


def test_actions_outside_the_space_are_not_replayed():
    environments = Environments(
        LocalLanes([TupleAsDict(gym.make("probe/JointTask-v0", masked=False))]), 1, "train"
    )
    environments.step(np.array([[1, 1, 2, 0.0, 0.0, 1, 2]], np.float32))
    saved = environments.state_dict()
    saved["actions"][0][0, 2] = 9.0
    with pytest.raises(Exception, match="outside the action space"):
        environments.load_state_dict(saved)


@pytest.mark.parametrize(
    ("algo", "named"), [("dqn", "Discrete"), ("sac", "Box"), ("dreamer", "Box, Discrete")]
)
def test_all_others_refuse_them_in_one_line(algo, named, tmp_path):
    config = load_config(dict(algo=algo, env_id="probe/JointTask-v0", total_timesteps=100))
    with pytest.raises(ConfigError, match=f"its action is a Dict space; actions must be {named}"):
        train(config, run_dir=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()
