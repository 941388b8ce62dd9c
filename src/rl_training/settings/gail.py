"""The config of Generative Adversarial Imitation Learning."""

from __future__ import annotations

from typing import ClassVar, Literal

from rl_training.settings.families import Minibatches, OnPolicyConfig, Surrogate
from rl_training.settings.fields import Units, field, knob


class GAILConfig(OnPolicyConfig, Minibatches, Surrogate):
    """Imitation of demonstrations by an adversary's reward and PPO's update; the environment's reward is not read."""

    laid_out_by: ClassVar[tuple[str, ...]] = ("num_steps", "discriminator_rollouts")

    algo: Literal["gail"] = "gail"
    demonstrations: str = field(
        ..., "The expert's episodes: a .npz file of `rl-training record`, or minari:ID.", min_length=1
    )
    expert_episodes: int | None = field(None, "How many of them, from the first on; none: all.", ge=1)
    expert_keep_every: int = field(1, "Of the expert's steps only each so many-th is used.", ge=1)
    reward_form: Literal["positive", "negative", "logit"] = field(
        "logit", "The reward: -log(1 - D), log D, or log D - log(1 - D)."
    )
    absorbing_states: bool = field(
        True, "Whether what follows a termination is a state that is rewarded too, for ever."
    )
    discriminator_updates: int = field(4, "Updates of the discriminator per rollout; 0: it stays 1/2.", ge=0)
    discriminator_batch_size: int = field(256, "Pairs of each side in such an update.", ge=1, le=10**6)
    discriminator_rollouts: int = field(
        1, "Newest rollouts that the agent's side is drawn from; 1: no replay.", ge=1
    )
    discriminator_learning_rate: float = knob(
        1e-3, "Adam's step size for the discriminator.", aliases=("discriminator_lr",)
    )
    discriminator_hidden_sizes: tuple[Units, ...] = field((64, 64), "Units of its hidden layers, all tanh.")
    gradient_penalty_coef: float = knob(
        0.1,
        "Weight of the penalty on the discriminator's slope; 0: none.",
        aliases=("gradient_penalty_weight",),
    )
    gradient_penalty: Literal["zero_centred", "interpolated"] = field(
        "zero_centred",
        "Slope 0 at the expert's pairs (R1), or slope 1 between expert and agent (WGAN-GP).",
    )
    spectral_norm: bool = field(False, "Whether no layer of the discriminator may stretch its input.")
    bc_epochs: int = field(
        0, "Passes of behaviour cloning over the expert's pairs, before anything else.", ge=0
    )
