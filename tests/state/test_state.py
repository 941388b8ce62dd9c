"""Opt-out state: what is saved, what comes back exactly, and what is refused loudly."""

from __future__ import annotations

import json
import os
import random
import signal
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import nn

from rl_training.errors import RunError
from rl_training.state.checkpoints import checkpoint_step, load_checkpoint, save_checkpoint
from rl_training.state.encoding import MAX_DEPTH, Decoder
from rl_training.state.files import AppendLog, make_directory, publish_directory, replace_file, write_file
from rl_training.state.leaves import NUMPY_DTYPES, TORCH_DTYPES, ObjectState
from rl_training.state.modules import load_module_state, module_state
from rl_training.state.restoring import no_larger_than
from rl_training.state.run_directory import RunDirectory, changed_keys
from rl_training.state.seeding import fold, seed_everything
from rl_training.state.stateful import Stateful


class Counter(Stateful):
    def __init__(self) -> None:
        self.count = 0
        self.mean = np.zeros(3)


class Everything(Stateful):
    transient = ("config",)
    varying = ("pair", "lazy")

    def __init__(self) -> None:
        self.config = object()
        self.flat = torch.zeros(6)
        self.view = self.flat[2:4]
        self.net: Any = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
        self.counter = Counter()
        self.both = [Counter(), Counter()]
        self.by_name: dict[Any, Any] = {"a": Counter(), 7: 1.5}
        self.pair: tuple[Any, ...] = (1, "two", None)
        self.recent = deque([1.0, 2.0], maxlen=3)
        self.scalar = np.float32(0.1)
        self.lazy: Any = None
        self.absent: Any = None
        self.sizes = (1, 2.0)

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
    assert fold(1, "iteration", 3) == fold(1, "iteration", np.int64(3))  # type: ignore[arg-type]
    paths: list[Any] = [
        (1,),
        (2,),
        (1, "a"),
        (1, "b"),
        (1, 1),
        (1, "1"),
        (1, "a", "b"),
        (1, "ab"),
        (11,),
        (1, 1, 1),
    ]
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


@pytest.mark.parametrize("seed", [0, 64, 2**32 - 1, 2**32 + 5, 2**63 - 1])
def test_each_generator_gets_all_of_the_seed_that_it_can_take(seed: int) -> None:
    seed_everything(seed)
    assert random.random() == random.Random(seed).random()
    assert np.random.rand() == np.random.RandomState(seed % 2**32).rand()
    assert torch.rand(()) == torch.rand((), generator=torch.Generator().manual_seed(seed))


def test_state_comes_back_exactly_into_the_storage_that_is_there() -> None:
    source, target = Everything(), Everything()
    source.change()
    state = source.state_dict()
    assert "config" not in state

    def parts() -> tuple[object, ...]:
        weight, mean = target.net[0].weight, target.counter.mean
        return target.view, weight, target.counter, mean, target.both, target.recent

    kept = parts()
    target.load_state_dict(state)
    assert same(target.state_dict(), state)
    assert target.view.tolist() == [2.0, 3.0], "a view stays a view"
    assert target.view.data_ptr() == target.flat[2:4].data_ptr()
    assert all(a is b for a, b in zip(kept, parts(), strict=True))
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


def test_an_optimizer_of_torch_cannot_be_saved() -> None:
    """Apart from the others: making one imports torch's compiler, which takes seconds."""
    test_what_cannot_be_saved_is_named(torch.optim.Adam([nn.Parameter(torch.zeros(1))]))


