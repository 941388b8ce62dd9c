"""What follows from the observation: statistics that begin before the run, and defaults for pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from runs import small_config

from rl_training import load_config, train
from rl_training.cli import app
from rl_training.data.normalization import ObservationNormalizer
from rl_training.data.random_rollout import STEPS, random_observations
from rl_training.envs.making import sees_pictures
from rl_training.envs.spaces import ActionCodec
from rl_training.errors import ConfigError
from rl_training.monitoring.display import PlainDisplay
from rl_training.registry import shipped_configs
from rl_training.runtime.ppo_trainer import PPOConfig
from rl_training.runtime.workflows import make_trainer
from rl_training.settings.picture_defaults import unwritten, with_picture_defaults
from rl_training.trees import tree_leaves

RAM: dict[str, Any] = dict(env_id="probe/Bright-v0", env_kwargs={"shape": [16], "dtype": "uint8"})
PICTURE: dict[str, Any] = dict(env_id="probe/Bright-v0", env_kwargs={"shape": [12, 12, 3], "dtype": "uint8"})
ALL_BUT_DREAMER_AND_SAC = {"ppo", "dqn", "a2c", "trpo", "ppg", "recurrent_ppo", "impala", "appo"}


def test_whole_numbers_are_normalised_and_pictures_bits_and_masks_are_not() -> None:
    space = spaces.Dict(
        {
            "ram": spaces.Box(0, 255, (16,), np.uint8),
            "count": spaces.Box(-5, 5, (2,), np.int64),
            "camera": spaces.Box(0, 255, (12, 12, 3), np.uint8),
            "bits": spaces.MultiBinary(3),
            "action_mask": spaces.Box(0, 1, (4,), np.int8),
        }
    )
    normalizer = ObservationNormalizer(space)
    chance = np.random.default_rng(0)
    rows = {key: np.stack([part.sample() for _ in range(500)]) for key, part in space.spaces.items()}
    rows["ram"] = chance.integers(100, 200, (500, 16)).astype(np.uint8)
    normalizer.update(rows)
    seen = normalizer(rows)
    for key in ("ram", "count"):
        assert seen[key].dtype == np.float32
        np.testing.assert_allclose(seen[key].mean(0), 0, atol=1e-3)
        np.testing.assert_allclose(seen[key].std(0), 1, atol=1e-3)
    for key in ("camera", "bits", "action_mask"):
        assert seen[key] is rows[key]


def test_a_run_saved_when_whole_numbers_passed_goes_on_that_way() -> None:
    old = {"parts": {}, "moments": None}
    normalizer = ObservationNormalizer(spaces.Box(0, 255, (16,), np.uint8))
    normalizer.load_state_dict(old)
    rows = np.full((2, 16), 200, np.uint8)
    assert normalizer(rows) is rows


@pytest.mark.parametrize(
    "name", ["ppo-pendulum", "sac-pendulum", "gumbel-cartpole", "dreamer-cartpole", "appo-cartpole"]
)
def test_the_first_rollout_is_normalised(name: str) -> None:
    trainer = make_trainer(small_config(name, **({"fleet": "inline"} if name == "appo-cartpole" else {})))
    moments = trainer.agent.normalizer.moments
    trainer.close()
    rows = random_observations(trainer.config)
    assert moments.count == pytest.approx(STEPS, abs=1e-3) and len(rows) == STEPS
    np.testing.assert_allclose(moments.mean, rows.mean(0), rtol=1e-4)


def test_scalezero_begins_with_the_statistics_of_each_task_and_gail_with_the_experts() -> None:
    scalezero = make_trainer(small_config("scalezero-classic"))
    assert [round(each.moments.count) for each in scalezero.agent.normalizers] == [STEPS, STEPS]
    gail = make_trainer(small_config("gail-cartpole"))
    assert round(gail.agent.normalizer.moments.count) == len(gail.expert.pairs["action"])


def test_random_play_depends_on_the_seed_alone_and_touches_no_other_randomness() -> None:
    config = small_config("ppo-pendulum")
    np.random.seed(0)
    rows = random_observations(config)
    assert np.random.random() == np.random.RandomState(0).random_sample()
    many = config.model_copy(update={"num_envs": 7, "vectorization": "async"})
    np.testing.assert_array_equal(random_observations(many), rows)
    assert not np.array_equal(random_observations(config.model_copy(update={"seed": 9})), rows)


@pytest.mark.parametrize(
    "env_id", ["probe/Masked-v0", "probe/MaskedTwice-v0", "probe/TwoChoices-v0", "probe/Coins-v0"]
)
def test_random_play_knows_every_kind_of_action(env_id: str) -> None:
    """Masked environments end the test where a forbidden action is taken."""
    rows = random_observations(load_config(dict(algo="ppo", env_id=env_id)), 50)
    assert all(len(column) == 50 for _, column in tree_leaves(rows, "obs"))


def test_ram_is_normalised_in_training() -> None:
    trainer = make_trainer(load_config(dict(algo="ppo", normalize_observations=True, **RAM)))
    obs = trainer.collector.environments.obs
    assert trainer.agent.inputs(obs).abs().max() < 2  # 0 and 255 as they come


@pytest.mark.parametrize("bound", [np.finfo(np.float32).max, 1e12, np.inf])
def test_bounds_that_nobody_meant_do_not_scale_actions(bound: float) -> None:
    codec = ActionCodec(spaces.Box(-bound, bound, (1,), np.float32))
    action = np.array([[0.1], [-3.0]], np.float32)
    np.testing.assert_array_equal(codec.to_env(action), action)
    np.testing.assert_array_equal(codec.to_model(action), action)
    half = ActionCodec(spaces.Box(0.0, bound, (1,), np.float32))
    assert half.to_env(action).tolist() == [[pytest.approx(0.1)], [0.0]]  # clipped only
    wide = ActionCodec(spaces.Box(-1e6, 1e6, (1,), np.float32))
    assert wide.to_env(action)[0, 0] == pytest.approx(1e5)


def test_sac_refuses_actions_without_a_scale() -> None:
    class Wide(gym.Env):
        observation_space = spaces.Box(-1, 1, (1,), np.float32)
        action_space = spaces.Box(-3.4e38, 3.4e38, (1,), np.float32)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return np.zeros(1, np.float32), {}

        def step(self, action: Any) -> Any:
            return np.zeros(1, np.float32), 0.0, True, False, {}

    gym.register("probe/Wide-v0", Wide, max_episode_steps=2)
    with pytest.raises(ConfigError, match="has no bounds"):
        make_trainer(load_config(dict(algo="sac", env_id="probe/Wide-v0")))


@pytest.mark.parametrize("algo", sorted(ALL_BUT_DREAMER_AND_SAC))
def test_a_plain_config_on_pictures_gets_what_users_of_the_nature_cnn_expect(algo: str) -> None:
    plain = load_config(dict(algo=algo, **PICTURE))
    resolved = with_picture_defaults(plain, sees_pictures)
    assert resolved.hidden_sizes == ()
    if algo not in ("trpo", "ppg", "dqn"):
        assert resolved.shared_trunk and resolved.ent_coef == 0.01


def test_what_the_user_wrote_stays() -> None:
    written = PPOConfig(**PICTURE, hidden_sizes=[64, 64], shared_trunk=False, ent_coef=0.0)
    assert with_picture_defaults(written, sees_pictures) is written
    scheduled = PPOConfig(**PICTURE, ent_coef_schedule={"type": "linear", "start": 0.02, "end": 0.0})
    assert with_picture_defaults(scheduled, sees_pictures).ent_coef == 0.0
    for env in (dict(env_id="CartPole-v1"), RAM, dict(env_id="probe/DictAndPicture-v0")):
        plain = PPOConfig(**env)
        assert with_picture_defaults(plain, sees_pictures) is plain
    assert with_picture_defaults(PPOConfig(env_id="ALE/Pong-v5"), sees_pictures).hidden_sizes == ()


def test_shipped_configs_on_atari_write_what_they_need() -> None:
    for name in shipped_configs():
        config = load_config(name)
        if config.env_id.startswith("ALE/"):
            assert not unwritten(config), name


def test_a_run_on_pictures_saves_and_says_what_was_chosen(tmp_path: Path, capsys: Any) -> None:
    settings = dict(
        algo="ppo", total_timesteps=32, num_envs=2, num_steps=8, eval_episodes=1, torch_threads=2, **PICTURE
    )
    result = train(settings, run_dir=tmp_path / "run", display=PlainDisplay())
    saved = load_config(result.run_dir / "config.yaml")
    assert (saved.hidden_sizes, saved.shared_trunk, saved.ent_coef) == ((), True, 0.01)
    told = "defaults for pictures: hidden_sizes: [], shared_trunk: true, ent_coef: 0.01"
    assert told in capsys.readouterr().out.splitlines()[:3]
    assert not unwritten(saved)


@pytest.mark.parametrize(
    ("override", "shown"),
    [
        ("env_id=ALE/Pong-v5", "  ent_coef              0.01\n"),
        ("env_id=CartPole-v1", "  ent_coef              0  (0.01 on pictures)\n"),
        ("ent_coef=0.0", "  ent_coef              0\n"),
    ],
)
def test_schedule_shows_what_a_run_on_pictures_would_use(
    override: str, shown: str, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It makes no environment, which would load whatever its id names."""
    monkeypatch.setattr(gym, "make", None)
    (tmp_path / "plain.yaml").write_text("algo: ppo\nenv_id: CartPole-v1\n")
    with pytest.raises(SystemExit) as ended:
        app(["schedule", str(tmp_path / "plain.yaml"), override], prog_name="rl-training")
    assert not ended.value.code and shown in capsys.readouterr().out


def test_a_config_with_another_seed_keeps_its_defaults_for_pictures():
    """What nobody wrote stays unwritten when a config is read again with a change."""
    plain = load_config({"algo": "ppo", "env_id": "ALE/Pong-v5"})
    again = load_config(plain, seed=2)
    assert again.seed == 2 and again.model_fields_set == plain.model_fields_set | {"seed"}
