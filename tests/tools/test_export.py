"""Exports: the file acts like the policy, for every kind of policy, and is written only if it does."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces
from runs import KINDS, TINY_DREAMER
from test_cli import cli, refused

from rl_training import load_config, load_policy
from rl_training.envs.spaces import space_to_json
from rl_training.runtime.workflows import make_trainer
from rl_training.state import checkpoints
from rl_training.tools import export_check, exporting
from rl_training.tools.exporting import export_policy


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def session(path):
    import onnxruntime

    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def saved_policy(folder: Path, **settings) -> Path:
    """A checkpoint of a policy with random weights, and statistics where it has a normaliser."""
    sizes = {} if settings["algo"] == "dreamer" else {"hidden_sizes": [8]}
    config = load_config({"total_timesteps": 1000, "num_envs": 2, "eval_episodes": 1} | sizes | settings)
    trainer = make_trainer(config)
    agent = trainer.agent
    spaces_ = trainer.observation_space, trainer.action_space
    with torch.no_grad():  # away from zeros and from nearly uniform heads
        for module in (part for part in vars(agent).values() if isinstance(part, torch.nn.Module)):
            for parameter in module.parameters():
                spread = 1 / max(1, parameter[0].numel() if parameter.ndim > 1 else 4) ** 0.5
                parameter.add_(
                    spread * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
                )
    if getattr(agent, "normalizer", None) is not None:
        obs = export_check.example_observations(agent, *spaces_, count=64, seed=3)
        agent.observe(obs if isinstance(obs, dict) else 3 * obs + 1)
    policy = {
        "config": config.model_dump(mode="json"),
        "observation_space": space_to_json(spaces_[0]),
        "action_space": space_to_json(spaces_[1]),
        "agent": agent.state_dict(),
    }
    trainer.close()
    return checkpoints.save_policy(folder / "policy", 1, {"policy": policy})


# The settings of a policy, and the kind of file it is exported to here: ONNX where it is the export that is delicate.
POLICIES = {
    "Dict with a picture": (
        ".onnx",
        dict(algo="ppo", env_id="probe/DictAndPicture-v0", normalize_observations=True),
    ),
    "Dict, SAC": (".pt2", dict(algo="sac", env_id="probe/DictTarget-v0", buffer_size=1000)),
    "mask of two choices": (".onnx", dict(algo="ppo", env_id="probe/MaskedTwice-v0")),
    "memory and mask": (
        ".onnx",
        dict(algo="recurrent_ppo", env_id="probe/Masked-v0", num_steps=16, num_minibatches=1),
    ),
    "GRU, shared": (
        ".pt2",
        dict(
            algo="recurrent_ppo",
            env_id="Pendulum-v1",
            cell="gru",
            shared_trunk=True,
            num_steps=16,
            num_minibatches=1,
        ),
    ),
    "previous action and reward, two layers": (
        ".onnx",
        dict(
            algo="recurrent_ppo",
            env_id="CartPole-v1",
            wrappers=["rl_training.envs.wrappers:PreviousActionAndReward"],
            recurrent_size=32,
            recurrent_layers=2,
            critic_memory=False,
            num_steps=16,
            num_minibatches=1,
        ),
    ),
    "coins": (".pt2", dict(algo="a2c", env_id="probe/Coins-v0")),
    "masked dueling DQN": (
        ".pt2",
        dict(algo="dqn", env_id="probe/Masked-v0", dueling=True, buffer_size=1000),
    ),
    "a number": (".pt2", dict(algo="dqn", env_id="FrozenLake-v1", buffer_size=1000)),
    "residual network": (
        ".pt2",
        dict(
            algo="ppo",
            env_id="ALE/Pong-v5",
            image_encoder="impala",
            shared_trunk=True,
            env_kwargs={"frame_size": 44},
        ),
    ),
    "Dreamer, a Dict with a picture": (
        ".pt2",
        dict(algo="dreamer", env_id="probe/DictAndPicture-v0", buffer_size=1000, cnn_depth=2, **TINY_DREAMER),
    ),
    "bf16": (".pt2", dict(algo="ppo", env_id="CartPole-v1", precision="bf16")),
}


def run_file(path: str, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """One call of an exported policy, as somebody would who does not have this package."""
    if path.endswith(".onnx"):
        names = [output.name for output in session(path).get_outputs()]
        return dict(zip(names, session(path).run(None, inputs), strict=True))
    found = torch.export.load(path).module()(*map(torch.from_numpy, inputs.values()))
    return {name: part.detach().numpy() for name, part in found.items()}


def width(done, name: str) -> int:
    """How many numbers a row of an input has, as it is described: float32 [batch, 64]."""
    return int(done.inputs[name].split("batch, ")[1].rstrip("]"))


@pytest.mark.parametrize("name", POLICIES)
def test_every_kind_of_policy_is_exported_and_compared(name, folder):
    suffix, settings = POLICIES[name]
    checkpoint = saved_policy(folder, **settings)
    done = export_policy(checkpoint, f"policy{suffix}")
    assert done.compared == 1000 or ("noise" in done.inputs and 900 < done.compared < 1000)
    assert done.difference <= 1e-5
    # Seen from outside: three observations, against the policy as a user loads it.
    policy = load_policy(checkpoint)
    obs = export_check.example_observations(
        policy.agent, policy.observation_space, policy.action_space, count=3, seed=9
    )
    parts = obs if isinstance(obs, dict) else {"": obs}
    inputs = {f"obs/{key}" if key else "obs": part for key, part in parts.items()}
    for key in done.inputs:
        if key.startswith("memory"):
            inputs[key] = np.zeros((3, width(done, key)), np.float32)
        elif key == "noise":
            torch.manual_seed(4)
            inputs[key] = torch.rand(3, width(done, key)).numpy()
    torch.manual_seed(4)
    assert inputs.keys() == done.inputs.keys()
    found = run_file(f"policy{suffix}", inputs)
    assert found.keys() == done.outputs.keys()
    if name != "bf16":  # which is exported in single precision
        np.testing.assert_allclose(found["action"], policy.act(obs), atol=1e-5, rtol=1e-5)
    assert all(policy.action_space.contains(action) for action in found["action"])


@pytest.fixture(scope="module")
def exported(trained_run, tmp_path_factory):
    """The ONNX file of a run of each kind, exported once by the command, and what that printed."""
    folder = tmp_path_factory.mktemp("exported")
    done = {}

    def find(name):
        if name not in done:
            extra = ("--without-search",) if "muzero" in name else ()
            done[name] = cli("export", trained_run(name), "--to", folder / f"{name}.onnx", *extra)
        return folder / f"{name}.onnx", done[name]

    return find


@pytest.mark.parametrize("name", KINDS)
def test_the_command_exports_a_run_of_each_kind(name, exported):
    path, done = exported(name)
    assert done.exit_code == 0 and done.stderr == "", done.output
    assert "compared  1,000 observations in onnxruntime: largest difference" in done.stdout
    assert ("what its network alone would choose" in done.stdout) == ("muzero" in name)
    assert f"written   {path}" in done.stdout and path.exists()


def test_a_recurrent_episode_through_the_file_is_that_of_the_policy(exported, trained_run):
    file, policy = session(exported("recurrent-cartpole")[0]), load_policy(trained_run("recurrent-cartpole"))
    memory = [np.zeros((3, 64), np.float32)] * 2
    for step in range(30):
        obs = np.random.default_rng(step).normal(size=(3, 2)).astype(np.float32)
        action, _, *memory = file.run(None, {"obs": obs, "memory_0": memory[0], "memory_1": memory[1]})
        np.testing.assert_array_equal(action, policy.act(obs))
    assert any(np.abs(part).max() > 0.01 for part in memory)


def test_a_dreamed_episode_through_the_file_is_that_of_the_policy(folder):
    """The state of the world model goes round; with the noise of torch's generator the file draws as the policy."""
    settings = dict(algo="dreamer", env_id="Pendulum-v1", normalize_observations=True, buffer_size=1000)
    checkpoint = saved_policy(folder, **settings, **TINY_DREAMER)
    done = export_policy(checkpoint, "policy.onnx")
    policy, file = load_policy(checkpoint), session("policy.onnx")
    names = [name for name in done.inputs if name.startswith("memory")]
    memory = [np.zeros((3, width(done, name)), np.float32) for name in names]
    latents = set()
    for step in range(30):
        obs = np.random.default_rng(step).normal(size=(3, 3)).astype(np.float32)
        torch.manual_seed(step)
        inputs = {"obs": obs, "noise": torch.rand(3, 4).numpy(), **dict(zip(names, memory, strict=True))}
        action, _, _, *memory = file.run(None, inputs)
        torch.manual_seed(step)
        np.testing.assert_allclose(action, policy.act(obs), atol=1e-4)
        latents.add(memory[1].tobytes())
    assert len(names) == 3 and len(latents) > 20, "each step draws a latent of its own"


