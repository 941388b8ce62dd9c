"""Observers for tests."""

from pathlib import Path

from rl_training import Observer


class Notes(Observer):
    """Notes what it hears of, and asks to stop after so many checkpoints."""

    def __init__(self, checkpoints: int = 0) -> None:
        self.checkpoints = checkpoints
        self.heard: list[tuple[str, int, int]] = []

    def on_log(self, step, metrics):
        self.heard.append(("log", step, len(metrics)))

    def on_evaluation(self, step, metrics):
        self.heard.append(("evaluation", step, len(metrics)))

    def on_checkpoint(self, step, path):
        assert Path(path, "state.json").is_file()
        self.heard.append(("checkpoint", step, 0))
        heard = sum(what == "checkpoint" for what, *_ in self.heard)
        return f"{heard} checkpoints" if heard == self.checkpoints else None


class Failing(Observer):
    """Raises at its third log line, until it is mended."""

    mended = False

    def __init__(self) -> None:
        self.lines = 0

    def on_log(self, step, metrics):
        self.lines += 1
        if self.lines == 3 and not Failing.mended:
            raise ValueError("no\nmore")
