"""Dreamer's networks in compiled code are torch's: outputs, gradients, and whole updates from the same draws."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from runs import TINY_DREAMER
from torch import Tensor, nn
from updates import knobs_unlike, perturb, warmed

from rl_training.errors import NonFiniteError
from rl_training.kernels import stacks
from rl_training.kernels.layers import HEIGHT
from rl_training.kernels.programs import place
from rl_training.kernels.recurrence import Recurrence
from rl_training.kernels.stacks import Stack
from rl_training.networks.reconstruction import FoldedPicture, Picture
from rl_training.networks.rssm import RSSM, State, linear, mlp
from rl_training.runtime.controls import Controls
from rl_training.runtime.dreamer_trainer import DreamerTrainer
from rl_training.runtime.dreamer_updates import dense_layers, fastest_networks
from rl_training.runtime.optim import LaProp, target_of
from rl_training.settings.dreamer import DreamerConfig
from rl_training.state.seeding import seed_everything

SIZES: dict[str, Any] = dict(
    deter_size=64, blocks=4, rssm_hidden=16, num_latents=8, num_classes=4, units=12, cnn_depth=2, mlp_layers=2
)
SMALL = SIZES | dict(batch_size=5, batch_length=30, num_envs=2, train_ratio=1e-9, learning_starts=1)


def close(ours: Tensor, theirs: Tensor, most: float = 1e-5) -> None:
    """Within a share of the length of the whole tensor."""
    assert ours.shape == theirs.shape and theirs.norm() > 0
    assert (ours - theirs).norm() <= most * theirs.norm(), ((ours - theirs).norm() / theirs.norm()).item()


@pytest.mark.parametrize(
    ("steps", "count", "sizes"),
    [
        (1, 1, (32, 2, 16, 4, 4)),
        (7, 3, (64, 4, 32, 8, 6)),
        (12, 16, (128, 4, 64, 8, 8)),
        (5, 9, (512, 8, 64, 32, 4)),
        (3, 5, (32, 2, 256, 4, 4)),
    ],
)
def test_sequences_and_the_way_back_through_time_are_torchs(
    steps: int, count: int, sizes: tuple[int, ...]
) -> None:
    deter, blocks, hidden, choices, classes = sizes
    seed_everything(steps)
    tokens, actions = 10, 3
    shape = dict(deter_size=deter, blocks=blocks, rssm_hidden=hidden, num_latents=choices)
    rssm = RSSM(tokens, actions, num_classes=classes, **shape)
    perturb(rssm, scale=0.05)
    names = [name for name, _ in rssm.named_parameters() if not name.startswith("prior_layers")]
    optimizer = LaProp([rssm])
    start = State(torch.randn(count, deter), torch.randn(count, choices * classes))
    first = (torch.rand(steps, count) < 0.3).float()
    given = torch.randn(steps, count, tokens), torch.randn(steps, count, actions)
    weights = [torch.randn(steps, count, width) for width in (deter, choices * classes, choices * classes)]

    def gradients() -> list[Tensor]:
        of = dict(rssm.named_parameters())
        return [of[name].grad.clone() for name in names]  # type: ignore[union-attr]

    def by_torch() -> list[Tensor]:
        seen = given[0].clone().requires_grad_()
        seed_everything(3)
        state, probs = rssm.observe(start, seen, given[1], first)
        parts = (*state, probs.flatten(-2))
        sum((part * weight).sum() for part, weight in zip(parts, weights, strict=True)).backward()  # type: ignore[union-attr]
        assert seen.grad is not None
        return [*(part.detach() for part in parts), seen.grad, *gradients()]

    def by_hand() -> list[Tensor]:
        """What is added by observations and actions is torch's."""
        optimizer.gradient.zero_()
        seen, recurrence = given[0].clone().requires_grad_(), Recurrence(rssm)
        inputs = rssm.action_inputs(given[1] * (1 - first.unsqueeze(-1))), rssm.token_inputs(seen)
        seed_everything(3)
        noise = torch.rand(steps, count, choices)
        sequences = recurrence.sequences(steps, count)
        sequences.follow(*(part.detach().numpy() for part in (*inputs, *start, noise, first)))
        to_states = torch.cat(weights[:2], -1).flatten(0, 1).numpy()
        slopes = sequences.go_back(to_states, weights[2].flatten(0, 1).numpy())
        torch.autograd.backward(inputs, [torch.from_numpy(slope) for slope in slopes])
        assert seen.grad is not None
        parts = (sequences.states[1:], sequences.stochs[1:], sequences.probs)
        return [*map(torch.from_numpy, parts), seen.grad, *gradients()]

    theirs = by_torch()
    for mine, its in zip(by_hand(), theirs, strict=True):
        close(mine, its)


