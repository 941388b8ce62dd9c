"""Pictures that no Atari network fits: the grids of MiniGrid and MinAtar, bits, floats, boards of 3 × 3."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from runs import TINY_DREAMER, small_config

from rl_training import train
from rl_training.data.normalization import ObservationNormalizer
from rl_training.monitoring.display import PlainDisplay
from rl_training.networks.encoders import (
    Flat,
    NatureCNN,
    SmallCNN,
    brightest,
    encoder_lines,
    has_channels_last,
    is_image,
    make_encoder,
    make_inputs,
    picture_shape,
    without_small_pictures,
)
from rl_training.runtime.controls import Controls
from rl_training.runtime.trainer import default_threads
from rl_training.runtime.workflows import evaluate_checkpoint, make_trainer, saved_config
from rl_training.settings.loading import load_run_config

MINIGRID: dict[str, Any] = dict(shape=[7, 7, 3], dtype="uint8")
MINATAR: dict[str, Any] = dict(shape=[10, 10, 4], dtype="bool")
BOARD: dict[str, Any] = dict(shape=[2, 3, 3], dtype="float32")

SOON: dict[str, Any] = dict(learning_starts=8, replay_ratio=0.1, batch_size=4, train_frequency=8)
PLANS: dict[str, Any] = SOON | dict(
    num_simulations=2, num_simulations_schedule=None, temperature_schedule=None, normalize_observations=False
)
ON_POLICY: dict[str, Any] = dict(num_steps=8, num_envs=2, num_minibatches=2, update_epochs=1)
LEARNERS: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo": ("ppo-cartpole", ON_POLICY),
    "a2c": ("a2c-cartpole", dict(num_steps=8, num_envs=2)),
    "trpo": ("trpo-pendulum", ON_POLICY),
    "ppg": ("ppg-cartpole", dict(num_steps=8, num_envs=4, policy_iterations=1)),
    "recurrent_ppo": ("recurrent-masked", ON_POLICY),
    "impala": ("impala-memory", dict(num_steps=8)),
    "appo": ("appo-cartpole", dict(num_steps=8, fleet="inline")),
    "dqn": ("dqn-cartpole", SOON),
    "sac": ("sac-pendulum", SOON | dict(env_id="probe/BrightTarget-v0")),
    "muzero": ("muzero-cartpole", PLANS),
    "gumbel_muzero": ("gumbel-cartpole", PLANS),
    "efficientzero": ("efficientzero-cartpole", PLANS),
    "dreamer": (
        "dreamer-cartpole",
        TINY_DREAMER | dict(learning_starts=8, train_ratio=1.0, batch_size=2, train_frequency=16),
    ),
}


@pytest.mark.parametrize("kind", [MINIGRID, MINATAR, BOARD], ids=["minigrid", "minatar", "board"])
@pytest.mark.parametrize("name", LEARNERS)
def test_every_algorithm_learns_from_small_pictures(name: str, kind: dict[str, Any]) -> None:
    run, changes = LEARNERS[name]
    config = small_config(run, **{"env_id": "probe/Bright-v0"} | changes, env_kwargs=kind)
    trainer = make_trainer(config)
    for step in range(2):
        trainer.iterate(Controls.of(config).at(step * config.steps_per_iteration))
    trainer.close()
    (line,) = trainer.encoders()
    seen = "×".join(map(str, kind["shape"]))
    painted = name == "dreamer" and kind is not BOARD
    title = {"dreamer": "CNN" if painted else "MLP"} | dict.fromkeys(
        ("muzero", "gumbel_muzero", "efficientzero"), "residual CNN"
    )
    where = "observation"
    assert line == f"encoder: {title.get(name, 'SmallCNN')} for {where} {seen} {kind['dtype']}"


BYTES: dict[str, Any] = dict(shape=[9, 9, 3], dtype="uint8")
EARLIER = [("ppo", MINATAR, "MLP"), ("dreamer", MINATAR, "MLP"), ("dqn", BOARD, "MLP")]
EARLIER += [("muzero", BYTES, "residual CNN")]


@pytest.mark.parametrize(("name", "kind", "title"), EARLIER, ids=lambda value: str(value)[:8])
def test_runs_from_before_small_pictures_keep_their_networks(
    name: str, kind: dict[str, Any], title: str, tmp_path: Path
) -> None:
    run, changes = LEARNERS[name]
    base = dict(total_timesteps=32, eval_episodes=1) | {"env_id": "probe/Bright-v0"}
    result = train(
        small_config(run, **base | changes, env_kwargs=kind, small_pictures=False), run_dir=tmp_path / "run"
    )
    made = saved_config(json.loads((tmp_path / "run" / "manifest.json").read_bytes()))
    older = made.model_dump(mode="json")
    del older["small_pictures"]
    assert load_run_config(older) == made
    trainer = make_trainer(load_run_config(older))
    (line,) = trainer.encoders()
    trainer.close()
    assert line.startswith(f"encoder: {title} for")
    if name == "muzero":
        assert trainer.agent.network.representation.layers[0].stride == (2, 2)
    assert evaluate_checkpoint(result.run_dir, episodes=1)["episodes"] == 1


@pytest.mark.parametrize("atari", [False, True])
def test_stacked_frames_of_a_single_emulator_are_kept_once(
    atari: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of Atari's frames; any other picture is kept whole."""
    monkeypatch.setattr("rl_training.data.experience.is_atari", lambda env_id: atari)
    frames: dict[str, Any] = dict(shape=[4, 36, 36], dtype="uint8")
    config = small_config("dqn-cartpole", env_id="probe/Bright-v0", env_kwargs=frames, num_envs=1)
    trainer = make_trainer(config)
    assert trainer.replay.stack == (4 if atari else 1)
    assert trainer.replay.observations.shape[1:] == ((36, 36) if atari else (4, 36, 36))
    trainer.close()


