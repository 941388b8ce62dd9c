"""Open-loop predictions of a world model, next to what happened.

prediction = imagine_open_loop("runs/dreamer-CartPole-v1-s1", steps=40, context=5)
save_picture(prediction, "imagined.png")
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from rl_training.envs.making import make_environments
from rl_training.errors import ConfigError, UserError, add_extra
from rl_training.networks.rssm import State
from rl_training.policies.dreamer import DreamerPolicy
from rl_training.runtime.evaluation import refuse_other_spaces
from rl_training.runtime.workflows import Which, load_agent, made_for
from rl_training.settings.config import Config
from rl_training.state.seeding import fold, seed_everything
from rl_training.trees import tree_leaves, tree_map
from rl_training.trust import refuse_untrusted

FRAMES = 10  # shown of pictures


class Prediction(NamedTuple):
    """Observations [T, ...] by name: the first `context` were shown to the model, it imagined the rest.

    Vectors are as the networks see them: normalised, if the run normalises observations.
    """

    truth: dict[str, np.ndarray]
    predicted: dict[str, np.ndarray]
    context: int


class Errors(NamedTuple):
    """Root mean square errors [H] at each number of steps after the last observation that was shown."""

    model: np.ndarray
    unchanged: np.ndarray  # of expecting what was last shown


def imagine_open_loop(path: str | Path, *, seed: int | None = None, **options: Any) -> Prediction:
    """The first of `imagine_episodes`."""
    return imagine_episodes(path, episodes=1, seed=seed, **options)[0]


def imagine_episodes(
    path: str | Path,
    *,
    episodes: int,
    steps: int = 40,
    context: int = 5,
    seed: int | None = None,
    checkpoint: Which = "last",
    trust: bool = False,
    trust_env: bool = False,
) -> list[Prediction]:
    """Play episodes with the policy of a Dreamer run, and let its model imagine each after the first observations.

    The model gets the actions that were taken, and no observation after `context` of them. An episode that ends
    early makes the prediction shorter.
    """
    if steps < 1 or context < 1 or episodes < 1:
        raise ConfigError("steps, context and episodes must be at least 1")
    config, agent, saved = load_agent(path, checkpoint, trust=trust or trust_env)
    if not isinstance(agent, DreamerPolicy):
        raise ConfigError(f"{path}: {config.algo_name} has no world model")
    refuse_untrusted(config, trust or trust_env, doing="playing")
    first = fold(config.seed if seed is None else seed, "imagination")
    seeds = [first, *(fold(first, number) for number in range(1, episodes))]
    return [predict_episode(agent, config, steps + context, context, each, made_for(saved)) for each in seeds]


def predict_episode(
    agent: DreamerPolicy, config: Config, steps: int, context: int, seed: int, spaces: tuple[object, object]
) -> Prediction:
    """One of `imagine_episodes`, of at most `steps` observations in all."""
    obs, actions = _play(agent, config, steps, seed, spaces)
    seed_everything(fold(seed, "latents"))
    predicted = {name: part.cpu().numpy() for name, part in _imagine(agent, obs, actions, context).items()}
    truth = {name: np.asarray(part) for name, part in tree_leaves(tree_map(_array, agent.inputs(obs)), "obs")}
    return Prediction(truth, {name: predicted[name].reshape(truth[name].shape) for name in truth}, context)


def horizon_errors(predictions: Sequence[Prediction]) -> dict[str, Errors]:
    """e_k = √E[(x̂_{c+k} - x_{c+k})²], k = 1 … H, for each part of the observation; c observations were shown.

    The mean is over the entries of a part, and over the episodes that last so long. Vectors are as the networks see
    them, pixels are shares of the brightest, and a wrong choice is an error of 1.
    """
    longest = max(len(part) - each.context for each in predictions for part in each.truth.values())
    if longest < 1:
        shown = predictions[0].context
        raise UserError(
            f"every episode ends within the {shown} observations that the model is shown: show it fewer"
        )
    errors = {}
    for name in predictions[0].truth:
        squares = np.full((2, len(predictions), longest), np.nan)
        for row, each in enumerate(predictions):
            truth, c = each.truth[name], each.context
            for kind, guess in enumerate((each.predicted[name][c:], truth[c - 1 : c])):
                squares[kind, row, : len(truth[c:])] = _mean_square(truth[c:], guess)
        errors[name] = Errors(*np.sqrt(np.nanmean(squares, 1)))
    return errors


def _mean_square(truth: np.ndarray, guess: np.ndarray) -> np.ndarray:
    """[T, ...] → [T]."""
    if truth.ndim >= 3:
        apart = (truth.astype(np.float64) - guess) / (255 if truth.dtype == np.uint8 else 1)
    elif truth.dtype.kind in "iu":
        apart = (truth != guess).astype(np.float64)
    else:
        apart = truth.astype(np.float64) - guess
    return np.square(apart).mean(tuple(range(1, apart.ndim)))


def _array(part: torch.Tensor) -> np.ndarray:
    return part.cpu().numpy()


def _play(
    agent: DreamerPolicy, config: Config, steps: int, seed: int, spaces: tuple[object, object]
) -> tuple[Any, torch.Tensor]:
    """Observations [T, ...] of an episode and the actions taken at them."""
    seed_everything(fold(seed, "actions"))
    environments = make_environments(config, 1, seed, "imagination")
    try:
        refuse_other_spaces(environments.lanes, spaces, config.env_id)
        carry, rows, actions = agent.initial(1), [], []
        for _ in range(steps):
            rows.append(tree_map(lambda part: part[0].copy(), environments.obs))
            acted, carry = agent.act(environments.obs, carry, explore=False)
            actions.append(acted["action"])
            if environments.step(acted["action"]).ended:
                break
    finally:
        environments.close()
    return tree_map(lambda *parts: np.stack(parts), *rows), torch.from_numpy(np.stack(actions))


@torch.no_grad()
def _imagine(
    agent: DreamerPolicy, obs: object, actions: torch.Tensor, context: int
) -> dict[str, torch.Tensor]:
    network, carry, features = agent.network, agent.initial(1), []
    rssm = network.rssm
    for t in range(len(actions)):
        if t < context:
            state = agent.follow(tree_map(lambda part, t=t: part[t : t + 1], obs), carry)
        else:
            noise = torch.rand(1, rssm.num_latents, device=agent.device)
            state = rssm.foresee(State(carry[0], carry[1]), carry[2], noise)
        carry = (*state, network.encode_action(actions[t].to(agent.device)))
        features.append(state.features)
    return network.reconstruction.predict(torch.cat(features))


def save_picture(prediction: Prediction, path: str | Path) -> None:
    """Draw a prediction: vectors as curves over the steps, pictures as rows of truth, model and difference."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError(f"a picture needs matplotlib: {add_extra('plot')}") from None
    pictures = {name: part for name, part in prediction.truth.items() if part.ndim == 4}
    vectors = {name: part for name, part in prediction.truth.items() if name not in pictures}
    figure = Figure(figsize=(10, 2.2 * len(vectors) + 3.2 * len(pictures) + 0.6), layout="constrained")
    panels = np.atleast_1d(figure.subplots(len(prediction.truth), 1))
    for axes, name in zip(panels, (*vectors, *pictures), strict=True):
        truth, predicted = prediction.truth[name], prediction.predicted[name]
        if name in vectors:
            _draw_curves(
                axes, truth.reshape(len(truth), -1), predicted.reshape(len(truth), -1), prediction.context
            )
        else:
            _draw_pictures(axes, truth, predicted, prediction.context)
        axes.set_title(name, fontsize=9, loc="left")
    figure.savefig(path, dpi=90)


