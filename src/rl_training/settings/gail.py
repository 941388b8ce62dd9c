"""The config of Generative Adversarial Imitation Learning."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any, ClassVar, Literal

from pydantic import model_validator

from rl_training.parts import Brought
from rl_training.runtime.controls import KnobError, compile_knobs
from rl_training.settings.families import AdamSettings, Minibatches, OnPolicyConfig, Surrogate
from rl_training.settings.fields import Units, field, knob
from rl_training.settings.refusals import refused


class GAILConfig(OnPolicyConfig, Minibatches, Surrogate, AdamSettings):
    """Generative Adversarial Imitation Learning with PPO; the reward of the environment is not used."""

    laid_out_by: ClassVar[tuple[str, ...]] = ("num_steps", "discriminator_rollouts")

    algo: Literal["gail"] = "gail"
    optimizer_epsilon = 1e-5
    demonstrations: str = field(
        ..., "Expert demonstrations: a .npz file of `rl-training record`, or minari:ID.", min_length=1
    )
    expert_episodes: int | None = field(None, "Use the first n expert episodes; none: all.", ge=1)
    expert_keep_every: int = field(1, "Keep every n-th step of the expert.", ge=1)
    reward_form: Literal["positive", "negative", "logit"] = field(
        "logit", "Imitation reward: -log(1 - D), log D, or log D - log(1 - D)."
    )
    absorbing_states: bool = field(
        True, "Add absorbing states after terminations, which are rewarded too (DAC)."
    )
    reward_scale_rollouts: int | None = field(
        None,
        "Rollouts that the scale of normalize_rewards remembers (exponential average); none: all.",
        ge=1,
    )
    discriminator_updates: int = field(4, "Discriminator updates per rollout; 0 keeps D at 1/2.", ge=0)
    discriminator_batch_size: int = field(
        256, "Discriminator batch size: pairs from the expert, and as many from the agent.", ge=1, le=10**6
    )
    discriminator_rollouts: int = field(
        1, "Latest rollouts from which agent pairs are sampled; 1: no replay.", ge=1
    )
    discriminator_learning_rate: float = knob(
        1e-3, "Learning rate of Adam for the discriminator.", aliases=("discriminator_lr",)
    )
    discriminator_hidden_sizes: tuple[Units, ...] = field(
        (64, 64), "Units in each hidden layer of the discriminator, with tanh activations."
    )
    discriminator_network: Annotated[Any, Brought("training")] = field(
        None, "Your own hidden layers of the discriminator, a torch.nn.Module."
    )
    discriminator_encoder: Annotated[Any, Brought("training")] = field(
        None, "Your own encoder of the discriminator's observations, a torch.nn.Module."
    )
    gradient_penalty_coef: float = knob(
        0.1,
        "Coefficient of the gradient penalty; 0: none.",
        aliases=("gradient_penalty_weight",),
    )
    gradient_penalty: Literal["zero_centred", "interpolated"] = field(
        "zero_centred",
        "Gradient penalty: R1 at expert pairs, or WGAN-GP between expert and agent.",
    )
    spectral_norm: bool = field(False, "Apply spectral normalisation to the discriminator.")
    bc_epochs: int = field(0, "Epochs of behaviour cloning before training.", ge=0)

    @model_validator(mode="after")
    def _what_goes_together(self) -> GAILConfig:
        with suppress(KnobError):  # which is told when all knobs are checked
            if self.absorbing_states and compile_knobs(self)["gamma"].highest >= 1:
                raise refused(
                    "gamma", "must stay below 1 with absorbing_states: their return is an infinite sum"
                )
        if self.reward_scale_rollouts is not None and not self.normalize_rewards:
            raise refused("reward_scale_rollouts", "needs normalize_rewards: true")
        if self.bc_epochs > 0 and self.squash_actions:
            raise refused(
                "bc_epochs", "must be 0 with squash_actions: an expert's action at its bound has no u"
            )
        if self.spectral_norm and self.discriminator_network is not None:
            raise refused(
                "spectral_norm", "must be false for a discriminator_network, which is used unchanged"
            )
        return self
