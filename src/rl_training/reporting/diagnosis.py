"""What is wrong with a run, as far as its log and some play show: rules with numbers, steps, sources and a change.

Each rule is a function of what a run logged and of what was measured by playing it (`tools/probing.py`), and says
nothing where its metric is not there. A rule looks at one symptom; whether the change it names helps is not claimed
here, but can be tried (`tools/proving.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from rl_training.reporting.records import Record
from rl_training.runtime.controls import SCHEDULE

Curve = tuple[np.ndarray, np.ndarray]  # steps and values
NOTHING: Curve = (np.empty(0), np.empty(0))
ENOUGH = 5  # lines of a metric before anything is said about it
PLAYED = "play/"  # begins the names of numbers that were measured by playing, at one step
FEWER = {PLAYED: 1, "eval/": 2}  # of metrics whose names begin so


class Seen(NamedTuple):
    """What a run logged, and what was measured by playing it."""

    config: Mapping[str, Any]
    curves: Mapping[str, Curve]
    where: Mapping[str, str] = {}  # of what was measured: in which layer, in which dimension

    def curve(self, name: str) -> Curve:
        """A metric's steps and values; nothing where there are too few to speak of."""
        steps, values = self.curves.get(name, NOTHING)
        return (steps, values) if len(values) >= ENOUGH else NOTHING

    def played(self, name: str) -> float | None:
        """A number that was measured by playing, if it was."""
        values = self.curves.get(PLAYED + name, NOTHING)[1]
        return float(values[-1]) if len(values) else None

    @property
    def played_at(self) -> int:
        """The step of the policy that played."""
        steps = [steps[-1] for name, (steps, _) in self.curves.items() if name.startswith(PLAYED)]
        return int(max(steps, default=0))

    def sees(self, name: str) -> bool:
        """Whether there is enough of a metric to speak of it."""
        enough = next((count for part, count in FEWER.items() if name.startswith(part)), ENOUGH)
        return len(self.curves.get(name, NOTHING)[1]) >= enough

    def late(self, name: str, share: float = 0.5) -> np.ndarray:
        """A metric's values in the last share of the run."""
        steps, values = self.curve(name)
        return values[steps >= (1 - share) * self.last] if len(values) else values

    @property
    def last(self) -> int:
        return int(max((curve[0][-1] for curve in self.curves.values() if len(curve[0])), default=0))

    def value(self, name: str) -> float | None:
        """A knob's first logged value, or the config's."""
        logged, written = self.curves.get(name, NOTHING)[1], self.config.get(name)
        if len(logged):
            return float(logged[0])
        return float(written) if isinstance(written, int | float) and not isinstance(written, bool) else None

    @property
    def learned(self) -> bool | None:
        """Whether returns of the last quarter are half a standard deviation above the first; None if none are known."""
        first, late = self.curve("episode_return")[1], self.late("episode_return", 0.25)
        return bool(late.mean() > first[0] + 0.5 * self.spread) if len(late) else None

    @property
    def beats_chance(self) -> bool | None:
        """Whether the policy returns a deviation more than random actions; if none were played, whether it learned."""
        own, random, spread = map(self.played, ("return", "random_return", "random_return_std"))
        return self.learned if own is None or random is None or spread is None else own > random + spread

    @property
    def spread(self) -> float:
        """How far the returns of a policy are apart: the median of their deviations in the first half."""
        steps, values = self.curve("episode_return_std")
        early = values[steps <= 0.5 * self.last]
        return max(float(np.median(early)), 1e-9) if len(early) else 1e-9


def of_record(record: Record) -> Seen:
    return Seen(record.config, {name: record.curve(name)[:2] for name in record.metrics.names})


class Finding(NamedTuple):
    """One thing that is wrong."""

    rule: str
    step: int  # where it is first seen
    said: str  # with its numbers
    advice: str
    changes: dict[str, Any]  # the settings that follow from it; none where settings do not help
    source: str
    try_from: int  # the step before which a proof of the change begins


class Rule(NamedTuple):
    """A symptom, the metrics it is seen in, and where its threshold comes from."""

    name: str
    metrics: tuple[str, ...]
    look: Callable[[Seen], tuple[int, str, str, dict[str, Any]] | None]
    source: str
    either: bool = False  # whether it looks at whichever of its metrics is there
    inborn: bool = (
        False  # whether it is no event of a run: its change is tried from step 0, whenever it was seen
    )


