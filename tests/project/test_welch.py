"""The test of significance that the learning gate of Pong uses, against tables."""

import numpy as np
import pytest
from learning.pong import student_tail, welch


@pytest.mark.parametrize(
    ("t", "dof", "p"),
    [
        (2.0, 10, 0.036694),
        (-2.0, 10, 1 - 0.036694),
        (0.0, 7, 0.5),
        (1.0, 1, 0.25),  # Cauchy: 1/2 - arctan(1)/π
        (6.313752, 1, 0.05),
        (2.365, 98, 0.01),
        (1.959964, 10**6, 0.025),  # nearly normal
    ],
)
def test_the_tail_of_student(t, dof, p):
    assert student_tail(t, dof) == pytest.approx(p, rel=1e-3)


def test_welch_by_hand():
    """Means 5 and 2, variances 5/3 and 1: v = 5/12 and 1/3, t = 3/√0.75, with 0.75² / (v₁²/3 + v₂²/2) = 4.96 dof."""
    t, p = welch(np.array([3.5, 4.5, 5.5, 6.5]), np.array([1.0, 2.0, 3.0]))
    assert t == pytest.approx(3 / 0.75**0.5)
    assert p == pytest.approx(student_tail(t, 0.5625 / ((5 / 12) ** 2 / 3 + (1 / 3) ** 2 / 2)))
    assert p == pytest.approx(0.0090, abs=2e-4)
    assert p > 0.00027, "the normal tail would be much too small here"