def test_an_object_that_leads_back_to_its_holder_is_named() -> None:
    holder, part = Counter(), Counter()
    holder.part, part.holder = part, holder  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match=r"Counter\.holder refers back"):
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
        (lambda state: state.update(absent=5), r"absent: NoneType here, but int was saved.*`varying`"),
        (lambda state: state.update(sizes=[1, 2.0]), r"sizes: tuple here, but list"),
        (lambda state: state.update(sizes=(1,)), r"sizes: a tuple of 2 here, but one of 1"),
        (lambda state: state.update(sizes=(1.0, 2.0)), r"sizes\[0\]: int here, but float"),
        (lambda state: state.update(sizes=(True, 2.0)), r"sizes\[0\]: int here, but bool"),
        (lambda state: state.update(sizes=(2**63, 2.0)), "beyond 64 bits"),
        (lambda state: state["counter"].update(mean=np.zeros(4)), r"mean: an array of \(3,\) float64"),
        (lambda state: state["counter"].update(mean=np.zeros(3, np.float32)), "mean: an array"),
        (lambda state: state["net"]["0.weight"].fill_(float("nan")), r"net\.0\.weight: .* not finite"),
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
    source: Any = nn.Sequential(Layer(), nn.Dropout(0.5))
    target: Any = nn.Sequential(Layer(), nn.Dropout(0.5))
    source[0].rate, source[1].p = 0.25, 0.1
    load_module_state(target, module_state(source))
    assert (target[0].rate, target[1].p) == (0.25, 0.1)


def test_only_floats_and_what_varies_come_back_in_modules_of_ours() -> None:
    class Counted(Layer):
        varying = ("seen",)

    source: Any = nn.Sequential(Counted(seen=3, rows=2))
    target: Any = nn.Sequential(Counted(seen=0, rows=2))
    load_module_state(target, module_state(source))
    assert target[0].seen == 3
    for name, value in (("0.rows", 5), ("0.rows", True), ("0.rate", float("nan")), ("0.rate", "fast")):
        with pytest.raises(ValueError, match=name):
            load_module_state(target, module_state(source) | {name: value})
    load_module_state(target, module_state(source) | {"0.linear.in_features": 99})
    assert target[0].linear.in_features == 2, "shapes hang on it"


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
        lambda: nn.Conv2d(1, 2, 3).to(memory_format=torch.channels_last),  # type: ignore[call-overload]
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
    def make() -> Any:
        net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        net[1].weight = net[0].weight
        return net

    source, target = make(), make()
    assert "1.weight" not in module_state(source)
    load_module_state(target, module_state(source))
    assert target[1].weight is target[0].weight
    assert torch.equal(target[1].weight, source[0].weight)


DTYPES = st.sampled_from(sorted(NUMPY_DTYPES, key=str))
KEYS = st.text(max_size=5) | st.integers(-3, 3) | st.sampled_from(["~", "__metadata__", "a.b", "\ud800"])
ARRAYS = DTYPES.flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
)
TENSORS = ARRAYS.map(torch.from_numpy) | st.sampled_from(
    [
        torch.tensor([1.5, float("nan"), -0.0], dtype=torch.bfloat16),
        torch.tensor(True),
        torch.arange(12).view(3, 4).T,
        torch.arange(8.0)[::2],
        torch.ones(1).expand(3),
        torch.rand(2, 3, 4, 4).contiguous(memory_format=torch.channels_last),
        nn.Parameter(torch.zeros(0, 3)),
    ]
)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | ARRAYS
    | TENSORS
    | DTYPES.flatmap(hnp.from_dtype)
)
TREES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.lists(inner, max_size=3).map(lambda items: deque(items, maxlen=4))
        | st.dictionaries(KEYS, inner, max_size=3)
        | st.dictionaries(st.text(max_size=5), inner, max_size=3).map(ObjectState)
    ),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=st.dictionaries(st.sampled_from(["policy", "trainer", "~"]), TREES))
def test_checkpoints_give_back_exactly_what_they_were_given(tmp_path: Path, tree: dict[str, Any]) -> None:
    loaded = load_checkpoint(save_checkpoint(tmp_path, 1, tree, keep=2))
    assert same(plain_tensors(loaded), plain_tensors(tree))


def plain_tensors(tree: Any) -> Any:
    """The tree with parameters as the tensors they are saved as."""
    if isinstance(tree, torch.Tensor):
        return tree.detach()
    if isinstance(tree, deque):
        return deque(map(plain_tensors, tree), tree.maxlen)
    if isinstance(tree, list | tuple):
        return type(tree)(map(plain_tensors, tree))
    if isinstance(tree, dict):
        return type(tree)((key, plain_tensors(value)) for key, value in tree.items())
    return tree


