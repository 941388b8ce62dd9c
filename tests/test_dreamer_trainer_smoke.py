"""Dreamer trains, obeys its knobs, refuses what makes no sense, and solves what it should."""

from __future__ import annotations

from shutil import which
from typing import Any

import numpy as np
import pytest
import torch
from runs import TINY_DREAMER, knobs_in_training_lines, read_lines

from rl_training import evaluate_checkpoint, load_config, load_policy
from rl_training.errors import ConfigError
from rl_training.runtime.controls import Controls
from rl_training.runtime.dreamer_trainer import DreamerConfig, DreamerTrainer, train_dreamer
from rl_training.state.seeding import seed_everything

TINY: dict[str, Any] = TINY_DREAMER | dict(
    env_id="CartPole-v1",
    total_timesteps=300,
    num_envs=2,
    learning_starts=50,
    buffer_size=2000,
    train_ratio=3.2,  # an update every 10 steps
    imagination_horizon=4,
    eval_episodes=2,
)


def test_the_scheduled_entropy_coefficient_is_in_the_final_metrics(tmp_path: Any) -> None:
    config = DreamerConfig(
        **TINY | dict(total_timesteps=500, log_interval=50),
        entropy_coef_schedule={"type": "linear", "start": 3e-3, "end": 3e-4},
        imagination_horizon_schedule={"type": "linear", "start": 2, "end": 5},
        train_ratio_schedule={"type": "step", "points": [[0, 1.6], [400, 3.2]]},
        learning_rate_warmup_steps=100,
        warmup_begins="learning",
        dynamics_scale_schedule="cosine:0.5",
    )
    result = train_dreamer(config, run_dir=tmp_path / "run")
    assert result.metrics["entropy_coef"] == 3e-4
    assert result.metrics["imagination_horizon"] == 5
    assert result.metrics["dynamics_scale"] == 0.5
    assert np.isfinite(result.metrics["loss"])
    lines = knobs_in_training_lines(result, config)
    rates = [line["learning_rate"] for line in lines if line["step"] in (100, 150, 500)]
    assert rates == pytest.approx([4e-5 * share for share in (0.51, 1, 1)])
    middle = next(line for line in lines if line["step"] == 250)
    assert middle["entropy_coef"] == pytest.approx(3e-3 + 0.5 * (3e-4 - 3e-3))
    assert evaluate_checkpoint(tmp_path / "run", episodes=2, seed=4) == evaluate_checkpoint(
        tmp_path / "run", episodes=2, seed=4
    )
    policy = load_policy(result.checkpoint_path)
    policy.reset()
    assert {policy.act(np.zeros(4, np.float32)) for _ in range(5)} <= {0, 1}


