"""Opt-out state: what is saved, what comes back exactly, and what is refused loudly."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rl_training.state.seeding import fold, seed_everything
from rl_training.state.stateful import ObjectState, Stateful, load_module_state, module_state


class Counter(Stateful):
    def __init__(self) -> None:
        self.count = 0
        self.mean = np.zeros(3)


class Everything(Stateful):
    transient = ("config",)

    def __init__(self) -> None:
        self.config = object()
        self.flat = torch.zeros(6)
        self.view = self.flat[2:4]
        self.net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
        self.counter = Counter()
        self.both = [Counter(), Counter()]
        self.by_name = {"a": Counter(), 7: 1.5}
        self.pair = (1, "two", None)
        self.recent = deque([1.0, 2.0], maxlen=3)
        self.scalar = np.float32(0.1)
        self.lazy: Any = None

    def change(self) -> None:
        self.flat += torch.arange(6.0)
        with torch.no_grad():
            self.net[0].weight += 1
        self.net[2].eval()
        self.counter.count, self.both[1].count = 3, 4
        self.counter.mean += 2
        self.by_name["a"].count = 5
        self.by_name[7] = float("inf")
        self.by_name[-1] = [True]
        self.pair = (2, "three", (None, ()))
        self.recent.extend([3.0, 4.0])
        self.scalar = np.float32(0.7)
        self.lazy = {"obs": torch.ones(2), "t": np.int64(3)}


def same(a: Any, b: Any) -> bool:
    """Equal in type, structure and every bit."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        raw = [x.contiguous().flatten().view(torch.uint8) if x.numel() else x for x in (a, b)]
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*raw)
    if isinstance(a, np.ndarray | np.generic):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return (
            [*map(type, a)] == [*map(type, b)]
            and list(a) == list(b)
            and all(same(a[key], b[key]) for key in a)
        )
    if isinstance(a, deque) and a.maxlen != b.maxlen:
        return False
    if isinstance(a, list | tuple | deque):
        return len(a) == len(b) and all(map(same, a, b))
    return repr(a) == repr(b)


def test_fold_names_a_seed_by_its_path() -> None:
    assert fold(1, "iteration", 3) == fold(1, "iteration", np.int64(3))
    paths = [(1,), (2,), (1, "a"), (1, "b"), (1, 1), (1, "1"), (1, "a", "b"), (1, "ab"), (11,), (1, 1, 1)]
    assert len({fold(*path) for path in paths}) == len(paths)
    assert all(0 <= fold(0, n) < 2**63 for n in range(1000))
    # A golden value: a change of this function would change every run ever made.
    assert fold(1, "iteration", 0) == 5713495226757644354
    with pytest.raises(TypeError):
        fold(1, 0.5)  # type: ignore[arg-type]


def test_seed_everything_makes_all_draws_functions_of_the_seed() -> None:
    def draws(seed: int) -> tuple[float, float, float]:
        seed_everything(seed)
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    assert draws(2**63 - 1) == draws(2**63 - 1)
    assert all(a != b for a, b in zip(draws(1), draws(2), strict=True))


def test_state_comes_back_exactly_into_the_storage_that_is_there() -> None:
    source, target = Everything(), Everything()
    source.change()
    state = source.state_dict()
    assert "config" not in state
    kept = (
        target.view,
        target.net[0].weight,
        target.counter,
        target.counter.mean,
        target.both,
        target.recent,
    )
    target.load_state_dict(state)
    assert same(target.state_dict(), state)
    assert target.view.tolist() == [2.0, 3.0], "a view stays a view"
    assert target.view.data_ptr() == target.flat[2:4].data_ptr()
    after = (
        target.view,
        target.net[0].weight,
        target.counter,
        target.counter.mean,
        target.both,
        target.recent,
    )
    assert all(a is b for a, b in zip(kept, after, strict=True))
    assert not target.net[2].training
    assert target.net[0].training


def test_a_state_is_a_copy_in_both_directions() -> None:
    source, target = Everything(), Everything()
    source.change()
    state = source.state_dict()
    target.load_state_dict(state)
    before = float(state["flat"][1])
    source.flat += 1
    target.flat += 5
    target.lazy["obs"] += 1
    assert float(state["flat"][1]) == before
    assert state["lazy"]["obs"].tolist() == [1.0, 1.0]


def test_transient_names_of_base_classes_count() -> None:
    class Child(Everything):
        transient = ("window",)

        def __init__(self) -> None:
            super().__init__()
            self.window = object()

    assert not {"config", "window"} & Child().state_dict().keys()


@pytest.mark.parametrize(
    "value",
    [
        object(),
        {1, 2},
        b"bytes",
        1j,
        lambda: 0,
        np.random.default_rng(0),
        torch.Generator(),
        np.array(["a"]),
        np.array([None]),
        np.array([1.0]).astype(">f8"),
        torch.zeros(2, dtype=torch.complex64),
        torch.eye(2).to_sparse(),
        torch.optim.Adam([nn.Parameter(torch.zeros(1))]),
        {(1, 2): 3},
        {True: 1},
        [1, [{"a": object()}]],
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_saved_is_named(value: Any) -> None:
    thing = Counter()
    thing.secret = value  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match=r"Counter\.secret.*name it in `transient`"):
        thing.state_dict()


def test_an_object_that_leads_back_to_its_holder_is_named() -> None:
    holder, part = Counter(), Counter()
    holder.part, part.holder = part, holder  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match=r"Counter\.holder leads back"):
        holder.state_dict()