def test_the_round_trip_keeps_what_is_easily_lost(tmp_path: Path) -> None:
    flat = torch.arange(10.0)
    tree = {
        "policy": {
            "a": flat[:4],
            "b": flat[2:6],
            "whole": flat,
            "a.b": flat,
            "nested": {"a": {"b": flat + 1}},
        },
        "rest": {
            "numbers": [float("nan"), float("inf"), -float("inf"), -0.0, 5e-324, 2**200, True, 1, 1.0],
            "containers": [(), [], {}, ((),), {1: {}, "1": []}, deque(maxlen=0)],
            "scalars": [
                np.float32("nan"),
                np.float16(-0.0),
                np.int64(-1),
                np.bool_(True),
                np.uint64(2**64 - 1),
            ],
            "text": ["", "\ud800", "NaN", "\x00", "ü"],
            "~": {"~": "tuple", "items": []},
            "dtypes": [torch.zeros(2, dtype=dtype) for dtype in sorted(TORCH_DTYPES, key=str)],
        },
    }
    path = save_checkpoint(tmp_path, 123, tree, keep=2)
    assert path.name == "step-000000000123"
    assert same(load_checkpoint(path), tree)
    assert same(load_checkpoint(path, only="policy"), {"policy": tree["policy"]})
    assert same(load_checkpoint(path, only="rest"), {"rest": tree["rest"]})
    assert checkpoint_step(path) == 123


def test_equal_trees_give_equal_bytes_that_other_tools_can_read(tmp_path: Path) -> None:
    import safetensors.torch

    net: Any = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    tree = {"policy": {"net": module_state(net)}, "mean": np.arange(3.0), "more": [{"x": torch.ones(1)}]}
    paths = [save_checkpoint(tmp_path / name, 7, tree, keep=2) for name in "ab"]
    for name in ("weights.safetensors", "state.safetensors", "state.json"):
        assert (paths[0] / name).read_bytes() == (paths[1] / name).read_bytes()
    weights = safetensors.torch.load_file(paths[0] / "weights.safetensors")
    assert torch.equal(weights["net.0.weight"], net[0].weight)
    assert set(safetensors.torch.load_file(paths[0] / "state.safetensors")) == {"mean", "more.0.x"}
    json.loads((paths[0] / "state.json").read_text(), parse_constant=pytest.fail)


def test_what_a_checkpoint_cannot_hold_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    deep: Any = 1
    for _ in range(200):
        deep = [deep]
    for tree in (
        {"a": object()},
        {1: 2},
        {"a": {(1,): 2}},
        {"a": deep},
        {"a": torch.zeros(1, dtype=torch.complex64)},
    ):
        with pytest.raises((TypeError, ValueError)):
            save_checkpoint(tmp_path / "never", 1, tree, keep=2)  # type: ignore[arg-type]
    assert not (tmp_path / "never").exists()


DEEPER: dict[str, Any] = {
    "list": lambda node: [node],
    "dict": lambda node: {"a": node},
    "tuple": lambda node: {"~": "tuple", "items": [node]},
    "deque": lambda node: {"~": "deque", "items": [node], "maxlen": None},
    "object": lambda node: {"~": "state", "items": {"a": node}},
    "dict of numbers": lambda node: {"~": "dict", "items": [[1, node]]},
}


@pytest.mark.parametrize("kind", DEEPER)
def test_everything_may_be_nested_a_hundred_deep_and_no_deeper(kind: str) -> None:
    node: Any = 7
    for _ in range(MAX_DEPTH):
        node = DEEPER[kind](node)
    found = Decoder({}).decode(node)
    for _ in range(MAX_DEPTH):
        (found,) = found.values() if isinstance(found, dict) else found
    assert found == 7
    with pytest.raises(ValueError, match="nested deeper than 100"):
        Decoder({}).decode(DEEPER[kind](node))


