"""An algorithm of one's own: REINFORCE with a learned baseline (Williams 1992). Run it with --help."""

from typing import Literal

from rl_training.cli import main
from rl_training.config import field, schedulable
from rl_training.registry import ALGORITHMS
from rl_training.runtime.controls import Knobs
from rl_training.runtime.metrics import Metrics
from rl_training.runtime.on_policy import OnPolicyConfig, OnPolicyTrainer
from rl_training.runtime.optim import Adam


@schedulable
class ReinforceConfig(OnPolicyConfig):
    """REINFORCE, for discrete and continuous actions."""

    algo: Literal["reinforce"] = field("reinforce", "The algorithm.")
    learning_rate: float = field(1e-3, "Adam's step size.")
    gae_lambda: float = field(1.0, "Decay per step of the advantage estimate; 1: whole returns.")
    shared_trunk: bool = field(False, "Whether actor and baseline share their encoder.")


class ReinforceTrainer(OnPolicyTrainer):
    """REINFORCE: one step along the returns' gradient after each rollout."""

    config_class = ReinforceConfig

    def __init__(self, config: ReinforceConfig) -> None:
        super().__init__(config)
        self.optimizer = Adam([self.agent.network])

    def iterate(self, knobs: Knobs) -> Metrics:
        rollout, metrics = self.collect()
        now = knobs.after(metrics.steps)
        metrics.add(self.add_advantages(rollout, now))
        batch = self.flat_batch(rollout)
        log_prob, entropy, value = self.agent.evaluate(batch["obs"], batch["action"])
        policy_loss = -(batch["advantage"] * log_prob).mean()
        value_loss = (batch["return"] - value).square().mean()
        loss = policy_loss + now.vf_coef * value_loss - now.ent_coef * entropy.mean()
        metrics.add({"policy_loss": policy_loss.item(), "value_loss": value_loss.item()})
        metrics.add(self.optimizer.step(loss, now.learning_rate, now.max_grad_norm))
        return metrics


ALGORITHMS["reinforce"] = "reinforce:ReinforceTrainer"

if __name__ == "__main__":
    main()
