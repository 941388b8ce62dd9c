"""Compiled passes over dense networks beside torch's autograd, over random shapes; whole updates beside torch's."""

from __future__ import annotations

import copy
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn
from updates import warmed

from rl_training.algorithms.a2c import A2C_SLOPES
from rl_training.algorithms.masking import MASK
from rl_training.algorithms.ppo import PPO_SLOPES, ppo_loss
from rl_training.algorithms.sac import actor_loss
from rl_training.errors import NonFiniteError
from rl_training.kernels.branches import add_to_inputs
from rl_training.kernels.layers import ACTIVATIONS, HEIGHT, NONE, NOWHERE, OBSERVATION, Layer, Layers
from rl_training.kernels.products import product
from rl_training.kernels.reading import twin_layers
from rl_training.kernels.records import Kept
from rl_training.networks.actor_critic import action_family
from rl_training.networks.encoders import ACTIVATIONS as NAMES
from rl_training.networks.encoders import Own
from rl_training.networks.soft_actor_critic import make_critics
from rl_training.policies.actor_critic import ActorCriticPolicy
from rl_training.runtime import sac_trainer
from rl_training.runtime.controls import Controls
from rl_training.runtime.optim import (
    Adam,
    LaProp,
    Optimizer,
    RMSprop,
    TorchRMSprop,
    flatten_parameters,
    target_of,
)
from rl_training.runtime.updates import CompiledUpdate, Far, Fastest, TorchUpdate

BOX = spaces.Box(-1, 1, (5,))


