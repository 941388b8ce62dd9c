"""A fleet without processes: the learner collects the fragments itself. For tests."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch

from rl_training.fleet.actor import Actor, MakeColumns, Pack, Request, Spaces
from rl_training.fleet.fleet import Fleet, Outcome, Ready
from rl_training.fleet.local import outcome_of
from rl_training.settings.families import ActorLearnerConfig
from rl_training.state.seeding import generators_kept


class InlineFleet(Fleet):
    """The same fragments as those of processes; nothing is gained but simplicity."""

    def __init__(self, config: ActorLearnerConfig, pack: Pack, spaces: Spaces, columns: MakeColumns) -> None:
        super().__init__(config, pack, spaces, columns)
        self.columns = [columns() for _ in range(config.num_actors)]
        self.actors: dict[int, Actor] = {}
        self.asked: deque[tuple[int, Request | None, np.ndarray]] = deque()

    def _launch(self, index: int) -> None:
        self.asked.append((index, None, np.empty(0)))

    def _submit(self, index: int, request: Request, weights: np.ndarray) -> None:
        self.asked.append((index, request, weights))

    def _poll(self, timeout: float) -> Sequence[tuple[int, Outcome]]:
        if not self.asked:
            return []
        index, request, weights = self.asked.popleft()
        with as_if_elsewhere():
            if request is None:
                self.actors[index] = Actor(self.config, *self.spaces)
                outcome: Outcome = Ready()
            else:
                outcome = outcome_of(self.actors[index], request, weights, self.columns[request.stream])
        for other, _, _ in self.asked:
            self.slots[other].since = time.monotonic()  # it could not begin before this one had ended
        return [(index, outcome)]

    def _end(self, index: int) -> None:
        self.actors.pop(index).close()

    def close(self) -> None:
        for actor in self.actors.values():
            actor.close()
        self.actors.clear()


@contextmanager
def as_if_elsewhere() -> Iterator[None]:
    """Play with one thread, and leave the learner's threads and generators as they were."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with generators_kept():
            yield
    finally:
        torch.set_num_threads(threads)
