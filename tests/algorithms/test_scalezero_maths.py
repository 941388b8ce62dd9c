"""ScaleZero's parts: adapters, router, cache, stages, losses, the separation of tasks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from rl_training.algorithms.scalezero import (
    adapted_weight,
    adapter_scale,
    interleave,
    is_solved,
    latent_loss,
    mean_where,
    normalised,
    route,
    stage_is_over,
)
from rl_training.networks.adapters import StagedWeight
from rl_training.networks.scalezero import Rows, ScaleZeroNetwork
from rl_training.networks.transformer import Transformer
from rl_training.policies.scalezero import ScaleZeroPolicy, followed
from rl_training.runtime.grouped_adam import GroupedAdam
from rl_training.runtime.scalezero_trainer import ScaleZeroTrainer

STAGES = 4


def make_transformer(length: int = 13, **changes: Any) -> Transformer:
    torch.manual_seed(1)
    sizes = dict(layers=2, heads=2, experts=3, hidden=12, stages=STAGES, rank=2, lora_alpha=2.0) | changes
    made = Transformer(8, length=length, **sizes)
    for parameter in made.parameters():  # away from zeros and from small values, so that all of it counts
        torch.nn.init.normal_(parameter, std=0.4)
    for norm in (module for module in made.modules() if isinstance(module, torch.nn.LayerNorm)):
        torch.nn.init.uniform_(norm.weight, 0.5, 1.5)  # else all tokens look alike
    return made


def make_network(window: int = 6) -> ScaleZeroNetwork:
    torch.manual_seed(2)
    made = ScaleZeroNetwork(
        [spaces.Box(-1, 1, (3,)), spaces.Discrete(5), spaces.Box(-1, 1, (3,))],
        [2, 4, 3],
        latent_size=8,
        window=window,
        hidden_sizes=[10],
        activation="gelu",
        image_encoder="nature",
        support_size=4,
        transformer=dict(layers=2, heads=2, experts=3, hidden=12, stages=STAGES, rank=2, lora_alpha=2.0),
    )
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return made


def test_scales_begin_at_1_and_stay_near_it() -> None:
    logits = torch.tensor([0.0, 0.5493061, -100.0, 100.0])  # tanh(0.5493061) = 0.5
    torch.testing.assert_close(adapter_scale(logits), torch.tensor([1.0, 1.1, 0.8, 1.2]))


def test_a_weight_of_the_second_stage_by_hand() -> None:
    """1.1 · 2 + 0.9 · ½ · (3 · 4) + ½ · (5 · 6) = 22.6"""
    half = 0.5493061
    adapters = [
        (torch.tensor([[3.0]]), torch.tensor([[4.0]])),
        (torch.tensor([[5.0]]), torch.tensor([[6.0]])),
    ]
    found = adapted_weight(torch.tensor([[2.0]]), torch.tensor([half, -half]), adapters, 0.5)
    torch.testing.assert_close(found, torch.tensor([[22.6]]))


def test_a_stage_begins_where_the_one_before_it_stands() -> None:
    weight = StagedWeight(3, 4, 5, stages=STAGES, rank=2, lora_alpha=2.0)
    torch.testing.assert_close(weight(1), weight(0), rtol=0, atol=0)  # B is 0, and the scale 1
    for parameter in (*weight.up[:1], *weight.down[:1], *weight.logits[:1]):
        torch.nn.init.normal_(parameter)
    assert (weight(1) - weight(0)).abs().max() > 0.1
    weight.begin(2)
    torch.testing.assert_close(weight(2), weight(1), rtol=0, atol=0)
    assert weight.logits[1].shape == (2, 3) and not weight.logits[1][1].any(), "its own scale begins at 1"


@pytest.mark.parametrize("stage", range(STAGES))
def test_a_stage_moves_its_adapter_and_its_scales_and_nothing_else(stage: int) -> None:
    """Through the optimizer, whose momentum of earlier stages must not move on what is frozen."""
    transformer = make_transformer()
    groups = {f"stage {number}": transformer.of_stage(number) for number in range(STAGES)}
    everything = {id(parameter) for group in groups.values() for parameter in group}
    assert everything == {id(p) for p in transformer.parameters()}, "each parameter learns in some stage"
    assert sum(len(group) for group in groups.values()) == len(everything), "and in one only"
    optimizer = GroupedAdam(groups)

    def learn(number: int) -> None:
        outputs, _ = transformer(torch.randn(4, 5, 8), transformer.weights(number))
        optimizer.step(outputs.square().sum(), 0.01, 1.0, [f"stage {number}"])

    for earlier in range(stage):
        learn(earlier)
    before = {name: parameter.detach().clone() for name, parameter in transformer.named_parameters()}
    known = [[part.detach().clone() for part in block] for block in transformer.weights(max(stage - 1, 0))]
    learn(stage)
    moved = {name for name, p in transformer.named_parameters() if not torch.equal(p, before[name])}
    if stage == 0:
        assert not [name for name in moved if {"up", "down", "logits"} & set(name.split("."))]
        assert "blocks.0.attend.base" in moved and "position" in moved and "blocks.1.router.weight" in moved
        return
    kinds = {tuple(name.split(".")[-2:]) for name in moved}
    assert kinds == {(kind, str(stage - 1)) for kind in ("up", "down", "logits")}
    again = transformer.weights(stage - 1)
    for block, old in zip(again, known, strict=True):
        for part, was in zip(block, old, strict=True):
            assert torch.equal(part, was), "what the stage before said can be said again"


def test_no_gradient_reaches_what_earlier_stages_learned() -> None:
    weight = StagedWeight(4, 5, stages=STAGES, rank=2, lora_alpha=2.0)
    for parameter in weight.parameters():
        torch.nn.init.normal_(parameter)
    weight(2).sum().backward()
    touched = {name for name, parameter in weight.named_parameters() if parameter.grad is not None}
    assert touched == {"up.1", "down.1", "logits.1"}


def test_a_token_goes_to_one_expert_and_to_the_shared_one() -> None:
    """By hand: the stream grows by the shared expert's output and p times that of the likeliest routed one."""
    block = make_transformer().blocks[0]
    weights = block.weights(0)
    tokens = torch.randn(6, 7, 8)
    query, key, value = block._heads(block.attention_norm(tokens), weights)
    mixed = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    stream = tokens + mixed.transpose(1, 2).flatten(2) @ weights.project.t() + block.project_bias
    normed = block.experts_norm(stream)
    odds = (normed @ block.router.weight.t()).softmax(-1)
    expected = torch.empty_like(stream)
    for i, j in np.ndindex(6, 7):
        x, best = normed[i, j], int(odds[i, j].argmax())
        gated = torch.nn.functional.silu(weights.gate[best] @ x) * (weights.widen[best] @ x)
        shared = torch.nn.functional.gelu(weights.shared_widen @ x + block.shared_bias)
        expected[i, j] = stream[i, j] + weights.shared_narrow @ shared + block.narrow_bias
        expected[i, j] += odds[i, j, best] * (weights.narrow[best] @ gated)
    found, chosen = block(tokens, weights)
    assert chosen.unique().tolist() == [0, 1, 2], "all experts are needed for this test to say something"
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(chosen, odds.argmax(-1))


