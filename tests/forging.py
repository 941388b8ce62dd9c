"""Forged checkpoints: one thing in the tree of a checkpoint is changed, and the checksums are right again."""

from __future__ import annotations

import copy
import gc
import os
import random
import resource
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.numpy import load, save

from rl_training.errors import NonFiniteError, StorageError, UserError
from rl_training.state import checkpoints
from rl_training.state.leaves import ObjectState

Place = tuple[Any, ...]  # the keys that lead to it from the top of the tree
NUMBERS = (0, 1, -1, 2, 0.5, -0.5, 1e-30, 1e30, 2**31, -(2**31), 2**62, 2**63, 10**30)
STRANGE = (True, None, "text", float("nan"), float("inf"), [], {}, (), [1], {"a": 1}, deque([1.0], maxlen=3))


def places(node: Any, place: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Everything in a tree, with the way to it."""
    if place:
        yield place, node
    if isinstance(node, dict):
        for key, part in node.items():
            yield from places(part, (*place, key))
    elif isinstance(node, list | tuple | deque):
        for i, part in enumerate(node):
            yield from places(part, (*place, i))


def put(node: Any, place: Place, value: Any) -> Any:
    """The tree with something else in a place."""
    if not place:
        return value
    key, *rest = place
    if isinstance(node, tuple):
        return tuple(put(part, tuple(rest), value) if i == key else part for i, part in enumerate(node))
    node[key] = put(node[key], tuple(rest), value)
    return node


def remove(tree: Any, place: Place) -> None:
    """The tree without what is in a place; tuples keep theirs."""
    for key in place[:-1]:
        tree = tree[key]
    if not isinstance(tree, tuple):
        del tree[place[-1]]


def forged_array(array: np.ndarray, rng: random.Random) -> Any:
    """Another shape, another dtype, or other numbers."""
    kind = rng.choice(["grown", "cut", "flat", "dtype", "numbers", "all", "scalar", "none"])
    if kind == "grown":
        return np.concatenate([array, array]) if array.ndim else array[None]
    if kind == "cut":
        return array[: len(array) // 2] if array.ndim else np.float32(1.0)
    if kind == "flat":
        return array.reshape(-1, 1) if array.ndim < 2 else array.reshape(-1)
    if kind == "dtype":
        other = rng.choice(["bool", "uint8", "int32", "int64", "uint64", "float16", "float32", "float64"])
        with np.errstate(all="ignore"):
            return array.astype(other)
    if kind == "scalar":
        return array.reshape(-1)[0] if array.size else 0
    if kind == "none":
        return np.empty(0, array.dtype)
    wild = [-1, 255, 2**31 - 1, -(2**63)] if array.dtype.kind in "iu" else [-1.0, 1e30, np.nan, np.inf]
    changed = array.copy()
    with np.errstate(all="ignore"):
        value = np.array(rng.choice(wild)).astype(array.dtype)
    if kind == "all":
        changed[...] = value
    elif array.size:
        changed.reshape(-1)[rng.randrange(array.size)] = value
    return changed


def forged_value(value: Any, rng: random.Random) -> Any:
    """Something else in the place of a value: mostly of its own kind, since what is stranger is found sooner."""
    if rng.random() < 0.15:
        return copy.deepcopy(rng.choice(STRANGE))
    if isinstance(value, torch.Tensor):
        changed = forged_array(value.numpy() if value.dtype != torch.bfloat16 else value.float().numpy(), rng)
        return torch.from_numpy(np.array(changed)) if isinstance(changed, np.ndarray) else changed
    if isinstance(value, np.ndarray):
        return forged_array(value, rng)
    if isinstance(value, bool):
        return rng.choice([not value, 3])
    if isinstance(value, int | float | np.number):
        near = value * rng.choice([2, -1, 1000]) + rng.choice([0, 1])
        return rng.choice([*NUMBERS, near, type(value)(-value)])
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, deque):
        return rng.choice([list(value), deque(value, 10**9), deque([None], value.maxlen)])
    if isinstance(value, list):
        return rng.choice([tuple(value), value + value, value[:-1], dict(enumerate(value))])
    if isinstance(value, tuple):
        return rng.choice([list(value), value + value, value[:-1]])
    if isinstance(value, dict):
        return rng.choice([list(value.values()), dict(value) | {"more": 1}, {}, ObjectState(value)])
    return rng.choice(NUMBERS)


class Forgery(NamedTuple):
    """What was changed, for the message of a test that fails."""

    place: Place
    what: str


def rewritten(path: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    """Edit the tree of the checkpoint at `path`, and give it the checksums of what it then holds."""
    tree, step = checkpoints.load_checkpoint(path), checkpoints.checkpoint_step(path)
    edit(tree)
    for name, data in checkpoints._encode(step, tree).items():
        (path / name).write_bytes(data)


def forge_checkpoint(path: Path, rng: random.Random, only: str | None = None) -> Forgery:
    """Change one thing in the checkpoint at `path`, or of its part `only`: a value, or a part that is taken out."""
    tree = checkpoints.load_checkpoint(path)
    step = checkpoints.checkpoint_step(path)
    listed = tree.pop("segments", None)
    # A place near the top as likely as one of many below: leaves are mostly weights.
    by_depth: dict[int, list[tuple[Place, Any]]] = {}
    for place, value in places(tree):
        if only not in (None, place[0]):
            continue
        by_depth.setdefault(len(place), []).append((place, value))
    place, value = rng.choice(by_depth[rng.choice(sorted(by_depth))])
    if rng.random() < 0.1:
        remove(tree, place)
        forgery = Forgery(place, "taken out")
    else:
        changed = forged_value(value, rng)
        tree = put(tree, place, changed)
        forgery = Forgery(place, f"{short(value)} -> {short(changed)}")
    if listed is not None:
        tree["segments"] = listed
    contents = checkpoints._encode(step, tree)
    for name, data in contents.items():
        (path / name).write_bytes(data)
    return forgery


def forge_segment(path: Path, rng: random.Random) -> Forgery:
    """Change an array of a segment, and list it in the newest checkpoint with its new checksum."""
    tree = checkpoints.load_checkpoint(path)
    step = checkpoints.checkpoint_step(path)
    name = rng.choice(sorted(tree["segments"]))
    arrays = load((path.parents[1] / "replay" / name).read_bytes())
    key = rng.choice(sorted(arrays))
    changed = np.array(forged_array(arrays[key], rng))
    data = save(arrays | {key: np.ascontiguousarray(changed)})
    (path.parents[1] / "replay" / name).write_bytes(data)
    tree["segments"][name] = {"bytes": len(data), "sha256": checkpoints.digest(data)}
    for file, content in checkpoints._encode(step, tree).items():
        (path / file).write_bytes(content)
    return Forgery((name, key), f"{short(arrays[key])} -> {short(changed)}")


def short(value: Any) -> str:
    if isinstance(value, torch.Tensor | np.ndarray):
        return f"{type(value).__name__} {tuple(value.shape)} {value.dtype} {str(value.reshape(-1)[:3])[:60]}"
    return repr(value)[:60]


class Outcome(NamedTuple):
    """How a child ended: "success", "refused", or what it must never be, and what it said."""

    kind: str
    text: str


MEMORY = 4 * 2**30  # bytes of address space that a child may take beyond what it has
ONE_LINE = (UserError, StorageError, NonFiniteError)


def in_fork(function: Callable[[], Any], patience: float) -> Outcome:
    """Run `function` in a fork, which may not take much memory or longer than `patience` CPU-seconds."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        _be_the_child(function, patience, writing)
    os.close(writing)
    with open(reading, "rb") as answers:
        answer = answers.read().decode(errors="replace")
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        return Outcome("hung" if name == "SIGXCPU" else "crashed", name)
    kind, _, text = answer.partition("\n")
    return Outcome(kind or "crashed", text or f"exit {os.waitstatus_to_exitcode(status)}")


def _be_the_child(function: Callable[[], Any], patience: float, answers: int) -> None:
    gc.freeze()
    seconds = int(time.process_time() + patience) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    with open("/proc/self/statm") as file:
        here = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (here + MEMORY, here + MEMORY))
    try:
        function()
        answer = "success\n"
    except ONE_LINE as error:
        text = str(error)
        answer = f"{'refused' if len(text.splitlines()) == 1 else 'several lines'}\n{text}"
    except BaseException:
        answer = f"traceback\n{traceback.format_exc()}"
    try:
        os.write(answers, answer.encode()[:60_000])
    finally:
        os._exit(0)
