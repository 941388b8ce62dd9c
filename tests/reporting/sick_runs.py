"""Runs with planted faults, and healthy ones, for the tests of `diagnose`.

    python tests/reporting/sick_runs.py train SEED FILE [NAME…]   train what the file lacks, and add what they log
    python tests/reporting/sick_runs.py read SEED FILE RUNS…      add what runs of `reproduce --runs RUNS` logged
    python tests/reporting/sick_runs.py prove SEED NAME     train one, prove the change, and add it to proofs.json
    python tests/reporting/sick_runs.py page                write the tables of docs/diagnose.md

Thresholds were chosen on runs of seed 11; sick_runs.json holds runs of seed 12, thinned to some forty lines each.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

HERE = Path(__file__).parent
LOGS, PROOFS = HERE / "sick_runs.json", HERE / "proofs.json"
PAGE = HERE.parents[1] / "docs" / "diagnose.md"
SETTINGS = ("algo", "env_id", "seed", "total_timesteps", "normalize_rewards", "tau")  # that the rules read
SETTINGS += (
    "normalize_observations",
    "layer_norm",
    "train_ratio",
    "reconstruction_scale",
    "num_envs",
    "num_steps",
    "batch_size",
    "buffer_size",
    "two_players",
)
KNOBS = ("learning_rate", "gamma", "ent_coef", "vf_coef", "max_grad_norm", "pb_c_init", "clip_coef")
KNOBS += ("target_kl", "num_simulations")
POINTS = 40


class Unrewarded(gym.RewardWrapper):
    """CartPole whose reward was forgotten."""

    def __init__(self) -> None:
        super().__init__(gym.make("CartPole-v1"))

    def reward(self, reward: Any) -> float:
        return 0.0


class Huge(gym.RewardWrapper):
    """CartPole in units that are a thousand times too small."""

    def __init__(self) -> None:
        super().__init__(gym.make("CartPole-v1"))

    def reward(self, reward: Any) -> float:
        return 1000.0 * float(reward)


class Endless(gym.Env[Any, Any]):
    """An environment that never ends an episode."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.observation_space.sample() * 0, {}

    def step(self, action: Any) -> Any:
        return np.zeros(2, np.float32), float(action), False, False, {}


class Opponent(gym.Env[Any, Any]):
    """Matching pennies against someone who expects the last action again: who is greedy always loses."""

    observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.last, self.steps = int(self.np_random.integers(2)), 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        reward, self.last, self.steps = float(action != self.last), int(action), self.steps + 1
        return np.zeros(1, np.float32), reward, False, self.steps == 20, {}


class Bait(gym.Env[Any, Any]):
    """A point for one action, and three less a step later."""

    observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.owed, self.steps = 0, 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        reward, self.owed, self.steps = float(action - 3 * self.owed), int(action), self.steps + 1
        return np.full(1, self.owed, np.float32), reward, False, self.steps == 25, {}


class OldInterface(gym.Wrapper[Any, Any, Any, Any]):
    """Pendulum behind an interface that knows one kind of end."""

    def __init__(self) -> None:
        super().__init__(gym.make("Pendulum-v1"))

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated or truncated, False, info


class Millimetres(gym.ObservationWrapper[Any, Any, Any]):
    """CartPole with observations in another unit."""

    def __init__(self) -> None:
        super().__init__(gym.make("CartPole-v1"))
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)

    def observation(self, observation: Any) -> Any:
        return observation * np.float32(1000)


class Biased(gym.ObservationWrapper[Any, Any, Any]):
    """CartPole with a sensor whose bias no two instances share."""

    made = 0

    def __init__(self) -> None:
        super().__init__(gym.make("CartPole-v1"))
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (5,), np.float32)
        Biased.made += 1
        self.bias = np.float32(Biased.made % 97)

    def observation(self, observation: Any) -> Any:
        return np.append(observation, self.bias).astype(np.float32)


class Planted(NamedTuple):
    """One run: what is in it, and the rule that shall name its fault ("" for a healthy one)."""

    rule: str
    settings: Mapping[str, Any]
    env: Any = None


