"""Schedules and controls: hand-computed numbers, every spelling, every refusal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from rl_training import load_config, resume, train
from rl_training.cli import app
from rl_training.errors import ConfigError
from rl_training.registry import ALGORITHMS, shipped_configs, trainer_class
from rl_training.runtime import controls
from rl_training.runtime.controls import (
    CONTROLS,
    Controls,
    resolve,
    resolve_clip_coefficient,
    resolve_entropy_coefficient,
    resolve_num_simulations,
    resolve_temperature,
    split_key,
)
from rl_training.runtime.schedules import KEYS, parse_schedule
from rl_training.tools.forking import fork

RESOLVERS = {
    "ent_coef": resolve_entropy_coefficient,
    "entropy_coef": resolve_entropy_coefficient,
    "entropy_coefficient": resolve_entropy_coefficient,
    "clip_coef": resolve_clip_coefficient,
    "clip_range": resolve_clip_coefficient,
    "clip_coefficient": resolve_clip_coefficient,
    "temperature": resolve_temperature,
    "num_simulations": resolve_num_simulations,
}
FORMS = [dict, lambda mapping: SimpleNamespace(**mapping)]
each_knob = pytest.mark.parametrize(("name", "resolver"), RESOLVERS.items())
each_form = pytest.mark.parametrize("form", FORMS, ids=["mapping", "object"])


def test_every_spelling_of_the_named_resolvers_is_tested() -> None:
    named = [CONTROLS[name] for name in ("ent_coef", "clip_coef", "temperature", "num_simulations")]
    assert set(RESOLVERS) == {spelling for control in named for spelling in control.spellings}


@each_form
@each_knob
def test_fixed_value(name: str, resolver: Any, form: Any) -> None:
    config = form({name: 16, "total_timesteps": 1000})
    assert [resolver(config, step=step) for step in (0, 500, 1000, 9999)] == [16, 16, 16, 16]


@each_form
@each_knob
def test_schedule_from_the_fixed_value_to_zero_or_the_minimum(name: str, resolver: Any, form: Any) -> None:
    config = form({name: 16, f"{name}_schedule": "linear", "total_timesteps": 1000})
    last = 1 if name == "num_simulations" else 0
    assert [resolver(config, step=step) for step in (0, 250, 500, 1000, 5000)] == [16, 12, 8, last, last]


@each_form
@each_knob
def test_schedule_with_its_own_start_and_end(name: str, resolver: Any, form: Any) -> None:
    schedule = {"type": "linear", "start": 40, "end": 10}
    config = form({name: 99, f"{name}_schedule": schedule, "total_timesteps": 1000})
    assert [resolver(config, step=step) for step in (0, 500, 1000, 2000)] == [40, 25, 10, 10]


@each_form
@each_knob
def test_warm_up_ramps_the_value(name: str, resolver: Any, form: Any) -> None:
    config = form({name: 8, f"{name}_warmup_steps": 4, "total_timesteps": 1000})
    assert [resolver(config, step=step) for step in (0, 1, 2, 3, 4, 900)] == [2, 4, 6, 8, 8, 8]


@each_knob
def test_warm_up_multiplies_the_schedule(name: str, resolver: Any) -> None:
    schedule = {"type": "linear", "start": 20, "end": 0, "steps": 20}
    config = {name: 1, f"{name}_schedule": schedule, f"{name}_warmup_steps": 10}
    # step 4: the schedule stands at 16, the ramp at 5/10; step 10: at 10, and the ramp is over
    assert [resolver(config, step=step) for step in (4, 10)] == [8, 10]


@each_form
@each_knob
def test_warm_up_may_begin_where_learning_begins(name: str, resolver: Any, form: Any) -> None:
    warmed = {name: 8, f"{name}_warmup_steps": 4, "total_timesteps": 1000, "learning_starts": 100}
    least = 1 if name == "num_simulations" else 0
    config = form(warmed | {"warmup_begins": "learning"})
    assert [resolver(config, step=step) for step in (0, 99, 100, 101, 102, 103, 104, 900)] == [
        *(least, least),
        *(2, 4, 6, 8, 8, 8),
    ]
    assert resolver(form(warmed | {"warmup_begins": "run"}), step=3) == 8
    # One step of warm-up is none.
    single = form(warmed | {"warmup_begins": "learning", f"{name}_warmup_steps": 1})
    assert resolver(single, step=0) == 8


@pytest.mark.parametrize("algo", ["sac", "dqn", "dreamer", "muzero", "efficientzero", "scalezero"])
def test_the_first_update_has_the_first_step_of_the_warm_up(algo: str) -> None:
    """With warm-ups that begin with the run, an update after 500 of 1000 steps has half of the rate already."""
    env = {"sac": "Pendulum-v1"}.get(algo, "CartPole-v1")
    warmed = dict(algo=algo, env_id=env, learning_starts=500, learning_rate=1.0, total_timesteps=10_000)
    warmed |= dict(learning_rate_warmup_steps=1000)
    rates = {
        begins: [
            Controls.of(load_config(warmed | {"warmup_begins": begins})).at(500).after(steps).learning_rate
            for steps in (0, 499, 999, 2000)
        ]
        for begins in ("run", "learning")
    }
    assert rates == {"run": [0.501, 1, 1, 1], "learning": [0.001, 0.5, 1, 1]}


def test_warm_ups_that_begin_with_learning_are_warned_of() -> None:
    dqn = dict(algo="dqn", env_id="CartPole-v1", total_timesteps=10_000, learning_starts=5_000)
    dqn |= dict(warmup_begins="learning")
    assert controls.idle_knobs(load_config(dqn)) == ["warmup_begins: no effect, because nothing is warmed up"]
    assert controls.idle_knobs(load_config(dqn | dict(learning_rate_warmup_steps=5_000))) == []
    (found,) = controls.idle_knobs(
        load_config(dqn | dict(learning_rate=1.0, learning_rate_warmup_steps=8_000))
    )
    assert found == (
        "learning_rate_warmup_steps: ends after the run of 10,000 steps, so learning_rate never gets above 0.625 "
        "(without the warm-up: 1)"
    )
    with pytest.raises(ConfigError, match="warmup_begins"):
        load_config(dict(algo="ppo", env_id="CartPole-v1", warmup_begins="learning"))


@each_form
@each_knob
def test_refusals(name: str, resolver: Any, form: Any) -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({name: "high"}, "must be a number"),
        ({name: True}, "must be a number"),
        ({name: float("nan")}, "finite"),
        ({name: float("inf")}, "finite"),
        ({name: 1, f"{name}_schedule": "linaer"}, "did you mean linear"),
        ({name: 1, f"{name}_schedule": {"type": "linear", "ned": 0.1}}, "did you mean end"),
        ({name: 1, f"{name}_schedule": {"type": "linear", "end": float("nan")}}, "finite"),
        ({name: 1, f"{name}_warmup_steps": -1}, "at least 0"),
        ({name: 1, f"{name}_warmup_steps": 2.5}, "whole number"),
    ]
    for wrong, message in refused:
        with pytest.raises(ValueError, match=message) as refusal:
            resolver(form({"total_timesteps": 1000, **wrong}), step=0)
        assert name in str(refusal.value)
        assert "\n" not in str(refusal.value)


@each_knob
def test_below_the_minimum(name: str, resolver: Any) -> None:
    negative: list[dict[str, Any]] = [
        {name: -0.1},
        {name: 0.5, f"{name}_schedule": {"type": "linear", "end": -0.1}},
    ]
    for wrong in negative:
        config = {"total_timesteps": 1000, **wrong}
        if name == "num_simulations":
            assert resolver(config, step=1000) == 1
        else:
            with pytest.raises(ValueError, match="must be at least 0"):
                resolver(config, step=0)  # refused from the first step on, not when the schedule gets there


def test_two_spellings_of_one_knob_are_refused() -> None:
    with pytest.raises(ValueError, match="two spellings"):
        resolve_clip_coefficient({"clip_coef": 0.2, "clip_range": 0.2}, step=0)
    with pytest.raises(ValueError, match="two spellings"):
        resolve_entropy_coefficient(SimpleNamespace(ent_coef=0.1, entropy_coef_schedule="linear"), step=0)


def test_whole_numbers_are_rounded_and_clamped() -> None:
    config = {"num_simulations_schedule": {"type": "linear", "start": 10, "end": 0}, "total_timesteps": 100}
    values = [resolve_num_simulations(config, step=step) for step in (0, 14, 16, 88, 99, 100)]
    assert values == [10, 9, 8, 1, 1, 1]
    assert all(type(value) is int for value in values)
    assert resolve_num_simulations({"num_simulations": 12.6}, step=0) == 13
    assert resolve_num_simulations({"num_simulations": 0}, step=0) == 1
    assert resolve_num_simulations({"num_simulations": 50, "num_simulations_warmup_steps": 1000}, step=0) == 1


def test_absent_none_and_missing_total() -> None:
    assert resolve("clip_coef", {}, 0) == 0.2
    assert resolve("target_kl", {}, 0) is None
    assert resolve("clip_coef", {"clip_range": None}, 0) is None
    assert (
        resolve("target_kl", {"target_kl": None, "target_kl_schedule": {"type": "constant", "value": 0.1}}, 0)
        == 0.1
    )
    with pytest.raises(ValueError, match="needs a start"):
        resolve("target_kl", {"target_kl": None, "target_kl_schedule": "linear", "total_timesteps": 10}, 0)
    with pytest.raises(ValueError, match="total_timesteps"):
        resolve("clip_coef", {"clip_coef_schedule": "linear"}, 5)
    with pytest.raises(ValueError, match="did you mean clip_range"):
        resolve("clip_rnage", {}, 0)
    with pytest.raises(ValueError, match="step"):
        resolve("clip_coef", {}, -1)


def test_every_control_has_a_resolver_under_every_spelling() -> None:
    for control in CONTROLS.values():
        for spelling in control.spellings:
            assert getattr(controls, f"resolve_{spelling}")({spelling: 1}, step=3) == 1
    with pytest.raises(AttributeError):
        controls.resolve_nothing  # noqa: B018


def test_no_two_controls_share_a_spelling_or_a_config_key() -> None:
    keys = [spelling + part for c in CONTROLS.values() for spelling in c.spellings for part in controls.PARTS]
    assert len(keys) == len(set(keys))
    for control in CONTROLS.values():
        for spelling in control.spellings:
            for part in controls.PARTS:
                assert split_key(spelling + part) == (control, spelling, part)


def test_defaults_lie_in_their_range() -> None:
    for control in CONTROLS.values():
        assert control.default is None or control.low <= control.default <= control.high
        assert control.description.endswith(".")


LINEAR = {"type": "linear", "start": 1.0, "end": 0.2}
STAIRS = {"type": "step", "start": 1.0, "factor": 0.5, "every": 10}


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (0.3, {0: 0.3, 100: 0.3}),
        ("constant", {0: 0.8, 100: 0.8}),
        ({"type": "constant", "value": 0.3}, {0: 0.3, 100: 0.3}),
        ({"kind": "constant", "start": 0.3}, {0: 0.3, 100: 0.3}),
        ("linear", {0: 0.8, 25: 0.6, 50: 0.4, 100: 0.0, 200: 0.0}),
        ("linear:0.4", {0: 0.8, 50: 0.6, 100: 0.4}),
        (LINEAR, {0: 1.0, 25: 0.8, 75: 0.4, 100: 0.2, 101: 0.2}),
        ({**LINEAR, "steps": 40}, {0: 1.0, 20: 0.6, 40: 0.2, 100: 0.2}),
        ({**LINEAR, "delay": 20}, {0: 1.0, 20: 1.0, 60: 0.6, 100: 0.2}),
        ({**LINEAR, "delay": 20, "steps": 40}, {20: 1.0, 30: 0.8, 60: 0.2, 61: 0.2}),
        ({**LINEAR, "delay": 500}, {0: 1.0, 100: 1.0}),
        ({**LINEAR, "steps": 400}, {100: 0.8}),
        # (1 + cos(pi/4)) / 2 = 0.853553..., (1 + cos(pi/2)) / 2 = 0.5
        ({"type": "cosine", "start": 1.0, "end": 0.0}, {0: 1.0, 25: 0.8535533905932737, 50: 0.5, 100: 0.0}),
        ("cosine:0.4", {0: 0.8, 50: 0.6, 100: 0.4}),
        (
            {"type": "exponential", "start": 1.0, "end": 0.01},
            {0: 1.0, 25: 0.31622776601683794, 50: 0.1, 100: 0.01},
        ),
        ({"type": "polynomial", "start": 1.0, "end": 0.2}, {0: 1.0, 50: 0.4, 75: 0.25, 100: 0.2}),
        ({"type": "polynomial", "start": 1.0, "end": 0.0, "power": 3}, {50: 0.125, 100: 0.0}),
        (STAIRS, {0: 1.0, 9: 1.0, 10: 0.5, 29: 0.25, 30: 0.125, 100: 2.0**-10, 500: 2.0**-10}),
        ({**STAIRS, "steps": 20}, {19: 0.5, 20: 0.25, 90: 0.25}),
        ({**STAIRS, "delay": 5}, {14: 1.0, 15: 0.5}),
        ({"type": "step", "points": [[0, 1.0], [50, 0.5]]}, {0: 1.0, 49: 1.0, 50: 0.5, 100: 0.5}),
        ([[0, 1.0], [50, 0.5], [100, 0.75]], {0: 1.0, 25: 0.75, 50: 0.5, 60: 0.55, 100: 0.75, 200: 0.75}),
        ([[10, 1.0], [20, 0.0]], {0: 1.0, 10: 1.0, 15: 0.5, 20: 0.0}),
        ([(0, 1.0)], {0: 1.0, 100: 1.0}),
        ({"type": "points", "points": [[0, 1], [10, 0]], "delay": 20}, {0: 1.0, 20: 1.0, 25: 0.5, 30: 0.0}),
        ({"type": "piecewise", "points": [[0, 1], [10, 0]]}, {5: 0.5}),
    ],
)
def test_schedules_by_hand(raw: Any, expected: dict[int, float]) -> None:
    schedule = parse_schedule(raw, 0.8)
    assert {step: schedule(step, 100) for step in expected} == pytest.approx(expected)
    low, high = schedule.extremes(100)
    assert all(low <= schedule(step, 100) <= high for step in range(301))


@pytest.mark.parametrize(
    ("raw", "turns", "extremes"),
    [
        (0.5, [], (0.5, 0.5)),
        (LINEAR, [0, 100], (0.2, 1.0)),
        ({**LINEAR, "start": 0.1, "delay": 20, "steps": 40}, [20, 60], (0.1, 0.2)),
        ({**LINEAR, "delay": 30}, [30, 100], (0.2, 1.0)),
        (STAIRS, [0, 100], (2.0**-10, 1.0)),
        ({**STAIRS, "steps": 20, "delay": 5}, [5, 25], (0.25, 1.0)),
        ({**STAIRS, "factor": 2}, [0, 100], (1.0, 2.0**10)),
        ([[10, 1.0], [20, -3.0], [30, 0.5]], [10, 20, 30], (-3.0, 1.0)),
        ({"type": "step", "points": [[0, 1], [10, 0]], "delay": 20}, [20, 30], (0.0, 1.0)),
    ],
)
def test_where_schedules_turn_and_between_what_they_move(
    raw: Any, turns: list[int], extremes: tuple[float, float]
) -> None:
    schedule = parse_schedule(raw, 0.8)
    assert (schedule.turns(100), schedule.extremes(100)) == (turns, extremes)


def test_the_highest_value_of_a_knob_is_that_of_its_schedule_and_0_if_it_is_off() -> None:
    knobs = controls.compile_knobs(Fields())
    assert {name: knob.highest for name, knob in knobs.items()} == {
        "clip_coef": 0.2,
        "ent_coef": 0.01,
        "target_kl": 0.0,
        "update_epochs": 4,
    }


def test_a_run_of_a_single_step_may_have_a_schedule() -> None:
    config = {"clip_coef": 0.2, "clip_coef_schedule": "linear", "total_timesteps": 1}
    assert [resolve("clip_coef", config, step) for step in (0, 1)] == [0.2, 0.0]
    with pytest.raises(ValueError, match="total_timesteps must be at least 1"):
        resolve("clip_coef", config | {"total_timesteps": 0}, 0)


@pytest.mark.parametrize("kind", ["linear", "cosine", "exponential", "polynomial"])
def test_the_end_is_the_very_number_written(kind: str) -> None:
    for start, end in [(0.3, 0.1), (0.1, 0.7), (1e-3, 3e-17)]:
        schedule = parse_schedule({"type": kind, "start": start, "end": end}, None)
        assert [schedule(step, 7) for step in (0, 7, 8, 10**9)] == [start, end, end, end]


@pytest.mark.parametrize(
    ("raw", "message", "key"),
    [
        ("linaer", "unknown schedule type 'linaer'; did you mean linear?", "type"),
        ("linear:much", "'much' after the colon is not a number", None),
        ("step:0.1", "no end to write after the colon", None),
        ("exponential", "must be above 0", "end"),
        ({"type": "warp"}, "there are constant, linear", "type"),
        ({"type": 3}, "unknown schedule type 3", "type"),
        ({"typ": "linear"}, "no 'typ'; did you mean type?", "typ"),
        ({"start": 1.0}, "needs a `type`", None),
        ({"type": "linear", "kind": "linear"}, "`type` or `kind`, not both", "kind"),
        ({"type": "linear", "ned": 1}, "no 'ned'; did you mean end?", "ned"),
        ({"type": "linear", "value": 1}, "a linear schedule has no 'value'", "value"),
        ({"type": "constant", "start": 1, "value": 1}, "another name for start", "value"),
        ({"type": "linear", "steps": 0}, "steps must be at least 1", "steps"),
        ({"type": "linear", "delay": -1}, "delay must be at least 0", "delay"),
        ({"type": "linear", "delay": 2.5}, "delay must be a whole number", "delay"),
        ({"type": "linear", "start": "1e6x"}, "start must be a number", "start"),
        ({"type": "polynomial", "power": 0}, "power must be above 0", "power"),
        ({"type": "step"}, "needs points, or factor and every", None),
        ({"type": "step", "factor": -1, "every": 5}, "factor must be above 0", "factor"),
        ({"type": "step", "points": [[0, 1]], "factor": 2}, "factor does not go with points", "factor"),
        ([], "points must be a list", "points"),
        ([[0, 1], [0, 2]], "rising steps", "points"),
        ([0, 1], "points must be [step, value]", "points"),
        ([[0, "a"]], "must be a number", None),
        (True, "not True", None),
    ],
)
def test_schedules_refused(raw: Any, message: str, key: str | None) -> None:
    with pytest.raises(ValueError) as refusal:
        parse_schedule(raw, 1.0)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert refusal.value.key == key  # type: ignore[attr-defined]


def test_a_staircase_that_leaves_the_range_is_refused_at_once() -> None:
    growing = {"type": "step", "start": 0.5, "factor": 10, "every": 1}
    with pytest.raises(ValueError, match="gamma_schedule must be at most 1"):
        resolve("gamma", {"gamma_schedule": growing, "total_timesteps": 50}, 0)
    with pytest.raises(ValueError, match="without bound"):
        resolve("learning_rate", {"lr_schedule": growing, "total_timesteps": 10**6}, 0)


def test_every_one_letter_slip_in_a_kind_is_put_right() -> None:
    for kind in KEYS:
        for position in range(len(kind)):
            slip = kind[:position] + "z" + kind[position + 1 :]
            with pytest.raises(ValueError, match=f"did you mean {kind}"):
                parse_schedule(slip, 1.0)


class Fields:
    """As much of a config as Controls looks at."""

    model_fields = dict.fromkeys(["env_id", "clip_coef", "ent_coef", "target_kl", "update_epochs"])
    total_timesteps = 1000
    clip_coef = 0.2
    clip_coef_schedule = "linear"
    ent_coef = 0.01
    ent_coef_warmup_steps = 100
    target_kl = None
    update_epochs = 4


def test_controls_over_a_run() -> None:
    compiled = Controls.of(Fields())
    assert compiled.moving == ("clip_coef", "ent_coef")
    knobs = compiled.at(250)
    assert knobs.used == {"clip_coef": pytest.approx(0.15), "ent_coef": 0.01, "update_epochs": 4}
    now = knobs.after(250)
    assert (now.clip_coef, now.ent_coef, now.target_kl, now.update_epochs) == (
        pytest.approx(0.1),
        0.01,
        None,
        4,
    )
    assert knobs.used == {"clip_coef": now.clip_coef, "ent_coef": 0.01, "update_epochs": 4}
    assert compiled.at(0).after(9).ent_coef == pytest.approx(0.001)
    assert compiled.at(900).after(100).clip_coef == 0.0
    for step in (0, 123, 1000, 1500):
        for name, value in compiled.values(step).items():
            assert value == resolve(name, Fields(), step)


def test_an_unknown_knob_names_those_that_exist() -> None:
    now = Controls.of(Fields()).at(0).after(0)
    with pytest.raises(AttributeError, match="no knob 'temperature'; it has clip_coef, ent_coef"):
        now.temperature  # noqa: B018


def test_controls_import_neither_torch_nor_pydantic() -> None:
    script = (
        "import sys, rl_training.runtime.controls; print({'torch', 'numpy', 'pydantic'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


BASE = dict(env_id="CartPole-v1", total_timesteps=10_000, num_envs=2, num_steps=64)
# What a config says -> the key that is warned of, and words of the warning.
IDLE: list[tuple[dict[str, Any], str, str]] = [
    (
        dict(learning_rate_warmup_steps=20_000),
        "learning_rate_warmup_steps",
        "above 0.000125 (without the warm-up: 0.00025)",
    ),
    (
        dict(learning_rate=1e-3, learning_rate_schedule="linear", learning_rate_warmup_steps=20_000),
        "learning_rate_warmup_steps",
        "learning_rate never gets above 0.000125 (without the warm-up: 0.001)",
    ),
    (dict(ent_coef=0, ent_coef_schedule="linear"), "ent_coef_schedule", "ent_coef stays 0"),
    (dict(entropy_coef=0, entropy_coef_warmup_steps=100), "ent_coef_warmup_steps", "ent_coef is 0"),
    (dict(target_kl=None, target_kl_warmup_steps=100), "target_kl_warmup_steps", "target_kl is off"),
    (
        dict(clip_coef_schedule={"type": "linear", "steps": 50_000}),
        "clip_coef_schedule",
        "ends at step 50,000, after the run of 10,000 steps, and only gets to 0.16",
    ),
    (dict(clip_coef_schedule=[[0, 0.3], [50_000, 0.1]]), "clip_coef_schedule", "only gets to 0.26"),
    (
        dict(gamma_schedule={"type": "step", "factor": 0.5, "every": 9_000, "delay": 2_000, "steps": 9_000}),
        "gamma_schedule",
        "stays 0.99",
    ),
    (dict(clip_coef_schedule={"type": "cosine", "delay": 10_000}), "clip_coef_schedule", "stays 0.2"),
    (dict(clip_coef_schedule="linear:0.2"), "clip_coef_schedule", "stays 0.2"),
    (dict(max_grad_norm_warmup_steps=100), "max_grad_norm_warmup_steps", "begins close to 0"),
    (dict(target_kl=0.02, target_kl_warmup_steps=100), "target_kl_warmup_steps", "begins close to 0"),
    (dict(num_steps=5000, learning_rate_schedule="linear"), "learning_rate_schedule", "has learning_rate 0"),
    (dict(num_steps=6000, clip_range_schedule="linear"), "clip_coef_schedule", "has clip_coef 0"),
]


@pytest.mark.parametrize(("changes", "key", "words"), IDLE, ids=[str(changes) for changes, *_ in IDLE])
def test_what_has_no_effect_in_a_run_is_one_warning(changes: dict[str, Any], key: str, words: str) -> None:
    found = controls.idle_knobs(load_config(BASE | {"algo": "ppo"} | changes))
    assert len(found) == 1
    assert found[0].startswith(f"{key}: ")
    assert words in found[0]


@pytest.mark.parametrize(
    "changes",
    [
        dict(learning_rate_schedule="linear", learning_rate_warmup_steps=10_000),
        dict(clip_coef_schedule=0.1),
        dict(ent_coef_schedule={"type": "linear", "start": 0.0, "end": 0.01}),
        dict(target_kl=None, target_kl_schedule={"type": "linear", "start": 0.05, "end": 0.01}),
        dict(gamma_schedule=[[0, 0.9], [5_000, 0.99], [10_000, 0.9]]),  # back where it began
        dict(max_grad_norm_schedule="linear"),
        dict(clip_coef_schedule={"type": "step", "factor": 0.5, "every": 3_000}),
    ],
    ids=str,
)
def test_what_has_an_effect_is_no_warning(changes: dict[str, Any]) -> None:
    assert controls.idle_knobs(load_config(BASE | {"algo": "ppo"} | changes)) == []


def test_a_knob_whose_switch_is_off_is_warned_of() -> None:
    dqn = dict(algo="dqn", env_id="CartPole-v1", importance_exponent_schedule="linear:1")
    assert controls.idle_knobs(load_config(dqn)) == [
        "importance_exponent_schedule: no effect, because prioritized is false"
    ]
    assert controls.idle_knobs(load_config(dqn | {"prioritized": True})) == []
    for name in ALGORITHMS:
        config_class = trainer_class(name).config_class
        for knob, switch in config_class.switched_by.items():
            assert controls.find_control(knob) and knob in config_class.model_fields
            assert config_class.model_fields[switch].annotation in (bool, int)


@pytest.mark.parametrize("name", shipped_configs())
def test_no_shipped_config_has_a_knob_without_effect(name: str) -> None:
    assert controls.idle_knobs(load_config(name)) == []


def test_the_start_of_a_run_a_fork_and_the_schedule_command_warn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    config = BASE | dict(algo="ppo", total_timesteps=256, hidden_sizes=[8], eval_episodes=1)
    expected = "warning: clip_coef_warmup_steps: longer than the run of 256 steps"
    run = train(config | {"clip_coef_warmup_steps": 512}, run_dir="run").run_dir
    assert capsys.readouterr().err.count(expected) == 1
    resume(run)
    assert capsys.readouterr().err == ""
    first = min((run / "checkpoints").iterdir())
    fork(first, ["total_timesteps=512", "max_grad_norm_warmup_steps=300"], run_dir="child")
    (line,) = (
        capsys.readouterr().err.splitlines()
    )  # what the parent warned of is mended, and something else is wrong
    assert line.startswith("warning: max_grad_norm_warmup_steps: ")
    done = CliRunner().invoke(app, ["schedule", "ppo/cartpole", "clip_coef_warmup_steps=1e9"])
    assert done.exit_code == 0
    assert done.stderr.count("warning: clip_coef_warmup_steps: longer than the run") == 1
    assert "warning" not in done.stdout


def test_a_schedule_on_what_is_fixed_names_what_can_move() -> None:
    with pytest.raises(ConfigError) as refusal:
        load_config(BASE | {"algo": "ppo", "num_steps_schedule": "linear"})
    assert "num_steps is fixed for the whole run" in str(refusal.value)
    assert "learning_rate" in str(refusal.value)
    assert "did you mean" not in str(refusal.value)
