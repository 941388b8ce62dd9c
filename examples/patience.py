"""An observer of one's own: stops a run when evaluations no longer improve."""

from collections.abc import Mapping

from rl_training import Observer


class Patience(Observer):
    """Asks the run to stop after `patience` evaluations in a row without a better mean return."""

    def __init__(self, patience: int = 5) -> None:
        self.patience = patience
        self.best = float("-inf")
        self.waited = 0

    def on_evaluation(self, step: int, metrics: Mapping[str, float]) -> str | None:
        score = metrics["eval/mean_return"]
        self.waited = 0 if score > self.best else self.waited + 1
        self.best = max(self.best, score)
        return f"no better return in {self.waited} evaluations" if self.waited >= self.patience else None