def test_an_expert_learns_from_its_own_tokens_alone_and_the_router_from_all() -> None:
    block = make_transformer().blocks[0]
    tokens = torch.randn(1, 9, 8)
    outputs, chosen = block(tokens, block.weights(0))
    first = int(chosen[0, 0])
    outputs[0, 0].sum().backward()
    used = block.gate.base.grad.flatten(1).abs().sum(1) > 0
    assert used.tolist() == [expert == first for expert in range(3)]
    assert block.shared_widen.base.grad.any() and block.router.weight.grad.any()


def test_route_takes_the_likeliest() -> None:
    chosen, probability = route(torch.tensor([[1.0, 3.0], [4.0, 1.0]]).log())
    assert chosen.tolist() == [1, 0]
    torch.testing.assert_close(probability, torch.tensor([0.75, 0.8]))


def test_all_ways_through_the_experts_are_one() -> None:
    """Expert by expert, as in learning, and all at once, as in a search."""
    block = make_transformer().blocks[1]
    weights, normed = block.weights(0), torch.randn(20, 8)
    chosen, _ = route(block.router(normed))
    found = block._routed(normed, chosen, weights), block._routed_few(normed, chosen, weights)
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5)
    lonely = torch.full((20,), 2)
    torch.testing.assert_close(
        block._routed(normed, lonely, weights),
        block._routed_few(normed, lonely, weights),
        rtol=1e-5,
        atol=1e-5,
    )