def test_the_file_says_what_it_holds(exported):
    file = session(exported("ppo-cartpole")[0])
    about = file.get_modelmeta().custom_metadata_map
    assert (
        about["env_id"] == "CartPole-v1" and about["algo"] == "ppo" and "Discrete(2)" in about["action_space"]
    )
    (input_,) = file.get_inputs()
    assert (input_.name, input_.shape) == ("obs", ["batch", 4])


def test_torch_alone_is_a_program_in_this_folder(trained_run):
    told = json.loads(cli("export", trained_run("sac-pendulum"), "--to", "torch", "--json").stdout)
    assert told["path"] == "policy.pt2" and told["engine"] == "torch.export"
    assert told["outputs"] == {
        "action": "float32 [batch, 1]",
        "mean": "float32 [batch, 1]",
        "log_std": "float32 [batch, 1]",
    }
    obs = np.array([[0.1, -0.9, 3.0]] * 4, np.float32)
    found = run_file("policy.pt2", {"obs": obs})
    np.testing.assert_allclose(found["action"], load_policy(trained_run("sac-pendulum")).act(obs), atol=1e-5)


@pytest.mark.parametrize("fault", ["normaliser left out", "actions not scaled", "memory forgotten", "NaN"])
def test_a_file_that_acts_otherwise_is_refused_and_not_written(fault, trained_run, folder, monkeypatch):
    """The comparison must be able to fail."""
    run = trained_run("recurrent-cartpole" if fault == "memory forgotten" else "sac-pendulum")
    load = exporting._WAYS[".pt2"]

    def tampered(path, graph):
        honest = load[1](path, graph)

        def run_file(inputs):
            found = honest(inputs)
            if fault == "actions not scaled":
                return found | {"action": found["action"] / 2}
            if fault == "memory forgotten":
                return found | {name: 0 * part for name, part in found.items() if name.startswith("next")}
            return found | {"mean": found["mean"] * np.float32(np.nan)} if fault == "NaN" else found

        return run_file

    monkeypatch.setitem(exporting._WAYS, ".pt2", (load[0], tampered, load[2]))
    if fault == "normaliser left out":
        monkeypatch.setattr(exporting.NormalizerGraph, "forward", lambda self, obs: obs)
    done = cli("export", run, "--to", "policy.pt2")
    assert done.exit_code == 1 and done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: the exported policy is not the original: ")
    assert list(folder.iterdir()) == []


