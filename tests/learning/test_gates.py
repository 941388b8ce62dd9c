"""`make learn`: every gate, every seed."""

import pytest
from learning import pong, tictactoe
from learning.gates import GATES, passed, run_gate, table


@pytest.mark.learn
@pytest.mark.parametrize("name", GATES)
def test_gate(name):
    outcomes = run_gate(GATES[name])
    report = table(GATES[name], outcomes)
    print("\n" + report)
    assert passed(GATES[name], outcomes), report


@pytest.mark.learn
def test_pong_improves():
    assert pong.main([]) == 0


@pytest.mark.learn
def test_tictactoe_is_not_lost():
    assert tictactoe.main([]) == 0
