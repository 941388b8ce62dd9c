"""The updates of soft actor-critics in compiled code: gradients of critics and actor, written out over dense layers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numba import types
from torch import nn

from rl_training.algorithms.sac import (
    SAC_LOSSES,
    critic_slopes,
    critic_sums,
    least_slopes,
    move_average,
    soft_targets,
    squash_rows,
    squash_slopes,
    temperature_slope,
)
from rl_training.compiling import address, call_at, njit
from rl_training.data.batch import TransitionBatch
from rl_training.errors import NonFiniteError
from rl_training.kernels.branches import add_to_inputs
from rl_training.kernels.descent import NO_DESCENT, descend, descent_at
from rl_training.kernels.exact import is_ours
from rl_training.kernels.layers import HEIGHT, Layers, begin, hand_over, network_at, put_out, read, take_back
from rl_training.kernels.reading import features, gaussian_layers, twin_layers
from rl_training.kernels.records import Kept, read_as
from rl_training.networks.soft_actor_critic import LOG_STD_BOUNDS
from rl_training.runtime.controls import Now
from rl_training.runtime.optim import rate
from rl_training.runtime.updates import OWN_LOSS, Choice

Twins = tuple[Layers, Layers]
METHODS = (
    "improve",
    "improve_critics",
    "improve_actor",
    "adjust_temperature",
)  # that compiled code stands in for
LEARNERS = ("critic", "actor", "temperature")  # in the order of their steps
# What an update says; last come the norms of the learners' gradients.
CRITIC_LOSS, Q_VALUE, ACTOR_LOSS, LOG_PROB, NORMS = range(5)


def fastest_soft_updates(trainer: Any, *losses: Any) -> Choice:
    """A compiled twin of a trainer's `improve`, of critics, actor and temperature, where there can be one."""
    own = "" if losses == SAC_LOSSES else OWN_LOSS
    optimizers = ("critic_optimizer", "actor_optimizer", "temperature_optimizer")
    networks, targets = (
        nn.ModuleList([trainer.agent.actor, trainer.critics]),
        ("target_critics", "target_weights"),
    )

    def replaced() -> bool:
        ours = is_ours(trainer, "rl_training.runtime.sac_trainer", *METHODS)
        return not (ours and is_ours(trainer.agent, "rl_training.policies.squashed", "sample"))

    make = SoftUpdates.of
    return Choice(own, trainer, optimizers, networks, lambda _: make(trainer), targets, replaced=replaced)


class SoftUpdates:
    """What a trainer does to its critics, actor, temperature and targets, in one compiled call; its optimizers move."""

    def __init__(self, trainer: Any, actor: Layers, critics: Twins, targets: Twins) -> None:
        self.trainer, self.size, self.said = trainer, actor.outputs // 2, np.zeros(NORMS + len(LEARNERS))
        self.optimizers = [getattr(trainer, f"{name}_optimizer") for name in LEARNERS]
        self.room: tuple[np.ndarray, ...] | None = None
        self.networks = [each.network for each in (actor, *targets, *critics)]
        self.known, self.descents = Kept(), Kept()
        self.functions = np.array([address(improve_critics, OF_CRITICS), address(improve_actor, OF_ACTOR)])
        self.averages = trainer.target_weights.numpy()

    @classmethod
    def of(cls, trainer: Any) -> SoftUpdates | None:
        actor = gaussian_layers(trainer.agent.actor, trainer.actor_optimizer.parameters)
        critics = twin_layers(trainer.critics, trainer.critic_optimizer.parameters)
        targets = twin_layers(trainer.target_critics, trainer.target_weights)
        if actor is None or critics is None or targets is None:
            return None
        return cls(trainer, actor, critics, targets)

    def improve(
        self, batch: TransitionBatch, ent_coef: float, with_actor: bool, now: Now
    ) -> dict[str, float]:
        inputs, done = self.trainer.critics.inputs, (batch["action"], batch["reward"], batch["discount"])
        seen = (features(inputs, batch["obs"]), features(inputs, batch["next_obs"]))
        rows = (*seen, *(column.numpy() for column in done))
        noise = torch.empty(1 + with_actor, len(seen[0]), self.size)
        for part in noise:
            part.normal_()
        rates = (rate(now, "critic"), rate(now, "actor"), rate(now, "ent_coef"))
        knobs = (ent_coef, self.trainer.least_entropy(now), now.tau)
        places = self.known(*self.networks, self._room(*seen[0].shape))
        descents = self.descents(*(each.descent() if each else NO_DESCENT for each in self.optimizers))
        said = self.said
        said[:] = 0
        given = (rows, noise.numpy(), LOG_STD_BOUNDS, knobs)
        improve(self.functions, places, *given, descents, rates, self.averages, said)
        self._check(said)
        numbers = {"critic_loss": said[CRITIC_LOSS], "q_value": said[Q_VALUE]}
        if with_actor:
            numbers |= {"actor_loss": said[ACTOR_LOSS], "entropy": -said[LOG_PROB]}
        return numbers

    def _room(self, count: int, width: int) -> tuple[np.ndarray, ...]:
        """Numbers 0 to N - 1, and room for pairs of inputs and actions, for what is said of them, and for slopes."""
        if self.room is None or len(self.room[0]) != count:
            pairs, slopes = (np.empty((height, width + self.size), np.float32) for height in (count, HEIGHT))
            log_prob, q, target = (
                np.empty(count, np.float32),
                np.empty((2, count), np.float32),
                np.empty(count),
            )
            to_q, rows = np.empty((2, HEIGHT), np.float32), np.empty(HEIGHT, np.int64)
            self.room = (np.arange(count), pairs, log_prob, q, target, to_q, slopes, rows)
        return self.room

    def _check(self, said: np.ndarray) -> None:
        """Refuse what is not finite: there no step was taken, nor any after it."""
        if not (math.isfinite(said[CRITIC_LOSS]) and math.isfinite(said[ACTOR_LOSS])):
            raise NonFiniteError("loss")
        for norm, optimizer in zip(said[NORMS:], self.optimizers, strict=True):
            if not math.isfinite(norm):
                raise NonFiniteError(optimizer.first_not_finite())