PPO = dict(
    algo="ppo", env_id="CartPole-v1", total_timesteps=30_000, num_envs=4, num_steps=128, eval_episodes=3
)
PPO |= dict(log_interval=512, eval_interval=5_000, learning_rate=1e-3, hidden_sizes=[32, 32])
DQN = dict(algo="dqn", env_id="CartPole-v1", total_timesteps=6_000, learning_starts=500, hidden_sizes=[32])
DQN |= dict(
    log_interval=200,
    eval_interval=1_000,
    eval_episodes=3,
    buffer_size=5_000,
    batch_size=32,
    replay_ratio=0.25,
)
SAC = dict(algo="sac", env_id="Pendulum-v1", total_timesteps=4_000, learning_starts=500, hidden_sizes=[32])
SAC |= dict(
    log_interval=200, eval_interval=1_000, eval_episodes=3, buffer_size=4_000, batch_size=32, replay_ratio=0.5
)
PLAN = dict(algo="muzero", env_id="CartPole-v1", total_timesteps=1_500, num_envs=2, learning_starts=200)
PLAN |= dict(
    replay_ratio=0.1, buffer_size=1_500, batch_size=16, hidden_sizes=[16], latent_size=16, num_simulations=8
)
PLAN |= dict(log_interval=100, eval_interval=1_500, eval_episodes=2)
DREAM = dict(algo="dreamer", env_id="CartPole-v1", total_timesteps=2_000, num_envs=4, learning_starts=200)
DREAM |= dict(buffer_size=2_000, batch_size=8, batch_length=16, deter_size=64, rssm_hidden=32, num_latents=8)
DREAM |= dict(num_classes=8, units=32, blocks=4, mlp_layers=1, train_ratio=32, learning_rate=1e-3)
DREAM |= dict(log_interval=100, eval_interval=2_000, eval_episodes=2)

