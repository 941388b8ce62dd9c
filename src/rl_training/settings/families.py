"""What algorithms share: the fields of the families, and groups of fields that several algorithms have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import model_validator

from rl_training.settings.config import Config
from rl_training.settings.fields import Units, changed, field, knob, like
from rl_training.settings.refusals import refused


class OnPolicyConfig(Config):
    """The fields of every algorithm that learns from rollouts of its own policy."""

    obeys_action_masks: ClassVar[bool] = True
    samples_on_atari: ClassVar[bool] = True
    # Nothing after the dense layer of the CNN, which takes most of the time and serves both heads (Mnih et al. 2016).
    for_pictures: ClassVar[Mapping[str, Any]] = {"hidden_sizes": (), "shared_trunk": True, "ent_coef": 0.01}

    num_envs = 4
    num_steps: int = field(128, "Steps in each environment per rollout.", ge=1, le=1_000_000)
    learning_rate = changed(2.5e-4, "Adam's step size.")
    gae_lambda: float = knob(
        0.95, "Decay per step of the advantage estimate: 0 trusts the critic, 1 the returns.", high=1.0
    )
    ent_coef: float = knob(
        0.0, "Weight of the entropy bonus in the loss.", aliases=("entropy_coef", "entropy_coefficient")
    )
    vf_coef: float = knob(0.5, "Weight of the value loss in the loss.", aliases=("value_coef",))
    max_grad_norm: float | None = knob(
        0.5, "Norm to which gradients are scaled down; none: no limit.", limit=True
    )
    log_std_init: float = field(0.0, "First log standard deviation of continuous actions, in model space.")

    @property
    def steps_per_iteration(self) -> int:
        return self.num_envs * self.num_steps


class Minibatches(Config):
    """The field of those that cut a rollout into minibatches."""

    num_minibatches: int = field(4, "Parts into which each epoch cuts the rollout.", ge=1)

    @model_validator(mode="after")
    def _every_minibatch_has_a_row(self) -> Minibatches:
        if self.num_minibatches > self.steps_per_iteration:
            most = f"num_envs * num_steps = {self.steps_per_iteration}"
            raise refused("num_minibatches", f"must be at most {most}")
        return self


class Surrogate(Config):
    """The fields of PPO's update, with any kind of network."""

    update_epochs: int = knob(4, "Passes over each rollout.", low=1, aliases=("n_epochs",))
    clip_coef: float = knob(
        0.2,
        "How far the probability ratio may leave 1 before its gradient stops.",
        aliases=("clip_range", "clip_coefficient"),
    )
    value_clip_coef: float | None = knob(
        None, "How far a value may leave the old one, in returns; none: no clip.", aliases=("clip_range_vf",)
    )
    target_kl: float | None = knob(
        None, "The update ends once 1.5 times this KL, in nats, is passed; none: never.", limit=True
    )
    normalize_advantages: bool = field(
        True, "Whether each minibatch's advantages get mean 0 and deviation 1."
    )
    shared_trunk: bool = field(False, "Whether actor and critic share their encoder.")


class ActorLearnerConfig(Config):
    """The fields of every algorithm whose actors play beside the learner."""

    laid_out_by: ClassVar[tuple[str, ...]] = ("num_actors", "cell", "recurrent_size")

    num_actors: int = field(2, "Actors that play beside the learner.", ge=1, le=4096)
    num_envs = changed(8, "Environments of each actor.")
    num_steps: int = like(OnPolicyConfig, 20, "Steps in each environment per fragment.")
    batch_fragments: int | None = field(None, "Fragments per update; none: one of each actor.", ge=1)
    num_learners: int = field(
        1, "Processes of this machine that share the work of each gradient.", ge=1, le=64
    )
    fleet: Literal["local", "ray", "inline"] = field(
        "local", "Where actors are: processes of this machine, on Ray (an extra), or nowhere (for tests)."
    )
    ray_address: str | None = field(
        None, "The Ray cluster to join, auto for the one of this machine; none: a new one.", min_length=1
    )
    ray_resources: dict[str, float] = field({}, "What each Ray actor asks of its node besides one CPU.")
    order: Literal["fixed", "arrival"] = field(
        "fixed", "How fragments are taken: in turn, or as they come, which no resume can repeat."
    )
    min_actors: int = field(1, "Actors that must live for arrival order to go on.", ge=1)
    max_lag: int | None = field(
        None, "Updates by which weights may be behind, in arrival order; none: any.", ge=0
    )
    actor_timeout: float = field(300.0, "Seconds after which a silent actor is replaced.", gt=0)
    vectorization: Literal["sync"] = field("sync", "An actor's environments; actors are processes already.")
    gae_lambda: float = like(OnPolicyConfig, 1.0, "Decay per step of V-trace's traces; 1 is the paper's.")
    rho_bar: float = knob(1.0, "Most that an action's weight may be; sets what values converge to.")
    policy_rho_bar: float | None = knob(
        None, "Clip of the importance weights in the policy gradient; none: rho_bar."
    )
    c_bar: float = knob(1.0, "Most that a step's trace may be; sets how fast they do.")
    shared_trunk: bool = field(False, "Whether actor and critic share their encoder, and their memory.")
    cell: Literal["lstm", "gru"] | None = field(None, "The kind of memory; none: no memory.")
    recurrent_size: Units = field(64, "Units of the memory.")

    @property
    def fragments_per_update(self) -> int:
        return self.batch_fragments or self.num_actors

    @property
    def lanes_per_update(self) -> int:
        return self.fragments_per_update * self.num_envs

    @property
    def steps_per_iteration(self) -> int:
        return self.lanes_per_update * self.num_steps

    @property
    def resumes_exactly(self) -> bool:
        return self.order == "fixed"  # who arrives first is not for us to repeat

    @model_validator(mode="after")
    def _fits_together(self) -> ActorLearnerConfig:
        if self.cell is not None and self.precision != "fp32":
            raise refused(
                "precision", "must be fp32 where there is a cell, which knows single precision only"
            )
        if self.min_actors > self.num_actors:
            raise refused("min_actors", f"must be at most num_actors = {self.num_actors}")
        if self.fleet != "ray" and (self.ray_address is not None or self.ray_resources):
            raise refused(
                "ray_address" if self.ray_address is not None else "ray_resources", "needs fleet: ray"
            )
        if self.max_lag is not None and self.order == "fixed":
            raise refused("max_lag", "needs order: arrival; in fixed order the lag is constant")
        if self.lanes_per_update % self.num_learners:
            raise refused("num_learners", f"must divide the {self.lanes_per_update} environments of a batch")
        return self