# What `Kept` writes down, in this order; where an update's functions lie.
ACTOR, TARGETS, CRITICS, ROOM = 0, 1, 3, 5
OF_BOTH_CRITICS, OF_THE_ACTOR = range(2)
ROWS, VECTOR, SINGLES, PLACES = (
    types.float32[:, ::1],
    types.float64[::1],
    types.float32[::1],
    types.int64[::1],
)
room_at = read_as(types.Tuple((PLACES, ROWS, SINGLES, ROWS, VECTOR, ROWS, ROWS, PLACES)))
BOUNDS = types.UniTuple(types.float64, 2)
GIVEN = (ROWS, BOUNDS, types.float64, SINGLES, VECTOR)
OF_CRITICS = types.void(PLACES, types.Tuple((ROWS, ROWS, ROWS, SINGLES, SINGLES)), *GIVEN)
OF_ACTOR = types.void(PLACES, ROWS, *GIVEN)
call_critics, call_actor = call_at(OF_CRITICS), call_at(OF_ACTOR)


@njit(calls=True, borrows=True, nogil=True, error_model="numpy")
def improve(functions, places, batch, noise, bounds, knobs, descents, rates, averages, said):  # type: ignore[no-untyped-def]
    """A step of the critics, of what averages them, and with a second row of noise of the actor and of log α.

    places: of networks and of `room`; descents: of some `Descent`, and `rates` theirs; averages: the targets' weights
    noise [1 or 2, N, D]; `said` is written. What is not finite ends the update. What is in `room`: `SoftUpdates._room`.
    """
    to_critics, to_actor, to_temperature = (
        descent_at(descents[0]),
        descent_at(descents[1]),
        descent_at(descents[2]),
    )
    (ent_coef, least_entropy, tau), norms = knobs, said[NORMS:]
    begin(network_at(places[ACTOR]))
    given = (noise[0], bounds, ent_coef, to_critics.gradient, said[:2])
    call_critics(functions[OF_BOTH_CRITICS], (places, batch, *given))
    norms[0] = step(to_critics, rates[0], said[CRITIC_LOSS])
    if not math.isfinite(norms[0]):
        return
    move_average(averages, to_critics.parameters, tau)
    if len(noise) == 1:
        return
    given = (noise[1], bounds, ent_coef, to_actor.gradient, said[2:4])
    call_actor(functions[OF_THE_ACTOR], (places, batch[0], *given))
    norms[1] = step(to_actor, rates[1], said[ACTOR_LOSS])
    if math.isfinite(norms[1]) and len(to_temperature.gradient):
        to_temperature.gradient[0] = temperature_slope(np.float32(said[LOG_PROB]), least_entropy)
        norms[2] = descend(to_temperature, rates[2], math.inf)