Look = tuple[int, str, str, dict[str, Any]] | None


def _slower(seen: Seen, factor: float) -> dict[str, Any]:
    """The largest learning rate of the run, which warm-up may have led to, times a factor, without a schedule."""
    rates = seen.curves.get("learning_rate", NOTHING)[1]
    rate = float(rates.max()) if len(rates) else seen.value("learning_rate")
    return (
        {} if not rate else {"learning_rate": float(f"{rate * factor:.3g}"), "learning_rate" + SCHEDULE: None}
    )


def no_episode_ends(seen: Seen) -> Look:
    steps, values = seen.curve("episodes")
    if not len(values) or values[-1] > 0 or steps[-1] < 5_000:
        return None
    lengths, lanes = seen.curves.get("eval/mean_length", NOTHING)[1], seen.value("num_envs") or 1
    if len(lengths) and 2 * lanes * np.median(lengths) < steps[-1]:
        return None  # they end in evaluations: training learns from what others have done
    return (
        int(steps[0]),
        f"episodes is 0 after {int(steps[-1]):,} steps",
        "returns cannot be seen, and evaluations do not end: end episodes in the environment, or set max_episode_steps",
        {},
    )


def reward_never_varies(seen: Seen) -> Look:
    steps, returns = seen.curve("episode_return")
    episodes = seen.curve("episodes")[1]
    if not len(returns) or not len(episodes) or episodes[-1] < 20:
        return None
    if np.ptp(returns) > 0 or seen.curve("episode_return_std")[1].any():
        return None
    return (
        int(steps[0]),
        f"all {int(episodes[-1]):,} episodes returned {returns[0]:g}",
        "nothing can be learned from it: look at the environment's reward",
        {},
    )


def learning_rate_is_zero(seen: Seen) -> Look:
    steps, rates = seen.curve("learning_rate")
    zero = rates == 0
    if not zero.any() or not zero[-1]:
        return None
    first = int(steps[len(zero) - int(np.argmin(zero[::-1]))]) if not zero.all() else int(steps[0])
    if first > 0.9 * seen.last:
        return None
    return (
        first,
        f"learning_rate is 0 from step {first:,} to the end at {seen.last:,}",
        "let its schedule last as long as the run",
        {"learning_rate" + SCHEDULE: None},
    )


def _divergence(seen: Seen) -> tuple[str, np.ndarray, np.ndarray]:
    """The first KL of updates that is there: its name, steps and values. APPO logs two, the second for its penalty."""
    for name in ("approx_kl", "kl"):
        steps, values = seen.curve(name)
        if len(values):
            return name, steps, values
    return "", *NOTHING


def updates_without_effect(seen: Seen) -> Look:
    """√KL is a distance of policies close by: updates of KL kᵢ lead to (Σ √kᵢ)² at most, if all lead the same way."""
    if seen.learned is not False or seen.beats_chance or learning_rate_is_zero(seen) or too_few_updates(seen):
        return None
    steps, entropy = seen.curve("entropy")
    still, words, factor = len(entropy) > 0 and np.ptp(entropy) < 1e-4 * abs(entropy[0]), "", 1000.0
    if still:
        words = f"entropy moved by {np.ptp(entropy):.2g}"
    rollout = (seen.value("num_envs") or 0) * (seen.value("num_steps") or 0)
    name, at, divergence = _divergence(seen)
    typical = None
    if name and rollout:
        # A line is the mean of the updates since the one before.
        updates = np.maximum(np.diff(at, prepend=0) / rollout, 1)
        furthest = float((updates * np.sqrt(divergence.clip(0))).sum() ** 2)
        steps, still, typical = at, furthest < 0.1, float(np.median(divergence))
        words = (
            f"{name} has a median of {typical:.2g}: all {updates.sum():,.0f} updates together move the policy by "
            f"{furthest:.2g} nats at most"
        )
        factor = math.sqrt(0.01 / max(typical, 1e-12))  # KL grows with the square of a step
    if not still:
        return None
    advice, changes = _larger_steps(seen, typical, factor)
    return int(steps[0]), f"{words}, and returns did not rise", advice, changes