@pytest.mark.parametrize("rows", [1, 5, 6, 7, 12, 23])
@pytest.mark.parametrize(("width", "depth"), [(16, 0), (16, 3), (48, 17)])
def test_a_product_is_its_start_and_a_matrix_product(rows: int, width: int, depth: int) -> None:
    rng = np.random.default_rng(rows)
    left, right = rng.standard_normal((rows, depth)), rng.standard_normal((depth, width))
    start = rng.standard_normal(width)
    panels = np.ascontiguousarray(right.reshape(depth, width // 16, 16).transpose(1, 0, 2)).astype(np.float32)
    out = np.full((rows + 2, width), 7.0, np.float32)
    flat = [array.astype(np.float32).reshape(-1) for array in (start, left, panels)]
    to, begin = (out.reshape(-1), width, width), (flat[0], 0, 0)
    product(rows, width, depth, to, begin, (flat[1], 0, depth, 1), (flat[2], 0, 16, depth * 16))
    np.testing.assert_allclose(out[1:-1], start + left @ right, rtol=1e-5, atol=1e-5)
    assert (out[[0, -1]] == 7).all()  # and nothing beside it


class Tree(nn.Module):
    """A trunk with two heads and a vector that depends on nothing, as a table of layers and as torch has it."""

    def __init__(
        self,
        inputs: int,
        hidden: list[int],
        outputs: list[int],
        kind: type[nn.Module],
        bias: bool,
        norm: bool = False,
    ) -> None:
        super().__init__()
        sizes = [inputs, *hidden]
        self.norms = nn.ModuleList(nn.LayerNorm(n) if norm else nn.Identity() for n in hidden)
        for parameter in self.norms.parameters():
            nn.init.normal_(parameter, 1.0)
        self.trunk = nn.ModuleList(nn.Linear(m, n, bias) for m, n in pairwise(sizes))
        self.heads = nn.ModuleList(nn.Linear(sizes[-1], n) for n in outputs)
        self.free = nn.Parameter(torch.randn(3))
        self.kind = kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer, norm in zip(self.trunk, self.norms, strict=True):
            x = self.kind()(norm(layer(x)))
        return torch.cat([*(head(x) for head in self.heads), self.free.expand(len(x), -1)], -1)

    def layers(self, inputs: int, parameters: torch.Tensor) -> Layers:
        kind = ACTIVATIONS[self.kind]
        rows = [
            Layer(
                layer.weight,
                layer.bias,
                i - 1 if i else OBSERVATION,
                kind,
                NOWHERE,
                False,
                *norm.parameters(),
            )
            for i, (layer, norm) in enumerate(zip(self.trunk, self.norms, strict=True))
        ]
        source, column = len(rows) - 1 if rows else OBSERVATION, 0
        for head in self.heads:
            rows.append(Layer(head.weight, head.bias, source, NONE, column))
            column += len(head.weight)
        rows.append(Layer(None, self.free, OBSERVATION, NONE, column))
        return Layers(rows, inputs, parameters)


@pytest.mark.parametrize("activation", NAMES)
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("norm", [False, True])
def test_outputs_and_gradients_are_those_of_autograd(activation: str, seed: int, norm: bool) -> None:
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    inputs, count = int(rng.integers(1, 70)), int(rng.integers(1, HEIGHT + 1))
    hidden = rng.integers(1 + norm, 70, seed % 4).tolist()
    outputs = [int(rng.integers(1, 20)), 1]
    network = Tree(inputs, hidden, outputs, NAMES[activation], bias=seed != 1, norm=norm)
    parameters, gradient = flatten_parameters(list(network.parameters()))
    layers = network.layers(inputs, parameters)
    x, rows = torch.randn(2 * HEIGHT, inputs), torch.randperm(2 * HEIGHT)[:count]
    expected = network(x[rows])
    slopes = torch.randn_like(expected)
    expected.backward(2 * slopes)
    reference = gradient.clone()

    gradient.zero_()
    layers.pack()
    for _ in range(2):  # blocks add up
        output = layers.forward(x.numpy(), rows.numpy())
        np.testing.assert_allclose(output, expected.detach().numpy(), rtol=2e-5, atol=2e-6)
        layers.backward(slopes.numpy())
    layers.unpack(gradient.numpy())
    torch.testing.assert_close(gradient, reference, rtol=1e-4, atol=1e-5 * float(reference.abs().max()))


def twins(hidden: tuple[int, ...], activation: str, norm: bool) -> nn.Module:
    layers = dict(hidden_sizes=hidden, activation=activation, image_encoder="nature")
    critics = make_critics(BOX, 2, **layers, own=Own(layer_norm=norm))
    for parameter in critics.parameters():
        nn.init.normal_(parameter, 0.1, 0.3)
    return critics


@pytest.mark.parametrize("hidden", [(), (40, 33)])
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("activation", NAMES)
def test_critics_and_the_slopes_of_their_inputs_are_those_of_autograd(
    hidden: tuple[int, ...], activation: str, norm: bool
) -> None:
    torch.manual_seed(4)
    critics = twins(hidden, activation, norm)
    parameters, gradient = flatten_parameters(list(critics.parameters()))
    pair = twin_layers(critics, parameters)
    assert pair is not None
    obs, action = torch.randn(HEIGHT, 5), torch.randn(HEIGHT, 2, requires_grad=True)
    q, slopes = critics(obs, action), torch.randn(2, HEIGHT)
    q.backward(slopes)
    reference = gradient.clone()

    gradient.zero_()
    to_action = np.zeros((HEIGHT, 2), np.float32)
    for twin, layers in enumerate(pair):
        to_q = slopes[twin].numpy().reshape(HEIGHT, 1)
        layers.pack()
        output = layers.forward(torch.cat([obs, action.detach()], 1).numpy(), np.arange(HEIGHT))
        np.testing.assert_allclose(output[:, 0], q[twin].detach().numpy(), rtol=2e-5, atol=2e-6)
        layers.backward(to_q, learns=False)
        to_action += layers.to_inputs[:, 5:]
        assert not layers.gradient.any()  # nothing was learned on the way
        layers.backward(to_q)
        layers.unpack(gradient.numpy())
    assert action.grad is not None
    np.testing.assert_allclose(to_action, action.grad.numpy(), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(gradient, reference, rtol=1e-4, atol=1e-5 * float(reference.abs().max()))


@pytest.mark.parametrize("hidden", [(), (40, 33)])
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("activation", NAMES)
@pytest.mark.parametrize("rows", [1, 7, HEIGHT])
def test_slopes_of_some_rows_of_a_critic_are_those_of_all_with_zeros(
    hidden: tuple[int, ...], activation: str, rows: int, norm: bool
) -> None:
    torch.manual_seed(4)
    critics = twins(hidden, activation, norm)
    parameters, _ = flatten_parameters(list(critics.parameters()))
    pair = twin_layers(critics, parameters)
    assert pair is not None
    inputs = torch.randn(rows, 7).numpy()
    for twin, layers in enumerate(pair):
        slopes = torch.randn(rows).numpy()
        slopes[np.arange(rows) % 3 % 2 == twin] = 0
        layers.pack(learns=False)
        layers.forward(inputs, np.arange(rows))
        layers.backward(slopes.reshape(rows, 1), learns=False)
        expected, found = layers.to_inputs[:rows].copy(), np.ones((rows, 7), np.float32)
        layers.forward(inputs, np.arange(rows))
        (place,) = Kept()(layers.network)
        add_to_inputs(place, slopes, found, np.empty(HEIGHT, np.int64))
        np.testing.assert_allclose(found - 1, expected, rtol=1e-4, atol=1e-6)
        assert not layers.gradient.any()


def test_what_is_no_number_stays_none() -> None:
    for kind in ACTIVATIONS:
        network = Tree(2, [4], [1], kind, bias=True)
        parameters, _ = flatten_parameters(list(network.parameters()))
        layers = network.layers(2, parameters)
        layers.pack()
        assert np.isnan(layers.forward(np.full((1, 2), np.nan, np.float32), np.arange(1))[0, 0]), kind


@pytest.mark.parametrize("make", [lambda m: Adam(m, epsilon=1e-5), RMSprop, TorchRMSprop])
@pytest.mark.parametrize("most", [0.5, None])
def test_a_compiled_step_is_the_optimizers_own(make: Any, most: float | None) -> None:
    torch.manual_seed(1)
    ours, theirs = (make([nn.Linear(40, 30)]) for _ in range(2))
    theirs.parameters.copy_(ours.parameters)
    for number in range(5):
        slope = torch.randn_like(ours.gradient) * 10.0 ** (1 - number)
        norm = theirs.step(torch.zeros(()), 0.01, most, partial(theirs.gradient.copy_, slope))
        ours.gradient.copy_(slope)
        assert ours.descend(0.01, np.inf if most is None else most) == pytest.approx(
            norm["grad_norm"], rel=1e-6
        )
        torch.testing.assert_close(ours.parameters, theirs.parameters, rtol=1e-5, atol=1e-7)
    for name in ("mean", "square", "count"):
        if hasattr(ours, name):
            torch.testing.assert_close(getattr(ours, name), getattr(theirs, name), rtol=1e-5, atol=1e-7)


def test_a_gradient_that_is_not_finite_moves_nothing_and_is_named() -> None:
    optimizer = Adam([nn.Linear(2, 3)])
    before = optimizer.parameters.clone()
    optimizer.gradient[-1] = np.inf
    with pytest.raises(NonFiniteError, match="gradient of bias"):
        optimizer.descend(0.01, 1.0)
    assert torch.equal(optimizer.parameters, before)
    assert optimizer.count == 0


ACTION_SPACES = {
    "categorical": spaces.Discrete(5),
    "multi-categorical": spaces.MultiDiscrete([2, 4, 3]),
    "Bernoulli": spaces.MultiBinary(3),
    "Gaussian": spaces.Box(-1, 1, (3,)),
    "squashed": spaces.Box(-1, 1, (3,)),
    "joint": spaces.Tuple(  # normals apart from their log σ, with coins and choices between them
        (
            spaces.Box(-1, 1, (2,)),
            spaces.MultiBinary(2),
            spaces.MultiDiscrete([3, 2]),
            spaces.Dict({"a": spaces.Box(-1, 1, (1,)), "b": spaces.Discrete(3)}),
        )
    ),
}
MASKED = ("categorical", "multi-categorical", "joint")
CASES = [(name, False) for name in ACTION_SPACES] + [(name, True) for name in MASKED]
KNOBS = dict(clip_coef=0.1, ent_coef=0.3, vf_coef=0.7, value_clip_coef=0.25)


def actor_critic(
    actions: str, masked: bool = False, space: Any = None, seen: spaces.Box = BOX, **settings: Any
) -> ActorCriticPolicy:
    torch.manual_seed(2)
    space = ACTION_SPACES[actions] if space is None else space
    size = len(action_family(space).logits) or 1
    masks = spaces.Dict({"seen": seen, MASK: spaces.MultiBinary(size)})
    network = dict(hidden_sizes=(20, 9), activation="tanh", shared_trunk=False, log_std_init=-0.3)
    policy = ActorCriticPolicy(
        masks if masked else seen,
        space,
        normalize_observations=False,
        device="cpu",
        squash_actions=actions == "squashed",
        **network | settings,
    )
    with torch.no_grad():
        for parameter in policy.network.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return policy


def invented_batch(policy: ActorCriticPolicy, masked: bool, rows: int, inputs: int = 5) -> dict[str, Any]:
    """Observations, actions that the masks allow, and numbers as they are stored while acting."""
    obs: Any = torch.randn(rows, inputs)
    if masked:
        mask = (torch.rand(rows, len(policy.family.logits)) < 0.6).to(torch.int8)
        mask[:, [0, -1, 3 % mask.shape[1]]] = 1  # of every choice one at least
        obs = {"seen": obs, MASK: mask}
    with torch.no_grad():
        action = policy.family.sample(policy.network(obs)[0])
        log_prob, _, value = policy.evaluate(obs, action)
    return {
        "obs": obs,
        "action": action,
        "log_prob": log_prob + 0.2 * torch.randn(rows),
        "value": value + 0.3 * torch.randn(rows),
        "advantage": torch.randn(rows) + 1,
        "return": torch.randn(rows),
    }


def fastest(loss: Any, slopes: Any, agent: Any, optimizer: Any, config: Any) -> Fastest:
    threads = config.torch_threads or 1
    return Fastest(
        loss, slopes, SimpleNamespace(agent=agent, optimizer=optimizer, config=config, threads=threads)
    )


def both(policy: ActorCriticPolicy, make: Any, slopes: Any, **settings: Any) -> tuple[Any, Any]:
    """The compiled update of a policy, and torch's of a copy of it."""
    config = SimpleNamespace(**DEFAULTS | settings)
    theirs = copy.deepcopy(policy)
    ours = fastest(slopes.of, slopes, policy, make([policy.network]), config)()
    assert isinstance(ours, CompiledUpdate)
    by_torch = SimpleNamespace(**vars(config) | {"compiled_updates": False})
    other = fastest(slopes.of, slopes, theirs, make([theirs.network]), by_torch)()
    assert isinstance(other, TorchUpdate)
    return ours, other


OFF = "torch (compiled_updates is false)"
DEFAULTS = dict(
    normalize_advantages=True, compiled_updates=True, device="cpu", precision="fp32", torch_threads=None
)


def logs(
    update: Any, batch: Any, minibatches: int, norm: Any, far: Far | None = None, **knobs: Any
) -> dict[str, float]:
    """What two epochs of an update log."""
    torch.manual_seed(3)
    now = SimpleNamespace(**knobs, learning_rate=0.003, max_grad_norm=norm)
    logged = update.descend(update.parts(dict(batch), 2, minibatches), now, far)
    return {
        name: float(np.mean([float(value) for value in values])) for name, values in logged.items() if values
    }


def assert_same(
    ours: Any, theirs: Any, batch: Any, minibatches: int, knobs: dict[str, Any], norm: Any
) -> None:
    """Two epochs of each, from the same shuffles, give the same numbers, gradients and weights."""
    logged = [logs(update, batch, minibatches, norm, **knobs) for update in (ours, theirs)]
    assert logged[0] == pytest.approx(logged[1], rel=2e-4, abs=2e-5)
    optimizers: list[Optimizer] = [ours.optimizer, theirs.optimizer]
    moments = [getattr(each, "mean", each.square) for each in optimizers]
    torch.testing.assert_close(*moments, rtol=1e-3, atol=1e-5 * float(moments[1].abs().max()))
    torch.testing.assert_close(*(each.parameters for each in optimizers), rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize(("actions", "masked"), CASES)
@pytest.mark.parametrize("shared", [False, True])
def test_ppo_is_torchs_for_every_kind_of_action(actions: str, masked: bool, shared: bool) -> None:
    policy = actor_critic(actions, masked, shared_trunk=shared)
    batch = invented_batch(policy, masked, 3 * HEIGHT)
    updates = both(policy, lambda modules: Adam(modules, epsilon=1e-5), PPO_SLOPES)
    assert_same(*updates, batch, 2, KNOBS, 0.5)


def drawn_space(actions: str, rng: np.random.Generator) -> Any:
    """Actions of a kind, as many as chance will have."""
    size, sizes = int(rng.integers(1, 8)), rng.integers(2, 6, rng.integers(1, 5))
    if actions == "joint":
        kinds = rng.permutation(["categorical", "multi-categorical", "Bernoulli", "Gaussian"])
        return spaces.Tuple([drawn_space(kind, rng) for kind in kinds[: rng.integers(2, 5)]])
    return {
        "categorical": spaces.Discrete(size + 1),
        "multi-categorical": spaces.MultiDiscrete(sizes),
        "Bernoulli": spaces.MultiBinary(size),
    }.get(actions, spaces.Box(-1, 1, (size,)))


@pytest.mark.parametrize(("actions", "masked"), [*CASES[: len(ACTION_SPACES)], ("categorical", True)])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("loss", ["ppo", "a2c"])
def test_losses_of_any_shape_are_torchs(loss: str, actions: str, masked: bool, seed: int) -> None:
    rng = np.random.default_rng([seed, *map(ord, loss + actions)])
    hidden = tuple(rng.integers(1, 50, rng.integers(0, 4)).tolist())
    inputs, rows = int(rng.integers(1, 40)), int(rng.integers(2, 3 * HEIGHT))
    space, seen = drawn_space(actions, rng), spaces.Box(-1, 1, (inputs,))
    policy = actor_critic(actions, masked, space, seen, hidden_sizes=hidden)
    batch, minibatches = invented_batch(policy, masked, rows, inputs), int(rng.integers(1, min(5, rows)))
    slopes, make, knobs = {
        "ppo": (PPO_SLOPES, Adam, KNOBS),
        "a2c": (A2C_SLOPES, RMSprop, {"ent_coef": 0.3, "vf_coef": 0.7}),
    }[loss]
    assert_same(*both(policy, make, slopes), batch, minibatches, knobs, 0.5)


@pytest.mark.parametrize("actions", ["categorical", "Gaussian"])
@pytest.mark.parametrize("activation", ["tanh", "silu"])
def test_ppo_with_layer_norm_is_torchs(actions: str, activation: str) -> None:
    policy = actor_critic(actions, activation=activation, own=Own(layer_norm=True))
    updates = both(policy, Adam, PPO_SLOPES)
    assert_same(*updates, invented_batch(policy, False, 2 * HEIGHT + 5), 2, KNOBS, 0.5)


@pytest.mark.parametrize(
    "norm",
    [
        nn.LayerNorm(20, eps=1e-3),
        nn.LayerNorm(20, elementwise_affine=False),
        nn.LayerNorm(20, bias=False),
        nn.BatchNorm1d(20),
    ],
)
def test_other_norms_are_left_to_torch(norm: nn.Module) -> None:
    policy = actor_critic("categorical", own=Own(layer_norm=True))
    policy.network.actor_encoder[1][1] = norm
    update = fastest(ppo_loss, PPO_SLOPES, policy, Adam([policy.network]), SimpleNamespace(**DEFAULTS))
    assert isinstance(update(), TorchUpdate)


@pytest.mark.parametrize(
    ("activation", "place", "name", "value"),
    [
        ("elu", 2, "alpha", 0.5),
        ("gelu", 2, "approximate", "tanh"),
        ("tanh", 1, "eps", 1e-3),
    ],
)
def test_a_setting_of_a_layer_that_is_changed_in_place_is_seen(
    activation: str, place: int, name: str, value: Any
) -> None:
    policy = actor_critic("categorical", activation=activation, own=Own(layer_norm=True))
    update = fastest(ppo_loss, PPO_SLOPES, policy, Adam([policy.network]), SimpleNamespace(**DEFAULTS))
    layer = policy.network.actor_encoder[1][place]
    before = getattr(layer, name)
    for changed, kind in ((value, TorchUpdate), (before, CompiledUpdate)):
        setattr(layer, name, changed)
        assert isinstance(update(), kind)


@pytest.mark.parametrize(("actions", "masked"), CASES)
@pytest.mark.parametrize("normalize", [False, True])
def test_a2c_is_torchs_for_every_kind_of_action(actions: str, masked: bool, normalize: bool) -> None:
    policy = actor_critic(actions, masked)
    batch = invented_batch(policy, masked, HEIGHT + 40)
    updates = both(policy, RMSprop, A2C_SLOPES, normalize_advantages=normalize)
    assert_same(*updates, batch, 1, {"ent_coef": 0.3, "vf_coef": 0.7}, 0.5)


@pytest.mark.parametrize("normalize", [False, True])
def test_ppo_without_limits_and_with_uneven_minibatches(normalize: bool) -> None:
    policy = actor_critic("categorical", hidden_sizes=())
    batch = invented_batch(policy, False, 131)
    updates = both(policy, Adam, PPO_SLOPES, normalize_advantages=normalize)
    assert_same(*updates, batch, 3, KNOBS | {"value_clip_coef": None, "ent_coef": 0.0}, None)


def test_a_single_row_is_not_normalised() -> None:
    policy = actor_critic("Gaussian")
    updates = both(policy, Adam, PPO_SLOPES)
    assert_same(*updates, invented_batch(policy, False, 1), 1, KNOBS, 0.5)


def test_a_loss_that_is_not_finite_moves_nothing() -> None:
    policy = actor_critic("categorical")
    batch = invented_batch(policy, False, 10)
    batch["return"][3] = np.nan
    update, _ = both(policy, Adam, PPO_SLOPES)
    before = update.optimizer.parameters.clone()
    with pytest.raises(NonFiniteError, match="loss"):
        logs(update, batch, 1, 0.5, **KNOBS)
    assert torch.equal(update.optimizer.parameters, before)


def test_a_gradient_that_is_not_finite_ends_the_update() -> None:
    policy = actor_critic("categorical")
    batch = invented_batch(policy, False, 10)
    batch["obs"][3] = 1e30
    update, _ = both(policy, Adam, PPO_SLOPES)
    with torch.no_grad():
        for layer in (policy.network.critic_encoder[1][0], policy.network.actor_encoder[1][0]):
            layer.weight.zero_()  # so that outputs are finite, and the squares of these weights' slopes are not
    before = update.optimizer.parameters.clone()
    with pytest.raises(NonFiniteError, match="norm of the gradient"):
        logs(update, batch, 1, 0.5, **KNOBS)
    assert torch.equal(update.optimizer.parameters, before)


@pytest.mark.parametrize("limit", [0.0, 0.02, 0.03, 0.05, 1.0])
def test_learning_stops_where_the_policy_is_far(limit: float) -> None:
    """The minibatch on which that is noticed is logged, and no step is taken on it."""
    policy = actor_critic("categorical")
    updates = both(policy, Adam, PPO_SLOPES)
    batch, far = invented_batch(policy, False, 90), Far("approx_kl", limit)
    ours, theirs = (logs(update, batch, 3, 0.5, far, **KNOBS) for update in updates)
    assert ours == pytest.approx(theirs, rel=2e-4, abs=2e-5)
    assert ("grad_norm" in ours) == (limit > 0)
    assert updates[0].optimizer.count == updates[1].optimizer.count


@pytest.mark.parametrize("compiled", [True, False])
def test_at_the_limit_a_policy_is_not_far_yet(compiled: bool) -> None:
    policy = actor_critic("categorical")
    batch, update = invented_batch(policy, False, 90), both(policy, Adam, PPO_SLOPES)[not compiled]
    first = logs(update, batch, 1, 0.5, Far("approx_kl", 0.0), **KNOBS)
    assert "grad_norm" not in first
    assert "grad_norm" not in logs(
        update, batch, 1, 0.5, Far("approx_kl", 0.999 * first["approx_kl"]), **KNOBS
    )
    assert "grad_norm" in logs(update, batch, 1, 0.5, Far("approx_kl", first["approx_kl"]), **KNOBS)


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ({"compiled_updates": False}, "compiled_updates is false"),
        ({"precision": "bf16"}, "precision bf16"),
        ({"torch_threads": 2}, "2 threads"),
        ({"device": "cuda"}, "device cuda"),
    ],
)
def test_torch_is_used_where_compiled_code_does_not_fit(setting: dict[str, Any], why: str) -> None:
    policy = actor_critic("categorical")
    chosen = fastest(
        ppo_loss, PPO_SLOPES, policy, Adam([policy.network]), SimpleNamespace(**DEFAULTS | setting)
    )
    assert isinstance(chosen(), TorchUpdate)
    assert chosen.path == "torch"
    assert chosen.explained == f"torch ({why})"


def test_a_loss_of_ones_own_is_differentiated_by_torch() -> None:
    policy, called = actor_critic("categorical"), []

    def own(*said: Any, **knobs: Any) -> Any:
        called.append(knobs)
        return ppo_loss(*said, **knobs)

    update = fastest(own, PPO_SLOPES, policy, Adam([policy.network]), SimpleNamespace(**DEFAULTS))()
    logs(update, invented_batch(policy, False, 4), 1, None, **KNOBS)
    assert called == [KNOBS, KNOBS]


def test_a_network_that_changes_is_seen() -> None:
    policy = actor_critic("categorical")
    chosen = fastest(ppo_loss, PPO_SLOPES, policy, Adam([policy.network]), SimpleNamespace(**DEFAULTS))
    assert chosen.path == "compiled"
    handle = policy.network.actor_head.register_forward_hook(lambda *_: None)
    assert isinstance(chosen(), TorchUpdate)
    handle.remove()
    assert isinstance(chosen(), CompiledUpdate)
    policy.network.actor_encoder[1][1] = nn.Softplus()
    assert chosen.explained == "torch (the policy is not of dense layers alone)"


def test_laprop_is_not_compiled_but_for_dreamer() -> None:
    policy = actor_critic("categorical")
    chosen = fastest(ppo_loss, PPO_SLOPES, policy, LaProp([policy.network]), SimpleNamespace(**DEFAULTS))
    assert chosen.explained == "torch (an optimizer of one's own)"


@pytest.mark.parametrize("algo", ["ppo", "dqn", "sac"])
def test_frozen_parameters_stay(algo: str) -> None:
    env_id, name = {"sac": ("Pendulum-v1", "soft_updates"), "dqn": ("CartPole-v1", "q_update")}.get(
        algo, ("CartPole-v1", "surrogate")
    )
    settings: dict[str, Any] = dict(env_id=env_id, hidden_sizes=(8,), total_timesteps=1000)
    if algo != "ppo":
        settings |= dict(learning_starts=8, batch_size=4, replay_ratio=1.0)
    trainer = warmed(algo, 0, **settings)
    choice, network = getattr(trainer, name), dict(trainer.networks())
    assert choice.path == "compiled"
    frozen, *others = next(iter(network.values())).parameters()
    frozen.requires_grad_(False)
    assert choice.explained == "torch (parameters are frozen)"
    before = [part.clone() for part in (frozen, *others)]
    controls = Controls.of(trainer.config)
    for number in range(16 if algo != "ppo" else 1):
        trainer.iterate(controls.at(number * trainer.config.steps_per_iteration))
    assert torch.equal(frozen, before[0])
    assert not torch.equal(others[-1], before[-1])
    frozen.requires_grad_(True)
    assert choice.path == "compiled"


class Noise(gym.Env):  # type: ignore[type-arg]
    """Observations and rewards of noise, for actions of several dimensions or one of several actions."""

    def __init__(self, seen: int = 3, dimensions: int = 2, choices: int = 0) -> None:
        self.observation_space = spaces.Box(-1, 1, (seen,))
        self.action_space = spaces.Discrete(choices) if choices else spaces.Box(-1, 1, (dimensions,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        return self._seen(), float(np.sum(action)), bool(self.np_random.random() < 0.1), False, {}

    def _seen(self) -> np.ndarray:
        return self.np_random.uniform(-1, 1, self.observation_space.shape).astype(np.float32)


gym.register("compiled/Noise-v0", entry_point=Noise)


def drawn_shape(seed: int) -> dict[str, Any]:
    """Sizes of an environment, its networks and batches, for tests of replay-based updates."""
    rng = np.random.default_rng(seed)
    sizes: dict[str, int] = dict(zip(("seen", "dimensions"), rng.integers(1, 20, 2).tolist(), strict=True))
    return dict(
        env_id="compiled/Noise-v0",
        env_kwargs=sizes,
        hidden_sizes=tuple(rng.integers(1, 50, rng.integers(0, 4)).tolist()),
        batch_size=int(rng.integers(2, 2 * HEIGHT)),
        learning_starts=50,
        buffer_size=500,
        total_timesteps=1000,
        learning_rate=0.003,
    )


@pytest.mark.parametrize(
    "settings",
    [{}, {"ent_coef": 0.2, "activation": "silu", "normalize_observations": True}, {"layer_norm": True}],
)
def test_sac_is_torchs(settings: dict[str, Any]) -> None:
    """From the same draws: updates of more than one block, with actions of several dimensions."""
    small = dict(env_id="compiled/Noise-v0", total_timesteps=1000, hidden_sizes=(20, 12), learning_rate=0.003)
    replay = dict(learning_starts=50, batch_size=HEIGHT + 30, buffer_size=500)
    ours, theirs = (
        warmed("sac", 60, **small | replay | settings, compiled_updates=how) for how in (True, False)
    )
    assert (ours.soft_updates.path, theirs.soft_updates.path) == ("compiled", "torch")
    for name in ("actor_optimizer", "critic_optimizer"):
        pair = [getattr(trainer, name).parameters for trainer in (ours, theirs)]
        torch.testing.assert_close(*pair, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(ours.target_weights, theirs.target_weights, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_sac_of_any_shape_is_torchs(seed: int) -> None:
    ours, theirs = (warmed("sac", 60, **drawn_shape(seed), compiled_updates=how) for how in (True, False))
    assert (ours.soft_updates.path, theirs.soft_updates.path) == ("compiled", "torch")
    for name in ("actor_optimizer", "critic_optimizer"):
        pair = [getattr(trainer, name).parameters for trainer in (ours, theirs)]
        torch.testing.assert_close(*pair, rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize("seed", range(3))
def test_dqn_of_any_shape_is_torchs(seed: int) -> None:
    shape = drawn_shape(seed)
    sizes = shape.pop("env_kwargs")
    shape |= dict(env_kwargs=dict(seen=sizes["seen"], choices=1 + sizes["dimensions"]), replay_ratio=1.0)
    ours, theirs = (
        warmed("dqn", 14, **shape, dueling=seed == 1, compiled_updates=how) for how in (True, False)
    )
    assert (ours.q_update.path, theirs.q_update.path) == ("compiled", "torch")
    assert ours.updates == theirs.updates > 5
    pair = [trainer.optimizer.parameters for trainer in (ours, theirs)]
    torch.testing.assert_close(*pair, rtol=1e-3, atol=2e-4)


def test_sac_without_dense_layers_or_with_a_loss_of_ones_own_learns_by_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = dict(
        env_id="Pendulum-v1", total_timesteps=100, hidden_sizes=(8,), learning_starts=4, batch_size=4
    )
    trainer = warmed("sac", 0, **settings)
    assert trainer.soft_updates.path == "compiled"
    trainer.critics.register_forward_hook(lambda *_: None)
    assert trainer.soft_updates.path == "torch"
    monkeypatch.setattr(sac_trainer, "actor_loss", lambda *said: actor_loss(*said))
    assert warmed("sac", 0, **settings).soft_updates.explained == "torch (a loss of one's own)"


@pytest.mark.parametrize("how", [True, False])
def test_targets_and_moments_may_be_replaced(how: bool) -> None:
    """Where a target is another one, or moments begin anew, updates see it: compiled ones as torch's."""
    small = dict(total_timesteps=1000, hidden_sizes=(8,), learning_starts=8, batch_size=8, replay_ratio=1.0)
    for algo, env_id, target, optimizer in (
        ("dqn", "CartPole-v1", "target", "optimizer"),
        ("sac", "Pendulum-v1", "target_critics", "critic_optimizer"),
    ):
        trainer = warmed(algo, 40, env_id=env_id, **small, compiled_updates=how)
        choice = next(iter(trainer.choices().values()))
        old = choice.taken()
        network, moving = getattr(trainer, target), getattr(trainer, optimizer)
        other, weights = target_of(network)
        setattr(trainer, target, other)
        assert choice.taken() is None
        assert choice.explained == ("torch (a target of one's own)" if how else OFF)
        trainer.target_weights = weights
        assert choice.path == ("compiled" if how else "torch")
        assert not how or choice.taken() is not old
        moving._begin(moving.betas, moving.epsilon)
        trainer.iterate(Controls.of(trainer.config).at(400))
        assert moving.count > 0 and moving.mean.any()


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("streams", [None, dict(dueling_sizes=[]), {}, dict(dueling_sizes=[9, 5])])
@pytest.mark.parametrize("env_id", ["CartPole-v1", "probe/Masked-v0"])
def test_dqn_is_torchs(double: bool, streams: dict[str, Any] | None, env_id: str) -> None:
    """From the same draws: updates of more than one block, with priorities that follow from the errors."""
    small = dict(env_id=env_id, total_timesteps=1000, hidden_sizes=(20, 12), learning_rate=0.003)
    replay = dict(learning_starts=50, batch_size=HEIGHT + 30, buffer_size=500, replay_ratio=1.0, n_step=2)
    switches = dict(double=double, dueling=streams is not None, prioritized=True, target_update_interval=5)
    switches |= streams or {}
    ours, theirs = (
        warmed("dqn", 14, **small | replay | switches, compiled_updates=how) for how in (True, False)
    )
    assert (ours.q_update.path, theirs.q_update.path) == ("compiled", "torch")
    assert ours.updates == theirs.updates > 5
    pair = [trainer.optimizer.parameters for trainer in (ours, theirs)]
    torch.testing.assert_close(*pair, rtol=1e-3, atol=2e-4)
    nodes = [trainer.replay.priorities.nodes for trainer in (ours, theirs)]
    np.testing.assert_allclose(*nodes, rtol=1e-3)


@pytest.mark.parametrize("switches", [{}, dict(layer_norm=True), dict(layer_norm=True, dueling=True)])
def test_dqn_without_priorities_or_limits_is_torchs(switches: dict[str, Any]) -> None:
    small = dict(env_id="CartPole-v1", total_timesteps=1000, hidden_sizes=(20,), activation="relu")
    small |= switches
    replay = dict(learning_starts=50, batch_size=40, buffer_size=500, max_grad_norm=None, replay_ratio=1.0)
    replay |= dict(huber_delta=None, optimizer_epsilon=0.01, optimizer_betas=[0.8, 0.99])
    ours, theirs = (warmed("dqn", 14, **small | replay, compiled_updates=how) for how in (True, False))
    assert (ours.q_update.path, theirs.q_update.path) == ("compiled", "torch")
    pair = [trainer.optimizer.parameters for trainer in (ours, theirs)]
    torch.testing.assert_close(*pair, rtol=1e-3, atol=2e-4)