@pytest.mark.parametrize("most", [stacks.MOST_KEPT, 0])
@pytest.mark.parametrize("count", [1, HEIGHT, 2 * HEIGHT + 5])
def test_a_stack_of_layers_is_torchs_with_values_kept_or_computed_again(
    most: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Called twice before the way back: gradients of both add up."""
    monkeypatch.setattr(stacks, "MOST_KEPT", most)
    seed_everything(1)
    plain = nn.Sequential(*mlp(20, 24, 2), linear(24, 37))
    perturb(plain)
    optimizer = LaProp([plain])
    stack = Stack(dense_layers(plain, optimizer.parameters, True), optimizer.gradient)
    x, weight = torch.randn(count, 20), torch.randn(count, 37)

    def run(module: nn.Module) -> list[Tensor]:
        optimizer.gradient.zero_()
        rows = x.clone().requires_grad_()
        (module(rows) * weight + (module(2 * rows.detach()) * weight).square()).sum().backward()
        assert rows.grad is not None
        return [module(x).detach(), rows.grad, *(part.grad.clone() for part in plain.parameters())]  # type: ignore[union-attr]

    theirs = run(plain)
    for _ in range(2):  # the second time in memory that was used before
        stack.begin()
        for mine, its in zip(run(stack), theirs, strict=True):
            close(mine, its)


@pytest.mark.parametrize("most", [stacks.MOST_KEPT, 0])
def test_a_graph_of_stacks_that_is_gone_through_twice_adds_up(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "MOST_KEPT", most)
    seed_everything(1)
    plain = nn.Sequential(*mlp(20, 24, 2), linear(24, 37))
    optimizer = LaProp([plain])
    stack = Stack(dense_layers(plain, optimizer.parameters, True), optimizer.gradient)
    stack.begin()
    rows = torch.randn(2 * HEIGHT + 5, 20)
    loss = stack(rows).square().sum()
    loss.backward(retain_graph=True)
    once = optimizer.gradient.clone()
    stack(rows).square().sum().backward()  # in memory that the first has given back
    loss.backward()
    close(optimizer.gradient, 3 * once)


def test_laprop_in_compiled_code_is_torchs() -> None:
    seed_everything(1)
    pairs = []
    for _ in range(2):
        seed_everything(2)
        module = nn.Sequential(nn.Linear(50, 40), nn.Linear(40, 3))
        nn.init.zeros_(module[1].weight)
        pairs.append(LaProp([module]))
    ours, theirs = pairs
    for step in range(4):
        gradient = torch.randn_like(ours.gradient) * 10.0**-step
        for each in pairs:
            each.gradient.copy_(gradient)
        assert ours.descend(1e-2, float("inf")) == pytest.approx(
            theirs.move(1e-2, None)["grad_norm"], rel=1e-5
        )
        for name in ("gradient", "square", "mean", "parameters"):
            close(getattr(ours, name), getattr(theirs, name))
        assert ours.count == theirs.count


@pytest.mark.parametrize(
    "env_id", ["CartPole-v1", "Pendulum-v1", "probe/TwoChoices-v0", "probe/DictAndPicture-v0"]
)
def test_an_update_is_torchs(env_id: str) -> None:
    """150 states, more than a block, from which is imagined; networks that have learned something."""
    moved = []
    for how in (True, False):
        trainer = warmed("dreamer", 60, env_id=env_id, **SMALL, torch_threads=1, compiled_updates=how)
        assert trainer.fast_networks.path == ("compiled" if how else "torch")
        seed_everything(4)
        perturb(trainer.agent.network, trainer.slow_critic, scale=0.1)
        seed_everything(5)
        numbers = trainer.update(Controls.of(trainer.config).at(0).after(0))
        names = [name for name, _ in trainer.agent.network.named_parameters()]
        gradients = trainer.optimizer.gradient.split([size for _, size in trainer.optimizer.names])
        moved.append((numbers, dict(zip(names, gradients, strict=True)), trainer.optimizer.parameters))
    ours, theirs = moved
    assert ours[0] == pytest.approx(theirs[0], rel=1e-4)
    for name, gradient in theirs[1].items():
        if gradient.any():  # an observation of zeros teaches its first layer nothing
            close(ours[1][name], gradient, 1e-3)
        else:
            assert not ours[1][name].any()
    torch.testing.assert_close(ours[2], theirs[2], rtol=1e-3, atol=1e-5)


# Each unlike what configs say by default.
KNOBS: dict[str, Any] = dict(
    learning_rate=0.002,
    entropy_coef=0.2,
    gamma=0.9,
    return_lambda=0.7,
    train_ratio=1.0,
    imagination_horizon=4,
    slow_critic_rate=0.3,
    return_rate=0.2,
)
SCALES = (
    "reconstruction",
    "reward",
    "continue",
    "dynamics",
    "representation",
    "policy",
    "value",
    "replay_value",
)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("free_nats", [0.0, 0.3])
def test_updates_with_other_knobs_are_torchs(env_id: str, free_nats: float) -> None:
    """Two in a row, of other horizons, on sequences whose episodes begin and end anywhere; latents are written back."""
    settings = SMALL | dict(env_id=env_id, refresh_latents=True, free_nats=free_nats, torch_threads=1)
    scales = {f"{name}_scale": 0.45 + 0.1 * i for i, name in enumerate(SCALES)}
    moved = []
    for how in (True, False):
        trainer = warmed("dreamer", 60, **settings, compiled_updates=how)
        seed_everything(4)
        perturb(trainer.agent.network, trainer.slow_critic, scale=0.1)
        columns = trainer.replay.columns
        for name, share in (("first", 0.1), ("last", 0.1), ("terminal", 0.05)):
            columns[name][...] = np.random.random(columns[name].shape) < share
        columns["reward"][...] = 3 * np.random.normal(size=columns["reward"].shape)
        numbers, gradients = [], []
        for horizon in (4, 2):
            knobs = knobs_unlike(trainer.config, **KNOBS | scales | {"imagination_horizon": horizon})
            numbers.append(trainer.update(knobs.after(0)))
            gradients.append(trainer.optimizer.gradient.clone())
        first = gradients[0].split([size for _, size in trainer.optimizer.names])
        moved.append((numbers, gradients[1], trainer.return_high, columns["deter"], first))
    ours, theirs = moved
    # Each alone, the actor's being small beside all others; a step later rounding has been made larger.
    for mine, its in zip(ours[4], theirs[4], strict=True):
        if its.any():
            close(mine, its, 1e-3)
    for mine, its in zip(ours[0], theirs[0], strict=True):
        assert mine == pytest.approx(its, rel=1e-3, abs=1e-5)
    close(ours[1], theirs[1], 1e-2)
    torch.testing.assert_close(ours[2], theirs[2], rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(ours[3], theirs[3], atol=2e-3)


ENVIRONMENTS = ("CartPole-v1", "Pendulum-v1", *(f"probe/{name}-v0" for name in ("TwoChoices", "Coins")))
PICTURES = ("probe/DictAndPicture-v0", "probe/Bright-v0")


@pytest.mark.parametrize("draw", range(18))
def test_updates_of_drawn_sizes_are_torchs(draw: int) -> None:
    """Every kind of action and of observation; episodes begin and end anywhere, and divergences lie on both sides."""
    chance = np.random.default_rng(draw)

    def one_of(*values: Any) -> Any:
        return values[chance.integers(len(values))]

    blocks, (latents, classes) = one_of(1, 2, 4), one_of((4, 4), (16, 2), (8, 6), (1, 16), (32, 5))
    env_id = (*ENVIRONMENTS, *PICTURES)[draw % 6]
    settings = dict(
        env_id=env_id,
        torch_threads=1,
        num_envs=2,
        train_ratio=1e-9,
        learning_starts=1,
        blocks=blocks,
        deter_size=blocks * one_of(16, 32, 48),
        rssm_hidden=one_of(16, 32, 80),
        num_latents=latents,
        num_classes=classes,
        units=one_of(3, 16, 33, 40),
        cnn_depth=one_of(2, 3),
        mlp_layers=one_of(1, 2, 3),
        batch_length=one_of(2, 3, 7),
        batch_size=one_of(1, 4, 37),
        refresh_latents=one_of(False, True),
        normalize_observations=one_of(False, True) and env_id not in PICTURES,
        free_nats=one_of(0.0, 0.5, 1.0, 3.0),
    )
    knobs = {f"{name}_scale": chance.uniform(0.2, 2) for name in SCALES}
    knobs |= dict(return_lambda=one_of(0.0, 0.5, 0.95, 1.0), imagination_horizon=one_of(1, 2, 5))
    spread = one_of(0.0, 12.0)
    moved = []
    for how in (True, False):
        trainer = warmed("dreamer", 30, **settings, compiled_updates=how)
        assert trainer.fast_networks.path == ("compiled" if how else "torch")
        seed_everything(4)
        network, slow = trainer.agent.network, trainer.slow_critic
        perturb(network, slow, scale=0.1)
        with torch.no_grad():  # bins reach 5e8: large ones are made unlikely, or rounding would decide
            for head in (network.reward, network.critic, slow):
                head.output.bias.sub_(torch.log(1 + network.bins.abs()))
        trainer.return_high.fill_(spread)
        columns = trainer.replay.columns
        for name, share in (("first", 0.15), ("last", 0.15), ("terminal", 0.08)):
            columns[name][...] = np.random.random(columns[name].shape) < share
        columns["reward"][...] = 3 * np.random.normal(size=columns["reward"].shape)
        seed_everything(6)
        changed = Controls.of(trainer.config.model_copy(update=KNOBS | knobs))
        numbers = trainer.update(changed.at(0).after(0))
        gradients = trainer.optimizer.gradient.split([size for _, size in trainer.optimizer.names])
        moved.append((numbers, dict(zip(trainer.optimizer.names, gradients, strict=True)), columns["deter"]))
    ours, theirs = moved
    assert ours[0] == pytest.approx(theirs[0], rel=1e-4, abs=1e-6)
    for name, gradient in theirs[1].items():
        if gradient.any():
            close(ours[1][name], gradient, 5e-4)
        else:
            assert not ours[1][name].any(), name
    np.testing.assert_allclose(ours[2], theirs[2], atol=2e-3)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "probe/TwoChoices-v0", PICTURES[0]])
def test_what_is_no_number_ends_the_run_before_a_weight_moves(env_id: str) -> None:
    """NaN in each tensor of weights, of the slow critic and in what was replayed; afterwards updates are as before."""
    trainer = warmed("dreamer", 60, env_id=env_id, torch_threads=1, **SMALL)
    assert trainer.fast_networks.path == "compiled"
    now, columns = Controls.of(trainer.config).at(0).after(0), trainer.replay.columns
    weights = [*trainer.agent.network.parameters(), *trainer.slow_critic.parameters()]
    places = [part.detach().view(-1)[:1].numpy() for part in weights] + [columns["reward"], columns["deter"]]
    optimizer, returns = trainer.optimizer, torch.stack([trainer.return_low, trainer.return_high])
    for number in places:
        before = number.copy()
        number[...] = np.nan
        vectors = [part.clone() for part in (optimizer.parameters, optimizer.square, optimizer.mean)]
        with pytest.raises(NonFiniteError, match="loss is not finite"):
            trainer.update(now)
        for part, kept in zip((optimizer.parameters, optimizer.square, optimizer.mean), vectors, strict=True):
            assert torch.equal(part.nan_to_num(7.0), kept.nan_to_num(7.0))
        number[...] = before
        trainer.return_low.copy_(returns[0])
        trainer.return_high.copy_(returns[1])
    plain = warmed("dreamer", 60, env_id=env_id, torch_threads=1, **SMALL, compiled_updates=False)
    for _ in places:
        plain.draw()  # what is new is replayed once
    found = []
    for each in (trainer, plain):
        seed_everything(9)
        found.append(each.update(now))
    assert found[0] == pytest.approx(found[1], rel=1e-4)


def test_when_torch_computes_the_update() -> None:
    settings = dict(env_id="CartPole-v1", torch_threads=1)
    trainer = warmed("dreamer", 0, **SMALL, **settings)
    assert trainer.fast_networks.path == "compiled"
    trainer.agent.network.reward.register_forward_hook(lambda *_: None)
    assert trainer.fast_networks.path == "torch"
    odd = warmed("dreamer", 0, **settings, **TINY_DREAMER).fast_networks
    assert odd.explained == "torch (sizes are no multiples of 16)"
    compiled = warmed("dreamer", 0, **SMALL, **settings, compile=True).fast_networks
    assert compiled.explained == "torch (compile is true)"


@pytest.mark.parametrize(
    "method", ["update", "descend", "world_model_losses", "imagination_losses", "replay_value_loss"]
)
def test_losses_of_ones_own_are_torchs(method: str) -> None:
    """They may use the plain network, whose gradients the compiled one knows nothing of."""
    own = type("Own", (DreamerTrainer,), {method: lambda *_: None})
    trainer = own(DreamerConfig(env_id="CartPole-v1", torch_threads=1, **SMALL))
    assert trainer.fast_networks.explained == "torch (a loss of one's own)"


def test_layers_of_ones_own_are_torchs() -> None:
    trainer = warmed("dreamer", 0, env_id="CartPole-v1", torch_threads=1, **SMALL)
    trainer.agent.network.rssm.from_deter = nn.Sequential(nn.Linear(64, 16), nn.Tanh())
    for chosen in (trainer.fast_networks, fastest_networks(trainer)):
        assert chosen.explained == "torch (the policy is not of dense layers alone)"


def test_frozen_parameters_and_other_targets_are_seen() -> None:
    trainer = warmed("dreamer", 60, env_id="CartPole-v1", torch_threads=1, **SMALL)
    before = trainer.fast_networks.taken()
    trainer.slow_critic, trainer.slow_weights = target_of(trainer.agent.network.critic)
    after = trainer.fast_networks.taken()
    assert after is not None and after is not before
    frozen = trainer.agent.network.rssm.own.weight.requires_grad_(False)
    assert trainer.fast_networks.explained == "torch (parameters are frozen)"
    kept = frozen.clone()
    now = Controls.of(trainer.config).at(0).after(0)
    trainer.update(now)
    assert torch.equal(frozen, kept)
    # Networks that are built while a layer is frozen learn it once it no longer is.
    head = trainer.agent.network.critic.output.weight.requires_grad_(False)
    trainer.slow_critic, trainer.slow_weights = target_of(trainer.agent.network.critic)
    assert trainer.fast_networks.explained == "torch (parameters are frozen)"
    trainer.update(now)
    for parameter in (frozen, head):
        parameter.requires_grad_(True)
    assert trainer.fast_networks.explained == "compiled"
    before_it = head.clone()
    trainer.update(now)
    assert not torch.equal(head, before_it)


def test_hooks_and_layers_that_are_not_learned_are_torchs() -> None:
    """A hook on any module, the slow critic's too, or on a gradient; and a layer the optimizer does not know."""
    trainer = warmed("dreamer", 60, env_id=PICTURES[0], torch_threads=1, **SMALL)
    choice, network = trainer.fast_networks, trainer.agent.network
    for module in (*network.modules(), *trainer.slow_critic.modules()):
        hook = module.register_forward_hook(lambda *_: None)
        assert choice.path == "torch", module
        hook.remove()
    now, weight = Controls.of(trainer.config).at(0).after(0), network.critic.output.weight

    def stop(parameter: Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad.zero_()

    for put_on in (
        lambda: weight.register_hook(torch.zeros_like),
        lambda: weight.register_post_accumulate_grad_hook(stop),
    ):
        hook = put_on()
        assert choice.explained == "torch (gradients have hooks)"
        trainer.update(now)
        assert weight.grad is not None and not weight.grad.any()
        hook.remove()
    assert choice.path == "compiled"
    trainer.update(now)
    assert weight.grad.any()
    network.reward = copy.deepcopy(network.reward)
    assert choice.path == "torch"
    trainer.update(now)


def test_threads_that_follow_from_large_pictures_are_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, how in ((1, "compiled"), (4, "torch (4 threads)")):
        monkeypatch.setattr("rl_training.runtime.trainer.PHYSICAL_CORES", cores)
        trainer = warmed("dreamer", 0, env_id="probe/DictAndPicture-v0", **SMALL, small_pictures=False)
        assert trainer.fast_networks.explained == how


def test_pictures_are_painted_as_a_run_has_begun() -> None:
    """A run whose record says nothing of them is older than the folded decoder."""
    settings = dict(env_id="probe/DictAndPicture-v0", torch_threads=1)
    trainer = warmed("dreamer", 60, **settings, **SMALL)
    now = Controls.of(trainer.config).at(0).after(0)
    assert trainer.paths()["fast_pictures"] == "compiled"
    for kind, record in ((FoldedPicture, {}), (Picture, {"fast_networks": "compiled"})):
        if record:
            trainer.keep_to(record)
        trainer.update(now)
        senses = trainer.fast_networks.taken().senses
        assert [type(part) for part in senses.reconstruction.pictures] == [kind]
    assert "fast_pictures" not in warmed("dreamer", 0, env_id="CartPole-v1", torch_threads=1, **SMALL).paths()
    odd = warmed("dreamer", 0, **settings, **TINY_DREAMER).fast_pictures
    assert odd.explained == "torch (the other networks are not compiled)"


@pytest.mark.parametrize("scale", [np.ones(8), np.ones((8, 2), np.float32)[:, 0]], ids=["float64", "strided"])
def test_programs_refuse_numbers_that_they_would_misread(scale: np.ndarray) -> None:
    with pytest.raises(AssertionError):
        place(scale)
    assert place(np.ones((3, 8), np.float32))[1] == 8
