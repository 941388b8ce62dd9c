"""Checkpoints with right checksums that no training wrote: every use of them ends well, or in one line."""

from __future__ import annotations

import random
import shutil
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forging import forge_checkpoint, forge_segment, in_fork, rewritten
from runs import RUNS, small_config

from rl_training import evaluate_checkpoint, load_policy, resume, train
from rl_training.errors import CheckpointError, UserError
from rl_training.tools.forking import fork

NAMES = [
    name for name in RUNS if not name.startswith("dqn-breakout")
]  # emulators have threads that no fork has
# One of each algorithm.
FAST = list({RUNS[name]["algo"]: name for name in reversed(NAMES)}.values())
FORGERIES = 4


@pytest.fixture(scope="session")
def stopped_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The directory of a small run whose newest checkpoint lies shortly before its end, by the run's name."""
    folder = tmp_path_factory.mktemp("stopped")

    def find(name: str) -> Path:
        path = folder / name
        if not path.exists():
            total = RUNS[name]["total_timesteps"] * 3 // 4
            rare = dict(eval_interval=total, eval_episodes=1, checkpoint_interval=total * 9 // 10)
            ended = train(small_config(name, total_timesteps=total, **rare), run_dir=path)
            shutil.rmtree(ended.checkpoint_path)
            evaluate_checkpoint(path, episodes=1)  # forks find all loaded and compiled
        return path

    return find


def copied(path: Path, to: Path) -> tuple[Path, Path]:
    """A copy of a stopped run, and its newest checkpoint."""
    shutil.copytree(path, to)
    return to, max((to / "checkpoints").glob("step-*"))


def use_a_forgery(name: str, seed: int, path: Path, to: Path) -> str:
    """Forge a copy of the run and go on with it, or evaluate it; how that ended."""
    rng = random.Random(f"{name} {seed}")
    run, checkpoint = copied(path, to)
    forge = forge_segment if (run / "replay").exists() and rng.random() < 0.2 else forge_checkpoint
    only = "policy" if seed % 2 else None
    try:
        forgery = forge(checkpoint, rng, *([] if forge is forge_segment else [only]))
    except (TypeError, ValueError, OverflowError):
        return "not forged"  # what no file can hold
    use = (lambda: evaluate_checkpoint(run, episodes=1)) if seed % 2 else (lambda: resume(run))
    outcome = in_fork(use, patience=120)
    shutil.rmtree(run)
    assert outcome.kind in ("success", "refused"), f"{name} {seed}: {forgery} {outcome.kind}: {outcome.text}"
    return outcome.kind


@pytest.mark.parametrize("name", FAST)
def test_a_forged_checkpoint_goes_on_or_is_refused_in_one_line(name, stopped_run, tmp_path):
    for seed in range(FORGERIES):
        use_a_forgery(name, seed, stopped_run(name), tmp_path / str(seed))


@pytest.mark.faults
@pytest.mark.parametrize("name", NAMES)
def test_many_forged_checkpoints(name, stopped_run, tmp_path):
    kinds = [
        use_a_forgery(name, seed, stopped_run(name), tmp_path / str(seed)) for seed in range(FORGERIES, 60)
    ]
    print({kind: kinds.count(kind) for kind in set(kinds)})
    assert kinds.count("refused") > 10, "these forgeries change nothing that matters"


def fill(tensor: Any, value: float) -> Any:
    tensor[(0,) * tensor.ndim] = value
    return tensor


def lane(actions: list[np.ndarray]) -> int:
    """One that has taken an action."""
    return next(i for i, taken in enumerate(actions) if len(taken))


def with_action(value: Any) -> Callable[[dict[str, Any]], None]:
    def edit(trainer: dict[str, Any]) -> None:
        actions = trainer["environments"]["actions"]
        fill(actions[lane(actions)], value)

    return edit


DQN: dict[str, Callable[[dict[str, Any]], Any]] = {
    "steps below 0": lambda tree: tree["progress"].update(steps=-1),
    "steps as a bool": lambda tree: tree["progress"].update(steps=True),
    "steps as a float": lambda tree: tree["progress"].update(steps=400.0),
    "steps beyond 64 bits": lambda tree: tree["progress"].update(steps=10**30),
    "no steps": lambda tree: tree["progress"].pop("steps"),
    "no progress": lambda tree: tree.pop("progress"),
    "progress as a list": lambda tree: tree.update(progress=[1]),
    "trainer as a number": lambda tree: tree.update(trainer=1),
    "config as a list": lambda tree: tree["policy"].update(config=[]),
    "best return NaN": lambda tree: tree["progress"].update(best_return=float("nan")),
    "latest as text": lambda tree: tree["progress"]["latest"].update(loss="x"),
    "a cadence less": lambda tree: tree["progress"]["done_at"].pop("log"),
    "a cadence in the future": lambda tree: tree["progress"]["done_at"].update(log=10**9),
    "counts of zero": lambda tree: tree["progress"]["window"].update(
        totals={"loss": 1.0}, counts={"loss": 0}
    ),
    "episodes without a length": lambda tree: tree["progress"]["window"]["recent"].append((1.0,)),
    "a longer window": lambda tree: tree["progress"]["window"].update(recent=deque(maxlen=10**6)),
    "a list for an object": lambda tree: tree["trainer"].update(optimizer=[1]),
    "a number for a tensor": lambda tree: tree["trainer"]["optimizer"].update(mean=1.0),
    "moments of another shape": lambda tree: tree["trainer"]["optimizer"].update(mean=torch.zeros(3)),
    "a negative second moment": lambda tree: tree["trainer"]["optimizer"]["square"].fill_(-1.0),
    "a moment that is NaN": lambda tree: fill(tree["trainer"]["optimizer"]["mean"], float("nan")),
    "a weight that is infinite": lambda tree: tree["policy"]["agent"]["network"]["head.value.bias"].fill_(
        np.inf
    ),
    "a module's size": lambda tree: tree["trainer"]["target"].update(dueling=7),
    "an action out of range": lambda tree: with_action(2)(tree["trainer"]),
    "an action below 0": lambda tree: with_action(-1)(tree["trainer"]),
    "actions of floats": lambda tree: tree["trainer"]["environments"].update(
        actions=[taken.astype(np.float64) + 0.5 for taken in tree["trainer"]["environments"]["actions"]]
    ),
    "actions of one lane": lambda tree: tree["trainer"]["environments"]["actions"].pop(),
    "a negative seed": lambda tree: fill(tree["trainer"]["environments"]["seeds"], -1),
    "another observation": lambda tree: tree["trainer"]["environments"].update(
        obs=np.zeros((2, 5), np.float32)
    ),
    "updates for ever": lambda tree: tree["trainer"].update(updates_owed=1e15),
    "a head in the future": lambda tree: tree["trainer"]["replay"].update(head=2**60),
    "a head below 0": lambda tree: tree["trainer"]["replay"].update(head=-5),
    "open slots outside": lambda tree: fill(tree["trainer"]["replay"]["open"], 2**40),
    "more transitions than slots": lambda tree: tree["trainer"]["replay"].update(last=10**9),
    "more segments than slots": lambda tree: tree["trainer"]["replay"].update(segments=10**6),
    "fewer segments": lambda tree: tree["trainer"]["replay"].update(segments=0),
    "slots of other rows": lambda tree: tree["trainer"]["replay"]["slots"].update(
        reward=np.zeros(1, np.float32)
    ),
    "links out of the ring": lambda tree: tree["trainer"]["replay"]["slots"]["behind"].fill(-7),
    "a replayed action out of range": lambda tree: tree["trainer"]["replay"]["slots"]["action"].fill(99),
    "priorities below 0": lambda tree: tree["trainer"]["replay"]["priorities"]["leaves"].fill(-1.0),
    "priorities of none": lambda tree: tree["trainer"]["replay"]["priorities"]["leaves"].fill(0.0),
    "priorities of others": lambda tree: tree["trainer"]["replay"]["priorities"].update(
        leaves=np.ones(5, np.float32)
    ),
    "a priority that is NaN": lambda tree: tree["trainer"]["replay"]["priorities"]["leaves"].fill(np.nan),
}
PENDULUM: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a negative variance": lambda tree: tree["policy"]["agent"]["normalizer"]["moments"]["variance"].fill(
        -1.0
    ),
    "a mean that is NaN": lambda tree: tree["policy"]["agent"]["normalizer"]["moments"]["mean"].fill(np.nan),
    "a count of 0": lambda tree: tree["policy"]["agent"]["normalizer"]["moments"].update(count=0.0),
    "a variance for every lane": lambda tree: tree["trainer"]["reward_scaler"]["moments"].update(
        variance=np.ones(3)
    ),
    "returns that are infinite": lambda tree: tree["trainer"]["reward_scaler"]["discounted"].fill(np.inf),
    "no reward scaler": lambda tree: tree["trainer"].update(reward_scaler=None),
    "an action that is NaN": lambda tree: with_action(np.nan)(tree["trainer"]["collector"]),
    "actions of two numbers": lambda tree: tree["trainer"]["collector"]["environments"].update(
        actions=[taken.repeat(2, 1) for taken in tree["trainer"]["collector"]["environments"]["actions"]]
    ),
}
FLEET: dict[str, Callable[[dict[str, Any]], Any]] = {
    "another turn": lambda tree: tree["trainer"]["fleet"].update(turn=9),
    "a request less": lambda tree: tree["trainer"]["fleet"]["requests"].pop(),
    "weights of the future": lambda tree: tree["trainer"]["fleet"]["requests"][0].update(version=10**6),
    "weights of another size": lambda tree: tree["trainer"]["fleet"].update(
        weights={version: packed[:-4] for version, packed in tree["trainer"]["fleet"]["weights"].items()}
    ),
    "weights that are NaN": lambda tree: [
        packed[-4:].view(np.float32).fill(np.nan) for packed in tree["trainer"]["fleet"]["weights"].values()
    ],
    "an actor's action that is NaN": lambda tree: with_action(np.nan)(
        tree["trainer"]["fleet"]["requests"][0]["state"]
    ),
    "an actor's memory of another shape": lambda tree: tree["trainer"]["fleet"]["requests"][0][
        "state"
    ].update(carry=(torch.zeros(1),)),
}
CASES = [
    pytest.param(name, edit, id=f"{name}: {case}")
    for name, cases in (("dqn-cartpole", DQN), ("ppo-pendulum", PENDULUM), ("impala-memory", FLEET))
    for case, edit in cases.items()
]


