"""What other libraries call things: their names of arguments, and where each leads here.

Names of stable-baselines3, its zoo and CleanRL that are no keys of a config. A hint is the keys that may be meant, of
which the first that a config has is named, and what to know about it; or only that.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple


class Hint(NamedTuple):
    keys: tuple[str, ...] = ()
    note: str = ""


_NETWORK = Hint(
    ("hidden_sizes",), "the network follows from the observation; see activation and image_encoder too"
)
_ATARI = ("frame_stack", "frame_skip", "noop_max", "terminal_on_life_loss", "sticky_actions")
_EPSILON = Hint(
    ("epsilon",), "epsilon_schedule: {type: linear, start: 1.0, end: 0.05, steps: N} lets it fall"
)
_ROLLOUT = "a minibatch has num_envs * num_steps / num_minibatches transitions"

HINTS: dict[str, Hint] = {
    "batch_size": Hint(("num_minibatches",), _ROLLOUT),
    "minibatch_size": Hint(("num_minibatches", "batch_size"), _ROLLOUT),
    "n_timesteps": Hint(("total_timesteps",)),
    "timesteps": Hint(("total_timesteps",)),
    "total_steps": Hint(("total_timesteps",)),
    "n_steps": Hint(("num_steps", "n_step")),
    "n_envs": Hint(("num_envs",)),
    "epochs": Hint(("update_epochs",)),
    "clip_vloss": Hint(("value_clip_coef",), "a number in returns; null: no clip"),
    "norm_adv": Hint(("normalize_advantages",)),
    "normalize_advantage": Hint(("normalize_advantages",)),
    "normalize": Hint(("normalize_observations",), "and normalize_rewards"),
    "norm_obs": Hint(("normalize_observations",)),
    "norm_reward": Hint(("normalize_rewards",)),
    "anneal_lr": Hint(("learning_rate",), "learning_rate_schedule: linear lets it fall to 0"),
    "policy_lr": Hint(("learning_rate",)),
    "q_lr": Hint(("learning_rate",)),
    "policy": _NETWORK,
    "policy_kwargs": _NETWORK,
    "net_arch": _NETWORK,
    "activation_fn": Hint(("activation",)),
    "features_extractor_class": Hint(("image_encoder",)),
    "env": Hint(("env_id",)),
    "gym_id": Hint(("env_id",)),
    "env_wrapper": Hint(("env_id",), "register an environment with the wrapper around it and name that"),
    **{name: Hint((), f"a setting of the environment: env_kwargs: {{{name}: ...}}") for name in _ATARI},
    "train_freq": Hint(("train_frequency",)),
    "gradient_steps": Hint(("replay_ratio",), "updates per environment step"),
    "target_network_frequency": Hint(("target_update_interval",), "counted in updates"),
    "exploration_fraction": _EPSILON,
    "exploration_initial_eps": _EPSILON,
    "exploration_final_eps": _EPSILON,
    "start_e": _EPSILON,
    "end_e": _EPSILON,
    "autotune": Hint(("ent_coef",), "auto learns it"),
    "alpha": Hint(("ent_coef",), "auto learns it, a number fixes it"),
    "use_sde": Hint((), "state-dependent exploration is not here; log_std_init sets the spread of the noise"),
    "cuda": Hint(("device",), "cpu, cuda or cuda:N"),
    "torch_deterministic": Hint((), "every run is deterministic; leave it out"),
    "verbose": Hint((), "--quiet shows warnings only"),
    "exp_name": Hint((), "--run-dir names where a run is written"),
    "tensorboard_log": Hint(("tensorboard",), "true writes events into the run directory"),
    "track": Hint(("wandb",)),
    "wandb_project_name": Hint(("wandb",), "the project is that of the variable WANDB_PROJECT"),
    "capture_video": Hint((), "rl-training play RUN --video FILE draws a trained policy"),
    "save_model": Hint((), "every run saves checkpoints; checkpoint_interval says how often"),
    "eval_freq": Hint(("eval_interval",)),
    "n_eval_episodes": Hint(("eval_episodes",)),
    "save_freq": Hint(("checkpoint_interval",)),
    "num_iterations": Hint(("total_timesteps",), "a run is measured in steps"),
}


def hint_for(key: str, fields: Collection[str]) -> str:
    """Where another library's name leads, for a config of these fields; "" if it is nobody's."""
    hint = HINTS.get(key)
    if hint is None:
        return ""
    ours = next((name for name in hint.keys if name in fields), None)
    if ours is None and hint.keys:
        return ""
    if ours is None:
        return hint.note
    return f"here it is {ours}" + (f" ({hint.note})" if hint.note else "")