def _larger_steps(seen: Seen, divergence: float | None, factor: float) -> tuple[str, dict[str, Any]]:
    """What holds the policy back: a limit that its KL reaches, or a learning rate that is far below what is usual."""
    limit = seen.value("target_kl")
    if limit is not None and divergence is not None and 0.1 * limit < divergence and limit < 0.01:
        return f"widen the limit of the KL, now {limit:g}", {"target_kl": 0.01, "target_kl" + SCHEDULE: None}
    if "step_fraction" in seen.curves:  # of a line search: the learning rate is that of values alone
        return "the cause is not the limit of the KL: look at rewards, advantages and the line search", {}
    rate = _slower(seen, 1.0).get("learning_rate", 0.0)
    if rate >= 1e-4:
        where = "look at rewards, advantages and gradients"
        return f"the cause is not the learning rate of {rate:.2g}: {where}", {}
    return "raise the learning rate", _slower(seen, min(factor, 1e-2 / max(rate, 1e-12)))


def policy_diverges(seen: Seen) -> Look:
    name, steps, values = _divergence(seen)
    if not name or np.median(values) <= 0.05:
        return None
    first = int(steps[np.argmax(values > 0.05)])
    words = f"{name} has a median of {np.median(values):.3g} per update, where 0.01 to 0.02 is usual"
    if name == "kl":
        return first, words, "narrow the trust region", {"target_kl": 0.01}
    return first, words, "lower the learning rate", _slower(seen, 0.1)


def entropy_collapsed(seen: Seen) -> Look:
    steps, values = seen.curve("entropy")
    returns = seen.curve("episode_return")[1]
    if not len(values) or values.min() < 0 or not len(returns):
        return None  # below 0: of a density
    if seen.learned and returns[-1] > (returns[0] + returns.max()) / 2:
        return None  # who knows what to do need not be in doubt
    below = values < 0.01
    if not below.any() or np.median(values[np.argmax(below) :]) >= 0.01:
        return None
    first = int(steps[np.argmax(below)])
    return (
        first,
        f"entropy is below 0.01 nats from step {first:,} on, and episode_return is {returns[-1]:.4g} at the end "
        f"(best {returns.max():.4g})",
        "lower the learning rate",
        _slower(seen, 0.01),
    )


def entropy_never_falls(seen: Seen) -> Look:
    steps, values = seen.curve("entropy")
    weight = seen.value("ent_coef")
    if not len(values) or not weight or updates_without_effect(seen) or learning_rate_is_zero(seen):
        return None
    late = float(np.median(seen.late("entropy", 0.25)))
    if late < values[0] - 0.03 * abs(values[0]) or too_few_updates(seen):
        return None
    ratios = seen.curve("replay_ratio")[1]
    if len(ratios) and np.median(ratios) * (steps[-1] - steps[0]) < 1_000:
        return None  # too soon to tell: the first searches of a planner know no values
    return (
        int(steps[0]),
        f"entropy is {late:.4g} nats in the last quarter and was {values[0]:.4g}, with ent_coef {weight:g}",
        "lower the weight of the entropy",
        {"ent_coef": float(f"{weight / 100:.3g}"), "ent_coef" + SCHEDULE: None},
    )


def gradients_at_the_clip(seen: Seen) -> Look:
    steps, norms = seen.curve("grad_norm")
    limit = seen.value("max_grad_norm")
    if not len(norms) or not limit or np.median(norms) < 200 * limit:
        return None
    typical = float(np.median(norms))
    return (
        int(steps[0]),
        f"grad_norm has a median of {typical:.3g}, {typical / limit:.3g} times max_grad_norm: all steps are as long",
        "clip only outliers, or scale rewards",
        {"max_grad_norm": 0.5 if limit < 0.5 else float(f"{typical:.2g}")},
    )


