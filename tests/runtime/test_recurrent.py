"""Memory: sequences, the kernel over them against step by step, and what the carry must and must not remember."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_training.data.sequences import cut_sequences, sequence_minibatches
from rl_training.runtime.controls import Controls
from rl_training.runtime.evaluation import evaluate
from rl_training.runtime.ppo_trainer import PPOConfig, PPOTrainer
from rl_training.runtime.recurrent_ppo_trainer import RecurrentPPOConfig, RecurrentPPOTrainer
from rl_training.runtime.workflows import LoadedPolicy, load_policy
from rl_training.state.seeding import seed_everything


def test_sequences_by_hand():
    """Two lanes of four steps; lane 0 ends an episode at step 1, lane 1 at its last step."""
    ended = np.array([[0, 0], [1, 0], [0, 0], [0, 1]], bool)
    sequences = cut_sequences(ended)
    # Lane 0: rows 0, 2 | 4, 6; lane 1: rows 1, 3, 5, 7.
    assert sequences.rows.T.tolist() == [[0, 2, 0, 0], [4, 6, 0, 0], [1, 3, 5, 7]]
    assert sequences.lanes.tolist() == [0, 0, 1]
    assert sequences.fresh.tolist() == [False, True, False]
    assert sequences.rows.flatten()[sequences.places].tolist() == list(range(8))


def test_minibatches_hold_whole_lanes_and_every_row_once_an_epoch():
    torch.manual_seed(0)
    steps, lanes = 6, 5
    column = torch.arange(steps * lanes).reshape(steps, lanes)
    carry = (torch.arange(lanes).float().unsqueeze(1),)
    parts = list(sequence_minibatches({"x": column}, torch.zeros(steps, lanes).bool(), carry, 2, 2))
    assert [len(part["x"]) for part in parts] == [12, 18, 12, 18]
    for epoch in (parts[:2], parts[2:]):
        assert torch.cat([part["x"] for part in epoch]).sort().values.tolist() == list(range(30))
    for part in parts:
        in_order = part["x"][part["sequences"].rows]  # [L, S]: each column is one lane's steps
        assert torch.equal(in_order % lanes, in_order[:1].expand_as(in_order) % lanes)
        assert torch.equal(in_order[0] % lanes, part["carry"][0][part["sequences"].lanes, 0].long())


@pytest.mark.parametrize(("shared_trunk", "memories"), [(True, 1), (False, 2)])
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_a_minibatch_goes_through_each_memory_in_one_call(cell, shared_trunk, memories):
    """Not step by step, and not once for each sequence, whether an episode ends inside or not."""
    trainer = make_trainer("CartPole-v1", cell=cell, shared_trunk=shared_trunk)
    carry = trainer.collector.carry
    rollout, metrics = trainer.collect()
    estimates = trainer.estimate_advantages(rollout, Controls.of(trainer.config).at(0).after(0), metrics)
    batch = trainer.time_batch(rollout, estimates)
    calls = []
    for module in trainer.agent.network.modules():
        if isinstance(module, torch.nn.LSTM | torch.nn.GRU):
            module.register_forward_hook(lambda _, inputs, __: calls.append(inputs[0].shape[:2]))
    unbroken = torch.zeros(20, 3, dtype=torch.bool)
    cut = unbroken.clone()
    cut[11, 1] = True
    for ended, shape in ((unbroken, (20, 3)), (cut, (20, 4))):
        calls.clear()
        (part,) = sequence_minibatches(batch, ended, carry, 1, 1)
        trainer.evaluate(part)
        assert calls == [shape] * memories


def make_trainer(env_id="probe/Counting-v0", **changes):
    settings = dict(num_envs=3, num_steps=20, num_minibatches=1, hidden_sizes=[8], recurrent_size=6)
    seed_everything(1)
    return RecurrentPPOTrainer(RecurrentPPOConfig(env_id=env_id, total_timesteps=10**6, **settings | changes))


CELLS = [("lstm", False), ("gru", False), ("lstm", True), ("gru", True)]


SWITCHES = [dict(cell=cell, shared_trunk=shared_trunk) for cell, shared_trunk in CELLS]
PREVIOUS = "rl_training.envs.wrappers:PreviousActionAndReward"
SWITCHES += [
    dict(recurrent_layers=2),
    dict(recurrent_layers=3, cell="gru", shared_trunk=True),
    dict(critic_memory=False),
    dict(wrappers=[PREVIOUS]),
    dict(recurrent_layers=2, cell="gru", critic_memory=False, wrappers=[PREVIOUS]),
]


@pytest.mark.parametrize("switches", SWITCHES, ids=str)
@pytest.mark.parametrize("env_id", ["probe/Counting-v0", "Pendulum-v1", "probe/DictAndPicture-v0"])
def test_learning_sees_what_acting_saw(env_id, switches):
    """Before the first gradient step the ratio is 1 and the values are those stored, across episodes and rollouts."""
    trainer = make_trainer(env_id, normalize_observations=True, **switches)
    knobs = Controls.of(trainer.config)
    for i in range(2):
        trainer.iterate(knobs.at(i))
    assert (
        any(part.abs().max() > 0 for part in trainer.collector.carry) or env_id == "probe/DictAndPicture-v0"
    )
    carry = trainer.collector.carry
    rollout, metrics = trainer.collect()
    estimates = trainer.estimate_advantages(rollout, knobs.at(0).after(0), metrics)
    batch = trainer.time_batch(rollout, estimates)
    ended = rollout["terminated"] | rollout["truncated"]
    with torch.no_grad():
        for part in sequence_minibatches(batch, ended, carry, 1, 2):
            log_prob, _, value = trainer.evaluate(part)
            torch.testing.assert_close(log_prob, part["log_prob"], atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(value, part["value"], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_an_episode_is_not_seen_through_the_one_before(cell):
    """The gradient of a step's output by an observation is 0 across an episode's end, and not within one."""
    trainer = make_trainer(cell=cell)
    network = trainer.agent.network
    ended = np.zeros((6, 1), bool)
    ended[2] = True
    obs = torch.randn(6, 2, requires_grad=True)
    carry = tuple(torch.randn_like(part) for part in network.initial(1))
    _, value = network(obs, cut_sequences(ended), carry)
    (slope,) = torch.autograd.grad(value[4], obs, retain_graph=True)
    assert (slope[:3] == 0).all() and (slope[3:5] != 0).any(1).all() and (slope[5] == 0).all()
    other = tuple(torch.randn_like(part) for part in carry)
    _, moved = network(obs, cut_sequences(ended), other)
    assert (value[:3] != moved[:3]).all() and torch.equal(value[3:], moved[3:])


def test_the_carry_begins_anew_where_an_episode_ends():
    trainer = make_trainer(num_steps=1)
    for _ in range(40):
        rollout, _ = trainer.collect()
        ended = (rollout["terminated"] | rollout["truncated"])[0]
        for part in trainer.collector.carry:
            assert (part[ended] == 0).all()
            assert (part[~ended] != 0).any(1).all()


def test_the_value_at_a_time_limit_is_that_of_the_final_observation_with_the_memory_before_it():
    """Counting truncates half its episodes; the bootstrap must not use the memory of the episode that follows."""
    trainer = make_trainer(num_steps=30)
    network = trainer.agent.network
    rollout, _ = trainer.collect()
    found = 0
    for lane in range(3):
        carry = network.initial(1)
        for t in range(30):
            row = rollout["obs"][t, lane][None]
            _, value, carry = network.step(row, carry)
            assert value.item() == pytest.approx(rollout["value"][t, lane].item(), abs=1e-5)
            if rollout["truncated"][t, lane]:
                final = row + torch.tensor([[0.0, 1.0]])
                expected = network.step(final, carry)[1].item()
                assert rollout["next_value"][t, lane].item() == pytest.approx(expected, abs=1e-5)
                found += 1
            if rollout["truncated"][t, lane] or rollout["terminated"][t, lane]:
                carry = network.initial(1)
    assert found > 3


def test_the_layers_are_torchs_cells_on_top_of_each_other():
    """Each layer by an LSTM of its own, whose states lie side by side in the carry."""
    trainer = make_trainer(recurrent_layers=2)
    memory = trainer.agent.network.actor_memory
    cells = []
    for layer in range(2):
        weights = {
            name.replace(f"_l{layer}", "_l0"): parameter
            for name, parameter in memory.cell.named_parameters()
            if name.endswith(f"_l{layer}")
        }
        size = weights["weight_ih_l0"].shape[1]
        cells.append(torch.nn.LSTM(size, 6))
        cells[-1].load_state_dict(weights)
        assert (weights["bias_ih_l0"][6:12] == 1).all()  # what keeps the state, in every layer
        assert weights["bias_ih_l0"].sum() == 6
    obs = torch.randn(5, 3, 2)
    state = tuple(torch.randn(3, 12) for _ in range(2))
    given = tuple(part.clone() for part in state)
    with torch.no_grad():
        found = []
        for row in obs:
            features, state = memory.step(row, state)
            found.append(features)
        layer_input, after = memory.encoder(obs.flatten(0, 1)).unflatten(0, (5, 3)), []
        for layer, cell in enumerate(cells):
            begins = tuple(part[None, :, 6 * layer : 6 * layer + 6].contiguous() for part in given)
            layer_input, ends = cell(layer_input, begins)
            after.append(ends)
    torch.testing.assert_close(torch.stack(found), layer_input)
    for part, ends in zip(state, zip(*after, strict=True), strict=True):
        torch.testing.assert_close(part, torch.cat([end[0] for end in ends], 1))


def test_a_critic_without_memory_sees_the_observation_alone():
    trainer = make_trainer(critic_memory=False)
    network = trainer.agent.network
    assert len(network.initial(1)) == 2 and network.critic_memory is None  # the actor's alone
    obs, carry = torch.randn(4, 2), network.initial(4)
    others = tuple(torch.randn_like(part) for part in carry)
    with torch.no_grad():
        (parameters, value, _), (moved, same, _) = network.step(obs, carry), network.step(obs, others)
    assert torch.equal(value, same) and not torch.equal(parameters, moved)


def test_the_previous_action_and_reward_are_those_of_the_step_before():
    trainer = make_trainer(wrappers=[PREVIOUS], num_steps=30)
    rollout, _ = trainer.collect()
    seen, ended = rollout["obs"], (rollout["terminated"] | rollout["truncated"])[:-1]
    actions = torch.nn.functional.one_hot(rollout["action"], 2).float()[:-1]
    for name, column in (("previous_action", actions), ("previous_reward", rollout["reward"][:-1, :, None])):
        expected = torch.where(ended.unsqueeze(-1), 0.0, column)
        torch.testing.assert_close(seen[name][1:], expected)
        assert (seen[name][0] == 0).all() and ended.any() and not ended.all()


def recall_score(trainer, iterations):
    knobs = Controls.of(trainer.config)
    for i in range(iterations):
        seed_everything(i)
        trainer.iterate(knobs.at(i * trainer.config.steps_per_iteration))
    return evaluate(trainer.agent, trainer.config, episodes=400, seed=5)["mean_return"]


RECALL = dict(env_id="probe/Recall-v0", num_envs=16, num_steps=42, num_minibatches=2, update_epochs=4)
RECALL |= dict(learning_rate=5e-3, gamma=0.95, ent_coef=0.01, total_timesteps=10**6)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_a_cue_is_recalled_after_twenty_steps(cell):
    seed_everything(1)
    trainer = RecurrentPPOTrainer(
        RecurrentPPOConfig(**RECALL, cell=cell, hidden_sizes=[16], recurrent_size=24)
    )
    assert recall_score(trainer, 40) >= 0.99


def test_without_a_memory_the_cue_is_lost():
    seed_everything(1)
    assert recall_score(PPOTrainer(PPOConfig(**RECALL, hidden_sizes=[16])), 40) < 0.6


def test_a_policy_of_previous_actions_is_evaluated_loaded_and_told_what_is_missing(tmp_path):
    from rl_training import evaluate_checkpoint, train
    from rl_training.envs.wrappers import PreviousActionAndReward

    settings = dict(total_timesteps=128, num_envs=2, num_steps=32, num_minibatches=1, eval_episodes=1)
    config = RecurrentPPOConfig(
        env_id="rl_training/CartPoleNoVelocity-v1", wrappers=[PREVIOUS], recurrent_layers=2, **settings
    )
    run = train(config, run_dir=tmp_path / "run", quiet=True).run_dir
    scored = evaluate_checkpoint(run, episodes=2)  # without trust: the wrapper is ours
    policy, env = load_policy(run), PreviousActionAndReward(gym.make(config.env_id))
    obs, _ = env.reset(seed=0)
    assert policy.act(obs) in (0, 1) and scored["episodes"] == 2
    assert [part.shape for part in policy.carry] == [(1, 128)] * 4
    with pytest.raises(ValueError, match="previous_action"):
        policy.act(obs["observation"])


def test_a_loaded_policy_carries_its_memory(tmp_path):
    from rl_training import train

    config = RecurrentPPOConfig(
        env_id="rl_training/CartPoleNoVelocity-v1",
        total_timesteps=256,
        num_envs=2,
        num_steps=32,
        num_minibatches=1,
        eval_episodes=1,
    )
    result = train(config, run_dir=tmp_path / "run")
    policy: LoadedPolicy = load_policy(result.run_dir)
    env = gym.make(config.env_id)
    obs, _ = env.reset(seed=0)
    network, carry = policy.agent.network, policy.agent.initial(1)
    for _ in range(5):
        with torch.no_grad():
            parameters, _, carry = network.step(torch.as_tensor(obs)[None], carry)
        assert policy.act(obs) == parameters.argmax().item()
        torch.testing.assert_close(policy.carry, carry)
        obs = env.step(0)[0]
    assert obs.shape == (2,)
    policy.reset()
    policy.act(obs)
    fresh = network.step(torch.as_tensor(obs)[None], policy.agent.initial(1))[2]
    torch.testing.assert_close(policy.carry, fresh)
