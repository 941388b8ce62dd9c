"""Layers and supports on blocks of states, against torch."""

from __future__ import annotations

import numba
import numpy as np
import pytest
import torch

from rl_training.algorithms.muzero import decode
from rl_training.kernels.blocks import LANES, activate, add_rows, decode_block, dense, from_block, to_block


@numba.njit
def run(states, weight, bias, table, index, activation):  # type: ignore[no-untyped-def]
    block = dense(to_block(states), weight, bias, len(states), 0)
    add_rows(block, table, index)
    activate(block, activation)
    rows = np.empty((len(states), len(weight)), np.float32)
    from_block(block, rows)
    return rows


@pytest.mark.parametrize("count", [1, 7, 8, LANES // 2 + 1, 16, LANES])
def test_a_layer_is_torchs_layer(count: int) -> None:
    """For any number of states and for widths that are no multiple of anything."""
    chance = torch.Generator().manual_seed(count)
    functions = (lambda x: x), torch.tanh, torch.relu
    for inputs, outputs in ((1, 1), (5, 3), (33, 64), (64, 23)):
        states, weight, bias, table = (
            torch.randn(*shape, generator=chance)
            for shape in ((count, inputs), (outputs, inputs), (outputs,), (4, outputs))
        )
        index = torch.randint(0, 4, (count,), generator=chance)
        arrays = [tensor.numpy() for tensor in (states, weight, bias, table, index)]
        for activation, function in enumerate(functions):
            expected = function(states @ weight.T + bias + table[index])
            torch.testing.assert_close(
                torch.from_numpy(run(*arrays, activation)), expected, rtol=1e-5, atol=1e-5
            )
            block = dense(to_block(arrays[0]), arrays[1], arrays[2], count, activation)
            expected = function(states @ weight.T + bias).T
            torch.testing.assert_close(torch.from_numpy(block[:, :count]), expected, rtol=1e-5, atol=1e-5)


def test_what_is_no_number_stays_in_its_state_and_stays_none() -> None:
    states = np.ones((LANES, 4), np.float32)
    states[3, 2] = np.nan
    weight, bias, table = np.ones((5, 4), np.float32), np.zeros(5, np.float32), np.zeros((1, 5), np.float32)
    for activation in (0, 2):
        rows = run(states, weight, bias, table, np.zeros(LANES, np.int64), activation)
        assert np.isnan(rows).all(1).nonzero()[0].tolist() == [3]
        assert np.isfinite(np.delete(rows, 3, 0)).all()


@pytest.mark.parametrize("seed", range(12))
def test_states_become_a_block_and_rows_again(seed: int) -> None:
    """Whatever their number, that of their features, and how their rows lie in memory."""
    chance = np.random.default_rng(seed)
    count, features, gap = (int(chance.integers(*ends)) for ends in ((1, LANES + 1), (1, 40), (0, 3)))
    around = chance.standard_normal((count, features + gap)).astype(np.float32)
    around[chance.integers(count), chance.integers(features)] = np.nan
    for rows in (np.ascontiguousarray(around[:, :features]), around[:, :features], np.asfortranarray(around)):
        features = rows.shape[1]
        block = to_block(rows)
        expected = np.zeros((features, LANES), np.float32)
        expected[:, :count] = rows.T
        np.testing.assert_array_equal(block, expected)
        table = chance.standard_normal((5, features)).astype(np.float32)
        index = chance.integers(0, 5, count)
        add_rows(block, table, index)
        expected[:, :count] += table[index].T
        np.testing.assert_array_equal(block, expected)
        back = np.full_like(rows, 7.0)
        from_block(block, back)
        np.testing.assert_array_equal(back, expected[:, :count].T)
    untouched = np.full((count, features + 1), 7.0, np.float32)
    from_block(block, untouched[:, :features])
    assert (untouched[:, features] == 7.0).all()


@pytest.mark.parametrize("count", [3, 8, 16, LANES])
@pytest.mark.parametrize("size", [1, 3, 300])
def test_supports_are_decoded_as_by_a_softmax(size: int, count: int) -> None:
    atoms = torch.arange(-size, size + 1.0, dtype=torch.float64)
    chance, out = torch.Generator().manual_seed(0), np.empty(count, np.float32)
    for spread in (0.0, 1.0, 30.0, 1000.0):
        logits = spread * torch.randn(2 * size + 1, LANES, generator=chance)
        decode_block(logits.numpy(), out)
        expected = decode(logits.T[:count].double(), atoms)
        torch.testing.assert_close(torch.from_numpy(out).double(), expected, rtol=1e-5, atol=1e-4)
    logits = torch.zeros(2 * size + 1, LANES)
    logits[1, 1], logits[0, 2], logits[1, 0] = float("nan"), float("inf"), -float("inf")
    decode_block(logits.numpy(), out)
    assert np.isnan(out).nonzero()[0].tolist() == [1, 2], "what is not a number must not become one"
