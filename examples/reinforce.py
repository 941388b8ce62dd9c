"""An algorithm of one's own: REINFORCE with a learned baseline (Williams 1992). Run it with --help."""

from typing import Literal

from rl_training import Adam, Knobs, Metrics, OnPolicyConfig, OnPolicyTrainer, changed, field, knob, register
from rl_training.cli import main


class ReinforceConfig(OnPolicyConfig):
    """REINFORCE, for discrete and continuous actions."""

    algo: Literal["reinforce"] = "reinforce"
    learning_rate = 1e-3
    gae_lambda = changed(1.0, "Decay per step of the advantage estimate; 1: whole returns.")
    baseline_coef: float = knob(1.0, "Share of the baseline that is subtracted from returns.", high=1.0)
    shared_trunk: bool = field(False, "Whether actor and baseline share their encoder.")


class ReinforceTrainer(OnPolicyTrainer[ReinforceConfig]):
    """REINFORCE: one step along the returns' gradient after each rollout."""

    config_class = ReinforceConfig

    def __init__(self, config: ReinforceConfig) -> None:
        super().__init__(config)
        self.optimizer = Adam([self.agent.network])

    def iterate(self, knobs: Knobs) -> Metrics:
        rollout, metrics = self.collect()
        now = knobs.after(metrics.steps)
        estimates = self.estimate_advantages(rollout, now, metrics)
        batch = self.flat_batch(rollout, estimates)
        log_prob, entropy, value = self.agent.evaluate(batch["obs"], batch["action"])
        advantage = batch["return"] - now.baseline_coef * batch["value"]
        policy_loss = -(advantage * log_prob).mean()
        value_loss = (batch["return"] - value).square().mean()
        loss = policy_loss + now.vf_coef * value_loss - now.ent_coef * entropy.mean()
        metrics.add({"policy_loss": policy_loss.item(), "value_loss": value_loss.item()})
        metrics.add(self.optimizer.step(loss, now.learning_rate, now.max_grad_norm))
        return metrics


register("reinforce", ReinforceTrainer)

if __name__ == "__main__":
    main()