def test_a_file_of_which_nothing_could_be_compared_is_not_written(trained_run, folder, monkeypatch):
    monkeypatch.setattr(export_check, "_clear_draws", lambda *_: np.zeros(export_check.LANES, np.bool_))
    done = cli("export", trained_run("sac-pendulum"), "--to", "policy.pt2")
    assert done.exit_code == 1 and done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: the exported policy cannot be compared: ")
    assert list(folder.iterdir()) == []


def test_a_tie_is_no_difference():
    scores = np.array([[1.0, 1.0 + 1e-6, -3.0], [1.0, 1.1, 0.0]], np.float32)
    assert export_check.tied(scores, spaces.Discrete(3)).tolist() == [True, False]
    assert export_check.tied(scores, spaces.MultiDiscrete([2, 1])).tolist() == [True, False]
    assert export_check.tied(scores, spaces.MultiBinary(3)).tolist() == [False, True]


def test_bad_input_is_one_line(trained_run, folder):
    run = trained_run("ppo-cartpole")
    refused(cli("export", run, "--to", "policy.pkl"), "policy.pkl", ".onnx or .pt2")
    refused(cli("export", run), "--to")
    refused(cli("export", "nowhere", "--to", "policy.onnx"), "nowhere")
    refused(cli("export", run, "--to", "absent/policy.onnx"), "no such directory: absent")
    refused(
        cli("export", trained_run("muzero-cartpole"), "--to", "torch"),
        "a search",
        "--without-search",
        "load_policy",
    )
    Path("mine.onnx").write_text("mine")
    refused(cli("export", run, "--to", "mine.onnx"), "is there already")
    assert [path.name for path in folder.iterdir()] == ["mine.onnx"]


@pytest.mark.parametrize("module", ["onnx", "onnxscript", "onnxruntime"])
def test_a_missing_extra_is_one_line_with_the_command_that_adds_it(module, trained_run, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    refused(cli("export", trained_run("ppo-cartpole"), "--to", "onnx"), f"needs {module}", "'.[onnx]'")