def test_scalezero_learns_from_small_pictures() -> None:
    config = small_config(
        "scalezero-classic", **PLANS, env_ids=["probe/Bright-v0"], env_kwargs=MINIGRID, solved_returns={}
    )
    trainer = make_trainer(config)
    trainer.iterate(Controls.of(config).at(0))
    assert trainer.encoders() == ["encoder: SmallCNN for observation 7×7×3 uint8"]


@pytest.mark.parametrize(
    ("shape", "dtype", "encoder"),
    [
        ((4,), np.float32, Flat),
        ((3, 4), np.float32, Flat),
        ((2, 2, 5), np.float32, Flat),  # no grid of 3 × 3
        ((7, 7, 3), np.uint8, SmallCNN),
        ((10, 10, 4), np.bool_, SmallCNN),
        ((4, 10, 10), np.float32, SmallCNN),
        ((5, 5, 2), np.int64, SmallCNN),
        ((7, 7, 20), np.uint8, SmallCNN),
        ((20, 7, 7), np.bool_, SmallCNN),
        ((12, 12, 3), np.uint8, NatureCNN),
        ((4, 84, 84), np.uint8, NatureCNN),
        ((84, 84, 3), np.float32, NatureCNN),
    ],
)
def test_the_encoder_fits_the_observation(shape: tuple[int, ...], dtype: Any, encoder: type) -> None:
    space = spaces.Box(0, 1, shape, dtype)
    made = make_inputs(space, "nature")
    assert type(made) is encoder
    assert made(torch.from_numpy(space.sample()[None])).shape == (1, made.features)


def test_channels_are_the_smaller_end_and_last_in_planes_that_are_as_deep_as_wide() -> None:
    assert has_channels_last(spaces.Box(0, 1, (10, 10, 10), np.bool_))
    assert has_channels_last(spaces.Box(0, 255, (64, 64, 3), np.uint8))
    assert not has_channels_last(spaces.Box(0, 255, (4, 84, 84), np.uint8))
    assert not has_channels_last(spaces.Box(0, 1, (2, 3, 3), np.float32))
    assert not is_image(spaces.Box(0, 1, (3, 3), np.float32))


@pytest.mark.parametrize("dtype", [np.uint8, np.bool_, np.float32])
def test_beside_two_equal_sides_the_third_is_the_channels_however_many(dtype: Any) -> None:
    for shape, channels, last in (((7, 7, 20), 20, True), ((20, 7, 7), 20, False), ((12, 12, 16), 16, True)):
        space = spaces.Box(0, 1, shape, dtype)
        assert (picture_shape(space)[0], has_channels_last(space)) == (channels, last)
    before = without_small_pictures(spaces.Box(0, 255, (12, 12, 16), np.uint8))
    assert picture_shape(before) == (12, 12, 16)  # as runs from before small pictures have it


