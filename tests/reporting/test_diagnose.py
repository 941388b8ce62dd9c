"""What is wrong with a run: planted faults are named, healthy runs are left alone, and changes are proven."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv
from runs import Command
from sick_runs import HEALTHY, LOGS, PAGE, SICK, page, seen, trained
from test_cli import cli
from test_imagination import SHORT

from rl_training import train
from rl_training.networks.encoders import make_inputs
from rl_training.reporting.diagnosis import RULES, Seen, diagnose, unseen
from rl_training.runtime.dreamer_trainer import DreamerConfig
from rl_training.runtime.workflows import load_agent
from rl_training.state import checkpoints
from rl_training.tools import probing
from rl_training.tools.probing import CONTEXT, End, Played, probed
from rl_training.tools.proving import prove
from rl_training.trees import tree_map

# The planted faults that no rule names, as the page says.
MISSED = {"ppo, learning rate 0.03, 20 epochs", "a2c, learning rate 0.3", "sac, no target network"}
MISSED |= {f"{name}, 16 updates a step from all steps" for name in ("dqn", "sac")}
# What is named in healthy runs, as the page explains.
ALARMS = {
    "bc/cartpole": ["normaliser saturated"],
    "trpo/lunarlander": ["evaluation far from training"],
    "a2c/halfcheetah": ["entropy never falls"],
}
# Presets with a row of results that is younger than the corpus, and why they are not in it yet.
YOUNGER = "its row is younger than the corpus"
LEFT_OUT: dict[str, str] = {
    "appo/cartpole": YOUNGER,
    "appo/minatar_breakout": YOUNGER,
    "appo/minatar_space_invaders": YOUNGER,
    "dqn/acrobot": YOUNGER,
    "dqn/lunarlander": YOUNGER,
    "dqn/minatar_breakout": YOUNGER,
    "dqn/minatar_breakout_200k": YOUNGER,
    "dreamer/cartpole": YOUNGER,
    "dreamer/cartpole_pixels": YOUNGER,
    "dreamer/pendulum": YOUNGER,
    "dreamer/dm_cartpole_swingup": YOUNGER,
    "dreamer/minatar_breakout": YOUNGER,
    "efficientzero/acrobot": YOUNGER,
    "efficientzero/cartpole": YOUNGER,
    "efficientzero/minatar_breakout": YOUNGER,
    "gail/pendulum": YOUNGER,
    "gumbel_muzero/acrobot": YOUNGER,
    "gumbel_muzero/cartpole": YOUNGER,
    "gumbel_muzero/minatar_breakout": YOUNGER,
    "gumbel_muzero/pendulum": YOUNGER,
    "impala/cartpole": YOUNGER,
    "impala/cartpole_no_velocity": YOUNGER,
    "impala/minatar_breakout": YOUNGER,
    "impala/minatar_space_invaders": YOUNGER,
    "muzero/acrobot": YOUNGER,
    "muzero/cartpole": YOUNGER,
    "ppg/cartpole": YOUNGER,
    "ppg/minatar_breakout": YOUNGER,
    "ppo/halfcheetah_tianshou": YOUNGER,
    "ppo/minatar_asterix": YOUNGER,
    "ppo/minatar_breakout": YOUNGER,
    "ppo/minatar_breakout_100k": YOUNGER,
    "ppo/minatar_breakout_200k": YOUNGER,
    "ppo/minatar_freeway": YOUNGER,
    "ppo/minatar_space_invaders": YOUNGER,
    "ppo/pong": YOUNGER,
    "ppo/repeat_previous": YOUNGER,
    "recurrent_ppo/repeat_previous": YOUNGER,
    "sac/halfcheetah": YOUNGER,
    "sac/hopper": YOUNGER,
    "sac/pendulum": YOUNGER,
    "scalezero/classic_acrobot": YOUNGER,
    "scalezero/classic_cartpole": YOUNGER,
    "scalezero/classic_frozenlake": YOUNGER,
}


@pytest.fixture(scope="module")
def runs() -> dict[str, Any]:
    return json.loads(LOGS.read_text())


@pytest.mark.parametrize("name", SICK)
def test_a_planted_fault_is_named(name: str, runs: dict[str, Any]) -> None:
    named = [finding.rule for finding in diagnose(seen(runs[name]))]
    assert (SICK[name].rule in named) == (name not in MISSED)


@pytest.mark.parametrize("name", HEALTHY)
def test_in_a_healthy_run_only_what_the_page_explains_is_named(name: str, runs: dict[str, Any]) -> None:
    assert [finding.rule for finding in diagnose(seen(runs[name]))] == ALARMS.get(name, [])


def test_healthy_runs_are_the_presets_with_a_row_of_results() -> None:
    rows = {f"{path.parent.name}/{path.stem}" for path in (PAGE.parents[1] / "results").glob("*/*.json")}
    assert {name for name in HEALTHY if "/" in name} == rows - LEFT_OUT.keys() and rows >= LEFT_OUT.keys()


def test_every_rule_has_a_fault_that_is_planted_for_it() -> None:
    assert {planted.rule for planted in SICK.values()} == {rule.name for rule in RULES} - {"returns fell"}
    assert len(SICK) >= 20


def test_what_is_not_logged_is_not_spoken_of() -> None:
    nothing = Seen({"total_timesteps": 1000}, {})
    assert diagnose(nothing) == [] and unseen(nothing) == [rule.name for rule in RULES]
    steps = np.arange(1.0, 31) * 100
    falling = Seen({}, {"episode_return": (steps, -steps), "episode_return_std": (steps, np.ones(30))})
    assert [finding.rule for finding in diagnose(falling)] == ["returns fell"]
    few = Seen({}, {name: (step[:3], values[:3]) for name, (step, values) in falling.curves.items()})
    assert diagnose(few) == []


def test_returns_of_games_of_two_say_nothing() -> None:
    steps = np.arange(1.0, 31) * 100
    one = (steps[-1:], np.ones(1))
    falling: dict[str, Any] = {"episode_return": (steps, -steps), "episode_return_std": (steps, np.ones(30))}
    falling |= {"play/return": one, "play/random_return": (steps[-1:], np.full(1, 9.0))}
    falling |= {"play/random_return_std": one, "play/return_error": (steps[-1:], np.zeros(1))}
    apart = falling | {"episode_return": (steps, steps), "eval/mean_return": (steps, -steps)}
    episodes = {"episodes": (steps, steps), "episode_return_std": (steps, np.zeros(30))}
    decided = episodes | {"episode_return": (steps, np.ones(30))}
    found = {
        "return below random play": falling,
        "evaluation far from training": apart,
        "returns fell": {name: falling[name] for name in ("episode_return", "episode_return_std")},
        "reward never varies": decided,
    }
    for name, curves in found.items():
        assert [finding.rule for finding in diagnose(Seen({"two_players": False}, curves))] == [name]
        assert diagnose(Seen({"two_players": True}, curves)) == []
        assert name in unseen(Seen({"two_players": True}, curves))


def test_a_world_model_is_not_judged_where_every_episode_ends_before_it_imagines(tmp_path: Path) -> None:
    settings = SHORT | dict(max_episode_steps=CONTEXT)
    train(DreamerConfig(env_id="Pendulum-v1", **settings), run_dir=tmp_path / "run")
    found = probed(Seen({}, {}), tmp_path / "run")
    assert found.played("return") is not None and found.played("model_error") is None
    assert "world model's error" in unseen(found)


def test_updates_are_without_effect_by_how_far_all_of_them_lead() -> None:
    steps = np.arange(1.0, 31) * 1000
    config = {"num_envs": 4, "num_steps": 250, "learning_rate": 1e-5}  # an update in each line

    def named(divergence: float, returns: np.ndarray, **settings: int) -> list[Any]:
        flat = {"approx_kl": np.full(30, divergence), "episode_return": returns}
        flat |= {"episode_return_std": np.ones(30)}
        curves = {name: (steps, values) for name, values in flat.items()}
        return diagnose(Seen(config | settings, curves))

    still, rising = np.full(30, 5.0), steps
    (found,) = named(1e-4, still)  # (30 · 0.01)² = 0.09
    assert found.rule == "updates without effect" and "0.09 nats" in found.said and "30 updates" in found.said
    assert found.changes == {
        "learning_rate": 1e-4,
        "learning_rate_schedule": None,
    }  # tenfold, for a KL of 0.01
    assert named(1.2e-4, still) == [] and named(1e-4, rising) == []
    assert named(1e-4, still, num_steps=125) == []  # twice as many updates lead twice as far


FLAT = {"episode_return": np.full(30, 5.0), "episode_return_std": np.ones(30)}


def of_update(name: str, divergence: float, returns: float = 5.0, **settings: Any) -> Seen:
    """A run whose returns stay as they are, with an update in each line."""
    steps, config = np.arange(1.0, 31) * 1000, {"num_envs": 4, "num_steps": 250}
    flat = FLAT | {name: np.full(30, divergence), "episode_return": np.full(30, returns)}
    return Seen(config | settings, {name: (steps, values) for name, values in flat.items()})


def test_a_limit_of_the_kl_is_widened_only_where_it_is_reached_and_small() -> None:
    def proposed(seen: Seen) -> tuple[str, dict[str, Any]]:
        (found,) = diagnose(seen)
        assert found.rule == "updates without effect"
        return found.advice, found.changes

    wider = {"target_kl": 0.01, "target_kl_schedule": None}
    assert proposed(of_update("kl", 8e-8, target_kl=1e-7, learning_rate=1e-3))[1] == wider
    # APPO and PPO stop at it: there too it is what holds the policy back, if it is reached.
    assert proposed(of_update("approx_kl", 1e-7, target_kl=1e-7, learning_rate=1e-3))[1] == wider
    raised = proposed(of_update("approx_kl", 1e-6, target_kl=0.05, learning_rate=1e-5))
    assert raised == ("raise the learning rate", {"learning_rate": 1e-3, "learning_rate_schedule": None})
    # TRPO's learning rate moves no policy.
    searched = of_update("kl", 1e-6, target_kl=0.05, learning_rate=1e-5)
    fractions = {"step_fraction": (np.arange(1.0, 31) * 1000, np.zeros(30))}
    advice, changes = proposed(searched._replace(curves={**searched.curves, **fractions}))
    assert changes == {} and "not the limit of the KL" in advice


def test_a_raised_learning_rate_is_bounded_and_a_usual_one_is_not_raised() -> None:
    (small,) = diagnose(of_update("approx_kl", 1e-10, learning_rate=9e-5))
    assert small.changes == {"learning_rate": 1e-2, "learning_rate_schedule": None}
    for rate in (1e-4, 3e-4):
        (usual,) = diagnose(of_update("approx_kl", 1e-10, learning_rate=rate))
        assert usual.changes == {} and "not the learning rate" in usual.advice


def test_a_policy_that_was_good_from_the_start_need_not_move() -> None:
    good = of_update("approx_kl", 1e-10, returns=500.0, learning_rate=1e-5)
    at = np.array([30_000])
    numbers = {"return": 500.0, "random_return": 22.0, "random_return_std": 11.0, "return_error": 2.0}
    played = {f"play/{name}": (at, np.array([value])) for name, value in numbers.items()}
    assert diagnose(good._replace(curves={**good.curves, **played})) == []
    bad = played | {"play/return": (at, np.array([22.0]))}
    assert len(diagnose(good._replace(curves={**good.curves, **bad}))) == 1


def test_of_two_kinds_of_kl_the_first_counts() -> None:
    both = of_update("approx_kl", 1e-8, learning_rate=1e-5)
    steps = both.curves["approx_kl"][0]
    for other in (0.02, 0.2):
        (found,) = diagnose(both._replace(curves={**both.curves, "kl": (steps, np.full(30, other))}))
        assert found.rule == "updates without effect" and found.said.startswith("approx_kl")


def test_a_search_of_few_simulations_or_of_unlearned_values_is_not_blamed() -> None:
    steps = np.arange(1.0, 31) * 100

    def named(actions: int, simulations: int, last_loss: float) -> list[str]:
        curves = {"visit_entropy": np.full(30, np.log(actions)), "num_simulations": np.full(30, simulations)}
        curves |= {"value_loss": np.linspace(6.0, last_loss, 30)}
        return [each.rule for each in diagnose(Seen({}, {name: (steps, v) for name, v in curves.items()}))]

    assert named(2, 8, 1.0) == named(16, 64, 1.0) == ["search ignores values"]
    assert named(16, 25, 1.0) == named(2, 8, 6.0) == []


def test_an_entropy_is_given_a_thousand_updates_to_fall() -> None:
    def named(steps: np.ndarray) -> list[str]:
        curves = {
            "entropy": np.full(30, 1.4),
            "ent_coef": np.full(30, 0.005),
            "replay_ratio": np.full(30, 0.5),
        }
        return [each.rule for each in diagnose(Seen({}, {name: (steps, v) for name, v in curves.items()}))]

    assert named(np.arange(1.0, 31) * 16) == [] and named(np.arange(1.0, 31) * 100) == ["entropy never falls"]


def test_many_updates_are_too_many_only_from_few_steps_and_where_chance_does_as_well() -> None:
    steps = np.arange(1.0, 31) * 100
    curves = {"replay_ratio": (steps, np.full(30, 16.0)), "episode_return": (steps, np.full(30, 5.0))}
    curves |= {"episode_return_std": (steps, np.ones(30))}
    played = dict(zip(("play/random_return", "play/random_return_std"), (20.0, 10.0), strict=True))

    def named(own: float | None, **settings: int) -> list[Any]:
        numbers = {} if own is None else played | {"play/return": own}
        known = {name: (steps[-1:], np.array([value])) for name, value in numbers.items()}
        return diagnose(Seen({"batch_size": 32} | settings, curves | known))

    (found,) = named(29.0, buffer_size=100)
    assert found.rule == "too many updates" and "drawn 512 times from a replay of 100" in found.said
    assert found.changes["replay_ratio"] == 1.0 and found.changes["buffer_size"] == 3000
    assert named(31.0, buffer_size=100) == []
    assert [each.rule for each in named(None, buffer_size=100)] == ["too many updates"]
    assert named(29.0, buffer_size=300) == named(29.0) == []


def test_dead_units_of_dreamer_are_those_whose_inputs_vary(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(DreamerConfig(env_id="Pendulum-v1", **SHORT), run_dir=run)
    agent = load_agent(checkpoints.listed(run / "checkpoints")[-1], "last")[1]
    obs = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
    assert probing._units_and_inputs(agent, obs)["dead_units"][0] == 0
    layer = agent.network.critic.layers[0]
    with torch.no_grad():
        layer.scale[:] = 0.0
    share, where = probing._units_and_inputs(agent, obs)["dead_units"]
    assert share == 1.0 and "network.critic.layers.0" in where


def test_the_page_has_the_tables() -> None:
    assert page() == PAGE.read_text("utf-8")


def test_a_sick_run_is_named_by_the_command_and_the_change_is_proven(tmp_path: Path) -> None:
    name = "ppo, learning rate 1e-7"
    small = SICK[name]._replace(settings={**SICK[name].settings, "total_timesteps": 10_000})
    trained(small, tmp_path / "run", seed=12)
    told = Command("diagnose", tmp_path / "run", "--prove", "--seeds", "2", "--steps", "1024", "--json")
    out, _ = told.communicate()
    said = json.loads(out.splitlines()[-1])
    (finding,) = said["findings"]
    assert finding["rule"] == "updates without effect" and 1e-3 < finding["changes"]["learning_rate"] < 1e-2
    assert said["not_played"] == "" and said["measured"]["play/random_return"] > 0
    assert "dead units" not in said["unseen"] and "normaliser saturated" in said["unseen"]
    # It is seen from the first line on, so that it is proven from step 0; the command does what Python does.
    tried = prove(tmp_path / "run", finding["changes"], step=finding["step"], seeds=2, steps=1024)
    assert (
        json.loads(json.dumps(tried._asdict() | {"improvement": tried.improvement._asdict()}))
        == said["proof"]
    )
    assert tried.step == 0 and tried.without != tried.with_change
    proof = prove(tmp_path / "run", {"learning_rate": 1e-3}, step=8_000, seeds=2, steps=2_000, episodes=2)
    # The fork begins at a step between checkpoints, a tenth of the run before the given one.
    assert proof.step == 8_000 - 1_000 and proof.steps == 2_000
    assert len(proof.without) == len(proof.with_change) == 2
    assert 0 <= proof.improvement.low <= proof.improvement.value <= proof.improvement.high <= 1
    again = prove(tmp_path / "run", {"learning_rate": 1e-3}, step=8_000, seeds=2, steps=2_000, episodes=2)
    assert (again.without, again.with_change) == (proof.without, proof.with_change)


def test_what_is_measured_is_the_same_again_and_costs_the_run_nothing(trained_run: Any) -> None:
    run = trained_run("ppo-pendulum")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    first, again = (probed(Seen({}, {}), run) for _ in range(2))
    assert first.where == again.where and first.curves.keys() == again.curves.keys()
    assert all(first.played(name[5:]) == again.played(name[5:]) for name in first.curves)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    assert first.played_at == 3000 and first.played("longest_episode") == 200
    assert first.played("terminated_at_longest") == 0  # they are truncated
    assert (
        first.played("at_the_clip") == 0 and 0.5 < first.played("observation_scale") < 2
    )  # by its normaliser


def test_dead_and_saturated_units_and_large_inputs_are_found_where_they_are() -> None:
    _, agent, _ = load_agent("zoo:ppo/cartpole", "last")
    obs = np.random.default_rng(1).normal(size=(64, 4)).astype(np.float32) * np.float32([1, 1, 300, 1])
    layers = agent.network.actor_encoder[1]
    with torch.no_grad():
        layers[2].weight[:16] = 0.0  # constant
        layers[2].bias[16:48] = 1e6  # at one end of tanh
    found = probing._units_and_inputs(agent, obs)
    share, place = found["dead_units"]
    assert share >= 0.75 and place == f"{round(share * 64)} of 64 units of network.actor_encoder.1.3"
    scale, place = found["observation_scale"]
    assert scale == pytest.approx(np.sqrt((obs[:, 2] ** 2).mean()), rel=1e-5)
    assert place == "dimension 2 of observation"
    assert not any(module._forward_hooks for module in agent.network.modules())


def test_a_large_input_is_found_in_its_part_of_the_observation() -> None:
    space = spaces.Dict(
        {"arm": spaces.Box(-1, 1, (3,)), "legs": spaces.Dict({"left": spaces.Box(-1, 1, (2,))})}
    )
    agent: Any = SimpleNamespace(network=make_inputs(space, "nature"), initial=lambda count: ())
    agent.act = lambda obs, carry, explore: (agent.network(tree_map(torch.as_tensor, obs)), carry)
    obs = {"arm": np.ones((4, 3), np.float32), "legs": {"left": np.float32([[2, 500]] * 4)}}
    found = probing._units_and_inputs(agent, obs)
    assert found["observation_scale"] == (500.0, "dimension 1 of observation/legs/left")


def test_what_was_played_is_of_the_checkpoint_that_was_loaded(trained_run: Any, tmp_path: Path) -> None:
    run = Path(shutil.copytree(trained_run("ppo-pendulum"), tmp_path / "run"))
    *_, before, last = checkpoints.listed(run / "checkpoints")
    weights = last / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])  # the state beside it can still be read
    assert probed(Seen({}, {}), run).played_at == checkpoints.step_of(before) < checkpoints.step_of(last)


def test_what_is_seen_by_playing_is_told_of_its_step_and_tried_from_the_start() -> None:
    at, steps = np.array([7_000]), np.arange(1.0, 31) * 100
    numbers = {
        "observation_scale": 1e3,
        "model_error": 2.0,
        "terminated_at_longest": 1,
        "longest_episode": 50,
    }
    numbers |= {"return": -9.0, "random_return": 9.0, "random_return_std": 1.0, "return_error": 0.1}
    played = {f"play/{name}": (at, np.array([value])) for name, value in numbers.items()}
    found = diagnose(Seen({}, played))
    assert len(found) == 4 and {(finding.step, finding.try_from) for finding in found} == {(7_000, 0)}
    (clipped,) = diagnose(Seen({}, {"clip_fraction": (steps, np.where(steps > 900, 0.9, 0.1))}))
    assert clipped.step == clipped.try_from == 1_000


def test_the_scale_of_values_is_that_of_returns() -> None:
    """Values that are wrong by 2 000 are right where returns are 100 000, and wrong where returns are 3 000."""
    steps = np.arange(1.0, 31) * 100
    for size, named in ((1e5, []), (3e3, ["value scale"])):
        returns = size * (1 + steps / 1e5)
        curves = {"value_loss": (steps, np.full(30, 2e6)), "episode_return": (steps, returns)}
        assert [finding.rule for finding in diagnose(Seen({}, curves))] == named
    few = {"value_loss": (steps, np.full(30, 2.0)), "episode_return": (steps, np.full(30, 3.0))}
    assert diagnose(Seen({}, few)) == []  # wrong too, but not by its scale


def test_a_proof_evaluates_both_arms_with_episodes_of_the_same_length(trained_run: Any) -> None:
    change = {"max_episode_steps": 20}
    proof = prove(trained_run("ppo-pendulum"), change, step=0, seeds=2, steps=256, episodes=2)
    # A step costs 16.3 at most: in 20 of them no less than -326 can be had, and in 200 this policy has less.
    assert max(proof.without) < -400 and max(proof.with_change) < -400


def test_a_goal_is_no_limit_of_time() -> None:
    def limits(*ends: End) -> dict[str, float]:
        return probing._limits(Played(list(ends), None))

    assert limits(*(End(0.0, 20, True, bytes([n])) for n in range(8)))["terminated_at_longest"] == 1
    assert limits(*(End(0.0, 20, True, b"goal") for _ in range(8)))["terminated_at_longest"] == 1 / 8
    assert limits(*(End(0.0, 20, False, bytes([n])) for n in range(8)))["terminated_at_longest"] == 0
    assert limits(*(End(0.0, 20 + n, True, bytes([n])) for n in range(8)))["terminated_at_longest"] == 1 / 8
    assert limits() == {}


def test_a_run_that_cannot_be_played_is_told_from_its_log(tmp_path: Path) -> None:
    small = SICK["ppo, learning rate 1e-7"]
    small = small._replace(
        settings={**small.settings, "total_timesteps": 5_120, "max_episode_steps": 500}, env=CartPoleEnv
    )
    trained(small, tmp_path / "run", seed=12)
    told = cli("diagnose", str(tmp_path / "run"))
    assert told.exit_code == 0, told.output
    assert "updates without effect: " in told.stdout and "not played: " in told.stdout
    assert told.stderr == (
        "playing 32 episodes of random actions and 16 of the newest policy (--no-play: the log alone)\n"
    )
    log_alone = cli("diagnose", str(tmp_path / "run"), "--no-play")
    assert "not played" not in log_alone.stdout and log_alone.stderr == ""
    assert "dead units" in log_alone.stdout.splitlines()[-1]


def test_a_proposed_learning_rate_is_a_share_of_the_largest_that_the_run_had() -> None:
    """Not of the first: a warm-up begins near 0, and a schedule may jump."""
    jumped = seen(json.loads(LOGS.read_text())["ppo, learning rate 1 from step 20 000 on"])
    (collapsed,) = (each for each in diagnose(jumped) if each.rule == "entropy collapsed")
    assert collapsed.changes == {"learning_rate": 0.01, "learning_rate_schedule": None}
