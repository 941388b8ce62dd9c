"""What an iteration reports, and what a log line makes of several, by hand."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
import torch

from rl_training.runtime.metrics import Metrics, MetricsWindow


def test_names_added_several_times_are_averaged() -> None:
    metrics = Metrics(8, [])
    metrics.add({"loss": torch.tensor(1.0), "kl": 0.5})
    metrics.add({"loss": torch.tensor(4.0)})
    assert metrics.means() == {"loss": 2.5, "kl": 0.5}


def test_a_line_has_the_means_of_the_iterations_since_the_last_one() -> None:
    window = MetricsWindow()
    for loss, episodes in ((1.0, [(0, 10.0, 4)]), (2.0, []), (6.0, [(0, 20.0, 8), (1, 30.0, 9)])):
        metrics = Metrics(8, episodes)
        metrics.add({"loss": loss} | ({"kl": 5.0} if loss == 6.0 else {}))
        window.add(metrics)
    assert window.take() == {
        "episodes": 3,
        "episode_return": 20.0,
        "episode_return_std": pytest.approx((200 / 3) ** 0.5),
        "episode_length": 7.0,
        "loss": 3.0,
        "kl": 5.0,
    }
    window.add(Metrics(8, []))
    line = window.take()
    assert "loss" not in line, "averages begin anew"
    assert (line["episodes"], line["episode_return"]) == (3, 20.0), "episodes do not"


def test_a_line_without_an_episode_says_no_return() -> None:
    assert MetricsWindow().take() == {"episodes": 0}


def test_the_last_hundred_episodes_count() -> None:
    window = MetricsWindow()
    window.add(Metrics(8, [(0, float(number), 1) for number in range(150)]))
    line = window.take()
    assert (line["episodes"], line["episode_return"]) == (150, 99.5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(totals={"loss": 1.0}), "counts of nothing"),
        (dict(totals={"loss": 1.0}, counts={"loss": 0}), "counts of nothing"),
        (dict(totals={"loss": float("nan")}, counts={"loss": 1}), "totals that are none"),
        (dict(episodes=-1), "totals that are none"),
        (dict(recent=deque([(1.0,)], maxlen=100)), "without return and length"),
        (dict(recent=deque([(1.0, float("inf"))], maxlen=100)), "without return and length"),
    ],
)
def test_a_window_that_no_run_has_is_refused(changes: dict[str, Any], message: str) -> None:
    window, state = MetricsWindow(), MetricsWindow().state_dict()
    window.load_state_dict(state)
    with pytest.raises(ValueError, match=message):
        window.load_state_dict(state | changes)
