"""Parts that a user brings: how they are named, recorded, loaded and refused."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import pytest

from rl_training import load_config, parts
from rl_training.errors import ConfigError, UntrustedError
from rl_training.parts import Brought
from rl_training.runtime.ppo_trainer import PPOTrainer
from rl_training.settings.fields import field
from rl_training.settings.loading import dump_config, load_run_config
from rl_training.settings.ppo import PPOConfig
from rl_training.tools.forking import _refuse_early
from rl_training.trust import foreign, refuse_untrusted

SHAPES = """
open({said!r}, "a").write("loaded\\n")

class Square:
    def __init__(self, side=1): self.side = side

def broken(): raise ValueError("never\\nmade")
"""


class PartsConfig(PPOConfig):
    """PPO with parts that nothing uses."""

    one: Annotated[Any, Brought("acting")] = field(None, "A part.")
    several: Annotated[Any, Brought("training", many=True)] = field([], "Several parts.")


class PartsTrainer(PPOTrainer):
    config_class = PartsConfig


class Round:
    """A part at the top of a module."""


ALGO = f"{__name__}:PartsTrainer"
BASE = {"algo": ALGO, "env_id": "CartPole-v1"}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("shapes.py").write_text(SHAPES.format(said=str(tmp_path / "said")))
    return tmp_path


def loaded() -> int:
    said = Path("said")
    return len(said.read_text().splitlines()) if said.exists() else 0


@pytest.mark.parametrize(
    ("written", "recorded"),
    [
        ("shapes.py:Square", ["{0}/shapes.py:Square"]),
        (["shapes.py:Square", "lib.x:Y"], ["{0}/shapes.py:Square", "lib.x:Y"]),
        ([{"shapes.py:Square": {"side": 2}}, "lib:Y"], [{"{0}/shapes.py:Square": {"side": 2}}, "lib:Y"]),
        (["shapes.py:Square", {"side": 2}], [{"{0}/shapes.py:Square": {"side": 2}}]),
        ([Round, {Round: {"side": [1, 2]}}], [f"{__name__}:Round", {f"{__name__}:Round": {"side": [1, 2]}}]),
        (None, []),
    ],
)
def test_a_part_is_recorded_by_name_and_a_file_by_its_full_path(written, recorded, folder):
    config = load_config(BASE, several=written)
    expected = json.loads(json.dumps(recorded).replace("{0}", str(folder)))
    assert config.several == expected
    Path("again.yaml").write_text(dump_config(config))
    assert load_config("again.yaml") == config
    assert load_run_config(config.model_dump(mode="json"), trust=True) == config
    assert loaded() == 0, "a config is read without the code it names"


def test_a_file_is_one_beside_its_config(folder):
    (folder / "sub").mkdir()
    (folder / "sub" / "own.yaml").write_text(f"algo: {ALGO}\nenv_id: CartPole-v1\none: shapes.py:Square\n")
    assert load_config("sub/own.yaml").one == f"{folder}/sub/shapes.py:Square"
    assert load_config("sub/own.yaml", ["one=shapes.py:Square"]).one == f"{folder}/shapes.py:Square"
    (folder / "sub" / "manifest.json").touch()
    with pytest.raises(
        ConfigError, match=r"own.yaml:3: one 'shapes.py:Square': a run names .* its full path"
    ):
        load_config("sub/own.yaml")
    with pytest.raises(
        ConfigError, match=r"several 'shapes\.py:Square': a run names such a file by its full path"
    ):
        load_run_config(BASE | {"several": ["shapes.py:Square"]}, trust=True)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("Square", "one must be module:Name or FILE.py:Name"),
        ({"a:B": {}, "c:D": {}}, "one must be module:Name or FILE.py:Name"),
        ({"a:B": 3}, "one must be module:Name or FILE.py:Name"),
        (3, "one cannot record 3: only a class or function at the top of a module or file"),
        (lambda: None, "one cannot record .*lambda"),
        ({"a:B": {"x": object()}}, "one must hold numbers, text, lists and mappings only, not object"),
    ],
)
def test_what_has_no_name_is_refused_in_one_line(written, said):
    for make in (lambda: load_config(BASE, one=written), lambda: PartsConfig(**BASE, one=written)):
        with pytest.raises(ConfigError, match=said) as refusal:
            make()
        assert "\n" not in str(refusal.value)


def test_a_part_is_made_with_its_arguments_and_its_file_is_run_once(folder):
    config = load_config(BASE, one={"shapes.py:Square": {"side": 3}})
    assert parts.make(config.one, key="one").side == 3
    assert parts.make("shapes.py:Square".join([f"{folder}/", ""]), 4, key="one").side == 4
    assert loaded() == 1
    assert parts.name_of(parts.load(f"{folder}/shapes.py:Square")) == f"{folder}/shapes.py:Square"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere:Net", "one 'nowhere:Net' cannot be loaded: ModuleNotFoundError.*named FILE.py:Class"),
        ("{0}/gone.py:Net", "one '.*/gone.py:Net' cannot be loaded: ModuleNotFoundError: no file .*gone.py"),
        ("{0}/shapes.py:Cube", "one '.*/shapes.py:Cube' cannot be loaded: AttributeError.*Cube"),
        ("{0}/shapes.py:broken", "one '.*/shapes.py:broken' cannot be created: ValueError: never made"),
    ],
)
def test_a_part_that_cannot_be_made_is_one_line(name, said, folder):
    with pytest.raises(ConfigError, match=said) as refusal:
        parts.make(name.replace("{0}", str(folder)), key="one")
    assert refusal.value.path == ("one",) and "\n" not in str(refusal.value)


def test_a_foreign_part_is_named_for_what_needs_it_and_nothing_is_imported(folder):
    config = load_config(BASE, one="shapes.py:Square", several=["lib:Y"])
    algo = ("algo", ALGO)
    assert [entry[:2] for entry in foreign(config, "acting")] == [algo, ("one", config.one)]
    assert [entry[:2] for entry in foreign(config)] == [algo, ("one", config.one), ("several", "lib:Y")]
    with pytest.raises(
        UntrustedError, match=rf"one '{config.one}' runs the file '{folder}/shapes.py'; add --trust"
    ):
        refuse_untrusted(config, False, own=["algo"], doing="playing")
    assert loaded() == 0


def test_an_algorithm_named_by_its_class_is_asked_about_before_anything_is_imported(folder):
    said = folder / "ran"
    Path("mine.py").write_text(f"open({str(said)!r}, 'w')\nfrom {__name__} import PartsTrainer as Mine\n")
    name = f"{folder}/mine.py:Mine"
    with pytest.raises(
        UntrustedError, match=r"this run's algo '.*mine.py:Mine' runs the file .*; add --trust"
    ):
        load_run_config(BASE | {"algo": name})
    assert not said.exists()
    config = load_run_config(BASE | {"algo": name}, trust=True)
    assert said.exists() and config.algo == name and config.algo_name == "mine-Mine"
    assert isinstance(config, PartsConfig)
    assert load_run_config(config.model_dump(mode="json")) == config  # the user has said so in this process


def test_a_fork_at_a_step_reads_a_run_of_an_own_algorithm_on_trust(folder):
    Path("forked.py").write_text(f"from {__name__} import PartsTrainer as Forked\n")
    settings = BASE | {"algo": f"{folder}/forked.py:Forked"}
    Path("run").mkdir()
    Path("run/config.yaml").write_text("".join(f"{key}: {value}\n" for key, value in settings.items()))
    with pytest.raises(UntrustedError, match="add --trust"):
        _refuse_early(Path("run"), ["total_timesteps=9000"], 10, trust=False)
    _refuse_early(Path("run"), ["total_timesteps=9000"], 10, trust=True)
    with pytest.raises(ConfigError, match="is at the end of its run"):
        _refuse_early(Path("run"), ["total_timesteps=9"], 10, trust=True)


def test_a_run_whose_algorithm_is_no_trainer_is_refused():
    with pytest.raises(ConfigError, match="algo 'os:getcwd' is not a Trainer with a config_class"):
        load_config(BASE, algo="os:getcwd")


def test_an_object_of_python_has_a_name_for_as_long_as_a_call_lasts():
    first, second = Round(), Round()
    with parts.holding([first, second]) as names:
        assert names == ["given:Round", "given:Round#2"]
        assert parts.make(names[0], key="one") is first and parts.load(names[1]) is second
        assert foreign(load_config(BASE, several=names), "training")[1:] == []
    with pytest.raises(
        ConfigError, match="Round was given to this run as an object in Python; give it again"
    ):
        parts.load("given:Round")


def test_the_manifest_holds_a_checksum_of_every_file_that_a_config_names(folder):
    config = load_config(BASE, one="shapes.py:Square", env_id="shapes.py:Square")
    assert [*parts.files(config)] == [f"{folder}/shapes.py"]
    before = parts.files(config)
    Path("shapes.py").write_text("")
    assert parts.files(config) != before


def test_a_script_that_runs_is_not_run_again(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__file__="shapes.py", Square=Round))
    assert parts.load(f"{folder}/shapes.py:Square") is Round
    assert loaded() == 0