def test_classes_that_could_hide_state_are_refused_when_they_are_made() -> None:
    with pytest.raises(TypeError, match="tuple of names"):
        type("Wrong", (Stateful,), {"transient": "name"})
    with pytest.raises(TypeError, match="__slots__"):
        type("Slotted", (Stateful,), {"__slots__": ("hidden",)})
    with pytest.raises(TypeError, match=r"nn\.Module"):
        type("Both", (nn.Module, Stateful), {})


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda state: state.pop("flat"), "lacks flat"),
        (lambda state: state.update(other=1), "unknown other"),
        (lambda state: state.update(flat=torch.zeros(5)), r"Everything\.flat"),
        (lambda state: state.update(flat=torch.zeros(6, dtype=torch.float64)), r"Everything\.flat"),
        (lambda state: state.update(flat=[0.0] * 6), r"Everything\.flat"),
        (lambda state: state["net"].pop("0.bias"), r"lacks 0\.bias"),
        (lambda state: state["net"].update({"0.weight": torch.zeros(1)}), r"net\.0\.weight"),
        (lambda state: state["both"].pop(), r"Everything\.both"),
        (lambda state: state["by_name"].pop("a"), r"Everything\.by_name"),
        (lambda state: state.update(counter=None), r"Everything\.counter"),
        (lambda state: state.update(lazy=ObjectState(count=1)), r"Everything\.lazy"),
        (lambda state: state.update(recent=deque([1.0], maxlen=9)), "maxlen"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(edit: Any, message: str) -> None:
    state = Everything().state_dict()
    edit(state)
    with pytest.raises(ValueError, match=message):
        Everything().load_state_dict(state)


class Layer(nn.Module):
    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.rate = 0.5
        self.activation = torch.tanh
        self.dtype = torch.float32
        for name, value in attributes.items():
            setattr(self, name, value)


@pytest.mark.parametrize(
    "value",
    [[], {}, set(), np.zeros(2), torch.zeros(2), Counter(), object(), deque(), ([],)],
    ids=lambda value: type(value).__name__,
)
def test_modules_that_hide_state_are_refused(value: Any) -> None:
    holder = Counter()
    holder.net = nn.Sequential(Layer(hidden=value))  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match=r"Layer\.hidden.*transient"):
        holder.state_dict()


def test_buffers_that_are_not_persistent_are_refused_unless_transient() -> None:
    class Cached(Layer):
        transient = ("cache", "teacher")

        def __init__(self) -> None:
            super().__init__(teacher=nn.Linear(1, 1))
            self.register_buffer("cache", torch.zeros(1), persistent=False)

    assert {"linear.weight", "rate"} <= module_state(Cached()).keys()
    assert not [name for name in module_state(Cached()) if "cache" in name or "teacher" in name]
    layer = Layer()
    layer.register_buffer("mask", torch.zeros(1), persistent=False)
    with pytest.raises(TypeError, match=r"Layer\.mask is a buffer that is not persistent"):
        module_state(layer)


def test_plain_attributes_of_modules_are_state() -> None:
    source, target = nn.Sequential(Layer(), nn.Dropout(0.5)), nn.Sequential(Layer(), nn.Dropout(0.5))
    source[0].rate, source[1].p = 0.25, 0.1
    load_module_state(target, module_state(source))
    assert (target[0].rate, target[1].p) == (0.25, 0.1)


def test_attributes_of_torch_layers_may_differ_between_versions_but_tensors_may_not() -> None:
    net = nn.Sequential(nn.Linear(2, 2))
    state = module_state(net)
    del state["0.in_features"]
    state["0.a_later_torch_has_this"] = 1
    load_module_state(net, state)
    state["0.extra"] = torch.zeros(1)
    with pytest.raises(ValueError, match=r"unknown 0\.extra"):
        load_module_state(net, state)


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Conv2d(1, 2, 3).to(memory_format=torch.channels_last),
        lambda: nn.LSTM(2, 3),
        lambda: nn.MultiheadAttention(4, 2),
        lambda: nn.BatchNorm1d(2),
        lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3)),
    ],
    ids=["conv", "lstm", "attention", "batchnorm", "spectral"],
)
def test_torch_layers_come_back_with_their_memory_format(make: Any) -> None:
    source, target = make(), make()
    with torch.no_grad():
        for tensor in [*source.parameters(), *source.buffers()]:
            tensor += 1
    strides = [tensor.stride() for tensor in target.parameters()]
    load_module_state(target, module_state(source))
    assert same(module_state(target), module_state(source))
    assert [tensor.stride() for tensor in target.parameters()] == strides


def test_tied_weights_are_saved_once_and_stay_tied() -> None:
    def make() -> nn.Module:
        net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        net[1].weight = net[0].weight
        return net

    source, target = make(), make()
    assert "1.weight" not in module_state(source)
    load_module_state(target, module_state(source))
    assert target[1].weight is target[0].weight
    assert torch.equal(target[1].weight, source[0].weight)
