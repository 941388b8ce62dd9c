"""Argument names of other libraries, and the key each corresponds to here.

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
_ATARI = ("frame_skip", "noop_max", "terminal_on_life_loss", "sticky_actions")
_EPSILON = Hint(
    ("epsilon",), "epsilon_schedule: {type: linear, start: 1.0, end: 0.05, steps: N} lets it fall"
)
_SDE = Hint((), "state-dependent exploration is not here; log_std_init sets the spread of the noise")
_WRAPPER = Hint(("env_id",), "register an environment with the wrapper around it and name that")
_REPLAY = Hint(("buffer_size",), "the replay is built in; DQN's is prioritised with prioritized: true")
_OPTIMIZER = Hint(
    (),
    "every algorithm has its own optimizer; learning_rate and max_grad_norm are keys, "
    "optimizer_epsilon and optimizer_betas those of Adam",
)
_NOT_UPLOADED = Hint((), "nothing is uploaded; rl-training export writes a policy to a file")
_ROLLOUTS = Hint((), "rollouts are built in; num_envs and num_steps set their size")
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
    "policy_lr": Hint(("actor_learning_rate", "learning_rate")),
    "q_lr": Hint(("critic_learning_rate", "learning_rate")),
    "alpha_lr": Hint(("ent_coef_learning_rate",)),
    "policy": _NETWORK,
    "policy_kwargs": _NETWORK,
    "net_arch": _NETWORK,
    "activation_fn": Hint(("activation",)),
    "features_extractor_class": Hint(("image_encoder",)),
    "env": Hint(("env_id",)),
    "gym_id": Hint(("env_id",)),
    "env_wrapper": _WRAPPER,
    "vec_env_wrapper": _WRAPPER,
    "monitor_kwargs": Hint(
        (), "episodes are counted without a monitor; the environment itself gets env_kwargs"
    ),
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
    "use_sde": _SDE,
    "sde_sample_freq": _SDE,
    "use_sde_at_warmup": _SDE,
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
    "num_timesteps": Hint(("total_timesteps",)),
    "normalize_kwargs": Hint(("normalize_observations",), "and normalize_rewards; both take true or false"),
    "qf_kwargs": _NETWORK,
    "features_extractor_kwargs": Hint(("image_encoder",)),
    "share_features_extractor": Hint(("shared_trunk",)),
    "ortho_init": Hint((), "dense and convolutional layers start orthogonal; leave it out"),
    "optimizer_class": _OPTIMIZER,
    "optimizer_kwargs": _OPTIMIZER,
    "adam_eps": Hint(("optimizer_epsilon",)),
    "adam_epsilon": Hint(("optimizer_epsilon",)),
    "adam_betas": Hint(("optimizer_betas",)),
    "betas": Hint(("optimizer_betas",)),
    "use_rms_prop": Hint(("optimizer",)),
    "rms_prop_eps": Hint(("optimizer_epsilon",)),
    "replay_buffer_class": _REPLAY,
    "replay_buffer_kwargs": _REPLAY,
    "optimize_memory_usage": Hint((), "the replay stores each observation once; leave it out"),
    "rollout_buffer_class": _ROLLOUTS,
    "rollout_buffer_kwargs": _ROLLOUTS,
    "action_noise": Hint((), "exploration is the algorithm's own: DQN has epsilon, SAC ent_coef"),
    "target_q_update_interval": Hint(("target_update_interval",)),
    "policy_frequency": Hint(("policy_delay",), "one actor update, not as many as were left out"),
    "callback": Hint(
        (), "there are no callbacks; eval_interval and checkpoint_interval set when a run does these"
    ),
    "progress_bar": Hint((), "progress is shown by default; --quiet hides it"),
    "stats_window_size": Hint(("log_interval",), "episodes are averaged between two log lines"),
    "wandb_entity": Hint(("wandb",), "the entity is that of the variable WANDB_ENTITY"),
    "hf_entity": _NOT_UPLOADED,
    "upload_model": _NOT_UPLOADED,
    "num_iterations": Hint(("total_timesteps",), "a run is measured in steps"),
}


def hint_for(key: str, fields: Collection[str]) -> str:
    """Where another library's name leads, for a config of these fields; "" if it is nobody's."""
    hint = HINTS.get(key)
    if hint is None:
        return ""
    ours = our_name(key, fields)
    if ours is None:
        return "" if hint.keys else hint.note
    return f"here it is {ours}" + (f" ({hint.note})" if hint.note else "")


def our_name(key: str, fields: Collection[str]) -> str | None:
    """The key of ours that another library's name means, if these fields have it."""
    return next((name for name in HINTS.get(key, Hint()).keys if name in fields), None)


def elsewhere(key: str) -> str:
    """What another library's name is called in configs that have it; "" if it is nobody's."""
    return next(iter(HINTS.get(key, Hint()).keys), "")