@pytest.mark.parametrize("stage", [0, 2])
def test_nothing_is_seen_before_it_comes(stage: int) -> None:
    transformer = make_transformer()
    tokens = torch.randn(3, 9, 8)
    whole, _ = transformer(tokens, transformer.weights(stage))
    tokens[:, 5:] = torch.randn(3, 4, 8)
    changed, _ = transformer(tokens, transformer.weights(stage))
    torch.testing.assert_close(whole[:, :5], changed[:, :5], rtol=1e-6, atol=1e-6)
    assert (whole[:, 5] - changed[:, 5]).abs().max() > 0.1


@pytest.mark.parametrize("stage", [0, 1, 3])
@pytest.mark.parametrize("prefix", [1, 4])
def test_tokens_through_the_cache_of_a_tree_equal_the_whole_path(stage: int, prefix: int) -> None:
    """A random tree per row, whose nodes lie in slots: each output equals that of the path without a cache, to 1e-5."""
    transformer, count = make_transformer(), 5
    rng = np.random.default_rng(stage + prefix)
    with torch.no_grad():
        weights = transformer.weights(stage)
        paths = [[torch.randn(prefix, 8) for _ in range(count)]]
        cache = transformer.empty_cache(count)
        transformer(torch.stack(paths[0]), weights, cache)
        slots, places = [cache], [torch.full((count,), prefix)]
        for _ in range(25):
            # Every row goes on from a node of its own, at a depth of its own.
            parent = [
                int(rng.choice([s for s in range(len(slots)) if places[s][b] < 13])) for b in range(count)
            ]
            taken = torch.stack([slots[node][b] for b, node in enumerate(parent)])
            place = torch.stack([places[node][b] for b, node in enumerate(parent)])
            token = torch.randn(count, 8)
            output = transformer.step(token, weights, taken, place)
            path = [torch.cat([paths[node][b], token[b : b + 1]]) for b, node in enumerate(parent)]
            for b in range(count):
                whole, _ = transformer(path[b][None], weights)
                torch.testing.assert_close(output[b], whole[0, -1], rtol=1e-5, atol=1e-5)
            slots, places, paths = [*slots, taken], [*places, place + 1], [*paths, path]
    assert max(int(place.max()) for place in places) >= prefix + 4, "the tree is deep enough to say something"


def walk(network: ScaleZeroNetwork, rows: Rows, latents: Tensor, actions: Tensor, past: Tensor) -> Any:
    """What the model says along a path of two imagined steps from roots with some steps behind them."""
    weights = network.weights(1)
    policy, value, node = network.initial(rows, latents, actions, past, weights)
    found, imagined = [(policy, value)], []
    for step in range(2):
        action = torch.tensor([step % 2] * len(latents))
        reward, policy, value, node = network.recurrent(rows, node, action, weights)
        found.append((policy, value, reward))
        imagined.append(node["latent"].clone())
    return found, imagined