def test_a_name_is_given_only_to_what_the_disk_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_checkpoint(tmp_path, 1, {}, keep=2)
    calls: list[str] = []
    fsync, rename = os.fsync, os.rename

    def note_fsync(descriptor: int) -> None:
        calls.append("sync " + Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    def note_rename(source: Path, target: Path) -> None:
        calls.append(f"rename {Path(source).name} {Path(target).name}")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "rename", note_rename)
    save_checkpoint(tmp_path, 2, {"policy": torch.ones(1)}, keep=1)
    aside, final, old = ".writing-step-000000000002", "step-000000000002", "step-000000000001"
    assert sorted(calls[:3]) == ["sync state.json", "sync state.safetensors", "sync weights.safetensors"]
    assert calls[3:] == [
        f"sync {aside}",
        f"rename {aside} {final}",
        f"sync {tmp_path.name}",
        f"rename {old} .removing-{old}",
    ]


def test_files_are_created_once_and_replaced_at_one_instant(tmp_path: Path) -> None:
    write_file(tmp_path / "a", b"one")
    with pytest.raises(FileExistsError):
        write_file(tmp_path / "a", b"two")
    replace_file(tmp_path / "a", b"three")
    assert (tmp_path / "a").read_bytes() == b"three"
    assert os.listdir(tmp_path) == ["a"]


def test_an_append_log_survives_failed_writes_and_is_cut_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "metrics.jsonl"
    with AppendLog(path) as log:
        log.write(b"first\n")
        log.fsync()
        length = log.tell()
        real = os.write

        def partly(descriptor: int, data: bytes) -> int:
            monkeypatch.setattr(os, "write", full)
            return real(descriptor, bytes(data)[:2])

        def full(descriptor: int, data: bytes) -> int:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "write", partly)
        log.write(b"second\n")
        with pytest.raises(OSError, match="No space"):
            log.flush()
        monkeypatch.undo()
        log.write(b"third\n")
        log.flush()
        assert path.read_bytes() == b"first\nsecond\nthird\n"
        assert log.tell() == 19
    with AppendLog(path) as log:
        log.truncate(length)
        log.write(b"again\n")
    assert path.read_bytes() == b"first\nagain\n"
    with AppendLog(path) as log, pytest.raises(RunError, match="was truncated"):
        log.truncate(1000)


def test_a_log_that_was_removed_or_replaced_is_written_again(tmp_path: Path) -> None:
    """From the file that is still open, with what was not flushed yet; new lines follow."""
    path = tmp_path / "metrics.jsonl"
    with AppendLog(path) as log:
        log.write(b"first\n")
        log.flush()
        assert not log.restore(), "it is where it was"
        path.unlink()
        log.write(b"second\n")
        assert log.restore() and path.read_bytes() == b"first\nsecond\n"
        path.with_name("other").write_bytes(b"of others\n")
        path.with_name("other").rename(path)
        assert log.restore() and not log.restore()
        log.write(b"third\n")
    assert path.read_bytes() == b"first\nsecond\nthird\n"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["metrics.jsonl"]
    log.close()  # twice is once
    assert path.read_bytes() == b"first\nsecond\nthird\n"


