"""Acting in a recurrent state-space model (RSSM), and the way back from losses of what heads say: programs of blocks.

No slope goes through a step: the actor learns from returns, and the model from what was replayed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from rl_training.compiling import njit
from rl_training.kernels.dreaming import (
    chance,
    decode_number,
    fit_bins,
    fit_chance,
    fit_choice,
    fit_latents,
    fit_normal,
)
from rl_training.kernels.functions import FAST, tanh
from rl_training.kernels.fused import HALF, MIX, ONE, ZERO, norm_forward, room_to_draw
from rl_training.kernels.layers import HEIGHT
from rl_training.kernels.products import PANEL
from rl_training.kernels.programs import SIZES, Program, line
from rl_training.kernels.recurrence import Panels, Recurrence, room
from rl_training.kernels.supports import exponentials
from rl_training.kernels.towers import States, Tower, whole


class DenseLayer(NamedTuple):
    weight: np.ndarray  # panels
    bias: np.ndarray
    scale: np.ndarray | None  # of RMSNorm, which SiLU follows; or neither


def read_layers(panels: Panels, modules: Sequence[Any]) -> list[DenseLayer]:
    """Layers one behind the other: with `linear` and `scale`, or plain ones."""
    layers = []
    for module in modules:
        linear = getattr(module, "linear", module)
        scale = module.scale.detach().numpy() if linear is not module else None
        layers.append(DenseLayer(panels.matrix(linear.weight.t()), panels.vector(linear.bias), scale))
    return layers


def add_layers(program: Program, layers: Sequence[DenseLayer], x: np.ndarray, count: int) -> np.ndarray:
    """What the layers make of x, a view of [T, N, ...]: the same room [N, ...] in every step."""
    for weight, bias, scale in layers:
        y = room(count, len(weight) * PANEL)
        program.multiply(y, bias, x, weight)
        if scale is not None:
            # Not in place: the compiler's vectors need to know that nothing is read where they are written.
            normed = room(count, len(weight) * PANEL)
            program.add(norm_forward, y, scale, normed, room(count, 1), sizes=(len(scale),))
            y = normed
        x = y
    return x


class Heads(NamedTuple):
    """Towers over the states of a world model."""

    reward: Tower
    going_on: Tower
    actor: Tower
    critic: Tower
    slow_critic: Tower
    prior: Tower  # over h alone


class Columns(NamedTuple):
    """Numbers of imagined states [H + 1, N], and of what is done there [H, N], for the blocks and for all at once."""

    reward: np.ndarray
    live: np.ndarray
    value: np.ndarray
    slow: np.ndarray
    returns: np.ndarray
    advantage: np.ndarray
    weight: np.ndarray
    slope: np.ndarray  # of the critic's loss
    value_loss: np.ndarray
    policy: np.ndarray  # [H, N, 2], the actor's loss and its entropy

    def of(self, rows: slice) -> Columns:
        """Those of some rows, as programs read them: [..., 1]."""
        parts = [column[:, rows, None] for column in self[:-1]]
        return Columns._make([*parts, self.policy[:, rows]])


class Seen(NamedTuple):
    """Numbers [M] of the replayed states, from which is imagined."""

    reward: np.ndarray
    live: np.ndarray
    target: np.ndarray  # of the critic
    weight: np.ndarray  # of its loss in their mean
    slope: np.ndarray  # the same, scaled
    slopes: np.ndarray  # of the loss of rewards
    reward_loss: np.ndarray
    continue_loss: np.ndarray
    divergence: np.ndarray
    value_loss: np.ndarray

    def of(self, rows: slice) -> Seen:
        return Seen(*(column[rows, None] for column in self))


class Settings(NamedTuple):
    """What losses are told."""

    latents: np.ndarray  # free nats, and the slopes of both losses
    going_on: np.ndarray  # [1]: the slope of its loss
    policy: np.ndarray  # η, and a factor of its slopes


class Imagination:
    """From each of M states H steps by an actor and the prior, what heads say of them, and the way back from losses."""

    def __init__(
        self,
        recurrence: Recurrence,
        heads: Heads,
        bins: np.ndarray,
        dimensions: int | None,
    ) -> None:
        """dimensions: of an action that is a vector; 0 where it is one choice, None where torch acts and learns it."""
        self.recurrence, self.heads, self.bins, self.dimensions = recurrence, heads, bins, dimensions
        panels, rssm = recurrence.panels, recurrence.rssm
        self.from_action: list[DenseLayer] = []
        if dimensions is not None:
            self.from_action = read_layers(panels, [rssm.from_action])
            shared = panels.matrix(rssm.shared[2 * recurrence.hidden :])
            self.from_action.append(DenseLayer(shared, rssm.own.bias.detach().numpy(), None))
        self.from_stoch = panels.plain(rssm.from_stoch.linear.weight.t())
        self.settings = Settings(*(np.zeros(size, np.float32) for size in (3, 1, 2)))
        self.laid: Laid | None = None

    def lay(self, horizon: int, count: int, width: int) -> Laid:
        """The memory of H steps of M states, whose actions are drawn by so many numbers."""
        shape = (horizon, count, width)
        if self.laid is None or self.laid.shape != shape:
            self.laid = Laid(self, shape)
        return self.laid

    def hand_over(self) -> None:
        for tower in self.heads:
            tower.hand_over()


class Laid:
    """The memory of H steps of M states, and the programs of its blocks of rows.

    A block goes through all of its steps before the next one: it stays in the cache.
    """

    def __init__(self, of: Imagination, shape: tuple[int, int, int]) -> None:
        horizon, count, width = self.shape = shape
        r = of.recurrence
        self.noise, self.chance = room(horizon, count, r.rssm.num_latents), room(horizon, count, width)
        self.actions, self.table = room(horizon, count, of.dimensions or 1), Program()
        if of.dimensions == 0:  # what each choice adds to the memory
            self.inputs = add_layers(self.table, of.from_action, np.eye(width, dtype=np.float32), width)
        states, steps = (horizon + 1, count), (horizon, count)
        columns = [*(room(*states) for _ in range(4)), *(room(*steps) for _ in range(5)), room(*steps, 2)]
        self.columns = Columns._make(columns)
        self.seen = Seen(*(room(count) for _ in Seen._fields))
        self.probs, self.to_probs = room(count, r.stoch), room(count, r.stoch)
        self.to_states = room(count, r.size + r.stoch)
        starts = range(0, count, HEIGHT)
        self.blocks = [Block(of, self, slice(first, min(first + HEIGHT, count))) for first in starts]

    def run(self, deter: np.ndarray, picks: np.ndarray) -> None:
        """Imagine from the states [M, D] and [M, S]."""
        self.table.run(self.shape[2], range(1))
        for block in self.blocks:
            block.imagine(deter, picks)
            block.look()

    def look(self, deter: np.ndarray, picks: np.ndarray) -> np.ndarray:
        """Look at states that were imagined elsewhere, [H + 1, M, ...]; what the actor puts out of them [H, M, P]."""
        outputs = np.empty((self.shape[0], self.shape[1], self.blocks[0].of.heads.actor.outputs), np.float32)
        for block in self.blocks:
            block.states.deter[...], block.states.picks[...] = deter[:, block.rows], picks[:, block.rows]
            block.act.run(block.height, range(self.shape[0]))
            block.look()
            outputs[:, block.rows] = block.actor.out[..., : outputs.shape[-1]]
        return outputs

    def put_slopes(self, slopes: np.ndarray) -> None:
        """Slopes [H, M, P] of what `look` gave."""
        for block in self.blocks:
            block.slopes["actor"][..., : slopes.shape[-1]] = slopes[:, block.rows]

    def go_back(self) -> None:
        """Add up the slopes of all losses of heads, and leave those of the replayed states and of the posterior."""
        self.to_states[...] = 0
        for block in self.blocks:
            block.back.run(block.height, range(self.shape[0]))
            block.back_to_states.run(block.height, range(1))


class Block:
    """Some of the rows: their memory, and programs."""

    def __init__(self, of: Imagination, laid: Laid, rows: slice) -> None:
        self.of, self.laid, self.rows, self.height = of, laid, rows, rows.stop - rows.start
        self.horizon, r, heads, count = laid.shape[0], of.recurrence, of.heads, self.height
        choices = r.rssm.num_latents
        self.states = States(room(self.horizon + 1, count, r.size), room(self.horizon + 1, count, choices))
        self.columns, self.seen = laid.columns.of(rows), laid.seen.of(rows)
        self.critic, self.actor = (
            heads.critic.room(self.horizon + 1, count),
            heads.actor.room(self.horizon, count),
        )
        # Of the last step that looks at them, which is the first one.
        self.reward, self.going_on = heads.reward.room(count), heads.going_on.room(count)
        self.prior = heads.prior.room(count)
        self.slopes = {head: room(count, whole(getattr(heads, head).outputs)) for head in Heads._fields}
        self.dream, self.act, self.slow, self.say = Program(), Program(), Program(), Program()
        self.foresee, self.back, self.back_to_states = Program(), Program(), Program()
        now = States(self.states.deter[:-1], self.states.picks[:-1])
        heads.actor.forward(self.act, now, self.actor)
        if of.dimensions is not None:
            heads.actor.forward(self.dream, now, self.actor)
            self.add_step(now, States(self.states.deter[1:], self.states.picks[1:]))
        self.add_heads(now)
        self.add_way_back(now)
        self.add_way_back_to_states(States(self.states.deter[0], self.states.picks[0]))

    def imagine(self, deter: np.ndarray, picks: np.ndarray) -> None:
        self.states.deter[0], self.states.picks[0] = deter[self.rows], picks[self.rows]
        self.dream.run(self.height, range(self.horizon))

    def look(self) -> None:
        # Backwards: what is kept of rewards in the end is that of the states from which is imagined.
        self.say.run(self.height, range(self.horizon, -1, -1))
        self.slow.run(self.height, range(self.horizon))
        self.foresee.run(self.height, range(1))

    def add_step(self, now: States, after: States) -> None:
        """A step from the actor's outputs on."""
        of, laid, program, r, count = self.of, self.laid, self.dream, self.of.recurrence, self.height
        chance, actions, choices = (
            laid.chance[:, self.rows],
            laid.actions[:, self.rows],
            after.picks.shape[-1],
        )
        if of.dimensions:
            bounded = room(count, of.dimensions)
            program.add(draw_bounded, self.actor.out, chance, actions, bounded, sizes=(of.dimensions,))
            added = add_layers(program, of.from_action, bounded, count)
        else:
            added = room(count, r.size)
            program.add(choose, self.actor.out, chance, actions, sizes=chance.shape[2:])
            program.add(take, added, laid.inputs, actions, sizes=(r.size,))
        r.add_memory(program, now.deter, (of.from_stoch, now.picks), added, after.deter, r.between(count))
        drawn = of.heads.prior.room(count)
        of.heads.prior.forward(program, after, drawn)
        needed = room_to_draw(choices), room(2 * r.stoch)
        program.add(
            draw_picks,
            drawn.out,
            laid.noise[:, self.rows],
            after.picks,
            *needed,
            sizes=(r.stoch // choices, choices),
        )

    def add_heads(self, now: States) -> None:
        heads, columns, bins = self.of.heads, self.columns, self.of.bins
        shares, slow = room(whole(len(bins))), heads.slow_critic.room(self.height)
        for program, tower, states, kept, to in (
            (self.say, heads.critic, self.states, self.critic, columns.value),
            (self.say, heads.reward, self.states, self.reward, columns.reward),
            (self.slow, heads.slow_critic, now, slow, columns.slow),
        ):
            tower.forward(program, states, kept)
            program.add(decode_number, kept.out, bins, shares, to, sizes=(len(shares), len(bins)))
        heads.going_on.forward(self.say, self.states, self.going_on)
        self.say.add(chance, self.going_on.out, columns.live)
        heads.prior.forward(self.foresee, States(self.states.deter[0], self.states.picks[0]), self.prior)

    def add_way_back(self, now: States) -> None:
        """Actor and critic learn from what is imagined."""
        of, columns, actions = self.of, self.columns, self.laid.actions[:, self.rows]
        slopes, sizes = self.slopes["actor"], (of.dimensions or of.heads.actor.outputs,)
        if of.dimensions is None:  # torch says them, of every step
            slopes = self.slopes["actor"] = room(self.horizon, *slopes.shape)
        else:
            given = (self.actor.out, actions, columns.advantage, columns.weight, of.settings.policy)
            fit = fit_normal if of.dimensions else fit_choice
            self.back.add(fit, *given, slopes, columns.policy, sizes=sizes)
        of.heads.actor.backward(self.back, now, self.actor, slopes, None)
        slopes = self.slopes["critic"]
        self.add_fit(
            self.back,
            self.critic.out,
            columns.returns,
            columns.slow,
            columns.slope,
            slopes,
            columns.value_loss,
        )
        of.heads.critic.backward(self.back, now, self.critic, slopes, None)

    def add_fit(
        self, program: Program, logits: np.ndarray, target: np.ndarray, other: np.ndarray, *rest: np.ndarray
    ) -> None:
        bins, targets = self.of.bins, 1 if other is target else 2
        program.add(
            fit_bins, logits, bins, target, other, *rest, sizes=(logits.shape[-1], len(bins), targets)
        )

    def add_way_back_to_states(self, states: States) -> None:
        """Rewards, ends, latents and, once more, the critic, of the replayed states."""
        of, seen, program, slopes, laid = self.of, self.seen, self.back_to_states, self.slopes, self.laid
        heads, settings, to_states = of.heads, of.settings, laid.to_states[self.rows]
        self.add_fit(
            program,
            self.reward.out,
            seen.reward,
            seen.reward,
            seen.slopes,
            slopes["reward"],
            seen.reward_loss,
        )
        given = (self.going_on.out, seen.live, settings.going_on, slopes["going_on"], seen.continue_loss)
        program.add(fit_chance, *given)
        replayed = (seen.target, self.columns.slow[0], seen.slope, slopes["critic"], seen.value_loss)
        self.add_fit(program, self.critic.out[0], *replayed)
        for tower, kept, slope in (
            (heads.reward, self.reward, slopes["reward"]),
            (heads.going_on, self.going_on, slopes["going_on"]),
            (heads.critic, self.critic.at(0), slopes["critic"]),
        ):
            tower.backward(program, states, kept, slope, to_states)
        choices, stoch = of.recurrence.rssm.num_latents, of.recurrence.stoch
        probs, to_probs = laid.probs[self.rows], laid.to_probs[self.rows]
        needed = (settings.latents, room(stoch + 3 * choices))
        arrays = (probs, self.prior.out, to_probs, slopes["prior"], seen.divergence, *needed)
        program.add(fit_latents, *arrays, sizes=(stoch // choices, choices))
        heads.prior.backward(program, states, self.prior, slopes["prior"], to_states)


@njit(borrows=True, nogil=True, fastmath=FAST, error_model="numpy")
def choose(op, step, rows):  # type: ignore[no-untyped-def]
    """Outputs, chance E ~ Exp(1) → a = argmaxᵢ (log πᵢ - log Eᵢ), Gumbel-max; π has its 1 % of 1 / A."""
    choices = op[SIZES]
    for i in range(rows):
        outputs, chance = line(op, 0, step, i, choices), line(op, 1, step, i, choices)
        top, total, best, chosen = outputs[0], ZERO, ZERO, 0
        for j in range(1, choices):
            top = max(top, outputs[j])
        for j in range(choices):
            total += np.float32(math.exp(outputs[j] - top))
        for j in range(choices):
            share = np.float32(math.exp(outputs[j] - top)) / total * (ONE - MIX) + MIX / np.float32(choices)
            score = np.float32(math.log(share)) - np.float32(math.log(chance[j]))
            if j == 0 or score > best:
                chosen, best = j, score
        line(op, 2, step, i, 1)[0] = chosen


@njit(borrows=True, nogil=True)
def take(op, step, rows):  # type: ignore[no-untyped-def]
    """Out ← the row of a table that each choice names."""
    width = op[SIZES]
    for i in range(rows):
        to, source = (
            line(op, 0, step, i, width),
            line(op, 1, step, np.int64(line(op, 2, step, i, 1)[0]), width),
        )
        for j in range(width):
            to[j] = source[j]


@njit(borrows=True, nogil=True, fastmath=FAST, error_model="numpy")
def draw_bounded(op, step, rows):  # type: ignore[no-untyped-def]
    """Outputs m and s, noise e ~ N(0, 1) → a = tanh(m) + (0.9 σ(s + 2) + 0.1) e, and a / max(1, |a|)."""
    size = op[SIZES]
    for i in range(rows):
        outputs, noise = line(op, 0, step, i, 2 * size), line(op, 1, step, i, size)
        action, bounded = line(op, 2, step, i, size), line(op, 3, step, i, size)
        for j in range(size):
            deviation = HALF + HALF * tanh(HALF * (outputs[size + j] + np.float32(2)))
            drawn = tanh(outputs[j]) + (np.float32(0.9) * deviation + np.float32(0.1)) * noise[j]
            action[j], bounded[j] = drawn, drawn / max(ONE, abs(drawn))


@njit(borrows=True, nogil=True, error_model="numpy")
def draw_picks(op, step, rows):  # type: ignore[no-untyped-def]
    """Logits, noise → the places of the ones in what `draw_forward` draws."""
    classes, choices = op[SIZES], op[SIZES + 1]
    size, room = classes * choices, line(op, 3, step, 0, 4 * choices)
    # Of numbers in place, exponentials would be computed one by one.
    shares, apart = line(op, 4, step, 0, size), line(op, 4, step, 0, 2 * size)[size:]
    top, total, left, place = room[:choices], room[choices:], room[2 * choices :], room[3 * choices :]
    mix = MIX / np.float32(classes)
    for i in range(rows):
        logits, noise, picks = (
            line(op, 0, step, i, size),
            line(op, 1, step, i, choices),
            line(op, 2, step, i, choices),
        )
        for s in range(choices):
            top[s], total[s], left[s], place[s] = logits[s], ZERO, noise[s], ZERO
        for k in range(1, classes):
            for s in range(choices):
                top[s] = max(top[s], logits[k * choices + s])
        for k in range(classes):
            for s in range(choices):
                apart[k * choices + s] = logits[k * choices + s] - top[s]
        exponentials(apart, ZERO, shares)
        for k in range(classes):
            for s in range(choices):
                total[s] += shares[k * choices + s]
        for s in range(choices):
            total[s] = (ONE - MIX) / total[s]
        for k in range(classes - 1):
            for s in range(choices):
                left[s] -= shares[k * choices + s] * total[s] + mix
                place[s] += ONE if left[s] >= ZERO else ZERO
        for s in range(choices):
            picks[s] = place[s] * np.float32(choices) + np.float32(s)
