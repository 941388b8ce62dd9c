"""Exact encoding of state trees as JSON and tensors, and decoding of untrusted bytes.

JSON has no tuples, no whole-number keys, no NaN and no arrays. What JSON has stands for itself; everything
else is an object with the key "~", which names its kind:

    {"~": "tuple", "items": [...]}
    {"~": "deque", "items": [...], "maxlen": 5}
    {"~": "dict", "items": [[key, value], ...]}     a dict with whole-number keys, or with the key "~"
    {"~": "state", "items": {...}}                  the state of an object
    {"~": "float", "bits": "7ff8000000000000"}      NaN and the infinities, big-endian
    {"~": "scalar", "dtype": "float32", "bits": "0000803f"}    a numpy scalar, little-endian
    {"~": "tensor", "name": "actor.0.weight"}       a torch tensor in the safetensors file
    {"~": "array", "name": "mean"}                  a numpy array in the safetensors file
"""

from __future__ import annotations

import math
import struct
from collections import deque
from typing import Any

import numpy as np
import torch

from rl_training.state.leaves import DTYPES, NUMPY_DTYPES, TORCH_DTYPES, ObjectState, require_bools

TAG = "~"
MAX_DEPTH = 100


class Encoder:
    """Turns trees into JSON values; the tensors met on the way gather in `tensors`, by name."""

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self._names: dict[int, str] = {}

    def encode(self, node: Any, path: tuple[str, ...] = ()) -> Any:
        kind = type(node)
        if node is None or kind in (bool, int, str):
            return node
        if kind is float:
            return node if math.isfinite(node) else {TAG: "float", "bits": struct.pack(">d", node).hex()}
        if isinstance(node, torch.Tensor):
            if node.dtype not in TORCH_DTYPES:
                raise TypeError(f"{'.'.join(path)}: a tensor of {node.dtype} cannot be saved")
            return {TAG: "tensor", "name": self._put(node, node, path)}
        if kind is np.ndarray and node.dtype in NUMPY_DTYPES:
            return {TAG: "array", "name": self._put(node, torch.from_numpy(node.copy(order="C")), path)}
        if isinstance(node, np.generic) and node.dtype in NUMPY_DTYPES:
            return {TAG: "scalar", "dtype": node.dtype.name, "bits": node.tobytes().hex()}
        if len(path) >= MAX_DEPTH:
            raise ValueError(f"{'.'.join(path[:5])}...: nested deeper than {MAX_DEPTH}")
        if kind in (list, tuple, deque):
            items = [self.encode(part, (*path, str(i))) for i, part in enumerate(node)]
            if kind is list:
                return items
            if kind is tuple:
                return {TAG: "tuple", "items": items}
            return {TAG: "deque", "items": items, "maxlen": node.maxlen}
        if kind in (dict, ObjectState):
            return self._dict(node, path)
        raise TypeError(f"{'.'.join(path)}: a {kind.__name__} cannot be saved")

    def _dict(self, node: dict[Any, Any], path: tuple[str, ...]) -> dict[str, Any]:
        for key in node:
            if type(key) not in (str, int):
                raise TypeError(f"{'.'.join(path)}: the key {key!r} is neither a string nor a whole number")
        items = [(key, self.encode(value, (*path, str(key)))) for key, value in node.items()]
        if isinstance(node, ObjectState):
            return {TAG: "state", "items": dict(items)}
        if TAG not in node and all(type(key) is str for key in node):
            return dict(items)
        return {TAG: "dict", "items": [list(item) for item in items]}

    def _put(self, node: object, tensor: torch.Tensor, path: tuple[str, ...]) -> str:
        """Save a tensor under a name readable by other tools; one met twice is saved once."""
        name = self._names.get(id(node))
        if name is None:
            name = wanted = ".".join(path).encode("utf-8", "backslashreplace").decode() or "tensor"
            count = 1
            while name in self.tensors or name == "__metadata__":
                count += 1
                name = f"{wanted}~{count}"
            self._names[id(node)] = name
            # A copy: safetensors refuses tensors that share storage or are not contiguous.
            self.tensors[name] = tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        return name


class Decoder:
    """Turns JSON values back into trees. Raises ValueError on anything `Encoder` would not have written."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self.tensors = tensors
        self.used: set[str] = set()

    def decode(self, node: object, depth: int = 0) -> Any:
        if depth > MAX_DEPTH:
            raise ValueError(f"nested deeper than {MAX_DEPTH}")
        if isinstance(node, list):
            return [self.decode(part, depth + 1) for part in node]
        if not isinstance(node, dict):
            return node
        if TAG not in node:
            return {key: self.decode(value, depth + 1) for key, value in node.items()}
        match node:
            case {"~": "tuple", "items": list(items), **rest} if not rest:
                return tuple(self.decode(part, depth + 1) for part in items)
            case {"~": "deque", "items": list(items), "maxlen": maxlen, **rest} if not rest:
                if maxlen is not None and not (type(maxlen) is int and len(items) <= maxlen < 2**62):
                    raise ValueError(f"a deque of {len(items)} with maxlen {maxlen!r}")
                return deque((self.decode(part, depth + 1) for part in items), maxlen)
            case {"~": "state", "items": dict(items), **rest} if not rest:
                return ObjectState({key: self.decode(value, depth + 1) for key, value in items.items()})
            case {"~": "dict", "items": list(items), **rest} if not rest:
                return dict(self._item(item, depth) for item in items)
            case {"~": "float", "bits": str(bits), **rest} if len(bits) == 16 and not rest:
                return struct.unpack(">d", bytes.fromhex(bits))[0]
            case {"~": "scalar", "dtype": str(dtype), "bits": str(bits), **rest} if (
                dtype in DTYPES and not rest
            ):
                (scalar,) = np.frombuffer(bytes.fromhex(bits), dtype)
                return scalar
            case {"~": "tensor" | "array" as kind, "name": str(name), **rest} if not rest:
                return self._take(name, kind)
        raise ValueError(f"an unknown kind of value, {node[TAG]!r:.40}")

    def _item(self, item: object, depth: int) -> tuple[str | int, Any]:
        if not (isinstance(item, list) and len(item) == 2 and type(item[0]) in (str, int)):
            raise ValueError("a dict entry that is not a pair of key and value")
        return item[0], self.decode(item[1], depth + 1)

    def _take(self, name: str, kind: str) -> Any:
        tensor = self.tensors.get(name)
        if tensor is None or tensor.dtype not in TORCH_DTYPES:
            raise ValueError(f"no usable tensor {name!r:.80}")
        if kind == "array" and tensor.dtype is torch.bfloat16:
            raise ValueError(f"an array of bfloat16, {name!r:.80}")
        if tensor.dtype is torch.bool:
            require_bools(tensor.numpy(), name)
        self.used.add(name)
        return tensor if kind == "tensor" else tensor.numpy()
