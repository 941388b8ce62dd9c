"""Export of a policy as one graph, from raw observations to environment actions.

What is exported is the greedy policy with all that stands between the observation and the network and between the
network and the action: normaliser, action mask, memory, action scaling. The file is run and compared with the
policy before it gets its name.
"""

from __future__ import annotations

import json
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rl_training import __version__
from rl_training.data.normalization import CLIP, EPSILON, ObservationNormalizer
from rl_training.envs.spaces import JOINT, ActionCodec, space_from_json
from rl_training.errors import UserError, one_line
from rl_training.extras import require_extra
from rl_training.runtime.workflows import Which, load_agent
from rl_training.settings.config import Config
from rl_training.state.files import WRITING
from rl_training.tools.export_check import compare, example_observations
from rl_training.trees import named_space_leaves, tree_leaves, tree_map
from rl_training.types import Space

SUFFIXES = (".onnx", ".pt2")
DEFAULTS = {"onnx": "policy.onnx", "torch": "policy.pt2"}
Run = Callable[[list[np.ndarray]], dict[str, np.ndarray]]  # the inputs in order -> the outputs by name


class Exported(NamedTuple):
    """What was exported, and how near it is to the original."""

    path: Path
    policy: str
    left_out: str
    inputs: dict[str, str]
    outputs: dict[str, str]
    engine: str
    compared: int
    difference: float


def export_policy(
    path: str | Path,
    to: str | Path,
    *,
    checkpoint: Which = "last",
    without_search: bool = False,
    trust: bool = False,
) -> Exported:
    """Write the policy of a run directory or of one checkpoint to a new file, .onnx or .pt2, and compare the two.

    Raises UserError where that cannot be done, ExportError (and writes nothing) where the two are not the same.
    """
    target = Path(DEFAULTS.get(str(to), to))
    refuse_target(target)
    config, agent, saved = load_agent(path, checkpoint, device="cpu", trust=trust)
    if not hasattr(agent, "greedy"):
        raise UserError(
            f"policies of {config.algo_name} cannot be exported; `rl_training.load_policy` acts with them"
        )
    left_out = type(agent).greedy_leaves_out
    if left_out and not without_search:
        raise UserError(
            f"the policy of {config.algo_name} acts by {left_out}, which is not a graph: --without-search exports what "
            "the network alone would choose, and `rl_training.load_policy` acts with the search"
        )
    observation_space, action_space = (
        space_from_json(saved[f"{name}_space"]) for name in ("observation", "action")
    )
    graph = PolicyGraph(agent, observation_space, action_space).train(False)
    with _quiet(), torch.no_grad(), torch.random.fork_rng(devices=[]):
        program = graph.program()
        aside = target.with_name(WRITING + target.name)
        try:
            write, load, engine = _WAYS[target.suffix]
            write(program, aside, graph, _about(config, saved))
            difference = compare(graph, load(aside, graph), agent)
            os.replace(aside, target)
        except OSError as error:
            raise UserError(f"--to {target}: cannot be written: {one_line(error)}") from error
        finally:
            aside.unlink(missing_ok=True)
    return Exported(
        target,
        f"{config.algo_name} on {config.env_id}",
        left_out,
        graph.described(graph.examples()),
        graph.described(difference.outputs),
        engine,
        difference.compared,
        difference.largest,
    )


def refuse_target(target: Path) -> None:
    """Refuse, in one line and before anything is loaded, a file that cannot be written."""
    if target.suffix not in SUFFIXES:
        raise UserError(f"--to {target}: write to a file ending in .onnx or .pt2, or to onnx or torch")
    if target.exists():
        raise UserError(f"--to {target}: is there already")
    if not target.parent.is_dir():
        raise UserError(f"--to {target}: no such directory: {target.parent}")
    if target.suffix == ".onnx":
        require_extra("onnx", f"--to {target}")


