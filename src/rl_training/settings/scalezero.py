"""ScaleZero's config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import model_validator

from rl_training.parts import Brought
from rl_training.settings.efficientzero import EfficientZeroConfig
from rl_training.settings.families import GumbelSearch, OffPolicyConfig, OnPolicyConfig, Planning
from rl_training.settings.fields import changed, field, knob, like
from rl_training.settings.refusals import FieldError, refused
from rl_training.settings.sac import SACConfig


class ScaleZeroConfig(GumbelSearch, OffPolicyConfig):
    """ScaleZero, for discrete actions: one transformer world model that plans in several tasks."""

    obeys_action_masks: ClassVar[bool] = True
    younger: ClassVar[Mapping[str, object]] = {"confirm_episodes": 0, "staged_encoders": False}
    laid_out_by: ClassVar[tuple[str, ...]] = (
        "env_ids",
        "task_kwargs",
        "unroll_steps",
        "td_steps",
        "context_steps",
        "stages",
        "lora_alpha",
        "heads",
        "solved_episodes",
        "staged_encoders",
        "network",
        "encoder",
    )

    algo: Literal["scalezero"] = "scalezero"
    env_ids: tuple[str, ...] = field((), "Tasks: registered Gymnasium ids, or module:EnvId.")
    env_id: str = field("", "The tasks joined by +; enough by itself for a single task.")
    task_kwargs: dict[str, Any] = field({}, "Keyword arguments by task: {task: {argument: value}}.")
    num_envs = changed(8, "Number of parallel environments per task.")
    solved_returns: dict[str, Any] = field(
        {}, "Return at which a task is solved, by task; default: the environment's reward threshold."
    )
    solved_episodes: int = field(20, "Training episodes whose mean return must reach that.", ge=1)
    confirm_episodes: int = field(
        10, "Greedy episodes whose mean return must reach it too; 0: training episodes decide.", ge=0
    )
    confirm_interval: int = field(
        1_000, "Updates after which a solved task whose weights still learn must confirm it again.", ge=1
    )
    task_weights: dict[str, Any] = field({}, "Weight of the loss of each task; default: 1.")
    learning_rate = 1e-3
    gamma = 0.997
    num_simulations: int = like(Planning, 16)
    temperature: float = like(Planning, 1.0, "Scale of the Gumbel noise at the root; 0 acts greedily.")
    noise_persistence: float = knob(
        0.0, "Probability of keeping an environment's Gumbel noise for another step.", high=1.0
    )
    root_exploration_fraction: float = like(Planning, 0.0)
    dirichlet_alpha: float = like(Planning)
    unroll_steps: int = like(Planning, 10, "Window length of the model in training, in steps.")
    context_steps: int = field(4, "Context length when acting: past steps the model attends to.", ge=0)
    td_steps: int = like(Planning)
    policy_coef: float = like(EfficientZeroConfig)
    vf_coef: float = like(Planning, 0.5)
    reward_coef: float = like(EfficientZeroConfig, 1.0, "Coefficient of the reward loss.")
    latent_coef: float = knob(10.0, "Coefficient of the latent prediction loss.")
    max_grad_norm: float | None = like(OnPolicyConfig, 5.0)
    tau: float = like(SACConfig, 0.05, "Polyak averaging coefficient τ of the target network.")
    buffer_size = changed(100_000, "Capacity of the replay buffer per task, in observations.")
    batch_size = changed(64, "Batch size in windows per task.")
    learning_starts = changed(1_000, "Steps before the first update.")
    replay_ratio: float = like(
        SACConfig, 0.1, "Replay ratio: average number of updates per environment step; each uses all tasks."
    )
    latent_size: int = field(64, "Width of the latent state and of the transformer.", ge=1, le=65_536)
    layers: int = field(2, "Transformer blocks.", ge=1, le=100)
    heads: int = field(4, "Attention heads; must divide latent_size.", ge=1, le=1024)
    experts: int = field(
        4, "Experts per block of the mixture of experts; each token is routed to one.", ge=1, le=1024
    )
    expert_size: int = field(128, "Hidden units of each expert and of the shared expert.", ge=1)
    stages: int = field(
        5, "Training stages: the backbone, then one LoRA adapter after another.", ge=1, le=100
    )
    rank: int = field(16, "Rank of the LoRA adapters.", ge=1, le=65_536)
    lora_alpha: float = field(16.0, "Scale of the LoRA adapters: lora_alpha / rank.", gt=0)
    stage_min_updates: int = field(10_000, "Minimum updates before the first adapter stage.", ge=0)
    stage_max_updates: int = field(20_000, "Maximum updates per stage.", ge=1)
    support_size: int = like(Planning, 50)
    hidden_sizes = changed(
        (64,), "Units in each hidden layer of the encoders; the last entry also sizes the heads."
    )
    activation = "gelu"
    staged_encoders: bool = field(
        True, "Freeze image encoders that tasks share after the first stage, with adapters from then on."
    )
    network: Annotated[Any, Brought("acting")] = like(
        OnPolicyConfig, None, "Your own hidden layers of the encoders, a torch.nn.Module."
    )
    encoder: Annotated[Any, Brought("acting")] = like(
        OnPolicyConfig, None, "Your own encoder of each task's observations, a torch.nn.Module."
    )

    @model_validator(mode="before")
    @classmethod
    def _one_name_for_all_tasks(cls, data: Any) -> Any:
        """`env_ids` and `env_id` say the same; a config needs one of them."""
        ids, one = data.get("env_ids") or (), data.get("env_id") or ""
        if not isinstance(ids, tuple) or not all(isinstance(name, str) for name in ids):
            return data  # refused by its type
        if not ids and one:
            return {**data, "env_ids": tuple(one.split("+"))}
        if one and one != "+".join(ids):
            raise refused("env_id", f"{one!r} and env_ids say different things; remove env_id")
        return {**data, "env_id": "+".join(ids)}

    @model_validator(mode="after")
    def _tasks_fit_together(self) -> ScaleZeroConfig:
        if not self.env_ids or not all(self.env_ids):
            raise refused("env_ids", "is missing: name at least one task")
        if len(set(self.env_ids)) < len(self.env_ids) or any("+" in name for name in self.env_ids):
            raise refused("env_ids", "must be names without a +, each once")
        for key in ("task_kwargs", "solved_returns", "task_weights"):
            strangers = getattr(self, key).keys() - set(self.env_ids)
            if strangers:
                raise FieldError(f"{key}: {', '.join(sorted(strangers))} is none of env_ids", (key,))
        for name, arguments in self.task_kwargs.items():
            if not isinstance(arguments, dict):
                raise FieldError(
                    f"task_kwargs: the arguments of {name} must be a mapping", ("task_kwargs", name)
                )
        for name, score in self.solved_returns.items():
            if not (score is None or (isinstance(score, int | float) and not isinstance(score, bool))):
                raise FieldError(
                    f"solved_returns: that of {name} must be a number, or none for never",
                    ("solved_returns", name),
                )
        for name, weight in self.task_weights.items():
            if isinstance(weight, bool) or not (isinstance(weight, int | float) and weight > 0):
                raise FieldError(
                    f"task_weights: that of {name} must be a number above 0", ("task_weights", name)
                )
        if self.latent_size % self.heads:
            raise refused("heads", f"must divide latent_size {self.latent_size}, and {self.heads} does not")
        if self.stage_min_updates > self.stage_max_updates:
            raise refused("stage_min_updates", f"must be at most stage_max_updates {self.stage_max_updates}")
        if self.context_steps >= self.unroll_steps:
            raise refused(
                "context_steps", f"must be below unroll_steps {self.unroll_steps}: searches need room"
            )
        return self

    @property
    def steps_per_iteration(self) -> int:
        steps: int = self.num_envs * len(self.env_ids) * self.train_frequency
        return steps

    @property
    def tasks(self) -> tuple[str, ...]:
        return self.env_ids

    def of_task(self, name: str) -> ScaleZeroConfig:
        """The config of one of its tasks alone."""
        changes = {
            "env_id": name,
            "env_ids": (name,),
            "env_kwargs": self.env_kwargs | self.task_kwargs.get(name, {}),
        }
        return self.model_copy(update=changes)