SICK: dict[str, Planted] = {
    "ppo, learning rate 0.3": Planted("entropy collapsed", PPO | dict(learning_rate=0.3)),
    "ppo, learning rate 0.03, 20 epochs": Planted(
        "divergence of the policy", PPO | dict(learning_rate=0.03, update_epochs=20)
    ),
    "ppo, learning rate 1e-7": Planted("updates without effect", PPO | dict(learning_rate=1e-7)),
    "a2c, learning rate 1e-8": Planted(
        "updates without effect", dict(PPO, algo="a2c", num_steps=16, learning_rate=1e-8)
    ),
    "ppo, learning rate 1e-5": Planted("updates without effect", PPO | dict(learning_rate=1e-5)),
    "trpo, KL limit 1e-7": Planted("updates without effect", dict(PPO, algo="trpo", target_kl=1e-7)),
    "ppo, schedule ends at step 1000": Planted(
        "learning rate is 0", PPO | dict(learning_rate_schedule={"type": "linear", "steps": 1000})
    ),
    "sac, schedule ends at step 1000": Planted(
        "learning rate is 0", SAC | dict(learning_rate_schedule={"type": "linear", "steps": 1000})
    ),
    "ppo, entropy bonus 2": Planted("entropy never falls", PPO | dict(ent_coef=2.0)),
    "sac, temperature 20": Planted("entropy never falls", SAC | dict(ent_coef=20.0)),
    "a2c, learning rate 0.3": Planted(
        "entropy collapsed", dict(PPO, algo="a2c", num_steps=16, learning_rate=0.3)
    ),
    "ppo, learning rate 1": Planted("entropy collapsed", PPO | dict(learning_rate=1.0)),
    "ppo, gradients clipped to 1e-4": Planted("gradients at the clip", PPO | dict(max_grad_norm=1e-4)),
    "dqn, gradients clipped to 1e-5": Planted("gradients at the clip", DQN | dict(max_grad_norm=1e-5)),
    "ppo, no value loss": Planted("value function explains nothing", PPO | dict(vf_coef=0.0)),
    "trpo, KL limit 2": Planted(
        "divergence of the policy", dict(PPO, algo="trpo", target_kl=2.0, learning_rate=1e-3)
    ),
    "ppo, reward forgotten": Planted("reward never varies", PPO, Unrewarded),
    "dqn, reward forgotten": Planted("reward never varies", DQN, Unrewarded),
    "ppo, rewards of 1000": Planted("value scale", PPO, Huge),
    "ppo, episodes never end": Planted(
        "no episode ends", PPO | dict(eval_interval=30_000, eval_episodes=1), Endless
    ),
    "ppo, greedy evaluation of a mixed policy": Planted(
        "evaluation far from training", PPO | dict(total_timesteps=10_000, ent_coef=0.02), Opponent
    ),
    "dqn, epsilon stays 1": Planted(
        "exploration never falls", DQN | dict(epsilon=1.0, epsilon_schedule=None)
    ),
    "dqn, no target network": Planted(
        "Q above returns",
        DQN | dict(target_update_interval=1, tau=1.0, learning_rate=0.02, gamma=1.0, double=False),
    ),
    "sac, no target network": Planted("Q above returns", SAC | dict(tau=1.0, learning_rate=0.03)),
    "dqn, one update in 500 steps": Planted("too few updates", DQN | dict(replay_ratio=0.002)),
    "sac, one update in 500 steps": Planted("too few updates", SAC | dict(replay_ratio=0.002)),
    "dqn, 16 updates a step from 100 steps": Planted(
        "too many updates", DQN | dict(replay_ratio=16, buffer_size=100, learning_starts=100)
    ),
    "sac, 16 updates a step from 100 steps": Planted(
        "too many updates", SAC | dict(replay_ratio=16, buffer_size=100, learning_starts=100)
    ),
    "dqn, 16 updates a step from all steps": Planted("too many updates", DQN | dict(replay_ratio=16)),
    "sac, 16 updates a step from all steps": Planted("too many updates", SAC | dict(replay_ratio=16)),
    "muzero, visits by the prior alone": Planted("search ignores values", PLAN | dict(pb_c_init=1e6)),
    "ppo, clip range 0.001": Planted("clip fraction out of range", PPO | dict(clip_coef=0.001)),
    "ppo, learning rate 1 from step 20 000 on": Planted(
        "entropy collapsed",
        PPO | dict(learning_rate_schedule={"type": "step", "points": [[0, 1e-3], [20_000, 1.0]]}),
    ),
    "muzero, learning rate 1e-8": Planted("world model's error", PLAN | dict(learning_rate=1e-8)),
    "dreamer, observations not learned": Planted(
        "world model's error", DREAM | dict(reconstruction_scale=0.0)
    ),
    "dqn, ReLU, learning rate 0.3": Planted("dead units", DQN | dict(activation="relu", learning_rate=0.3)),
    "ppo, ReLU, learning rate 0.3": Planted("dead units", PPO | dict(activation="relu", learning_rate=0.3)),
    "dreamer, learning rate 1": Planted("dead units", DREAM | dict(learning_rate=1.0)),
    "ppo, observations in another unit": Planted("observation scale", PPO, Millimetres),
    "ppo, a bias of every instance": Planted(
        "normaliser saturated", PPO | dict(num_envs=1, num_steps=512, normalize_observations=True), Biased
    ),
    "ppo, time limit as termination": Planted("truncation taken for termination", PPO, OldInterface),
    "sac, time limit as termination": Planted("truncation taken for termination", SAC, OldInterface),
    "ppo, bait and no discounted future": Planted("return below random play", PPO | dict(gamma=0.0), Bait),
    "a2c, bait and no discounted future": Planted(
        "return below random play", dict(PPO, algo="a2c", num_steps=16, gamma=0.0), Bait
    ),
}
# Presets that have a row of results, whole; and what has no row, healthy.
HEALTHY: dict[str, Planted] = {
    name: Planted("", dict(extends=name))
    for name in (
        "ppo/cartpole",
        "ppo/acrobot",
        "ppo/pendulum",
        "ppo/cartpole_no_velocity",
        "ppo/pendulum_no_velocity",
        "ppo/lunarlander",
        "ppo/minigrid_doorkey",
        "ppo/hopper",
        "ppo/walker2d",
        "ppo/halfcheetah",
        "a2c/cartpole",
        "a2c/lunarlander",
        "a2c/halfcheetah",
        "trpo/cartpole",
        "trpo/pendulum",
        "trpo/lunarlander",
        "trpo/hopper",
        "trpo/walker2d",
        "dqn/cartpole",
        "recurrent_ppo/cartpole_no_velocity",
        "recurrent_ppo/pendulum_no_velocity",
        "gail/cartpole",
        "gail/acrobot",
        "gail/hopper",
        "bc/cartpole",
        "bc/acrobot",
        "bc/pendulum",
        "bc/hopper",
    )
}
HEALTHY |= {"dreamer, small": Planted("", DREAM)}
HEALTHY |= {
    "sac, 8 updates a step": Planted("", SAC | dict(replay_ratio=8, learning_rate=1e-3, batch_size=64))
}