def values_explain_nothing(seen: Seen) -> Look:
    steps, _ = seen.curve("explained_variance")
    late = seen.late("explained_variance")
    if not len(late) or np.median(late) > 0.01 or seen.learned is None:
        return None
    if reward_never_varies(seen) or updates_without_effect(seen) or learning_rate_is_zero(seen):
        return None
    losses = seen.curve("value_loss")[1]
    if len(losses) and np.median(seen.late("value_loss")) < 0.01 * losses.max():
        return None  # values fit well: in a task that is solved all returns are alike, and nothing is left to explain
    weight = seen.value("vf_coef")
    first = int(steps[np.argmax(steps >= 0.5 * seen.last)])
    words = f"explained_variance has a median of {np.median(late):.3g} in the second half: no better than a constant"
    if weight is not None and weight < 0.05:
        return first, f"{words}, with vf_coef {weight:g}", "train the value function", {"vf_coef": 0.5}
    return first, words, "lower the learning rate", _slower(seen, 0.1)


def value_scale(seen: Seen) -> Look:
    steps, losses = seen.curve("value_loss")
    returns = seen.curve("episode_return")[1]
    if not len(losses) or not len(returns) or seen.config.get("normalize_rewards"):
        return None
    error, typical = float(np.sqrt(2 * np.median(losses))), float(np.median(abs(returns)))
    if error < max(300, 0.2 * typical):  # far from a fresh network's outputs, and from returns
        return None
    return (
        int(steps[0]),
        f"value_loss has a median of {np.median(losses):.3g}: values are wrong by {error:,.0f}, in the rewards' unit, "
        f"where episode_return has a median size of {typical:,.0f}",
        "scale rewards",
        {"normalize_rewards": True},
    )


def evaluation_far_from_training(seen: Seen) -> Look:
    steps, scores = seen.curves.get("eval/mean_return", NOTHING)
    at, returns = seen.curve("episode_return")
    if len(scores) < 2 or not len(returns):
        return None
    known = steps >= max(at[0], 0.5 * seen.last)
    if not known.any():
        return None
    played = np.interp(steps[known], at, returns)
    scale = np.maximum(np.maximum(abs(played), abs(scores[known])), 1e-9)
    gap = float(np.median((scores[known] - played) / scale))
    if abs(gap) < 0.6:
        return None
    greedy, sampled = float(np.median(scores[known])), float(np.median(played))
    first = int(steps[known][0])
    words = f"evaluations return {greedy:.4g} (median of the second half), training episodes {sampled:.4g}"
    if gap < 0:
        return (
            first,
            words,
            "the greedy policy is not the one that was trained: evaluate as in training",
            {"eval_sample": True},
        )
    return None  # training returns are of the last 100 episodes, and follow late where a run learns fast


