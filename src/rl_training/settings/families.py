"""Fields shared by families of algorithms, and groups of fields used by several algorithms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from rl_training.parts import Brought
from rl_training.settings.config import Config
from rl_training.settings.fields import Units, changed, field, knob, like
from rl_training.settings.refusals import refused

LOG_STD_BOUNDS = (-5.0, 2.0)  # of a log standard deviation that depends on the state
Decay = Annotated[float, Field(ge=0, lt=1)]


class OnPolicyConfig(Config):
    """The fields of every algorithm that learns from rollouts of its own policy."""

    obeys_action_masks: ClassVar[bool] = True
    samples_on_atari: ClassVar[bool] = True
    laid_out_by: ClassVar[tuple[str, ...]] = ("network", "encoder")
    # Nothing after the dense layer of the CNN, which takes most of the time and serves both heads (Mnih et al. 2016).
    for_pictures: ClassVar[Mapping[str, Any]] = {"hidden_sizes": (), "shared_trunk": True, "ent_coef": 0.01}

    num_envs = 4
    num_steps: int = field(128, "Rollout length: steps per environment and rollout.", ge=1, le=1_000_000)
    learning_rate = changed(2.5e-4, "Learning rate of Adam.")
    gae_lambda: float = knob(0.95, "GAE λ: 0 is one-step TD, 1 is Monte Carlo.", high=1.0)
    ent_coef: float = knob(
        0.0, "Coefficient of the entropy bonus.", aliases=("entropy_coef", "entropy_coefficient")
    )
    vf_coef: float = knob(0.5, "Coefficient of the value loss.", aliases=("value_coef",))
    max_grad_norm: float | None = knob(
        0.5, "Maximum norm for gradient clipping; none: no clipping.", limit=True
    )
    network: Annotated[Any, Brought("acting")] = field(
        None, "Your own hidden layers, a torch.nn.Module: module:Class or FILE.py:Class; none: hidden_sizes."
    )
    encoder: Annotated[Any, Brought("acting")] = field(
        None, "Your own encoder of observations, a torch.nn.Module; none: by the kind of observation."
    )
    layer_norm: bool = field(False, "Apply layer normalisation before each activation of the hidden layers.")
    actor_sizes: tuple[Units, ...] | None = field(
        None, "Units in each hidden layer of the actor; none: hidden_sizes."
    )
    critic_sizes: tuple[Units, ...] | None = field(
        None, "Units in each hidden layer of the critic; none: hidden_sizes."
    )
    log_std_init: float = field(
        0.0, "Initial log standard deviation of continuous actions, scaled to [-1, 1]."
    )
    state_dependent_std: bool = field(
        False, "Let the log standard deviation of continuous actions depend on the state, within [-5, 2]."
    )
    squash_actions: bool = field(
        False, "Squash continuous actions into their bounds with tanh, in place of clipping them."
    )

    @property
    def steps_per_iteration(self) -> int:
        return self.num_envs * self.num_steps

    @model_validator(mode="after")
    def _the_first_spread_is_between_its_bounds(self) -> OnPolicyConfig:
        check_spread(self)
        return self

    @model_validator(mode="after")
    def _shared_layers_have_one_size(self) -> OnPolicyConfig:
        for name in ("actor_sizes", "critic_sizes"):
            if getattr(self, name) is not None and getattr(self, "shared_trunk", False):
                raise refused(
                    name, "must be none with shared_trunk, where actor and critic share their layers"
                )
        return self


def check_spread(config: Any) -> None:
    """Refuse a first spread of actions that a head whose spread depends on the state cannot begin with."""
    low, high = LOG_STD_BOUNDS
    if config.state_dependent_std and not low < config.log_std_init < high:
        raise refused("log_std_init", f"must be between {low} and {high} with state_dependent_std")


class AdamSettings(Config):
    """The fields of Adam, besides its learning rate."""

    optimizer_epsilon: float = field(1e-8, "Denominator term ε of Adam.", gt=0)
    optimizer_betas: tuple[Decay, Decay] = field((0.9, 0.999), "Decay rates β₁ and β₂ of Adam's moments.")


class OptimizerChoice(Config):
    """The fields of those that step once per rollout, by RMSprop as published."""

    laid_out_by: ClassVar[tuple[str, ...]] = ("optimizer",)

    optimizer: Literal["rmsprop", "torch_rmsprop", "adam"] = field(
        "rmsprop",
        "RMSprop as in TensorFlow 1 (ε inside the root, v from 1) or as in torch (ε outside, v from 0), or Adam.",
    )
    optimizer_epsilon: float = field(1e-5, "Denominator term ε of the optimizer.", gt=0)


class Minibatches(Config):
    """The field of those that cut a rollout into minibatches."""

    num_minibatches: int = field(4, "Number of minibatches per epoch.", ge=1)

    @model_validator(mode="after")
    def _every_minibatch_has_a_row(self) -> Minibatches:
        if self.num_minibatches > self.steps_per_iteration:
            most = f"num_envs * num_steps = {self.steps_per_iteration}"
            raise refused("num_minibatches", f"must be at most {most}")
        return self


class Surrogate(Config):
    """The fields of PPO's update, with any kind of network."""

    update_epochs: int = knob(4, "Number of epochs per rollout.", low=1, aliases=("n_epochs",))
    clip_coef: float = knob(
        0.2,
        "Clip range ε of the probability ratio.",
        aliases=("clip_range", "clip_coefficient"),
    )
    value_clip_coef: float | None = knob(
        None,
        "Clip range of the value function, in units of the return; none: no clipping.",
        aliases=("clip_range_vf",),
    )
    target_kl: float | None = knob(
        None, "Stop the update early once the KL exceeds 1.5 times this, in nats; none: never.", limit=True
    )
    critic_learning_rate: float | None = knob(
        None,
        "Learning rate of the critic, a shared trunk apart; none: learning_rate.",
        aliases=("critic_lr",),
    )
    normalize_advantages: bool = field(True, "Normalise advantages per minibatch.")
    shared_trunk: bool = field(False, "Share the encoder between actor and critic.")