class OffPolicyConfig(Config):
    """The fields of every algorithm that learns from a replay."""

    laid_out_by: ClassVar[tuple[str, ...]] = ("buffer_size",)

    learning_rate = changed(3e-4, "Adam's step size.")
    buffer_size: int = field(
        1_000_000, "Observations the replay holds, over all environments.", ge=1, le=10**9
    )
    batch_size: int = field(256, "Transitions per update.", ge=1)
    learning_starts: int = field(5_000, "Steps with random actions before the first update.", ge=1)
    train_frequency: int = field(1, "Steps in each environment between updates.", ge=1)

    @property
    def steps_per_iteration(self) -> int:
        return self.num_envs * self.train_frequency

    @model_validator(mode="after")
    def _nothing_is_ignored(self) -> OffPolicyConfig:
        if self.normalize_rewards:
            raise refused(
                "normalize_rewards", "must be false: a replay holds rewards of all ages as they were"
            )
        if self.precision != "fp32":
            raise refused("precision", f"must be fp32 for {self.algo_name}")
        return self


class Planning(Config):
    """The fields of MuZero and its successors, besides those of the replay."""

    obeys_action_masks: ClassVar[bool] = True
    laid_out_by: ClassVar[tuple[str, ...]] = ("unroll_steps", "td_steps", "two_players")

    num_simulations: int = knob(50, "Simulations per search.", low=1)
    temperature: float = knob(1.0, "Actions are drawn in proportion to visits^(1/T); 0: the most visited.")
    root_exploration_fraction: float = knob(0.25, "Share of Dirichlet noise in the root's prior.", high=1.0)
    dirichlet_alpha: float = knob(0.3, "Parameter of that noise: below 1 it favours few actions.", low=0.001)
    two_players: bool = field(False, "Whether two sides alternate; a reward then counts for who moved.")
    unroll_steps: int = field(5, "Steps over which the model is unrolled in training.", ge=1, le=100)
    td_steps: int = field(5, "Rewards summed before a value target bootstraps.", ge=1, le=1000)
    reanalyse_ratio: float = knob(
        0.0, "Share of positions searched anew when they are learned from.", high=1.0
    )
    vf_coef: float = like(OnPolicyConfig, 0.25, "Weight of the value loss.")
    priority_exponent: float = knob(1.0, "How strongly errors shape what is drawn: 0 is uniform.", high=1.0)
    importance_exponent: float = knob(
        1.0, "How strongly that is corrected in the loss: 1 is fully.", high=1.0
    )
    max_grad_norm: float | None = like(OnPolicyConfig, 10.0)
    target_update_interval: int = field(100, "Updates between two copies of the network to its target.", ge=1)
    latent_size: int = field(64, "Units of a state; where observations are frames, channels.", ge=2)
    support_size: int = field(300, "Compressed values and rewards are learned on -S … S.", ge=1)
    residual_blocks: int = field(1, "Residual blocks per resolution, where observations are frames.", ge=1)


class PUCT(Config):
    """The fields of a search that follows the upper confidence bounds of AlphaZero and MuZero."""

    pb_c_init: float = knob(
        1.25, "Weight c₁ of exploration: how far the prior draws a search from the values."
    )
    pb_c_base: float = knob(19_652.0, "Visits c₂ after which exploration begins to grow.", low=1.0)


class GumbelSearch(Config):
    """The fields of a search that shares its simulations among actions drawn with Gumbel noise."""

    max_considered_actions: int = knob(16, "Actions that a root's simulations are shared among.", low=1)
    c_visit: float = knob(50.0, "How far values move the improved policy before anything was visited.")
    c_scale: float = knob(0.1, "How far values move the improved policy from the prior.")