class PolicyGraph(nn.Module):
    """(parts of the observation, of the memory, and noise if it draws) → `action`, what it was chosen by, the next
    memory."""

    def __init__(self, agent: Any, observation_space: Space, action_space: Space) -> None:
        super().__init__()
        self.agent, self.observation_space, self.action_space = agent, observation_space, action_space
        # The very modules that `agent.greedy` uses, so that their weights are found.
        self.networks = nn.ModuleList(part for part in vars(agent).values() if isinstance(part, nn.Module))
        self.normalizer = None if agent.normalizer is None else NormalizerGraph(agent.normalizer)
        self.actions = ActionsGraph(action_space)
        self.template = self.observations(1, seed=0)
        self.observation_names = [name for name, _ in tree_leaves(self.template, "obs")]
        self.num_draws = getattr(agent, "num_draws", 0)  # an algorithm of one's own may not say
        self.noise_names = ["noise"] if self.num_draws else []
        self.memory_names = [f"memory_{i}" for i in range(len(self.initial(1)))]

    @property
    def input_names(self) -> list[str]:
        return [*self.observation_names, *self.memory_names, *self.noise_names]

    def initial(self, count: int) -> tuple[Tensor, ...]:
        """The memory with which an episode begins."""
        return self.agent.acting_carry(self.agent.initial(count))

    def observations(self, count: int, seed: int) -> Any:
        """Observations such as the policy may meet."""
        return example_observations(
            self.agent, self.observation_space, self.action_space, count=count, seed=seed
        )

    def forward(self, *tensors: Tensor) -> dict[str, Tensor]:
        leaves = iter(tensors)
        obs = tree_map(lambda _: next(leaves), self.template)
        inputs = obs if self.normalizer is None else self.normalizer(obs)
        memory = tuple(next(leaves) for _ in self.memory_names)
        action, scores, memory = self.agent.greedy(inputs, memory, *leaves)
        after = {f"next_{name}": part for name, part in zip(self.memory_names, memory, strict=True)}
        return {**self.actions(action), **scores, **after}

    def examples(self) -> dict[str, np.ndarray]:
        """Two rows of every input."""
        obs = self.observations(2, seed=0)
        leaves = [part for _, part in tree_leaves(obs, "obs")] + [part.numpy() for part in self.initial(2)]
        return dict(zip(self.input_names, leaves + self.noise(2, seed=0), strict=True))

    def noise(self, count: int, seed: int) -> list[np.ndarray]:
        """The numbers that a policy which draws takes from torch's generator after this seed; none of others."""
        torch.manual_seed(seed)
        return [torch.rand(count, self.num_draws).numpy() for _ in self.noise_names]

    def program(self) -> Any:
        """The graph of it all, for any number of rows."""
        rows = torch.export.Dim("batch")
        examples = tuple(torch.from_numpy(part) for part in self.examples().values())
        return torch.export.export(self, examples, dynamic_shapes=(tuple({0: rows} for _ in examples),))

    def run(self, inputs: list[np.ndarray]) -> dict[str, np.ndarray]:
        outputs = self(*(torch.from_numpy(part) for part in inputs))
        return {name: part.numpy() for name, part in outputs.items()}

    @staticmethod
    def described(arrays: dict[str, np.ndarray]) -> dict[str, str]:
        return {
            name: f"{array.dtype} [{', '.join(['batch', *map(str, array.shape[1:])])}]"
            for name, array in arrays.items()
        }


class NormalizerGraph(nn.Module):
    """A frozen `ObservationNormalizer`, in its own double precision."""

    def __init__(self, normalizer: ObservationNormalizer) -> None:
        super().__init__()
        self.parts = nn.ModuleDict(
            {f"part_{key}": NormalizerGraph(part) for key, part in normalizer.parts.items()}
        )
        self.moves = normalizer.moments is not None
        if normalizer.moments is not None:
            self.register_buffer("mean", torch.from_numpy(normalizer.moments.mean.copy()))
            deviation = np.sqrt(normalizer.moments.variance + EPSILON)
            self.register_buffer("deviation", torch.from_numpy(np.asarray(deviation)))

    def forward(self, obs: Any) -> Any:
        if isinstance(obs, dict):
            return {key: self.parts[f"part_{key}"](part) for key, part in obs.items()}
        if not self.moves:
            return obs
        return ((obs.double() - self.mean) / self.deviation).clamp(-CLIP, CLIP).float()


class ActionsGraph(nn.Module):
    """Model-space actions → `action`; of a Tuple or Dict the leaves by their names, such as `action/grip`."""

    def __init__(self, space: Space) -> None:
        super().__init__()
        leaves = dict(named_space_leaves(space, "action"))
        self.names, self.is_joint = list(leaves), isinstance(space, JOINT)
        self.parts = nn.ModuleList(ActionGraph(leaf) for leaf in leaves.values())
        self.widths = [int(np.prod(leaf.shape)) for leaf in leaves.values()]

    def forward(self, action: Tensor) -> dict[str, Tensor]:
        columns = action.split(self.widths, -1) if self.is_joint else (action,)
        made = [part(self._typed(part, column)) for part, column in zip(self.parts, columns, strict=True)]
        return dict(zip(self.names, made, strict=True))

    def _typed(self, part: Any, column: Tensor) -> Tensor:
        """A leaf's columns of a joint row of numbers, as its own model-space actions: [B] for a Discrete."""
        if not self.is_joint or isinstance(part.space, spaces.Box):
            return column
        return column.long().squeeze(-1) if isinstance(part.space, spaces.Discrete) else column.long()