class ActorLearnerConfig(Config):
    """The fields of every algorithm whose actors play beside the learner."""

    laid_out_by: ClassVar[tuple[str, ...]] = ("num_actors", "cell", "recurrent_size")

    num_actors: int = field(2, "Number of actors.", ge=1, le=4096)
    num_envs = changed(8, "Number of environments per actor.")
    num_steps: int = like(OnPolicyConfig, 20, "Fragment length: steps per environment and fragment.")
    batch_fragments: int | None = field(None, "Fragments per update; none: one per actor.", ge=1)
    num_learners: int = field(1, "Learner processes on this machine that share each gradient.", ge=1, le=64)
    fleet: Literal["local", "ray", "inline"] = field(
        "local",
        "Where actors run: local processes, Ray (extra `ray`), or inline in this process (for tests).",
    )
    ray_address: str | None = field(
        None, "Ray cluster to join: an address, or auto for this machine's; none: start one.", min_length=1
    )
    ray_resources: dict[str, float] = field({}, "Ray resources of each actor, besides one CPU.")
    order: Literal["fixed", "arrival"] = field(
        "fixed", "Order in which fragments are used; arrival cannot be resumed exactly."
    )
    min_actors: int = field(1, "Minimum number of live actors, with order: arrival.", ge=1)
    max_lag: int | None = field(
        None, "Maximum policy lag in updates, with order: arrival; none: no limit.", ge=0
    )
    actor_timeout: float = field(300.0, "Seconds without a reply until an actor is replaced.", gt=0)
    vectorization: Literal["sync"] = field(
        "sync", "Environments of an actor: sync only, since actors are processes."
    )
    gae_lambda: float = like(OnPolicyConfig, 1.0, "V-trace λ; 1 as in the paper.")
    rho_bar: float = knob(
        1.0, "Clip ρ̄ of the importance weights; sets the fixed point of the value function."
    )
    policy_rho_bar: float | None = knob(
        None, "Clip of the importance weights in the policy gradient; none: rho_bar."
    )
    c_bar: float = knob(1.0, "Clip c̄ of the trace coefficients; sets the speed of convergence.")
    shared_trunk: bool = field(False, "Share the encoder and the memory between actor and critic.")
    cell: Literal["lstm", "gru"] | None = field(None, "Recurrent cell; none: feed-forward.")
    recurrent_size: Units = field(64, "Hidden units of the recurrent cell.")

    @property
    def fragments_per_update(self) -> int:
        return self.batch_fragments or self.num_actors

    @property
    def lanes_per_update(self) -> int:
        lanes: int = self.fragments_per_update * self.num_envs
        return lanes

    @property
    def steps_per_iteration(self) -> int:
        return self.lanes_per_update * self.num_steps

    @property
    def resumes_exactly(self) -> bool:
        return self.order == "fixed"  # who arrives first is not for us to repeat

    @model_validator(mode="after")
    def _fits_together(self) -> ActorLearnerConfig:
        if self.cell is not None and self.precision != "fp32":
            raise refused("precision", "must be fp32 with a recurrent cell")
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

    checkpoints_apart: ClassVar[int] = 1_000  # a step with its updates takes milliseconds
    laid_out_by: ClassVar[tuple[str, ...]] = ("buffer_size",)

    learning_rate = changed(3e-4, "Learning rate of Adam.")
    buffer_size: int = field(
        1_000_000, "Capacity of the replay buffer in observations, over all environments.", ge=1, le=10**9
    )
    batch_size: int = field(256, "Batch size in transitions.", ge=1)
    learning_starts: int = field(5_000, "Steps with random actions before the first update.", ge=1)
    warmup_begins: Literal["run", "learning"] = field(
        "run", "Where warm-ups begin: at the first step of the run, or at learning_starts; 0 before it."
    )
    train_frequency: int = field(1, "Steps per environment between updates.", ge=1)

    @property
    def steps_per_iteration(self) -> int:
        return self.num_envs * self.train_frequency

    @model_validator(mode="after")
    def _nothing_is_ignored(self) -> OffPolicyConfig:
        if self.normalize_rewards:
            raise refused("normalize_rewards", "must be false: the replay buffer stores rewards as they are")
        if self.precision != "fp32":
            raise refused("precision", f"must be fp32 for {self.algo_name}")
        return self