@pytest.mark.parametrize(("name", "edit"), CASES)
def test_what_no_training_writes_is_refused_before_anything_is_trained(name, edit, stopped_run, tmp_path):
    run, checkpoint = copied(stopped_run(name), tmp_path / "run")
    rewritten(checkpoint, edit)
    before = kept_files(run)
    with pytest.raises(UserError) as refusal:
        resume(run)
    assert len(str(refusal.value).splitlines()) == 1
    assert kept_files(run) == before


def kept_files(run: Path) -> dict[str, bytes]:
    """What a resume that is refused must leave as it is; the log may be cut back to the checkpoint already."""
    folders = ("checkpoints", "best", "replay")
    paths = [path for folder in folders for path in sorted((run / folder).rglob("*")) if path.is_file()]
    return {str(path.relative_to(run)): path.read_bytes() for path in paths}


POLICY: dict[str, Callable[[dict[str, Any]], Any]] = {
    "another environment": lambda policy: policy["config"].update(env_id="Acrobot-v1"),
    "a network of 16 GB": lambda policy: policy["config"].update(hidden_sizes=[65_536, 65_536]),
    "more actions": lambda policy: policy["action_space"].update(n=10**12),
    "no agent": lambda policy: policy.pop("agent"),
    "a space of text": lambda policy: policy.update(observation_space="Box"),
    "observations of bytes": lambda policy: policy["observation_space"].update(dtype="uint8"),
    "a weight that is NaN": lambda policy: policy["agent"]["network"]["head.value.bias"].fill_(np.nan),
    "a probability of 5": lambda policy: policy["agent"].update(epsilon=5.0),
}