def exploration_never_falls(seen: Seen) -> Look:
    steps, epsilon = seen.curve("epsilon")
    late = seen.late("epsilon")
    if not len(late) or np.median(late) <= 0.5:
        return None
    return (
        int(steps[0]),
        f"epsilon began at {epsilon[0]:.2g} and has a median of {np.median(late):.2g} in the second half",
        "let it fall, since most actions are random",
        {
            "epsilon" + SCHEDULE: {
                "type": "linear",
                "start": 1.0,
                "end": 0.05,
                "steps": max(1, seen.last // 4),
            }
        },
    )


def q_above_returns(seen: Seen) -> Look:
    steps, q = seen.curve("q_value")
    returns = seen.curve("episode_return")[1]
    if not len(q) or not len(returns):
        return None
    gamma, weight = seen.value("gamma") or 0.99, seen.late("ent_coef")
    bonus = 0.0
    if len(weight) and len(seen.late("entropy")):  # SAC's Q holds the entropy to come
        bonus = float(np.median(weight) * max(np.max(seen.late("entropy")), 0.0)) / max(1 - gamma, 1e-3)
    best = float(returns.max())
    bound = max(1.5 * best, 0.0) + bonus + 1.0
    late = float(np.median(seen.late("q_value", 0.25)))
    if late <= bound:
        return None
    first = int(steps[np.argmax(q > bound)])
    return (
        first,
        f"q_value is {late:.4g} in the last quarter, and no mean of returns was above {best:.4g}",
        "let targets move slowly, and lower the learning rate",
        _slower(seen, 0.1) | ({"tau": 0.005} if seen.config.get("tau") is not None else {}),
    )


def too_many_updates(seen: Seen) -> Look:
    """Many updates from few steps: from a replay that holds most of a run, 16 updates a step did no harm here."""
    steps, ratios = seen.curve("replay_ratio")
    batch, size = seen.value("batch_size"), seen.value("buffer_size")
    if not len(ratios) or np.median(ratios) < 8 or size is None or size >= 0.1 * seen.last:
        return None
    if seen.beats_chance is not False:
        return None
    each = f", each step is drawn {np.median(ratios) * batch:,.0f} times" if batch else ""
    return (
        int(steps[0]),
        f"replay_ratio is {np.median(ratios):g}{each} from a replay of {size:,.0f}, and the policy does no better than "
        "chance",
        "learn less often from the same steps, and keep more of them",
        {"replay_ratio": 1.0, "replay_ratio" + SCHEDULE: None, "buffer_size": seen.last},
    )


def too_few_updates(seen: Seen) -> Look:
    steps, ratios = seen.curve("replay_ratio")
    if not len(ratios) or np.median(ratios) >= 0.01:
        return None
    return (
        int(steps[0]),
        f"replay_ratio is {np.median(ratios):g}: one update in {1 / max(np.median(ratios), 1e-9):,.0f} steps",
        "learn more from each step",
        {"replay_ratio": 0.25},
    )


def search_ignores_values(seen: Seen) -> Look:
    steps, entropies = seen.curve("visit_entropy")
    if not len(entropies) or entropies.max() <= 0 or entropies.min() < 0.98 * entropies.max():
        return None
    simulations, actions = seen.value("num_simulations"), math.exp(entropies.max())
    if simulations is not None and simulations < 4 * actions:
        return None  # each of so many actions is visited once before any is twice, whatever values say
    losses, late = seen.curve("value_loss")[1], seen.late("value_loss", 0.25)
    if len(late) and np.median(late) > 0.9 * losses[0]:
        return None  # there are no values to follow yet
    weight = seen.value("pb_c_init")
    return (
        int(steps[0]),
        f"visit_entropy stayed between {entropies.min():.4g} and {entropies.max():.4g} nats: searches visit all alike",
        "let values weigh more in the search",
        {"pb_c_init": 1.25} if weight is not None and weight > 1.25 else {},
    )


def clip_fraction(seen: Seen) -> Look:
    steps, shares = seen.curve("clip_fraction")
    limit = seen.value("clip_coef")
    if not len(shares) or np.median(shares) < 0.4:
        return None
    first = int(steps[np.argmax(shares >= 0.4)])
    words = f"clip_fraction has a median of {np.median(shares):.2g}, where 0.05 to 0.3 is usual"
    if limit is not None and limit < 0.1:
        change = {"clip_coef": 0.2, "clip_coef" + SCHEDULE: None}
        return first, f"{words}, with clip_coef {limit:g}", "widen the clip range", change
    return first, words, "lower the learning rate", _slower(seen, 0.1)


def world_model_error(seen: Seen) -> Look:
    error = seen.played("model_error")
    if error is not None and error >= 1:
        weight = seen.value("reconstruction_scale")
        words = f"play/model_error is {error:.3g} of the observations' variance: a constant predicts as well"
        if weight is not None and weight < 0.1:
            change = {"reconstruction_scale": 1.0}
            return (
                seen.played_at,
                f"{words}, with reconstruction_scale {weight:g}",
                "train the world model",
                change,
            )
        return seen.played_at, words, "train the world model more", _faster(seen)
    steps, losses = seen.curve("reward_loss")
    if not len(losses) or seen.learned is not False or losses[0] < 0.1:
        return None
    late = float(np.median(seen.late("reward_loss", 0.25)))
    if late < 0.9 * losses[0]:
        return None
    return (
        int(steps[0]),
        f"reward_loss is {late:.3g} in the last quarter and was {losses[0]:.3g}: the model does not learn to foresee "
        "rewards, and returns did not rise",
        "train the world model more",
        _faster(seen),
    )


def _faster(seen: Seen) -> dict[str, Any]:
    """A learning rate that was far below what is usual raised; a usual one as it is, with more updates."""
    rate, ratio = seen.value("learning_rate"), seen.config.get("train_ratio")
    if rate and rate < 1e-5:
        return _slower(seen, 1000)
    return {"train_ratio": 4 * ratio} if isinstance(ratio, int | float) and ratio else {}


def dead_units(seen: Seen) -> Look:
    share = seen.played("dead_units")
    if (
        share is None or share < 0.8 or seen.learned
    ):  # critics of a solved task saturate too, since values are alike
        return None
    norm = {"layer_norm": True} if seen.config.get("layer_norm") is False else {}
    return (
        seen.played_at,
        f"play/dead_units is {share:.2g}: {seen.where.get('play/dead_units', 'units of a layer')} are constant, or "
        "saturated, whatever is observed",
        f"lower the learning rate{', and normalise layers' if norm else ''}",
        _slower(seen, 0.1) | norm,
    )


def observation_scale(seen: Seen) -> Look:
    scale = seen.played("observation_scale")
    if scale is None or 0.01 <= scale <= 100:
        return None
    change = {"normalize_observations": True} if seen.config.get("normalize_observations") is False else {}
    place = seen.where.get("play/observation_scale", "a dimension")
    return (
        seen.played_at,
        f"play/observation_scale is {scale:.3g}: the root mean square of {place} as it enters the network, the largest "
        "of all",
        "normalise observations",
        change,
    )


def normaliser_saturated(seen: Seen) -> Look:
    share = seen.played("at_the_clip")
    if (
        share is None or share < 0.05
    ):  # of what its statistics are made of, at most 0.01 is 10 deviations away
        return None
    return (
        seen.played_at,
        f"play/at_the_clip is {share:.2g}: the share of observations of which the normaliser clips "
        f"{seen.where.get('play/at_the_clip', 'a dimension')}",
        "observe more of what is met in play before it counts: more environments, or no normaliser",
        {"normalize_observations": False},
    )


def truncation_as_termination(seen: Seen) -> Look:
    share, longest = seen.played("terminated_at_longest"), seen.played("longest_episode")
    if share is None or longest is None or longest < 10 or share < 0.5:
        return None
    return (
        seen.played_at,
        f"play/terminated_at_longest is {share:.2g}: so many episodes end with terminated=True after exactly "
        f"{longest:.0f} steps, and none is longer, though their last observations differ",
        "return truncated=True at a limit of time, or cut episodes one step before it",
        {"max_episode_steps": int(longest) - 1},
    )


def below_random_play(seen: Seen) -> Look:
    own, random = seen.played("return"), seen.played("random_return")
    spread, error = seen.played("random_return_std"), seen.played("return_error")
    if own is None or random is None or spread is None or error is None:
        return None
    below, late = random - max(3 * error, 0.5 * spread, 1e-9), seen.late("episode_return", 0.25)
    if own >= below or (len(late) and late.mean() >= below):
        return None
    gamma = seen.value("gamma")
    words = (
        f"play/return is {own:.4g}, and play/random_return {random:.4g} (± {spread:.3g}): chance does better"
    )
    if gamma is not None and gamma < 0.9:
        change = {"gamma": 0.99, "gamma" + SCHEDULE: None}
        return seen.played_at, f"{words}, with gamma {gamma:g}", "look further ahead", change
    return seen.played_at, words, "lower the learning rate", _slower(seen, 0.1)


def returns_fell(seen: Seen) -> Look:
    steps, returns = seen.curve("episode_return")
    late = seen.late("episode_return", 0.25)
    if not len(late) or late.mean() >= returns[0] - seen.spread:
        return None
    first = int(steps[np.argmax(returns < returns[0] - seen.spread)])
    return (
        first,
        f"episode_return is {late.mean():.4g} in the last quarter and began at {returns[0]:.4g} (± {seen.spread:.3g})",
        "lower the learning rate",
        _slower(seen, 0.01),
    )


SCHULMAN = "Schulman et al. 2017, arXiv:1707.06347, section 4: KL targets of 0.003 to 0.03"
HUANG = "Huang et al. 2022, The 37 implementation details of PPO"
LEAST = Rule("returns fell", ("episode_return",), returns_fell, "Henderson et al. 2018, arXiv:1709.06560")
RULES: tuple[Rule, ...] = (
    Rule("no episode ends", ("episodes",), no_episode_ends, "by definition"),
    Rule(
        "reward never varies", ("episode_return", "episode_return_std"), reward_never_varies, "by definition"
    ),
    Rule(
        "value scale",
        ("value_loss", "episode_return"),
        value_scale,
        "van Hasselt et al. 2016, arXiv:1602.07714",
    ),
    Rule("learning rate is 0", ("learning_rate",), learning_rate_is_zero, "by definition"),
    Rule(
        "updates without effect",
        ("approx_kl", "kl", "entropy"),
        updates_without_effect,
        "Kakade 2001, A natural policy gradient: KL as a squared distance",
        either=True,
    ),
    Rule("divergence of the policy", ("approx_kl", "kl"), policy_diverges, SCHULMAN, either=True),
    Rule(
        "entropy collapsed", ("entropy",), entropy_collapsed, "Mnih et al. 2016, arXiv:1602.01783, section 4"
    ),
    Rule(
        "entropy never falls",
        ("entropy", "ent_coef"),
        entropy_never_falls,
        "Mnih et al. 2016, arXiv:1602.01783",
    ),
    Rule(
        "gradients at the clip",
        ("grad_norm", "max_grad_norm"),
        gradients_at_the_clip,
        "Pascanu et al. 2013, arXiv:1211.5063",
    ),
    Rule("value function explains nothing", ("explained_variance",), values_explain_nothing, HUANG),
    Rule(
        "evaluation far from training",
        ("eval/mean_return", "episode_return"),
        evaluation_far_from_training,
        "Machado et al. 2018, arXiv:1709.06009",
    ),
    Rule(
        "exploration never falls",
        ("epsilon",),
        exploration_never_falls,
        "Mnih et al. 2015, Nature 518, table 1",
    ),
    Rule(
        "Q above returns",
        ("q_value", "episode_return"),
        q_above_returns,
        "van Hasselt et al. 2016, arXiv:1509.06461",
    ),
    Rule("too few updates", ("replay_ratio",), too_few_updates, "Fedus et al. 2020, arXiv:2007.06700"),
    Rule(
        "too many updates",
        ("replay_ratio", "episode_return"),
        too_many_updates,
        "Nikishin et al. 2022, arXiv:2205.07802: replay ratios of 9 and 32",
        inborn=True,
    ),
    Rule(
        "search ignores values",
        ("visit_entropy",),
        search_ignores_values,
        "Schrittwieser et al. 2020, arXiv:1911.08265, appendix B",
    ),
    Rule("clip fraction out of range", ("clip_fraction",), clip_fraction, f"{HUANG}, debugging variables"),
    Rule(
        "world model's error",
        ("play/model_error", "reward_loss"),
        world_model_error,
        "Hafner et al. 2023, arXiv:2301.04104",
        either=True,
        inborn=True,
    ),
    Rule("dead units", ("play/dead_units",), dead_units, "Sokar et al. 2023, arXiv:2302.12902"),
    Rule("observation scale", ("play/observation_scale",), observation_scale, HUANG, inborn=True),
    Rule("normaliser saturated", ("play/at_the_clip",), normaliser_saturated, "Chebyshev's inequality"),
    Rule(
        "truncation taken for termination",
        ("play/terminated_at_longest", "play/longest_episode"),
        truncation_as_termination,
        "Pardo et al. 2018, arXiv:1712.00378",
        inborn=True,
    ),
    Rule(
        "return below random play",
        ("play/return", "play/random_return"),
        below_random_play,
        "Mnih et al. 2015, Nature 518: scores beside random play",
        inborn=True,
    ),
    LEAST,
)


RETURNS = frozenset(
    ("episode_return", "episode_return_std", "eval/mean_return", "play/return", "play/random_return")
)


def _telling(seen: Seen) -> Seen:
    """Without the returns of games of two: 1 for every game that is decided and 0 for a draw, whoever plays well."""
    if not seen.config.get("two_players"):
        return seen
    return seen._replace(curves={name: curve for name, curve in seen.curves.items() if name not in RETURNS})


def diagnose(seen: Seen) -> list[Finding]:
    """All that the rules find, in their order; that returns fell is said only where no rule knows more."""
    seen = _telling(seen)
    found = [
        Finding(rule.name, *look, rule.source, try_from=0 if rule.inborn else look[0])
        for rule in RULES
        if (look := rule.look(seen)) is not None
    ]
    return [finding for finding in found if finding.rule != LEAST.name] or found


def unseen(seen: Seen) -> list[str]:
    """The rules that had nothing to look at: their metrics were neither logged nor measured, or tell nothing."""
    seen = _telling(seen)
    return [rule.name for rule in RULES if not (any if rule.either else all)(map(seen.sees, rule.metrics))]
