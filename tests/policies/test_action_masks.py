"""Action masks: no probability on a forbidden action, ever, in acting, loss and evaluation.

The probes raise when a forbidden action is taken, so every run below would fail at the first one.
"""

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import distributions as reference

from rl_training import evaluate_checkpoint, load_config, load_policy, train
from rl_training.algorithms.distributions import Categorical
from rl_training.algorithms.dqn import q_target
from rl_training.algorithms.masking import mask_logits, pick_allowed
from rl_training.envs.action_masks import MaskInObservation, check_mask_space
from rl_training.envs.making import make_environments
from rl_training.errors import ConfigError, RunError
from rl_training.runtime import dqn_trainer
from rl_training.runtime.controls import Controls
from rl_training.runtime.dqn_trainer import DQNTrainer
from rl_training.runtime.evaluation import evaluate
from rl_training.runtime.off_policy import random_actions
from rl_training.runtime.ppo_trainer import PPOConfig, PPOTrainer
from rl_training.state.seeding import seed_everything

MASKED_ALGORITHMS = {
    "ppo": {},
    "a2c": {},
    "trpo": dict(num_minibatches=2),
    "ppg": dict(policy_iterations=2, auxiliary_minibatches=2, num_minibatches=2, auxiliary_epochs=1),
    "recurrent_ppo": dict(num_minibatches=2, recurrent_size=8),
}


def test_probabilities_entropy_and_gradients_are_those_of_the_allowed_actions():
    torch.manual_seed(0)
    logits = torch.randn(6, 4, requires_grad=True)
    mask = torch.tensor([[1, 0, 1, 1], [0, 1, 0, 0], [1, 1, 1, 1], [0, 0, 1, 1], [1, 0, 0, 1], [0, 1, 1, 0]])
    blocked = mask_logits(logits, {"action_mask": mask, "x": None})
    family = Categorical(4)
    probability = blocked.softmax(-1)
    assert (probability[mask == 0] == 0).all() and (probability[mask == 1] > 0).all()
    allowed = [row[m == 1] for row, m in zip(logits, mask, strict=True)]
    entropy = torch.stack([reference.Categorical(logits=row).entropy() for row in allowed])
    torch.testing.assert_close(family.entropy(blocked), entropy)
    other = mask_logits(torch.randn(6, 4), {"action_mask": mask})
    assert family.kl(blocked, other).isfinite().all() and family.kl(blocked, blocked).abs().max() < 1e-6
    action = family.sample(blocked)
    loss = (
        family.log_prob(blocked, action).sum()
        + family.entropy(blocked).sum()
        + family.kl(other, blocked).sum()
    )
    (slope,) = torch.autograd.grad(loss, logits)
    assert (slope[mask == 0] == 0).all() and slope.isfinite().all()
    for _ in range(200):
        drawn = family.sample(blocked)
        assert mask.gather(1, drawn[:, None]).all() and mask.gather(1, family.mode(blocked)[:, None]).all()


def test_observations_without_a_mask_are_left_alone():
    logits = torch.randn(2, 3)
    assert mask_logits(logits, torch.zeros(2, 5)) is logits
    assert mask_logits(logits, {"x": torch.zeros(2, 5)}) is logits


def config_for(algo, env_id, **changes):
    settings = dict(
        env_id=f"probe/{env_id}-v0", num_envs=4, num_steps=32, hidden_sizes=[16], eval_episodes=20
    )
    settings |= dict(total_timesteps=2000, learning_rate=3e-3, normalize_observations=True)
    return load_config(dict(algo=algo) | settings | MASKED_ALGORITHMS[algo] | changes)


@pytest.mark.parametrize("algo", MASKED_ALGORITHMS)
@pytest.mark.parametrize(
    ("env_id", "where"), [("Masked", "info"), ("Masked", "obs"), ("MaskedTwice", "info")]
)
def test_no_forbidden_action_is_ever_taken(algo, env_id, where, tmp_path):
    """In training, in evaluation greedy and drawn, and by the loaded policy."""
    kwargs = {"where": where} if env_id == "Masked" else {}
    result = train(config_for(algo, env_id, env_kwargs=kwargs), run_dir=tmp_path / "run")
    assert result.metrics["episodes"] > 500
    for sample in (False, True):
        evaluate_checkpoint(result.run_dir, episodes=50, sample=sample)
    policy = load_policy(result.run_dir)
    env = gym.make(f"probe/{env_id}-v0", **kwargs)
    obs, info = env.reset(seed=0)
    for _ in range(3):
        if where == "info":
            masks = info["action_mask"]
            flat = np.concatenate(masks) if isinstance(masks, tuple) else masks
            obs = {"observation": obs, "action_mask": flat}
        obs, _, _, _, info = env.step(policy.act(obs, sample=True))