@pytest.mark.parametrize("case", POLICY)
def test_a_forged_policy_is_refused_in_one_line_by_all_that_act_with_it(case, stopped_run, tmp_path):
    run, checkpoint = copied(stopped_run("dqn-cartpole"), tmp_path / "run")
    rewritten(checkpoint, lambda tree: POLICY[case](tree["policy"]))
    uses: list[Callable[[], Any]] = [lambda: evaluate_checkpoint(run, episodes=1)]
    if case != "another environment":  # a policy alone has none
        uses.append(lambda: load_policy(checkpoint))
    for use in uses:
        with pytest.raises(UserError) as refusal:
            use()
        assert len(str(refusal.value).splitlines()) == 1


def test_a_long_forged_search_is_as_long_as_the_config_says(stopped_run, tmp_path):
    run, checkpoint = copied(stopped_run("muzero-cartpole"), tmp_path / "run")
    rewritten(checkpoint, lambda tree: tree["policy"]["agent"]["settings"].update(num_simulations=10**9))
    assert load_policy(run).agent.settings["num_simulations"] == 4


def test_a_fork_names_the_checkpoint_or_what_was_changed(stopped_run, tmp_path):
    run, checkpoint = copied(stopped_run("dqn-cartpole"), tmp_path / "run")
    rewritten(checkpoint, lambda tree: tree["trainer"].update(updates=None))
    with pytest.raises(CheckpointError, match=r"step-0.* holds values that no training writes .*updates"):
        fork(run, run_dir=tmp_path / "fork")
    assert not (tmp_path / "fork").exists()
