"""IMPALA (Espeholt et al. 2018, arXiv 1802.01561): an actor-critic learner whose actors lag behind by a few updates."""

from __future__ import annotations

from torch import Tensor

from rl_training.algorithms.a2c import A2C_SLOPES, a2c_loss
from rl_training.algorithms.returns import Estimates


def impala_loss(
    log_prob: Tensor,
    entropy: Tensor,
    value: Tensor,
    targets: Estimates,
    *,
    ent_coef: float,
    vf_coef: float,
) -> tuple[Tensor, dict[str, Tensor]]:
    """-E[log π(a|s) A] + c_v ½ E[(V - v)²] - c_e E[H] (section 4.2), and its parts.

    `log_prob`, `entropy` and `value` [T, B] are the learner's; `targets` holds V-trace's `advantage`, which its ρ
    weights already, and `return` v. The form is A2C's: what makes it right for old actions is in the targets. The
    paper sums over the batch; means keep the step the same when the batch grows.
    """
    return a2c_loss(
        log_prob,
        entropy,
        value,
        targets["advantage"],
        targets["return"],
        ent_coef=ent_coef,
        vf_coef=vf_coef,
    )


# The form is A2C's, and so are the slopes.
IMPALA_SLOPES = A2C_SLOPES._replace(of=impala_loss, given=())
