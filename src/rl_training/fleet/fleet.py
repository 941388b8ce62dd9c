"""Fleet: streams of fragments for the learner, independent of which actor collects them.

There are as many streams as actors, and each has one request under way, so the work in flight is bounded. The learner
takes fragments in turn (stream 0, 1, 2, ...) and asks for the next one of a stream, with the newest weights, as soon
as it has taken one: how old a fragment's weights are follows from its place in the order and not from who is fastest.
With `order: arrival` it takes whichever fragment is there first.

An actor that dies, hangs or disappears is replaced, and its request is given to any actor that lives, with the state
of the stream before it. The result is the same fragment.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from rl_training.errors import ActorError, Elsewhere
from rl_training.fleet.actor import Fragment, MakeColumns, Pack, Request, Spaces
from rl_training.settings.families import ActorLearnerConfig
from rl_training.state.leaves import are_finite, is_whole, require, require_array
from rl_training.state.stateful import Stateful

MOST_FAILURES = 3  # exceptions of an environment in a row
MOST_LOSSES = 10  # actors lost over one and the same fragment
FIRST_DELAY, LONGEST_DELAY = 0.2, 5.0  # seconds before an actor is replaced
LONGEST_WAIT = 0.5  # seconds between two looks at deadlines


class Ready(NamedTuple):
    """The actor has started."""


class Failed(NamedTuple):
    """The actor's environment, or the actor itself, raised; it still lives."""

    traceback: str


class Lost(NamedTuple):
    """The actor is gone."""

    reason: str


Outcome = Fragment | Ready | Failed | Lost | Exception


@dataclass
class Slot:
    """What is known of one actor."""

    up: bool = False  # started, and not lost since
    starting: bool = False
    busy: bool = False
    request: Request | None = None  # what it plays; none if nobody waits for that any more
    since: float = 0.0  # when it was asked
    excused: bool = False  # it was overdue once because the learner had been away, and got as much time again
    at: tuple[int, int] | None = None  # the stream it is in and the number of the next fragment there
    start_at: float = 0.0  # not before this time
    losses: int = 0  # in a row, without a fragment in between
    launches: int = 0


