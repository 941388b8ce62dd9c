"""Compiled functions on several cores at once, in threads that outlive no fork.

They are started when they are first needed, as many as torch has. numba's own threads, and OpenMP's, hang in a fork of
a process that has used them; these are simply started again there.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import torch

_helpers: ThreadPoolExecutor | None = None


def in_shares(count: int, fewest: int, function: Callable[..., None], *arguments: Any) -> None:
    """Call function(first, last, *arguments) for shares of range(count), each of at least `fewest`, side by side.

    `function` must let go of Python's lock. This thread does the first share. An error waits for all of them.
    """
    shares = max(1, min(torch.get_num_threads(), count // fewest))
    ends = [count * share // shares for share in range(shares + 1)]
    others = pairwise(ends[1:])
    waiting = [_pool().submit(function, first, last, *arguments) for first, last in others]
    try:
        function(0, ends[1], *arguments)
    finally:
        for share in waiting:
            share.exception()  # waits: they write to what the caller frees
    for share in waiting:
        share.result()


def _pool() -> ThreadPoolExecutor:
    global _helpers
    if _helpers is None:
        _helpers = ThreadPoolExecutor(os.cpu_count(), "rl_training-kernels")
    return _helpers


def _forget() -> None:
    global _helpers
    _helpers = None


os.register_at_fork(after_in_child=_forget)
