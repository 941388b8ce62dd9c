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
    """DreamerV3, for discrete and continuous actions: behaviour learned in a world model's imagination."""

    laid_out_by: ClassVar[tuple[str, ...]] = ("batch_length",)
    samples_on_atari: ClassVar[bool] = True

    algo: Literal["dreamer"] = "dreamer"
    num_envs = 16
    learning_rate = changed(4e-5, "Step size of the one optimizer.")
    entropy_coef: float = knob(
        3e-4, "Weight of the policy's entropy.", aliases=("ent_coef", "entropy_coefficient")
    )
    gamma = 1 - 1 / 333
    return_lambda: float = knob(0.95, "Decay per step of the return's mixture.", high=1.0)
    train_ratio: float = knob(32.0, "Replayed steps per environment step, on average.")
    imagination_horizon: int = knob(15, "Steps imagined from every state of a batch.", low=1, high=1000)
    reconstruction_scale: float = knob(
        1.0, "Weight of the loss of reconstructed observations.", aliases=("reconstruction_coef",)
    )
    reward_scale: float = knob(1.0, "Weight of the loss of predicted rewards.", aliases=("reward_coef",))
    continue_scale: float = knob(1.0, "Weight of the loss of predicted ends.", aliases=("continue_coef",))
    dynamics_scale: float = knob(
        1.0, "Weight of the prior's divergence from the posterior.", aliases=("dynamics_coef",)
    )
    representation_scale: float = knob(
        0.1, "Weight of the posterior's divergence from the prior.", aliases=("representation_coef",)
    )
    policy_scale: float = knob(1.0, "Weight of the policy loss.", aliases=("policy_coef",))
    value_scale: float = knob(1.0, "Weight of the value loss in imagination.", aliases=("value_coef",))
    replay_value_scale: float = knob(
        0.3, "Weight of the value loss on the replay.", aliases=("replay_value_coef",)
    )
    free_nats: float = field(1.0, "Divergence below which nothing is learned from it, in nats.", ge=0)
    return_rate: float = knob(0.01, "Share of each update in the returns' running percentiles.", high=1.0)
    slow_critic_rate: float = knob(0.02, "Share of the critic in its slow copy with each update.", high=1.0)
    buffer_size = changed(1_000_000, "Rows the replay holds, over all environments.")
    batch_size = changed(16, "Sequences per update.")
    batch_length: int = field(64, "Steps of a sequence.", ge=2)
    learning_starts = changed(1_024, "Steps before the first update.")
    refresh_latents: bool = field(False, "Whether updates replace the latents of the steps they replayed.")
    size: Literal["1M", "12M", "25M", "50M", "100M", "200M", "400M"] = field(
        "12M", "The networks' size, in parameters."
    )
    deter_size: Units | None = field(None, "Units of the memory; none: as the size says.")
    rssm_hidden: Units | None = field(
        None, "Units of the layers inside the dynamics; none: as the size says."
    )
    num_latents: Units | None = field(None, "Choices of a latent state; none: 32.")
    num_classes: int | None = field(None, "Classes of each choice; none: as the size says.", ge=2, le=255)
    units: Units | None = field(None, "Units of the layers of encoder, decoder and heads; none: the size's.")
    cnn_depth: Units | None = field(None, "Unit of the convolutions' channels; none: as the size says.")
    blocks: Units | None = field(None, "Blocks of the memory, which divide its units; none: 8.")
    mlp_layers: int = field(3, "Layers of encoder, decoder, actor and critic.", ge=1, le=100)
    compile: bool = field(False, "Whether the model's steps are compiled: minutes at the start.")
    precision: Literal["fp32"] = field("fp32", "Arithmetic of the networks.")

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
