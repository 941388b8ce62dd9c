"""Loaded only by the fork server: unblocks, in the processes it forks, the signals that it blocks for itself."""

import json
import os
import signal

from rl_training.processes import OURS, SAFE_PATH, SIGNALS, WARM_UP

os.register_at_fork(after_in_child=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS))
if os.environ.get(SAFE_PATH) == OURS:  # not for what the processes start in turn
    del os.environ[SAFE_PATH]
if settings := os.environ.pop(WARM_UP, ""):
    from rl_training.tools.warming import warm_up

    warm_up(json.loads(settings))