class Planning(Config):
    """The fields of MuZero and its successors, besides those of the replay."""

    younger: ClassVar[Mapping[str, object]] = {
        "batch_norm": False,
        "board_tower": False,
        "shared_tower": False,
    }
    obeys_action_masks: ClassVar[bool] = True
    laid_out_by: ClassVar[tuple[str, ...]] = (
        *("unroll_steps", "td_steps", "two_players", "network", "encoder"),
        "sampled_actions",
    )

    network: Annotated[Any, Brought("acting")] = like(
        OnPolicyConfig, None, "Your own hidden layers of the representation, a torch.nn.Module."
    )
    encoder: Annotated[Any, Brought("acting")] = like(
        OnPolicyConfig, None, "Your own encoder of the representation, a torch.nn.Module."
    )

    num_simulations: int = knob(50, "Number of simulations per search.", low=1, sizes=True)
    temperature: float = knob(1.0, "Temperature T: actions are sampled from visits^(1/T); 0 acts greedily.")
    temperature_moves: int | None = field(
        None, "Steps of an episode that act at `temperature`; later ones act greedily. None: all.", ge=0
    )
    root_exploration_fraction: float = knob(0.25, "Fraction of Dirichlet noise in the root prior.", high=1.0)
    dirichlet_alpha: float = knob(
        0.3, "Concentration α of the Dirichlet noise; below 1 favours few actions.", low=0.001
    )
    two_players: bool = field(False, "Two-player zero-sum game: rewards belong to the player who moved.")
    symmetries: bool = field(
        False, "Learn from positions turned by the `symmetries` that the environment names."
    )
    forbidden_moves: float = field(
        0.0,
        "Two players: probability that an unrolled move becomes one that the mask forbids, if any; it loses.",
        ge=0.0,
        le=1.0,
    )
    unroll_steps: int = field(5, "Steps the model is unrolled for in training.", ge=1, le=100)
    td_steps: int = field(5, "Number of steps n of the n-step value targets.", ge=1, le=1000)
    reanalyse_ratio: float = knob(
        0.0, "Fraction of sampled positions whose policy targets come from a new search.", high=1.0
    )
    sampled_actions: int = field(16, "Actions drawn at each node of a search, for continuous actions.", ge=2)
    vf_coef: float = like(OnPolicyConfig, 0.25, "Coefficient of the value loss.")
    ent_coef: float = like(OnPolicyConfig, 0.0)
    priority_exponent: float = knob(1.0, "Exponent α of prioritised replay; 0 samples uniformly.", high=1.0)
    importance_exponent: float = knob(
        1.0, "Exponent β of the importance-sampling correction; 1 corrects fully.", high=1.0
    )
    reward_priority: float = knob(
        1.0, "Factor of the priority of positions with a reward among the unrolled steps.", low=1e-3
    )
    state_coef: float = knob(
        0.0, "Coefficient of the distance between unrolled states and those of the observations there."
    )
    max_grad_norm: float | None = like(OnPolicyConfig, 10.0)
    target_update_interval: int = field(100, "Updates between copies to the target network.", ge=1)
    latent_size: int = field(64, "Size of the latent state: units, or channels for image observations.", ge=2)
    support_size: int = field(
        300, "Half-width S of the categorical support -S … S of values and rewards.", ge=1
    )
    residual_blocks: int = field(
        1, "Residual blocks per resolution, for image observations and boards.", ge=1
    )
    batch_norm: bool = field(
        True, "Batch normalisation and a head each for policy, value and reward, for image observations."
    )
    board_tower: bool = field(
        True,
        "Residual convolutions at full resolution, with a plane for each action, for grids with action masks.",
    )
    shared_tower: bool = field(
        True, "Boards: one tower for representation and dynamics, and heads that pool over all squares."
    )
    value_transform: bool = field(
        True, "Compress values and rewards before they are learned; false where they lie within -S … S."
    )


class PUCT(Config):
    """The fields of a search that follows the upper confidence bounds of AlphaZero and MuZero."""

    pb_c_init: float = knob(1.25, "Exploration constant c₁ of PUCT.")
    pb_c_base: float = knob(
        19_652.0, "Constant c₂ of PUCT: visit counts at which exploration starts to grow.", low=1.0
    )


class GumbelSearch(Config):
    """The fields of a search that shares its simulations among actions drawn with Gumbel noise."""

    younger: ClassVar[Mapping[str, object]] = {"rescale_by": "node"}

    max_considered_actions: int = knob(16, "Actions considered at the root (sequential halving).", low=1)
    c_visit: float = knob(50.0, "Constant c_visit of σ(Q) = (c_visit + max visits) · c_scale · Q.")
    c_scale: float = knob(0.1, "Scale c_scale of σ(Q) = (c_visit + max visits) · c_scale · Q.")
    rescale_by: Literal["tree", "node"] = field(
        "tree", "Range that scales Q to [0, 1]: all Q of the tree, at least 0.01 wide, or the node's (mctx)."
    )