def test_numbers_with_the_bounds_of_bytes_are_scaled_like_bytes() -> None:
    for dtype in (np.float32, np.int64):
        for shape in ((36, 36, 1), (7, 7, 1)):
            torch.manual_seed(0)
            one = make_inputs(spaces.Box(0, 255, shape, np.uint8), "nature")
            torch.manual_seed(0)
            other = make_inputs(spaces.Box(0, 255, shape, dtype), "nature")
            picture = torch.randint(256, (2, *shape), dtype=torch.uint8)
            torch.testing.assert_close(
                other(picture.to(torch.from_numpy(np.zeros(0, dtype)).dtype)), one(picture)
            )
            assert not ObservationNormalizer(spaces.Box(0, 255, shape, dtype)).does_something
    assert brightest(spaces.Box(0, 10, (36, 36, 1), np.float32)) == 1
    assert brightest(without_small_pictures(spaces.Box(0, 255, (36, 36, 1), np.float32))) == 1


def test_codes_of_a_small_picture_stay_apart_and_bits_stay_bits() -> None:
    """Object 1 and object 10 of MiniGrid are 0.004 and 0.04 after a division by 255."""
    codes = SmallCNN(spaces.Box(0, 255, (7, 7, 3), np.uint8))
    seen = []
    codes.convolutions.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    codes(torch.tensor([0, 1, 10, 255], dtype=torch.uint8).view(4, 1, 1, 1).expand(4, 7, 7, 3))
    assert seen[0][:, 0, 0, 0].tolist() == pytest.approx([0, 1 / 8, np.log2(11) / 8, 1])
    bits = SmallCNN(spaces.Box(0, 1, (7, 7, 3), np.bool_))
    bits.convolutions.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    bits(torch.tensor([True, False]).view(2, 1, 1, 1).expand(2, 7, 7, 3))
    assert seen[1][:, 0, 0, 0].tolist() == [1, 0]


def test_bits_and_floats_of_large_pictures_are_not_divided_by_255() -> None:
    for dtype in (np.bool_, np.float32):
        nature = NatureCNN(spaces.Box(0, 1, (36, 36, 1), dtype))
        picture = torch.ones(1, 36, 36, 1).to(torch.from_numpy(np.zeros(0, dtype)).dtype)
        expected = nature.convolutions(torch.ones(1, 1, 36, 36))
        torch.testing.assert_close(nature.convolved(picture.permute(0, 3, 1, 2)), expected)


def test_threads_are_for_large_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_training.runtime.trainer.PHYSICAL_CORES", 7)
    vector = spaces.Box(-1, 1, (3,), np.float32)
    small, large = (spaces.Box(0, 255, shape, np.uint8) for shape in ((7, 7, 3), (4, 84, 84)))
    assert [default_threads(space) for space in (vector, small, large)] == [1, 1, 7]
    assert default_threads(spaces.Dict(a=vector, b=small)) == 1
    assert default_threads(spaces.Dict(a=vector, b=large)) == 7


def encoders_named_first(shown: str) -> list[str]:
    """The encoders in what a run shows before its first step."""
    before, _, _ = shown.partition("\nstep ")
    return [line for line in before.splitlines() if line.startswith("encoder: ")]


def test_a_run_says_first_which_encoder_sees_what(tmp_path: Path, capsys: Any) -> None:
    settings = dict(
        algo="ppo",
        total_timesteps=32,
        num_envs=2,
        num_steps=8,
        eval_episodes=1,
        hidden_sizes=[8],
        torch_threads=2,
    )
    train(
        {**settings, "env_id": "probe/Bright-v0", "env_kwargs": MINIGRID},
        run_dir=tmp_path / "a",
        display=PlainDisplay(),
    )
    assert encoders_named_first(capsys.readouterr().out) == ["encoder: SmallCNN for observation 7×7×3 uint8"]
    train({**settings, "env_id": "probe/DictAndPicture-v0"}, run_dir=tmp_path / "b", display=PlainDisplay())
    assert encoders_named_first(capsys.readouterr().out) == [
        "encoder: NatureCNN for observation['camera'] 12×12×1 uint8",
        "encoder: MLP for observation['digit'] Discrete(3)",
        "encoder: MLP for observation['vector'] 2 float32",
    ]


def test_lines_name_what_an_encoder_is_made_of_once() -> None:
    encoders = [make_encoder(spaces.Box(-1, 1, (4,)), [8], "tanh", "nature")[0] for _ in range(2)]
    assert encoder_lines(encoders) == ["encoder: MLP for observation 4 float32"]