def trained(planted: Planted, run_dir: Path, seed: int) -> dict[str, Any]:
    """The run's config and thinned curves, as the tests read them."""
    from rl_training import load_config, train

    settings = {**planted.settings, "seed": seed}
    name = settings.pop("extends", None)
    config = load_config(name, settings) if name else load_config(settings)
    train(config, run_dir=run_dir, env=planted.env, quiet=True)
    return logged(run_dir, planted.env)


def logged(run_dir: Path, env: Any) -> dict[str, Any]:
    """What the run logged, and what is measured by playing it."""
    from rl_training.reporting.diagnosis import PLAYED, RULES, of_record
    from rl_training.reporting.records import read_run
    from rl_training.tools.probing import probed

    record = read_run(run_dir)
    told = probed(of_record(record), run_dir, env=env)
    curves: dict[str, Any] = {
        name: [(int(step[0]), float(f"{value[0]:.5g}"))]
        for name, (step, value) in told.curves.items()
        if name.startswith(PLAYED)
    }
    wanted = {
        *KNOBS,
        "value_loss",
        "step_fraction",
        "eval/mean_length",
        *(metric for rule in RULES for metric in rule.metrics),
    }
    for name in (name for name in record.metrics.names if name in wanted):
        steps, values = record.curve(name)[:2]
        keep = np.unique(np.linspace(0, len(steps) - 1, min(POINTS, len(steps))).round().astype(int))
        known = [(int(steps[i]), float(f"{values[i]:.5g}")) for i in keep if np.isfinite(values[i])]
        if len({value for _, value in known}) == 1:  # for a smaller file
            known = [known[0], known[-1]]
        curves[name] = known
    settings = {name: record.config[name] for name in SETTINGS if name in record.config}
    return {"config": settings, "curves": curves, "where": dict(told.where)}


def seen(run: Mapping[str, Any]) -> Any:
    """A run of the file as `diagnose` sees runs."""
    from rl_training.reporting.diagnosis import Seen

    curves = {}
    for name, points in run["curves"].items():
        steps, values = np.array(points, np.float64).T
        if len(points) == 2 and values[0] == values[1]:
            steps, values = np.linspace(*steps, POINTS).round(), np.full(POINTS, values[0])
        curves[name] = steps, values
    return Seen(run["config"], curves, run["where"])


def train_all(seed: int, file: Path, *names: str) -> None:
    known = json.loads(file.read_text()) if file.exists() else {}
    for name, planted in (SICK | HEALTHY).items():
        if name not in known and (not names or name in names):
            with tempfile.TemporaryDirectory() as folder:
                known[name] = trained(planted, Path(folder) / "run", seed)
            print(name, flush=True)
            keep(known, file)


def read_all(seed: int, file: Path, *folders: str) -> None:
    """Add runs that are there already: the healthy ones as `reproduce` leaves them."""
    known = json.loads(file.read_text()) if file.exists() else {}
    for name in HEALTHY:
        for run_dir in (Path(folder) / name / f"s{seed}" for folder in folders):
            if name not in known and run_dir.exists():
                known[name] = logged(run_dir, None)
                print(name, flush=True)
                keep(known, file)