@torch.no_grad()
def test_a_search_with_several_tasks_and_memories_says_what_the_window_says() -> None:
    """Roots with 0, 1 and 2 steps behind them, of two tasks side by side, against the windows that learning uses."""
    from rl_training.algorithms.muzero import decode

    network = make_network()
    rows = Rows((0, 1), (3, 3))
    past = torch.tensor([0, 1, 2] * 2)
    latents = normalised(torch.randn(6, 3, 8))
    actions = torch.randint(2, (6, 2))
    found, imagined = walk(network, rows, latents, actions, past)
    for i in range(6):
        task, length = i // 3, int(past[i])
        tokens = torch.cat([latents[i, : length + 1], *(part[i : i + 1] for part in imagined)])
        taken = torch.cat([actions[i, :length], torch.tensor([0, 1])])
        (window,), _ = network.windows([task], [tokens[None]], [taken[None]], 1)
        own = network.heads[task].num_actions
        for k, answer in enumerate(found):
            place = length + k
            torch.testing.assert_close(answer[0][i, :own], window.policy[0, place], rtol=1e-5, atol=1e-5)
            assert (answer[0][i, own:] < -1e8).all(), "actions that the task has not"
            value = decode(window.value[0, place], network.atoms)
            torch.testing.assert_close(answer[1][i], value, rtol=1e-4, atol=1e-4)
            if k:
                reward = decode(window.reward[0, place - 1], network.atoms)
                torch.testing.assert_close(answer[2][i], reward, rtol=1e-4, atol=1e-4)
                torch.testing.assert_close(
                    imagined[k - 1][i], window.latent[0, place - 1], rtol=1e-5, atol=1e-5
                )


def test_a_tasks_heads_get_no_gradient_from_another_task() -> None:
    network = make_network()
    groups = network.groups(STAGES)
    assert {id(p) for group in groups.values() for p in group} == {id(p) for p in network.parameters()}
    latents = [
        network.encode(task, obs, 0).view(4, 7, 8)
        for task, obs in ((0, torch.randn(28, 3)), (1, torch.randint(5, (28,))))
    ]
    actions = [torch.randint(2, (4, 6)) for _ in range(2)]
    found, _ = network.windows([0, 1], latents, actions, 0)
    sum(part.square().sum() for part in found[0]).backward()
    touched = {
        name for name, group in groups.items() if any(p.grad is not None and p.grad.any() for p in group)
    }
    assert touched == {"stage 0", "task 0"}
    alone, _ = network.windows([0], latents[:1], actions[:1], 0)
    for part, same in zip(found[0], alone[0], strict=True):
        torch.testing.assert_close(part, same, rtol=1e-5, atol=1e-5)


SMALL: dict[str, Any] = dict(
    latent_size=4, window=2, hidden_sizes=[], activation="relu", image_encoder="nature", support_size=2
)


def test_pictures_share_an_encoder_and_vectors_do_not() -> None:
    frames = spaces.Box(0, 255, (4, 36, 36), np.uint8)
    network = ScaleZeroNetwork(
        [frames, spaces.Box(-1, 1, (3,)), frames, spaces.Box(-1, 1, (3,))],
        [2, 2, 3, 2],
        **SMALL,
        transformer=dict(layers=1, heads=1, experts=2, hidden=4, stages=1, rank=1, lora_alpha=1.0),
    )
    assert network.encoder_of == (0, 1, 0, 2)
    groups = network.groups(1)
    assert list(groups) == ["stage 0", "task 1", "task 3", "task 0", "task 2", "always"]
    assert {id(p) for p in groups["always"]} == {id(p) for p in network.encoders[0].parameters()}