def test_a_mask_helps_to_learn():
    """The best action is the highest allowed one, which changes at every step: only the mask tells which."""
    config = config_for("ppo", "Masked", total_timesteps=10**6, learning_rate=1e-2)
    seed_everything(1)
    trainer = PPOTrainer(config)
    for i in range(40):
        trainer.iterate(Controls.of(config).at(i))
    assert evaluate(trainer.agent, config, episodes=100, seed=3)["mean_return"] > 2.9


DQN = dict(algo="dqn", env_id="probe/Masked-v0", learning_starts=200, buffer_size=2000, hidden_sizes=[16])
DQN |= dict(
    learning_rate=3e-3, epsilon=0.3, target_update_interval=20, eval_episodes=20, gamma=0.9, num_envs=2
)
DQN |= dict(total_timesteps=1200, replay_ratio=0.5, train_frequency=2)
# The step size falls to 0: with a constant one a policy that was right is left again, on some seeds.
ALL_SWITCHES = dict(double=True, dueling=True, prioritized=True, n_step=2)
ALL_SWITCHES |= dict(total_timesteps=2000, learning_rate_schedule="linear")


@pytest.mark.parametrize(
    ("where", "changes"),
    [("info", {}), ("obs", ALL_SWITCHES)],
)
def test_dqn_takes_no_forbidden_action_and_learns_which_is_best(where, changes, tmp_path):
    """Not at random before learning starts, nor with ε, nor greedily, nor loaded."""
    result = train(load_config(DQN | changes | dict(env_kwargs={"where": where})), run_dir=tmp_path / "run")
    assert evaluate_checkpoint(result.run_dir, episodes=100)["mean_return"] > 2.9
    evaluate_checkpoint(result.run_dir, episodes=50, sample=True)


def test_a_random_action_is_any_of_the_allowed():
    mask = np.array([[0, 1, 0, 1, 1], [1, 0, 0, 0, 0]], np.int8)
    for noise, chosen in ((0.0, [1, 0]), (0.34, [3, 0]), (0.67, [4, 0]), (1.0, [4, 0])):
        assert pick_allowed(np.full(2, noise), mask).tolist() == chosen
    rng = np.random.default_rng(0)
    drawn = pick_allowed(rng.random(3000), np.repeat(mask[:1], 3000, 0))
    np.testing.assert_allclose(np.bincount(drawn, minlength=5) / 3000, [0, 1 / 3, 0, 1 / 3, 1 / 3], atol=0.03)
    obs = {"action_mask": np.array([[0] * 5], np.int8)}
    with pytest.raises(RunError, match="allows no action"):
        random_actions(gym.spaces.Discrete(5), 1, obs)


@pytest.mark.parametrize("double", [False, True])
def test_the_maximum_in_the_target_is_over_allowed_actions(double, monkeypatch):
    config = load_config(DQN | dict(double=double, compiled_updates=False))
    seed_everything(1)
    trainer = DQNTrainer(config)
    knobs = Controls.of(config)
    for i in range(20):
        trainer.gather(knobs.at(4 * i))
    with torch.no_grad():
        trainer.target.head.bias.copy_(torch.arange(5.0).flip(0))  # it likes the first action best
    targets = []
    monkeypatch.setattr(
        dqn_trainer, "q_target", lambda *values: targets.append(q_target(*values)) or targets[0]
    )
    seed_everything(2)
    batch = trainer.on_device(trainer.replay.sample(config.batch_size, 0.9))
    with torch.no_grad():
        q = trainer.target(batch["next_obs"])
        chooser = trainer.agent.network(batch["next_obs"]) if double else q
    expected = []
    for row in range(config.batch_size):
        allowed = batch["next_obs"]["action_mask"][row].nonzero().flatten().tolist()
        best = max(allowed, key=lambda action: chooser[row, action].item())
        expected.append(batch["reward"][row] + batch["discount"][row] * q[row, best])
    seed_everything(2)
    trainer.update(knobs.at(80).after(0))
    torch.testing.assert_close(targets[0], torch.stack(expected))
    free = (batch["discount"] > 0) & (chooser.argmax(-1) != 4)
    assert (batch["next_obs"]["action_mask"].gather(1, chooser.argmax(-1, keepdim=True)) == 0)[free].any()