class Fleet(Stateful):
    """The order of fragments and the care for actors; engines say how actors are started, asked and heard."""

    def __init__(
        self,
        config: ActorLearnerConfig,
        pack: Pack,
        spaces: Spaces,
        columns: MakeColumns,
    ) -> None:
        """`pack` gives the weights as they stand; `columns` makes empty ones for a fragment."""
        self.config, self.pack, self.spaces = config, pack, spaces
        self.arguments: dict[
            str, float
        ] = {}  # of the environment, that move: as episodes begin with them now
        self.turn = 0
        self.version = 0
        self.requests: list[Request] = []  # the one under way of each stream
        self.weights: dict[int, np.ndarray] = {}  # version -> what was sent out, while a request needs it
        self.delivered: dict[int, Fragment] = {}  # stream -> fragment not yet taken, in order of arrival
        self.unassigned: deque[int] = deque()  # streams whose request nobody plays
        self.failures = [0] * config.num_actors
        self.losses = [0] * config.num_actors
        self.slots = [Slot() for _ in range(config.num_actors)]
        self.restarts = self.redone = self.dropped = 0
        self.waited = 0.0  # seconds since they were last asked for
        self.tended = time.monotonic()

    # What the learner does.

    def take(self) -> Fragment:
        """The next fragment; valid until it is handed to `send`."""
        if not self.requests:
            for each in range(self.config.num_actors):
                self.requests.append(self._request(each, 0, None))
                self._ask(each)
        began = time.perf_counter()
        while (stream := self._next()) is None:
            self._tend()
        self.waited += time.perf_counter() - began
        self.turn = (stream + 1) % self.config.num_actors
        fragment = self.delivered.pop(stream)
        assert fragment.number == self.requests[stream].number, "a fragment came twice, or one was left out"
        return fragment

    def send(self, fragment: Fragment) -> None:
        """Ask for what follows a fragment that was taken, with the newest weights."""
        stream = fragment.stream
        self.requests[stream] = self._request(stream, fragment.number + 1, fragment.state)
        needed = {request.version for request in self.requests}
        self.weights = {version: packed for version, packed in self.weights.items() if version in needed}
        self._ask(stream)

    def advance(self) -> None:
        """The weights have been updated."""
        self.version += 1

    def lag(self, fragment: Fragment) -> int:
        """Updates between the weights that played a fragment and those of now."""
        return self.version - fragment.version

    def timing(self) -> dict[str, float]:
        """What depends on the clock: seconds waited since the last call, and what befell actors so far."""
        waited, self.waited = self.waited, 0.0
        return {
            "fleet_wait_seconds": round(waited, 4),
            "actors_alive": sum(slot.up for slot in self.slots),
            "actor_restarts": self.restarts,
            "fragments_redone": self.redone,
            "fragments_dropped": self.dropped,
        }

    def close(self) -> None:
        """End all actors."""
        raise NotImplementedError

    # What engines do.

    def _launch(self, index: int) -> None:
        """Begin to start an actor; a `Ready` follows."""
        raise NotImplementedError

    def _submit(self, index: int, request: Request, weights: np.ndarray) -> None:
        """Ask an actor that is up and not busy; an outcome follows."""
        raise NotImplementedError

    def _poll(self, timeout: float) -> Sequence[tuple[int, Outcome]]:
        """What actors have said, waiting for it at most `timeout` seconds."""
        raise NotImplementedError

    def _end(self, index: int) -> Any:
        """End an actor that may not listen any more; nothing more is heard of it."""
        raise NotImplementedError

    # The order.

    def _next(self) -> int | None:
        """The stream whose fragment is to be taken now, if it is there."""
        if self.config.order == "fixed":
            return self.turn if self.turn in self.delivered else None
        if sum(slot.up for slot in self.slots) < self.config.min_actors:
            return None
        for stream, fragment in list(self.delivered.items()):
            if self.config.max_lag is None or self.lag(fragment) <= self.config.max_lag:
                return stream
            del self.delivered[stream]
            self.dropped += 1
            self.send(fragment)
        return None

    def _request(self, stream: int, number: int, state: dict[str, Any] | None) -> Request:
        if self.version not in self.weights:
            self.weights[self.version] = self.pack()
        return Request(stream, number, self.version, state, self.arguments)

    def _ask(self, stream: int) -> None:
        """Give a stream's request to the actor that stands where it begins, or else to any."""
        request = self.requests[stream]
        for index, slot in enumerate(self.slots):
            if slot.up and not slot.busy and slot.at == (stream, request.number):
                self._give(index, stream)
                return
        self.unassigned.append(stream)

    def _give(self, index: int, stream: int) -> None:
        slot, request = self.slots[index], self.requests[stream]
        slot.busy, slot.request, slot.since, slot.excused = True, request, time.monotonic(), False
        # Its own state an actor has, and to send it would cost as much as the fragment does.
        known = slot.at == (stream, request.number)
        self._submit(index, request._replace(state=None) if known else request, self.weights[request.version])

    # The care for actors.

    def _tend(self) -> None:
        """Start actors that are due, hand out what nobody plays, listen, and end those that are overdue."""
        now = time.monotonic()
        away = now - self.tended
        for index, slot in enumerate(self.slots):
            if not slot.up and not slot.starting and slot.start_at <= now:
                slot.starting = True
                self.restarts += slot.launches > 0
                slot.launches += 1
                self._launch(index)
            if slot.up and not slot.busy and self.unassigned:
                self._give(index, self.unassigned.popleft())
        for index, outcome in self._poll(self._patience(now)):
            self._hear(index, outcome)
        now = self.tended = time.monotonic()
        for index, slot in enumerate(self.slots):
            if slot.up and slot.busy and now - slot.since > self.config.actor_timeout:
                if away > LONGEST_WAIT and not slot.excused:
                    # Nobody listened during an evaluation, say: its answer may be on its way. But once only, or a
                    # learner that is always busy would never replace it.
                    slot.since, slot.excused = min(slot.since + away, now), True
                    continue
                self._end(index)
                self._lose(index, f"no answer for {self.config.actor_timeout:g} seconds")

    def _patience(self, now: float) -> float:
        """How long nothing but an outcome needs attention, in seconds."""
        times = [slot.start_at for slot in self.slots if not slot.up and not slot.starting]
        times += [slot.since + self.config.actor_timeout for slot in self.slots if slot.busy]
        return min(max(min(times, default=now) - now, 0.0), LONGEST_WAIT) if times else LONGEST_WAIT

    def _hear(self, index: int, outcome: Outcome) -> None:
        slot = self.slots[index]
        if isinstance(outcome, Ready):
            slot.up, slot.starting, slot.busy, slot.at = True, False, False, None
            return
        if isinstance(outcome, Lost):
            self._lose(index, outcome.reason)
            return
        request, slot.request, slot.busy = slot.request, None, False
        if isinstance(outcome, Fragment):
            slot.at, slot.losses = (outcome.stream, outcome.number + 1), 0
            if request is not None:
                self.failures[request.stream] = self.losses[request.stream] = 0
                self.delivered[request.stream] = outcome
            return
        slot.at = None
        if request is None:
            return
        if isinstance(outcome, Exception):
            raise outcome
        self.failures[request.stream] += 1
        if self.failures[request.stream] >= MOST_FAILURES:
            last = outcome.traceback.rstrip().rpartition("\n")[2]
            raise ActorError(
                f"actor {request.stream} failed {MOST_FAILURES} times in a row at its fragment {request.number}: {last}"
            ) from Elsewhere(outcome.traceback)
        self._again(request)

    def _lose(self, index: int, reason: str) -> None:
        """An actor is gone: replace it after a while, and have its request played by another."""
        slot = self.slots[index]
        request = slot.request
        delay = min(FIRST_DELAY * 2**slot.losses, LONGEST_DELAY)
        self.slots[index] = Slot(
            start_at=time.monotonic() + delay, losses=slot.losses + 1, launches=slot.launches
        )
        if slot.starting and slot.losses + 1 >= MOST_LOSSES:
            raise ActorError(f"an actor could not be started {MOST_LOSSES} times in a row: {reason}")
        if request is None:
            return
        self.losses[request.stream] += 1
        if self.losses[request.stream] >= MOST_LOSSES:
            raise ActorError(
                f"{MOST_LOSSES} actors in a row were lost at fragment {request.number} of actor {request.stream}: "
                f"{reason}"
            )
        self._again(request)

    def _again(self, request: Request) -> None:
        self.redone += 1
        self._ask(request.stream)

    # What survives a kill: the requests under way, from which their fragments are played again.

    def state_dict(self) -> dict[str, Any]:
        requests = [
            {"number": request.number, "version": request.version, "state": request.state}
            | ({"arguments": request.arguments} if request.arguments else {})
            for request in self.requests
        ]
        weights = {version: packed.copy() for version, packed in self.weights.items()}
        needed = {request.version for request in self.requests}
        return {
            "turn": self.turn,
            "version": self.version,
            "requests": requests,
            "weights": {version: weights[version] for version in sorted(needed)},
        }

    def _check(self, turn: Any, version: Any, requests: Any, weights: Any) -> None:
        """Refuse orders that cannot be given; the states of streams are checked by the actors that take them."""
        streams = self.config.num_actors
        require(is_whole(turn, high=streams) and is_whole(version), "Fleet: no turn or no version")
        require(isinstance(requests, list) and len(requests) in (0, streams), "Fleet.requests: not one each")
        for request in requests:
            require(is_whole(request["number"]), "Fleet.requests: no number")
            require(is_whole(request["version"], high=version + 1), "Fleet.requests: weights of the future")
            require(isinstance(request["state"], dict | None), "Fleet.requests: no state")
            arguments = request.get("arguments", {})
            numbers = isinstance(arguments, dict) and are_finite(arguments.values())
            require(numbers, "Fleet.requests: no arguments of an environment")
        require(
            {request["version"] for request in requests} == set(weights), "Fleet.weights: not those needed"
        )
        for version, packed in weights.items():
            require_array(packed, self.pack().shape, np.uint8, f"Fleet.weights[{version}]")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._check(**state)
        self.turn, self.version = state["turn"], state["version"]
        self.weights = {version: packed.copy() for version, packed in state["weights"].items()}
        self.requests = [Request(stream, **request) for stream, request in enumerate(state["requests"])]
        self.delivered.clear()
        self.unassigned.clear()
        for slot in self.slots:
            slot.request = slot.at = None  # what it plays now is of another time
        for stream in range(len(self.requests)):
            self._ask(stream)