def test_a_shared_encoder_is_frozen_and_adapted_with_the_stages() -> None:
    """What a stage said of frames it says again after the next has learned; and the next begins where it stood."""
    frames = spaces.Box(0, 255, (4, 36, 36), np.uint8)
    torch.manual_seed(0)
    network = ScaleZeroNetwork(
        [frames, frames, spaces.Box(-1, 1, (3,))],
        [2, 3, 2],
        **SMALL,
        transformer=dict(layers=1, heads=1, experts=2, hidden=4, stages=3, rank=2, lora_alpha=2.0),
        staged_encoders=True,
    )
    groups = network.groups(3)
    assert list(groups) == ["stage 0", "stage 1", "stage 2", "task 2", "task 0", "task 1"]
    everything = [id(p) for group in groups.values() for p in group]
    assert sorted(everything) == sorted(id(p) for p in network.parameters()), "each in one group"
    assert {id(p) for p in network.encoders[0][0].parameters()} <= {id(p) for p in groups["stage 0"]}  # type: ignore[index]
    obs = torch.randint(0, 256, (5, 4, 36, 36), dtype=torch.uint8)
    solved = network.encode(0, obs, 0).detach()
    for stage in (1, 2):
        network.begin(stage)
        before = network.encode(1, obs, stage).detach()
        torch.testing.assert_close(before, network.encode(1, obs, stage - 1).detach())
        for _ in range(3):
            network.zero_grad()
            network.encode(1, obs, stage)[:, 0].sum().backward()
            with torch.no_grad():
                for parameter in groups[f"stage {stage}"]:
                    parameter -= 0.0 if parameter.grad is None else 0.5 * parameter.grad
        assert not torch.equal(network.encode(1, obs, stage), before), "the adapter learns"
        assert torch.equal(network.encode(0, obs, 0), solved)


def test_windows_are_latents_and_actions_in_turn() -> None:
    latents, actions = torch.tensor([[[1.0], [2.0], [3.0]]]), torch.tensor([[[10.0], [20.0]]])
    assert interleave(latents, actions).flatten().tolist() == [1.0, 10.0, 2.0, 20.0, 3.0]
    assert interleave(latents[:, :1], actions[:, :0]).flatten().tolist() == [1.0]


def test_latents_are_compared_at_one_length() -> None:
    assert normalised(torch.tensor([1.0, 3.0])).tolist() == pytest.approx([-1.0, 1.0], abs=1e-4)
    prediction, target = (
        torch.tensor([1.0, -1.0], requires_grad=True),
        torch.tensor([-1.0, 1.0], requires_grad=True),
    )
    loss = latent_loss(prediction, target)
    assert loss.item() == 4.0
    loss.backward()
    assert prediction.grad is not None and target.grad is None


def test_losses_are_averaged_where_they_are_known() -> None:
    losses = torch.tensor([[1.0, 2.0], [4.0, 100.0]])
    assert mean_where(losses, torch.tensor([[1.0, 1.0], [1.0, 0.0]])).item() == pytest.approx(7 / 3)
    assert mean_where(losses, torch.zeros(2, 2)).item() == 0.0


def test_a_task_is_solved_by_its_last_episodes() -> None:
    assert is_solved([0.0, 10.0, 20.0], 15.0, 2)
    assert not is_solved([0.0, 10.0, 19.9], 15.0, 2)
    assert not is_solved([100.0], 15.0, 2), "too few"
    assert not is_solved([100.0, 100.0], None, 2), "no return solves it"


@pytest.mark.parametrize(
    ("stage", "updates", "newly", "unsolved", "over"),
    [
        (0, 99, 8, 8, False),  # not before the least
        (0, 100, 2, 6, True),  # ⌈6 / 4⌉ = 2 of them
        (0, 100, 1, 7, False),
        (0, 100, 1, 2, True),
        (0, 300, 0, 8, True),  # the most have passed
        (1, 1, 2, 6, True),  # ⌈6 / 3⌉ = 2, and no least any more
        (1, 1, 1, 6, False),
        (3, 1, 1, 1, True),
        (4, 10**6, 8, 8, False),  # no adapter is left
    ],
)
def test_when_a_stage_is_over(stage: int, updates: int, newly: int, unsolved: int, over: bool) -> None:
    limits = dict(least_updates=100, most_updates=300)
    counts = dict(updates=updates, newly_solved=newly, unsolved=unsolved)
    assert stage_is_over(stage, 5, **counts, **limits) == over