def test_directories_are_made_with_what_is_missing_above_them(tmp_path: Path) -> None:
    make_directory(tmp_path / "a" / "b" / "c")
    make_directory(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b" / "c").is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        make_directory(tmp_path / "file")


@pytest.mark.parametrize("old", [False, True], ids=["new", "in place of an old one"])
def test_a_directory_that_cannot_be_published_leaves_the_old_one(
    old: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aside, final, rename = tmp_path / "aside", tmp_path / "final", os.rename
    for folder in (aside, final) if old else (aside,):
        folder.mkdir()
        (folder / folder.name).touch()

    def failing(source: Path, target: Path) -> None:
        if source == aside:
            raise OSError(28, "No space left on device")
        rename(source, target)

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(os, "rename", failing)
        publish_directory(aside, final)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == (["aside", "final"] if old else ["aside"])
    publish_directory(aside, final)
    assert [entry.name for entry in tmp_path.rglob("*")] == ["final", "aside"]


def test_in_which_keys_configs_differ() -> None:
    """As JSON has them; what one of them lacks is off there."""
    here = {"gamma": 0.9, "sizes": (8, 8), "new": 0, "by": {1: 2}, "lr": 1e-3, "on": True}
    there = {"gamma": 0.9, "sizes": [8, 8], "old": [], "by": {"1": 2}, "lr": 1e-4, "gone": 3}
    assert changed_keys(here, there) == ["lr", "on", "gone"]
    assert changed_keys({"kl": None}, {"kl": 0}) == ["kl"], "both have it"


def test_run_directories_are_numbered_when_taken(tmp_path: Path) -> None:
    names = [RunDirectory.create(None, "ppo-ALE/Pong-v5-s1", root=tmp_path).path.name for _ in range(3)]
    assert names == ["ppo-ALE-Pong-v5-s1", "ppo-ALE-Pong-v5-s1-2", "ppo-ALE-Pong-v5-s1-3"]
    assert RunDirectory.create(None, "../../etc", root=tmp_path).path.parent == tmp_path


def test_an_explicit_run_directory_must_be_empty(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "run"
    assert RunDirectory.create(path, "unused").path == path
    assert RunDirectory.create(path, "unused").path == path, "an empty one may be used"
    (path / "file").touch()
    with pytest.raises(RunError, match="not empty"):
        RunDirectory.create(path, "unused")
    for wrong in (path / "file", path / "file" / "below"):
        with pytest.raises(RunError, match="directory"):
            RunDirectory.create(wrong, "unused")
    with pytest.raises(RunError, match=r"not a run directory .it has no config.yaml"):
        RunDirectory.open(path)
    (path / "file").unlink()
    with pytest.raises(RunError, match=r"not a run directory .it is empty; `train` can start a run in it"):
        RunDirectory.open(path)
    with pytest.raises(RunError, match="no run directory"):
        RunDirectory.open(tmp_path / "missing")


def test_a_run_is_locked_against_others_and_a_kill_unlocks_it(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    with run.lock(), pytest.raises(RunError, match="another process"):
        run.lock()
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:  # a training process with a worker that outlives it
        lock = run.lock()
        grandchild = os.fork()
        if grandchild == 0:
            signal.pause()
        os.write(writable, str(grandchild).encode())
        signal.pause()
        lock.release()
    os.close(writable)  # with the child, its end is gone: nobody waits for what it cannot say any more
    worker = int(os.read(readable, 20))
    try:
        with pytest.raises(RunError, match="another process"):
            run.lock()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    try:
        run.lock().release()
    finally:
        os.kill(worker, signal.SIGKILL)


def test_the_manifest_says_what_made_the_run(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    written = run.write_manifest({"algo": "ppo", "gamma": 0.99}, threads=2, order="arrival")
    assert run.read_manifest() == written
    text = run.manifest_path.read_text()
    assert text == json.dumps(json.loads(text), indent=2) + "\n", "for people to read"
    assert written["config"] == {"algo": "ppo", "gamma": 0.99}
    assert (written["threads"], written["order"], written["format"]) == (2, "arrival", 2)
    assert {"rl-training", "python", "torch", "numpy", "gymnasium"} <= written["versions"].keys()


def test_manifests_that_are_newer_or_damaged_are_refused(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    for text, message in [
        ('{"format": 3}', "newer version"),
        ("{", "damaged"),
        ("[]", "damaged"),
        ("[" * 100_000, "damaged"),
    ]:
        run.manifest_path.write_text(text)
        with pytest.raises(RunError, match=message) as caught:
            run.read_manifest()
        assert "\n" not in str(caught.value)


def test_a_network_may_be_a_little_larger_than_what_was_saved_for_it() -> None:
    """By 2²⁰ numbers, and eight times those that were saved: here 8 · (2 + 3 · 4) more."""
    saved = {"a": [np.zeros(2), 5], "b": (torch.zeros(3, 4), "text")}
    with no_larger_than(saved):
        torch.empty(2**20 + 8 * 14)
    for makes in (lambda: torch.empty(2**20 + 8 * 14 + 1), lambda: [torch.zeros((600_000,)) for _ in "12"]):
        with pytest.raises(ValueError, match="larger network than the saved one"), no_larger_than(saved):
            makes()