@njit(nogil=True, inline="always")
def step(descent, rate, loss):  # type: ignore[no-untyped-def]
    """→ the gradient's norm; none is taken where the loss is not finite."""
    return descend(descent, rate, math.inf) if math.isfinite(loss) else math.inf


# Number by number: assigning parts of arrays takes numba seconds to compile, for the sake of an error message.
@njit(borrows=True, nogil=True, inline="always")
def put(rows, to, column):  # type: ignore[no-untyped-def]
    """Rows [N, n] into the columns of `to` from this one on."""
    for i in range(rows.shape[0]):
        for j in range(rows.shape[1]):
            to[i, column + j] = rows[i, j]


@njit(calls=True, borrows=True, nogil=True, error_model="numpy")
def improve_critics(places, batch, noise, bounds, ent_coef, gradient, sums):  # type: ignore[no-untyped-def]
    """The gradient of both critics towards `soft_targets`; sums: the loss, mean Q.

    One network after the other, so that its weights stay in the cache.
    """
    obs, next_obs, action, reward, discount = batch
    order, pairs, log_prob, q, target = room_at(places[ROOM])[:5]
    count, features = obs.shape
    share = 1 / count
    actor = network_at(places[ACTOR])
    for first in range(0, count, HEIGHT):
        rows, part = order[first : first + HEIGHT], slice(first, first + HEIGHT)
        outputs = put_out(actor, next_obs, rows)
        squash_rows(outputs, noise[part], bounds, pairs[part, features:], log_prob[part])
    put(next_obs, pairs, 0)
    for twin in range(2):
        target_critic = network_at(places[TARGETS + twin])
        read(target_critic)
        for first in range(0, count, HEIGHT):
            outputs = put_out(target_critic, pairs, order[first : first + HEIGHT])
            for i in range(len(outputs)):
                q[twin, first + i] = outputs[i, 0]
    soft_targets(reward, discount, q, log_prob, ent_coef, target)
    put(obs, pairs, 0)
    put(action, pairs, features)
    for twin in range(2):
        critic = network_at(places[CRITICS + twin])
        begin(critic)
        for first in range(0, count, HEIGHT):
            rows = order[first : first + HEIGHT]
            outputs, slopes = put_out(critic, pairs, rows), critic.slopes[: len(rows)]
            for i in range(len(outputs)):
                q[twin, first + i] = outputs[i, 0]
            critic_slopes(outputs, target[first : first + HEIGHT], share, slopes)
            take_back(critic, slopes, first == 0)
        hand_over(critic, gradient)
    critic_sums(q, target, sums)


@njit(calls=True, borrows=True, nogil=True, error_model="numpy")
def improve_actor(places, obs, noise, bounds, ent_coef, gradient, sums):  # type: ignore[no-untyped-def]
    """The gradient of the actor towards what the critics think best; sums: the loss, mean log π."""
    order, pairs, log_prob, q, _, to_q, to_pair, some = room_at(places[ROOM])
    count, features = obs.shape
    share = 1 / count
    actor = network_at(places[ACTOR])
    put(obs, pairs, 0)
    for twin in range(2):
        begin(network_at(places[CRITICS + twin]))
    for first in range(0, count, HEIGHT):
        rows, part = order[first : first + HEIGHT], slice(first, first + HEIGHT)
        height, drawn = len(rows), pairs[part, features:]
        outputs, slopes = put_out(actor, obs, rows), actor.slopes[: len(rows)]
        squash_rows(outputs, noise[part], bounds, drawn, log_prob)
        for twin in range(2):
            judged = put_out(network_at(places[CRITICS + twin]), pairs, rows)
            for i in range(height):
                q[twin, i] = judged[i, 0]
        least_slopes(q, log_prob[:height], ent_coef, share, to_q, sums)
        for i in range(height):
            for j in range(to_pair.shape[1]):
                to_pair[i, j] = np.float32(0)
        for twin in range(2):
            add_to_inputs(places[CRITICS + twin], to_q[twin, :height], to_pair, some)
        to_action = to_pair[:height, features:]
        squash_slopes(outputs, noise[part], bounds, drawn, to_action, ent_coef * share, slopes)
        take_back(actor, slopes, first == 0)
    hand_over(actor, gradient)
