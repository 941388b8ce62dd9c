"""Configs: what is accepted, and the one line that answers everything else."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import model_validator
from typer.testing import CliRunner

from rl_training import registry
from rl_training.cli import app
from rl_training.errors import ConfigError, did_you_mean
from rl_training.registry import ALGORITHMS, shipped_config_path, shipped_configs, trainer_class
from rl_training.runtime.controls import PARTS, Controls, resolve_clip_coefficient
from rl_training.settings.config import Config
from rl_training.settings.describing import describe_config
from rl_training.settings.fields import field, knob
from rl_training.settings.keys import accepted_keys
from rl_training.settings.loading import dump_config, load_config
from rl_training.settings.refusals import refused
from rl_training.settings.yaml import parse_yaml, plain, to_yaml


class ToyConfig(Config):
    """A config with a few knobs."""

    algo: Literal["toy"] = "toy"
    num_steps: int = field(128, "Steps in each environment per rollout.", ge=1)
    num_minibatches: int = field(4, "Parts of a rollout.", ge=1)
    clip_coef: float = knob(0.2, "How far the ratio may leave 1.", aliases=("clip_range", "clip_coefficient"))
    ent_coef: float = knob(
        0.0, "Weight of the entropy bonus.", aliases=("entropy_coef", "entropy_coefficient")
    )
    target_kl: float | None = knob(None, "KL at which an update stops (nats); none: never.", limit=True)
    update_epochs: int = knob(4, "Passes over each rollout.", low=1, aliases=("n_epochs",))

    @model_validator(mode="after")
    def _divisible(self) -> ToyConfig:
        if self.num_steps % self.num_minibatches:
            raise refused("num_minibatches", "must divide num_steps")
        return self


class OtherConfig(Config):
    """A config that names a knob by its alias, and has a field the toy has not."""

    algo: Literal["other"] = "other"
    entropy_coef: float = knob(
        0.01, "Weight of the entropy bonus.", aliases=("ent_coef", "entropy_coefficient")
    )
    gadget_size: int = field(1000, "Steps remembered.", ge=1)


Toy: Any = ToyConfig  # type checkers know only the own names of a config's fields


class ToyTrainer:
    config_class = ToyConfig


class OtherTrainer:
    config_class = OtherConfig


@pytest.fixture(autouse=True)
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALGORITHMS, "toy", f"{__name__}:ToyTrainer")
    monkeypatch.setitem(ALGORITHMS, "other", f"{__name__}:OtherTrainer")


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "shipped"
    (folder / "toy").mkdir(parents=True)
    (folder / "toy" / "cartpole.yaml").write_text("algo: toy\nenv_id: CartPole-v1\nclip_coef: 0.3\n")
    monkeypatch.setattr(registry, "_shipped_folder", lambda: folder)
    return folder


HEAD = "algo: toy\nenv_id: CartPole-v1\n"


def refusal(source: Any, *overrides: str) -> str:
    with pytest.raises(ConfigError) as error:
        load_config(source, overrides)
    text = str(error.value)
    assert len(text.splitlines()) == 1
    assert "Traceback" not in text
    return text


def write(tmp_path: Path, text: str, name: str = "my.yaml") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


BAD = [  # what follows the head, the line refused, what the refusal says
    ("num_env: 4", 3, "unknown key 'num_env'; did you mean num_envs?"),
    ("seed: 1\n\n# comment\nclip_rnage: 0.1", 6, "unknown key 'clip_rnage'; did you mean clip_range?"),
    ("clip_coef_schedul: linear", 3, "did you mean clip_coef_schedule?"),
    ("zzz: 1", 3, "unknown key 'zzz'"),
    ("<<: {seed: 1}", 3, "merge keys (<<) are not supported"),
    ("gadget_size: 100", 3, "gadget_size belongs to other, not to toy"),
    ("temperature: 1.0", 3, "toy has no knob temperature"),
    ("num_simulations_schedule: linear", 3, "toy has no knob num_simulations"),
    ("num_envs: 2.7", 3, "num_envs must be a whole number, not 2.7"),
    ("num_envs: four", 3, "num_envs must be a whole number, not 'four'"),
    ("num_envs: true", 3, "num_envs must be a whole number, not True"),
    ("num_envs: '4'", 3, "num_envs must be a whole number, not '4'"),
    ("num_envs: 0", 3, "num_envs must be at least 1, not 0"),
    ("num_envs:", 3, "num_envs must be a whole number, not None"),
    ("seed: .nan", 3, "seed must be a whole number, not nan"),
    ("seed: -1", 3, "seed must be at least 0"),
    ("seed: 99999999999999999999", 3, "seed must be at most"),
    ("keep_checkpoints: 1", 3, "keep_checkpoints must be at least 2"),
    ("total_timesteps: 0", 3, "total_timesteps must be at least 1"),
    ("total_timesteps: .inf", 3, "total_timesteps must be a whole number, not inf"),
    ("env_kwargs: [1]", 3, "env_kwargs must be a mapping"),
    ("env_kwargs: {g: .nan}", 3, "env_kwargs must hold finite numbers"),
    ("normalize_rewards: 1", 3, "normalize_rewards must be true or false, not 1"),
    ("normalize_rewards: yes", 3, "normalize_rewards must be true or false, not 'yes'"),
    ("hidden_sizes: 64", 3, "hidden_sizes must be a list"),
    ("hidden_sizes:\n  - 64\n  - 3.5", 5, "hidden_sizes[1] must be a whole number, not 3.5"),
    ("hidden_sizes: [64, 0]", 3, "hidden_sizes[1] must be at least 1"),
    ("activation: tahn", 3, "did you mean tanh?"),
    ("device: gpu", 3, "device cannot be 'gpu'"),
    ("clip_coef: .nan", 3, "clip_coef must be a finite number"),
    ("clip_coef: .inf", 3, "clip_coef must be a finite number"),
    ("clip_coef: '0.2'", 3, "clip_coef must be a number"),
    ("clip_coef: true", 3, "clip_coef must be a number"),
    ("clip_coef: [0.2]", 3, "clip_coef must be a number"),
    ("clip_coef: -0.1", 3, "clip_coef must be at least 0, not -0.1"),
    ("clip_range: -0.1", 3, "clip_range must be at least 0, not -0.1"),
    ("ent_coef: -1", 3, "ent_coef must be at least 0"),
    ("gamma: 2.5", 3, "gamma must be at most 1, not 2.5"),
    ("learning_rate: -1e-3", 3, "learning_rate must be at least 0"),
    ("update_epochs: 0", 3, "update_epochs must be at least 1, not 0"),
    ("update_epochs: 2.5", 3, "update_epochs must be a whole number"),
    ("clip_coef: 0.2\nclip_range: 0.2", 4, "clip_range and clip_coef are two spellings of one knob"),
    ("clip_coef: 0.2\nclip_range_schedule: linear", 4, "clip_range and clip_coef are two spellings"),
    ("seed: 1\nseed: 2", 4, "'seed' appears twice, first in line 3"),
    ("clip_coef_schedule: linaer", 3, "unknown schedule type 'linaer'; did you mean linear?"),
    ("clip_coef_schedule:\n  type: linear\n  ned: 0.1", 5, "no 'ned'; did you mean end?"),
    ("clip_coef_schedule:\n  typ: linear", 4, "no 'typ'; did you mean type?"),
    ("clip_coef_schedule:\n  end: 0.1\n  type: warp", 5, "unknown schedule type 'warp'"),
    ("clip_coef_schedule:\n  type: linear\n  steps: 2.5", 5, "steps must be a whole number"),
    ("clip_coef_schedule: {type: linear, end: -0.1}", 3, "clip_coef_schedule must be at least 0, not -0.1"),
    ("clip_range_schedule: {type: linear, end: -0.1}", 3, "clip_range_schedule must be at least 0, not -0.1"),
    ("gamma_schedule: [[0, 0.9], [100, 1.1]]", 3, "gamma_schedule must be at most 1, not 1.1"),
    ("gamma_schedule: {type: step, factor: 1.01, every: 1000}", 3, "gamma_schedule must be at most 1"),
    ("target_kl_schedule: linear", 3, "needs a start"),
    ("clip_coef_schedule: {type: exponential, end: 0}", 3, "must be above 0"),
    ("clip_coef_schedule: true", 3, "not True"),
    ("clip_coef_warmup_steps: -1", 3, "clip_coef_warmup_steps must be at least 0"),
    ("clip_coef_warmup_steps: 1.5", 3, "clip_coef_warmup_steps must be a whole number"),
    ("num_minibatches: 3", 3, "num_minibatches must divide num_steps"),
    ("seed: [1", 3, "broken YAML"),
    ("seed: 1\nenv_kwargs: {a: 'x\n\n", 4, "broken YAML"),
    ("seed: 1: 2", 3, "broken YAML"),
    ("\tseed: 1", 3, "broken YAML"),
    ("seed: *nothing", 3, "broken YAML: found undefined alias"),
    ("--- \nseed: 1", 3, "broken YAML"),
    ("1: 2", 3, "a key must be text"),
    ("[1, 2]: 3", 3, "a key must be text"),
    ("seed: !!python/object/apply:os.system [ls]", 3, "tags such as"),
    ("seed: !!python/name:os.system x", 3, "tags such as"),
    ("env_kwargs: " + "{a: " * 25 + "1" + "}" * 25, 3, "nested more than"),
    ("env_kwargs:\n  " + "- " * 3000, None, "nested more than"),
    ("env_kwargs: &loop {again: *loop}", 3, "nested more than"),
    ("seed: " + "9" * 5000, 3, "is not a number"),
    ("extends: 3", 3, "extends must name one config"),
    ("extends: nowhere.yaml", 3, "nowhere.yaml: no such file"),
    ("extends: my.yaml", 3, "extends goes in a circle"),
]


@pytest.mark.parametrize(("text", "line", "message"), BAD, ids=[text[:40] for text, _, _ in BAD])
def test_bad_configs(tmp_path: Path, text: str, line: int | None, message: str) -> None:
    path = write(tmp_path, HEAD + text + "\n")
    said = refusal(path)
    assert said.startswith(f"{path}:{line}: " if line else f"{path}:")
    assert message in said


WHOLE_FILES = [
    ("env_id: CartPole-v1\n", ":1: algo is missing; there are: ppo"),
    ("algo: toy\n", ":1: env_id is missing"),
    ("alog: toy\nenv_id: x\n", ":1: unknown key 'alog'; did you mean algo?"),
    ("env_id: x\nalgo: tyo\n", ":2: unknown algorithm 'tyo'; did you mean toy?"),
    ("env_id: x\nalgo: quantum\n", ":2: unknown algorithm 'quantum'; there are: ppo"),
    ("env_id: x\nalgo: 3\n", ":2: unknown algorithm 3"),
    ("algo: toy\nenv_id: ''\n", ":2: env_id must not be empty"),
    ("algo: toy\nenv_id: 7\n", ":2: env_id must be text, not 7"),
    ("", ":1: a config is a mapping"),
    ("- algo\n", ":1: a config is a mapping"),
    ("just text", ":1: a config is a mapping"),
    ("algo: toy\x00", ":1: broken YAML"),
]


@pytest.mark.parametrize(("text", "message"), WHOLE_FILES)
def test_bad_files(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    assert refusal(path).startswith(f"{path}{message}")


def test_files_that_are_none(tmp_path: Path, shipped: Path) -> None:
    told = "no such file; `rl-training list` shows the shipped configs"
    assert refusal(tmp_path / "gone.yaml") == f"{tmp_path}/gone.yaml: {told}"
    assert refusal("toy/cartpol") == "toy/cartpol: no such file; did you mean toy/cartpole?"
    assert refusal(tmp_path) == f"{tmp_path}: is not a file"
    assert "File name too long" in refusal("x" * 5000)
    (tmp_path / "latin.yaml").write_bytes(b"algo: toy\nenv_id: caf\xe9\n")
    assert refusal(tmp_path / "latin.yaml").endswith("latin.yaml:2: is not UTF-8 text")
    assert "100 kB" in refusal(write(tmp_path, HEAD + "# " + "x" * 1_000_000))


def test_an_alias_bomb_is_refused(tmp_path: Path) -> None:
    levels = ["env_kwargs:", "  l0: &l0 [x, x, x, x, x, x, x, x, x]"]
    levels += [f"  l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 15)]
    assert "more than 10000 entries" in refusal(write(tmp_path, HEAD + "\n".join(levels)))


def test_yaml_1_2_numbers(tmp_path: Path) -> None:
    lines = ["total_timesteps: 1e6", "seed: 1_000_000", "learning_rate: 2.5e-4", "num_envs: 8.0"]
    config = load_config(write(tmp_path, HEAD + "\n".join([*lines, "num_steps: 0x10", "clip_coef: 1"])))
    assert (config.total_timesteps, config.seed, config.learning_rate) == (1_000_000, 1_000_000, 2.5e-4)
    assert (config.num_envs, config.num_steps, config.clip_coef) == (8, 16, 1.0)
    assert [type(value) for value in (config.total_timesteps, config.num_envs, config.clip_coef)] == [
        int,
        int,
        float,
    ]


def test_anchors_and_lists(tmp_path: Path) -> None:
    kwargs = "{sizes: *sizes, deep: {on: true, date: 2020-01-01, none: ~}}"
    config = load_config(write(tmp_path, f"{HEAD}hidden_sizes: &sizes [32, 64.0]\nenv_kwargs: {kwargs}\n"))
    assert config.hidden_sizes == (32, 64)
    deep = {"on": True, "date": "2020-01-01", "none": None}
    assert config.env_kwargs == {"sizes": [32, 64.0], "deep": deep}


def test_aliases_are_folded_to_the_own_name(tmp_path: Path) -> None:
    text = "clip_range: 0.3\nclip_range_schedule: linear\nclip_range_warmup_steps: 10\nlr: 0.1\nn_epochs: 3"
    config = load_config(write(tmp_path, HEAD + text))
    assert (config.clip_coef, config.clip_coef_schedule, config.clip_coef_warmup_steps) == (0.3, "linear", 10)
    assert (config.learning_rate, config.update_epochs) == (0.1, 3)
    other = load_config({"algo": "other", "env_id": "x", "ent_coef": 0.2})
    assert other.entropy_coef == 0.2
    assert Controls.of(other).values(0) == {"learning_rate": 3e-4, "gamma": 0.99, "entropy_coef": 0.2}


def test_extends_a_relative_path_or_a_shipped_name(tmp_path: Path, shipped: Path) -> None:
    write(tmp_path, HEAD + "clip_range: 0.1\nseed: 7\nnum_envs: 2\n", "base.yaml")
    (tmp_path / "sub").mkdir()
    child = write(tmp_path / "sub", "extends: ../base.yaml\nclip_coef: 0.4\nseed: 8\n")
    config = load_config(child)
    assert (config.clip_coef, config.seed, config.num_envs, config.env_id) == (0.4, 8, 2, "CartPole-v1")
    grandchild = write(tmp_path, "extends: sub/my.yaml\nclip_coefficient: 0.5\n", "grandchild.yaml")
    assert load_config(grandchild).clip_coef == 0.5
    assert load_config(grandchild).seed == 8

    assert load_config("toy/cartpole").clip_coef == 0.3
    assert load_config(write(tmp_path, "extends: toy/cartpole\nseed: 5\n", "named.yaml")).clip_coef == 0.3
    assert load_config({"extends": "toy/cartpole", "seed": 4}).seed == 4


def test_a_refusal_names_the_layer_at_fault(tmp_path: Path) -> None:
    base = write(tmp_path, HEAD + "\nclip_range: -1\n", "base.yaml")
    child = write(tmp_path, "extends: base.yaml\nseed: 2\n")
    assert refusal(child).startswith(f"{base}:4: clip_range must be at least 0")
    assert load_config(child, ["clip_coef=0.1"]).clip_coef == 0.1  # what is overridden is not read
    write(tmp_path, "extends: base.yaml\nclip_coef: 0.2\nnum_env: 2\n")
    assert refusal(child).startswith(f"{child}:3: unknown key 'num_env'; did you mean num_envs?")


def test_extends_in_circles_and_without_end(tmp_path: Path) -> None:
    write(tmp_path, "extends: b.yaml\n", "a.yaml")
    write(tmp_path, "seed: 1\nextends: a.yaml\n", "b.yaml")
    assert f"{tmp_path}/b.yaml:2: extends goes in a circle" in refusal(tmp_path / "a.yaml")
    for number in range(12):
        write(tmp_path, f"extends: {number + 1}.yaml\n", f"{number}.yaml")
    assert "more than 10 configs deep" in refusal(tmp_path / "0.yaml")


def test_overrides(tmp_path: Path) -> None:
    path = write(tmp_path, HEAD + "clip_coef: 0.2\nseed: 1\n")
    overrides = ["seed=5", "clip_range_schedule={type: linear, start: 0.3, end: 0.1}", "total_timesteps=1e5"]
    config = load_config(
        path, [*overrides, "hidden_sizes=[8, 8]", "seed=6", "eval_interval=", "env_id=a:B=c"]
    )
    assert config.clip_coef_schedule == {"type": "linear", "start": 0.3, "end": 0.1}
    assert (config.seed, config.total_timesteps, config.hidden_sizes) == (6, 100_000, (8, 8))
    assert (config.eval_interval, config.env_id) == (None, "a:B=c")
    assert resolve_clip_coefficient(config, step=100_000) == 0.1


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("clip_coef=-1", "clip_coef=-1: clip_coef must be at least 0, not -1"),
        ("clip_range=abc", "clip_range=abc: clip_range must be a number, not 'abc'"),
        ("clip_rnage=1", "clip_rnage=1: unknown key 'clip_rnage'; did you mean clip_range?"),
        ("num_envs=2.7", "num_envs=2.7: num_envs must be a whole number, not 2.7"),
        ("algo=tyo", "algo=tyo: unknown algorithm 'tyo'; did you mean toy?"),
        ("seed", "seed: an override is written key=value"),
        ("=3", "=3: an override is written key=value"),
        ("extends=x", "extends=x: extends belongs in a file"),
        ("seed=[1", "seed=[1: broken YAML"),
        (
            "clip_coef_schedule={type: linear, ned: 1}",
            "clip_coef_schedule={type: linear, ned: 1}: clip_coef_schedule: ",
        ),
        ("seed=" + "1" * 20_000, "too long for an override"),
    ],
)
def test_bad_overrides(tmp_path: Path, override: str, message: str) -> None:
    assert message in refusal(write(tmp_path, HEAD), override)


def test_a_value_that_a_schedule_would_hide_is_refused(tmp_path: Path) -> None:
    schedule = "clip_coef_schedule: {type: linear, start: 0.3, end: 0.1}\n"
    path = write(tmp_path, HEAD + "clip_coef: 0.2\n" + schedule)
    assert load_config(path).clip_coef == 0.2
    said = refusal(path, "clip_range=0.1")
    assert said == (
        "clip_range=0.1: clip_range would have no effect, because clip_coef_schedule has its own start; "
        "set clip_range_schedule too"
    )
    assert load_config(path, ["clip_range=0.1", "clip_range_schedule=linear"]).clip_coef_schedule == "linear"
    assert load_config(path, ["clip_coef=0.1", "clip_coef_schedule=null"]).clip_coef_schedule is None
    child = write(tmp_path, "extends: my.yaml\nclip_coef: 0.1\n", "child.yaml")
    assert refusal(child).startswith(f"{child}:2: clip_coef would have no effect")
    path.write_text(HEAD + "clip_coef_schedule: linear\n")
    assert load_config(path, ["clip_coef=0.1"]).clip_coef == 0.1


def test_from_python() -> None:
    config = Toy(env_id="CartPole-v1", clip_range=0.1, hidden_sizes=[16, 16])
    assert (config.algo, config.clip_coef, config.hidden_sizes) == ("toy", 0.1, (16, 16))
    with pytest.raises(ConfigError, match=r"^clip_range must be at least 0, not -1$"):
        Toy(env_id="x", clip_range=-1)
    with pytest.raises(ConfigError, match=r"^unknown key 'clip_rnage'; did you mean clip_range\?$"):
        Toy(env_id="x", clip_rnage=1)
    with pytest.raises(ConfigError, match="must hold numbers, text, lists and mappings only, not function"):
        ToyConfig(env_id="x", env_kwargs={"callback": lambda: None})
    with pytest.raises(ConfigError, match=r"^env_id is missing$"):
        Toy()
    numpy_values = Toy(env_id="x", num_envs=np.int64(3), gamma=np.float32(0.5), env_kwargs={"a": np.int8(1)})
    assert (numpy_values.num_envs, numpy_values.gamma, numpy_values.env_kwargs) == (3, 0.5, {"a": 1})
    with pytest.raises(ConfigError, match="num_envs must be a whole number"):
        Toy(env_id="x", num_envs=np.ones(2))
    frozen = r"^seed: a config cannot be changed; make another with load_config\(config, seed=3\)$"
    with pytest.raises(ConfigError, match=frozen):
        config.seed = 3
    assert config.seed == 1
    assert "two spellings" in refusal({"algo": "toy", "env_id": "x", "lr": 1, "learning_rate": 1})
    assert load_config(config) == config
    assert load_config(config, ["seed=3"]) == config.model_copy(update={"seed": 3})
    assert copy.deepcopy(config) == config


def test_overrides_from_python_are_mappings_or_keyword_arguments() -> None:
    for config in (load_config("ppo/cartpole", {"seed": 2}), load_config("ppo/cartpole", seed=2)):
        assert config == load_config("ppo/cartpole", ["seed=2"])
    assert load_config("ppo/cartpole", {"seed": 2}, seed=3).seed == 3
    changed = load_config(load_config("ppo/cartpole"), seed=4, hidden_sizes=[8])
    assert (changed.seed, changed.hidden_sizes) == (4, (8,))
    with pytest.raises(
        ConfigError, match=r"^clip_rnage=0.1: unknown key 'clip_rnage'; did you mean clip_range\?$"
    ):
        load_config("ppo/cartpole", clip_rnage=0.1)
    with pytest.raises(ConfigError, match="overrides are a list of key=value, or a mapping"):
        load_config("ppo/cartpole", "seed=2")


def test_the_decorator_keeps_the_class() -> None:
    assert (ToyConfig.__name__, ToyConfig.__qualname__, ToyConfig.__module__) == (
        "ToyConfig",
        "ToyConfig",
        __name__,
    )
    assert ToyConfig.__doc__ == "A config with a few knobs."
    knobs = {"learning_rate", "gamma", "clip_coef", "ent_coef", "target_kl", "update_epochs"}
    assert ToyConfig.controls.keys() == knobs
    assert all(name + part in ToyConfig.model_fields for name in knobs for part in PARTS)

    class Deeper(ToyConfig):
        vf_coef: float = knob(0.5, "Weight of the value loss.", aliases=("value_coef",))

    make: Any = Deeper
    deeper = make(env_id="x", value_coef_schedule="linear", clip_range_schedule="cosine")
    assert Controls.of(deeper).moving == ("clip_coef", "vf_coef")


def test_cadences() -> None:
    config = ToyConfig(env_id="x", total_timesteps=100_000, num_envs=4)
    assert (config.log_every, config.eval_every, config.checkpoint_every) == (500, 10_000, 20_000)
    config = ToyConfig(env_id="x", total_timesteps=10_000_000)
    assert (config.log_every, config.eval_every, config.checkpoint_every) == (50_000, 1_000_000, 50_000)
    config = ToyConfig(env_id="x", total_timesteps=5, num_envs=4)
    assert (config.log_every, config.eval_every, config.checkpoint_every) == (4, 4, 20_000)
    config = ToyConfig(env_id="x", log_interval=10, eval_interval=20, checkpoint_interval=30)
    assert (config.log_every, config.eval_every, config.checkpoint_every) == (10, 20, 30)


@pytest.mark.parametrize("algo", ["sac", "dreamer", "muzero", "gumbel_muzero", "efficientzero", "scalezero"])
def test_a_short_run_of_slow_steps_is_saved_on_the_way(algo: str) -> None:
    env_id = "Pendulum-v1" if algo == "sac" else "CartPole-v1"
    config = load_config(dict(algo=algo, env_id=env_id, total_timesteps=12_000))
    assert config.checkpoint_every == 1200


def test_a_short_run_of_fast_steps_is_saved_at_its_end_alone() -> None:
    config = load_config(dict(algo="dqn", env_id="CartPole-v1", total_timesteps=12_000))
    assert config.checkpoint_every == 20_000


ROUND_TRIPS: list[dict[str, Any]] = [
    {},
    {"clip_coef_schedule": {"type": "linear", "start": 0.3, "end": 1e-5}, "lr": 1e-7, "lr_warmup_steps": 100},
    {"ent_coef_schedule": [[0, 0.1], [1000, 0.0]], "target_kl": 0.1, "hidden_sizes": []},
    {"ent_coef_schedule": 0, "total_timesteps": 10**15, "max_episode_steps": 7, "device": "cuda:1"},
    {
        "env_id": "my.module:Env-v0",
        "env_kwargs": {"a": [1, "x: y", None, True], "n": {"0": -0.0, "big": 1e300}},
    },
    {
        "env_id": "yes # no",
        "env_kwargs": {"quote": '"\\', "face": "😀", "lines": "a\n\tb\x85\u2028", "off": "off"},
    },
]


@pytest.mark.parametrize("values", ROUND_TRIPS)
def test_dump_and_load_are_inverse(tmp_path: Path, values: dict[str, Any]) -> None:
    config = load_config({"algo": "toy", "env_id": "x", **values})
    text = dump_config(config)
    again = load_config(write(tmp_path, text))
    assert again == config
    assert type(again) is type(config)
    assert dump_config(again) == text


texts = st.text(max_size=8)
trees = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(trees)
def test_every_plain_value_survives_yaml(value: Any) -> None:
    again = parse_yaml(f"key: {to_yaml(plain(value))}\n", "file").data["key"]
    assert again == value
    assert repr(again) == repr(value)


def slips(key: str) -> Iterator[str]:
    """A letter left out, replaced, put in, and swapped, at every place of a key."""
    for i, letter in enumerate(key):
        yield key[:i] + key[i + 1 :]
        yield key[:i] + ("x" if letter != "x" else "y") + key[i + 1 :]
        yield key[:i] + "q" + key[i:]
        yield key[:i] + key[i : i + 2][::-1] + key[i + 2 :]


@pytest.mark.parametrize("algo", ["toy", *ALGORITHMS])
def test_every_slip_in_every_key_is_refused_with_the_right_name(algo: str) -> None:
    config_class = trainer_class(algo).config_class
    keys = list(accepted_keys(config_class))
    for key in keys:
        # Where two keys are one slip apart, such as env_id and env_ids, either is a right answer.
        near = {key, *(other for other in keys if other in slips(key) or key in slips(other))}
        for slip in set(slips(key)) - set(keys) - {""}:
            assert did_you_mean(slip, keys) in {f"; did you mean {name}?" for name in near}, slip
        with pytest.raises(ConfigError, match=f"^unknown key '{key}q'; did you mean {key}\\?$"):
            config_class(**{"env_id": "x", f"{key}q": 1})


def test_names_far_from_all_others_get_no_suggestion() -> None:
    assert did_you_mean("zzz", ["seed", "gamma"]) == ""
    assert did_you_mean("env", ["seed", "env_id"]) == "; did you mean env_id?"
    assert did_you_mean("n_envs", ["num_steps", "num_envs"]) == "; did you mean num_envs?"
    assert did_you_mean("x", []) == ""


def test_describe() -> None:
    rows = {row.name: row for row in describe_config(ToyConfig)}
    beside = {name + part for name in ToyConfig.controls for part in ("_schedule", "_warmup_steps")}
    assert set(rows) == ToyConfig.model_fields.keys() - beside
    assert rows["clip_coef"] == (
        "clip_coef",
        "number",
        "0.2",
        "at least 0",
        ("clip_range", "clip_coefficient"),
        "How far the ratio may leave 1.",
        True,
    )
    assert rows["gamma"].range == "0 to 1"
    assert rows["num_envs"].range == "1 to 65536"
    assert rows["target_kl"].type == "number or none"
    assert rows["target_kl"].default == "none"
    assert rows["env_id"].default == "required"
    assert rows["hidden_sizes"].type == "list of whole numbers"
    assert rows["vectorization"].type == "auto, sync, async or compiled"
    assert not rows["vectorization"].knob


@pytest.mark.parametrize("algo", ["toy", *ALGORITHMS])
def test_every_field_has_a_sentence(algo: str) -> None:
    for row in describe_config(trainer_class(algo).config_class):
        assert row.sentence[:1].isupper(), row.name
        assert row.sentence.endswith("."), row.name


def test_the_registry() -> None:
    for name in ALGORITHMS:
        assert trainer_class(name).config_class.model_fields["algo"].default == name
    with pytest.raises(ConfigError, match="unknown algorithm 'pop'; did you mean ppo"):
        trainer_class("pop")


def test_shipped_configs_load() -> None:
    assert "ppo/cartpole" in shipped_configs()
    for name in shipped_configs():
        config = load_config(name)
        assert config.algo == name.split("/")[0]
        assert shipped_config_path(name).is_file()
    with pytest.raises(ConfigError, match="did you mean ppo/cartpole"):
        shipped_config_path("ppo/cartpol")


def test_what_is_no_config_at_all_is_named() -> None:
    with pytest.raises(ConfigError, match="not int"):
        load_config(5)


# A file -> the line of the entry that is refused after reading, by an environment, a replay or a task.
LATE = [
    ("algo: ppo\nnum_envs: 2\nenv_id: NoSuchEnv-v0\n", "3: env_id 'NoSuchEnv-v0' is not registered"),
    ("algo: ppo\nenv_id: CartPole-v1\nenv_kwargs: {colour: red}\n", "3: env_kwargs {'colour': 'red'}"),
    (
        "algo: dqn\nbuffer_size: 9\nnum_envs: 8\nenv_id: CartPole-v1\n",
        "2: 8 environments and targets of 1 step need a buffer_size of at least",
    ),
    ("algo: sac\nseed: 1\nenv_id: CartPole-v1\n", "3: env_id 'CartPole-v1': its action is a Discrete"),
    (
        "algo: scalezero\nenv_ids:\n  - CartPole-v1\n  - NoSuchEnv-v0\n",
        "4: env_id 'NoSuchEnv-v0' is not registered",
    ),
    ("algo: scalezero\nenv_ids: [CartPole-v1, Pendulum-v1]\n", "2: env_ids: the action of 'Pendulum-v1'"),
]


@pytest.mark.parametrize(("text", "words"), LATE, ids=[words for _, words in LATE])
def test_what_is_refused_after_reading_has_its_line_too(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "my.yaml"
    path.write_text(text)
    ran = CliRunner().invoke(app, ["train", str(path), "--run-dir", str(tmp_path / "run")])
    assert ran.exit_code == 2
    assert f"{path}:{words}" in ran.stderr
    assert not (tmp_path / "run").exists()