class ActionGraph(nn.Module):
    """Model-space actions as the environment takes them: what `ActionCodec.to_env` does."""

    bounded: Tensor
    half_width: Tensor
    centre: Tensor
    low: Tensor
    high: Tensor
    start: Tensor

    def __init__(self, space: Space) -> None:
        super().__init__()
        self.space, codec = space, ActionCodec(space)
        if isinstance(space, spaces.Box):
            for name in ("bounded", "half_width", "centre"):
                self.register_buffer(name, torch.from_numpy(getattr(codec, name)))
            for name in ("low", "high"):
                self.register_buffer(name, torch.from_numpy(getattr(space, name)))
        else:
            self.register_buffer("start", torch.as_tensor(codec.start))

    def forward(self, action: Tensor) -> Tensor:
        if not isinstance(self.space, spaces.Box):
            return (action + self.start).to(_torch_dtype(self.space.dtype))
        clipped = torch.where(self.bounded, action.clamp(-1.0, 1.0), action)
        scaled = clipped.double() * self.half_width + self.centre
        if self.space.dtype.kind in "iu":
            scaled = scaled.round()
        scaled = scaled.to(_torch_dtype(self.space.dtype)).reshape(-1, *self.space.shape)
        return torch.minimum(torch.maximum(scaled, self.low), self.high)


def _torch_dtype(dtype: object) -> torch.dtype:
    return torch.from_numpy(np.zeros(0, dtype)).dtype


def _about(config: Config, saved: Any) -> dict[str, str]:
    """What a reader of the file may want to know."""
    spaces_ = {name: str(space_from_json(saved[name])) for name in ("observation_space", "action_space")}
    return {"algo": config.algo, "env_id": config.env_id, "made_by": f"rl-training {__version__}", **spaces_}


def _write_onnx(program: Any, path: Path, graph: PolicyGraph, about: dict[str, str]) -> None:
    made = torch.onnx.export(program, input_names=graph.input_names, verbose=False)
    assert made is not None
    model = made.model_proto
    for output, name in zip(model.graph.output, graph.run(list(graph.examples().values())), strict=True):
        _rename_output(model.graph, output.name, name)
    symbol = model.graph.input[0].type.tensor_type.shape.dim[0].dim_param
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        for side in value.type.tensor_type.shape.dim:
            if side.dim_param == symbol:
                side.dim_param = "batch"
    for key, text in about.items():
        model.metadata_props.add(key=key, value=text)
    path.write_bytes(model.SerializeToString())


def _rename_output(graph: Any, old: str, new: str) -> None:
    """Give an output its name; a value inside that happens to have it gets another one."""
    if old != new:
        _rename(graph, new, f"inner_{new}")
        _rename(graph, old, new)


def _rename(graph: Any, old: str, new: str) -> None:
    for node in graph.node:
        node.output[:] = [new if name == old else name for name in node.output]
        node.input[:] = [new if name == old else name for name in node.input]
    for value in (*graph.output, *graph.initializer, *graph.value_info):
        value.name = new if value.name == old else value.name


def _load_onnx(path: Path, graph: PolicyGraph) -> Run:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(inputs: list[np.ndarray]) -> dict[str, np.ndarray]:
        return dict(
            zip(names, session.run(names, dict(zip(graph.input_names, inputs, strict=True))), strict=True)
        )

    return run


def _write_torch(program: Any, path: Path, graph: PolicyGraph, about: dict[str, str]) -> None:
    with path.open("wb") as file:
        torch.export.save(program, file, extra_files={"about.json": json.dumps(about)})


def _load_torch(path: Path, graph: PolicyGraph) -> Run:
    with path.open("rb") as file:
        module = torch.export.load(file).module()

    def run(inputs: list[np.ndarray]) -> dict[str, np.ndarray]:
        outputs = module(*(torch.from_numpy(part) for part in inputs))
        return {name: part.detach().numpy() for name, part in outputs.items()}

    return run


# Suffix of a file -> how it is written, how it is run, and what runs it.
_WAYS: dict[str, tuple[Callable[..., None], Callable[..., Run], str]] = {
    ".onnx": (_write_onnx, _load_onnx, "onnxruntime"),
    ".pt2": (_write_torch, _load_torch, "torch.export"),
}


@contextmanager
def _quiet() -> Iterator[None]:
    """What the exporters say about themselves is not for our user."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(level)
