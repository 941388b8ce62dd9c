"""DreamerV3's config."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import model_validator

from rl_training.settings.config import Config
from rl_training.settings.families import OffPolicyConfig
from rl_training.settings.fields import Units, changed, field, knob
from rl_training.settings.refusals import refused

UNUSED = ("hidden_sizes", "activation", "image_encoder")
SIZED = ("deter_size", "rssm_hidden", "num_latents", "num_classes", "units", "cnn_depth", "blocks")
# Units u give everything: a memory of 8u, latents of u / 16 classes, convolutions u / 16 deep.
SIZES = {"1M": 64, "12M": 256, "25M": 384, "50M": 512, "100M": 768, "200M": 1024, "400M": 1536}
NUM_LATENTS, BLOCKS = 32, 8


def preset(size: str) -> dict[str, int]:
    """The numbers of a size."""
    units = SIZES[size]
    return {
        "deter_size": 8 * units,
        "rssm_hidden": units,
        "num_latents": NUM_LATENTS,
        "num_classes": units // 16,
        "units": units,
        "cnn_depth": units // 16,
        "blocks": BLOCKS,
    }


class DreamerConfig(OffPolicyConfig):
    """DreamerV3, for discrete and continuous actions: an actor-critic trained in a world model's imagination."""

    laid_out_by: ClassVar[tuple[str, ...]] = ("batch_length",)
    samples_on_atari: ClassVar[bool] = True

    algo: Literal["dreamer"] = "dreamer"
    num_envs = 16
    learning_rate = changed(4e-5, "Learning rate of the optimizer.")
    entropy_coef: float = knob(
        3e-4, "Coefficient of the entropy bonus.", aliases=("ent_coef", "entropy_coefficient")
    )
    gamma = 1 - 1 / 333
    return_lambda: float = knob(0.95, "Decay λ of the λ-returns.", high=1.0)
    train_ratio: float = knob(32.0, "Train ratio: average number of replayed steps per environment step.")
    imagination_horizon: int = knob(
        15, "Imagination horizon: steps imagined from each state of a batch.", low=1, high=1000
    )
    reconstruction_scale: float = knob(
        1.0, "Coefficient of the reconstruction loss.", aliases=("reconstruction_coef",)
    )
    reward_scale: float = knob(1.0, "Coefficient of the reward loss.", aliases=("reward_coef",))
    continue_scale: float = knob(1.0, "Coefficient of the continuation loss.", aliases=("continue_coef",))
    dynamics_scale: float = knob(1.0, "Coefficient β_dyn of the dynamics loss.", aliases=("dynamics_coef",))
    representation_scale: float = knob(
        0.1, "Coefficient β_rep of the representation loss.", aliases=("representation_coef",)
    )
    policy_scale: float = knob(1.0, "Coefficient of the policy loss.", aliases=("policy_coef",))
    value_scale: float = knob(
        1.0, "Coefficient of the value loss on imagined trajectories.", aliases=("value_coef",)
    )
    replay_value_scale: float = knob(
        0.3, "Coefficient of the value loss on replayed trajectories.", aliases=("replay_value_coef",)
    )
    free_nats: float = field(
        1.0, "Free nats: the dynamics and representation losses are clipped below this KL.", ge=0
    )
    return_rate: float = knob(
        0.01, "Rate of the running return percentiles (return normalisation).", high=1.0
    )
    slow_critic_rate: float = knob(0.02, "Polyak averaging coefficient of the slow critic.", high=1.0)
    buffer_size = changed(1_000_000, "Capacity of the replay buffer in observations, over all environments.")
    batch_size = changed(16, "Batch size in sequences.")
    batch_length: int = field(64, "Sequence length in steps.", ge=2)
    learning_starts = changed(1_024, "Steps before the first update.")
    refresh_latents: bool = field(False, "Write updated latents back to the replay buffer.")
    size: Literal["1M", "12M", "25M", "50M", "100M", "200M", "400M"] = field(
        "12M", "Model size in parameters."
    )
    deter_size: Units | None = field(None, "Units of the deterministic state; none: set by size.")
    rssm_hidden: Units | None = field(None, "Hidden units inside the RSSM; none: set by size.")
    num_latents: Units | None = field(None, "Categorical variables of the stochastic state; none: 32.")
    num_classes: int | None = field(
        None, "Classes per categorical variable; none: set by size.", ge=2, le=255
    )
    units: Units | None = field(None, "Hidden units of the encoder, decoder and heads; none: set by size.")
    cnn_depth: Units | None = field(None, "Base number of CNN channels; none: set by size.")
    blocks: Units | None = field(None, "Blocks of the block-diagonal GRU; none: 8.")
    mlp_layers: int = field(3, "Hidden layers of the encoder, decoder, actor and critic.", ge=1, le=100)
    compile: bool = field(False, "Compile the model with torch.compile; takes minutes at the start.")
    precision: Literal["fp32"] = field("fp32", "Floating-point precision of the networks.")

    @property
    def network(self) -> dict[str, int]:
        """The networks' numbers: those of the size, and what is given instead."""
        given = {name: getattr(self, name) for name in SIZED if getattr(self, name) is not None}
        return preset(self.size) | given | {"mlp_layers": self.mlp_layers}

    @model_validator(mode="after")
    def _nothing_is_ignored(self) -> DreamerConfig:
        if self.normalize_rewards:
            raise refused("normalize_rewards", "must be false: the returns' range is normalised instead")
        for name in UNUSED:
            if getattr(self, name) != Config.model_fields[name].default:
                raise refused(name, "has no effect on dreamer: its networks follow size and units")
        sizes = self.network
        if sizes["deter_size"] % sizes["blocks"]:
            raise refused("deter_size", f"must be a multiple of blocks = {sizes['blocks']}")
        return self