def test_the_memory_of_acting_holds_the_last_steps() -> None:
    carry: Any = (torch.zeros(2, 2, 1), torch.zeros(2, 2, dtype=torch.int64), torch.tensor([0, 1]))
    for step in (1, 2, 3):
        carry = followed(carry, torch.full((2, 1), float(step)), torch.tensor([step, step]))
    latents, actions, past = carry
    assert latents.flatten(1).tolist() == [[2.0, 3.0], [2.0, 3.0]]
    assert actions.tolist() == [[2, 3], [2, 3]] and past.tolist() == [2, 2]
    assert followed((), torch.zeros(2, 1), torch.zeros(2)) == ()


def test_the_present_stands_behind_the_steps_before_it() -> None:
    """Of two tasks, one with a step of its past and one with two; what lies behind the present is not read."""
    policy: Any = SimpleNamespace(context_steps=2, device="cpu")
    carries = [
        (torch.tensor([[[1.0], [0.0]]]), torch.tensor([[5, 0]]), torch.tensor([1])),
        (torch.tensor([[[2.0], [3.0]]]), torch.tensor([[6, 7]]), torch.tensor([2])),
    ]
    latents, actions, past = ScaleZeroPolicy._remember(policy, torch.tensor([[8.0], [9.0]]), carries)
    assert latents.shape == (2, 3, 1)
    assert latents[0, :2, 0].tolist() == [1, 8] and latents[1, :, 0].tolist() == [2, 3, 9]
    assert actions.tolist() == [[5, 0], [6, 7]] and past.tolist() == [1, 2]
    policy.context_steps = 0
    latents, actions, past = ScaleZeroPolicy._remember(policy, torch.tensor([[8.0], [9.0]]), [])
    assert latents.tolist() == [[[8.0]], [[9.0]]] and actions.shape == (2, 0) and past.tolist() == [0, 0]


def test_a_group_that_does_not_learn_stays_where_it_is() -> None:
    """Also with momentum from before, and a gradient that counts for the others' norm would shorten their step."""
    one, other = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))
    optimizer = GroupedAdam({"one": [one], "other": [other]})
    optimizer.step((one + other).sum(), 0.1, None, ["one", "other"])
    assert one.tolist() == pytest.approx([0.9, 0.9]) and other.tolist() == pytest.approx([0.9, 0.9])
    found = optimizer.step((one + 100 * other).sum(), 0.1, None, ["one"])
    assert found["grad_norm"] == pytest.approx(2**0.5)
    assert one.tolist() == pytest.approx([0.8, 0.8]) and other.tolist() == pytest.approx([0.9, 0.9])


