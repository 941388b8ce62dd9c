"""The update of a Q-network in compiled code: targets, slopes and gradients over dense layers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rl_training.algorithms.dqn import DQN_LOSSES, dueling_rows, dueling_slopes, q_slopes
from rl_training.algorithms.masking import mask_of
from rl_training.compiling import njit
from rl_training.data.batch import TransitionBatch
from rl_training.errors import NonFiniteError
from rl_training.kernels.descent import Descent, descend
from rl_training.kernels.exact import is_ours
from rl_training.kernels.families import UNMASKED
from rl_training.kernels.layers import HEIGHT, Layers, Network, begin, hand_over, put_out, read, take_back
from rl_training.kernels.reading import features, head_layers
from rl_training.networks.q_network import QNetwork
from rl_training.runtime.controls import Now
from rl_training.runtime.updates import OWN_LOSS, Choice, limit


def fastest_q_update(trainer: Any, *losses: Any) -> Choice:
    """A compiled twin of a trainer's `improve`, where there can be one."""
    own, targets = "" if losses == DQN_LOSSES else OWN_LOSS, ("target", "target_weights")
    return Choice(
        own,
        trainer,
        ("optimizer",),
        trainer.agent.network,
        lambda _: QUpdate.of(trainer),
        targets,
        replaced=lambda: not is_ours(trainer, "rl_training.runtime.dqn_trainer", "improve"),
    )


class QUpdate:
    """What a trainer does to its Q-network, compiled; its optimizer moves."""

    def __init__(self, trainer: Any, online: Layers, target: Layers) -> None:
        # As plain tuples: of each named one, numba asks Python for its class.
        self.trainer, self.networks = trainer, (tuple(online.network), tuple(target.network))
        self.switches = (bool(trainer.config.double), bool(trainer.agent.network.dueling))
        self.sums, size = np.zeros(2), (HEIGHT, online.outputs - self.switches[1])
        self.room = tuple(np.empty(size, np.float32) for _ in range(4))

    @classmethod
    def of(cls, trainer: Any) -> QUpdate | None:
        online = head_layers(trainer.agent.network, QNetwork, trainer.optimizer.parameters)
        target = head_layers(trainer.target, QNetwork, trainer.target_weights)
        return None if online is None or target is None else cls(trainer, online, target)

    def improve(self, batch: TransitionBatch, now: Now) -> tuple[dict[str, float], np.ndarray]:
        inputs, mask = self.trainer.agent.network.encoder[0], mask_of(batch["next_obs"])
        rows = features(inputs, batch["obs"]), features(inputs, batch["next_obs"])
        count = len(rows[0])
        masks = UNMASKED if mask is None else np.ascontiguousarray(mask.numpy() != 0)
        weight = batch["weight"].numpy() if "weight" in batch else np.ones(count, np.float32)
        known = (batch["action"].numpy(), batch["reward"].numpy(), batch["discount"].numpy(), weight)
        errors, optimizer = np.empty(count, np.float32), self.trainer.optimizer
        step = (tuple(optimizer.descent()), now.learning_rate, limit(now.max_grad_norm))
        given = (rows, known, masks, limit(now.huber_delta))
        found = (np.arange(count), self.room, errors, self.sums)
        norm = improve(self.networks, self.switches, *given, *step, *found)
        loss, q_value = self.sums.tolist()
        if not math.isfinite(loss):
            raise NonFiniteError("loss")
        if not math.isfinite(norm):
            raise NonFiniteError(optimizer.first_not_finite())
        return {"grad_norm": norm, "loss": loss, "q_value": q_value}, errors


@njit(calls=True, borrows=True, nogil=True, error_model="numpy")
def improve(networks, switches, inputs, known, masks, delta, descent, rate, most, order, room, errors, sums):  # type: ignore[no-untyped-def]
    """A step of the online network towards the target's values, with `double` and `dueling` as switches.

    networks, descent: the fields of two `Network` and of a `Descent`
    inputs: features [N, ...] of here and there; known: actions, rewards, discounts and weights [N]
    order: 0 to N - 1; room: four arrays [HEIGHT, actions]
    errors [N] and sums, the loss and mean Q, are written. → the gradient's norm
    """
    online, target, descent = Network(*networks[0]), Network(*networks[1]), Descent(*descent)
    (double, dueling), (obs, next_obs) = switches, inputs
    action, reward, discount, weight = known
    count = len(obs)
    sums[0] = sums[1] = 0.0
    begin(online)
    read(target)
    for first in range(0, count, HEIGHT):
        rows, part = order[first : first + HEIGHT], slice(first, first + HEIGHT)
        next_q, chooser, q, slopes = room[0][: len(rows)], room[1], room[2][: len(rows)], room[3][: len(rows)]
        values(target, next_obs, rows, dueling, next_q)
        if double:
            values(online, next_obs, rows, dueling, chooser[: len(rows)])
        values(online, obs, rows, dueling, q)
        some, chooser = (
            (action[part], reward[part], discount[part], weight[part]),
            chooser if double else next_q,
        )
        q_slopes(some, next_q, chooser, masks[part], q, 1 / count, delta, slopes, errors[part], sums)
        streams = online.slopes[: len(rows)]
        if dueling:
            dueling_slopes(slopes, streams)
        else:
            copy(slopes, streams)
        take_back(online, streams, first == 0)
    hand_over(online, descent.gradient)
    return descend(descent, rate, most) if math.isfinite(sums[0]) else math.inf


@njit(borrows=True, nogil=True, error_model="numpy")
def values(network, inputs, rows, dueling, found):  # type: ignore[no-untyped-def]
    """Q [n, actions] of some rows, in an array that the next pass does not write over."""
    outputs = put_out(network, inputs, rows)
    if dueling:
        dueling_rows(outputs, found)
    else:
        copy(outputs, found)


@njit(borrows=True, nogil=True, error_model="numpy", inline="always")
def copy(rows, to):  # type: ignore[no-untyped-def]
    for i in range(rows.shape[0]):
        for j in range(rows.shape[1]):
            to[i, j] = rows[i, j]