def _draw_curves(axes: Any, truth: np.ndarray, predicted: np.ndarray, context: int) -> None:
    for i in range(truth.shape[1]):
        axes.plot(truth[:, i], f"C{i % 10}-", linewidth=1)
        axes.plot(predicted[:, i], f"C{i % 10}--", linewidth=1)
    axes.axvspan(0, context - 1, color="0.9")
    axes.set_xlabel("step; solid: truth, dashed: model, grey: what it was shown", fontsize=8)


def _draw_pictures(axes: Any, truth: np.ndarray, predicted: np.ndarray, context: int) -> None:
    if truth.shape[-1] > truth.shape[1]:  # stacked frames stand first: the newest is shown
        truth, predicted = truth[:, -1:].transpose(0, 2, 3, 1), predicted[:, -1:].transpose(0, 2, 3, 1)
    shown = np.unique(np.linspace(0, len(truth) - 1, min(FRAMES, len(truth))).round().astype(int))
    apart = (predicted[shown].astype(int) - truth[shown]) // 2 + 128
    rows = [
        np.concatenate(list(part), 1) for part in (truth[shown], predicted[shown], apart.astype(np.uint8))
    ]
    picture = np.concatenate(rows, 0)
    axes.imshow(picture if picture.shape[-1] == 3 else picture[..., 0], cmap="gray")
    side = truth.shape[2]
    axes.set_xticks(
        (np.arange(len(shown)) + 0.5) * side, [f"{t}{'' if t >= context else ' seen'}" for t in shown]
    )
    axes.set_yticks((np.arange(3) + 0.5) * truth.shape[1], ["truth", "model", "difference"])
    axes.tick_params(length=0, labelsize=8)