class Staged:
    """A network that only counts the stages that were begun."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.begin = self.begun.append


def to_settle(updates: int, *returns: float) -> Any:
    """A trainer of two tasks that are solved at 10, in its first stage of three, after so many updates.

    A task confirms it as often as it is asked, unless its `greedy` is below 10.
    """
    tasks = [
        SimpleNamespace(
            number=i,
            name=f"{i}",
            returns=[each, each],
            target=10.0,
            solved=False,
            confirmed_at=0,
            greedy=10,
            asked=0,
        )
        for i, each in enumerate(returns)
    ]

    def confirms(task: Any) -> Any:
        def play(agent: Any, config: Any, seed: int) -> bool:
            task.asked += 1
            return task.greedy >= 10

        return play

    for task in tasks:
        task.confirms = confirms(task)
    limits = dict(solved_episodes=2, stages=3, stage_min_updates=5, stage_max_updates=9, confirm_interval=2)
    trainer: Any = SimpleNamespace(
        config=SimpleNamespace(**limits, seed=1),
        active=lambda: [task for task in tasks if not task.solved],
        tasks=tasks,
        steps=0,
        stage=0,
        stage_updates=updates,
        newly_solved=0,
        agent=SimpleNamespace(network=Staged(), stages=[0, 0]),
        target=Staged(),
    )
    for name in ("stage_is_over", "confirms", "withdraw", "settle"):
        setattr(trainer, name, getattr(ScaleZeroTrainer, name).__get__(trainer))
    return trainer


def settled(updates: int, *returns: float) -> Any:
    trainer = to_settle(updates, *returns)
    trainer.settle()
    return trainer


def test_a_task_that_greedy_episodes_do_not_solve_is_not_solved() -> None:
    trainer = to_settle(5, 10.0, 9.9)
    trainer.tasks[0].greedy = 0
    trainer.settle()
    assert not trainer.tasks[0].solved and trainer.stage == 0
    assert [task.asked for task in trainer.tasks] == [1, 0], "the other has not reached it in training either"


def test_a_solved_task_that_is_no_longer_is_withdrawn_while_its_weights_learn() -> None:
    """In the last stage, which never ends: every two updates it plays again."""
    trainer = to_settle(5, 10.0, 9.9)
    trainer.stage, trainer.agent.stages = 2, [2, 2]
    trainer.settle()
    assert trainer.tasks[0].solved and trainer.newly_solved == 1
    for updates, asked in ((6, 1), (7, 1), (8, 2), (9, 2)):
        trainer.stage_updates = updates
        trainer.settle()
        assert trainer.tasks[0].solved and trainer.tasks[0].asked == asked
    trainer.tasks[0].greedy, trainer.tasks[0].returns, trainer.stage_updates = 3, [], 11
    trainer.settle()
    assert not trainer.tasks[0].solved and trainer.newly_solved == 0
    assert trainer.stage == 2, "and no stage ended by it"


def test_a_stage_ends_only_with_tasks_that_confirm_it_then() -> None:
    """Three tasks, two adapters: two solved tasks end the first stage, and one of them has forgotten."""
    trainer = to_settle(5, 10.0, 9.9, 9.9)
    trainer.agent.stages = [0, 0, 0]
    trainer.settle()
    assert trainer.stage == 1, "one of two left is enough"
    trainer = to_settle(5, 10.0, 9.9, 9.9, 9.9)
    trainer.agent.stages = [0] * 4
    trainer.settle()
    assert trainer.tasks[0].solved and trainer.stage == 0, "two of three are asked for"
    trainer.stage_updates, trainer.tasks[1].returns = 6, [10.0, 10.0]
    trainer.tasks[0].greedy, trainer.tasks[0].returns = 0, []
    trainer.settle()
    assert [task.solved for task in trainer.tasks] == [False, True, False, False]
    assert (trainer.stage, trainer.newly_solved, trainer.target.begun) == (0, 1, [])


def test_a_task_whose_stage_has_ended_is_not_asked_again() -> None:
    trainer = settled(5, 10.0, 9.9)
    assert trainer.stage == 1
    asked = trainer.tasks[0].asked
    trainer.stage_updates = 8
    trainer.settle()
    assert trainer.tasks[0].solved and trainer.tasks[0].asked == asked


def test_a_solved_task_rests_and_the_next_stage_begins_for_the_others() -> None:
    """In the network and in its target, which would otherwise judge by scales of no stage."""
    trainer = settled(5, 10.0, 9.9)
    assert [task.solved for task in trainer.tasks] == [True, False]
    assert (trainer.stage, trainer.stage_updates, trainer.newly_solved) == (1, 0, 0)
    assert trainer.agent.network.begun == trainer.target.begun == [1]
    assert trainer.agent.stages == [0, 1], "who is solved goes on with the stage that solved it"


def test_nothing_rests_before_the_first_stage_has_learned_enough() -> None:
    trainer = settled(4, 10.0, 9.9)
    assert not any(task.solved for task in trainer.tasks) and trainer.stage == 0


def test_after_the_last_task_no_stage_begins() -> None:
    trainer = settled(5, 10.0, 10.0)
    assert all(task.solved for task in trainer.tasks)
    assert (trainer.stage, trainer.newly_solved, trainer.target.begun) == (0, 2, [])