@pytest.mark.parametrize(("env_id", "terminal"), [("DiscreteEnding", 1), ("DiscreteCutOff", 0)])
def test_rows_of_two_episodes_by_hand(env_id: str, terminal: int) -> None:
    """Five steps and what the last one led to, twice: a time limit ends an episode and terminates nothing."""
    trainer = DreamerTrainer(DreamerConfig(**TINY | dict(env_id=f"probe/{env_id}-v0")))
    knobs, steps = Controls.of(trainer.config), trainer.config.steps_per_iteration // 2
    for _ in range(-(-10 // steps)):
        trainer.gather(knobs.at(0))
    columns = {name: trainer.replay.columns[name][1, :12].astype(int).tolist() for name in ROWS}
    assert trainer.replay.columns["obs"][1, :12, 0].tolist() == [0, 1, 2, 3, 4, 0] * 2
    assert columns == ROWS | {"terminal": [0, 0, 0, 0, 0, terminal] * 2}
    assert not trainer.replay.columns["action"][1, [5, 11]].any() and trainer.reward.tolist() == [0, 0]


ROWS = {
    "reward": [0, 1, 1, 1, 1, 1] * 2,
    "first": [1, 0, 0, 0, 0, 0] * 2,
    "last": [0, 0, 0, 0, 0, 1] * 2,
    "terminal": [0] * 12,
}


def test_an_alias_and_a_fixed_value(tmp_path: Any) -> None:
    config = load_config(dict(algo="dreamer", **TINY) | dict(ent_coef=1e-3, lr=1e-4))
    result = train_dreamer(config, run_dir=tmp_path / "run")
    assert result.metrics["entropy_coef"] == 1e-3 and result.metrics["learning_rate"] == 1e-4


def test_as_many_updates_run_and_as_far_is_imagined_as_the_schedules_say(monkeypatch: Any) -> None:
    config = DreamerConfig(
        **TINY | dict(learning_starts=40, total_timesteps=400),
        train_ratio_schedule={"type": "step", "points": [[0, 2.0], [200, 8.0]]},
        imagination_horizon_schedule={"type": "step", "points": [[0, 2], [200, 3]]},
    )
    trainer, horizons = DreamerTrainer(config), []
    network, imagine = trainer.agent.network, trainer.agent.network.imagine
    monkeypatch.setattr(network, "imagine", lambda state, n: (horizons.append(n), imagine(state, n))[1])
    knobs = Controls.of(config)
    for step in range(0, 400, 2):
        trainer.iterate(knobs.at(step))
    # An update replays 32 steps: there is one every 16 steps from 40 to 200, and then one every 4.
    assert (horizons.count(2), horizons.count(3)) == (10, 50)


@pytest.mark.parametrize(
    "env_id", ["Pendulum-v1", "probe/DictAndPicture-v0", "probe/TwoChoices-v0", "probe/Coins-v0"]
)
def test_other_spaces(env_id: str, tmp_path: Any) -> None:
    result = train_dreamer(DreamerConfig(**TINY | dict(env_id=env_id, cnn_depth=2)), run_dir=tmp_path / "run")
    lines = [line for line in read_lines(result) if "policy_loss" in line]
    assert lines and all(np.isfinite(list(line.values())).all() for line in lines)


def updated(**changes: Any) -> tuple[DreamerTrainer, Any]:
    """A trainer with something to learn from, and its knobs."""
    config = DreamerConfig(**TINY | dict(learning_starts=10**6) | changes)
    seed_everything(1)
    trainer, knobs = DreamerTrainer(config), Controls.of(config)
    for step in range(0, 120, 2):
        trainer.iterate(knobs.at(step))
    return trainer, knobs.at(120).after(0)


def test_who_learns_from_what() -> None:
    """Imagination moves the actor and the critic alone; the replayed values reach the world model too."""
    trainer, now = updated()
    network = trainer.agent.network
    for head in (network.critic, network.reward):  # zeros would let nothing through
        torch.nn.init.normal_(head.output.weight)

    def reached(loss: torch.Tensor) -> set[str]:
        for parameter in network.parameters():
            parameter.grad.zero_()
        loss.backward(retain_graph=True)
        parts = [(name.split(".")[0], parameter) for name, parameter in network.named_parameters()]
        return {name for name, parameter in parts if parameter.grad.any()}

    batch = trainer.draw()
    state, parts = trainer.world_model_losses(batch, now)
    imagined, returns = trainer.imagination_losses(state, now)
    assert reached(imagined["policy_loss"]) == {"actor"}
    assert reached(imagined["value_loss"]) == {"critic"}
    assert reached(trainer.replay_value_loss(state, batch, returns, now)) == {
        "critic",
        "rssm",
        "reconstruction",
    }
    assert reached(parts["reward_loss"]) == {"reward", "rssm", "reconstruction"}
    assert reached(parts["dynamics_loss"]) <= {"rssm", "reconstruction"}


def test_the_slow_critic_follows_at_its_rate_and_latents_are_refreshed_only_if_asked() -> None:
    for refresh in (False, True):
        trainer, now = updated(refresh_latents=refresh)
        before, latents = trainer.slow_weights.clone(), trainer.replay.columns["deter"].copy()
        trainer.update(now)
        after = torch.cat([weight.detach().flatten() for weight in trainer.critic_weights])
        torch.testing.assert_close(trainer.slow_weights, before + 0.02 * (after - before))
        assert np.array_equal(latents, trainer.replay.columns["deter"]) != refresh


def test_compiled_steps_are_the_steps(monkeypatch: Any) -> None:
    """That compiling is asked for and its result is what is run; torch's compiler itself takes minutes."""
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda step, **_: (compiled.append(step), step)[1])
    trainer, now = updated(compile=True)
    assert [step.__name__ for step in compiled] == ["see", "foresee"]
    assert np.isfinite(trainer.update(now)["loss"])


@pytest.mark.slow
@pytest.mark.skipif(which("g++") is None, reason="torch.compile needs a C++ compiler: g++ is not installed")
def test_torchs_compiler_computes_the_same_updates() -> None:
    """Three updates each from equal weights and batches, with `see` and `foresee` through torch.compile."""
    told = []
    for compiled in (False, True):
        trainer, now = updated(compile=compiled, compiled_updates=False)
        seed_everything(7)
        told.append([trainer.update(now) for _ in range(3)])
        assert (trainer.agent.network.rssm.compiled is not None) == compiled
    for plain, fast in zip(*told, strict=True):
        assert fast == pytest.approx(plain, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(deter_size=18), "deter_size must be a multiple of blocks"),
        (dict(hidden_sizes=[32]), "hidden_sizes has no effect"),
        (dict(normalize_rewards=True), "normalize_rewards must be false"),
        (dict(size="2M"), "size must be"),
        (dict(imagination_horizon=0), "at least 1"),
        (dict(entropy_coef=-1.0), "at least 0"),
        (dict(entropy_coef=0.1, ent_coef=0.1), "two spellings"),
        (dict(buffer_size=20), "need a buffer_size of at least"),
        (dict(clip_coef=0.1), "dreamer has no knob clip_coef"),
        (dict(num_classes=1), "at least 2"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DreamerTrainer(DreamerConfig(**TINY | changes))