def test_a_stored_log_probability_is_that_of_the_masked_policy():
    trainer = PPOTrainer(config_for("ppo", "Masked"))
    rollout, _ = trainer.collect()
    obs = {key: column.flatten(0, 1) for key, column in rollout["obs"].items()}
    with torch.no_grad():
        logits = trainer.agent.network.policy(trainer.agent.inputs(obs))
        log_prob, _, _ = trainer.agent.evaluate(trainer.agent.inputs(obs), rollout["action"].flatten())
    torch.testing.assert_close(log_prob, rollout["log_prob"].flatten())
    assert (logits.softmax(-1)[obs["action_mask"] == 0] == 0).all()
    alone = obs["action_mask"].sum(-1) == 1
    assert alone.any() and (log_prob[alone] == 0).all()  # where one action is allowed, it is certain


def test_the_mask_is_no_input_of_the_network():
    trainer = PPOTrainer(config_for("ppo", "Masked", env_kwargs={"where": "obs"}))
    assert trainer.agent.network.actor_encoder[0].features == 1


def test_environments_in_processes_of_their_own_give_masks_too():
    config = config_for("ppo", "Masked", vectorization="async", num_envs=2)
    environments = make_environments(config, 2, 1, "train")
    assert environments.obs["action_mask"].shape == (2, 5)
    step = environments.step(environments.obs["action_mask"].argmax(-1))
    assert set(step.next_obs) == {"observation", "action_mask"}
    environments.close()


class Forgetful(gym.Wrapper):
    """Masked without the mask in some of its infos."""

    def __init__(self, env, when):
        super().__init__(env)
        self.when = when

    def step(self, action):
        *stepped, info = self.env.step(action)
        over = stepped[2] or stepped[3]
        return (*stepped, {} if over == (self.when == "at the end") else info)


def test_a_mask_may_be_missing_where_an_episode_ended_and_nowhere_else():
    env = MaskInObservation(Forgetful(gym.make("probe/Masked-v0"), "at the end"))
    obs, _ = env.reset(seed=0)
    for _ in range(3):
        assert obs["action_mask"].tolist() != [1] * 5
        obs, _, terminated, truncated, _ = env.step(obs["action_mask"].argmax())
    assert (terminated or truncated) and obs["action_mask"].tolist() == [1] * 5
    assert obs["action_mask"].dtype == np.int8

    env = MaskInObservation(Forgetful(gym.make("probe/Masked-v0"), "before the end"))
    obs, _ = env.reset(seed=0)
    with pytest.raises(RunError, match="at the first reset but not later") as caught:
        env.step(obs["action_mask"].argmax())
    assert "\n" not in str(caught.value)


def test_a_mask_that_allows_nothing_is_refused(tmp_path):
    config = config_for("ppo", "Masked", env_kwargs={"where": "obs"})
    trainer = PPOTrainer(config)
    obs = {
        "vector": np.ones((2, 1), np.float32),
        "action_mask": np.array([[1, 0, 0, 0, 0], [0] * 5], np.int8),
    }
    with pytest.raises(RunError, match="environment 1 gives an action_mask that allows no action"):
        trainer.agent.act(obs, (), explore=True)


@pytest.mark.parametrize(
    ("mask", "match"),
    [
        (gym.spaces.MultiBinary(4), "each of the 5"),
        (gym.spaces.Box(0, 1, (5,), np.float32), "whole numbers"),
        (None, "contains only"),
    ],
)
def test_a_mask_that_does_not_fit_is_refused(mask, match):
    parts = {"vector": gym.spaces.Box(-1, 1, (2,))} if mask is not None else {}
    space = gym.spaces.Dict(parts | {"action_mask": mask or gym.spaces.MultiBinary(5)})
    with pytest.raises(ConfigError, match=match):
        check_mask_space("X-v0", space, gym.spaces.Discrete(5))
    check_mask_space("X-v0", gym.spaces.Box(-1, 1, (2,)), gym.spaces.Discrete(5))


def test_taxi_gives_its_mask_in_the_info():
    newest = max(name for name in gym.registry if name.startswith("Taxi-v"))
    config = PPOConfig(env_id=newest, num_envs=2, total_timesteps=100)
    environments = make_environments(config, 2, 1, "train")
    assert set(environments.obs) == {"observation", "action_mask"}
    assert environments.obs["action_mask"].shape == (2, 6)
