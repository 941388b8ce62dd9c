"""The config of behavioural cloning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import model_validator

from rl_training.parts import Brought
from rl_training.settings.families import (
    AdamSettings,
    Minibatches,
    OffPolicyConfig,
    OnPolicyConfig,
    check_spread,
)
from rl_training.settings.fields import ABSENT, changed, field, like
from rl_training.settings.gail import GAILConfig


class BCConfig(AdamSettings):
    """Behavioural cloning, for discrete and continuous actions: supervised learning of an expert's actions."""

    counts: ClassVar[str] = "observation-action pairs"
    obeys_action_masks: ClassVar[bool] = True
    samples_on_atari: ClassVar[bool] = True
    laid_out_by: ClassVar[tuple[str, ...]] = ("network", "encoder")
    for_pictures: ClassVar[Mapping[str, Any]] = {"hidden_sizes": ()}

    algo: Literal["bc"] = "bc"
    # Nothing is played in training: there are no environments, no rewards and no returns.
    num_envs = ABSENT
    gamma = ABSENT
    normalize_rewards = ABSENT
    vectorization: Literal["sync"] = field(
        "sync", "Environments of evaluations: sync only, since training takes no steps in any."
    )
    total_timesteps = changed(
        1_000_000, "Total observation-action pairs learned from; a pair counts each time it is used."
    )
    log_interval = changed(None, "Steps between log lines; none: 1/50 of the run, at least one iteration.")
    demonstrations: str = like(GAILConfig)
    expert_episodes: int | None = like(GAILConfig)
    expert_keep_every: int = like(GAILConfig)
    learning_rate = changed(1e-3, "Learning rate of Adam.")
    batch_size: int = like(OffPolicyConfig, 64, "Batch size in observation-action pairs.")
    num_minibatches: int = like(Minibatches, 16, "Number of minibatches per iteration.")
    ent_coef: float = like(OnPolicyConfig)
    max_grad_norm: float | None = like(OnPolicyConfig, None)
    network: Annotated[Any, Brought("acting")] = like(OnPolicyConfig)
    encoder: Annotated[Any, Brought("acting")] = like(OnPolicyConfig)
    layer_norm: bool = like(OnPolicyConfig)
    log_std_init: float = like(OnPolicyConfig)
    state_dependent_std: bool = like(OnPolicyConfig)

    @property
    def steps_per_iteration(self) -> int:
        return self.batch_size * self.num_minibatches

    @property
    def log_every(self) -> int:
        """A quarter of the lines of runs that play: these take a second in all, and no episode varies between them."""
        interval: int = self.log_interval or self.total_timesteps // 50
        return max(interval, self.steps_per_iteration)

    @property
    def shared_trunk(self) -> bool:
        return True  # a critic is a part of every actor-critic; nothing teaches it here

    @property
    def squash_actions(self) -> bool:
        return False  # an expert's action at its bound would be infinitely far away

    @property
    def actor_sizes(self) -> None:
        return None

    @property
    def critic_sizes(self) -> None:
        return None

    @model_validator(mode="after")
    def _the_first_spread_is_between_its_bounds(self) -> BCConfig:
        check_spread(self)
        return self