def keep(runs: Mapping[str, Any], file: Path) -> None:
    lines = (f"{json.dumps(name)}:{json.dumps(run, separators=(',', ':'))}" for name, run in runs.items())
    file.write_text("{" + ",\n".join(lines) + "}\n")


def prove_one(name: str, seed: int) -> None:
    from rl_training.reporting.diagnosis import diagnose
    from rl_training.tools.proving import prove

    with tempfile.TemporaryDirectory() as folder:
        run = trained(SICK[name], Path(folder) / "run", seed)
        found = next(finding for finding in diagnose(seen(run)) if finding.changes)
        proof = prove(Path(folder) / "run", found.changes, step=found.try_from, seeds=5)
    known = json.loads(PROOFS.read_text()) if PROOFS.exists() else {}
    known[name] = {"changes": found.changes, "step": proof.step, "steps": proof.steps}
    known[name] |= {"without": proof.without, "with": proof.with_change}
    PROOFS.write_text(json.dumps(known, indent=1) + "\n")


def proof_table(proofs: Mapping[str, Any]) -> str:
    """What each proof came to; its interval is computed from the returns."""
    from rl_training.reporting.statistics import improvement_interval

    lines = [
        "| run | change | steps | returns without | returns with | probability of improvement |",
        "|---|---|---|---|---|---|",
    ]
    for name, proof in proofs.items():
        p = improvement_interval([np.array(proof["with"])], [np.array(proof["without"])])
        change = ", ".join(f"{key}: {value}" for key, value in proof["changes"].items() if value is not None)
        without, given = (", ".join(f"{value:.0f}" for value in proof[arm]) for arm in ("without", "with"))
        lines.append(
            f"| {name} | `{change}` | {proof['steps']} from {proof['step']} | {without} | {given} "
            f"| {float(p.value):.2f} ({float(p.low):.2f} to {float(p.high):.2f}) |"
        )
    return "\n".join(lines)


def rule_table() -> str:
    from rl_training.reporting.diagnosis import RULES

    rows = [
        f"| {rule.name} | {', '.join(f'`{m}`' for m in rule.metrics)} | {rule.source} |" for rule in RULES
    ]
    return "\n".join(["| rule | seen in | source |", "|---|---|---|", *rows])


def page() -> str:
    """docs/diagnose.md with its tables as they should be."""
    tables = {"rules": rule_table(), "proofs": proof_table(json.loads(PROOFS.read_text()))}
    tables["corpus"] = table(json.loads(LOGS.read_text()))
    text = PAGE.read_text("utf-8")
    for name, block in tables.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        before, _, rest = text.partition(begin)
        text = before + begin + block + "\n" + end + rest.partition(end)[2]
    return text


def table(runs: Mapping[str, Any]) -> str:
    """Every run, the rule that should name it, and what was named; at the end how many of which."""
    from rl_training.reporting.diagnosis import diagnose

    lines = ["| run | planted | named |", "|---|---|---|"]
    hits = misses = alarms = 0
    others = list[int]()
    for name, planted in (SICK | HEALTHY).items():
        named = [finding.rule for finding in diagnose(seen(runs[name]))]
        hits += bool(planted.rule) and planted.rule in named
        misses += bool(planted.rule) and planted.rule not in named
        alarms += not planted.rule and bool(named)
        others += [len(set(named) - {planted.rule})] if planted.rule else []
        lines.append(f"| {name} | {planted.rule or 'healthy'} | {', '.join(named) or 'nothing'} |")
    summary = f"{hits} of {len(SICK)} sick runs named rightly, {misses} missed"
    summary += f"; {sum(others)} other names in {np.count_nonzero(others)} of them"
    return "\n".join([*lines, "", f"{summary}; {alarms} false alarms in {len(HEALTHY)} healthy runs."])


if __name__ == "__main__":
    verb, *rest = sys.argv[1:]
    if verb == "train":
        train_all(int(rest[0]), Path(rest[1]), *rest[2:])
    elif verb == "read":
        read_all(int(rest[0]), Path(rest[1]), *rest[2:])
    elif verb == "prove":
        prove_one(rest[1], int(rest[0]))
    else:
        PAGE.write_text(page(), "utf-8")
